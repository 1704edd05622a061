//! Names without case: how casefolded directories compare and hash names.
//!
//! The only encoding there is on disk is UTF-8 under Unicode 12.1. A name's folded form is what the kernel's tables
//! make of it: full case folding, canonical decomposition, characters that are ignored by default left out, combining
//! marks in canonical order. Names of one directory are the same when their folded forms are.
//!
//! A name that is not UTF-8 has no folded form: it is the same only as itself, byte for byte, and hashes as it is.
//! (Continuation bytes too many after a character are kept and do not count as wrong here, as in the kernel.) File
//! systems with the strict flag refuse to create names that are not UTF-8, but find those that are there.
//!
//! What Unicode 12.1 had not assigned stands for itself, whatever later versions made of it. The folding and
//! decomposition of what it had assigned never change (Unicode's stability policy), so that newer tables serve; the
//! tests compare with e2fsprogs, whose tables are the kernel's.

mod assigned;

use caseless::Caseless as _;
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

use crate::dirhash::{self, HashVersion, NameHash};

/// The superblock's number for UTF-8 under Unicode 12.1.
pub const ENCODING_UTF8_12_1: u16 = 1;

/// The flag in the superblock's encoding flags under which names without a folded form may not be created.
pub const STRICT_FLAG: u16 = 1;

/// Bytes that a folded form may have; a name whose form would be longer has none.
const FOLDED_MAX: usize = 4095;

/// The folded form of a name, if it has one. May be empty, and longer than 255 bytes.
#[must_use]
pub fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    if name.first().copied().is_some_and(is_continuation) {
        return None;
    }
    let mut folding = Folding::default();
    for chunk in name.utf8_chunks() {
        chunk.valid().chars().for_each(|it| folding.take(it));
        if !chunk.invalid().iter().copied().all(is_continuation) {
            return None;
        }
        chunk
            .invalid()
            .iter()
            .for_each(|it| folding.take_stray(*it));
    }
    folding.end_run();
    Some(folding.done).filter(|folded| folded.len() <= FOLDED_MAX)
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

/// A name on its way to its folded form.
#[derive(Default)]
struct Folding {
    done: Vec<u8>,
    /// Combining marks with their classes, and stray bytes (class 0) between them, not yet in order.
    run: Vec<(u8, Encoded)>,
}

/// A character or a stray byte, as its bytes.
#[derive(Clone, Copy)]
struct Encoded {
    bytes: [u8; 4],
    len: usize,
}

impl Folding {
    fn take(&mut self, character: char) {
        if is_ignored(character) {
            // It leaves nothing behind, but marks on its two sides keep their order.
            self.end_run();
        } else if is_assigned(character) {
            core::iter::once(character)
                .default_case_fold()
                .for_each(|folded| decompose_canonical(folded, |part| self.append(part)));
        } else {
            self.end_run();
            self.append_starter(character);
        }
    }

    fn append(&mut self, part: char) {
        match canonical_combining_class(part) {
            0 => {
                self.end_run();
                self.append_starter(part);
            }
            class => {
                let mut bytes = [0; 4];
                let len = part.encode_utf8(&mut bytes).len();
                self.run.push((class, Encoded { bytes, len }));
            }
        }
    }

    fn append_starter(&mut self, part: char) {
        let mut bytes = [0; 4];
        self.done
            .extend_from_slice(part.encode_utf8(&mut bytes).as_bytes());
    }

    /// A continuation byte that continues nothing. The kernel passes it on whenever its cursor comes by, and in a run
    /// of marks that is once to find their classes and once for each class.
    fn take_stray(&mut self, byte: u8) {
        if self.run.is_empty() {
            self.done.push(byte);
        } else {
            let bytes = [byte, 0, 0, 0];
            self.run.push((0, Encoded { bytes, len: 1 }));
        }
    }

    /// Puts the marks before this place in the order of their classes.
    fn end_run(&mut self) {
        let mut class = Some(0);
        while let Some(now) = class.filter(|_| !self.run.is_empty()) {
            for (of, it) in &self.run {
                if *of == 0 || *of == now {
                    self.done.extend_from_slice(&it.bytes[..it.len]);
                }
            }
            let classes = self.run.iter().map(|(class, _)| *class);
            class = classes.filter(|class| *class > now).min();
        }
        self.run.clear();
    }
}

/// Whether a strict file system allows this name in a casefolded directory.
#[must_use]
pub fn is_valid(name: &[u8]) -> bool {
    core::str::from_utf8(name).is_ok()
}

/// Whether Unicode 12.1 had assigned this code point, be it as a noncharacter or for private use.
fn is_assigned(character: char) -> bool {
    let code = u32::from(character);
    let begun = assigned::BOUNDARIES.partition_point(|boundary| *boundary <= code);
    begun % 2 == 1
}

/// Whether Unicode 12.1 ignores a character by default (Default_Ignorable_Code_Point). Code points that it only
/// set aside for this, unassigned, count as well.
fn is_ignored(character: char) -> bool {
    matches!(
        u32::from(character),
        0xAD | 0x34F
            | 0x61C
            | 0x115F..=0x1160
            | 0x17B4..=0x17B5
            | 0x180B..=0x180E
            | 0x200B..=0x200F
            | 0x202A..=0x202E
            | 0x2060..=0x206F
            | 0x3164
            | 0xFE00..=0xFE0F
            | 0xFEFF
            | 0xFFA0
            | 0xFFF0..=0xFFF8
            | 0x1_BCA0..=0x1_BCA3
            | 0x1_D173..=0x1_D17A
            | 0xE_0000..=0xE_0FFF
    )
}

/// A name that is looked for in a casefolded directory, folded once.
#[derive(Clone, Debug)]
pub struct FoldedName<'a> {
    name: &'a [u8],
    folded: Option<Vec<u8>>,
}

impl<'a> FoldedName<'a> {
    /// Prepares to look for `name`.
    #[must_use]
    pub fn new(name: &'a [u8]) -> FoldedName<'a> {
        FoldedName {
            name,
            folded: fold(name),
        }
    }

    /// Whether the directory's name `stored` is the wanted one.
    #[must_use]
    pub fn is(&self, stored: &[u8]) -> bool {
        stored == self.name || (self.folded.is_some() && self.folded == fold(stored))
    }

    /// The bytes that are hashed: the folded form where there is one.
    #[must_use]
    pub fn hashed_bytes(&self) -> &[u8] {
        self.folded.as_deref().unwrap_or(self.name)
    }

    /// The name's hash: as [`dirhash::hash`].
    #[must_use]
    pub fn hash(&self, version: HashVersion, seed: &[u32; 4]) -> Option<NameHash> {
        dirhash::hash(version, seed, self.hashed_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by debugfs 1.47.0: `dx_hash -c -e utf8 -h half_md4 <name>`. tests/casefold.rs asks it for many more.
    const HASHES: &[(&[u8], u32)] = &[
        ("Größe".as_bytes(), 0xA885_2E34),
        ("GRÖSSE".as_bytes(), 0xA885_2E34),
        ("straße".as_bytes(), 0x7E09_9ECC),
        ("STRASSE".as_bytes(), 0x7E09_9ECC),
        ("İstanbul".as_bytes(), 0x0C06_7BEC),
        ("Ǆungla".as_bytes(), 0x1490_F582),
        ("ﬀ".as_bytes(), 0x9782_5E88),
        ("ΌΣΟΣ".as_bytes(), 0x6867_55A8),
        ("όσος".as_bytes(), 0x6867_55A8),
        ("한글".as_bytes(), 0x865D_F74A),
        ("한".as_bytes(), 0x9139_4268),
        ("e\u{301}\u{323}".as_bytes(), 0xEA38_1864),
        ("e\u{323}\u{301}".as_bytes(), 0xEA38_1864),
        ("e\u{323}\u{34f}\u{301}".as_bytes(), 0xEA38_1864),
        ("ᾳ\u{301}".as_bytes(), 0x4BBB_105A),
        ("\u{345}\u{301}a".as_bytes(), 0x8F8F_EBDC),
        ("soft\u{ad}hyphen".as_bytes(), 0xD901_A56E),
        ("࢟".as_bytes(), 0x99B7_0E8A),
        ("\u{2065}Ab".as_bytes(), 0xEE5E_F564),
        ("𐐀".as_bytes(), 0x784A_CBB0),
        ("\u{1e9a1}x".as_bytes(), 0xC752_5B02),
        ("x\u{378}Y".as_bytes(), 0x6C7B_FAB0),
        ("ꞏᲐ".as_bytes(), 0x8778_0C62),
        ("ΩÅKK".as_bytes(), 0xA79E_D844),
        ("À\u{328}\u{345}".as_bytes(), 0xC428_475A),
        (b"\xc3\x91\xcc\x81\x96\xcc\xa3A", 0xA734_4E46),
        (b"\xa5A", 0x91AA_9046),
    ];

    #[test]
    fn folded_names_hash_as_debugfs_says() {
        for (name, major) in HASHES {
            let found = FoldedName::new(name).hash(HashVersion::HalfMd4, &[0; 4]);
            let shown = String::from_utf8_lossy(name);
            assert_eq!(found.map(|hash| hash.major), Some(*major), "{shown}");
        }
    }

    #[test]
    fn names_are_the_same_when_their_folded_forms_are() {
        let wanted = FoldedName::new("Größe".as_bytes());
        assert!(wanted.is("GRÖSSE".as_bytes()) && wanted.is("gro\u{308}sse".as_bytes()));
        assert!(!wanted.is(b"grosse"));
        // What is not UTF-8 is the same only as itself.
        let opaque = FoldedName::new(b"A\xff");
        assert!(opaque.is(b"A\xff") && !opaque.is(b"a\xff"));
        assert!(!is_valid(b"A\xff") && is_valid("\u{378}".as_bytes()));
    }

    #[test]
    fn a_form_of_more_than_4095_bytes_is_none() {
        let marks: String = (0x300..0x360).filter_map(char::from_u32).collect();
        let mut name = marks.into_bytes();
        name.insert(0, b'a');
        name.extend([0x80; 2000]);
        assert_eq!(fold(&name), None);
        assert_eq!(fold(&[0xB5; 255]), None);
    }
}
