//! Fuzz targets for the sources of images: tar archives, container images, tables of ownership, file contexts.

use std::fmt::Write as _;

use image::source::{Kind, NodeId, SourceTree, bytes};
use sha2::{Digest as _, Sha256};

/// The size of a tar header; data are padded to a multiple of it.
const BLOCK: usize = 512;
/// The most blobs of one image.
const PARTS: usize = 12;
/// The most bytes of one blob's text after the names and sizes of other blobs were put in.
const TEXT: usize = 1 << 16;

/// A tar archive. If the first byte's lowest bit is set, headers keep their own checksums; if the next one is set, the
/// archive may end where it does.
pub fn tar(data: &[u8]) -> bool {
    let Some((choice, archive)) = data.split_first() else {
        return false;
    };
    let mut archive = archive.to_vec();
    if choice & 1 == 0 {
        seal_headers(&mut archive);
    }
    if choice & 2 == 0 && archive.get(257..262) == Some(b"ustar") {
        archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    }
    bytes::tar(&archive).is_ok_and(|tree| look_at(&tree))
}

/// A container image. The first byte's lowest bit chooses between a layout and the form of `docker save`; if the next
/// one is set, layers keep their own checksums. The files follow, each after its length (two bytes, little-endian):
/// first the index, or the manifest. In each of them, `@` and a letter stand for the digest of a later file (`A` is the
/// second), and `#` and a letter for its size, so that digests and sizes still match after a change.
pub fn oci(data: &[u8]) -> bool {
    let Some((choice, mut rest)) = data.split_first() else {
        return false;
    };
    let mut parts = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk::<2>()
        && parts.len() < PARTS
    {
        let (part, next) = after.split_at(after.len().min(usize::from(u16::from_le_bytes(*len))));
        parts.push(part.to_vec());
        rest = next;
    }
    let docker = choice & 1 != 0;
    let mut names: Vec<(String, usize)> = vec![(String::new(), 0); parts.len()];
    let mut members = Vec::new();
    for number in (0..parts.len()).rev() {
        let mut part = filled(&parts[number], &names, number);
        if choice & 2 == 0 {
            seal_headers(&mut part);
        }
        let digest: String = Sha256::digest(&part)
            .iter()
            .fold(String::new(), |mut text, byte| {
                // Writing to memory cannot fail.
                let _ = write!(text, "{byte:02x}");
                text
            });
        names[number] = (digest, part.len());
        let digest = &names[number].0;
        let path = match (number, docker) {
            (0, false) => "index.json".to_owned(),
            (0, true) => "manifest.json".to_owned(),
            (_, false) => format!("blobs/sha256/{digest}"),
            (_, true) if part.starts_with(b"{") => format!("{digest}.json"),
            (_, true) => format!("{digest}/layer.tar"),
        };
        members.push((path, part));
    }
    members.push(("oci-layout".to_owned(), b"{}".to_vec()));
    let mut archive = Vec::new();
    for (path, part) in members.iter().rev() {
        let mut header = [0; BLOCK];
        header[..path.len()].copy_from_slice(path.as_bytes());
        header[100..107].copy_from_slice(b"0000644");
        let size = format!("{:011o}", part.len());
        header[124..135].copy_from_slice(size.as_bytes());
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        seal_header(&mut header);
        archive.extend(header);
        archive.extend(part);
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    bytes::image(&archive).is_ok_and(|tree| look_at(&tree))
}

/// A table of ownership and a file of contexts; the first byte's lowest bit chooses.
pub fn tables(data: &[u8]) -> bool {
    let Some((choice, text)) = data.split_first() else {
        return false;
    };
    let text = String::from_utf8_lossy(text);
    if choice & 1 == 0 {
        bytes::ownership_table(&text).is_ok_and(|tree| look_at(&tree))
    } else {
        bytes::file_contexts(&text).is_ok()
    }
}

/// A blob in which letters were replaced by digests and sizes of later blobs. Only text has such letters.
fn filled(part: &[u8], names: &[(String, usize)], number: usize) -> Vec<u8> {
    if !matches!(part.first(), Some(b'{' | b'[')) {
        return part.to_vec();
    }
    let mut whole = Vec::with_capacity(part.len());
    let mut rest = part;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let letter = after
            .first()
            .map(|letter| usize::from(letter.wrapping_sub(b'A')) + 1);
        let later = letter.filter(|it| *it > number && *it < names.len() && whole.len() < TEXT);
        match (byte, later) {
            (b'@', Some(it)) => whole.extend(names[it].0.bytes()),
            (b'#', Some(it)) => whole.extend(names[it].1.to_string().bytes()),
            _ => {
                whole.push(*byte);
                continue;
            }
        }
        rest = &after[1..];
    }
    whole
}

/// Gives every block that looks like a header its correct checksum.
fn seal_headers(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(BLOCK) {
        if block[257..262] == *b"ustar" {
            seal_header(block);
        }
    }
}

fn seal_header(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
}

/// Walks through a tree, which must be connected. Returns whether it has more than a root.
fn look_at(tree: &SourceTree) -> bool {
    let mut nodes = 0;
    let mut waiting = vec![NodeId::ROOT];
    while let Some(id) = waiting.pop() {
        nodes += 1;
        assert!(tree.attributes(id).mtime.nanoseconds() < 1_000_000_000);
        if let Kind::File { size } = tree.kind(id) {
            let mut end = 0;
            for extent in tree.extents(id) {
                assert!(
                    extent.offset >= end && extent.len > 0,
                    "extents are in order"
                );
                end = extent.offset + extent.len;
            }
            assert!(end <= size, "extents end within the file");
        }
        for (name, child) in tree.children(id) {
            assert!(!name.is_empty() && name.len() <= image::source::limits::NAME);
            assert!(!name.contains(&b'/') && name != b"." && name != b"..");
            waiting.push(child);
        }
    }
    nodes > 1
}
