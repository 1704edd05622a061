//! A server that is asked to end does so: with files open, after `umount --lazy`, with its directory taken by another
//! mount; and its image is then free.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testkit::{DiskState, FailingDisk};

use crate::hand::Hand;
use crate::served::{Served, can_mount, image, lanefs, said};

fn terminate(served: &Served) {
    testkit::run("kill", &["-TERM", &served.process().to_string()]);
}

fn detach(directory: &Path) {
    let output = lanefs().args(["umount", "--lazy"]).arg(directory).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// Whether the image can be used again, and is whole once its journal is replayed.
fn is_free(image: &Path) {
    let served = Served::start(image, "");
    assert_eq!(fs::read(served.path().join("f")).unwrap(), b"a");
    served.unmount();
    testkit::e2fsck(image);
}

#[test]
fn a_second_signal_ends_a_server_whose_mount_was_detached_with_a_file_open() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let mut served = Served::start(&image, "");
    fs::write(served.path().join("f"), "a").unwrap();
    let open = File::open(served.path().join("f")).unwrap();
    detach(served.path());
    terminate(&served);
    std::thread::sleep(Duration::from_millis(500));
    terminate(&served);
    served.wait();
    drop(open);
    is_free(&image);
}

#[test]
fn a_signal_to_a_detached_server_leaves_what_was_mounted_in_its_place() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let mut served = Served::start(&image, "");
    fs::write(served.path().join("f"), "a").unwrap();
    let open = File::open(served.path().join("f")).unwrap();
    detach(served.path());
    let place = served.path().to_owned();
    let arguments = ["-t", "tmpfs", "other", place.to_str().unwrap()];
    testkit::run("mount", &arguments);
    fs::write(place.join("mark"), "here").unwrap();
    let begin = Instant::now();
    terminate(&served);
    // One signal is enough after 10 s.
    served.wait();
    assert!(begin.elapsed() > Duration::from_secs(5));
    assert_eq!(fs::read(place.join("mark")).unwrap(), b"here");
    testkit::run("umount", &[place.to_str().unwrap()]);
    drop(open);
    is_free(&image);
}

#[test]
fn what_was_stored_through_a_mapping_that_is_cut_off_stays() {
    if !can_mount() || !Hand::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    for options in ["", "nofuseblk"] {
        let mut served = Served::start(&image, options);
        let file = served.path().join("f");
        fs::write(&file, vec![0; 100_000]).unwrap();
        let hand = Hand::start();
        hand.run("hold_map", &[&file.display(), &100_000, &b'x'])
            .unwrap();
        terminate(&served);
        std::thread::sleep(Duration::from_secs(2));
        terminate(&served);
        assert!(served.wait().success());
        drop(hand);
        let again = Served::start(&image, "");
        let found = fs::read(again.path().join("f")).unwrap();
        assert!(found == vec![b'x'; 100_000], "{options}");
        again.unmount();
        testkit::e2fsck(&image);
    }
}

#[test]
fn signals_end_a_server_on_whose_mount_a_process_works() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let mut served = Served::start(&image, "");
    fs::write(served.path().join("f"), "a").unwrap();
    let mut sleeper = Command::new("sleep");
    let mut sleeper = sleeper
        .arg("60")
        .current_dir(served.path())
        .spawn()
        .unwrap();
    terminate(&served);
    std::thread::sleep(Duration::from_millis(500));
    terminate(&served);
    served.wait();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    is_free(&image);
}

/// Stores a byte through a mapping and leaves the page to the kernel: neither synced, nor flushed by a close.
const DIRTY: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
fd = os.open(sys.argv[1], os.O_RDWR)
mapped = libc.mmap(None, 4096, 3, 1, fd, 0)
os.close(fd)
ctypes.memset(mapped, 98, 1)
assert libc.munmap(mapped, 4096) == 0
";

#[test]
fn signals_end_a_server_whose_disk_takes_no_requests_any_more() {
    if !can_mount() {
        return;
    }
    if !testkit::have("python3") {
        return testkit::skip("needs python3");
    }
    for is_dirty in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", 24 << 20, &[]);
        let disk = FailingDisk::of(&image).unwrap();
        let mut served = Served::start(&disk.path(), "");
        fs::write(served.path().join("f"), "a").unwrap();
        File::open(served.path().join("f"))
            .unwrap()
            .sync_all()
            .unwrap();
        // The page is there to be stored to.
        assert_eq!(fs::read(served.path().join("f")).unwrap(), b"a");
        disk.set(DiskState::Stopped);
        // umount(2) itself waits for the page of a mapping.
        let mut worker = if is_dirty {
            Command::new("python3")
                .args(["-c", DIRTY])
                .arg(served.path().join("f"))
                .spawn()
        } else {
            Command::new("sh")
                .args(["-c", "echo b >g; sync g"])
                .current_dir(served.path())
                .spawn()
        }
        .unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let mut status = None;
        for _ in 0..20 {
            status = served.poll().unwrap();
            if status.is_some() {
                break;
            }
            terminate(&served);
            std::thread::sleep(Duration::from_millis(700));
        }
        // Whatever waits for it must end, for better or worse.
        disk.set(DiskState::Works);
        assert!(status.is_some(), "dirty page: {is_dirty}");
        worker.wait().unwrap();
        // Nothing that was synced is lost.
        let served = Served::start(&disk.path(), "");
        assert_eq!(fs::read(served.path().join("f")).unwrap().len(), 1);
        served.unmount();
        let copy = folder.path().join("copy.img");
        testkit::write_image(&copy, &disk.bytes());
        testkit::e2fsck(&copy);
    }
}

#[test]
fn umount_says_that_the_server_does_not_answer_and_lazy_detaches_it() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Where umount(8) waits for the image to be closed, a lazy unmount waits too: there the server goes on first.
    for (name, options, waits) in [("a.img", "nofuseblk", false), ("b.img", "", true)] {
        let image = image(folder.path(), name, 24 << 20, &[]);
        let mut served = Served::start(&image, options);
        if served.is_over_ring() {
            testkit::skip("a server with io_uring is not stopped");
            return served.unmount();
        }
        fs::write(served.path().join("f"), "a").unwrap();
        let process = served.process().to_string();
        testkit::run("kill", &["-STOP", &process]);
        let umount = lanefs().arg("umount").arg(served.path()).output().unwrap();
        assert_eq!(umount.status.code(), Some(32));
        assert!(
            said(&umount).contains("does not answer"),
            "{}",
            said(&umount)
        );
        if waits {
            testkit::run("kill", &["-CONT", &process]);
        }
        detach(served.path());
        testkit::run("kill", &["-CONT", &process]);
        terminate(&served);
        served.wait();
        is_free(&image);
    }
}

#[test]
fn a_signal_while_the_image_is_opened_ends_the_mount_before_it_begins() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 24 << 20, &[]);
    for (signal, flag) in [("-INT", None), ("-TERM", None), ("-HUP", Some("-f"))] {
        let disk = FailingDisk::of(&image).unwrap();
        disk.set(DiskState::Stopped);
        let place = tempfile::tempdir().unwrap();
        let mut command = lanefs();
        command.arg("mount").args(flag).arg(disk.path());
        let mut waiting = command.arg(place.path()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        testkit::run("kill", &[signal, &waiting.id().to_string()]);
        assert!(!waiting.wait().unwrap().success());
        disk.set(DiskState::Works);
        std::thread::sleep(Duration::from_millis(500));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(place.path().to_str().unwrap()), "{signal}");
        assert!(disk.bytes() == testkit::read_image(&image), "{signal}");
    }
}

#[test]
fn a_server_whose_starter_has_ended_mounts_nothing() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 24 << 20, &[]);
    let before = testkit::read_image(&image);
    let place = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = lanefs();
    command
        .args(["mount", "--serve"])
        .arg(&image)
        .arg(place.path());
    assert!(!command.stdout(writer).status().unwrap().success());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(place.path().to_str().unwrap()));
    assert!(testkit::read_image(&image) == before);
}

#[test]
fn umount_of_a_mount_whose_server_was_killed_does_not_wait_for_a_later_mount_of_the_image() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    for options in ["", "nofuseblk"] {
        let mut dead = Served::start(&image, options);
        fs::write(dead.path().join("f"), "a").unwrap();
        testkit::run("sync", &[dead.path().join("f").to_str().unwrap()]);
        testkit::run("kill", &["-KILL", &dead.process().to_string()]);
        dead.wait();
        let later = Served::start(&image, "");
        let mut umount = Command::new("timeout");
        let umount = umount.arg("10").arg(lanefs().get_program()).arg("umount");
        let output = umount.arg(dead.path()).output().unwrap();
        assert!(output.status.success(), "{options}: {}", said(&output));
        fs::write(later.path().join("f"), "a").unwrap();
        later.unmount();
        is_free(&image);
    }
}
