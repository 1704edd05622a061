//! Going over a block's records quickly: what is not sound in any way is left to [`entries_from`], which names it.
//!
//! The checks are those of [`entries_from`], so that a search sees no record that it would refuse.

use super::{Entry, Form, HEADER_LEN, RECORD_MIN, TAIL_LEN, entries_from};
use crate::numbers::Ino;
use crate::site::Corrupt;

/// A record, without its name.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) ino: Ino,
    pub(super) name_len: usize,
}

/// Records from the front up to the first that is not sound, or that may have a hash behind its name.
struct Walk<'a> {
    bytes: &'a [u8],
    form: Form,
    offset: usize,
}

impl Iterator for Walk<'_> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        let rest = self.bytes.get(self.offset..)?;
        let ([i0, i1, i2, i3, l0, l1, name_len, _], _) = rest.split_first_chunk::<HEADER_LEN>()?;
        let ino = Ino(u32::from_le_bytes([*i0, *i1, *i2, *i3]));
        let len = self.form.length_from_disk(u16::from_le_bytes([*l0, *l1]));
        let name_len = usize::from(*name_len);
        let is_sound = len >= RECORD_MIN
            && len.is_multiple_of(4)
            && (len == rest.len() || len + RECORD_MIN <= rest.len())
            && HEADER_LEN + name_len <= len
            && ino <= self.form.max_ino
            && !self.form.hashes;
        if !is_sound {
            return None;
        }
        let offset = self.offset;
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
    form: Form,
    mut quick: impl FnMut(&[u8], Record) -> Option<T>,
    mut thorough: impl FnMut(Entry<'_>) -> Option<T>,
) -> Result<Option<T>, Corrupt> {
    let tail = if form.checksum { TAIL_LEN } else { 0 };
    let bytes = &block[..block.len().saturating_sub(tail)];
    let mut walk = Walk {
        bytes,
        form,
        offset: 0,
    };
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
pub fn find(block: &[u8], form: Form, name: &[u8]) -> Result<Option<(Ino, usize)>, Corrupt> {
    first(
        block,
        form,
        |bytes, record| {
            let begin = record.offset + HEADER_LEN;
            let is_it = record.name_len == name.len()
                && record.ino.0 != 0
                && bytes.get(begin..begin + name.len()) == Some(name);
            is_it.then_some((record.ino, record.offset))
        },
        |entry| (entry.is_used() && entry.name == name).then_some((entry.ino, entry.offset)),
    )
}
