//! Brings fast commits home, before a repair decides anything.
//!
//! One transaction of the log takes their place. CRASH: until it is committed, the fast commits are valid and the next
//! opening replays them; from then on, it replays the transaction. If the journal can't take the transaction, the
//! blocks are written in stages while the fast commits are still valid. A wrong inode of the journal is written by the
//! same transaction; until then its copy in the superblock leads to the log.

use std::collections::BTreeMap;

use check::repair::RepairScope;
use device::{BlockDevice, Scratch};
use jbd2::recovery;
use ondisk::{Feature, FsBlock, Geometry, GroupDesc, Ino, Inode, Site, Superblock, inode};
use sync::Arc;

use super::{RepairError, Writer};
use crate::substitute::first;

/// The device with its log and fast commits applied, in memory and for reading only; or else why they can't be applied.
pub(super) type View = Result<Arc<dyn BlockDevice>, String>;

/// Applies the log and its fast commits in memory. A repair of everything puts the superblock's copy of the journal's
/// inode in that inode's place, if it is another one: then the view has a journal that can take their place.
///
/// # Errors
/// When the device fails, the log was not the same each time it was read, or lanefs does not support fast commits on
/// such a file system: they may be sound.
pub(super) fn view(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    scope: RepairScope,
) -> Result<View, RepairError> {
    let restored = if scope == RepairScope::All {
        with_journal_inode(device)?
    } else {
        None
    };
    if let Some(restored) = restored {
        let view = view_as_it_is(&restored, journal_device.clone())?;
        if view.is_ok() {
            return Ok(view);
        }
    }
    view_as_it_is(device, journal_device)
}

/// The device with the superblock's copy of the journal's inode laid over that inode, in memory. `None` if the
/// superblock has none, the inode has the same map, or its place can't be found.
fn with_journal_inode(
    device: &Arc<dyn BlockDevice>,
) -> Result<Option<Arc<dyn BlockDevice>>, RepairError> {
    let sb = first(&**device)?;
    let Ok(geometry) = Geometry::new(&sb, device.size()) else {
        return Ok(None);
    };
    let Some((group, index)) = geometry.group_of_ino(Ino::JOURNAL) else {
        return Ok(None);
    };
    let size = geometry.block_size();
    let (desc_block, desc_at) = geometry.desc_place(group);
    let mut raw = vec![0; geometry.desc_size()];
    device.read_at(desc_block.offset(size) + desc_at as u64, &mut raw)?;
    let table = GroupDesc::load(&raw).inode_table();
    if !geometry.contains(table, geometry.inode_table_blocks().into()) {
        return Ok(None);
    }
    let (block, at) = geometry.inode_place(table, index);
    let offset = block.offset(size) + at as u64;
    let mut slot = vec![0; geometry.inode_size()];
    device.read_at(offset, &mut slot)?;
    let now = Inode::parse(&slot).unwrap_or_else(|_| Inode::zeroed());
    let Some(inode) = check::repair::backed_up_journal(&sb, now) else {
        return Ok(None);
    };
    let is_sound = !geometry.has_metadata_csum()
        || inode::verify_checksum(&slot, geometry.csum_seed(), Ino::JOURNAL).is_ok();
    if is_sound && is_same_file(&now, &inode) {
        return Ok(None);
    }
    slot.fill(0);
    inode.write_to(&mut slot);
    if geometry.has_metadata_csum() {
        inode::set_checksum(&mut slot, geometry.csum_seed(), Ino::JOURNAL);
    }
    let scratch = Scratch::new(Arc::clone(device), size.bytes());
    scratch.write_at(offset, &slot)?;
    Ok(Some(Arc::new(scratch)))
}

fn is_same_file(now: &Inode, copy: &Inode) -> bool {
    now.file_type() == copy.file_type()
        && now.links_count() > 0
        && now.block_area() == copy.block_area()
        && now.size_both_words() == copy.size_both_words()
}

fn view_as_it_is(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
) -> Result<View, RepairError> {
    use engine::Error;
    let choices = engine::MountOptions {
        journal_device,
        ..engine::MountOptions::default()
    };
    let error = match engine::InodeFs::open(Arc::clone(device), &choices) {
        Ok(fs) => return Ok(Ok(Arc::clone(fs.device()))),
        Err(error) => error,
    };
    let cause = match &error {
        Error::FastCommits(cause) => cause,
        error => error,
    };
    match cause {
        Error::Unwritable(_)
        | Error::UnwritableFeature(_)
        | Error::Unsupported(_)
        | Error::UnsupportedImage(_) => Err(RepairError::FastCommits(Box::new(error))),
        _ => match error {
            Error::Io(error) => Err(error.into()),
            Error::Journal(recovery::Error::Io(error)) => Err(error.into()),
            Error::Journal(recovery::Error::Corrupt(corrupt))
                if corrupt.site() == Site::JournalUnstable =>
            {
                Err(RepairError::Replay(corrupt.into()))
            }
            error => Ok(Err(error.to_string())),
        },
    }
}

/// Writes what the view holds to the device. The log is empty, but in use, and not needed any more when this returns.
/// `now` is the time of the commit, in seconds since 1970.
///
/// # Errors
/// When the device fails; then the fast commits still count, or the transaction in their place does.
pub(super) fn bring_home(
    device: &Arc<dyn BlockDevice>,
    journal_device: Option<Arc<dyn BlockDevice>>,
    view: &dyn BlockDevice,
    now: u64,
) -> Result<(), RepairError> {
    let writes = check::repair::of_changes(view, changes(&**device, view)?)?;
    let writer = Writer {
        device: &**device,
        writes: &writes,
        now,
        has_fast_commits: true,
    };
    if writer.run()? {
        return Ok(());
    }
    let sb = first(&**device)?;
    let geometry = Geometry::new(&sb, device.size())
        .map_err(|wrong| check::Error::Replay(format!("then the superblock is wrong: {wrong}")))?;
    recovery::drop_fast_commits(device, &sb, &geometry, journal_device)?;
    writer.change_superblock(|sb| {
        sb.set_features(sb.features().without(Feature::NEEDS_RECOVERY));
    })
}

/// The blocks of the view that differ from the device. Reads no more of either than lies under what the view lays over
/// the device.
fn changes(
    device: &dyn BlockDevice,
    view: &dyn BlockDevice,
) -> Result<BTreeMap<u64, Box<[u8]>>, RepairError> {
    let sb: Superblock = first(view)?;
    let geometry = Geometry::new(&sb, device.size())
        .map_err(|wrong| check::Error::Replay(format!("then the superblock is wrong: {wrong}")))?;
    let size = geometry.block_size();
    let (mut old, mut new) = (vec![0; size.bytes()], vec![0; size.bytes()]);
    let mut changes = BTreeMap::new();
    let mut next = 0;
    while let Some(range) = view.laid_over_from(FsBlock(next).offset(size)) {
        let first = range.start >> size.bits();
        let end = range.end.div_ceil(size.bytes_u64());
        if first >= geometry.blocks_count() {
            break;
        }
        next = end.max(next + 1);
        for block in first..end.min(geometry.blocks_count()) {
            let offset = FsBlock(block).offset(size);
            device.read_at(offset, &mut old)?;
            view.read_at(offset, &mut new)?;
            if old != new {
                changes.insert(block, new.clone().into_boxed_slice());
            }
        }
    }
    Ok(changes)
}
