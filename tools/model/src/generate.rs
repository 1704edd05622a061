//! Operations from a seed: objects are chosen by index into the tree and names from a tiny alphabet, so that
//! operations meet each other, and a shorter history stays a meaningful one.

use crate::acl;
use crate::content::BLOCK;
use crate::{
    Device, FallocateMode, Kind, ModelPath, ModelTree, Op, OpTarget, Random, RenameMode,
    XattrCondition,
};

/// How large things get.
#[derive(Clone, Copy, Debug)]
pub struct SizeProfile {
    /// How many different names a directory may hold.
    pub names: u64,
    /// How deep directories nest.
    pub depth: usize,
    /// Blocks of [`BLOCK`] bytes that a file may have.
    pub blocks: u64,
    /// Slots for open files.
    pub slots: u8,
}

impl Default for SizeProfile {
    fn default() -> SizeProfile {
        SizeProfile {
            names: 4,
            depth: 3,
            blocks: 12,
            slots: 3,
        }
    }
}

/// Makes operations from a seed.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Random,
    profile: SizeProfile,
}

impl Generator {
    /// The same seed and profile give the same operations on the same trees.
    #[must_use]
    pub fn new(seed: u64, profile: SizeProfile) -> Generator {
        Generator {
            random: Random::new(seed),
            profile,
        }
    }

    /// The next operation, which mostly succeeds on `tree`.
    pub fn next(&mut self, tree: &ModelTree) -> Op {
        match self.random.below(100) {
            0..=29 => self.name_op(tree),
            30..=44 => self.remove_op(tree),
            45..=69 => self.content_op(tree),
            70..=84 => self.attribute_op(tree),
            85..=92 => self.slot_op(tree),
            _ => self.sync_op(tree),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        match self.random.below(40) {
            0 => vec![b'x'; 255],
            1 => vec![b'x'; 256],
            _ => format!("n{}", self.random.below(self.profile.names)).into_bytes(),
        }
    }

    fn existing(&mut self, tree: &ModelTree, wanted: impl Fn(&Kind) -> bool) -> Option<ModelPath> {
        let found: Vec<ModelPath> = tree
            .walk()
            .into_iter()
            .filter(|(_, id)| wanted(&tree.node(*id).kind))
            .map(|(path, _)| path)
            .collect();
        (!found.is_empty()).then(|| self.random.pick(&found).clone())
    }

    fn directory(&mut self, tree: &ModelTree) -> ModelPath {
        self.existing(tree, |kind| matches!(kind, Kind::Directory(_)))
            .unwrap_or(ModelPath(Vec::new()))
    }

    /// A name that may or may not exist, now and then below something that is not a directory.
    fn place(&mut self, tree: &ModelTree) -> ModelPath {
        let mut parent = if self.random.one_in(30) {
            self.any(tree)
        } else {
            self.directory(tree)
        };
        parent.0.truncate(self.profile.depth - 1);
        let name = self.name();
        parent.join(&name)
    }

    /// Any existing name but the root.
    fn any(&mut self, tree: &ModelTree) -> ModelPath {
        let names: Vec<ModelPath> = tree
            .walk()
            .into_iter()
            .skip(1)
            .map(|(path, _)| path)
            .collect();
        if names.is_empty() || self.random.one_in(20) {
            let name = self.name();
            return ModelPath(vec![name]);
        }
        self.random.pick(&names).clone()
    }

    fn file(&mut self, tree: &ModelTree) -> OpTarget {
        if self.random.one_in(4) {
            return OpTarget::Slot(self.slot());
        }
        let wanted = if self.random.one_in(20) {
            Some(self.any(tree))
        } else {
            self.existing(tree, |kind| matches!(kind, Kind::File(_)))
        };
        OpTarget::Path(wanted.unwrap_or_else(|| ModelPath::new("n0")))
    }

    fn any_target(&mut self, tree: &ModelTree) -> OpTarget {
        if self.random.one_in(5) {
            OpTarget::Slot(self.slot())
        } else {
            OpTarget::Path(self.any(tree))
        }
    }

    fn slot(&mut self) -> u8 {
        u8::try_from(self.random.below(self.profile.slots.into())).unwrap_or(0)
    }

    fn mode(&mut self) -> u16 {
        *self
            .random
            .pick(&[0o644, 0o755, 0o600, 0o777, 0o2755, 0o4711, 0o1777, 0])
    }

    fn name_op(&mut self, tree: &ModelTree) -> Op {
        let (path, mode) = (self.place(tree), self.mode());
        match self.random.below(12) {
            0..=3 => Op::Create { path, mode },
            4..=5 => Op::Mkdir { path, mode },
            6 => {
                let devices = [
                    Device::Fifo,
                    Device::Socket,
                    Device::Char(1, 3),
                    Device::Block(259, 70_000),
                ];
                Op::Mknod {
                    path,
                    mode,
                    device: *self.random.pick(&devices),
                }
            }
            7 => {
                let mut target = b"/nowhere/".to_vec();
                // Fast links hold at most 59 bytes.
                let len = *self.random.pick(&[1, 50, 51, 200, 1000]);
                target.resize(target.len() + len, b't');
                Op::Symlink { path, target }
            }
            8..=9 => Op::Link {
                from: self.any_target(tree),
                to: path,
            },
            _ => self.rename_op(tree, path),
        }
    }

    fn rename_op(&mut self, tree: &ModelTree, to: ModelPath) -> Op {
        let flag = *self.random.pick(&[
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            RenameMode::Whiteout,
        ]);
        let to = if self.random.one_in(2) {
            self.any(tree)
        } else {
            to
        };
        Op::Rename {
            from: self.any(tree),
            to,
            flag,
        }
    }

    fn remove_op(&mut self, tree: &ModelTree) -> Op {
        let path = self.any(tree);
        match self.random.below(5) {
            0 => Op::Rmdir {
                path: self
                    .existing(tree, |kind| matches!(kind, Kind::Directory(_)))
                    .filter(|path| !path.0.is_empty())
                    .unwrap_or(path),
            },
            1 => {
                let to = self.place(tree);
                self.rename_op(tree, to)
            }
            _ => Op::Unlink { path },
        }
    }

    fn content_op(&mut self, tree: &ModelTree) -> Op {
        let file = self.file(tree);
        let limit = self.profile.blocks * BLOCK;
        let (offset, len) = (self.random.below(limit), self.random.below(3 * BLOCK));
        match self.random.below(10) {
            0..=4 => {
                let fill = self.random.bits();
                let bytes = (0..len)
                    .map(|at| (fill.rotate_left((at % 61) as u32) as u8).max(1))
                    .collect();
                Op::Write {
                    file,
                    offset,
                    bytes,
                }
            }
            5..=6 => Op::Truncate {
                file,
                size: if self.random.one_in(4) { 0 } else { offset },
            },
            _ => {
                let modes = [
                    FallocateMode::Allocate,
                    FallocateMode::KeepSize,
                    FallocateMode::Punch,
                    FallocateMode::Zero,
                    FallocateMode::ZeroKeepSize,
                    FallocateMode::Collapse,
                    FallocateMode::Insert,
                ];
                let mode = *self.random.pick(&modes);
                let whole = !self.random.one_in(5)
                    && matches!(mode, FallocateMode::Collapse | FallocateMode::Insert);
                let round = if whole { BLOCK } else { 1 };
                Op::Fallocate {
                    file,
                    mode,
                    offset: offset / round * round,
                    len: len / round * round,
                }
            }
        }
    }

    fn attribute_op(&mut self, tree: &ModelTree) -> Op {
        let file = self.any_target(tree);
        match self.random.below(5) {
            0 => Op::Chmod {
                file,
                mode: self.mode(),
            },
            1 => Op::Chown {
                file,
                uid: self.random.below(3) as u32,
                gid: self.random.below(70_000) as u32,
            },
            2 if self.random.one_in(2) => self.acl_op(tree),
            kind => {
                let name = self
                    .random
                    .pick(&["user.a", "user.long-name", "trusted.b"])
                    .as_bytes()
                    .to_vec();
                if kind == 2 {
                    return Op::RemoveXattr { file, name };
                }
                let len = *self.random.pick(&[0_usize, 1, 4, 30, 200]);
                let value = vec![self.random.bits() as u8; len];
                let flag = *self.random.pick(&[
                    XattrCondition::Any,
                    XattrCondition::Any,
                    XattrCondition::Create,
                    XattrCondition::Replace,
                ]);
                Op::SetXattr {
                    file,
                    name,
                    value,
                    flag,
                }
            }
        }
    }

    fn acl_op(&mut self, tree: &ModelTree) -> Op {
        let is_default = self.random.one_in(2);
        let file = if is_default && !self.random.one_in(8) {
            OpTarget::Path(self.directory(tree))
        } else {
            self.any_target(tree)
        };
        let name = if is_default {
            acl::DEFAULT.to_vec()
        } else {
            acl::ACCESS.to_vec()
        };
        if self.random.one_in(4) {
            return Op::RemoveXattr { file, name };
        }
        let named = self
            .random
            .one_in(2)
            .then_some((7, self.random.bits() as u16));
        Op::SetXattr {
            file,
            name,
            value: acl::encode(self.mode(), named),
            flag: XattrCondition::Any,
        }
    }

    fn slot_op(&mut self, tree: &ModelTree) -> Op {
        let slot = self.slot();
        match self.random.below(4) {
            0 => Op::OpenTemp {
                directory: self.directory(tree),
                slot,
                mode: self.mode(),
            },
            1 => Op::Close { slot },
            _ => match self.existing(tree, |kind| matches!(kind, Kind::File(_))) {
                Some(path) => Op::Open { path, slot },
                None => Op::Close { slot },
            },
        }
    }

    fn sync_op(&mut self, tree: &ModelTree) -> Op {
        match self.random.below(5) {
            0 => Op::Sync,
            1 => Op::Fsync {
                file: OpTarget::Path(self.directory(tree)),
            },
            2 => Op::Fdatasync {
                file: self.file(tree),
            },
            _ => Op::Fsync {
                file: self.file(tree),
            },
        }
    }
}
