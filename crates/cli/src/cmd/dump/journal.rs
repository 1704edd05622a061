//! The journal: its superblock, then the log from its start on as long as transactions follow each other, then the
//! fast commits of the transaction after them.

use std::io::Write;

use inspect::{JournalFile, RawImage};
use ondisk::text::{JournalText, LogBlockText, RecordText};

use super::heading;
use crate::failure::Failure;

/// Prints the journal.
pub fn dump(out: &mut impl Write, raw: &RawImage) -> Result<(), Failure> {
    let journal = JournalFile::open(raw)?;
    writeln!(out, "{}", JournalText(&journal.superblock))?;
    let format = journal.format()?;
    let mut tid = journal.superblock.sequence();
    if !journal.is_log_empty() {
        heading(out, "log")?;
        let log = journal.transactions(&format, |number, block| {
            let text = LogBlockText {
                format: &format,
                block,
            };
            writeln!(out, "{number:>8} {text}")?;
            Ok::<(), Failure>(())
        })?;
        tid = log.next;
        let end = log.end;
        writeln!(
            out,
            "{end:>8} end of the log, transaction {tid} would follow"
        )?;
    }
    if journal.has_fast_commits() {
        let words = format!("fast commits (transaction {tid} if they are new)");
        heading(out, &words)?;
    }
    journal.fast_commits(|number, record| {
        match record {
            Ok(record) => writeln!(out, "{number:>8} {}", RecordText(record))?,
            Err(corrupt) => writeln!(out, "{number:>8} {corrupt}")?,
        }
        Ok::<(), Failure>(())
    })
}
