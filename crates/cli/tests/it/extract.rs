//! What comes out of an image is what the kernel shows in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::{KernelMount, Manifest};

use crate::fixture::{Fixture, error, lanefs, ok, run};

/// Asserts that a folder holds what the kernel shows of the image.
fn assert_same(fixture: &Fixture, folder: &Path) {
    let mounted = KernelMount::read_only(&fixture.image).unwrap();
    let theirs = Manifest::of(&mounted.path()).unwrap().without_lost_found();
    let ours = Manifest::of(folder).unwrap();
    let differences = ours.differences(&theirs);
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn a_directory_gets_all_that_the_kernel_shows() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    for threads in ["1", "4"] {
        let out = fixture.path(&format!("out{threads}"));
        ok([
            "extract",
            "-j",
            threads,
            fixture.image.to_str().unwrap(),
            out.to_str().unwrap(),
        ]);
        assert_same(&fixture, &out);
    }
    let out = fixture.path("out1");
    let holes = |path: &Path| std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap());
    assert!(
        holes(&out.join("holes")) < 100,
        "{}",
        holes(&out.join("holes"))
    );
}

#[test]
fn what_a_tar_cannot_hold_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
    fs::create_dir(path("tree")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("tree/socket")).unwrap();
    ok(["build", "-q", &path("tree"), &path("x.img")]);
    let output = run(["extract", &path("x.img"), &path("x.tar")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("1 sockets, which a tar can't hold"), "{said}");
}

#[test]
fn a_tar_that_tar_unpacks_gets_all_that_the_kernel_shows() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let out = fixture.path("out");
    fs::create_dir(&out).unwrap();
    let mut pack = lanefs()
        .args(["extract", fixture.image.to_str().unwrap(), "-"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let unpack = Command::new("tar")
        .args([
            "-x",
            "-p",
            "--numeric-owner",
            "--xattrs",
            "--xattrs-include=*",
            "--acls",
            "-C",
        ])
        .arg(&out)
        .stdin(pack.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(unpack.status.success(), "{}", error(&unpack));
    assert!(pack.wait().unwrap().success());
    assert_same(&fixture, &out);

    let file = fixture.path("out.tar");
    ok([
        "extract",
        fixture.image.to_str().unwrap(),
        file.to_str().unwrap(),
    ]);
    assert!(
        file.metadata().unwrap().len() < 5 << 20,
        "holes stay holes in the tar"
    );
    let again = run([
        "extract",
        fixture.image.to_str().unwrap(),
        file.to_str().unwrap(),
    ]);
    assert!(error(&again).contains("exists"), "{}", error(&again));
}

#[test]
fn a_subdirectory_and_a_single_file_can_be_extracted() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let out = fixture.path("sub");
    ok([
        "-q",
        "extract",
        &fixture.at("/dir/sub"),
        out.to_str().unwrap(),
    ]);
    assert_eq!(fs::read(out.join("deeper/x")).unwrap(), b"x");
    let image = fixture.image.to_str().unwrap();
    let one = fixture.path("one");
    ok(["-q", "extract", image, "/hello.txt", one.to_str().unwrap()]);
    assert_eq!(fs::read(one.join("hello.txt")).unwrap(), b"hello, ext4\n");
}

#[test]
fn somebody_who_is_not_root_gets_the_contents_and_one_warning() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let out = fixture.path("theirs");
    fs::create_dir(&out).unwrap();
    std::os::unix::fs::chown(&out, Some(65534), Some(65534)).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(fixture.folder.path(), open).unwrap();
    let mut command = lanefs();
    // The build folder may be closed to others, so the program comes along.
    let program = fixture.path("lanefs");
    testkit::copy_program(command.get_program(), &program);
    command = Command::new(&program);
    let output = command
        .args([
            "extract",
            fixture.image.to_str().unwrap(),
            out.to_str().unwrap(),
        ])
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = error(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("warning: not restored:") && said.contains("2 devices"),
        "{said}"
    );
    assert_eq!(
        fs::read(out.join("big")).unwrap(),
        fs::read(fixture.source.join("big")).unwrap()
    );
    let mode =
        |path: &Path| std::os::unix::fs::MetadataExt::mode(&path.metadata().unwrap()) & 0o7777;
    assert_eq!(
        mode(&out.join("nothing")),
        0o711,
        "no set-user-ID for the wrong user"
    );
    assert_eq!(
        mode(&out.join("dir/README.md")),
        0o660,
        "the rest of the mode is kept"
    );
}

#[test]
fn a_destination_that_is_not_empty_is_left_alone_unless_asked() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let out = fixture.path("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("hello.txt"), "mine").unwrap();
    let (image, to) = (fixture.image.to_str().unwrap(), out.to_str().unwrap());
    let output = run(["extract", image, to]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("--overwrite"), "{}", error(&output));
    assert_eq!(fs::read(out.join("hello.txt")).unwrap(), b"mine");
    ok(["-q", "extract", "--overwrite", image, to]);
    assert_eq!(fs::read(out.join("hello.txt")).unwrap(), b"hello, ext4\n");
}

#[test]
fn an_interrupted_extraction_exits_with_130_and_leaves_whole_files_only() {
    const FILES: usize = 5000;
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (folder.path().join("source"), folder.path().join("x.img"));
    fs::create_dir(&source).unwrap();
    let content = [7; 20_000];
    for number in 0..FILES {
        fs::write(source.join(number.to_string()), content).unwrap();
    }
    ok([
        "-q",
        "build",
        source.to_str().unwrap(),
        image.to_str().unwrap(),
    ]);
    let root = format!("{}:/", image.display());
    for arguments in [&["extract", "-j", "1", &root][..], &["cp", "-r", &root]] {
        let out = folder.path().join(arguments[0]);
        let command = lanefs()
            .args(arguments)
            .arg(&out)
            .stderr(Stdio::piped())
            .spawn();
        let command = command.unwrap();
        let count = || fs::read_dir(&out).map_or(0, Iterator::count);
        while count() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        testkit::run("kill", &["-s", "TERM", &command.id().to_string()]);
        let output = command.wait_with_output().unwrap();
        let said = error(&output);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(count() < FILES, "it was not interrupted at all");
        assert!(
            said.contains("interrupted") && said.contains(&format!("{} whole files", count())),
            "{said}"
        );
        for entry in fs::read_dir(&out).unwrap() {
            assert_eq!(fs::read(entry.unwrap().path()).unwrap(), content);
        }
    }
}

#[test]
fn links_in_the_destination_lead_no_write_elsewhere() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let (out, elsewhere) = (fixture.path("out"), fixture.path("elsewhere"));
    fs::create_dir(&out).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("victim"), "safe").unwrap();
    symlink(&elsewhere, out.join("dir")).unwrap();
    symlink(elsewhere.join("victim"), out.join("hello.txt")).unwrap();
    let (image, to) = (fixture.image.to_str().unwrap(), out.to_str().unwrap());
    for arguments in [
        &["-q", "extract", "--overwrite", image, to][..],
        &["-q", "cp", "-r", &fixture.at("/"), to],
    ] {
        let output = run(arguments);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{arguments:?}: {}",
            error(&output)
        );
        assert!(error(&output).contains("dir"), "{}", error(&output));
        assert_eq!(
            fs::read_dir(&elsewhere).unwrap().count(),
            1,
            "{arguments:?}"
        );
        assert_eq!(
            fs::read(elsewhere.join("victim")).unwrap(),
            b"safe",
            "{arguments:?}"
        );
        assert_eq!(
            fs::read(out.join("hello.txt")).unwrap(),
            b"hello, ext4\n",
            "{arguments:?}"
        );
    }
}

#[test]
fn cp_copies_trees_and_keeps_what_it_is_told_to() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let out = fixture.path("out");
    let to = out.to_str().unwrap();
    let refused = run(["cp", &fixture.at("/dir"), to]);
    assert!(error(&refused).contains("say -r"), "{}", error(&refused));
    ok(["cp", "-a", &fixture.at("/"), to]);
    assert_same(&fixture, &out);
    let plain = fixture.path("plain");
    fs::create_dir(&plain).unwrap();
    ok([
        "cp",
        "-r",
        &fixture.at("/dir"),
        &fixture.at("/hello.txt"),
        plain.to_str().unwrap(),
    ]);
    assert!(plain.join("dir/sub/deeper/x").exists() && plain.join("hello.txt").exists());
    let between = run(["cp", &fixture.at("/dir"), &fixture.at("/y")]);
    assert_eq!(between.status.code(), Some(2));
}
