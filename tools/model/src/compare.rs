//! Whether two trees are the same except their nodes' numbers: names, attributes, link groups, and (as the caller
//! wants) contents.

use std::collections::BTreeMap;
use std::fmt;

use crate::{Kind, ModelId, ModelNode, ModelPath, ModelTree};

/// The first place where two trees differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Where.
    pub path: ModelPath,
    /// What, as `expected ... found ...`.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.what)
    }
}

impl ModelTree {
    /// Compares all but contents of files (their sizes are compared). Gives each found node's number here.
    ///
    /// # Errors
    /// The first difference in order of the walk.
    pub fn compare_metadata(
        &self,
        found: &ModelTree,
    ) -> Result<BTreeMap<ModelId, ModelId>, Difference> {
        let (mut expected, mut actual) = (self.walk(), found.walk());
        expected.sort();
        actual.sort();
        let mut numbers: BTreeMap<ModelId, ModelId> = BTreeMap::new();
        let mut back: BTreeMap<ModelId, ModelId> = BTreeMap::new();
        let mut actual = actual.into_iter().peekable();
        for (path, id) in expected {
            let Some((_, there)) = actual.next_if(|(other, _)| *other == path) else {
                let what = match actual.peek() {
                    Some((other, _)) if *other < path => {
                        format!("found {other}, which should not be there")
                    }
                    _ => "is missing".into(),
                };
                return Err(Difference { path, what });
            };
            let same_group = numbers.insert(there, id).is_none_or(|before| before == id)
                && back.insert(id, there).is_none_or(|before| before == there);
            if !same_group {
                return Err(Difference {
                    path,
                    what: "is linked to other names than expected".into(),
                });
            }
            let (mine, theirs) = (describe(self.node(id)), describe(found.node(there)));
            if mine != theirs {
                return Err(Difference {
                    path,
                    what: format!("expected {mine}, found {theirs}"),
                });
            }
        }
        match actual.next() {
            Some((path, _)) => Err(Difference {
                path,
                what: "should not be there".into(),
            }),
            None => Ok(numbers),
        }
    }

    /// Compares everything.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, found: &ModelTree) -> Result<(), Difference> {
        let numbers = self.compare_metadata(found)?;
        for (path, there) in found.walk() {
            let (Kind::File(mine), Kind::File(theirs)) =
                (&self.node(numbers[&there]).kind, &found.node(there).kind)
            else {
                continue;
            };
            let (mine, theirs) = (mine.bytes(), theirs.bytes());
            if let Some(at) = (0..mine.len()).find(|at| mine[*at] != theirs[*at]) {
                let what = format!(
                    "byte {at}: expected {:#x}, found {:#x}",
                    mine[at], theirs[at]
                );
                return Err(Difference { path, what });
            }
        }
        Ok(())
    }
}

/// All of a node but contents and names.
fn describe(node: &ModelNode) -> String {
    format!("{}, {} links", describe_but_links(node), node.links)
}

/// All of a node but contents, names and how many there are.
pub(crate) fn describe_but_links(node: &ModelNode) -> String {
    let kind = match &node.kind {
        Kind::File(content) => format!("file of {} bytes", content.size()),
        Kind::Directory(_) => "directory".into(),
        Kind::Symlink(target) => format!("symlink to {}", String::from_utf8_lossy(target)),
        Kind::Device(device) => format!("{device:?}"),
    };
    let xattrs: Vec<String> = node
        .xattrs
        .iter()
        .map(|(name, value)| format!("{}={value:?}", String::from_utf8_lossy(name)))
        .collect();
    format!(
        "{kind}, mode {:o}, owner {}:{}, xattrs {xattrs:?}",
        node.mode, node.uid, node.gid
    )
}
