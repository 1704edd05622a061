//! The engine beside the model: the model's operations done on a file system, and what is on an image as a tree of the
//! model. Takes no lock of its own; one executor belongs to one thread and holds what its slots name.

use std::collections::{HashMap, HashSet};

use engine::{
    Allocate, Error, FileType, Ino, InodeFs, NewInode, RenameFlag as Flag, SetAttributes,
    XattrFlag as Attribute,
};
use model::{
    Device, Errno, FallocateMode, FileBytes, Kind, ModelNode, ModelPath, ModelTree, Op, OpTarget,
    RenameMode, XattrCondition,
};

/// Why an operation of the model was not done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpRefusal {
    /// For a reason that the model knows.
    Errno(Errno),
    /// The engine says by name that it can't do this.
    Unsupported(String),
    /// The device failed, the journal is aborted, or the image is broken.
    Broken(String),
}

impl From<Errno> for OpRefusal {
    fn from(errno: Errno) -> OpRefusal {
        OpRefusal::Errno(errno)
    }
}

impl From<Error> for OpRefusal {
    fn from(error: Error) -> OpRefusal {
        let errno = match error {
            Error::NotFound => Errno::ENOENT,
            Error::AccessDenied => Errno::EACCES,
            Error::NotDirectory => Errno::ENOTDIR,
            Error::IsDirectory => Errno::EISDIR,
            Error::Exists => Errno::EEXIST,
            Error::NotEmpty => Errno::ENOTEMPTY,
            Error::NotPermitted => Errno::EPERM,
            Error::LinkLimit => Errno::EMLINK,
            Error::InvalidArgument | Error::NotRegular => Errno::EINVAL,
            Error::NameTooLong => Errno::ENAMETOOLONG,
            Error::NoSpace | Error::DirectoryFull => Errno::ENOSPC,
            Error::Busy => Errno::EBUSY,
            Error::NoAttribute => Errno::ENODATA,
            Error::FileTooLarge => Errno::EFBIG,
            Error::NotSupported(what) | Error::Unsupported(what) => {
                return OpRefusal::Unsupported(what.into());
            }
            other => return OpRefusal::Broken(other.to_string()),
        };
        OpRefusal::Errno(errno)
    }
}

/// Does the model's operations on a file system.
pub struct Executor<'a> {
    fs: &'a InodeFs,
    slots: HashMap<u8, Ino>,
    /// Bytes that the last write wrote.
    written: usize,
    /// Whether each operation looks at what it is about, as `stat` does.
    looks: bool,
}

fn new(mode: u16) -> NewInode {
    NewInode {
        mode,
        umask: 0,
        uid: 0,
        gid: 0,
        held: false,
    }
}

impl<'a> Executor<'a> {
    /// With all slots empty.
    #[must_use]
    pub fn new(fs: &'a InodeFs) -> Executor<'a> {
        Executor {
            fs,
            slots: HashMap::new(),
            written: 0,
            looks: true,
        }
    }

    /// With all slots empty; what each operation does to a file is done without a look at its times, so that the next
    /// write may leave them as they are.
    #[must_use]
    pub fn without_looks(fs: &'a InodeFs) -> Executor<'a> {
        Executor {
            looks: false,
            ..Executor::new(fs)
        }
    }

    /// What an inode is. Where nobody is to see times, a regular file is told by a slot that it is in, or by that it
    /// takes nothing at its end.
    fn file_type(&self, ino: Ino) -> Result<FileType, OpRefusal> {
        let is_held = || self.slots.values().any(|held| *held == ino);
        if !self.looks && (is_held() || self.fs.append(ino, &[]).is_ok()) {
            return Ok(FileType::Regular);
        }
        Ok(self.fs.metadata(ino)?.file_type)
    }

    /// The file in a slot.
    #[must_use]
    pub fn slot(&self, slot: u8) -> Option<Ino> {
        self.slots.get(&slot).copied()
    }

    /// Bytes that the last write wrote, also where it was refused in the end.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written
    }

    /// The inode that a path leads to; a link within it leads nowhere, as in the model.
    ///
    /// # Errors
    /// Those of a lookup.
    pub fn lookup(&self, path: &ModelPath) -> Result<Ino, OpRefusal> {
        let mut here = Ino::ROOT;
        for name in &path.0 {
            self.directory(here)?;
            here = self.fs.lookup(here, name)?;
        }
        Ok(here)
    }

    fn directory(&self, ino: Ino) -> Result<(), OpRefusal> {
        match self.file_type(ino)? {
            FileType::Directory => Ok(()),
            FileType::Symlink => Err(Errno::ENOENT.into()),
            _ => Err(Errno::ENOTDIR.into()),
        }
    }

    fn parent<'p>(&self, path: &'p ModelPath) -> Result<(Ino, &'p [u8]), OpRefusal> {
        let (name, parents) = path.0.split_last().ok_or(Errno::EBUSY)?;
        let parent = self.lookup(&ModelPath(parents.to_vec()))?;
        self.directory(parent)?;
        Ok((parent, name))
    }

    fn find(&self, target: &OpTarget) -> Result<Ino, OpRefusal> {
        match target {
            OpTarget::Path(path) => self.lookup(path),
            OpTarget::Slot(slot) => Ok(self.slot(*slot).ok_or(Errno::EBADF)?),
        }
    }

    fn regular(&self, target: &OpTarget) -> Result<Ino, OpRefusal> {
        let ino = self.find(target)?;
        match self.file_type(ino)? {
            FileType::Regular => Ok(ino),
            FileType::Directory => Err(Errno::EISDIR.into()),
            FileType::Symlink => Err(Errno::ELOOP.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn close(&mut self, slot: u8) -> Result<(), OpRefusal> {
        match self.slots.remove(&slot) {
            Some(ino) => Ok(self.fs.release(ino)?),
            None => Ok(()),
        }
    }

    fn put(&mut self, slot: u8, ino: Ino) -> Result<(), OpRefusal> {
        let closed = self.close(slot);
        self.slots.insert(slot, ino);
        closed
    }

    /// Does an operation.
    ///
    /// # Errors
    /// The model's error numbers for what Linux refuses, too.
    pub fn apply(&mut self, op: &Op) -> Result<(), OpRefusal> {
        let fs = self.fs;
        match op {
            Op::Create { path, mode } => {
                let (parent, name) = self.parent(path)?;
                fs.create(parent, name, new(*mode))?;
            }
            Op::Mkdir { path, mode } => {
                let (parent, name) = self.parent(path)?;
                fs.mkdir(parent, name, new(mode & 0o1777))?;
            }
            Op::Mknod { path, mode, device } => {
                let (parent, name) = self.parent(path)?;
                let (file_type, rdev) = match device {
                    Device::Fifo => (FileType::Fifo, (0, 0)),
                    Device::Socket => (FileType::Socket, (0, 0)),
                    Device::Char(major, minor) => (FileType::CharDevice, (*major, *minor)),
                    Device::Block(major, minor) => (FileType::BlockDevice, (*major, *minor)),
                };
                fs.mknod(parent, name, file_type, rdev, new(*mode))?;
            }
            Op::Symlink { path, target } => {
                let (parent, name) = self.parent(path)?;
                fs.symlink(parent, name, target, new(0o777))?;
            }
            Op::Link { from, to } => {
                let ino = self.find(from)?;
                let (parent, name) = self.parent(to)?;
                fs.link(ino, parent, name)?;
            }
            Op::Unlink { path } => {
                let (parent, name) = self.parent(path)?;
                fs.unlink(parent, name)?;
            }
            Op::Rmdir { path } => {
                let (parent, name) = self.parent(path)?;
                fs.rmdir(parent, name)?;
            }
            Op::Rename { from, to, flag } => {
                let (old, name) = self.parent(from)?;
                let (new, new_name) = self.parent(to)?;
                let flag = match flag {
                    RenameMode::Replace => Flag::Replace,
                    RenameMode::NoReplace => Flag::NoReplace,
                    RenameMode::Exchange => Flag::Exchange,
                    RenameMode::Whiteout => {
                        let (from, to) = ((old, name), (new, new_name));
                        return Ok(fs.rename_with_whiteout(from, to, Flag::Replace, (0, 0))?);
                    }
                };
                fs.rename(old, name, new, new_name, flag)?;
            }
            Op::Sync => fs.sync()?,
            other => return self.apply_to_file(other),
        }
        Ok(())
    }

    fn apply_to_file(&mut self, op: &Op) -> Result<(), OpRefusal> {
        let fs = self.fs;
        match op {
            Op::Open { path, slot } => {
                let (parent, name) = self.parent(path)?;
                let ino = fs.lookup_held(parent, name)?;
                if let Err(refusal) = self.regular_held(ino) {
                    fs.release(ino)?;
                    return Err(refusal);
                }
                self.put(*slot, ino)?;
            }
            Op::OpenTemp {
                directory,
                slot,
                mode,
            } => {
                let directory = self.lookup(directory)?;
                if self.file_type(directory)? != FileType::Directory {
                    return Err(Errno::ENOTDIR.into());
                }
                let ino = fs.create_unnamed(directory, new(*mode))?;
                self.put(*slot, ino)?;
            }
            Op::Close { slot } => self.close(*slot)?,
            Op::Write {
                file,
                offset,
                bytes,
            } => {
                self.written = 0;
                self.write(file, *offset, bytes)?;
            }
            Op::Truncate { file, size } => fs.truncate(self.regular(file)?, *size)?,
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            } => fs.allocate(self.regular(file)?, allocate(*mode), *offset, *len)?,
            Op::Fsync { file } | Op::Fdatasync { file } => {
                let ino = self.find(file)?;
                match self.file_type(ino)? {
                    FileType::Regular | FileType::Directory => {}
                    FileType::Symlink => return Err(Errno::ELOOP.into()),
                    _ => return Err(Errno::EINVAL.into()),
                }
                match op {
                    Op::Fsync { .. } => fs.fsync(ino)?,
                    _ => fs.fdatasync(ino)?,
                }
            }
            other => return self.apply_to_attributes(other),
        }
        Ok(())
    }

    fn write(&mut self, file: &OpTarget, offset: u64, bytes: &[u8]) -> Result<(), OpRefusal> {
        let ino = self.regular(file)?;
        loop {
            let at = offset + self.written as u64;
            let written = self.fs.write(ino, at, &bytes[self.written..])?;
            self.written += written;
            // The rest says why it was not written.
            match self.written < bytes.len() {
                true if written == 0 => {
                    return Err(OpRefusal::Broken("nothing was written".into()));
                }
                true => {}
                false => return Ok(()),
            }
        }
    }

    fn regular_held(&self, ino: Ino) -> Result<(), OpRefusal> {
        match self.file_type(ino)? {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(Errno::EISDIR.into()),
            FileType::Symlink => Err(Errno::ELOOP.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn apply_to_attributes(&mut self, op: &Op) -> Result<(), OpRefusal> {
        let fs = self.fs;
        match op {
            Op::Chmod { file, mode } => {
                let ino = self.find(file)?;
                if self.file_type(ino)? == FileType::Symlink {
                    return Err(Errno::EOPNOTSUPP.into());
                }
                let mode = Some(*mode);
                fs.set_attributes(
                    ino,
                    &SetAttributes {
                        mode,
                        ..Default::default()
                    },
                )?;
            }
            Op::Chown { file, uid, gid } => {
                let ino = self.find(file)?;
                let inode = fs.metadata(ino)?;
                // As the kernel above a file system asks for it: setuid goes, and setgid where the group may execute.
                let gone = match (inode.file_type, inode.mode & 0o0010) {
                    (FileType::Directory, _) => 0,
                    (_, 0) => 0o4000,
                    _ => 0o6000,
                };
                let mode = inode.mode & 0o7777;
                let change = SetAttributes {
                    mode: (mode & gone != 0).then_some(mode & !gone),
                    uid: Some(*uid),
                    gid: Some(*gid),
                    ..Default::default()
                };
                fs.set_attributes(ino, &change)?;
            }
            Op::SetXattr {
                file,
                name,
                value,
                flag,
            } => {
                let ino = self.has_attributes(file, name)?;
                let flag = match flag {
                    XattrCondition::Any => Attribute::Any,
                    XattrCondition::Create => Attribute::Create,
                    XattrCondition::Replace => Attribute::Replace,
                };
                fs.set_xattr(ino, name, value, flag)?;
            }
            Op::RemoveXattr { file, name } => {
                let ino = self.has_attributes(file, name)?;
                fs.remove_xattr(ino, name)?;
            }
            other => return Err(OpRefusal::Broken(format!("{other:?} is not known"))),
        }
        Ok(())
    }

    /// The kernel above a file system refuses `user.` attributes of what is neither file nor directory.
    fn has_attributes(&self, file: &OpTarget, name: &[u8]) -> Result<Ino, OpRefusal> {
        let ino = self.find(file)?;
        match self.file_type(ino)? {
            FileType::Regular | FileType::Directory => Ok(ino),
            _ if name.starts_with(b"user.") => Err(Errno::EPERM.into()),
            FileType::Symlink if name.starts_with(b"system.") => Err(Errno::EOPNOTSUPP.into()),
            _ => Ok(ino),
        }
    }
}

fn allocate(mode: FallocateMode) -> Allocate {
    match mode {
        FallocateMode::Allocate => Allocate::Grow,
        FallocateMode::KeepSize => Allocate::KeepSize,
        FallocateMode::Punch => Allocate::Punch,
        FallocateMode::Zero => Allocate::Zero,
        FallocateMode::ZeroKeepSize => Allocate::ZeroKeepSize,
        FallocateMode::Collapse => Allocate::Collapse,
        FallocateMode::Insert => Allocate::Insert,
    }
}

/// An operation in a few words: what it writes is given by length and first byte.
#[must_use]
pub fn brief(op: &Op) -> String {
    match op {
        Op::Write {
            file,
            offset,
            bytes,
        } => {
            let first = bytes.first().copied().unwrap_or(0);
            let len = bytes.len();
            format!("Write {{ {file:?}, {len} bytes of {first:#x} at {offset} }}")
        }
        Op::SetXattr {
            file, name, value, ..
        } => {
            let name = String::from_utf8_lossy(name);
            format!("SetXattr {{ {file:?}, {name}, {} bytes }}", value.len())
        }
        Op::Symlink { path, target } => format!("Symlink {{ {path}, {} bytes }}", target.len()),
        other => format!("{other:?}"),
    }
}

/// What is on an image, except `lost+found`.
///
/// # Errors
/// What contradicts itself, or can't be read.
pub fn tree(fs: &InodeFs) -> Result<ModelTree, String> {
    tree_but(fs, false)
}

/// The same of an image that e2fsck repaired after a crash without a journal. Where a directory was about to get an
/// index, e2fsck leaves names in two of its blocks and calls that clean: of such names the first counts.
///
/// # Errors
/// As [`tree`].
pub fn tree_of_repaired(fs: &InodeFs) -> Result<ModelTree, String> {
    tree_but(fs, true)
}

fn tree_but(fs: &InodeFs, may_repeat: bool) -> Result<ModelTree, String> {
    let said = |error: Error| error.to_string();
    let refused = |errno: Errno| format!("{errno:?}");
    let mut tree = ModelTree::new();
    let mut found: HashMap<Ino, ModelPath> = HashMap::new();
    let mut rest = vec![(ModelPath(Vec::new()), Ino::ROOT)];
    let mut repeated: HashMap<Ino, u32> = HashMap::new();
    while let Some((path, ino)) = rest.pop() {
        if let Some(first) = found.get(&ino) {
            let from = OpTarget::Path(first.clone());
            tree.apply(&Op::Link { from, to: path }).map_err(refused)?;
            continue;
        }
        let mut names = Vec::new();
        let node = node(fs, ino, &mut names).map_err(|error| format!("{path}: {error}"))?;
        tree.put(&path, node).map_err(refused)?;
        let mut seen = HashSet::new();
        for (name, child) in names {
            if !seen.insert(name.clone()) && may_repeat {
                *repeated.entry(child).or_default() += 1;
                continue;
            }
            if fs.lookup(ino, &name).map_err(said)? != child {
                return Err(format!("{path}: a name leads elsewhere than the list says"));
            }
            if !(path.0.is_empty() && name == b"lost+found") {
                rest.push((path.join(&name), child));
            }
        }
        found.insert(ino, path);
    }
    for (ino, path) in found {
        let own = u32::from(path.0.is_empty() && fs.lookup(ino, b"lost+found").is_ok());
        let twice = repeated.get(&ino).copied().unwrap_or(0);
        let expected = tree.node(tree.lookup(&path).map_err(refused)?).links + own + twice;
        let links = fs.metadata(ino).map_err(said)?.nlink;
        if links != expected {
            return Err(format!("{path} has {expected} names and counts {links}"));
        }
    }
    Ok(tree)
}

fn node(fs: &InodeFs, ino: Ino, names: &mut Vec<(Vec<u8>, Ino)>) -> Result<ModelNode, Error> {
    let inode = fs.metadata(ino)?;
    let kind = match inode.file_type {
        FileType::Regular => {
            let mut bytes = vec![0; usize::try_from(inode.size).unwrap_or(0)];
            let read = fs.read(ino, 0, &mut bytes)?;
            bytes.truncate(read);
            let mut content = FileBytes::from_bytes(&bytes);
            content.truncate(inode.size);
            Kind::File(content)
        }
        FileType::Directory => {
            for entry in fs.read_dir(ino)? {
                let entry = entry?;
                if entry.name != b"." && entry.name != b".." {
                    names.push((entry.name, entry.ino));
                }
            }
            Kind::Directory(Default::default())
        }
        FileType::Symlink => Kind::Symlink(fs.read_link(ino)?),
        FileType::Fifo => Kind::Device(Device::Fifo),
        FileType::Socket => Kind::Device(Device::Socket),
        FileType::CharDevice => Kind::Device(Device::Char(inode.rdev.0, inode.rdev.1)),
        FileType::BlockDevice => Kind::Device(Device::Block(inode.rdev.0, inode.rdev.1)),
    };
    let xattrs = fs.xattrs(ino)?;
    Ok(ModelNode {
        kind,
        mode: inode.mode & 0o7777,
        uid: inode.uid,
        gid: inode.gid,
        links: 0,
        linkable: false,
        xattrs: xattrs
            .into_iter()
            .map(|xattr| (xattr.name, xattr.value))
            .collect(),
    })
}

/// What of a write goes to its place before the rest: what lies within the file's old size. A cut may keep that part
/// alone, also when the write has returned.
#[must_use]
pub fn within(op: &Op, before: &ModelTree) -> Option<Op> {
    let Op::Write {
        file,
        offset,
        bytes,
    } = op
    else {
        return None;
    };
    let Kind::File(content) = &before.node(before.find(file).ok()?).kind else {
        return None;
    };
    let len = usize::try_from(content.size().checked_sub(*offset)?).ok()?;
    (len > 0 && len < bytes.len()).then(|| Op::Write {
        file: file.clone(),
        offset: *offset,
        bytes: bytes[..len].to_vec(),
    })
}

/// What an operation may have done before it returns, in order: a prefix of its range; a hole where a range is to be
/// cut out. `unit` is the image's block size; `before` is what the operation finds: what a write has within the file's
/// old size goes to its place before the rest.
#[must_use]
pub fn parts(op: &Op, unit: u64, before: &ModelTree) -> Vec<Op> {
    let ends = |offset: u64, len: u64| -> Vec<u64> {
        let first = offset / unit + 1;
        (first..(offset + len).div_ceil(unit))
            .map(|block| block * unit - offset)
            .collect()
    };
    match op {
        Op::Write {
            file,
            offset,
            bytes,
        } => {
            let part = |len: u64| Op::Write {
                file: file.clone(),
                offset: *offset,
                bytes: bytes[..usize::try_from(len).unwrap_or(0)].to_vec(),
            };
            let mut lens = ends(*offset, bytes.len() as u64);
            if let Some(Op::Write { bytes, .. }) = within(op, before) {
                lens.push(bytes.len() as u64);
            }
            lens.sort_unstable();
            lens.dedup();
            lens.into_iter().map(part).collect()
        }
        Op::Fallocate {
            file,
            mode,
            offset,
            len,
        } => {
            let part = |mode: FallocateMode, len: u64| Op::Fallocate {
                file: file.clone(),
                mode,
                offset: *offset,
                len,
            };
            let prefixes =
                |mode: FallocateMode| ends(*offset, *len).into_iter().map(move |len| (mode, len));
            match mode {
                FallocateMode::Collapse => vec![part(FallocateMode::Punch, *len)],
                FallocateMode::Zero => prefixes(FallocateMode::ZeroKeepSize)
                    .chain([(FallocateMode::ZeroKeepSize, *len)])
                    .map(|(mode, len)| part(mode, len))
                    .collect(),
                FallocateMode::Insert => Vec::new(),
                mode => prefixes(*mode).map(|(mode, len)| part(mode, len)).collect(),
            }
        }
        _ => Vec::new(),
    }
}
