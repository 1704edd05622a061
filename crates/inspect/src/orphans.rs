//! Orphans: inodes that recovery must delete or truncate, in a list through the inodes or in the orphan file.

use core::ops::ControlFlow;
use std::collections::HashSet;

use ondisk::inode::{Inode, checksum_seed};
use ondisk::map::Run;
use ondisk::orphan_file;
use ondisk::{Corrupt, FsBlock, Ino};

use crate::error::InspectError;
use crate::image::RawImage;
use crate::walk::{BUDGET, Piece, walk};

/// Orphans of the list that are followed, at most.
pub const LIST_MAX: usize = 1 << 16;

/// Calls `visit` with each inode of the list, the first one first. Returns their number; `None` if the list has a loop
/// or more than [`LIST_MAX`] inodes.
///
/// # Errors
/// Those of reading an inode of the list, behind the call with it, and those of `visit`.
pub fn list<E: From<InspectError>>(
    raw: &RawImage,
    visit: &mut dyn FnMut(Ino) -> Result<(), E>,
) -> Result<Option<usize>, E> {
    let mut seen = HashSet::new();
    let mut next = raw.superblock.last_orphan();
    while let Some(ino) = next {
        if !seen.insert(ino) || seen.len() > LIST_MAX {
            return Ok(None);
        }
        visit(ino)?;
        next = Some(Ino(raw.inode(ino)?.dtime())).filter(|ino| ino.0 != 0);
    }
    Ok(Some(seen.len()))
}

/// Calls `visit` with each inode that the orphan file `ino` names, or with what is wrong with a block of it. Returns
/// the number of inodes and of blocks, at most [`orphan_file::BLOCKS_MAX`].
///
/// # Errors
/// Those of reading the orphan file, and those of `visit`.
pub fn file<E: From<InspectError>>(
    raw: &RawImage,
    inode: &Inode,
    ino: Ino,
    visit: &mut dyn FnMut(Result<Ino, Corrupt>) -> Result<(), E>,
) -> Result<(u64, u64), E> {
    let seed = raw
        .geometry
        .has_metadata_csum()
        .then(|| checksum_seed(raw.geometry.csum_seed(), ino, inode.generation()));
    let (mut blocks, mut slots) = (0, 0);
    let mut budget = BUDGET;
    walk::<E>(raw, ino, inode, &mut budget, &mut |piece| {
        let Piece::Run(Run { start, len, .. }) = piece else {
            return Ok(ControlFlow::Continue(()));
        };
        for block in (start.0..start.0 + len).map(FsBlock) {
            if blocks == orphan_file::BLOCKS_MAX {
                return Ok(ControlFlow::Break(()));
            }
            blocks += 1;
            let bytes = raw.block(block)?;
            if let Err(corrupt) = orphan_file::verify(&bytes, block, seed) {
                visit(Err(corrupt))?;
                continue;
            }
            for orphan in orphan_file::slots(&bytes).flatten() {
                slots += 1;
                visit(Ok(orphan))?;
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((slots, blocks))
}
