//! Opening an image: the one place where a path on the command line becomes a file system, or a message that says what
//! is there instead and what to do.

use std::path::Path;

use device::{BlockDevice, DeviceError, FileDevice};
use lanefs::locate::{LocateError, Location, locate, place};
use lanefs::partition::Table;
use lanefs::probe::{Content, probe};
use sync::Arc;

use crate::args::ImageArgs;
use crate::failure::Failure;

/// Opens the place on the device that the options name, for reading, when it holds an ext2/3/4.
pub fn open_ext(path: &Path, options: &ImageArgs) -> Result<Arc<dyn BlockDevice>, Failure> {
    let device = FileDevice::open_read_only(path).map_err(|error| cannot_open(path, &error))?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let location = match (options.partition, options.offset) {
        (Some(number), _) => Location::Partition(number),
        (None, Some(offset)) => Location::Offset(offset),
        (None, None) => Location::Whole,
    };
    locate(Arc::clone(&device), location).map_err(|error| explain(path, &device, error))
}

/// A device that can't be opened or read, with the next step where there is one.
pub fn cannot_open(path: &Path, error: &DeviceError) -> Failure {
    let failure = Failure::new(error);
    match error {
        DeviceError::Open { source, .. } => match source.kind() {
            std::io::ErrorKind::NotFound if path.to_string_lossy().contains(":/") => {
                failure.hint("IMAGE:PATH splits at the first `:/`")
            }
            std::io::ErrorKind::PermissionDenied => failure
                .hint("you may not read it: ask its owner, or for a disk join the group `disk`"),
            _ => failure,
        },
        _ => failure,
    }
}

/// Says why there is no file system at a place, and what to do.
fn explain(path: &Path, device: &Arc<dyn BlockDevice>, error: LocateError) -> Failure {
    let failure = Failure::new(&error).at(path.display());
    match error {
        LocateError::NotExt(Content::Disk(table)) => failure.hint(format!(
            "choose one with --partition N:\n{}",
            listing(device, &table)
        )),
        LocateError::NoSuchPartition { table, .. } => {
            failure.hint(format!("these are there:\n{}", listing(device, &table)))
        }
        LocateError::NoTable => failure.hint("leave out --partition, or use --offset BYTES"),
        LocateError::NotExt(Content::Foreign(foreign)) => failure.hint(foreign.next_step(path)),
        LocateError::NotExt(Content::Zeros) => failure.hint(format!(
            "make a file system on it first: lanefs mkfs {}",
            path.display()
        )),
        LocateError::NotExt(_) => {
            failure.hint("a file system that lies within the file is found with --offset BYTES")
        }
        _ => failure,
    }
}

/// One line a partition, with what each one holds.
fn listing(device: &Arc<dyn BlockDevice>, table: &Table) -> String {
    let lines = table.partitions.iter().map(|partition| {
        let number = partition.number;
        let inside = place(Arc::clone(device), Location::Partition(number))
            .ok()
            .and_then(|inside| probe(&*inside).ok());
        let holds = match inside {
            Some(Content::Ext) => "ext2/3/4".to_owned(),
            Some(Content::Foreign(foreign)) => foreign.name.to_owned(),
            Some(Content::Zeros) => "zeros".to_owned(),
            _ => "something else".to_owned(),
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
