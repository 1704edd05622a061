//! After every change of [`changes`], while other threads read all the time, the kernel's caches of a mount hold what
//! the image holds; and each change does what it does on the kernel's ext4.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, statx};
use testkit::KernelMount;

use crate::changes::{
    ACCESSES, ATTRIBUTES, CONTENTS, Change, FILE_BYTES, NAMES, Place, SPACE, read_direct,
};
use crate::hand::Hand;
use crate::served::{Served, can_mount, image};

/// The most looks at attributes that the kernel may be storing.
const LOOKS: usize = 100;
/// Longer than a tick of the clocks that stamp.
const TICK: Duration = Duration::from_millis(15);
/// Threads that read while a change is made.
pub const READERS: usize = 2;

/// What stat shows.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Shown {
    ino: u64,
    mode: u16,
    links: u32,
    owners: (u32, u32),
    device: (u32, u32),
    size: u64,
    blocks: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
    /// Compared only where nothing else reads.
    atime: (i64, u32),
}

impl Shown {
    fn without_atime(&self) -> Shown {
        Shown {
            atime: (0, 0),
            ..self.clone()
        }
    }
}

/// What statx shows of a file: of a name, or with an empty name of what is open.
fn shown(at: BorrowedFd<'_>, name: &Path, flags: AtFlags) -> Option<Shown> {
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let found = statx(at, name, flags, StatxFlags::BASIC_STATS).ok()?;
    Some(Shown {
        ino: found.stx_ino,
        mode: found.stx_mode,
        links: found.stx_nlink,
        owners: (found.stx_uid, found.stx_gid),
        device: (found.stx_rdev_major, found.stx_rdev_minor),
        size: found.stx_size,
        blocks: found.stx_blocks,
        mtime: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        ctime: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
        atime: (found.stx_atime.tv_sec, found.stx_atime.tv_nsec),
    })
}

/// What the kernel keeps of a file: what two looks in a row find.
///
/// One look can find old times, or old and new ones mixed: when Linux stores an answer
/// (`fuse_change_attributes_common`), it marks the attributes as valid before it stores the times, and stat(2) takes no
/// lock. Attributes that the kernel wrongly keeps stay as they are, so every look finds them.
fn kept(at: BorrowedFd<'_>, name: &Path) -> Shown {
    let look = || shown(at, name, AtFlags::empty()).unwrap();
    let mut last = look();
    for _ in 0..LOOKS {
        let next = look();
        if next.without_atime() == last.without_atime() {
            return next;
        }
        last = next;
    }
    panic!("{}: no two looks of {LOOKS} agree", name.display());
}

/// What the kernel keeps of a file, which must be what the file system shows when it is asked.
fn truth(at: BorrowedFd<'_>, name: &Path, after: &str) -> Shown {
    let kept = kept(at, name);
    let asked = shown(at, name, AtFlags::STATX_FORCE_SYNC).unwrap();
    assert_eq!(
        kept.without_atime(),
        asked.without_atime(),
        "{} after {after}",
        name.display()
    );
    asked
}

/// All names under a directory, itself among them, in order.
fn names(root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::from([root.to_owned()]);
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    found
}

/// Bytes as runs of the same one.
fn runs(bytes: &[u8]) -> String {
    let mut text = String::new();
    for run in bytes.chunk_by(|one, next| one == next) {
        let _ = write!(text, "{}*{} ", run[0], run.len());
    }
    text
}

fn direct(path: &Path) -> File {
    let flags = OFlags::DIRECT | OFlags::NOATIME;
    let mut options = OpenOptions::new();
    let options = options.custom_flags(flags.bits().cast_signed());
    options.read(true).open(path).unwrap()
}

fn without_atime(path: &Path) -> File {
    let flags = OFlags::NOATIME.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags).open(path).unwrap()
}

/// A file's contents through what is open, buffered and direct, which must be the same.
fn contents(buffered: &File, direct: &File, after: &str) -> Vec<u8> {
    let len = buffered.metadata().unwrap().len() as usize;
    let mut kept = vec![0; len + 1];
    let read = buffered.read_at(&mut kept, 0).unwrap();
    kept.truncate(read);
    let asked = read_direct(direct).unwrap();
    assert_eq!(runs(&kept), runs(&asked), "contents after {after}");
    kept
}

/// Files that stay open during a change, and what was seen before it.
pub struct Watched {
    open: Vec<(&'static str, File, File)>,
    before: BTreeMap<u64, Shown>,
}

impl Watched {
    pub fn start(place: &Place<'_>, name: &str) -> Watched {
        let open = |which: &'static str| {
            let path = place.at(which);
            (which, without_atime(&path), direct(&path))
        };
        let watched = Watched {
            open: vec![open("a/file"), open("a/other")],
            before: BTreeMap::new(),
        };
        watched.look(name);
        let before = names(&place.root).into_iter().map(|path| {
            let seen = truth(CWD, &path, name);
            (seen.ino, seen)
        });
        Watched {
            before: before.collect(),
            ..watched
        }
    }

    /// An open file is as the file system shows it.
    pub fn look(&self, name: &str) {
        self.all(name);
    }

    /// The directories of a place are as the file system has them.
    pub fn look_at_directories(&self, place: &Place<'_>, name: &str) {
        for directory in ["a", "b", "."] {
            truth(CWD, &place.at(directory), name);
        }
    }

    /// An open file is as the file system shows it; it is listed with its contents.
    fn all(&self, name: &str) -> Vec<(String, Shown, String)> {
        let open = self.open.iter().map(|(which, buffered, direct)| {
            let seen = truth(buffered.as_fd(), Path::new(""), name);
            let bytes = contents(buffered, direct, name);
            assert_eq!(bytes.len() as u64, seen.size, "{which} after {name}");
            (format!("{which}, open"), seen, runs(&bytes))
        });
        open.collect()
    }
}

/// What a change did to one file: the differences are what is compared between file systems.
#[derive(PartialEq, Eq, Debug)]
struct Effect {
    is_new: bool,
    mode: u16,
    links: u32,
    owners: (u32, u32),
    device: (u32, u32),
    size: u64,
    more_blocks: i64,
    has_new_mtime: bool,
    has_new_ctime: bool,
    has_new_atime: bool,
    contents: String,
}

fn effect(before: &BTreeMap<u64, Shown>, now: &Shown, contents: String, is_quiet: bool) -> Effect {
    let old = before.get(&now.ino);
    let blocks = old.map_or(0, |old| old.blocks);
    Effect {
        is_new: old.is_none(),
        mode: now.mode,
        links: now.links,
        owners: now.owners,
        device: now.device,
        size: now.size,
        more_blocks: now.blocks.cast_signed() - blocks.cast_signed(),
        has_new_mtime: old.is_some_and(|old| old.mtime != now.mtime),
        has_new_ctime: old.is_some_and(|old| old.ctime != now.ctime),
        has_new_atime: is_quiet && old.is_some_and(|old| old.atime != now.atime),
        contents,
    }
}

/// What a change did: its error, and the effects on all files by their names.
#[derive(Debug)]
struct Outcome {
    name: &'static str,
    error: Option<i32>,
    effects: BTreeMap<String, Effect>,
    /// What the next mount must show, too.
    kept: BTreeMap<String, (Shown, String)>,
}

/// All files by their names, with their contents, each as the file system shows it.
fn all(root: &Path, name: &str) -> BTreeMap<String, (Shown, String)> {
    let paths = names(root).into_iter();
    let found = paths.map(|path| {
        let seen = truth(CWD, &path, name);
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        let bytes = if kind.is_file() {
            contents(&without_atime(&path), &direct(&path), name)
        } else if kind.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes()
        } else {
            Vec::new()
        };
        let short = path.strip_prefix(root).unwrap().display().to_string();
        (short, (seen, runs(&bytes)))
    });
    found.collect()
}

/// Reads and asks for the attributes of what a change may touch, until it is stopped.
fn read_on(place: &Path, over: &AtomicBool, started: &AtomicUsize) {
    let names = ["a/file", "a/other", "a", "b", "b/name", "a/dir", "."];
    let open = ["a/file", "a/other"].map(|name| File::open(place.join(name)).unwrap());
    // Relaxed: only a count.
    started.fetch_add(1, Ordering::Relaxed);
    let mut buffer = vec![0; 4 * FILE_BYTES];
    // Relaxed: only a wish to end.
    while !over.load(Ordering::Relaxed) {
        for file in &open {
            let _ = file.read_at(&mut buffer, 0);
        }
        for name in names {
            let _ = shown(CWD, &place.join(name), AtFlags::empty());
        }
        let _ = fs::read_dir(place.join("a")).map(|listed| listed.for_each(drop));
    }
}

/// Tells the readers to end when it is dropped: a panic of the test ends them too.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        // Relaxed: only a wish to end.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something while threads read what is in a place, from before it begins.
pub fn beside_readers<T>(place: &Path, readers: usize, act: impl FnOnce() -> T) -> T {
    let (over, started) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        for _ in 0..readers {
            scope.spawn(|| read_on(place, &over, &started));
        }
        // Relaxed: only a count.
        while started.load(Ordering::Relaxed) < readers {
            std::thread::yield_now();
        }
        act()
    })
}

/// Makes a change beside readers, and sees what it did, at once and when they have ended.
fn observe((name, change): Change, place: &Place<'_>, readers: usize) -> Outcome {
    let watched = Watched::start(place, name);
    let made = beside_readers(&place.root, readers, || {
        let made = change(place);
        watched.look(name);
        all(&place.root, name);
        made
    });
    let kept = all(&place.root, name);
    let named = kept
        .iter()
        .map(|(name, (seen, bytes))| (name.clone(), seen.clone(), bytes.clone()));
    let effects = named
        .chain(watched.all(name))
        .map(|(name, seen, bytes)| (name, effect(&watched.before, &seen, bytes, false)));
    Outcome {
        name,
        error: made.err().and_then(|error| error.raw_os_error()),
        effects: effects.collect(),
        kept,
    }
}

/// What an access changes of a tree's times, where nothing else looks into files and directories.
fn observe_access((name, access): Change, place: &Place<'_>) -> Outcome {
    let names = [
        "a",
        "a/file",
        "a/other",
        "a/symlink",
        "a/dir",
        "b",
        "b/name",
    ];
    let see = || names.map(|name| truth(CWD, &place.at(name), name));
    let before = see().map(|seen| (seen.ino, seen)).into();
    let made = access(place);
    let seen = names.into_iter().zip(see());
    let effects = seen.map(|(name, seen)| {
        let effect = effect(&before, &seen, String::new(), true);
        (name.to_owned(), effect)
    });
    Outcome {
        name,
        error: made.err().and_then(|error| error.raw_os_error()),
        effects: effects.collect(),
        kept: BTreeMap::new(),
    }
}

/// Makes all changes of a table on a file system, each in a directory of its own.
fn observe_all(root: &Path, changes: &[Change], readers: usize) -> Vec<Outcome> {
    let hand = Hand::start();
    let places: Vec<Place<'_>> = (0..changes.len())
        .map(|number| Place {
            root: root.join(format!("change{number}")),
            hand: &hand,
        })
        .collect();
    for place in &places {
        place.make().unwrap();
    }
    std::thread::sleep(TICK);
    let both = changes.iter().zip(&places);
    both.map(|(change, place)| match readers {
        0 => observe_access(*change, place),
        _ => observe(*change, place, readers),
    })
    .collect()
}

/// What the next mount shows is what this one did.
fn check_later(root: &Path, outcomes: &[Outcome]) {
    for (number, outcome) in outcomes.iter().enumerate() {
        let later = all(&root.join(format!("change{number}")), outcome.name);
        let names = |of: &BTreeMap<String, _>| of.keys().cloned().collect::<Vec<String>>();
        assert_eq!(names(&outcome.kept), names(&later), "{}", outcome.name);
        for (name, (seen, bytes)) in &outcome.kept {
            let (seen_later, bytes_later) = &later[name];
            let after = format!("{name} on the next mount, after {}", outcome.name);
            assert_eq!(seen.without_atime(), seen_later.without_atime(), "{after}");
            assert_eq!(bytes, bytes_later, "{after}");
        }
    }
}

/// Where a change has another effect than on the kernel's ext4, and why; docs/mount.md has the same list.
const DIFFERENCES: &[(&str, &str)] = &[
    ("collapse", "FUSE does not pass it on"),
    ("insert", "FUSE does not pass it on"),
    (
        "read of nothing",
        "the kernel knows the size and does not ask",
    ),
];

/// All differences between a mount and the kernel's ext4 that docs/mount.md does not have.
fn differences(ours: &[Outcome], theirs: &[Outcome]) -> Vec<String> {
    let mut found = Vec::new();
    for (our, their) in ours.iter().zip(theirs) {
        let name = our.name;
        if DIFFERENCES.iter().any(|(known, _)| *known == name) {
            continue;
        }
        if our.error != their.error {
            found.push(format!("{name}: {:?}, ext4 {:?}", our.error, their.error));
        }
        let files: BTreeSet<&String> = our.effects.keys().chain(their.effects.keys()).collect();
        for file in files {
            let (ours, theirs) = (our.effects.get(file), their.effects.get(file));
            if ours != theirs {
                found.push(format!("{name}: {file}:\n  {ours:?}\n  ext4 {theirs:?}"));
            }
        }
    }
    found
}

fn compare(tables: &[&[Change]], readers: usize, options: &str) {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let changes = tables.concat();
    let folder = tempfile::tempdir().unwrap();
    let size = 256 << 20;
    let ours = image(folder.path(), "a.img", size, &["-b", "4096"]);
    let theirs = image(folder.path(), "b.img", size, &["-b", "4096"]);
    let served = Served::start(&ours, options);
    let mounted = KernelMount::with(&theirs, "loop").unwrap();
    let (our, their) = std::thread::scope(|scope| {
        let path = mounted.path();
        let changes = &changes;
        let their = scope.spawn(move || observe_all(&path, changes, readers));
        let our = observe_all(served.path(), changes, readers);
        (our, their.join().unwrap())
    });
    served.unmount();
    let served = Served::start(&ours, options);
    if readers > 0 {
        check_later(served.path(), &our);
    }
    served.unmount();
    testkit::e2fsck(&ours);
    let found = differences(&our, &their);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_change_of_contents_is_seen_at_once_and_is_that_of_the_kernels_ext4() {
    compare(&[CONTENTS, SPACE], READERS, "allow_other");
}

#[test]
fn every_change_of_attributes_is_seen_at_once_and_is_that_of_the_kernels_ext4() {
    compare(&[ATTRIBUTES, NAMES], READERS, "allow_other");
}

#[test]
fn times_of_access_change_as_on_the_kernels_ext4() {
    compare(&[ACCESSES], 0, "");
}
