//! What is known of each inode: three bytes, in groups that are allocated when the first inode in use is met.

use ondisk::{FileType, Geometry, Group, Ino};
use sync::OnceLock;
use sync::atomic::{AtomicU8, AtomicU16, Ordering};

/// What the inode pass says of an inode: the type's number in the low three bits (0 where the mode names none).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State(pub u8);

impl State {
    /// The inode is in use.
    pub const USED: u8 = 0x80;
    /// The inode is broken in a way that is reported where a name leads to it.
    pub const BAD: u8 = 0x08;
    /// The inode holds the value of an attribute.
    pub const VALUE: u8 = 0x10;
    /// The inode waits to be deleted: no name is needed.
    pub const ORPHAN: u8 = 0x20;
    /// The inode is encrypted.
    pub const ENCRYPTED: u8 = 0x40;

    /// Whether this bit is set.
    pub fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }

    /// Whether the inode is in use.
    pub fn is_used(self) -> bool {
        self.has(State::USED)
    }

    /// The type that its mode names.
    pub fn file_type(self) -> Option<FileType> {
        FileType::from_dirent_code(self.0 & 7)
    }
}

struct GroupInodes {
    state: Box<[AtomicU8]>,
    /// Links found minus links stored. [atomic: Relaxed]
    balance: Box<[AtomicU16]>,
}

/// The inodes of a file system.
pub struct InodeTable {
    geometry: Geometry,
    groups: Box<[OnceLock<GroupInodes>]>,
}

impl InodeTable {
    /// No inode is in use.
    pub fn new(geometry: &Geometry) -> InodeTable {
        InodeTable {
            geometry: *geometry,
            groups: geometry.all_groups().map(|_| OnceLock::new()).collect(),
        }
    }

    fn slot(&self, ino: Ino) -> Option<(&GroupInodes, usize)> {
        let (group, index) = self.geometry.group_of_ino(ino)?;
        Some((self.groups[group.0 as usize].get()?, index as usize))
    }

    /// Says that the inode is in use, with this many links stored.
    pub fn insert(&self, ino: Ino, state: State, links: u16) {
        let Some((group, index)) = self.geometry.group_of_ino(ino) else {
            return;
        };
        let count = self.geometry.inodes_per_group() as usize;
        let inodes = self.groups[group.0 as usize].get_or_init(|| GroupInodes {
            state: (0..count).map(|_| AtomicU8::new(0)).collect(),
            balance: (0..count).map(|_| AtomicU16::new(0)).collect(),
        });
        // Relaxed: the unit that reads the inode is the only writer; other passes start after a join.
        inodes.state[index as usize].store(state.0 | State::USED, Ordering::Relaxed);
        // Relaxed: as for the state.
        inodes.balance[index as usize].store(0_u16.wrapping_sub(links), Ordering::Relaxed);
    }

    /// What is known of an inode; nothing of one that is not in use.
    pub fn state(&self, ino: Ino) -> State {
        match self.slot(ino) {
            // Relaxed: written by an earlier pass, which was joined.
            Some((group, index)) => State(group.state[index].load(Ordering::Relaxed)),
            None => State::default(),
        }
    }

    /// Adds a link.
    pub fn link(&self, ino: Ino) {
        if let Some((group, index)) = self.slot(ino) {
            // Relaxed: a sum that is read after the threads are joined.
            group.balance[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Links found minus links stored.
    pub fn balance(&self, ino: Ino) -> u16 {
        match self.slot(ino) {
            // Relaxed: read after the threads that add links were joined.
            Some((group, index)) => group.balance[index].load(Ordering::Relaxed),
            None => 0,
        }
    }

    /// Whether any inode of the group is in use.
    pub fn has_any(&self, group: Group) -> bool {
        self.groups[group.0 as usize].get().is_some()
    }
}
