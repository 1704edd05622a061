//! POSIX ACLs: how they and the permission bits follow each other, and what new inodes get of their directory's.
//!
//! Each change is one step: the ACL and the bits together. Rules as in Linux: an ACL that adds nothing to the bits is
//! not kept; the group's bits are the mask if the ACL has one; what is made in a directory with a default ACL gets its
//! permissions from that, and the umask does not count.

use ondisk::acl::{self, AclEntry, AclTag};
use ondisk::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT};
use ondisk::{FileType, Ino};

use super::lists::Lists;
use super::write::{apply, may_change};
use super::{XattrFlag, place_in};
use crate::core::Error;
use crate::inode::LoadedInode;
use crate::token::LiveFs;

const SET_GID: u16 = 0o2000;
const BITS: u16 = 0o7;

/// Whether entries are in their order and complete, and have a number if their kind needs one.
fn is_valid(entries: &[AclEntry]) -> bool {
    // What stands at each place: the owner, users, the owning group, groups, the mask, everyone else.
    let rank = |tag: &AclTag| match tag {
        AclTag::Owner => 0,
        AclTag::User(_) => 1,
        AclTag::OwningGroup => 2,
        AclTag::Group(_) => 3,
        AclTag::Mask => 4,
        AclTag::Other => 5,
    };
    let count = |wanted: u8| entries.iter().filter(|e| rank(&e.tag) == wanted).count();
    let is_named = |tag: &AclTag| matches!(tag, AclTag::User(u32::MAX) | AclTag::Group(u32::MAX));
    let needs_mask = count(1) + count(3) > 0;
    entries.is_sorted_by_key(|e| rank(&e.tag))
        && [0, 2, 5].iter().all(|one| count(*one) == 1)
        && count(4) <= 1
        && (count(4) == 1 || !needs_mask)
        && !entries
            .iter()
            .any(|e| is_named(&e.tag) || e.permissions & !BITS != 0)
}

/// The permission bits that say the same as an ACL as far as bits can, and whether they say all of it.
fn mode_of(entries: &[AclEntry]) -> (u16, bool) {
    let (mut mode, mut is_all) = (0, true);
    for entry in entries {
        let bits = entry.permissions & BITS;
        match entry.tag {
            AclTag::Owner => mode |= bits << 6,
            AclTag::OwningGroup => mode |= bits << 3,
            AclTag::Other => mode |= bits,
            AclTag::Mask => {
                mode = mode & !0o070 | bits << 3;
                is_all = false;
            }
            AclTag::User(_) | AclTag::Group(_) => is_all = false,
        }
    }
    (mode, is_all)
}

/// Makes an ACL follow new permission bits.
fn follow(entries: &mut [AclEntry], mode: u16) {
    let has_mask = entries.iter().any(|entry| entry.tag == AclTag::Mask);
    for entry in entries {
        match entry.tag {
            AclTag::Owner => entry.permissions = mode >> 6 & BITS,
            AclTag::OwningGroup if !has_mask => entry.permissions = mode >> 3 & BITS,
            AclTag::Mask => entry.permissions = mode >> 3 & BITS,
            AclTag::Other => entry.permissions = mode & BITS,
            _ => {}
        }
    }
}

/// Restricts a default ACL to what the maker of a file asked for; returns the file's permission bits.
fn cut(entries: &mut [AclEntry], mode: u16) -> u16 {
    let has_mask = entries.iter().any(|entry| entry.tag == AclTag::Mask);
    let mut left = mode & 0o777;
    for entry in entries {
        let shift = match entry.tag {
            AclTag::Owner => 6,
            AclTag::OwningGroup if !has_mask => 3,
            AclTag::Mask => 3,
            AclTag::Other => 0,
            _ => continue,
        };
        entry.permissions &= left >> shift & BITS | !BITS;
        left &= entry.permissions << shift | !(BITS << shift);
    }
    mode & !0o777 | left & 0o777
}

/// An ACL as it lies on disk, read.
fn stored(lists: &Lists, index: u8) -> Result<Option<Vec<AclEntry>>, Error> {
    let Some(disk) = lists.get(index, b"") else {
        return Ok(None);
    };
    Ok(acl::parse(&acl::disk_to_xattr(disk)?))
}

/// Sets (with a value in the form of system calls) or removes an ACL, and with an access ACL the permission bits.
/// `drops_set_gid` clears set-group-ID, as for a caller that is neither privileged nor in the group.
pub(crate) fn set(
    mounted: &LiveFs,
    ino: Ino,
    index: u8,
    value: Option<&[u8]>,
    drops_set_gid: bool,
) -> Result<(), Error> {
    let entries = parse(value)?;
    let live = mounted.get(ino)?;
    let flags = {
        let locked = live.write_lock();
        let inode = mounted.load_used(ino)?;
        may_change(&inode)?;
        if inode.is(FileType::Symlink) {
            return Err(Error::NotSupported("an ACL of a symbolic link"));
        }
        if index == INDEX_ACL_DEFAULT && !inode.is(FileType::Directory) {
            return match entries {
                Some(_) => Err(Error::AccessDenied),
                None => Ok(()),
            };
        }
        if entries.as_ref().is_some_and(|entries| !is_valid(entries)) {
            return Err(Error::InvalidArgument);
        }
        let mut mode = inode.mode();
        let mut kept = entries.as_deref();
        if let (INDEX_ACL_ACCESS, Some(entries)) = (index, &entries) {
            let (bits, is_all) = mode_of(entries);
            mode = mode & !0o777 | bits;
            if drops_set_gid {
                mode &= !SET_GID;
            }
            kept = kept.filter(|_| !is_all);
        }
        let mut lists = Lists::of(mounted, &inode)?;
        match kept {
            Some(entries) => lists.set(index, b"", &acl::encode(entries), XattrFlag::Any)?,
            None => {
                lists.remove(index, b"");
            }
        }
        if !lists.is_changed() && mode == inode.mode() {
            return Ok(());
        }
        apply(mounted, &locked, &lists, |inode| inode.set_mode(mode))?;
        inode.flags()
    };
    mounted.settle(ino, flags)
}

/// An ACL in the caller's form; whether its entries are consistent is not checked. `None` if the caller has none, or
/// one without entries.
fn parse(value: Option<&[u8]>) -> Result<Option<Vec<AclEntry>>, Error> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    if value.len() >= 4 && value[..4] != [2, 0, 0, 0] {
        return Err(Error::NotSupported("this version of ACLs"));
    }
    let entries = acl::parse(value).ok_or(Error::InvalidArgument)?;
    Ok(Some(entries).filter(|entries| !entries.is_empty()))
}

/// The attributes of an inode with its access ACL made to follow new permission bits; `None` if it has no such ACL.
/// The caller holds its lock.
///
/// # Errors
/// `NoSpace`, `Corrupt`, `Io`.
pub(crate) fn follow_mode(
    mounted: &LiveFs,
    inode: &LoadedInode,
    mode: u16,
) -> Result<Option<Lists>, Error> {
    let mut lists = Lists::of(mounted, inode)?;
    let found = stored(&lists, INDEX_ACL_ACCESS).map_err(|error| place_in(error, inode.ino()))?;
    let Some(mut entries) = found else {
        return Ok(None);
    };
    follow(&mut entries, mode);
    lists.set(
        INDEX_ACL_ACCESS,
        b"",
        &acl::encode(&entries),
        XattrFlag::Any,
    )?;
    Ok(Some(lists).filter(Lists::is_changed))
}

/// What a new inode inherits: its permission bits, and with a default ACL of its directory (whose lock the caller
/// holds) ACLs.
///
/// # Errors
/// `NoSpace` when they fit neither into the inode nor into a block; `Corrupt`, `Io`.
pub(crate) fn inherit(
    mounted: &LiveFs,
    parent: &LoadedInode,
    file_type: FileType,
    (mode, umask): (u16, u16),
    extra_size: u16,
) -> Result<(u16, Lists), Error> {
    let mut lists = Lists::of_new(mounted, extra_size);
    if file_type == FileType::Symlink {
        return Ok((mode, lists));
    }
    let above = Lists::of(mounted, parent)?;
    let found = stored(&above, INDEX_ACL_DEFAULT).map_err(|error| place_in(error, parent.ino()))?;
    let Some(default) = found else {
        return Ok((mode & !umask, lists));
    };
    let mut entries = default.clone();
    let mode = cut(&mut entries, mode);
    if file_type == FileType::Directory {
        lists.set(
            INDEX_ACL_DEFAULT,
            b"",
            &acl::encode(&default),
            XattrFlag::Any,
        )?;
    }
    let (_, is_all) = mode_of(&entries);
    if !is_all {
        lists.set(
            INDEX_ACL_ACCESS,
            b"",
            &acl::encode(&entries),
            XattrFlag::Any,
        )?;
    }
    Ok((mode, lists))
}
