//! The kernel and lanefs use one image in turns, round after round, and each replays what the other left dirty: with
//! blocks of 1 and 4 KiB, with and without `64bit`, with journals without checksums and with those of version 2 and 3.
//!
//! After each turn what the one shows is compared with what the other shows, path by path (types, permissions, owners,
//! sizes, times, attributes, links, contents), and both with the model.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path as StdPath, PathBuf};

use device::BlockDevice;
use lanefs_engine::{FileType, Ino, InodeFs, MountOptions};
use model::{
    Device, FallocateMode, Generator, ModelPath, ModelTree, Op, OpTarget, RenameMode, SizeProfile,
};
use ondisk::jbd2::{JournalFeatures, JournalSuperblock};
use rustix::fs::{self as sys, AtFlags, CWD, FallocateFlags};
use simulate::CowDevice;
use sync::Arc;
use testkit::{KernelMount, Manifest, ManifestEntry};

use crate::executor::{Executor, tree};
use crate::image::{make, open};

/// Operations of one turn.
const TURN: usize = 60;

/// Does the model's operations by system calls on a mounted directory.
struct ByKernel {
    root: PathBuf,
    open: HashMap<u8, std::fs::File>,
}

fn mode_bits(mode: u16) -> sys::Mode {
    sys::Mode::from_bits_truncate(mode.into())
}

impl ByKernel {
    fn path(&self, path: &ModelPath) -> PathBuf {
        let names = path.0.iter().map(|name| std::ffi::OsStr::from_bytes(name));
        names.fold(self.root.clone(), |at, name| at.join(name))
    }

    fn file(&self, target: &OpTarget) -> std::fs::File {
        match target {
            OpTarget::Slot(slot) => self.open[slot].try_clone().unwrap(),
            OpTarget::Path(path) => std::fs::File::options()
                .read(true)
                .write(true)
                .open(self.path(path))
                .unwrap(),
        }
    }

    /// Does what the model allows; nothing in a path is a symbolic link then.
    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { path, mode } => {
                std::fs::File::create_new(self.path(path)).unwrap();
                sys::chmod(self.path(path), mode_bits(*mode)).unwrap();
            }
            Op::Mkdir { path, mode } => {
                std::fs::create_dir(self.path(path)).unwrap();
                sys::chmod(self.path(path), mode_bits(mode & 0o1777)).unwrap();
            }
            Op::Mknod { path, mode, device } => self.mknod(&self.path(path), *mode, *device),
            Op::Symlink { path, target } => {
                let target = std::ffi::OsStr::from_bytes(target);
                std::os::unix::fs::symlink(target, self.path(path)).unwrap();
            }
            Op::Link {
                from: OpTarget::Path(from),
                to,
            } => {
                let (from, to) = (self.path(from), self.path(to));
                sys::linkat(CWD, from, CWD, to, AtFlags::empty()).unwrap();
            }
            Op::Unlink { path } => std::fs::remove_file(self.path(path)).unwrap(),
            Op::Rmdir { path } => std::fs::remove_dir(self.path(path)).unwrap(),
            Op::Rename { from, to, flag } => {
                let flags = match flag {
                    RenameMode::Replace => sys::RenameFlags::empty(),
                    RenameMode::NoReplace => sys::RenameFlags::NOREPLACE,
                    RenameMode::Exchange => sys::RenameFlags::EXCHANGE,
                    RenameMode::Whiteout => sys::RenameFlags::WHITEOUT,
                };
                let (from, to) = (self.path(from), self.path(to));
                sys::renameat_with(CWD, from, CWD, to, flags).unwrap();
            }
            other => self.apply_to_file(other),
        }
    }

    fn mknod(&self, path: &StdPath, mode: u16, device: Device) {
        let (kind, rdev) = match device {
            Device::Fifo => (sys::FileType::Fifo, (0, 0)),
            Device::Socket => (sys::FileType::Socket, (0, 0)),
            Device::Char(major, minor) => (sys::FileType::CharacterDevice, (major, minor)),
            Device::Block(major, minor) => (sys::FileType::BlockDevice, (major, minor)),
        };
        let rdev = sys::makedev(rdev.0, rdev.1);
        sys::mknodat(CWD, path, kind, mode_bits(mode), rdev).unwrap();
        sys::chmod(path, mode_bits(mode)).unwrap();
    }

    fn apply_to_file(&mut self, op: &Op) {
        match op {
            Op::Write {
                file,
                offset,
                bytes,
            } => self.file(file).write_all_at(bytes, *offset).unwrap(),
            Op::Truncate { file, size } => self.file(file).set_len(*size).unwrap(),
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            } => {
                let keep = FallocateFlags::KEEP_SIZE;
                let flags = match mode {
                    FallocateMode::Allocate => FallocateFlags::empty(),
                    FallocateMode::KeepSize => keep,
                    FallocateMode::Punch => keep | FallocateFlags::PUNCH_HOLE,
                    FallocateMode::Zero => FallocateFlags::ZERO_RANGE,
                    FallocateMode::ZeroKeepSize => keep | FallocateFlags::ZERO_RANGE,
                    FallocateMode::Collapse => FallocateFlags::COLLAPSE_RANGE,
                    FallocateMode::Insert => FallocateFlags::INSERT_RANGE,
                };
                sys::fallocate(self.file(file), flags, *offset, *len).unwrap();
            }
            Op::Chmod {
                file: OpTarget::Path(path),
                mode,
            } => sys::chmod(self.path(path), mode_bits(*mode)).unwrap(),
            Op::Chmod { file, mode } => sys::fchmod(self.file(file), mode_bits(*mode)).unwrap(),
            Op::Open { path, slot } => {
                let file = self.file(&OpTarget::Path(path.clone()));
                self.open.insert(*slot, file);
            }
            Op::Close { slot } => drop(self.open.remove(slot)),
            Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Sync => {}
            other => panic!("{other:?} is not known"),
        }
    }
}

/// Whether both executors can do it.
fn is_known(op: &Op) -> bool {
    let is_open = matches!(
        op,
        Op::Link {
            from: OpTarget::Slot(_),
            ..
        } | Op::OpenTemp { .. }
    );
    Executor::knows(op) && !is_open && !matches!(op, Op::Chown { .. })
}

/// One turn's operations, all of which succeed; `tree` is then as after them.
fn turn(seed: u64, tree: &mut ModelTree) -> Vec<Op> {
    let profile = SizeProfile {
        names: 8,
        ..SizeProfile::default()
    };
    let mut generator = Generator::new(seed, profile);
    let mut ops = Vec::new();
    while ops.len() < TURN {
        let op = generator.next(tree);
        if is_known(&op) && tree.apply(&op).is_ok() {
            ops.push(op);
        }
    }
    for slot in 0..profile.slots {
        if tree.apply(&Op::Close { slot }).is_ok() {
            ops.push(Op::Close { slot });
        }
    }
    ops
}

fn xattrs(fs: &InodeFs, ino: Ino) -> Vec<(Vec<u8>, Vec<u8>)> {
    let found = fs.xattrs(ino).unwrap().into_iter();
    let mut found: Vec<_> = found.map(|xattr| (xattr.name, xattr.value)).collect();
    found.sort();
    found
}

/// What lanefs shows of an image, in the form in which the kernel's mount is read.
pub fn manifest(fs: &InodeFs) -> Manifest {
    let mut manifest = Manifest::default();
    let mut links: HashMap<Ino, Vec<Vec<u8>>> = HashMap::new();
    let mut rest = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = rest.pop() {
        let inode = fs.metadata(ino).unwrap();
        let mut contents = Vec::new();
        let kind = match inode.file_type {
            FileType::Regular => {
                let mut bytes = vec![0; inode.size as usize];
                assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
                contents = testkit::sha256(&bytes);
                'f'
            }
            FileType::Directory => {
                for entry in fs.read_dir(ino).unwrap().map(|entry| entry.unwrap()) {
                    if entry.name != b"." && entry.name != b".." {
                        let mut below = path.clone();
                        if !below.is_empty() {
                            below.push(b'/');
                        }
                        below.extend(&entry.name);
                        rest.push((below, entry.ino));
                    }
                }
                'd'
            }
            FileType::Symlink => {
                contents = fs.read_link(ino).unwrap();
                'l'
            }
            FileType::CharDevice => 'c',
            FileType::BlockDevice => 'b',
            FileType::Fifo => 'p',
            FileType::Socket => 's',
        };
        if kind != 'd' {
            links.entry(ino).or_default().push(path.clone());
        }
        let entry = ManifestEntry {
            kind,
            mode: (inode.mode & 0o7777).into(),
            uid: inode.uid,
            gid: inode.gid,
            size: if matches!(kind, 'f' | 'l') {
                inode.size
            } else {
                0
            },
            rdev: sys::makedev(inode.rdev.0, inode.rdev.1),
            mtime: i128::from(inode.mtime.seconds) * 1_000_000_000
                + i128::from(inode.mtime.nanoseconds),
            xattrs: xattrs(fs, ino),
            link_of: None,
            contents,
        };
        manifest.entries.insert(path, entry);
    }
    name_links(&mut manifest, links);
    manifest.without_lost_found()
}

/// Says of each inode with several names which is the first.
fn name_links(manifest: &mut Manifest, links: HashMap<Ino, Vec<Vec<u8>>>) {
    for mut paths in links.into_values().filter(|paths| paths.len() > 1) {
        paths.sort();
        for path in &paths {
            if let Some(entry) = manifest.entries.get_mut(path) {
                entry.link_of = Some(paths[0].clone());
            }
        }
    }
}

fn assert_same(one: &Manifest, other: &Manifest, what: &str) {
    let differences = one.differences(other);
    assert!(differences.is_empty(), "{what}: {differences}");
}

/// The journal's features and the place of its superblock, in an image that is not in use.
fn journal_superblock(bytes: &[u8]) -> (usize, JournalSuperblock) {
    let device = Arc::new(CowDevice::new(bytes.into()));
    let fs = InodeFs::open(device, &MountOptions::default()).unwrap();
    let run = fs.mappings(Ino::JOURNAL).unwrap().next().unwrap().unwrap();
    let at = run.physical.unwrap().offset(fs.geometry().block_size()) as usize;
    (at, JournalSuperblock::read(&bytes[at..]).unwrap())
}

/// Gives a clean journal checksums of version 2, as Linux had them before version 3.
fn use_checksums_v2(bytes: &mut [u8]) {
    let (at, mut sb) = journal_superblock(bytes);
    assert_eq!(sb.start(), 0, "the journal is clean");
    let mut features = sb.features();
    features.compat &= !JournalFeatures::COMPAT_CHECKSUM;
    features.incompat &= !JournalFeatures::INCOMPAT_CSUM_V3;
    features.incompat |= JournalFeatures::INCOMPAT_CSUM_V2;
    sb.set_features(features);
    sb.set_checksum_type(JournalSuperblock::CHECKSUM_TYPE_CRC32C);
    sb.seal();
    bytes[at..at + JournalSuperblock::SIZE].copy_from_slice(sb.bytes());
}

/// An image that goes from one to the other.
struct Shared {
    /// The file that holds it for the kernel and e2fsck.
    path: PathBuf,
    _directory: tempfile::TempDir,
    bytes: Vec<u8>,
    is_v2: bool,
    what: String,
    seed: u64,
}

impl Shared {
    fn new(options: &[&str], is_v2: bool) -> Option<Shared> {
        let directory = tempfile::tempdir().unwrap();
        Some(Shared {
            bytes: make(options, 16 << 20)?,
            path: directory.path().join("image"),
            _directory: directory,
            is_v2,
            what: format!("{options:?} v2 {is_v2}"),
            seed: 0,
        })
    }

    fn lend(&self) {
        std::fs::write(&self.path, &self.bytes).unwrap();
    }

    /// The kernel's turn. With `leaves_dirty` the image is taken while it is mounted, after a sync.
    fn kernels_turn(&mut self, leaves_dirty: bool) {
        self.lend();
        self.seed += 1;
        let mounted = KernelMount::with(&self.path, "loop").unwrap();
        let mut expected = tree(&self.read());
        let mut kernel = ByKernel {
            root: mounted.path(),
            open: HashMap::new(),
        };
        for op in turn(self.seed, &mut expected) {
            kernel.apply(&op);
        }
        let shown = Manifest::of(&mounted.path()).unwrap().without_lost_found();
        let what = format!("{} kernel's turn {}", self.what, self.seed);
        if leaves_dirty {
            let root = std::fs::File::open(mounted.path()).unwrap();
            sys::syncfs(&root).unwrap();
            self.bytes = testkit::read_image(&self.path);
            let report = *self.read().recovery_report().expect("a journal to replay");
            assert!(report.transactions > 0, "{what}");
            drop(root);
            drop(mounted);
        } else {
            drop(mounted);
            self.bytes = testkit::read_image(&self.path);
        }
        // Once as it is, once with what the journal holds written home.
        let reader = self.read();
        assert_same(&shown, &manifest(&reader), &what);
        let device = Arc::new(CowDevice::new(self.bytes.as_slice().into()));
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        if let Err(difference) = expected.compare(&tree(&fs)) {
            panic!("{what}: {difference}");
        }
        fs.close().unwrap();
        self.bytes = device.bytes();
        self.judge();
    }

    /// lanefs's turn. With `leaves_dirty` it ends like a power cut after a sync.
    fn our_turn(&mut self, leaves_dirty: bool) {
        self.seed += 1;
        if self.is_v2 {
            use_checksums_v2(&mut self.bytes);
        }
        let device = Arc::new(CowDevice::new(self.bytes.as_slice().into()));
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let mut expected = tree(&fs);
        let mut executor = Executor::new(&fs);
        for op in turn(self.seed, &mut expected) {
            executor.apply(&op).unwrap();
        }
        drop(executor);
        let what = format!("{} our turn {}", self.what, self.seed);
        if let Err(difference) = expected.compare(&tree(&fs)) {
            panic!("{what}: {difference}");
        }
        let shown = manifest(&fs);
        if leaves_dirty {
            fs.sync().unwrap();
            drop(fs);
        } else {
            fs.close().unwrap()
        }
        self.bytes = device.bytes();
        if leaves_dirty {
            self.check_format(&what);
            self.replayed_by_e2fsck(&shown, &what);
        } else {
            self.judge();
        }
        self.lend();
        let mounted = KernelMount::with(&self.path, "loop").unwrap();
        let seen = Manifest::of(&mounted.path()).unwrap().without_lost_found();
        assert_same(&shown, &seen, &what);
        drop(mounted);
        self.bytes = testkit::read_image(&self.path);
        self.judge();
    }

    /// The dirty journal is of the format that was meant.
    fn check_format(&self, what: &str) {
        let (_, sb) = journal_superblock(&self.bytes);
        assert_ne!(sb.start(), 0, "{what}: something to replay");
        let has = |feature| sb.features().has_incompat(feature);
        let reader = self.read();
        let is_64bit = reader.geometry().has(ondisk::Feature::BIT64);
        let has_checksums = reader.geometry().has_metadata_csum();
        assert_eq!(has(JournalFeatures::INCOMPAT_64BIT), is_64bit, "{what}");
        assert_eq!(has(JournalFeatures::INCOMPAT_CSUM_V2), self.is_v2, "{what}");
        let is_v3 = has_checksums && !self.is_v2;
        assert_eq!(has(JournalFeatures::INCOMPAT_CSUM_V3), is_v3, "{what}");
    }

    fn replayed_by_e2fsck(&self, shown: &Manifest, what: &str) {
        self.lend();
        let output = testkit::e2fsck_with(&["-f", "-p"], &self.path);
        assert!(
            output.status.code().is_some_and(|code| code <= 1),
            "{what}: {output:?}"
        );
        testkit::e2fsck(&self.path);
        let device = Arc::new(CowDevice::new(testkit::read_image(&self.path).into()));
        let fs = InodeFs::open(device, &MountOptions::default()).unwrap();
        assert!(
            fs.recovery_report().is_none(),
            "{what}: e2fsck left it clean"
        );
        assert_same(shown, &manifest(&fs), what);
    }

    fn read(&self) -> InodeFs {
        let device = Arc::new(CowDevice::new(self.bytes.as_slice().into()));
        InodeFs::open(device, &MountOptions::default()).unwrap()
    }

    fn judge(&self) {
        self.lend();
        testkit::e2fsck(&self.path);
    }
}

fn in_turns(options: &[&str], is_v2: bool, rounds: usize) {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let Some(mut shared) = Shared::new(options, is_v2) else {
        return;
    };
    for round in 0..rounds {
        let leaves_dirty = round % 2 == 1;
        shared.kernels_turn(leaves_dirty);
        shared.our_turn(leaves_dirty);
    }
}

/// Rounds of each form in CI; `LANEFS_ROUNDS` for more.
fn rounds() -> usize {
    let asked = std::env::var("LANEFS_ROUNDS").ok();
    asked.map_or(4, |rounds| rounds.parse().unwrap())
}

macro_rules! forms {
    ($($name:ident: $size:literal, $features:literal, $is_v2:literal;)*) => {$(
        #[test]
        fn $name() {
            in_turns(&["-b", $size, "-O", $features], $is_v2, rounds());
        }
    )*};
}

forms! {
    in_turns_1k_64bit_v3: "1024", "64bit,metadata_csum", false;
    in_turns_1k_32bit_v3: "1024", "^64bit,metadata_csum", false;
    in_turns_1k_64bit_v2: "1024", "64bit,metadata_csum", true;
    in_turns_1k_32bit_v2: "1024", "^64bit,^metadata_csum", true;
    in_turns_1k_64bit_plain: "1024", "64bit,^metadata_csum", false;
    in_turns_1k_32bit_plain: "1024", "^64bit,^metadata_csum", false;
    in_turns_4k_64bit_v3: "4096", "64bit,metadata_csum", false;
    in_turns_4k_32bit_v3: "4096", "^64bit,metadata_csum", false;
    in_turns_4k_64bit_v2: "4096", "64bit,^metadata_csum", true;
    in_turns_4k_32bit_v2: "4096", "^64bit,metadata_csum", true;
    in_turns_4k_64bit_plain: "4096", "64bit,^metadata_csum", false;
    in_turns_4k_with_an_area_for_fast_commits: "4096", "64bit,metadata_csum,fast_commit", false;
    in_turns_4k_32bit_plain: "4096", "^64bit,^metadata_csum", false;
}
