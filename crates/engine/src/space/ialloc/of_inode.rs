//! What inode allocation keeps with each inode in memory: a directory's window, and what became of the inode's own
//! number since it came into memory. Gone with the inode; a crash leaves nothing of it.

use ondisk::Group;
use sync::{Arc, Guarded, Hint, OnceLock};

use super::window::Window;

/// What is known of an inode's own number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// Only what the bitmap's image records.
    Nothing,
    /// It was put in use since the inode came into memory.
    Applied,
    /// Someone is about to free it, or did.
    Leaving,
}

/// Part of every inode in memory.
pub(crate) struct OfInode {
    /// Numbers set aside for a directory's files; stays as long as the inode is in memory. [set once]
    window: OnceLock<Arc<Window>>,
    /// The group, and 1, in which an inode was made last for this directory; 0 if none was. [atomic: Relaxed, hint]
    last_group: Hint<u32>,
    /// [`Known`], as a number. [the inode's lock, exclusive]
    known: Guarded<u32>,
}

impl OfInode {
    /// Nothing.
    pub(crate) fn new() -> OfInode {
        OfInode {
            window: OnceLock::new(),
            last_group: Hint::new(0),
            known: Guarded::new(Known::Nothing as u32),
        }
    }

    pub(super) fn window(&self) -> Option<&Arc<Window>> {
        self.window.get()
    }

    /// The directory has this window, unless it has one.
    pub(super) fn set(&self, window: Arc<Window>) -> &Arc<Window> {
        self.window.get_or_init(|| window)
    }

    /// The inode is about to be deleted: if it is a directory with a window, that is given back.
    pub(crate) fn forget(&self) {
        if let Some(window) = self.window.get() {
            window.forget();
        }
        self.last_group.set(0);
    }

    pub(super) fn last_group(&self) -> Option<Group> {
        let group = self.last_group.get();
        group.checked_sub(1).map(Group)
    }

    pub(super) fn set_last_group(&self, group: Group) {
        if self.last_group() != Some(group) {
            self.last_group.set(group.0 + 1);
        }
    }

    pub(super) fn known(&self) -> Known {
        match self.known.get() {
            0 => Known::Nothing,
            1 => Known::Applied,
            _ => Known::Leaving,
        }
    }

    pub(super) fn set_known(&self, known: Known) {
        self.known.set(known as u32);
    }
}
