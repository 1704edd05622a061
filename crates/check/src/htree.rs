//! The index of a hashed directory: read from the root, then compared with what each leaf holds.

use std::collections::BTreeMap;

use ondisk::casefold::FoldedName;
use ondisk::dirhash::{self, HashVersion};
use ondisk::htree::{self, Kind, LEVELS_MAX, LEVELS_MAX_LARGE};
use ondisk::{Feature, Flags, dirent};

use crate::dirs::Reader;
use crate::problem::Code;

/// The hashes that a leaf may hold.
#[derive(Clone, Copy)]
struct Range {
    least: u32,
    most: u32,
}

/// A directory's index.
pub struct Index {
    version: HashVersion,
    leaves: BTreeMap<u64, Range>,
    nodes: Vec<u64>,
    is_whole: bool,
}

/// A node that is still to be read.
struct Pending {
    lblk: u64,
    level: u8,
    range: Range,
}

impl Index {
    /// Reads the index whose root is in these bytes; none where the root can't be used.
    pub fn read(reader: &Reader<'_>, root: &[u8]) -> Option<Index> {
        let volume = reader.volume;
        let levels_max = match volume.has(Feature::LARGE_DIR) {
            true => LEVELS_MAX_LARGE,
            false => LEVELS_MAX,
        };
        let flags = reader.flags();
        let siphash = flags.contains(Flags::ENCRYPT) && flags.contains(Flags::CASEFOLD);
        let (info, entries) = match htree::root(root, reader.form(), levels_max, siphash) {
            Ok(parts) => parts,
            Err(corrupt) => {
                let problem = reader.problem(Code::HtreeRoot);
                volume.found(problem.name(corrupt.to_string()));
                return None;
            }
        };
        if volume.geometry.has_metadata_csum()
            && htree::verify_checksum(root, Kind::Root, reader.seed()).is_err()
        {
            volume.found(reader.problem(Code::HtreeChecksum).lblk(0));
        }
        let version = match volume.geometry.has_unsigned_hash() {
            true => info.version.unsigned(),
            false => info.version,
        };
        let mut index = Index {
            version,
            leaves: BTreeMap::new(),
            nodes: vec![0],
            is_whole: true,
        };
        let all = Range {
            least: 0,
            most: u32::MAX,
        };
        let mut pending = Vec::new();
        index.children(reader, 0, entries, info.levels, all, &mut pending);
        while let Some(next) = pending.pop() {
            index.node(reader, &next, &mut pending);
        }
        Some(index)
    }

    fn node(&mut self, reader: &Reader<'_>, next: &Pending, pending: &mut Vec<Pending>) {
        let volume = reader.volume;
        let bytes = reader
            .place(next.lblk)
            .and_then(|block| volume.block(block));
        let Some(bytes) = bytes else {
            self.is_whole = false;
            return;
        };
        match htree::node(&bytes, reader.form()) {
            Ok(entries) => {
                let is_sealed = !volume.geometry.has_metadata_csum()
                    || htree::verify_checksum(&bytes, Kind::Node, reader.seed()).is_ok();
                if !is_sealed {
                    volume.found(reader.problem(Code::HtreeChecksum).lblk(next.lblk));
                }
                self.children(reader, next.lblk, entries, next.level, next.range, pending);
            }
            Err(corrupt) => {
                self.is_whole = false;
                let problem = reader.problem(Code::HtreeNode).lblk(next.lblk);
                volume.found(problem.name(corrupt.to_string()));
            }
        }
    }

    /// Takes in the entries of a root or node with this many levels of nodes below it.
    fn children(
        &mut self,
        reader: &Reader<'_>,
        lblk: u64,
        entries: htree::Index<'_>,
        level: u8,
        range: Range,
        pending: &mut Vec<Pending>,
    ) {
        let volume = reader.volume;
        if entries.verify_order().is_err() {
            volume.found(reader.problem(Code::HtreeOrder).lblk(lblk));
        }
        for i in 0..entries.count() {
            let child = u64::from(entries.block(i).0);
            if child == 0 || reader.place(child).is_none() {
                let problem = reader.problem(Code::HtreePointer);
                volume.found(problem.found(child));
                self.is_whole = false;
                continue;
            }
            if self.leaves.contains_key(&child) || self.nodes.contains(&child) {
                volume.found(reader.problem(Code::HtreeTwice).lblk(child));
                continue;
            }
            let least = match i {
                0 => range.least,
                _ => entries.hash(i) & !1,
            };
            let most = match i + 1 < entries.count() {
                // An odd hash continues the block before: names of that hash may be in both.
                true => entries.hash(i + 1),
                false => range.most,
            };
            let range = Range { least, most };
            if level > 0 {
                self.nodes.push(child);
                pending.push(Pending {
                    lblk: child,
                    level: level - 1,
                    range,
                });
            } else {
                self.leaves.insert(child, range);
            }
        }
    }

    /// Whether a block is the root or a node of the index.
    pub fn is_index_block(&self, lblk: u64) -> bool {
        self.nodes.contains(&lblk)
    }

    /// Compares an entry's hash with the range of its block.
    pub fn entry(&self, reader: &Reader<'_>, lblk: u64, entry: &dirent::DirRecord<'_>) {
        let Some(range) = self.leaves.get(&lblk) else {
            return;
        };
        let seed = reader.volume.geometry.hash_seed();
        let is_folded =
            reader.flags().contains(Flags::CASEFOLD) && !reader.flags().contains(Flags::ENCRYPT);
        let hash = match (entry.hash, is_folded) {
            (Some(stored), _) => Some(stored),
            (None, true) => FoldedName::new(entry.name).hash(self.version, &seed),
            (None, false) => dirhash::hash(self.version, &seed, entry.name),
        };
        let Some(hash) = hash else { return };
        let code = match hash.major {
            major if major < range.least => Code::HtreeMin,
            major if major > range.most => Code::HtreeMax,
            _ => return,
        };
        if reader.volume.findings.has(code) {
            // One of a kind is enough to say that the index must be made anew.
            return;
        }
        reader.volume.found(reader.problem(code).lblk(lblk));
    }

    /// Reports the blocks, of `blocks`, that the index does not lead to.
    pub fn finish(&self, reader: &Reader<'_>, blocks: u64) {
        if !self.is_whole {
            return;
        }
        for lblk in 1..blocks {
            let is_known = self.leaves.contains_key(&lblk) || self.nodes.contains(&lblk);
            if !is_known && reader.place(lblk).is_some() {
                let problem = reader.problem(Code::HtreeUnreferenced);
                reader.volume.found(problem.lblk(lblk));
                return;
            }
        }
    }
}
