//! The tar format as we write it: ustar headers, and pax records before those that ustar can't hold.

use super::acl_text;
use crate::{FileType, Metadata, Timestamp, Xattr};

/// Everything in a tar is a whole number of these.
pub const BLOCK: usize = 512;

/// What an entry is.
pub enum Kind<'a> {
    /// A regular file, with the bytes it takes in the archive.
    File(u64),
    /// A regular file with holes: its real size, and the bytes it takes in the archive, its map included.
    Sparse(u64, u64),
    /// Another name of the file archived under this name.
    HardLink(&'a [u8]),
    /// A symbolic link to this.
    Symlink(&'a [u8]),
    /// A directory, device or FIFO, as the metadata say.
    Other,
}

/// The headers of an entry, pax records included.
pub fn headers(name: &[u8], metadata: &Metadata, xattrs: &[Xattr], kind: &Kind<'_>) -> Vec<u8> {
    let mut pax = Vec::new();
    let mut header = Header([0; BLOCK]);
    let (type_flag, size, link) = match kind {
        Kind::File(size) => (b'0', *size, &[][..]),
        Kind::Sparse(real, size) => {
            record(&mut pax, b"GNU.sparse.major", b"1");
            record(&mut pax, b"GNU.sparse.minor", b"0");
            record(&mut pax, b"GNU.sparse.name", name);
            record(
                &mut pax,
                b"GNU.sparse.realsize",
                real.to_string().as_bytes(),
            );
            (b'0', *size, &[][..])
        }
        Kind::HardLink(target) => (b'1', 0, *target),
        Kind::Symlink(target) => (b'2', 0, *target),
        Kind::Other => (type_flag(metadata.file_type), 0, &[][..]),
    };
    let sparse_name = [b"GNUSparseFile.0/", name].concat();
    let stored_name = if matches!(kind, Kind::Sparse(..)) {
        &sparse_name
    } else {
        name
    };
    if !header.text(0, 100, stored_name) {
        record(&mut pax, b"path", stored_name);
    }
    if !header.text(157, 100, link) {
        record(&mut pax, b"linkpath", link);
    }
    header.octal(100, 8, u64::from(metadata.mode) & 0o7777);
    for (at, len, key, value) in [
        (108, 8, &b"uid"[..], u64::from(metadata.uid)),
        (116, 8, b"gid", u64::from(metadata.gid)),
        (124, 12, b"size", size),
    ] {
        if !header.octal(at, len, value) {
            record(&mut pax, key, value.to_string().as_bytes());
        }
    }
    time(&mut header, &mut pax, metadata.mtime);
    let (major, minor) = metadata.rdev;
    header.octal(329, 8, major.into());
    header.octal(337, 8, minor.into());
    header.0[156] = type_flag;
    if !matches!(kind, Kind::HardLink(_)) {
        attributes(&mut pax, xattrs);
    }
    joined(&pax, header)
}

/// The records of extended attributes. ACLs are written as text too, which is where tar looks for them.
fn attributes(pax: &mut Vec<u8>, xattrs: &[Xattr]) {
    for xattr in xattrs {
        let acl = match &xattr.name[..] {
            b"system.posix_acl_access" => Some(&b"SCHILY.acl.access"[..]),
            b"system.posix_acl_default" => Some(&b"SCHILY.acl.default"[..]),
            _ => None,
        };
        if let (Some(key), Some(text)) = (acl, acl_text::text(&xattr.value)) {
            record(pax, key, text.as_bytes());
        }
        record(
            pax,
            &[b"SCHILY.xattr.", &xattr.name[..]].concat(),
            &xattr.value,
        );
    }
}

/// The header of an entry, after its pax records if it has some.
fn joined(pax: &[u8], header: Header) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 * BLOCK);
    if !pax.is_empty() {
        let mut extended = Header([0; BLOCK]);
        extended.text(0, 100, b"PaxHeaders/entry");
        extended.octal(100, 8, 0o644);
        extended.octal(108, 8, 0);
        extended.octal(116, 8, 0);
        extended.octal(124, 12, pax.len() as u64);
        extended.octal(136, 12, 0);
        extended.0[156] = b'x';
        bytes.extend(extended.finish());
        bytes.extend(pax);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }
    bytes.extend(header.finish());
    bytes
}

/// The map at the beginning of a sparse file: how many ranges, then the start and length of each; whole blocks.
pub fn sparse_map(ranges: &[std::ops::Range<u64>]) -> Vec<u8> {
    let mut map = format!("{}\n", ranges.len()).into_bytes();
    for range in ranges {
        map.extend(format!("{}\n{}\n", range.start, range.end - range.start).bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

fn type_flag(kind: FileType) -> u8 {
    match kind {
        FileType::Directory => b'5',
        FileType::CharDevice => b'3',
        FileType::BlockDevice => b'4',
        FileType::Fifo => b'6',
        _ => b'0',
    }
}

/// Whole seconds fit the header, from 1970 on; the rest needs a record.
fn time(header: &mut Header, pax: &mut Vec<u8>, time: Timestamp) {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    let fits = header.octal(136, 12, seconds) && time.seconds >= 0;
    if fits && time.nanoseconds == 0 {
        return;
    }
    // A fraction counts away from zero in decimal, but nanoseconds always count forward.
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (whole, part) = (
        nanoseconds.abs() / 1_000_000_000,
        nanoseconds.abs() % 1_000_000_000,
    );
    let text = format!("{sign}{whole}.{part:09}");
    record(
        pax,
        b"mtime",
        text.trim_end_matches('0').trim_end_matches('.').as_bytes(),
    );
}

/// Adds a record, whose length counts its own digits.
fn record(pax: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    pax.extend(len.to_string().bytes());
    pax.push(b' ');
    pax.extend(key);
    pax.push(b'=');
    pax.extend(value);
    pax.push(b'\n');
}

struct Header([u8; BLOCK]);

impl Header {
    /// Sets a text field, cut off if it is too long; returns whether it fits and needs no record.
    fn text(&mut self, at: usize, len: usize, text: &[u8]) -> bool {
        let kept = text.len().min(len);
        self.0[at..at + kept].copy_from_slice(&text[..kept]);
        text.len() <= len && text.is_ascii()
    }

    /// Sets a number, or zero and `false` when it has too many digits.
    fn octal(&mut self, at: usize, len: usize, number: u64) -> bool {
        let text = format!("{number:0width$o}", width = len - 1);
        let fits = text.len() < len;
        let text = if fits { text } else { "0".repeat(len - 1) };
        self.0[at..at + len - 1].copy_from_slice(text.as_bytes());
        fits
    }

    /// Adds magic and checksum.
    fn finish(mut self) -> [u8; BLOCK] {
        self.0[257..265].copy_from_slice(b"ustar\x0000");
        self.0[148..156].fill(b' ');
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        self.octal(148, 7, sum);
        self.0[154] = 0;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for len in [1, 80, 95, 96, 97, 990, 995, 996] {
            let mut pax = Vec::new();
            record(&mut pax, b"a", &vec![b'x'; len]);
            let text = String::from_utf8(pax).unwrap();
            let (number, _) = text.split_once(' ').unwrap();
            assert_eq!(number.parse::<usize>().unwrap(), text.len());
        }
    }

    #[test]
    fn a_time_before_1970_is_a_negative_decimal() {
        let mut pax = Vec::new();
        let before = Timestamp {
            seconds: -2,
            nanoseconds: 500_000_000,
        };
        time(&mut Header([0; BLOCK]), &mut pax, before);
        assert_eq!(pax, b"14 mtime=-1.5\n");
    }
}
