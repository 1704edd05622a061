//! Archives with errors sown into them: a tree or an error comes out, never a panic, and soon.

use std::time::{Duration, Instant};

use lanefs_image::source::bytes;
use testkit::Random;

use crate::support::*;

/// A number below `limit`; 0 if that is 0.
fn below(random: &mut Random, limit: usize) -> usize {
    random.index(limit.max(1))
}

/// Changes a few bytes, or moves blocks about; then makes headers' checksums right again, mostly.
fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=below(random, 4) {
        let blocks = bytes.len() / 512;
        let block = below(random, blocks) * 512;
        match below(random, 8) {
            0 => bytes.truncate(below(random, bytes.len())),
            1 => {
                let copy = bytes[block..(block + 512).min(bytes.len())].to_vec();
                let to = below(random, blocks) * 512;
                bytes.splice(to..to, copy);
            }
            2 => drop(bytes.drain(block..(block + 512).min(bytes.len()))),
            // Fields of headers: sizes, types, numbers, sparse maps.
            3..=5 => {
                let fields = [124, 135, 156, 100, 345, 386, 398, 482, 483, 157, 0, 257];
                let at = block + fields[below(random, fields.len())] + below(random, 4);
                let digits = [
                    b'0', b'7', 0x80, 0xff, 0, b'x', b'g', b'L', b'K', b'S', b'1', b'5',
                ];
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = digits[below(random, digits.len())];
                }
            }
            _ => {
                let at = below(random, bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = (random.bits() & 0xff) as u8;
                }
            }
        }
    }
    if below(random, 8) > 0 {
        for header in bytes.chunks_exact_mut(512) {
            if header[257..262] == *b"ustar" {
                header[148..156].fill(b' ');
                let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
                header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            }
        }
    }
    bytes
}

/// How often each seed is changed: more with HOSTILE_ROUNDS.
fn rounds() -> usize {
    std::env::var("HOSTILE_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(300)
}

fn hurt(seeds: &[Vec<u8>], read: impl Fn(&[u8])) {
    let mut random = Random::new(1);
    for seed in seeds {
        for _ in 0..rounds() {
            let bytes = mutate(seed, &mut random);
            let begun = Instant::now();
            read(&bytes);
            assert!(begun.elapsed() < Duration::from_secs(10));
        }
    }
}

#[test]
fn tar_archives_with_errors_give_a_tree_or_an_error() {
    if !can_run(&["tar", "setfattr", "setfacl", "gzip", "zstd", "xz"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    sh(
        directory.path(),
        "mkdir -p t/d; echo x > t/d/f; ln t/d/f t/h; ln -s d/f t/l; mknod t/c c 1 3; mkfifo t/p
         setfattr -n user.a -v b t/d/f; setfacl -m u:5:r t/d/f
         truncate -s 1M t/s; printf a | dd of=t/s bs=1 seek=500000 conv=notrunc status=none
         touch t/$(printf 'n%.0s' $(seq 180)); ln -s $(printf 't%.0s' $(seq 180)) t/k
         x='--xattrs --acls --numeric-owner'
         tar -cf 1 --format=pax $x --sparse t; tar -cf 2 --format=gnu --sparse t; tar -cf 3 --format=oldgnu --sparse t
         tar -cf 4 --format=pax $x --sparse --sparse-version=0.0 t
         tar -cf 5 --format=pax --sparse --sparse-version=0.1 t
         tar -cf 6 --format=v7 t/d t/h t/l; gzip -c 1 > 7; zstd -qc 1 > 8; xz -0c 1 > 9",
    );
    let seeds: Vec<Vec<u8>> = (1..=9)
        .map(|n| std::fs::read(directory.path().join(n.to_string())).unwrap())
        .collect();
    for seed in &seeds {
        bytes::tar(seed).unwrap();
    }
    hurt(&seeds, |bytes| drop(bytes::tar(bytes)));
}

#[test]
fn archives_of_images_with_errors_give_a_tree_or_an_error() {
    let Some(directory) = crate::oci::image() else {
        return;
    };
    // Small ones: without the big layer.
    let seeds: Vec<Vec<u8>> = ["layout.tar", "saved.tar"]
        .map(|name| std::fs::read(directory.path().join(name)).unwrap())
        .into();
    for seed in &seeds {
        bytes::image(seed).unwrap();
    }
    hurt(&seeds, |bytes| drop(bytes::image(bytes)));
}

#[test]
fn numbers_and_names_beyond_all_bounds_are_refused() {
    let mut header = [0_u8; 512];
    header[..4].copy_from_slice(b"file");
    header[100..107].copy_from_slice(b"0000644");
    header[257..265].copy_from_slice(b"ustar  \0");
    let with = |kind: u8, size: &[u8], rest: &[u8]| {
        let mut block = header;
        block[156] = kind;
        block[124..124 + size.len()].copy_from_slice(size);
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        [&block[..], rest].concat()
    };
    let huge = b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff";
    let negative = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
    for (bytes, part) in [
        (with(b'0', huge, b""), "truncated"),
        (with(b'0', negative, b""), "size is not a number"),
        (with(b'L', huge, b""), "extension header"),
        (with(b'x', b"77777777777", b""), "extension header"),
        (
            with(b'g', b"00000200000", &[b'1'; 65536 + 512]),
            "PAX record",
        ),
        (with(b'?', b"0", b""), "unknown one"),
        (with(b'M', b"0", b""), "several volumes"),
        (with(b'1', b"0", &[0; 1024]), "hard link to a directory"),
    ] {
        let error = bytes::tar(&bytes).err().expect(part);
        let message = error.to_string();
        assert!(message.contains(part), "{part}: {message}");
    }
    let bomb = format!("/d c 666 0 0 1 0 0 0 {}", u32::MAX);
    assert!(bytes::ownership_table(&bomb).is_err());
    assert!(bytes::file_contexts("/(((((a{1000}){1000}){1000}){1000}){1000}) u:r:t").is_err());
}
