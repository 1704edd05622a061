//! The superblock of a plan, complete except for the counts of free blocks and inodes. If the options do not give a
//! UUID or a hash seed, it is random; if they give no time, it is the clock's.

use std::hash::{BuildHasher, RandomState};

use ondisk::superblock::{self, state};
use ondisk::{Feature, Geometry, Group, Ino, Superblock, csum};

use crate::shape::Shape;
use crate::{Error, Options};

/// Numbers that mke2fs puts into every superblock.
const REVISION_DYNAMIC: u32 = 1;
const HASH_HALF_MD4: u8 = 1;
const JOURNAL_BACKUP_BLOCKS: u8 = 1;
const NEVER: u16 = 0xFFFF;
/// `user_xattr` and `acl`.
const DEFAULT_MOUNT_OPTIONS: u32 = 0x4 | 0x8;
const MMP_INTERVAL_SECONDS: u16 = 5;
const MMP_INTERVAL_MAX: u16 = 300;
const ENCODING_UTF8_12_1: u16 = 1;
const ENCODING_STRICT: u16 = 1;

/// Values that are random or taken from the clock if the options do not give them. They are chosen once for an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FsIdentity {
    pub uuid: [u8; 16],
    pub hash_seed: [u8; 16],
    /// Seconds since 1970.
    pub time: i64,
}

impl FsIdentity {
    pub(crate) fn of(options: &Options) -> FsIdentity {
        FsIdentity {
            uuid: options.uuid.unwrap_or_else(random_uuid),
            hash_seed: options.hash_seed.unwrap_or_else(random_uuid),
            time: options.time.unwrap_or_else(|| sync::clock::wall().0),
        }
    }
}

/// A random UUID (version 4).
///
/// It needs no crate for random numbers: the keys of a [`RandomState`] are random numbers of the host, and no two
/// states of a process have the same keys, so a hash with them is random, too. A forked process has the keys of its
/// parent, so the process id and the time are hashed.
fn random_uuid() -> [u8; 16] {
    let (random, process) = (RandomState::new(), std::process::id());
    let mut uuid = [0; 16];
    for (half, bytes) in uuid.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(
            &random
                .hash_one((half, process, sync::clock::wall()))
                .to_le_bytes(),
        );
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

/// The superblock of an image of this shape.
///
/// # Errors
/// Options that a superblock can't hold.
pub(crate) fn superblock(
    shape: &Shape,
    options: &Options,
    identity: &FsIdentity,
) -> Result<Superblock, Error> {
    let mut sb = Superblock::zeroed();
    sb.set_magic(superblock::MAGIC);
    sb.set_revision(REVISION_DYNAMIC);
    sb.set_features(shape.features);
    sb.set_uuid(identity.uuid);
    set_sizes(&mut sb, shape, options)?;
    set_policy(&mut sb, options)?;
    set_time(&mut sb, identity.time);
    set_names(&mut sb, options)?;
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(identity.hash_seed.chunks_exact(4)) {
        *word = bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    }
    sb.set_hash_seed(words);
    sb.set_hash_version(HASH_HALF_MD4);
    let test = if options.test_fs {
        superblock::flags::TEST_FILESYS
    } else {
        0
    };
    sb.set_flags(superblock::flags::SIGNED_HASH | test);
    if shape.has(Feature::METADATA_CSUM) {
        sb.set_checksum_type(superblock::CHECKSUM_CRC32C);
    }
    if shape.has(Feature::METADATA_CSUM_SEED) {
        sb.set_checksum_seed(csum::crc32c(csum::INITIAL, &identity.uuid));
    }
    if shape.has(Feature::MMP) {
        sb.set_mmp_interval(mmp_interval(options)?);
    }
    if shape.has(Feature::CASEFOLD) {
        sb.set_encoding(encoding(options)?);
        sb.set_encoding_flags(if options.strict_encoding {
            ENCODING_STRICT
        } else {
            0
        });
    }
    if shape.has(Feature::HAS_JOURNAL) {
        match options.journal.device {
            Some(uuid) => sb.set_journal_uuid(uuid),
            None => {
                sb.set_journal_ino(Some(Ino::JOURNAL));
                sb.set_journal_backup_type(JOURNAL_BACKUP_BLOCKS);
            }
        }
    }
    Ok(sb)
}

/// The geometry of an image with this superblock.
pub(crate) fn geometry_of(superblock: &Superblock, size_bytes: u64) -> Result<Geometry, Error> {
    Geometry::new(superblock, size_bytes)
        .map_err(|error| Error::Usage(format!("the plan does not give a geometry: {error}")))
}

/// The geometry of an image of this shape.
///
/// # Errors
/// As [`superblock`].
pub(crate) fn geometry(
    shape: &Shape,
    size_bytes: u64,
    options: &Options,
) -> Result<Geometry, Error> {
    let superblock = superblock(shape, options, &FsIdentity::of(options))?;
    geometry_of(&superblock, size_bytes)
}

fn narrow<T: TryFrom<u64>>(what: &str, value: u64) -> Result<T, Error> {
    T::try_from(value)
        .map_err(|_| Error::option(what, format!("{value} does not fit the superblock")))
}

fn set_sizes(sb: &mut Superblock, shape: &Shape, options: &Options) -> Result<(), Error> {
    let inodes = shape.inodes_per_group * shape.groups;
    sb.set_inodes_count(narrow("-N", inodes)?);
    sb.set_blocks_count(shape.blocks);
    sb.set_first_data_block(narrow("-b", shape.first_data_block)?);
    sb.set_log_block_size(shape.block_size.log());
    sb.set_log_cluster_size(shape.block_size.log() + shape.cluster_bits);
    sb.set_blocks_per_group(narrow("-g", shape.blocks_per_group)?);
    sb.set_clusters_per_group(narrow("-g", shape.blocks_per_group >> shape.cluster_bits)?);
    sb.set_inodes_per_group(narrow("-N", shape.inodes_per_group)?);
    sb.set_first_ino(Ino::FIRST_UNRESERVED);
    sb.set_inode_size(narrow("-I", shape.inode_size)?);
    sb.set_reserved_gdt_blocks(narrow("-E resize", shape.reserved_gdt)?);
    if shape.has(Feature::BIT64) {
        sb.set_desc_size(narrow("-E desc_size", shape.desc_size)?);
    }
    if shape.inode_size > 128 {
        sb.set_min_extra_isize(ondisk::inode::EXTRA_SIZE);
        sb.set_want_extra_isize(ondisk::inode::EXTRA_SIZE);
    }
    sb.set_log_groups_per_flex(narrow("-G", u64::from(shape.flex_bits))?);
    let mut backups = [Group(0); 2];
    for (to, from) in backups.iter_mut().zip(shape.backup_groups) {
        *to = Group(narrow("-E num_backup_sb", from)?);
    }
    sb.set_backup_groups(backups);
    let percent = options.reserved_percent;
    if !(0.0..=50.0).contains(&percent) {
        return Err(Error::option("-m", "must be from 0 to 50 percent"));
    }
    // At most half of 2^48. The value is meant to be rounded down, here and again when the last group is cut off.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss
    )]
    let reserved = (percent * shape.blocks_given as f64 / 100.0) as u64;
    let scaled = u128::from(reserved) * u128::from(shape.blocks) / u128::from(shape.blocks_given);
    let reserved = u64::try_from(scaled).unwrap_or(reserved);
    sb.set_reserved_blocks_count(reserved);
    Ok(())
}

fn set_policy(sb: &mut Superblock, options: &Options) -> Result<(), Error> {
    sb.set_state(state::VALID);
    if !(1..=3).contains(&options.errors) {
        return Err(Error::option("-e", "must be continue, remount-ro or panic"));
    }
    sb.set_errors(options.errors);
    sb.set_max_mount_count(NEVER);
    sb.set_creator_os(options.creator_os);
    sb.set_default_mount_options(DEFAULT_MOUNT_OPTIONS);
    sb.set_raid_stride(options.stride.unwrap_or(0));
    sb.set_raid_stripe_width(options.stripe_width.unwrap_or(0));
    Ok(())
}

fn set_time(sb: &mut Superblock, time: i64) {
    // The superblock holds seconds since 1970, and no negative ones.
    let seconds = u64::try_from(time).unwrap_or(0);
    sb.set_mkfs_time(seconds);
    sb.set_write_time(seconds);
    sb.set_last_check(seconds);
}

fn set_names(sb: &mut Superblock, options: &Options) -> Result<(), Error> {
    if options.label.len() > 16 {
        return Err(Error::option("-L", "a label has at most 16 bytes"));
    }
    if options.last_mounted.len() > 64 {
        return Err(Error::option("-M", "at most 64 bytes"));
    }
    sb.set_label(&options.label);
    sb.set_last_mounted(&options.last_mounted);
    Ok(())
}

fn mmp_interval(options: &Options) -> Result<u16, Error> {
    match options.mmp_interval.unwrap_or(MMP_INTERVAL_SECONDS) {
        0 => Ok(MMP_INTERVAL_SECONDS),
        seconds if seconds <= MMP_INTERVAL_MAX => Ok(seconds),
        _ => Err(Error::option(
            "-E mmp_update_interval",
            format!("at most {MMP_INTERVAL_MAX} seconds"),
        )),
    }
}

fn encoding(options: &Options) -> Result<u16, Error> {
    match options.encoding.as_deref() {
        None | Some("utf8" | "utf8-12.1") => Ok(ENCODING_UTF8_12_1),
        Some(other) => Err(Error::option(
            "-E encoding",
            format!("'{other}' is unknown; utf8 is the only one"),
        )),
    }
}

/// Copies the journal's map into the superblock, where it is used if the journal's inode is lost.
pub(crate) fn back_up_journal(sb: &mut Superblock, inode: &ondisk::Inode) {
    let mut words = [0; 17];
    for (index, word) in words.iter_mut().take(15).enumerate() {
        *word = inode.block_word(index);
    }
    let size = inode.size_both_words();
    // The two halves of the number.
    #[allow(clippy::cast_possible_truncation)]
    let (high, low) = ((size >> 32) as u32, size as u32);
    words[15] = high;
    words[16] = low;
    sb.set_journal_backup(words);
}
