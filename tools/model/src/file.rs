//! Operations on one inode: contents, attributes, extended attributes.

use crate::acl;
use crate::content::{BLOCK, FileBytes};
use crate::tree::{Kind, ModelId, ModelTree};
use crate::{Errno, FallocateMode, OpTarget, XattrCondition};

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o0010;

impl ModelTree {
    /// A regular file's number.
    pub(crate) fn regular(&self, file: &OpTarget) -> Result<ModelId, Errno> {
        let id = self.find(file)?;
        match self.node(id).kind {
            Kind::File(_) => Ok(id),
            Kind::Directory(_) => Err(Errno::EISDIR),
            Kind::Symlink(_) => Err(Errno::ELOOP),
            Kind::Device(_) => Err(Errno::EINVAL),
        }
    }

    /// The contents of a regular file, to change.
    pub(crate) fn content(&mut self, file: &OpTarget) -> Result<&mut FileBytes, Errno> {
        let id = self.regular(file)?;
        match &mut self.change(id).kind {
            Kind::File(content) => Ok(content),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn fallocate(
        &mut self,
        file: &OpTarget,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        if let Kind::File(content) = &self.node(self.find(file)?).kind
            && mode == FallocateMode::Punch
            && offset >= content.size()
            && len > 0
        {
            // Linux leaves what is allocated behind the end, and the inode's times with it.
            return Ok(());
        }
        if len > 0 && self.has_room(file, mode, offset, len)? {
            // All is there already: nothing changes that fsync could promise.
            return Ok(());
        }
        let content = self.content(file)?;
        let end = offset + len;
        let whole = offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK);
        match mode {
            _ if len == 0 => return Err(Errno::EINVAL),
            FallocateMode::Collapse if !whole || end >= content.size() => {
                return Err(Errno::EINVAL);
            }
            FallocateMode::Insert if !whole || offset >= content.size() => {
                return Err(Errno::EINVAL);
            }
            FallocateMode::Allocate => {
                content.allocate(offset, len);
                content.grow(end);
            }
            FallocateMode::KeepSize => content.allocate(offset, len),
            FallocateMode::Punch => {
                // Linux leaves what was allocated beyond the block that holds the end.
                let end = end.min(content.size().next_multiple_of(BLOCK));
                content.punch(offset, end - offset);
            }
            FallocateMode::Zero => {
                content.zero(offset, len);
                content.grow(end);
            }
            FallocateMode::ZeroKeepSize => content.zero(offset, len),
            FallocateMode::Collapse => content.collapse(offset, len),
            FallocateMode::Insert => content.insert(offset, len),
        }
        Ok(())
    }

    /// Whether what is to be allocated is, and the file as long as it is to be.
    fn has_room(
        &self,
        file: &OpTarget,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<bool, Errno> {
        let id = self.regular(file)?;
        let Kind::File(content) = &self.node(id).kind else {
            return Ok(false);
        };
        let end = offset + len;
        let mut blocks = offset / BLOCK..end.div_ceil(BLOCK);
        Ok(match mode {
            FallocateMode::Allocate => end <= content.size(),
            FallocateMode::KeepSize => true,
            _ => false,
        } && blocks.all(|block| content.is_allocated(block)))
    }

    pub(crate) fn set_xattr(
        &mut self,
        file: &OpTarget,
        name: &[u8],
        value: &[u8],
        flag: XattrCondition,
    ) -> Result<(), Errno> {
        if acl::is_acl(name) {
            return self.set_acl(file, name, Some(value));
        }
        let id = self.find(file)?;
        self.may_have_xattr(file, name)?;
        let exists = self.node(id).xattrs.contains_key(name);
        match flag {
            XattrCondition::Create if exists => return Err(Errno::EEXIST),
            XattrCondition::Replace if !exists => return Err(Errno::ENODATA),
            _ => {}
        }
        self.change(id).xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, file: &OpTarget, name: &[u8]) -> Result<(), Errno> {
        if acl::is_acl(name) {
            return self.set_acl(file, name, None);
        }
        let id = self.find(file)?;
        self.may_have_xattr(file, name)?;
        if !self.node(id).xattrs.contains_key(name) {
            return Err(Errno::ENODATA);
        }
        self.change(id).xattrs.remove(name);
        Ok(())
    }

    /// `user.` attributes belong to files and directories only.
    fn may_have_xattr(&self, file: &OpTarget, name: &[u8]) -> Result<(), Errno> {
        let kind = &self.node(self.find(file)?).kind;
        if name.starts_with(b"user.") && !matches!(kind, Kind::File(_) | Kind::Directory(_)) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    pub(crate) fn chmod(&mut self, file: &OpTarget, mode: u16) -> Result<(), Errno> {
        let id = self.find(file)?;
        if matches!(self.node(id).kind, Kind::Symlink(_)) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.change(id).mode = mode & 0o7777;
        self.acl_follows(id);
        Ok(())
    }

    pub(crate) fn chown(&mut self, file: &OpTarget, uid: u32, gid: u32) -> Result<(), Errno> {
        let id = self.find(file)?;
        let node = self.change(id);
        (node.uid, node.gid) = (uid, gid);
        if !matches!(node.kind, Kind::Directory(_)) {
            node.mode &= !S_ISUID;
            if node.mode & S_IXGRP != 0 {
                node.mode &= !S_ISGID;
            }
        }
        Ok(())
    }
}
