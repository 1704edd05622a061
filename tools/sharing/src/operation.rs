//! The operations, one at a time, by two workers that have no object in common: each has its own directory under the
//! root, and its own files in it. No locks of its own; nothing survives the process.

use engine::{Allocate, Error, Ino, InodeFs, NewInode, RenameFlag, WalkIntent};

/// Bytes of a write.
const PIECE: usize = 4096;
/// Blocks of the file that is overwritten and read, and files that are looked up.
const FEW: usize = 16;

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchedOperation {
    /// Makes an empty file.
    Create,
    /// Removes an empty file.
    Unlink,
    /// Writes 4 KiB at the end of its file.
    Append,
    /// Writes 4 KiB over what is there.
    Overwrite,
    /// Takes 4 KiB off the end of its file.
    Truncate,
    /// Reserves the next 8 KiB.
    Fallocate,
    /// Looks up a name and reads its inode.
    Stat,
    /// Makes a directory in its own.
    Mkdir,
    /// Gives its file another name in the same directory.
    Rename,
    /// Reads 4 KiB.
    Read,
    /// Walks a path through two directories that all workers pass to a file in its own, holds it and releases it.
    Walk,
    /// Makes a file, takes its name while it is held, and releases it.
    Orphan,
}

impl WatchedOperation {
    /// All of them.
    pub const ALL: [WatchedOperation; 12] = [
        WatchedOperation::Create,
        WatchedOperation::Unlink,
        WatchedOperation::Append,
        WatchedOperation::Overwrite,
        WatchedOperation::Truncate,
        WatchedOperation::Fallocate,
        WatchedOperation::Stat,
        WatchedOperation::Mkdir,
        WatchedOperation::Rename,
        WatchedOperation::Read,
        WatchedOperation::Walk,
        WatchedOperation::Orphan,
    ];

    /// How many steps of the journal the operation has: each may take something of a lease.
    #[must_use]
    pub fn steps(self) -> u32 {
        match self {
            WatchedOperation::Orphan => 3,
            _ => 1,
        }
    }

    /// As the command line names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            WatchedOperation::Create => "create",
            WatchedOperation::Unlink => "unlink",
            WatchedOperation::Append => "append",
            WatchedOperation::Overwrite => "overwrite",
            WatchedOperation::Truncate => "truncate",
            WatchedOperation::Fallocate => "fallocate",
            WatchedOperation::Stat => "stat",
            WatchedOperation::Mkdir => "mkdir",
            WatchedOperation::Rename => "rename",
            WatchedOperation::Read => "read",
            WatchedOperation::Walk => "walk",
            WatchedOperation::Orphan => "orphan",
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

fn numbered(number: usize) -> String {
    format!("name-{number:05}")
}

/// The directories that all workers pass.
const PASSED: [&[u8]; 2] = [b"passed", b"below"];

/// A directory in another one, made if it is not there.
fn directory_in(fs: &InodeFs, parent: Ino, name: &[u8]) -> Result<Ino, Error> {
    match fs.lookup(parent, name) {
        Ok(found) => Ok(found),
        Err(_) => fs.mkdir(parent, name, owned(0o755)),
    }
}

/// One worker and what is its own.
pub struct WatchedWorker<'fs> {
    fs: &'fs InodeFs,
    operation: WatchedOperation,
    directory: Ino,
    file: Ino,
    /// The path of its directory.
    path: Vec<u8>,
    names: Vec<String>,
    bytes: Vec<u8>,
}

impl<'fs> WatchedWorker<'fs> {
    /// Makes what `rounds` rounds of the operation need: in a directory of the root, as which workers' are spread over
    /// the groups, or of one that all share (`siblings`).
    ///
    /// # Errors
    /// The engine's.
    pub fn new(
        fs: &'fs InodeFs,
        operation: WatchedOperation,
        number: usize,
        rounds: usize,
        siblings: bool,
    ) -> Result<WatchedWorker<'fs>, Error> {
        let name = format!("worker-{number}");
        let mut passed: &[&[u8]] = if siblings { &[b"parent"] } else { &[] };
        if operation == WatchedOperation::Walk {
            passed = &PASSED;
        }
        let (mut parent, mut path) = (Ino::ROOT, Vec::new());
        for above in passed {
            parent = directory_in(fs, parent, above)?;
            path.extend_from_slice(above);
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        let directory = fs.mkdir(parent, name.as_bytes(), owned(0o755))?;
        let file = fs.create(directory, b"file", owned(0o644))?;
        let names: Vec<String> = (0..rounds + FEW).map(numbered).collect();
        let bytes = vec![0x5a; PIECE];
        let before = match operation {
            WatchedOperation::Unlink => names.len(),
            WatchedOperation::Stat | WatchedOperation::Walk => FEW,
            WatchedOperation::Rename => 1,
            _ => 0,
        };
        for name in &names[..before] {
            fs.create(directory, name.as_bytes(), owned(0o644))?;
        }
        let blocks = match operation {
            WatchedOperation::Truncate => rounds,
            WatchedOperation::Overwrite | WatchedOperation::Read => FEW,
            _ => 0,
        };
        for block in 0..blocks {
            fs.write(file, (block * PIECE) as u64, &bytes)?;
        }
        Ok(WatchedWorker {
            fs,
            operation,
            directory,
            file,
            path,
            names,
            bytes,
        })
    }

    /// The operation, for the time `round`, counted from 0.
    ///
    /// # Errors
    /// The engine's.
    pub fn step(&mut self, round: usize, rounds: usize) -> Result<(), Error> {
        let (fs, directory) = (self.fs, self.directory);
        let name = self.names[round].as_bytes();
        let offset = (round % FEW * PIECE) as u64;
        match self.operation {
            WatchedOperation::Create => fs.create(directory, name, owned(0o644)).map(drop),
            WatchedOperation::Orphan => {
                let ino = fs.create(directory, name, owned(0o644))?;
                fs.hold(ino)?;
                fs.unlink(directory, name)?;
                fs.release(ino)
            }
            WatchedOperation::Mkdir => fs.mkdir(directory, name, owned(0o755)).map(drop),
            WatchedOperation::Unlink => fs.unlink(directory, name),
            WatchedOperation::Rename => {
                let new = self.names[round + 1].as_bytes();
                fs.rename(directory, name, directory, new, RenameFlag::Replace)
            }
            WatchedOperation::Stat => {
                let name = self.names[round % FEW].as_bytes();
                fs.metadata(fs.lookup(directory, name)?).map(drop)
            }
            WatchedOperation::Walk => {
                let name = self.names[round % FEW].as_bytes();
                let path = [&self.path, &b"/"[..], name].concat();
                let end = fs.walk(&path, WalkIntent::Find)?;
                end.found.into_iter().for_each(|ino| fs.let_go(ino));
                Ok(())
            }
            WatchedOperation::Append => {
                let offset = (round * PIECE) as u64;
                fs.write(self.file, offset, &self.bytes).map(drop)
            }
            WatchedOperation::Overwrite => fs.write(self.file, offset, &self.bytes).map(drop),
            WatchedOperation::Read => fs.read(self.file, offset, &mut self.bytes).map(drop),
            WatchedOperation::Truncate => {
                let blocks = rounds.saturating_sub(round + 1);
                fs.truncate(self.file, (blocks * PIECE) as u64)
            }
            WatchedOperation::Fallocate => {
                let (offset, len) = (2 * PIECE * round, 2 * PIECE);
                fs.allocate(self.file, Allocate::Grow, offset as u64, len as u64)
            }
        }
    }
}
