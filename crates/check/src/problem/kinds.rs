//! The table: each kind of problem with what a repair does about it. In the order of the passes.
//!
//! A sentence, and the clause after it on what a repair does, may name `{found}`, `{expected}`, `{block}`, `{lblk}`,
//! `{group}`, `{name}` and `{other}`. An empty clause: a repair leaves it.

use super::{Class, Kind, Preen, Severity};

problems! {
    SuperblockBroken 0x80000001 Superblock Fatal Refuses
        "the superblock can't be used: {name}"
        "";
    SuperblockFromBackup 0x80000002 Superblock Damage Refuses
        "the first superblock can't be used ({name}); the copy in block {block} is read instead"
        "the copy takes its place";
    DeviceTooSmall 0x000005 Superblock Fatal Refuses
        "the file system has {expected} bytes, the device {found}"
        "";
    ReservedBlocks 0x00000B Superblock Damage Refuses
        "{found} blocks are reserved, more than half of all ({expected})"
        "a twentieth of all blocks is reserved";
    InodesCount 0x00000D Superblock Damage Refuses
        "the superblock counts {found} inodes, its groups have {expected}"
        "the count is set to {expected}";
    InodesPerGroup 0x8000003F Superblock Damage Refuses
        "the superblock counts {found} inodes in a group; its count of all, and a copy or a bitmap, give {expected}"
        "the count is set to {expected}";
    FirstMetaGroup 0x000049 Superblock Damage Refuses
        "the first meta group is {found}, but the descriptors have {expected} blocks"
        "the number is corrected";
    GroupSizeOdd 0x80000003 Superblock Damage Refuses
        "a group has {found} blocks or inodes, which is not a multiple of 8"
        "";
    ClusterSize 0x80000036 Superblock Damage Refuses
        "clusters differ from blocks ({found} of them in a group, not {expected}) without the bigalloc feature"
        "a cluster is set to one block";
    NoUuid 0x80000004 Superblock Note Mends
        "the file system has no UUID"
        "a UUID is made";
    FutureMount 0x000031 Superblock Note Mends
        "the time of the last mount, {found} seconds after 1970, is in the future (now {expected})"
        "the time is set to now";
    FutureWrite 0x000032 Superblock Note Mends
        "the time of the last write, {found} seconds after 1970, is in the future (now {expected})"
        "the time is set to now";
    FeatureMissing 0x80000005 Superblock Damage Refuses
        "the feature {name} is missing, which another feature needs"
        "";
    FeatureUnknown 0x80000040 Superblock Fatal Refuses
        "the file system has features that are not known: {name}"
        "";
    ErrorsRecorded 0x80000006 Superblock Note Mends
        "errors are on record (state {found})"
        "the record is cleared, if all is clean then";
    DescriptorChecksum 0x000035 Descriptor Damage Mends
        "the descriptor's checksum is {found}, it should be {expected}"
        "the group is read in full, and the checksum is set";
    BlockBitmapPlace 0x000001 Descriptor Fatal Refuses
        "the block bitmap lies at block {found}, outside of where it may"
        "the bitmap is made anew, where a copy of the descriptor has it or in a free block";
    InodeBitmapPlace 0x000002 Descriptor Fatal Refuses
        "the inode bitmap lies at block {found}, outside of where it may"
        "the bitmap is made anew, where a copy of the descriptor has it or in a free block";
    InodeTablePlace 0x000003 Descriptor Fatal Refuses
        "the inode table lies at block {found}, outside of where it may"
        "the table is searched for; if it is not found, an empty one is made";
    DescriptorCounts 0x000038 Descriptor Damage Mends
        "the descriptor counts more unused inodes than the group has, or than are free"
        "the count is cleared, so that all inodes are read";
    LastGroupUninit 0x000039 Descriptor Damage Mends
        "the last group's block bitmap is marked as uninitialised, which only other groups' may be"
        "the flag is cleared";
    DescriptorFlags 0x000036 Descriptor Note Mends
        "the descriptor has flags (or unused inodes) that need descriptor checksums"
        "flags and counts are cleared";
    DescriptorUnreadable 0x80000007 Descriptor Fatal Refuses
        "descriptor block {block} can't be read"
        "the block is written from a copy";
    MetadataOverlap 0x80000008 Descriptor Damage Refuses
        "block {block} is claimed by two pieces of metadata"
        "descriptors are taken from a copy, or bitmaps are moved";
    JournalInode 0x00000F Journal Damage Refuses
        "inode {found} can't be the journal: {name}"
        "the superblock's copy of the inode is restored; without a right one, an empty journal is made";
    JournalInodeCopy 0x80000045 Journal Damage Refuses
        "inode {found} can't be the journal: {name} (e2fsck uses the superblock's copy of it without a message)"
        "the superblock's copy of the inode is restored; without a right one, an empty journal is made";
    JournalSuperblock 0x000015 Journal Damage Refuses
        "the journal's superblock is wrong: {name}"
        "the log is emptied";
    JournalFirst 0x80000037 Journal Damage Refuses
        "the journal's log has no room: the kernel refuses to mount this (e2fsck does not look for it)"
        "the log is emptied";
    JournalFeatures 0x80000009 Journal Damage Refuses
        "the journal has features that are not known ({found})"
        "";
    JournalExtra 0x000016 Journal Note Leaves
        "the superblock names a journal (inode {found}), but the feature is off"
        "the inode is cleared, and the superblock names none";
    JournalRecoverWithout 0x000017 Journal Damage Mends
        "the journal must be replayed, but the image has no journal"
        "the flag is cleared";
    JournalNotReplayed 0x000018 Journal Note Refuses
        "the journal's log begins at block {found}, but the superblock does not ask for a replay"
        "the log is replayed; if that is not possible, it is emptied";
    JournalErrno 0x8000003E Journal Damage Mends
        "the journal has an error on record ({found}): the next mount marks the file system as having errors"
        "the error is cleared";
    JournalReplayFailed 0x8000000A Journal Damage Refuses
        "the journal can't be replayed: {name}"
        "if only copies of blocks are damaged, the others are replayed; the rest is lost, and the log is emptied";
    JournalReplayed 0x8000000B Journal Note Mends
        "the journal was replayed in memory; what is reported is the state after it"
        "the log is replayed on the image";
    JournalExternal 0x8000000C Journal Note Leaves
        "the journal is on another device, and was not looked at"
        "";
    ResizeInode 0x000030 Resize Note Refuses
        "the resize inode is wrong: {name}"
        "the inode is built anew";
    ResizeWithout 0x00002E Resize Note Refuses
        "blocks are reserved for growth ({found}) without the resize_inode feature"
        "the number is set to 0";
    ResizeLeft 0x00002F Resize Note Refuses
        "the resize inode is in use, but the resize_inode feature is off"
        "the inode is cleared";
    OrphanHead 0x8000000D Orphan Note Mends
        "the list of orphans begins with inode {found}, which can't be an orphan"
        "the list is emptied";
    OrphanLoop 0x8000000E Orphan Damage Mends
        "the list of orphans is wrong at inode {found}"
        "the list is emptied";
    OrphanFile 0x8000000F Orphan Damage Mends
        "the orphan file is wrong: {name}"
        "the file is emptied, or removed if its blocks are not known";
    OrphanCount 0x80000010 Orphan Note Mends
        "{found} orphans wait to be removed by the next mount"
        "they are removed, or cut to their size";
    OrphanFlag 0x80000011 Orphan Damage Mends
        "the orphan file has orphans, but the superblock does not say so"
        "the orphans are removed, or cut to their size";
    MmpBlock 0x80000012 Mmp Damage Refuses
        "the multi-mount block {block} is wrong: {name}"
        "the block is written anew";
    TableUnreadable 0x80000013 Inode Fatal Refuses
        "block {block} of the inode table can't be read"
        "";
    RootNotDirectory 0x010001 Inode Damage Refuses
        "the root is not a directory"
        "the root becomes a directory";
    RootDtime 0x010002 Inode Damage Mends
        "the root has a deletion time"
        "the time is cleared";
    ReservedMode 0x010003 Inode Damage Refuses
        "the reserved inode has mode {found}"
        "the mode is cleared";
    JournalInodeLeft 0x010034 Inode Damage Refuses
        "the inode of the journal is not in use, but has contents"
        "the inode is cleared";
    QuotaInodeLeft 0x010063 Inode Damage Refuses
        "the inode of a quota file is not in use, but has contents"
        "the inode is cleared";
    ZeroDtime 0x010004 Inode Damage Mends
        "the inode is deleted but has no deletion time"
        "the time is set to now";
    SetDtime 0x010005 Inode Damage Mends
        "the inode is in use but has a deletion time ({found})"
        "the time is cleared";
    LowDtime 0x010037 Orphan Damage Refuses
        "the inode was part of a list of orphans that is broken"
        "the time is cleared, or set to now if the inode has no links";
    ZeroLengthDirectory 0x010006 Inode Damage Refuses
        "the directory has no blocks"
        "the inode is cleared";
    InodeSize 0x01000C Inode Damage Refuses
        "the size is {found}, but the blocks say {expected}"
        "the size is set to what the blocks say";
    InodeBlocks 0x01000D Inode Damage Mends
        "the inode counts {found} sectors, its map has {expected}"
        "the count is set to {expected}";
    IllegalBlock 0x01000E Map Damage Refuses
        "logical block {lblk} points to block {found}, which does not exist or may not be used"
        "the pointer is cleared";
    TooManyIllegal 0x80000014 Map Damage Refuses
        "{found} pointers of the inode lead to blocks that do not exist"
        "the pointers are cleared";
    ImagicFlag 0x01002F Inode Damage Refuses
        "the inode has a flag of a feature that is off ({found})"
        "the flag is cleared";
    DeviceFlags 0x010030 Inode Note Leaves
        "the special file has flags or blocks that it can't have"
        "flags and blocks are cleared";
    DeviceSize 0x010032 Inode Damage Refuses
        "the special file has a size ({found})"
        "the size is cleared";
    ExtraSize 0x01004F Inode Damage Refuses
        "the inode has {found} bytes of extra fields, which can't be"
        "the size is set to what the superblock wants";
    TimeOutOfRange 0x010082 Inode Note Leaves
        "a time of the inode lies beyond the year 2310"
        "the highest bits of the time are cleared";
    InodeChecksum 0x010068 Inode Damage Refuses
        "the inode's checksum is wrong"
        "the checksum is set";
    EncryptContextCorrupt 0x01008B Inode Damage Refuses
        "the inode's encryption context is corrupt"
        "the context and the flag are removed";
    EncryptWithoutContext 0x01008A Inode Damage Refuses
        "the inode is encrypted but has no encryption context"
        "the flag is cleared";
    CasefoldNotDirectory 0x010088 Inode Damage Refuses
        "the inode ignores case in names, but is not a directory"
        "the flag is cleared";
    CasefoldFeature 0x010089 Inode Damage Refuses
        "the inode ignores case in names, but the feature casefold is off"
        "the flag is cleared";
    LooksDirectory 0x010055 Inode Damage Refuses
        "the inode's mode is {found}, but its contents are a directory's"
        "the mode is set to a directory's";
    InlineFlag 0x80000017 Inode Damage Refuses
        "the inode has inline data, which it can't have"
        "the flag is cleared";
    InlineAttribute 0x010075 Inode Damage Refuses
        "the inode has inline data, but not the attribute that goes with it"
        "an empty attribute is added; without room for it the inode is cleared";
    InlineExtents 0x010078 Inode Damage Refuses
        "the inode has both inline data and a map"
        "the flag that the contents do not fit is cleared";
    InlineSize 0x80000018 Inode Damage Refuses
        "the inode has {found} bytes, its inline data {expected}"
        "the size is corrected";
    InlineFileSize 0x80000043 Inode Damage Refuses
        "the file has {found} bytes, its inline data {expected} (e2fsck does not see this)"
        "the size is corrected";
    BadBlocksInode 0x010065 Inode Damage Refuses
        "the bad block inode has a mode or other fields set"
        "the inode is cleared";
    ExtentsFeature 0x01005A Map Damage Refuses
        "the inode has extents, but the feature is off"
        "the feature is turned on if there is an extent tree, else the flag is cleared";
    ExtentsFlagMissing 0x01005C Map Damage Refuses
        "the inode has an extent tree but not the flag"
        "the flag is set";
    ExtentHeader 0x80000019 Map Damage Refuses
        "an extent header is wrong (node in block {block}, 0 for the root)"
        "the tree is rebuilt from what can be believed";
    ExtentRootEmpty 0x80000046 Map Damage Refuses
        "the extent tree has depth {found} and no extents"
        "the root becomes one without a tree";
    ExtentDepth 0x8000001A Map Damage Refuses
        "the extent node in block {block} has depth {found}, it should be {expected}"
        "the tree is rebuilt from what can be believed";
    ExtentOrder 0x8000001B Map Damage Refuses
        "the extents are out of order at logical block {lblk}"
        "the tree is rebuilt from what can be believed";
    ExtentPointer 0x010058 Map Damage Refuses
        "an extent at logical block {lblk} points to block {found}, which does not exist"
        "the extent is removed from the tree";
    ExtentEnd 0x01006E Map Damage Refuses
        "an extent at logical block {lblk} ends beyond what it may"
        "the extent is cut or removed";
    ExtentEmpty 0x8000001C Map Damage Refuses
        "an extent at logical block {lblk} has no blocks"
        "the extent is removed from the tree";
    ExtentIndexStart 0x8000001D Map Damage Refuses
        "an index says logical block {expected}, the node below begins with {found}"
        "the tree is rebuilt from what can be believed";
    ExtentChecksum 0x01006A Map Damage Refuses
        "the checksum of the extent block {block} is wrong"
        "the tree is rebuilt from what can be believed";
    ExtentUnwrittenDirectory 0x8000001E Map Damage Refuses
        "the directory has unwritten blocks at logical block {lblk}"
        "the tree is rebuilt from what can be believed";
    MisalignedCluster 0x8000001F Map Damage Refuses
        "the cluster of logical block {lblk} is not aligned"
        "the blocks are copied into clusters of their own";
    MapUnreadable 0x80000020 Map Damage Refuses
        "map block {block} can't be read"
        "";
    BlockShared 0x80000021 Map Damage Refuses
        "{found} blocks from block {block} on are claimed by others too"
        "each owner but the first gets a copy";
    BlockSharedRun 0x80000022 Map Damage Refuses
        "{found} blocks from block {block} on are claimed more than once"
        "each owner but the first gets a copy";
    ClaimsTooMany 0x80000023 Map Fatal Refuses
        "all files together claim more than {expected} blocks; the rest was not looked at"
        "";
    XattrFeature 0x02000E Xattr Damage Refuses
        "the inode has an attribute block, but the feature is off"
        "the attribute block is dropped";
    XattrBlockPlace 0x020032 Xattr Damage Refuses
        "the attribute block {found} does not exist"
        "the attribute block is dropped";
    XattrList 0x80000024 Xattr Damage Refuses
        "the attributes are broken: {name}"
        "the attributes are removed";
    XattrOffset 0x80000044 Xattr Damage Refuses
        "an attribute without a value in the list has an offset beyond it; e2fsck can't read inline data then"
        "the attributes are written anew";
    XattrName 0x80000038 Xattr Damage Refuses
        "an attribute's name contains a zero byte: the kernel can't read the file (e2fsck does not look for it)"
        "the attributes are removed";
    XattrHash 0x010054 Xattr Damage Refuses
        "the hash of attribute {name} is {found}, it should be {expected}"
        "the hash is set to {expected}";
    XattrBlockList 0x80000025 Xattr Damage Refuses
        "the attribute block {block} is broken: {name}"
        "the attribute block is dropped";
    XattrBlockChecksum 0x01006C Xattr Damage Refuses
        "the checksum of the attribute block {block} is wrong"
        "the checksum is set";
    XattrReferences 0x01003C Xattr Damage Refuses
        "the attribute block {block} says {found} references, there are {expected}"
        "the count is set to {expected}";
    XattrValueInode 0x010083 Xattr Damage Refuses
        "the value of attribute {name} is in inode {found}, which does not hold one"
        "the attribute is removed";
    XattrValueSize 0x010053 Xattr Damage Refuses
        "the value of attribute {name} has {found} bytes, the inode that holds it {expected}"
        "the attribute is removed";
    ValueNotRegular 0x010091 Xattr Damage Refuses
        "the inode holds the value of an attribute, but is not a regular file"
        "the flag is cleared";
    ValueFeature 0x010092 Xattr Damage Refuses
        "the inode holds the value of an attribute, but the feature ea_inode is off"
        "the flag is cleared";
    XattrValueReferences 0x80000026 Xattr Damage Refuses
        "the value inode says {found} references, there are {expected}"
        "the count is set to {expected}";
    LargeFile 0x020033 Superblock Damage Mends
        "a file is larger than 2 GiB, but the feature large_file is off"
        "the feature is turned on";
    DirectoryFeature 0x010048 Htree Damage Refuses
        "the inode has an index that it can't have"
        "the flag is cleared";
    DirectoryHole 0x020015 Directory Damage Refuses
        "block {lblk} of the directory is a hole"
        "the directory is rebuilt without it";
    DirectoryUnreadable 0x80000027 Directory Damage Refuses
        "block {lblk} of the directory (block {block}) can't be read"
        "";
    DirectoryCorrupt 0x020013 Directory Damage Refuses
        "block {lblk} of the directory is broken at byte {found}"
        "entries that can't be read are removed";
    DirectoryChecksum 0x02004D Directory Damage Refuses
        "the checksum of block {lblk} of the directory is wrong"
        "the block is written anew, with its checksum";
    DirectoryNoChecksum 0x02004C Directory Damage Refuses
        "block {lblk} of the directory has no checksum"
        "the block is written anew, with its checksum";
    DotMissing 0x02000B Directory Damage Refuses
        "the first entry is '{name}', not '.'"
        "the entry is made";
    DotInode 0x020001 Directory Damage Refuses
        "'.' names inode {found}"
        "the entry is written anew";
    DotDotMissing 0x02000C Directory Damage Refuses
        "the second entry is '{name}', not '..'"
        "the entry is made";
    DotNotTerminated 0x020016 Directory Damage Refuses
        "the name '.' does not end with a zero byte"
        "the entry is written anew";
    DotDotNotTerminated 0x020017 Directory Damage Refuses
        "the name '..' does not end with a zero byte"
        "the entry is written anew";
    DotLong 0x020024 Directory Damage Refuses
        "the entry '.' takes {found} bytes"
        "the entry is written anew";
    DotAgain 0x02001A Directory Damage Refuses
        "'{name}' stands where it may not (block {lblk})"
        "the entry is removed";
    DotDotAgain 0x02001B Directory Damage Refuses
        "'{name}' stands where it may not (in block {lblk})"
        "the entry is removed";
    EntryItself 0x020004 Directory Damage Refuses
        "'{name}' names the directory itself"
        "the entry is removed";
    EntryInode 0x020002 Directory Damage Refuses
        "'{name}' names inode {found}, which can't be"
        "the entry is removed";
    EntryRoot 0x020007 Directory Damage Refuses
        "'{name}' is a link to the root"
        "the entry is removed";
    EntryUnused 0x020003 Directory Damage Refuses
        "'{name}' names inode {found}, which is not in use"
        "the entry is removed";
    EntryUninit 0x020047 Directory Damage Refuses
        "'{name}' names inode {found}, which lies in the unused part of its table"
        "the group is read in full";
    EntryName 0x020008 Directory Damage Refuses
        "'{name}' (inode {found}) is not a name"
        "the entry gets another name";
    EntryEncryptedName 0x020050 Directory Damage Refuses
        "'{name}' (inode {found}) is too short for an encrypted name"
        "the entry is removed";
    EntryNoName 0x020030 Directory Damage Refuses
        "an entry for inode {found} has no name"
        "the entry is removed";
    EntryCasefold 0x020053 Directory Damage Refuses
        "'{name}' (inode {found}) is not UTF-8, which the file system asks for"
        "the entry gets another name";
    EntryValueInode 0x020055 Directory Damage Refuses
        "'{name}' names inode {found}, which holds the value of an attribute"
        "the entry is removed";
    EntryTypeUnset 0x020027 Directory Note Mends
        "'{name}' says no type, its inode {expected}"
        "the type is set";
    EntryUnencrypted 0x020051 Directory Damage Refuses
        "'{name}' (inode {found}) is not encrypted, but the directory is"
        "the entry is removed";
    EntryOtherPolicy 0x020052 Directory Damage Refuses
        "'{name}' (inode {found}) is encrypted under another policy than the directory"
        "the entry is removed";
    EntryType 0x020028 Directory Damage Refuses
        "'{name}' says type {found}, its inode {expected}"
        "the type is set";
    EntryTwice 0x020043 Directory Damage Refuses
        "'{name}' stands twice in block {lblk}"
        "one of the two gets another name, or is removed if the directory is encrypted";
    NameInTwoBlocks 0x80000039 Directory Damage Refuses
        "'{name}' stands in block {lblk} and in block {expected} (e2fsck does not see this)"
        "one of the two gets another name, or is removed if the directory is encrypted";
    NameFoldedTwice 0x8000003A Directory Damage Refuses
        "'{name}' stands twice in block {lblk}, where case does not count (e2fsck does not see this)"
        "one of the two gets another name, or is removed if the directory is encrypted";
    DirectoryLinked 0x020006 Directory Damage Refuses
        "'{name}' is a second name of directory {found}"
        "all names but one are removed";
    InodeMode 0x020012 Inode Damage Refuses
        "the mode {found} names no type of file"
        "the inode is cleared";
    InodeReserved 0x8000002D Inode Damage Refuses
        "a field that must be zero holds {found}"
        "the field is cleared";
    SymlinkInvalid 0x020031 Inode Damage Refuses
        "the symbolic link is not valid"
        "size and flags are corrected; without a target the inode is cleared";
    HtreeRoot 0x8000002E Htree Damage Refuses
        "the root of the index is wrong: {name}"
        "the index is built anew";
    HtreeNode 0x8000002F Htree Damage Refuses
        "the index node in block {lblk} is wrong: {name}"
        "the index is built anew";
    HtreePointer 0x02003A Htree Damage Refuses
        "the index points to block {found}, which is not in the directory"
        "the index is built anew";
    HtreeUnreferenced 0x020034 Htree Damage Refuses
        "the index does not lead to block {lblk}"
        "the index is built anew";
    HtreeLimit 0x02003D Htree Damage Refuses
        "the index in block {lblk} has a wrong limit: {name}"
        "the index is built anew";
    HtreeCount 0x02003E Htree Damage Refuses
        "the index in block {lblk} has a wrong number of entries: {name}"
        "the index is built anew";
    HtreeTwice 0x020035 Htree Damage Refuses
        "the index leads to block {lblk} twice"
        "the index is built anew";
    HtreeOrder 0x02003F Htree Damage Refuses
        "the hashes are not in order in block {lblk}"
        "the index is built anew";
    HtreeMin 0x020036 Htree Damage Refuses
        "block {lblk} holds a hash below its range"
        "the index is built anew";
    HtreeMax 0x020037 Htree Damage Refuses
        "block {lblk} holds a hash above its range"
        "the index is built anew";
    HtreeLost 0x8000003B Htree Damage Refuses
        "the index leads past '{name}' in block {lblk}, so that it can't be found (e2fsck does not see this)"
        "the index is built anew";
    HtreeRootChecksum 0x020049 Htree Damage Refuses
        "the checksum of the index's root is wrong"
        "the index is built anew";
    HtreeChecksum 0x02004A Htree Damage Refuses
        "the checksum of the index in block {lblk} is wrong"
        "the index is built anew";
    NoRoot 0x030001 Connectivity Fatal Refuses
        "the root directory is missing"
        "a root directory is made";
    Unconnected 0x030003 Connectivity Damage Refuses
        "the directory can't be reached from the root"
        "it is linked into lost+found";
    DotDotParent 0x030005 Connectivity Damage Refuses
        "'..' names inode {found}, the parent is {expected}"
        "'..' is set to {expected}";
    Unattached 0x040002 Connectivity Damage Refuses
        "the inode has no name"
        "it is linked into lost+found, or cleared if it is empty";
    Links 0x040003 Count Damage Mends
        "the link count is {found}, there are {expected}"
        "the count is set to {expected}";
    BlockBitmapUnreadable 0x80000034 Bitmap Damage Refuses
        "a bitmap in block {block} can't be read"
        "the bitmap is written anew";
    BlockBitmapChecksum 0x05001B Bitmap Damage Mends
        "the block bitmap's checksum is wrong"
        "the checksum is set";
    InodeBitmapChecksum 0x05001A Bitmap Damage Mends
        "the inode bitmap's checksum is wrong"
        "the checksum is set";
    BlockFreeUsed 0x050005 Bitmap Damage Refuses
        "{found} clusters in use are free in the bitmap, from block {block} on"
        "their bits are set";
    BlockUsedFree 0x050004 Bitmap Damage Mends
        "{found} clusters that nobody uses are in use in the bitmap, from block {block} on"
        "their bits are cleared";
    InodeFreeUsed 0x050009 Bitmap Damage Refuses
        "{found} inodes in use are free in the bitmap, the first is {other}"
        "their bits are set";
    InodeUsedFree 0x050008 Bitmap Damage Mends
        "{found} inodes that are free are in use in the bitmap, the first is {other}"
        "their bits are cleared";
    BlockPadding 0x050002 Bitmap Damage Mends
        "the bits beyond the group's end are not all set in the block bitmap"
        "the bits are set";
    InodePadding 0x050001 Bitmap Damage Mends
        "the bits beyond the group's end are not all set in the inode bitmap"
        "the bits are set";
    GroupFreeBlocks 0x05000E Count Damage Mends
        "the descriptor says {found} free clusters, there are {expected}"
        "the count is set to {expected}";
    GroupFreeInodes 0x05000B Count Damage Mends
        "the descriptor says {found} free inodes, there are {expected}"
        "the count is set to {expected}";
    GroupDirectories 0x05000C Count Damage Mends
        "the descriptor says {found} directories, there are {expected}"
        "the count is set to {expected}";
    FreeBlocks 0x05000F Count Note Mends
        "the superblock says {found} free blocks, there are {expected}"
        "the count is set to {expected}";
    FreeInodes 0x05000D Count Note Mends
        "the superblock says {found} free inodes, there are {expected}"
        "the count is set to {expected}";
    BackupSuperblock 0x8000003C Superblock Note Mends
        "the copy of the superblock in block {block} can't be used: {name} (e2fsck does not see this)"
        "the copy is written anew";
    BackupDescriptors 0x8000003D Descriptor Note Mends
        "the copy of the descriptors that belongs to block {block} has group {group} wrong (e2fsck does not see this)"
        "the copy is written anew";
    QuotaUsage 0x060002 Quota Damage Mends
        "the quota file says {found} {name}, there are {expected}"
        "the usage is set to {expected}";
    QuotaNamed 0x80000041 Quota Damage Refuses
        "the superblock names the inode as a quota file, but the feature quota is off"
        "the superblock names none";
    OrphanNamed 0x80000042 Orphan Damage Refuses
        "the superblock names the inode as the orphan file, but the feature orphan_file is off"
        "the superblock names none";
    QuotaInode 0x80000035 Quota Damage Refuses
        "the quota inode is wrong: {name}"
        "the quota file is written anew";
}
