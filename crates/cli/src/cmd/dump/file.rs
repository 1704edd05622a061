//! Inodes and where their contents lie.

use std::io::Write;
use std::ops::ControlFlow;

use inspect::{BUDGET, Piece, RawImage, walk};
use ondisk::extent::{Expect, ExtentNode, verify_tail};
use ondisk::inode::{Inode, attribute_area, checksum_seed};
use ondisk::map::MapNode;
use ondisk::text::{ExtentNodeText, InodeText, XattrsText};
use ondisk::xattr::{ListPlace, verify_block_checksum};
use ondisk::{Flags, Ino};

use super::heading;
use crate::failure::Failure;

/// Prints an inode, its attributes and the root of its extent tree.
pub fn inode(out: &mut impl Write, raw: &RawImage, ino: Ino) -> Result<(), Failure> {
    let slot = raw.slot(ino)?;
    let text = InodeText {
        slot: &slot,
        geometry: &raw.geometry,
        ino,
    };
    writeln!(out, "{text}")?;
    let Ok(inode) = Inode::parse(&slot) else {
        return Ok(());
    };
    if inode.flags().contains(Flags::EXTENTS) && !inode.flags().contains(Flags::INLINE_DATA) {
        let blocks = raw.geometry.first_data_block().0..raw.geometry.blocks_count();
        match ExtentNode::verify(inode.block_area(), &Expect::root(blocks)) {
            Ok(node) => writeln!(out, "extents:                  {}", ExtentNodeText(&node))?,
            Err(corrupt) => writeln!(out, "{}", corrupt.ino(ino))?,
        }
    }
    let area = attribute_area(&slot).unwrap_or_default();
    let attributes = XattrsText(ListPlace::Inode(area)).to_string();
    if !attributes.is_empty() {
        heading(out, "attributes in the inode")?;
        writeln!(out, "{attributes}")?;
    }
    if inode.xattr_block().0 != 0 {
        let place = inode.xattr_block();
        let block = raw.block(place)?;
        let seed = raw.geometry.csum_seed();
        let is_wrong =
            raw.geometry.has_metadata_csum() && verify_block_checksum(&block, seed, place).is_err();
        let wrong = if is_wrong { ", checksum WRONG" } else { "" };
        heading(out, &format!("attributes in block {place}{wrong}"))?;
        writeln!(out, "{}", XattrsText(ListPlace::Block(&block)))?;
    }
    Ok(())
}

/// Prints the map of a file, and the blocks that hold the map.
pub fn extents(out: &mut impl Write, raw: &RawImage, ino: Ino) -> Result<(), Failure> {
    let inode = raw.inode(ino)?;
    let seed = checksum_seed(raw.geometry.csum_seed(), ino, inode.generation());
    let is_extents = inode.flags().contains(Flags::EXTENTS);
    if inode.flags().contains(Flags::INLINE_DATA) {
        heading(out, "the contents lie in the inode")?;
        return Ok(());
    }
    let (mut runs, mut blocks, mut nodes) = (0u64, 0u64, 0u64);
    let mut budget = BUDGET;
    walk(raw, ino, &inode, &mut budget, &mut |piece| {
        match piece {
            Piece::Run(run) => {
                runs += 1;
                blocks += run.len;
                let words = if run.unwritten { ", unwritten" } else { "" };
                let (lblk, start, len) = (run.logical, run.start, run.len);
                let (last, end) = (lblk + len - 1, start.0 + len - 1);
                writeln!(
                    out,
                    "{lblk:>10}..={last:<10} {start:>12}..={end:<12} {len:>8} blocks{words}"
                )?;
            }
            Piece::Node(MapNode { block, depth, .. }) => {
                nodes += 1;
                let is_wrong = is_extents
                    && raw.geometry.has_metadata_csum()
                    && verify_tail(&raw.block(block)?, seed).is_err();
                let wrong = if is_wrong { ", checksum WRONG" } else { "" };
                let kind = if is_extents { "extents" } else { "pointers" };
                writeln!(out, "block {block} holds {kind}, depth {depth}{wrong}")?;
            }
        }
        Ok::<_, Failure>(ControlFlow::Continue(()))
    })?;
    writeln!(
        out,
        "{runs} runs, {blocks} blocks, {nodes} blocks of the map"
    )?;
    Ok(())
}
