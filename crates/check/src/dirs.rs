//! The directory pass: a unit for each directory; its blocks, its index, and the links that its names make.

use std::collections::HashSet;

use ondisk::dirent::{self, DirForm};
use ondisk::{Feature, Flags, Ino, Inode, xattr};
use sync::atomic::{AtomicU32, Ordering};

use crate::htree::Index;
use crate::inodes::{Collected, Directory};
use crate::problem::Code;
use crate::report::Problem;
use crate::table::State;
use crate::volume::Volume;
use crate::work;

/// The directory with its place in the tree.
pub struct Node {
    pub directory: Directory,
    /// What '..' names; 0 where there is none. [atomic: Relaxed, one writer]
    pub dotdot: AtomicU32,
    /// The directory whose entry names this one first; 0 while there is none. [atomic: Relaxed]
    pub parent: AtomicU32,
}

/// All directories, by number.
pub struct Tree(pub Vec<Node>);

impl Tree {
    pub fn find(&self, ino: Ino) -> Option<&Node> {
        let at = self.0.binary_search_by_key(&ino, |node| node.directory.ino);
        at.ok().map(|at| &self.0[at])
    }
}

/// Runs the pass.
pub fn pass(volume: &Volume<'_>, collected: &Collected) -> Tree {
    let directories = std::mem::take(&mut *collected.directories.lock());
    let nodes = directories.into_iter().map(|directory| Node {
        directory,
        dotdot: AtomicU32::new(0),
        parent: AtomicU32::new(0),
    });
    let tree = Tree(nodes.collect());
    // Relaxed: the threads that add were joined.
    let blocks = collected.directory_blocks.load(Ordering::Relaxed);
    if blocks > volume.geometry.blocks_count() {
        // More blocks than there are: some are claimed again and again, which is reported already.
        return tree;
    }
    work::share_out(volume.threads, tree.0.len(), volume.cancelled, |unit| {
        let node = &tree.0[unit];
        Reader {
            volume,
            tree: &tree,
            node,
            ino: node.directory.ino,
        }
        .read();
    });
    tree
}

/// Reads one directory.
pub struct Reader<'a> {
    pub volume: &'a Volume<'a>,
    tree: &'a Tree,
    node: &'a Node,
    pub ino: Ino,
}

/// Where in a directory an entry stands.
#[derive(Clone, Copy)]
struct Spot {
    lblk: u64,
    /// The entry's number in the block.
    number: usize,
    is_inline: bool,
}

impl Reader<'_> {
    pub fn problem(&self, code: Code) -> Problem {
        Problem::new(code).ino(self.ino)
    }

    pub fn flags(&self) -> Flags {
        self.node.directory.flags
    }

    pub fn seed(&self) -> u32 {
        self.node.directory.seed
    }

    pub fn form(&self) -> DirForm {
        let flags = self.flags();
        DirForm {
            block_size: self.volume.geometry.block_size(),
            filetype: self.volume.has(Feature::FILETYPE),
            checksum: self.volume.geometry.has_metadata_csum(),
            hashes: flags.contains(Flags::ENCRYPT) && flags.contains(Flags::CASEFOLD),
            max_ino: Ino(u32::MAX),
        }
    }

    fn read(&self) {
        if self.flags().contains(Flags::INLINE_DATA) {
            return self.inline();
        }
        let mut index = None;
        let mut next = 0;
        for run in &self.node.directory.runs {
            while next < run.lblk {
                self.volume
                    .found(self.problem(Code::DirectoryHole).lblk(next));
                next += 1;
                if next > run.lblk.min(1 << 20) {
                    next = run.lblk;
                }
            }
            for i in 0..run.len {
                self.one_block(run.lblk + i, run.pblk + i, &mut index);
            }
            next = run.lblk + run.len;
        }
        if let Some(index) = index {
            index.finish(self, next);
        }
    }

    /// The block of the device that holds a block of the directory.
    pub fn place(&self, lblk: u64) -> Option<u64> {
        let runs = &self.node.directory.runs;
        let at = runs.partition_point(|run| run.lblk + run.len <= lblk);
        let run = runs.get(at).filter(|run| run.lblk <= lblk)?;
        Some(run.pblk + (lblk - run.lblk))
    }

    fn one_block(&self, lblk: u64, pblk: u64, index: &mut Option<Index>) {
        let Some(bytes) = self.volume.block(pblk) else {
            let problem = self.problem(Code::DirectoryUnreadable).lblk(lblk);
            self.volume.found(problem.block(pblk));
            return;
        };
        let is_indexed = self.flags().contains(Flags::INDEX);
        if is_indexed && lblk == 0 {
            if self.volume.has(Feature::DIR_INDEX) {
                *index = Index::read(self, &bytes);
            } else {
                self.volume.inode_has(self.ino, Code::DirectoryFeature);
            }
        }
        let is_index = match index {
            Some(index) => index.is_index_block(lblk),
            None => false,
        };
        if !is_index && self.volume.geometry.has_metadata_csum() {
            match dirent::stored_checksum(&bytes) {
                None => self
                    .volume
                    .found(self.problem(Code::DirectoryNoChecksum).lblk(lblk)),
                Some(_) if dirent::verify_checksum(&bytes, self.seed()).is_err() => {
                    self.volume
                        .found(self.problem(Code::DirectoryChecksum).lblk(lblk));
                }
                Some(_) => {}
            }
        }
        let form = match is_index {
            true => self.form().without_checksum(),
            false => self.form(),
        };
        let spot = Spot {
            lblk,
            number: 0,
            is_inline: false,
        };
        self.entries(&bytes, form, spot, index.as_ref().filter(|_| !is_index));
    }

    /// An inline directory: the parent's number, then records, which go on in an attribute.
    fn inline(&self) {
        let Some(slot) = self.volume.slot(self.ino) else {
            return;
        };
        let Ok(inode) = Inode::parse(&slot) else {
            return;
        };
        let area = inode.block_area();
        let parent = crate::map::word32(area, 0);
        // Relaxed: this unit is the only writer; the next pass starts after a join.
        self.node.dotdot.store(parent, Ordering::Relaxed);
        self.volume.inodes.link(self.ino);
        self.volume.inodes.link(Ino(parent));
        let form = self.form().without_checksum();
        let spot = Spot {
            lblk: 0,
            number: 2,
            is_inline: true,
        };
        self.entries(&area[4..], form, spot, None);
        let rest = ondisk::inode::attribute_area(&slot).unwrap_or_default();
        let entries = xattr::entries(xattr::ListPlace::Inode(rest));
        for entry in entries.into_iter().flatten() {
            if let xattr::Value::Here(value) = entry.value
                && entry.index == xattr::INDEX_SYSTEM
                && entry.name == b"data"
            {
                self.entries(value, form, spot, None);
            }
        }
    }

    fn entries(&self, bytes: &[u8], form: DirForm, spot: Spot, index: Option<&Index>) {
        let mut names = HashSet::new();
        let mut reached = 0;
        for (number, entry) in (spot.number..).zip(dirent::entries(bytes, form)) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(_) => {
                    let problem = self.problem(Code::DirectoryCorrupt).lblk(spot.lblk);
                    self.volume.found(problem.found(reached));
                    return;
                }
            };
            reached += entry.len as u64;
            let spot = Spot { number, ..spot };
            let is_dot_place = spot.lblk == 0 && number < 2;
            if is_dot_place {
                self.dots(&entry, spot);
            } else if entry.is_used() {
                self.name(&entry, spot);
                if !names.insert(entry.name.to_vec()) {
                    let problem = self.problem(Code::EntryTwice).lblk(spot.lblk);
                    self.volume.found(problem.name(entry.name));
                }
                if let Some(index) = index {
                    index.entry(self, spot.lblk, &entry);
                }
            }
        }
    }

    fn dots(&self, entry: &dirent::DirRecord<'_>, spot: Spot) {
        let (wanted, missing): (&[u8], Code) = match spot.number {
            0 => (b".", Code::DotMissing),
            _ => (b"..", Code::DotDotMissing),
        };
        if entry.name != wanted || !entry.is_used() {
            let problem = self.problem(missing).name(entry.name);
            self.volume.found(problem.found(entry.ino.0));
            return;
        }
        if spot.number == 0 {
            if entry.ino != self.ino {
                let problem = self.problem(Code::DotInode);
                self.volume.found(problem.found(entry.ino.0));
            }
        } else {
            // Relaxed: this unit is the only writer; the next pass starts after a join.
            self.node.dotdot.store(entry.ino.0, Ordering::Relaxed);
        }
        self.target(entry);
    }

    /// Whether an entry names an inode that is in use, with the type it says. Counts the link.
    fn target(&self, entry: &dirent::DirRecord<'_>) -> Option<State> {
        let volume = self.volume;
        let with = |code| self.problem(code).name(entry.name).found(entry.ino.0);
        let is_reserved = entry.ino < volume.geometry.first_ino() && entry.ino != Ino::ROOT;
        if is_reserved || entry.ino.0 > volume.geometry.inodes_count() {
            volume.found(with(Code::EntryInode));
            return None;
        }
        let state = volume.inodes.state(entry.ino);
        if !state.is_used() {
            let place = volume.geometry.group_of_ino(entry.ino);
            let is_read = place.is_none_or(|(group, index)| index < volume.inodes_in_use(group));
            volume.found(with(if is_read {
                Code::EntryUnused
            } else {
                Code::EntryUninit
            }));
            return None;
        }
        volume.inodes.link(entry.ino);
        let expected = state.file_type();
        if volume.has(Feature::FILETYPE) && entry.file_type != expected {
            let code = |it: Option<ondisk::FileType>| it.map_or(0, ondisk::FileType::dirent_code);
            let problem = self.problem(Code::EntryType).name(entry.name);
            volume.found(
                problem
                    .found(code(entry.file_type))
                    .expected(code(expected)),
            );
        }
        Some(state)
    }

    fn name(&self, entry: &dirent::DirRecord<'_>, spot: Spot) {
        let volume = self.volume;
        let with = |code| self.problem(code).name(entry.name).found(entry.ino.0);
        if dirent::is_dots(entry.name) {
            volume.found(with(Code::DotAgain).lblk(spot.lblk));
            return;
        }
        if entry.ino == Ino::ROOT {
            volume.found(with(Code::EntryRoot));
            return;
        }
        let is_encrypted = self.flags().contains(Flags::ENCRYPT);
        if entry.name.is_empty() {
            volume.found(with(Code::EntryNoName));
        } else if is_encrypted {
            if entry.name.len() < 16 {
                volume.found(with(Code::EntryEncryptedName));
            }
        } else if entry.name.iter().any(|byte| matches!(byte, b'/' | 0)) {
            volume.found(with(Code::EntryName));
        } else if self.flags().contains(Flags::CASEFOLD)
            && volume.sb.encoding_flags() & ondisk::casefold::STRICT_FLAG != 0
            && !ondisk::casefold::is_valid(entry.name)
        {
            volume.found(with(Code::EntryCasefold));
        }
        let Some(state) = self.target(entry) else {
            return;
        };
        if state.file_type() != Some(ondisk::FileType::Directory)
            || spot.is_inline && spot.number < 2
        {
            return;
        }
        let Some(child) = self.tree.find(entry.ino) else {
            return;
        };
        // Relaxed: only which of two names comes first is decided; the next pass starts after a join.
        let first =
            child
                .parent
                .compare_exchange(0, self.ino.0, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err() {
            volume.found(with(Code::DirectoryLinked));
        }
    }
}
