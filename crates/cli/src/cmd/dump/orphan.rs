//! Orphans: inodes without a name that wait to be removed or cut, in a list through the inodes or in the orphan file.

use std::collections::HashSet;
use std::io::Write;

use ondisk::inode::{Inode, checksum_seed};
use ondisk::orphan_file;
use ondisk::{FsBlock, Ino};

use super::heading;
use crate::failure::Failure;
use crate::raw::Raw;
use crate::raw::walk::{BUDGET, Go, Piece, walk};

/// Orphans of the list that are followed, at most.
const LIST_MAX: usize = 1 << 16;

/// Prints both.
pub fn dump(out: &mut impl Write, raw: &Raw) -> Result<(), Failure> {
    list(out, raw)?;
    let Some(ino) = raw.superblock.orphan_file_ino() else {
        return heading(out, "no orphan file");
    };
    let slot = raw.slot(ino)?;
    let inode = Inode::parse(&slot).map_err(|corrupt| Failure::new(corrupt.ino(ino)))?;
    let seed = raw
        .geometry
        .has_metadata_csum()
        .then(|| checksum_seed(raw.geometry.csum_seed(), ino, inode.generation()));
    let (mut blocks, mut slots) = (0, 0);
    let mut budget = BUDGET;
    heading(out, &format!("orphan file, inode {ino}"))?;
    walk(raw, ino, &inode, &mut budget, &mut |piece| {
        let Piece::Run { start, len, .. } = piece else {
            return Ok(Go::On);
        };
        for block in (start.0..start.0 + len).map(FsBlock) {
            if blocks == orphan_file::BLOCKS_MAX {
                return Ok(Go::Stop);
            }
            blocks += 1;
            let bytes = raw.block(block)?;
            if let Err(corrupt) = orphan_file::verify(&bytes, block, seed) {
                writeln!(out, "  {corrupt}")?;
                continue;
            }
            for orphan in orphan_file::slots(&bytes).flatten() {
                slots += 1;
                writeln!(out, "  {}", describe(raw, orphan))?;
            }
        }
        Ok(Go::On)
    })?;
    writeln!(out, "  {slots} orphans in {blocks} blocks")?;
    Ok(())
}

fn list(out: &mut impl Write, raw: &Raw) -> Result<(), Failure> {
    heading(out, "list")?;
    let mut seen = HashSet::new();
    let mut next = raw.superblock.last_orphan();
    while let Some(ino) = next {
        if !seen.insert(ino) || seen.len() > LIST_MAX {
            writeln!(
                out,
                "  the list has a loop, or more than {LIST_MAX} orphans"
            )?;
            return Ok(());
        }
        writeln!(out, "  {}", describe(raw, ino))?;
        let slot = raw.slot(ino)?;
        let inode = Inode::parse(&slot).map_err(|corrupt| Failure::new(corrupt.ino(ino)))?;
        next = Some(Ino(inode.dtime())).filter(|ino| ino.0 != 0);
    }
    writeln!(out, "  {} orphans", seen.len())?;
    Ok(())
}

fn describe(raw: &Raw, ino: Ino) -> String {
    let inode = raw.slot(ino).ok().and_then(|slot| Inode::parse(&slot).ok());
    match inode {
        Some(inode) if inode.links_count() == 0 => format!("inode {ino}: to be removed"),
        Some(inode) => format!("inode {ino}: to be cut to {} bytes", inode.size(false)),
        None => format!("inode {ino}: can't be read"),
    }
}
