//! The one table of lock ranks, in acquisition order: a thread waits only for locks that come later in it than all that
//! the thread holds. A new lock gets its line here before it gets its field.

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
    /// Freezing and thawing the file system: the gate's state, on which changes wait meanwhile; held briefly.
    Freeze,
    /// Moves of directories to other parents; each file system has one such lock.
    Rename,
    /// One inode: its names, map and attributes. A thread that locks several does so in ascending order of their
    /// numbers.
    Inode,
    /// One file's data: held shared by reads, exclusively by what takes blocks away from the file. Writes in place hold
    /// the inode's lock instead.
    InodeData,
    /// The classic list of orphans.
    OrphanList,
    /// Attribute blocks, which inodes share: their reference counts, and the index that finds them by contents.
    XattrBlock,
    /// What an epoch changed, kept for the fsync log; held briefly.
    LogChanges,
    /// Which fsync log is running; held briefly.
    LogRunning,
    /// The fsync log's running batch: shared by threads that add to it, exclusive for the thread that encodes it.
    LogBatch,
    /// A node of the log tree, from the root down.
    LogTree,
    /// Taking back what is kept for files and threads; held until all of it is available to others.
    DrawBack,
    /// Blocks kept for one file, or for one thread's small files, that are not in use yet; held briefly.
    Preallocation,
    /// Initialising a part of an inode table; held across the I/O that does it.
    InodeTable,
    /// The list of windows of inode numbers; held briefly.
    InodeWindows,
    /// One window of inode numbers: a directory's, or a core's.
    InodeWindow,
    /// One block group's bitmaps and counts in memory.
    Group,
    /// Taking back all threads' leases of a sum that became small; held by the thread that does so.
    Scarcity,
    /// The leader of the commit or the checkpoint, and the epochs that they have finished; held briefly, never across
    /// I/O.
    JournalLeader,
    /// The gate where new handles wait while an epoch drains; no other lock is taken under it.
    EpochGate,
    /// A metadata object's live value and its sealed image: a copy of one block at most.
    StageLatch,
    /// A thread's list of what an epoch changed.
    EpochList,
    /// The log's head, tail and superblock: held by the leader across the log's I/O.
    LogArea,
    /// The writer of the fsync log; held briefly, never across I/O.
    LogLeader,
    /// Committed images that are not written home yet.
    JournalLists,
    /// A hand that evicts loaded inodes in its part of the table; taken with `try_lock` only.
    IcacheHand,
    /// The place where a table of cached things looks next for one to evict; taken with `try_lock` only.
    Hand,
    /// The chosen form of each mechanism; held while a mechanism is switched to another form.
    Forms,
    /// The one lock around the table of loaded inodes, if the table is used in its plain form.
    IcacheTable,
    /// One bucket of the table of loaded inodes.
    IcacheBucket,
    /// One bucket of the metadata block cache; never held across I/O.
    CacheShard,
    /// The order of a recording device's requests, held across the request to the device beneath it.
    DeviceOrder,
    /// A device's own tables (a memory device's shard of chunks); never held across I/O.
    Device,
    /// What a progress display shows; the only thing locked or written under it is the terminal.
    Progress,
    /// A lock under which no other lock is ever taken.
    Leaf,
}
