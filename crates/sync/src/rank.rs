//! The one table of lock ranks, in acquisition order: a thread waits only for locks that stand further down than all
//! it holds. A new lock gets its line here before it gets its field.

/// What a lock protects, in the order in which locks are taken (the first is outermost).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[non_exhaustive]
pub enum Rank {
    /// A worker's share of a mounted image: held by that worker while it answers a request, taken by the thread that
    /// closes the image.
    Served,
    /// The state of a whole job (a build, an extraction, a check): phases, first error, list of results.
    Job,
    /// A [`crate::Queue`] between the threads of one job; held for a push or a pop only, never across I/O.
    Queue,
    /// The growing state of one output (an archive, a stream being written in order).
    Output,
    /// The position of one open file, held across the read or the write that moves it.
    FilePosition,
    /// Freezing and thawing, and where changes wait meanwhile; held for a look.
    Freeze,
    /// Moves of directories to other parents; one a file system.
    Rename,
    /// One inode: names, map, attributes. Several in ascending order of their numbers.
    Inode,
    /// Reads of one file's data against what takes its blocks away; writes in place hold the inode's lock.
    InodeData,
    /// The classic list of orphans.
    OrphanList,
    /// Blocks of attributes, which inodes share: their counts of references, and where they are found by contents.
    XattrBlock,
    /// What changed in an epoch, for the fsync log; held for a look.
    LogChanges,
    /// Which fsync log is running; held for a look.
    LogRunning,
    /// The fsync log's running batch: shared by threads that add to it, exclusive for the thread that encodes it.
    LogBatch,
    /// A node of the log tree, from the root down.
    LogTree,
    /// Drawing back what is kept for files and threads; held until all of it is available to others.
    DrawBack,
    /// Blocks kept for one file, or for one thread's small files, that are not in use yet; held for a look.
    Preallocation,
    /// Making records of inode tables readable; held across that I/O, alone.
    InodeTable,
    /// Which windows of inode numbers there are; held for a look.
    InodeWindows,
    /// One window of inode numbers: a directory's, or a core's.
    InodeWindow,
    /// One block group's bitmaps and counts in memory.
    Group,
    /// That a sum is low: held by the thread that draws back the leases of it.
    Scarcity,
    /// The leader of the commit or the checkpoint, and up to where they are done; held for a look, never across I/O.
    JournalLeader,
    /// The door at which new handles wait while an epoch drains; alone.
    EpochGate,
    /// A metadata object's live value and its sealed image: a copy of one block at most.
    StageLatch,
    /// A thread's list of what an epoch changed.
    EpochList,
    /// The log's head, tail and superblock: held by the leader across the log's I/O.
    LogArea,
    /// The writer of the fsync log; held for a look, never across I/O.
    LogLeader,
    /// Which committed images are not home yet.
    JournalLists,
    /// A hand that evicts loaded inodes in its part of the table; only tried.
    IcacheHand,
    /// The place where a table of cached things looks next for one to evict; only tried.
    Hand,
    /// The forms of mechanisms that were chosen: held while each mechanism is switched.
    Forms,
    /// The plain form's one lock around the table of loaded inodes.
    IcacheTable,
    /// One bucket of the table of loaded inodes.
    IcacheBucket,
    /// One bucket of the metadata block cache; never held across I/O.
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
