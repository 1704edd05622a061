//! What an inode's contents lie in: the runs of its extents or block pointers, and the blocks that hold the map
//! itself, in logical order. A stack instead of recursion; each level is one deeper than the last, and the number
//! of blocks read is bounded by the caller's budget.

use core::ops::ControlFlow;

use ondisk::extent::{Expect, ExtentEntries, ExtentNode};
use ondisk::indirect::{self, pointer};
use ondisk::inode::Inode;
use ondisk::{FileType, Flags, FsBlock, Ino};

use crate::error::InspectError;
use crate::image::RawImage;

/// Blocks of maps read for one walk at most: a file of 16 TiB in extents of 128 MiB needs 400.
pub const BUDGET: u64 = 1 << 20;

/// A part of a map.
pub enum Piece {
    /// Blocks of the file, in a row.
    Run {
        /// The first logical block.
        lblk: u64,
        /// The first block on disk.
        start: FsBlock,
        /// Blocks.
        len: u64,
        /// Allocated, but reads as zeros.
        unwritten: bool,
    },
    /// A block of the map: of extents at this depth, or of pointers.
    Node {
        /// Where it lies.
        block: FsBlock,
        /// Levels below it.
        depth: u16,
    },
}

type Visit<'a, E> = &'a mut dyn FnMut(Piece) -> Result<ControlFlow<()>, E>;

const ON: ControlFlow<()> = ControlFlow::Continue(());

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
    if flags.contains(Flags::EXTENTS) {
        return extents(raw, ino, inode, budget, visit);
    }
    let mut runs = Runs { visit, open: None };
    match pointers(raw, inode, budget, &mut runs)? {
        ControlFlow::Continue(()) => runs.flush().map(|_| ()),
        ControlFlow::Break(()) => Ok(()),
    }
}

fn spend(budget: &mut u64) -> Result<(), InspectError> {
    *budget = budget.checked_sub(1).ok_or(InspectError::MapTooLarge)?;
    Ok(())
}

fn extents<E: From<InspectError>>(
    raw: &RawImage,
    ino: Ino,
    inode: &Inode,
    budget: &mut u64,
    visit: Visit<'_, E>,
) -> Result<(), E> {
    let geometry = &raw.geometry;
    let blocks = geometry.first_data_block().0..geometry.blocks_count();
    let corrupt = |corrupt: ondisk::Corrupt| InspectError::from(corrupt.ino(ino));
    // Nodes still to visit, the next one last. At most one node's entries a level.
    let mut stack: Vec<(FsBlock, Expect)> = Vec::new();
    let root =
        ExtentNode::verify(inode.block_area(), &Expect::root(blocks.clone())).map_err(corrupt)?;
    if node(&root, &blocks, 1 << 32, &mut stack, visit)?.is_break() {
        return Ok(());
    }
    while let Some((block, expect)) = stack.pop() {
        spend(budget)?;
        let bytes = raw.block(block)?;
        let checked =
            ExtentNode::verify(&bytes, &expect).map_err(|found| corrupt(found.block(block)))?;
        let depth = checked.depth();
        if visit(Piece::Node { block, depth })?.is_break()
            || node(&checked, &blocks, expect.covers.end, &mut stack, visit)?.is_break()
        {
            return Ok(());
        }
    }
    Ok(())
}

fn node<E: From<InspectError>>(
    node: &ExtentNode<'_>,
    blocks: &core::ops::Range<u64>,
    covers_end: u64,
    stack: &mut Vec<(FsBlock, Expect)>,
    visit: Visit<'_, E>,
) -> Result<ControlFlow<()>, E> {
    match node.entries() {
        ExtentEntries::Extents(extents) => {
            for extent in extents {
                let run = Piece::Run {
                    lblk: extent.block().into(),
                    start: extent.start(),
                    len: extent.len().into(),
                    unwritten: extent.is_unwritten(),
                };
                if visit(run)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        ExtentEntries::Indices(indices) => {
            let mut end = covers_end;
            for index in indices.iter().rev() {
                let first = u64::from(index.block());
                let expect = Expect {
                    depth: Some(node.depth() - 1),
                    covers: first..end,
                    blocks: blocks.clone(),
                };
                stack.push((index.leaf(), expect));
                end = first;
            }
        }
    }
    Ok(ON)
}

/// Joins pointers to runs.
struct Runs<'a, E> {
    visit: Visit<'a, E>,
    open: Option<(u64, u64, u64)>,
}

impl<E: From<InspectError>> Runs<'_, E> {
    fn push(&mut self, lblk: u64, block: u64) -> Result<ControlFlow<()>, E> {
        if let Some((first, start, len)) = &mut self.open
            && *first + *len == lblk
            && *start + *len == block
        {
            *len += 1;
            return Ok(ON);
        }
        let go = self.flush()?;
        self.open = Some((lblk, block, 1));
        Ok(go)
    }

    fn flush(&mut self) -> Result<ControlFlow<()>, E> {
        match self.open.take() {
            Some((lblk, start, len)) => (self.visit)(Piece::Run {
                lblk,
                start: FsBlock(start),
                len,
                unwritten: false,
            }),
            None => Ok(ON),
        }
    }

    fn node(&mut self, block: FsBlock, depth: u16) -> Result<ControlFlow<()>, E> {
        if self.flush()?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        (self.visit)(Piece::Node { block, depth })
    }
}

fn pointers<E: From<InspectError>>(
    raw: &RawImage,
    inode: &Inode,
    budget: &mut u64,
    runs: &mut Runs<'_, E>,
) -> Result<ControlFlow<()>, E> {
    let size = raw.geometry.block_size();
    // Blocks still to visit, the next one last: logical block, block, levels below the pointer.
    let mut stack: Vec<(u64, u64, u8)> = Vec::new();
    let mut lblk = 0;
    for word in 0..15 {
        let levels = (word as u8).saturating_sub(11);
        stack.push((lblk, inode.block_word(word).into(), levels));
        lblk += indirect::span(levels, size);
    }
    stack.reverse();
    while let Some((lblk, block, levels)) = stack.pop() {
        if block == 0 {
            continue;
        }
        if levels == 0 {
            if runs.push(lblk, block)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            continue;
        }
        spend(budget)?;
        if runs.node(FsBlock(block), levels.into())?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let bytes = raw.block(FsBlock(block))?;
        let span = indirect::span(levels - 1, size);
        // A block holds at most 2^14 pointers.
        for index in (0..(size.bytes() / 4) as u32).rev() {
            if let Some(next @ 1..) = pointer(&bytes, index) {
                stack.push((lblk + u64::from(index) * span, next.into(), levels - 1));
            }
        }
    }
    Ok(ON)
}
