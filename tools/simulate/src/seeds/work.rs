//! What the threads of random work do next: operations of the model, drawn from each thread's own numbers.

use model::{
    Device, FallocateMode, ModelPath, Op, OpTarget, Random, RenameMode, XattrCondition, acl,
};

use super::DIRECTORIES;
use crate::image::Profile;
use crate::setting::Focus;

/// The work of one thread.
pub(super) struct Work {
    pub(super) thread: usize,
    pub(super) random: Random,
    pub(super) profile: Profile,
    /// Bytes of every name, at least.
    pub(super) name_bytes: usize,
    /// Whether it switches the forms of mechanisms now and then.
    pub(super) is_switching: bool,
    /// Whether it mostly changes files and fsyncs them.
    pub(super) is_syncing: bool,
    /// Whether, of those that mostly fsync, two do so with the first one's files.
    pub(super) is_following: bool,
    /// Whether all of it is about the first thread's first file, and what becomes of that.
    pub(super) focus: Option<Focus>,
    /// How long that was made so far.
    pub(super) end: u64,
    /// Whether this thread has it open.
    pub(super) has_opened: bool,
}

/// The first of the slots, one a thread, for files that another thread writes.
pub(super) const OTHERS: u8 = 16;

impl Work {
    fn directory(&mut self) -> ModelPath {
        let count = match (self.is_syncing, self.name_bytes > 0) {
            (true, _) => 2,
            (false, true) => 3,
            (false, false) => 6,
        };
        let name: &&str = self.random.pick(&DIRECTORIES[..count]);
        ModelPath::new(name)
    }

    /// A name of a thread's family.
    pub(super) fn own(&mut self, thread: usize) -> ModelPath {
        if self.focus.is_some() {
            return ModelPath::new(DIRECTORIES[0]).join(format!("t{thread}").as_bytes());
        }
        let name = format!("t{thread}{}", self.random.below(2));
        let name = self.padded(name);
        self.directory().join(&name)
    }

    /// A name that no thread opens.
    fn shared(&mut self) -> ModelPath {
        let name = format!("n{}", self.random.below(3));
        let name = self.padded(name);
        self.directory().join(&name)
    }

    /// Long names fill a directory's blocks, so that few of them make an index and split its leaves.
    fn padded(&self, name: String) -> Vec<u8> {
        let mut name = name.into_bytes();
        name.resize(name.len().max(self.name_bytes), b'x');
        name
    }

    /// Any thread's name, or a shared one.
    fn any(&mut self) -> ModelPath {
        match self.random.below(6) as usize {
            thread if thread < 4 => self.own(thread),
            _ => self.shared(),
        }
    }

    fn slot(&mut self) -> u8 {
        // Two slots a thread, and few threads.
        (2 * self.thread as u64 + self.random.below(2)) as u8
    }

    fn file(&mut self) -> OpTarget {
        OpTarget::Slot(self.slot())
    }

    pub(super) fn next(&mut self) -> Op {
        if self.is_syncing {
            return self.next_syncing();
        }
        match self.random.below(100) {
            0..24 => self.make(),
            24..34 => Op::Unlink { path: self.any() },
            34..38 => Op::Rmdir {
                path: self.shared(),
            },
            38..50 => self.rename(),
            50..78 => self.data(),
            78..86 => self.attribute(),
            86..94 => self.open(),
            _ => self.sync(),
        }
    }

    fn next_syncing(&mut self) -> Op {
        if let Some(focus) = self.focus {
            return self.next_about_one(focus);
        }
        match (self.is_following, self.thread) {
            (true, 0) => return self.next_followed(),
            (true, 2) if self.random.one_in(2) => return Op::Sync,
            (true, 1 | 3) => return self.next_following(),
            _ => {}
        }
        match self.random.below(100) {
            0..40 => self.data(),
            40..55 => Op::Fsync { file: self.file() },
            55..60 => Op::Fdatasync { file: self.file() },
            60..70 => self.rename(),
            70..74 => Op::Unlink { path: self.any() },
            74..82 => self.make(),
            82..86 => self.open(),
            86..96 => Op::Sync,
            _ => self.sync(),
        }
    }

    /// One file: the first thread changes it, the third one mostly syncs all, the others fsync it.
    fn next_about_one(&mut self, focus: Focus) -> Op {
        // Few threads.
        let slot = OTHERS + self.thread as u8;
        let (mine, theirs) = (OpTarget::Slot(2 * self.thread as u8), OpTarget::Slot(slot));
        let draw = self.random.below(10);
        match (self.thread, draw) {
            (0, 0) => Op::Fsync { file: mine },
            (0, 1) => self.longer(mine),
            (0, 2) => self.again(mine),
            (0, _) if focus == Focus::Grows => self.longer(mine),
            (0, _) => self.again(mine),
            _ if !self.has_opened => Op::Open {
                path: self.own(0),
                slot,
            },
            (2, 0..6) if focus == Focus::Grows => Op::Sync,
            (2, 0) => Op::Sync,
            (_, 6) => Op::Fdatasync { file: theirs },
            _ => Op::Fsync { file: theirs },
        }
    }

    /// Writes what lies behind all that was written so far.
    fn longer(&mut self, file: OpTarget) -> Op {
        let offset = self.end;
        self.end += 1 + self.random.below(2 * self.profile.unit);
        self.write(file, offset, self.end - offset)
    }

    /// Writes over what was written.
    fn again(&mut self, file: OpTarget) -> Op {
        let offset = self.random.below(self.end.max(1));
        let len = 1 + self.random.below(self.end.max(1) - offset);
        self.end = self.end.max(offset + len);
        self.write(file, offset, len)
    }

    fn write(&mut self, file: OpTarget, offset: u64, len: u64) -> Op {
        let byte = 1 + (self.random.bits() % 255) as u8;
        Op::Write {
            file,
            offset,
            bytes: vec![byte; usize::try_from(len).unwrap_or(1)],
        }
    }

    /// Changes files that others fsync.
    fn next_followed(&mut self) -> Op {
        match self.random.below(10) {
            0..7 => self.data(),
            7 => self.rename(),
            8 => self.make(),
            _ => Op::Fsync { file: self.file() },
        }
    }

    /// Fsyncs what the first thread changes.
    fn next_following(&mut self) -> Op {
        // Few threads.
        let slot = OTHERS + self.thread as u8;
        let file = OpTarget::Slot(slot);
        match self.random.below(10) {
            0..3 => Op::Open {
                path: self.own(0),
                slot,
            },
            3..9 => Op::Fsync { file },
            _ => Op::Fdatasync { file },
        }
    }

    fn make(&mut self) -> Op {
        let mode = *self.random.pick(&[0o644, 0o755, 0o2711]);
        match self.random.below(12) {
            0..5 => Op::Create {
                path: self.own(self.thread),
                mode,
            },
            5..7 => Op::Mkdir {
                path: self.shared(),
                mode,
            },
            7 => Op::Mknod {
                path: self.shared(),
                mode,
                device: *self.random.pick(&[Device::Fifo, Device::Char(1, 3)]),
            },
            8..10 => Op::Symlink {
                path: self.shared(),
                target: vec![b't'; *self.random.pick(&[20, 59, 60, 300])],
            },
            _ => Op::Link {
                from: self.file(),
                to: self.own(self.thread),
            },
        }
    }

    fn rename(&mut self) -> Op {
        let flags = [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ];
        let flag = *self.random.pick(&flags);
        let (from, to) = match self.random.below(6) as usize {
            thread if thread < 4 => (self.own(thread), self.own(thread)),
            _ => (self.shared(), self.shared()),
        };
        Op::Rename { from, to, flag }
    }

    fn data(&mut self) -> Op {
        let file = self.file();
        let limit = 6 * self.profile.unit.max(2048);
        let offset = self.random.below(limit);
        match self.random.below(10) {
            0..5 => {
                let len = 1 + self.random.below(self.longest());
                self.write(file, offset, len)
            }
            5..7 => Op::Truncate {
                file,
                size: *self.random.pick(&[0, offset, offset / 2]),
            },
            _ => self.fallocate(file, offset),
        }
    }

    /// Bytes of the longest range of an operation: longer on an image that is nearly full.
    fn longest(&self) -> u64 {
        match self.profile.left {
            Some(_) => 8 * self.profile.unit,
            None => 2 * self.profile.unit,
        }
    }

    fn fallocate(&mut self, file: OpTarget, offset: u64) -> Op {
        let modes = [
            FallocateMode::Punch,
            FallocateMode::Allocate,
            FallocateMode::KeepSize,
            FallocateMode::Zero,
            FallocateMode::ZeroKeepSize,
            FallocateMode::Collapse,
            FallocateMode::Insert,
        ];
        let mode = match (self.profile.has_extents, self.profile.left) {
            // How much of the others is done before space ends can't be seen from outside.
            (true, Some(_)) => *self.random.pick(&[
                FallocateMode::KeepSize,
                FallocateMode::Allocate,
                FallocateMode::Insert,
                FallocateMode::Punch,
            ]),
            (true, None) => *self.random.pick(&modes),
            (false, _) => FallocateMode::Punch,
        };
        // The model's blocks.
        let round = match mode {
            FallocateMode::Collapse | FallocateMode::Insert => model::BLOCK,
            _ => 1,
        };
        Op::Fallocate {
            file,
            mode,
            offset: offset / round * round,
            len: (1 + self.random.below(self.longest())).next_multiple_of(round),
        }
    }

    /// An ACL comes or goes: a directory's own, or what it gives to new files; or a file's.
    fn acl(&mut self) -> Op {
        let (file, name) = match self.random.below(3) {
            0 => (self.file(), acl::ACCESS),
            1 => (OpTarget::Path(self.directory()), acl::ACCESS),
            _ => (OpTarget::Path(self.directory()), acl::DEFAULT),
        };
        let name = name.to_vec();
        if self.random.one_in(4) {
            return Op::RemoveXattr { file, name };
        }
        let mode = *self.random.pick(&[0o600, 0o755, 0o770]);
        let named = (!self.random.one_in(3)).then(|| (self.random.below(3) as u32, 5));
        Op::SetXattr {
            file,
            name,
            value: acl::encode(mode, named),
            flag: XattrCondition::Any,
        }
    }

    fn attribute(&mut self) -> Op {
        if self.random.one_in(3) {
            return self.acl();
        }
        let file = match self.random.below(3) {
            0 => OpTarget::Path(self.directory()),
            _ => self.file(),
        };
        let name = self.random.pick(&["user.a", "user.b"]).as_bytes().to_vec();
        match self.random.below(5) {
            0 => Op::Chmod {
                file,
                mode: *self.random.pick(&[0o600, 0o755, 0o4711]),
            },
            1 => Op::Chown {
                file,
                uid: self.random.below(3) as u32,
                gid: self.random.below(3) as u32,
            },
            2 => Op::RemoveXattr { file, name },
            _ => Op::SetXattr {
                file,
                name,
                value: vec![self.random.bits() as u8; *self.random.pick(&[1, 10, 24, 300])],
                flag: XattrCondition::Any,
            },
        }
    }

    fn open(&mut self) -> Op {
        let slot = self.slot();
        match self.random.below(8) {
            0 => Op::Close { slot },
            1 => Op::OpenTemp {
                directory: self.directory(),
                slot,
                mode: 0o600,
            },
            _ => Op::Open {
                path: self.own(self.thread),
                slot,
            },
        }
    }

    fn sync(&mut self) -> Op {
        match self.random.below(6) {
            0 => Op::Sync,
            1 => Op::Fsync {
                file: OpTarget::Path(self.directory()),
            },
            2 => Op::Fdatasync { file: self.file() },
            _ => Op::Fsync { file: self.file() },
        }
    }
}
