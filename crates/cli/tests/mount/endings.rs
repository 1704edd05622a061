//! A server that is told to end does so: with files open, after `umount --lazy`, with its directory taken by another
//! mount; and its image is then free.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

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
