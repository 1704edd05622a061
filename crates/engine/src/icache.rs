//! Inodes: found in their group's table, verified, and kept: on a read-only volume as views of the table's cached
//! blocks, on one that is written to as [`LiveInode`]s.
//!
//! Code that reads works on a [`LoadedInode`], a snapshot that does not change under it.

use std::ops::Deref;

use buffer::{Block, Tag};
use journal::{Folded, JournalError};
use ondisk::inode::{self, Inode};
use ondisk::xattr::{self, Area, Value};
use ondisk::{Corrupt, Feature, FileType, Flags, FsBlock, Ino, Site};
use sync::{Arc, Mutex, Rank};

use crate::error::Error;
use crate::group::Groups;
use crate::mballoc::Goals;
use crate::orphan::{Doomed, Orphans};
use crate::sb::{Kind, Volume};
use crate::variants::{OrphanForm, StreamGoal};

mod live_inode;
mod locked;

pub(crate) use live_inode::{Exclusive, LiveInode};
use locked::LockedTable;

/// Which inodes are in memory: the small face behind which tables of different scalability stand.
pub(crate) trait InodeTable: Send + Sync {
    /// The inode with this number, if it is in memory.
    fn find(&self, ino: Ino) -> Option<Arc<LiveInode>>;

    /// How many inodes that had changed were let go: read before an inode is loaded.
    fn evictions(&self) -> u64;

    /// Puts an inode there, unless another thread was first; gives the one that is there. Nothing if one that had
    /// changed was let go since `evictions` was read: the inode may be as it was before that change, and is to be
    /// loaded again.
    fn insert(&self, inode: Arc<LiveInode>, evictions: Option<u64>) -> Option<Arc<LiveInode>>;

    /// Whether there are more than are kept.
    fn is_full(&self) -> bool;

    /// Lets go of inodes that nobody uses and for which `may_go` says so, until a part of those that may be kept is
    /// left.
    fn trim(&self, may_go: &dyn Fn(&LiveInode) -> bool);

    /// Lets go, as often as said, of an inode that was held and is not in memory; false if it is there. What is held
    /// and not in memory has names.
    fn release_absent(&self, ino: Ino, times: u32) -> bool;
}

/// Everything that inodes are loaded with. Shared by all threads; constant but for what is cached.
pub(crate) struct Icache {
    volume: Volume,
    groups: Groups,
    /// Only used on a volume that is written to.
    table: Box<dyn InodeTable>,
    /// Likewise.
    orphans: Orphans,
    /// Inodes with a time of access that waits for a change. [leaf]
    lazy: Mutex<Vec<Arc<LiveInode>>>,
    /// Likewise.
    doomed: Doomed,
    /// Likewise.
    goals: Goals,
}

/// An inode as it is on the device.
#[derive(Clone)]
pub(crate) struct LoadedInode {
    ino: Ino,
    inode: Inode,
    seed: u32,
    block: Arc<Block>,
    at: usize,
    len: usize,
}

impl Deref for LoadedInode {
    type Target = Inode;

    fn deref(&self) -> &Inode {
        &self.inode
    }
}

impl Icache {
    /// The inodes of a volume that is not written to; reads nothing.
    pub(crate) fn new(volume: Volume) -> Icache {
        let orphans = Orphans::new(volume.geometry(), None, OrphanForm::default());
        Icache::writable(volume, &[], orphans, 0, StreamGoal::default())
    }

    /// The inodes of a volume that is written to, with what each group has free and this orphan file; about `most` are
    /// kept. Reads nothing.
    pub(crate) fn writable(
        volume: Volume,
        free: &[(u32, u32)],
        orphans: Orphans,
        most: usize,
        stream_goal: StreamGoal,
    ) -> Icache {
        let groups = Groups::new(&volume, free);
        Icache {
            volume,
            groups,
            table: Box::new(LockedTable::new(most)),
            orphans,
            lazy: Mutex::new(Rank::Leaf, Vec::new()),
            doomed: Doomed::new(),
            goals: Goals::new(stream_goal),
        }
    }

    /// Remembers an inode with a time of access that waits for a change; says how many there are.
    pub(crate) fn add_lazy(&self, inode: Arc<LiveInode>) -> usize {
        let mut lazy = self.lazy.lock();
        lazy.push(inode);
        lazy.len()
    }

    /// The inodes that were remembered; no more are then.
    pub(crate) fn take_lazy(&self) -> Vec<Arc<LiveInode>> {
        std::mem::take(&mut *self.lazy.lock())
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The orphans.
    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// Where the first blocks of large files go.
    pub(crate) fn goals(&self) -> &Goals {
        &self.goals
    }

    /// Who waits to be deleted.
    pub(crate) fn doomed(&self) -> &Doomed {
        &self.doomed
    }

    /// The groups.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// An inode as it is now, in use or not, its checksum verified when it was read.
    pub(crate) fn load(&self, ino: Ino) -> Result<LoadedInode, Error> {
        match self.volume.is_writable() {
            true => Ok(self.get(ino)?.snapshot()),
            false => self.load_from_table(ino),
        }
    }

    /// The live inode with this number, loaded if it is not in memory. May block on I/O.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` for a number that no inode has; `Corrupt`, `Io`.
    pub(crate) fn get(&self, ino: Ino) -> Result<Arc<LiveInode>, Error> {
        self.volume.writing()?;
        loop {
            if let Some(inode) = self.table.find(ino) {
                return Ok(inode);
            }
            let evictions = Some(self.table.evictions());
            let loaded = self.load_from_table(ino)?;
            let place = self.place(ino)?;
            let inode = LiveInode::new(&self.volume, place, &loaded);
            if let Some(inode) = self.insert(inode, evictions) {
                return Ok(inode);
            }
        }
    }

    /// The live inode of a number that was just taken: what its slot held before is not read. Its record is blank
    /// until the caller changes it under a handle.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` for a number that no inode has; `Corrupt`, `Io` from the group's descriptor.
    pub(crate) fn get_new(&self, ino: Ino) -> Result<Arc<LiveInode>, Error> {
        self.volume.writing()?;
        if let Some(inode) = self.table.find(ino) {
            return Ok(inode);
        }
        let place = self.place(ino)?;
        let geometry = self.volume.geometry();
        let slot = Block::new(Tag(0), vec![0; geometry.inode_size()].into_boxed_slice());
        let blank = LoadedInode::of_slot(ino, geometry.csum_seed(), Arc::new(slot));
        let blank = LiveInode::new(&self.volume, place, &blank);
        // Nothing was loaded that could be old.
        self.insert(blank, None).ok_or(Error::NotFound)
    }

    /// Encodes every inode in memory that shares a block of an inode table with one that is staged, as it is now: a
    /// mistake, for what a later epoch changed is not this one's.
    pub(crate) fn encode_neighbours(&self, folded: &mut Folded<'_>) -> Result<(), JournalError> {
        let geometry = self.volume.geometry();
        let blocks: Vec<FsBlock> = folded.blocks().collect();
        for ino in (1..=geometry.inodes_count()).map(Ino) {
            let Some(inode) = self.table.find(ino) else {
                continue;
            };
            if blocks.contains(&inode.table_block()) {
                inode.stage_live(folded.image(inode.table_block())?);
            }
        }
        Ok(())
    }

    /// Lets go of inodes and blocks that nobody uses and whose last change is committed, where there are too many. The
    /// table block of an inode that changed leaves the cache first, for it is older than what is committed.
    pub(crate) fn keep_bounds(&self) {
        let Ok(writing) = self.volume.writing() else {
            return;
        };
        writing.keep_bounds();
        if !self.table.is_full() {
            return;
        }
        let journal = &writing.journal;
        let (committed, flushed) = (journal.committed_epoch(), journal.flushed_epoch());
        self.table.trim(&|inode| {
            let may_go = inode.may_go(committed, flushed);
            if may_go && inode.stamp().0 > 0 {
                self.volume.cache().remove(inode.table_block().0);
            }
            may_go
        });
    }

    /// Lets go of an inode that was held as often, if that takes no look at it: it is not in memory, and so has names.
    pub(crate) fn release_absent(&self, ino: Ino, times: u32) -> bool {
        self.table.release_absent(ino, times)
    }

    /// [`InodeTable::insert`], within the bounds.
    fn insert(&self, inode: LiveInode, evictions: Option<u64>) -> Option<Arc<LiveInode>> {
        let inode = self.table.insert(Arc::new(inode), evictions);
        if self.table.is_full() {
            self.keep_bounds();
        }
        inode
    }

    /// The block of the inode table that holds an inode, and the byte in it.
    fn place(&self, ino: Ino) -> Result<(FsBlock, usize), Error> {
        let geometry = self.volume.geometry();
        let (group, index) = geometry.group_of_ino(ino).ok_or(Error::NotFound)?;
        let table = self.groups.inode_table(&self.volume, group)?;
        Ok(geometry.inode_place(table, index))
    }

    fn load_from_table(&self, ino: Ino) -> Result<LoadedInode, Error> {
        let geometry = self.volume.geometry();
        let (block, at) = self.place(ino)?;
        let kind = Kind::InodeTable;
        let block = self.volume.read_block(block, kind, Ino(0), |_| Ok(()))?;
        let len = geometry.inode_size();
        // An inode lies within its block, as its size divides the block's.
        let slot = block.get(at..at + len).unwrap_or_default();
        let inode = Inode::parse(slot).map_err(|corrupt| corrupt.ino(ino))?;
        if geometry.has_metadata_csum() && !is_blank(slot) {
            inode::verify_checksum(slot, geometry.csum_seed(), ino)?;
        }
        Ok(LoadedInode {
            ino,
            inode,
            seed: inode::checksum_seed(geometry.csum_seed(), ino, inode.generation()),
            block,
            at,
            len,
        })
    }

    /// Loads an inode that something refers to; it must be in use.
    pub(crate) fn load_used(&self, ino: Ino) -> Result<LoadedInode, Error> {
        let inode = self.load(ino)?;
        if self.volume.is_writable() && inode.mode() == 0 && inode.links_count() == 0 {
            // Deleted while the caller held its number.
            return Err(Error::NotFound);
        }
        if inode.inode.file_type().is_none() {
            return Err(Corrupt::at(Site::InodeType).ino(ino).into());
        }
        // Sizes are signed for system calls.
        if i64::try_from(inode.bytes(&self.volume)).is_err() {
            return Err(Corrupt::at(Site::FileSize).ino(ino).into());
        }
        Ok(inode)
    }
}

/// Whether a slot was never written: a lazily made inode table holds zeros, without checksums.
fn is_blank(slot: &[u8]) -> bool {
    slot.iter().all(|byte| *byte == 0)
}

impl LoadedInode {
    /// The inode with this record, which was verified before.
    fn of_slot(ino: Ino, csum_seed: u32, slot: Arc<Block>) -> LoadedInode {
        // The record was parsed when it was loaded, and every change keeps its extra size.
        let inode = Inode::parse(&slot).expect("a live inode parses");
        let len = slot.len();
        LoadedInode {
            ino,
            inode,
            seed: inode::checksum_seed(csum_seed, ino, inode.generation()),
            block: slot,
            at: 0,
            len,
        }
    }

    /// The inode's number.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// The seed of checksums of blocks that belong to the inode.
    pub(crate) fn seed(&self) -> u32 {
        self.seed
    }

    /// The inode's bytes in the table.
    pub(crate) fn slot(&self) -> &[u8] {
        &self.block[self.at..self.at + self.len]
    }

    /// Bytes in the file.
    pub(crate) fn bytes(&self, volume: &Volume) -> u64 {
        self.inode.size(volume.has(Feature::LARGE_DIR))
    }

    /// Whether the file is of this type.
    pub(crate) fn is(&self, file_type: FileType) -> bool {
        self.inode.file_type() == Some(file_type)
    }

    /// Whether contents begin in the inode.
    pub(crate) fn is_inline(&self) -> bool {
        self.flags().contains(Flags::INLINE_DATA)
    }

    /// The two parts of inline contents: the block area, and the value of `system.data` (empty if there is none).
    pub(crate) fn inline_parts(&self) -> Result<(&[u8], &[u8]), Error> {
        let area = Area::Inode(inode::attribute_area(self.slot()).unwrap_or_default());
        let entries = xattr::entries(area).map_err(|corrupt| corrupt.ino(self.ino))?;
        let mut rest = &[][..];
        for entry in entries {
            if (entry.index, entry.name) == (xattr::INDEX_SYSTEM, b"data")
                && let Value::Here(value) = entry.value
            {
                rest = value;
            }
        }
        Ok((self.inode.block_area(), rest))
    }
}
