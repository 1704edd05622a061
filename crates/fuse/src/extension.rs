//! What follows the arguments of a request that makes an inode: the security labels that the inode is to have, and the
//! supplementary group of the caller that decides about set-group-ID.
//!
//! Records of whole 8 bytes, each with its size and its type. A type up to [`abi::LABELS_MOST`] is a number of labels;
//! a record of groups has a type of its own. A record that is cut short or has another type makes the request
//! malformed: the kernel sends only what was agreed on.

use crate::abi;

/// The extension of one request; empty for most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extension<'a> {
    /// Extended attributes: the whole name, and the value.
    pub(crate) labels: Vec<(&'a [u8], &'a [u8])>,
    /// Numbers of groups, 4 bytes each.
    pub(crate) groups: &'a [u8],
}

/// Where every record and every label ends.
const ALIGNMENT: usize = 8;
const PREFIX: &[u8] = b"security.";

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes) as usize)
}

impl<'a> Extension<'a> {
    /// Reads an extension; `None` if it is not one.
    pub(crate) fn parse(mut bytes: &'a [u8]) -> Option<Extension<'a>> {
        let mut extension = Extension::default();
        while !bytes.is_empty() {
            let (size, kind) = (word(bytes, 0)?, word(bytes, 4)?);
            if size < 8 || !size.is_multiple_of(ALIGNMENT) {
                return None;
            }
            let (record, rest) = bytes.split_at_checked(size)?;
            let body = &record[8..];
            match kind {
                abi::GROUPS => extension.groups = groups(body)?,
                labels if labels <= abi::LABELS_MOST => extension.add_labels(body, labels)?,
                _ => return None,
            }
            bytes = rest;
        }
        Some(extension)
    }

    /// Each label is the length of its value, a padding, its name, and its value.
    fn add_labels(&mut self, mut body: &'a [u8], count: usize) -> Option<()> {
        for _ in 0..count {
            let len = word(body, 0)?;
            let rest = body.get(8..)?;
            let end = rest.iter().position(|byte| *byte == 0)?;
            let (name, value) = (&rest[..end], rest.get(end + 1..)?.get(..len)?);
            if !name.starts_with(PREFIX) || name.len() == PREFIX.len() {
                return None;
            }
            self.labels.push((name, value));
            let all = (8 + end + 1 + len).next_multiple_of(ALIGNMENT);
            body = body.get(all..)?;
        }
        Some(())
    }

    /// Whether the caller is in a group, as far as the kernel says so.
    pub(crate) fn has_group(&self, gid: u32) -> bool {
        self.groups.as_chunks().0.contains(&gid.to_ne_bytes())
    }
}

/// A number of groups, and these.
fn groups(body: &[u8]) -> Option<&[u8]> {
    let len = word(body, 0)?.checked_mul(4)?;
    body.get(4..)?.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: usize, body: &[u8]) -> Vec<u8> {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
        let head = [(8 + body.len()) as u32, kind as u32].map(u32::to_ne_bytes);
        [head.concat(), body].concat()
    }

    fn label(name: &[u8], value: &[u8]) -> Vec<u8> {
        let head = [value.len() as u32, 0].map(u32::to_ne_bytes).concat();
        let mut bytes = [&head, name, b"\0", value].concat();
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    fn both() -> Vec<u8> {
        let label = label(b"security.selinux", b"system_u:object_r:tmp_t:s0\0");
        let groups = [1_u32, 70_000].map(u32::to_ne_bytes).concat();
        [record(1, &label), record(abi::GROUPS, &groups)].concat()
    }

    #[test]
    fn labels_and_groups_are_read() {
        let bytes = both();
        let extension = Extension::parse(&bytes).unwrap();
        let expected = (
            &b"security.selinux"[..],
            &b"system_u:object_r:tmp_t:s0\0"[..],
        );
        assert_eq!(extension.labels, [expected]);
        assert!(extension.has_group(70_000) && !extension.has_group(1));
        // No module has a label: the kernel sends a record without any.
        let none = record(0, b"");
        assert_eq!(Extension::parse(&none), Some(Extension::default()));
        assert_eq!(Extension::parse(b""), Some(Extension::default()));
        let two = [label(b"security.a", b"1"), label(b"security.b", b"")].concat();
        let two = record(2, &two);
        assert_eq!(Extension::parse(&two).unwrap().labels.len(), 2);
    }

    #[test]
    fn what_is_cut_short_or_unknown_is_refused() {
        let bytes = both();
        let first = bytes.len() - 16;
        for len in 0..bytes.len() {
            let is_whole = len == 0 || len == first;
            assert_eq!(Extension::parse(&bytes[..len]).is_some(), is_whole, "{len}");
        }
        for refused in [
            record(abi::LABELS_MOST + 2, b""),
            record(usize::MAX >> 32, b""),
            record(2, &label(b"security.a", b"1")),
            record(1, &label(b"user.a", b"1")),
            record(1, &label(b"security.", b"1")),
            record(abi::GROUPS, &u32::MAX.to_ne_bytes()),
            record(abi::GROUPS, &[2_u32, 7].map(u32::to_ne_bytes).concat()),
            vec![0; 8],
            [7_u32, 0].map(u32::to_ne_bytes).concat(),
            [12_u32, 0, 0, 0].map(u32::to_ne_bytes).concat(),
        ] {
            assert_eq!(Extension::parse(&refused), None, "{refused:?}");
        }
    }
}
