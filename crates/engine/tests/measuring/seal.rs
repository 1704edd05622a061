//! How long no operation can begin while an epoch is sealed, at each commit, with as many threads as cores and more:
//! where all of them sync, so that many wait when an epoch is sealed, and where one does while the others go on.

use std::time::Duration;

use device::{BlockDevice, MemoryDevice};
use lanefs_engine::{Ino, InodeFs, MountOptions};
use sync::Arc;

use crate::{clock, new};

/// Operations between two fsyncs of a thread.
const OPERATIONS: usize = 16;
const TIME: Duration = Duration::from_secs(5);

fn image() -> Option<Arc<MemoryDevice>> {
    if !testkit::have("mke2fs") {
        testkit::skip("needs mke2fs");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(512 << 20)
        .unwrap();
    let arguments = [
        "-q",
        "-F",
        "-t",
        "ext4",
        "-b",
        "4096",
        path.to_str().unwrap(),
    ];
    testkit::mke2fs(&arguments);
    let bytes = std::fs::read(&path).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    for (at, piece) in (0..).step_by(1 << 16).zip(bytes.chunks(1 << 16)) {
        if piece.iter().any(|byte| *byte != 0) {
            device.write_at(at, piece).unwrap();
        }
    }
    Some(Arc::new(device))
}

/// Creates, writes, renames and unlinks in a directory of the thread's own, and syncs a file now and then.
fn work(fs: &InodeFs, thread: usize, syncs: bool) {
    let name = format!("d{thread}");
    let directory = fs.mkdir(Ino::ROOT, name.as_bytes(), new()).unwrap();
    let start = sync::clock::now();
    let mut round = 0_u64;
    while sync::clock::now() - start < TIME {
        for operation in 0..OPERATIONS {
            let name = format!("f{}", operation % 8);
            match fs.create(directory, name.as_bytes(), new()) {
                Ok(ino) => {
                    fs.write(ino, 0, &[7; 6000]).unwrap();
                }
                Err(_) => fs.unlink(directory, name.as_bytes()).unwrap(),
            }
        }
        if syncs {
            fs.fsync(directory).unwrap();
        }
        round += 1;
    }
    assert!(round > 0);
}

#[test]
#[ignore = "measures: cargo xtask suites measure"]
fn seal_pauses() {
    let cores = sync::thread::available_parallelism();
    for (threads, all_sync) in [(1, true), (2, true), (2, false), (16, true), (16, false)] {
        let Some(device) = image() else { return };
        let fs = InodeFs::open_for_writing(device, &MountOptions::default(), clock).unwrap();
        sync::thread::workers(threads, |thread| work(&fs, thread, all_sync || thread == 0));
        let pauses = &fs.journal_statistics().unwrap().seal_pauses;
        eprintln!(
            "{threads:2} threads on {cores} cores, all sync: {all_sync}: {} seals; p50 {:?}, p99 {:?}, maximum {:?}",
            pauses.count(),
            pauses.quantile(0.5),
            pauses.quantile(0.99),
            pauses.most(),
        );
        let long = fs.long_handles();
        eprintln!(
            "   {} handles waited for more than 1 ms",
            long.iter().map(|(_, count)| count).sum::<u64>()
        );
        if threads <= cores {
            assert!(pauses.quantile(0.99) < Duration::from_micros(132));
        }
        fs.close().unwrap();
    }
}
