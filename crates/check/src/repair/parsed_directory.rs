//! A directory as a repair reads it: its parts and their records, as far as they can be read. Also makes blocks of
//! records.

use ondisk::dirent::{self, DirForm, DirRecord, is_dots};
use ondisk::dirhash::NameHash;
use ondisk::{FileType, Flags, Ino, Inode, htree, inode, xattr};

use crate::map::{word16, word32};
use crate::repair::edit::Edit;
use crate::repair::map::{self, FileMap};

/// Bytes of the entry '.'.
const DOT_LEN: u16 = 12;

/// An entry apart from its block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    pub name: Vec<u8>,
    pub ino: Ino,
    pub file_type: Option<FileType>,
    pub hash: Option<NameHash>,
}

impl Record {
    /// An entry of a directory that is not encrypted.
    pub fn new(name: &[u8], ino: Ino, file_type: FileType) -> Record {
        Record {
            name: name.to_vec(),
            ino,
            file_type: Some(file_type),
            hash: None,
        }
    }
}

/// A part of a directory that holds records: a block, or a part of an inode.
pub struct Part {
    /// The block of the device; none for a part of the inode.
    pub place: Option<u64>,
    pub records: Vec<Record>,
    /// Root or node of the index: it has no records of its own beside the dots.
    pub is_index: bool,
    /// The records could not all be read, or the checksum is wrong.
    pub is_damaged: bool,
    /// Bytes that records may use.
    pub room: usize,
}

/// A directory as it was read.
pub struct ParsedDirectory {
    pub ino: Ino,
    pub inode: Inode,
    pub map: FileMap,
    pub parts: Vec<Part>,
    pub form: DirForm,
    /// What '..' names; 0 without one.
    pub dotdot: u32,
    /// The dots are where they should be, with the right numbers except the parent's.
    pub has_dots: bool,
    /// A block is missing.
    pub has_holes: bool,
}

/// How records of a directory are written.
pub fn form(edit: &Edit<'_, '_>, inode: &Inode) -> DirForm {
    DirForm::of(&edit.geometry, inode.flags()).with_any_ino()
}

/// Reads a directory. None where the device can't read a block of it.
pub fn read(edit: &Edit<'_, '_>, ino: Ino) -> Option<ParsedDirectory> {
    let slot = edit.slot(ino)?;
    let inode = Inode::parse(&slot).ok()?;
    if inode.file_type() != Some(FileType::Directory) || inode.links_count() == 0 {
        return None;
    }
    let mut directory = ParsedDirectory {
        ino,
        inode,
        map: FileMap::default(),
        parts: Vec::new(),
        form: form(edit, &inode),
        dotdot: 0,
        has_dots: false,
        has_holes: false,
    };
    if inode.flags().contains(Flags::INLINE_DATA) {
        directory.read_inline(edit, &slot);
    } else {
        directory.read_blocks(edit)?;
    }
    Some(directory)
}

impl ParsedDirectory {
    pub fn is_inline(&self) -> bool {
        self.inode.flags().contains(Flags::INLINE_DATA)
    }

    pub fn is_indexed(&self) -> bool {
        self.inode.flags().contains(Flags::INDEX)
    }

    pub fn seed(&self, edit: &Edit<'_, '_>) -> u32 {
        edit.seed(self.ino, &self.inode)
    }

    fn read_inline(&mut self, edit: &Edit<'_, '_>, slot: &[u8]) {
        let area = self.inode.block_area();
        self.dotdot = word32(area, 0);
        self.has_dots = true;
        let form = self.form.without_checksum();
        let rest = inode::attribute_area(slot).unwrap_or_default();
        let entries = xattr::entries(xattr::ListPlace::Inode(rest));
        let value = entries.into_iter().flatten().find_map(|entry| {
            let is_data = entry.index == xattr::INDEX_SYSTEM && entry.name == b"data";
            match entry.value {
                xattr::Value::Here(value) if is_data => Some(value),
                _ => None,
            }
        });
        for bytes in std::iter::once(&area[4..]).chain(value) {
            let (records, is_whole) = records(edit, bytes, form);
            self.parts.push(Part {
                place: None,
                records,
                is_index: false,
                is_damaged: !is_whole,
                room: bytes.len(),
            });
        }
    }

    fn read_blocks(&mut self, edit: &Edit<'_, '_>) -> Option<()> {
        self.map = map::read(edit, self.ino, &self.inode)?;
        self.has_holes = self.map.is_damaged;
        let seed = self.seed(edit);
        let mut next = 0;
        for run in self.map.runs.clone() {
            self.has_holes |= run.lblk != next;
            next = run.lblk + run.len;
            for i in 0..run.len {
                edit.spend(1)?;
                // The names in a block that the device can't read are not known: the directory stays as it is.
                let bytes = edit.block(run.pblk + i)?;
                let is_first = run.lblk + i == 0;
                let is_index = self.is_indexed() && (is_first || htree::is_node(&bytes, self.form));
                let form = if is_index {
                    self.form.without_checksum()
                } else {
                    self.form
                };
                let (mut records, is_whole) = records(edit, &bytes, form);
                let is_sealed = is_index
                    || !self.form.checksum
                    || dirent::verify_checksum(&bytes, seed).is_ok();
                if is_first {
                    self.take_dots(&mut records, &bytes);
                }
                self.parts.push(Part {
                    place: Some(run.pblk + i),
                    records,
                    is_index,
                    is_damaged: !is_whole || !is_sealed,
                    room: form.usable(),
                });
            }
        }
        Some(())
    }

    /// Takes the dots out of the first block's records.
    fn take_dots(&mut self, records: &mut Vec<Record>, bytes: &[u8]) {
        let parent = records.iter().take(2).find(|record| record.name == b"..");
        self.dotdot = parent.map_or(0, |record| record.ino.0);
        let is_dot = records.first().is_some_and(|record| {
            record.name == b"." && record.ino == self.ino && word16(bytes, 4) == DOT_LEN
        });
        // A zero byte ends each of the names '.' and '..'.
        let is_ended = bytes.get(9) == Some(&0) && bytes.get(usize::from(DOT_LEN) + 10) == Some(&0);
        let is_dotdot = records.get(1).is_some_and(|record| record.name == b"..");
        let types = records.iter().take(2);
        let mut types = types.map(|record| record.file_type == Some(FileType::Directory));
        let is_typed = !self.form.filetype || types.all(|is_right| is_right);
        let has_more = records.iter().skip(2).any(|record| is_dots(&record.name));
        self.has_dots = is_dot && is_dotdot && is_typed && is_ended && !has_more;
        records.retain(|record| !is_dots(&record.name));
    }
}

/// The records of a block in use that can be read, and whether that is all. Behind a broken record the next one that
/// looks right is searched for.
fn records(edit: &Edit<'_, '_>, bytes: &[u8], form: DirForm) -> (Vec<Record>, bool) {
    let mut records = Vec::new();
    let mut at = 0;
    let mut is_whole = true;
    let end = bytes.len()
        - if form.checksum {
            dirent::TAIL_LEN.min(bytes.len())
        } else {
            0
        };
    while at < end {
        let mut reached = at;
        let mut failed = false;
        for entry in dirent::entries_from(bytes, form, at) {
            let Ok(entry) = entry else {
                failed = true;
                break;
            };
            reached = entry.offset + entry.len;
            if entry.is_used() {
                records.push(Record {
                    name: entry.name.to_vec(),
                    ino: entry.ino,
                    file_type: entry.file_type,
                    hash: entry.hash,
                });
            }
        }
        if !failed {
            break;
        }
        is_whole = false;
        at = reached.max(at) + 4;
        while at < end && !looks_right(edit, &bytes[at..end], form) {
            at += 4;
        }
    }
    (records, is_whole)
}

/// Whether a record that can be believed begins here.
fn looks_right(edit: &Edit<'_, '_>, bytes: &[u8], form: DirForm) -> bool {
    let Some(header) = bytes.get(..dirent::HEADER_LEN) else {
        return false;
    };
    let (ino, len) = (word32(header, 0), usize::from(word16(header, 4)));
    let name = bytes.get(8..8 + usize::from(header[6])).unwrap_or_default();
    ino != 0
        && ino <= edit.geometry.inodes_count()
        && dirent::is_valid_name(name)
        && len.is_multiple_of(4)
        && len >= form.record_len(name)
        && len <= bytes.len()
        && (!form.filetype || header[7] <= 7)
}

/// A directory block with these records, the dots first where they are given.
pub fn packed_block(
    edit: &Edit<'_, '_>,
    form: DirForm,
    dots: Option<(Ino, Ino)>,
    records: &[Record],
    seed: u32,
) -> Option<Vec<u8>> {
    let mut bytes = vec![0; edit.block_bytes()];
    let mut all = Vec::new();
    if let Some((ino, parent)) = dots {
        all.push(Record::new(b".", ino, FileType::Directory));
        all.push(Record::new(b"..", parent, FileType::Directory));
    }
    all.extend_from_slice(records);
    pack(&mut bytes[..form.usable()], form, &all)?;
    if form.checksum {
        dirent::write_tail(&mut bytes);
        dirent::seal(&mut bytes, seed);
    }
    Some(bytes)
}

/// Fills bytes with records; the last one takes what is left.
pub fn pack(bytes: &mut [u8], form: DirForm, records: &[Record]) -> Option<()> {
    bytes.fill(0);
    let mut at = 0;
    let free = [Record {
        name: Vec::new(),
        ino: Ino(0),
        file_type: None,
        hash: None,
    }];
    let records = if records.is_empty() { &free } else { records };
    for (index, record) in records.iter().enumerate() {
        let need = form.record_len(&record.name);
        let len = if index + 1 == records.len() {
            bytes.len().checked_sub(at)?
        } else {
            need
        };
        if len < need || at + len > bytes.len() {
            return None;
        }
        let entry = DirRecord {
            offset: at,
            len,
            ino: record.ino,
            name: &record.name,
            file_type: record.file_type,
            hash: record.hash,
        };
        dirent::write(bytes, form, &entry);
        at += len;
    }
    Some(())
}
