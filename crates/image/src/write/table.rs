//! The inode tables: every node's record, written one group at a time, by all threads.
//!
//! A group's inodes are used from its first on, so its table is written up to the last used one's block; the rest is
//! left as it is, and the group descriptor records that.

use device::BlockDevice;
use mkfs::SpecialInode;
use ondisk::inode::{self, Inode};
use ondisk::map::{self, MapKind};
use ondisk::{Flags, FsBlock, Group, Ino, Timestamp};
use sync::atomic::{AtomicU32, Ordering};

use super::job::Job;
use crate::error::BuildError;
use crate::plan::inodes::generation;
use crate::plan::place::{BlockOwner, FAST_SYMLINK, FilePlace, NONE};
use crate::plan::shape::LINKS_MAX;
use crate::plan::xattrs::{Attribute, Home, split};
use crate::plan::{ImagePlan, directories};
use crate::source::{Attributes, Kind, NodeId, SourceTree, Time};

/// What an inode number is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InodeOwner {
    /// Nothing, or the layout itself.
    Layout,
    /// A node of the tree.
    Node(NodeId),
    /// The value of an attribute: its index in the placement.
    Value(u32),
}

/// What the inode tables are made from.
pub(crate) struct Tables<'a> {
    pub(crate) tree: &'a SourceTree,
    pub(crate) plan: &'a ImagePlan,
    /// Inodes of the layout itself.
    pub(crate) special: &'a [SpecialInode],
    /// How times go into inodes.
    pub(crate) times: super::Times,
}

impl Tables<'_> {
    /// Writes all inode tables, and the blocks of all maps.
    ///
    /// # Errors
    /// The first that any thread met.
    pub(crate) fn write(&self, device: &dyn BlockDevice, job: &Job<'_>) -> Result<(), BuildError> {
        let owners = self.owners();
        let next = AtomicU32::new(0);
        job.run(|_| {
            let mut buffer = Vec::new();
            loop {
                job.check()?;
                // Relaxed: each number is given to one thread; nothing else is published by it.
                let group = next.fetch_add(1, Ordering::Relaxed);
                if group >= self.plan.shape.groups {
                    return Ok(());
                }
                self.group(Group(group), &owners, &mut buffer, device)?;
            }
        })
    }

    /// By group: the index in the list of its first inode; then the list of owners, in order of inode numbers.
    fn owners(&self) -> (Vec<usize>, Vec<InodeOwner>) {
        let placement = &self.plan.placement;
        let per_group = self.plan.shape.inodes_per_group;
        let mut starts = Vec::with_capacity(placement.inodes.used().len() + 1);
        let mut total = 0;
        for used in placement.inodes.used() {
            starts.push(total);
            total += *used as usize;
        }
        starts.push(total);
        let mut owners = vec![InodeOwner::Layout; total];
        let index = |ino: Ino| {
            let (group, index) = ((ino.0 - 1) / per_group, (ino.0 - 1) % per_group);
            starts[group as usize] + index as usize
        };
        for (node, place) in placement.nodes.iter().enumerate() {
            owners[index(place.ino)] = InodeOwner::Node(NodeId(node as u32));
        }
        for (at, value) in placement.values.iter().enumerate() {
            owners[index(value.ino)] = InodeOwner::Value(at as u32);
        }
        (starts, owners)
    }

    fn group(
        &self,
        group: Group,
        (starts, owners): &(Vec<usize>, Vec<InodeOwner>),
        buffer: &mut Vec<u8>,
        device: &dyn BlockDevice,
    ) -> Result<(), BuildError> {
        let shape = &self.plan.shape;
        let range = starts[group.0 as usize]..starts[group.0 as usize + 1];
        if range.is_empty() {
            return Ok(());
        }
        let bytes = range.len() * shape.inode_size;
        buffer.clear();
        buffer.resize(bytes.next_multiple_of(shape.block_size.bytes()), 0);
        let first = group.0 * shape.inodes_per_group + 1;
        for (index, owner) in owners[range].iter().enumerate() {
            let ino = Ino(first + index as u32);
            let slot = &mut buffer[index * shape.inode_size..][..shape.inode_size];
            match *owner {
                InodeOwner::Layout => self.special(ino, slot),
                InodeOwner::Node(id) => self.node(id, ino, slot, device)?,
                InodeOwner::Value(at) => self.value(at as usize, ino, slot, device)?,
            }
        }
        let table = self.plan.layout.place(group).inode_table;
        device.write_at(table.offset(shape.block_size), buffer)?;
        Ok(())
    }

    fn special(&self, ino: Ino, slot: &mut [u8]) {
        match self.special.iter().find(|special| special.ino == ino) {
            Some(special) => slot.copy_from_slice(&special.bytes),
            // Reserved inodes that are not in use are zeros with a checksum.
            None => self.seal(ino, slot),
        }
    }

    fn seal(&self, ino: Ino, slot: &mut [u8]) {
        if let Some(seed) = self.plan.shape.checksum_seed {
            inode::set_checksum(slot, seed, ino);
        }
    }

    /// An inode with what all have: mode, owner, times, generation.
    fn begin(&self, ino: Ino, mode: u16, attributes: &Attributes) -> Inode {
        let stamp = |time: Time| Timestamp {
            seconds: time.seconds(),
            nanoseconds: time.nanoseconds(),
        };
        let mut inode = Inode::zeroed();
        inode.set_extra_size(self.plan.shape.extra_size);
        inode.set_mode(mode);
        inode.set_uid(attributes.uid);
        inode.set_gid(attributes.gid);
        inode.set_atime(stamp(attributes.atime));
        inode.set_mtime(stamp(attributes.mtime));
        inode.set_ctime(stamp(attributes.ctime));
        inode.set_crtime(stamp(attributes.mtime));
        inode.set_generation(generation(self.plan.shape.fs_seed, ino));
        inode
    }

    fn node(
        &self,
        id: NodeId,
        ino: Ino,
        slot: &mut [u8],
        device: &dyn BlockDevice,
    ) -> Result<(), BuildError> {
        let shape = &self.plan.shape;
        let place = self.plan.placement.nodes[id.index()];
        let mut attributes = self.times.clamp.apply(self.tree.attributes(id));
        if id == NodeId::ROOT
            && let Some((user, group)) = self.plan.root_owner
        {
            (attributes.uid, attributes.gid) = (user, group);
        }
        let mut inode = self.begin(ino, self.tree.mode(id), &attributes);
        // The source allows at most 65,000 links.
        let mut links = self.tree.links(id);
        match self.tree.kind(id) {
            Kind::Directory => {
                links = self.directory_links(id);
                let blocks = self.plan.directory_blocks[id.index()];
                inode.set_size(u64::from(blocks) << shape.block_size.bits());
                if directories::is_indexed(self.tree, shape, id, blocks) {
                    inode.set_flags(inode.flags().with(Flags::INDEX));
                }
            }
            Kind::File { size } => inode.set_size(size),
            Kind::Symlink(target) => {
                inode.set_size(target.len() as u64);
                if target.len() < FAST_SYMLINK {
                    inode.block_area_mut()[..target.len()].copy_from_slice(target);
                }
            }
            Kind::CharDevice { major, minor } | Kind::BlockDevice { major, minor } => {
                inode.set_device_number(major, minor);
            }
            Kind::Fifo | Kind::Socket => {}
        }
        inode.set_links_count(links as u16);
        let mapped = match self.tree.kind(id) {
            Kind::Directory | Kind::File { .. } => true,
            Kind::Symlink(target) => target.len() >= FAST_SYMLINK,
            _ => false,
        };
        let file = self.plan.placement.file_of(id);
        let extra = self.attribute_clusters(id)?;
        self.map(&mut inode, ino, file, mapped, extra, device)?;
        if let Some(block) = self
            .plan
            .placement
            .xattr_blocks
            .get(place.xattr_block as usize)
        {
            inode.set_xattr_block(ondisk::FsBlock(block.block));
        }
        inode.write_to(slot);
        self.attributes(id, slot)?;
        self.seal(ino, slot);
        Ok(())
    }

    /// Gives an inode its map and counts its space; `extra` clusters hold its attributes.
    fn map(
        &self,
        inode: &mut Inode,
        ino: Ino,
        file: Option<&FilePlace>,
        mapped: bool,
        extra: u64,
        device: &dyn BlockDevice,
    ) -> Result<(), BuildError> {
        let shape = &self.plan.shape;
        let placement = &self.plan.placement;
        if mapped {
            let (runs, places) = match file {
                Some(file) => (placement.runs(file), placement.map_blocks(file)),
                None => (&[][..], &[][..]),
            };
            let seed = shape
                .checksum_seed
                .map(|seed| inode::checksum_seed(seed, ino, inode.generation()));
            let emit = |place: FsBlock, block: &[u8]| {
                device
                    .write_at(place.offset(shape.block_size), block)
                    .map_err(BuildError::from)
            };
            let area = map::build_map(shape.map, runs, places, shape.block_size, seed, emit)?;
            *inode.block_area_mut() = area;
            if shape.map == MapKind::Extents {
                inode.set_flags(inode.flags().with(Flags::EXTENTS));
            }
        }
        let clusters = file.map_or(0, |file| file.clusters) + extra;
        let sectors = (clusters << shape.cluster_bits) << (shape.block_size.bits() - 9);
        if inode.set_sectors(sectors, shape.huge_file, shape.block_size) {
            Ok(())
        } else {
            Err(BuildError::Node {
                path: format!("inode {ino}"),
                problem: "it takes 2 TiB or more, which needs the feature huge_file".into(),
            })
        }
    }

    /// Two and one for each subdirectory; 1 stands for more than fit, which the plan allows with dir_nlink only.
    fn directory_links(&self, id: NodeId) -> u32 {
        match directories::links(self.tree, id) as u32 {
            links if links <= LINKS_MAX => links,
            _ => 1,
        }
    }

    /// Clusters that an inode's attributes count for: their block, and values elsewhere, though they may be shared.
    fn attribute_clusters(&self, id: NodeId) -> Result<u64, BuildError> {
        let placement = &self.plan.placement;
        let index = placement.nodes[id.index()].xattr_block;
        let Some(block) = placement.xattr_blocks.get(index as usize) else {
            return Ok(0);
        };
        if placement.first_value[block.set as usize] == NONE {
            return Ok(1);
        }
        let attributes = self.split(id)?;
        let elsewhere = attributes
            .iter()
            .filter(|attribute| attribute.home == Home::ValueInode);
        let bytes = self.plan.shape.cluster_bytes();
        Ok(1 + elsewhere
            .map(|value| (value.value.len() as u64).div_ceil(bytes))
            .sum::<u64>())
    }

    /// Writes the attributes that live in the inode.
    fn attributes(&self, id: NodeId, slot: &mut [u8]) -> Result<(), BuildError> {
        if self.tree.xattrs(id).len() == 0 {
            return Ok(());
        }
        let all = self.split(id)?;
        let entries: Vec<_> = all
            .iter()
            .filter(|attribute| attribute.home == Home::Inode)
            .map(|attribute| ondisk::xattr::XattrEntry {
                index: attribute.index,
                name: attribute.name,
                value: ondisk::xattr::Value::Here(&attribute.value),
                hash: 0,
            })
            .collect();
        let area = inode::attribute_area_mut(slot);
        let fits = entries.is_empty()
            || area.is_some_and(|area| ondisk::xattr::encode_inode_area(area, &entries));
        if fits {
            Ok(())
        } else {
            Err(self.node_error(id, "its attributes do not fit where they were planned"))
        }
    }

    pub(crate) fn split(&self, id: NodeId) -> Result<Vec<Attribute<'_>>, BuildError> {
        split(self.tree.xattrs(id), &self.plan.shape)
            .map_err(|problem| self.node_error(id, &problem))
    }

    pub(crate) fn node_error(&self, id: NodeId, problem: &str) -> BuildError {
        BuildError::Node {
            path: self.tree.path(id).escape_ascii().to_string(),
            problem: problem.into(),
        }
    }

    /// An inode that holds a value: its data is written here too, as it is in memory.
    fn value(
        &self,
        at: usize,
        ino: Ino,
        slot: &mut [u8],
        device: &dyn BlockDevice,
    ) -> Result<(), BuildError> {
        let shape = &self.plan.shape;
        let value = self.plan.placement.values[at];
        let attributes = self.split(value.owner)?;
        let bytes = &attributes[usize::from(value.attribute)].value;
        let mut inode = self.begin(
            ino,
            0o100_600,
            &Attributes::new(0o600, 0, 0, self.times.time),
        );
        inode.set_links_count(1);
        inode.set_size(bytes.len() as u64);
        inode.set_flags(Flags::EA_INODE);
        inode.set_value_hash(ondisk::xattr::value_hash(shape.fs_seed, bytes));
        inode.set_value_references(value.references.into());
        let file = self.plan.placement.files.get(value.file as usize);
        let file = file.filter(|file| file.owner == BlockOwner::Value);
        self.map(&mut inode, ino, file, true, 0, device)?;
        let mut rest = &bytes[..];
        for run in file.map_or(&[][..], |file| self.plan.placement.runs(file)) {
            let room = (run.len as usize) << shape.block_size.bits();
            let (now, later) = rest.split_at(rest.len().min(room));
            let mut blocks = now.to_vec();
            blocks.resize(room, 0);
            device.write_at(run.start.offset(shape.block_size), &blocks)?;
            rest = later;
        }
        inode.write_to(slot);
        self.seal(ino, slot);
        Ok(())
    }
}
