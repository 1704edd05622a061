//! Directories, block by block.

use std::io::Write;

use ondisk::dirent::{self, DirForm};
use ondisk::features::Feature;
use ondisk::inode::{Inode, attribute_area, checksum_seed};
use ondisk::text::{DirectoryText, IndexText};
use ondisk::xattr::{self, INDEX_SYSTEM, ListPlace, Value};
use ondisk::{FileType, Flags, FsBlock, Generation, Ino, htree};

use super::heading;
use crate::failure::Failure;
use crate::raw::Raw;
use crate::raw::walk::{BUDGET, Go, Piece, walk};

/// Blocks of a directory that are looked at, at most.
const BLOCKS_MAX: u64 = 1 << 22;

/// Gets a block's logical number, its place and its bytes.
type Visit<'a> = &'a mut dyn FnMut(u64, FsBlock, &[u8]) -> Result<Go, Failure>;

/// An inode known to be a directory.
struct Directory<'a> {
    raw: &'a Raw,
    ino: Ino,
    inode: Inode,
    slot: Vec<u8>,
    form: DirForm,
}

impl<'a> Directory<'a> {
    fn open(raw: &'a Raw, ino: Ino) -> Result<Directory<'a>, Failure> {
        let slot = raw.slot(ino)?;
        let inode = Inode::parse(&slot).map_err(|corrupt| Failure::new(corrupt.ino(ino)))?;
        if inode.file_type() != Some(FileType::Directory) {
            return Err(Failure::new(format!("inode {ino} is not a directory")));
        }
        let flags = inode.flags();
        let geometry = &raw.geometry;
        let form = DirForm {
            block_size: geometry.block_size(),
            filetype: geometry.has(Feature::FILETYPE),
            checksum: geometry.has_metadata_csum(),
            hashes: flags.contains(Flags::ENCRYPT) && flags.contains(Flags::CASEFOLD),
            max_ino: Ino(geometry.inodes_count()),
        };
        Ok(Directory {
            raw,
            ino,
            inode,
            slot,
            form,
        })
    }

    /// Calls `visit` with every block: its logical number, its place, its bytes.
    fn blocks(&self, visit: Visit<'_>) -> Result<(), Failure> {
        let (mut budget, mut left) = (BUDGET, BLOCKS_MAX);
        walk(self.raw, self.ino, &self.inode, &mut budget, &mut |piece| {
            let Piece::Run {
                lblk, start, len, ..
            } = piece
            else {
                return Ok(Go::On);
            };
            left = left.checked_sub(len).ok_or_else(|| {
                Failure::new("the directory has more blocks than lanefs looks at")
            })?;
            for index in 0..len {
                let block = FsBlock(start.0 + index);
                if visit(lblk + index, block, &self.raw.block(block)?)? == Go::Stop {
                    return Ok(Go::Stop);
                }
            }
            Ok(Go::On)
        })
    }

    /// The runs of entries of an inline directory: behind the parent's number, and in the attributes.
    fn inline_runs(&self) -> [&[u8]; 2] {
        let area = attribute_area(&self.slot).unwrap_or_default();
        let entries = xattr::entries(ListPlace::Inode(area))
            .ok()
            .into_iter()
            .flatten();
        let mut data = entries.filter(|entry| entry.index == INDEX_SYSTEM && entry.name == b"data");
        let rest = match data.next().map(|entry| entry.value) {
            Some(Value::Here(bytes)) => bytes,
            _ => &[],
        };
        [&self.inode.block_area()[4..], rest]
    }

    fn is_inline(&self) -> bool {
        self.inode.flags().contains(Flags::INLINE_DATA)
    }
}

/// The inode of a name in a directory.
pub fn lookup(raw: &Raw, ino: Ino, name: &[u8]) -> Result<Option<Ino>, Failure> {
    let directory = Directory::open(raw, ino)?;
    let form = directory.form;
    let search = |block: &[u8], form: DirForm| {
        let mut entries = dirent::entries(block, form).filter_map(Result::ok);
        entries
            .find(|entry| entry.is_used() && entry.name == name)
            .map(|entry| entry.ino)
    };
    if directory.is_inline() {
        if name == b".." {
            return Ok(Some(Ino(directory.inode.block_word(0))));
        }
        let mut runs = directory.inline_runs().into_iter();
        return Ok(runs.find_map(|run| search(run, form.without_checksum())));
    }
    let mut found = None;
    directory.blocks(&mut |_, _, block| {
        // Blocks of an index have no checksum tail where leaves have one, but look like one free record.
        found = search(block, form.without_checksum());
        Ok(if found.is_some() { Go::Stop } else { Go::On })
    })?;
    Ok(found)
}

/// Prints every block of a directory.
pub fn dump(out: &mut impl Write, raw: &Raw, ino: Ino) -> Result<(), Failure> {
    let directory = Directory::open(raw, ino)?;
    let form = directory.form;
    if directory.is_inline() {
        heading(
            out,
            &format!("inline, parent {}", directory.inode.block_word(0)),
        )?;
        for run in directory.inline_runs() {
            let text = DirectoryText {
                block: run,
                form: form.without_checksum(),
            };
            writeln!(out, "{text}")?;
        }
        return Ok(());
    }
    let is_hashed = directory.inode.flags().contains(Flags::INDEX);
    let generation: Generation = directory.inode.generation();
    let seed = checksum_seed(raw.geometry.csum_seed(), ino, generation);
    directory.blocks(&mut |lblk, place, block| {
        let is_node = is_hashed && lblk > 0 && htree::is_node(block, form);
        let (kind, index) = match lblk {
            0 if is_hashed => {
                let levels = htree::LEVELS_MAX_LARGE;
                match htree::root(block, form, levels, form.hashes) {
                    Ok((root, index)) => {
                        let kind = format!(
                            "index root, hash {:?}, {} levels below",
                            root.version, root.levels
                        );
                        (kind, Some((htree::Kind::Root, index)))
                    }
                    Err(corrupt) => (corrupt.to_string(), None),
                }
            }
            _ if is_node => match htree::node(block, form) {
                Ok(index) => ("index node".to_string(), Some((htree::Kind::Node, index))),
                Err(corrupt) => (corrupt.to_string(), None),
            },
            _ => ("entries".to_string(), None),
        };
        let checked = match &index {
            Some((kind, _)) => htree::verify_checksum(block, *kind, seed),
            None => dirent::verify_checksum(block, seed),
        };
        let wrong = if form.checksum && checked.is_err() {
            ", checksum WRONG"
        } else {
            ""
        };
        writeln!(out, "block {lblk} at {place}: {kind}{wrong}")?;
        match index {
            Some((_, index)) => writeln!(out, "{}", IndexText(index))?,
            None => writeln!(out, "{}", DirectoryText { block, form })?,
        }
        Ok(Go::On)
    })
}
