//! Changes of an inode's own attributes: permissions, owner, times.
//!
//! One step each, one block: the inode's. Takes the inode's lock; needs nothing else. What a cut leaves: all of the
//! change or nothing of it.

use ondisk::inode::Inode;
use ondisk::{Ino, Timestamp};

use crate::error::Error;
use crate::icache::Icache;

/// What to change of an inode; `None` leaves as it is. Whoever asks has checked that it may.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SetAttributes {
    /// Permission bits, setuid, setgid, sticky: within 0o7777.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Owning group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of the contents.
    pub mtime: Option<Timestamp>,
    /// Bytes in a regular file; set before all else, in steps of its own.
    pub size: Option<u64>,
}

const PERMISSIONS: u16 = 0o7777;

impl SetAttributes {
    /// Whether nothing is to be changed, the size aside.
    pub(crate) fn is_empty_but_size(&self) -> bool {
        *self
            == SetAttributes {
                size: self.size,
                ..SetAttributes::default()
            }
    }

    fn apply(&self, inode: &mut Inode, now: Timestamp) {
        if let Some(mode) = self.mode {
            inode.set_mode(inode.mode() & !PERMISSIONS | mode & PERMISSIONS);
        }
        if let Some(uid) = self.uid {
            inode.set_uid(uid);
        }
        if let Some(gid) = self.gid {
            inode.set_gid(gid);
        }
        if let Some(atime) = self.atime {
            inode.set_atime(atime);
        }
        if let Some(mtime) = self.mtime {
            inode.set_mtime(mtime);
        }
        inode.set_ctime(now);
    }
}

/// Changes attributes of an inode that is in use.
pub(crate) fn set(icache: &Icache, ino: Ino, attributes: &SetAttributes) -> Result<(), Error> {
    let inode = icache.get(ino)?;
    let locked = inode.write_lock();
    // It may have been deleted before the lock.
    icache.load_used(ino)?;
    let credits = icache.reserve(1, 0)?;
    let now = icache.now()?;
    let handle = icache.begin(credits)?;
    locked.change(&handle, |inode| attributes.apply(inode, now));
    Ok(())
}
