//! Where a new name will go in its directory, found before an inode's number is taken for it, so that the number can be
//! one beside those that the names around it have. Takes no lock unless others keep changing the directory; what is
//! found are hints, and the directory is looked at again when the name is filled in.

use ondisk::dirent;
use ondisk::{Ino, LBlock};

use super::Directory;
use super::search::{Name, TRIES};
use crate::error::Error;
use crate::ialloc::{self, Neighbours};
use crate::icache::{Icache, LiveInode};

/// Numbers of inodes that are looked at, at most.
const NUMBERS: usize = 512;

/// The place of a name that is not there.
pub(crate) struct Slot<'a> {
    icache: &'a Icache,
    directory: &'a LiveInode,
    /// The name's hash, where there is an index.
    hash: Option<u32>,
    /// The block that the name would be in.
    block: LBlock,
}

/// The slot for a name in a directory, if it does not have it.
///
/// # Errors
/// `Exists`; what a lookup gives but `NotFound`.
pub(crate) fn find_slot<'a>(
    icache: &'a Icache,
    directory: &'a LiveInode,
    name: &[u8],
) -> Result<Slot<'a>, Error> {
    for _ in 0..TRIES {
        let before = directory.names_version();
        let slot = look(icache, directory, name);
        if before & 1 == 0 && directory.names_version() == before {
            return slot;
        }
    }
    let _unchanged = directory.read_lock();
    look(icache, directory, name)
}

fn look<'a>(icache: &'a Icache, directory: &'a LiveInode, name: &[u8]) -> Result<Slot<'a>, Error> {
    let inode = icache.load_used(directory.ino())?;
    let shown = Directory::new(icache.volume(), inode)?;
    let slot = |hash, block| Slot {
        icache,
        directory,
        hash,
        block,
    };
    if name == b"." || name == b".." {
        return Err(Error::Exists);
    }
    let wanted = match Name::new(&shown, name) {
        // What can't be a name is refused by who adds it.
        Err(Error::NotFound) => return Ok(slot(None, LBlock(0))),
        wanted => wanted?,
    };
    // At most 2^28 blocks.
    let last = LBlock(shown.blocks.saturating_sub(1) as u32);
    if shown.inode.is_inline() {
        return match shown.find_inline(&wanted)? {
            Some(_) => Err(Error::Exists),
            None => Ok(slot(None, last)),
        };
    }
    let (found, hash, block) = match shown.search(&wanted)? {
        Ok(ino) => (Some(ino), None, last),
        Err(Some(leaf)) => (None, Some(leaf.hash), leaf.block),
        Err(None) => (None, None, last),
    };
    match found {
        Some(_) => Err(Error::Exists),
        None => Ok(slot(hash, block)),
    }
}

impl Slot<'_> {
    fn look_around(&self) -> Result<Neighbours, Error> {
        let inode = self.icache.load_used(self.directory.ino())?;
        let shown = Directory::new(self.icache.volume(), inode)?;
        let Some(block) = shown.block(self.block)? else {
            return Ok(Neighbours::default());
        };
        let mut numbers: Vec<Ino> = Vec::new();
        let mut names = 0;
        for entry in dirent::entries(&block, shown.form_of(self.block, &block)) {
            let entry = entry?;
            if entry.is_used() && !dirent::is_dots(entry.name) {
                names += 1;
                if numbers.len() < NUMBERS {
                    numbers.push(entry.ino);
                }
            }
        }
        let blocks = shown.blocks.saturating_sub(u64::from(shown.is_indexed()));
        let names = u64::saturating_mul(names, blocks.max(1));
        Ok(Neighbours {
            numbers,
            names: u32::try_from(names).unwrap_or(u32::MAX),
        })
    }
}

impl ialloc::Slot for Slot<'_> {
    fn hash(&self) -> Option<u32> {
        self.hash
    }

    fn neighbours(&self) -> Neighbours {
        // They are hints; whoever adds the name meets what is wrong.
        self.look_around().unwrap_or_default()
    }
}
