//! Opening an image: the one place where a path on the command line becomes a file system, or a message that says what
//! is there instead and what to do.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use device::{BlockDevice, DeviceError, FileDevice, HeldDevice};
use lanefs::in_use::{open_unchanging, open_unused};
use lanefs::locate::{LocateError, Location, locate, place};
use lanefs::partition::{Partition, PartitionTable};
use lanefs::probe::{Content, probe};
use lanefs::{Error, Fs, MountOptions, ReplayPolicy};
use sync::Arc;

use crate::advice;
use crate::args::{FsArgs, ImageArgs};
use crate::context::Context;
use crate::epoch;
use crate::failure::Failure;
use crate::target::is_uri;

/// The most bytes that a command's writes take in memory before they reach the image. A command that fails before
/// that leaves the image as it was.
const HELD_BYTES: usize = 64 << 20;

/// What to do about a place that can't be read.
const UNREADABLE: &str = "the device fails to read it: copy the readable parts (ddrescue), and use the copy; \
    a superblock that is lost there may still be in the journal or in another group";

/// Opens the place on the device that the options name, for reading, when it holds an ext2/3/4.
fn open_ext(
    context: &Context,
    path: &Path,
    options: &FsArgs,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    let (device, location) = open_at(context, path, options)?;
    let place = locate(Arc::clone(&device), location)
        .map_err(|error| explain(path, &device, location, error))?;
    if let Some(partition) = in_damaged_table(&*device, location) {
        context.warn(format_args!(
            "{}: the partition table is damaged (wrong checksum); partition {} is taken to begin at byte {}",
            path.display(),
            partition.number,
            partition.start
        ));
    }
    remember(context, path, location);
    Ok(place)
}

/// The partition in use, where no copy of the partition table is whole.
fn in_damaged_table(device: &dyn BlockDevice, location: Location) -> Option<Partition> {
    let Location::Partition(number) = location else {
        return None;
    };
    let table = PartitionTable::read(device).ok()??;
    table.find(number).filter(|_| table.is_damaged).cloned()
}

/// Refuses to write to a place that only a damaged partition table names.
fn refuse_damaged_table(
    path: &Path,
    device: &dyn BlockDevice,
    location: Location,
) -> Result<(), Failure> {
    match in_damaged_table(device, location) {
        Some(partition) => Err(Failure::new(format!(
            "{}: the partition table is damaged (wrong checksum), so nothing is written by it",
            path.display()
        ))
        .hint(format!(
            "mend it (sgdisk), or name the place itself: --offset {}",
            partition.start
        ))),
        None => Ok(()),
    }
}

/// Keeps the place of a file system, so that a failed command can look for the cause.
fn remember(context: &Context, path: &Path, location: Location) {
    context.opened(crate::context::Opened {
        path: path.to_path_buf(),
        location,
    });
}

/// Opens a file or device, and returns where on it the options place the file system.
fn open_at(
    context: &Context,
    path: &Path,
    options: &FsArgs,
) -> Result<(Arc<dyn BlockDevice>, Location), Failure> {
    let device = open_to_read(context, path, options)?;
    Ok((Arc::new(device), location(&options.image)))
}

/// Opens a file or device to be read. One in use is refused, or read with a warning.
fn open_to_read(context: &Context, path: &Path, options: &FsArgs) -> Result<FileDevice, Failure> {
    let opened = match open_unchanging(path) {
        Err(error @ Error::InUse { .. }) if options.in_use => {
            context.warn_once(format_args!("{error}; the contents may be half changed"));
            FileDevice::open_unlocked(path).map_err(Error::from)
        }
        opened => opened,
    };
    opened.map_err(|error| match error {
        Error::InUse { .. } => Failure::new(error)
            .hint("--in-use reads it all the same, and the contents may be half changed"),
        Error::Locate(LocateError::Device(error)) => cannot_open(path, &error),
        error => Failure::new(error).at(path.display()),
    })
}

/// Where the options say that the file system is.
pub fn location(options: &ImageArgs) -> Location {
    match (options.partition, options.offset) {
        (Some(number), _) => Location::Partition(number),
        (None, Some(offset)) => Location::Offset(offset),
        (None, None) => Location::Whole,
    }
}

/// Opens the place of a file system in an image that is not in use.
pub fn place_for_writing(
    path: &Path,
    options: &ImageArgs,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    let device = open_unused(path).map_err(|error| not_to_be_had(path, error))?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let location = location(options);
    refuse_damaged_table(path, &*device, location)?;
    locate(Arc::clone(&device), location).map_err(|error| explain(path, &device, location, error))
}

/// Opens the place in an image that is not in use, whether or not a superblock can be read there: a copy of it or an
/// undo file may help.
pub fn place_for_repair(path: &Path, options: &ImageArgs) -> Result<Arc<dyn BlockDevice>, Failure> {
    let device = open_unused(path).map_err(|error| not_to_be_had(path, error))?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let location = location(options);
    place(Arc::clone(&device), location).map_err(|error| explain(path, &device, location, error))
}

/// Opens the device of an external journal, to replay and empty it. A device in use is refused.
pub fn journal_for_writing(path: &Path) -> Result<Arc<dyn BlockDevice>, Failure> {
    let device = open_unused(path).map_err(|error| not_to_be_had(path, error))?;
    Ok(Arc::new(device))
}

/// Opens the file system in an image that is not in use, to change it. Nothing reaches the image before the second
/// value is released, or more than [`HELD_BYTES`] wait.
pub fn open_for_writing(
    context: &Context,
    path: &Path,
    options: &ImageArgs,
) -> Result<(Fs, Arc<HeldDevice>), Failure> {
    let choices = MountOptions {
        time: epoch::stamp()?,
        ..MountOptions::default()
    };
    let held = held(place_for_writing(path, options)?);
    remember(context, path, location(options));
    let place = Arc::clone(&held) as Arc<dyn BlockDevice>;
    let fs = Fs::open_for_writing_with(Arc::clone(&place), &choices, lanefs::now)
        .map_err(|error| cannot_read(path, &place, options, &error))?;
    report_journal(context, path, &fs);
    if let Some(time) = choices.time {
        epoch::warn_of_cut_time(context, &fs, time.seconds);
    }
    Ok((fs, held))
}

/// The place with all that is written to it waiting in memory, until it is known that it is wanted.
pub fn held(place: Arc<dyn BlockDevice>) -> Arc<HeldDevice> {
    Arc::new(HeldDevice::new(place, HELD_BYTES))
}

/// The directory on which an image is mounted, taken from the words that describe how the image is in use.
fn mounted_on(user: &str) -> Option<&str> {
    let (_, place) = user.rsplit_once("mounted on ")?;
    (place.starts_with('/') && !place.contains([',', ' '])).then_some(place)
}

/// Whether a mount of an image is one by lanefs whose server has ended: no process has the lock on the image. Asks no
/// server.
fn is_dead(image: &Path, place: &str) -> bool {
    fuse::mounted_at(Path::new(place)).is_some() && FileDevice::open_read_only(image).is_ok()
}

/// An image that is in use, or can't be opened.
fn not_to_be_had(path: &Path, error: Error) -> Failure {
    match error {
        Error::InUse { ref user, .. } => {
            let hint = match mounted_on(user) {
                Some(place) if is_dead(path, place) => {
                    format!("the server of that mount has ended; unmount it: umount {place}")
                }
                Some(place) => format!(
                    "use the files below {place} (for another directory: mount --bind {place} DIR), or unmount it, \
                     or work on a copy"
                ),
                None => {
                    "end that use of it (umount, losetup -d, swapoff), or work on a copy".into()
                }
            };
            Failure::new(error).hint(hint)
        }
        Error::Locate(LocateError::Device(error)) => cannot_write(path, &error),
        error => Failure::new(error).at(path.display()),
    }
}

/// An image that is to be mounted.
pub struct ToMount {
    /// Its file system.
    pub fs: Fs,
    /// If it is open for writing.
    pub writing: Option<WritableImage>,
}

/// An image that is open for writing and has not been written to.
pub struct WritableImage {
    /// The file or block device as a whole.
    pub device: Arc<FileDevice>,
    /// Holds back what is written until the file system is mounted.
    pub held: Arc<HeldDevice>,
}

/// Opens the file system in an image that no other process uses or changes, to mount it. It is not open for writing
/// with `read_only`, and if the image may only be read.
pub fn open_to_mount(
    context: &Context,
    path: &Path,
    options: &ImageArgs,
    choices: &MountOptions,
    read_only: bool,
) -> Result<ToMount, Failure> {
    let mut is_writable = !read_only;
    let writing = read_only.then(|| open_unchanging(path));
    let device = match writing.unwrap_or_else(|| open_unused(path)) {
        Err(error) if !read_only && may_only_read(&error) => {
            is_writable = false;
            open_unchanging(path)
        }
        other => other,
    };
    let device = device.map_err(|error| not_to_be_had(path, error))?;
    let whole = Arc::new(device);
    let device = Arc::clone(&whole) as Arc<dyn BlockDevice>;
    if is_writable {
        refuse_damaged_table(path, &*device, location(options))?;
    }
    let place = locate(Arc::clone(&device), location(options))
        .map_err(|error| explain(path, &device, location(options), error))?;
    let waiting = is_writable.then(|| held(Arc::clone(&place)));
    let fs = match &waiting {
        Some(held) => Fs::open_for_writing_with(Arc::clone(held) as _, choices, lanefs::now),
        None => Fs::open_with(Arc::clone(&place), choices),
    };
    if let Err(error) = &fs
        && is_writable
        && is_only_read(error)
    {
        // The lock on it is a writer's still.
        let why = error.to_string();
        drop((fs, waiting, place, device, whole));
        context.note(why);
        return open_to_mount(context, path, options, choices, true);
    }
    let fs = fs.map_err(|error| match &error {
        Error::Fs {
            source: lanefs::FsError::Unwritable(_),
            ..
        } => cannot_read(path, &place, options, &error).hint("mount it to be read only: -o ro"),
        _ => cannot_read(path, &place, options, &error),
    })?;
    let errors = fs.inodes().recorded_errors();
    if errors > 0 {
        context.warn(format_args!(
            "{}: errors are on record ({errors}): `lanefs check` says what is wrong",
            path.display()
        ));
    }
    report_journal(context, path, &fs);
    let writing = waiting.map(|held| WritableImage {
        device: whole,
        held,
    });
    Ok(ToMount { fs, writing })
}

/// Whether the image is of a kind that is only read.
fn is_only_read(error: &Error) -> bool {
    match error {
        Error::Fs { source, .. } => source.is_only_read(),
        _ => false,
    }
}

/// Whether opening failed for want of the right to write.
fn may_only_read(error: &Error) -> bool {
    use rustix::io::Errno;
    [Errno::ACCESS, Errno::ROFS, Errno::PERM].contains(&lanefs::errno::of(error))
}

/// A file system that can't be opened, with the next step where there is one.
pub fn cannot_read(
    path: &Path,
    place: &Arc<dyn BlockDevice>,
    options: &ImageArgs,
    error: &Error,
) -> Failure {
    let failure = Failure::new(error).at(path.display());
    let text = match error {
        Error::Fs {
            source: lanefs::FsError::Truncated { needed, .. },
            ..
        } => return failure.hint(advice::of_truncated(path, options, *needed)),
        Error::Fs {
            source: lanefs::FsError::Corrupt(_),
            ..
        } if !advice::has_superblock(&**place) => {
            return advice::damaged(failure, path, place, location(options));
        }
        Error::Fs { source, .. } => hint(source),
        _ => None,
    };
    match text {
        Some(text) => failure.hint(text),
        None => failure,
    }
}

/// A device that can't be opened or read, with the next step where there is one.
pub fn cannot_open(path: &Path, error: &DeviceError) -> Failure {
    let failure = Failure::new(error);
    match error {
        DeviceError::Open { source, .. } => match source.kind() {
            std::io::ErrorKind::NotFound if is_uri(path.as_os_str().as_bytes()) => failure.hint(
                "images are opened only in local files and on block devices: download it first",
            ),
            std::io::ErrorKind::NotFound if path.to_string_lossy().contains(":/") => {
                failure.hint("IMAGE:PATH splits at the first `:/`")
            }
            std::io::ErrorKind::PermissionDenied => failure.hint(how_to_read(path)),
            _ => failure,
        },
        _ => failure,
    }
}

/// How a user who may not read a file or device gets the right to.
fn how_to_read(path: &Path) -> String {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let Ok(metadata) = std::fs::metadata(path) else {
        return "a folder on the way to it is closed to you: ask its owner".to_owned();
    };
    if metadata.file_type().is_block_device() {
        return "you may not read it: join the group `disk`, or be root".to_owned();
    }
    if metadata.uid() == rustix::process::geteuid().as_raw() {
        format!(
            "it is yours, but its mode keeps you out: chmod u+rw {}",
            path.display()
        )
    } else {
        "you may not read it: ask its owner, or be root".to_owned()
    }
}

/// As [`cannot_open`], for what was to be written to.
fn cannot_write(path: &Path, error: &DeviceError) -> Failure {
    let may_be_read = || FileDevice::open_read_only(path).is_ok();
    let hint = match error {
        DeviceError::WriteProtected { .. } => {
            "make it writable (blockdev --setrw, losetup without -r), or work on a copy"
        }
        DeviceError::Open { source, .. } => match source.kind() {
            std::io::ErrorKind::PermissionDenied if may_be_read() => {
                "it may be read, but not written to: get the right to write (chmod, chattr -i), or work on a copy"
            }
            std::io::ErrorKind::ReadOnlyFilesystem => {
                "it is on a file system that is mounted read-only: work on a copy"
            }
            _ => return cannot_open(path, error),
        },
        _ => return cannot_open(path, error),
    };
    Failure::new(error).hint(hint)
}

/// Reports why a place does not hold a file system, and what to do.
fn explain(
    path: &Path,
    device: &Arc<dyn BlockDevice>,
    location: Location,
    error: LocateError,
) -> Failure {
    let failure = Failure::new(&error).at(path.display());
    match error {
        LocateError::NotExt(Content::Disk(table)) | LocateError::NoSuchPartition { table, .. }
            if table.partitions.is_empty() =>
        {
            failure.hint("divide it first, with sfdisk or the like")
        }
        LocateError::NotExt(Content::Disk(table)) => failure.hint(format!(
            "choose one with --partition N:\n{}",
            listing(device, &table)
        )),
        LocateError::NoSuchPartition { table, .. } => {
            failure.hint(format!("these are there:\n{}", listing(device, &table)))
        }
        LocateError::Device(DeviceError::Io {
            operation: "read", ..
        }) => failure.hint(UNREADABLE),
        LocateError::NoTable => failure.hint("leave out --partition, or use --offset BYTES"),
        LocateError::NotExt(Content::Foreign(foreign)) => failure.hint(foreign.next_step(path)),
        LocateError::PartitionBeyondEnd { .. } | LocateError::CutSuperblock(_) => {
            failure.hint("copy or download the image again: its end is missing")
        }
        LocateError::Empty => failure.hint(format!(
            "make a file system in it: lanefs mkfs {} SIZE; or copy or download the image again",
            make_at(path, device, location)
        )),
        LocateError::TooShort(_) => failure.hint(
            "if it is the beginning of an image, copy or download that again: the rest is missing",
        ),
        LocateError::NotExt(Content::Zeros | Content::Unknown) => {
            match place(Arc::clone(device), location) {
                Ok(inside) => advice::no_file_system(failure, path, &inside, location, || {
                    make_at(path, device, location)
                }),
                Err(_) => failure,
            }
        }
        LocateError::BeyondEnd { .. } => match PartitionTable::read(&**device) {
            Ok(Some(table)) if !table.partitions.is_empty() => failure.hint(format!(
                "choose a partition with --partition N:\n{}",
                listing(device, &table)
            )),
            _ => failure
                .hint("--offset counts bytes from the beginning (with s: sectors of 512 bytes)"),
        },
        _ => failure,
    }
}

/// The arguments with which `lanefs mkfs` writes to this place only.
fn make_at(path: &Path, device: &Arc<dyn BlockDevice>, location: Location) -> String {
    let (start, len) = match location {
        Location::Whole => return path.display().to_string(),
        Location::Offset(offset) => (offset, device.size().saturating_sub(offset)),
        Location::Partition(number) => {
            let table = PartitionTable::read(&**device).ok().flatten();
            let partition = table.as_ref().and_then(|table| table.find(number));
            partition.map_or((0, 0), |partition| {
                (partition.start, partition.present(device.size()))
            })
        }
    };
    let sectors = len / 512;
    format!("-E offset={start} {} {sectors}s", path.display())
}

/// One line a partition, with what each one holds.
fn listing(device: &Arc<dyn BlockDevice>, table: &PartitionTable) -> String {
    let lines = table.partitions.iter().map(|partition| {
        let number = partition.number;
        let inside = place(Arc::clone(device), Location::Partition(number))
            .ok()
            .and_then(|inside| probe(&*inside).ok());
        let holds = match inside {
            Some(Content::Ext) => "ext2/3/4".to_owned(),
            Some(Content::Foreign(foreign)) => foreign.name.to_owned(),
            Some(Content::Zeros) => "zeros".to_owned(),
            None if partition.present(device.size()) == 0 => {
                "beyond the end of the image".to_owned()
            }
            _ => "something else".to_owned(),
        };
        let holds = match partition.present(device.size()) {
            0 => holds,
            present if present < partition.len => format!(
                "{holds}, of which the last {} MiB are beyond the end of the image",
                (partition.len - present).div_ceil(1 << 20)
            ),
            _ => holds,
        };
        let mib = partition.len.div_ceil(1 << 20);
        let name = if partition.name.is_empty() {
            String::new()
        } else {
            format!(" \"{}\"", partition.name)
        };
        format!(
            "  {number:>4}  {mib:>9} MiB  {}{name}: {holds}",
            partition.kind
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Opens the file system that a target is in.
pub fn open_fs(context: &Context, path: &Path, options: &FsArgs) -> Result<Fs, Failure> {
    let device = open_for(context, path, options)?;
    let journal_device = match &options.journal {
        Some(journal) => {
            let device = open_to_read(context, journal, options)?;
            Some(Arc::new(device) as Arc<dyn BlockDevice>)
        }
        None => None,
    };
    let journal = if options.no_replay {
        ReplayPolicy::Ignore
    } else {
        ReplayPolicy::Replay
    };
    let choices = MountOptions {
        superblock: options.superblock,
        journal_device,
        journal,
        ..MountOptions::default()
    };
    let fs = Fs::open_with(Arc::clone(&device), &choices)
        .map_err(|error| cannot_read(path, &device, &options.image, &error))?;
    report_journal(context, path, &fs);
    Ok(fs)
}

/// The device; a given copy of the superblock may be all that is left, so then the first one is not asked for.
pub fn open_for(
    context: &Context,
    path: &Path,
    options: &FsArgs,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    if options.superblock.is_none() {
        return open_ext(context, path, options);
    }
    let (device, location) = open_at(context, path, options)?;
    place(Arc::clone(&device), location).map_err(|error| explain(path, &device, location, error))
}

/// Reports what the journal held, if that matters to a reader.
fn report_journal(context: &Context, path: &Path, fs: &Fs) {
    if let Some(cut) = fs.inodes().cut() {
        let more = if cut.lost_journal {
            ", without the changes in the journal, which is not all there"
        } else {
            ""
        };
        advice::warn_of_cut(context, path, cut.needed, cut.present, more);
    }
    if fs.inodes().had_lost_superblock() {
        let shown = path.display();
        context.note(format_args!(
            "{shown}: the superblock is damaged; its copy in the journal or in another group is used"
        ));
    }
    let Some(report) = fs.inodes().recovery_report() else {
        return;
    };
    let text = report.to_string();
    for line in text.lines() {
        let line = format!("{}: {line}", path.display());
        if report.is_incomplete() {
            context.note(line)
        } else {
            context.detail(line)
        }
    }
}

/// What to do about an image that can't be opened.
fn hint(error: &lanefs::FsError) -> Option<&'static str> {
    use lanefs::{FsError as E, RecoveryError as J};
    match error {
        E::Io(DeviceError::Io {
            operation: "read", ..
        }) => Some(UNREADABLE),
        E::Journal(J::ExternalJournalMissing(_)) => {
            Some("name it with --journal FILE, or read the image without it with --no-replay")
        }
        E::FastCommits(_) => Some(
            "they hold the changes that were fsynced last: `lanefs check` reports what is wrong, and --no-replay reads \
             the image without its journal",
        ),
        E::Corrupt(_) => {
            Some("`lanefs check` says what else is wrong; repair a copy, not the only one")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_fails_when_it_is_read_comes_with_a_way_to_save_the_rest() {
        let image = Path::new("disk.img");
        let fails = || DeviceError::Io {
            operation: "read",
            offset: 1024,
            len: 1024,
            source: std::io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()),
        };
        let device: Arc<dyn BlockDevice> = Arc::new(device::MemoryDevice::new(4096));
        let located = explain(
            image,
            &device,
            Location::Whole,
            LocateError::Device(fails()),
        );
        let error = Error::from(lanefs::FsError::Io(fails()));
        let opened = cannot_read(image, &device, &ImageArgs::default(), &error);
        for failure in [located, opened] {
            let text = format!("{failure:?}");
            assert!(text.contains("disk.img: read of 1024 bytes"), "{text}");
            assert!(text.contains("ddrescue"), "{text}");
        }
    }
}
