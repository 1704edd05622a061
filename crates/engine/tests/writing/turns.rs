//! The kernel and lanefs change the same file in turns, round after round, each on what the other left.

use std::os::unix::fs::FileExt;

use device::BlockDevice;
use lanefs_engine::Allocate;
use model::{FileBytes, Random};
use rustix::fs::FallocateFlags;
use simulate::CowDevice;
use sync::Arc;

use crate::files::{self, Change, apply, change, contents, first_difference, judge, with_files};
use crate::image::open;

/// Does a change by system calls; what the model refuses is left out.
fn by_kernel(file: &std::fs::File, size: u64, change: &Change) -> bool {
    match change {
        Change::Write(offset, bytes) => file.write_all_at(bytes, *offset).unwrap(),
        Change::Truncate(size) => file.set_len(*size).unwrap(),
        Change::Allocate(how, offset, len) => {
            let keep = FallocateFlags::KEEP_SIZE;
            let flags = match how {
                Allocate::Grow => FallocateFlags::empty(),
                Allocate::KeepSize => keep,
                Allocate::Punch => keep | FallocateFlags::PUNCH_HOLE,
                Allocate::Zero => FallocateFlags::ZERO_RANGE,
                Allocate::ZeroKeepSize => keep | FallocateFlags::ZERO_RANGE,
                Allocate::Collapse if offset + len >= size => return false,
                Allocate::Insert if *offset >= size => return false,
                Allocate::Collapse => FallocateFlags::COLLAPSE_RANGE,
                Allocate::Insert => FallocateFlags::INSERT_RANGE,
            };
            rustix::fs::fallocate(file, flags, *offset, *len).unwrap();
        }
    }
    true
}

#[test]
fn the_kernel_and_lanefs_change_a_file_in_turns() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    for (options, with_extents) in [
        (&["-b", "1024"][..], true),
        (&["-b", "4096", "-O", "^metadata_csum,^64bit"], true),
        (
            &["-b", "1024", "-O", "^extents,^64bit,^metadata_csum"],
            false,
        ),
    ] {
        let Some(mut image) = with_files(options, 16 << 20, &["one"]) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut content = FileBytes::default();
        let mut random = Random::new(5);
        for round in 0..6 {
            testkit::write_image(&path, &image);
            {
                let mounted = testkit::KernelMount::with(&path, "loop").unwrap();
                let file = mounted.path().join("one");
                let file = std::fs::File::options()
                    .read(true)
                    .write(true)
                    .open(file)
                    .unwrap();
                for _ in 0..40 {
                    let next = files::random(&mut random, content.size(), 400_000, with_extents);
                    if by_kernel(&file, content.size(), &next) {
                        apply(&mut content, &next);
                    }
                }
            }
            let device = Arc::new(CowDevice::new(testkit::read_image(&path).into()));
            let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
            let ino = fs.resolve(b"one", true).unwrap();
            let difference = first_difference(&contents(&fs, ino), &content.bytes());
            assert_eq!(
                difference, None,
                "{options:?} after the kernel's round {round}"
            );
            for _ in 0..40 {
                let next = files::random(&mut random, content.size(), 400_000, with_extents);
                change(&fs, ino, &mut content, &next);
            }
            let difference = first_difference(&contents(&fs, ino), &content.bytes());
            assert_eq!(difference, None, "{options:?} after round {round}");
            fs.close().unwrap();
            judge(&device, &[("one", content.bytes())]);
            image = device.bytes();
        }
    }
}
