//! Extended attributes in the inode and in blocks that inodes share: beside a model, cut at every write, and read and
//! changed by the kernel in between.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use device::BlockDevice;
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, XattrFlag};
use model::Random;
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use simulate::CowDevice;
use sync::Arc;

use crate::files::{opened, with_files};
use crate::image::{NEW, clock, finish, make, record, sweep};

/// Names to values.
pub type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

const PROFILES: [&[&str]; 4] = [
    &["-b", "1024"],
    &["-b", "4096"],
    &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    &["-b", "4096", "-I", "128"],
];

/// What an inode has.
pub fn attributes(fs: &InodeFs, ino: Ino) -> Attributes {
    let all = fs.xattrs(ino).unwrap().into_iter();
    all.map(|xattr| (xattr.name, xattr.value)).collect()
}

/// What the kernel finds at a path, by list and get.
fn by_kernel(path: &Path) -> Attributes {
    let mut names = vec![0_u8; 1 << 16];
    let len = listxattr(path, &mut names[..]).unwrap();
    names.truncate(len);
    let names = names.split(|byte| *byte == 0).filter(|n| !n.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0_u8; 1 << 16];
        let len = getxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

/// The kernel finds these attributes on the files of an image.
pub fn judged_by_kernel(image: &[u8], files: &BTreeMap<&str, Attributes>) {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    let mounted = testkit::KernelMount::read_only(&path).unwrap();
    for (name, expected) in files {
        assert_eq!(&by_kernel(&mounted.path().join(name)), expected, "{name}");
    }
}

/// One change: a file, a name, and a value or none.
type Change = (usize, Vec<u8>, Option<Vec<u8>>);

/// A random change, of few names and values, so that files come to have the same.
fn random(random: &mut Random, files: usize) -> Change {
    let names: [&[u8]; 3] = [b"user.a", b"security.longer-name", b"trusted.t"];
    let name = names[random.below(3) as usize].to_vec();
    let len = [0, 20, 150, 600][random.below(4) as usize];
    let value = vec![b'x' + u8::from(random.one_in(4)); len];
    let is_set = !random.one_in(3);
    (
        random.below(files as u64) as usize,
        name,
        is_set.then_some(value),
    )
}

/// Does a change; what does not fit, or is not there, changes nothing.
fn apply(fs: &InodeFs, ino: Ino, (_, name, value): &Change, expected: &mut Attributes) {
    let done = match value {
        Some(value) => fs.set_xattr(ino, name, value, XattrFlag::Any),
        None => fs.remove_xattr(ino, name),
    };
    match (done, value) {
        (Ok(()), Some(value)) => {
            expected.insert(name.clone(), value.clone());
        }
        (Ok(()), None) => assert!(expected.remove(name).is_some()),
        (Err(Error::NoAttribute), None) => assert!(!expected.contains_key(name)),
        (Err(Error::NoSpace), Some(_)) => {}
        (other, _) => panic!("{other:?}"),
    }
}

const FILES: [&str; 4] = ["one", "two", "three", "four"];

#[test]
fn attributes_are_those_of_the_model_and_of_the_kernel() {
    for (seed, options) in (1..).zip(PROFILES) {
        let Some(image) = with_files(options, 8 << 20, &FILES) else {
            return;
        };
        let mut expected = vec![Attributes::new(); FILES.len()];
        let mut blocks = BTreeSet::new();
        let mut shared = 0;
        let after = finish(&image, |fs| {
            let mut random_numbers = Random::new(seed);
            let inos = FILES.map(|name| fs.resolve(name.as_bytes(), true).unwrap());
            for _ in 0..400 {
                let change = random(&mut random_numbers, FILES.len());
                apply(&fs, inos[change.0], &change, &mut expected[change.0]);
                assert_eq!(attributes(&fs, inos[change.0]), expected[change.0]);
                let now = inos.map(|ino| fs.inode(ino).unwrap().xattr_block());
                let now: Vec<_> = now.into_iter().flatten().collect();
                shared += usize::from(now.iter().collect::<BTreeSet<_>>().len() < now.len());
                blocks.extend(now);
            }
            fs.close().unwrap();
        });
        assert!(blocks.len() > 3, "{blocks:?}");
        assert!(shared > 0, "{options:?}: no block was shared");
        judged_by_kernel(&after, &FILES.into_iter().zip(expected).collect());
    }
}

#[test]
fn a_cut_leaves_the_attributes_after_some_change() {
    for (seed, options) in (10..).zip(&PROFILES[1..]) {
        let Some(image) = with_files(options, 8 << 20, &FILES) else {
            return;
        };
        // The attributes of all files after each change.
        let mut states = vec![vec![Attributes::new(); FILES.len()]];
        let cuts = record(&image, |device, fs| {
            let mut random_numbers = Random::new(seed);
            let inos = FILES.map(|name| fs.resolve(name.as_bytes(), true).unwrap());
            for step in 1..=40_u64 {
                let change = random(&mut random_numbers, FILES.len());
                let mut next = states.last().unwrap().clone();
                apply(&fs, inos[change.0], &change, &mut next[change.0]);
                states.push(next);
                if step % 4 == 0 {
                    fs.sync().unwrap();
                    device.mark(step);
                }
            }
            fs.close().unwrap();
            device.mark(40);
        });
        let found = sweep(cuts, 2, |cut, promised, fs| {
            let found: Vec<Attributes> = FILES
                .iter()
                .map(|name| attributes(fs, fs.resolve(name.as_bytes(), true).unwrap()))
                .collect();
            let from = promised.unwrap_or(0) as usize;
            assert!(
                states[from..].contains(&found),
                "seed {seed}, {cut}, {from} synced: {found:?}"
            );
        });
        assert!(found > 100, "{found}");
    }
}

#[test]
fn a_cut_while_files_with_one_block_are_made_and_deleted_leaves_its_count_right() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let value = [7; 600];
    let cuts = record(&image, |_, fs| {
        for name in [&b"a"[..], b"b", b"c"] {
            let ino = fs.create(Ino::ROOT, name, NEW).unwrap();
            fs.set_xattr(ino, b"user.v", &value, XattrFlag::Create)
                .unwrap();
            fs.sync().unwrap();
        }
        // One is renamed over, one is deleted, one is deleted while it is held.
        fs.rename(Ino::ROOT, b"a", Ino::ROOT, b"b", Default::default())
            .unwrap();
        fs.sync().unwrap();
        fs.unlink(Ino::ROOT, b"b").unwrap();
        fs.sync().unwrap();
        let held = fs.resolve(b"c", true).unwrap();
        fs.hold(held).unwrap();
        fs.unlink(Ino::ROOT, b"c").unwrap();
        fs.sync().unwrap();
        fs.release(held).unwrap();
        fs.close().unwrap();
    });
    // `sweep` asks e2fsck, which counts the references.
    let states = sweep(cuts, 3, |_, _, fs| {
        for name in [&b"a"[..], b"b", b"c"] {
            if let Ok(ino) = fs.resolve(name, true) {
                let found = attributes(fs, ino);
                assert!(found.is_empty() || found[&b"user.v"[..]] == value);
            }
        }
    });
    assert!(states > 50, "{states}");
}

#[test]
fn as_many_inodes_as_linux_lets_share_a_block_and_the_last_one_frees_it() {
    let Some(image) = make(&["-b", "1024", "-N", "2200"], 16 << 20) else {
        return;
    };
    finish(&image, |fs| {
        fs.sync().unwrap();
        let free = fs.statfs().unwrap().free;
        let mut blocks: BTreeMap<_, u32> = BTreeMap::new();
        let name = |index: u32| format!("{index}").into_bytes();
        for index in 0..1500 {
            let ino = fs.create(Ino::ROOT, &name(index), NEW).unwrap();
            fs.set_xattr(ino, b"user.v", &[3; 500], XattrFlag::Any)
                .unwrap();
            let block = fs.inode(ino).unwrap().xattr_block().unwrap();
            *blocks.entry(block).or_default() += 1;
        }
        let mut counts: Vec<u32> = blocks.into_values().collect();
        counts.sort_unstable();
        assert_eq!(counts, [476, 1024]);
        for index in 0..1500 {
            fs.unlink(Ino::ROOT, &name(index)).unwrap();
        }
        fs.sync().unwrap();
        let grown = fs.metadata(Ino::ROOT).unwrap().size / 1024 - 1;
        let left = fs.statfs().unwrap().free;
        assert!(free - left <= grown + 2, "{free} free before, {left} after");
        fs.close().unwrap();
    });
}

#[test]
fn names_and_values_are_refused_as_linux_refuses_them() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let set =
            |name: &[u8], len: usize, flag| fs.set_xattr(Ino::ROOT, name, &vec![1; len], flag);
        let any = XattrFlag::Any;
        assert!(matches!(set(b"", 1, any), Err(Error::NameLength)));
        let long = [&b"user."[..], &[b'n'; 251]].concat();
        assert!(matches!(set(&long, 1, any), Err(Error::NameLength)));
        set(&long[..255], 1, any).unwrap();
        assert!(matches!(set(b"user.", 1, any), Err(Error::InvalidArgument)));
        for unknown in [
            &b"nothing.c"[..],
            b"system.data",
            b"system.richacl",
            b"user",
        ] {
            assert!(matches!(set(unknown, 1, any), Err(Error::NotSupported(_))));
        }
        let too_large = set(b"user.v", (1 << 16) + 1, any);
        assert!(matches!(too_large, Err(Error::ValueTooLarge)));
        assert!(matches!(set(b"user.v", 1000, any), Err(Error::NoSpace)));
        let replaced = set(b"user.v", 1, XattrFlag::Replace);
        assert!(matches!(replaced, Err(Error::NoAttribute)));
        set(b"user.v", 1, XattrFlag::Create).unwrap();
        let created = set(b"user.v", 2, XattrFlag::Create);
        assert!(matches!(created, Err(Error::Exists)));
        set(b"user.v", 3, XattrFlag::Replace).unwrap();
        let removed = fs.remove_xattr(Ino::ROOT, b"user.w");
        assert!(matches!(removed, Err(Error::NoAttribute)));
        let link = fs.symlink(Ino::ROOT, b"link", b"target", NEW).unwrap();
        let refused = fs.set_xattr(link, b"user.v", b"", any);
        assert!(matches!(refused, Err(Error::NotPermitted)));
        fs.set_xattr(link, b"trusted.v", b"", any).unwrap();
        // The same value again leaves the time of change.
        let before = fs.metadata(Ino::ROOT).unwrap();
        set(b"user.v", 3, any).unwrap();
        assert_eq!(fs.metadata(Ino::ROOT).unwrap(), before);
        set(b"user.v", 4, any).unwrap();
        assert_eq!(fs.metadata(Ino::ROOT).unwrap().version, before.version + 1);
        fs.close().unwrap();
    });
}

/// One change by system calls.
fn change_by_kernel(path: &Path, (_, name, value): &Change, expected: &mut Attributes) {
    let name_string = std::str::from_utf8(name).unwrap();
    match value {
        Some(value) => match setxattr(path, name_string, value, XattrFlags::empty()) {
            Ok(()) => {
                expected.insert(name.clone(), value.clone());
            }
            Err(error) => assert_eq!(error, rustix::io::Errno::NOSPC),
        },
        None => {
            let is_there = removexattr(path, name_string).is_ok();
            assert_eq!(expected.remove(name).is_some(), is_there);
        }
    }
}

#[test]
fn the_kernel_and_lanefs_change_attributes_in_turns() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    for (seed, options) in (20..).zip(PROFILES) {
        let Some(mut image) = with_files(options, 8 << 20, &FILES) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut expected = vec![Attributes::new(); FILES.len()];
        let mut numbers = Random::new(seed);
        for _ in 0..3 {
            testkit::write_image(&path, &image);
            {
                let mounted = testkit::KernelMount::with(&path, "loop").unwrap();
                for _ in 0..80 {
                    let change = random(&mut numbers, FILES.len());
                    let file = mounted.path().join(FILES[change.0]);
                    change_by_kernel(&file, &change, &mut expected[change.0]);
                }
            }
            let bytes = testkit::read_image(&path);
            image = finish(&bytes, |fs| {
                let inos = FILES.map(|name| fs.resolve(name.as_bytes(), true).unwrap());
                for (ino, expected) in inos.iter().zip(&expected) {
                    assert_eq!(&attributes(&fs, *ino), expected);
                }
                for _ in 0..80 {
                    let change = random(&mut numbers, FILES.len());
                    apply(&fs, inos[change.0], &change, &mut expected[change.0]);
                }
                fs.close().unwrap();
            });
        }
        judged_by_kernel(&image, &FILES.into_iter().zip(expected).collect());
    }
}

#[test]
fn a_full_file_system_still_lets_attributes_go() {
    let Some(image) = make(&["-b", "1024"], 4 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let ino = fs.create(Ino::ROOT, b"file", NEW).unwrap();
        fs.set_xattr(ino, b"user.large", &[1; 600], XattrFlag::Any)
            .unwrap();
        fs.set_xattr(ino, b"user.other", &[2; 200], XattrFlag::Any)
            .unwrap();
        let filler = fs.create(Ino::ROOT, b"filler", NEW).unwrap();
        let mut at = 0;
        while let Ok(written) = fs.write(filler, at, &[5; 65536]) {
            at += written as u64;
        }
        let second = fs.create(Ino::ROOT, b"second", NEW).unwrap();
        let refused = fs.set_xattr(second, b"user.new", &[4; 600], XattrFlag::Any);
        assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
        fs.remove_xattr(ino, b"user.other").unwrap();
        fs.remove_xattr(ino, b"user.large").unwrap();
        assert!(attributes(&fs, ino).is_empty());
        fs.unlink(Ino::ROOT, b"filler").unwrap();
        fs.set_xattr(second, b"user.new", &[4; 600], XattrFlag::Any)
            .unwrap();
        fs.close().unwrap();
    });
}

#[test]
fn broken_blocks_of_attributes_are_refused_and_nothing_panics() {
    let options = &["-b", "1024", "-O", "^metadata_csum"][..];
    let Some(image) = with_files(options, 8 << 20, &FILES) else {
        return;
    };
    let image = finish(&image, |fs| {
        for name in FILES {
            let ino = fs.resolve(name.as_bytes(), true).unwrap();
            for (value, attribute) in [(&[9; 100][..], &b"user.a"[..]), (&[8; 500], b"user.b")] {
                fs.set_xattr(ino, attribute, value, XattrFlag::Any).unwrap();
            }
        }
        fs.close().unwrap();
    });
    let magic = 0xea02_0000_u32.to_le_bytes();
    let block = (0..image.len()).step_by(1024);
    let blocks: Vec<usize> = block
        .filter(|at| image[*at..*at + 4] == magic && image[*at + 8..*at + 12] == [1, 0, 0, 0])
        .collect();
    assert!(!blocks.is_empty());
    for seed in 0..150 {
        let mut numbers = Random::new(seed);
        let mut broken = testkit::copy_image(&image);
        for at in &blocks {
            for _ in 0..1 + numbers.below(4) {
                let byte = at + 4 + numbers.below(80) as usize;
                broken[byte] = numbers.bits() as u8;
            }
            if seed % 5 == 0 {
                broken[at + 4..at + 8].fill(0);
            }
        }
        let device = Arc::new(CowDevice::new(broken.into()));
        let device = device as Arc<dyn BlockDevice>;
        let Ok(fs) = InodeFs::open_for_writing(device, &MountOptions::default(), clock) else {
            continue;
        };
        for name in FILES {
            let ino = fs.resolve(name.as_bytes(), true).unwrap();
            let _changed = fs.set_xattr(ino, b"user.b", &[1; 400], XattrFlag::Any);
            let _removed = fs.remove_xattr(ino, b"user.a");
            let _deleted = fs.unlink(Ino::ROOT, name.as_bytes());
        }
        let _closed = fs.close();
    }
    // Untouched, the same is done.
    let (_, fs) = opened(&image);
    for name in FILES {
        fs.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    }
    fs.close().unwrap();
}

#[test]
fn threads_share_and_leave_blocks_and_every_count_is_right() {
    let Some(image) = make(&["-b", "1024", "-N", "400"], 16 << 20) else {
        return;
    };
    finish(&image, |fs| {
        sync::thread::scope(|scope| {
            let fs = &fs;
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    let mut numbers = Random::new(thread);
                    let mut files: Vec<Option<(Ino, Attributes)>> = vec![None; 8];
                    for _ in 0..250 {
                        let place = numbers.below(8) as usize;
                        let name = format!("{thread}-{place}").into_bytes();
                        match &mut files[place] {
                            None => {
                                let ino = fs.create(Ino::ROOT, &name, NEW).unwrap();
                                files[place] = Some((ino, Attributes::new()));
                            }
                            Some(_) if numbers.one_in(8) => {
                                fs.unlink(Ino::ROOT, &name).unwrap();
                                files[place] = None;
                            }
                            Some((ino, expected)) => {
                                let change = random(&mut numbers, 1);
                                apply(fs, *ino, &change, expected);
                            }
                        }
                        if numbers.one_in(40) {
                            fs.sync().unwrap();
                        }
                    }
                    for (ino, expected) in files.into_iter().flatten() {
                        assert_eq!(attributes(fs, ino), expected);
                    }
                });
            }
        });
        fs.close().unwrap();
    });
}

#[test]
fn every_failing_request_is_reported_and_leaves_the_attributes_after_some_change() {
    use simulate::{Fault, Recorder};
    let Some(image) = with_files(&["-b", "1024"], 8 << 20, &FILES) else {
        return;
    };
    let mut numbers = Random::new(77);
    let changes: Vec<Change> = (0..14).map(|_| random(&mut numbers, FILES.len())).collect();
    // What the files have after each change.
    let mut states = vec![vec![Attributes::new(); FILES.len()]];
    finish(&image, |fs| {
        for change in &changes {
            let mut next = states.last().unwrap().clone();
            let ino = fs.resolve(FILES[change.0].as_bytes(), true).unwrap();
            apply(&fs, ino, change, &mut next[change.0]);
            states.push(next);
        }
        fs.close().unwrap();
    });
    let run = |device: Arc<Recorder>| -> (usize, Result<(), Error>) {
        let mut done = 0;
        let work = || {
            let device = device as Arc<dyn BlockDevice>;
            let fs = InodeFs::open_for_writing(device, &MountOptions::default(), clock)?;
            for (file, name, value) in &changes {
                let ino = fs.resolve(FILES[*file].as_bytes(), true)?;
                let changed = match value {
                    Some(value) => fs.set_xattr(ino, name, value, XattrFlag::Any),
                    None => fs.remove_xattr(ino, name),
                };
                match changed {
                    Ok(()) | Err(Error::NoAttribute | Error::NoSpace) => {}
                    Err(error) => return Err(error),
                }
                fs.sync()?;
                done += 1;
            }
            fs.close()
        };
        let outcome = work();
        (done, outcome)
    };
    for fault in [Fault::Read as fn(u64) -> Fault, Fault::Write, Fault::Flush] {
        for n in 0.. {
            let device = Arc::new(Recorder::failing(&image, fault(n), false));
            let (done, outcome) = run(Arc::clone(&device));
            if !device.has_failed() {
                outcome.unwrap();
                assert!(n > 3);
                break;
            }
            let after = Arc::new(CowDevice::new(device.contents().into()));
            let fs = crate::image::open(after as Arc<dyn BlockDevice>);
            let found: Vec<Attributes> = FILES
                .iter()
                .map(|name| attributes(&fs, fs.resolve(name.as_bytes(), true).unwrap()))
                .collect();
            fs.close().unwrap();
            let allowed = &states[done..states.len().min(done + 2)];
            assert!(allowed.contains(&found), "{:?}: {done} done", fault(n));
        }
    }
}
