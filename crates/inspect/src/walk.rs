//! Where an inode's contents are: the runs of its extents or block pointers, and the blocks that hold the map itself,
//! in logical order. The number of blocks read is bounded by the caller's budget.

use core::ops::ControlFlow;

use ondisk::inode::Inode;
use ondisk::map::{MapKind, MapNode, MapReader, MapStep, Run};
use ondisk::{Corrupt, FileType, Flags, Ino};

use crate::error::InspectError;
use crate::image::RawImage;

/// Blocks of maps read for one walk at most: a file of 16 TiB in extents of 128 MiB needs 400.
pub const BUDGET: u64 = 1 << 20;

/// A part of a map.
pub enum Piece {
    /// Blocks of the file, in a row. Those of pointers may lie beyond the end of the file system.
    Run(Run),
    /// A block of the map.
    Node(MapNode),
}

type Visit<'a, E> = &'a mut dyn FnMut(Piece) -> Result<ControlFlow<()>, E>;

/// Visits the pieces of an inode's map, until `visit` breaks off; an inode whose contents are stored in it has none.
/// Each block of the map that is read takes one from `budget`.
///
/// # Errors
/// `MapTooLarge` when the budget is spent, `Corrupt` for a broken node, `Device`, and the errors of `visit`.
pub fn walk<E: From<InspectError>>(
    raw: &RawImage,
    ino: Ino,
    inode: &Inode,
    budget: &mut u64,
    visit: Visit<'_, E>,
) -> Result<(), E> {
    let flags = inode.flags();
    let is_mapped = match inode.file_type() {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::Symlink) => flags.contains(Flags::EXTENTS) || inode.size(false) >= 60,
        // The journal and other hidden files of old file systems have no type.
        None => inode.mode() == 0 && inode.size(false) > 0,
        _ => false,
    };
    if !is_mapped || flags.contains(Flags::INLINE_DATA) {
        return Ok(());
    }
    let geometry = &raw.geometry;
    let (kind, blocks) = if flags.contains(Flags::EXTENTS) {
        let blocks = geometry.first_data_block().0..geometry.blocks_count();
        (MapKind::Extents, blocks)
    } else {
        // Pointers to data are shown as they are.
        (MapKind::Pointers, 0..1 << 32)
    };
    let corrupt = |corrupt: Corrupt| InspectError::from(corrupt.ino(ino));
    let size = geometry.block_size();
    let mut reader = MapReader::new(inode.block_area(), kind, size, blocks).map_err(corrupt)?;
    let mut from = 0;
    loop {
        let piece = match reader.next(from).map_err(corrupt)? {
            MapStep::End => return Ok(()),
            MapStep::Run(run) => {
                from = run.end();
                Piece::Run(run)
            }
            MapStep::Node(node) => {
                spend(budget)?;
                // A block of pointers is reported even if it can't be read, a node only after it was verified.
                if kind == MapKind::Pointers && visit(Piece::Node(node))?.is_break() {
                    return Ok(());
                }
                let supplied = reader.supply(raw.block(node.block)?);
                supplied.map_err(|found| corrupt(found.block(node.block)))?;
                if kind == MapKind::Pointers {
                    continue;
                }
                Piece::Node(node)
            }
        };
        if visit(piece)?.is_break() {
            return Ok(());
        }
    }
}

fn spend(budget: &mut u64) -> Result<(), InspectError> {
    *budget = budget.checked_sub(1).ok_or(InspectError::MapTooLarge)?;
    Ok(())
}
