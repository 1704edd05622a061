//! Images built by the program: from a pipe, interrupted, refused.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use testkit::{KernelMount, Manifest, e2fsck};

use crate::fixture::{error, lanefs, ok, run};

/// A directory with a few thousand files, and one of 20 MB.
fn source(folder: &Path) -> std::path::PathBuf {
    let source = folder.join("source");
    for directory in 0..20 {
        let path = source.join(format!("d{directory}"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..100 {
            fs::write(path.join(format!("f{file}")), vec![b'x'; 37 * file]).unwrap();
        }
    }
    fs::write(source.join("large"), vec![b'y'; 20_000_000]).unwrap();
    source
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = names
        .map(|name| name.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_pipe_goes_straight_into_an_image_of_any_size() {
    if !testkit::have("tar") || !testkit::have("e2fsck") {
        return testkit::skip("tar and e2fsck are needed");
    }
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    let image = folder.path().join("pipe.img");
    for size in ["auto", "auto+20%", "100M"] {
        let mut tar = Command::new("tar")
            .args(["--format=pax", "-cf", "-", "-C"])
            .args([source.as_os_str(), ".".as_ref()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let status = lanefs()
            .args(["build", "-q", "--size", size, "-"])
            .arg(&image)
            .stdin(tar.stdout.take().unwrap())
            .status()
            .unwrap();
        assert!(status.success() && tar.wait().unwrap().success());
        e2fsck(&image);
        if !testkit::is_root() {
            testkit::skip("mounting needs root");
            continue;
        }
        let mounted = KernelMount::read_only(&image).unwrap();
        let found = Manifest::of(&mounted.path()).unwrap().without_lost_found();
        let differences = Manifest::of(&source).unwrap().differences(&found);
        assert!(differences.is_empty(), "{size}: {differences}");
    }
}

#[test]
fn dense_inodes_are_had_from_a_pipe_and_from_a_file() {
    if !testkit::have("tar") || !testkit::have("e2fsck") {
        return testkit::skip("tar and e2fsck are needed");
    }
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("a.tar");
    let source = source(folder.path());
    let tar = Command::new("tar")
        .args(["--format=pax", "-cf"])
        .args([archive.as_os_str(), "-C".as_ref(), source.as_os_str()])
        .arg(".")
        .status();
    assert!(tar.unwrap().success());
    let cases = [
        // The image ends before its only group is whole.
        (true, "-g 32768 -i 3643 --size auto+32%"),
        (true, "-b 65536 -g 65528 -i 45705"),
        (true, "-g 8192 -i 3643 -O ^flex_bg"),
        // Inode tables fill most of the image.
        (true, "-b 65536 -i 1300 -I 1024"),
        (true, "-g 8192 -i 1186 -I 1024 --size auto+20%"),
        // A group's share is not a multiple of 8.
        (true, "-b 1024 -g 8192 -i 208914 -O ^flex_bg"),
        (true, "-i 16835 -I 4096 -O ^flex_bg"),
        (false, "-b 2048 -g 16384 -i 1024"),
    ];
    for (is_had, letters) in cases {
        for is_piped in [false, true] {
            let image = folder.path().join("image");
            let output = built(&archive, is_piped, letters, &image);
            let said = error(&output);
            assert_eq!(
                output.status.success(),
                is_had,
                "{letters}, {is_piped}: {said}"
            );
            if is_had {
                e2fsck(&image)
            } else {
                assert!(
                    said.contains("error: -i: "),
                    "{letters}, {is_piped}: {said}"
                )
            }
            let _ = fs::remove_file(&image);
        }
    }
}

/// Builds an image of an archive, which comes as a file or through a pipe.
fn built(archive: &Path, is_piped: bool, letters: &str, image: &Path) -> Output {
    let mut command = lanefs();
    command.args(["build", "-q"]).args(letters.split(' '));
    let mut cat = None;
    if is_piped {
        let mut child = Command::new("cat");
        let mut child = child.arg(archive).stdout(Stdio::piped()).spawn().unwrap();
        command.arg("-").stdin(child.stdout.take().unwrap());
        cat = Some(child);
    } else {
        command.arg(archive);
    }
    let output = command.arg(image).output().unwrap();
    cat.map(|mut cat| cat.wait());
    output
}

/// Groups have whole bytes of inodes. A tree that has a few inodes more than the usual number, whatever the remainder,
/// fits a given size from a pipe as it does from a file.
#[test]
fn a_tree_with_more_inodes_than_usual_fits_a_small_size_from_a_pipe() {
    if !testkit::have("tar") || !testkit::have("e2fsck") {
        return testkit::skip("tar and e2fsck are needed");
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    let archive = folder.path().join("a.tar");
    let image = folder.path().join("image");
    let mut files = 0;
    for total in (28..52).chain([700]) {
        while files < total {
            fs::write(source.join(format!("f{files}")), "f").unwrap();
            files += 1;
        }
        let tar = Command::new("tar")
            .arg("-cf")
            .args([archive.as_os_str(), "-C".as_ref(), source.as_os_str()])
            .arg(".")
            .status();
        assert!(tar.unwrap().success());
        for letters in [
            "-b 1024 --size 720K",
            "-b 1024 -O ^flex_bg --size 720K",
            "-i 65536 --size 600K",
            "-O ^flex_bg --size 4000K",
        ] {
            if files > 52 && !letters.ends_with("4000K") {
                continue;
            }
            for is_piped in [false, true] {
                let output = built(&archive, is_piped, letters, &image);
                let said = error(&output);
                assert!(
                    output.status.success(),
                    "{files} {letters}, {is_piped}: {said}"
                );
                e2fsck(&image);
                fs::remove_file(&image).unwrap();
            }
        }
    }
}

#[test]
fn a_pipe_that_does_not_fit_or_ends_early_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("pipe.img");
    // A header that promises five million bytes, and three million of them.
    let mut header = [0u8; 512];
    header[..4].copy_from_slice(b"file");
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", 5_000_000).as_bytes());
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    for (size, expected) in [("auto", ""), ("1M", "too small")] {
        let mut build = lanefs()
            .args(["build", "--size", size, "-"])
            .arg(&image)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = build.stdin.take().unwrap();
        // The program may stop reading before the end.
        let _ = input
            .write_all(&header)
            .and_then(|()| input.write_all(&vec![1; 3_000_000]));
        drop(input);
        let output = build.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", error(&output));
        assert!(error(&output).contains(expected), "{}", error(&output));
        assert!(
            names(folder.path()).is_empty(),
            "{:?}",
            names(folder.path())
        );
    }
}

#[test]
fn an_interrupted_build_exits_with_130_and_leaves_nothing() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let mut build = lanefs()
            .args(["build", "-"])
            .arg(folder.path().join("x.img"))
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = build.stdin.take().unwrap();
        let mut header = [0u8; 512];
        header[..4].copy_from_slice(b"file");
        header[100..107].copy_from_slice(b"0000644");
        header[124..135].copy_from_slice(b"77777777777");
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        input.write_all(&header).unwrap();
        input.write_all(&vec![7; 4 << 20]).unwrap();
        assert_eq!(names(folder.path()).len(), 1, "the temporary file");
        testkit::run("kill", &["-s", signal, &build.id().to_string()]);
        // Data goes on, as from a producer that was not interrupted, until nobody reads it.
        while input.write_all(&[7; 65_536]).is_ok() {}
        assert_eq!(build.wait().unwrap().code(), Some(130));
        assert!(
            names(folder.path()).is_empty(),
            "{:?}",
            names(folder.path())
        );
    }
}

/// When a user interrupts `ssh host tar c | lanefs build - IMAGE`, the producer writes nothing more, or ends too.
#[test]
fn a_build_that_waits_for_a_pipe_can_be_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    testkit::run("mkfifo", &[fifo.to_str().unwrap()]);
    for (source, ends) in [("-", false), ("-", true), (fifo.to_str().unwrap(), false)] {
        let images = tempfile::tempdir().unwrap();
        let mut build = lanefs()
            .args(["build", source])
            .arg(images.path().join("x.img"))
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = build.stdin.take();
        if source == "-" {
            // The start of an archive that goes on.
            input.as_mut().unwrap().write_all(&[7; 100]).unwrap();
        }
        // Until signals are caught; before, they end the program by themselves.
        let status = format!("/proc/{}/status", build.id());
        let caught = || {
            let status = fs::read_to_string(&status).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap() & 2 != 0
        };
        while !caught() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        testkit::run("kill", &["-s", "INT", &build.id().to_string()]);
        if ends {
            input = None;
        }
        let output = build.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{source} {ends}: {said}");
        assert!(said.contains("interrupted"), "{source} {ends}: {said}");
        assert!(names(images.path()).is_empty(), "{source} {ends}");
        drop(input);
    }
}

/// Standard input that is a file can be read out of order, a pipe can't.
#[test]
fn a_container_image_on_standard_input_is_built_from_a_file_and_from_a_pipe() {
    if !testkit::have("tar") {
        return testkit::skip("tar is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("rootfs/etc")).unwrap();
    fs::write(path("rootfs/etc/motd"), "hello\n").unwrap();
    let manifest = r#"[{"Config":"config.json","Layers":["layer.tar"]}]"#
        .replace("layer.tar", &format!("{}/layer.tar", "a".repeat(64)));
    fs::create_dir_all(path("saved").join("a".repeat(64))).unwrap();
    fs::write(path("saved/manifest.json"), manifest).unwrap();
    let layer = path("saved").join("a".repeat(64)).join("layer.tar");
    let pack = |from: &str, to: &Path| {
        let from = path(from);
        let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
        testkit::run("tar", &["-C", from, "-cf", to, "."]);
    };
    pack("rootfs", &layer);
    let digest = testkit::sha256(&fs::read(&layer).unwrap());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","rootfs":{{"type":"layers","diff_ids":["sha256:{digest}"]}}}}"#
    );
    fs::write(path("saved/config.json"), config).unwrap();
    pack("saved", &path("saved.tar"));
    let image = path("x.img");
    let build = |input: Stdio| {
        let mut command = lanefs();
        command.args(["build", "-q", "-"]).arg(&image).stdin(input);
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut piped = build(Stdio::piped());
    let bytes = fs::read(path("saved.tar")).unwrap();
    piped.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = piped.wait_with_output().unwrap();
    let said = error(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        ok(["cat", &format!("{}:/etc/motd", image.display())]),
        "hello\n"
    );
    fs::remove_file(&image).unwrap();
    assert!(!image.exists());
    let file = build(fs::File::open(path("saved.tar")).unwrap().into());
    let output = file.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", error(&output));
    let inside = format!("{}:/etc/motd", image.display());
    assert_eq!(ok(["cat", &inside]), "hello\n");
}

#[test]
fn sizes_and_times_that_make_no_sense_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (source(folder.path()), folder.path().join("x.img"));
    let paths = [source.to_str().unwrap(), image.to_str().unwrap()];
    for size in ["auto+", "auto-1", "12Q", "+x%"] {
        let output = run(["build", "--size", size, paths[0], paths[1]]);
        assert_eq!(output.status.code(), Some(2), "{size}: {}", error(&output));
    }
    let output = lanefs()
        .env("SOURCE_DATE_EPOCH", "now")
        .arg("build")
        .args(paths)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(names(folder.path()), ["source"]);
}

#[test]
fn the_clock_does_not_show_with_source_date_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    let mut images = Vec::new();
    for name in ["1.img", "2.img"] {
        let image = folder.path().join(name);
        let status = lanefs()
            .env("SOURCE_DATE_EPOCH", "1500000000")
            .args(["build", "-q"])
            .args([&source, &image])
            .status()
            .unwrap();
        assert!(status.success());
        images.push(testkit::read_image(&image));
        std::thread::sleep(std::time::Duration::from_millis(1100));
    }
    assert!(images[0] == images[1]);
}

#[test]
fn what_is_built_is_read_back_by_the_program_itself() {
    let folder = tempfile::tempdir().unwrap();
    let source = source(folder.path());
    let image = folder.path().join("x.img");
    ok([
        "build",
        "-q",
        source.to_str().unwrap(),
        image.to_str().unwrap(),
    ]);
    let listed = ok(["ls", image.to_str().unwrap(), "/d7"]);
    assert_eq!(listed.split_whitespace().count(), 100, "{listed}");
}

#[test]
fn options_stand_anywhere_between_the_paths() {
    let folder = tempfile::tempdir().unwrap();
    let (source, image) = (source(folder.path()), folder.path().join("x.img"));
    let [source, image] = [source.to_str().unwrap(), image.to_str().unwrap()];
    ok([
        "build",
        source,
        "-q",
        "-L",
        "between",
        image,
        "--reproducible",
    ]);
    assert!(ok(["info", image]).contains("between"));
    let out = folder.path().join("out");
    ok(["extract", image, "-j", "2", out.to_str().unwrap()]);
    assert!(out.join("d7/f99").exists());
    let copy = folder.path().join("copy");
    let from = format!("{image}:/d7");
    ok(["cp", &from, "-r", copy.to_str().unwrap()]);
    assert!(copy.join("f99").exists());
    for command in ["build", "cp", "extract"] {
        let output = run([command, "one"]);
        assert_eq!(output.status.code(), Some(2), "{}", error(&output));
    }
}
