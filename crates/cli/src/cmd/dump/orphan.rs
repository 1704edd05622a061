//! Orphans: inodes that wait to be deleted or truncated, in a list through the inodes or in the orphan file.

use std::io::Write;

use inspect::{RawImage, orphans};
use ondisk::Ino;

use super::heading;
use crate::failure::Failure;

/// Prints the list and the orphan file.
pub fn dump(out: &mut impl Write, raw: &RawImage) -> Result<(), Failure> {
    list(out, raw)?;
    let Some(ino) = raw.superblock.orphan_file_ino() else {
        return heading(out, "no orphan file");
    };
    let inode = raw.inode(ino)?;
    heading(out, &format!("orphan file, inode {ino}"))?;
    let (slots, blocks) = orphans::file(raw, &inode, ino, &mut |orphan| {
        match orphan {
            Ok(orphan) => writeln!(out, "  {}", describe(raw, orphan))?,
            Err(corrupt) => writeln!(out, "  {corrupt}")?,
        }
        Ok::<(), Failure>(())
    })?;
    writeln!(out, "  {slots} orphans in {blocks} blocks")?;
    Ok(())
}

fn list(out: &mut impl Write, raw: &RawImage) -> Result<(), Failure> {
    heading(out, "list")?;
    let found = orphans::list(raw, &mut |ino| {
        writeln!(out, "  {}", describe(raw, ino))?;
        Ok::<(), Failure>(())
    })?;
    match found {
        Some(orphans) => writeln!(out, "  {orphans} orphans")?,
        None => writeln!(
            out,
            "  the list has a loop, or more than {} orphans",
            orphans::LIST_MAX
        )?,
    }
    Ok(())
}

fn describe(raw: &RawImage, ino: Ino) -> String {
    match raw.inode(ino) {
        Ok(inode) if inode.links_count() == 0 => format!("inode {ino}: to be removed"),
        Ok(inode) => format!("inode {ino}: to be cut to {} bytes", inode.size(false)),
        Err(_) => format!("inode {ino}: can't be read"),
    }
}
