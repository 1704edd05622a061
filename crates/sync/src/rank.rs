//! The one table of lock ranks, in acquisition order: a thread waits only for locks that stand further down than all
//! it holds. A new lock gets its line here before it gets its field.

/// What a lock protects, in the order in which locks are taken (the first is outermost).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[non_exhaustive]
pub enum Rank {
    /// The state of a whole job (a build, an extraction, a check): phases, first error, list of results.
    Job,
    /// A [`crate::Queue`] between the threads of one job; held for a push or a pop only, never across I/O.
    Queue,
    /// The growing state of one output (an archive, a stream being written in order).
    Output,
    /// Who may freeze and thaw, and where changes wait meanwhile; held for a look.
    Freeze,
    /// Moves of directories to other parents; one a file system.
    Rename,
    /// One inode: names, map, attributes. Several in ascending order of their numbers.
    Inode,
    /// Reads and writes of one file's data against what takes its blocks away.
    InodeData,
    /// The classic list of orphans.
    OrphanList,
    /// Blocks of attributes, which inodes share: their counts of references, and where they are found by contents.
    XattrBlock,
    /// One block group's bitmaps and counts in memory.
    Group,
    /// Who leads the commit or the checkpoint, and up to where they are done; held for a look, never across I/O.
    JournalLeader,
    /// The door at which new handles wait while an epoch drains; alone.
    EpochGate,
    /// A metadata object's live value and its sealed image: a copy of one block at most.
    StageLatch,
    /// A thread's list of what an epoch changed.
    EpochList,
    /// The log's head, tail and superblock: held by the leader across the log's I/O.
    LogArea,
    /// Which committed images are not home yet.
    JournalLists,
    /// One bucket of the table of loaded inodes.
    IcacheBucket,
    /// One shard of the metadata block cache; never held across I/O.
    CacheShard,
    /// The order of a recording device's requests, held across the request to the device beneath it.
    DeviceOrder,
    /// A device's own tables (a memory device's shard of chunks); never held across I/O.
    Device,
    /// What a progress display shows; nothing is locked or written under it but the terminal.
    Progress,
    /// A lock under which no other lock is ever taken.
    Leaf,
}
