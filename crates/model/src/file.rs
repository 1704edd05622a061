//! Operations on one inode: contents, attributes, extended attributes.

use crate::acl;
use crate::content::{BLOCK, Content};
use crate::tree::{Kind, NodeId, Tree};
use crate::{Errno, Mode, Target, XattrFlag};

const S_ISUID: u16 = 0o4000;
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o0010;

impl Tree {
    /// A regular file's number.
    pub(crate) fn regular(&self, file: &Target) -> Result<NodeId, Errno> {
        let id = self.find(file)?;
        match self.node(id).kind {
            Kind::File(_) => Ok(id),
            Kind::Directory(_) => Err(Errno::EISDIR),
            Kind::Symlink(_) => Err(Errno::ELOOP),
            Kind::Device(_) => Err(Errno::EINVAL),
        }
    }

    /// The contents of a regular file, to change.
    pub(crate) fn content(&mut self, file: &Target) -> Result<&mut Content, Errno> {
        let id = self.regular(file)?;
        match &mut self.change(id).kind {
            Kind::File(content) => Ok(content),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(crate) fn fallocate(
        &mut self,
        file: &Target,
        mode: Mode,
        offset: u64,
        len: u64,
    ) -> Result<(), Errno> {
        if let Kind::File(content) = &self.node(self.find(file)?).kind
            && mode == Mode::Punch
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
            Mode::Collapse if !whole || end >= content.size() => return Err(Errno::EINVAL),
            Mode::Insert if !whole || offset >= content.size() => return Err(Errno::EINVAL),
            Mode::Allocate => {
                content.allocate(offset, len);
                content.grow(end);
            }
            Mode::KeepSize => content.allocate(offset, len),
            Mode::Punch => {
                // Linux leaves what was allocated beyond the block that holds the end.
                let end = end.min(content.size().next_multiple_of(BLOCK));
                content.punch(offset, end - offset);
            }
            Mode::Zero => {
                content.zero(offset, len);
                content.grow(end);
            }
            Mode::ZeroKeepSize => content.zero(offset, len),
            Mode::Collapse => content.collapse(offset, len),
            Mode::Insert => content.insert(offset, len),
        }
        Ok(())
    }

    /// Whether what is to be allocated is, and the file as long as it is to be.
    fn has_room(&self, file: &Target, mode: Mode, offset: u64, len: u64) -> Result<bool, Errno> {
        let id = self.regular(file)?;
        let Kind::File(content) = &self.node(id).kind else {
            return Ok(false);
        };
        let end = offset + len;
        let mut blocks = offset / BLOCK..end.div_ceil(BLOCK);
        Ok(match mode {
            Mode::Allocate => end <= content.size(),
            Mode::KeepSize => true,
            _ => false,
        } && blocks.all(|block| content.is_allocated(block)))
    }

    pub(crate) fn set_xattr(
        &mut self,
        file: &Target,
        name: &[u8],
        value: &[u8],
        flag: XattrFlag,
    ) -> Result<(), Errno> {
        if acl::is_acl(name) {
            return self.set_acl(file, name, Some(value));
        }
        let id = self.find(file)?;
        self.may_have_xattr(file, name)?;
        let exists = self.node(id).xattrs.contains_key(name);
        match flag {
            XattrFlag::Create if exists => return Err(Errno::EEXIST),
            XattrFlag::Replace if !exists => return Err(Errno::ENODATA),
            _ => {}
        }
        self.change(id).xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, file: &Target, name: &[u8]) -> Result<(), Errno> {
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
    fn may_have_xattr(&self, file: &Target, name: &[u8]) -> Result<(), Errno> {
        let kind = &self.node(self.find(file)?).kind;
        if name.starts_with(b"user.") && !matches!(kind, Kind::File(_) | Kind::Directory(_)) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    pub(crate) fn chmod(&mut self, file: &Target, mode: u16) -> Result<(), Errno> {
        let id = self.find(file)?;
        if matches!(self.node(id).kind, Kind::Symlink(_)) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.change(id).mode = mode & 0o7777;
        self.acl_follows(id);
        Ok(())
    }

    pub(crate) fn chown(&mut self, file: &Target, uid: u32, gid: u32) -> Result<(), Errno> {
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
