//! Images with random damage in their metadata: whatever is read must end, in bounded time, without a panic.
//!
//! Checksums are off in these images, so that damage reaches the code behind them. The seed of a round that fails
//! is printed by the panic's message.

use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use device::{BlockDevice, MemoryDevice};
use lanefs_engine::{Ino, InodeFs, MountOptions};
use testkit::KernelMount;

use crate::image::{Image, can_mount};
use crate::populate::pattern;

/// A small image with deep trees, attributes everywhere, links and inline data; and where its metadata lies.
struct Victim {
    bytes: Vec<u8>,
    places: Vec<usize>,
}

fn victim(arguments: &str, inline: bool) -> Option<Victim> {
    let image = Image::make(arguments, 4);
    {
        let mounted = KernelMount::with(image.path(), "loop").ok()?;
        let root = mounted.path();
        let file = std::fs::File::create(root.join("fragmented")).unwrap();
        for index in 0..400 {
            file.write_all_at(&pattern(index, 1024), index * 2048)
                .unwrap();
        }
        for index in 0..20 {
            let path = root.join(format!("f{index}"));
            std::fs::write(&path, pattern(index, 40 * index as usize)).unwrap();
            let value = pattern(index, 30 * index as usize);
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, "user.a", &value, flags).unwrap();
        }
        std::os::unix::fs::symlink("x".repeat(50), root.join("short")).unwrap();
        std::os::unix::fs::symlink("x".repeat(500), root.join("long")).unwrap();
        if inline {
            std::fs::create_dir(root.join("dir")).unwrap();
        }
    }
    let bytes = testkit::read_image(image.path());
    // Superblock, descriptors, the first inodes; then every block that looks like an extent, pointer or
    // attribute block.
    let mut places: Vec<usize> = (1024..4096).collect();
    let table = image.debugfs("imap <11>");
    let words: HashSet<&str> = table.split([' ', ',', '\n']).collect();
    assert!(!words.is_empty());
    let mut blocks: Vec<usize> = Vec::new();
    for (number, block) in bytes.chunks(1024).enumerate().skip(4) {
        let magic = block[..2] == [0x0a, 0xf3] || block[..4] == [0, 0, 2, 0xea];
        let words = block
            .chunks(4)
            .take(8)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        let pointers = words.clone().all(|word| (100..4096).contains(&word));
        let inodes = block
            .chunks(256)
            .any(|slot| slot[1] == 0x81 && slot[26] == 1);
        if magic || pointers || inodes {
            blocks.push(number);
        }
    }
    places.extend(
        blocks
            .iter()
            .flat_map(|number| number * 1024..(number + 1) * 1024),
    );
    Some(Victim { bytes, places })
}

/// Reads everything of every inode, within bounds. Returns how many runs and attributes there were.
fn read_all(fs: &InodeFs) -> usize {
    let mut seen = 0;
    let mut buf = vec![0; 20_000];
    let count = fs.geometry().inodes_count().min(200);
    for number in 1..=count {
        let Ok(inode) = fs.inode(Ino(number)) else {
            continue;
        };
        let size = inode.metadata().size;
        for offset in [0, 1000, size / 2, size.saturating_sub(5000), size] {
            let _ = inode.read(offset, &mut buf);
        }
        let _ = inode.read_link();
        seen += inode.xattrs().map_or(0, |all| all.len());
        let runs = inode.mappings().into_iter().flatten();
        let mut at = 0;
        for run in runs.map_while(Result::ok) {
            assert!(run.logical == at && run.len > 0, "inode {number}");
            at = run.end();
            seen += 1;
        }
    }
    let _ = fs.statfs();
    seen
}

fn damage_and_read(victim: &Victim, seed: u64) {
    let mut bytes = victim.bytes.clone();
    let mut random = testkit::Random::new(seed);
    let mut next = || (random.bits() >> 33) as usize;
    for _ in 0..1 + next() % 12 {
        let at = victim.places[next() % victim.places.len()];
        let interesting = [0, 1, 0x7f, 0x80, 0xff, next() as u8];
        bytes[at] = interesting[next() % interesting.len()];
        if next() % 4 == 0 {
            // A whole word of another one's value: pointers to elsewhere.
            let from = victim.places[next() % victim.places.len()] & !3;
            let word: [u8; 4] = bytes[from..from + 4].try_into().unwrap();
            bytes[at & !3..(at & !3) + 4].copy_from_slice(&word);
        }
    }
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&bytes));
    let begin = sync::clock::now();
    if let Ok(fs) = InodeFs::open(device, &MountOptions::default()) {
        read_all(&fs);
    }
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "seed {seed} is slow"
    );
}

#[test]
fn damaged_metadata_never_panics_or_hangs() {
    if !can_mount() {
        return;
    }
    let rounds: u64 = std::env::var("LANEFS_HOSTILE_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(150);
    for (arguments, inline) in [
        (
            "-t ext4 -b 1024 -O ^metadata_csum,^has_journal,inline_data,ea_inode -N 128",
            true,
        ),
        ("-t ext2 -b 1024 -N 128", false),
        (
            "-t ext4 -b 1024 -O ^metadata_csum,^has_journal,bigalloc,^resize_inode -C 4096 -N 128",
            false,
        ),
    ] {
        let Some(victim) = victim(arguments, inline) else {
            continue;
        };
        let whole: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&victim.bytes));
        let whole = InodeFs::open(whole, &MountOptions::default()).unwrap();
        assert!(read_all(&whole) > 800, "the tree is there");
        for seed in 0..rounds {
            let result = std::panic::catch_unwind(|| damage_and_read(&victim, seed));
            assert!(result.is_ok(), "{arguments}: seed {seed}");
        }
    }
}
