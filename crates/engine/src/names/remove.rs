//! Taking names away: unlink and rmdir, and what becomes of an inode without names.
//!
//! One step removes the name, and with the last one the inode and its blocks. An inode that has a holder, or too many
//! blocks for one step, becomes an orphan in it: it is deleted step by step ([`reap::doom`]), when it has no holder any
//! more, by a thread that holds nothing. What a cut leaves: the name and its inode, neither, or an orphan. Freed blocks
//! and numbers are available again when the step is durable.

use ondisk::{FileType, Ino, Timestamp};
use sync::{Arc, RwLockWriteGuard};

use journal::Handle;
use journal::canary::{self, Canary};

use super::lock::{self, Together};
use crate::core::Error;
use crate::dir::{self, DirDraft, NameHint};
use crate::inode::{Exclusive, LiveInode, LoadedInode};
use crate::reap::{self, Deletion, LockedDeletion, Prepared};
use crate::space::orphan::{LockedEntry, OrphanChange};
use crate::token::LiveFs;

/// The fate of an inode that loses a name, prepared under its lock.
pub(super) struct LostName<'a> {
    locked: &'a Exclusive<'a>,
    fate: Fate<'a>,
    /// The orphan that gets the name, and stops being an orphan.
    heir: Option<Heir<'a>>,
    /// Keeps the data where they are, as long as blocks may go.
    _data: Option<RwLockWriteGuard<'a, ()>>,
}

/// An orphan that gets the name which another inode loses.
struct Heir<'a> {
    live: &'a Arc<LiveInode>,
    /// The change of its entry among the orphans; `None` if the change for the other inode includes it.
    entry: Option<LockedEntry<'a>>,
}

enum Fate<'a> {
    /// It has other names.
    Lives,
    /// With the blocks and revokes of the handle that it uses.
    Deleted(Box<LockedDeletion<'a>>, (u32, u32)),
    /// Someone holds it, it is too large for one step, it is an orphan already, or the caller deletes it later: it
    /// stays, as an orphan.
    Orphan(LockedEntry<'a>),
}

impl<'a> LostName<'a> {
    /// Prepares for an inode that loses one name, or (a directory) all. If it `is_deleted_later`, it becomes an orphan
    /// even without a holder, and the lock on blocks of attributes is not taken.
    pub(super) fn prepare(
        mounted: &'a LiveFs,
        locked: &'a Exclusive<'a>,
        is_deleted_later: bool,
    ) -> Result<LostName<'a>, Error> {
        LostName::prepare_for(mounted, locked, is_deleted_later, None)
    }

    /// As [`LostName::prepare`]; `heir` is an orphan that gets the name, and whose entry is removed in the same handle.
    pub(super) fn prepare_for(
        mounted: &'a LiveFs,
        locked: &'a Exclusive<'a>,
        is_deleted_later: bool,
        heir: Option<(OrphanChange<'a>, &'a Arc<LiveInode>)>,
    ) -> Result<LostName<'a>, Error> {
        let live: &'a Arc<LiveInode> = locked.inode();
        let inode = live.snapshot();
        let inherits = |heir: Option<(OrphanChange<'a>, &'a Arc<LiveInode>)>| {
            heir.map(|(entry, live)| Heir {
                live,
                entry: Some(entry.lock()),
            })
        };
        if !inode.is(FileType::Directory) && inode.links_count() > 1 {
            return Ok(LostName {
                locked,
                fate: Fate::Lives,
                heir: inherits(heir),
                _data: None,
            });
        }
        let data = live.data_lock_exclusive();
        let deletion = if live.life.is_held() || live.life.is_orphan() || is_deleted_later {
            None
        } else {
            Some(Deletion::prepare(mounted, locked)?)
        };
        let (fate, heir) = match deletion {
            Some(Prepared::Whole(deletion)) => {
                let cost = deletion.cost();
                // The list of orphans is locked before blocks of attributes.
                let heir = inherits(heir);
                (Fate::Deleted(Box::new(deletion.lock()?), cost), heir)
            }
            // A part is carried out later, with nothing else locked.
            None | Some(Prepared::Part(_)) => {
                let (change, live) = heir.unzip();
                let entry = mounted.orphans().add(&**locked.inode());
                let heir = live.map(|live| Heir { live, entry: None });
                (Fate::Orphan(entry.lock_with(change)), heir)
            }
        };
        Ok(LostName {
            locked,
            fate,
            heir,
            _data: Some(data),
        })
    }

    /// Blocks and revokes of the handle that it uses, the inode's own block among them.
    pub(super) fn cost(&self) -> (u32, u32) {
        let heir = self.heir.as_ref().and_then(|heir| heir.entry.as_ref());
        let for_heir = heir.map_or(0, LockedEntry::cost);
        let (blocks, revokes) = match &self.fate {
            Fate::Lives => (1, 0),
            Fate::Deleted(_, cost) => *cost,
            Fate::Orphan(entry) => (1 + entry.cost(), 0),
        };
        (blocks + for_heir, revokes)
    }

    /// Whether the inode is to be reaped afterwards, with nothing locked.
    pub(super) fn leaves_orphan(&self) -> bool {
        matches!(self.fate, Fate::Orphan(_))
    }

    pub(super) fn apply(self, handle: &Handle<'_>, now: Timestamp) {
        let heir = self.heir.map(|heir| {
            if let Some(entry) = heir.entry {
                entry.apply(handle, heir.live);
            }
            heir.live
        });
        match self.fate {
            Fate::Lives => self.locked.change(handle, |inode| {
                inode.set_links_count(inode.links_count() - 1);
                inode.stamp(now);
            }),
            Fate::Deleted(deletion, _) => deletion.apply(handle, now),
            Fate::Orphan(entry) => {
                self.locked.change(handle, |inode| {
                    inode.set_links_count(0);
                    inode.stamp(now);
                    if inode.file_type() == Some(FileType::Directory) {
                        inode.set_size(0);
                    }
                });
                match heir {
                    Some(heir) => entry.apply_both(handle, self.locked.inode(), heir),
                    None => entry.apply(handle, self.locked.inode()),
                }
            }
        }
    }
}

/// Dooms an inode after the step that took its last name, unless it has a holder, which dooms it later. The name is
/// removed even if this fails. A failure leaves an orphan, which the next mount deletes.
pub(super) fn reap_after(mounted: &LiveFs, ino: Ino) {
    if mounted.get(ino).is_ok_and(|live| live.is_held_still()) {
        return;
    }
    if let Err(Error::Corrupt(corrupt)) = reap::doom(mounted, ino) {
        mounted.note(corrupt);
    }
}

/// Takes a name of something other than a directory away.
pub(crate) fn unlink(mounted: &LiveFs, parent: Ino, name: &[u8]) -> Result<(), Error> {
    remove(mounted, parent, name, false)
}

/// Removes a directory that holds no names.
pub(crate) fn rmdir(mounted: &LiveFs, parent: Ino, name: &[u8]) -> Result<(), Error> {
    match name {
        b"." => Err(Error::InvalidArgument),
        b".." => Err(Error::NotEmpty),
        _ => remove(mounted, parent, name, true),
    }
}

fn remove(mounted: &LiveFs, parent: Ino, name: &[u8], is_rmdir: bool) -> Result<(), Error> {
    reap::help(mounted);
    for _ in 0..lock::TRIES {
        let seen = dir::see(mounted, parent, name)?;
        let ino = seen.ino().ok_or(Error::NotFound)?;
        if ino == parent || name == b".." {
            return Err(Error::IsDirectory);
        }
        if try_remove(mounted, (parent, name), &seen, ino, is_rmdir)? {
            return Ok(());
        }
    }
    Err(Error::Busy)
}

/// Whether what was looked up without locks could be removed as what it is: `false` if the name stands for another
/// inode by now.
fn try_remove(
    mounted: &LiveFs,
    (parent, name): (Ino, &[u8]),
    seen: &NameHint,
    ino: Ino,
    is_rmdir: bool,
) -> Result<bool, Error> {
    let inodes = lock::load(mounted, &[parent, ino])?;
    let locked = Together::lock(&inodes);
    let (above, own) = (locked.of(parent), locked.of(ino));
    let mut draft = DirDraft::new(mounted, above)?;
    let place = draft.find_seen(seen, name)?.ok_or(Error::NotFound)?;
    if place.ino != ino {
        return Ok(false);
    }
    let inode = own.inode().snapshot();
    // An error of the flags comes first, as in Linux.
    lock::may_remove(&above.inode().snapshot(), &inode)?;
    verify_removable(mounted, &inode, is_rmdir)?;
    draft.remove(place)?;
    let names = draft.finish()?;
    let lost = LostName::prepare(mounted, own, false)?;
    let leaves_orphan = lost.leaves_orphan();
    let (blocks, revokes) = lost.cost();
    let credits = mounted.reserve(names.blocks() + blocks, revokes)?;
    let now = mounted.now()?;
    let handle = mounted.begin(credits)?;
    names.apply(&handle);
    mounted.note_name(&handle, (parent, name), Some(ino), None);
    above.change(&handle, |inode| {
        lock::stamp_names(inode, now);
        if is_rmdir && !canary::makes(Canary::SubdirectoryKept) {
            lock::drop_subdirectory(inode);
        }
    });
    lost.apply(&handle, now);
    drop(handle);
    drop(locked);
    if leaves_orphan {
        reap_after(mounted, ino);
    }
    Ok(true)
}

fn verify_removable(mounted: &LiveFs, inode: &LoadedInode, is_rmdir: bool) -> Result<(), Error> {
    let is_directory = lock::type_of(inode)? == FileType::Directory;
    match (is_rmdir, is_directory) {
        (false, true) => Err(Error::IsDirectory),
        (true, false) => Err(Error::NotDirectory),
        (true, true) if !dir::is_empty(mounted, inode.clone())? => Err(Error::NotEmpty),
        _ => Ok(()),
    }
}
