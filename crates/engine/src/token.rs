//! The token for changing: a file system that is open for writing. What changes anything takes a [`LiveFs`]; what only
//! reads takes a [`MountedFs`], which every [`LiveFs`] is too. So whether the file system may be changed is asked once,
//! where an operation comes in.
//!
//! Its parts are what only a file system that is open for writing provides: log space and a handle ([`step`]), blocks
//! and inode numbers ([`take`]), a commit of everything ([`commit`]), and corruption put on record ([`corruption`]).

use std::ops::Deref;

use sync::Arc;

use crate::blocks::{OpenVolume, Writing};
use crate::core::Error;
use crate::core::variants::{VariantError, Variants};
use crate::fsync::log::FastLog;
use crate::inode::MountedFs;
use crate::space::group::DescriptorInodes;
use crate::space::orphan::Orphans;

mod commit;
mod corruption;
mod step;
mod take;

/// A file system that is open for writing.
pub(crate) struct LiveFs {
    mounted: MountedFs,
    /// The same as the volume's. [const]
    writing: Arc<Writing>,
    /// The fsync log, where the journal has an area for it. [const]
    fast: Option<Box<FastLog>>,
}

impl LiveFs {
    /// The inodes of a volume, which is written to with `writing` from now on; with what each group has and this orphan
    /// file; about `most` are kept. Reads nothing.
    pub(crate) fn new(
        volume: OpenVolume,
        writing: Writing,
        said: &[DescriptorInodes],
        orphans: Orphans,
        most: usize,
        variants: Variants,
    ) -> Arc<LiveFs> {
        let writing = Arc::new(writing);
        let volume = volume.writable(Arc::clone(&writing));
        let fast = writing
            .has_fast_log()
            .then(|| Box::new(FastLog::new(&variants)));
        Arc::new(LiveFs {
            mounted: MountedFs::with(volume, said, orphans, most, variants),
            writing,
            fast,
        })
    }

    /// The fsync log; `None` if the journal has no area for it.
    pub(crate) fn fast(&self) -> Option<&FastLog> {
        self.fast.as_deref()
    }

    /// What it takes to write.
    #[inline]
    pub(crate) fn writing(&self) -> &Writing {
        &self.writing
    }
}

impl Deref for LiveFs {
    type Target = MountedFs;

    #[inline]
    fn deref(&self) -> &MountedFs {
        &self.mounted
    }
}

/// A file system that is open, for reading or for writing.
pub(crate) enum OpenFs {
    Reading(Box<MountedFs>),
    Writing(Arc<LiveFs>),
}

impl OpenFs {
    /// The token for changing.
    ///
    /// # Errors
    /// `ReadOnly` for a file system that is open for reading.
    #[inline]
    pub(crate) fn live(&self) -> Result<&Arc<LiveFs>, Error> {
        match self {
            OpenFs::Reading(_) => Err(Error::ReadOnly),
            OpenFs::Writing(live) => Ok(live),
        }
    }
}

impl OpenFs {
    /// Uses another form of a mechanism from now on, `name=value`, whatever is under way.
    pub(crate) fn choose(&self, option: &str) -> Result<(), VariantError> {
        self.choose_with(option, |variants| {
            if let OpenFs::Writing(live) = self
                && let Some(fast) = live.fast()
            {
                fast.choose(variants);
            }
        })
    }
}

impl Deref for OpenFs {
    type Target = MountedFs;

    #[inline]
    fn deref(&self) -> &MountedFs {
        match self {
            OpenFs::Reading(mounted) => mounted,
            OpenFs::Writing(live) => live,
        }
    }
}
