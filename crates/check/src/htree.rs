//! The index of a hashed directory: read from the root, then compared with what each leaf holds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ondisk::casefold::FoldedName;
use ondisk::dirhash::{self, HashVersion};
use ondisk::htree::{self, Kind, LEVELS_MAX, LEVELS_MAX_LARGE};
use ondisk::{Corrupt, Feature, Flags, Site, dirent};
use sync::Hint;

use crate::dir_view::DirView;
use crate::limits;
use crate::problem::Code;
use crate::report::Problem;
use crate::volume::Volume;

/// The offset in an index's root of a word that must be zero.
const RESERVED_AT: usize = 24;

/// The hashes that a block may hold.
#[derive(Clone, Copy)]
struct Range {
    least: u32,
    most: u32,
    /// The block before ends in the least hash, and may hold names of that hash.
    continues: bool,
    /// The block behind continues this one: both may hold names of the greatest hash.
    is_continued: bool,
}

/// What the index says of a block of the directory.
enum Slot {
    /// The root, or a node.
    Index,
    /// A block of names.
    Leaf(Range),
}

/// A directory's index.
pub struct Index {
    version: HashVersion,
    is_folded: bool,
    slots: HashMap<u64, Slot>,
    is_whole: bool,
}

/// A node that is still to be read.
struct Pending {
    lblk: u64,
    level: u8,
    range: Range,
}

/// Which kinds of wrong places were reported for a directory: one of each is enough to say that its index must be made
/// anew.
#[derive(Default)]
pub struct Reported([Hint<bool>; 3]);

impl Reported {
    /// Whether this is the first problem of its kind.
    fn is_first(&self, kind: usize) -> bool {
        !self.0[kind].swap(true)
    }
}

impl Index {
    /// Reads the index whose root is in these bytes; none where the root can't be used.
    pub fn read(view: &DirView<'_>, root: &[u8]) -> Option<Index> {
        let volume = view.volume;
        let levels_max = if volume.has(Feature::LARGE_DIR) {
            LEVELS_MAX_LARGE
        } else {
            LEVELS_MAX
        };
        let flags = view.flags();
        let siphash = flags.contains(Flags::ENCRYPT) && flags.contains(Flags::CASEFOLD);
        let (info, entries) = match htree::root(root, view.form(), levels_max, siphash) {
            Ok(parts) => parts,
            Err(corrupt) => {
                let problem = view.problem(code_of(&corrupt, Code::HtreeRoot)).lblk(0);
                volume.found(problem.name(corrupt.to_string()));
                return None;
            }
        };
        // No kernel reads this word, but e2fsck accepts only zero.
        let reserved = crate::map::word32(root, RESERVED_AT);
        if reserved != 0 {
            let problem = view.problem(Code::HtreeRoot).lblk(0);
            volume.found(problem.name(format!("a word that must be zero holds {reserved}")));
        }
        if volume.geometry.has_metadata_csum()
            && htree::verify_checksum(root, Kind::Root, view.seed()).is_err()
        {
            volume.found(view.problem(Code::HtreeRootChecksum));
        }
        let version = if volume.geometry.has_unsigned_hash() {
            info.version.unsigned()
        } else {
            info.version
        };
        let mut index = Index {
            version,
            is_folded: flags.contains(Flags::CASEFOLD) && !flags.contains(Flags::ENCRYPT),
            slots: HashMap::from([(0, Slot::Index)]),
            is_whole: true,
        };
        let all = Range {
            least: 0,
            most: u32::MAX,
            continues: false,
            is_continued: true,
        };
        let mut pending = Vec::new();
        index.children(view, 0, entries, info.levels, all, &mut pending);
        while let Some(next) = pending.pop() {
            index.node(view, &next, &mut pending);
        }
        Some(index)
    }

    fn node(&mut self, view: &DirView<'_>, next: &Pending, pending: &mut Vec<Pending>) {
        let volume = view.volume;
        let bytes = view.place(next.lblk).and_then(|block| volume.block(block));
        let Some(bytes) = bytes else {
            self.is_whole = false;
            return;
        };
        match htree::node(&bytes, view.form()) {
            Ok(entries) => {
                let is_sealed = !volume.geometry.has_metadata_csum()
                    || htree::verify_checksum(&bytes, Kind::Node, view.seed()).is_ok();
                if !is_sealed {
                    volume.found(view.problem(Code::HtreeChecksum).lblk(next.lblk));
                }
                self.children(view, next.lblk, entries, next.level, next.range, pending);
            }
            Err(corrupt) => {
                self.is_whole = false;
                let code = code_of(&corrupt, Code::HtreeNode);
                let problem = view.problem(code).lblk(next.lblk);
                volume.found(problem.name(corrupt.to_string()));
            }
        }
    }

    /// Takes in the entries of a root or node with this many levels of nodes below it.
    fn children(
        &mut self,
        view: &DirView<'_>,
        lblk: u64,
        entries: htree::IndexBlock<'_>,
        level: u8,
        range_above: Range,
        pending: &mut Vec<Pending>,
    ) {
        let volume = view.volume;
        let mut problems = Limited::default();
        let mut before = 0;
        for i in 0..entries.count() {
            let child = u64::from(entries.block(i).0);
            let range = range_of(&entries, i, range_above);
            let hash = entries.hash(i) & !1;
            if hash < before {
                problems.add(volume, view.problem(Code::HtreeOrder).lblk(lblk));
            } else if i > 0 && hash < range_above.least {
                problems.add(volume, view.problem(Code::HtreeMin).lblk(lblk));
            } else if hash > range_above.most {
                problems.add(volume, view.problem(Code::HtreeMax).lblk(lblk));
            }
            before = hash;
            if view.place(child).is_none() {
                problems.add(volume, view.problem(Code::HtreePointer).found(child));
                self.is_whole = false;
                continue;
            }
            let slot = match level {
                0 => Slot::Leaf(range),
                _ => Slot::Index,
            };
            match self.slots.entry(child) {
                Entry::Occupied(_) => {
                    problems.add(volume, view.problem(Code::HtreeTwice).lblk(child));
                }
                Entry::Vacant(vacant) => {
                    vacant.insert(slot);
                    if level > 0 {
                        pending.push(Pending {
                            lblk: child,
                            level: level - 1,
                            range,
                        });
                    }
                }
            }
        }
    }

    /// Whether a block is the root or a node of the index.
    pub fn is_index_block(&self, lblk: u64) -> bool {
        matches!(self.slots.get(&lblk), Some(Slot::Index))
    }

    /// Whether names of this block may stand in another one, as far as the index says.
    pub fn may_repeat(&self, lblk: u64) -> bool {
        match self.slots.get(&lblk) {
            Some(Slot::Leaf(range)) => {
                range.continues || range.is_continued && range.most != u32::MAX
            }
            _ => !self.is_whole,
        }
    }

    /// The check of a block's entries; none where the index says nothing of the block.
    pub fn leaf(&self, lblk: u64) -> Option<Leaf<'_>> {
        match self.slots.get(&lblk) {
            Some(Slot::Leaf(range)) => Some(Leaf {
                index: self,
                range: *range,
                lblk,
            }),
            _ => None,
        }
    }

    /// Reports a block, of `blocks`, that the index does not lead to.
    pub fn finish(&self, view: &DirView<'_>, blocks: u64) {
        if !self.is_whole {
            return;
        }
        let is_lost = |lblk: &u64| !self.slots.contains_key(lblk) && view.place(*lblk).is_some();
        if let Some(lblk) = (1..blocks).find(is_lost) {
            let problem = view.problem(Code::HtreeUnreferenced);
            view.volume.found(problem.lblk(lblk));
        }
    }
}

/// The hashes that entry `i` leads to.
fn range_of(entries: &htree::IndexBlock<'_>, i: usize, above: Range) -> Range {
    let (least, continues) = match i {
        0 => (above.least, above.continues),
        _ => (entries.hash(i) & !1, entries.continues(i)),
    };
    let (most, is_continued) = if i + 1 < entries.count() {
        (entries.hash(i + 1) & !1, entries.continues(i + 1))
    } else {
        (above.most, above.is_continued)
    };
    Range {
        least,
        most,
        continues,
        is_continued,
    }
}

/// The kind of problem that a broken root or node is.
fn code_of(corrupt: &Corrupt, other: Code) -> Code {
    match corrupt.site() {
        Site::HtreeLimit => Code::HtreeLimit,
        Site::HtreeCount => Code::HtreeCount,
        _ => other,
    }
}

/// The check of one block's entries.
pub struct Leaf<'a> {
    index: &'a Index,
    range: Range,
    lblk: u64,
}

impl Leaf<'_> {
    /// Compares an entry's hash with the block's range.
    pub fn entry(&self, view: &DirView<'_>, reported: &Reported, entry: &dirent::DirRecord<'_>) {
        let seed = view.volume.geometry.hash_seed();
        let version = self.index.version;
        let hash = match (entry.hash, self.index.is_folded) {
            (Some(stored), _) => Some(stored),
            (None, true) => FoldedName::new(entry.name).hash(version, &seed),
            (None, false) => dirhash::hash(version, &seed, entry.name),
        };
        let Some(hash) = hash else { return };
        let range = &self.range;
        let (kind, code) = match hash.major {
            major if major < range.least => (0, Code::HtreeMin),
            major if major > range.most => (1, Code::HtreeMax),
            major if major == range.most && !range.is_continued => (2, Code::HtreeLost),
            _ => return,
        };
        if reported.is_first(kind) {
            let problem = view.problem(code).lblk(self.lblk);
            view.volume.found(problem.name(entry.name));
        }
    }
}

/// The first problems of a block of the index.
#[derive(Default)]
struct Limited(usize);

impl Limited {
    fn add(&mut self, volume: &Volume<'_>, problem: Problem) {
        self.0 += 1;
        if self.0 <= limits::POINTERS {
            volume.found(problem);
        }
    }
}
