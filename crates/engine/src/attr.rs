//! Changes of an inode's own attributes: permissions, owner, times, flags.
//!
//! One step each: the inode, and its ACL where permissions change. Takes the inode's lock; needs nothing else. What a
//! cut leaves: all of the change or nothing of it. Times of access are changed beside reading, as the mount's
//! [`Atime`] says; what a cut leaves of those is any of the last ones.

use ondisk::inode::Inode;
use ondisk::{FileType, Flags, Ino, Timestamp};
use sync::Arc;

use crate::blocks::Writing;
use crate::core::Error;
use crate::core::limits;
use crate::core::options::Atime;
use crate::inode::{LiveInode, LoadedInode};
use crate::token::LiveFs;
use crate::xattr;

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// That of the file system's clock.
    Now,
    /// This one.
    At(Timestamp),
}

impl From<Timestamp> for SetTime {
    fn from(time: Timestamp) -> SetTime {
        SetTime::At(time)
    }
}

/// What to change of an inode; a field that is `None` stays as it is. The caller has checked the permissions; the
/// inode's flags are checked here.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SetAttributes {
    /// Permission bits, setuid, setgid, sticky: within 0o7777. An access ACL follows.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Owning group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the contents.
    pub mtime: Option<SetTime>,
    /// Last change of the inode; `None` for the present time. A kernel with a writeback cache reports the time of the
    /// changes that it held. Has no effect if only `size` is set with it.
    pub ctime: Option<Timestamp>,
    /// Bytes in a regular file; set before all else, in steps of its own.
    pub size: Option<u64>,
}

const PERMISSIONS: u16 = 0o7777;

impl SetAttributes {
    /// Whether nothing is to be changed, the size aside.
    pub(crate) fn is_empty_but_size(&self) -> bool {
        let nothing = SetAttributes {
            size: self.size,
            ctime: self.ctime,
            ..SetAttributes::default()
        };
        *self == nothing
    }

    /// Applies the attributes to an inode that was stamped with `now`, so that a given `ctime` replaces the stamp.
    fn apply(&self, inode: &mut Inode, now: Timestamp) {
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
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
            inode.set_atime(time(atime));
        }
        if let Some(mtime) = self.mtime {
            inode.set_mtime(time(mtime));
        }
        if let Some(ctime) = self.ctime {
            inode.set_ctime(ctime);
        }
    }

    /// Whether the inode's flags let it change so. An inode that is append-only may get the present time.
    fn verify(&self, inode: &LoadedInode) -> Result<(), Error> {
        let is_given = |time| matches!(time, Some(SetTime::At(_)));
        let is_more_than_touched = self.mode.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || is_given(self.atime)
            || is_given(self.mtime);
        let flags = inode.flags();
        let is_refused = flags.contains(Flags::IMMUTABLE)
            || flags.contains(Flags::APPEND) && is_more_than_touched;
        if is_refused {
            Err(Error::NotPermitted)
        } else {
            Ok(())
        }
    }
}

/// Changes attributes of an inode that is in use.
pub(crate) fn set(mounted: &LiveFs, ino: Ino, attributes: &SetAttributes) -> Result<(), Error> {
    let live = mounted.get(ino)?;
    let flags = {
        let locked = live.write_lock();
        // It may have been deleted before the lock.
        let inode = mounted.load_used(ino)?;
        attributes.verify(&inode)?;
        live.times.set_seen();
        let now = mounted.now()?;
        let lists = match attributes.mode.filter(|_| !inode.is(FileType::Symlink)) {
            Some(mode) => xattr::follow_mode(mounted, &inode, mode)?,
            None => None,
        };
        match lists {
            Some(lists) => xattr::apply(mounted, &locked, &lists, |inode| {
                attributes.apply(inode, now);
            })?,
            None => {
                let credits = mounted.reserve(1, 0)?;
                let handle = mounted.begin(credits)?;
                locked.change(&handle, |inode| {
                    inode.stamp(now);
                    attributes.apply(inode, now);
                });
                if inode.is(FileType::Directory) {
                    // No fast commit has a directory's own record.
                    live.set_unloggable(&handle);
                }
            }
        }
        inode.flags()
    };
    mounted.settle(ino, flags)
}

/// The flags that can be changed, as in Linux (`FS_IOC_SETFLAGS`).
pub(crate) const MODIFIABLE: [Flags; 16] = [
    Flags::SECURE_DELETE,
    Flags::UNDELETE,
    Flags::COMPRESS,
    Flags::SYNC,
    Flags::IMMUTABLE,
    Flags::APPEND,
    Flags::NO_DUMP,
    Flags::NO_ATIME,
    Flags::JOURNAL_DATA,
    Flags::NO_TAIL,
    Flags::DIR_SYNC,
    Flags::TOP_DIR,
    Flags::EXTENTS,
    Flags::DAX,
    Flags::PROJECT_INHERIT,
    Flags::CASEFOLD,
];
/// Those of them that lanefs can't change, and why.
const FIXED: [(Flags, &str); 4] = [
    (
        Flags::JOURNAL_DATA,
        "changing whether data goes through the journal",
    ),
    (Flags::EXTENTS, "changing the kind of a file's map"),
    (Flags::DAX, "direct access"),
    (
        Flags::CASEFOLD,
        "changing whether names are compared without case",
    ),
];
/// Those that directories alone have.
const OF_DIRECTORIES: [Flags; 4] = [
    Flags::DIR_SYNC,
    Flags::TOP_DIR,
    Flags::CASEFOLD,
    Flags::PROJECT_INHERIT,
];

/// Sets the flags that can be changed as in `flags`; others stay.
pub(crate) fn set_flags(mounted: &LiveFs, ino: Ino, flags: Flags) -> Result<(), Error> {
    let live = mounted.get(ino)?;
    let old = {
        let locked = live.write_lock();
        let inode = mounted.load_used(ino)?;
        let old = inode.flags();
        let modifiable = MODIFIABLE.into_iter().fold(Flags(0), Flags::with);
        let new = Flags(old.0 & !modifiable.0 | flags.0 & modifiable.0);
        let set = Flags(new.0 & !old.0);
        let changed = Flags(new.0 ^ old.0);
        let has = |flag: &Flags| set.contains(*flag);
        let fits = match inode.file_type() {
            Some(FileType::Directory) => true,
            Some(FileType::Regular) => !OF_DIRECTORIES.iter().any(has),
            _ => set.without(Flags::NO_DUMP).without(Flags::NO_ATIME) == Flags(0),
        };
        if !fits {
            return Err(Error::NotSupported("this flag on this type of file"));
        }
        if let Some((_, what)) = FIXED.iter().find(|(flag, _)| changed.contains(*flag)) {
            return Err(Error::NotSupported(what));
        }
        let credits = mounted.reserve(1, 0)?;
        let now = mounted.now()?;
        let handle = mounted.begin(credits)?;
        locked.change(&handle, |inode| {
            inode.set_flags(new);
            inode.stamp(now);
        });
        old
    };
    mounted.settle(ino, old)
}

/// A day: an access time older than that is updated even if nothing changed since.
const DAY: i64 = 24 * 60 * 60;

/// Whether an inode's access time is to be updated when it is read at `now`.
fn is_stale(inode: &Inode, writing: &Writing, now: Timestamp) -> bool {
    let atime = inode.atime();
    let is_directory = inode.file_type() == Some(FileType::Directory);
    let is_exempt = inode.flags().contains(Flags::NO_ATIME)
        || is_directory && !writing.directory_atime
        || atime == now;
    if is_exempt {
        return false;
    }
    match writing.atime {
        Atime::Never => false,
        Atime::Always => true,
        Atime::Relative => {
            inode.mtime() >= atime
                || inode.ctime() >= atime
                || now.seconds.saturating_sub(atime.seconds) >= DAY
        }
    }
}

/// The inode's contents were read: its access time is updated if the mount's policy asks for it. An error here does not
/// fail the read.
pub(crate) fn accessed(mounted: &LiveFs, ino: Ino) {
    // If the journal is aborted, the next change reports it.
    let _ = note_access(mounted, ino);
}

fn note_access(mounted: &LiveFs, ino: Ino) -> Result<(), Error> {
    let writing = mounted.writing();
    if writing.atime == Atime::Never {
        return Ok(());
    }
    // A read does not wait until a frozen file system is thawed.
    let Some(_change) = writing.gate.try_enter() else {
        return Ok(());
    };
    let live = mounted.get(ino)?;
    let now = writing.clock.now();
    if !is_stale(&live.snapshot(), writing, now) {
        return Ok(());
    }
    if writing.lazytime {
        let is_full =
            live.times.set_lazy_atime(now) && mounted.add_lazy(live) >= limits::LAZY_INODES;
        return if is_full { write_lazy(mounted) } else { Ok(()) };
    }
    let locked = live.write_lock();
    let inode = mounted.load_used(ino)?;
    if !is_stale(&inode, writing, now) {
        return Ok(());
    }
    let credits = mounted.reserve(1, 0)?;
    let handle = mounted.begin(credits)?;
    locked.change(&handle, |inode| inode.set_atime(now));
    Ok(())
}

/// Puts all times of access that wait in memory into their inodes' records: a step each. With nothing locked.
///
/// # Errors
/// `ReadOnly`, `Aborted`: those that are left are forgotten.
pub(crate) fn write_lazy(mounted: &LiveFs) -> Result<(), Error> {
    let lazy = mounted.take_lazy();
    lazy.iter().try_for_each(|live| write_one(mounted, live))
}

/// As [`write_lazy`], for one inode. Does nothing while changes are shut out: no time waits in memory then.
///
/// # Errors
/// As [`write_lazy`]; as loading the inode.
pub(crate) fn write_lazy_of(mounted: &LiveFs, ino: Ino) -> Result<(), Error> {
    let live = mounted.get(ino)?;
    if !live.times.has_lazy_atime() {
        return Ok(());
    }
    let Some(_change) = mounted.writing().gate.try_enter() else {
        return Ok(());
    };
    write_one(mounted, &live)
}

fn write_one(mounted: &LiveFs, live: &Arc<LiveInode>) -> Result<(), Error> {
    if !live.times.has_lazy_atime() {
        return Ok(());
    }
    let locked = live.write_lock();
    if live.snapshot().mode() == 0 {
        // It was deleted.
        return Ok(());
    }
    let credits = mounted.reserve(1, 0)?;
    let handle = mounted.begin(credits)?;
    // Any change takes the time along.
    locked.change(&handle, |_| {});
    Ok(())
}
