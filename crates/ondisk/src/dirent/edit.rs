//! Changes of a block's records in place: adding a name where there is room, removing one, naming another inode.
//!
//! What depends on the block's records walks over them first, so that a broken block is an error and stays as it is.

use core::cell::Cell;

use zerocopy::IntoBytes;

use super::{DirForm, DirRecord, Header, NAME_MAX, walk, write};
use crate::inode_words::FileType;
use crate::numbers::Ino;
use crate::site::{Corrupt, Site};

/// Where a new record fits: inside the record at `offset`, which keeps its first `kept` of `len` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordRoom {
    offset: usize,
    kept: usize,
    len: usize,
}

/// The first place where a record for `name` fits in the block; `None` if it does not fit.
///
/// # Errors
/// When a record before that place is broken.
pub fn room(block: &[u8], form: DirForm, name: &[u8]) -> Result<Option<RecordRoom>, Corrupt> {
    let needed = form.record_len(name);
    let fits = |offset, len, kept: usize| {
        (len >= kept + needed).then_some(RecordRoom { offset, kept, len })
    };
    walk::first(
        block,
        form,
        |_, record| {
            let kept = match record.ino.0 {
                0 => 0,
                _ => record.named(),
            };
            fits(record.offset, record.len, kept)
        },
        |entry| {
            let kept = if entry.is_used() {
                form.record_len(entry.name)
            } else {
                0
            };
            fits(entry.offset, entry.len, kept)
        },
    )
}

/// Adds a record in the place that [`room`] found for its name in these very bytes. For directories without stored
/// hashes.
///
/// # Panics
/// When the place is another block's, or was found for a shorter name: the caller's mistake.
pub fn insert(
    block: &mut [u8],
    form: DirForm,
    room: RecordRoom,
    ino: Ino,
    name: &[u8],
    file_type: Option<FileType>,
) {
    assert!(name.len() <= NAME_MAX);
    let RecordRoom { offset, kept, len } = room;
    if kept > 0 {
        set_len(block, offset, kept);
    }
    let record = DirRecord {
        offset: offset + kept,
        len: len - kept,
        ino,
        name,
        file_type,
        hash: None,
    };
    write(block, form, &record);
}

/// A record that was looked for by its place.
#[derive(Clone, Copy)]
struct Found {
    /// The place and length of the record before it.
    before: Option<(usize, usize)>,
    len: usize,
    /// Bytes that it takes without slack.
    named: usize,
}

/// The record that begins at `offset`; `None` if none does.
fn record_at(block: &[u8], form: DirForm, offset: usize) -> Result<Option<Found>, Corrupt> {
    let before = Cell::new(None);
    let is_it = |at, len, named: usize| {
        let before = before.replace(Some((at, len)));
        (at == offset).then_some(Found {
            before,
            len,
            named: named.min(len),
        })
    };
    walk::first(
        block,
        form,
        |_, record| is_it(record.offset, record.len, record.named()),
        |entry| is_it(entry.offset, entry.len, form.record_len(entry.name)),
    )
}

/// Removes the used record at `offset`: the one before it takes its room, or it becomes a free one. Its name is
/// cleared.
///
/// # Errors
/// [`Site::EntryToRemove`] when no record begins there; when a record before it is broken.
pub fn remove(block: &mut [u8], form: DirForm, offset: usize) -> Result<(), Corrupt> {
    let Some(found) = record_at(block, form, offset)? else {
        return Err(Corrupt::at(Site::EntryToRemove));
    };
    block[offset..offset + found.named].fill(0);
    match found.before {
        Some((at, before)) => set_len(block, at, before + found.len),
        None => set_len(block, offset, found.len),
    }
    Ok(())
}

/// Lets the record at `offset` name another inode.
///
/// # Errors
/// [`Site::EntryToChange`] when no record begins there; when a record before it is broken.
pub fn retarget(
    block: &mut [u8],
    form: DirForm,
    offset: usize,
    ino: Ino,
    file_type: Option<FileType>,
) -> Result<(), Corrupt> {
    if record_at(block, form, offset)?.is_none() {
        return Err(Corrupt::at(Site::EntryToChange));
    }
    let code = file_type.filter(|_| form.filetype);
    let (number, rest) = block[offset..].split_at_mut(4);
    number.copy_from_slice(&ino.0.to_le_bytes());
    rest[core::mem::offset_of!(Header, file_type) - 4] = code.map_or(0, FileType::dirent_code);
    Ok(())
}

fn set_len(block: &mut [u8], offset: usize, len: usize) {
    let at = offset + core::mem::offset_of!(Header, rec_len);
    block[at..at + 2].copy_from_slice(DirForm::length_to_disk(len).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirent::{DirBlockWriter, entries, is_valid_name};
    use crate::numbers::BlockSize;

    const FORM: DirForm = DirForm {
        block_size: BlockSize::K1,
        filetype: true,
        checksum: true,
        hashes: false,
        max_ino: Ino(1000),
    };

    fn names(block: &[u8]) -> Vec<(u32, Vec<u8>)> {
        entries(block, FORM)
            .map(Result::unwrap)
            .filter(DirRecord::is_used)
            .map(|entry| (entry.ino.0, entry.name.to_vec()))
            .collect()
    }

    #[test]
    fn a_block_filled_and_emptied_in_any_order_holds_what_it_should() {
        let mut block = vec![0; 1024];
        DirBlockWriter::new(&mut block, FORM).finish();
        let mut expected: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut seed = 1_u32;
        let mut full = 0;
        for step in 1..=3000_u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let name = vec![b'a' + (step % 26) as u8; 1 + (seed >> 8) as usize % 60];
            assert!(is_valid_name(&name));
            if seed >> 28 < 9 {
                let ino = Ino(step % 999 + 1);
                let file_type = Some(FileType::Regular);
                if let Some(room) = room(&block, FORM, &name).unwrap() {
                    insert(&mut block, FORM, room, ino, &name, file_type);
                    expected.push((ino.0, name));
                } else {
                    full += 1;
                }
            } else if !expected.is_empty() {
                let victim = expected.swap_remove((seed >> 4) as usize % expected.len());
                let at = entries(&block, FORM)
                    .map(Result::unwrap)
                    .find(|entry| entry.ino.0 == victim.0 && entry.name == victim.1);
                let offset = at.unwrap().offset;
                remove(&mut block, FORM, offset).unwrap();
            }
            let mut found = names(&block);
            found.sort();
            let mut sorted = expected.clone();
            sorted.sort();
            assert_eq!(found, sorted, "step {step}");
            let total: usize = entries(&block, FORM).map(|entry| entry.unwrap().len).sum();
            assert_eq!(total, FORM.usable());
        }
        assert!(full > 10);
    }

    #[test]
    fn a_record_names_another_inode_and_keeps_its_name() {
        let mut block = vec![0; 1024];
        let mut writer = DirBlockWriter::new(&mut block, FORM);
        assert!(writer.push(Ino(5), b"one", Some(FileType::Regular), None));
        assert!(writer.push(Ino(6), b"two", Some(FileType::Regular), None));
        writer.finish();
        retarget(&mut block, FORM, 12, Ino(9), Some(FileType::Directory)).unwrap();
        let second = entries(&block, FORM).nth(1).unwrap().unwrap();
        assert_eq!((second.ino, second.name), (Ino(9), &b"two"[..]));
        assert_eq!(second.file_type, Some(FileType::Directory));
        assert!(retarget(&mut block, FORM, 13, Ino(9), None).is_err());
        assert!(remove(&mut block, FORM, 16).is_err());
    }
}
