//! Extended attributes under repair: what can be read of a list is written again; a list that can't be read is dropped.

use ondisk::xattr::{self, ListPlace, Value, XattrEntry};
use ondisk::{Feature, Flags, FsBlock, Ino, Inode, inode};

use crate::repair::edit::Edit;
use crate::xattr::{has_stray_offset, is_old_value};

/// Sectors that an inode counts for its attributes: for its block, and for values in inodes of their own.
pub fn sectors(edit: &Edit<'_, '_>, ino: Ino, inode: &Inode, slot: &[u8]) -> u64 {
    let geometry = &edit.geometry;
    let cluster = u64::from(geometry.cluster_ratio()) << (geometry.block_size().bits() - 9);
    let mut clusters = 0;
    let mut count = |area: ListPlace<'_>| {
        for entry in xattr::entries(area).into_iter().flatten() {
            if let Value::Inode { size, ino: holder } = entry.value
                && !edit
                    .inode(holder)
                    .is_some_and(|holder| is_old_value(ino, inode, &entry, &holder))
            {
                let blocks = geometry.block_size().blocks_for(size.into());
                clusters += blocks.div_ceil(u64::from(geometry.cluster_ratio()));
            }
        }
    };
    if let Some(area) = inode::attribute_area(slot).filter(|area| xattr::is_area(area)) {
        count(ListPlace::Inode(area));
    }
    let block = block_of(edit, inode);
    if let Some(bytes) = block.and_then(|block| edit.block(block)) {
        count(ListPlace::Block(&bytes));
    }
    (clusters + u64::from(block.is_some())) * cluster
}

/// The inode's attribute block, where it has one that exists.
pub fn block_of(edit: &Edit<'_, '_>, inode: &Inode) -> Option<u64> {
    let block = if edit.has(Feature::BIT64) {
        inode.xattr_block().0
    } else {
        inode.xattr_block().0 & 0xFFFF_FFFF
    };
    (block != 0 && edit.contains(block, 1)).then_some(block)
}

/// Mends the attributes in an inode's slot and in its block. The slot is changed in place. With `drops_context` the
/// encryption context is removed.
pub fn mend(edit: &mut Edit<'_, '_>, ino: Ino, slot: &mut [u8], drops_context: bool) -> Option<()> {
    if let Some(area) = inode::attribute_area(slot).filter(|area| xattr::is_area(area)) {
        let len = area.len();
        let mended = list(
            edit,
            ino,
            ListPlace::Inode(area),
            drops_context,
            |entries| {
                let mut bytes = vec![0; len];
                xattr::encode_inode_area(&mut bytes, entries).then_some(bytes)
            },
        );
        if let (Some(bytes), Some(area)) = (mended, inode::attribute_area_mut(slot)) {
            area.copy_from_slice(&bytes.unwrap_or_else(|| vec![0; len]));
        }
    }
    let mut inode = Inode::parse(slot).ok()?;
    if inode.xattr_block() == FsBlock(0) {
        return Some(());
    }
    let block = block_of(edit, &inode).filter(|_| edit.has(Feature::EXT_ATTR));
    let bytes = block.and_then(|block| Some((block, edit.block(block)?)));
    let Some((block, old)) = bytes else {
        inode.set_xattr_block(FsBlock(0));
        inode.write_to(slot);
        return Some(());
    };
    let len = old.len();
    let mended = list(
        edit,
        ino,
        ListPlace::Block(&old),
        drops_context,
        |entries| {
            let mut bytes = vec![0; len];
            xattr::encode_block(&mut bytes, &mut entries.to_vec()).then_some(bytes)
        },
    );
    match mended {
        None => reseal(edit, block, old),
        Some(None) => {
            inode.set_xattr_block(FsBlock(0));
            inode.write_to(slot);
        }
        Some(Some(mut bytes)) => {
            xattr::set_references(&mut bytes, xattr::references(&old));
            reseal(edit, block, bytes);
        }
    }
    Some(())
}

/// Writes an attribute block with its checksum, unless it is there already.
pub fn reseal(edit: &mut Edit<'_, '_>, block: u64, mut bytes: Vec<u8>) {
    if edit.geometry.has_metadata_csum() {
        xattr::set_block_checksum(&mut bytes, edit.geometry.csum_seed(), FsBlock(block));
    }
    if edit.block(block).as_ref() != Some(&bytes) {
        edit.set_block(block, bytes);
    }
}

/// What becomes of a list: none where it stays, else the new bytes as `encode` makes them; none inside where nothing
/// can be kept.
fn list(
    edit: &Edit<'_, '_>,
    ino: Ino,
    area: ListPlace<'_>,
    drops_context: bool,
    encode: impl Fn(&[XattrEntry<'_>]) -> Option<Vec<u8>>,
) -> Option<Option<Vec<u8>>> {
    let Ok(entries) = xattr::entries(area) else {
        return Some(None);
    };
    let in_block = matches!(area, ListPlace::Block(_));
    let old: Vec<XattrEntry<'_>> = entries.collect();
    let mut new = Vec::new();
    for entry in &old {
        let is_nameless = entry.name.is_empty() && !matches!(entry.index, 2 | 3 | 8)
            || in_block && entry.index == 0;
        let is_context = entry.index == xattr::INDEX_ENCRYPTION && entry.name == b"c";
        if is_nameless || drops_context && is_context {
            continue;
        }
        let hash = match entry.value {
            Value::Here(_) if entry.hash == 0 && !in_block => 0,
            Value::Here(value) => xattr::entry_hash(entry.name, value),
            Value::Inode { ino: holder, size } => match holder_hash(edit, ino, entry, holder, size)
            {
                Some(hash) => hash,
                None => continue,
            },
        };
        new.push(XattrEntry { hash, ..*entry });
    }
    if new == old && !overlaps(area, &old) && !has_stray_offset(area) {
        return None;
    }
    Some(if new.is_empty() { None } else { encode(&new) })
}

/// The hash of an attribute whose value is in an inode; none where that does not hold one.
fn holder_hash(
    edit: &Edit<'_, '_>,
    ino: Ino,
    entry: &XattrEntry<'_>,
    holder: Ino,
    size: u32,
) -> Option<u32> {
    let owner = edit.inode(ino)?;
    let inode = edit.inode(holder).filter(|inode| {
        edit.has(Feature::EA_INODE)
            && holder >= edit.geometry.first_ino()
            && size != 0
            && u64::from(size) == inode.size_both_words()
            && inode.flags().contains(Flags::EA_INODE)
            && inode.links_count() > 0
    })?;
    let is_right = is_old_value(ino, &owner, entry, &inode)
        || xattr::is_inode_entry_hash(entry.hash, entry.name, inode.value_hash());
    Some(if is_right {
        entry.hash
    } else {
        xattr::inode_entry_hash(entry.name, inode.value_hash())
    })
}

fn overlaps(area: ListPlace<'_>, entries: &[XattrEntry<'_>]) -> bool {
    let base = match area {
        ListPlace::Inode(bytes) | ListPlace::Block(bytes) => bytes.as_ptr() as usize,
    };
    let mut spans = Vec::new();
    for entry in entries {
        if let Value::Here(value) = entry.value
            && !value.is_empty()
        {
            let start = value.as_ptr() as usize - base;
            spans.push((start, start + value.len().next_multiple_of(4)));
        }
    }
    spans.sort_unstable();
    spans.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

/// Adds an empty attribute, which marks inline data; returns false if it does not fit.
pub fn add_inline_data(slot: &mut [u8]) -> bool {
    let Some(area) = inode::attribute_area_mut(slot) else {
        return false;
    };
    let old = area.to_vec();
    let mut entries: Vec<XattrEntry<'_>> = xattr::entries(ListPlace::Inode(&old))
        .into_iter()
        .flatten()
        .collect();
    entries.push(XattrEntry {
        index: xattr::INDEX_SYSTEM,
        name: b"data",
        value: Value::Here(&[]),
        hash: 0,
    });
    let is_written = xattr::encode_inode_area(area, &entries);
    if !is_written {
        area.copy_from_slice(&old);
    }
    is_written
}

/// The attribute that continues inline data.
pub fn inline_data(slot: &[u8]) -> Option<Vec<u8>> {
    let area = inode::attribute_area(slot)?;
    let entries = xattr::entries(ListPlace::Inode(area)).ok()?;
    let mut values = entries.filter(is_inline_data).map(|entry| entry.value);
    match values.next() {
        Some(Value::Here(value)) => Some(value.to_vec()),
        _ => None,
    }
}

/// Sets or removes the attribute that continues inline data. Returns false if the attributes can't be read or the value
/// does not fit.
pub fn set_inline_data(slot: &mut [u8], value: Option<&[u8]>) -> bool {
    let Some(area) = inode::attribute_area_mut(slot) else {
        return false;
    };
    let old = area.to_vec();
    let Ok(entries) = xattr::entries(ListPlace::Inode(&old)) else {
        return false;
    };
    let new = entries.filter_map(|entry| match value {
        _ if !is_inline_data(&entry) => Some(entry),
        Some(value) => Some(XattrEntry {
            value: Value::Here(value),
            hash: 0,
            ..entry
        }),
        None => None,
    });
    let new: Vec<XattrEntry<'_>> = new.collect();
    area.fill(0);
    new.is_empty() || xattr::encode_inode_area(area, &new)
}

fn is_inline_data(entry: &XattrEntry<'_>) -> bool {
    entry.index == xattr::INDEX_SYSTEM && entry.name == b"data"
}
