//! Directories with many names, and many threads in them.

use std::collections::BTreeMap;

use lanefs_engine::{Ino, InodeFs, RenameFlag};
use testkit::Random;

use crate::image::{NEW, finish, make};

fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.index(last + 1));
    }
}

fn names_of(fs: &InodeFs, directory: Ino) -> BTreeMap<Vec<u8>, Ino> {
    fs.read_dir(directory)
        .unwrap()
        .map(Result::unwrap)
        .filter(|entry| entry.name != b"." && entry.name != b"..")
        .map(|entry| (entry.name, entry.ino))
        .collect()
}

/// What the kernel sees of an image: the names in a directory, each of which it can look up.
fn seen_by_kernel(image: &[u8], directory: &str) -> Option<Vec<Vec<u8>>> {
    if !testkit::is_root() {
        testkit::skip("needs root to mount");
        return None;
    }
    use std::os::unix::ffi::OsStringExt;
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("image");
    testkit::write_image(&path, image);
    let mounted = testkit::KernelMount::read_only(&path).unwrap();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(mounted.path().join(directory)).unwrap() {
        let entry = entry.unwrap();
        std::fs::symlink_metadata(entry.path()).unwrap();
        names.push(entry.file_name().into_vec());
    }
    names.sort();
    Some(names)
}

/// Creates `count` names in random order, removes most of them in another, creates some again.
fn grow_and_shrink(options: &[&str], size: u64, count: usize) {
    let Some(image) = make(options, size) else {
        return;
    };
    let mut numbers = Random::new(7);
    let mut names: Vec<Vec<u8>> = (0..count)
        .map(|number| {
            let mut name = format!("{number}-").into_bytes();
            name.resize(name.len() + numbers.index(40), b'n');
            name
        })
        .collect();
    shuffle(&mut numbers, &mut names);
    let mut expected = BTreeMap::new();
    let bytes = finish(&image, |fs| {
        let directory = fs.mkdir(Ino::ROOT, b"many", NEW).unwrap();
        let one = fs.create(Ino::ROOT, b"one", NEW).unwrap();
        for (step, name) in names.iter().enumerate() {
            // Names of one inode, up to as many as it may have, so that few inodes do.
            let ino = match step % 4 {
                0 => fs.create(directory, name, NEW).unwrap(),
                _ => {
                    fs.link(one, directory, name).unwrap();
                    one
                }
            };
            expected.insert(name.clone(), ino);
        }
        assert_eq!(names_of(&fs, directory), expected);
        shuffle(&mut numbers, &mut names);
        for name in &names[count / 10..] {
            fs.unlink(directory, name).unwrap();
            expected.remove(name);
        }
        assert_eq!(names_of(&fs, directory), expected);
        for name in &names[count / 10..count / 5] {
            fs.link(one, directory, name).unwrap();
            expected.insert(name.clone(), one);
        }
        for (name, ino) in &expected {
            assert_eq!(fs.lookup(directory, name).unwrap(), *ino);
        }
        fs.close().unwrap();
    });
    if let Some(seen) = seen_by_kernel(&bytes, "many") {
        let expected: Vec<Vec<u8>> = expected.into_keys().collect();
        assert!(
            seen == expected,
            "{} names of {}",
            seen.len(),
            expected.len()
        );
    }
}

#[test]
fn an_index_of_several_levels_holds_20_000_names_in_random_order() {
    grow_and_shrink(&["-b", "1024", "-N", "8192"], 64 << 20, 20_000);
}

#[test]
fn an_index_without_checksums_and_extents_grows_and_shrinks() {
    let options = [
        "-b",
        "1024",
        "-N",
        "4096",
        "-O",
        "^extents,^filetype,^metadata_csum,^64bit,^flex_bg,^huge_file,^metadata_csum_seed,^orphan_file",
    ];
    grow_and_shrink(&options, 32 << 20, 6_000);
}

#[test]
fn a_linear_directory_grows_and_shrinks() {
    let options = ["-b", "1024", "-N", "2048", "-O", "^dir_index"];
    grow_and_shrink(&options, 16 << 20, 1_500);
}

#[test]
fn threads_in_the_same_directories_keep_the_tree_whole() {
    let Some(image) = make(&["-b", "1024", "-N", "4096"], 32 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let directories: Vec<Ino> = (0..3)
            .map(|number| {
                let name = format!("d{number}").into_bytes();
                fs.mkdir(Ino::ROOT, &name, NEW).unwrap()
            })
            .collect();
        sync::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (fs, directories) = (&fs, &directories);
                scope.spawn(move || churn(fs, directories, thread));
            }
        });
        let mut links: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut rest = directories.clone();
        while let Some(directory) = rest.pop() {
            let mut subdirectories = 0;
            for (name, ino) in names_of(&fs, directory) {
                let inode = fs.metadata(ino).unwrap();
                assert_eq!(fs.lookup(directory, &name).unwrap(), ino);
                if inode.file_type == lanefs_engine::FileType::Directory {
                    assert_eq!(fs.lookup(ino, b"..").unwrap(), directory);
                    subdirectories += 1;
                    rest.push(ino);
                } else {
                    *links.entry(ino).or_default() += 1;
                }
            }
            assert_eq!(fs.metadata(directory).unwrap().nlink, 2 + subdirectories);
        }
        for (ino, links) in links {
            assert_eq!(fs.metadata(ino).unwrap().nlink, links);
        }
        fs.close().unwrap();
    });
}

/// Random operations on few names, any of which may fail because another thread was first.
fn churn(fs: &InodeFs, directories: &[Ino], thread: u64) {
    let mut numbers = Random::new(thread);
    for step in 0..1500 {
        let mut named = |limit: usize| {
            let directory = directories[numbers.index(directories.len())];
            let mut name = format!("n{}", numbers.index(limit)).into_bytes();
            // Long enough that the directories get an index.
            name.resize(40, b'x');
            (directory, name)
        };
        let (from, to) = (named(60), named(60));
        let result = match (step + thread as usize) % 7 {
            0 | 1 => fs.create(from.0, &from.1, NEW).map(drop),
            2 => fs.unlink(from.0, &from.1),
            3 => fs.mkdir(from.0, &from.1, NEW).map(drop),
            4 => fs
                .lookup(from.0, &from.1)
                .and_then(|ino| fs.link(ino, to.0, &to.1)),
            5 => fs.rename(from.0, &from.1, to.0, &to.1, RenameFlag::Replace),
            _ => match step % 3 {
                0 => fs.rmdir(from.0, &from.1),
                1 => fs.rename(from.0, &from.1, to.0, &to.1, RenameFlag::Exchange),
                _ => move_below(fs, from, to),
            },
        };
        use lanefs_engine::Error as E;
        match result {
            Ok(())
            | Err(
                E::NotFound
                | E::Exists
                | E::NotEmpty
                | E::IsDirectory
                | E::NotDirectory
                | E::NotPermitted
                | E::InvalidArgument,
            ) => {}
            Err(other) => panic!("{other:?}"),
        }
        if step % 300 == 0 {
            fs.sync().unwrap();
        }
    }
}

/// Moves one name into what another names, if that is a directory.
fn move_below(
    fs: &InodeFs,
    from: (Ino, Vec<u8>),
    to: (Ino, Vec<u8>),
) -> Result<(), lanefs_engine::Error> {
    let below = fs.lookup(to.0, &to.1)?;
    fs.rename(from.0, &from.1, below, &from.1, RenameFlag::Replace)
}

/// Adds long names until `count` are there or the directory is full; gives how many there are.
fn fill(options: &[&str], count: usize) -> Option<usize> {
    let image = make(options, 96 << 20)?;
    let mut added = 0;
    let bytes = finish(&image, |fs| {
        let directory = fs.mkdir(Ino::ROOT, b"long", NEW).unwrap();
        let one = fs.create(Ino::ROOT, b"one", NEW).unwrap();
        for number in 0..count {
            let mut name = format!("{number}-").into_bytes();
            name.resize(255, b'l');
            match fs.link(one, directory, &name) {
                Ok(()) => added += 1,
                Err(lanefs_engine::Error::DirectoryFull) => break,
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(names_of(&fs, directory).len(), added);
        fs.close().unwrap();
    });
    if let Some(seen) = seen_by_kernel(&bytes, "long") {
        assert_eq!(seen.len(), added);
    }
    Some(added)
}

#[test]
fn with_large_dir_an_index_gets_another_level_where_it_is_full_without() {
    let Some(added) = fill(&["-b", "1024", "-N", "1024"], 30_000) else {
        return;
    };
    assert!((15_000..30_000).contains(&added), "{added}");
    let large = ["-b", "1024", "-N", "1024", "-O", "large_dir"];
    assert_eq!(fill(&large, 30_000), Some(30_000));
}

/// Lists a directory one entry at a time while names come and go around those that stay.
fn list_while_changing(options: &[&str]) {
    let Some(image) = make(options, 16 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let directory = fs.mkdir(Ino::ROOT, b"busy", NEW).unwrap();
        let one = fs.create(Ino::ROOT, b"one", NEW).unwrap();
        for stays in 0..12 {
            let name = format!("stays-{stays}").into_bytes();
            fs.link(one, directory, &name).unwrap();
        }
        let mut others = 0;
        for round in 0..2 {
            let (mut found, mut cookie) = (Vec::new(), 0);
            while let Some(entry) = fs.read_dir_from(directory, cookie).unwrap().next() {
                let entry = entry.unwrap();
                assert!(entry.cookie > cookie);
                cookie = entry.cookie;
                found.push(entry.name);
                for _ in 0..4 {
                    let name = format!("{others}-other-{:060}", others * 7919);
                    others += 1;
                    if others < 400 {
                        fs.link(one, directory, name.as_bytes()).unwrap();
                    }
                }
            }
            let count = |wanted: &[u8]| found.iter().filter(|name| *name == wanted).count();
            assert_eq!((count(b"."), count(b"..")), (1, 1), "round {round}");
            for stays in 0..12 {
                let name = format!("stays-{stays}");
                assert_eq!(count(name.as_bytes()), 1, "round {round}: {name}");
            }
        }
        fs.close().unwrap();
    });
}

#[test]
fn a_listing_gives_each_name_that_stays_once_whatever_splits_meanwhile() {
    list_while_changing(&["-b", "1024"]);
    list_while_changing(&["-b", "1024", "-O", "^dir_index"]);
}
