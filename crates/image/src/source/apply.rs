//! Puts the entries of an archive into the tree, as extracting it over the earlier sources would.
//!
//! Later entries replace earlier ones of the same name; a directory over a directory changes its attributes. Names are
//! taken relative to the source's place: leading `/` and `./` are dropped, and a name with `..` is refused, as is one
//! that no directory entry can have. Symbolic links on the way to a name are followed within the image. A hard link
//! may come before its target. In a layer of an image, whiteouts remove what lower layers put there.

use hashbrown::HashMap;

use super::builder::{Builder, LayerMarks};
use super::error::{SinkError, SourceError};
use super::exclude::Excludes;
use super::limits;
use super::origin::DataSink;
use super::resolve::components;
use super::tar::{Ending, TarMember, TarStop, Visitor, What};
use super::tree::{DataKind, S_IFDIR, S_IFLNK, S_IFREG, SourceId, TreeNode, join};
use super::xattrs::Xattrs;

/// Files without a name in the tree, which hard links may name: excluded ones, and the targets of AUFS's hard links.
pub(super) type HiddenLinks = HashMap<Vec<u8>, u32, foldhash::fast::FixedState>;

/// How one archive is applied.
pub(super) struct Apply<'a> {
    pub(super) builder: &'a mut Builder,
    /// The directory that the archive's root becomes.
    base: u32,
    source: u16,
    excludes: &'a Excludes,
    /// Uncompressed archives in a file: where it begins in the file. Else data comes in order only.
    range: Option<u64>,
    sink: Option<&'a mut dyn DataSink>,
    /// Layers: number of entries when it began.
    layer: Option<usize>,
    marks: LayerMarks,
    /// What is not in the tree, and links may still name.
    hidden: HiddenLinks,
    /// Links whose target did not come yet: name and target.
    pending: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of names in the two.
    held: usize,
}

/// Prefix of names that say what a layer removes.
const WHITEOUT: &[u8] = b".wh.";
/// Names with this prefix are about the directory they are in.
const WHITEOUT_META: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// The directory in which AUFS keeps the inodes of files with several names. A layer's hard links lead to it; the tree
/// does not contain it.
const AUFS_LINKS: &[u8] = b".wh..wh.plnk";

impl<'a> Apply<'a> {
    pub(super) fn new(
        builder: &'a mut Builder,
        base: u32,
        source: u16,
        excludes: &'a Excludes,
    ) -> Self {
        Self {
            builder,
            base,
            source,
            excludes,
            range: None,
            sink: None,
            layer: None,
            marks: LayerMarks::default(),
            hidden: HashMap::default(),
            pending: Vec::new(),
            held: 0,
        }
    }

    /// Data can be read at its place; the archive begins at byte `start` of its file.
    pub(super) fn in_place(mut self, start: u64) -> Self {
        self.range = Some(start);
        self
    }

    /// Data is handed out while the archive is read.
    pub(super) fn streaming(mut self, sink: Option<&'a mut dyn DataSink>) -> Self {
        self.sink = sink;
        self
    }

    /// The archive is a layer of an image; `links` is what [`Apply::finish_layer`] of the layer below it gave.
    pub(super) fn layer(mut self, links: HiddenLinks) -> Self {
        self.layer = Some(self.builder.mark());
        self.held = links.keys().map(Vec::len).sum();
        self.hidden = links;
        self
    }

    /// As [`Apply::finish`], for a layer: what the hard links of upper layers may name.
    ///
    /// # Errors
    /// Names a link whose target never came.
    pub(super) fn finish_layer(mut self) -> Result<HiddenLinks, (Vec<u8>, String)> {
        self.make_pending()?;
        self.hidden.retain(|path, _| is_aufs_link(path));
        Ok(self.hidden)
    }

    /// Makes the links that wait for their target.
    ///
    /// # Errors
    /// Names a link whose target never came; all others are made.
    pub(super) fn finish(mut self) -> Result<(), (Vec<u8>, String)> {
        self.make_pending()
    }

    /// Whether something is at `path`.
    pub(super) fn holds(&mut self, path: &[u8]) -> bool {
        self.builder.find_from(self.base, path).is_some()
    }

    /// Makes the links that wait for their target, each after those that its target waits for.
    fn make_pending(&mut self) -> Result<(), (Vec<u8>, String)> {
        let pending = std::mem::take(&mut self.pending);
        // Of several links of one name the last counts.
        let numbers: HashMap<&[u8], usize> = pending
            .iter()
            .enumerate()
            .map(|(number, (path, _))| (&**path, number))
            .collect();
        let mut begun = vec![false; pending.len()];
        let mut made = Ok(());
        let mut chain = Vec::new();
        for number in numbers
            .values()
            .copied()
            .collect::<std::collections::BTreeSet<_>>()
        {
            chain.push(number);
            while let Some(&last) = chain.last() {
                let (path, target) = &pending[last];
                let first_time = !std::mem::replace(&mut begun[last], true);
                match numbers.get(&**target) {
                    Some(next) if first_time && !begun[*next] => chain.push(*next),
                    _ => {
                        chain.pop();
                        let link = self.make_link(path, target);
                        made = made.and(link.map_err(|problem| (path.clone(), problem)));
                    }
                }
            }
        }
        made
    }

    /// Makes a link that waited, unless something came later under its name.
    fn make_link(&mut self, path: &[u8], target: &[u8]) -> Result<(), String> {
        if self.builder.find_from(self.base, path).is_some() {
            return Ok(());
        }
        let Some(node) = self.target(target) else {
            return Err(format!(
                "it is a hard link to `{}`, which is not there",
                target.escape_ascii()
            ));
        };
        let (parent, name) = split(path);
        let parent = self.builder.directory_from(self.base, parent)?;
        self.link(parent, name, target, node)
    }

    /// The file that a hard link to `target` names.
    fn target(&mut self, target: &[u8]) -> Option<u32> {
        if self.layer.is_none() || !is_aufs_link(target) {
            let found = self.builder.find_from(self.base, target);
            if found.is_some() {
                return found;
            }
        }
        self.hidden.get(target).copied()
    }

    /// Adds a hard link: one more name for `node`, which the archive's entry names as `target`.
    fn link(&mut self, parent: u32, name: &[u8], target: &[u8], node: u32) -> Result<(), String> {
        if self.hidden.get(target) == Some(&node) && self.builder.node(node).links == 0 {
            self.builder.remove(parent, name);
            let place = self.builder.add_name(name)?;
            return self.builder.add_entry(parent, place, node);
        }
        self.builder.link(parent, name, node)
    }

    /// Keeps what a layer has in AUFS's directory of hard links.
    fn keep_aufs_link(&mut self, path: &[u8], entry: TarMember) -> Result<bool, TarStop> {
        let node = match &entry.what {
            What::File { .. } => return self.file(path, entry, true),
            What::HardLink(target) => {
                let target = clean(target)?;
                let Some(node) = self.target(&target) else {
                    return Err("it is a hard link to what comes later, or is not there".into());
                };
                node
            }
            What::Symlink(target) => {
                let mut node = self.node(S_IFLNK, &entry, &entry.xattrs)?;
                self.builder.set_target(&mut node, target)?;
                self.builder.add_node(node)?
            }
            What::Special(kind, major, minor) => {
                let mut node = self.node(*kind, &entry, &entry.xattrs)?;
                node.key = join(*major, *minor);
                self.builder.add_node(node)?
            }
            What::Directory => return Ok(false),
        };
        self.hold(path.len())?;
        self.hidden.insert(path.to_vec(), node);
        Ok(false)
    }

    /// The directory at `path`, to put something in.
    fn directory(&mut self, path: &[u8]) -> Result<u32, TarStop> {
        let directory = self.builder.directory_from(self.base, path)?;
        if self.layer.is_some() {
            self.builder.enter(directory, &mut self.marks);
        }
        Ok(directory)
    }

    fn place(&mut self, path: &[u8], node: TreeNode) -> Result<u32, TarStop> {
        let (parent, name) = split(path);
        let parent = self.directory(parent)?;
        if node.is_directory()
            && self.layer.is_none()
            && let Some(old) = self.builder.lookup(parent, name)
            && self.builder.node(old).source != self.source
            && let Some(led) = self.builder.leads_to(parent, old)
            && led != old
        {
            // A link that an earlier source made, and that leads to a directory, stays.
            return Ok(led);
        }
        Ok(self.builder.put(parent, name, node)?)
    }

    fn hold(&mut self, bytes: usize) -> Result<(), TarStop> {
        self.held += bytes;
        if self.held > limits::HELD_NAMES {
            return Err("too many hard links come before their targets, or are excluded".into());
        }
        Ok(())
    }

    fn hard_link(&mut self, path: Vec<u8>, target: &[u8]) -> Result<(), TarStop> {
        let target = clean(target)?;
        let (parent, name) = split(&path);
        let Some(node) = self.target(&target) else {
            self.hold(path.len() + target.len())?;
            // What has the name is replaced now; what gets it later replaces the link.
            if let Some(parent) = self.builder.existing_directory(self.base, parent) {
                self.builder.remove(parent, name);
            }
            self.pending.push((path, target));
            return Ok(());
        };
        let parent = self.directory(parent)?;
        Ok(self.link(parent, name, &target, node)?)
    }

    /// Whether `path` was a whiteout, and is dealt with.
    fn whiteout(&mut self, path: &[u8]) -> bool {
        let Some(mark) = self.layer else { return false };
        let (parent, name) = split(path);
        let hidden = |part: &[u8]| part.starts_with(WHITEOUT_META);
        if parent.split(|byte| *byte == b'/').any(hidden) {
            return true;
        }
        let Some(removed) = name.strip_prefix(WHITEOUT) else {
            return false;
        };
        if hidden(name) && name != OPAQUE {
            return true;
        }
        if let Some(directory) = self.builder.existing_directory(self.base, parent) {
            let removed = (name != OPAQUE).then_some(removed);
            self.builder
                .clear_older(directory, removed, mark, self.source, &mut self.marks);
        }
        true
    }

    fn file(&mut self, path: &[u8], entry: TarMember, excluded: bool) -> Result<bool, TarStop> {
        let mut node = self.node(S_IFREG, &entry, &entry.xattrs)?;
        let What::File {
            size,
            offset,
            index,
            extents,
        } = entry.what
        else {
            return Ok(false);
        };
        node.size = size;
        let bytes = match &extents {
            Some(extents) => extents.iter().map(|extent| extent.len).sum(),
            None => size,
        };
        if let Some(extents) = &extents {
            self.builder.set_extents(&mut node, extents)?;
        }
        if bytes > 0 {
            (node.data, node.key) = match self.range {
                Some(start) => (DataKind::Range, start + offset),
                None => (DataKind::Stream, join(0, index)),
            };
        }
        if excluded {
            self.hold(path.len())?;
            let id = self.builder.add_node(node)?;
            self.hidden.insert(path.to_vec(), id);
        } else {
            self.place(path, node)?;
        }
        let Some(sink) = self
            .sink
            .as_mut()
            .filter(|_| bytes > 0 && self.range.is_none())
        else {
            return Ok(false);
        };
        sink.begin(SourceId(self.source), index, size, bytes)
            .map_err(refused)
    }

    fn node(&mut self, kind: u16, entry: &TarMember, xattrs: &Xattrs) -> Result<TreeNode, TarStop> {
        let mut node = TreeNode::new(kind, self.source);
        node.set_attributes(&entry.attributes);
        if !xattrs.is_empty() {
            node.xattrs = self.builder.intern(xattrs.clone())?;
        }
        Ok(node)
    }

    /// Makes the links of a plain archive that wait for their targets.
    pub(super) fn finish_archive(self, ending: Ending, label: &str) -> Result<(), SourceError> {
        self.builder.tree.warnings.extend(ending.warning(label));
        self.finish().map_err(|(path, text)| SourceError::Archive {
            archive: label.into(),
            offset: 0,
            entry: Some(String::from_utf8_lossy(&path).into_owned()),
            problem: text,
        })
    }
}

fn refused(error: SinkError) -> TarStop {
    TarStop::Error(SourceError::Sink(error))
}

impl Visitor for Apply<'_> {
    fn entry(&mut self, entry: TarMember) -> Result<bool, TarStop> {
        let path = clean(&entry.path)?;
        if path.is_empty() {
            if !matches!(entry.what, What::Directory) {
                return Err("an entry without a name is not a directory".into());
            }
            let node = self.node(S_IFDIR, &entry, &entry.xattrs)?;
            self.builder.overlay(self.base, &node);
            return Ok(false);
        }
        if self.layer.is_some() && is_aufs_link(&path) {
            return self.keep_aufs_link(&path, entry);
        }
        if self.whiteout(&path) {
            return Ok(false);
        }
        let directory = matches!(entry.what, What::Directory);
        let excluded = self.excludes.hides(&path, directory);
        if excluded && !matches!(entry.what, What::File { .. }) {
            return Ok(false);
        }
        match &entry.what {
            What::File { .. } => return self.file(&path, entry, excluded),
            What::HardLink(target) => self.hard_link(path, target)?,
            What::Directory => {
                let node = self.node(S_IFDIR, &entry, &entry.xattrs)?;
                self.place(&path, node)?;
            }
            What::Symlink(target) => {
                let mut node = self.node(S_IFLNK, &entry, &entry.xattrs)?;
                self.builder.set_target(&mut node, target)?;
                self.place(&path, node)?;
            }
            What::Special(kind, major, minor) => {
                let mut node = self.node(*kind, &entry, &entry.xattrs)?;
                node.key = join(*major, *minor);
                self.place(&path, node)?;
            }
        }
        Ok(false)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TarStop> {
        match &mut self.sink {
            Some(sink) => sink.data(offset, bytes).map_err(refused),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> Result<(), TarStop> {
        match &mut self.sink {
            Some(sink) => sink.end().map_err(refused),
            None => Ok(()),
        }
    }
}

/// Hands out the data of the files that are still needed, when an archive is read again.
pub(super) struct Replay<'a> {
    pub(super) source: SourceId,
    /// The items that the tree has, rising, with their sizes.
    pub(super) wanted: &'a [(u32, u64)],
    /// How many of them came.
    pub(super) found: usize,
    pub(super) sink: &'a mut dyn DataSink,
}

impl Visitor for Replay<'_> {
    fn entry(&mut self, entry: TarMember) -> Result<bool, TarStop> {
        let What::File {
            size,
            index,
            extents,
            ..
        } = entry.what
        else {
            return Ok(false);
        };
        let bytes = match &extents {
            Some(extents) => extents.iter().map(|extent| extent.len).sum(),
            None => size,
        };
        let place = self
            .wanted
            .binary_search_by_key(&index, |(index, _)| *index);
        let (true, Ok(place)) = (bytes > 0, place) else {
            return Ok(false);
        };
        if self.wanted[place].1 != size {
            return Err("the archive changed since it was scanned".into());
        }
        self.found += 1;
        self.sink
            .begin(self.source, index, size, bytes)
            .map_err(refused)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TarStop> {
        self.sink.data(offset, bytes).map_err(refused)
    }

    fn end(&mut self) -> Result<(), TarStop> {
        self.sink.end().map_err(refused)
    }
}

/// A name without what means nothing; components are divided by one `/`.
///
/// # Errors
/// If it leads upwards, or is not possible for a file.
pub(super) fn clean(path: &[u8]) -> Result<Vec<u8>, String> {
    let mut clean = Vec::with_capacity(path.len());
    for part in components(path) {
        if part == b".." {
            return Err("its name leads out of the archive with `..`".into());
        }
        if part.len() > limits::NAME {
            return Err(format!(
                "a name of {} bytes is longer than {}",
                part.len(),
                limits::NAME
            ));
        }
        if part.contains(&0) {
            return Err("its name holds a NUL byte".into());
        }
        if !clean.is_empty() {
            clean.push(b'/');
        }
        clean.extend_from_slice(part);
    }
    Ok(clean)
}

/// Whether a clean path of a layer lies in AUFS's directory of hard links.
fn is_aufs_link(path: &[u8]) -> bool {
    path.strip_prefix(AUFS_LINKS)
        .is_some_and(|rest| rest.starts_with(b"/"))
}

/// Directory and name of a clean path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Whether a name may be one in an OCI or docker-save archive.
pub(super) fn is_image_name(path: &[u8]) -> bool {
    let mut parts = path.split(|byte| *byte == b'/');
    // AppleDouble files, which macOS's tar writes beside others.
    if parts.clone().any(|part| part.starts_with(b"._")) {
        return true;
    }
    let first = parts.next().unwrap_or_default();
    let names: [&[u8]; 6] = [
        b"",
        b"oci-layout",
        b"index.json",
        b"manifest.json",
        b"repositories",
        // As Jib names it.
        b"config.json",
    ];
    names.contains(&first) || is_blob_name(path)
}

/// Whether `path` is one that only images have: a blob of a layout, or what docker-save names by its digest.
pub(super) fn is_blob_name(path: &[u8]) -> bool {
    let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
    let stem = first.strip_prefix(b"sha256:").unwrap_or(first);
    let digits = stem.iter().take_while(|byte| byte.is_ascii_hexdigit());
    first == b"blobs" || digits.count() == 64
}
