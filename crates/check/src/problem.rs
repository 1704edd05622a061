//! The table of problems: every kind that the checker reports, in one place, `problem/kinds.rs`.
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

/// What a careful repair (`-p`) does about a problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preen {
    /// Mends it.
    Mends,
    /// Leaves it, and mends the others.
    Leaves,
    /// Mends nothing at all: this one needs a decision.
    Refuses,
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
    /// What a careful repair (`-p`) does about it.
    pub preen: Preen,
    /// The sentence, with `{found}`, `{expected}`, `{block}`, `{lblk}`, `{group}`, `{name}` and `{other}` to be filled
    /// in.
    pub sentence: &'static str,
    /// What a repair does about it, a clause to be filled in as the sentence is; empty if a repair leaves it.
    pub repair: &'static str,
}

macro_rules! problems {
    ($(
        $code:ident $number:literal $class:ident $severity:ident $preen:ident $sentence:literal $repair:literal;
    )*) => {
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
                preen: Preen::$preen,
                sentence: $sentence,
                repair: $repair,
            }, )*
        ];
    };
}

mod kinds;

pub use kinds::{Code, TABLE};

/// Kinds of damage that e2fsck does not look for.
pub const BEYOND: &[Code] = &[
    Code::JournalFirst,
    Code::JournalInodeCopy,
    Code::ExtentDepth,
    Code::InlineFileSize,
    Code::ExtentRootEmpty,
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
