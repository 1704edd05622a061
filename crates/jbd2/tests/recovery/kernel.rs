//! Dirty images as the running kernel leaves them: the file behind a loop mount, copied while it is mounted.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use lanefs_jbd2::recovery::{self, JournalState};
use testkit::{KernelMount, LoopDevice};

use crate::bench::{
    Bench, assert_same_blocks, can_run, e2fsck_journal_only, journal_blocks, open, open_device,
    overlay,
};

/// Work that leaves several transactions in the journal, some blocks revoked, and files whose contents look like
/// journal blocks. Nothing is written home on purpose: only fsync is used.
pub fn work(root: &Path, rounds: usize) {
    let keep = root.join("keep");
    fs::create_dir(&keep).unwrap();
    for round in 0..rounds {
        let directory = root.join(format!("round{round}"));
        fs::create_dir(&directory).unwrap();
        for number in 0..60 {
            let name = format!("a file with a long enough name {number}");
            let mut file = File::create(directory.join(name)).unwrap();
            let magic = 0xC03B_3998_u32.to_be_bytes();
            file.write_all(&magic.repeat(1 + 300 * (number % 5)))
                .unwrap();
        }
        let last = File::create(keep.join(format!("{round}"))).unwrap();
        last.set_len(round as u64 * 1000).unwrap();
        last.sync_all().unwrap();
        if round % 3 == 2 {
            fs::remove_dir_all(directory).unwrap();
            last.sync_all().unwrap();
            fs::write(root.join(format!("after{round}")), vec![7; 30_000]).unwrap();
            File::open(&keep).unwrap().sync_all().unwrap();
        }
    }
    let last = File::create(keep.join("last")).unwrap();
    last.sync_all().unwrap();
}

/// Makes an image, mounts it, works on it, and copies it as it is then.
pub fn dirty(bench: &Bench, options: &[&str], mount: &str, rounds: usize) -> PathBuf {
    let image = bench.mke2fs("live.img", 48, options);
    let mounted = KernelMount::with(&image, &format!("loop,{mount}")).unwrap();
    work(&mounted.path(), rounds);
    bench.copy(&image, "dirty.img")
}

/// Compares our view of a dirty image, and our replay onto a copy, with what e2fsck and the kernel make of copies.
fn assert_replayed_as_others_do(bench: &Bench, dirty: &Path) -> recovery::ReplayReport {
    let before = fs::read(dirty).unwrap();
    let by_e2fsck = bench.copy(dirty, "e2fsck.img");
    e2fsck_journal_only(&by_e2fsck, None);
    let by_kernel = bench.copy(dirty, "kernel.img");
    // Not `-o loop,ro`: that makes the loop device read-only, and the kernel would not replay.
    let kernel_loop = LoopDevice::over(&by_kernel, &[]).unwrap();
    drop(KernelMount::with(kernel_loop.path(), "ro").unwrap());
    drop(kernel_loop);
    let by_us = bench.copy(dirty, "ours.img");
    let ours = open(&by_us);
    let home = recovery::replay_to_device(&ours.device, &ours.sb, &ours.geometry, None).unwrap();

    let (view, report) = overlay(dirty, None).unwrap();
    println!("{report:?}");
    assert_eq!(report, home);
    assert_eq!(report.journal, JournalState::Replayed);
    assert!(report.transactions > 2 && report.blocks > 10, "{report:?}");
    assert_eq!(report.bad_transaction, None);
    let journal = journal_blocks(&by_e2fsck);
    assert!(journal.len() >= 1000, "{journal:?}");
    for theirs in [&by_e2fsck, &by_kernel] {
        let theirs = open(theirs);
        let compared = assert_same_blocks(&*view, &*theirs.device, &theirs.geometry, &journal);
        assert!(compared > 5000);
        assert_same_blocks(&*ours.device, &*theirs.device, &theirs.geometry, &journal);
    }
    drop((ours, view));
    assert!(fs::read(dirty).unwrap() == before, "the image was changed");
    // Sums in the superblock are as the kernel left them, which counts them anew when it mounts.
    let judged = testkit::e2fsck_with(&["-fn"], &by_us);
    assert!(judged.status.success(), "{judged:?}");
    // The kernel would refuse a read-only loop device that needs recovery.
    drop(KernelMount::read_only(&by_us).unwrap());
    let (_, again) = overlay(&by_us, None).unwrap();
    assert_eq!(again.journal, JournalState::Clean);
    report
}

fn check(options: &[&str], mount: &str) -> Option<recovery::ReplayReport> {
    if !can_run(true) {
        return None;
    }
    let bench = Bench::new();
    let dirty = dirty(&bench, options, mount, 7);
    Some(assert_replayed_as_others_do(&bench, &dirty))
}

#[test]
fn a_journal_with_checksums_v3_and_64_bit_tags_is_replayed_as_others_do() {
    if let Some(report) = check(&["-b", "4096", "-J", "size=4"], "rw") {
        assert!(report.revoked > 0, "{report:?}");
    }
}

#[test]
fn a_journal_of_1k_blocks_without_checksums_is_replayed_as_others_do() {
    let features = "^metadata_csum,^64bit,^orphan_file";
    check(&["-b", "1024", "-O", features, "-J", "size=4"], "rw");
}

#[test]
fn a_journal_with_checksums_v1_is_replayed_as_others_do() {
    let options = ["-b", "1024", "-O", "^metadata_csum,^64bit", "-J", "size=4"];
    check(&options, "journal_checksum");
}

#[test]
fn an_async_journal_with_checksums_v1_is_replayed_as_others_do() {
    let options = ["-b", "4096", "-O", "^metadata_csum,64bit", "-J", "size=4"];
    check(&options, "journal_async_commit,data=writeback");
}

#[test]
fn an_async_journal_with_checksums_v3_is_replayed_as_others_do() {
    check(
        &["-b", "1024", "-J", "size=4"],
        "journal_async_commit,data=writeback",
    );
}

#[test]
fn a_journal_mapped_by_pointers_is_replayed_as_others_do() {
    check(&["-b", "1024", "-t", "ext3", "-J", "size=4"], "rw");
}

#[test]
fn journaled_data_that_look_like_journal_blocks_are_unescaped() {
    check(&["-b", "1024", "-J", "size=8"], "data=journal");
}

#[test]
fn a_log_that_wrapped_several_times_is_replayed_as_others_do() {
    if !can_run(true) {
        return;
    }
    let bench = Bench::new();
    let options = ["-b", "1024", "-J", "size=1"];
    let dirty = dirty(&bench, &options, "rw", 90);
    assert_replayed_as_others_do(&bench, &dirty);
}

#[test]
fn a_damaged_journal_inode_is_replaced_by_its_copy_in_the_superblock() {
    if !can_run(true) {
        return;
    }
    let bench = Bench::new();
    let dirty = dirty(&bench, &["-b", "1024", "-J", "size=4"], "rw", 4);
    let (whole, expected) = overlay(&dirty, None).unwrap();
    let damaged = bench.copy(&dirty, "damaged.img");
    testkit::debugfs(&["-w", "-R", "clri <8>", damaged.to_str().unwrap()]);
    let (view, report) = overlay(&damaged, None).unwrap();
    assert!(report.used_backup_map);
    assert_eq!((report.blocks, report.end), (expected.blocks, expected.end));
    let geometry = open(&bench.copy(&dirty, "geometry.img")).geometry;
    // Except the damaged inode itself.
    let place = testkit::debugfs(&["-R", "imap <8>", dirty.to_str().unwrap()]);
    let place = String::from_utf8(place.stdout).unwrap();
    let block = place.split("block ").last().unwrap();
    let block: u64 = block.split(',').next().unwrap().parse().unwrap();
    assert_same_blocks(&*view, &*whole, &geometry, &[block].into());
}

#[test]
fn fast_commits_are_counted_and_not_shown() {
    if !can_run(true) {
        return;
    }
    let bench = Bench::new();
    let options = ["-b", "4096", "-O", "fast_commit", "-J", "size=8"];
    let image = bench.mke2fs("live.img", 64, &options);
    let mounted = KernelMount::with(&image, "loop").unwrap();
    let root = mounted.path();
    fs::write(root.join("first"), b"committed in full").unwrap();
    testkit::run("sync", &["-f", root.to_str().unwrap()]);
    for number in 0..20 {
        let mut file = File::create(root.join(format!("later{number}"))).unwrap();
        file.write_all(b"in a fast commit").unwrap();
        file.sync_all().unwrap();
    }
    let dirty = bench.copy(&image, "dirty.img");
    // A full commit on top: the area still holds what is older now.
    fs::create_dir(root.join("directory")).unwrap();
    File::open(root.join("directory"))
        .unwrap()
        .sync_all()
        .unwrap();
    let superseded = bench.copy(&image, "superseded.img");
    drop(mounted);
    let (_, report) = overlay(&superseded, None).unwrap();
    println!("{report:?}");
    assert_eq!(
        (report.fast_commits_pending, report.fast_commits.damage),
        (0, None)
    );
    let (_, report) = overlay(&dirty, None).unwrap();
    println!("{report:?}");
    assert_eq!(report.fast_commits.damage, None);
    assert!(report.fast_commits.commits > 0 && report.fast_commits_pending > 0);
    let message = report.to_string();
    assert!(message.contains("later changes"), "{message}");
    let image = open(&dirty);
    let refused = recovery::replay_to_device(&image.device, &image.sb, &image.geometry, None);
    assert!(matches!(
        refused,
        Err(recovery::Error::FastCommitsPending { .. })
    ));
}

#[test]
fn an_external_journal_is_found_checked_and_replayed() {
    if !can_run(true) {
        return;
    }
    for block_size in ["1024", "4096"] {
        external_journal(block_size);
    }
}

fn external_journal(block_size: &str) {
    let bench = Bench::new();
    let journal_image = bench.mke2fs("journal.img", 8, &["-b", block_size, "-O", "journal_dev"]);
    let other = bench.mke2fs("other.img", 8, &["-b", block_size, "-O", "journal_dev"]);
    let journal_loop = LoopDevice::over(&journal_image, &[]).unwrap();
    let place = format!("device={}", journal_loop.name());
    let image = bench.mke2fs("live.img", 48, &["-b", block_size, "-J", &place]);
    let mounted = KernelMount::with(&image, "loop").unwrap();
    work(&mounted.path(), 5);
    let dirty = bench.copy(&image, "dirty.img");
    // The file behind the loop device, which the kernel writes through.
    let journal = bench.copy(&journal_image, "journal-dirty.img");
    drop((mounted, journal_loop));

    let missing = overlay(&dirty, None).err().unwrap();
    assert!(matches!(
        missing,
        recovery::Error::ExternalJournalMissing(_)
    ));
    let wrong = overlay(&dirty, Some(&other)).err().unwrap();
    assert!(wrong.to_string().contains("is another one"), "{wrong}");

    let (view, report) = overlay(&dirty, Some(&journal)).unwrap();
    assert!(
        report.is_external && report.blocks > 10 && report.transactions > 2,
        "{report:?}"
    );
    let by_e2fsck = bench.copy(&dirty, "e2fsck.img");
    let journal_copy = bench.copy(&journal, "journal-e2fsck.img");
    e2fsck_journal_only(&by_e2fsck, Some(&journal_copy));
    let theirs = open(&by_e2fsck);
    assert_same_blocks(
        &*view,
        &*theirs.device,
        &theirs.geometry,
        &Default::default(),
    );
    drop(view);

    let ours = open(&dirty);
    let device = open_device(&journal);
    let home =
        recovery::replay_to_device(&ours.device, &ours.sb, &ours.geometry, Some(device)).unwrap();
    assert_eq!(home, report);
    assert_same_blocks(
        &*ours.device,
        &*theirs.device,
        &theirs.geometry,
        &Default::default(),
    );
    drop(ours);
    let judged = testkit::e2fsck_with(&["-fn", "-j", journal.to_str().unwrap()], &dirty);
    assert!(judged.status.success(), "{judged:?}");
}
