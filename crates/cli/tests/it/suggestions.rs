//! The message for a command, an option or a line of a script that does not exist.

use crate::fixture::{error, ok, run};

/// The tips of a refused command line.
fn tips(words: &[&str]) -> Vec<String> {
    let output = run(words);
    let status = if words[0] == "check" { 16 } else { 2 };
    assert_eq!(output.status.code(), Some(status), "{words:?}");
    let error = error(&output);
    let lines = error
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tip: "));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_near_spelling_is_suggested_and_another_word_is_not() {
    for (word, command) in [
        ("chekc", "'check'"),
        ("extrac", "'extract'"),
        ("biuld", "'build'"),
    ] {
        let tips = tips(&[word, "disk.img"]);
        assert!(
            tips.len() == 1 && tips[0].contains(command),
            "{word}: {tips:?}"
        );
    }
    for word in ["frobnicate", "send", "quota", "sparse"] {
        assert_eq!(tips(&[word, "disk.img"]), [""; 0], "{word}");
    }
    assert!(tips(&["check", "--superblok", "1", "disk.img"])[0].contains("--superblock"));
    let tips = tips(&["build", "--sparse", "a", "b"]);
    assert!(tips.iter().all(|tip| !tip.contains("similar")), "{tips:?}");
}

#[test]
fn a_job_that_lanefs_does_not_do_names_the_program_that_does_it() {
    for (word, program) in [
        ("resize", "resize2fs IMAGE SIZE"),
        ("shrink", "resize2fs IMAGE SIZE"),
        ("trim", "e2fsck -f -E discard IMAGE"),
        ("undelete", "debugfs"),
        ("convert", "qemu-img"),
    ] {
        let tips = tips(&[word, "disk.img", "64M"]);
        assert!(
            tips.len() == 1 && tips[0].contains(program),
            "{word}: {tips:?}"
        );
    }
}

#[test]
fn a_job_under_another_name_names_a_command_that_exists() {
    for word in [
        "fsck", "format", "pack", "untar", "unmount", "copy", "write", "rename", "delete", "rmdir",
        "list", "show", "readlink", "chgrp", "setfacl", "symlink", "mknod", "tune2fs", "blkid",
        "debugfs", "filefrag", "script", "replay", "help", "version",
    ] {
        let tips = tips(&[word, "disk.img"]);
        assert_eq!(tips.len(), 1, "{word}");
        let named = tips[0].split("`lanefs ").nth(1).unwrap();
        let command = named.split([' ', '`']).next().unwrap();
        if command.starts_with("--") || command == "COMMAND" {
            drop(ok([command]))
        } else {
            drop(ok([command, "--help"]))
        }
    }
}

#[test]
fn a_script_is_told_what_a_script_can_do() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.img");
    let image = image.to_str().unwrap();
    ok(["-q", "mkfs", image, "8M"]);
    let script = folder.path().join("script");
    for (line, hint) in [
        ("rmdir /etc", "rm PATH"),
        ("mkdri /etc", "mkdir"),
        ("check", "only changes an image"),
        ("rm --recursiv /etc", "--recursive"),
    ] {
        std::fs::write(&script, line).unwrap();
        let output = run(["edit", image, script.to_str().unwrap()]);
        let error = error(&output);
        assert!(
            !output.status.success() && error.contains(hint),
            "{line}: {error}"
        );
        assert!(error.contains("line 1"), "{error}");
    }
}

#[test]
fn a_mount_on_a_directory_that_does_not_exist_names_the_command_that_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.img");
    let image = image.to_str().unwrap();
    let place = folder.path().join("mnt");
    let place = place.to_str().unwrap();
    ok(["mkfs", image, "8M"]);
    let output = run(["mount", image, place]);
    assert_eq!(output.status.code(), Some(32));
    let text = error(&output);
    assert!(text.contains(&format!("make it: mkdir {place}")), "{text}");
}

#[test]
fn info_does_not_name_a_directory_where_none_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk.img");
    let image = image.to_str().unwrap();
    ok(["mkfs", image, "8M"]);
    ok(["mkdir", &format!("{image}:/made")]);
    let text = ok(["info", image]);
    let line = text.lines().find(|line| line.contains("last mounted"));
    let line = line.unwrap().trim_end();
    assert!(!line.ends_with(" at"), "{line}");
}
