//! An image with a journal, made by mke2fs, and a file in it whose blocks the bank uses as metadata.

use std::path::Path;

use device::BlockDevice;
use jbd2::recovery;
use lanefs_journal::{LogMap, Options};
use ondisk::jbd2::{BlockHeader, JournalFeatures, JournalSuperblock};
use ondisk::{BlockSize, Feature, FsBlock, Geometry, Superblock, Tid};
use sync::Arc;

/// An image and where its parts lie.
#[derive(Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub block_size: BlockSize,
    journal: Vec<FsBlock>,
    /// Blocks of the file that the bank uses.
    pub cells: Vec<FsBlock>,
    features: String,
    has_area: bool,
}

/// Blocks of the file.
pub const CELLS: usize = 64;

fn blocks_of(image: &Path, file: &str) -> Vec<FsBlock> {
    let output = testkit::debugfs(&["-R", &format!("blocks {file}"), image.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace()
        .map(|number| FsBlock(number.parse().unwrap()))
        .collect()
}

impl Image {
    /// Makes the image, or says why that is not possible here.
    pub fn make(block_size: u32, features: &str) -> Option<Image> {
        Image::with_journal(block_size, features, 1024)
    }

    /// The same whose journal has an area for fast commits behind the smallest log.
    pub fn with_area(block_size: u32, features: &str) -> Option<Image> {
        let mut image = Image::with_journal(block_size, features, 2048)?;
        image.has_area = true;
        let mut sb = image.journal_superblock();
        sb.set_fast_commit_blocks_raw(1024);
        sb.seal();
        let at = image.journal_at();
        image.bytes[at..at + JournalSuperblock::SIZE].copy_from_slice(sb.bytes());
        Some(image)
    }

    fn with_journal(block_size: u32, features: &str, blocks: u32) -> Option<Image> {
        if !testkit::have("mke2fs") || !testkit::have("debugfs") {
            testkit::skip("needs mke2fs and debugfs");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let file = directory.path().join("cells");
        std::fs::write(&file, vec![1; CELLS * block_size as usize]).unwrap();
        std::fs::File::create(&path)
            .unwrap()
            .set_len(8192 * u64::from(block_size))
            .unwrap();
        let journal_mib = (blocks * block_size) >> 20;
        let (size, image) = (block_size.to_string(), path.to_str().unwrap());
        let journal = format!("size={journal_mib}");
        let arguments = [
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            &size,
            "-J",
            &journal,
            "-O",
            features,
            "-E",
            "lazy_itable_init=0",
            image,
        ];
        testkit::mke2fs(&arguments);
        testkit::debugfs(&[
            "-w",
            "-R",
            &format!("write {} cells", file.display()),
            image,
        ]);
        let bytes = testkit::read_image(&path);
        Some(Image {
            bytes,
            block_size: BlockSize::from_bytes(block_size.into()).unwrap(),
            journal: blocks_of(&path, "<8>"),
            cells: blocks_of(&path, "cells"),
            features: features.to_owned(),
            has_area: false,
        })
        .inspect(|image| {
            assert_eq!(
                (image.journal.len(), image.cells.len()),
                (blocks as usize, CELLS)
            );
        })
    }

    /// How the engine would run the journal of this image.
    pub fn options(&self) -> Options {
        let has = |feature| self.features.split(',').any(|name| name == feature);
        Options {
            has_checksums: has("metadata_csum"),
            is_64bit: has("64bit"),
            fast_commits: self.has_area,
            ..Options::default()
        }
    }

    /// The same image, whose journal has checksums of version 2.
    pub fn with_checksums_v2(mut self) -> Image {
        let mut sb = self.journal_superblock();
        let mut features = sb.features();
        features.incompat |= JournalFeatures::INCOMPAT_CSUM_V2;
        sb.set_features(features);
        sb.set_checksum_type(JournalSuperblock::CHECKSUM_TYPE_CRC32C);
        sb.seal();
        let at = self.journal_at();
        self.bytes[at..at + JournalSuperblock::SIZE].copy_from_slice(sb.bytes());
        self
    }

    fn journal_at(&self) -> usize {
        usize::try_from(self.journal[0].offset(self.block_size)).unwrap()
    }

    fn journal_superblock(&self) -> JournalSuperblock {
        JournalSuperblock::read(&self.bytes[self.journal_at()..]).unwrap()
    }

    /// The features of the journal of `device`.
    pub fn journal_features(&self, device: &dyn BlockDevice) -> JournalFeatures {
        let mut bytes = [0; JournalSuperblock::SIZE];
        device
            .read_at(self.journal_at() as u64, &mut bytes)
            .unwrap();
        JournalSuperblock::from_bytes(bytes).features()
    }

    /// The number of the oldest transaction that recovery reads and its place in the log, and those of all blocks there
    /// that name a transaction as young.
    pub fn log(&self, device: &dyn BlockDevice) -> ((Tid, u32), Vec<(Tid, u32)>) {
        let mut bytes = vec![0; self.block_size.bytes()];
        let at = |position: u32| self.journal[position as usize].offset(self.block_size);
        device.read_at(at(0), &mut bytes).unwrap();
        let sb = JournalSuperblock::read(&bytes).unwrap();
        let mut found = Vec::new();
        for position in sb.first()..sb.log_end() {
            device.read_at(at(position), &mut bytes).unwrap();
            let header =
                BlockHeader::of(&bytes).filter(|header| header.tid().is_at_or_after(sb.sequence()));
            found.extend(header.map(|header| (header.tid(), position)));
        }
        ((sb.sequence(), sb.start()), found)
    }

    /// The image with the flag that says that the journal may hold something.
    pub fn opened(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let mut sb = *Superblock::view(bytes[1024..2048].try_into().unwrap());
        sb.set_features(sb.features().with(Feature::NEEDS_RECOVERY));
        sb.seal();
        bytes[1024..2048].copy_from_slice(sb.bytes());
        bytes
    }

    /// The journal's blocks on a device.
    pub fn map(&self, device: Arc<dyn BlockDevice>) -> LogMap {
        let runs: Vec<(FsBlock, u32)> = self.journal.iter().map(|block| (*block, 1)).collect();
        LogMap::new(device, self.block_size, &runs)
    }
}

/// Replays the journal of `device` onto it.
pub fn replay(device: &Arc<dyn BlockDevice>) -> recovery::ReplayReport {
    try_replay(device).unwrap()
}

/// As [`replay`], where the log may be one that no crash leaves.
pub fn try_replay(
    device: &Arc<dyn BlockDevice>,
) -> Result<recovery::ReplayReport, recovery::Error> {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(1024, &mut bytes).unwrap();
    let sb = Superblock::view(&bytes);
    let geometry = Geometry::new(sb, device.size()).unwrap();
    recovery::replay_to_device(device, sb, &geometry, None)
}
