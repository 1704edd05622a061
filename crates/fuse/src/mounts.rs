//! The host's list of mounts: which of them are ours.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The type that our mounts are listed with.
pub(crate) const TYPE: &str = "fuse.lanefs";

const LIST: &str = "/proc/self/mountinfo";

/// One of our mounts.
#[derive(PartialEq, Eq, Debug)]
pub struct Listed {
    /// The minor number of its device, by which the kernel knows the connection.
    pub(crate) connection: u32,
    /// What is mounted: an image's path.
    pub source: PathBuf,
    /// Whether it was mounted to be read only.
    pub is_read_only: bool,
}

/// Our mount on a directory, if the topmost one there is ours.
#[must_use]
pub fn mounted_at(directory: &Path) -> Option<Listed> {
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

/// The last line for a directory counts: it is on top. Fields: 2 the device, 4 the place, 5 options; behind a dash the
/// type and the source.
fn find_in(list: &[u8], directory: &Path) -> Option<Listed> {
    let lines = list.split(|byte| *byte == b'\n');
    let mut on_top = None;
    for line in lines {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let Some(dash) = words.iter().position(|word| *word == b"-") else {
            continue;
        };
        if words.get(4).map(|place| unescaped(place)).as_deref() == Some(directory) {
            on_top = Some((words, dash));
        }
    }
    let (words, dash) = on_top?;
    if words.get(dash + 1)? != &TYPE.as_bytes() {
        return None;
    }
    let device = std::str::from_utf8(words.get(2)?).ok()?;
    Some(Listed {
        connection: device.split_once(':')?.1.parse().ok()?,
        source: unescaped(words.get(dash + 2)?),
        is_read_only: words
            .get(5)?
            .split(|byte| *byte == b',')
            .any(|word| word == b"ro"),
    })
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
            41 29 0:52 / /mnt/c rw - fuse.lanefs /tmp/c.img rw\n\
            42 41 0:53 / /mnt/c rw - tmpfs tmpfs rw\n";
        let expected = Listed {
            connection: 51,
            source: PathBuf::from("/tmp/x\\y.img"),
            is_read_only: false,
        };
        assert_eq!(find_in(list, Path::new("/mnt/a b")), Some(expected));
        assert!(find_in(list, Path::new("/mnt/d")).unwrap().is_read_only);
        assert_eq!(find_in(list, Path::new("/mnt/c")), None);
        assert_eq!(find_in(list, Path::new("/")), None);
    }
}
