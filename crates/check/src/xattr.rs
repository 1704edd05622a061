//! Extended attributes: in inodes, in blocks that inodes share, and values in inodes of their own.

use ondisk::xattr::{self, ListPlace, Value};
use ondisk::{Feature, Flags, Ino, Inode, Site};

use crate::map::{word16, word32};
use crate::policies::EncryptionContext;
use crate::problem::Code;
use crate::report::Problem;
use crate::volume::Volume;

/// What an inode's attributes say about the inode.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    /// What the encryption context says.
    pub policy: EncryptionContext,
    /// Bytes of inline data behind the block area, where there is such an attribute.
    pub inline: Option<usize>,
    /// The inode has an attribute block of its own or a shared one.
    pub block: bool,
    /// Clusters of values in inodes of their own, which count as this inode's.
    pub value_clusters: u64,
    /// How many values are in inodes of their own.
    pub value_inodes: u64,
}

/// Checks an inode's attributes, in its slot and in its block.
pub fn check(volume: &Volume<'_>, ino: Ino, inode: &Inode, slot: &[u8]) -> Seen {
    let mut seen = Seen::default();
    let area = ondisk::inode::attribute_area(slot).filter(|area| xattr::is_area(area));
    if let Some(area) = area {
        let broken = || Problem::new(Code::XattrList).ino(ino);
        let of = (ino, inode);
        list(volume, of, ListPlace::Inode(area), &broken, &mut seen);
    }
    let block = if volume.has(Feature::BIT64) {
        inode.xattr_block().0
    } else {
        inode.xattr_block().0 & 0xFFFF_FFFF
    };
    if block == 0 {
        return seen;
    }
    if !volume.has(Feature::EXT_ATTR) {
        volume.inode_has(ino, Code::XattrFeature);
    }
    if !volume.contains(block, 1) {
        volume.found(Problem::new(Code::XattrBlockPlace).ino(ino).found(block));
        return seen;
    }
    seen.block = true;
    let is_first = volume.shared.xattr_blocks.add(block);
    if is_first && !volume.claims.claim(ondisk::FsBlock(block), 1) {
        let problem = Problem::new(Code::BlockShared).ino(ino);
        volume.found(problem.block(block).found(1_u64));
    }
    let Some(bytes) = volume.block(block) else {
        volume.found(Problem::new(Code::MapUnreadable).ino(ino).block(block));
        return seen;
    };
    let seed = volume.geometry.csum_seed();
    let sum_is_right = !volume.geometry.has_metadata_csum()
        || xattr::verify_block_checksum(&bytes, seed, ondisk::FsBlock(block)).is_ok();
    if is_first && !sum_is_right {
        let problem = Problem::new(Code::XattrBlockChecksum).ino(ino);
        volume.found(problem.block(block));
    }
    let broken = || Problem::new(Code::XattrBlockList).ino(ino).block(block);
    let of = (ino, inode);
    list(volume, of, ListPlace::Block(&bytes), &broken, &mut seen);
    seen
}

fn list(
    volume: &Volume<'_>,
    (ino, inode): (Ino, &Inode),
    area: ListPlace<'_>,
    broken: &dyn Fn() -> Problem,
    seen: &mut Seen,
) {
    let entries = match xattr::entries(area) {
        Ok(entries) => entries,
        Err(corrupt) if corrupt.site() == Site::XattrName => {
            return volume.found(Problem::new(Code::XattrName).ino(ino));
        }
        Err(corrupt) => {
            volume.found(broken().name(corrupt.to_string()));
            return;
        }
    };
    let in_block = matches!(area, ListPlace::Block(_));
    offsets(volume, (ino, inode), area);
    let mut spans: Vec<(usize, usize)> = Vec::new();
    let bytes = match area {
        ListPlace::Inode(bytes) | ListPlace::Block(bytes) => bytes,
    };
    let base = bytes.as_ptr() as usize;
    for entry in entries {
        match entry.value {
            Value::Here(value) => {
                // A value without bytes need not lie within the list.
                let start = if value.is_empty() {
                    0
                } else {
                    value.as_ptr() as usize - base
                };
                let end = start + value.len().next_multiple_of(4);
                // Hashes are over whole words as they are on the disk, whatever follows the value.
                let words = bytes.get(start..end).unwrap_or(value);
                here(volume, ino, &entry, words, in_block);
                if !value.is_empty() {
                    spans.push((start, end));
                }
            }
            Value::Inode { ino: holder, size } => {
                seen.value_inodes += 1;
                if value_inode(volume, ino, inode, &entry, holder, size) {
                    let ratio = u64::from(volume.geometry.cluster_ratio());
                    let blocks = volume.geometry.block_size().blocks_for(size.into());
                    seen.value_clusters += blocks.div_ceil(ratio);
                }
            }
        }
        if entry.index == xattr::INDEX_ENCRYPTION && entry.name == b"c" {
            seen.policy = match entry.value {
                Value::Here(value) => volume.shared.policies.context(value),
                Value::Inode { .. } => EncryptionContext::Corrupt,
            };
        }
        if entry.index == xattr::INDEX_SYSTEM && entry.name == b"data" && !in_block {
            seen.inline = match entry.value {
                Value::Here(value) => Some(value.len()),
                Value::Inode { size, .. } => Some(size as usize),
            };
        }
        if in_block && entry.index == 0 {
            volume.found(broken().name("an attribute belongs to no namespace"));
        }
    }
    spans.sort_unstable();
    if spans.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        volume.found(broken().name("two values overlap"));
    }
}

/// Reports a stray offset of an inode with inline data. The kernel and most of e2fsck ignore it, but e2fsprogs then
/// fails to read the data, and e2fsck -fy empties the file.
fn offsets(volume: &Volume<'_>, (ino, inode): (Ino, &Inode), area: ListPlace<'_>) {
    let is_inline = volume.has(Feature::INLINE_DATA) && inode.flags().contains(Flags::INLINE_DATA);
    if is_inline && ino >= volume.geometry.first_ino() && has_stray_offset(area) {
        volume.inode_has(ino, Code::XattrOffset);
    }
}

/// Whether an entry whose value takes no bytes of the list has an offset that points beyond the list, or, with a value
/// in an inode, any offset.
pub fn has_stray_offset(area: ListPlace<'_>) -> bool {
    let (end, mut rest) = match area {
        ListPlace::Inode(bytes) => (
            bytes.len() - xattr::INODE_HEADER,
            &bytes[xattr::INODE_HEADER..],
        ),
        ListPlace::Block(bytes) => (bytes.len(), &bytes[xattr::BLOCK_HEADER..]),
    };
    while rest.len() >= xattr::ENTRY_HEADER && word32(rest, 0) != 0 {
        let offset = usize::from(word16(rest, 2));
        let (holder, size) = (word32(rest, 4), word32(rest, 8));
        if holder != 0 && offset != 0 || holder == 0 && size == 0 && offset > end {
            return true;
        }
        let len = (xattr::ENTRY_HEADER + usize::from(rest[0])).next_multiple_of(4);
        rest = rest.get(len..).unwrap_or_default();
    }
    false
}

fn here(
    volume: &Volume<'_>,
    ino: Ino,
    entry: &xattr::XattrEntry<'_>,
    value: &[u8],
    in_block: bool,
) {
    if entry.hash == 0 && !in_block {
        return;
    }
    let expected = xattr::entry_hash(entry.name, value);
    if entry.hash != expected && !is_signed_hash(entry, value) {
        let problem = Problem::new(Code::XattrHash).ino(ino).name(entry.name);
        volume.found(problem.found(entry.hash).expected(expected));
    }
}

/// Whether the hash is what kernels made whose characters are signed.
fn is_signed_hash(entry: &xattr::XattrEntry<'_>, value: &[u8]) -> bool {
    let name = entry.name.iter().fold(0_u32, |hash, byte| {
        hash.rotate_left(5) ^ i32::from(byte.cast_signed()).cast_unsigned()
    });
    let hash = value.chunks(4).fold(name, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    });
    hash == entry.hash
}

/// Checks an attribute whose value is in an inode: that inode must exist and hold a value, and its size and hash must
/// agree. Returns whether the blocks of the value count as blocks of the owner.
fn value_inode(
    volume: &Volume<'_>,
    ino: Ino,
    inode: &Inode,
    entry: &xattr::XattrEntry<'_>,
    number: Ino,
    size: u32,
) -> bool {
    let problem = |code| Problem::new(code).ino(ino).name(entry.name);
    let holder = volume
        .has(Feature::EA_INODE)
        .then(|| volume.slot(number))
        .flatten()
        .and_then(|slot| Inode::parse(&slot).ok())
        .filter(|it| it.flags().contains(Flags::EA_INODE) && it.links_count() > 0)
        .filter(|_| number >= volume.geometry.first_ino());
    let Some(holder) = holder else {
        volume.found(problem(Code::XattrValueInode).found(number.0));
        return true;
    };
    let holds = holder.size_both_words();
    if size == 0 || u64::from(size) != holds {
        let problem = problem(Code::XattrValueSize).found(size);
        volume.found(problem.expected(holds));
    }
    let is_counted = !is_old_value(ino, inode, entry, &holder);
    if is_counted && !has_value_hash(entry, &holder) {
        let problem = problem(Code::XattrHash).found(entry.hash);
        volume.found(problem.expected(0_u64));
    }
    volume.shared.values.add(number.0.into());
    is_counted
}

fn has_value_hash(entry: &xattr::XattrEntry<'_>, holder: &Inode) -> bool {
    xattr::is_inode_entry_hash(entry.hash, entry.name, holder.value_hash())
}

/// Whether a value has Lustre's older form: its inode names the owner, has no reference count, and its blocks do not
/// count as blocks of the owner.
pub fn is_old_value(
    ino: Ino,
    inode: &Inode,
    entry: &xattr::XattrEntry<'_>,
    holder: &Inode,
) -> bool {
    !has_value_hash(entry, holder)
        && holder.mtime_word() == ino.0
        && holder.generation() == inode.generation()
}

/// The length of the attribute that continues inline data, if the slot has that attribute.
pub fn inline_len(slot: &[u8]) -> Option<usize> {
    let area = ondisk::inode::attribute_area(slot)?;
    let entries = xattr::entries(ListPlace::Inode(area)).ok()?;
    let entries = entries.into_iter();
    let mut data = entries.filter(|it| it.index == xattr::INDEX_SYSTEM && it.name == b"data");
    data.next().map(|entry| match entry.value {
        Value::Here(value) => value.len(),
        Value::Inode { size, .. } => size as usize,
    })
}

/// Compares what attribute blocks and value inodes say of their references with what was found.
pub fn check_references(volume: &Volume<'_>) {
    for (block, expected) in volume.shared.xattr_blocks.all() {
        let Some(bytes) = volume.block(block) else {
            continue;
        };
        let found = xattr::references(&bytes);
        if u64::from(found) != expected {
            let problem = Problem::new(Code::XattrReferences).block(block);
            volume.found(problem.found(found).expected(expected));
        }
    }
    for (number, expected) in volume.shared.values.all() {
        // Only numbers of inodes are counted.
        let ino = Ino(number as u32);
        let inode = volume.slot(ino).and_then(|slot| Inode::parse(&slot).ok());
        let Some(inode) = inode else { continue };
        let is_lustre =
            inode.value_references() >> 32 != 0 && inode.value_references() & 0xFFFF_FFFF == 0;
        if inode.value_references() != expected && !is_lustre {
            let problem = Problem::new(Code::XattrValueReferences).ino(ino);
            volume.found(problem.found(inode.value_references()).expected(expected));
        }
    }
}
