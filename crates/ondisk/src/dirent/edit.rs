//! Changes of a block's records in place: adding a name where there is room, removing one, naming another inode.
//!
//! Each function walks the block's records first, so that a broken block is an error and stays as it is.

use zerocopy::IntoBytes;

use super::{Entry, Form, HEADER_LEN, Header, NAME_MAX, RECORD_MIN, entries, walk, write};
use crate::inode_words::FileType;
use crate::numbers::Ino;
use crate::site::{Corrupt, Site};

/// Where a new record fits: inside the record at `offset`, which keeps its first `kept` of `len` bytes.
struct Room {
    offset: usize,
    kept: usize,
    len: usize,
}

fn room(block: &[u8], form: Form, name: &[u8]) -> Result<Option<Room>, Corrupt> {
    let needed = form.record_len(name);
    let fits =
        |offset, len, kept: usize| (len >= kept + needed).then_some(Room { offset, kept, len });
    walk::first(
        block,
        form,
        |_, record| {
            let kept = match record.ino.0 {
                0 => 0,
                _ => (HEADER_LEN + record.name_len)
                    .next_multiple_of(4)
                    .max(RECORD_MIN),
            };
            fits(record.offset, record.len, kept)
        },
        |entry| {
            let kept = match entry.is_used() {
                true => form.record_len(entry.name),
                false => 0,
            };
            fits(entry.offset, entry.len, kept)
        },
    )
}

/// Whether a record for `name` fits somewhere in the block.
///
/// # Errors
/// When a record before that place is broken.
pub fn has_room(block: &[u8], form: Form, name: &[u8]) -> Result<bool, Corrupt> {
    Ok(room(block, form, name)?.is_some())
}

/// Adds a record in the first place where it fits: `false` if there is none. For directories without stored hashes.
///
/// # Errors
/// As [`has_room`].
///
/// # Panics
/// When the name is longer than [`NAME_MAX`].
pub fn insert(
    block: &mut [u8],
    form: Form,
    ino: Ino,
    name: &[u8],
    file_type: Option<FileType>,
) -> Result<bool, Corrupt> {
    assert!(name.len() <= NAME_MAX);
    let Some(Room { offset, kept, len }) = room(block, form, name)? else {
        return Ok(false);
    };
    if kept > 0 {
        set_len(block, offset, kept);
    }
    let record = Entry {
        offset: offset + kept,
        len: len - kept,
        ino,
        name,
        file_type,
        hash: None,
    };
    write(block, form, &record);
    Ok(true)
}

/// Removes the used record at `offset`: the one before it takes its room, or it becomes a free one. Its name is
/// cleared.
///
/// # Errors
/// [`Site::EntryToRemove`] when no record begins there; when a record before it is broken.
pub fn remove(block: &mut [u8], form: Form, offset: usize) -> Result<(), Corrupt> {
    let mut before: Option<(usize, usize)> = None;
    for entry in entries(block, form) {
        let entry = entry?;
        let (at, len) = (entry.offset, entry.len);
        if at == offset {
            let named = form.record_len(entry.name).min(len);
            match before {
                Some((at, before)) => {
                    set_len(block, at, before + len);
                    block[offset..offset + named].fill(0);
                }
                None => {
                    block[offset..offset + named].fill(0);
                    set_len(block, offset, len);
                }
            }
            return Ok(());
        }
        before = Some((at, len));
    }
    Err(Corrupt::at(Site::EntryToRemove))
}

/// Lets the record at `offset` name another inode.
///
/// # Errors
/// [`Site::EntryToChange`] when no record begins there; when a record before it is broken.
pub fn retarget(
    block: &mut [u8],
    form: Form,
    offset: usize,
    ino: Ino,
    file_type: Option<FileType>,
) -> Result<(), Corrupt> {
    for entry in entries(block, form) {
        if entry?.offset == offset {
            let code = file_type.filter(|_| form.filetype);
            let (number, rest) = block[offset..].split_at_mut(4);
            number.copy_from_slice(&ino.0.to_le_bytes());
            rest[core::mem::offset_of!(Header, file_type) - 4] =
                code.map_or(0, FileType::dirent_code);
            return Ok(());
        }
    }
    Err(Corrupt::at(Site::EntryToChange))
}

fn set_len(block: &mut [u8], offset: usize, len: usize) {
    let at = offset + core::mem::offset_of!(Header, rec_len);
    block[at..at + 2].copy_from_slice(Form::length_to_disk(len).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirent::{BlockWriter, is_valid_name};
    use crate::numbers::BlockSize;

    const FORM: Form = Form {
        block_size: BlockSize::K1,
        filetype: true,
        checksum: true,
        hashes: false,
        max_ino: Ino(1000),
    };

    fn names(block: &[u8]) -> Vec<(u32, Vec<u8>)> {
        entries(block, FORM)
            .map(Result::unwrap)
            .filter(Entry::is_used)
            .map(|entry| (entry.ino.0, entry.name.to_vec()))
            .collect()
    }

    #[test]
    fn a_block_filled_and_emptied_in_any_order_holds_what_it_should() {
        let mut block = vec![0; 1024];
        BlockWriter::new(&mut block, FORM).finish();
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
                if insert(&mut block, FORM, ino, &name, file_type).unwrap() {
                    expected.push((ino.0, name));
                } else {
                    assert!(!has_room(&block, FORM, &name).unwrap());
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
        let mut writer = BlockWriter::new(&mut block, FORM);
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
