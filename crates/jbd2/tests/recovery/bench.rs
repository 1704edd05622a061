//! Images, copies of them, and the comparison of two devices block by block.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use device::{BlockDevice, FileDevice};
use lanefs_jbd2::recovery::{self, Error, ReplayReport};
use ondisk::{Geometry, Superblock};
use sync::Arc;
use testkit::{have, is_root, skip};

/// A directory for one test's images.
pub struct Bench {
    directory: tempfile::TempDir,
}

/// A device, its superblock and its geometry.
pub struct Opened {
    pub device: Arc<dyn BlockDevice>,
    pub sb: Superblock,
    pub geometry: Geometry,
}

/// Whether the tests of a file can run; prints the reason if they can't.
pub fn can_run(needs_root: bool) -> bool {
    if !["mke2fs", "debugfs", "e2fsck"].into_iter().all(have) {
        skip("e2fsprogs is not installed");
        return false;
    }
    if needs_root && !is_root() {
        skip("mounting needs root");
        return false;
    }
    true
}

impl Bench {
    pub fn new() -> Bench {
        Bench {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes an image of `mebibytes` MiB with mke2fs.
    pub fn mke2fs(&self, name: &str, mebibytes: u32, options: &[&str]) -> PathBuf {
        let path = self.path(name);
        let size = format!("{mebibytes}M");
        let file = path.to_str().unwrap();
        let mut arguments = vec!["-q", "-F"];
        if !options.contains(&"-t") {
            arguments.extend(["-t", "ext4"]);
        }
        arguments.extend_from_slice(options);
        arguments.extend_from_slice(&[file, &size]);
        testkit::mke2fs(&arguments);
        path
    }

    /// Copies an image; one that is mounted, as a crash would leave it now.
    pub fn copy(&self, from: &Path, name: &str) -> PathBuf {
        let to = self.path(name);
        testkit::copy_mounted_image(from, &to);
        to
    }
}

pub fn open(path: &Path) -> Opened {
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(path).unwrap());
    opened(device)
}

pub fn opened(device: Arc<dyn BlockDevice>) -> Opened {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(Superblock::OFFSET, &mut bytes).unwrap();
    let sb = *Superblock::view(&bytes);
    sb.verify().unwrap();
    let geometry = Geometry::new(&sb, device.size()).unwrap();
    Opened {
        device,
        sb,
        geometry,
    }
}

/// The image as it is after replay in memory.
pub fn overlay(
    path: &Path,
    external: Option<&Path>,
) -> Result<(Arc<dyn BlockDevice>, ReplayReport), Error> {
    let image = opened(Arc::new(FileDevice::open_read_only(path).unwrap()));
    let external = external.map(open_device);
    let scanned = recovery::scan_and_overlay(image.device, &image.sb, &image.geometry, external)?;
    Ok((scanned.device, scanned.report))
}

pub fn open_device(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(FileDevice::open(path).unwrap())
}

/// Has e2fsck replay the journal and do nothing else.
pub fn e2fsck_journal_only(path: &Path, external: Option<&Path>) {
    let mut options = vec!["-y", "-E", "journal_only"];
    if let Some(external) = external {
        options.extend(["-j", external.to_str().unwrap()]);
    }
    let output = testkit::e2fsck_with(&options, path);
    let code = output.status.code().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(code <= 1, "e2fsck: {code}\n{text}");
}

/// Blocks of the journal, as debugfs sees them: its data and what maps it.
pub fn journal_blocks(path: &Path) -> BTreeSet<u64> {
    let output = testkit::debugfs(&["-R", "blocks <8>", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// Compares two devices block by block, except for the given blocks and the fields of superblocks that every replay
/// changes. Returns the number of blocks compared.
pub fn assert_same_blocks(
    ours: &dyn BlockDevice,
    theirs: &dyn BlockDevice,
    geometry: &Geometry,
    except: &BTreeSet<u64>,
) -> u64 {
    assert_eq!(ours.size(), theirs.size());
    let size = geometry.block_size();
    let (mut a, mut b) = (vec![0; size.bytes()], vec![0; size.bytes()]);
    let mut compared = 0;
    let mut different = Vec::new();
    for block in (0..geometry.blocks_count()).filter(|block| !except.contains(block)) {
        let offset = block << size.bits();
        ours.read_at(offset, &mut a).unwrap();
        theirs.read_at(offset, &mut b).unwrap();
        compared += 1;
        if a == b {
            continue;
        }
        without_counters(&mut a, offset);
        without_counters(&mut b, offset);
        if a != b {
            let at = a.iter().zip(&b).position(|(a, b)| a != b);
            different.push((block, at));
        }
    }
    assert!(different.is_empty(), "blocks and bytes: {different:?}");
    compared
}

/// Blanks what a replay by e2fsck or the kernel changes in the first superblock: flags, times, counts, checksum.
pub fn without_counters(block: &mut [u8], offset: u64) {
    let Some(start) = Superblock::OFFSET.checked_sub(offset) else {
        return;
    };
    let start = usize::try_from(start).unwrap();
    let Some(sb) = block.get_mut(start..start + Superblock::SIZE) else {
        return;
    };
    // Free blocks and inodes; times of mount and write, mount counts; state; last check; needs_recovery; free
    // blocks' high word; kbytes_written; checksum.
    for range in [
        0xC..0x14,
        0x2C..0x38,
        0x3A..0x3C,
        0x40..0x44,
        0x60..0x64,
        0x158..0x15C,
        0x178..0x180,
        0x3FC..0x400,
    ] {
        sb[range].fill(0);
    }
}
