//! Random changes of files' data: the model, e2fsck and the kernel see the same.

use lanefs_engine::{Allocate, Error, Ino, InodeFs};
use model::{FileBytes, Random};
use sync::Arc;

use crate::files::{self, change, contents, first_difference, judge, opened, with_files};

const EXT3: &[&str] = &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"];

fn find(fs: &InodeFs, name: &str) -> Ino {
    fs.resolve(name.as_bytes(), true).unwrap()
}

/// What is data and what is not, for blocks of the model's size.
fn compare_runs(fs: &InodeFs, ino: Ino, content: &FileBytes) {
    let blocks = content.size().div_ceil(4096);
    if blocks == 0 {
        return;
    }
    for run in fs.mappings_in(ino, 0..blocks).unwrap() {
        for block in run.logical..run.end() {
            assert_eq!(run.is_data(), content.is_data(block), "block {block}");
            assert_eq!(
                run.physical.is_some(),
                content.is_allocated(block),
                "block {block}"
            );
        }
    }
}

fn run(options: &[&str], seed: u64, steps: usize) {
    let names = ["one", "two"];
    let Some(image) = with_files(options, 16 << 20, &names) else {
        return;
    };
    let with_extents = !options.iter().any(|option| option.contains("^extents"));
    let (device, mut fs) = opened(&image);
    let mut random = Random::new(seed);
    let mut expected = [FileBytes::default(), FileBytes::default()];
    for step in 0..steps {
        let which = random.below(2) as usize;
        let (ino, content) = (find(&fs, names[which]), &mut expected[which]);
        let next = files::random(&mut random, content.size(), 600_000, with_extents);
        if content.size() > 2_000_000 {
            fs.truncate(ino, 1000).unwrap();
            content.truncate(1000);
        }
        change(&fs, ino, content, &next);
        let found = contents(&fs, ino);
        let difference = first_difference(&found, &content.bytes());
        assert_eq!(difference, None, "seed {seed} step {step}: {next:?}");
        if options.contains(&"4096") {
            compare_runs(&fs, ino, content);
        }
        if random.one_in(10) {
            fs.fsync(ino).unwrap();
        }
        if random.one_in(60) || step + 1 == steps {
            fs.close().unwrap();
            judge(
                &device,
                &[
                    (names[0], expected[0].bytes()),
                    (names[1], expected[1].bytes()),
                ],
            );
            fs = crate::image::open(Arc::clone(&device) as Arc<dyn device::BlockDevice>);
        }
    }
    fs.close().unwrap();
}

#[test]
fn random_changes_give_what_the_model_says() {
    for seed in 0..3 {
        run(&["-b", "1024"], seed, 200);
        run(&["-b", "4096"], seed, 200);
        run(&["-b", "2048", "-O", "^metadata_csum,^64bit"], seed, 100);
    }
}

/// Asked for: minutes of it.
#[test]
#[ignore = "minutes: cargo xtask suites long"]
fn many_random_changes_give_what_the_model_says() {
    for seed in 100..140 {
        run(&["-b", "1024"], seed, 300);
        run(&["-b", "4096"], seed, 300);
        run(EXT3, seed, 300);
    }
}

#[test]
fn random_changes_of_mapped_files_give_what_the_model_says() {
    for seed in 0..3 {
        run(EXT3, seed, 200);
    }
}

#[test]
fn a_tree_of_three_levels_is_built_cut_and_read() {
    let Some(image) = with_files(&["-b", "1024"], 96 << 20, &["one"]) else {
        return;
    };
    let (device, fs) = opened(&image);
    let ino = find(&fs, "one");
    let blocks = 40_000;
    fs.allocate(ino, Allocate::Grow, 0, blocks * 1024).unwrap();
    // Every second block in an order that splits nodes in their middles.
    let mut expected = vec![0; blocks as usize * 1024];
    for step in 0..blocks / 2 {
        let block = step * 7919 % (blocks / 2) * 2;
        let bytes = [1 + (block % 251) as u8; 1024];
        assert_eq!(fs.write(ino, block * 1024, &bytes).unwrap(), 1024);
        let at = block as usize * 1024;
        expected[at..at + 1024].copy_from_slice(&bytes);
    }
    let depth = fs.inode(ino).unwrap().mappings().unwrap().count();
    assert_eq!(depth as u64, blocks);
    assert_eq!(first_difference(&contents(&fs, ino), &expected), None);
    fs.sync().unwrap();
    // Punched in many steps, then cut in many steps.
    fs.allocate(ino, Allocate::Punch, 1024 * 3, 1024 * 9000)
        .unwrap();
    expected[1024 * 3..1024 * 9003].fill(0);
    let Err(Error::NotSupported(_)) = fs.allocate(ino, Allocate::Collapse, 0, 1024) else {
        panic!("more extents than one step moves");
    };
    assert_eq!(first_difference(&contents(&fs, ino), &expected), None);
    fs.close().unwrap();
    judge(&device, &[("one", expected.clone())]);
    let fs = crate::image::open(Arc::clone(&device) as Arc<dyn device::BlockDevice>);
    fs.truncate(ino, 1024 * 9500 + 1).unwrap();
    expected.truncate(1024 * 9500 + 1);
    assert_eq!(first_difference(&contents(&fs, ino), &expected), None);
    fs.allocate(ino, Allocate::Collapse, 0, 1024).unwrap();
    expected.drain(..1024);
    fs.close().unwrap();
    judge(&device, &[("one", expected)]);
}

#[test]
fn a_full_image_keeps_a_prefix_and_gives_its_space_back() {
    for options in [&["-b", "1024"][..], EXT3] {
        let Some(image) = with_files(options, 8 << 20, &["one", "two"]) else {
            return;
        };
        let (device, fs) = opened(&image);
        let (one, two) = (find(&fs, "one"), find(&fs, "two"));
        let bytes: Vec<u8> = (0..12 << 20).map(|at: u32| (at / 512) as u8 | 1).collect();
        for _ in 0..3 {
            let written = fs.write(one, 0, &bytes).unwrap();
            assert!(written > 4 << 20 && written < 8 << 20, "{written}");
            assert!(matches!(fs.write(two, 0, b"no room"), Err(Error::NoSpace)));
            assert_eq!(
                first_difference(&contents(&fs, one), &bytes[..written]),
                None
            );
            fs.truncate(one, 10).unwrap();
            assert_eq!(fs.write(two, 0, b"room again").unwrap(), 10);
            fs.truncate(two, 0).unwrap();
        }
        fs.close().unwrap();
        judge(
            &device,
            &[("one", bytes[..10].to_vec()), ("two", Vec::new())],
        );
    }
}

/// Blocks that were reserved can be written when no other is free, though their tree would need one to be split.
#[test]
fn what_was_reserved_can_be_written_on_a_full_image() {
    let Some(image) = with_files(&["-b", "1024"], 8 << 20, &["one", "two"]) else {
        return;
    };
    let (device, fs) = opened(&image);
    let (one, two) = (find(&fs, "one"), find(&fs, "two"));
    fs.allocate(one, Allocate::Grow, 0, 1 << 20).unwrap();
    let filler = vec![7; 8 << 20];
    let filled = fs.write(two, 0, &filler).unwrap();
    let mut expected = vec![0; 1 << 20];
    for step in 0..200_usize {
        let at = step * 37 % 511 * 2048 + 100;
        expected[at..at + 1100].fill(step as u8 + 1);
        assert_eq!(
            fs.write(one, at as u64, &[step as u8 + 1; 1100]).unwrap(),
            1100,
            "{step}"
        );
    }
    assert_eq!(first_difference(&contents(&fs, one), &expected), None);
    fs.close().unwrap();
    judge(
        &device,
        &[("one", expected), ("two", filler[..filled].to_vec())],
    );
}

#[test]
fn seeking_finds_data_and_holes() {
    let Some(image) = with_files(&["-b", "4096"], 8 << 20, &["one"]) else {
        return;
    };
    let (_device, fs) = opened(&image);
    let ino = find(&fs, "one");
    assert_eq!(fs.seek_data(ino, 0).unwrap(), None);
    fs.write(ino, 8192, &[1; 100]).unwrap();
    fs.allocate(ino, Allocate::Grow, 16384, 4096).unwrap();
    assert_eq!(fs.seek_data(ino, 5).unwrap(), Some(8192));
    assert_eq!(fs.seek_data(ino, 8200).unwrap(), Some(8200));
    assert_eq!(fs.seek_data(ino, 12288).unwrap(), None);
    assert_eq!(fs.seek_hole(ino, 0).unwrap(), Some(0));
    assert_eq!(fs.seek_hole(ino, 8192).unwrap(), Some(12288));
    assert_eq!(fs.seek_hole(ino, 17000).unwrap(), Some(17000));
    assert_eq!(fs.seek_hole(ino, 20480).unwrap(), None);
    fs.close().unwrap();
}
