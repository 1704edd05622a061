//! Reading extent trees: iteratively, a node at a time, with what a reader can tell of each node as it is met.

use std::borrow::Cow;

use ondisk::{Generation, Ino, extent, inode};

use crate::map::{MapRun, Sink, word16, word32};
use crate::problem::Code;
use crate::report::Problem;
use crate::volume::Volume;

const ENTRY: usize = 12;
/// Where a header has its depth.
const DEPTH: usize = 6;
/// Entries that a block may leave unused at its end, for its tail.
const SLACK: usize = 2;
/// The depth up to which a tree is read.
const DEPTH_READ: u16 = 16;

/// A node on the way down.
struct Frame<'a> {
    bytes: Cow<'a, [u8]>,
    next: usize,
    /// The first logical block after what the node may map.
    end: u64,
    /// The smallest logical block that the next entry may have.
    floor: u64,
}

fn entries(bytes: &[u8]) -> usize {
    usize::from(word16(bytes, 2))
}

fn depth(bytes: &[u8]) -> u16 {
    word16(bytes, DEPTH)
}

/// Whether a node's header can be believed.
pub fn is_header(bytes: &[u8]) -> bool {
    let room = (bytes.len() - ENTRY) / ENTRY;
    let max = usize::from(word16(bytes, 4));
    word16(bytes, 0) == extent::MAGIC && entries(bytes) <= max && max <= room && max + SLACK >= room
}

/// The walk over one inode's tree.
pub struct ExtentWalk<'a> {
    pub volume: &'a Volume<'a>,
    pub ino: Ino,
    pub generation: Generation,
    pub is_directory: bool,
}

impl ExtentWalk<'_> {
    fn problem(&self, code: Code) -> Problem {
        Problem::new(code).ino(self.ino)
    }

    /// Hands every run of the tree to the sink.
    pub fn walk(&self, root: &[u8], sink: &mut dyn Sink) {
        if !is_header(root) {
            sink.problem(self.problem(Code::ExtentHeader).block(0));
            return;
        }
        if depth(root) > extent::MAX_DEPTH {
            // No kernel reads it, but what the tree maps is in use nevertheless.
            let problem = self.problem(Code::ExtentDepth).block(0);
            sink.problem(problem.found(depth(root)).expected(extent::MAX_DEPTH));
            if depth(root) > DEPTH_READ {
                return;
            }
        }
        if depth(root) > 0 && entries(root) == 0 {
            let problem = self.problem(Code::ExtentRootEmpty);
            sink.problem(problem.found(depth(root)));
            return;
        }
        let mut frame = Frame {
            bytes: Cow::Borrowed(root),
            next: 0,
            end: 1 << 32,
            floor: 0,
        };
        if depth(root) == 0 {
            // Most files: nothing is allocated.
            for entry in 1..=entries(root) {
                self.leaf(&mut frame, ENTRY * entry, sink);
            }
            return;
        }
        let mut stack = vec![frame];
        while let Some(frame) = stack.last_mut() {
            if frame.next >= entries(&frame.bytes) {
                stack.pop();
                continue;
            }
            let at = ENTRY * (1 + frame.next);
            frame.next += 1;
            if depth(&frame.bytes) == 0 {
                self.leaf(frame, at, sink);
            } else if let Some(child) = self.index(frame, at, sink) {
                stack.push(child);
            }
        }
    }

    fn leaf(&self, frame: &mut Frame<'_>, at: usize, sink: &mut dyn Sink) {
        let mut raw = [0; ENTRY];
        raw.copy_from_slice(&frame.bytes[at..at + ENTRY]);
        let extent = extent::Extent::from_bytes(raw);
        let (lblk, len) = (u64::from(extent.block()), u64::from(extent.len()));
        let at_lblk = |code| self.problem(code).lblk(lblk);
        if len == 0 {
            sink.problem(at_lblk(Code::ExtentEmpty));
            return;
        }
        if lblk < frame.floor {
            sink.problem(at_lblk(Code::ExtentOrder));
            return;
        }
        frame.floor = lblk + len;
        if frame.floor > frame.end {
            sink.problem(at_lblk(Code::ExtentEnd));
            return;
        }
        if !self.volume.contains(extent.start().0, len) {
            sink.problem(at_lblk(Code::ExtentPointer).found(extent.start().0));
            return;
        }
        if self.is_directory && extent.is_unwritten() {
            sink.problem(at_lblk(Code::ExtentUnwrittenDirectory));
        }
        sink.run(MapRun {
            lblk,
            pblk: extent.start().0,
            len,
            unwritten: extent.is_unwritten(),
        });
    }

    /// The node that an index leads to, if it can be entered.
    fn index(
        &self,
        frame: &mut Frame<'_>,
        at: usize,
        sink: &mut dyn Sink,
    ) -> Option<Frame<'static>> {
        let bytes = &frame.bytes;
        let lblk = u64::from(word32(bytes, at));
        let leaf = u64::from(word32(bytes, at + 4)) | u64::from(word16(bytes, at + 8)) << 32;
        let next = if frame.next < entries(bytes) {
            u64::from(word32(bytes, at + ENTRY))
        } else {
            frame.end
        };
        let wanted = depth(bytes) - 1;
        if lblk < frame.floor {
            sink.problem(self.problem(Code::ExtentOrder).lblk(lblk));
            return None;
        }
        frame.floor = lblk + 1;
        if !self.volume.contains(leaf, 1) {
            sink.problem(self.problem(Code::ExtentPointer).lblk(lblk).found(leaf));
            return None;
        }
        if !sink.node(leaf) {
            return None;
        }
        let Some(mut node) = self.volume.block(leaf) else {
            self.volume.unread.add_map();
            self.volume.unread.add_names();
            sink.problem(self.problem(Code::MapUnreadable).block(leaf));
            return None;
        };
        // Only a root without a tree may be empty.
        if !is_header(&node) || entries(&node) == 0 {
            sink.problem(self.problem(Code::ExtentHeader).block(leaf));
            return None;
        }
        let geometry = &self.volume.geometry;
        let seed = || inode::checksum_seed(geometry.csum_seed(), self.ino, self.generation);
        if geometry.has_metadata_csum() && extent::verify_tail(&node, seed()).is_err() {
            sink.problem(self.problem(Code::ExtentChecksum).block(leaf));
        }
        if depth(&node) != wanted {
            let problem = self.problem(Code::ExtentDepth).block(leaf);
            sink.problem(problem.found(depth(&node)).expected(wanted));
            // The depth is known from above: what the node maps is in use nevertheless.
            node[DEPTH..DEPTH + 2].copy_from_slice(&wanted.to_le_bytes());
        }
        let first = u64::from(word32(&node, ENTRY));
        if first != lblk {
            let problem = self.problem(Code::ExtentIndexStart).expected(lblk);
            sink.problem(problem.found(first));
        }
        Some(Frame {
            bytes: Cow::Owned(node),
            next: 0,
            end: next,
            floor: lblk,
        })
    }
}
