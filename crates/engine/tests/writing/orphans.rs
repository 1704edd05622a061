//! Changes that take several steps: cut between them, and finished by the next mount.

use std::io::Write;

use device::BlockDevice;
use lanefs_engine::{Allocate, Error, Ino, InodeFs, MountOptions};
use simulate::CowDevice;
use sync::Arc;

use crate::files::{contents, first_difference, judge, opened, with_files};
use crate::image::{clock, make, open, record, sweep};

/// Pieces of a file; each is an extent.
const PIECES: u64 = 1400;

fn byte(piece: u64) -> u8 {
    1 + (piece % 250) as u8
}

/// An image with a file whose every second block of 1 KiB is data.
pub fn fragmented(options: &[&str]) -> Option<(Vec<u8>, Vec<u8>)> {
    let image = with_files(options, 8 << 20, &["one"])?;
    let (device, fs) = opened(&image);
    let ino = fs.resolve(b"one", true).unwrap();
    let mut expected = vec![0; PIECES as usize * 2048];
    for piece in 0..PIECES {
        let at = piece as usize * 2048;
        expected[at..at + 1024].fill(byte(piece));
        assert_eq!(
            fs.write(ino, piece * 2048, &[byte(piece); 1024]).unwrap(),
            1024
        );
    }
    // The last block's second half is a hole, and the file ends with the data.
    expected.truncate(expected.len() - 1024);
    fs.close().unwrap();
    Some((device.bytes(), expected))
}

fn with_orphan_places() -> [&'static [&'static str]; 3] {
    [
        &["-b", "1024", "-O", "orphan_file"],
        &["-b", "1024", "-O", "^orphan_file"],
        &[
            "-b",
            "1024",
            "-O",
            "^orphan_file,^extents,^64bit,^metadata_csum",
        ],
    ]
}

#[test]
fn a_truncation_of_many_steps_is_done_or_not_begun_after_any_cut() {
    for options in with_orphan_places() {
        let Some((image, expected)) = fragmented(options) else {
            return;
        };
        let cuts = record(&image, |device, fs| {
            let ino = fs.resolve(b"one", true).unwrap();
            fs.truncate(ino, 100_100).unwrap();
            fs.sync().unwrap();
            device.mark(1);
            fs.truncate(ino, 5).unwrap();
            fs.close().unwrap();
            device.mark(2);
        });
        let mut found_sizes = Vec::new();
        sweep(cuts, 2, |cut, mark, fs| {
            let found = contents(fs, fs.resolve(b"one", true).unwrap());
            let allowed = match mark {
                None => [expected.len(), 100_100, 5],
                Some(1) => [100_100, 100_100, 5],
                _ => [5, 5, 5],
            };
            assert!(
                allowed.contains(&found.len()),
                "{cut}: {} bytes",
                found.len()
            );
            found_sizes.push(found.len());
            // The zeros of a new last block may be there before the new size.
            let differs = found
                .iter()
                .zip(&expected)
                .position(|(a, b)| a != b && *a != 0);
            assert_eq!(differs, None, "{cut}");
        });
        assert!(found_sizes.contains(&expected.len()) && found_sizes.contains(&100_100));
    }
}

#[test]
fn a_hole_of_many_steps_is_punched_from_its_start() {
    let Some((image, expected)) = fragmented(&["-b", "1024"]) else {
        return;
    };
    let cuts = record(&image, |_, fs| {
        let ino = fs.resolve(b"one", true).unwrap();
        fs.allocate(ino, Allocate::Punch, 0, PIECES * 1792).unwrap();
        fs.close().unwrap();
    });
    let mut punched = std::collections::BTreeSet::new();
    sweep(cuts, 1, |cut, _, fs| {
        let found = contents(fs, fs.resolve(b"one", true).unwrap());
        assert_eq!(found.len(), expected.len(), "{cut}");
        let kept = found.iter().position(|at| *at != 0).unwrap();
        assert_eq!(
            first_difference(&found[kept..], &expected[kept..]),
            None,
            "{cut}"
        );
        punched.insert(kept);
    });
    assert!(punched.len() > 1, "{punched:?}");
}

/// A file without names that someone holds is an orphan for as long, whatever else made it one.
#[test]
fn a_held_file_without_names_is_cut_and_stays_an_orphan() {
    for options in with_orphan_places() {
        let Some((image, _)) = fragmented(options) else {
            return;
        };
        let (device, fs) = opened(&image);
        let free = fs.statfs().unwrap();
        let ino = fs.resolve(b"one", true).unwrap();
        fs.hold(ino).unwrap();
        fs.unlink(Ino::ROOT, b"one").unwrap();
        fs.truncate(ino, 2048 + 10).unwrap();
        assert_eq!(contents(&fs, ino)[..1024], [byte(0); 1024]);
        fs.sync().unwrap();
        // Nobody closes it: as after a crash.
        drop(fs);
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        assert!(matches!(fs.metadata(ino), Err(Error::NotFound)));
        fs.close().unwrap();
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let now = fs.statfs().unwrap();
        assert!(now.free >= free.free + PIECES && now.free_files == free.free_files + 1);
        fs.close().unwrap();
        judge(&device, &[]);
    }
}

/// Files that the kernel deleted while they were open, with attributes in blocks of their own and shared.
#[test]
fn what_the_kernel_left_among_the_orphans_is_deleted() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let more: [&[&str]; 3] = [
        &["-b", "1024", "-O", "orphan_file,^metadata_csum"],
        &["-b", "4096", "-O", "orphan_file"],
        &["-b", "4096", "-O", "orphan_file,^metadata_csum"],
    ];
    for options in with_orphan_places().into_iter().chain(more) {
        let Some(image) = make(options, 16 << 20) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &image);
        let dirty = {
            let mounted = testkit::KernelMount::with(&path, "loop").unwrap();
            let root = mounted.path();
            let mut held = Vec::new();
            for index in 0..6_u8 {
                let name = root.join(format!("file{index}"));
                let mut file = std::fs::File::create(&name).unwrap();
                file.write_all(&vec![index; 300_000 * usize::from(index)])
                    .unwrap();
                let value = [b'x'; 600];
                rustix::fs::fsetxattr(&file, "user.long", &value, rustix::fs::XattrFlags::empty())
                    .unwrap();
                if index > 0 {
                    std::fs::remove_file(&name).unwrap();
                }
                held.push(file);
            }
            held[0].sync_all().unwrap();
            rustix::fs::syncfs(&held[0]).unwrap();
            testkit::read_mounted_image(&path)
        };
        let device = Arc::new(CowDevice::new(dirty.as_slice().into()));
        let fs: InodeFs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        fs.resolve(b"file0", true).unwrap();
        fs.close().unwrap();
        judge(&device, &[("file0", Vec::new())]);
    }
}

/// Little-endian, at this byte.
fn word(image: &[u8], at: usize) -> usize {
    // The slice has four bytes.
    u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize
}

#[test]
fn a_list_of_more_orphans_than_memory_may_hold_is_refused_and_left_to_e2fsck() {
    let features = "^metadata_csum,^orphan_file,^64bit,^uninit_bg,^resize_inode,^has_journal";
    let words = ["-b", "4096", "-I", "128", "-N", "280000", "-O", features];
    let Some(mut image) = make(&words, 128 << 20) else {
        return;
    };
    let (count, per_group) = (word(&image, 1024), word(&image, 1024 + 40));
    assert!(count > 1 << 18);
    for ino in 12..=count {
        let group = (ino - 1) / per_group;
        let table = word(&image, 4096 + group * 32 + 8) * 4096;
        let inode = table + (ino - 1) % per_group * 128;
        let next = if ino < count { ino as u32 + 1 } else { 0 };
        // i_mode: a regular file; i_dtime: the next orphan.
        image[inode..inode + 2].copy_from_slice(&0o100_644_u16.to_le_bytes());
        image[inode + 20..inode + 24].copy_from_slice(&next.to_le_bytes());
    }
    // s_last_orphan.
    image[1024 + 0xE8..1024 + 0xEC].copy_from_slice(&12_u32.to_le_bytes());
    let device = Arc::new(CowDevice::new(image.into())) as Arc<dyn BlockDevice>;
    let refused = InodeFs::open_for_writing(device, &MountOptions::default(), clock);
    let told = refused.map_or_else(|error| error.to_string(), |_| "opened".into());
    assert!(told.contains("more orphans are on the list"), "{told}");
}
