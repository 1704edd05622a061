//! `lanefs tune` on a mount: forms are switched while others work, only by users with the right to, and no other
//! program sees the attributes that it uses.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::served::{Served, can_mount, image, lanefs, said};

fn tune(directory: &Path, words: &[&str]) -> String {
    let output = lanefs()
        .arg("tune")
        .arg(directory)
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Makes, fills, renames and removes files until told to stop; how many.
fn work(directory: &Path, stop: &AtomicBool) -> usize {
    std::fs::create_dir(directory).unwrap();
    let mut done = 0;
    // Relaxed: a flag to end the test.
    while !stop.load(Ordering::Relaxed) {
        let (one, other) = (directory.join("one"), directory.join("other"));
        std::fs::write(&one, vec![done as u8; 20_000]).unwrap();
        std::fs::rename(&one, &other).unwrap();
        assert_eq!(std::fs::read(&other).unwrap(), vec![done as u8; 20_000]);
        std::fs::remove_file(&other).unwrap();
        std::fs::create_dir(&one).unwrap();
        std::fs::remove_dir(&one).unwrap();
        done += 1;
    }
    std::fs::write(directory.join("last"), done.to_string()).unwrap();
    done
}

/// Name and values of every form that a mount shows.
fn choices(directory: &Path) -> Vec<(String, Vec<String>)> {
    let shown = tune(directory, &[]);
    let forms = shown.lines().filter_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        let values = rest.split_once('(')?.1.strip_suffix(')')?.split(", ");
        // Of "or 2 to 4096" the last number.
        let last_word = |value: &str| value.rsplit(' ').next().map(str::to_owned);
        Some((name.to_owned(), values.filter_map(last_word).collect()))
    });
    forms.collect()
}

#[test]
fn forms_are_switched_on_a_mount_while_files_come_and_go() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image", 64 << 20, &[]);
    let served = Served::start(&path, "");
    let mount = served.path();
    let choices = choices(mount);
    assert!(
        choices.iter().any(|(name, _)| name == "orphan"),
        "{choices:?}"
    );
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let workers: Vec<_> = (0..2)
            .map(|number| scope.spawn(move || work(&mount.join(format!("w{number}")), stop)))
            .collect();
        for round in 0..12 {
            for (name, values) in &choices {
                let value = &values[round % values.len()];
                tune(mount, &[&format!("{name}={value}")]);
                assert_eq!(tune(mount, &[name]).trim(), value);
            }
        }
        // Relaxed: a flag to end the test.
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().unwrap() > 10);
        }
    });
    let json: serde_json::Value = serde_json::from_str(&tune(mount, &["--json"])).unwrap();
    let counters = json["mount"]["counters"].as_object().unwrap();
    assert!(counters["journal.commits"].as_u64().unwrap() > 0);
    assert_eq!(
        json["mount"]["values"].as_object().unwrap().len(),
        choices.len()
    );
    served.unmount();
    testkit::e2fsck(&path);
}

/// What `lanefs top --once --json` prints.
fn top(mount: &Path, words: &[&str]) -> String {
    let mut command = lanefs();
    command.arg("top").arg(mount).args(["--once"]).args(words);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn top_shows_operations_commits_and_what_waits() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image", 64 << 20, &["-O", "fast_commit"]);
    let served = Served::start(&path, "");
    let mount = served.path();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let worker = scope.spawn(move || {
            let file = std::fs::File::create(mount.join("synced")).unwrap();
            // Relaxed: a flag to end the test.
            while !stop.load(Ordering::Relaxed) {
                std::os::unix::fs::FileExt::write_all_at(&file, &[7; 5000], 0).unwrap();
                file.sync_all().unwrap();
                rustix::fs::syncfs(&file).unwrap();
            }
        });
        let json = top(mount, &["--json"]);
        let text = top(mount, &["--interval", "0.5"]);
        // Relaxed: a flag to end the test.
        stop.store(true, Ordering::Relaxed);
        worker.join().unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let top = &json["top"];
        for kind in ["write", "fsync"] {
            let row = &top["operations"][kind];
            assert!(row["per_second"].as_f64().unwrap() > 0.0, "{top}");
            assert!(row["mean_us"].as_f64().unwrap() > 0.0, "{top}");
            assert!(row["p99_us"].as_u64().unwrap() > 0, "{top}");
        }
        let written = top["operations"]["write"]["bytes_per_second"].as_f64();
        assert!(written.unwrap() >= 5000.0, "{top}");
        assert_eq!(top["state"], "writing");
        assert!(top["waiting_fsyncs"].as_u64().unwrap() <= 1, "{top}");
        assert!(top["log_blocks"].as_u64().unwrap() > 0, "{top}");
        assert!(top["flushes_per_second"].as_f64().unwrap() > 0.0, "{top}");
        for word in ["operation", "fsync", "commits", "journal", "caches"] {
            assert!(text.contains(word), "{text}");
        }
    });
    let counted = tune(mount, &["--counters"]);
    assert!(counted.contains("journal.commits_for_sync"), "{counted}");
    let shown = tune(mount, &[]);
    assert!(
        shown.contains("state") && !shown.contains("journal."),
        "{shown}"
    );
    assert!(shown.lines().count() <= 24, "{shown}");
    let causes = counted
        .lines()
        .filter(|line| line.contains("journal.commits_"));
    let causes: u64 = causes
        .filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok())
        .sum();
    assert!(causes > 0, "{counted}");
    served.unmount();
    let output = lanefs().arg("top").arg(folder.path()).output().unwrap();
    assert!(!output.status.success());
    assert!(
        said(&output).contains("no image is mounted on"),
        "{}",
        said(&output)
    );
}

fn counter(mount: &Path, name: &str) -> u64 {
    tune(mount, &[name]).trim().parse().unwrap()
}

#[test]
fn memory_for_inodes_and_for_metadata_is_bounded_as_the_options_say() {
    if !can_mount() {
        return;
    }
    const FILES: usize = 2000;
    const APART: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image", 64 << 20, &["-N", "4096"]);
    let served = Served::start(&path, "");
    for number in 0..FILES {
        std::fs::File::create(served.path().join(number.to_string())).unwrap();
    }
    served.unmount();
    // Every file once, neighbours in the inode table far from each other: inodes in memory, and blocks that were read.
    let look = |options| {
        let served = Served::start(&path, options);
        for first in 0..APART {
            for number in (first..FILES).step_by(APART) {
                std::fs::metadata(served.path().join(number.to_string())).unwrap();
            }
        }
        let kept = counter(served.path(), "icache.inodes");
        let read = counter(served.path(), "buffer.misses");
        served.unmount();
        (kept, read)
    };
    let (all, once) = look("");
    let (few, often) = look("inode_cache=64K,metadata_cache=32K");
    assert!(all >= FILES as u64, "{all}");
    // 64, and what threads add before they look.
    assert!(few <= 128, "{few}");
    assert!(often > 4 * once, "{often} {once}");
    testkit::e2fsck(&path);
}

/// Says what there is instead.
fn what_is_not_there_is_refused(mount: &Path) {
    for (word, text) in [
        ("orphan=never", "orphan is one of"),
        (
            "dir_ireserve=5000",
            "dir_ireserve is one of auto, off, low, normal, high, or 2 to 4096",
        ),
        ("speed=11", "unknown name `speed`; known are orphan"),
        ("label=root", "unknown name `label`"),
        ("speed", "unknown name `speed`"),
    ] {
        let output = lanefs().arg("tune").arg(mount).arg(word).output().unwrap();
        assert!(!output.status.success());
        assert!(said(&output).contains(text), "{word}: {}", said(&output));
    }
}

#[test]
fn others_may_look_but_not_switch_and_lists_show_nothing() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image", 16 << 20, &[]);
    let served = Served::start(&path, "allow_other");
    let mount = served.path();
    let mut names = vec![0; 4096];
    let len = rustix::fs::listxattr(mount, &mut names[..]).unwrap();
    assert!(!String::from_utf8_lossy(&names[..len]).contains("lanefs."));
    let mut value = vec![0; 4096];
    let below = mount.join("lost+found");
    let elsewhere = rustix::fs::getxattr(&below, "lanefs.forms", &mut value[..]);
    // As of any name that ext4 does not know.
    assert_eq!(elsewhere, Err(rustix::io::Errno::OPNOTSUPP));
    let as_nobody = |word: &str| {
        // A copy that anyone may run.
        let program = folder.path().join("lanefs");
        if !program.exists() {
            testkit::copy_program(assert_cmd::cargo::cargo_bin!("lanefs"), &program);
            for place in [folder.path(), mount] {
                let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
                std::fs::set_permissions(place, open).unwrap();
            }
        }
        let mut command = std::process::Command::new(program);
        let output = command
            .arg("tune")
            .arg(mount)
            .arg(word)
            .uid(65_534)
            .gid(65_534)
            .output();
        output.unwrap()
    };
    let seen = as_nobody("orphan");
    assert!(seen.status.success(), "{}", said(&seen));
    let refused = as_nobody("orphan=list");
    assert!(!refused.status.success());
    assert!(
        said(&refused).contains("the user who mounted it may change it"),
        "{}",
        said(&refused)
    );
    what_is_not_there_is_refused(mount);
    let output = lanefs().arg("tune").arg(folder.path()).output().unwrap();
    assert!(
        said(&output).contains("no image is mounted on"),
        "{}",
        said(&output)
    );
    let output = lanefs()
        .arg("tune")
        .arg(&path)
        .arg("label=x")
        .output()
        .unwrap();
    assert!(
        said(&output).contains("has it mounted on"),
        "{}",
        said(&output)
    );
    served.unmount();
}

#[test]
fn a_form_of_a_read_only_mount_is_refused_because_it_has_no_effect() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image", 16 << 20, &[]);
    for options in ["ro", "ro,nofuseblk", "ro,noload"] {
        let served = Served::start(&path, options);
        let mut command = lanefs();
        command
            .arg("tune")
            .arg(served.path())
            .arg("inode_lookup=locked");
        let refused = command.output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        let expected = "inode_lookup has no effect on a read-only mount";
        assert!(said(&refused).contains(expected), "{}", said(&refused));
        assert_eq!(tune(served.path(), &["inode_lookup"]).trim(), "rcu");
        served.unmount();
    }
}

#[test]
fn a_mount_shows_its_transport_and_its_options() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image", 64 << 20, &[]);
    let served = Served::start(
        &path,
        "commit=7,noatime,dirsync,poll=off,threads=3,io_uring=off,errors=panic",
    );
    let shown = |names: &[&str]| tune(served.path(), names);
    let all = shown(&["transport", "threads", "poll", "commit"]);
    assert_eq!(all, "/dev/fuse\n3\noff\n7 s\n");
    let options = shown(&["options"]);
    for word in [
        "rw",
        "noatime",
        "dirsync",
        "data=ordered",
        "errors=panic",
        "nodiscard",
    ] {
        assert!(
            options.trim().split(',').any(|shown| shown == word),
            "{word}: {options}"
        );
    }
    let screen = shown(&[]);
    assert!(
        screen.lines().count() <= 40 && screen.contains("transport"),
        "{screen}"
    );
    assert!(shown(&["--json"]).contains(r#""options":"#));
    served.unmount();

    let served = Served::start(&path, "ro,io_uring=off");
    let options = tune(served.path(), &["options"]);
    assert!(options.starts_with("ro,relatime"), "{options}");
    served.unmount();
}
