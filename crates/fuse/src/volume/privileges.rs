//! Changes of attributes, and the set-user-ID and set-group-ID bits that a change of a file takes off.

use lanefs::{FileType, Flags, FsError, Ino, SetAttributes, SetTime};

use super::MountedImage;
use crate::callers::{
    GROUP_EXECUTES, SET_GID, SET_UID, costs_set_gid, is_privileged_or_in, privileges_lost,
};
use crate::operations::{Answer, Caller, New, Operations, Setting};

/// The name of the ACL that grants access to a file.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// What chmod changes.
const PERMISSIONS: u16 = 0o7777;

/// Whether a change changes nothing but the time of change.
fn is_empty_but_ctime(change: &SetAttributes) -> bool {
    let nothing = SetAttributes {
        ctime: change.ctime,
        ..SetAttributes::default()
    };
    *change == nothing
}

impl MountedImage {
    pub(super) fn set_attributes(
        &self,
        ino: Ino,
        change: &SetAttributes,
        caller: Caller,
        unprivileged: bool,
    ) -> Result<(), FsError> {
        let fs = self.fs.inodes();
        let mut change = *change;
        let is_given_away = change.uid.is_some() || change.gid.is_some();
        // The kernel sends a request without any attribute if it leaves it to us to take the bits off. It does so
        // before a write, where `take_bits` takes them off, and for chown(-1, -1), which only the owner and root
        // may call. So such a request takes them off here only if it comes from these.
        let is_empty = is_empty_but_ctime(&change);
        let mut is_append_only = false;
        if change.size.is_some() || is_given_away || is_empty {
            let now = fs.metadata(ino)?;
            is_append_only = now.flags.contains(Flags::APPEND);
            // Truncating to the same size also sets the modification time.
            if change.size == Some(now.size) && change.mtime.is_none() {
                change.mtime = Some(SetTime::Now);
            }
            // Root's chown(-1, -1) takes them off only if the kernel leaves all of this to us.
            let may_change = || {
                let caller = self.identified(caller);
                let is_root = self.agreed.takes_privileges && caller.uid == 0;
                is_root || caller.uid == now.uid
            };
            let is_by_size = !is_given_away && !is_empty;
            let keeps_all = self.agreed.takes_privileges && is_by_size && !unprivileged;
            let lost = self.bits_lost(caller, now.mode, now.gid);
            let is_file = now.file_type != FileType::Directory;
            if lost != 0 && !keeps_all && is_file && (!is_empty || may_change()) {
                change.mode = Some(change.mode.unwrap_or(now.mode) & PERMISSIONS & !lost);
            }
        }
        // A chown to the same owner also sets the time of change, as in ext4.
        if is_empty_but_ctime(&change) {
            if is_append_only {
                return Ok(());
            }
            change.mode = Some(fs.mode_and_group(ino)?.0 & PERMISSIONS);
        }
        fs.set_attributes(ino, &change)
    }

    /// The bits that a change by this caller takes off a file with this mode and group. Without `takes_privileges` the
    /// kernel takes set-user-ID off itself.
    fn bits_lost(&self, caller: Caller, mode: u16, gid: u32) -> u16 {
        // The caller decides only about set-group-ID of a file that its group may not execute. If a mount maps users,
        // its groups are compared with the one in the image all the same.
        let caller = if mode & (SET_GID | GROUP_EXECUTES) == SET_GID {
            self.identified(caller)
        } else {
            caller
        };
        if self.agreed.takes_privileges {
            privileges_lost(caller, mode, gid)
        } else if costs_set_gid(caller, mode, gid) {
            SET_GID
        } else {
            0
        }
    }

    /// Whether a new file that its group may execute loses set-group-ID: in a set-group-ID directory it does, unless
    /// the caller is privileged or in the directory's group. Linux 6.0 and newer see to that themselves.
    pub(super) fn set_gid_goes(&self, directory: Ino, new: New<'_>) -> Result<bool, FsError> {
        let both = SET_GID | GROUP_EXECUTES;
        // A kernel that maps users is newer, and the request has the new inode's owner instead of the caller.
        if new.mode & both != both || self.agreed.maps_ids {
            return Ok(false);
        }
        let (mode, gid) = self.fs.inodes().mode_and_group(directory)?;
        let is_in = new.extension.has_group(gid) || is_privileged_or_in(new.caller, gid);
        Ok(mode & SET_GID != 0 && !is_in)
    }

    /// Whether setting an access ACL takes set-group-ID off: yes, unless the caller is privileged or in the file's
    /// group.
    pub(super) fn acl_costs_set_gid(
        &self,
        ino: Ino,
        what: Setting<'_>,
        caller: Caller,
    ) -> Answer<bool> {
        if what.name == ACCESS_ACL && self.agreed.checks_acls {
            return Ok(what.takes_set_gid);
        }
        let may_lose = what.name == ACCESS_ACL && caller.uid != 0;
        Ok(may_lose && !is_privileged_or_in(caller, self.attributes(ino)?.gid))
    }

    /// Does what [`MountedImage::take_bits`] does, unless the caller is privileged, for a request that does not say
    /// whether it is.
    pub(super) fn before_changing_content(&self, ino: Ino, caller: Caller) -> Result<(), FsError> {
        let (mode, _) = self.fs.inodes().mode_and_group(ino)?;
        if mode & (SET_UID | SET_GID) == 0 || self.identified(caller).uid == 0 {
            return Ok(());
        }
        self.take_bits(ino, caller)
    }

    /// Takes set-group-ID, and set-user-ID if the kernel leaves that to us, off a file whose content a caller without
    /// privileges is about to change. The kernel lets no other process change the file's mode meanwhile.
    pub(super) fn take_bits(&self, ino: Ino, caller: Caller) -> Result<(), FsError> {
        let fs = self.fs.inodes();
        // `metadata` would count as a look at the times, and make the next write set them again.
        let (mode, gid) = fs.mode_and_group(ino)?;
        let lost = self.bits_lost(caller, mode, gid);
        if lost == 0 {
            return Ok(());
        }
        let without = SetAttributes {
            mode: Some(mode & PERMISSIONS & !lost),
            ..SetAttributes::default()
        };
        fs.set_attributes(ino, &without)?;
        // The answer to a write does not carry the mode.
        self.attributes_changed(ino);
        Ok(())
    }
}
