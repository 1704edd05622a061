//! A journal on a device of its own: made with `-O journal_dev`, used with `-J device=`.
//!
//! Such a device has a superblock that marks it as one and, in the block after it, the journal's own. The file system
//! names the device by its UUID, and the device names the one file system that uses it.

use device::BlockDevice;
use ondisk::jbd2::JournalSuperblock;
use ondisk::superblock::{self, state};
use ondisk::{BlockSize, Feature, Features, FsBlock, Ino, Superblock};

use crate::journal::JournalSize;
use crate::template::FsIdentity;
use crate::{Error, FormatSummary, Options, UsageType, tables};

/// Whether these options ask for a journal device instead of a file system.
///
/// # Errors
/// A feature that does not exist, or that a journal device can't have.
pub fn is_journal_device(options: &Options) -> Result<bool, Error> {
    let set = Features::NONE.apply(&options.features);
    let set = set.map_err(|error| Error::option("-O", error.to_string()))?;
    if !set.has(Feature::JOURNAL_DEV) {
        return Ok(false);
    }
    match set.without(Feature::JOURNAL_DEV).iter().next() {
        None => Ok(true),
        Some(other) => Err(Error::option(
            format!("-O {other}"),
            "a journal device has no other feature than journal_dev",
        )),
    }
}

/// Makes a journal device of `size_bytes`, for file systems of the same block size.
///
/// # Errors
/// A size that no journal has; a device that fails.
pub fn format_journal_device(
    device: &dyn BlockDevice,
    size_bytes: u64,
    options: &Options,
) -> Result<FormatSummary, Error> {
    let usage = match options.usage_types.as_slice() {
        [] => vec![UsageType::for_size(size_bytes)],
        given => given.to_vec(),
    };
    let block_size = options.block_size_or(tables::block_size(&usage));
    let blocks = size_bytes >> block_size.bits();
    if !(tables::JOURNAL_MIN + 2..=tables::JOURNAL_MAX).contains(&blocks) {
        let (least, most) = (tables::JOURNAL_MIN + 2, tables::JOURNAL_MAX);
        let reason = format!(
            "{blocks} blocks of {} bytes; a journal device has {least} to {most}",
            block_size.bytes()
        );
        return Err(Error::option("SIZE", reason));
    }
    let identity = FsIdentity::of(options);
    let sb = device_superblock(block_size, blocks, options, &identity);
    if !options.device_is_zero {
        device.write_at(0, &vec![0; 3 * block_size.bytes()])?;
    }
    let place = journal_block(block_size);
    let size = JournalSize {
        total: blocks,
        fast_commit: 0,
    };
    // The log begins behind the journal's superblock: block 2, or 3 with blocks of 1 KiB.
    let mut journal = size.superblock(block_size, place.0 as u32 + 1, identity.uuid);
    journal.set_users(&[]);
    let mut bytes = vec![0; block_size.bytes()];
    bytes[..JournalSuperblock::SIZE].copy_from_slice(journal.bytes());
    device.write_at(place.offset(block_size), &bytes)?;
    if !options.device_is_zero {
        device.flush()?;
    }
    device.write_at(Superblock::OFFSET, sb.bytes())?;
    if !options.device_is_zero {
        device.flush()?;
    }
    Ok(FormatSummary {
        // 64 KiB at most.
        block_size: block_size.bytes() as u32,
        blocks,
        free_blocks: 0,
        inodes: 0,
        free_inodes: 0,
        groups: 0,
        journal_blocks: blocks,
        features: sb.features(),
        label: sb.label().to_vec(),
        uuid: sb.uuid(),
        backups: Vec::new(),
    })
}

fn device_superblock(
    block_size: BlockSize,
    blocks: u64,
    options: &Options,
    identity: &FsIdentity,
) -> Superblock {
    let mut sb = Superblock::zeroed();
    sb.set_magic(superblock::MAGIC);
    sb.set_revision(1);
    sb.set_features(Features::of(&[Feature::JOURNAL_DEV]));
    sb.set_uuid(identity.uuid);
    sb.set_label(&options.label);
    sb.set_blocks_count(blocks);
    sb.set_first_data_block(u32::from(block_size == BlockSize::K1));
    sb.set_log_block_size(block_size.log());
    sb.set_log_cluster_size(block_size.log());
    // Bits of a bitmap that is not there: 2^19 at most.
    let per_group = (8 * block_size.bytes_u64()).min(65528) as u32;
    sb.set_blocks_per_group(per_group);
    sb.set_clusters_per_group(per_group);
    sb.set_first_ino(Ino::FIRST_UNRESERVED);
    sb.set_inode_size(256);
    sb.set_state(state::VALID);
    sb.set_errors(1);
    sb.set_max_mount_count(0xFFFF);
    let seconds = u64::try_from(identity.time).unwrap_or(0);
    sb.set_mkfs_time(seconds);
    sb.set_write_time(seconds);
    sb.set_last_check(seconds);
    sb
}

/// The block behind the device's superblock.
fn journal_block(block_size: BlockSize) -> FsBlock {
    FsBlock(if block_size == BlockSize::K1 { 2 } else { 1 })
}

/// A journal device that is there.
#[derive(Clone, Debug)]
pub struct JournalDevice {
    /// Its UUID, by which file systems name it.
    pub uuid: [u8; 16],
    /// The block size that its file system must have.
    pub block_size: BlockSize,
    journal: JournalSuperblock,
}

impl JournalDevice {
    /// Reads what is on a device.
    ///
    /// # Errors
    /// If it is not a journal device, or has a user already.
    pub fn read(device: &dyn BlockDevice) -> Result<JournalDevice, Error> {
        let bad = |reason: &str| Error::option("-J device", reason);
        let mut bytes = [0; Superblock::SIZE];
        if device.size() < Superblock::OFFSET + Superblock::SIZE as u64 {
            return Err(bad("is too small for a journal device"));
        }
        device.read_at(Superblock::OFFSET, &mut bytes)?;
        let sb = Superblock::view(&bytes);
        if sb.magic() != superblock::MAGIC || !sb.features().has(Feature::JOURNAL_DEV) {
            return Err(bad(
                "is not a journal device; make one: lanefs mkfs -O journal_dev DEVICE",
            ));
        }
        let block_size = BlockSize::from_log(sb.log_block_size())
            .ok_or_else(|| bad("has an impossible block size"))?;
        let mut block = vec![0; block_size.bytes()];
        device.read_at(journal_block(block_size).offset(block_size), &mut block)?;
        let journal = JournalSuperblock::read(&block).filter(|journal| journal.kind().is_some());
        let journal = journal.ok_or_else(|| bad("has no journal superblock"))?;
        if journal.users_count() > 0 {
            return Err(bad(
                "has a file system already; Linux takes one a journal device",
            ));
        }
        Ok(JournalDevice {
            uuid: sb.uuid(),
            block_size,
            journal,
        })
    }

    /// Makes a file system the device's user, after the file system was made.
    ///
    /// # Errors
    /// When the device fails.
    pub fn attach(mut self, device: &dyn BlockDevice, user: [u8; 16]) -> Result<(), Error> {
        self.journal.set_users(&[user]);
        let place = journal_block(self.block_size).offset(self.block_size);
        device.write_at(place, self.journal.bytes())?;
        Ok(device.flush()?)
    }
}
