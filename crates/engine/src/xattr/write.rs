//! Setting and removing attributes.
//!
//! One step changes the inode, its block of attributes if that changes, and the superblock if the feature `ext_attr` is
//! not set yet. Takes the inode's lock and, if a block changes, the lock of all attribute blocks. What a cut leaves:
//! the change or nothing of it. ACLs have rules of their own (`acl`).

use journal::Handle;
use ondisk::inode::{Inode, attribute_area_mut};
use ondisk::xattr;
use ondisk::{Feature, FileType, Flags, Ino};

use super::block::{BlockChange, LockedChange};
use super::lists::Lists;
use crate::core::Error;
use crate::core::sb::LateFeature;
use crate::inode::{Exclusive, LoadedInode};
use crate::token::LiveFs;

/// The prefix that only files and directories have attributes of.
const USER: &[u8] = b"user.";
/// Whole names.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The error for a name without a value in an inode of this type: the inode has none, or can have none.
pub(super) fn absence(inode: &LoadedInode, name: &[u8]) -> Error {
    let verified = verify_length(name).and_then(|()| {
        if is_refused_user(name, |of| inode.is(of)) {
            Err(Error::NoAttribute)
        } else {
            split(name).map(drop)
        }
    });
    let is_acl = matches!(name, ACCESS_ACL | DEFAULT_ACL);
    match verified {
        Err(error) => error,
        Ok(()) if is_acl && inode.is(FileType::Symlink) => {
            Error::NotSupported("an ACL of a symbolic link")
        }
        Ok(()) => Error::NoAttribute,
    }
}

/// Whether a name begins with `user.`, and the inode is neither a file nor a directory, which alone may have such.
pub(super) fn is_refused_user(name: &[u8], is: impl Fn(FileType) -> bool) -> bool {
    let may_have = is(FileType::Regular) || is(FileType::Directory);
    name.starts_with(USER) && !may_have
}

pub(super) fn verify_length(name: &[u8]) -> Result<(), Error> {
    if name.is_empty() || name.len() > xattr::MAX_NAME {
        Err(Error::NameLength)
    } else {
        Ok(())
    }
}

/// A whole name's prefix and rest, as Linux takes them.
pub(super) fn split(name: &[u8]) -> Result<(u8, &[u8]), Error> {
    let (index, rest) = match xattr::split_name(name) {
        Some(found) => found,
        None if xattr::is_bare_prefix(name) => return Err(Error::InvalidArgument),
        None => return Err(Error::NotSupported("an attribute of this name")),
    };
    if rest.contains(&0) {
        return Err(Error::InvalidArgument);
    }
    if matches!(index, xattr::INDEX_SYSTEM | xattr::INDEX_RICHACL) {
        Err(Error::NotSupported("an attribute of this name"))
    } else {
        Ok((index, rest))
    }
}

/// Whether an inode's attributes may change, as far as its flags say.
pub(super) fn may_change(inode: &LoadedInode) -> Result<(), Error> {
    let flags = inode.flags();
    if flags.contains(Flags::IMMUTABLE) || flags.contains(Flags::APPEND) {
        Err(Error::NotPermitted)
    } else {
        Ok(())
    }
}

/// Writes an inode's attributes in one step, changes the rest of it with `and`, and stamps its change.
pub(crate) fn apply(
    mounted: &LiveFs,
    locked: &Exclusive<'_>,
    lists: &Lists,
    and: impl FnOnce(&mut Inode),
) -> Result<(), Error> {
    let inode = locked.inode().snapshot();
    let change = XattrChange::prepare(mounted, inode.ino(), Some(&inode), lists)?;
    let (blocks, revokes) = change.cost();
    let credits = mounted.reserve(1 + blocks, revokes)?;
    let now = mounted.now()?;
    let change = change.lock()?;
    let handle = mounted.begin(credits)?;
    change.apply(&handle, locked);
    locked.change(&handle, |inode| {
        inode.stamp(now);
        and(inode);
    });
    Ok(())
}

/// A change of an inode's attributes, prepared except for the lock on blocks of them.
pub(crate) struct XattrChange<'a> {
    mounted: &'a LiveFs,
    /// Needed where anything changes.
    feature: Option<&'a LateFeature>,
    area: Option<Vec<u8>>,
    block: Option<BlockChange<'a>>,
    had_block: bool,
}

/// One that the next handle makes.
pub(crate) struct LockedXattrs<'a> {
    mounted: &'a LiveFs,
    feature: Option<&'a LateFeature>,
    area: Option<Vec<u8>>,
    block: Option<LockedChange<'a>>,
    had_block: bool,
}

impl<'a> XattrChange<'a> {
    /// Prepares the change to these lists of an existing inode, or (`None`) of one that is about to be made. The caller
    /// holds its lock.
    ///
    /// # Errors
    /// `Corrupt`, `Io`, `ReadOnly`, `Aborted`.
    pub(crate) fn prepare(
        mounted: &'a LiveFs,
        ino: Ino,
        old: Option<&LoadedInode>,
        lists: &Lists,
    ) -> Result<XattrChange<'a>, Error> {
        let volume = mounted.volume();
        let feature = &mounted.writing().ext_attr;
        let (in_inode, in_block) = lists.is_changed;
        let had_block = old.is_some_and(|inode| super::block_of(volume, inode).0 != 0);
        let block = if in_block {
            Some(BlockChange::prepare(mounted, ino, old, lists.block())?)
        } else {
            None
        };
        Ok(XattrChange {
            mounted,
            feature: lists.is_changed().then_some(feature),
            area: in_inode.then(|| lists.area()),
            block,
            had_block,
        })
    }

    /// Blocks and revokes that the apply uses of its handle at most, the inode's own not among them.
    pub(crate) fn cost(&self) -> (u32, u32) {
        let (blocks, revokes) = self.block.as_ref().map_or((0, 0), BlockChange::cost);
        (blocks + self.feature.map_or(0, LateFeature::cost), revokes)
    }

    /// Whether a block of attributes changes.
    pub(crate) fn needs_block(&self) -> bool {
        self.block.is_some()
    }

    /// Takes the lock on blocks of attributes where one changes: before the handle, after all other locks.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn lock(self) -> Result<LockedXattrs<'a>, Error> {
        Ok(LockedXattrs {
            mounted: self.mounted,
            feature: self.feature,
            area: self.area,
            block: self.block.map(BlockChange::lock).transpose()?,
            had_block: self.had_block,
        })
    }
}

impl LockedXattrs<'_> {
    /// Makes the change, of the inode's record too.
    pub(crate) fn apply(self, handle: &Handle<'_>, locked: &Exclusive<'_>) {
        if let Some(feature) = self.feature {
            feature.need(handle);
        }
        if let Some(new) = self.area {
            locked.change_slot(handle, |slot| {
                if let Some(area) = attribute_area_mut(slot) {
                    area.copy_from_slice(&new);
                }
            });
        }
        let Some(block) = self.block else { return };
        let at = block.apply(handle);
        let volume = self.mounted.volume();
        let (huge, size) = (
            volume.has(Feature::HUGE_FILE),
            volume.geometry().block_size(),
        );
        let one = size.bytes_u64() / 512;
        locked.change(handle, |inode| {
            inode.set_xattr_block(at);
            let sectors = inode.sectors(huge, size);
            let sectors = match (self.had_block, at.0 != 0) {
                (false, true) => sectors.saturating_add(one),
                (true, false) => sectors.saturating_sub(one),
                _ => sectors,
            };
            // One more block than a file of any size has: the count has room for it.
            let _fits = inode.set_sectors(sectors, huge, size);
        });
    }
}
