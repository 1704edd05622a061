//! Mistakes that can be made on purpose, so that tests show that they would be found. Only simulations turn on the
//! feature `canaries`; without it no mistake can be made, and none of this is compiled in.

/// Declares the mistakes in one list, so that a new one needs one entry.
macro_rules! canaries {
    (
        $($(#[$about:meta])+ $name:ident,)+
        in fast commits:
        $($(#[$fast_about:meta])+ $fast:ident,)+
    ) => {
        /// A mistake.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Canary {
            $($(#[$about])+ $name,)+
            $($(#[$fast_about])+ $fast,)+
        }

        impl Canary {
            /// All mistakes.
            pub const ALL: [Canary; [$(stringify!($name),)+ $(stringify!($fast),)+].len()] =
                [$(Canary::$name,)+ $(Canary::$fast,)+];

            /// Whether the mistake is made in fast commits, so that only an image with fast commits shows it.
            #[must_use]
            pub fn is_of_fast_commits(self) -> bool {
                matches!(self, $(Canary::$fast)|+)
            }
        }
    };
}

canaries! {
    /// The commit record is written without a flush between it and the blocks that it commits.
    FlushLeftOut,
    /// Freed metadata blocks are not revoked.
    RevokeLeftOut,
    /// Freed blocks can be allocated before the freeing transaction is durable.
    ReusedBeforeCommit,
    /// The images of a freed block are cancelled when the block is freed, instead of when that is durable.
    CancelledAtFree,
    /// The image of a sealed epoch shows a change of the next epoch.
    NextEpochInSealedImage,
    /// Inodes that are clean in an epoch are encoded from memory if they share a block with a dirty one.
    CleanNeighbourFromMemory,
    /// Blocks are mapped before their data are written.
    MappedBeforeData,
    /// The log's tail moves past images before their writes home are flushed.
    TailBeforeHome,
    /// A group does not count the blocks that an epoch freed.
    FreedUncounted,
    /// A group's count of unused inodes does not fall when one of them is allocated.
    UnusedInodesKept,
    /// The link count of a removed directory's parent is not decremented.
    SubdirectoryKept,
    /// A directory that moves to another parent keeps its `..`.
    ParentKept,
    /// The slot or the list's head on disk is not changed when an orphan is added.
    OrphanLeftOut,
    /// A deleted inode's number stays in use.
    NumberKept,
    /// Orphans that an earlier mount left are not deleted.
    OrphanUnfinished,
    /// The edges of a truncated or punched range are not zeroed.
    ZerosLeftOut,
    in fast commits:
    /// A fast commit removes a name and leaves out the name that replaced it.
    UnlinkWithoutLink,
    /// A fast commit holds an inode without links.
    InodeWithoutLinks,
    /// A fast commit can become durable before the data that its records map.
    TailBeforeData,
    /// A fast commit shows an inode as it is after the end of the transaction.
    NextEpochInLog,
    /// An fsync of an inode whose changes are all in a fast commit does not flush data that were overwritten since.
    OverwrittenUnflushed,
    /// A fast commit leaves out an inode's new blocks.
    RangesLeftOut,
    /// The replay of fast commits does not change the fields of inodes.
    FieldsNotReplayed,
}

#[cfg(feature = "canaries")]
mod chosen {
    use sync::atomic::{AtomicU8, Ordering};

    use super::Canary;

    /// The process's mistake, as its place in `ALL` counted from 1; 0 for none. [atomic: Relaxed]
    static MADE: AtomicU8 = AtomicU8::new(0);

    /// Makes this mistake from now on, or none.
    pub fn make(canary: Option<Canary>) {
        // Relaxed: set between runs, when no other thread reads it.
        MADE.store(
            canary.map_or(0, |canary| canary as u8 + 1),
            Ordering::Relaxed,
        );
    }

    pub(super) fn is_made(canary: Canary) -> bool {
        // Relaxed: set between runs, when no other thread changes it.
        MADE.load(Ordering::Relaxed) == canary as u8 + 1
    }
}

#[cfg(feature = "canaries")]
pub use chosen::make;

/// Whether this mistake is being made.
#[inline]
#[must_use]
pub fn makes(canary: Canary) -> bool {
    #[cfg(feature = "canaries")]
    return chosen::is_made(canary);
    #[cfg(not(feature = "canaries"))]
    return {
        let _ = canary;
        false
    };
}
