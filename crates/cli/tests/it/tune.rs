//! `lanefs tune` on an image: tune2fs and e2fsck see what was changed, and nothing else is.

use std::path::Path;

use testkit::{e2fsck, have, skip};

use crate::fixture::{error, ok, run};

fn make(folder: &Path, options: &[&str]) -> std::path::PathBuf {
    let path = folder.join("image");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    let mut arguments = vec!["-t", "ext4"];
    arguments.extend(options);
    arguments.push(path.to_str().unwrap());
    testkit::mke2fs(&arguments);
    path
}

/// Runs `lanefs tune`, which must succeed; what it printed.
fn tune(path: &Path, words: &[&str]) -> String {
    ok([&["tune", path.to_str().unwrap()], words].concat())
}

#[test]
fn what_is_changed_is_what_tune2fs_shows() {
    if !have("mke2fs") || !have("e2fsck") || !have("tune2fs") {
        return skip("needs e2fsprogs");
    }
    for options in [
        &["-b", "1024"][..],
        &["-O", "^metadata_csum,^64bit", "-b", "4096"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = make(folder.path(), options);
        tune(
            &path,
            &[
                "label=my disk",
                "errors=remount-ro",
                "reserved_percent=12.5",
                "reserved_uid=12",
                "default_mount_opts=acl,journal_data_writeback",
                "mount_opts=noatime",
                "max_mount_count=20",
                "mount_count=3",
                "check_interval=4w",
                "hash_alg=tea",
                "stride=8",
                "stripe_width=32",
            ],
        );
        let shown = testkit::tune2fs(&["-l", path.to_str().unwrap()]);
        let shown = String::from_utf8(shown.stdout).unwrap();
        let field = |name: &str| {
            let line = shown.lines().find(|line| line.starts_with(name));
            let line = line.unwrap_or_else(|| panic!("no {name}: {shown}"));
            line.split_once(':').unwrap().1.trim().to_owned()
        };
        assert_eq!(field("Filesystem volume name"), "my disk");
        assert_eq!(field("Errors behavior"), "Remount read-only");
        let blocks: u64 = field("Block count").parse().unwrap();
        assert_eq!(field("Reserved block count"), (blocks / 8).to_string());
        assert!(field("Reserved blocks uid").starts_with("12 "));
        assert_eq!(field("Default mount options"), "journal_data_writeback acl");
        assert_eq!(field("Mount options"), "noatime");
        assert_eq!(field("Maximum mount count"), "20");
        assert_eq!(field("Mount count"), "3");
        assert!(field("Check interval").starts_with("2419200 "));
        assert_eq!(field("Default directory hash"), "tea");
        assert_eq!(field("RAID stride"), "8");
        assert_eq!(field("RAID stripe width"), "32");
        e2fsck(&path);
        let values = tune(&path, &["label", "check_interval"]);
        assert_eq!(values, "my disk\n4w\n");
        let json = tune(&path, &["--json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["image"]["values"]["reserved_percent"], "12.5");
    }
}

#[test]
fn what_cant_be_changed_is_refused_by_name_and_nothing_is() {
    if !have("mke2fs") {
        return skip("needs mke2fs");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), &[]);
    let before = testkit::read_image(&path);
    for (word, text) in [
        ("uuid=random", "uuid can't be changed yet"),
        ("fast_commit=yes", "`yes` is not one of: on, off"),
        ("speed=11", "unknown name `speed`; known are label"),
        ("label=seventeen letters", "more than 16 bytes"),
        ("errors=ignore", "not one of: continue, remount-ro, panic"),
        ("speed", "unknown name `speed`"),
    ] {
        let output = run(["tune", path.to_str().unwrap(), "mount_count=7", word]);
        assert_eq!(output.status.code(), Some(2), "{word}");
        assert!(error(&output).contains(text), "{word}: {}", error(&output));
        assert!(
            before == testkit::read_image(&path),
            "{word} changed something"
        );
    }
}

#[test]
fn a_journal_that_holds_something_is_replayed_first() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return skip("needs e2fsprogs");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), &["-b", "1024"]);
    // A block that is free waits in the journal.
    let block = folder.path().join("block");
    std::fs::write(&block, [b'j'; 1024]).unwrap();
    let write = format!(
        "journal_open\njournal_write -b 15000 {}\njournal_close\n",
        block.display()
    );
    let script = folder.path().join("script");
    std::fs::write(&script, write).unwrap();
    let arguments = ["-w", "-f", script.to_str().unwrap(), path.to_str().unwrap()];
    testkit::debugfs(&arguments);
    assert_eq!(tune(&path, &["mount_count=9", "mount_count"]), "9\n");
    let image = testkit::read_image(&path);
    assert_eq!(image[15_000 * 1024..15_001 * 1024], [b'j'; 1024]);
    e2fsck(&path);
    assert_eq!(tune(&path, &["mount_count"]), "9\n");
}

#[test]
fn an_image_that_linux_left_with_fast_commits_is_tuned_after_their_replay() {
    if !testkit::is_root() || !have("mke2fs") || !have("e2fsck") {
        return skip("needs root and e2fsprogs");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), &["-O", "fast_commit", "-J", "size=5"]);
    let mounted = testkit::KernelMount::with(&path, "loop").unwrap();
    std::fs::write(mounted.path().join("first"), "in a full commit").unwrap();
    testkit::run("sync", &["-f", mounted.path().to_str().unwrap()]);
    let file = mounted.path().join("file");
    std::fs::write(&file, [7; 9000]).unwrap();
    std::fs::File::open(&file).unwrap().sync_all().unwrap();
    let crashed = folder.path().join("crashed");
    testkit::copy_mounted_image(&path, &crashed);
    drop(mounted);
    tune(&crashed, &["label=after"]);
    e2fsck(&crashed);
    let shown = testkit::tune2fs(&["-l", crashed.to_str().unwrap()]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("after"), "{shown}");
    let at = format!("{}:/file", crashed.display());
    assert_eq!(run(["cat", &at]).stdout, [7; 9000]);
}

#[test]
fn an_area_for_fast_commits_is_made_and_taken_away() {
    if !have("mke2fs") || !have("e2fsck") || !have("dumpe2fs") {
        return skip("needs e2fsprogs");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = make(folder.path(), &["-b", "1024", "-J", "size=4"]);
    let shown = || {
        let shown = testkit::dumpe2fs(&["-h", path.to_str().unwrap()]);
        String::from_utf8(shown.stdout).unwrap()
    };
    assert_eq!(tune(&path, &["fast_commit"]), "off\n");
    for (value, length) in [("on", 256), ("on", 256), ("off", 0)] {
        tune(&path, &[&format!("fast_commit={value}")]);
        assert_eq!(tune(&path, &["fast_commit"]), format!("{value}\n"));
        let shown = shown();
        let features = shown
            .lines()
            .find(|line| line.starts_with("Filesystem features"));
        assert_eq!(features.unwrap().contains("fast_commit"), value == "on");
        let expected = format!("Fast commit length:       {length}");
        assert!(shown.contains(&expected), "{shown}");
        e2fsck(&path);
    }
    // 1024 blocks are all that the log needs.
    let path = make(folder.path(), &["-b", "1024", "-J", "size=1"]);
    let before = testkit::read_image(&path);
    let output = run(["tune", path.to_str().unwrap(), "fast_commit=on"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("the journal has 1024 blocks"),
        "{}",
        error(&output)
    );
    assert!(
        before == testkit::read_image(&path),
        "something was changed"
    );
    let path = make(folder.path(), &["-O", "^has_journal"]);
    let output = run(["tune", path.to_str().unwrap(), "fast_commit=on"]);
    assert!(
        error(&output).contains("the image has no journal"),
        "{}",
        error(&output)
    );
}
