//! What a file system is, how full it is and in which state. Counts come from the group descriptors, not from the
//! superblock, whose counts are only right after a clean unmount.

use core::ops::ControlFlow;

use ondisk::features::{Feature, Features};
use ondisk::group_desc::flags;
use ondisk::inode::Inode;
use ondisk::jbd2::{JournalFeatures, JournalSuperblock};
use ondisk::superblock::state;
use ondisk::{FsBlock, Ino};

use crate::error::InspectError;
use crate::fragmentation::Fragmentation;
use crate::image::RawImage;
use crate::users::{Need, Use, need};
use crate::walk::{BUDGET, Piece, walk};

/// Sums over all groups.
#[derive(Default)]
pub struct GroupSums {
    /// Free clusters.
    pub free_clusters: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Groups whose block bitmap was never written.
    pub block_uninit: u64,
    /// Groups without free clusters.
    pub full: u64,
    /// Groups whose descriptor is broken or missing; the other sums leave them out.
    pub broken: u64,
    /// What is wrong with the first of them.
    pub first_error: Option<String>,
}

impl GroupSums {
    /// Adds up the group descriptors.
    ///
    /// # Errors
    /// `Device` if they can't be read.
    pub fn count(raw: &RawImage) -> Result<GroupSums, InspectError> {
        let mut sums = GroupSums::default();
        let unvisited = raw.descs(|group, desc| match desc {
            Ok(desc) => {
                sums.free_clusters += u64::from(desc.free_clusters());
                sums.free_inodes += u64::from(desc.free_inodes());
                sums.directories += u64::from(desc.used_dirs());
                sums.block_uninit += u64::from(desc.has(flags::BLOCK_UNINIT));
                sums.full += u64::from(desc.free_clusters() == 0);
            }
            Err(corrupt) => {
                sums.broken += 1;
                sums.first_error
                    .get_or_insert_with(|| corrupt.group(group).to_string());
            }
        })?;
        if let Some(unvisited) = unvisited {
            sums.broken += unvisited.groups;
            sums.first_error.get_or_insert(unvisited.why);
        }
        Ok(sums)
    }
}

/// What a look at the journal found.
pub enum FoundJournal {
    /// The file system has none.
    None,
    /// It is on another device, with this UUID.
    External([u8; 16]),
    /// It is a file.
    Inside {
        /// Its superblock.
        superblock: Box<JournalSuperblock>,
        /// Its size in bytes.
        bytes: u64,
    },
    /// It can't be read.
    Broken(InspectError),
}

impl FoundJournal {
    /// Finds the journal and reads its superblock.
    #[must_use]
    pub fn look(raw: &RawImage) -> FoundJournal {
        if !raw.geometry.has(Feature::HAS_JOURNAL) {
            return FoundJournal::None;
        }
        let Some(ino) = raw.superblock.journal_ino() else {
            return FoundJournal::External(raw.superblock.journal_uuid());
        };
        FoundJournal::read(raw, ino).unwrap_or_else(FoundJournal::Broken)
    }

    fn read(raw: &RawImage, ino: Ino) -> Result<FoundJournal, InspectError> {
        let inode = raw.inode(ino)?;
        let first = first_block(raw, ino, &inode)?;
        let first = first.ok_or(InspectError::EmptyJournal)?;
        let block = raw.block(first)?;
        let superblock = JournalSuperblock::read(&block).ok_or(InspectError::ShortJournal)?;
        let bytes = inode.size(false);
        let size = raw.geometry.block_size();
        superblock
            .verify(size, size.blocks_for(bytes))
            .map_err(|corrupt| corrupt.ino(ino).block(first))?;
        Ok(FoundJournal::Inside {
            superblock: Box::new(superblock),
            bytes,
        })
    }
}

/// The first block of an inode's contents; `None` if it has none, or a hole there.
///
/// # Errors
/// Those of [`walk`].
fn first_block(raw: &RawImage, ino: Ino, inode: &Inode) -> Result<Option<FsBlock>, InspectError> {
    let mut found = None;
    let mut budget = BUDGET;
    walk::<InspectError>(raw, ino, inode, &mut budget, &mut |piece| {
        match piece {
            Piece::Run(run) if run.logical == 0 => found = Some(run.start),
            _ if found.is_none() => return Ok(ControlFlow::Continue(())),
            _ => {}
        }
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// The version of the checksums that a journal's superblock asks for: `v1`, `v2` or `v3`.
#[must_use]
pub fn journal_checksums(sb: &JournalSuperblock) -> Option<&'static str> {
    let features = sb.features();
    if features.has_incompat(JournalFeatures::INCOMPAT_CSUM_V3) {
        Some("v3")
    } else if features.has_incompat(JournalFeatures::INCOMPAT_CSUM_V2) {
        Some("v2")
    } else {
        (features.compat & JournalFeatures::COMPAT_CHECKSUM != 0).then_some("v1")
    }
}

/// The image as it lies on the disk, with sums as after a replay.
pub struct ImageFacts<'a> {
    /// The image, not replayed.
    pub raw: &'a RawImage,
    /// Sums over the groups.
    pub groups: GroupSums,
    /// The journal.
    pub journal: FoundJournal,
    /// How scattered it is, if the caller looked.
    pub frag: Option<Fragmentation>,
}

impl ImageFacts<'_> {
    /// The family of file systems with these features: `ext2`, `ext3` or `ext4`.
    #[must_use]
    pub fn family(&self) -> &'static str {
        let features = self.raw.geometry.features();
        let ext3 = Features::of(&[Feature::FILETYPE, Feature::NEEDS_RECOVERY, Feature::META_BG]);
        let ext3_ro = Features::of(&[
            Feature::SPARSE_SUPER,
            Feature::LARGE_FILE,
            Feature::BTREE_DIR,
        ]);
        let newer = features.minus(ext3.union(ext3_ro));
        if newer.incompat != 0 || newer.ro_compat != 0 {
            "ext4"
        } else if features.has(Feature::HAS_JOURNAL) {
            "ext3"
        } else {
            "ext2"
        }
    }

    /// Free bytes, at most as many as the file system has.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        let geometry = &self.raw.geometry;
        let cluster = u64::from(geometry.cluster_ratio()) << geometry.block_size().bits();
        self.groups
            .free_clusters
            .saturating_mul(cluster)
            .min(geometry.bytes())
    }

    /// `clean`, or what is to be done or known before the file system is used.
    #[must_use]
    pub fn state(&self) -> String {
        let sb = &self.raw.superblock;
        let mut words = Vec::new();
        if self.raw.needs_recovery() {
            words.push("the journal must be replayed".to_string());
        }
        if sb.state() & state::ERROR != 0 || sb.error_count() > 0 {
            words.push(format!("errors were found ({} so far)", sb.error_count()));
        }
        if sb.state() & state::VALID == 0 {
            words.push("in use, or not unmounted cleanly".into());
        }
        if sb.last_orphan().is_some() || self.raw.geometry.has(Feature::ORPHAN_PRESENT) {
            words.push("orphans wait to be removed".into());
        }
        if words.is_empty() {
            "clean".into()
        } else {
            words.join("; ")
        }
    }

    /// What each purpose needs, in the order of [`Use`].
    #[must_use]
    pub fn needs(&self) -> [Need; 4] {
        let features = self.raw.geometry.features();
        let all = [Use::LinuxRead, Use::LinuxWrite, Use::E2fsprogs, Use::Grub];
        all.map(|purpose| need(features, purpose))
    }
}
