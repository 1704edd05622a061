//! Paths within a tree under construction. Symbolic links on the way are followed within the tree, at most 40 of them,
//! and `..` at the root stays there, so no path leads out.

use super::builder::Builder;
use super::limits;
use super::tree::{Attributes, S_IFDIR, S_IFLNK, S_IFMT, TreeNode, halves};

/// How many symbolic links one path may lead through.
pub(crate) const FOLLOWED: usize = 40;

/// What to do on the way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Make what is missing; follow a link at the end.
    Make,
    /// Make nothing; follow a link at the end.
    Follow,
    /// Make nothing; the end is taken as it is.
    Last,
}

impl Builder {
    /// The directory at `path` (components divided by `/`; `.` and empty ones mean nothing, `..` goes up but never
    /// out), from directory `start` on. Missing directories are made with [`Attributes::DEFAULT_DIRECTORY`].
    ///
    /// # Errors
    /// If a component of the path is not a directory, or links lead in a circle.
    pub(crate) fn directory_from(&mut self, start: u32, path: &[u8]) -> Result<u32, String> {
        if let Some((from, last, id)) = &self.last
            && *from == start
            && *last == path
        {
            return Ok(*id);
        }
        let found = self.resolve(start, path, Way::Make)?;
        let id = found.ok_or_else(|| String::from("it leads nowhere"))?;
        self.last = Some((start, path.to_vec(), id));
        Ok(id)
    }

    /// The directory at `path` from `start` on, if there is one.
    pub(crate) fn existing_directory(&mut self, start: u32, path: &[u8]) -> Option<u32> {
        let found = self.resolve(start, path, Way::Follow).ok()??;
        self.node(found).is_directory().then_some(found)
    }

    /// The node at `path` from `start` on, without following a link at its end, if there is one.
    pub(crate) fn find_from(&mut self, start: u32, path: &[u8]) -> Option<u32> {
        self.resolve(start, path, Way::Last).ok().flatten()
    }

    /// The directory that `node`, a name in directory `parent`, is or leads to as a symbolic link.
    pub(crate) fn leads_to(&mut self, parent: u32, node: u32) -> Option<u32> {
        if self.node(node).is_directory() {
            return Some(node);
        }
        let target = self.target(node)?.to_vec();
        let start = if target.starts_with(b"/") { 0 } else { parent };
        let led = self.resolve(start, &target, Way::Follow).ok()??;
        self.node(led).is_directory().then_some(led)
    }

    /// The target of `node` when it is a symbolic link.
    pub(crate) fn target(&self, node: u32) -> Option<&[u8]> {
        let node = self.node(node);
        let target = || &self.tree.names[node.key as usize..][..node.size as usize];
        (node.mode & S_IFMT == S_IFLNK).then(target)
    }

    fn resolve(&mut self, start: u32, path: &[u8], way: Way) -> Result<Option<u32>, String> {
        let mut followed = 0;
        let mut steps = 0;
        let mut at = start;
        // What is still to be walked, the next component last.
        let mut rest: Vec<Vec<u8>> = components(path).rev().map(<[u8]>::to_vec).collect();
        while let Some(part) = rest.pop() {
            if part == b".." {
                at = halves(self.node(at).size).0;
                continue;
            }
            let Some(found) = self.lookup(at, &part) else {
                if way != Way::Make {
                    return Ok(None);
                }
                let mut node = TreeNode::new(S_IFDIR, u16::MAX);
                node.set_attributes(&Attributes::DEFAULT_DIRECTORY);
                at = self.put(at, &part, node)?;
                continue;
            };
            let end = rest.is_empty();
            if self.node(found).is_directory() || end && way == Way::Last {
                at = found;
            } else if let Some(target) = self.target(found) {
                followed += 1;
                if followed > FOLLOWED {
                    return Err("too many symbolic links on the way to it".into());
                }
                if target.starts_with(b"/") {
                    at = 0;
                }
                let before = rest.len();
                rest.extend(components(target).rev().map(<[u8]>::to_vec));
                steps += rest.len() - before;
                if steps > limits::STEPS {
                    return Err("the symbolic links on the way to it are too long".into());
                }
            } else if end && way == Way::Follow {
                at = found;
            } else {
                return Err(format!(
                    "`{}` on the way to it is not a directory",
                    part.escape_ascii()
                ));
            }
        }
        Ok(Some(at))
    }
}

/// The components of `path` that mean something.
pub(crate) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
}
