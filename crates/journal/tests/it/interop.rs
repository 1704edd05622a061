//! Logs left dirty by power cuts, replayed by e2fsck and by the kernel, compared block by block with our own replay.

use device::BlockDevice;
use lanefs_journal::Options;
use ondisk::jbd2::JournalFeatures;
use simulate::{Cut, Cuts};
use sync::Arc;

use crate::bank::{Bank, THREADS, check};
use crate::image::{Image, replay};

fn cells(image: &Image, device: &dyn BlockDevice) -> Vec<Vec<u8>> {
    let size = image.block_size;
    let read = |block: &ondisk::FsBlock| {
        let mut bytes = vec![0; size.bytes()];
        device.read_at(block.offset(size), &mut bytes).unwrap();
        bytes
    };
    image.cells.iter().map(read).collect()
}

#[test]
fn e2fsck_and_the_kernel_replay_what_a_cut_left_to_the_same_blocks() {
    use JournalFeatures as F;
    let v1 = F::COMPAT_CHECKSUM;
    for (block_size, features, kind, compat, incompat) in [
        (
            1024,
            "64bit,metadata_csum",
            "",
            0,
            F::INCOMPAT_CSUM_V3 | F::INCOMPAT_64BIT,
        ),
        (1024, "^64bit,^metadata_csum", "", 0, 0),
        (4096, "64bit,^metadata_csum", "", 0, F::INCOMPAT_64BIT),
        (1024, "^64bit,^metadata_csum", "v2", 0, F::INCOMPAT_CSUM_V2),
        (
            4096,
            "64bit,metadata_csum",
            "v2",
            0,
            F::INCOMPAT_CSUM_V2 | F::INCOMPAT_64BIT,
        ),
        (
            1024,
            "64bit,^metadata_csum",
            "async",
            v1,
            F::INCOMPAT_ASYNC_COMMIT | F::INCOMPAT_64BIT,
        ),
    ] {
        let Some(mut image) = Image::make(block_size, features) else {
            return;
        };
        if kind == "v2" {
            image = image.with_checksums_v2();
        }
        let options = Options {
            async_commit: kind == "async",
            ..image.options()
        };
        let bank = Bank::open(&image, options, None);
        bank.run(THREADS, 21, 80).unwrap();
        let found = image.journal_features(&*bank.device);
        assert_eq!(
            (found.compat, found.incompat),
            (compat, incompat | F::INCOMPAT_REVOKE)
        );
        let (start, events) = bank.device.recording();
        let cuts = Cuts::new(start, events);
        replay_by_others(&image, cuts);
    }
}

/// Some of the cuts' states, replayed by e2fsck or the kernel.
fn replay_by_others(image: &Image, mut cuts: Cuts) {
    let points: Vec<usize> = cuts.points().collect();
    let directory = tempfile::tempdir().unwrap();
    for (number, event) in points
        .into_iter()
        .enumerate()
        .filter(|(number, _)| number % 23 == 0)
    {
        let state = cuts.state(Cut { event, seed: 3 });
        let path = directory.path().join("image");
        testkit::write_image(&path, &state.bytes());
        let by_kernel = number % 46 == 0 && testkit::is_root();
        if by_kernel {
            match testkit::KernelMount::with(&path, "loop") {
                Ok(mounted) => drop(mounted),
                Err(error) => panic!("cut after event {event}: the kernel refuses: {error}"),
            }
        } else {
            let output = testkit::e2fsck_with(&["-fy"], &path);
            assert!(
                output.status.code().is_some_and(|code| code <= 1),
                "{}",
                String::from_utf8_lossy(&output.stdout)
            );
        }
        testkit::e2fsck(&path);
        let device: Arc<dyn BlockDevice> = Arc::new(state);
        replay(&device);
        let theirs = simulate::CowDevice::new(testkit::read_image(&path).into());
        assert!(
            cells(image, &*device) == cells(image, &theirs),
            "cut after event {event}, kernel: {by_kernel}"
        );
        check(image, &theirs, &[0; THREADS]).unwrap();
    }
}
