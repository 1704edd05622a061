//! The journal's area for fast commits as it stands in a state: what its records may never say, and whether an old
//! first block is there, on which e2fsck gives up the whole journal.

use device::BlockDevice;
use ondisk::Tid;
use ondisk::fast_commit::{FcRecord, Scan, ScanStep, records};
use ondisk::inode::Inode;
use ondisk::jbd2::{BlockHeader, BlockKind, JournalSuperblock};

use crate::CowDevice;

/// Where a journal's blocks are.
#[derive(Clone, Default, Debug)]
pub struct JournalPlace {
    /// The byte at which each of the journal's blocks begins, in order.
    pub blocks: Vec<u64>,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of an inode.
    pub inode_bytes: usize,
}

impl JournalPlace {
    fn block(&self, state: &CowDevice, position: u32) -> Option<Vec<u8>> {
        // Positions are few.
        let at = *self.blocks.get(position as usize)?;
        let mut block = vec![0; self.block_bytes];
        state.read_at(at, &mut block).ok()?;
        Some(block)
    }

    /// The positions of the area's blocks, and the transaction that the first of them names, if it is a first one.
    fn head(&self, state: &CowDevice) -> Option<(std::ops::Range<u32>, Tid)> {
        let superblock = JournalSuperblock::read(&self.block(state, 0)?)?;
        if superblock.fast_commit_blocks() == 0 || superblock.start() == 0 {
            return None;
        }
        let first = superblock.fast_commit_first();
        let block = self.block(state, first)?;
        match FcRecord::read(&block, self.inode_bytes) {
            Ok((FcRecord::Head { tid, .. }, _)) => Some((first..superblock.blocks_count(), tid)),
            _ => None,
        }
    }

    /// Whether the area begins with the fast commits of a transaction that is committed in full: between that commit's
    /// record and the wipe of the area's first block.
    ///
    /// # Errors
    /// What the engine said.
    pub fn is_stale(&self, state: &CowDevice) -> Result<bool, String> {
        let Some((_, tid)) = self.head(state) else {
            return Ok(false);
        };
        let device = sync::Arc::new(state.clone());
        let fs = engine::InodeFs::open(device, &engine::MountOptions::default());
        let fs = fs.map_err(|error| error.to_string())?;
        Ok(fs.recovery_report().is_some_and(|report| report.end != tid))
    }

    /// The state without the commit record of a transaction.
    #[must_use]
    pub fn without_commit(&self, state: &CowDevice, left_out: Option<Tid>) -> CowDevice {
        let without = state.clone();
        for (position, at) in (0..).zip(&self.blocks) {
            let header = self.block(state, position);
            let header = header.and_then(|block| BlockHeader::of(&block));
            let is_it = header.is_some_and(|header| {
                header.kind() == Some(BlockKind::Commit) && Some(header.tid()) == left_out
            });
            if is_it {
                // Within the device, where it was read.
                without
                    .write_at(*at, &vec![0; self.block_bytes])
                    .expect("a block of the journal");
            }
        }
        without
    }

    /// Whether what the area says can be replayed by Linux and e2fsck: no inode without links.
    ///
    /// # Errors
    /// What it says.
    pub fn check(&self, state: &CowDevice) -> Result<(), String> {
        let Some((area, tid)) = self.head(state) else {
            return Ok(());
        };
        let mut scan = Scan::new(tid, self.inode_bytes);
        let (mut blocks, mut counts) = (Vec::new(), 0);
        for position in area {
            let Some(block) = self.block(state, position) else {
                break;
            };
            let step = scan.block(&block);
            blocks.push(block);
            // Blocks of complete fast commits only.
            counts = scan.found().blocks as usize;
            if step == ScanStep::Stop {
                break;
            }
        }
        for block in &blocks[..counts.min(blocks.len())] {
            for record in records(block, self.inode_bytes).map_while(Result::ok) {
                if let FcRecord::Inode { ino, raw } = record
                    && Inode::parse(raw).is_ok_and(|inode| inode.links_count() == 0)
                {
                    return Err(format!("a fast commit has inode {ino} without links"));
                }
            }
        }
        Ok(())
    }
}
