//! An inode's attributes as two lists, the inode's own and that of its block, while a change of them is prepared. They
//! decide, as Linux does, which list an attribute is put in. Nothing live changes here.

use ondisk::inode::{BASE_SIZE, attribute_area};
use ondisk::xattr::{self, BLOCK_HEADER, INODE_HEADER, ListPlace, Value, XattrEntry};

use super::{XattrFlag, block_of, read_block};
use crate::core::Error;
use crate::inode::{LoadedInode, MountedFs};

/// One attribute: the number of its prefix, the rest of its name, its value.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Attribute {
    index: u8,
    name: Vec<u8>,
    value: Vec<u8>,
}

/// The attributes of an inode.
pub(crate) struct Lists {
    in_inode: Vec<Attribute>,
    in_block: Vec<Attribute>,
    /// Bytes of the inode's slot for attributes, the list's header included.
    area_bytes: usize,
    block_bytes: usize,
    /// Whether the inode's list and the block's list differ from what is on disk.
    pub(super) is_changed: (bool, bool),
}

impl Lists {
    /// The attributes of an existing inode. The caller holds its lock.
    ///
    /// # Errors
    /// `Corrupt`, `Io`; `Unsupported` for values in inodes of their own.
    pub(crate) fn of(mounted: &MountedFs, inode: &LoadedInode) -> Result<Lists, Error> {
        let volume = mounted.volume();
        let area = attribute_area(inode.slot()).unwrap_or_default();
        let ino = |error: Error| super::place_in(error, inode.ino());
        let mut in_block = Vec::new();
        let at = block_of(volume, inode);
        if at.0 != 0 {
            let block = read_block(volume, inode, at)?;
            in_block =
                read(ListPlace::Block(&block)).map_err(|error| ino(super::place(error, at)))?;
        }
        Ok(Lists {
            in_inode: read(ListPlace::Inode(area)).map_err(ino)?,
            in_block,
            area_bytes: area.len(),
            block_bytes: volume.geometry().block_size().bytes(),
            is_changed: (false, false),
        })
    }

    /// The lists of an inode that is about to be made, with `extra_size` bytes of extra fields.
    pub(crate) fn of_new(mounted: &MountedFs, extra_size: u16) -> Lists {
        let geometry = mounted.volume().geometry();
        let used = match extra_size {
            0 => geometry.inode_size(),
            extra => BASE_SIZE + usize::from(extra),
        };
        Lists {
            in_inode: Vec::new(),
            in_block: Vec::new(),
            area_bytes: geometry.inode_size().saturating_sub(used),
            block_bytes: geometry.block_size().bytes(),
            is_changed: (false, false),
        }
    }

    /// The value of an attribute.
    pub(crate) fn get(&self, index: u8, name: &[u8]) -> Option<&[u8]> {
        let mut all = self.in_inode.iter().chain(&self.in_block);
        let found = all.find(|attribute| attribute.index == index && attribute.name == name)?;
        Some(&found.value)
    }

    /// Sets an attribute: in the inode if it has room, else in the block. A value of it in the other list is removed.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute` if `flag` asks for it; `NoSpace` if it fits in neither place.
    pub(crate) fn set(
        &mut self,
        index: u8,
        name: &[u8],
        value: &[u8],
        flag: XattrFlag,
    ) -> Result<(), Error> {
        match (self.get(index, name), flag) {
            (Some(_), XattrFlag::Create) => return Err(Error::Exists),
            (None, XattrFlag::Replace) => return Err(Error::NoAttribute),
            (Some(same), _) if same == value => return Ok(()),
            _ => {}
        }
        let new = Attribute {
            index,
            name: name.to_vec(),
            value: value.to_vec(),
        };
        let (inode, block) = (put(&self.in_inode, &new), put(&self.in_block, &new));
        let area = self.area_bytes.saturating_sub(INODE_HEADER);
        if fits(area, &inode) {
            self.in_inode = inode;
            self.is_changed.0 = true;
            self.is_changed.1 |= take(&mut self.in_block, index, name);
        } else if fits(self.block_bytes - BLOCK_HEADER, &block) {
            self.in_block = block;
            self.is_changed.1 = true;
            self.is_changed.0 |= take(&mut self.in_inode, index, name);
        } else {
            return Err(Error::NoSpace);
        }
        Ok(())
    }

    /// Removes an attribute; returns whether it existed.
    pub(crate) fn remove(&mut self, index: u8, name: &[u8]) -> bool {
        let from_inode = take(&mut self.in_inode, index, name);
        let from_block = !from_inode && take(&mut self.in_block, index, name);
        self.is_changed.0 |= from_inode;
        self.is_changed.1 |= from_block;
        from_inode || from_block
    }

    /// Whether a list differs from what the inode has on disk.
    pub(crate) fn is_changed(&self) -> bool {
        self.is_changed.0 || self.is_changed.1
    }

    /// The bytes of the inode's list; all zeros if it has no attributes, as in Linux.
    pub(super) fn area(&self) -> Vec<u8> {
        let mut area = vec![0; self.area_bytes];
        let entries: Vec<XattrEntry<'_>> = self.in_inode.iter().map(|a| a.entry(0)).collect();
        if !entries.is_empty() {
            // `set` checked that they fit, or they were read from there.
            let _fits = xattr::encode_inode_area(&mut area, &entries);
        }
        area
    }

    /// The block's list as a block with one reference; `None` if the list has no attributes.
    pub(super) fn block(&self) -> Option<Vec<u8>> {
        let hashed = |a: &Attribute| xattr::entry_hash(&a.name, &a.value);
        let entries = self.in_block.iter().map(|a| (a, hashed(a)));
        let mut entries: Vec<XattrEntry<'_>> = entries.map(|(a, hash)| a.entry(hash)).collect();
        let mut block = vec![0; self.block_bytes];
        // They fit, as in `area`.
        let _fits = !entries.is_empty() && xattr::encode_block(&mut block, &mut entries);
        (!entries.is_empty()).then_some(block)
    }
}

impl Attribute {
    fn entry(&self, hash: u32) -> XattrEntry<'_> {
        XattrEntry {
            index: self.index,
            name: &self.name,
            value: Value::Here(&self.value),
            hash,
        }
    }
}

fn read(area: ListPlace<'_>) -> Result<Vec<Attribute>, Error> {
    let owned = |entry: XattrEntry<'_>| match entry.value {
        Value::Here(value) => Ok(Attribute {
            index: entry.index,
            name: entry.name.to_vec(),
            value: value.to_vec(),
        }),
        Value::Inode { .. } => Err(Error::Unsupported(
            "changing attributes beside a value in an inode of its own (ea_inode)",
        )),
    };
    let attributes: Vec<Attribute> = xattr::entries(area)?.map(owned).collect::<Result<_, _>>()?;
    // In a broken list values may overlap, so that they need more room when each is written separately.
    let room = match area {
        ListPlace::Inode(bytes) => bytes.len().saturating_sub(INODE_HEADER),
        ListPlace::Block(bytes) => bytes.len() - BLOCK_HEADER,
    };
    if attributes.is_empty() || fits(room, &attributes) {
        Ok(attributes)
    } else {
        Err(Error::Unsupported("changing attributes that overlap"))
    }
}

fn fits(bytes: usize, attributes: &[Attribute]) -> bool {
    let sizes = attributes.iter().map(|a| (a.name.len(), a.value.len()));
    xattr::fits(bytes, sizes)
}

/// The list with an attribute replaced or added.
fn put(list: &[Attribute], new: &Attribute) -> Vec<Attribute> {
    let mut list = list.to_vec();
    let is_same = |a: &Attribute| a.index == new.index && a.name == new.name;
    match list.iter().position(is_same) {
        Some(place) => list[place] = new.clone(),
        None => list.push(new.clone()),
    }
    list
}

fn take(list: &mut Vec<Attribute>, index: u8, name: &[u8]) -> bool {
    let before = list.len();
    list.retain(|a| a.index != index || a.name != name);
    list.len() < before
}
