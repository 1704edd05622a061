//! Setting and removing attributes, as far as they lie in the inode's own slot.
//!
//! One step, one block: the inode's. Takes the inode's lock. What a cut leaves: the change or nothing of it.
//! Attributes that lie in a block of their own, or would have to, and ACLs are refused by name.

use ondisk::inode::{attribute_area, attribute_area_mut};
use ondisk::xattr::{self, Area, Entry, Value};
use ondisk::{Flags, Ino};

use crate::error::Error;
use crate::icache::Icache;

/// Whether setting an attribute may create it or replace it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum XattrFlag {
    /// Either.
    #[default]
    Any,
    /// Only create.
    Create,
    /// Only replace.
    Replace,
}

/// Sets (with a value) or removes an attribute.
pub(crate) fn change(
    icache: &Icache,
    ino: Ino,
    name: &[u8],
    value: Option<&[u8]>,
    flag: XattrFlag,
) -> Result<(), Error> {
    let (index, rest) =
        xattr::split_name(name).ok_or(Error::NotSupported("an attribute of this name"))?;
    if matches!(
        index,
        xattr::INDEX_ACL_ACCESS | xattr::INDEX_ACL_DEFAULT | xattr::INDEX_SYSTEM
    ) {
        return Err(Error::NotSupported("changing ACLs and system attributes"));
    }
    if rest.is_empty() || rest.len() > xattr::MAX_NAME {
        return Err(Error::InvalidArgument);
    }
    let live = icache.get(ino)?;
    let locked = live.write_lock();
    let inode = icache.load_used(ino)?;
    let flags = inode.flags();
    if flags.contains(Flags::IMMUTABLE) || flags.contains(Flags::APPEND) {
        return Err(Error::NotPermitted);
    }
    if super::block_of(icache.volume(), &inode).0 != 0 {
        return Err(Error::Unsupported("changing a block of attributes"));
    }
    let area = attribute_area(inode.slot()).ok_or(Error::NotSupported(
        "an attribute of an inode without room for it",
    ))?;
    let new = edited(ino, area, (index, rest), value, flag)?;
    let credits = icache.reserve(1, 0)?;
    let now = icache.now()?;
    let handle = icache.begin(credits)?;
    locked.change_slot(&handle, |slot| {
        if let Some(area) = attribute_area_mut(slot) {
            area.copy_from_slice(&new);
        }
    });
    locked.change(&handle, |inode| {
        inode.set_ctime(now);
        inode.set_version(inode.version().wrapping_add(1));
    });
    Ok(())
}

/// The attributes in an inode with one of them set or removed.
fn edited(
    ino: Ino,
    area: &[u8],
    (index, rest): (u8, &[u8]),
    value: Option<&[u8]>,
    flag: XattrFlag,
) -> Result<Vec<u8>, Error> {
    let mut entries = xattr::entries(Area::Inode(area))
        .map_err(|corrupt| corrupt.ino(ino))?
        .collect::<Vec<_>>();
    let place = entries
        .iter()
        .position(|entry| (entry.index, entry.name) == (index, rest));
    match (place, flag, value) {
        (Some(_), XattrFlag::Create, Some(_)) => return Err(Error::Exists),
        (None, XattrFlag::Replace, _) | (None, _, None) => return Err(Error::NoAttribute),
        _ => {}
    }
    if let Some(place) = place {
        entries.remove(place);
    }
    if let Some(value) = value {
        entries.push(Entry {
            index,
            name: rest,
            value: Value::Here(value),
            hash: 0,
        });
    }
    let mut new = area.to_vec();
    if !xattr::encode_inode_area(&mut new, &entries) {
        return Err(Error::Unsupported(
            "attributes that do not fit into the inode",
        ));
    }
    Ok(new)
}
