//! Adds a directory of this machine to the tree.

use std::path::Path;

use hashbrown::HashMap;

use super::batch::Batch;
use super::builder::Builder;
#[cfg(not(target_os = "linux"))]
use super::elsewhere::walk::{self, Walk};
use super::error::SourceError;
use super::exclude::Excludes;
use super::inputs::Source;
#[cfg(target_os = "linux")]
use super::linux::walk::{self, Walk};
use super::system::beneath;
use super::tree::{DataKind, NONE, S_IFDIR, S_IFLNK, S_IFMT, TreeNode, halves, join};

/// How a directory is scanned.
pub(super) struct Scan<'a> {
    pub(super) path: &'a Path,
    pub(super) excludes: &'a Excludes,
    /// Device and inode of files to leave out.
    pub(super) outputs: &'a [(u64, u64)],
    pub(super) threads: usize,
}

/// What is known of the source's directories by number.
struct Collector<'a> {
    builder: &'a mut Builder,
    /// Node of each directory, and whether this source made it, so that no name can be there already.
    nodes: Vec<(u32, bool)>,
    names: Vec<(u32, u32)>,
    linked: HashMap<(u64, u64), u32, foldhash::fast::FixedState>,
}

impl Scan<'_> {
    /// Puts the contents of the directory at node `at`, which gets its attributes.
    pub(super) fn add(&self, builder: &mut Builder, at: u32) -> Result<(), SourceError> {
        let io = |operation| {
            move |error: std::io::Error| SourceError::Io {
                operation,
                path: self.path.to_path_buf(),
                error,
            }
        };
        let root = beneath::open_root(self.path).map_err(io("open"))?;
        let (attributes, xattrs) = walk::top(&root).map_err(io("look at"))?;
        let wrong = |problem| SourceError::Tree {
            path: self.path.display().to_string(),
            problem,
        };
        let source = builder.add_source(Source::Spent).map_err(wrong)?;
        let mut top = TreeNode::new(S_IFDIR, source);
        top.set_attributes(&attributes);
        top.xattrs = builder.intern(xattrs).map_err(wrong)?;
        builder.overlay(at, &top);
        let fresh = halves(builder.node(at).key).0 == NONE;
        let mut collector = Collector {
            builder,
            nodes: vec![(at, fresh)],
            names: vec![(0, 0)],
            linked: HashMap::default(),
        };
        let walk = Walk::new(&root, self.path, self.excludes, self.outputs, source);
        walk.run(self.threads, |batch| collector.collect(batch))?;
        let directories = collector.names;
        let path = self.path.to_path_buf();
        builder.tree.sources[usize::from(source)] = Source::Directory {
            root,
            path,
            directories,
        };
        Ok(())
    }
}

impl Collector<'_> {
    fn collect(&mut self, batch: Batch) -> Result<(), SourceError> {
        let (parent, fresh) = self.nodes[batch.directory as usize];
        let mut xattrs = batch.xattrs.into_iter().peekable();
        let mut extents = batch.extents.into_iter().peekable();
        let mut linked = batch.linked.into_iter().peekable();
        for (index, found) in batch.found.iter().enumerate() {
            let index = index as u32;
            let text = &batch.text[found.name as usize..];
            let (name, rest) = text.split_at(usize::from(found.name_len));
            let wrong = |problem| SourceError::Tree {
                path: String::from_utf8_lossy(name).into_owned(),
                problem,
            };
            let mut node = found.node;
            if let Some((_, set)) = xattrs.next_if(|(at, _)| *at == index) {
                node.xattrs = self.builder.intern(set).map_err(wrong)?;
            }
            let extents = extents.next_if(|(at, _)| *at == index);
            let link = linked
                .next_if(|(at, _)| *at == index)
                .map(|(_, inode)| inode);
            if let Some(first) = link.and_then(|inode| self.linked.get(&inode)) {
                self.builder.link(parent, name, *first).map_err(wrong)?;
                continue;
            }
            if let Some((_, extents)) = extents {
                self.builder
                    .set_extents(&mut node, &extents)
                    .map_err(wrong)?;
            }
            if node.mode & S_IFMT == S_IFLNK {
                let target = &rest[..usize::from(found.target_len)];
                self.builder.set_target(&mut node, target).map_err(wrong)?;
            }
            let id = if fresh {
                self.append(batch.directory, parent, name, node)
            } else {
                self.merge(batch.directory, parent, name, node)
            };
            let (id, place, made) = id.map_err(wrong)?;
            if node.is_directory() {
                let number = found.number as usize;
                if self.nodes.len() <= number {
                    self.nodes.resize(number + 1, (NONE, false));
                    self.names.resize(number + 1, (0, 0));
                }
                self.nodes[number] = (id, made);
                self.names[number] = (batch.directory, place);
            }
            if let Some(inode) = link {
                self.linked.insert(inode, id);
            }
        }
        Ok(())
    }

    /// Adds what can't be there yet: its node, the place of its name, and true.
    fn append(
        &mut self,
        directory: u32,
        parent: u32,
        name: &[u8],
        mut node: TreeNode,
    ) -> Result<(u32, u32, bool), String> {
        let place = self.builder.add_name(name)?;
        if node.is_directory() {
            node.key = join(NONE, 0);
        } else if node.data == DataKind::Path {
            node.key = join(directory, place);
        }
        let id = self.builder.add_node(node)?;
        self.builder.add_entry(parent, place, id)?;
        Ok((id, place, true))
    }

    /// Adds what may be there: its node, the place of its name, and whether it is a new one.
    fn merge(
        &mut self,
        directory: u32,
        parent: u32,
        name: &[u8],
        node: TreeNode,
    ) -> Result<(u32, u32, bool), String> {
        let Some(old) = self.builder.lookup(parent, name) else {
            return self.append(directory, parent, name, node);
        };
        if node.is_directory() {
            // A link that leads to a directory of the tree stays, as `lib` does when `/lib/x` is laid over a root whose
            // `lib` is a link to `usr/lib`.
            if let Some(led) = self.builder.leads_to(parent, old) {
                if led == old {
                    self.builder.overlay(old, &node);
                }
                let place = self.builder.add_name(name)?;
                return Ok((led, place, false));
            }
        }
        self.builder.remove(parent, name);
        self.append(directory, parent, name, node)
    }
}
