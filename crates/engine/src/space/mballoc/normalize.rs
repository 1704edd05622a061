//! How much a growing file is given at once: a table by the size it will have, as in Linux, so that a file that grows
//! in small steps lies in few pieces. Pure numbers: no lock, nothing on disk.
//!
//! What is asked for is always in the answer. Up to 1 MiB the answer reaches from the file's start to the next power
//! of two; beyond, it is the chunk of 2, 4 or 8 MiB that holds the request's first block. It ends where the hole does,
//! and shrinks with what is free, so that a small or nearly full file system keeps nothing back that is missed.

use std::ops::Range;

/// The smallest size that a file is given, in bytes.
const SMALLEST: u64 = 16 << 10;
/// Up to this size, a file is given the next power of two.
const DOUBLED: u64 = 1 << 20;
/// Chunks of larger files: up to which size they are used, and how large they are, in bytes.
const CHUNKS: [(u64, u64); 2] = [(4 << 20, 2 << 20), (8 << 20, 4 << 20)];
/// The largest chunk, in bytes; a larger request is given what it asks for.
const LARGEST: u64 = 8 << 20;
/// No chunk has more blocks.
const CHUNK_BLOCKS: u64 = 2048;
/// All that one file is given beyond its request is at most this part of what is free.
const FREE_PART: u64 = 64;
/// And at most this part of a group.
const GROUP_PART: u64 = 4;

/// A request for blocks of a file, and what bounds the answer. All but `block_bits` in blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormalRequest {
    /// The power of two that a block's size is.
    pub(crate) block_bits: u32,
    /// The part of the hole that is asked for; not empty.
    pub(crate) logical: u64,
    pub(crate) len: u64,
    /// Where the file ends, as its size says now.
    pub(crate) file_end: u64,
    /// The hole around the request: nothing is mapped or kept for the file within.
    pub(crate) hole: (u64, u64),
    /// Blocks that are free and that everyone may have: a hint.
    pub(crate) free: u64,
    /// Blocks of a group.
    pub(crate) group: u64,
}

/// The logical blocks to look for, the request among them.
pub(crate) fn normalize(request: &NormalRequest) -> Range<u64> {
    let asked = request.logical..request.logical + request.len;
    let bits = request.block_bits;
    let bytes = asked.end.max(request.file_end) << bits;
    let chunk = |bytes: u64| {
        let blocks = (bytes >> bits).clamp(1, CHUNK_BLOCKS);
        let start = asked.start - asked.start % blocks;
        start..start + blocks
    };
    let wanted = match bytes {
        0..=DOUBLED => 0..(bytes.next_power_of_two().max(SMALLEST) >> bits).max(1),
        _ if request.len << bits > LARGEST => return asked,
        bytes => {
            let known = CHUNKS.iter().find(|(most, _)| bytes <= *most);
            chunk(known.map_or(LARGEST, |(_, chunk)| *chunk))
        }
    };
    let (left, right) = request.hole;
    let start = wanted.start.max(left).min(asked.start);
    let end = wanted.end.min(right).max(asked.end);
    bound(request, start..end)
}

/// What there may be of a normalised request: the request first, then what is behind it, then what is before it.
fn bound(request: &NormalRequest, wanted: Range<u64>) -> Range<u64> {
    let asked_end = request.logical + request.len;
    let most = (request.free / FREE_PART).min(request.group / GROUP_PART);
    let mut spare = most.saturating_sub(request.len);
    let behind = (wanted.end - asked_end).min(spare);
    spare -= behind;
    let before = (request.logical - wanted.start).min(spare);
    request.logical - before..asked_end + behind
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4 KiB blocks, an empty file, room for everything.
    const PLAIN: NormalRequest = NormalRequest {
        block_bits: 12,
        logical: 0,
        len: 1,
        file_end: 0,
        hole: (0, 1 << 32),
        free: 1 << 30,
        group: 32768,
    };

    fn append(at: u64, len: u64) -> Range<u64> {
        normalize(&NormalRequest {
            logical: at,
            len,
            file_end: at,
            hole: (at, 1 << 32),
            ..PLAIN
        })
    }

    #[test]
    fn a_growing_file_is_given_the_next_power_of_two_then_aligned_chunks() {
        let mebibyte = 256;
        for (at, len, end) in [
            (0, 1, 4),
            (0, 4, 4),
            (4, 1, 8),
            (8, 1, 16),
            (15, 2, 32),
            (100, 1, 128),
            (128, 1, mebibyte),
            // From 1 to 4 MiB chunks of 2.
            (mebibyte, 1, 2 * mebibyte),
            (2 * mebibyte, 1, 4 * mebibyte),
            // Up to 8 MiB chunks of 4, then of 8.
            (4 * mebibyte, 1, 8 * mebibyte),
            (8 * mebibyte, 1, 16 * mebibyte),
            (17 * mebibyte, 1, 24 * mebibyte),
        ] {
            assert_eq!(append(at, len), at..end, "{len} at {at}");
        }
    }

    #[test]
    fn a_large_request_is_given_what_it_asks_for() {
        assert_eq!(append(0, 3000), 0..3000);
        assert_eq!(append(5000, 2049), 5000..7049);
        // One that crosses the end of its chunk, too.
        assert_eq!(append(510, 10), 510..520);
    }

    #[test]
    fn a_write_into_a_hole_is_given_what_is_around_it_up_to_its_neighbours() {
        let inside = NormalRequest {
            logical: 1000,
            file_end: 100_000,
            ..PLAIN
        };
        assert_eq!(normalize(&inside), 0..2048);
        let hole = (990, 1010);
        assert_eq!(normalize(&NormalRequest { hole, ..inside }), 990..1010);
        let hole = (1000, 1001);
        assert_eq!(normalize(&NormalRequest { hole, ..inside }), 1000..1001);
    }

    #[test]
    fn the_less_is_free_the_less_is_kept_and_at_last_nothing() {
        let of = |free| {
            normalize(&NormalRequest {
                logical: 1000,
                file_end: 100_000,
                free,
                ..PLAIN
            })
        };
        // First what is before the request goes, then what is behind it.
        assert_eq!(of(64 * 1200), 848..2048);
        assert_eq!(of(64 * 100), 1000..1100);
        assert_eq!(of(64 * 2), 1000..1002);
        assert_eq!(of(127), 1000..1001);
        assert_eq!(of(0), 1000..1001);
    }

    #[test]
    fn small_blocks_and_small_groups_bound_it_too() {
        let end = |block_bits, group| {
            let request = NormalRequest {
                block_bits,
                logical: 1 << 20,
                file_end: 1 << 20,
                hole: (1 << 20, 1 << 32),
                group,
                ..PLAIN
            };
            normalize(&request).end - (1 << 20)
        };
        assert_eq!((end(10, 8192), end(11, 16384)), (2048, 2048));
        assert_eq!((end(12, 32768), end(16, 65528)), (2048, 128));
        assert_eq!((end(12, 256), end(12, 4)), (64, 1));
    }

    #[test]
    fn whatever_is_asked_for_is_in_the_answer() {
        let mut random = testkit::Random::new(1);
        let mut noise = |most: u64| random.below(most);
        for _ in 0..20_000 {
            let scale = 1 << noise(20);
            let (logical, len) = (noise(scale), 1 + noise(scale));
            let left = logical - noise(logical + 1);
            let free = noise(24);
            let request = NormalRequest {
                block_bits: 10 + noise(7) as u32,
                logical,
                len,
                file_end: noise(2 * scale),
                hole: (left, logical + len + noise(scale)),
                free: noise(1 << free),
                group: 1 << noise(17),
            };
            let answer = normalize(&request);
            assert!(
                answer.start <= logical && answer.end >= logical + len,
                "{request:?}"
            );
            assert!(
                answer.start >= left && answer.end <= request.hole.1,
                "{request:?}"
            );
            let most = (request.free / 64).max(len);
            assert!(answer.end - answer.start <= most, "{request:?}");
        }
    }
}
