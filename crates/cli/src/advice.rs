//! What to do about an image that is damaged: which copies of the superblock are left, and the command that reads with
//! one. No advice here destroys data that can still be rescued.

use std::path::Path;

use device::{BlockDevice, FileDevice};
use lanefs::copies::{self, Copy, Found};
use lanefs::locate::{self, Location};
use ondisk::Superblock;
use sync::Arc;

use crate::args::ImageArgs;
use crate::context::{Context, Opened};
use crate::failure::Failure;

/// Copies that are named in one hint.
const NAMED: usize = 6;

/// The failure of an image that holds no file system where one should begin, although nothing else is known to be
/// there: with the copies of its superblock that are left, or the command that makes a file system if all is blank.
pub fn no_file_system(
    failure: Failure,
    path: &Path,
    place: &Arc<dyn BlockDevice>,
    location: Location,
    make: impl FnOnce() -> String,
) -> Failure {
    let Ok(found) = copies::search(place) else {
        return failure;
    };
    if let Some(text) = of_copies(&found, path, location) {
        return failure.hint(text);
    }
    if found.is_blank {
        failure.hint(format!(
            "make a file system on it first: lanefs mkfs {}",
            make()
        ))
    } else {
        failure.hint(
            "no copy of a superblock was found; a file system that lies within the file is found with --offset BYTES",
        )
    }
}

/// The failure of an image whose superblock is damaged, with the copies that are left.
pub fn damaged(
    failure: Failure,
    path: &Path,
    place: &Arc<dyn BlockDevice>,
    location: Location,
) -> Failure {
    match copies_left(path, place, location) {
        Some(text) => failure.hint(text),
        None => {
            failure.hint("`lanefs check` says what else is wrong; repair a copy, not the only one")
        }
    }
}

/// The superblocks that are left in an image, and the command that reads with one; `None` if there are none.
pub fn copies_left(
    path: &Path,
    place: &Arc<dyn BlockDevice>,
    location: Location,
) -> Option<String> {
    let found = copies::search(place).unwrap_or_default();
    of_copies(&found, path, location)
}

/// Looks at the group descriptors of images that a failed command read, and names the copies that are whole where the
/// first is not.
pub fn after_failure(context: &Context) {
    for opened in context.take_opened() {
        if let Some(text) = of_descriptors(&opened) {
            context.hint(text);
        }
    }
}

/// What to do about an image whose group descriptors are damaged; `None` where they are not.
fn of_descriptors(opened: &Opened) -> Option<String> {
    // The holder does not matter: nothing is concluded but a hint.
    let device = FileDevice::open_unlocked(&opened.path).ok()?;
    let place = locate::place(Arc::new(device), opened.location).ok()?;
    let mut bytes = [0; Superblock::SIZE];
    place.read_at(Superblock::OFFSET, &mut bytes).ok()?;
    let superblock = Superblock::view(&bytes);
    superblock.verify().ok()?;
    if !copies::is_descriptor_damaged(&*place, superblock) {
        return None;
    }
    let copies: Vec<Copy> = copies::of(&place, superblock)
        .into_iter()
        .filter(|copy| copy.has_descriptors && copy.has_root)
        .collect();
    let copy = copies.first()?;
    Some(format!(
        "its group descriptors are damaged; those behind the backup superblock at {} are whole: {}",
        places(&copies),
        command(copy, &opened.path, opened.location)
    ))
}

/// The copies that a search found, as a hint.
fn of_copies(found: &Found, path: &Path, location: Location) -> Option<String> {
    let first = found.copies.first()?;
    let begins = match (first.start, location) {
        (0, _) => String::new(),
        (start, Location::Offset(offset)) => {
            format!(" of a file system that begins at byte {}", offset + start)
        }
        (start, _) => format!(" of a file system that begins at byte {start}"),
    };
    let what = match first.block {
        0 => format!("there is a superblock{begins}"),
        _ => {
            let left = match found.copies.len() {
                1 => "a backup superblock is left",
                _ => "backup superblocks are left",
            };
            format!("{left} at {}{begins}", places(&found.copies))
        }
    };
    let Some(copy) = found.readable() else {
        return Some(format!(
            "{what}, but the root directory is lost: work on a copy of the image, where e2fsck -b {} -B {} finds the \
             files that are left",
            first.block, first.block_size
        ));
    };
    Some(format!(
        "{what}; read it with: {}",
        command(copy, path, location)
    ))
}

/// `block 32768 (4096-byte blocks)`, or several.
fn places(copies: &[Copy]) -> String {
    let size = copies.first().map_or(0, |copy| copy.block_size);
    let blocks = copies.iter().filter(|copy| copy.block > 0);
    let numbers: Vec<String> = blocks
        .clone()
        .take(NAMED)
        .map(|copy| copy.block.to_string())
        .collect();
    let s = if numbers.len() == 1 { "" } else { "s" };
    let more = if blocks.count() > NAMED { ", ..." } else { "" };
    format!("block{s} {}{more} (of {size} bytes)", numbers.join(", "))
}

/// The command that reads the file system through a copy.
fn command(copy: &Copy, path: &Path, location: Location) -> String {
    let place = match (location, copy.start) {
        (Location::Partition(number), 0) => format!(" --partition {number}"),
        (Location::Offset(offset), start) => format!(" --offset {}", offset + start),
        (_, 0) => String::new(),
        (_, start) => format!(" --offset {start}"),
    };
    let superblock = match copy.block {
        0 => String::new(),
        _ => format!(" --superblock {}", copy.kib()),
    };
    format!("lanefs ls{place}{superblock} {}", path.display())
}

/// Whether the first superblock is one.
pub fn has_superblock(place: &dyn BlockDevice) -> bool {
    let mut bytes = [0; Superblock::SIZE];
    let read = place.read_at(Superblock::OFFSET, &mut bytes);
    let superblock = Superblock::view(&bytes);
    read.is_ok() && superblock.verify().is_ok() && ondisk::Geometry::of(superblock).is_ok()
}

/// What to do about an image that is too short to be written to.
pub fn of_truncated(path: &Path, options: &ImageArgs, needed: u64) -> String {
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let start = match (options.partition, options.offset) {
        (Some(_), _) => None,
        (None, offset) => Some(offset.unwrap_or(0)),
    };
    let again = "its end is missing: copy or download it again; it can be read as it is";
    match start {
        Some(start) if is_file => format!(
            "{again}. To change it nevertheless, fill the end with zeros and check it: \
             truncate -s {} {shown} && e2fsck -f {shown}",
            start.saturating_add(needed),
            shown = path.display()
        ),
        _ => again.to_owned(),
    }
}

/// Warns that an image ends before its file system.
pub fn warn_of_cut(context: &Context, path: &Path, needed: u64, present: u64, more: &str) {
    context.warn(format_args!(
        "{}: the image is truncated: the last {} of the file system's {needed} bytes are missing; what is there is \
         read{more}",
        path.display(),
        needed - present.min(needed)
    ));
}
