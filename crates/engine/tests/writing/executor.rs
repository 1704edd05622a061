//! The engine beside the model: operations of the model done by number, and what is found on an image as a model's
//! tree.

use std::collections::HashMap;

use lanefs_engine::{Error, FileType, Fs, Ino, NewInode, RenameFlag as Flag, SetAttributes};
use model::{Content, Device, Errno, Kind, Node, Op, Path, RenameFlag, Target, Tree};

/// Does the model's operations on a file system.
pub struct Executor<'a> {
    pub fs: &'a Fs,
    slots: HashMap<u8, Ino>,
}

/// The model's name for an error.
fn errno(error: &Error) -> Errno {
    match error {
        Error::NotFound => Errno::ENOENT,
        Error::NotDirectory => Errno::ENOTDIR,
        Error::IsDirectory => Errno::EISDIR,
        Error::Exists => Errno::EEXIST,
        Error::NotEmpty => Errno::ENOTEMPTY,
        Error::NotPermitted => Errno::EPERM,
        Error::LinkLimit => Errno::EMLINK,
        Error::InvalidArgument => Errno::EINVAL,
        Error::NameTooLong => Errno::ENAMETOOLONG,
        Error::NoSpace | Error::DirectoryFull => Errno::ENOSPC,
        Error::Busy => Errno::EBUSY,
        other => panic!("{other:?}"),
    }
}

fn new(mode: u16) -> NewInode {
    NewInode {
        mode,
        uid: 0,
        gid: 0,
        umask: 0,
        held: false,
    }
}

impl<'a> Executor<'a> {
    pub fn new(fs: &'a Fs) -> Executor<'a> {
        Executor {
            fs,
            slots: HashMap::new(),
        }
    }

    /// Whether this executor knows the operation.
    pub fn knows(op: &Op) -> bool {
        !matches!(
            op,
            Op::Fallocate { .. } | Op::SetXattr { .. } | Op::RemoveXattr { .. }
        )
    }

    /// Does it.
    pub fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        self.run(op)
    }

    fn lookup(&self, path: &Path) -> Result<Ino, Errno> {
        let mut here = Ino::ROOT;
        for name in &path.0 {
            self.directory(here)?;
            here = self.fs.lookup(here, name).map_err(|e| errno(&e))?;
        }
        Ok(here)
    }

    /// A link within a path leads nowhere in the model.
    fn directory(&self, ino: Ino) -> Result<(), Errno> {
        match self.fs.metadata(ino).map_err(|e| errno(&e))?.file_type {
            FileType::Directory => Ok(()),
            FileType::Symlink => Err(Errno::ENOENT),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn parent<'p>(&self, path: &'p Path) -> Result<(Ino, &'p [u8]), Errno> {
        let (parent, name) = path.split().ok_or(Errno::EBUSY)?;
        let parent = self.lookup(&parent)?;
        self.directory(parent)?;
        Ok((
            parent,
            path.0.last().map_or(&[][..], |last| {
                assert_eq!(last, name);
                last
            }),
        ))
    }

    fn find(&self, target: &Target) -> Result<Ino, Errno> {
        match target {
            Target::Path(path) => self.lookup(path),
            Target::Slot(slot) => self.slots.get(slot).copied().ok_or(Errno::EBADF),
        }
    }

    fn regular(&self, ino: Ino) -> Result<(), Errno> {
        match self.fs.metadata(ino).map_err(|e| errno(&e))?.file_type {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(Errno::EISDIR),
            FileType::Symlink => Err(Errno::ELOOP),
            _ => Err(Errno::EINVAL),
        }
    }

    fn close(&mut self, slot: u8) {
        if let Some(ino) = self.slots.remove(&slot) {
            self.fs.release(ino).unwrap();
        }
    }

    fn set(&self, file: &Target, attributes: &SetAttributes) -> Result<(), Errno> {
        let ino = self.find(file)?;
        let attributes = SetAttributes { ..*attributes };
        self.fs
            .set_attributes(ino, &attributes)
            .map_err(|e| errno(&e))
    }

    fn run(&mut self, op: &Op) -> Result<(), Errno> {
        let fs = self.fs;
        let failed = |error: Error| errno(&error);
        match op {
            Op::Create { path, mode } => {
                let (parent, name) = self.parent(path)?;
                fs.create(parent, name, new(*mode))
                    .map(drop)
                    .map_err(failed)
            }
            Op::Mkdir { path, mode } => {
                let (parent, name) = self.parent(path)?;
                let mode = new(mode & 0o1777);
                fs.mkdir(parent, name, mode).map(drop).map_err(failed)
            }
            Op::Mknod { path, mode, device } => {
                let (parent, name) = self.parent(path)?;
                let (file_type, rdev) = match device {
                    Device::Fifo => (FileType::Fifo, (0, 0)),
                    Device::Socket => (FileType::Socket, (0, 0)),
                    Device::Char(major, minor) => (FileType::CharDevice, (*major, *minor)),
                    Device::Block(major, minor) => (FileType::BlockDevice, (*major, *minor)),
                };
                fs.mknod(parent, name, file_type, rdev, new(*mode))
                    .map(drop)
                    .map_err(failed)
            }
            Op::Symlink { path, target } => {
                let (parent, name) = self.parent(path)?;
                fs.symlink(parent, name, target, new(0o777))
                    .map(drop)
                    .map_err(failed)
            }
            Op::Link { from, to } => {
                let ino = self.find(from)?;
                let (parent, name) = self.parent(to)?;
                fs.link(ino, parent, name).map_err(failed)
            }
            Op::Unlink { path } => {
                let (parent, name) = self.parent(path)?;
                fs.unlink(parent, name).map_err(failed)
            }
            Op::Rmdir { path } => {
                let (parent, name) = self.parent(path)?;
                fs.rmdir(parent, name).map_err(failed)
            }
            Op::Rename { from, to, flag } => {
                let (old, name) = self.parent(from)?;
                let (new, new_name) = self.parent(to)?;
                let flag = match flag {
                    RenameFlag::Replace => Flag::Replace,
                    RenameFlag::NoReplace => Flag::NoReplace,
                    RenameFlag::Exchange => Flag::Exchange,
                };
                fs.rename(old, name, new, new_name, flag).map_err(failed)
            }
            other => self.run_on_file(other),
        }
    }

    /// Operations on files and on what is open.
    fn run_on_file(&mut self, op: &Op) -> Result<(), Errno> {
        let fs = self.fs;
        let failed = |error: Error| errno(&error);
        match op {
            Op::Open { path, slot } => {
                let ino = self.lookup(path)?;
                self.regular(ino)?;
                fs.hold(ino).map_err(failed)?;
                self.close(*slot);
                self.slots.insert(*slot, ino);
                Ok(())
            }
            Op::OpenTemp {
                directory,
                slot,
                mode,
            } => {
                let directory = self.lookup(directory)?;
                if fs.metadata(directory).unwrap().file_type != FileType::Directory {
                    return Err(Errno::ENOTDIR);
                }
                let ino = fs.create_unnamed(directory, new(*mode)).map_err(failed)?;
                self.close(*slot);
                self.slots.insert(*slot, ino);
                Ok(())
            }
            Op::Close { slot } => {
                self.close(*slot);
                Ok(())
            }
            Op::Write {
                file,
                offset,
                bytes,
            } => {
                let ino = self.find(file)?;
                self.regular(ino)?;
                fs.write(ino, *offset, bytes).map(drop).map_err(failed)
            }
            Op::Truncate { file, size } => {
                let ino = self.find(file)?;
                self.regular(ino)?;
                fs.truncate(ino, *size).map_err(failed)
            }
            Op::Chmod { file, mode } => {
                let ino = self.find(file)?;
                if fs.metadata(ino).map_err(failed)?.file_type == FileType::Symlink {
                    return Err(Errno::EOPNOTSUPP);
                }
                let mode = Some(*mode);
                self.set(
                    file,
                    &SetAttributes {
                        mode,
                        ..Default::default()
                    },
                )
            }
            Op::Fsync { file } | Op::Fdatasync { file } => match self.regular(self.find(file)?) {
                Ok(()) | Err(Errno::EISDIR) => fs.sync().map_err(failed),
                Err(error) => Err(error),
            },
            Op::Sync => fs.sync().map_err(failed),
            other => panic!("{other:?} is not known"),
        }
    }
}

/// What is on an image, but for `lost+found`.
pub fn tree(fs: &Fs) -> Tree {
    let mut tree = Tree::new();
    let mut found: HashMap<Ino, Path> = HashMap::new();
    let mut rest = vec![(Path(Vec::new()), Ino::ROOT)];
    while let Some((path, ino)) = rest.pop() {
        let inode = fs.metadata(ino).unwrap();
        let mut names = Vec::new();
        if let Some(first) = found.get(&ino) {
            let from = Target::Path(first.clone());
            tree.apply(&Op::Link { from, to: path }).unwrap();
            continue;
        }
        let kind = match inode.file_type {
            FileType::Regular => {
                let mut content = Content::default();
                let mut bytes = vec![0; inode.size as usize];
                assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
                content.write(0, &bytes);
                Kind::File(content)
            }
            FileType::Directory => {
                names = fs
                    .read_dir(ino)
                    .unwrap()
                    .map(|entry| entry.unwrap())
                    .filter(|entry| entry.name != b"." && entry.name != b"..")
                    .collect();
                Kind::Directory(Default::default())
            }
            FileType::Symlink => Kind::Symlink(fs.read_link(ino).unwrap()),
            FileType::Fifo => Kind::Device(Device::Fifo),
            FileType::Socket => Kind::Device(Device::Socket),
            FileType::CharDevice => Kind::Device(Device::Char(inode.rdev.0, inode.rdev.1)),
            FileType::BlockDevice => Kind::Device(Device::Block(inode.rdev.0, inode.rdev.1)),
        };
        let node = Node {
            kind,
            mode: inode.mode & 0o7777,
            uid: inode.uid,
            gid: inode.gid,
            links: 0,
            linkable: false,
            xattrs: Default::default(),
        };
        tree.put(&path, node).unwrap();
        for entry in names {
            assert_eq!(fs.lookup(ino, &entry.name).unwrap(), entry.ino);
            if !(path.0.is_empty() && entry.name == b"lost+found") {
                rest.push((path.join(&entry.name), entry.ino));
            }
        }
        found.insert(ino, path);
    }
    verify_links(fs, &tree, &found);
    tree
}

/// The counts on the image are those of the names.
fn verify_links(fs: &Fs, tree: &Tree, found: &HashMap<Ino, Path>) {
    for (ino, path) in found {
        let own = u32::from(path.0.is_empty() && fs.lookup(*ino, b"lost+found").is_ok());
        let links = tree.node(tree.lookup(path).unwrap()).links;
        assert_eq!(fs.metadata(*ino).unwrap().nlink, links + own, "{path}");
    }
}
