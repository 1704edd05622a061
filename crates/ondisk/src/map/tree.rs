//! A walk through an extent tree: a stack of verified nodes from the root to a leaf, and a place in each.

use core::ops::Range;

use super::{MapNode, MapStep, Run};
use crate::extent::{self, Expect, ExtentEntries, ExtentNode};
use crate::inode::BLOCK_AREA;
use crate::site::Corrupt;

enum NodeBytes<B> {
    Root([u8; BLOCK_AREA]),
    Block(B),
}

/// A verified node and the entry at which the walk is.
struct Level<B> {
    bytes: NodeBytes<B>,
    /// The first logical block after those that the node covers.
    end: u64,
    at: usize,
}

impl<B: AsRef<[u8]>> Level<B> {
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            NodeBytes::Root(bytes) => bytes,
            NodeBytes::Block(bytes) => bytes.as_ref(),
        }
    }

    fn entries(&self) -> ExtentEntries<'_> {
        ExtentNode::view(self.bytes())
    }

    /// Moves to the entry that covers `from`, or the first one after it.
    fn seek(&mut self, from: u64) {
        self.at = match self.entries() {
            ExtentEntries::Extents(all) => all.partition_point(|extent| extent.end() <= from),
            ExtentEntries::Indices(all) => all
                .partition_point(|index| u64::from(index.block()) <= from)
                .saturating_sub(1),
        };
    }
}

/// A walk through the tree of one inode.
pub(super) struct TreeWalk<B> {
    blocks: Range<u64>,
    /// `None` once the walk has left it. Most trees are a root, which takes no memory of its own.
    root: Option<Level<B>>,
    /// The nodes below the root, down to the deepest.
    below: Vec<Level<B>>,
    /// The logical block from which on runs were asked for last; `None` before.
    from: Option<u64>,
}

impl<B: AsRef<[u8]>> TreeWalk<B> {
    pub(super) fn new(area: &[u8; BLOCK_AREA], blocks: Range<u64>) -> Result<TreeWalk<B>, Corrupt> {
        ExtentNode::verify(area, &Expect::root(blocks.clone()))?;
        Ok(TreeWalk {
            blocks,
            root: Some(Level {
                bytes: NodeBytes::Root(*area),
                end: 1 << 32,
                at: 0,
            }),
            below: Vec::new(),
            from: None,
        })
    }

    fn last(&self) -> Option<&Level<B>> {
        self.below.last().or(self.root.as_ref())
    }

    fn last_mut(&mut self) -> Option<&mut Level<B>> {
        self.below.last_mut().or(self.root.as_mut())
    }

    /// Leaves the deepest node, and moves the one above to its next entry.
    fn leave(&mut self) {
        if self.below.pop().is_none() {
            self.root = None;
        }
        if let Some(above) = self.last_mut() {
            above.at += 1;
        }
    }

    pub(super) fn next(&mut self, from: u64) -> MapStep {
        if self.from.is_none()
            && let Some(root) = &mut self.root
        {
            root.seek(from);
        }
        debug_assert!(self.from.is_none_or(|before| before <= from));
        self.from = Some(from);
        // Each turn passes an entry or leaves a node.
        while let Some(level) = self.last_mut() {
            match level.entries() {
                ExtentEntries::Extents(all) => match all.get(level.at).map(Run::from) {
                    Some(run) => {
                        level.at += 1;
                        if run.end() > from {
                            return MapStep::Run(run);
                        }
                    }
                    None => self.leave(),
                },
                ExtentEntries::Indices(_) => match self.wanted() {
                    Some((node, _)) => return MapStep::Node(node),
                    None => self.leave(),
                },
            }
        }
        MapStep::End
    }

    /// The node to which the walk goes down next, and the logical blocks that it covers.
    fn wanted(&self) -> Option<(MapNode, Range<u64>)> {
        let level = self.last()?;
        let ExtentEntries::Indices(all) = level.entries() else {
            return None;
        };
        let index = all.get(level.at)?;
        let next = all.get(level.at + 1);
        let end = next.map_or(level.end, |next| next.block().into());
        let node = MapNode {
            block: index.leaf(),
            depth: extent::depth(level.bytes()).saturating_sub(1),
            logical: index.block().into(),
        };
        Some((node, node.logical..end))
    }

    /// Goes down to the node that is wanted. Nodes below are one level less deep than those above, which bounds the
    /// stack.
    pub(super) fn supply(&mut self, bytes: B) -> Result<(), Corrupt> {
        let Some((node, covers)) = self.wanted() else {
            return Ok(());
        };
        let end = covers.end;
        let expect = Expect {
            depth: Some(node.depth),
            covers,
            blocks: self.blocks.clone(),
        };
        ExtentNode::verify(bytes.as_ref(), &expect)?;
        let mut level = Level {
            bytes: NodeBytes::Block(bytes),
            end,
            at: 0,
        };
        level.seek(self.from.unwrap_or(0));
        self.below.push(level);
        Ok(())
    }
}
