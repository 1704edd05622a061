//! Mistakes that can be made on purpose, so that tests show that they would be found. Without the feature `canaries`,
//! which only simulations turn on, no mistake can be made and nothing of this remains.

/// Declares the mistakes from one list, so that a new one is one entry.
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
            /// All of them.
            pub const ALL: [Canary; [$(stringify!($name),)+ $(stringify!($fast),)+].len()] =
                [$(Canary::$name,)+ $(Canary::$fast,)+];

            /// Whether it is made in fast commits, so that only an image that has them shows it.
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
    /// The tail of the log moves over images whose writes home were not flushed.
    TailBeforeHome,
    /// A group counts the blocks that an epoch took and not those that it freed.
    FreedUncounted,
    /// The end of a group's unused inodes stays where it is when a number behind it is taken.
    UnusedInodesKept,
    /// A removed directory stays counted among its parent's links.
    SubdirectoryKept,
    /// A directory that gets another parent keeps its `..`.
    ParentKept,
    /// The slot or the list's head that an orphan takes is not changed on disk.
    OrphanLeftOut,
    /// A deleted inode's number stays in use.
    NumberKept,
    /// What an earlier mount left among the orphans is not deleted.
    OrphanUnfinished,
    /// The edges of a range that is cut or punched keep their bytes.
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
    /// A fast commit has an inode without the blocks that it got.
    RangesLeftOut,
    /// The replay of fast commits leaves the fields of inodes as they are.
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
        // Relaxed: as above.
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
