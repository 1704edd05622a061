//! The journal in a line: where it is, how large, whether it holds anything.

use core::fmt::{self, Display, Formatter};

use ondisk::features::Feature;
use ondisk::inode::Inode;
use ondisk::jbd2::{JournalFeatures, JournalSuperblock};
use ondisk::text::{Bytes, Uuid};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::raw::Raw;

/// What a look at the journal found.
pub enum FoundJournal {
    /// There is none.
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
    Broken(String),
}

impl FoundJournal {
    /// Finds the journal and reads its superblock.
    pub fn look(raw: &Raw) -> FoundJournal {
        if !raw.geometry.has(Feature::HAS_JOURNAL) {
            return FoundJournal::None;
        }
        let Some(ino) = raw.superblock.journal_ino() else {
            return FoundJournal::External(raw.superblock.journal_uuid());
        };
        FoundJournal::read(raw, ino).unwrap_or_else(|failure| FoundJournal::Broken(failure.text()))
    }

    fn read(raw: &Raw, ino: ondisk::Ino) -> Result<FoundJournal, Failure> {
        let slot = raw.slot(ino)?;
        let inode = Inode::parse(&slot).map_err(|corrupt| Failure::new(corrupt.ino(ino)))?;
        let first = raw.first_block(&slot, ino)?;
        let first = first.ok_or_else(|| Failure::new("the journal has no blocks"))?;
        let block = raw.block(first)?;
        let superblock = JournalSuperblock::read(&block)
            .ok_or_else(|| Failure::new("the journal's first block is too short"))?;
        let bytes = inode.size(false);
        let size = raw.geometry.block_size();
        superblock
            .verify(size, size.blocks_for(bytes))
            .map_err(|corrupt| Failure::new(corrupt.ino(ino).block(first)))?;
        Ok(FoundJournal::Inside {
            superblock: Box::new(superblock),
            bytes,
        })
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        match self {
            FoundJournal::None => Value::Null,
            FoundJournal::External(uuid) => {
                json!({ "kind": "external", "uuid": Uuid(*uuid).to_string() })
            }
            FoundJournal::Inside { superblock, bytes } => json!({
                "kind": "inside",
                "bytes": bytes,
                "empty": superblock.start() == 0,
                "first_transaction": superblock.sequence().0,
                "fast_commit_blocks": superblock.fast_commit_blocks(),
                "checksums": checksums(superblock),
            }),
            FoundJournal::Broken(why) => json!({ "kind": "broken", "error": why }),
        }
    }
}

fn checksums(sb: &JournalSuperblock) -> Option<&'static str> {
    let features = sb.features();
    if features.has_incompat(JournalFeatures::INCOMPAT_CSUM_V3) {
        Some("v3")
    } else if features.has_incompat(JournalFeatures::INCOMPAT_CSUM_V2) {
        Some("v2")
    } else {
        (features.compat & JournalFeatures::COMPAT_CHECKSUM != 0).then_some("v1")
    }
}

impl Display for FoundJournal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            FoundJournal::None => f.write_str("none"),
            FoundJournal::External(uuid) => write!(f, "on another device, UUID {}", Uuid(*uuid)),
            FoundJournal::Broken(why) => write!(f, "can't be read: {why}"),
            FoundJournal::Inside { superblock, bytes } => {
                let holds = match superblock.start() {
                    0 => "empty".to_string(),
                    _ => format!("holds transactions from {} on", superblock.sequence()),
                };
                write!(f, "{}, {holds}", Bytes(*bytes))?;
                if let Some(version) = checksums(superblock) {
                    write!(f, ", checksums {version}")?;
                }
                match superblock.fast_commit_blocks() {
                    0 => Ok(()),
                    blocks => write!(f, ", {blocks} blocks for fast commits"),
                }
            }
        }
    }
}
