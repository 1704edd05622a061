//! What the check knows of each inode: a word of two bytes. Words are allocated in pieces of 512, each when the
//! first of its inodes is recorded.
//!
//! ```text
//! bits 15..8   the state: the type, and what later passes need to know
//! bits  7..0   names that are still missing: links stored minus names found; 255 if the table has that sum
//! ```
//!
//! Names beyond the stored links are counted in the table too. It has few entries: inodes with 255 or more links, and
//! inodes with more names than links, which are damaged.

use std::collections::HashMap;

use ondisk::{FileType, Geometry, Group, Ino};
use sync::{Guarded, Mutex, OnceLock, Rank};

/// What the inode pass learned of an inode. The low three bits are the number that a directory entry has for its type,
/// or 0 if the mode names none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct State(pub u8);

impl State {
    /// The inode is in use.
    pub const USED: u8 = 0x80;
    /// The inode is damaged in a way that is reported at the names that lead to it.
    pub const BAD: u8 = 0x08;
    /// The inode holds the value of an attribute.
    pub const VALUE: u8 = 0x10;
    /// The inode is an orphan without links, so it needs no name.
    pub const ORPHAN: u8 = 0x20;
    /// The inode is encrypted.
    pub const ENCRYPTED: u8 = 0x40;

    /// The inode's block can't be read, so whether it is in use is not known.
    pub const UNREAD: State = State(State::BAD);

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

/// The number of inodes whose words are allocated together.
const PIECE: u32 = 512;
/// The low byte of a word if the table counts the inode's names.
const IN_TABLE: u16 = 0xFF;

type Piece = OnceLock<Box<[Guarded<u16>]>>;

/// The inodes of a file system.
pub struct InodeTable {
    geometry: Geometry,
    /// By group, then by piece of its inodes. [read by later passes]
    groups: Box<[OnceLock<Box<[Piece]>>]>,
    /// By inode number, names found minus links stored, for inodes whose word can't hold that. [job]
    table: Mutex<HashMap<u32, i64>>,
    /// Whether the table has an entry. [read by later passes]
    has_table: Guarded<bool>,
}

impl InodeTable {
    /// A table in which no inode is in use.
    pub fn new(geometry: &Geometry) -> InodeTable {
        InodeTable {
            geometry: *geometry,
            groups: geometry.all_groups().map(|_| OnceLock::new()).collect(),
            table: Mutex::new(Rank::Job, HashMap::new()),
            has_table: Guarded::new(false),
        }
    }

    fn slot(&self, ino: Ino) -> Option<&Guarded<u16>> {
        let (group, index) = self.geometry.group_of_ino(ino)?;
        let pieces = self.groups[group.0 as usize].get()?;
        let piece = pieces[(index / PIECE) as usize].get()?;
        Some(&piece[(index % PIECE) as usize])
    }

    /// Records that the inode is in use, with this many links stored.
    pub fn insert(&self, ino: Ino, state: State, links: u16) {
        self.store(ino, State(state.0 | State::USED), links);
    }

    /// Records that the inode's block can't be read.
    pub fn insert_unread(&self, ino: Ino) {
        self.store(ino, State::UNREAD, 0);
    }

    fn store(&self, ino: Ino, state: State, links: u16) {
        let Some((group, index)) = self.geometry.group_of_ino(ino) else {
            return;
        };
        let count = self.geometry.inodes_per_group().div_ceil(PIECE);
        let pieces = self.groups[group.0 as usize]
            .get_or_init(|| (0..count).map(|_| OnceLock::new()).collect());
        let piece = pieces[(index / PIECE) as usize]
            .get_or_init(|| (0..PIECE).map(|_| Guarded::new(0)).collect());
        let missing = links.min(IN_TABLE);
        if missing == IN_TABLE {
            self.add_to_table(ino, -i64::from(links));
        }
        let word = u16::from(state.0) << 8 | missing;
        piece[(index % PIECE) as usize].set(word);
    }

    fn add_to_table(&self, ino: Ino, names: i64) {
        *self.table.lock().entry(ino.0).or_insert(0) += names;
        self.has_table.set(true);
    }

    /// The state of an inode; the default state if it is not in use.
    pub fn state(&self, ino: Ino) -> State {
        match self.slot(ino) {
            Some(word) => State((word.get() >> 8) as u8),
            None => State::default(),
        }
    }

    /// Counts a name that leads to the inode.
    pub fn link(&self, ino: Ino) {
        let Some(slot) = self.slot(ino) else { return };
        let fewer = |word: u16| match word & 0xFF {
            0 | IN_TABLE => None,
            _ => Some(word - 1),
        };
        let counted = slot.update(fewer);
        if counted.is_err() {
            self.add_to_table(ino, 1);
        }
    }

    /// The number of names found minus the number of links stored.
    pub fn balance(&self, ino: Ino) -> i64 {
        let Some(slot) = self.slot(ino) else { return 0 };
        let missing = slot.get() & 0xFF;
        if missing != 0 && missing != IN_TABLE {
            return -i64::from(missing);
        }
        if self.has_table.get() {
            self.table.lock().get(&ino.0).copied().unwrap_or(0)
        } else {
            0
        }
    }

    /// The inodes of a group that are in use or can't be read: the index in the group, the state, and whether names are
    /// missing or the table has the sum.
    pub fn in_group(&self, group: Group) -> impl Iterator<Item = (u32, State, bool)> + '_ {
        let pieces = self.groups[group.0 as usize].get();
        let pieces = pieces.into_iter().flat_map(|pieces| pieces.iter());
        let words = (0..)
            .step_by(PIECE as usize)
            .zip(pieces)
            .flat_map(|(first, piece)| {
                let words = piece.get().into_iter().flat_map(|piece| piece.iter());
                (first..).zip(words)
            });
        words.filter_map(|(index, word)| {
            let word = word.get();
            let state = State((word >> 8) as u8);
            (state != State::default()).then_some((index, state, word & 0xFF != 0))
        })
    }

    /// The inodes with more names than links. Their word shows no missing name, so [`InodeTable::in_group`] does
    /// not mark them.
    pub fn with_more_names(&self) -> Vec<Ino> {
        let table = self.table.lock();
        let inodes = table.keys().map(|ino| Ino(*ino));
        let is_full = |word: &Guarded<u16>| word.get() & 0xFF == 0;
        let mut inodes: Vec<Ino> = inodes
            .filter(|ino| self.slot(*ino).is_some_and(is_full))
            .collect();
        inodes.sort_unstable();
        inodes
    }
}
