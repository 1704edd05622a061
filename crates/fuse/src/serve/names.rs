//! Requests that look up, make, move and remove names.

use lanefs::{FileType, Metadata};

use super::convert::{named, new, opening, unpacked};
use super::{Asked, Errno, abi, entry_of_nothing, entry_out, ino, reply_entry};
use crate::operations::{Answer, Kind, Opening};
use crate::request::FuseOperation;

impl Asked<'_> {
    /// Answers a request about a name.
    pub(super) fn name(self, operation: FuseOperation<'_>) {
        use FuseOperation as Op;
        match operation {
            Op::Lookup(name) => self.lookup(name),
            Op::ReadLink => self.read_link(),
            Op::Symlink { name, target } => self.symlink(name, target),
            Op::MkNod(node, name) => self.mknod(&node, name),
            Op::MkDir(directory, name) => self.mkdir(&directory, name),
            Op::Unlink(name) => {
                let gone = named(self.node, name).and_then(|at| self.operations.unlink(at));
                self.reply.empty(gone);
            }
            Op::RmDir(name) => {
                let gone = named(self.node, name).and_then(|at| self.operations.rmdir(at));
                self.reply.empty(gone);
            }
            Op::Link { old_node, name } => self.link(old_node, name),
            Op::Create(how, name) => self.create(&how, name),
            Op::TmpFile(how) => self.create_unnamed(&how),
            // All other operations were answered before.
            _ => self.reply.error(Errno::NOSYS),
        }
    }

    fn lookup(self, name: &[u8]) {
        match named(self.node, name).and_then(|at| self.operations.lookup(at)) {
            // Node 0 means that the name does not exist, and the kernel may keep this too.
            Err(Errno::NOENT) => self.reply.structure(&entry_of_nothing()),
            answer => reply_entry(answer, self.reply),
        }
    }

    fn read_link(self) {
        match ino(self.node).and_then(|ino| self.operations.read_link(ino)) {
            Ok(target) => self.reply.parts(&[&target]),
            Err(error) => self.reply.error(error),
        }
    }

    fn symlink(self, name: &[u8], target: &[u8]) {
        let new = new(self.caller, 0o777, 0, &self.extension);
        let made = self.for_caller(|operations| {
            operations.make(named(self.node, name)?, Kind::Symlink(target), new)
        });
        reply_entry(made, self.reply);
    }

    fn mknod(self, node: &abi::MkNodIn, name: &[u8]) {
        let file_type = match rustix::fs::FileType::from_raw_mode(node.mode) {
            rustix::fs::FileType::RegularFile => Ok(FileType::Regular),
            rustix::fs::FileType::CharacterDevice => Ok(FileType::CharDevice),
            rustix::fs::FileType::BlockDevice => Ok(FileType::BlockDevice),
            rustix::fs::FileType::Fifo => Ok(FileType::Fifo),
            rustix::fs::FileType::Socket => Ok(FileType::Socket),
            _ => Err(Errno::INVAL),
        };
        let made = self.for_caller(|operations| {
            let kind = Kind::Node(file_type?, unpacked(node.rdev));
            let new = new(self.caller, node.mode, node.umask, &self.extension);
            operations.make(named(self.node, name)?, kind, new)
        });
        reply_entry(made, self.reply);
    }

    fn mkdir(self, directory: &abi::MkDirIn, name: &[u8]) {
        let new = new(
            self.caller,
            directory.mode,
            directory.umask,
            &self.extension,
        );
        let made = self.for_caller(|operations| {
            operations.make(named(self.node, name)?, Kind::Directory, new)
        });
        reply_entry(made, self.reply);
    }

    /// Answers a LINK, which is sent for the directory of the new name.
    fn link(self, old_node: u64, name: &[u8]) {
        let linked =
            self.for_caller(|operations| operations.link(ino(old_node)?, named(self.node, name)?));
        reply_entry(linked, self.reply);
    }

    fn create(self, how: &abi::CreateIn, name: &[u8]) {
        let opening = opening(how.flags);
        let new = new(self.caller, how.mode, how.umask, &self.extension);
        let created =
            self.for_caller(|operations| operations.create(named(self.node, name)?, new, opening));
        self.opened(created, opening);
    }

    fn create_unnamed(self, how: &abi::CreateIn) {
        let opening = opening(how.flags);
        let new = new(self.caller, how.mode, how.umask, &self.extension);
        let made = self.for_caller(|operations| operations.make_unnamed(ino(self.node)?, new));
        self.opened(made, opening);
    }

    /// Answers with a file that was made and opened.
    fn opened(self, made: Answer<Metadata>, opening: Opening) {
        match made {
            Ok(metadata) => {
                let open = abi::OpenOut {
                    handle: self.operations.handle(metadata.ino, opening),
                    open_flags: abi::KEEP_CACHE,
                    padding: 0,
                };
                let entry = entry_out(&metadata);
                let parts = [
                    zerocopy::IntoBytes::as_bytes(&entry),
                    zerocopy::IntoBytes::as_bytes(&open),
                ];
                self.reply.parts(&parts);
            }
            Err(error) => self.reply.error(error),
        }
    }
}
