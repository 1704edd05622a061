//! Inodes under repair: fields, flags, map, size and attributes of one inode are set right together.
//!
//! What is believed comes first: an inode whose type is known stays, with all blocks that its map names and that exist.
//! One without a type, a symbolic link without a target and a directory without blocks are freed; what only they named
//! is found by the later rounds.

use std::collections::{BTreeSet, HashMap};

use ondisk::inode::BASE_SIZE;
use ondisk::{Feature, FileType, Flags, Ino, Inode, dirent, inode};

use crate::map::{MapRun, word16, word32};
use crate::problem::Code;
use crate::repair::edit::Edit;
use crate::repair::{attributes, map};
use crate::run::Facts;
use crate::symlink;

/// The offset of the flags in an inode.
const FLAGS: usize = 0x20;
/// Fields that hold nothing today and must be zero.
const FADDR: usize = 0x70;
const DIR_ACL: usize = 0x6C;
const ACL_HIGH: usize = 0x76;
const BLOCKS_HIGH: usize = 0x74;
/// Time words: the low half, the high half, and the extra size from which on the inode has the high half.
const TIMES: [(usize, usize, u16); 4] = [
    (0x0C, 0x84, 8),
    (0x10, 0x88, 12),
    (0x08, 0x8C, 16),
    (0x90, 0x94, 24),
];

/// Sets an inode right. `codes` are the kinds of problems that it has, `shared` the runs of blocks with several owners.
pub fn mend(
    edit: &mut Edit<'_, '_>,
    facts: &Facts,
    shared: &[(u64, u64)],
    ino: Ino,
    codes: &BTreeSet<Code>,
) -> Option<()> {
    let mut slot = edit.slot(ino)?;
    let links = word16(&slot, 0x1A);
    let is_orphan = facts.orphans.binary_search(&ino.0).is_ok();
    let is_reserved = ino < edit.geometry.first_ino() && ino != Ino::ROOT;
    if codes.len() == 1 && codes.contains(&Code::LowDtime) && is_reserved {
        slot[0x14..0x18].fill(0);
        return edit.set_slot(ino, slot);
    }
    if links == 0 && !is_orphan && !is_reserved && ino != Ino::ROOT {
        if codes.contains(&Code::ZeroDtime) || codes.contains(&Code::LowDtime) {
            slot[0x14..0x18].copy_from_slice(&edit.now.to_le_bytes());
        }
        return edit.set_slot(ino, slot);
    }
    if ino == Ino::BAD {
        return edit.set_slot(ino, vec![0; slot.len()]);
    }
    if codes.contains(&Code::ReservedMode)
        || codes.contains(&Code::QuotaInodeLeft)
        || codes.contains(&Code::JournalInodeLeft)
    {
        slot[..2].fill(0);
    }
    if is_reserved && word16(&slot, 0) == 0 {
        if !keeps_other_fields(codes) {
            slot.fill(0);
        }
        let flags = Flags(word32(&slot, FLAGS)).without(Flags::CASEFOLD.with(Flags::EA_INODE));
        slot[FLAGS..FLAGS + 4].copy_from_slice(&flags.0.to_le_bytes());
        return edit.set_slot(ino, slot);
    }
    if codes.contains(&Code::LooksDirectory) {
        let mode = word16(&slot, 0) & 0o7777 | FileType::Directory.mode_bits();
        slot[..2].copy_from_slice(&mode.to_le_bytes());
    }
    fields(edit, &mut slot, is_orphan);
    let mut inode = Inode::parse(&slot).ok()?;
    if ino == Ino::ROOT && inode.file_type() != Some(FileType::Directory) {
        become_directory(edit, ino, &mut inode)?;
        inode.write_to(&mut slot);
    }
    if inode.file_type().is_none() {
        return edit.clear_inode(ino);
    }
    // An encryption context is dropped only if it is corrupt: without it names and contents can't be decrypted.
    let drops_context = codes.contains(&Code::EncryptContextCorrupt);
    attributes::mend(edit, ino, &mut slot, drops_context)?;
    let mut inode = Inode::parse(&slot).ok()?;
    flags(edit, &mut inode, &slot, codes);
    inode.write_to(&mut slot);
    if inode.flags().contains(Flags::INLINE_DATA) {
        return inline(edit, ino, slot);
    }
    blocks(edit, shared, ino, &mut inode, &slot, codes)?;
    if edit
        .inode(ino)
        .is_some_and(|now| now.links_count() == 0 && links != 0)
    {
        // It was freed.
        return Some(());
    }
    inode.write_to(&mut slot);
    edit.set_slot(ino, slot)
}

/// Whether a reserved inode that nothing uses keeps its other fields, because only its mode, its flags or its checksum
/// are wrong. Otherwise it has contents that belong to nothing, and the repair clears it.
fn keeps_other_fields(codes: &BTreeSet<Code>) -> bool {
    let of_fields = [
        Code::ReservedMode,
        Code::CasefoldNotDirectory,
        Code::CasefoldFeature,
        Code::ValueFeature,
        Code::ValueNotRegular,
        Code::InodeChecksum,
    ];
    codes.iter().all(|code| of_fields.contains(code))
}

/// Fields that do not depend on the type.
fn fields(edit: &Edit<'_, '_>, slot: &mut [u8], is_orphan: bool) {
    let room = slot.len() - BASE_SIZE;
    let extra = word16(slot, BASE_SIZE);
    let is_wrong = room > 0
        && extra != 0
        && (extra < 4 || usize::from(extra) > room || !extra.is_multiple_of(4));
    if is_wrong {
        let wanted = edit.sb.want_extra_isize();
        let is_possible = wanted >= 4 && usize::from(wanted) <= room && wanted.is_multiple_of(4);
        let extra = if is_possible {
            wanted
        } else {
            inode::EXTRA_SIZE
        };
        slot[BASE_SIZE..BASE_SIZE + 2].copy_from_slice(&extra.to_le_bytes());
    }
    if !is_orphan {
        slot[0x14..0x18].fill(0);
    }
    slot[FADDR..FADDR + 4].fill(0);
    let is_directory = FileType::from_mode(word16(slot, 0)) == Some(FileType::Directory);
    if is_directory && !edit.has(Feature::LARGE_DIR) {
        slot[DIR_ACL..DIR_ACL + 4].fill(0);
    }
    if !edit.has(Feature::HUGE_FILE) {
        slot[BLOCKS_HIGH..BLOCKS_HIGH + 2].fill(0);
    }
    if !edit.has(Feature::BIT64) {
        slot[ACL_HIGH..ACL_HIGH + 2].fill(0);
    }
    let extra = word16(slot, BASE_SIZE);
    for (low, high, reach) in TIMES {
        if slot.len() > BASE_SIZE
            && extra >= reach
            && word32(slot, low) >> 31 != 0
            && word32(slot, high) & 3 == 3
            && word32(slot, FLAGS) & Flags::EA_INODE.0 == 0
        {
            slot[high] &= !3;
        }
    }
}

/// Makes the root a directory again: its own blocks serve where they look like one's.
fn become_directory(edit: &mut Edit<'_, '_>, ino: Ino, inode: &mut Inode) -> Option<()> {
    let mut candidate = *inode;
    candidate.set_mode(FileType::Directory.mode_bits() | 0o755);
    let map = map::read(edit, ino, &candidate)?;
    let first = map.place(0).and_then(|block| edit.block(block));
    let form = super::parsed_directory::form(edit, &candidate).without_checksum();
    let is_one = first.is_some_and(|bytes| {
        let first = dirent::entries(&bytes, form).next();
        matches!(first, Some(Ok(entry)) if entry.name == b"." && entry.ino == ino)
    });
    if is_one {
        *inode = candidate;
        return Some(());
    }
    *inode = super::directory::new_inode(edit, ino, ino, inode)?;
    Some(())
}

/// Flags that the type, the features and the rest of the inode do not allow, or ask for.
fn flags(edit: &mut Edit<'_, '_>, inode: &mut Inode, slot: &[u8], codes: &BTreeSet<Code>) {
    let file_type = inode.file_type();
    let is_directory = file_type == Some(FileType::Directory);
    let mut flags = inode.flags();
    if !edit.has(Feature::IMAGIC_INODES) {
        flags = flags.without(Flags(0x2000));
    }
    if codes.contains(&Code::EncryptWithoutContext) || codes.contains(&Code::EncryptContextCorrupt)
    {
        flags = flags.without(Flags::ENCRYPT);
    }
    if codes.contains(&Code::ValueFeature) || codes.contains(&Code::ValueNotRegular) {
        flags = flags.without(Flags::EA_INODE);
    }
    if !is_directory || !edit.has(Feature::CASEFOLD) {
        flags = flags.without(Flags::CASEFOLD);
    }
    if !is_directory || !edit.has(Feature::DIR_INDEX) {
        flags = flags.without(Flags::INDEX);
    }
    if !crate::file_map::has_map(file_type) {
        flags = flags
            .without(Flags::IMMUTABLE.with(Flags::APPEND))
            .without(Flags::EXTENTS)
            .without(Flags::INLINE_DATA);
        inode.set_size(0);
    }
    let looks_extents = crate::extents::is_header(inode.block_area());
    if flags.contains(Flags::INLINE_DATA) && !edit.has(Feature::INLINE_DATA) {
        flags = flags.without(Flags::INLINE_DATA);
    }
    if flags.contains(Flags::INLINE_DATA.with(Flags::EXTENTS)) {
        // The attribute that goes with inline data decides.
        flags = if has_inline_attribute(slot) || !looks_extents {
            flags.without(Flags::EXTENTS)
        } else {
            flags.without(Flags::INLINE_DATA)
        };
    }
    if codes.contains(&Code::ExtentsFlagMissing) && looks_extents {
        flags = flags.with(Flags::EXTENTS);
    }
    if flags.contains(Flags::EXTENTS) && !edit.has(Feature::EXTENT) {
        if looks_extents {
            let features = edit.sb.features().with(Feature::EXTENT);
            edit.sb.set_features(features);
            edit.set_superblock();
        } else {
            flags = flags.without(Flags::EXTENTS);
        }
    }
    inode.set_flags(flags);
}

fn has_inline_attribute(slot: &[u8]) -> bool {
    crate::xattr::inline_len(slot).is_some()
}

/// An inode whose contents are inline: the attribute exists, and the size agrees with it.
fn inline(edit: &mut Edit<'_, '_>, ino: Ino, mut slot: Vec<u8>) -> Option<()> {
    if !has_inline_attribute(&slot) && !attributes::add_inline_data(&mut slot) {
        return edit.clear_inode(ino);
    }
    let mut inode = Inode::parse(&slot).ok()?;
    if inode.file_type() == Some(FileType::Symlink) && !inline_symlink(&mut inode, &mut slot) {
        return edit.clear_inode(ino);
    }
    let room = inode::BLOCK_AREA as u64 + crate::xattr::inline_len(&slot).unwrap_or(0) as u64;
    if inode.file_type() == Some(FileType::Directory) || inode.size_both_words() > room {
        inode.set_size(room);
    }
    let sectors = attributes::sectors(edit, ino, &inode, &slot);
    let _ = inode.set_sectors(
        sectors,
        edit.has(Feature::HUGE_FILE),
        edit.geometry.block_size(),
    );
    inode.write_to(&mut slot);
    edit.set_slot(ino, slot)
}

/// Cuts the inline target of a symbolic link at its first zero byte, and its attribute to the same length. Returns
/// false if nothing is left.
fn inline_symlink(inode: &mut Inode, slot: &mut [u8]) -> bool {
    let value = attributes::inline_data(slot).unwrap_or_default();
    let mut target = [&inode.block_area()[..], &value].concat();
    let end = target.iter().position(|byte| *byte == 0);
    target.truncate(end.unwrap_or(target.len()));
    let never = Flags::IMMUTABLE.with(Flags::APPEND).with(Flags::INDEX);
    let flags = inode.flags().without(never);
    let rest = target.get(inode::BLOCK_AREA..);
    let is_kept = rest == Some(&value[..]) || attributes::set_inline_data(slot, rest);
    inode.set_flags(match rest {
        Some(_) => flags,
        None => flags.without(Flags::INLINE_DATA),
    });
    inode.set_size(target.len() as u64);
    target.resize(inode::BLOCK_AREA.max(target.len()), 0);
    let area = inode.block_area_mut();
    area.copy_from_slice(&target[..inode::BLOCK_AREA]);
    inode.write_to(slot);
    is_kept && inode.size_both_words() > 0
}

/// Repairs the map, and the fields that follow from it. A file that must have blocks and has none is deleted.
fn blocks(
    edit: &mut Edit<'_, '_>,
    shared: &[(u64, u64)],
    ino: Ino,
    inode: &mut Inode,
    slot: &[u8],
    codes: &BTreeSet<Code>,
) -> Option<()> {
    let attributes = attributes::sectors(edit, ino, inode, slot);
    if ino == Ino::RESIZE {
        return Some(());
    }
    if codes.contains(&Code::SymlinkInvalid) && !mend_symlink(edit, ino, inode) {
        return edit.clear_inode(ino);
    }
    if !map::is_mapped(inode) {
        let huge = edit.has(Feature::HUGE_FILE);
        let _ = inode.set_sectors(attributes, huge, edit.geometry.block_size());
        return Some(());
    }
    let mut map = map::read(edit, ino, inode)?;
    if map.is_damaged || inode.flags().contains(Flags::EXTENTS) && !has_sound_root(inode) {
        let runs = std::mem::take(&mut map.runs);
        map = if edit.has_overwritten.is_some() {
            map::rewrite(edit, ino, inode, &map, shared, runs, false)?
        } else {
            map::write(edit, ino, inode, runs)?
        };
    }
    let is_directory = inode.file_type() == Some(FileType::Directory);
    if is_directory && map.runs.is_empty() {
        if ino == Ino::ROOT {
            *inode = super::directory::new_inode(edit, ino, ino, inode)?;
            return Some(());
        }
        return edit.clear_inode(ino);
    }
    map::settle(edit, inode, &map, attributes);
    if inode.file_type() == Some(FileType::Regular)
        && inode.size(true) > 0x7FFF_FFFF
        && !edit.has(Feature::LARGE_FILE)
    {
        let features = edit.sb.features().with(Feature::LARGE_FILE);
        edit.sb.set_features(features);
        edit.set_superblock();
    }
    Some(())
}

fn has_sound_root(inode: &Inode) -> bool {
    crate::extents::is_header(inode.block_area())
}

/// Sets the size of a symbolic link to the length of its target, and its map to at most one block. Returns false if it
/// has no target.
fn mend_symlink(edit: &mut Edit<'_, '_>, ino: Ino, inode: &mut Inode) -> bool {
    let never = Flags::IMMUTABLE.with(Flags::APPEND).with(Flags::INDEX);
    inode.set_flags(inode.flags().without(never));
    let is_mapped = inode.flags().contains(Flags::EXTENTS)
        || inode.size_both_words() >= inode::BLOCK_AREA as u64;
    let (target, block) = if is_mapped {
        let map = map::read(edit, ino, inode);
        let block = map.and_then(|map| map.place(0));
        match block.and_then(|block| edit.block(block)) {
            Some(bytes) => (bytes, block),
            None => return false,
        }
    } else {
        (inode.block_area().to_vec(), None)
    };
    let len = symlink::target_len(inode, &target);
    let least = if inode.flags().contains(Flags::ENCRYPT) {
        symlink::ENCRYPTED_HEADER
    } else {
        0
    };
    if len <= least || len >= target.len() {
        return false;
    }
    if len < inode::BLOCK_AREA {
        inode.set_flags(inode.flags().without(Flags::EXTENTS));
        let area = inode.block_area_mut();
        area.fill(0);
        area[..len].copy_from_slice(&target[..len]);
    } else if let Some(pblk) = block {
        let run = MapRun {
            lblk: 0,
            pblk,
            len: 1,
            unwritten: false,
        };
        if map::write(edit, ino, inode, vec![run]).is_none() {
            return false;
        }
    } else {
        return false;
    }
    inode.set_size(len as u64);
    true
}

/// The inodes in use by the attribute block that they have, of those blocks that `is_wanted` takes.
pub fn attribute_users(
    edit: &Edit<'_, '_>,
    facts: &Facts,
    is_wanted: impl Fn(u64) -> bool,
) -> HashMap<u64, Vec<Ino>> {
    let mut users: HashMap<u64, Vec<Ino>> = HashMap::new();
    for group in edit.geometry.all_groups() {
        for (index, state, _) in facts.inodes.in_group(group) {
            let ino = edit.geometry.ino_of(group, index);
            let inode = edit.inode(ino).filter(|_| state.is_used());
            let block = inode.and_then(|inode| attributes::block_of(edit, &inode));
            if let Some(block) = block.filter(|block| is_wanted(*block)) {
                users.entry(block).or_default().push(ino);
            }
        }
    }
    users
}
