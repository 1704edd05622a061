//! The directory pass: a unit for each directory; its blocks, its index, and the links that its names make.

use ondisk::casefold::FoldedName;
use ondisk::dirent::{self, DirForm};
use ondisk::{Feature, Flags, Ino, Inode, xattr};
use sync::{Guarded, Mutex, Rank};

use crate::ahead;
use crate::collected::Directory;
use crate::dir_view::DirView;
use crate::file_map;
use crate::htree::{Index, Leaf, Reported};
use crate::limits;
use crate::map::MapRun;
use crate::names::{BlockNames, DirectoryKeys, Keys, Repeated};
use crate::problem::Code;
use crate::special;
use crate::table::State;
use crate::volume::Volume;
use crate::work::Stage;

/// The directory with its place in the tree.
pub struct Node {
    pub directory: Directory,
    /// The inode number in '..'; 0 if the directory has no '..'. [written by its own unit; read by later passes]
    pub dotdot: Guarded<u32>,
    /// The directory whose entry names this one first; 0 until such an entry is found. [read by later passes]
    pub parent: Guarded<u32>,
}

/// All directories, by number.
pub struct Tree(pub Vec<Node>);

impl Tree {
    pub fn index(&self, ino: Ino) -> Option<usize> {
        let at = self.0.binary_search_by_key(&ino, |node| node.directory.ino);
        at.ok()
    }

    pub fn find(&self, ino: Ino) -> Option<&Node> {
        self.index(ino).map(|at| &self.0[at])
    }
}

/// What the units of the pass share.
struct Pass<'a> {
    volume: &'a Volume<'a>,
    tree: &'a Tree,
    policies: &'a [(u32, u32)],
    keys: Keys,
}

/// What a thread keeps from one directory to the next.
#[derive(Default)]
struct Scratch {
    bytes: Vec<u8>,
    names: BlockNames,
}

/// Runs the pass. `policies` are the encrypted inodes with the numbers of their policies, by number of inode.
pub fn pass(volume: &Volume<'_>, directories: Vec<Directory>, policies: Vec<(u32, u32)>) -> Tree {
    let nodes = directories.into_iter().map(|directory| Node {
        directory,
        dotdot: Guarded::new(0),
        parent: Guarded::new(0),
    });
    let tree = Tree(nodes.collect());
    let blocks = |node: &Node| node.directory.runs.iter().map(|run| run.len).sum::<u64>();
    let all: u64 = tree.0.iter().map(blocks).sum();
    if all > volume.geometry.blocks_count() {
        // More blocks than there are: some are claimed again and again, which is reported already.
        volume.unread.add_names();
        return tree;
    }
    let pass = Pass {
        volume,
        tree: &tree,
        policies: &policies,
        keys: Keys::new(),
    };
    volume.crew.begin(Stage::Directories, tree.0.len() as u64);
    // In the order of the disk; a directory of many blocks is shared among the threads.
    let mut order: Vec<u32> = (0..tree.0.len() as u32).collect();
    let first = |at: &u32| {
        tree.0[*at as usize]
            .directory
            .runs
            .first()
            .map(|run| run.pblk)
    };
    order.sort_by_cached_key(first);
    let is_large = |at: &u32| blocks(&tree.0[*at as usize]) > 2 * PIECE;
    let (large, small): (Vec<u32>, Vec<u32>) = order.into_iter().partition(is_large);
    let read = |scratch: &mut Scratch, unit: usize| {
        let at = small[unit];
        let directory = |unit: usize| &tree.0[small[unit] as usize].directory;
        ahead::announce(volume, unit, small.len(), directory);
        pass.reader(at).read(scratch);
        volume.crew.add(1);
    };
    volume
        .crew
        .share_out_with(small.len(), Scratch::default, read);
    for at in large {
        pass.reader(at).read_shared();
        volume.crew.add(1);
    }
    tree
}

impl Pass<'_> {
    fn reader(&self, at: u32) -> Reader<'_> {
        let node = &self.tree.0[at as usize];
        let ino = node.directory.ino;
        let policy = policy_of(self.policies, ino);
        Reader {
            view: DirView {
                volume: self.volume,
                directory: &node.directory,
            },
            pass: self,
            node,
            policy,
            reported: Reported::default(),
        }
    }
}

fn policy_of(policies: &[(u32, u32)], ino: Ino) -> Option<u32> {
    let at = policies.binary_search_by_key(&ino.0, |it| it.0);
    at.ok().map(|at| policies[at].1)
}

/// The longest valid record of '.': a longer one has room for another entry.
const DOT_LEN_MAX: usize = 24;
/// Where a record has the number of its type.
const TYPE_AT: usize = 7;
/// Blocks that are read at once, and by one unit of a directory that threads share.
const PIECE: u64 = 64;

/// Reads one directory.
struct Reader<'a> {
    view: DirView<'a>,
    pass: &'a Pass<'a>,
    node: &'a Node,
    /// The number of the policy under which the directory is encrypted.
    policy: Option<u32>,
    reported: Reported,
}

/// Where in a directory an entry stands.
#[derive(Clone, Copy)]
struct Spot {
    lblk: u64,
    /// The entry's number in the block.
    number: usize,
    is_inline: bool,
    /// The number of the type that the entry says.
    type_code: u8,
}

impl Reader<'_> {
    /// The pieces of the directory: runs of at most [`PIECE`] blocks. Reports holes.
    fn pieces(&self) -> Vec<MapRun> {
        let mut pieces = Vec::new();
        let mut next = 0;
        for run in self.node.directory.runs.iter() {
            let holes = next..run.lblk;
            // What a hole stands for is one block each, as far as they are listed.
            for lblk in holes.take(limits::POINTERS) {
                self.view
                    .volume
                    .found(self.view.problem(Code::DirectoryHole).lblk(lblk));
            }
            for at in (0..run.len).step_by(PIECE as usize) {
                pieces.push(MapRun {
                    lblk: run.lblk + at,
                    pblk: run.pblk + at,
                    len: PIECE.min(run.len - at),
                    unwritten: run.unwritten,
                });
            }
            next = run.lblk + run.len;
        }
        pieces
    }

    fn read(&self, scratch: &mut Scratch) {
        if self.view.flags().contains(Flags::INLINE_DATA) {
            return self.inline(scratch);
        }
        let index = self.index();
        let mut keys = (self.view.blocks() > 1).then(DirectoryKeys::first);
        for piece in self.pieces() {
            self.piece(piece, index.as_ref(), scratch, |found| {
                if let Some(keys) = &mut keys {
                    keys.extend(found.keys());
                }
            });
        }
        self.finish(index.as_ref(), keys);
    }

    /// Reads a directory of many blocks on all threads.
    fn read_shared(&self) {
        let index = self.index();
        let keys = Mutex::new(Rank::Job, DirectoryKeys::first());
        let pieces = self.pieces();
        let work = |scratch: &mut Scratch, unit: usize| {
            let mut found = Vec::new();
            self.piece(pieces[unit], index.as_ref(), scratch, |names| {
                found.extend(names.keys());
            });
            keys.lock().extend(found.into_iter());
        };
        let crew = &self.view.volume.crew;
        crew.share_out_with(pieces.len(), Scratch::default, work);
        self.finish(index.as_ref(), Some(keys.into_inner()));
    }

    fn finish(&self, index: Option<&Index>, keys: Option<DirectoryKeys>) {
        if let Some(index) = index {
            index.finish(&self.view, self.view.blocks());
        }
        let mut keys = keys;
        while let Some(mut part) = keys {
            let repeated = part.repeated();
            if !repeated.is_empty() {
                self.find_repeated(Repeated::new(repeated));
            }
            keys = part.next();
            if let Some(next) = &mut keys {
                self.each_name(|key, _, _| next.extend(std::iter::once(key)));
            }
        }
    }

    /// Reports names that stand in several blocks.
    fn find_repeated(&self, mut repeated: Repeated) {
        let mut reported = 0;
        self.each_name(|key, name, lblk| {
            let first = repeated.meet(key, name, self.view.is_folded(), lblk);
            if let Some(first) = first.filter(|_| reported < limits::POINTERS) {
                reported += 1;
                let problem = self.view.problem(Code::NameInTwoBlocks).name(name);
                self.view.volume.found(problem.lblk(lblk).expected(first));
            }
        });
    }

    /// Calls `visit` with each name, its key and its block, as far as blocks can be read.
    fn each_name(&self, mut visit: impl FnMut(u64, &[u8], u64)) {
        let form = self.view.form();
        for run in self.node.directory.runs.iter() {
            for at in 0..run.len {
                let bytes = self.view.volume.block(run.pblk + at).unwrap_or_default();
                let entries = dirent::entries(&bytes, form).map_while(Result::ok);
                for entry in entries.filter(|it| it.is_used() && !dirent::is_dots(it.name)) {
                    let key = self.pass.keys.of(entry.name, self.view.is_folded());
                    visit(key, entry.name, run.lblk + at);
                }
            }
        }
    }

    /// The directory's index, where it has one that can be used.
    fn index(&self) -> Option<Index> {
        if !self.view.flags().contains(Flags::INDEX) {
            return None;
        }
        if !self.view.volume.has(Feature::DIR_INDEX) {
            self.view
                .volume
                .inode_has(self.view.ino(), Code::DirectoryFeature);
            return None;
        }
        let root = self
            .view
            .place(0)
            .and_then(|block| self.view.volume.block(block))?;
        Index::read(&self.view, &root)
    }

    /// Reads and checks a piece; `names` takes the names of each block that may stand in another one too.
    fn piece(
        &self,
        piece: MapRun,
        index: Option<&Index>,
        scratch: &mut Scratch,
        mut names: impl FnMut(&BlockNames),
    ) {
        let size = self.view.volume.geometry.block_size().bytes();
        let mut bytes = std::mem::take(&mut scratch.bytes);
        bytes.resize(piece.len as usize * size, 0);
        let is_read = self.view.volume.read(piece.pblk, &mut bytes);
        for (at, block) in (0..piece.len).zip(bytes.chunks_exact_mut(size)) {
            let (lblk, pblk) = (piece.lblk + at, piece.pblk + at);
            if !is_read && !self.view.volume.read(pblk, block) {
                let problem = self.view.problem(Code::DirectoryUnreadable).lblk(lblk);
                self.view.volume.found(problem.block(pblk));
                self.view.volume.unread.add_names();
                continue;
            }
            self.one_block(lblk, block, index, &mut scratch.names);
            if index.is_none_or(|index| index.may_repeat(lblk)) {
                names(&scratch.names);
            }
        }
        scratch.bytes = bytes;
    }

    fn one_block(&self, lblk: u64, bytes: &[u8], index: Option<&Index>, names: &mut BlockNames) {
        let is_index = index.is_some_and(|index| index.is_index_block(lblk));
        if !is_index && self.view.volume.geometry.has_metadata_csum() {
            match dirent::stored_checksum(bytes) {
                None => self
                    .view
                    .volume
                    .found(self.view.problem(Code::DirectoryNoChecksum).lblk(lblk)),
                Some(_) if dirent::verify_checksum(bytes, self.view.seed()).is_err() => {
                    self.view
                        .volume
                        .found(self.view.problem(Code::DirectoryChecksum).lblk(lblk));
                }
                Some(_) => {}
            }
        }
        let form = if is_index {
            self.view.form().without_checksum()
        } else {
            self.view.form()
        };
        let spot = Spot {
            lblk,
            number: 0,
            is_inline: false,
            type_code: 0,
        };
        let leaf = index.and_then(|index| index.leaf(lblk));
        self.entries(bytes, form, spot, leaf.as_ref(), names);
    }

    /// An inline directory: the parent's number, then records, which go on in an attribute.
    fn inline(&self, scratch: &mut Scratch) {
        let Some(slot) = self.view.volume.slot(self.view.ino()) else {
            return;
        };
        let Ok(inode) = Inode::parse(&slot) else {
            return;
        };
        let area = inode.block_area();
        let parent = crate::map::word32(area, 0);
        self.node.dotdot.set(parent);
        self.view.volume.inodes.link(self.view.ino());
        self.view.volume.inodes.link(Ino(parent));
        let form = self.view.form().without_checksum();
        let spot = Spot {
            lblk: 0,
            number: 2,
            is_inline: true,
            type_code: 0,
        };
        self.entries(&area[4..], form, spot, None, &mut scratch.names);
        let rest = ondisk::inode::attribute_area(&slot).unwrap_or_default();
        let entries = xattr::entries(xattr::ListPlace::Inode(rest));
        for entry in entries.into_iter().flatten() {
            if let xattr::Value::Here(value) = entry.value
                && entry.index == xattr::INDEX_SYSTEM
                && entry.name == b"data"
            {
                self.entries(value, form, spot, None, &mut scratch.names);
            }
        }
    }

    fn entries(
        &self,
        bytes: &[u8],
        form: DirForm,
        spot: Spot,
        leaf: Option<&Leaf<'_>>,
        names: &mut BlockNames,
    ) {
        names.clear();
        let is_folded = self.view.is_folded();
        let mut reached = 0;
        for (number, entry) in (spot.number..).zip(dirent::entries(bytes, form)) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(_) => {
                    let problem = self.view.problem(Code::DirectoryCorrupt).lblk(spot.lblk);
                    self.view.volume.found(problem.found(reached));
                    break;
                }
            };
            reached += entry.len as u64;
            let type_code = bytes.get(entry.offset + TYPE_AT).copied().unwrap_or(0);
            let spot = Spot {
                number,
                type_code,
                ..spot
            };
            let is_dot_place = spot.lblk == 0 && number < 2;
            if is_dot_place {
                self.dots(&entry, spot, bytes);
            } else if entry.is_used() {
                self.name(&entry, spot);
                let key = self.pass.keys.of(entry.name, is_folded);
                // A block has at most 64 KiB, a name at most 255 bytes.
                let at = (entry.offset + ondisk::dirent::HEADER_LEN) as u32;
                names.push(key, at, entry.name.len() as u8);
                if let Some(leaf) = leaf {
                    leaf.entry(&self.view, &self.reported, &entry);
                }
            }
        }
        let is_strict = self.is_strict();
        names.pairs(bytes, |first, second| {
            let code = match first == second || is_folded && is_strict {
                true => Code::EntryTwice,
                false if is_folded && FoldedName::new(first).is(second) => Code::NameFoldedTwice,
                false => return false,
            };
            let problem = self.view.problem(code).lblk(spot.lblk);
            self.view.volume.found(problem.name(second));
            true
        });
    }

    /// Whether names that are not UTF-8 are refused.
    fn is_strict(&self) -> bool {
        self.view.volume.sb.encoding_flags() & ondisk::casefold::STRICT_FLAG != 0
    }

    fn dots(&self, entry: &dirent::DirRecord<'_>, spot: Spot, bytes: &[u8]) {
        let (wanted, missing): (&[u8], Code) = match spot.number {
            0 => (b".", Code::DotMissing),
            _ => (b"..", Code::DotDotMissing),
        };
        if entry.name != wanted || !entry.is_used() {
            let problem = self.view.problem(missing).name(entry.name);
            self.view.volume.found(problem.found(entry.ino.0));
            return;
        }
        let end = entry.offset + dirent::HEADER_LEN + entry.name.len();
        if bytes.get(end).is_some_and(|byte| *byte != 0) {
            let code = match spot.number {
                0 => Code::DotNotTerminated,
                _ => Code::DotDotNotTerminated,
            };
            self.view.volume.found(self.view.problem(code));
        }
        if spot.number == 0 {
            if entry.len > DOT_LEN_MAX {
                let problem = self.view.problem(Code::DotLong);
                self.view.volume.found(problem.found(entry.len as u64));
            }
            if entry.ino != self.view.ino() {
                let problem = self.view.problem(Code::DotInode);
                self.view.volume.found(problem.found(entry.ino.0));
            }
        } else {
            self.node.dotdot.set(entry.ino.0);
        }
        self.target(entry, spot);
    }

    /// Whether an entry names an inode that is in use, with the type it says. Counts the link.
    fn target(&self, entry: &dirent::DirRecord<'_>, spot: Spot) -> Option<State> {
        let volume = self.view.volume;
        let with = |code| self.view.problem(code).name(entry.name).found(entry.ino.0);
        let is_reserved = entry.ino < volume.geometry.first_ino() && entry.ino != Ino::ROOT;
        if is_reserved || entry.ino.0 > volume.geometry.inodes_count() {
            volume.found(with(Code::EntryInode));
            return None;
        }
        let state = volume.inodes.state(entry.ino);
        if state == State::UNREAD {
            return None;
        }
        if !state.is_used() {
            let place = volume.geometry.group_of_ino(entry.ino);
            let is_read = place.is_none_or(|(group, index)| index < volume.inodes_in_use(group));
            let code = if is_read {
                Code::EntryUnused
            } else {
                Code::EntryUninit
            };
            volume.found(with(code));
            return None;
        }
        volume.inodes.link(entry.ino);
        if special::is_quota_or_orphan_file(volume, entry.ino) {
            volume.found(with(Code::EntryInode));
        }
        // Without checksums of descriptors no kernel reads these words, but e2fsck holds entries against them.
        if !volume.has_desc_checksums() && volume.is_unused_by_descriptor(entry.ino) {
            volume.found(with(Code::EntryUninit));
        }
        if state.has(State::VALUE) && volume.shared.values.of(entry.ino.0.into()) > 0 {
            volume.found(with(Code::EntryValueInode));
        }
        // What a broken inode is can't be said by its mode.
        let expected = state.file_type().filter(|_| !state.has(State::BAD));
        if volume.has(Feature::FILETYPE) && entry.file_type != expected {
            let code = |it: Option<ondisk::FileType>| it.map_or(0, ondisk::FileType::dirent_code);
            let kind = match spot.type_code {
                0 => Code::EntryTypeUnset,
                _ => Code::EntryType,
            };
            let problem = self.view.problem(kind).name(entry.name);
            volume.found(problem.found(spot.type_code).expected(code(expected)));
        }
        Some(state)
    }

    fn name(&self, entry: &dirent::DirRecord<'_>, spot: Spot) {
        let volume = self.view.volume;
        let with = |code| self.view.problem(code).name(entry.name).found(entry.ino.0);
        if dirent::is_dots(entry.name) {
            let code = if entry.name == b"." {
                Code::DotAgain
            } else {
                Code::DotDotAgain
            };
            volume.found(with(code).lblk(spot.lblk));
            return;
        }
        if entry.ino == Ino::ROOT {
            volume.found(with(Code::EntryRoot));
            return;
        }
        let is_encrypted = self.view.flags().contains(Flags::ENCRYPT);
        if entry.name.is_empty() {
            volume.found(with(Code::EntryNoName));
        } else if is_encrypted {
            if entry.name.len() < 16 {
                volume.found(with(Code::EntryEncryptedName));
            }
        } else if entry.name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            volume.found(with(Code::EntryName));
        } else if self.view.flags().contains(Flags::CASEFOLD)
            && self.is_strict()
            && !ondisk::casefold::is_valid(entry.name)
        {
            volume.found(with(Code::EntryCasefold));
        }
        if entry.ino == self.view.ino() {
            volume.found(with(Code::EntryItself));
        }
        let Some(state) = self.target(entry, spot) else {
            return;
        };
        if is_encrypted {
            self.policy(entry, state);
        }
        if state.file_type() != Some(ondisk::FileType::Directory)
            || spot.is_inline && spot.number < 2
        {
            return;
        }
        let Some(child) = self.pass.tree.find(entry.ino) else {
            return;
        };
        if child.parent.replace(0, self.view.ino().0).is_err() {
            volume.found(with(Code::DirectoryLinked));
        }
    }

    /// What an encrypted directory holds is encrypted under its policy.
    fn policy(&self, entry: &dirent::DirRecord<'_>, state: State) {
        let Some(policy) = self.policy else { return };
        let code = match policy_of(self.pass.policies, entry.ino) {
            Some(other) if other == policy => return,
            Some(_) => Code::EntryOtherPolicy,
            None if file_map::has_map(state.file_type()) => Code::EntryUnencrypted,
            None => return,
        };
        let problem = self.view.problem(code).name(entry.name);
        self.view.volume.found(problem.found(entry.ino.0));
    }
}
