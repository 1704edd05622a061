//! Images copied while the kernel has them mounted: their newest metadata is in the journal only.

use std::path::Path;

use device::FileDevice;
use lanefs_engine::{Ino, InodeFs, MountOptions, ReplayPolicy};
use std::sync::Arc;
use testkit::KernelMount;

use crate::image::{Image, can_mount, in_memory};
use crate::oracle;
use crate::populate::{Abilities, populate};

fn open(path: &Path, journal: ReplayPolicy) -> InodeFs {
    let options = MountOptions {
        journal,
        ..MountOptions::default()
    };
    let device = Arc::new(FileDevice::open_read_only(path).unwrap());
    InodeFs::open(device, &options).unwrap()
}

#[test]
fn a_dirty_image_reads_as_after_the_kernels_replay_and_is_left_alone() {
    if !can_mount() {
        return;
    }
    for (arguments, block, extents) in [
        ("-t ext4 -b 4096", 4096, true),
        ("-t ext4 -b 1024 -O ^64bit,^metadata_csum", 1024, true),
        ("-t ext3 -b 4096", 4096, false),
    ] {
        let image = Image::make(arguments, 96);
        let directory = in_memory();
        let (ours, kernels) = (
            directory.path().join("ours"),
            directory.path().join("kernels"),
        );
        {
            let mounted = KernelMount::with(image.path(), "loop").unwrap();
            let can = Abilities {
                block,
                xattr: 700,
                fallocate: extents,
                large: true,
            };
            populate(&mounted.path(), can);
            testkit::run("sync", &["-f", mounted.path().to_str().unwrap()]);
            // A directory that only the journal knows.
            let late = mounted.path().join("late");
            std::fs::create_dir(&late).unwrap();
            let file = std::fs::File::create(late.join("file")).unwrap();
            std::io::Write::write_all(&mut &file, &[7; 10_000]).unwrap();
            file.sync_all().unwrap();
            testkit::run(
                "cp",
                &[
                    "--sparse=always",
                    image.path().to_str().unwrap(),
                    ours.to_str().unwrap(),
                ],
            );
        }
        testkit::run(
            "cp",
            &[
                "--sparse=always",
                ours.to_str().unwrap(),
                kernels.to_str().unwrap(),
            ],
        );
        let before = testkit::read_image(&ours);
        let fs = open(&ours, ReplayPolicy::Replay);
        let report = fs.recovery_report().expect("the journal needed replay");
        assert!(report.transactions > 0 && report.blocks > 0, "{report:?}");
        // noatime: comparing must not change what is compared.
        let mounted = KernelMount::with(&kernels, "loop,noatime").unwrap();
        let inodes = oracle::compare_with_mount(&fs, &mounted.path());
        assert!(inodes > 45, "{inodes}");
        assert!(testkit::read_image(&ours) == before, "the image changed");
        // Without the journal even the root directory is an older one.
        let stale = open(&ours, ReplayPolicy::Ignore);
        assert!(stale.recovery_report().is_none());
        let stale = stale.metadata(Ino::ROOT).unwrap();
        assert_ne!(stale, fs.metadata(Ino::ROOT).unwrap());
    }
}
