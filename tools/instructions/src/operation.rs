//! The operations, and what each needs before its first call and before each call.

use engine::{Allocate, Error, Ino, InodeFs, NewInode, RenameFlag};

/// Bytes of a write.
const PIECE: usize = 4096;
/// Blocks of the file that is overwritten, read and synced.
const BLOCKS: usize = 256;
/// Files of the directory in which names are looked up and changed.
const FILES: usize = 1000;
/// The directory of all that is made, each part in the one before.
const PATH: [&str; 4] = ["srv", "data", "project", "files"];

/// What is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountedOperation {
    /// Makes an empty file.
    Create,
    /// Removes an empty file.
    Unlink,
    /// Gives a file another name in its directory.
    Rename,
    /// Looks up a name in a directory and reads its inode.
    Stat,
    /// Writes 4 KiB at a file's end.
    Append,
    /// Writes 4 KiB over what a file has.
    Overwrite,
    /// Reads 4 KiB.
    Read,
    /// Takes 4 KiB off a file's end.
    Truncate,
    /// Reserves 8 KiB behind a file's end.
    Fallocate,
    /// Makes 4 KiB that were appended durable, by a commit.
    Fsync,
    /// The same by a fast commit.
    FastFsync,
    /// Walks a path of five names.
    Lookup,
}

impl CountedOperation {
    /// All of them.
    pub const ALL: [CountedOperation; 12] = [
        CountedOperation::Create,
        CountedOperation::Unlink,
        CountedOperation::Rename,
        CountedOperation::Stat,
        CountedOperation::Append,
        CountedOperation::Overwrite,
        CountedOperation::Read,
        CountedOperation::Truncate,
        CountedOperation::Fallocate,
        CountedOperation::Fsync,
        CountedOperation::FastFsync,
        CountedOperation::Lookup,
    ];

    /// As the command line and the results name it.
    pub fn name(self) -> &'static str {
        match self {
            CountedOperation::Create => "create",
            CountedOperation::Unlink => "unlink",
            CountedOperation::Rename => "rename",
            CountedOperation::Stat => "stat",
            CountedOperation::Append => "append",
            CountedOperation::Overwrite => "overwrite",
            CountedOperation::Read => "read",
            CountedOperation::Truncate => "truncate",
            CountedOperation::Fallocate => "fallocate",
            CountedOperation::Fsync => "fsync",
            CountedOperation::FastFsync => "fsync-fast-commit",
            CountedOperation::Lookup => "lookup-path",
        }
    }

    /// The features of mke2fs that it needs, in addition to the default ones.
    pub fn features(self) -> &'static str {
        if self == CountedOperation::FastFsync {
            "fast_commit"
        } else {
            ""
        }
    }

    /// How many files its directory has before the first call.
    fn files(self, calls: usize) -> usize {
        match self {
            CountedOperation::Unlink => calls,
            CountedOperation::Rename | CountedOperation::Stat | CountedOperation::Lookup => FILES,
            _ => 0,
        }
    }

    /// How many blocks its file has before the first call.
    fn blocks(self, calls: usize) -> usize {
        match self {
            CountedOperation::Truncate => calls,
            CountedOperation::Overwrite | CountedOperation::Read => BLOCKS,
            _ => 0,
        }
    }
}

fn owned(mode: u16) -> NewInode {
    NewInode {
        mode,
        umask: 0,
        held: false,
        uid: 0,
        gid: 0,
    }
}

/// The name of a file that was renamed `turn` times.
fn name_of(file: usize, turn: usize) -> String {
    format!("name-{file:05}-{turn:02}")
}

/// An operation with all that its calls use.
pub struct CountedWorker<'fs> {
    fs: &'fs InodeFs,
    operation: CountedOperation,
    calls: usize,
    directory: Ino,
    file: Ino,
    bytes: Vec<u8>,
    /// The name or path of the next call, and the new name of a rename.
    name: String,
    new_name: String,
}

impl<'fs> CountedWorker<'fs> {
    /// Makes what `calls` calls need, and commits it.
    ///
    /// # Errors
    /// The engine's.
    pub fn new(
        fs: &'fs InodeFs,
        operation: CountedOperation,
        calls: usize,
    ) -> Result<CountedWorker<'fs>, Error> {
        let mut directory = Ino::ROOT;
        for name in PATH {
            directory = fs.mkdir(directory, name.as_bytes(), owned(0o755))?;
        }
        for file in 0..operation.files(calls) {
            fs.create(directory, name_of(file, 0).as_bytes(), owned(0o644))?;
        }
        let file = fs.create(directory, b"file", owned(0o644))?;
        let bytes = vec![0x5a; PIECE];
        for block in 0..operation.blocks(calls) {
            fs.write(file, (block * PIECE) as u64, &bytes)?;
        }
        fs.sync()?;
        Ok(CountedWorker {
            fs,
            operation,
            calls,
            directory,
            file,
            bytes,
            name: String::new(),
            new_name: String::new(),
        })
    }

    /// Does what a call needs, not counted.
    ///
    /// # Errors
    /// The engine's.
    pub fn prepare(&mut self, call: usize) -> Result<(), Error> {
        match self.operation {
            CountedOperation::Create | CountedOperation::Unlink => self.name = name_of(call, 0),
            CountedOperation::Stat => self.name = name_of(call % FILES, 0),
            CountedOperation::Lookup => {
                self.name = format!("/{}/{}", PATH.join("/"), name_of(call % FILES, 0));
            }
            CountedOperation::Rename => {
                self.name = name_of(call % FILES, call / FILES);
                self.new_name = name_of(call % FILES, call / FILES + 1);
            }
            CountedOperation::Fsync | CountedOperation::FastFsync => {
                self.fs.append(self.file, &self.bytes)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// The call with this number, from 0; `prepare` was called with it.
    ///
    /// # Errors
    /// The engine's.
    pub fn call(&mut self, call: usize) -> Result<(), Error> {
        let (fs, directory, file) = (self.fs, self.directory, self.file);
        let name = self.name.as_bytes();
        let offset = (call % BLOCKS * PIECE) as u64;
        match self.operation {
            CountedOperation::Create => fs.create(directory, name, owned(0o644)).map(drop),
            CountedOperation::Unlink => fs.unlink(directory, name),
            CountedOperation::Rename => {
                let new_name = self.new_name.as_bytes();
                fs.rename(directory, name, directory, new_name, RenameFlag::Replace)
            }
            CountedOperation::Stat => fs.metadata(fs.lookup(directory, name)?).map(drop),
            CountedOperation::Append => fs.append(file, &self.bytes).map(drop),
            CountedOperation::Overwrite => fs.write(file, offset, &self.bytes).map(drop),
            CountedOperation::Read => fs.read(file, offset, &mut self.bytes).map(drop),
            CountedOperation::Truncate => {
                fs.truncate(file, ((self.calls - call - 1) * PIECE) as u64)
            }
            CountedOperation::Fallocate => {
                let (offset, len) = (2 * PIECE * call, 2 * PIECE);
                fs.allocate(file, Allocate::Grow, offset as u64, len as u64)
            }
            CountedOperation::Fsync | CountedOperation::FastFsync => fs.fsync(file),
            CountedOperation::Lookup => fs.resolve(name, true).map(drop),
        }
    }
}
