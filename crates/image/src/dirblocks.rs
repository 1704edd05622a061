//! Lays out the blocks of a directory all at once, from all its names. No I/O, no locks, no state shared.
//!
//! ```text
//! linear:  | . .. a b c | d e f | ...            by name
//! indexed: | root | nodes ... | leaves ... |     by hash, then by name
//! ```
//!
//! A directory that fits one block is linear, as is every one without dir_index; others are indexed in hash order from
//! the start, with as many levels as they need. A leaf is filled to seven eighths, so that a few later names fit
//! without a split; names of one hash share a leaf where they can, and the index says where they could not. The
//! blocks depend on the set of names alone, not on the order in which they were given.
//!
//! A [`DirectoryPlan`] knows where everything goes before inode numbers are known: its size is exact, and any of its
//! blocks can be made in any order and by any thread ([`DirectoryPlan::fill`]). It takes four bytes for each name and
//! eight for each block.

use std::ops::Range;

use ondisk::dirent::{self, DirBlockWriter, DirForm};
use ondisk::dirhash::{self, HashVersion};
use ondisk::features::Feature;
use ondisk::geometry::Geometry;
use ondisk::htree::{self, Kind, Root};
use ondisk::{BlockSize, FileType, Ino, LBlock};

/// Bytes from which a directory's size needs its high word, which counts only with large_dir.
const SMALL_DIR_BYTES: u64 = 1 << 31;
/// Index entries have 28 bits for a block's number.
const BLOCKS_MAX: u64 = 1 << 28;

/// What all directories of a file system have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryFormat {
    /// The block size.
    pub block_size: BlockSize,
    /// Whether blocks carry checksums: metadata_csum.
    pub checksum: bool,
    /// Whether entries tell the type of what they name.
    pub filetype: bool,
    /// Whether large directories are indexed.
    pub dir_index: bool,
    /// Whether an index may have three levels, and a directory 2 GiB or more.
    pub large_dir: bool,
    /// The hash of the index, signed or unsigned as the superblock's flags say.
    pub hash: HashVersion,
    /// The superblock's hash seed.
    pub hash_seed: [u32; 4],
}

impl DirectoryFormat {
    /// The shape of directories in a file system. A hash version that has no unkeyed function is taken as half MD4,
    /// as mke2fs does.
    #[must_use]
    pub fn of(geometry: &Geometry) -> DirectoryFormat {
        let version = HashVersion::from_code(geometry.hash_version())
            .map(HashVersion::as_stored)
            .filter(|version| *version != HashVersion::SipHash)
            .unwrap_or(HashVersion::HalfMd4);
        DirectoryFormat {
            block_size: geometry.block_size(),
            checksum: geometry.has_metadata_csum(),
            filetype: geometry.has(Feature::FILETYPE),
            dir_index: geometry.has(Feature::DIR_INDEX),
            large_dir: geometry.has(Feature::LARGE_DIR),
            hash: if geometry.has_unsigned_hash() {
                version.unsigned()
            } else {
                version
            },
            hash_seed: geometry.hash_seed(),
        }
    }

    fn form(&self) -> DirForm {
        DirForm {
            block_size: self.block_size,
            filetype: self.filetype,
            checksum: self.checksum,
            hashes: false,
            max_ino: Ino(u32::MAX),
        }
    }
}

/// Which directory it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryIdentity {
    /// Its inode.
    pub ino: Ino,
    /// Its parent's inode; the root directory is its own parent.
    pub parent: Ino,
    /// The checksum seed of its inode ([`ondisk::inode::checksum_seed`]); unused without checksums.
    pub checksum_seed: u32,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedInode {
    /// The inode it names.
    pub ino: Ino,
    /// That inode's type.
    pub file_type: FileType,
}

/// Why names cannot be a directory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The empty name, `.` or `..`, or one with a slash or NUL.
    #[error("{:?} cannot be a file's name", String::from_utf8_lossy(.0))]
    BadName(Vec<u8>),
    /// A name of more than 255 bytes.
    #[error("the name {:?} has {} bytes, and 255 is the most", String::from_utf8_lossy(.0), .0.len())]
    LongName(Vec<u8>),
    /// The same name twice.
    #[error("the name {:?} is there twice", String::from_utf8_lossy(.0))]
    SameName(Vec<u8>),
    /// An index of two levels, or 2 GiB, is not enough.
    #[error("a directory of {names} names in {} KiB blocks needs the feature large_dir", .block_bytes / 1024)]
    NeedsLargeDir {
        /// How many names there are.
        names: usize,
        /// Bytes a block.
        block_bytes: usize,
    },
    /// More than any directory can hold.
    #[error("a directory of {names} names in {} KiB blocks is larger than any can be", .block_bytes / 1024)]
    TooLarge {
        /// How many names there are.
        names: usize,
        /// Bytes a block.
        block_bytes: usize,
    },
}

/// A block that holds names.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// The first of its names in the plan's order.
    first: u32,
    /// The hash at which it begins, with the continuation bit; 0 for the first leaf.
    hash: u32,
}

/// How many nodes each layer below the root has, from the top; no layers when leaves hang from the root.
#[derive(Clone, Copy, Debug)]
struct Layers {
    upper: u32,
    lower: u32,
}

/// Where every name of a directory goes.
#[derive(Clone, Debug)]
pub struct DirectoryPlan {
    shape: DirectoryFormat,
    /// Indices into the caller's names, in the order in which they are written.
    order: Vec<u32>,
    leaves: Vec<Leaf>,
    /// None for a linear directory.
    index: Option<Layers>,
}

impl DirectoryPlan {
    /// Plans a directory of `count` names, `name(0)` to `name(count - 1)`, without `.` and `..`. `name` is called
    /// several times for each.
    ///
    /// # Errors
    /// If a name is not valid or occurs twice, or if the file system's features cannot hold this number of names.
    pub fn new<'a>(
        shape: DirectoryFormat,
        count: usize,
        name: impl Fn(usize) -> &'a [u8],
    ) -> Result<DirectoryPlan, Refused> {
        let too_large = Refused::TooLarge {
            names: count,
            block_bytes: shape.block_size.bytes(),
        };
        let Ok(count) = u32::try_from(count) else {
            return Err(too_large);
        };
        // Dots take the room of two one-letter names.
        let mut bytes = 2 * dirent::RECORD_MIN;
        for i in 0..count {
            let name = name(i as usize);
            verify(name)?;
            bytes = bytes.saturating_add(shape.form().record_len(name));
        }
        let indexed = shape.dir_index && bytes > shape.form().usable();
        let plan = if indexed {
            DirectoryPlan::indexed(shape, count, &name)?
        } else {
            DirectoryPlan::linear(shape, count, &name)?
        };
        let blocks = plan.block_count();
        if blocks * shape.block_size.bytes_u64() >= SMALL_DIR_BYTES && !shape.large_dir {
            return Err(plan.needs_large_dir());
        }
        if blocks >= BLOCKS_MAX {
            return Err(too_large);
        }
        Ok(plan)
    }

    fn linear<'a>(
        shape: DirectoryFormat,
        count: u32,
        name: &impl Fn(usize) -> &'a [u8],
    ) -> Result<DirectoryPlan, Refused> {
        let name_of = |i: &u32| name(*i as usize);
        let mut order: Vec<u32> = (0..count).collect();
        order.sort_unstable_by_key(name_of);
        refuse_same(order.iter().map(name_of))?;
        let (form, usable) = (shape.form(), shape.form().usable());
        let mut leaves = vec![Leaf { first: 0, hash: 0 }];
        let mut used = 2 * dirent::RECORD_MIN;
        for (place, i) in (0..).zip(&order) {
            let len = form.record_len(name_of(i));
            if used + len > usable {
                leaves.push(Leaf {
                    first: place,
                    hash: 0,
                });
                used = 0;
            }
            used += len;
        }
        Ok(DirectoryPlan {
            shape,
            order,
            leaves,
            index: None,
        })
    }

    fn indexed<'a>(
        shape: DirectoryFormat,
        count: u32,
        name: &impl Fn(usize) -> &'a [u8],
    ) -> Result<DirectoryPlan, Refused> {
        let hash = |i: u32| {
            let Some(hash) = dirhash::hash(shape.hash, &shape.hash_seed, name(i as usize)) else {
                unreachable!("a shape's hash takes no key");
            };
            hash
        };
        // The major hash above, the index below: 8 bytes a name. Few names have a major hash in common.
        let mut hashed: Vec<u64> = (0..count)
            .map(|i| u64::from(hash(i).major) << 32 | u64::from(i))
            .collect();
        hashed.sort_unstable();
        for same in hashed.chunk_by_mut(|a, b| major(*a) == major(*b)) {
            if same.len() > 1 {
                same.sort_unstable_by_key(|at| (hash(index(*at)).minor, name(index(*at) as usize)));
                refuse_same(same.iter().map(|at| name(index(*at) as usize)))?;
            }
        }
        let leaves = pack(shape.form(), &hashed, name);
        let mut plan = DirectoryPlan {
            shape,
            order: hashed.into_iter().map(index).collect(),
            leaves,
            index: None,
        };
        plan.index = Some(plan.layers().ok_or_else(|| plan.needs_large_dir())?);
        Ok(plan)
    }

    /// How many nodes the index takes; none if it would be too deep.
    fn layers(&self) -> Option<Layers> {
        let limit = |kind: Kind| {
            // At most 8,191 entries fit a block.
            #[allow(clippy::cast_possible_truncation)]
            let limit = kind.limit(self.shape.block_size, self.shape.checksum) as u32;
            limit
        };
        let (root, node) = (limit(Kind::Root), limit(Kind::Node));
        let leaves = u32::try_from(self.leaves.len()).ok()?;
        if leaves <= root {
            return Some(Layers { upper: 0, lower: 0 });
        }
        // Nodes, too, are better not filled to the brim, if that costs no level.
        for fill in [node - node / 8, node] {
            let lower = leaves.div_ceil(fill);
            if lower <= root {
                return Some(Layers { upper: 0, lower });
            }
        }
        for fill in [node - node / 8, node] {
            let lower = leaves.div_ceil(fill);
            let upper = lower.div_ceil(fill);
            if upper <= root && self.shape.large_dir {
                return Some(Layers { upper, lower });
            }
        }
        None
    }

    fn needs_large_dir(&self) -> Refused {
        let (names, block_bytes) = (self.order.len(), self.shape.block_size.bytes());
        if self.shape.large_dir {
            Refused::TooLarge { names, block_bytes }
        } else {
            Refused::NeedsLargeDir { names, block_bytes }
        }
    }

    fn block_count(&self) -> u64 {
        let index = match self.index {
            Some(layers) => 1 + u64::from(layers.upper) + u64::from(layers.lower),
            None => 0,
        };
        index + self.leaves.len() as u64
    }

    /// How many blocks the directory takes; at least one.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        // Below 2^28, as `new` has checked.
        #[allow(clippy::cast_possible_truncation)]
        let blocks = self.block_count() as u32;
        blocks
    }

    /// Whether it is indexed, which the inode's flags tell.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// Makes block `number` of the directory; a block after its last one is made without names. `target` returns what
    /// the name of an index refers to; `name` is the function that the plan was made with.
    ///
    /// # Panics
    /// If `block` has another size than a block of the file system, or `name` gives other names than when the plan was
    /// made.
    pub fn fill<'a>(
        &self,
        number: u32,
        identity: DirectoryIdentity,
        name: impl Fn(usize) -> &'a [u8],
        target: impl Fn(usize) -> NamedInode,
        block: &mut [u8],
    ) {
        let index_blocks = self
            .index
            .map_or(0, |layers| 1 + layers.upper + layers.lower);
        if number < index_blocks {
            self.fill_index(number, identity, block);
        } else {
            self.fill_leaf(number - index_blocks, identity, name, target, block);
        }
    }

    fn fill_leaf<'a>(
        &self,
        leaf: u32,
        identity: DirectoryIdentity,
        name: impl Fn(usize) -> &'a [u8],
        target: impl Fn(usize) -> NamedInode,
        block: &mut [u8],
    ) {
        let first_name = |leaf: usize| match self.leaves.get(leaf) {
            Some(leaf) => leaf.first as usize,
            None => self.order.len(),
        };
        let names = first_name(leaf as usize)..first_name(leaf as usize + 1);
        let mut writer = DirBlockWriter::new(block, self.shape.form());
        if leaf == 0 && self.index.is_none() {
            writer.push_dots(identity.ino, identity.parent);
        }
        for i in &self.order[names] {
            let (name, target) = (name(*i as usize), target(*i as usize));
            let fits = writer.push(target.ino, name, Some(target.file_type), None);
            assert!(fits, "the names of a planned block fit it");
        }
        writer.finish();
        if self.shape.checksum {
            dirent::seal(block, identity.checksum_seed);
        }
    }

    fn fill_index(&self, number: u32, identity: DirectoryIdentity, block: &mut [u8]) {
        let Some(Layers { upper, lower }) = self.index else {
            return;
        };
        // Below 2^28, as `new` has checked.
        #[allow(clippy::cast_possible_truncation)]
        let leaves = self.leaves.len() as u32;
        let (first_lower, first_leaf) = (1 + upper, 1 + upper + lower);
        // An entry begins with the hash of the first leaf below it.
        let to_leaf = |leaf: u32| (self.leaves[leaf as usize].hash, LBlock(first_leaf + leaf));
        let to_lower = |node: u32| {
            let below = share(leaves, lower, node);
            (
                self.leaves[below.start as usize].hash,
                LBlock(first_lower + node),
            )
        };
        let to_upper = |node: u32| {
            let below = share(lower, upper, node);
            (to_lower(below.start).0, LBlock(1 + node))
        };
        let form = self.shape.form();
        let kind = if number == 0 { Kind::Root } else { Kind::Node };
        if number == 0 {
            let levels = u8::from(lower > 0) + u8::from(upper > 0);
            let version = self.shape.hash;
            let root = Root { version, levels };
            let entries: Vec<_> = match levels {
                0 => (0..leaves).map(to_leaf).collect(),
                1 => (0..lower).map(to_lower).collect(),
                _ => (0..upper).map(to_upper).collect(),
            };
            let (ino, parent) = (identity.ino, identity.parent);
            htree::write_root(block, form, root, ino, parent, entries.into_iter());
        } else {
            let entries: Vec<_> = if number <= upper {
                share(lower, upper, number - 1).map(to_lower).collect()
            } else {
                let below = share(leaves, lower, number - first_lower);
                below.map(to_leaf).collect()
            };
            htree::write_node(block, form, entries.into_iter());
        }
        if self.shape.checksum {
            htree::seal(block, kind, identity.checksum_seed);
        }
    }
}

/// The upper half of a name's place in the order: its major hash.
fn major(at: u64) -> u32 {
    (at >> 32) as u32
}

/// The lower half: its index among the caller's names.
#[allow(clippy::cast_possible_truncation)]
fn index(at: u64) -> u32 {
    at as u32
}

/// Distributes names, sorted by hash, over leaves.
fn pack<'a>(form: DirForm, hashed: &[u64], name: &impl Fn(usize) -> &'a [u8]) -> Vec<Leaf> {
    let usable = form.usable();
    let full = usable - usable / 8;
    let mut leaves = vec![Leaf { first: 0, hash: 0 }];
    let (mut used, mut last) = (0, None);
    for (place, at) in (0..).zip(hashed) {
        let len = form.record_len(name(index(*at) as usize));
        let major = major(*at);
        let continues = last == Some(major);
        let room = if continues { usable } else { full };
        if used > 0 && used + len > room {
            leaves.push(Leaf {
                first: place,
                hash: major | u32::from(continues),
            });
            used = 0;
        }
        used += len;
        last = Some(major);
    }
    leaves
}

/// The part of `count` things that belongs to `which` of `owners`: each owner gets the same number, up to rounding.
fn share(count: u32, owners: u32, which: u32) -> Range<u32> {
    let start = |owner: u32| {
        // At most `count`.
        #[allow(clippy::cast_possible_truncation)]
        let start = (u64::from(count) * u64::from(owner) / u64::from(owners)) as u32;
        start
    };
    start(which)..start(which + 1)
}

fn verify(name: &[u8]) -> Result<(), Refused> {
    if name.len() > dirent::NAME_MAX {
        Err(Refused::LongName(name.to_vec()))
    } else if dirent::is_dots(name) || !dirent::is_valid_name(name) {
        Err(Refused::BadName(name.to_vec()))
    } else {
        Ok(())
    }
}

/// `names` are sorted, or all have the same hash and are sorted.
fn refuse_same<'a>(names: impl Iterator<Item = &'a [u8]>) -> Result<(), Refused> {
    let mut last = None;
    for name in names {
        if last == Some(name) {
            return Err(Refused::SameName(name.to_vec()));
        }
        last = Some(name);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
