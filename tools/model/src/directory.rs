//! Operations on names: create, link, unlink, rmdir, rename.

use std::collections::BTreeMap;

use crate::tree::{Kind, ModelId, ModelTree};
use crate::{Device, Errno, ModelPath, OpTarget, RenameMode};

const S_ISGID: u16 = 0o2000;

impl ModelTree {
    /// The directory in which the last name of `path` is looked up, and that name. It returns `EBUSY` for the root,
    /// which has no name.
    fn parent<'p>(&self, path: &'p ModelPath) -> Result<(ModelId, &'p [u8]), Errno> {
        let (name, parents) = path.0.split_last().ok_or(Errno::EBUSY)?;
        let directory = self.lookup(&ModelPath(parents.to_vec()))?;
        self.names(directory)?;
        Ok((directory, name))
    }

    fn find_name(&self, directory: ModelId, name: &[u8]) -> Result<Option<ModelId>, Errno> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(self.names(directory)?.get(name).copied())
    }

    fn names_mut(&mut self, directory: ModelId) -> &mut BTreeMap<Vec<u8>, ModelId> {
        match &mut self.change(directory).kind {
            Kind::Directory(names) => names,
            _ => unreachable!("callers looked the directory up with names()"),
        }
    }

    fn is_directory(&self, id: ModelId) -> bool {
        matches!(self.node(id).kind, Kind::Directory(_))
    }

    pub(crate) fn create(
        &mut self,
        path: &ModelPath,
        mode: u16,
        kind: Kind,
    ) -> Result<ModelId, Errno> {
        let (directory, name) = self.parent(path)?;
        if self.find_name(directory, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let id = self.add_under(directory, kind, mode);
        if self.is_directory(id) {
            self.change(directory).links += 1;
        }
        self.names_mut(directory).insert(name.to_vec(), id);
        Ok(id)
    }

    /// Adds a node without a name, which inherits the ACL and, if the directory has the set-group-ID bit, the group.
    fn add_under(&mut self, directory: ModelId, kind: Kind, mode: u16) -> ModelId {
        let (parent_mode, parent_gid) = (self.node(directory).mode, self.node(directory).gid);
        let id = self.add(kind, mode);
        self.inherit_acl(directory, id);
        if parent_mode & S_ISGID != 0 {
            let is_directory = self.is_directory(id);
            let node = self.change(id);
            node.gid = parent_gid;
            if is_directory {
                node.mode |= S_ISGID;
            }
        }
        id
    }

    pub(crate) fn link(&mut self, from: &OpTarget, to: &ModelPath) -> Result<(), Errno> {
        let id = self.find(from)?;
        let (directory, name) = self.parent(to)?;
        if self.find_name(directory, name)?.is_some() {
            return Err(Errno::EEXIST);
        }
        if self.is_directory(id) {
            return Err(Errno::EPERM);
        }
        if self.node(id).links == 0 && !self.node(id).linkable {
            return Err(Errno::ENOENT);
        }
        let node = self.change(id);
        node.links += 1;
        node.linkable = false;
        self.names_mut(directory).insert(name.to_vec(), id);
        Ok(())
    }

    pub(crate) fn unlink(&mut self, path: &ModelPath) -> Result<(), Errno> {
        let (directory, name) = self.parent(path)?;
        let id = self.find_name(directory, name)?.ok_or(Errno::ENOENT)?;
        if self.is_directory(id) {
            return Err(Errno::EISDIR);
        }
        self.names_mut(directory).remove(name);
        self.drop_link(id);
        Ok(())
    }

    pub(crate) fn rmdir(&mut self, path: &ModelPath) -> Result<(), Errno> {
        let (directory, name) = self.parent(path)?;
        let id = self.find_name(directory, name)?.ok_or(Errno::ENOENT)?;
        match &self.node(id).kind {
            Kind::Directory(names) if names.is_empty() => {}
            Kind::Directory(_) => return Err(Errno::ENOTEMPTY),
            _ => return Err(Errno::ENOTDIR),
        }
        self.names_mut(directory).remove(name);
        self.remove_directory(directory, id);
        Ok(())
    }

    fn drop_link(&mut self, id: ModelId) {
        self.change(id).links -= 1;
        self.release(id);
    }

    fn remove_directory(&mut self, parent: ModelId, id: ModelId) {
        self.change(parent).links -= 1;
        self.change(id).links = 0;
        self.release(id);
    }

    pub(crate) fn rename(
        &mut self,
        from: &ModelPath,
        to: &ModelPath,
        flag: RenameMode,
    ) -> Result<(), Errno> {
        let (old_directory, old_name) = self.parent(from)?;
        let (new_directory, new_name) = self.parent(to)?;
        let id = self
            .find_name(old_directory, old_name)?
            .ok_or(Errno::ENOENT)?;
        let target = self.find_name(new_directory, new_name)?;
        match (flag, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        // A directory can't be moved into itself. A directory that holds `from` can't be replaced by it or exchanged
        // with it.
        if self.is_directory(id) && to.0.starts_with(&from.0) && to != from {
            return Err(Errno::EINVAL);
        }
        if target.is_some_and(|target| self.is_directory(target))
            && from.0.starts_with(&to.0)
            && to != from
        {
            return Err(if flag == RenameMode::Exchange {
                Errno::EINVAL
            } else {
                Errno::ENOTEMPTY
            });
        }
        match target {
            Some(target) if target == id => Ok(()),
            Some(target) if flag == RenameMode::Exchange => {
                // A rename sets the ctime of both nodes, so both count as changed.
                self.change(id);
                self.change(target);
                self.names_mut(old_directory)
                    .insert(old_name.to_vec(), target);
                self.names_mut(new_directory).insert(new_name.to_vec(), id);
                let subdirectories = (self.is_directory(id), self.is_directory(target));
                if subdirectories.0 != subdirectories.1 {
                    let (loses, gains) = if subdirectories.0 {
                        (old_directory, new_directory)
                    } else {
                        (new_directory, old_directory)
                    };
                    self.change(loses).links -= 1;
                    self.change(gains).links += 1;
                }
                Ok(())
            }
            _ => {
                self.replaceable(id, target)?;
                self.move_name(
                    (old_directory, old_name),
                    (new_directory, new_name),
                    id,
                    target,
                );
                if flag == RenameMode::Whiteout {
                    let whiteout = Kind::Device(Device::Char(0, 0));
                    let whiteout = self.add_under(old_directory, whiteout, 0);
                    self.names_mut(old_directory)
                        .insert(old_name.to_vec(), whiteout);
                }
                Ok(())
            }
        }
    }

    fn replaceable(&self, id: ModelId, target: Option<ModelId>) -> Result<(), Errno> {
        let Some(target) = target else { return Ok(()) };
        match (self.is_directory(id), &self.node(target).kind) {
            (true, Kind::Directory(names)) if !names.is_empty() => Err(Errno::ENOTEMPTY),
            (true, Kind::Directory(_)) => Ok(()),
            (true, _) => Err(Errno::ENOTDIR),
            (false, Kind::Directory(_)) => Err(Errno::EISDIR),
            (false, _) => Ok(()),
        }
    }

    fn move_name(
        &mut self,
        old: (ModelId, &[u8]),
        new: (ModelId, &[u8]),
        id: ModelId,
        target: Option<ModelId>,
    ) {
        // A rename sets the node's ctime, so it counts as changed.
        self.change(id);
        self.names_mut(old.0).remove(old.1);
        self.names_mut(new.0).insert(new.1.to_vec(), id);
        if self.is_directory(id) {
            self.change(old.0).links -= 1;
            self.change(new.0).links += 1;
        }
        match target {
            Some(target) if self.is_directory(target) => self.remove_directory(new.0, target),
            Some(target) => self.drop_link(target),
            None => {}
        }
    }

    pub(crate) fn open(&mut self, path: &ModelPath, slot: u8) -> Result<(), Errno> {
        let id = self.regular(&OpTarget::Path(path.clone()))?;
        self.close(slot);
        self.slots.insert(slot, id);
        Ok(())
    }

    pub(crate) fn open_temp(
        &mut self,
        directory: &ModelPath,
        slot: u8,
        mode: u16,
    ) -> Result<(), Errno> {
        let directory = self.lookup(directory)?;
        self.names(directory).map_err(|_| Errno::ENOTDIR)?;
        let id = self.add_under(directory, Kind::File(Default::default()), mode);
        let node = self.change(id);
        node.links = 0;
        node.linkable = true;
        self.close(slot);
        self.slots.insert(slot, id);
        Ok(())
    }

    pub(crate) fn close(&mut self, slot: u8) {
        if let Some(id) = self.slots.remove(&slot) {
            self.release(id);
        }
    }
}
