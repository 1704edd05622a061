//! The host's list of mounts: which of them are ours.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::anchor;

/// The type that our mounts are listed with where the kernel has no block device for them.
pub(crate) const TYPE: &str = "fuse.lanefs";
/// The type of those that have one, an anchor.
pub(crate) const BLOCK_TYPE: &str = "fuseblk.lanefs";
/// Bits of a minor number in the kernel's number of a device.
const MINOR_BITS: u32 = 20;

/// Major and minor number of the device of a mount with this number of a connection.
pub(crate) fn device_numbers(connection: u32) -> (u32, u32) {
    (
        connection >> MINOR_BITS,
        connection & ((1 << MINOR_BITS) - 1),
    )
}

const LIST: &str = "/proc/self/mountinfo";

/// One of our mounts.
#[derive(PartialEq, Eq, Debug)]
pub struct ListedMount {
    /// Its device in one number, by which the kernel knows the connection.
    pub(crate) connection: u32,
    /// Its directory.
    pub directory: PathBuf,
    /// What is mounted: an image's path.
    pub source: PathBuf,
    /// Whether it was mounted to be read only.
    pub is_read_only: bool,
}

impl ListedMount {
    /// Whether both are one mount, perhaps seen at two directories.
    #[must_use]
    pub fn is_same(&self, other: &ListedMount) -> bool {
        self.connection == other.connection
    }
}

/// Our mount on a directory, if the topmost one there is ours.
#[must_use]
pub fn mounted_at(directory: &Path) -> Option<ListedMount> {
    // Asking for the directory itself could wait for a server that is gone; above it nothing of ours answers.
    let parent = directory
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
    let directory = match directory.file_name() {
        Some(name) => parent.join(name),
        None => directory.canonicalize().ok()?,
    };
    find_in(&std::fs::read(LIST).ok()?, &directory)
}

/// Our mounts of an image, in the order in which they were made. One whose server has ended is among them until its
/// directory is unmounted.
#[must_use]
pub fn mounts_of(image: &Path) -> Vec<ListedMount> {
    let list = std::fs::read(LIST).unwrap_or_default();
    let lines = list.split(|byte| *byte == b'\n');
    let ours = lines.filter_map(|line| Line::parse(line)?.listed());
    ours.filter(|mount| mount.source == image).collect()
}

/// The last line for a directory counts: it is on top.
fn find_in(list: &[u8], directory: &Path) -> Option<ListedMount> {
    let mut lines = list.split(|byte| *byte == b'\n').filter_map(Line::parse);
    let on_top = lines.rfind(|line| line.directory == directory);
    on_top?.listed()
}

/// A line of the list. Fields: 2 the device, 4 the place, 5 options; behind a dash the type and the source.
struct Line<'a> {
    directory: PathBuf,
    words: Vec<&'a [u8]>,
    /// Which word is the dash.
    dash: usize,
}

impl Line<'_> {
    fn parse(line: &[u8]) -> Option<Line<'_>> {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        Some(Line {
            directory: unescaped(words.get(4)?),
            dash: words.iter().position(|word| *word == b"-")?,
            words,
        })
    }

    /// What it says of a mount of ours.
    fn listed(&self) -> Option<ListedMount> {
        let source = unescaped(self.words.get(self.dash + 2)?);
        let source = match *self.words.get(self.dash + 1)? {
            kind if kind == TYPE.as_bytes() => source,
            // A device whose image is not known stands for itself.
            kind if kind == BLOCK_TYPE.as_bytes() => {
                anchor::image_behind(&source).unwrap_or(source)
            }
            _ => return None,
        };
        let device = std::str::from_utf8(self.words.get(2)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        let mut options = self.words.get(5)?.split(|byte| *byte == b',');
        Some(ListedMount {
            connection: major << MINOR_BITS | minor,
            directory: self.directory.clone(),
            source,
            is_read_only: options.any(|word| word == b"ro"),
        })
    }
}

/// A path as the list writes it: spaces and the like as a backslash and three octal digits.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind
            .get(..3)
            .filter(|digits| first == b'\\' && is_octal(digits));
        match digits {
            Some(digits) => {
                let value = digits
                    .iter()
                    .fold(0, |value: u32, digit| value * 8 + u32::from(digit - b'0'));
                // Three octal digits that stand for a byte.
                bytes.push((value & 0xff) as u8);
                rest = &behind[3..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

fn is_octal(digits: &[u8]) -> bool {
    digits.iter().all(|digit| (b'0'..b'8').contains(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_of_a_directory_counts() {
        let list = b"29 1 254:0 / / rw - ext4 /dev/vda rw\n\
            40 29 0:51 / /mnt/a\\040b rw shared:7 - fuse.lanefs /tmp/x\\134y.img rw,user_id=0\n\
            43 29 0:54 / /mnt/d nosuid,ro - fuse.lanefs /tmp/d.img ro\n\
            44 29 7:300 / /mnt/e rw - fuseblk.lanefs /dev/loop300 rw\n\
            41 29 0:52 / /mnt/c rw - fuse.lanefs /tmp/c.img rw\n\
            42 41 0:53 / /mnt/c rw - tmpfs tmpfs rw\n";
        let expected = ListedMount {
            connection: 51,
            directory: PathBuf::from("/mnt/a b"),
            source: PathBuf::from("/tmp/x\\y.img"),
            is_read_only: false,
        };
        assert_eq!(find_in(list, Path::new("/mnt/a b")), Some(expected));
        assert!(find_in(list, Path::new("/mnt/d")).unwrap().is_read_only);
        let anchored = find_in(list, Path::new("/mnt/e")).unwrap();
        assert_eq!(anchored.connection, 7 << 20 | 300);
        assert_eq!(device_numbers(anchored.connection), (7, 300));
        assert_eq!(find_in(list, Path::new("/mnt/c")), None);
        assert_eq!(find_in(list, Path::new("/")), None);
    }
}
