//! The table of problems: every kind that the checker reports, in one place.
//!
//! A number below 0x80000000 is e2fsck's own for the same problem, so that it can be searched for: each one was
//! observed in e2fsck's problem log beside the message that means the same. Numbers from 0x80000000 on are this
//! checker's. `docs/check-problems.md` is made from this table.

/// What part of the file system a problem is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Class {
    /// The superblock.
    Superblock,
    /// A group descriptor.
    Descriptor,
    /// A block or inode bitmap.
    Bitmap,
    /// An inode's fields.
    Inode,
    /// The map from a file's blocks to the device's.
    Map,
    /// Extended attributes.
    Xattr,
    /// Names in a directory.
    Directory,
    /// The index of a directory.
    Htree,
    /// How directories hang together.
    Connectivity,
    /// Counts of links, blocks and inodes.
    Count,
    /// The journal.
    Journal,
    /// Orphans.
    Orphan,
    /// Quota files.
    Quota,
    /// The inode that reserves descriptor blocks.
    Resize,
    /// Multi-mount protection.
    Mmp,
}

impl Class {
    /// The class's name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::Superblock => "superblock",
            Class::Descriptor => "descriptor",
            Class::Bitmap => "bitmap",
            Class::Inode => "inode",
            Class::Map => "map",
            Class::Xattr => "xattr",
            Class::Directory => "directory",
            Class::Htree => "htree",
            Class::Connectivity => "connectivity",
            Class::Count => "count",
            Class::Journal => "journal",
            Class::Orphan => "orphan",
            Class::Quota => "quota",
            Class::Resize => "resize",
            Class::Mmp => "mmp",
        }
    }
}

/// How much a problem matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Severity {
    /// Worth knowing; the file system is clean nevertheless.
    Note,
    /// The file system is not clean.
    Damage,
    /// The file system is not clean, and what depends on this is not judged.
    Fatal,
}

impl Severity {
    /// The severity's name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Damage => "damage",
            Severity::Fatal => "fatal",
        }
    }
}

/// One kind of problem as the table describes it.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The kind.
    pub code: Code,
    /// Its stable number.
    pub number: u32,
    /// The part of the file system.
    pub class: Class,
    /// How much it matters.
    pub severity: Severity,
    /// Whether a careful repair (`-p`) would mend it.
    pub preen: bool,
    /// The sentence, with `{found}`, `{expected}`, `{block}`, `{lblk}`, `{name}` and `{other}` to be filled in.
    pub sentence: &'static str,
}

macro_rules! problems {
    ($( $code:ident $number:literal $class:ident $severity:ident $preen:literal $sentence:literal; )*) => {
        /// The kinds of problems.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        pub enum Code {
            $(
                #[doc = $sentence]
                $code,
            )*
        }

        /// The whole table, in the order of the passes.
        pub const TABLE: &[Kind] = &[
            $( Kind {
                code: Code::$code,
                number: $number,
                class: Class::$class,
                severity: Severity::$severity,
                preen: $preen,
                sentence: $sentence,
            }, )*
        ];
    };
}

problems! {
    SuperblockBroken 0x80000001 Superblock Fatal false "the superblock can't be used: {name}";
    SuperblockFromBackup 0x80000002 Superblock Damage false
        "the first superblock can't be used ({name}); the copy in block {block} is read instead";
    DeviceTooSmall 0x000005 Superblock Fatal false "the file system has {expected} bytes, the device {found}";
    ReservedBlocks 0x00000B Superblock Damage false "{found} blocks are reserved, more than half of all ({expected})";
    InodesCount 0x00000D Superblock Damage false
        "the superblock counts {found} inodes, its groups have {expected}";
    InodesPerGroup 0x8000003F Superblock Damage false
        "the superblock counts {found} inodes in a group; its count of all, and a copy or a bitmap, give {expected}";
    FirstMetaGroup 0x000049 Superblock Damage false
        "the first meta group is {found}, but the descriptors have {expected} blocks";
    GroupSizeOdd 0x80000003 Superblock Damage false
        "a group has {found} blocks or inodes, which is not a multiple of 8";
    ClusterSize 0x80000036 Superblock Damage false
        "clusters differ from blocks ({found} of them in a group, not {expected}) without the bigalloc feature";
    NoUuid 0x80000004 Superblock Note true "the file system has no UUID";
    FeatureMissing 0x80000005 Superblock Damage false "the feature {name} is missing, which another feature needs";
    ErrorsRecorded 0x80000006 Superblock Note false "errors are on record (state {found})";
    DescriptorChecksum 0x000035 Descriptor Damage true
        "the descriptor's checksum is {found}, it should be {expected}";
    BlockBitmapPlace 0x000001 Descriptor Fatal false
        "the block bitmap lies at block {found}, outside of where it may";
    InodeBitmapPlace 0x000002 Descriptor Fatal false
        "the inode bitmap lies at block {found}, outside of where it may";
    InodeTablePlace 0x000003 Descriptor Fatal false "the inode table lies at block {found}, outside of where it may";
    DescriptorCounts 0x000038 Descriptor Damage true
        "the descriptor counts more unused inodes than the group has, or than are free";
    LastGroupUninit 0x000039 Descriptor Damage true
        "the last group's block bitmap is marked as uninitialised, which only other groups' may be";
    DescriptorFlags 0x000036 Descriptor Note true
        "the descriptor has flags (or unused inodes) that need descriptor checksums";
    DescriptorUnreadable 0x80000007 Descriptor Fatal false "descriptor block {block} can't be read";
    MetadataOverlap 0x80000008 Descriptor Damage false "block {block} is claimed by two pieces of metadata";
    JournalInode 0x00000F Journal Damage false "inode {found} can't be the journal: {name}";
    JournalSuperblock 0x000015 Journal Damage false "the journal's superblock is wrong: {name}";
    JournalFirst 0x80000037 Journal Damage false
        "the journal's log has no room: the kernel refuses to mount this (e2fsck does not look for it)";
    JournalFeatures 0x80000009 Journal Damage false "the journal has features that are not known ({found})";
    JournalExtra 0x000016 Journal Note false
        "the superblock names a journal (inode {found}), but the feature is off";
    JournalRecoverWithout 0x000017 Journal Damage true "the journal must be replayed, but the image has no journal";
    JournalNotReplayed 0x000018 Journal Damage false
        "the journal's log begins at block {found}, but the superblock does not ask for a replay";
    JournalErrno 0x8000003E Journal Damage true
        "the journal has an error on record ({found}): the next mount marks the file system as having errors";
    JournalReplayFailed 0x8000000A Journal Damage false "the journal can't be replayed: {name}";
    JournalReplayed 0x8000000B Journal Note true
        "the journal was replayed in memory; what is reported is the state after it";
    JournalExternal 0x8000000C Journal Note false "the journal is on another device, and was not looked at";
    ResizeInode 0x000030 Resize Note false "the resize inode is wrong: {name}";
    ResizeWithout 0x00002E Resize Note false
        "blocks are reserved for growth ({found}) without the resize_inode feature";
    ResizeLeft 0x00002F Resize Note false "the resize inode is in use, but the resize_inode feature is off";
    OrphanHead 0x8000000D Orphan Damage false "the list of orphans begins with inode {found}, which can't be an orphan";
    OrphanLoop 0x8000000E Orphan Damage false "the list of orphans is wrong at inode {found}";
    OrphanFile 0x8000000F Orphan Damage false "the orphan file is wrong: {name}";
    OrphanCount 0x80000010 Orphan Note true "{found} orphans wait to be removed by the next mount";
    OrphanFlag 0x80000011 Orphan Damage true "the orphan file has orphans, but the superblock does not say so";
    MmpBlock 0x80000012 Mmp Damage false "the multi-mount block {block} is wrong: {name}";
    TableUnreadable 0x80000013 Inode Fatal false "block {block} of the inode table can't be read";
    RootNotDirectory 0x010001 Inode Damage false "the root is not a directory";
    RootDtime 0x010002 Inode Damage true "the root has a deletion time";
    ReservedMode 0x010003 Inode Damage false "the reserved inode has mode {found}";
    JournalInodeLeft 0x010034 Inode Damage false "the inode of the journal is not in use, but has contents";
    QuotaInodeLeft 0x010063 Inode Damage false "the inode of a quota file is not in use, but has contents";
    ZeroDtime 0x010004 Inode Damage true "the inode is deleted but has no deletion time";
    SetDtime 0x010005 Inode Damage true "the inode is in use but has a deletion time ({found})";
    LowDtime 0x010037 Orphan Damage false "the inode was part of a list of orphans that is broken";
    ZeroLengthDirectory 0x010006 Inode Damage false "the directory has no blocks";
    InodeSize 0x01000C Inode Damage false "the size is {found}, but the blocks say {expected}";
    InodeBlocks 0x01000D Inode Damage false "the inode counts {found} sectors, its map has {expected}";
    IllegalBlock 0x01000E Map Damage false
        "logical block {lblk} points to block {found}, which does not exist or may not be used";
    TooManyIllegal 0x80000014 Map Damage false "{found} pointers of the inode lead to blocks that do not exist";
    TooBigDirectory 0x80000015 Map Damage false "the directory has a block {lblk}, beyond what a directory may have";
    TooBigFile 0x80000016 Map Damage false "the file has a block {lblk}, beyond what its kind of map may have";
    ImagicFlag 0x01002F Inode Damage false "the inode has a flag of a feature that is off ({found})";
    DeviceFlags 0x010030 Inode Note false "the special file has flags or blocks that it can't have";
    DeviceSize 0x010032 Inode Damage false "the special file has a size ({found})";
    ExtraSize 0x01004F Inode Damage false "the inode has {found} bytes of extra fields, which can't be";
    TimeOutOfRange 0x010082 Inode Note false "a time of the inode lies beyond the year 2310";
    InodeChecksum 0x010068 Inode Damage false "the inode's checksum is wrong";
    EncryptContextCorrupt 0x01008B Inode Damage false "the inode's encryption context is corrupt";
    EncryptWithoutContext 0x01008A Inode Damage false "the inode is encrypted but has no encryption context";
    CasefoldNotDirectory 0x010088 Inode Damage false
        "the inode ignores case in names, but is not a directory";
    CasefoldFeature 0x010089 Inode Damage false
        "the inode ignores case in names, but the feature casefold is off";
    LooksDirectory 0x010055 Inode Damage false "the inode's mode is {found}, but its contents are a directory's";
    InlineFlag 0x80000017 Inode Damage false "the inode has inline data, which it can't have";
    InlineAttribute 0x010075 Inode Damage false "the inode has inline data, but not the attribute that goes with it";
    InlineExtents 0x010078 Inode Damage false "the inode has both inline data and a map";
    InlineSize 0x80000018 Inode Damage false "the inode has {found} bytes, its inline data {expected}";
    BadBlocksInode 0x010065 Inode Damage false "the bad block inode has a mode or other fields set";
    ExtentsFeature 0x01005A Map Damage false "the inode has extents, but the feature is off";
    ExtentsFlagMissing 0x01005C Map Damage false "the inode has an extent tree but not the flag";
    ExtentHeader 0x80000019 Map Damage false "an extent header is wrong (node in block {block}, 0 for the root)";
    ExtentDepth 0x8000001A Map Damage false
        "the extent node in block {block} has depth {found}, it should be {expected}";
    ExtentOrder 0x8000001B Map Damage false "the extents are out of order at logical block {lblk}";
    ExtentPointer 0x010058 Map Damage false
        "an extent at logical block {lblk} points to block {found}, which does not exist";
    ExtentEnd 0x01006E Map Damage false "an extent at logical block {lblk} ends beyond what it may";
    ExtentEmpty 0x8000001C Map Damage false "an extent at logical block {lblk} has no blocks";
    ExtentIndexStart 0x8000001D Map Damage false
        "an index says logical block {expected}, the node below begins with {found}";
    ExtentChecksum 0x01006A Map Damage false "the checksum of the extent block {block} is wrong";
    ExtentUnwrittenDirectory 0x8000001E Map Damage false "the directory has unwritten blocks at logical block {lblk}";
    MisalignedCluster 0x8000001F Map Damage false "the cluster of logical block {lblk} is not aligned";
    MapUnreadable 0x80000020 Map Damage false "map block {block} can't be read";
    BlockShared 0x80000021 Map Damage false "{found} blocks from block {block} on are claimed by others too";
    BlockSharedRun 0x80000022 Map Damage false "{found} blocks from block {block} on are claimed more than once";
    ClaimsTooMany 0x80000023 Map Fatal false
        "all files together claim more than {expected} blocks; the rest was not looked at";
    XattrFeature 0x02000E Xattr Damage false "the inode has an attribute block, but the feature is off";
    XattrBlockPlace 0x020032 Xattr Damage false "the attribute block {found} does not exist";
    XattrList 0x80000024 Xattr Damage false "the attributes are broken: {name}";
    XattrName 0x80000038 Xattr Damage false
        "an attribute's name contains a zero byte: the kernel can't read the file (e2fsck does not look for it)";
    XattrHash 0x010054 Xattr Damage false "the hash of attribute {name} is {found}, it should be {expected}";
    XattrBlockList 0x80000025 Xattr Damage false "the attribute block {block} is broken: {name}";
    XattrBlockChecksum 0x01006C Xattr Damage false "the checksum of the attribute block {block} is wrong";
    XattrReferences 0x01003C Xattr Damage false
        "the attribute block {block} says {found} references, there are {expected}";
    XattrValueInode 0x010083 Xattr Damage false
        "the value of attribute {name} is in inode {found}, which does not hold one";
    XattrValueSize 0x010053 Xattr Damage false
        "the value of attribute {name} has {found} bytes, the inode that holds it {expected}";
    ValueNotRegular 0x010091 Xattr Damage false
        "the inode holds the value of an attribute, but is not a regular file";
    ValueFeature 0x010092 Xattr Damage false
        "the inode holds the value of an attribute, but the feature ea_inode is off";
    XattrValueReferences 0x80000026 Xattr Damage false "the value inode says {found} references, there are {expected}";
    LargeFile 0x020033 Superblock Damage true "a file is larger than 2 GiB, but the feature large_file is off";
    DirectoryFeature 0x010048 Htree Damage false "the inode has an index that it can't have";
    DirectoryHole 0x020015 Directory Damage false "block {lblk} of the directory is a hole";
    DirectoryUnreadable 0x80000027 Directory Damage false "block {lblk} of the directory (block {block}) can't be read";
    DirectoryCorrupt 0x020013 Directory Damage false "block {lblk} of the directory is broken at byte {found}";
    DirectoryChecksum 0x02004D Directory Damage false "the checksum of block {lblk} of the directory is wrong";
    DirectoryNoChecksum 0x02004C Directory Damage false "block {lblk} of the directory has no checksum";
    DotMissing 0x02000B Directory Damage false "the first entry is '{name}', not '.'";
    DotInode 0x020001 Directory Damage false "'.' names inode {found}";
    DotDotMissing 0x02000C Directory Damage false "the second entry is '{name}', not '..'";
    DotNotTerminated 0x020016 Directory Damage false "the name '.' does not end with a zero byte";
    DotDotNotTerminated 0x020017 Directory Damage false "the name '..' does not end with a zero byte";
    DotLong 0x020024 Directory Damage false "the entry '.' takes {found} bytes";
    DotAgain 0x02001A Directory Damage false "'{name}' stands where it may not (block {lblk})";
    DotDotAgain 0x02001B Directory Damage false "'{name}' stands where it may not (in block {lblk})";
    EntryItself 0x020004 Directory Damage false "'{name}' names the directory itself";
    EntryInode 0x020002 Directory Damage false "'{name}' names inode {found}, which can't be";
    EntryRoot 0x020007 Directory Damage false "'{name}' is a link to the root";
    EntryUnused 0x020003 Directory Damage false "'{name}' names inode {found}, which is not in use";
    EntryUninit 0x020047 Directory Damage false
        "'{name}' names inode {found}, which lies in the unused part of its table";
    EntryName 0x020008 Directory Damage false "'{name}' (inode {found}) is not a name";
    EntryEncryptedName 0x020050 Directory Damage false "'{name}' (inode {found}) is too short for an encrypted name";
    EntryNoName 0x020030 Directory Damage false "an entry for inode {found} has no name";
    EntryCasefold 0x020053 Directory Damage false
        "'{name}' (inode {found}) is not UTF-8, which the file system asks for";
    EntryValueInode 0x020055 Directory Damage false
        "'{name}' names inode {found}, which holds the value of an attribute";
    EntryTypeUnset 0x020027 Directory Note true "'{name}' says no type, its inode {expected}";
    EntryUnencrypted 0x020051 Directory Damage false
        "'{name}' (inode {found}) is not encrypted, but the directory is";
    EntryOtherPolicy 0x020052 Directory Damage false
        "'{name}' (inode {found}) is encrypted under another policy than the directory";
    EntryType 0x020028 Directory Damage false "'{name}' says type {found}, its inode {expected}";
    EntryTwice 0x020043 Directory Damage false "'{name}' stands twice in block {lblk}";
    NameInTwoBlocks 0x80000039 Directory Damage false
        "'{name}' stands in block {lblk} and in block {expected} (e2fsck does not see this)";
    NameFoldedTwice 0x8000003A Directory Damage false
        "'{name}' stands twice in block {lblk}, where case does not count (e2fsck does not see this)";
    DirectoryLinked 0x020006 Directory Damage false "'{name}' is a second name of directory {found}";
    InodeMode 0x020012 Inode Damage false "the mode {found} names no type of file";
    InodeReserved 0x8000002D Inode Damage false "a field that must be zero holds {found}";
    SymlinkInvalid 0x020031 Inode Damage false "the symbolic link is not valid";
    HtreeRoot 0x8000002E Htree Damage false "the root of the index is wrong: {name}";
    HtreeNode 0x8000002F Htree Damage false "the index node in block {lblk} is wrong: {name}";
    HtreePointer 0x02003A Htree Damage false "the index points to block {found}, which is not in the directory";
    HtreeUnreferenced 0x020034 Htree Damage false "the index does not lead to block {lblk}";
    HtreeLimit 0x02003D Htree Damage false "the index in block {lblk} has a wrong limit: {name}";
    HtreeCount 0x02003E Htree Damage false "the index in block {lblk} has a wrong number of entries: {name}";
    HtreeTwice 0x020035 Htree Damage false "the index leads to block {lblk} twice";
    HtreeOrder 0x02003F Htree Damage false "the hashes are not in order in block {lblk}";
    HtreeMin 0x020036 Htree Damage false "block {lblk} holds a hash below its range";
    HtreeMax 0x020037 Htree Damage false "block {lblk} holds a hash above its range";
    HtreeLost 0x8000003B Htree Damage false
        "the index leads past '{name}' in block {lblk}, so that it can't be found (e2fsck does not see this)";
    HtreeRootChecksum 0x020049 Htree Damage false "the checksum of the index's root is wrong";
    HtreeChecksum 0x02004A Htree Damage false "the checksum of the index in block {lblk} is wrong";
    NoRoot 0x030001 Connectivity Fatal false "the root directory is missing";
    NoLostFound 0x80000033 Connectivity Note true "lost+found is missing";
    Unconnected 0x030003 Connectivity Damage false "the directory can't be reached from the root";
    DotDotParent 0x030005 Connectivity Damage false "'..' names inode {found}, the parent is {expected}";
    Unattached 0x040002 Connectivity Damage false "the inode has no name";
    Links 0x040003 Count Damage false "the link count is {found}, there are {expected}";
    BlockBitmapUnreadable 0x80000034 Bitmap Damage false "a bitmap in block {block} can't be read";
    BlockBitmapChecksum 0x05001B Bitmap Damage true "the block bitmap's checksum is wrong";
    InodeBitmapChecksum 0x05001A Bitmap Damage true "the inode bitmap's checksum is wrong";
    BlockFreeUsed 0x050005 Bitmap Damage false
        "{found} clusters in use are free in the bitmap, from block {block} on";
    BlockUsedFree 0x050004 Bitmap Damage true
        "{found} clusters that nobody uses are in use in the bitmap, from block {block} on";
    InodeFreeUsed 0x050009 Bitmap Damage false "{found} inodes in use are free in the bitmap, the first is {other}";
    InodeUsedFree 0x050008 Bitmap Damage true
        "{found} inodes that are free are in use in the bitmap, the first is {other}";
    BlockPadding 0x050002 Bitmap Damage true "the bits beyond the group's end are not all set in the block bitmap";
    InodePadding 0x050001 Bitmap Damage true "the bits beyond the group's end are not all set in the inode bitmap";
    GroupFreeBlocks 0x05000E Count Damage true "the descriptor says {found} free clusters, there are {expected}";
    GroupFreeInodes 0x05000B Count Damage true "the descriptor says {found} free inodes, there are {expected}";
    GroupDirectories 0x05000C Count Damage true "the descriptor says {found} directories, there are {expected}";
    FreeBlocks 0x05000F Count Note true "the superblock says {found} free blocks, there are {expected}";
    FreeInodes 0x05000D Count Note true "the superblock says {found} free inodes, there are {expected}";
    BackupSuperblock 0x8000003C Superblock Note true
        "the copy of the superblock in block {block} can't be used: {name} (e2fsck does not see this)";
    BackupDescriptors 0x8000003D Descriptor Note true
        "the copy of the descriptors that belongs to block {block} has group {group} wrong (e2fsck does not see this)";
    QuotaUsage 0x060002 Quota Damage true "the quota file says {found} {name}, there are {expected}";
    QuotaInode 0x80000035 Quota Damage false "the quota inode is wrong: {name}";
}

/// Kinds of damage that e2fsck does not look for.
pub const BEYOND: &[Code] = &[
    Code::JournalFirst,
    Code::ExtentDepth,
    Code::XattrName,
    Code::NameInTwoBlocks,
    Code::NameFoldedTwice,
    Code::HtreeLost,
    Code::BackupSuperblock,
    Code::BackupDescriptors,
];

impl Code {
    /// Whether e2fsck does not look for this kind.
    #[must_use]
    pub fn is_beyond_e2fsck(self) -> bool {
        BEYOND.contains(&self)
    }

    /// The table's line for this kind.
    #[must_use]
    pub fn kind(self) -> &'static Kind {
        // The table has the variants in their order, which a test asserts.
        &TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_kind_in_its_place_and_no_number_twice() {
        for (index, kind) in TABLE.iter().enumerate() {
            assert_eq!(kind.code as usize, index);
            let same = TABLE.iter().filter(|other| other.number == kind.number);
            assert_eq!(same.count(), 1, "{:#08x}", kind.number);
        }
    }
}
