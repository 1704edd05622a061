//! The journal in one line: where it is, how large, whether it holds anything.

use core::fmt::{self, Display, Formatter};

use inspect::{FoundJournal, journal_checksums};
use ondisk::text::{Bytes, Uuid};
use serde_json::{Value, json};

/// The same for programs.
pub fn json(journal: &FoundJournal) -> Value {
    match journal {
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
            "checksums": journal_checksums(superblock),
        }),
        FoundJournal::Broken(why) => json!({ "kind": "broken", "error": why.to_string() }),
    }
}
/// The journal in a line.
pub struct JournalLine<'a>(pub &'a FoundJournal);

impl Display for JournalLine<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            FoundJournal::None => f.write_str("none"),
            FoundJournal::External(uuid) => write!(f, "on another device, UUID {}", Uuid(*uuid)),
            FoundJournal::Broken(why) => write!(f, "can't be read: {why}"),
            FoundJournal::Inside { superblock, bytes } => {
                let holds = match superblock.start() {
                    0 => "empty".to_string(),
                    _ => format!("holds transactions from {} on", superblock.sequence()),
                };
                write!(f, "{}, {holds}", Bytes(*bytes))?;
                if let Some(version) = journal_checksums(superblock) {
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
