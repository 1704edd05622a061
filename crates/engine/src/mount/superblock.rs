//! The first superblock, or what takes its place where it is gone: its newest copy in the journal, else a copy in
//! another group.
//!
//! The journal is found with the help of a copy, or of what each block size and size of inodes would mean for the
//! journal's inode. What is found must be this file system's: the first group's descriptor and the root directory must
//! be where it says, with checksums that fit. No locks; only [`put_back`] writes. CRASH: a superblock that was put back
//! asks for the journal's replay if that is needed, so a cut after it loses nothing.

use device::{BlockDevice, DeviceError, ReadOnly, Scratch};
use jbd2::recovery;
use ondisk::inode::verify_checksum;
use ondisk::superblock::{MAGIC, state};
use ondisk::{BlockSize, Feature, Features, FileType, Geometry, GroupDesc, Ino, Inode, Superblock};
use sync::Arc;

use super::{MountOptions, ReplayPolicy, needs_replay, write_superblock};
use crate::core::Error;
use crate::core::sb::{self, SuperblockFound};

/// Groups that have a copy unless they are asked not to: with `sparse_super` and without.
const COPIES: [u32; 5] = [1, 3, 5, 7, 9];
/// Sizes of inodes with which the journal's is looked for.
const INODE_SIZES: [u16; 4] = [256, 128, 512, 1024];
/// Inodes a group while their number is not known: more than those that are reserved.
const SOME_INODES: u32 = 16;

/// A minor revision that no file system has.
const GUESSED: u16 = u16::MAX;

/// The superblock in use.
pub(super) struct Whole {
    pub(super) superblock: Superblock,
    /// Whether the first superblock on the device differs.
    pub(super) is_rebuilt: bool,
}

/// The superblock that the options name. The first one is made whole or found elsewhere where it is damaged.
///
/// # Errors
/// As [`sb::read_superblock`].
pub(super) fn read(device: &Arc<dyn BlockDevice>, options: &MountOptions) -> Result<Whole, Error> {
    let rebuilt = match sb::find_superblock(&**device, options.superblock)? {
        SuperblockFound::Whole(superblock) => {
            return Ok(Whole {
                superblock,
                is_rebuilt: false,
            });
        }
        SuperblockFound::Mended(superblock) => told_by_journal(device, superblock, options),
        SuperblockFound::Damaged(wrong) => rebuild(device, options).ok_or(wrong)?,
    };
    Ok(Whole {
        superblock: rebuilt,
        is_rebuilt: true,
    })
}

/// Whether a device that has no superblock in its place holds a file system nevertheless.
///
/// # Errors
/// When the device fails.
pub fn is_rebuildable(device: &Arc<dyn BlockDevice>) -> Result<bool, Error> {
    match sb::find_superblock(&**device, None)? {
        SuperblockFound::Whole(_) | SuperblockFound::Mended(_) => Ok(true),
        SuperblockFound::Damaged(_) => Ok(rebuild(device, &MountOptions::default()).is_some()),
    }
}

/// The superblock that a mount for writing would put in the place of a first one that is torn or lost; `None` if the
/// first one is whole, or can't be restored. Only reads.
///
/// # Errors
/// When the device fails.
pub fn rebuilt_superblock(
    device: &Arc<dyn BlockDevice>,
    options: &MountOptions,
) -> Result<Option<Superblock>, Error> {
    match read(device, options) {
        Ok(whole) => Ok(whole.is_rebuilt.then_some(whole.superblock)),
        Err(Error::Io(error)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// The device as it is with this superblock in its place, for reading only.
pub(super) fn laid_over(
    device: Arc<dyn BlockDevice>,
    superblock: &Superblock,
) -> Result<Arc<dyn BlockDevice>, DeviceError> {
    let scratch = Scratch::new(device, Superblock::SIZE);
    scratch.write_at(Superblock::OFFSET, superblock.bytes())?;
    Ok(Arc::new(ReadOnly::new(
        Arc::new(scratch) as Arc<dyn BlockDevice>
    )))
}

/// Writes a superblock that was found elsewhere to its place.
///
/// # Errors
/// `Io`.
pub(super) fn put_back(device: &dyn BlockDevice, whole: &mut Whole) -> Result<(), Error> {
    if whole.is_rebuilt {
        write_superblock(device, &mut whole.superblock)
    } else {
        Ok(())
    }
}

/// The superblock of a device that has none in its place.
fn rebuild(device: &Arc<dyn BlockDevice>, options: &MountOptions) -> Option<Superblock> {
    let of_copies = sizes().find_map(|size| {
        let mut copies = COPIES
            .iter()
            .filter_map(|group| copy(&**device, size, *group));
        copies.find_map(|copy| proven(device, copy, options))
    });
    of_copies.or_else(|| {
        let mut guesses = sizes().flat_map(|size| {
            let of_size = move |inodes| guess(device.size(), size, inodes);
            INODE_SIZES.into_iter().filter_map(of_size)
        });
        guesses.find_map(|guess| {
            let found = proven(device, guess, options)?;
            (found.minor_revision() != GUESSED).then_some(found)
        })
    })
}

fn sizes() -> impl Iterator<Item = BlockSize> {
    (0..=6).filter_map(BlockSize::from_log)
}

/// The copy of a superblock in a group, where there is one and groups are as large as they are by default.
fn copy(device: &dyn BlockDevice, size: BlockSize, group: u32) -> Option<Superblock> {
    let first = u64::from(size == BlockSize::K1);
    let block = first + u64::from(group) * 8 * size.bytes_u64();
    let offset = block << size.bits();
    if offset + Superblock::SIZE as u64 > device.size() {
        return None;
    }
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(offset, &mut bytes).ok()?;
    let mut copy = *Superblock::view(&bytes);
    copy.verify().ok()?;
    if copy.log_block_size() != size.log() || u32::from(copy.block_group_number()) != group {
        return None;
    }
    copy.set_block_group_number(0);
    // mke2fs and Linux leave in copies what was so when they were made.
    copy.set_last_orphan(None);
    if copy.features().has(Feature::HAS_JOURNAL) {
        copy.set_features(copy.features().with(Feature::NEEDS_RECOVERY));
        // Changes since the copy was made are unknown: the recorded error makes e2fsck look.
        copy.set_state(copy.state() | state::VALID | state::ERROR);
    }
    copy.seal();
    Some(copy)
}

/// A superblock with just what it takes to find the journal's inode.
fn guess(device_bytes: u64, size: BlockSize, inode_size: u16) -> Option<Superblock> {
    let mut guess = Superblock::zeroed();
    guess.set_magic(MAGIC);
    guess.set_revision(1);
    guess.set_minor_revision(GUESSED);
    guess.set_log_block_size(size.log());
    guess.set_log_cluster_size(size.log());
    guess.set_first_data_block(u32::from(size == BlockSize::K1));
    let blocks = (device_bytes >> size.bits()).min(u32::MAX.into());
    guess.set_blocks_count(blocks);
    let per_group = 8 * u32::try_from(size.bytes()).ok()?;
    guess.set_blocks_per_group(per_group);
    guess.set_clusters_per_group(per_group);
    let groups =
        (blocks - u64::from(guess.first_data_block()).min(blocks)).div_ceil(per_group.into());
    let per_block = u32::try_from(size.bytes()).ok()? / u32::from(inode_size);
    let inodes = per_block.max(SOME_INODES);
    guess.set_inodes_per_group(inodes);
    let all = inodes.checked_mul(u32::try_from(groups).ok()?)?;
    guess.set_inodes_count(all);
    guess.set_inode_size(inode_size);
    guess.set_first_ino(Ino::FIRST_UNRESERVED);
    guess.set_journal_ino(Some(Ino::JOURNAL));
    guess.set_features(Features::of(&[
        Feature::HAS_JOURNAL,
        Feature::NEEDS_RECOVERY,
        Feature::EXTENT,
    ]));
    Some(guess)
}

/// The superblock that a candidate leads to, if the file system is there: the journal's, if that has a newer one.
fn proven(
    device: &Arc<dyn BlockDevice>,
    candidate: Superblock,
    options: &MountOptions,
) -> Option<Superblock> {
    let mut found = candidate;
    let mut seen = laid_over(Arc::clone(device), &candidate).ok()?;
    if options.journal == ReplayPolicy::Replay && needs_replay(&candidate) {
        let geometry = Geometry::of(&candidate).ok()?;
        let external = options.journal_device.clone();
        // The program that opens the image gets the reason why it can't be replayed.
        if let Ok(scanned) =
            recovery::scan_and_overlay(Arc::clone(&seen), &candidate, &geometry, external)
        {
            found = sb::read_superblock(&*scanned.device, None).ok()?;
            let is_in_use = scanned.report.journal == recovery::JournalState::Replayed;
            set_needs_recovery(&mut found, is_in_use);
            seen = scanned.device;
        }
    }
    let geometry = Geometry::of(&found).ok()?;
    let is_same = found.log_block_size() == candidate.log_block_size();
    (is_same && has_root(&*seen, &geometry)).then_some(found)
}

/// A superblock that was made whole, with what the journal has to say about itself.
fn told_by_journal(
    device: &Arc<dyn BlockDevice>,
    mended: Superblock,
    options: &MountOptions,
) -> Superblock {
    let mut asked = mended;
    set_needs_recovery(&mut asked, true);
    if needs_replay(&asked) {
        proven(device, asked, options).unwrap_or(mended)
    } else {
        mended
    }
}

fn set_needs_recovery(superblock: &mut Superblock, needs: bool) {
    let features = superblock.features();
    superblock.set_features(if needs {
        features.with(Feature::NEEDS_RECOVERY)
    } else {
        features.without(Feature::NEEDS_RECOVERY)
    });
    superblock.seal();
}

/// Whether the first group's descriptor and the root directory's inode are where they should be.
fn has_root(device: &dyn BlockDevice, geometry: &Geometry) -> bool {
    let root = || {
        let (group, index) = geometry.group_of_ino(Ino::ROOT)?;
        let (block, byte) = geometry.desc_place(group);
        let mut raw = vec![0; geometry.desc_size()];
        let offset = block.offset(geometry.block_size()) + byte as u64;
        device.read_at(offset, &mut raw).ok()?;
        let desc = GroupDesc::verify(&raw, geometry, group).ok()?;
        let (block, byte) = geometry.inode_place(desc.inode_table(), index);
        let mut slot = vec![0; geometry.inode_size()];
        let offset = block.offset(geometry.block_size()) + byte as u64;
        device.read_at(offset, &mut slot).ok()?;
        if geometry.has_metadata_csum() {
            verify_checksum(&slot, geometry.csum_seed(), Ino::ROOT).ok()?;
        }
        let inode = Inode::parse(&slot).ok()?;
        (inode.file_type() == Some(FileType::Directory)).then_some(inode.links_count())
    };
    root().is_some_and(|links| links > 0)
}
