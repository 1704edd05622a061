//! Directories, block by block.

use std::io::Write;

use inspect::{DirectoryIndex, DirectoryReader, RawImage};
use ondisk::Ino;
use ondisk::text::{DirectoryText, IndexText};

use super::heading;
use crate::failure::Failure;

/// Prints every block of a directory.
pub fn dump(out: &mut impl Write, raw: &RawImage, ino: Ino) -> Result<(), Failure> {
    let directory = DirectoryReader::open(raw, ino)?;
    let form = directory.form();
    if let Some((parent, runs)) = directory.inline() {
        heading(out, &format!("inline, parent {parent}"))?;
        for run in runs {
            let text = DirectoryText {
                block: run,
                form: form.without_checksum(),
            };
            writeln!(out, "{text}")?;
        }
        return Ok(());
    }
    directory.blocks(&mut |block| {
        let kind = match &block.index {
            Some(Ok(DirectoryIndex::Root(root, _))) => format!(
                "index root, hash {:?}, {} levels below",
                root.version, root.levels
            ),
            Some(Ok(DirectoryIndex::Node(_))) => "index node".into(),
            Some(Err(corrupt)) => corrupt.to_string(),
            None => "entries".into(),
        };
        let wrong = if block.is_checksum_wrong {
            ", checksum WRONG"
        } else {
            ""
        };
        writeln!(
            out,
            "block {} at {}: {kind}{wrong}",
            block.lblk, block.place
        )?;
        match &block.index {
            Some(Ok(DirectoryIndex::Root(_, index) | DirectoryIndex::Node(index))) => {
                writeln!(out, "{}", IndexText(*index))?;
            }
            Some(Err(_)) | None => {
                let block = block.bytes;
                writeln!(out, "{}", DirectoryText { block, form })?;
            }
        }
        Ok::<(), Failure>(())
    })
}
