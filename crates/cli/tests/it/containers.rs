//! Container images through a pipe, where the space to keep them is missing, full or not allowed.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::fixture::{error, lanefs, ok};

/// Makes docker-save archives: `small.tar`, and `large.tar` with a layer of 8 MiB; and `plain.tar`.
const MAKE: &str = r#"
mkdir t s; echo hello > t/hi; tar -C t -cf plain.tar hi
save() {
    d=$(sha256sum s/base | cut -c1-64)
    printf '{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' $d > s/conf
    printf '[{"Config":"conf","RepoTags":["a:b"],"Layers":["base"]}]' > s/manifest.json
    tar -C s -cf $1 base conf manifest.json
}
cp plain.tar s/base; save small.tar
head -c 2097152 /dev/urandom | gzip -1 > t/a.gz; tar -C t -cf packed.tar a.gz hi
head -c 8388608 /dev/urandom > t/large; tar -C t -cf s/base hi large; save large.tar
"#;

fn build(at: &Path, archive: &str, tmpdir: &Path, more: &[&str]) -> Output {
    let bytes = std::fs::read(at.join(archive)).unwrap();
    let mut command = lanefs();
    command
        .args(["-q", "build"])
        .args(more)
        .arg("-")
        .arg(at.join("img"));
    command
        .env("TMPDIR", tmpdir)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || drop(input.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

#[test]
fn what_can_not_be_kept_is_refused_and_plain_archives_need_no_space() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let made = Command::new("bash")
        .args(["-euc", MAKE])
        .current_dir(at)
        .status();
    assert!(made.unwrap().success());
    let built = |output: &Output| {
        assert!(output.status.success(), "{}", error(output));
        let file = format!("{}:/hi", at.join("img").display());
        assert_eq!(ok(["cat", &file]), "hello\n");
        std::fs::remove_file(at.join("img")).unwrap();
    };
    let absent = at.join("absent");
    for tmpdir in [at, &absent, Path::new("/proc")] {
        built(&build(at, "plain.tar", tmpdir, &[]));
        // What is small stays in memory.
        built(&build(at, "small.tar", tmpdir, &[]));
    }
    built(&build(at, "large.tar", at, &["--spool", "9M"]));
    for (tmpdir, more, part) in [
        (at, &["--spool", "4M"][..], "4194304 bytes"),
        (&absent, &[][..], "cannot keep a temporary file in"),
        (
            Path::new("/proc"),
            &[][..],
            "cannot keep a temporary file in /proc",
        ),
    ] {
        let output = build(at, "large.tar", tmpdir, more);
        let message = error(&output);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(
            message.contains(part) && message.contains("TMPDIR"),
            "{message}"
        );
        assert!(!at.join("img").exists());
    }
    // Nothing is left in TMPDIR.
    let left = std::fs::read_dir(at)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let hidden = left.filter(|name| name.to_string_lossy().starts_with(".lanefs"));
    assert_eq!(hidden.count(), 0);
}

#[test]
fn less_room_than_was_kept_in_memory_is_named_and_no_matter_to_a_plain_archive() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let made = Command::new("bash")
        .args(["-euc", MAKE])
        .current_dir(at)
        .status();
    assert!(made.unwrap().success());
    let small = at.join("small");
    std::fs::create_dir(&small).unwrap();
    let _mounted = testkit::SmallDisk::mount(&small, "300k").unwrap();
    for (more, part) in [
        (&[][..], "--spool"),
        (&["--spool", "64M"], "No space left on device"),
    ] {
        let output = build(at, "large.tar", &small, more);
        let said = error(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(part) && said.contains("TMPDIR"), "{said}");
        assert!(!at.join("img").exists());
        let output = build(at, "packed.tar", &small, more);
        assert!(output.status.success(), "{more:?}: {}", error(&output));
        let file = format!("{}:/hi", at.join("img").display());
        assert_eq!(ok(["cat", &file]), "hello\n");
        std::fs::remove_file(at.join("img")).unwrap();
    }
}
