//! The examples of the man pages, run as a reader would run them.

use std::fs;
use std::path::Path;
use std::process::Command;

use lanefs_cli::examples::EXAMPLES;

use crate::fixture::{lanefs, ok, tool};
use crate::readme::shell;

/// What the examples find in their folder.
fn furnish(folder: &Path) {
    fs::create_dir_all(folder.join("rootfs/etc/app")).unwrap();
    fs::create_dir(folder.join("mnt")).unwrap();
    fs::write(folder.join("rootfs/etc/motd"), "welcome\n").unwrap();
    fs::write(folder.join("rootfs/etc/hosts"), "127.0.0.1 localhost\n").unwrap();
    fs::write(folder.join("rootfs/etc/app/app.conf"), "a = 1\n").unwrap();
    fs::write(folder.join("app.conf"), "a = 2\n").unwrap();
    fs::write(
        folder.join("changes.txt"),
        "mkdir -p /srv\nmv /etc/motd /srv/\n",
    )
    .unwrap();
    let mut tar = Command::new("tar");
    tool(
        tar.args(["-cf", "rootfs.tar", "-C", "rootfs", "."])
            .current_dir(folder),
    );
    ok([
        Path::new("build"),
        &folder.join("rootfs"),
        &folder.join("disk.img"),
    ]);
}

#[test]
fn every_example_of_the_man_pages_succeeds() {
    let mounts = Path::new("/dev/fuse").exists() && testkit::is_root();
    if !mounts {
        testkit::skip("the mounts in the examples take root and /dev/fuse");
    }
    let lanefs_bench = Path::new(lanefs().get_program()).with_file_name("lanefs-bench");
    if !lanefs_bench.exists() {
        testkit::skip("lanefs-bench is not built");
    }
    for (command, examples) in EXAMPLES {
        if *command == "bench" && !lanefs_bench.exists() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        furnish(folder.path());
        let is_mount = |line: &str| line.contains("mount ");
        for example in examples
            .iter()
            .filter(|example| mounts || !is_mount(example.line))
        {
            assert!(
                example.line.contains(&format!("lanefs {command} ")),
                "{command}: {}",
                example.line
            );
            let output = shell(folder.path(), example.line);
            let printed = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{}: {printed}", example.line);
        }
    }
}

#[test]
fn every_command_has_examples() {
    for command in lanefs_cli::command().get_subcommands() {
        let name = command.get_name();
        assert!(!lanefs_cli::examples::of(name).is_empty(), "{name}");
    }
}
