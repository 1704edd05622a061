//! Making a file system on a file or block device: what `lanefs mkfs` does around [`mkfs::format`].
//!
//! Nothing is touched before the plan is known to work and the place to be free: options that can't be are refused, a
//! known file system, partition table or other known content is named, wherever on the device its signature lies, and
//! what is mounted stays. All writes to an existing regular file are computed first, and room for them is reserved, so
//! a full disk leaves it as it was. At an offset, a file system keeps within the partition that it begins in. If
//! anything fails, a file that was made here is removed again. A crash in the middle leaves a file without a
//! superblock.

use std::path::Path;

use device::host;
use device::signature::recognize_elsewhere;
use device::{BlockDevice, DeviceError, FileDevice, HeldDevice, MemoryDevice, Resize, Slice};
#[cfg(feature = "build")]
pub use image::identify_empty;
use mkfs::{FormatSummary, JournalDevice, Layout, Options};
use ondisk::{Geometry, Superblock};
use sync::Arc;

use crate::partition::PartitionTable;
use crate::probe::{Content, probe};

/// Bytes for a file that wait in memory.
const HELD_BYTES: usize = 64 << 20;

/// Why no file system was made.
#[derive(Debug)]
#[non_exhaustive]
pub enum MakeError {
    /// The options, the size, or the device while it was written.
    Mkfs(mkfs::Error),
    /// The device could not be opened or looked at.
    Device(DeviceError),
    /// There is something already: its name, with an article. `overwrite` goes on.
    Occupied(String),
    /// The device has a partition table, and the file system would not lie within a partition. `overwrite` goes on.
    NotInPartition {
        /// The file system's first byte.
        start: u64,
        /// The byte after its last.
        end: u64,
        /// What there is.
        table: PartitionTable,
    },
    /// Something holds the device or the file: its holder, as a clause. `overwrite` does not go on.
    InUse(String),
    /// Neither was a size given nor does the file have one.
    NoSize,
    /// `-E offset` lies beyond the end.
    Offset(u64),
}

impl std::fmt::Display for MakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MakeError::Mkfs(error) => error.fmt(f),
            MakeError::Device(error) => error.fmt(f),
            MakeError::Occupied(what) => write!(f, "there is {what} already"),
            MakeError::NotInPartition { start, end, .. } => write!(
                f,
                "this is a disk with a partition table, and bytes {start} to {end} do not lie within a partition"
            ),
            MakeError::InUse(place) => write!(f, "it is in use: {place}"),
            MakeError::NoSize => f.write_str("the size of the file system is missing"),
            MakeError::Offset(offset) => write!(f, "byte {offset} is beyond the end"),
        }
    }
}

impl std::error::Error for MakeError {}

impl From<mkfs::Error> for MakeError {
    fn from(error: mkfs::Error) -> MakeError {
        MakeError::Mkfs(error)
    }
}

impl From<DeviceError> for MakeError {
    fn from(error: DeviceError) -> MakeError {
        match error {
            DeviceError::InUse { holder, .. } => MakeError::InUse(holder),
            error => MakeError::Device(error),
        }
    }
}

/// Describes the file system that [`make`] would write to a device of `size` bytes. Writes nothing, as `mke2fs -n`.
///
/// # Errors
/// Options and sizes that can't be.
pub fn rehearse(size: u64, options: &Options) -> Result<FormatSummary, MakeError> {
    let mut zero = Options {
        device_is_zero: true,
        ..options.clone()
    };
    if zero.journal.device_path.is_some() {
        // Whatever its UUID is.
        zero.journal.device = Some([0; 16]);
    }
    Ok(format(&MemoryDevice::new(size), size, &zero)?)
}

/// The bytes that a file system on `path` would have: `size`, else those of the file or device from the offset on.
///
/// # Errors
/// When there is neither.
pub fn size_for(path: &Path, size: Option<u64>, options: &Options) -> Result<u64, MakeError> {
    match size {
        Some(size) => Ok(size),
        None if path.exists() => {
            let device = device::in_use::open_to_read(path)?;
            rest_of(end_of_room(&device, options.offset)?, options.offset)
        }
        None => Err(MakeError::NoSize),
    }
}

/// Makes a file system of `size` bytes (the file's or device's own, if `None`) on a file, which is created or cut to
/// size, or on a block device. With `overwrite`, whatever is there is destroyed.
///
/// # Errors
/// See [`MakeError`]; a file that was not there before is then removed.
pub fn make(
    path: &Path,
    size: Option<u64>,
    options: &Options,
    overwrite: bool,
) -> Result<FormatSummary, MakeError> {
    let (options, journal) = with_journal_device(options)?;
    let summary = make_one(path, size, &options, overwrite)?;
    if let Some(Journal { device, journal }) = journal {
        journal.attach(&device, summary.uuid)?;
    }
    Ok(summary)
}

/// Makes a file system on the whole of a device. What the device held is lost.
///
/// # Errors
/// `Mkfs`, `Device`; `InUse` when the journal's device is in use.
pub fn make_on(device: &dyn BlockDevice, options: &Options) -> Result<FormatSummary, MakeError> {
    let (options, journal) = with_journal_device(options)?;
    let summary = format(device, device.size(), &options)?;
    if let Some(Journal { device, journal }) = journal {
        journal.attach(&device, summary.uuid)?;
    }
    Ok(summary)
}

fn make_one(
    path: &Path,
    size: Option<u64>,
    options: &Options,
    overwrite: bool,
) -> Result<FormatSummary, MakeError> {
    if !path.exists() {
        return create(path, size.ok_or(MakeError::NoSize)?, options);
    }
    let file = Arc::new(device::in_use::open_to_write(path)?);
    let end = match size {
        Some(size) => size.saturating_add(options.offset),
        None => end_of_room(&*file, options.offset)?,
    };
    let len = rest_of(end, options.offset)?;
    if !overwrite {
        refuse_occupied(&file, options.offset, end)?;
    }
    // Nothing is destroyed for a plan that can't be.
    check_plan(len, options)?;
    if file.is_regular() {
        return overwrite_file(&file, size.is_some(), options, end);
    }
    if options.discard {
        file.discard(options.offset..end)?;
    }
    write(file, len, options)
}

/// Makes a file system in a regular file up to byte `end`; `resizes` where the file is to end there.
fn overwrite_file(
    file: &FileDevice,
    resizes: bool,
    options: &Options,
    end: u64,
) -> Result<FormatSummary, MakeError> {
    let empties = options.discard && options.offset == 0;
    let options = Options {
        // An emptied file is zero, whether it can be discarded or not.
        device_is_zero: options.device_is_zero || empties,
        ..options.clone()
    };
    let nothing = Arc::new(MemoryDevice::new(end.max(file.size())));
    let planned = Arc::new(HeldDevice::new(nothing, HELD_BYTES));
    let summary = write(
        Arc::<HeldDevice>::clone(&planned),
        end - options.offset,
        &options,
    )?;
    file.reserve(&planned.ranges())?;
    // From here on only a medium that fails can stop it.
    if resizes && (options.offset == 0 || end > file.size()) {
        file.set_size(end)?;
    }
    if options.discard {
        file.discard(options.offset..end)?;
    }
    if empties {
        file.set_size(0)?;
        file.set_size(end)?;
    }
    planned.make_on(file)?;
    Ok(summary)
}

fn create(path: &Path, size: u64, options: &Options) -> Result<FormatSummary, MakeError> {
    let options = Options {
        device_is_zero: true,
        ..options.clone()
    };
    check_plan(size, &options)?;
    let end = size.saturating_add(options.offset);
    let file = FileDevice::create_new(path, end)?;
    let result = write(Arc::new(file), size, &options);
    if result.is_err() {
        // The error says more than a failure to remove what is left.
        let _ = std::fs::remove_file(path);
    }
    result
}

fn write(
    device: Arc<dyn BlockDevice>,
    len: u64,
    options: &Options,
) -> Result<FormatSummary, MakeError> {
    let part = Slice::new(device, options.offset, len)?;
    Ok(format(&part, len, options)?)
}

/// A file system, or a journal device.
fn format(
    device: &dyn BlockDevice,
    len: u64,
    options: &Options,
) -> Result<FormatSummary, mkfs::Error> {
    if mkfs::is_journal_device(options)? {
        return mkfs::format_journal_device(device, len, options);
    }
    mkfs::format(device, &Layout::plan(len, options)?)
}

/// Whether it can be done at all, before anything is destroyed.
fn check_plan(len: u64, options: &Options) -> Result<(), MakeError> {
    if mkfs::is_journal_device(options)? {
        return Ok(());
    }
    Layout::plan(len, options)?;
    Ok(())
}

/// The journal device that the options name by its path, and the options with its UUID and block size.
fn with_journal_device(options: &Options) -> Result<(Options, Option<Journal>), MakeError> {
    let Some(path) = &options.journal.device_path else {
        return Ok((options.clone(), None));
    };
    let device = device::in_use::open_to_write(path.as_ref())?;
    let journal = JournalDevice::read(&device)?;
    let mut options = options.clone();
    options.journal.device = Some(journal.uuid);
    if *options.block_size.get_or_insert(journal.block_size) != journal.block_size {
        let reason = format!(
            "has blocks of {} bytes; use -b {0}",
            journal.block_size.bytes()
        );
        return Err(mkfs::Error::Option {
            option: "-J device".into(),
            reason,
        }
        .into());
    }
    Ok((options, Some(Journal { device, journal })))
}

/// An open journal device.
struct Journal {
    device: FileDevice,
    journal: JournalDevice,
}

/// Where a file system without a given size ends: with the partition that holds its first byte, else with the device.
fn end_of_room(device: &dyn BlockDevice, offset: u64) -> Result<u64, DeviceError> {
    let table = match offset {
        0 => None,
        _ => PartitionTable::read(device)?,
    };
    let partition = table.and_then(|table| table.holding(offset..offset + 1).cloned());
    Ok(partition.map_or(device.size(), |partition| {
        partition.start + partition.present(device.size())
    }))
}

/// Refuses to overwrite what is known to be on a block device; a file is never refused.
///
/// # Errors
/// `Occupied`, with what is there; `InUse`, with its holder; when the device can't be opened or read.
pub fn refuse_occupied_device(path: &Path) -> Result<(), MakeError> {
    if !std::fs::metadata(path).is_ok_and(|found| host::is_block_device(found.file_type())) {
        return Ok(());
    }
    let file = Arc::new(device::in_use::open_to_write(path)?);
    refuse_occupied(&file, 0, file.size())
}

/// Refuses to overwrite what is known to be on the device: on the whole of it, or where the file system would lie.
fn refuse_occupied(file: &Arc<FileDevice>, offset: u64, end: u64) -> Result<(), MakeError> {
    let device: Arc<dyn BlockDevice> = Arc::<FileDevice>::clone(file);
    let size = device.size();
    if size <= offset {
        return Ok(());
    }
    let mut part = 0..size;
    let whole = occupant(&*device)?;
    if let Some(Occupant::Table(table)) = &whole
        && offset > 0
    {
        let Some(partition) = table.holding(offset..end.max(offset + 1)) else {
            return Err(MakeError::NotInPartition {
                start: offset,
                end,
                table: table.clone(),
            });
        };
        part = partition.start..partition.start + partition.present(size);
    } else {
        refuse_overlap(whole, 0, offset)?;
    }
    // What begins with the partition, then what begins at the offset itself.
    for start in [part.start, offset] {
        if start > 0 && start < part.end {
            let slice = Slice::new(Arc::clone(&device), start, part.end.min(size) - start)?;
            refuse_overlap(occupant(&slice)?, start, offset)?;
        }
    }
    Ok(())
}

/// Refuses an occupant that begins at `start` and reaches `offset`.
fn refuse_overlap(occupant: Option<Occupant>, start: u64, offset: u64) -> Result<(), MakeError> {
    match occupant {
        Some(Occupant::Ext(bytes)) if start.saturating_add(bytes) <= offset => Ok(()),
        Some(occupant) => Err(MakeError::Occupied(occupant.to_string())),
        None => Ok(()),
    }
}

/// What a device holds that must not be overwritten unasked.
enum Occupant {
    /// An ext2/3/4 file system of this number of bytes.
    Ext(u64),
    Table(PartitionTable),
    Other(&'static str),
}

impl std::fmt::Display for Occupant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Occupant::Ext(_) => f.write_str("an ext2/3/4 file system"),
            Occupant::Table(table) => {
                let count = table.partitions.len();
                let s = if count == 1 { "" } else { "s" };
                write!(f, "a disk with {count} partition{s}")
            }
            Occupant::Other(name) => f.write_str(name),
        }
    }
}

fn occupant(device: &dyn BlockDevice) -> Result<Option<Occupant>, DeviceError> {
    Ok(match probe(device)? {
        Content::Ext => {
            // One that a disk's partition table or an array's superblock overlaps is less than these.
            if let Some(table) = PartitionTable::read(device)? {
                return Ok(Some(Occupant::Table(table)));
            }
            if let Some(format) = recognize_elsewhere(device)? {
                return Ok(Some(Occupant::Other(format.name)));
            }
            Some(Occupant::Ext(ext_bytes(device)?))
        }
        Content::Disk(table) => Some(Occupant::Table(table)),
        Content::Foreign(foreign) => Some(Occupant::Other(foreign.name)),
        _ => None,
    })
}

/// The bytes of the ext2/3/4 at the start of a device; all where its superblock is damaged.
fn ext_bytes(device: &dyn BlockDevice) -> Result<u64, DeviceError> {
    let mut bytes = [0; Superblock::SIZE];
    if device.size() < Superblock::OFFSET + Superblock::SIZE as u64 {
        return Ok(device.size());
    }
    device.read_at(Superblock::OFFSET, &mut bytes)?;
    let geometry = Geometry::of(Superblock::view(&bytes));
    Ok(geometry.map_or(device.size(), |geometry| geometry.bytes()))
}

fn rest_of(end: u64, offset: u64) -> Result<u64, MakeError> {
    match end.checked_sub(offset) {
        Some(0) if offset == 0 => Err(MakeError::NoSize),
        None | Some(0) => Err(MakeError::Offset(offset)),
        Some(rest) => Ok(rest),
    }
}
