//! What the kernel writes back from its cache: the pages of mappings, and with the writeback cache everything that
//! programs write.
//!
//! The writeback cache makes the kernel the owner of the sizes and times of regular files: it ignores those that it is
//! told, and sends times by SETATTR. It may hold changes of a file only while the file is open to be written, because
//! it writes them before each RELEASE.
//!
//! What a crash leaves: without the changes that the kernel holds, the file as it was written last.

use std::collections::HashMap;

use lanefs::{CommitDelay, Flags, Ino, InodeFs, RenameFlag, SetAttributes, SetTime};
use rustix::io::Errno;
use sync::clock::Duration;
use sync::{Arc, Hint, Mutex, Rank};

use super::{MountedImage, errno};
use crate::operations::{Answer, Named};

/// How long a rename holds commits back at most.
const HOLD_MOST: Duration = Duration::from_secs(1);

/// Files that were renamed over another name while the kernel might hold changes of them: commits wait until the file
/// is synced or closed, after which the image has the changes, or for [`HOLD_MOST`].
///
/// The two files of an exchange share one delay: a second one could not begin while a commit waits for the first.
///
/// The lock is held briefly. There are at most as many entries as files that are open for writing.
pub(super) struct HeldFiles {
    /// Whether `files` has any, or had.
    is_used: Hint<bool>,
    /// [leaf]
    files: Mutex<HashMap<u32, Vec<Arc<CommitDelay>>>>,
}

impl HeldFiles {
    pub(super) fn new() -> HeldFiles {
        HeldFiles {
            is_used: Hint::new(false),
            files: Mutex::new(Rank::Leaf, HashMap::new()),
        }
    }

    /// Holds commits back for these files.
    pub(super) fn begin(&self, fs: &InodeFs, files: &[Ino]) {
        let Some(delay) = fs.delay_commits(HOLD_MOST).map(Arc::new) else {
            return;
        };
        let mut held = self.files.lock();
        for ino in files {
            held.entry(ino.0).or_default().push(Arc::clone(&delay));
        }
        self.is_used.set(true);
    }

    /// A file was synced or closed. A delay ends with the last of its files.
    pub(super) fn end(&self, fs: &InodeFs, ino: Ino) {
        if !self.is_used.get() {
            return;
        }
        let ended = {
            let mut files = self.files.lock();
            let ended = files.remove(&ino.0);
            self.is_used.set(!files.is_empty());
            ended
        };
        ended
            .into_iter()
            .flatten()
            .filter_map(Arc::into_inner)
            .for_each(|delay| fs.end_delay(delay));
    }
}

impl MountedImage {
    /// Writes all of the bytes, or fails: the kernel does not look at how many were written.
    pub(super) fn write_back(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Answer<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.write_bytes(ino, offset + done as u64, &bytes[done..]) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => done += written,
                Err(Errno::PERM) => {
                    done += self.append(ino, offset + done as u64, &bytes[done..])?
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes pages of an append-only file, which begin with bytes that the file has.
    fn append(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Answer<usize> {
        let fs = self.fs.inodes();
        let metadata = fs.metadata(ino).map_err(errno)?;
        let known = metadata.size.saturating_sub(offset).min(bytes.len() as u64) as usize;
        if !metadata.flags.contains(Flags::APPEND) || known == 0 {
            return Err(Errno::PERM);
        }
        let mut old = vec![0; known];
        let found = fs.read_noatime(ino, offset, &mut old).map_err(errno)?;
        if found == known && old == bytes[..known] {
            Ok(known)
        } else {
            Err(Errno::PERM)
        }
    }

    /// The files that a rename would move over another name, and of which the kernel may hold changes.
    pub(super) fn moved_unwritten(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        flag: RenameFlag,
    ) -> Vec<Ino> {
        if !self.agreed.writeback || flag == RenameFlag::NoReplace {
            return Vec::new();
        }
        let fs = self.fs.inodes();
        let found = |at: Named<'_>| fs.lookup(at.directory, at.name);
        let (Ok(moved), Ok(replaced)) = (found(from), found(to)) else {
            return Vec::new();
        };
        let mut files = vec![moved];
        if flag == RenameFlag::Exchange {
            files.push(replaced);
        }
        files.retain(|ino| self.lookups.is_open_to_write(*ino));
        files
    }

    /// Whether a change is that of times by which the kernel reports writes. A file that must not change otherwise has
    /// its times from the writes themselves.
    pub(super) fn are_times_of_writes(&self, change: &SetAttributes) -> bool {
        let times = SetAttributes {
            mtime: change.mtime,
            ctime: change.ctime,
            ..SetAttributes::default()
        };
        self.agreed.writeback
            && matches!(change.mtime, Some(SetTime::At(_)))
            && change.ctime.is_some()
            && *change == times
    }
}
