//! The members of an archive that holds an image, by name.
//!
//! They are put into a tree as those of any other archive, so that links, entries that replace others and the order
//! of members mean the same here as when the archive is extracted. Links are followed within the archive: its root is
//! above everything, as for `chroot`.

use super::super::apply::Apply;
use super::super::builder::Builder;
use super::super::exclude::Excludes;
use super::super::inputs::Source;
use super::super::limits;
use super::super::resolve::{FOLLOWED, components};
use super::super::tar::{TarMember, Visitor};
use super::super::tree::{S_IFMT, S_IFREG};

/// The members of one archive.
pub(in super::super) struct Members(Box<Builder>);

/// What a name leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Member {
    /// A file: where its bytes begin, and how many it has.
    File(u64, u64),
    /// Neither a file in one piece, nor a link to one.
    Other,
}

impl Members {
    /// The tree of `entries`, whose offsets count from byte `start` of a file. `None` when they can't be in one tree.
    pub(super) fn new(entries: impl IntoIterator<Item = TarMember>, start: u64) -> Option<Self> {
        let mut builder = Box::new(Builder::new());
        let source = builder.add_source(Source::Spent).ok()?;
        let excludes = Excludes::default();
        let mut apply = Apply::new(&mut builder, 0, source, &excludes).in_place(start);
        for entry in entries {
            apply.entry(entry).ok()?;
        }
        // A link whose target is not there is a name that leads nowhere, which matters only to those that ask for it.
        let _ = apply.finish();
        Some(Self(builder))
    }

    /// What `name` leads to.
    pub(super) fn find(&mut self, name: &str) -> Option<Member> {
        let found = self.resolve(name.as_bytes())?;
        let node = self.0.node(found);
        let plain = node.mode & S_IFMT == S_IFREG && node.map == 0;
        Some(match plain {
            // An empty file is nowhere.
            true if node.size == 0 => Member::File(0, 0),
            true => Member::File(node.key, node.size),
            false => Member::Other,
        })
    }

    fn resolve(&mut self, name: &[u8]) -> Option<u32> {
        if name.len() > limits::TARGET {
            return None;
        }
        let mut left: Vec<Vec<u8>> = components(name).rev().map(<[u8]>::to_vec).collect();
        // The directories on the way; one that is not there may still be left through `..`.
        let mut way = vec![Some(0)];
        let mut followed = 0;
        while let Some(part) = left.pop() {
            if part == b".." {
                way.truncate((way.len() - 1).max(1));
                continue;
            }
            let parent = way.last().copied().flatten();
            let parent = parent.filter(|node| self.0.node(*node).is_directory());
            let found = parent.and_then(|parent| self.0.lookup(parent, &part));
            match found.and_then(|node| self.0.target(node)) {
                None => way.push(found),
                Some(target) => {
                    followed += 1;
                    if followed > FOLLOWED {
                        return None;
                    }
                    if target.starts_with(b"/") {
                        way.truncate(1);
                    }
                    left.extend(components(target).rev().map(<[u8]>::to_vec));
                }
            }
        }
        way.last().copied().flatten()
    }
}
