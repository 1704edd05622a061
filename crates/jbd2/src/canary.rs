//! Mistakes that can be made on purpose, so that tests show that they would be found. Without the feature `canaries`,
//! which only simulations turn on, no mistake can be made and nothing of this remains.

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

            /// Whether it is made in fast commits, so that only an image with fast commits shows it.
            #[must_use]
            pub fn is_of_fast_commits(self) -> bool {
                matches!(self, $(Canary::$fast)|+)
            }
        }
    };
}

canaries! {
    /// The commit record is written without a flush between it and what it speaks of.
    FlushLeftOut,
    /// Freed metadata blocks are not revoked.
    RevokeLeftOut,
    /// Freed blocks are available before the freeing transaction is durable.
    ReusedBeforeCommit,
    /// The images of a freed block are cancelled when it is freed, not when that is durable.
    CancelledAtFree,
    /// A sealed image shows a change of the next epoch.
    NextEpochInSealedImage,
    /// Inodes that are clean in an epoch are encoded from memory beside one that is dirty.
    CleanNeighbourFromMemory,
    /// Blocks are mapped before their data are written.
    MappedBeforeData,
    /// The log's tail moves past images before their writes home are flushed.
    TailBeforeHome,
    /// A group does not count the blocks that an epoch freed.
    FreedUncounted,
    /// A group's count of unused inodes does not fall when one of them is allocated.
    UnusedInodesKept,
    /// A parent's link count still contains a removed directory.
    SubdirectoryKept,
    /// A directory that moves to another parent keeps its `..`.
    ParentKept,
    /// The slot, or the head of the list, for an orphan is not changed on disk.
    OrphanLeftOut,
    /// A deleted inode's number stays in use.
    NumberKept,
    /// Orphans of an earlier mount are not deleted.
    OrphanUnfinished,
    /// The edges of a truncated or punched range are not zeroed.
    ZerosLeftOut,
    in fast commits:
    /// A fast commit takes a name away and leaves out the name that took its place.
    UnlinkWithoutLink,
    /// A fast commit has an inode without links.
    InodeWithoutLinks,
    /// A fast commit may be durable before the data that it shows.
    TailBeforeData,
    /// A fast commit shows an inode as it is after the transaction's end.
    NextEpochInLog,
    /// An fsync of what is in a fast commit already does not flush the data that were written over others since.
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

    /// The mistake of the whole process by its place among all from 1, or 0. [atomic: Relaxed]
    static MADE: AtomicU8 = AtomicU8::new(0);

    /// Makes this mistake from now on, or none.
    pub fn make(canary: Option<Canary>) {
        // Relaxed: set between runs, when no other thread looks.
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

/// Whether this mistake is to be made.
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
