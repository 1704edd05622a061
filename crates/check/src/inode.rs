//! One inode: its fields, flags, map, size and attributes.

use crate::collected::{Collected, Directory};
use crate::extents;
use crate::file_map::{has_map, is_fast_symlink, walk};
use crate::inode_checksum;
use crate::limits;
use crate::lookalike;
use crate::map::{MapRun, Sink, word16, word32};
use crate::policies::EncryptionContext;
use crate::problem::Code;
use crate::quota;
use crate::report::Problem;
use crate::reserved;
use crate::special;
use crate::symlink;
use crate::table::State;
use crate::volume::Volume;
use crate::xattr::{self, Seen};
use ondisk::inode::BASE_SIZE;
use ondisk::{Feature, FileType, Flags, FsBlock, Ino, Inode};

/// What the walk over a file's map adds up to.
struct FileMap<'a> {
    volume: &'a Volume<'a>,
    ino: Ino,
    is_directory: bool,
    claims: bool,
    /// Clusters, map blocks included.
    clusters: u64,
    /// The last logical block, and the last that is written.
    last: Option<u64>,
    last_written: Option<u64>,
    previous: Option<u64>,
    /// The last cluster of the device, and of the file, that was counted.
    cluster: Option<(u64, u64)>,
    is_fragmented: bool,
    /// Part of the map was not read, so sums say nothing.
    is_partial: bool,
    illegal: usize,
    runs: Vec<MapRun>,
    with_indices: bool,
    /// The inode was checked already: only its blocks are claimed, in another window.
    is_again: bool,
}

impl FileMap<'_> {
    fn new<'a>(volume: &'a Volume<'a>, ino: Ino, inode: &Inode, is_again: bool) -> FileMap<'a> {
        FileMap {
            volume,
            ino,
            is_directory: inode.file_type() == Some(FileType::Directory) && !is_again,
            claims: !volume.has(Feature::SHARED_BLOCKS) || ino == Ino::JOURNAL,
            clusters: 0,
            last: None,
            last_written: None,
            previous: None,
            cluster: None,
            is_fragmented: false,
            is_partial: false,
            illegal: 0,
            runs: Vec::new(),
            with_indices: !inode.flags().contains(Flags::EXTENTS),
            is_again,
        }
    }

    fn claim(&mut self, block: u64, count: u64) -> bool {
        if !self.volume.claims.may_claim(count) {
            let most = self.volume.geometry.blocks_count() * limits::CLAIM_FACTOR;
            let problem = Problem::new(Code::ClaimsTooMany);
            if !self.volume.findings.has(Code::ClaimsTooMany) {
                self.volume.found(problem.expected(most));
            }
            self.is_partial = true;
            return false;
        }
        if !self.claims {
            // Files may share blocks: they are in use, and that is all.
            self.volume.claims.set(FsBlock(block), count, |_, _| {});
            return true;
        }
        self.volume.claims.claim(FsBlock(block), count)
    }
}

impl Sink for FileMap<'_> {
    fn run(&mut self, run: MapRun) {
        if self
            .previous
            .is_some_and(|previous| previous + 1 != run.pblk)
        {
            self.is_fragmented = true;
        }
        self.previous = Some(run.pblk + run.len - 1);
        let bits = self.volume.geometry.cluster_ratio_bits();
        let first_data = self.volume.geometry.first_data_block().0;
        let cluster = |block: u64| (block - first_data) >> bits;
        let (first, last) = (cluster(run.pblk), cluster(run.pblk + run.len - 1));
        let mask = (1 << bits) - 1;
        let is_aligned = ((run.pblk - first_data) & mask) == (run.lblk & mask);
        // A cluster of the file must lie in a single cluster of the device.
        let is_split = self
            .cluster
            .is_some_and(|(place, logical)| logical == run.lblk >> bits && place != first);
        if (!is_aligned || is_split) && bits > 0 && !self.is_again {
            let problem = Problem::new(Code::MisalignedCluster).ino(self.ino);
            self.volume.found(problem.lblk(run.lblk));
        }
        let is_continued = self.cluster == Some((first, run.lblk >> bits));
        let skip = if is_continued {
            (((first + 1) << bits) + first_data).saturating_sub(run.pblk)
        } else {
            0
        };
        self.clusters += last - first + u64::from(!is_continued);
        if skip < run.len {
            self.claim(run.pblk + skip, run.len - skip);
        }
        self.cluster = Some((last, (run.lblk + run.len - 1) >> bits));
        let end = run.lblk + run.len - 1;
        self.last = self.last.max(Some(end));
        if !run.unwritten {
            self.last_written = self.last_written.max(Some(end));
        }
        if self.is_directory {
            self.runs.push(run);
        }
    }

    fn node(&mut self, block: u64) -> bool {
        if self.with_indices {
            if self.previous.is_some_and(|previous| previous + 1 != block) {
                self.is_fragmented = true;
            }
            self.previous = Some(block);
        }
        self.clusters += 1;
        let is_free = self.claim(block, 1);
        // A map block is entered once, even if several inodes point to it: what it maps is claimed already.
        self.is_partial |= !is_free;
        is_free
    }

    fn problem(&mut self, problem: Problem) {
        if self.is_again {
            return;
        }
        self.illegal += 1;
        self.is_partial |= problem.code == Code::MapUnreadable;
        if self.illegal <= limits::POINTERS {
            self.volume.found(problem);
        }
    }
}

/// Whether the map is what the flags say: not an extent tree without its flag.
fn is_map_readable(volume: &Volume<'_>, ino: Ino, inode: &Inode) -> bool {
    let by_extents = inode.flags().contains(Flags::EXTENTS);
    let is_mapped = !is_fast_symlink(inode) && ino != Ino::BAD;
    let looks_extents = extents::is_header(inode.block_area());
    by_extents || !looks_extents || !volume.has(Feature::EXTENT) || !is_mapped
}

/// Claims the blocks of an inode that was checked already.
pub fn claim_again(volume: &Volume<'_>, ino: Ino, slot: &[u8]) {
    if ino == Ino::RESIZE || !volume.inodes.state(ino).is_used() {
        return;
    }
    // A slot whose extra fields are wrong has the other fields nevertheless.
    let parsed = Inode::parse(slot).or_else(|_| Inode::parse(&slot[..BASE_SIZE]));
    if let Ok(inode) = parsed
        && is_map_readable(volume, ino, &inode)
    {
        walk(
            volume,
            ino,
            &inode,
            &mut FileMap::new(volume, ino, &inode, true),
        );
    }
}

/// Checks the inode in this slot.
pub fn check(volume: &Volume<'_>, collected: &Collected, ino: Ino, slot: &[u8]) {
    let links = word16(slot, 0x1A);
    let mode = word16(slot, 0);
    let is_orphan = volume.orphans.binary_search(&ino.0).is_ok();
    let is_reserved = ino < volume.geometry.first_ino();
    let is_blank = || slot.iter().all(|byte| *byte == 0);
    let sealed = !volume.geometry.has_metadata_csum()
        || is_blank()
        || inode_checksum::is_right(slot, volume.geometry.csum_seed(), ino);
    if !sealed {
        volume.inode_has(ino, Code::InodeChecksum);
    }
    let dtime = word32(slot, 0x14);
    if !is_orphan && dtime != 0 && dtime < volume.geometry.inodes_count() && has_clock(volume) {
        let problem = Problem::new(Code::LowDtime).ino(ino);
        volume.found(problem.found(dtime));
    }
    if links == 0 && !is_orphan && !is_reserved {
        if word32(slot, 0x14) == 0 && mode != 0 {
            volume.inode_has(ino, Code::ZeroDtime);
        }
        return;
    }
    let extra = word16(slot, BASE_SIZE);
    let room = slot.len() - BASE_SIZE;
    let is_extra_wrong = room > 0
        && extra != 0
        && (extra < 4 || usize::from(extra) > room || !extra.is_multiple_of(4));
    if is_extra_wrong {
        let problem = Problem::new(Code::ExtraSize).ino(ino);
        volume.found(problem.found(extra));
    }
    let parsed = if is_extra_wrong {
        Inode::parse(&slot[..BASE_SIZE])
    } else {
        Inode::parse(slot)
    };
    let Ok(inode) = parsed else { return };
    type_flags(volume, ino, &inode);
    if lookalike::is_candidate(&inode) && (!is_reserved || ino == Ino::ROOT) {
        collected.lookalikes.borrow_mut().push(ino);
    }
    if is_reserved && !reserved::is_in_use(volume, ino, &inode) {
        return reserved::check_unused(volume, ino, &inode, slot);
    }
    InodeCheck {
        volume,
        collected,
        ino,
        inode: &inode,
        slot,
        is_orphan,
    }
    .run();
}

/// Checks flags that only one type of file may have: `EA_INODE` (regular files) and `CASEFOLD` (directories). Both also
/// need their feature. Reserved inodes are checked, too.
fn type_flags(volume: &Volume<'_>, ino: Ino, inode: &Inode) {
    let file_type = inode.file_type();
    if inode.flags().contains(Flags::EA_INODE) {
        if !volume.has(Feature::EA_INODE) {
            volume.inode_has(ino, Code::ValueFeature);
        } else if file_type != Some(FileType::Regular) {
            volume.inode_has(ino, Code::ValueNotRegular);
        }
    }
    if inode.flags().contains(Flags::CASEFOLD) {
        if file_type != Some(FileType::Directory) {
            volume.inode_has(ino, Code::CasefoldNotDirectory);
        }
        if !volume.has(Feature::CASEFOLD) {
            volume.inode_has(ino, Code::CasefoldFeature);
        }
    }
}

/// Whether times of this file system are large enough to be distinguished from the numbers of inodes.
fn has_clock(volume: &Volume<'_>) -> bool {
    let is_late = |time: u64| time == 0 || time >= u64::from(volume.geometry.inodes_count());
    is_late(volume.sb.mount_time()) && is_late(volume.sb.mkfs_time())
}

struct InodeCheck<'a> {
    volume: &'a Volume<'a>,
    collected: &'a Collected,
    ino: Ino,
    inode: &'a Inode,
    slot: &'a [u8],
    is_orphan: bool,
}

impl InodeCheck<'_> {
    fn has(&self, flag: Flags) -> bool {
        self.inode.flags().contains(flag)
    }

    fn problem(&self, code: Code) -> Problem {
        Problem::new(code).ino(self.ino)
    }

    fn is_directory(&self) -> bool {
        self.inode.file_type() == Some(FileType::Directory)
    }

    fn run(&self) {
        let seen = xattr::check(self.volume, self.ino, self.inode, self.slot);
        self.times();
        let is_bad = self.fields(&seen);
        let mut sectors = self.attribute_sectors(&seen);
        let is_inline = self.inline(&seen);
        if !is_inline && self.ino != Ino::RESIZE {
            sectors += self.map(&seen);
        }
        self.charge(sectors, &seen);
        if self.ino == Ino::RESIZE && self.volume.has(Feature::RESIZE_INODE) {
            self.note_large_file();
            special::resize_inode(self.volume, self.inode);
        }
        let file_type = self.inode.file_type();
        let mut state = file_type.map_or(0, FileType::dirent_code);
        if is_bad || file_type.is_none() {
            state |= State::BAD;
        }
        if self.has(Flags::EA_INODE) {
            state |= State::VALUE;
        }
        if self.has(Flags::ENCRYPT) {
            state |= State::ENCRYPTED;
        }
        if self.is_orphan && self.inode.links_count() == 0 {
            state |= State::ORPHAN;
        }
        let links = self.inode.links_count();
        self.volume.inodes.insert(self.ino, State(state), links);
    }

    /// Counts the inode and its sectors as its owners' use, where quota files do.
    fn charge(&self, sectors: u64, seen: &Seen) {
        let volume = self.volume;
        let is_counted = self.ino == Ino::ROOT
            || self.ino >= volume.geometry.first_ino() && !special::is_special(volume, self.ino);
        if !volume.has(Feature::QUOTA) || !is_counted || self.has(Flags::EA_INODE) {
            return;
        }
        let usage = quota::IdUsage {
            space: sectors << 9,
            inodes: 1 + seen.value_inodes,
        };
        let mut sums = self.collected.quota.borrow_mut();
        sums.charge(quota::QuotaKind::User, self.inode.uid(), usage);
        sums.charge(quota::QuotaKind::Group, self.inode.gid(), usage);
        sums.charge(quota::QuotaKind::Project, self.inode.project(), usage);
    }

    /// Fields that hold for any type. Returns whether the inode is broken where a name leads to it.
    fn fields(&self, seen: &Seen) -> bool {
        let (volume, inode) = (self.volume, self.inode);
        let dtime = inode.dtime();
        if dtime != 0 && !self.is_orphan && !self.is_own() {
            let code = match self.ino {
                Ino::ROOT => Code::RootDtime,
                _ => Code::SetDtime,
            };
            volume.found(self.problem(code).found(dtime));
        }
        if self.ino == Ino::ROOT && !self.is_directory() {
            volume.inode_has(self.ino, Code::RootNotDirectory);
        }
        if self.has(Flags(0x2000)) && !volume.has(Feature::IMAGIC_INODES) {
            volume.found(self.problem(Code::ImagicFlag).found(0x2000_u64));
        }
        if self.has(Flags::ENCRYPT) {
            self.encryption(seen);
        }
        if self.has(Flags::INDEX)
            && !self.is_directory()
            && inode.file_type() == Some(FileType::Regular)
        {
            volume.inode_has(self.ino, Code::DirectoryFeature);
        }
        let is_broken = inode.file_type() == Some(FileType::Symlink)
            && !symlink::is_valid(volume, self.ino, inode, seen.inline);
        if is_broken {
            volume.inode_has(self.ino, Code::SymlinkInvalid);
        }
        if inode.file_type().is_none() && self.ino != Ino::BAD {
            volume.found(self.problem(Code::InodeMode).found(inode.mode()));
        }
        if !has_map(inode.file_type()) && inode.file_type().is_some() {
            self.special_file();
        }
        is_broken || !self.is_own() && self.has_reserved_field()
    }

    /// Whether it is one of the file system's own files: e2fsck looks at fewer of their fields.
    fn is_own(&self) -> bool {
        let is_reserved = self.ino < self.volume.geometry.first_ino() && self.ino != Ino::ROOT;
        is_reserved || special::is_special(self.volume, self.ino)
    }

    /// Reports fields that must be zero and are not; whether e2fsck calls the inode bad for it.
    fn has_reserved_field(&self) -> bool {
        let volume = self.volume;
        let faddr = word32(self.slot, 0x70);
        let high = word32(self.slot, 0x6C);
        let is_high_odd = self.is_directory() && !volume.has(Feature::LARGE_DIR) && high != 0;
        let acl_high = u32::from(word16(self.slot, 0x76));
        if acl_high != 0 && !volume.has(Feature::BIT64) {
            volume.found(self.problem(Code::InodeReserved).found(acl_high));
        }
        let blocks_high = u32::from(word16(self.slot, 0x74));
        if blocks_high != 0 && !volume.has(Feature::HUGE_FILE) {
            volume.found(self.problem(Code::InodeReserved).found(blocks_high));
        }
        if faddr != 0 || is_high_odd {
            let problem = self.problem(Code::InodeReserved);
            volume.found(problem.found(if faddr != 0 { faddr } else { high }));
            return true;
        }
        false
    }

    /// The context that an encrypted inode must have, and the policy that it names.
    fn encryption(&self, seen: &Seen) {
        let code = match seen.policy {
            EncryptionContext::Missing => Code::EncryptWithoutContext,
            EncryptionContext::Corrupt => Code::EncryptContextCorrupt,
            EncryptionContext::Policy(policy) => {
                let mut policies = self.collected.policies.borrow_mut();
                policies.push((self.ino.0, policy));
                return;
            }
        };
        self.volume.inode_has(self.ino, code);
    }

    fn special_file(&self) {
        let (volume, inode) = (self.volume, self.inode);
        let bad = Flags::IMMUTABLE
            .with(Flags::APPEND)
            .with(Flags::EXTENTS)
            .with(Flags::INDEX);
        if inode.flags().0 & bad.0 != 0 {
            volume.inode_has(self.ino, Code::DeviceFlags);
        }
        if inode.size_both_words() != 0 {
            let problem = self.problem(Code::DeviceSize);
            volume.found(problem.found(inode.size_both_words()));
        }
        if inode.blocks_lo() != 0 {
            let expected = self.xattr_sectors(inode.xattr_block().0 != 0);
            let found = inode.sectors(volume.has(Feature::HUGE_FILE), volume.geometry.block_size());
            if found != expected {
                volume.found(
                    self.problem(Code::InodeBlocks)
                        .found(found)
                        .expected(expected),
                );
            }
        }
    }

    fn xattr_sectors(&self, has_block: bool) -> u64 {
        let geometry = &self.volume.geometry;
        let cluster = u64::from(geometry.cluster_ratio()) << (geometry.block_size().bits() - 9);
        if has_block { cluster } else { 0 }
    }

    /// Sectors of the attributes' block and of values in inodes of their own.
    fn attribute_sectors(&self, seen: &Seen) -> u64 {
        self.xattr_sectors(seen.block) + seen.value_clusters * self.xattr_sectors(true)
    }

    fn times(&self) {
        let extra = word16(self.slot, BASE_SIZE);
        let fields = [
            (0x0C_usize, 0x84_usize, 8_u16),
            (0x10, 0x88, 12),
            (0x08, 0x8C, 16),
            (0x90, 0x94, 24),
        ];
        let is_value = self.has(Flags::EA_INODE);
        let is_odd = self.slot.len() > BASE_SIZE
            && !is_value
            && fields.iter().any(|(low, high, reach)| {
                extra >= *reach
                    && word32(self.slot, *low) >> 31 != 0
                    && word32(self.slot, *high) & 3 == 3
            });
        if is_odd {
            self.volume.inode_has(self.ino, Code::TimeOutOfRange);
        }
    }

    /// Whether the inode's contents are inline, and what is wrong with that.
    fn inline(&self, seen: &Seen) -> bool {
        if !self.has(Flags::INLINE_DATA) {
            return false;
        }
        let volume = self.volume;
        if !volume.has(Feature::INLINE_DATA) || !has_map(self.inode.file_type()) {
            volume.inode_has(self.ino, Code::InlineFlag);
            return true;
        }
        if self.has(Flags::EXTENTS) {
            volume.inode_has(self.ino, Code::InlineExtents);
        }
        if seen.inline.is_none() {
            volume.inode_has(self.ino, Code::InlineAttribute);
        }
        let room = 60 + seen.inline.unwrap_or(0) as u64;
        let size = self.inode.size_both_words();
        let is_wrong = if self.is_directory() {
            size != room
        } else {
            size > room
        };
        if is_wrong {
            let code = match self.inode.file_type() {
                Some(FileType::Regular) => Code::InlineFileSize,
                _ => Code::InlineSize,
            };
            volume.found(self.problem(code).found(size).expected(room));
        }
        self.sectors(self.attribute_sectors(seen));
        if self.is_directory() {
            self.collect(Vec::new());
        }
        true
    }

    fn collect(&self, runs: Vec<MapRun>) {
        self.collected.directories.borrow_mut().push(Directory {
            ino: self.ino,
            flags: self.inode.flags(),
            seed: self.volume.seed(self.ino, self.inode),
            runs: runs.into(),
        });
    }

    /// Checks the inode's map. Returns the sectors of its blocks, map blocks included.
    fn map(&self, seen: &Seen) -> u64 {
        let (volume, inode) = (self.volume, self.inode);
        if !has_map(inode.file_type()) && self.ino != Ino::BAD {
            return 0;
        }
        if self.has(Flags::EXTENTS) && !volume.has(Feature::EXTENT) {
            volume.inode_has(self.ino, Code::ExtentsFeature);
        }
        if !is_map_readable(volume, self.ino, inode) {
            volume.inode_has(self.ino, Code::ExtentsFlagMissing);
            return 0;
        }
        let mut map = FileMap::new(volume, self.ino, inode, false);
        walk(volume, self.ino, inode, &mut map);
        if map.illegal > limits::POINTERS {
            let problem = self.problem(Code::TooManyIllegal);
            volume.found(problem.found(map.illegal as u64));
        }
        // As e2fsck counts: a file as large as a group can't be in one piece.
        let clusters = map.clusters + u64::from(seen.block);
        let is_small = clusters < u64::from(volume.geometry.blocks_per_group());
        if map.is_fragmented && is_small {
            self.collected
                .fragmented
                .set(self.collected.fragmented.get() + 1);
        }
        self.note_large_file();
        let sectors = map.clusters * self.xattr_sectors(true);
        if !map.is_partial {
            self.size(&map);
            self.sectors(sectors + self.attribute_sectors(seen));
        }
        if self.is_directory() {
            if map.last.is_none() && !map.is_partial {
                volume.inode_has(self.ino, Code::ZeroLengthDirectory);
            }
            self.collect(map.runs);
        }
        sectors
    }

    /// Notes that `large_file` is needed if this is a regular file of 2 GiB or more. The resize inode counts as one.
    fn note_large_file(&self) {
        let is_regular = self.inode.file_type() == Some(FileType::Regular);
        if is_regular && self.inode.size(true) > 0x7FFF_FFFF {
            self.collected.has_large_files.set(true);
        }
    }

    fn sectors(&self, expected: u64) {
        let huge = self.volume.has(Feature::HUGE_FILE);
        let found = self.inode.sectors(huge, self.volume.geometry.block_size());
        if found != expected {
            let problem = self.problem(Code::InodeBlocks);
            self.volume.found(problem.found(found).expected(expected));
        }
    }

    /// The size against the last block that the map names.
    fn size(&self, map: &FileMap<'_>) {
        let volume = self.volume;
        let bits = volume.geometry.block_size().bits();
        let size = self.inode.size(true);
        let blocks = map.last.map_or(0, |last| last + 1);
        let is_wrong = if self.is_directory() {
            size & ((1 << bits) - 1) != 0 || size >> bits != blocks
        } else if self.inode.file_type() == Some(FileType::Regular) {
            let most = if self.has(Flags::EXTENTS) {
                (1_u64 << (32 + bits)) - 1
            } else {
                ondisk::indirect::max_blocks(volume.geometry.block_size()) << bits
            };
            let is_short = map.last_written.is_some_and(|last| size < last << bits);
            is_short && !self.has(Flags::VERITY) || size > most
        } else {
            false
        };
        if is_wrong {
            let problem = self.problem(Code::InodeSize).found(size);
            volume.found(problem.expected(blocks << bits));
        }
    }
}
