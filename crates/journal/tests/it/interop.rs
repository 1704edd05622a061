//! Logs left dirty by power cuts, replayed by e2fsck and by the kernel, compared block by block with our own replay.

use device::BlockDevice;
use lanefs_journal::Options;
use simulate::{Cut, Cuts};
use std::process::Command;
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
    for (block_size, features) in [
        (1024, "64bit,metadata_csum"),
        (1024, "^64bit,^metadata_csum"),
        (4096, "64bit,^metadata_csum"),
    ] {
        let Some(image) = Image::make(block_size, features) else {
            return;
        };
        let bank = Bank::open(&image, Options::default(), None);
        bank.run(THREADS, 21, 80).unwrap();
        let (start, events) = bank.device.recording();
        let mut cuts = Cuts::new(start, events);
        let points: Vec<usize> = cuts.points().collect();
        let directory = tempfile::tempdir().unwrap();
        for (number, event) in points
            .into_iter()
            .enumerate()
            .filter(|(number, _)| number % 23 == 0)
        {
            let state = cuts.state(Cut { event, seed: 3 });
            let path = directory.path().join("image");
            std::fs::write(&path, state.bytes()).unwrap();
            let by_kernel = number % 46 == 0 && testkit::is_root();
            if by_kernel {
                match testkit::Mounted::with(&path, "loop") {
                    Ok(mounted) => drop(mounted),
                    Err(error) => panic!("cut after event {event}: the kernel refuses: {error}"),
                }
            } else {
                let output = Command::new("e2fsck")
                    .args(["-fy"])
                    .arg(&path)
                    .output()
                    .unwrap();
                assert!(
                    output.status.code().is_some_and(|code| code <= 1),
                    "{}",
                    String::from_utf8_lossy(&output.stdout)
                );
            }
            testkit::e2fsck(&path);
            let device: Arc<dyn BlockDevice> = Arc::new(state);
            replay(&device);
            let theirs = simulate::CowDevice::new(std::fs::read(&path).unwrap().into());
            assert!(
                cells(&image, &*device) == cells(&image, &theirs),
                "cut after event {event}, kernel: {by_kernel}"
            );
            check(&image, &theirs, &[0; THREADS]).unwrap();
        }
    }
}
