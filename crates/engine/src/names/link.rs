//! Another name for an inode, or the first one for a file made without. One step; what a cut leaves: the name with
//! its count, or neither.

use ondisk::{FileType, Ino};

use super::lock::{self, Together};
use crate::core::Error;
use crate::dir::{self, DirDraft};
use crate::space::orphan::OrphanChange;
use crate::token::LiveFs;

/// Gives an inode that is not a directory one more name.
pub(crate) fn link(mounted: &LiveFs, ino: Ino, parent: Ino, name: &[u8]) -> Result<(), Error> {
    let seen = dir::see(mounted, parent, name)?;
    if seen.ino().is_some() {
        return Err(Error::Exists);
    }
    lock::verify_new_name(name)?;
    let inodes = lock::load(mounted, &[ino, parent])?;
    let locked = Together::lock(&inodes);
    let above = locked.of(parent);
    let mut draft = DirDraft::new(mounted, above)?;
    if draft.find_seen(&seen, name)?.is_some() {
        return Err(Error::Exists);
    }
    lock::may_add(&above.inode().snapshot())?;
    let target = locked.of(ino).inode().snapshot();
    let own = locked.of(ino);
    let is_first = target.links_count() == 0 && own.inode().life.is_linkable();
    let file_type = match target.file_type() {
        Some(file_type) if is_first => file_type,
        _ => lock::type_of(&target)?,
    };
    if file_type == FileType::Directory || lock::is_fixed(&target) {
        return Err(Error::NotPermitted);
    }
    lock::may_add_link(&target)?;
    draft.add_seen(&seen, name, ino, file_type)?;
    let names = draft.finish()?;
    let entry = is_first.then(|| mounted.orphans().remove(&**own.inode()));
    let for_entry = entry.as_ref().map_or(0, OrphanChange::cost);
    let credits = mounted.reserve(names.blocks() + 1 + for_entry, 0)?;
    let entry = entry.map(OrphanChange::lock);
    let now = mounted.now()?;
    let handle = mounted.begin(credits)?;
    names.apply(&handle);
    mounted.note_name(&handle, (parent, name), None, Some(ino));
    above.change(&handle, |inode| lock::stamp_names(inode, now));
    if let Some(entry) = entry {
        entry.apply(&handle, own.inode());
        own.inode().life.set_linkable(false);
    }
    own.change(&handle, |inode| {
        inode.set_links_count(inode.links_count() + 1);
        inode.stamp(now);
    });
    Ok(())
}
