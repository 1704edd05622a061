//! Files whose maps name the file system's own blocks, or blocks that are free, and inodes that the bitmap has as free:
//! every change of them is refused by name, and e2fsck finds of the image what it found before.

use device::BlockDevice;
use lanefs_engine::{Allocate, Error, Ino, InodeFs, NewInode};
use simulate::CowDevice;
use sync::Arc;

use crate::files::opened;
use crate::image::{make, open};

const NEW: NewInode = NewInode {
    mode: 0o755,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// What debugfs makes of an image; `None` if debugfs is not installed.
fn debugfs(image: &[u8], commands: &[String]) -> Option<Vec<u8>> {
    if !testkit::have("debugfs") {
        testkit::skip("needs debugfs");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let (path, script) = (directory.path().join("image"), directory.path().join("s"));
    testkit::write_image(&path, image);
    std::fs::write(&script, commands.join("\n") + "\n").unwrap();
    let paths = [script.to_str().unwrap(), path.to_str().unwrap()];
    testkit::debugfs(&["-w", "-f", paths[0], paths[1]]);
    Some(testkit::read_image(&path))
}

/// What e2fsck says of an image, except the image's name and the last line, which counts.
fn complaints(image: &[u8]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    let output = testkit::e2fsck_with(&["-fn"], &path);
    let text = String::from_utf8_lossy(&output.stdout);
    let name = path.to_str().unwrap();
    text.lines()
        .filter(|line| !line.contains("% non-contiguous"))
        .map(|line| line.replace(name, "image"))
        .collect()
}

/// An image with a file of one extent, one with a tree, a directory, and one to share blocks with.
fn populated(options: &[&str]) -> Option<Vec<u8>> {
    let image = make(options, 8 << 20)?;
    let (device, fs) = opened(&image);
    for name in [&b"one"[..], b"two"] {
        let ino = fs.create(Ino::ROOT, name, NEW).unwrap();
        fs.write(ino, 0, &[7; 5000]).unwrap();
    }
    let tree = fs.create(Ino::ROOT, b"tree", NEW).unwrap();
    for piece in 0..300 {
        fs.write(tree, piece * 2048, &[9; 1024]).unwrap();
    }
    fs.mkdir(Ino::ROOT, b"dir", NEW).unwrap();
    fs.close().unwrap();
    Some(device.bytes())
}

fn word(image: &[u8], at: usize) -> u64 {
    u32::from_le_bytes(image[at..at + 4].try_into().unwrap()).into()
}

/// The file system's own blocks, one of each kind, of an image with blocks of 1 KiB.
fn own_blocks(image: &[u8]) -> Vec<(&'static str, u64)> {
    let (_, fs) = opened(image);
    let journal = fs.mappings(Ino::JOURNAL).unwrap().next().unwrap().unwrap();
    let descriptors = 2048;
    vec![
        ("superblock", 1),
        ("descriptors", 2),
        ("reserved descriptors", 3),
        ("block bitmap", word(image, descriptors)),
        ("inode bitmap", word(image, descriptors + 4)),
        ("inode table", word(image, descriptors + 8) + 5),
        ("journal", journal.physical.unwrap().0 + 3),
    ]
}

type Change = (&'static str, fn(&InodeFs, Ino, &[u8]) -> Result<(), Error>);

const CHANGES: [Change; 6] = [
    ("truncate", |fs, ino, _| fs.truncate(ino, 0)),
    ("write", |fs, ino, _| fs.write(ino, 0, &[1; 4096]).map(drop)),
    ("read", |fs, ino, _| {
        fs.read(ino, 0, &mut [0; 1024]).map(drop)
    }),
    ("punch", |fs, ino, _| {
        fs.allocate(ino, Allocate::Punch, 0, 4096)
    }),
    ("unlink", |fs, _, name| fs.unlink(Ino::ROOT, name)),
    ("replace", |fs, _, name| {
        let flag = lanefs_engine::RenameFlag::Replace;
        fs.rename(Ino::ROOT, b"two", Ino::ROOT, name, flag)
    }),
];

/// Each change of the file is refused for `block`, and e2fsck finds what it found before.
fn refused(file: &str, what: &str, image: &[u8], block: u64) {
    let before = complaints(image);
    for (name, change) in CHANGES {
        let (device, fs) = opened(image);
        let ino = fs.resolve(file.as_bytes(), false).unwrap();
        let error = change(&fs, ino, file.as_bytes())
            .expect_err(&format!("{name} of a file in the {what}"));
        assert!(
            matches!(error, Error::Corrupt(_)),
            "{name}, {what}: {error}"
        );
        let text = error.to_string();
        let place = format!("inode {}", ino.0);
        assert!(text.contains(&place), "{name}, {what}: {text}");
        assert!(
            text.contains(&format!("block {block}")),
            "{name}, {what}: {text}"
        );
        // Others go on.
        fs.create(Ino::ROOT, b"new", NEW).unwrap();
        fs.unlink(Ino::ROOT, b"new").unwrap();
        fs.close().unwrap();
        assert_eq!(complaints(&device.bytes()), before, "{name}, {what}");
    }
}

#[test]
fn an_extent_in_the_file_systems_own_blocks_is_refused_by_every_change() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    for (what, block) in own_blocks(&image) {
        let Some(bad) = debugfs(&image, &[format!("sif one block[5] {block}")]) else {
            return;
        };
        refused("one", what, &bad, block);
    }
}

#[test]
fn a_tree_or_a_map_in_the_file_systems_own_blocks_is_refused_by_every_change() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    for (what, block) in own_blocks(&image) {
        let Some(bad) = debugfs(&image, &[format!("sif tree block[4] {block}")]) else {
            return;
        };
        refused("tree", what, &bad, block);
    }
    let Some(image) = populated(&["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"]) else {
        return;
    };
    for (what, block) in own_blocks(&image) {
        let Some(bad) = debugfs(&image, &[format!("sif one block[0] {block}")]) else {
            return;
        };
        refused("one", what, &bad, block);
        // The direct blocks are holes, so that the first change meets the pointer.
        let mut commands = vec![format!("sif tree block[IND] {block}")];
        commands.extend((0..12).map(|at| format!("sif tree block[{at}] 0")));
        let Some(bad) = debugfs(&image, &commands) else {
            return;
        };
        let (_, fs) = opened(&bad);
        let ino = fs.resolve(b"tree", false).unwrap();
        let error = fs.truncate(ino, 0).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)), "{what}: {error}");
        fs.close().unwrap();
    }
}

#[test]
fn directories_and_attributes_in_the_file_systems_own_blocks_are_refused() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    for (what, block) in own_blocks(&image) {
        let directory = [format!("sif dir block[5] {block}")];
        let Some(bad) = debugfs(&image, &directory) else {
            return;
        };
        let (_, fs) = opened(&bad);
        let ino = fs.resolve(b"dir", false).unwrap();
        let outcomes = [
            fs.create(ino, b"a", NEW).map(drop),
            fs.rmdir(Ino::ROOT, b"dir"),
            fs.lookup(ino, b"a").map(drop),
        ];
        for outcome in outcomes {
            assert!(
                matches!(outcome, Err(Error::Corrupt(_))),
                "{what}: {outcome:?}"
            );
        }
        fs.close().unwrap();
        let Some(bad) = debugfs(&image, &[format!("sif one file_acl {block}")]) else {
            return;
        };
        let (_, fs) = opened(&bad);
        let ino = fs.resolve(b"one", false).unwrap();
        let outcomes = [fs.xattrs(ino).map(drop), fs.unlink(Ino::ROOT, b"one")];
        for outcome in outcomes {
            assert!(
                matches!(outcome, Err(Error::Corrupt(_))),
                "{what}: {outcome:?}"
            );
        }
        fs.close().unwrap();
    }
}

/// A second file with the blocks of the first: they are freed once, before and after that is durable.
#[test]
fn a_block_is_freed_once() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    let (_, fs) = opened(&image);
    let ino = fs.resolve(b"one", true).unwrap();
    let block = fs.mappings(ino).unwrap().next().unwrap().unwrap();
    let block = block.physical.unwrap().0;
    drop(fs);
    let commands = [format!("sif two block[5] {block}")];
    let Some(bad) = debugfs(&image, &commands) else {
        return;
    };
    for is_durable in [false, true] {
        let (device, fs) = opened(&bad);
        let free = fs.statfs().unwrap().free;
        fs.unlink(Ino::ROOT, b"one").unwrap();
        if is_durable {
            fs.sync().unwrap();
        }
        let error = fs.unlink(Ino::ROOT, b"two").unwrap_err();
        assert!(error.to_string().contains("is free already"), "{error}");
        assert_eq!(fs.statfs().unwrap().free, free + 5);
        fs.close().unwrap();
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        assert_eq!(fs.statfs().unwrap().free, free + 5);
        // Counts and bitmaps agree; the second file's blocks are in use again when e2fsck is through.
        let found = complaints(&device.bytes()).join("\n");
        assert!(!found.contains("count wrong"), "{found}");
    }
}

#[test]
fn what_a_bitmap_says_is_free_is_not_freed() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    let (_, fs) = opened(&image);
    let ino = fs.resolve(b"one", true).unwrap();
    let block = fs.mappings(ino).unwrap().next().unwrap().unwrap();
    let block = block.physical.unwrap().0;
    drop(fs);
    for command in [format!("freeb {}", block + 2), format!("freei <{}>", ino.0)] {
        let Some(bad) = debugfs(&image, std::slice::from_ref(&command)) else {
            return;
        };
        let before = complaints(&bad);
        let device = Arc::new(CowDevice::new(bad.into()));
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let error = fs.unlink(Ino::ROOT, b"one").unwrap_err();
        assert!(error.to_string().contains("is free already"), "{error}");
        fs.close().unwrap();
        assert_eq!(complaints(&device.bytes()), before, "{command}");
    }
}

#[test]
fn the_file_systems_own_inodes_are_not_changed_under_a_name() {
    let Some(image) = populated(&["-b", "1024", "-O", "orphan_file"]) else {
        return;
    };
    let Some(bad) = debugfs(&image, &["ln <8> bad".into(), "ln <7> worse".into()]) else {
        return;
    };
    let (device, fs) = opened(&bad);
    let orphans = fs.superblock().orphan_file_ino().unwrap();
    for ino in [Ino::JOURNAL, Ino::RESIZE, orphans] {
        let outcomes = [
            fs.write(ino, 0, b"x").map(drop),
            fs.truncate(ino, 0),
            fs.allocate(ino, Allocate::Punch, 0, 1 << 20),
            fs.link(ino, Ino::ROOT, b"another"),
        ];
        for outcome in outcomes {
            assert!(matches!(outcome, Err(Error::Corrupt(_))), "{outcome:?}");
        }
    }
    for name in [&b"bad"[..], b"worse"] {
        let outcome = fs.unlink(Ino::ROOT, name);
        assert!(matches!(outcome, Err(Error::Corrupt(_))), "{outcome:?}");
    }
    fs.close().unwrap();
    assert_eq!(complaints(&device.bytes()), complaints(&bad));
}

/// A group whose bitmap is broken keeps what it has; files go to the others.
#[test]
fn nothing_is_taken_from_or_freed_into_a_group_with_a_broken_bitmap() {
    let Some(image) = make(&["-b", "1024", "-N", "96"], 28 << 20) else {
        return;
    };
    let (device, fs) = opened(&image);
    let geometry = *fs.geometry();
    assert!(geometry.groups() == 4 && geometry.has_metadata_csum());
    let filler = fs.create(Ino::ROOT, b"before", NEW).unwrap();
    // A part of the second group, where files begin.
    fs.write(filler, 0, &vec![5; 3 << 20]).unwrap();
    let free = fs.statfs().unwrap().free;
    fs.close().unwrap();
    let mut bad = device.bytes();
    // The descriptor of a group of which the file has a part, and the bits of blocks that are free.
    let free_of = |desc: usize| word(&bad, desc + 12) & 0xffff;
    let descs = (1..4).map(|group| 2048 + group * geometry.desc_size());
    let mut partly = descs.filter(|desc| (1..7500).contains(&free_of(*desc)));
    let desc = partly.next().unwrap();
    let of_group = free_of(desc);
    let bitmap = word(&bad, desc) as usize * 1024;
    bad[bitmap + 1000] ^= 0x10;
    let before = complaints(&bad);
    let (device, fs) = opened(&bad);
    let mut written = 0;
    let new = fs.create(Ino::ROOT, b"new", NEW).unwrap();
    loop {
        match fs.write(new, written, &[6; 50_000]) {
            Ok(len) => written += len as u64,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(fs.recorded_errors(), 1);
    let pool = (geometry.blocks_count() - 1) / 50;
    let most = free - of_group - pool;
    assert!(
        written / 1024 <= most && written / 1024 + 300 > most,
        "{written}, {most}"
    );
    let error = fs.unlink(Ino::ROOT, b"before").unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    fs.unlink(Ino::ROOT, b"new").unwrap();
    fs.close().unwrap();
    assert_eq!(complaints(&device.bytes()), before);
}

#[test]
fn a_number_of_an_inode_in_use_is_refused_once_and_the_next_one_is_given() {
    let Some(image) = populated(&["-b", "1024", "-N", "128"]) else {
        return;
    };
    let number = |name: &[u8]| opened(&image).1.resolve(name, false).unwrap();
    for victim in [&b"dir"[..], b"one"] {
        let ino = number(victim);
        let Some(image) = debugfs(&image, &[format!("freei <{}>", ino.0)]) else {
            return;
        };
        let before = complaints(&image);
        for kind in ["directory", "file", "unnamed"] {
            let (device, fs) = opened(&image);
            let dir = fs.resolve(b"dir", false).unwrap();
            fs.hold(ino).unwrap();
            // Other free numbers come first, perhaps; this one is refused once, and all others are given.
            let (mut refused, mut number) = (0, 0);
            let last = loop {
                number += 1;
                let name = format!("{number}");
                let made = match kind {
                    "directory" => fs.mkdir(dir, name.as_bytes(), NEW),
                    "file" => fs.create(dir, name.as_bytes(), NEW),
                    _ => fs.create_unnamed(dir, NEW),
                };
                match made {
                    Ok(new) => assert_ne!(new, ino, "{kind}"),
                    Err(Error::Corrupt(_)) => refused += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(last, Error::NoSpace), "{kind}: {last}");
            assert_eq!(refused, 1, "{kind}");
            assert_eq!(fs.statfs().unwrap().free_files, 0, "{kind}");
            fs.release(ino).unwrap();
            let _outcome = fs.close();
            // The bitmap is as wrong as before; all names have the inodes that they had.
            let found = complaints(&device.bytes());
            let is_known = |line: &String| {
                let about = ["Entry", "ref count", "nattached"];
                !about.iter().any(|about| line.contains(about)) || before.contains(line)
            };
            assert!(found.iter().all(is_known), "{kind}: {found:?}");
        }
    }
}

/// With 8 inodes a group, numbers 9 and 10 are in the second one.
#[test]
fn no_file_gets_a_number_of_the_file_systems_own_in_any_group() {
    let features = "^flex_bg,^resize_inode,^has_journal";
    let options = [
        "-b", "1024", "-g", "256", "-N", "16", "-I", "128", "-O", features, "-J", "size=1",
    ];
    let Some(image) = make(&options, 12 << 20) else {
        return;
    };
    let commands = [9, 10].map(|ino| format!("freei <{ino}>"));
    let Some(bad) = debugfs(&image, &commands) else {
        return;
    };
    let device = Arc::new(CowDevice::new(bad.into()));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    assert_eq!(fs.geometry().inodes_per_group(), 8);
    let mut made = 0;
    loop {
        match fs.create(Ino::ROOT, format!("{made}").as_bytes(), NEW) {
            Ok(ino) => assert!(ino >= fs.geometry().first_ino(), "{ino:?}"),
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
        made += 1;
    }
    assert!(made > 40 && fs.statfs().unwrap().free_files == 0, "{made}");
    for number in 0..made {
        fs.unlink(Ino::ROOT, format!("{number}").as_bytes())
            .unwrap();
    }
    fs.close().unwrap();
}
