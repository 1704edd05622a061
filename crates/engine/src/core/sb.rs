//! The superblock: read, mended if its write was torn, and changed in the image of its block. Below it what the
//! superblock keeps while the file system is open: errors, the label, the reserve, late features, and where the file
//! system's own blocks lie.

use device::BlockDevice;
use journal::{Folded, JournalError};
use ondisk::{Feature, Features, Geometry, Group, GroupDesc, Site, Superblock};

use crate::core::Error;

mod errors;
mod label;
mod late_feature;
mod reserve;
mod zones;

pub(crate) use errors::Errors;
pub use errors::{OnError, Stopped};
pub(crate) use label::{LABEL_BYTES, Label};
pub(crate) use late_feature::{LateFeature, needs_large_file};
pub use reserve::{Acting, BlockClaimant};
pub(crate) use reserve::{BlockPurpose, Reserve};
pub(crate) use zones::Zones;

/// Changes the superblock in the image of its block.
pub(crate) fn change_superblock(
    geometry: &Geometry,
    folded: &mut Folded<'_>,
    change: impl FnOnce(&mut Superblock),
) -> Result<(), JournalError> {
    let image = folded.image(geometry.primary_superblock())?;
    let start = match geometry.primary_superblock().0 {
        0 => Superblock::OFFSET as usize,
        _ => 0,
    };
    let raw = &mut image[start..start + Superblock::SIZE];
    // The slice is as long as the structure.
    let mut sb = *Superblock::view((&*raw).try_into().expect("a superblock's length"));
    change(&mut sb);
    sb.seal();
    raw.copy_from_slice(sb.bytes());
    Ok(())
}

/// What was found in the place of a superblock.
pub(crate) enum SuperblockFound {
    /// A superblock.
    Whole(Superblock),
    /// One that was torn, and is mended here.
    Mended(Superblock),
    /// No valid superblock; the error describes what is wrong.
    Damaged(Error),
}

/// Reads and verifies a superblock: the first, or the copy at `backup` in units of 1 KiB.
///
/// # Errors
/// If it can't be read, or is damaged and can't be mended.
pub(crate) fn read_superblock(
    device: &dyn BlockDevice,
    backup: Option<u64>,
) -> Result<Superblock, Error> {
    match find_superblock(device, backup)? {
        SuperblockFound::Whole(superblock) | SuperblockFound::Mended(superblock) => Ok(superblock),
        SuperblockFound::Damaged(wrong) => Err(wrong),
    }
}

/// Reads a superblock like [`read_superblock`], for a caller that can use a damaged one.
///
/// # Errors
/// If the device fails; for a copy, also what is wrong with it.
pub(crate) fn find_superblock(
    device: &dyn BlockDevice,
    backup: Option<u64>,
) -> Result<SuperblockFound, Error> {
    let mut bytes = [0; Superblock::SIZE];
    let offset = backup.map_or(Superblock::OFFSET, |block| block.saturating_mul(1024));
    // A device too short for a superblock is not ext4; `verify` reports it.
    if offset.saturating_add(Superblock::SIZE as u64) <= device.size() {
        device.read_at(offset, &mut bytes)?;
    }
    let superblock = *Superblock::view(&bytes);
    match superblock.verify() {
        Ok(()) => Ok(SuperblockFound::Whole(superblock)),
        Err(wrong) if backup.is_some() => Err(wrong.into()),
        Err(wrong) => Ok(match wrong.site() {
            Site::SuperblockChecksum => mend(device, superblock).map_or(
                SuperblockFound::Damaged(wrong.into()),
                SuperblockFound::Mended,
            ),
            _ => SuperblockFound::Damaged(wrong.into()),
        }),
    }
}

/// Mends a first superblock whose write was torn. Everything that ever changes in it is in its first sector, except the
/// checksum, which is in its second: a cut leaves the contents of one moment with the checksum of another. Nothing is
/// written here; the next write of the superblock puts it right. A second sector that holds something else is taken
/// from a copy in another group. `None` if the first sector is wrong: its constant fields must agree with such a copy
/// or, if the volume has only one group, with the checksum of that group's descriptor.
fn mend(device: &dyn BlockDevice, torn: Superblock) -> Option<Superblock> {
    let mut mended = torn;
    mended.seal();
    let geometry = Geometry::of(&mended).ok()?;
    let mut copies = geometry
        .all_groups()
        .skip(1)
        .take(MEND_GROUPS)
        .filter(|group| geometry.has_super(*group))
        .peekable();
    if copies.peek().is_some() {
        return copies.find_map(|group| {
            let at = geometry
                .group_first_block(group)
                .offset(geometry.block_size());
            let copy = read_superblock(device, Some(at / 1024)).ok()?;
            with_half_of(&torn, &copy)
        });
    }
    let (block, byte) = geometry.desc_place(Group(0));
    let mut raw = vec![0; geometry.desc_size()];
    let offset = block.offset(geometry.block_size()) + byte as u64;
    device.read_at(offset, &mut raw).ok()?;
    GroupDesc::verify(&raw, &geometry, Group(0)).ok()?;
    Some(mended)
}

/// The torn superblock. If its second sector differs from the copy's in a constant field, the copy's second sector
/// replaces it. `None` if the first sectors differ in a constant field.
fn with_half_of(torn: &Superblock, copy: &Superblock) -> Option<Superblock> {
    let (mine, theirs) = (constant(*torn), constant(*copy));
    if mine[..SECTOR] != theirs[..SECTOR] {
        return None;
    }
    let mut bytes = *torn.bytes();
    if mine[SECTOR..] != theirs[SECTOR..] {
        bytes[SECTOR..].copy_from_slice(&copy.bytes()[SECTOR..]);
    }
    let mut mended = *Superblock::view(&bytes);
    mended.seal();
    Some(mended)
}

/// The number under which the superblock is counted ([`Handle::use_blocks_for`](journal::Handle::use_blocks_for)); no
/// group has it.
pub(crate) const COUNTED_AS: u64 = u64::MAX;

/// Bytes that a device writes whole.
const SECTOR: usize = 512;

/// Groups in which a copy of the superblock is looked for.
const MEND_GROUPS: usize = 64;

/// Features that are set and cleared in the first superblock while its copies stay as they were made: those of a mount,
/// those that are turned on by the first file that needs them, and the one that a tune changes.
const CHANGING_FEATURES: [Feature; 6] = [
    Feature::NEEDS_RECOVERY,
    Feature::ORPHAN_PRESENT,
    Feature::EXT_ATTR,
    Feature::LARGE_FILE,
    Feature::DIR_NLINK,
    Feature::FAST_COMMIT,
];

/// A superblock without what a mount, a tune or e2fsck changes in it, or what differs from copy to copy.
fn constant(mut superblock: Superblock) -> [u8; Superblock::SIZE] {
    let features = superblock.features();
    superblock.set_features(
        CHANGING_FEATURES
            .into_iter()
            .fold(features, Features::without),
    );
    let mut bytes = *superblock.bytes();
    for range in CHANGING {
        bytes[range].fill(0);
    }
    bytes
}

/// The bytes of counts of reserved and free blocks and inodes; of mount, write and check times and counts, state and
/// behaviour on errors; of the reserve's owner; of a copy's group; of the label and the last mount's place; of the
/// orphan list; of the hash of new directories and mount options by default; of a RAID's numbers, flags and what the
/// kernel counts and logs; of mount options as text; of the overhead; of high words of times; of the checksum.
const CHANGING: [core::ops::Range<usize>; 17] = [
    0x08..0x14,
    0x2C..0x38,
    0x3A..0x48,
    0x50..0x54,
    0x5A..0x5C,
    0x78..0xC8,
    0xE8..0xEC,
    0xFC..0xFD,
    0x100..0x104,
    0x154..0x15C,
    0x160..0x166,
    0x170..0x174,
    0x178..0x180,
    0x194..0x240,
    0x248..0x24C,
    0x274..0x280,
    0x3FC..0x400,
];
