//! An image with a journal, made by mke2fs, and a file in it whose blocks the bank uses as metadata.

use std::path::Path;

use device::BlockDevice;
use lanefs_journal::LogMap;
use ondisk::{BlockSize, Feature, FsBlock, Geometry, Superblock};
use sync::Arc;

/// An image and where its parts lie.
#[derive(Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub block_size: BlockSize,
    journal: Vec<FsBlock>,
    /// Blocks of the file that the bank uses.
    pub cells: Vec<FsBlock>,
}

/// Blocks of the file.
pub const CELLS: usize = 64;

fn blocks_of(image: &Path, file: &str) -> Vec<FsBlock> {
    let output = testkit::run(
        "debugfs",
        &["-R", &format!("blocks {file}"), image.to_str().unwrap()],
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace()
        .map(|number| FsBlock(number.parse().unwrap()))
        .collect()
}

impl Image {
    /// Makes the image, or says why that is not possible here.
    pub fn make(block_size: u32, features: &str) -> Option<Image> {
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
            .set_len(4096 * u64::from(block_size))
            .unwrap();
        let journal_mib = (1024 * block_size) >> 20;
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
        testkit::run("mke2fs", &arguments);
        testkit::run(
            "debugfs",
            &[
                "-w",
                "-R",
                &format!("write {} cells", file.display()),
                image,
            ],
        );
        let bytes = std::fs::read(&path).unwrap();
        Some(Image {
            bytes,
            block_size: BlockSize::from_bytes(block_size.into()).unwrap(),
            journal: blocks_of(&path, "<8>"),
            cells: blocks_of(&path, "cells"),
        })
        .inspect(|image| {
            assert_eq!((image.journal.len(), image.cells.len()), (1024, CELLS));
        })
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
pub fn replay(device: &Arc<dyn BlockDevice>) -> recovery::Report {
    let mut bytes = [0; Superblock::SIZE];
    device.read_at(1024, &mut bytes).unwrap();
    let sb = Superblock::view(&bytes);
    let geometry = Geometry::new(sb, device.size()).unwrap();
    recovery::replay_to_device(device, sb, &geometry, None).unwrap()
}
