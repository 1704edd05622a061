//! Where a new name will be put in its directory. This is found before an inode number is taken for the name, so that
//! the number can be close to those of the names around it. Takes no lock unless other threads keep changing the
//! directory. The results are hints: the directory is searched again when the name is added.

use ondisk::dirent;
use ondisk::{Ino, LBlock};
use sync::Arc;

use super::Directory;
use super::search::{self, NameHint};
use crate::core::Error;
use crate::inode::LiveInode;
use crate::space::ialloc::{self, Neighbours};
use crate::token::LiveFs;

/// The most inode numbers that are collected from the names around a slot.
const NUMBERS: usize = 512;

/// Where a name that does not exist would be put.
pub(crate) struct NameSlot<'a> {
    mounted: &'a LiveFs,
    seen: NameHint,
}

/// The slot for a name in a directory that does not have the name.
///
/// # Errors
/// `Exists`; the errors of a lookup, except `NotFound`.
pub(crate) fn find_slot<'a>(
    mounted: &'a LiveFs,
    directory: &Arc<LiveInode>,
    name: &[u8],
) -> Result<NameSlot<'a>, Error> {
    let seen = search::see_in(mounted, Arc::clone(directory), name)?;
    match seen.ino() {
        Some(_) => Err(Error::Exists),
        None => Ok(NameSlot { mounted, seen }),
    }
}

impl NameSlot<'_> {
    /// What the lookup of the name found.
    pub(crate) fn seen(&self) -> &NameHint {
        &self.seen
    }

    fn look_around(&self) -> Result<Neighbours, Error> {
        let inode = self.mounted.load_used(self.seen.directory().ino())?;
        let shown = Directory::new(self.mounted.volume(), inode)?;
        // At most 2^28 blocks.
        let last = LBlock(shown.blocks.saturating_sub(1) as u32);
        let number = self.seen.hint().map_or(last, |leaf| leaf.block);
        let Some(block) = shown.block(number)? else {
            return Ok(Neighbours::default());
        };
        // Room for the numbers of a block's names, if these have the usual length.
        let mut numbers: Vec<Ino> = Vec::with_capacity(block.len() / 64);
        let mut names = 0;
        for entry in dirent::entries(&block, shown.form_of(number, &block)) {
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
        let number = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        // How many names the directory has at most: if it has one block, the names counted there. In an index, half as
        // many again as all leaves would have if each had as many as this one. Otherwise unknown: the last of many
        // blocks shows nothing about the others.
        let most = match blocks {
            0 | 1 => Some(names),
            _ if shown.is_indexed() => Some(names.saturating_add(names / 2)),
            _ => None,
        };
        Ok(Neighbours {
            numbers,
            names: number(names),
            most: most.map(number),
            all_at: match blocks {
                0 | 1 => ialloc::SlotHints::changes(self),
                _ => None,
            },
        })
    }
}

impl ialloc::SlotHints for NameSlot<'_> {
    fn hash(&self) -> Option<u32> {
        self.seen.hint().map(|leaf| leaf.hash)
    }

    fn changes(&self) -> Option<u64> {
        // A change increments the version when it begins and when it ends.
        self.seen.version().map(|version| version / 2)
    }

    fn neighbours(&self) -> Neighbours {
        // The slots are hints; the step that adds the name reports what is wrong.
        self.look_around().unwrap_or_default()
    }
}
