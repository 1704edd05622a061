//! Gives a finished file its name: a new name, or the name of another file, which loses it.
//!
//! CRASH: either the file has the name, or the name still stands for the other file (or nothing) and the new file is an
//! orphan. No other name exists at any moment.

use ondisk::{FileType, Ino};

use super::lock::{self, Together};
use super::remove::{self, LostName};
use crate::core::Error;
use crate::dir::{self, DirDraft, NameHint, PreparedNames};
use crate::reap;
use crate::space::orphan::OrphanChange;
use crate::token::LiveFs;

/// A request to install an inode.
#[derive(Clone, Copy)]
struct Asked<'a> {
    ino: Ino,
    parent: Ino,
    name: &'a [u8],
    /// The inode that has the name now and loses it; `None` if the name is free.
    replaced: Option<Ino>,
    /// The lookup of the name, before any lock was taken.
    seen: &'a NameHint,
}

/// The result of one attempt.
enum Installed {
    /// The inode has the name. `orphan` is the replaced inode if it is to be deleted.
    Done { orphan: Option<Ino> },
    /// Nothing was done, because the name stands for another inode than `replaced` by now.
    Other,
}

/// Gives an inode a name, which `replaced` loses; neither is a directory. Returns `false`, and does nothing, if the
/// name does not stand for `replaced`.
pub(crate) fn install(
    mounted: &LiveFs,
    ino: Ino,
    parent: Ino,
    name: &[u8],
    replaced: Option<Ino>,
) -> Result<bool, Error> {
    reap::help(mounted);
    let seen = &dir::see(mounted, parent, name)?;
    if seen.ino() != replaced {
        return Ok(false);
    }
    lock::verify_new_name(name)?;
    if replaced == Some(ino) {
        return Ok(true);
    }
    let asked = Asked {
        ino,
        parent,
        name,
        replaced,
        seen,
    };
    match try_install(mounted, asked)? {
        Installed::Done { orphan } => {
            if let Some(old) = orphan {
                remove::reap_after(mounted, old);
            }
            Ok(true)
        }
        Installed::Other => Ok(false),
    }
}

/// Makes one attempt, in one step; holds no lock when it returns.
fn try_install(mounted: &LiveFs, asked: Asked<'_>) -> Result<Installed, Error> {
    let mut inos = vec![asked.ino, asked.parent];
    inos.extend(asked.replaced);
    let inodes = lock::load(mounted, &inos)?;
    let locked = Together::lock(&inodes);
    let (above, own) = (locked.of(asked.parent), locked.of(asked.ino));
    let Some(names) = names(mounted, &locked, asked)? else {
        return Ok(Installed::Other);
    };
    let is_first = own.inode().snapshot().links_count() == 0;
    let mut entry = is_first.then(|| mounted.orphans().remove(&**own.inode()));
    let lost = match asked.replaced {
        Some(old) => {
            let heir = entry.take().map(|entry| (entry, own.inode()));
            let lost = LostName::prepare_for(mounted, locked.of(old), false, heir)?;
            Some(lost)
        }
        None => None,
    };
    let orphan = lost.as_ref().filter(|lost| lost.leaves_orphan());
    let orphan = orphan.and(asked.replaced);
    let (blocks, revokes) = lost.as_ref().map_or((0, 0), LostName::cost);
    let for_entry = entry.as_ref().map_or(0, OrphanChange::cost);
    let credits = mounted.reserve(names.blocks() + 1 + blocks + for_entry, revokes)?;
    let entry = entry.map(OrphanChange::lock);
    let now = mounted.now()?;
    let handle = mounted.begin(credits)?;
    names.apply(&handle);
    let place = (asked.parent, asked.name);
    mounted.note_name(&handle, place, asked.replaced, Some(asked.ino));
    above.change(&handle, |inode| lock::stamp_names(inode, now));
    if let Some(entry) = entry {
        entry.apply(&handle, own.inode());
    }
    if let Some(lost) = lost {
        lost.apply(&handle, now);
    }
    if is_first {
        own.inode().life.set_linkable(false);
    }
    own.change(&handle, |inode| {
        inode.set_links_count(inode.links_count() + 1);
        inode.stamp(now);
    });
    Ok(Installed::Done { orphan })
}

/// The directory's names with the new one; `None` if the name stands for another inode than `replaced`.
fn names<'a>(
    mounted: &'a LiveFs,
    locked: &'a Together<'a>,
    asked: Asked<'_>,
) -> Result<Option<PreparedNames<'a>>, Error> {
    let (above, own) = (locked.of(asked.parent), locked.of(asked.ino));
    let mut draft = DirDraft::new(mounted, above)?;
    let place = draft.find_seen(asked.seen, asked.name)?;
    if place.map(|place| place.ino) != asked.replaced {
        return Ok(None);
    }
    let target = own.inode().snapshot();
    let file_type = match target.file_type() {
        Some(file_type) if target.links_count() == 0 && own.inode().life.is_linkable() => file_type,
        _ => lock::type_of(&target)?,
    };
    if file_type == FileType::Directory || lock::is_fixed(&target) {
        return Err(Error::NotPermitted);
    }
    lock::may_add_link(&target)?;
    let directory = above.inode().snapshot();
    let Some(place) = place else {
        lock::may_add(&directory)?;
        draft.add_seen(asked.seen, asked.name, asked.ino, file_type)?;
        return draft.finish().map(Some);
    };
    let old = locked.of(place.ino).inode().snapshot();
    lock::may_remove(&directory, &old)?;
    if lock::type_of(&old)? == FileType::Directory {
        return Err(Error::IsDirectory);
    }
    draft.retarget(place, asked.ino, file_type)?;
    draft.finish().map(Some)
}
