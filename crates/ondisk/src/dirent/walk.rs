//! A fast walk over a block's records. It leaves anything that is not sound to [`entries_from`], which names the fault.
//!
//! The checks are those of [`entries_from`], so that a search sees no record that it would refuse.

use super::{DirForm, DirRecord, HEADER_LEN, RECORD_MIN, TAIL_LEN, entries_from};
use crate::numbers::{BlockSize, Ino};
use crate::site::Corrupt;

/// A record, without its name.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) ino: Ino,
    pub(super) name_len: usize,
}

impl Record {
    /// Bytes that the record takes at least: no hash is behind its name.
    pub(super) fn named(&self) -> usize {
        (HEADER_LEN + self.name_len)
            .next_multiple_of(4)
            .max(RECORD_MIN)
    }
}

/// Records from the front up to the first that is not sound, or that may have a hash behind its name or a length that
/// is written otherwise.
struct Walk<'a> {
    bytes: &'a [u8],
    max_ino: Ino,
    offset: usize,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8], form: DirForm) -> Walk<'a> {
        let is_plain = !form.hashes && form.block_size != BlockSize::K64;
        Walk {
            bytes: if is_plain { bytes } else { &[] },
            max_ino: form.max_ino,
            offset: 0,
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Record;

    #[inline]
    fn next(&mut self) -> Option<Record> {
        let offset = self.offset;
        let header = self.bytes.get(offset..offset + HEADER_LEN)?;
        let header = u64::from_le_bytes(*header.as_array()?);
        let left = self.bytes.len() - offset;
        let ino = Ino(header as u32);
        let len = usize::from((header >> 32) as u16);
        let name_len = usize::from((header >> 48) as u8);
        // All at once: a branch each would cost more than what is left to look at.
        let is_sound = (len >= RECORD_MIN)
            & (len & 3 == 0)
            & ((len == left) | (len + RECORD_MIN <= left))
            & (HEADER_LEN + name_len <= len)
            & (ino <= self.max_ino);
        if !is_sound {
            return None;
        }
        self.offset += len;
        Some(Record {
            offset,
            len,
            ino,
            name_len,
        })
    }
}

/// The first record for which `quick` says yes, or, from the first unsound one on, `thorough`.
pub(super) fn first<T>(
    block: &[u8],
    form: DirForm,
    mut quick: impl FnMut(&[u8], Record) -> Option<T>,
    mut thorough: impl FnMut(DirRecord<'_>) -> Option<T>,
) -> Result<Option<T>, Corrupt> {
    let tail = if form.checksum { TAIL_LEN } else { 0 };
    let bytes = &block[..block.len().saturating_sub(tail)];
    let mut walk = Walk::new(bytes, form);
    for record in walk.by_ref() {
        let found = quick(bytes, record);
        if found.is_some() {
            return Ok(found);
        }
    }
    for entry in entries_from(block, form, walk.offset) {
        let found = thorough(entry?);
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The first used record that has this name, byte for byte: its inode, and the byte at which it begins.
///
/// # Errors
/// When a record before it is broken.
pub fn find(block: &[u8], form: DirForm, name: &[u8]) -> Result<Option<(Ino, usize)>, Corrupt> {
    // Names beside each other often begin alike, so the ends are compared first.
    let end: Option<[u8; 4]> = name.last_chunk().copied();
    first(
        block,
        form,
        |bytes, record| {
            if record.name_len != name.len() || record.ino.0 == 0 {
                return None;
            }
            let begin = record.offset + HEADER_LEN;
            let stored = bytes.get(begin..begin + name.len())?;
            let is_it = stored.last_chunk().copied() == end && stored == name;
            is_it.then_some((record.ino, record.offset))
        },
        |entry| (entry.is_used() && entry.name == name).then_some((entry.ino, entry.offset)),
    )
}
