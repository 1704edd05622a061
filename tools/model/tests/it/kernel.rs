//! Runs generated operations on a kernel mount and on the model and compares each outcome and the trees.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Metadata};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path as HostPath, PathBuf};

use lanefs_model::{
    Device, Errno, FallocateMode, FileBytes, Generator, Kind, ModelId, ModelNode, ModelPath,
    ModelTree, Op, OpTarget, RenameMode, SizeProfile, XattrCondition,
};
use rustix::fs::{self as sys, AtFlags, FallocateFlags, FileType, OFlags, RenameFlags, XattrFlags};

struct Kernel {
    root: PathBuf,
    slots: HashMap<u8, File>,
}

type Outcome = Result<(), Errno>;

fn errno(error: rustix::io::Errno) -> Errno {
    let known = [
        (rustix::io::Errno::PERM, Errno::EPERM),
        (rustix::io::Errno::NOENT, Errno::ENOENT),
        (rustix::io::Errno::ACCESS, Errno::EACCES),
        (rustix::io::Errno::OPNOTSUPP, Errno::EOPNOTSUPP),
        (rustix::io::Errno::BADF, Errno::EBADF),
        (rustix::io::Errno::EXIST, Errno::EEXIST),
        (rustix::io::Errno::NOTDIR, Errno::ENOTDIR),
        (rustix::io::Errno::ISDIR, Errno::EISDIR),
        (rustix::io::Errno::INVAL, Errno::EINVAL),
        (rustix::io::Errno::NODATA, Errno::ENODATA),
        (rustix::io::Errno::NOTEMPTY, Errno::ENOTEMPTY),
        (rustix::io::Errno::NAMETOOLONG, Errno::ENAMETOOLONG),
        (rustix::io::Errno::NOSPC, Errno::ENOSPC),
        (rustix::io::Errno::FBIG, Errno::EFBIG),
        (rustix::io::Errno::LOOP, Errno::ELOOP),
        (rustix::io::Errno::BUSY, Errno::EBUSY),
    ];
    known
        .iter()
        .find(|(theirs, _)| *theirs == error)
        .map_or_else(|| panic!("the kernel answered {error}"), |(_, ours)| *ours)
}

fn from_io(error: &std::io::Error) -> Errno {
    errno(rustix::io::Errno::from_io_error(error).unwrap())
}

impl Kernel {
    fn at(&self, path: &ModelPath) -> PathBuf {
        path.0.iter().fold(self.root.clone(), |at, name| {
            at.join(std::ffi::OsStr::from_bytes(name))
        })
    }

    /// Runs `work` on an open file, as the model defines what can be opened.
    fn on_file(
        &self,
        target: &OpTarget,
        for_sync: bool,
        work: impl FnOnce(&File) -> Outcome,
    ) -> Outcome {
        let path = match target {
            OpTarget::Slot(slot) => return work(self.slots.get(slot).ok_or(Errno::EBADF)?),
            OpTarget::Path(path) => self.at(path),
        };
        let file_type = fs::symlink_metadata(&path)
            .map_err(|error| from_io(&error))?
            .file_type();
        if file_type.is_symlink() {
            return Err(Errno::ELOOP);
        }
        if file_type.is_dir() && !for_sync {
            return Err(Errno::EISDIR);
        }
        if !file_type.is_dir() && !file_type.is_file() {
            return Err(Errno::EINVAL);
        }
        let file = File::options()
            .read(true)
            .write(!file_type.is_dir())
            .open(&path);
        work(&file.map_err(|error| from_io(&error))?)
    }

    fn run(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Create { path, mode } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
                sys::open(self.at(path), flags, u32::from(*mode).into())
                    .map(drop)
                    .map_err(errno)
            }
            Op::Mkdir { path, mode } => {
                sys::mkdir(self.at(path), u32::from(*mode).into()).map_err(errno)
            }
            Op::Mknod { path, mode, device } => self.mknod(path, *mode, *device),
            Op::Symlink { path, target } => {
                sys::symlink(std::ffi::OsStr::from_bytes(target), self.at(path)).map_err(errno)
            }
            Op::Link {
                from: OpTarget::Path(from),
                to,
            } => sys::link(self.at(from), self.at(to)).map_err(errno),
            Op::Link {
                from: OpTarget::Slot(slot),
                to,
            } => {
                let file = self.slots.get(slot).ok_or(Errno::EBADF)?;
                sys::linkat(file, "", sys::CWD, self.at(to), AtFlags::EMPTY_PATH).map_err(errno)
            }
            Op::Unlink { path } => sys::unlink(self.at(path)).map_err(errno),
            Op::Rmdir { path } => sys::rmdir(self.at(path)).map_err(errno),
            Op::Rename { from, to, flag } => {
                let flags = match flag {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    RenameMode::Whiteout => RenameFlags::WHITEOUT,
                };
                sys::renameat_with(sys::CWD, self.at(from), sys::CWD, self.at(to), flags)
                    .map_err(errno)
            }
            Op::Write {
                file,
                offset,
                bytes,
            } => self.on_file(file, false, |file| {
                file.write_all_at(bytes, *offset)
                    .map_err(|error| from_io(&error))
            }),
            Op::Truncate { file, size } => self.on_file(file, false, |file| {
                sys::ftruncate(file, *size).map_err(errno)
            }),
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            } => self.on_file(file, false, |file| {
                sys::fallocate(file, fallocate_flags(*mode), *offset, *len).map_err(errno)
            }),
            Op::SetXattr { .. } | Op::RemoveXattr { .. } => self.xattr(op),
            Op::Chmod { .. } | Op::Chown { .. } => self.attribute(op),
            Op::Open { .. } | Op::OpenTemp { .. } | Op::Close { .. } => self.slot(op),
            Op::Fsync { file } => self.on_file(file, true, |file| sys::fsync(file).map_err(errno)),
            Op::Fdatasync { file } => {
                self.on_file(file, true, |file| sys::fdatasync(file).map_err(errno))
            }
            Op::Sync => File::open(&self.root)
                .map_err(|error| from_io(&error))
                .and_then(|root| sys::syncfs(root.as_fd()).map_err(errno)),
        }
    }

    fn mknod(&self, path: &ModelPath, mode: u16, device: Device) -> Outcome {
        let (kind, number) = match device {
            Device::Fifo => (FileType::Fifo, 0),
            Device::Socket => (FileType::Socket, 0),
            Device::Char(major, minor) => (FileType::CharacterDevice, sys::makedev(major, minor)),
            Device::Block(major, minor) => (FileType::BlockDevice, sys::makedev(major, minor)),
        };
        sys::mknodat(
            sys::CWD,
            self.at(path),
            kind,
            u32::from(mode).into(),
            number,
        )
        .map_err(errno)
    }

    fn xattr(&self, op: &Op) -> Outcome {
        let result = match op {
            Op::SetXattr {
                file,
                name,
                value,
                flag,
            } => {
                let flags = match flag {
                    XattrCondition::Any => XattrFlags::empty(),
                    XattrCondition::Create => XattrFlags::CREATE,
                    XattrCondition::Replace => XattrFlags::REPLACE,
                };
                match file {
                    OpTarget::Path(path) => sys::lsetxattr(self.at(path), &**name, value, flags),
                    OpTarget::Slot(slot) => sys::fsetxattr(
                        self.slots.get(slot).ok_or(Errno::EBADF)?,
                        &**name,
                        value,
                        flags,
                    ),
                }
            }
            Op::RemoveXattr {
                file: OpTarget::Path(path),
                name,
            } => sys::lremovexattr(self.at(path), &**name),
            Op::RemoveXattr {
                file: OpTarget::Slot(slot),
                name,
            } => sys::fremovexattr(self.slots.get(slot).ok_or(Errno::EBADF)?, &**name),
            _ => unreachable!("only attribute operations come here"),
        };
        result.map_err(errno)
    }

    fn attribute(&self, op: &Op) -> Outcome {
        match op {
            Op::Chmod {
                file: OpTarget::Path(path),
                mode,
            } => {
                let path = self.at(path);
                if fs::symlink_metadata(&path)
                    .map_err(|error| from_io(&error))?
                    .is_symlink()
                {
                    return Err(Errno::EOPNOTSUPP);
                }
                sys::chmod(path, u32::from(*mode).into()).map_err(errno)
            }
            Op::Chmod {
                file: OpTarget::Slot(slot),
                mode,
            } => sys::fchmod(
                self.slots.get(slot).ok_or(Errno::EBADF)?,
                u32::from(*mode).into(),
            )
            .map_err(errno),
            Op::Chown {
                file: OpTarget::Path(path),
                uid,
                gid,
            } => std::os::unix::fs::lchown(self.at(path), Some(*uid), Some(*gid))
                .map_err(|error| from_io(&error)),
            Op::Chown {
                file: OpTarget::Slot(slot),
                uid,
                gid,
            } => {
                let file = self.slots.get(slot).ok_or(Errno::EBADF)?;
                std::os::unix::fs::fchown(file, Some(*uid), Some(*gid))
                    .map_err(|error| from_io(&error))
            }
            _ => unreachable!("only chmod and chown come here"),
        }
    }

    fn slot(&mut self, op: &Op) -> Outcome {
        match op {
            Op::Open { path, slot } => {
                let mut opened = None;
                self.on_file(&OpTarget::Path(path.clone()), false, |file| {
                    opened = file.try_clone().ok();
                    Ok(())
                })?;
                self.slots.insert(*slot, opened.unwrap());
            }
            Op::OpenTemp {
                directory,
                slot,
                mode,
            } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR;
                let file =
                    sys::open(self.at(directory), flags, u32::from(*mode).into()).map_err(errno)?;
                self.slots.insert(*slot, file.into());
            }
            Op::Close { slot } => {
                self.slots.remove(slot);
            }
            _ => unreachable!("only slot operations come here"),
        }
        Ok(())
    }

    /// The tree as the kernel shows it.
    fn tree(&self) -> ModelTree {
        let mut tree = ModelTree::new();
        let mut inodes = HashMap::new();
        tree.put(&ModelPath(Vec::new()), self.node(&self.root))
            .unwrap();
        let mut pending = vec![ModelPath(Vec::new())];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(self.at(&directory)).unwrap() {
                let entry = entry.unwrap();
                let path = directory.join(entry.file_name().as_bytes());
                if path == ModelPath::new("lost+found") {
                    continue;
                }
                let metadata = entry.metadata().unwrap();
                if let Some(first) = inodes.get(&metadata.ino()) {
                    let link = Op::Link {
                        from: OpTarget::Path(ModelPath::clone(first)),
                        to: path,
                    };
                    tree.apply(&link).unwrap();
                    continue;
                }
                tree.put(&path, self.node(&self.at(&path))).unwrap();
                if metadata.is_dir() {
                    pending.push(path);
                } else {
                    inodes.insert(metadata.ino(), path);
                }
            }
        }
        tree
    }

    fn node(&self, path: &HostPath) -> ModelNode {
        let metadata = fs::symlink_metadata(path).unwrap();
        let mut xattrs = BTreeMap::new();
        let mut names = vec![0; 65_536];
        let len = sys::llistxattr(path, &mut names[..]).unwrap();
        for name in names[..len]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
        {
            let mut value = vec![0; 65_536];
            let len = sys::lgetxattr(path, name, &mut value[..]).unwrap();
            xattrs.insert(name.to_vec(), value[..len].to_vec());
        }
        ModelNode {
            kind: kind(path, &metadata),
            mode: (metadata.mode() & 0o7777) as u16,
            uid: metadata.uid(),
            gid: metadata.gid(),
            links: metadata.nlink() as u32,
            linkable: false,
            xattrs,
        }
    }
}

fn kind(path: &HostPath, metadata: &Metadata) -> Kind {
    let file_type = metadata.file_type();
    let (major, minor) = (sys::major(metadata.rdev()), sys::minor(metadata.rdev()));
    if file_type.is_dir() {
        Kind::Directory(BTreeMap::new())
    } else if file_type.is_symlink() {
        Kind::Symlink(fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec())
    } else if file_type.is_fifo() {
        Kind::Device(Device::Fifo)
    } else if file_type.is_socket() {
        Kind::Device(Device::Socket)
    } else if file_type.is_char_device() {
        Kind::Device(Device::Char(major, minor))
    } else if file_type.is_block_device() {
        Kind::Device(Device::Block(major, minor))
    } else {
        Kind::File(FileBytes::from_bytes(&fs::read(path).unwrap()))
    }
}

fn fallocate_flags(mode: FallocateMode) -> FallocateFlags {
    match mode {
        FallocateMode::Allocate => FallocateFlags::empty(),
        FallocateMode::KeepSize => FallocateFlags::KEEP_SIZE,
        FallocateMode::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        FallocateMode::Zero => FallocateFlags::ZERO_RANGE,
        FallocateMode::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        FallocateMode::Collapse => FallocateFlags::COLLAPSE_RANGE,
        FallocateMode::Insert => FallocateFlags::INSERT_RANGE,
    }
}

/// One run from a seed on an empty directory tree; removes what it made.
fn run(mount: &HostPath, seed: u64, steps: usize) -> BTreeMap<String, usize> {
    let root = mount.join(format!("seed{seed}"));
    fs::create_dir(&root).unwrap();
    sys::chmod(&root, 0o755.into()).unwrap();
    let mut kernel = Kernel {
        root,
        slots: HashMap::new(),
    };
    let mut tree = ModelTree::new();
    let mut generator = Generator::new(seed, SizeProfile::default());
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for step in 0..steps {
        let op = generator.next(&tree);
        let expected = tree.apply(&op);
        let actual = kernel.run(&op);
        assert_eq!(expected, actual, "seed {seed}, step {step}: {op:?}");
        *outcomes.entry(format!("{actual:?}")).or_default() += 1;
        if step % 25 == 24
            && let Err(difference) = tree.recovered().compare(&kernel.tree())
        {
            panic!("seed {seed}, after step {step} ({op:?}): {difference}");
        }
    }
    assert_eq!(tree.lookup(&ModelPath(Vec::new())), Ok(ModelId::ROOT));
    fs::remove_dir_all(&kernel.root).unwrap();
    outcomes
}

#[test]
fn the_kernel_gives_the_same_outcomes_and_the_same_trees() {
    if !testkit::is_root() || !testkit::have("mke2fs") {
        return testkit::skip("needs root and mke2fs");
    }
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    File::create(&image).unwrap().set_len(256 << 20).unwrap();
    testkit::mke2fs(&[
        "-q",
        "-F",
        "-t",
        "ext4",
        "-b",
        "4096",
        image.to_str().unwrap(),
    ]);
    let mounted = match testkit::KernelMount::with(&image, "loop") {
        Ok(mounted) => mounted,
        Err(error) => return testkit::skip(&format!("no loop mount: {error}")),
    };
    rustix::process::umask(sys::Mode::empty());
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..60 {
        for (outcome, count) in run(&mounted.path(), seed, 400) {
            *outcomes.entry(outcome).or_default() += count;
        }
    }
    let mut report = std::io::stderr().lock();
    writeln!(report, "outcomes: {outcomes:?}").unwrap();
    // The generator must do real work, and reach the errors that matter.
    assert!(outcomes["Ok(())"] > 12_000);
    for error in [
        "ENOENT",
        "EEXIST",
        "ENOTEMPTY",
        "EISDIR",
        "ENOTDIR",
        "EINVAL",
        "ENODATA",
        "EPERM",
        "EBADF",
    ] {
        assert!(
            outcomes.contains_key(&format!("Err({error})")),
            "{error} never came up"
        );
    }
}
