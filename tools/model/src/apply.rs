//! Applies one operation to the tree: as a whole, or not at all.

use crate::{Errno, Kind, ModelTree, Op, OpTarget};

impl ModelTree {
    /// Applies `op`, as Linux does when root asks for it.
    ///
    /// # Errors
    /// The error number that Linux returns; the tree is then unchanged. The model has no contents of devices, pipes and
    /// sockets, so operations on those contents return `EINVAL`.
    pub fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        match op {
            Op::Create { path, mode } => self
                .create(path, *mode, Kind::File(Default::default()))
                .map(drop),
            Op::Mkdir { path, mode } => self
                .create(path, *mode & 0o1777, Kind::Directory(Default::default()))
                .map(drop),
            Op::Mknod { path, mode, device } => {
                self.create(path, *mode, Kind::Device(*device)).map(drop)
            }
            Op::Symlink { path, target } => self
                .create(path, 0o777, Kind::Symlink(target.clone()))
                .map(drop),
            Op::Link { from, to } => self.link(from, to),
            Op::Unlink { path } => self.unlink(path),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Rename { from, to, flag } => self.rename(from, to, *flag),
            Op::Write {
                file,
                offset,
                bytes,
            } => {
                self.content(file)?.write(*offset, bytes);
                Ok(())
            }
            Op::Truncate { file, size } => {
                self.content(file)?.truncate(*size);
                Ok(())
            }
            Op::Fallocate {
                file,
                mode,
                offset,
                len,
            } => self.fallocate(file, *mode, *offset, *len),
            Op::SetXattr {
                file,
                name,
                value,
                flag,
            } => self.set_xattr(file, name, value, *flag),
            Op::RemoveXattr { file, name } => self.remove_xattr(file, name),
            Op::Chmod { file, mode } => self.chmod(file, *mode),
            Op::Chown { file, uid, gid } => self.chown(file, *uid, *gid),
            Op::Open { path, slot } => self.open(path, *slot),
            Op::OpenTemp {
                directory,
                slot,
                mode,
            } => self.open_temp(directory, *slot, *mode),
            Op::Close { slot } => {
                self.close(*slot);
                Ok(())
            }
            Op::Fsync { file } | Op::Fdatasync { file } => self.openable(file),
            Op::Sync => Ok(()),
        }
    }

    /// Succeeds if Linux lets root open `file` for reading, which an fsync needs.
    fn openable(&self, file: &OpTarget) -> Result<(), Errno> {
        match self.node(self.find(file)?).kind {
            Kind::File(_) | Kind::Directory(_) => Ok(()),
            Kind::Symlink(_) => Err(Errno::ELOOP),
            Kind::Device(_) => Err(Errno::EINVAL),
        }
    }
}
