//! The token for changing: a file system that is open for writing. What changes anything takes a [`LiveFs`]; what only
//! reads takes a [`MountedFs`], which every [`LiveFs`] is too. So whether the file system may be changed is asked once,
//! where an operation comes in.
//!
//! Its parts are what only a file system open for writing can be asked: log space and a handle ([`step`]), blocks and
//! inode numbers ([`take`]), a commit of everything ([`commit`]), and corruption put on record ([`corruption`]).

use std::ops::Deref;

use sync::Arc;

use crate::blocks::{OpenVolume, Writing};
use crate::core::Error;
use crate::core::variants::Variants;
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
        Arc::new(LiveFs {
            mounted: MountedFs::with(volume, said, orphans, most, variants),
            writing,
        })
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
