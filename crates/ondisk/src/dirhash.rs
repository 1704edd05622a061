//! Hashes of names, by which hashed directories are ordered.
//!
//! The kernel's six historical functions (three algorithms, each reading a name's bytes as signed or as
//! unsigned) and SipHash-2-4, which directories that are both encrypted and casefolded use. A hash is a
//! pair: the index is ordered by the major word, whose lowest bit is kept free for the index's "continued"
//! mark; the minor word only orders entries within a leaf.

/// An algorithm of [`hash`], as the superblock and a hashed directory's root name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum HashVersion {
    /// The oldest function, on signed bytes.
    Legacy = 0,
    /// Half of MD4, on signed bytes: the usual one.
    HalfMd4 = 1,
    /// The Tiny Encryption Algorithm, on signed bytes.
    Tea = 2,
    /// [`HashVersion::Legacy`] on unsigned bytes.
    LegacyUnsigned = 3,
    /// [`HashVersion::HalfMd4`] on unsigned bytes.
    HalfMd4Unsigned = 4,
    /// [`HashVersion::Tea`] on unsigned bytes.
    TeaUnsigned = 5,
    /// SipHash keyed by the directory's encryption key.
    SipHash = 6,
}

impl HashVersion {
    /// The version of this number, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<HashVersion> {
        Some(match code {
            0 => HashVersion::Legacy,
            1 => HashVersion::HalfMd4,
            2 => HashVersion::Tea,
            3 => HashVersion::LegacyUnsigned,
            4 => HashVersion::HalfMd4Unsigned,
            5 => HashVersion::TeaUnsigned,
            6 => HashVersion::SipHash,
            _ => return None,
        })
    }

    /// The number of this version on disk.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The same algorithm on unsigned bytes. Directories name the signed one; the superblock's flags say
    /// which of the two is meant.
    #[must_use]
    pub fn unsigned(self) -> HashVersion {
        match self {
            HashVersion::Legacy => HashVersion::LegacyUnsigned,
            HashVersion::HalfMd4 => HashVersion::HalfMd4Unsigned,
            HashVersion::Tea => HashVersion::TeaUnsigned,
            other => other,
        }
    }

    /// The algorithm as a hashed directory's root names it: signed, whatever the superblock's flags say.
    #[must_use]
    pub fn as_stored(self) -> HashVersion {
        match self {
            HashVersion::LegacyUnsigned => HashVersion::Legacy,
            HashVersion::HalfMd4Unsigned => HashVersion::HalfMd4,
            HashVersion::TeaUnsigned => HashVersion::Tea,
            other => other,
        }
    }

    /// The name mke2fs and debugfs know this version by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            HashVersion::Legacy => "legacy",
            HashVersion::HalfMd4 => "half_md4",
            HashVersion::Tea => "tea",
            HashVersion::LegacyUnsigned => "legacy_unsigned",
            HashVersion::HalfMd4Unsigned => "half_md4_unsigned",
            HashVersion::TeaUnsigned => "tea_unsigned",
            HashVersion::SipHash => "siphash",
        }
    }
}

/// A name's place in a hashed directory; ordered first by the major word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct NameHash {
    /// The word the index is ordered by; even.
    pub major: u32,
    /// The word that orders names of one major word; zero for the legacy functions.
    pub minor: u32,
}

impl NameHash {
    /// The largest even word stands for "past the last entry" in the kernel's directory cursor, so no name may have
    /// this hash.
    const PAST_THE_END: u32 = 0xFFFF_FFFE;

    fn new(major: u32, minor: u32) -> NameHash {
        let major = match major & !1 {
            NameHash::PAST_THE_END => NameHash::PAST_THE_END - 2,
            even => even,
        };
        NameHash { major, minor }
    }
}

/// The hash of `name` under one of the unkeyed versions. `seed` is the superblock's; all zero means the
/// algorithm's own start value.
///
/// None for [`HashVersion::SipHash`], which needs a key: see [`siphash`].
#[must_use]
pub fn hash(version: HashVersion, seed: &[u32; 4], name: &[u8]) -> Option<NameHash> {
    let start = if *seed == [0; 4] { MD4_START } else { *seed };
    Some(match version {
        HashVersion::Legacy => NameHash::new(legacy(name, signed), 0),
        HashVersion::LegacyUnsigned => NameHash::new(legacy(name, unsigned), 0),
        HashVersion::HalfMd4 => half_md4(start, name, signed),
        HashVersion::HalfMd4Unsigned => half_md4(start, name, unsigned),
        HashVersion::Tea => tea(start, name, signed),
        HashVersion::TeaUnsigned => tea(start, name, unsigned),
        HashVersion::SipHash => return None,
    })
}

/// The four words every MD4 begins with (RFC 1320, section 3.3).
const MD4_START: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// A byte as C's `signed char` widened to 32 bits.
fn signed(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

/// A byte as C's `unsigned char` widened to 32 bits.
fn unsigned(byte: u8) -> u32 {
    u32::from(byte)
}

fn legacy(name: &[u8], widen: impl Fn(u8) -> u32) -> u32 {
    let (mut previous, mut last) = (0x37AB_E8F9_u32, 0x12A3_FE2D_u32);
    for &byte in name {
        let mixed = previous.wrapping_add(last ^ widen(byte).wrapping_mul(7_152_373));
        let next = if mixed >> 31 == 1 {
            mixed.wrapping_sub(0x7FFF_FFFF)
        } else {
            mixed
        };
        (previous, last) = (last, next);
    }
    last << 1
}

/// The next `N` message words of a name: four bytes a word, first byte highest. What is missing, whole words
/// and the upper part of the last one, is filled with the remaining length, repeated.
#[inline(always)]
fn words<const N: usize>(rest: &[u8], widen: impl Fn(u8) -> u32) -> [u32; N] {
    // A name has at most 255 bytes; a longer string (a casefolded name) only feeds its low bits, as in C.
    #[allow(clippy::cast_possible_truncation)]
    let len = rest.len() as u32;
    let half = len | (len << 8);
    let filler = half | (half << 16);
    let mut message = [filler; N];
    let mut chunks = rest.chunks_exact(4);
    for (word, bytes) in message.iter_mut().zip(&mut chunks) {
        *word = bytes
            .iter()
            .fold(0, |word, byte| widen(*byte).wrapping_add(word << 8));
    }
    if let Some(word) = message.get_mut(rest.len() / 4) {
        *word = chunks
            .remainder()
            .iter()
            .fold(filler, |word, byte| widen(*byte).wrapping_add(word << 8));
    }
    message
}

/// One of MD4's rounds over eight of its sixteen words: the function, its constant, the order of the words and the
/// four rotations. Inlined, so that all but the state and the message is known when it is compiled: a name is hashed
/// whenever it is looked up or listed.
#[inline(always)]
fn md4_round(
    state: [u32; 4],
    message: &[u32; 8],
    mix: impl Fn(u32, u32, u32) -> u32,
    constant: u32,
    order: [usize; 8],
    rotations: [u32; 4],
) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = state;
    for (step, word) in order.into_iter().enumerate() {
        let sum = a
            .wrapping_add(mix(b, c, d))
            .wrapping_add(message[word])
            .wrapping_add(constant);
        (a, b, c, d) = (d, sum.rotate_left(rotations[step % 4]), b, c);
    }
    [a, b, c, d]
}

/// MD4 with half of its steps, of RFC 1320's functions, constants and rotations.
#[inline(always)]
fn half_md4(start: [u32; 4], name: &[u8], widen: impl Fn(u8) -> u32) -> NameHash {
    let mut state = start;
    let mut rest = name;
    while !rest.is_empty() {
        let message = &words::<8>(rest, &widen);
        let choose = |x, y, z| z ^ (x & (y ^ z));
        let most = |x, y, z| (x & y) | (z & (x | y));
        let odd = |x, y, z| x ^ y ^ z;
        let mut next = state;
        next = md4_round(
            next,
            message,
            choose,
            0,
            [0, 1, 2, 3, 4, 5, 6, 7],
            [3, 7, 11, 19],
        );
        next = md4_round(
            next,
            message,
            most,
            0x5A82_7999,
            [1, 3, 5, 7, 0, 2, 4, 6],
            [3, 5, 9, 13],
        );
        next = md4_round(
            next,
            message,
            odd,
            0x6ED9_EBA1,
            [3, 7, 2, 6, 1, 5, 0, 4],
            [3, 9, 11, 15],
        );
        for (word, add) in state.iter_mut().zip(next) {
            *word = word.wrapping_add(add);
        }
        rest = rest.get(32..).unwrap_or_default();
    }
    NameHash::new(state[1], state[2])
}

fn tea(start: [u32; 4], name: &[u8], widen: impl Fn(u8) -> u32) -> NameHash {
    // The golden ratio's fraction, TEA's key schedule constant.
    const DELTA: u32 = 0x9E37_79B9;
    let [mut left, mut right, ..] = start;
    let mut rest = name;
    while !rest.is_empty() {
        let key = words::<4>(rest, &widen);
        let half_round = |value: u32, sum: u32, first: u32, second: u32| {
            (value << 4).wrapping_add(first)
                ^ value.wrapping_add(sum)
                ^ (value >> 5).wrapping_add(second)
        };
        let (mut y, mut z) = (left, right);
        let mut sum = 0_u32;
        for _ in 0..16 {
            sum = sum.wrapping_add(DELTA);
            y = y.wrapping_add(half_round(z, sum, key[0], key[1]));
            z = z.wrapping_add(half_round(y, sum, key[2], key[3]));
        }
        (left, right) = (left.wrapping_add(y), right.wrapping_add(z));
        rest = rest.get(16..).unwrap_or_default();
    }
    NameHash::new(left, right)
}

/// The hash of a casefolded name in an encrypted directory: SipHash-2-4 under the directory's 128-bit key.
#[must_use]
pub fn siphash(key: [u64; 2], name: &[u8]) -> NameHash {
    let wide = siphash_2_4(key, name);
    // The two halves of the 64 bits.
    #[allow(clippy::cast_possible_truncation)]
    NameHash::new((wide >> 32) as u32, wide as u32)
}

/// SipHash-2-4 as its authors define it (Aumasson and Bernstein, 2012).
fn siphash_2_4(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736F_6D65_7073_6575,
        key[1] ^ 0x646F_7261_6E64_6F6D,
        key[0] ^ 0x6C79_6765_6E65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut absorb = |word: u64, rounds: usize| {
        v[3] ^= word;
        for _ in 0..rounds {
            sip_round(&mut v);
        }
        v[0] ^= word;
        v
    };
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        absorb(u64::from_le_bytes(word), 2);
    }
    let mut last = [0; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    let mut v = absorb(u64::from_le_bytes(last) | ((bytes.len() as u64) << 56), 2);
    v[2] ^= 0xFF;
    for _ in 0..4 {
        sip_round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests;
