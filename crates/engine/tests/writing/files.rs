//! Images with files in them, and random operations on a file's data, done to an image and to the model.

use device::BlockDevice;
use lanefs_engine::{Allocate, Error, Ino, InodeFs};
use model::{FileBytes, Random};
use simulate::CowDevice;
use sync::Arc;

use crate::image::{make, open};

/// A fresh image with empty files of these names in its root.
pub fn with_files(options: &[&str], size: u64, names: &[&str]) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    for name in names {
        std::fs::write(directory.path().join(name), b"").unwrap();
    }
    let mut all = options.to_vec();
    all.extend(["-d", directory.path().to_str().unwrap()]);
    make(&all, size)
}

/// The image open for writing, and its device.
pub fn opened(image: &[u8]) -> (Arc<CowDevice>, InodeFs) {
    let device = Arc::new(CowDevice::new(image.into()));
    (Arc::clone(&device), open(device as Arc<dyn BlockDevice>))
}

/// Something done to a file's data.
#[derive(Clone)]
pub enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
    Allocate(Allocate, u64, u64),
}

impl std::fmt::Debug for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::Write(offset, bytes) => write!(f, "Write({offset}, {} bytes)", bytes.len()),
            Change::Truncate(size) => write!(f, "Truncate({size})"),
            Change::Allocate(how, offset, len) => write!(f, "{how:?}({offset}, {len})"),
        }
    }
}

/// A change of a file that has, or gets, about `most` bytes. `with_extents`: any kind of it.
pub fn random(random: &mut Random, size: u64, most: u64, with_extents: bool) -> Change {
    let offset = random.below(most);
    let len = 1 + if random.one_in(3) {
        random.below(most / 4)
    } else {
        random.below(6000)
    };
    let (block, blocks) = (offset / 4096 * 4096, len.div_ceil(4096) * 4096);
    let modes = if with_extents { 14 } else { 9 };
    match random.below(modes) {
        0..=3 => Change::Write(offset, pattern(random, len)),
        4 => Change::Write(size, pattern(random, len)),
        5 => Change::Truncate(offset),
        6 => Change::Truncate(offset.min(size) / 2 + offset / 2),
        7 => Change::Allocate(Allocate::Punch, offset, len),
        8 => Change::Allocate(Allocate::Punch, block, blocks),
        9 => Change::Allocate(Allocate::Grow, offset, len),
        10 => Change::Allocate(Allocate::KeepSize, offset, len),
        11 if random.one_in(2) => Change::Allocate(Allocate::ZeroKeepSize, offset, len),
        11 => Change::Allocate(Allocate::Zero, offset, len),
        12 => Change::Allocate(Allocate::Collapse, block, blocks),
        _ => Change::Allocate(Allocate::Insert, block, blocks),
    }
}

fn pattern(random: &mut Random, len: u64) -> Vec<u8> {
    let first = 1 + random.below(200) as u8;
    (0..len)
        .map(|at| first.wrapping_add((at / 64) as u8) | 1)
        .collect()
}

/// Does a change; collapse and insert where there is nothing are refused by both.
pub fn change(fs: &InodeFs, ino: Ino, content: &mut FileBytes, change: &Change) {
    match change {
        Change::Write(offset, bytes) => {
            assert_eq!(fs.write(ino, *offset, bytes).unwrap(), bytes.len());
        }
        Change::Truncate(size) => fs.truncate(ino, *size).unwrap(),
        Change::Allocate(how, offset, len) => {
            let outcome = fs.allocate(ino, *how, *offset, *len);
            let refused = match how {
                Allocate::Collapse => offset + len >= content.size(),
                Allocate::Insert => *offset >= content.size(),
                _ => false,
            };
            if refused {
                assert!(
                    matches!(outcome, Err(Error::InvalidArgument)),
                    "{outcome:?}"
                )
            } else {
                outcome.unwrap()
            }
        }
    }
    apply(content, change);
}

/// What a change does to the model.
pub fn apply(content: &mut FileBytes, change: &Change) {
    match change {
        Change::Write(offset, bytes) => content.write(*offset, bytes),
        Change::Truncate(size) => content.truncate(*size),
        Change::Allocate(how, offset, len) => {
            let (offset, len, end) = (*offset, *len, offset + len);
            match how {
                Allocate::Grow => {
                    content.allocate(offset, len);
                    content.grow(end);
                }
                Allocate::KeepSize => content.allocate(offset, len),
                Allocate::Punch if offset < content.size() => {
                    let end = end.min(content.size().next_multiple_of(4096));
                    content.punch(offset, end - offset);
                }
                Allocate::Punch => {}
                Allocate::Zero => {
                    content.zero(offset, len);
                    content.grow(end);
                }
                Allocate::ZeroKeepSize => content.zero(offset, len),
                Allocate::Collapse if end < content.size() => content.collapse(offset, len),
                Allocate::Insert if offset < content.size() => content.insert(offset, len),
                Allocate::Collapse | Allocate::Insert => {}
            }
        }
    }
}

/// All of a file.
pub fn contents(fs: &InodeFs, ino: Ino) -> Vec<u8> {
    let size = fs.metadata(ino).unwrap().size;
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    assert_eq!(fs.read(ino, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// The first byte at which two files differ.
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    match one.iter().zip(other).position(|(a, b)| a != b) {
        None if one.len() != other.len() => Some(one.len().min(other.len())),
        found => found,
    }
}

/// e2fsck finds nothing wrong with the image.
pub fn judge_image(device: &CowDevice) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    testkit::e2fsck(&path);
}

/// e2fsck finds nothing wrong with the image, and the kernel reads the same files.
pub fn judge(device: &CowDevice, files: &[(&str, Vec<u8>)]) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, &device.bytes());
    testkit::e2fsck(&path);
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let mounted = testkit::KernelMount::read_only(&path).unwrap();
    for (name, expected) in files {
        let found = std::fs::read(mounted.path().join(name)).unwrap();
        assert_eq!(
            first_difference(&found, expected),
            None,
            "{name} as the kernel reads it"
        );
    }
}
