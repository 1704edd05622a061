//! Where an image was found to be wrong: one stable number and one sentence for each place in the code.
//!
//! A site is constructed in exactly one place outside tests (`cargo xtask tidy` counts), so that a message names its
//! origin. Numbers are never reused. Each family of structures has a hundred numbers of its own.

use core::fmt;

use crate::numbers::{FsBlock, Group, Ino};

macro_rules! sites {
    ($( $(#[$m:meta])* $name:ident = $number:literal, $text:literal; )*) => {
        /// What was found wrong, and by which check.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[repr(u16)]
        pub enum Site {
            $( #[doc = $text] $(#[$m])* $name = $number, )*
        }

        impl Site {
            /// What is wrong, as a clause without its place.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $( Site::$name => $text, )* }
            }
        }
    };
}

sites! {
    // 1xx: superblock, features, geometry.
    SuperblockMagic = 100, "the superblock has no ext4 magic";
    SuperblockRevision = 101, "the superblock's revision is above 1";
    SuperblockChecksumType = 102, "the superblock's checksum type is not CRC-32C";
    SuperblockChecksum = 103, "the superblock's checksum is wrong";
    BlockSize = 110, "the block size is above 64 KiB";
    ClusterSize = 111, "the cluster size is below the block size or above 1 GiB";
    BlocksPerGroup = 112, "the blocks of a group are fewer than 8 or more than its bitmap holds";
    ClustersPerGroup = 113, "the clusters of a group don't match its blocks or its bitmap";
    InodeSize = 114, "the inode size is not a power of two from 128 bytes to a block";
    FirstDataBlock = 115, "the first data block does not match the block size";
    BlocksCount = 116, "the number of blocks is zero or above 2^48";
    DescSize = 117, "the descriptor size is not a power of two from 64 to 1024 bytes";
    InodesPerGroup = 118, "the inodes of a group fill less than a block or more than its bitmap";
    InodesCount = 119, "the number of inodes is not that of all groups";
    FirstIno = 120, "the first unreserved inode is below 11 or beyond the last";
    ReservedGdtBlocks = 121, "the reserved descriptor blocks are more than the resize inode can hold";
    FirstMetaBg = 122, "the first meta group lies beyond the last";
    DescriptorsBeyondEnd = 123, "the group descriptors reach beyond the end";

    // 2xx: group descriptors, bitmaps.
    GroupDescChecksum = 200, "the group descriptor's checksum is wrong";
    GroupBlockBitmapPlace = 201, "the block bitmap lies outside its group or the device";
    GroupInodeBitmapPlace = 202, "the inode bitmap lies outside its group or the device";
    GroupInodeTablePlace = 203, "the inode table lies outside its group or the device";
    BlockBitmapChecksum = 210, "the block bitmap's checksum is wrong";
    InodeBitmapChecksum = 211, "the inode bitmap's checksum is wrong";
    BlockInOtherUse = 212, "a block is used as metadata of two kinds or of two inodes";
    ZonesOverlap = 213, "two of the file system's own tables overlap";
    ZoneNamed = 214, "a block of the file system's own tables or of its journal is named as something else";
    FreedBeyondEnd = 215, "a block to be freed lies outside the file system";
    BlockFreedTwice = 216, "a block to be freed is free already";
    InodeFreedTwice = 217, "an inode to be freed is free already";
    InodeReserved = 218, "one of the file system's own inodes is named as an ordinary one";
    InodeInUse = 219, "an inode number that is free in the bitmap is in use";

    // 3xx: inodes.
    InodeExtraSize = 300, "the inode's extra fields do not fit into its slot";
    InodeChecksum = 301, "the inode's checksum does not match";

    InodeType = 302, "the inode is not in use, or its mode names no type of file";
    FileSize = 305, "the file is larger than any may be";
    SymlinkSize = 304, "the symbolic link's target is longer than one may be";

    // 4xx: extents and indirect blocks.
    ExtentMagic = 400, "an extent node has no magic";
    ExtentDepth = 401, "an extent node has the wrong depth";
    ExtentCount = 402, "an extent node has more entries than fit";
    ExtentEmptyIndex = 403, "an extent index node has no entries";
    ExtentLength = 404, "an extent has no blocks";
    ExtentOrder = 405, "an extent overlaps another or lies outside its parent's range";
    ExtentPointer = 406, "an extent points outside the file system";
    ExtentIndexOrder = 407, "an extent index is out of order or outside its parent's range";
    ExtentIndexPointer = 408, "an extent index points outside the file system";
    ExtentChecksum = 409, "an extent block's checksum does not match";

    IndirectPointer = 420, "a block map points outside the file system";
    IndirectLoop = 421, "a block map has more blocks of pointers than the file system has blocks";
    MapPointer = 422, "a block map that is changed points outside the file system";
    MapShared = 423, "a block map uses one block of pointers twice";

    // 5xx: directory entries.
    DirentLengthSmall = 500, "a directory entry is shorter than any can be";
    DirentLengthUnaligned = 501, "a directory entry's length is not a multiple of four";
    DirentOverrun = 502, "a directory entry runs past the end of its block";
    DirentNearEnd = 503, "a directory entry leaves too little room before the end of its block";
    DirentNameLong = 504, "a directory entry is shorter than its name";
    DirentIno = 505, "a directory entry names an inode that does not exist";
    DirentTail = 506, "a directory block has no checksum";
    DirentChecksum = 507, "a directory block's checksum is wrong";
    DirentTruncated = 509, "a directory block ends within an entry";
    DirectorySize = 510, "a directory is larger than its file system";
    DirectoryInline = 511, "an inline directory is too short to name its parent";
    DirentName = 508, "a directory entry's name is empty or holds a slash or NUL";
    ParentEntry = 530, "a directory's entry for its parent is not where it must be";
    DraftOverrun = 531, "an entry that was found is not in its block";
    DraftBlock = 532, "a directory's block has no entries where some must be";
    EntryToRemove = 533, "the entry to remove begins at no record";
    EntryToChange = 534, "the entry to change begins at no record";
    IndexSplit = 535, "a block of entries can't be split";
    IndexConversion = 536, "the first block of a directory does not begin with . and ..";
    DraftHole = 537, "a directory has a hole where a block must be";
    ListingHole = 538, "an index leads into a hole of its directory";

    // 6xx: hashed directories.
    IndexLeaf = 630, "a directory's index leads to no block of entries";
    IndexUseless = 631, "a directory's index can't be used to change it";
    IndexEntries = 632, "a block of a directory's index has no entries";
    HtreeInfoLength = 600, "a hashed directory's root is not described as any known one";
    HtreeHashVersion = 601, "a hashed directory uses an unknown or unfit hash";
    HtreeFlags = 602, "a hashed directory has unknown flags";
    HtreeLevels = 603, "a hashed directory has too many index levels";
    HtreeNode = 604, "a hashed directory's index block does not look like one";
    HtreeLimit = 605, "a hashed directory's index block states a wrong capacity";
    HtreeCount = 606, "a hashed directory's index block states an impossible number of entries";
    HtreeOrder = 607, "a hashed directory's index is out of order";
    HtreeBlock = 609, "a hashed directory's index leads to a block that is not there";
    HtreeWide = 610, "a hashed directory's index leads to more blocks than there are";
    HtreeChecksum = 608, "a hashed directory's index block has a wrong checksum";

    // 7xx: extended attributes, ACLs.
    XattrBlockHeader = 700, "an attribute block has a wrong header";
    XattrEntry = 701, "an attribute entry does not fit, or nothing ends the list";
    XattrName = 702, "an attribute's name contains a zero byte";
    XattrValue = 703, "an attribute's value does not lie where values may";
    XattrBlockChecksum = 704, "an attribute block's checksum does not match";
    XattrInode = 705, "an attribute's value lies in an inode that is none for values, or of another size";
    XattrInodeHash = 706, "an attribute's value in an inode does not match its hash";
    XattrBlockPlace = 707, "the attribute block lies outside the file system";
    XattrReferences = 708, "an attribute block that an inode uses says that none does";
    AclFormat = 720, "an access control list has a wrong version, tag or length";

    // 8xx: the journal.
    JournalMagic = 800, "the journal's superblock has no journal magic";
    JournalSuperblockKind = 801, "the journal's superblock is of an unknown kind";
    JournalBlockSize = 802, "the journal's block size is not the file system's";
    JournalLength = 803, "the journal's superblock says that it is longer than it is";
    JournalFirst = 804, "the journal's log has no room";
    JournalStart = 805, "the journal's oldest transaction lies outside of its log";
    JournalChecksumVersions = 806, "the journal has several versions of checksums at once";
    JournalChecksumType = 807, "the journal's checksums are of an unknown kind";
    JournalSuperblockChecksum = 808, "the journal superblock's checksum is wrong";
    RevokeLength = 809, "a revoke block says that it holds more than a block can";
    JournalInode = 810, "the journal's inode is not a regular file in use";
    JournalPointer = 811, "a block of the journal lies outside the file system";
    JournalOverlap = 812, "two blocks of the journal are one block of the device";
    JournalHole = 813, "the journal has a hole";
    JournalTargetOutside = 814, "the journal holds a copy of a block beyond the end of the device";
    JournalTargetInside = 815, "the journal holds a copy of one of its own blocks";
    JournalBlockChecksum = 816, "a descriptor or revoke block of a committed transaction has a wrong checksum";
    JournalCopyChecksum = 817, "the journal's copy of a block has a wrong checksum";
    JournalDeviceBlockSize = 819, "the external journal's block size is not the file system's";
    JournalInodeSize = 820, "the journal's inode is longer than the file system";
    LogHole = 830, "the journal's file has a hole";
    JournalMapTwice = 821, "a block that maps the journal is used twice";
    JournalUnstable = 818, "the journal changed while it was read";

    // 9xx: fast commits.
    FastCommitRecord = 900, "a fast-commit record has an unknown tag or an impossible length";
    FastCommitFeatures = 901, "the fast-commit area has features that nobody knows";
    FastCommitTail = 902, "the first fast commit's checksum or transaction is wrong";
    FastCommitExtent = 903, "a fast commit maps an impossible extent";
    FastCommitInode = 904, "a fast commit names an inode that does not exist";
    FastCommitBlocks = 905, "a fast commit maps blocks beyond the end of the file system";
    FastCommitInUse = 906, "a fast commit maps blocks that are in use";
    FastCommitReuse = 908, "a fast commit reuses the number of an inode that keeps a name";
    FastCommitSize = 909, "a fast commit gives a file an impossible size";
    FastCommitName = 907, "a fast commit names an inode that is not in use";
    FastCommitDeleted = 910, "a fast commit names an inode that was deleted, and its number is not free";
    FastCommitMap = 911, "a fast commit gives a file other blocks than its ranges say";
    FastCommitPlace = 912, "a fast commit gives a directory another place than it has";
    FastCommitFull = 913, "a fast commit takes away a directory that holds names";
    FastCommitTarget = 914, "a fast commit makes a symbolic link without its target";
    FastCommitType = 915, "a fast commit makes an inode of no known type";
    FastCommitHalf = 916, "another program began to replay the fast commits and did not end: e2fsck -fy does";
    FastCommitShared = 917, "fast commits name files with more blocks than there are, or too many that can't be read";

    // 10xx: orphan file, multi-mount protection.
    OrphanMagic = 1000, "a block of the orphan file has no magic number";
    OrphanHole = 1010, "the orphan file has a hole";
    OrphanLength = 1011, "the orphan file is longer than one can be";
    OrphanTwice = 1014, "an orphan is twice on the list of them";
    OrphanLoop = 1012, "the list of orphans comes back to itself";
    OrphanMany = 1016, "more orphans are on the list than are dealt with at once";
    OrphanNumber = 1013, "an orphan's number is that of no ordinary inode";
    OrphanAgain = 1015, "a slot of the orphan file names an inode that is among the orphans already";
    OrphanChecksum = 1001, "the checksum of a block of the orphan file is wrong";
    MmpMagic = 1002, "the multi-mount protection block has no magic number";
    MmpChecksum = 1003, "the multi-mount protection block's checksum is wrong";
}

/// An image that breaks the format, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt {
    site: Site,
    ino: Option<Ino>,
    group: Option<Group>,
    block: Option<FsBlock>,
}

impl Corrupt {
    /// The image is wrong at `site`; the other methods add where.
    #[must_use]
    pub fn at(site: Site) -> Corrupt {
        Corrupt {
            site,
            ino: None,
            group: None,
            block: None,
        }
    }

    /// ... in this inode.
    #[must_use]
    pub fn ino(self, ino: Ino) -> Corrupt {
        Corrupt {
            ino: Some(ino),
            ..self
        }
    }

    /// ... in this group.
    #[must_use]
    pub fn group(self, group: Group) -> Corrupt {
        Corrupt {
            group: Some(group),
            ..self
        }
    }

    /// ... in this block.
    #[must_use]
    pub fn block(self, block: FsBlock) -> Corrupt {
        Corrupt {
            block: Some(block),
            ..self
        }
    }

    /// In which inode, if that is known.
    #[must_use]
    pub fn inode(&self) -> Option<Ino> {
        self.ino
    }

    /// In which block, if that is known.
    #[must_use]
    pub fn block_number(&self) -> Option<FsBlock> {
        self.block
    }

    /// Which check failed.
    #[must_use]
    pub fn site(&self) -> Site {
        self.site
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "corrupt image: {}", self.site.text())?;
        let mut separator = " (";
        let mut place = |f: &mut fmt::Formatter<'_>, word: &str, number: Option<u64>| match number {
            Some(number) => {
                let written = write!(f, "{separator}{word} {number}");
                separator = ", ";
                written
            }
            None => Ok(()),
        };
        place(f, "inode", self.ino.map(|ino| ino.0.into()))?;
        place(f, "group", self.group.map(|group| group.0.into()))?;
        place(f, "block", self.block.map(|block| block.0))?;
        place(f, "check", Some(self.site as u64))?;
        f.write_str(")")
    }
}

impl core::error::Error for Corrupt {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_what_and_where() {
        let corrupt = Corrupt::at(Site::SuperblockMagic)
            .group(Group(3))
            .block(FsBlock(98304));
        assert_eq!(
            corrupt.to_string(),
            "corrupt image: the superblock has no ext4 magic (group 3, block 98304, check 100)"
        );
    }
}
