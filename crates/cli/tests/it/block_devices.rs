//! Block devices: what is on them is not overwritten unasked, and what the kernel has made of them is named.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::LoopDevice;

use crate::fixture::{error, ok, run, tool};

fn sha(path: &Path) -> Vec<u8> {
    testkit::sha256(&fs::read(path).unwrap())
}

/// A folder with a small tree, and a file of 32 MiB.
fn place() -> Option<(tempfile::TempDir, PathBuf, PathBuf)> {
    if !testkit::is_root() || !testkit::have("losetup") || !testkit::have("mke2fs") {
        testkit::skip("this takes root, losetup and mke2fs");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let (tree, file) = (folder.path().join("tree"), folder.path().join("file"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("hello"), "hello\n").unwrap();
    fs::File::create(&file).unwrap().set_len(32 << 20).unwrap();
    Some((folder, tree, file))
}

#[test]
fn a_build_keeps_what_is_on_a_block_device_unless_it_is_told_otherwise() {
    let Some((_folder, tree, file)) = place() else {
        return;
    };
    let tree = tree.to_str().unwrap();
    for (program, word) in [
        (&["mke2fs", "-q", "-F"][..], "an ext2/3/4 file system"),
        (&["mkswap", "-q"], "swap"),
        (&["sfdisk", "-q"], "partition"),
    ] {
        if !testkit::have(program[0]) {
            testkit::skip(program[0]);
            continue;
        }
        fs::File::create(&file).unwrap().set_len(32 << 20).unwrap();
        let mut make = Command::new(program[0]);
        make.args(&program[1..]).arg(&file);
        if program[0] == "sfdisk" {
            let script = file.with_extension("script");
            fs::write(&script, "label: gpt\n1M,8M\n").unwrap();
            make.stdin(fs::File::open(script).unwrap());
        }
        tool(&mut make);
        let before = sha(&file);
        let device = LoopDevice::over(&file, &[]).unwrap();
        for size in ["auto", "16M"] {
            let output = run(["build", "--size", size, tree, device.name()]);
            let said = error(&output);
            assert_eq!(output.status.code(), Some(1), "{word}: {said}");
            assert!(said.contains(word) && said.contains("-F"), "{said}");
        }
        assert_eq!(sha(&file), before, "{word}");
        ok(["build", "-q", "-F", "--size", "16M", tree, device.name()]);
        drop(device);
        testkit::e2fsck(&file);
    }
    // One that is blank is taken without a word.
    fs::File::create(&file).unwrap().set_len(32 << 20).unwrap();
    let device = LoopDevice::over(&file, &[]).unwrap();
    ok(["build", "-q", tree, device.name()]);
}

#[test]
fn a_mapping_on_a_device_is_named_by_every_command_that_would_disturb_it() {
    let Some((_folder, tree, file)) = place() else {
        return;
    };
    if !testkit::have("dmsetup") || !Path::new("/dev/mapper/control").exists() {
        return testkit::skip("dmsetup, or the kernel's device mapper, is not here");
    }
    testkit::mke2fs(&[&file]);
    let before = sha(&file);
    let device = LoopDevice::over(&file, &[]).unwrap();
    let name = format!("lanefs-test-{}", std::process::id());
    let table = format!("0 32768 linear {} 0", device.name());
    let uuid = format!("CRYPT-LUKS2-{name}");
    let made = Command::new("dmsetup")
        .args([
            "create",
            &name,
            "--noudevsync",
            "--uuid",
            &uuid,
            "--table",
            &table,
        ])
        .output()
        .unwrap();
    if !made.status.success() {
        return testkit::skip("the kernel makes no linear mapping");
    }
    let (file_name, tree) = (file.to_str().unwrap(), tree.to_str().unwrap());
    let mut said = Vec::new();
    for place in [device.name(), file_name] {
        for words in [
            &["mkfs", "-F", place, "8M"][..],
            &["build", "-F", tree, place],
            &["mkdir", &format!("{place}:/new")],
            &["tune", place, "label=x"],
            &["ls", place],
        ] {
            let output = run(words);
            said.push((words.join(" "), output.status.success(), error(&output)));
        }
    }
    tool(Command::new("dmsetup").args(["remove", "--noudevsync", &name]));
    drop(device);
    for (words, succeeded, said) in said {
        assert!(!succeeded, "{words}");
        assert!(
            said.contains(&name) && said.contains("LUKS"),
            "{words}: {said}"
        );
    }
    assert_eq!(sha(&file), before);
}
