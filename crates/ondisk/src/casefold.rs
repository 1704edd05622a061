//! Names without case: how casefolded directories compare and hash names.
//!
//! The only encoding that exists on disk is UTF-8 under Unicode 12.1. A name's folded form is what the kernel's tables
//! make of it: full case folding, canonical decomposition, characters that are ignored by default left out, combining
//! marks in canonical order. Names of one directory are the same when their folded forms are.
//!
//! A name that is not UTF-8 has no folded form: it is the same only as itself, byte for byte, and hashes as it is.
//! (Surplus continuation bytes after a character are kept and are not an error here, as in the kernel.) File systems
//! with the strict flag refuse to create names that are not UTF-8, but find those that are there.
//!
//! A character that Unicode 12.1 had not assigned folds to itself, whatever later versions made of it. Folding and
//! decomposition of assigned characters never change (Unicode's stability policy), so newer tables give the same
//! result; the tests compare with e2fsprogs, whose tables are the kernel's.

#[cfg(feature = "casefold")]
mod assigned;
#[cfg(feature = "casefold")]
mod folding;

use crate::dirhash::{self, HashVersion, NameHash};

/// Whether this build can fold names of any characters. Without the feature `casefold` it folds only names in ASCII,
/// and names in casefolded directories can't be compared.
pub const IS_SUPPORTED: bool = cfg!(feature = "casefold");

/// The superblock's number for UTF-8 under Unicode 12.1.
pub const ENCODING_UTF8_12_1: u16 = 1;

/// The flag in the superblock's encoding flags under which names without a folded form may not be created.
pub const STRICT_FLAG: u16 = 1;

/// The folded form of a name, if it has one. May be empty, and longer than 255 bytes.
#[must_use]
pub fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    #[cfg(feature = "casefold")]
    return folding::fold(name);
    #[cfg(not(feature = "casefold"))]
    None
}

/// Whether a strict file system allows this name in a casefolded directory.
#[must_use]
pub fn is_valid(name: &[u8]) -> bool {
    core::str::from_utf8(name).is_ok()
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

#[cfg(all(test, feature = "casefold"))]
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
