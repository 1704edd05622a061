//! Commands that change images: what they do as the kernel and e2fsck see it, scripts, exit statuses.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{Fixture, error, lanefs, ok, run, tool};

/// Runs a script from standard input on the image.
fn edit(image: &Path, script: &str) -> std::process::Output {
    edit_with(image, script, &[])
}

fn edit_with(image: &Path, script: &str, options: &[&str]) -> std::process::Output {
    use std::io::Write;
    let mut command = lanefs();
    command.arg("edit").args(options).arg(image).arg("-");
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(script.as_bytes()).unwrap();
    drop(input);
    child.wait_with_output().unwrap()
}

fn look(fixture: &Fixture, check: impl FnOnce(&Path)) {
    testkit::e2fsck(&fixture.image);
    let mounted = testkit::KernelMount::read_only(&fixture.image).unwrap();
    check(&mounted.path());
}

#[test]
fn files_and_trees_are_copied_into_an_image() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let big = fixture.source.join("big");
    ok(["cp", big.to_str().unwrap(), &fixture.at("/empty")]);
    ok(["cp", big.to_str().unwrap(), &fixture.at("/hello.txt")]);
    ok(["mkdir", &fixture.at("/copy")]);
    let dir = fixture.source.join("dir");
    ok(["cp", "-rp", dir.to_str().unwrap(), &fixture.at("/copy")]);
    let holes = fixture.source.join("holes");
    let fast = fixture.source.join("fast");
    let sources = [holes.to_str().unwrap(), fast.to_str().unwrap()];
    ok(["cp", "-r", sources[0], sources[1], &fixture.at("/copy/")]);
    look(&fixture, |root| {
        let expected = fs::read(&big).unwrap();
        assert!(fs::read(root.join("empty/big")).unwrap() == expected);
        assert!(fs::read(root.join("hello.txt")).unwrap() == expected);
        let copied = testkit::Manifest::of(&root.join("copy/dir")).unwrap();
        let source = testkit::Manifest::of(&dir).unwrap();
        for (path, entry) in &source.entries {
            let found = &copied.entries[path];
            assert_eq!(
                (
                    found.kind,
                    found.mode,
                    found.uid,
                    found.gid,
                    found.mtime,
                    &found.contents
                ),
                (
                    entry.kind,
                    entry.mode,
                    entry.uid,
                    entry.gid,
                    entry.mtime,
                    &entry.contents
                ),
                "{}",
                String::from_utf8_lossy(path)
            );
        }
        let hole = fs::metadata(root.join("copy/holes")).unwrap();
        assert_eq!(hole.len(), 9 << 20);
        assert!(hole.blocks() < 40, "{}", hole.blocks());
        assert_eq!(
            fs::read_link(root.join("copy/fast")).unwrap(),
            Path::new("hello.txt")
        );
    });
}

#[test]
fn a_script_changes_an_image_and_is_quoted_as_in_sh() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let hello = fixture.source.join("hello.txt");
    let script = format!(
        "# a comment\n\nmkdir -p \"/etc/my app/conf.d\"   # another\n\
         cp {} '/etc/my app/it'\\''s'\n\
         chmod u+x,go= /etc/my\\ app/it\\'s\n\
         chown 1000:1001 \"/etc/my app/it's\"\n\
         ln \"/etc/my app/it's\" /hard\nln -s ../../hello.txt /etc/link\n\
         touch -d @1000.5 /new\nmv /big /etc/\ntruncate -s 5000 /etc/big\n\
         rm -r /dir /fast\nrm -f /nowhere\nrename\n",
        hello.display()
    );
    let output = edit(&fixture.image, &script);
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("line 14"), "{}", error(&output));
    let untouched = ok(["ls", &fixture.at("/")]);
    assert!(
        untouched.contains("big") && !untouched.contains("etc"),
        "{untouched}"
    );

    let output = edit(&fixture.image, script.trim_end_matches("rename\n"));
    assert!(output.status.success(), "{}", error(&output));
    look(&fixture, |root| {
        let file = fs::metadata(root.join("etc/my app/it's")).unwrap();
        assert_eq!((file.mode() & 0o7777, file.nlink()), (0o700, 2));
        assert_eq!((file.uid(), file.gid()), (1000, 1001));
        assert_eq!(fs::read(root.join("hard")).unwrap(), b"hello, ext4\n");
        let link = fs::read_link(root.join("etc/link")).unwrap();
        assert_eq!(link, Path::new("../../hello.txt"));
        let new = fs::metadata(root.join("new")).unwrap();
        assert_eq!((new.mtime(), new.mtime_nsec()), (1000, 500_000_000));
        let big = fs::read(root.join("etc/big")).unwrap();
        assert!(big == fs::read(fixture.source.join("big")).unwrap()[..5000]);
        assert!(!root.join("dir").exists() && !root.join("fast").exists());
        assert!(
            fs::metadata(root.join("etc/my app/conf.d"))
                .unwrap()
                .is_dir()
        );
    });
}

#[test]
fn a_script_stops_at_the_first_failure_and_keeps_what_was_done() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let output = edit(
        &fixture.image,
        "mkdir /one\n\nmkdir /hello.txt\nmkdir /two\n",
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("line 3: /hello.txt: file exists"),
        "{}",
        error(&output)
    );
    let names = ok(["ls", &fixture.at("/")]);
    assert!(names.contains("one") && !names.contains("two"), "{names}");
    testkit::e2fsck(&fixture.image);
}

#[test]
fn a_script_without_end_is_refused_before_it_takes_all_memory() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let script = fixture.source.join("script");
    let file = fs::File::create(&script).unwrap();
    file.set_len((16 << 20) + 1).unwrap();
    let before = testkit::read_image(&fixture.image);
    let output = run([
        "edit",
        fixture.image.to_str().unwrap(),
        script.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(error(&output).contains("at most 16 MiB"), "{output:?}");
    assert!(testkit::read_image(&fixture.image) == before);
}

#[test]
fn permissions_and_owners_are_changed_below_a_directory() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    ok(["chmod", "-R", "a=rX,u+w", &fixture.at("/dir")]);
    ok(["chown", "-R", "7:8", &fixture.at("/dir")]);
    ok(["chown", "--no-dereference", ":9", &fixture.at("/fast")]);
    look(&fixture, |root| {
        let of = |name: &str| {
            let metadata = fs::symlink_metadata(root.join(name)).unwrap();
            (
                metadata.permissions().mode() & 0o7777,
                metadata.uid(),
                metadata.gid(),
            )
        };
        assert_eq!(of("dir"), (0o755, 7, 8));
        assert_eq!(of("dir/README.md"), (0o644, 7, 8));
        assert_eq!(of("dir/sub/deeper"), (0o755, 7, 8));
        assert_eq!(of("fast").2, 9);
        assert_eq!(of("hello.txt").1, 7, "the same inode as dir/same.txt");
    });
    let found = testkit::debugfs(&["-R", "stat /dir/README.md", fixture.image.to_str().unwrap()]);
    let found = String::from_utf8_lossy(&found.stdout);
    assert!(found.contains("User:     7   Group:     8"), "{found}");
}

#[test]
fn what_cannot_be_changed_says_why() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let image = fixture.image.to_str().unwrap();
    for (arguments, status, text) in [
        (&["mkdir", image][..], 2, "names no path"),
        (
            &["mkdir", &fixture.at("/hello.txt/x")],
            1,
            "not a directory",
        ),
        (&["rm", &fixture.at("/dir")], 1, "say -r"),
        (&["rm", &fixture.at("/missing")], 1, "no such file"),
        (&["rm", "-r", &fixture.at("/")], 1, "/:"),
        (
            &["rm", "-rf", &fixture.at("/dir/..")],
            1,
            "invalid argument",
        ),
        (
            &["mv", &fixture.at("/dir"), &fixture.at("/dir/sub")],
            1,
            "invalid argument",
        ),
        (
            &["mv", "-n", &fixture.at("/big"), &fixture.at("/nothing")],
            1,
            "file exists",
        ),
        (&["chmod", "9z", &fixture.at("/big")], 2, "invalid mode"),
        (&["chown", "root", &fixture.at("/big")], 2, "invalid owner"),
        (
            &["chown", "4294967295", &fixture.at("/big")],
            2,
            "is reserved in Linux",
        ),
        (
            &["ln", &fixture.at("/dir"), &fixture.at("/x")],
            1,
            "not permitted",
        ),
        (
            &["truncate", "-s", "1", &fixture.at("/dir")],
            1,
            "is a directory",
        ),
        (&["cp", "/nowhere", &fixture.at("/")], 1, "/nowhere"),
        (
            &["mv", &fixture.at("/big"), "other.img:/big"],
            2,
            "two images",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{arguments:?}: {}",
            error(&output)
        );
        assert!(
            error(&output).contains(text),
            "{arguments:?}: {}",
            error(&output)
        );
    }
    testkit::e2fsck(&fixture.image);
}

#[test]
fn attributes_and_flags_are_set_as_setfattr_and_chattr_set_them() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let at = fixture.at("/hello.txt");
    ok(["setfattr", "-n", "user.text", "-v", "plain text", &at]);
    ok(["setfattr", "-n", "user.hex", "-v", "0x00ff", &at]);
    ok(["setfattr", "-n", "trusted.base", "-v", "0saGVsbG8=", &at]);
    ok(["setfattr", "-n", "user.gone", &at]);
    ok(["setfattr", "-x", "user.gone", &at]);
    ok(["chattr", "+Ad", &at]);
    let shown = ok(["stat", &at]);
    assert!(shown.contains("trusted.base=\"hello\""), "{shown}");
    let missing = run(["setfattr", "-x", "user.gone", &at]);
    assert!(error(&missing).contains("no such attribute"));
    assert_eq!(run(["setfattr", &at]).status.code(), Some(2));
    ok(["chattr", "+i", &at]);
    assert!(error(&run(["rm", &at])).contains("not permitted"));
    look(&fixture, |root| {
        let path = root.join("hello.txt");
        let get = |name: &str| {
            let mut getfattr = Command::new("getfattr");
            let text = tool(getfattr.args(["-e", "hex", "-n", name]).arg(&path));
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_once('=').unwrap().1.to_owned()
        };
        assert_eq!(get("user.text"), "0x706c61696e2074657874");
        assert_eq!(get("user.hex"), "0x00ff");
        assert_eq!(get("trusted.base"), "0x68656c6c6f");
    });
    ok(["chattr", "-i", &at]);
    ok(["rm", &at]);
}

#[test]
fn an_atomic_script_is_done_as_a_whole_or_not_at_all() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let big = fixture.source.join("big");
    let script = format!("mkdir -p /a/b\ncp {} /a/b\nrm /hello.txt\n", big.display());
    let failing = edit_with(
        &fixture.image,
        &format!("{script}rm /missing\n"),
        &["--atomic"],
    );
    assert_eq!(failing.status.code(), Some(1));
    assert!(error(&failing).contains("line 4"), "{failing:?}");
    look(&fixture, |root| {
        assert!(!root.join("a").exists() && root.join("hello.txt").exists());
    });
    let done = edit_with(&fixture.image, &script, &["--atomic"]);
    assert!(done.status.success(), "{done:?}");
    look(&fixture, |root| {
        assert!(root.join("a/b/big").exists() && !root.join("hello.txt").exists());
        assert!(fs::read(root.join("a/b/big")).unwrap() == fs::read(&big).unwrap());
    });
    // Without a journal it is refused, and the image is as clean as it was.
    let plain = fixture.image.with_extension("plain");
    let shown = plain.to_str().unwrap();
    ok(["mkfs", "-O", "^has_journal", shown, "16M"]);
    let refused = edit_with(&plain, "mkdir /d\n", &["--atomic"]);
    assert!(error(&refused).contains("no journal"), "{refused:?}");
    assert!(edit_with(&plain, "mkdir /d\n", &[]).status.success());
    let large: String = (0..100_000).map(|n| format!("mkdir /a/{n}\n")).collect();
    let refused = edit_with(&fixture.image, &large, &["--atomic"]);
    // What ends first: the log, or the image.
    let text = error(&refused);
    let is_refused = text.contains("one transaction") || text.contains("no space left");
    assert!(
        is_refused && text.contains("nothing was changed"),
        "{refused:?}"
    );
    look(&fixture, |root| {
        assert_eq!(fs::read_dir(root.join("a")).unwrap().count(), 1);
    });
}

#[test]
fn what_is_wrong_with_a_line_is_said_alike_after_other_lines() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let before = "mkdir -p -m 700 /x/y\nrm -rf /x\n";
    for wrong in [
        "mkdri /a",
        "mkdir",
        "mkdir --parent /a",
        "chmod 9 /a",
        "cp a",
        "touch --date=never /a",
        "help",
        "rm --help",
    ] {
        let said = |script: String| {
            let failed = edit_with(&fixture.image, &script, &[]);
            assert_eq!(failed.status.code(), Some(1), "{script}: {failed:?}");
            error(&failed)
        };
        let alone = said(format!("{wrong}\n"));
        let after = said(format!("{before}{wrong}\n"));
        assert_eq!(alone.replace("line 1", "line 3"), after);
    }
}

#[test]
fn an_archived_copy_into_an_image_keeps_attributes_and_acls() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    if !testkit::have("setfacl") || !testkit::have("getfattr") {
        return testkit::skip("needs setfacl and getfattr");
    }
    // On ext4, for not every file system of a host has attributes.
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join("host.img");
    ok(["mkfs", host.to_str().unwrap(), "16M"]);
    let mounted = testkit::KernelMount::with(&host, "loop").unwrap();
    let tree = mounted.path().join("tree");
    let script = "mkdir -p tree/sub && echo 1 > tree/f && ln -s f tree/l && setfacl -m u:7:rw tree/f && \
        setfacl -d -m u:8:rx tree/sub && echo 2 > tree/sub/g && setfattr -n user.x -v 1 tree/f tree/sub && \
        setfattr -h -n trusted.y -v 2 tree/l && head -c 700 /dev/zero | tr '\\0' z > tree/z && \
        setfattr -n user.large -v $(cat tree/z) tree/z";
    tool(
        Command::new("sh")
            .args(["-c", script])
            .current_dir(mounted.path()),
    );
    let told = |root: &Path| {
        let script = "find tree | LC_ALL=C sort | while read f; do stat -c '%n %a %u' \"$f\"; \
            getfattr -h -d -m . -e hex \"$f\"; done";
        tool(Command::new("sh").args(["-c", script]).current_dir(root))
    };
    ok(["cp", "-a", tree.to_str().unwrap(), &fixture.at("/")]);
    // Over what is there, too.
    ok(["cp", "-a", tree.to_str().unwrap(), &fixture.at("/")]);
    let expected = told(&mounted.path());
    assert!(expected.contains("user.large") && expected.contains("posix_acl_default"));
    look(&fixture, |root| assert_eq!(told(root), expected));
}

#[test]
fn a_link_that_replaces_a_file_leaves_it_where_it_fails() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let (hello, empty) = (fixture.at("/hello.txt"), fixture.at("/empty.txt"));
    let text = ok(["cat", &hello]);
    ok(["ln", "-f", &hello, &hello]);
    assert_eq!(ok(["cat", &hello]), text);
    let missing = run(["ln", "-f", &fixture.at("/missing"), &hello]);
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(ok(["cat", &hello]), text);
    ok(["touch", &empty]);
    ok(["ln", "-f", &hello, &empty]);
    assert_eq!(ok(["cat", &empty]), text);
    ok(["ln", "-sf", "missing", &empty]);
    ok(["ln", "-sf", "hello.txt", &empty]);
    assert_eq!(ok(["cat", &empty]), text);
    assert!(!ok(["ls", "-a", &fixture.at("/")]).contains(".lanefs-"));
    testkit::e2fsck(&fixture.image);
}

#[test]
fn a_slash_at_the_end_asks_for_a_directory() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let (hello, place) = (fixture.at("/hello.txt"), fixture.at("/none/"));
    let big = fixture.source.join("big");
    for arguments in [
        ["cp", big.to_str().unwrap(), &place],
        ["mv", &hello, &place],
        ["ln", &hello, &place],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(error(&output).contains("/none/ is not a directory"));
    }
    ok(["mkdir", &place]);
    ok(["mv", &place, &fixture.at("/other/")]);
    ok(["mv", &hello, &fixture.at("/other/")]);
    assert_eq!(ok(["ls", &fixture.at("/other")]), "hello.txt\n");
}

#[test]
fn mv_of_a_file_onto_itself_is_refused_and_onto_another_name_of_it_leaves_that() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let (hello, other) = (fixture.at("/hello.txt"), fixture.at("/dir/other"));
    for (from, to) in [
        (&hello, &hello),
        (&hello, &fixture.at("/dir/../hello.txt")),
        (&hello, &fixture.at("/")),
        (&fixture.at("/dir"), &fixture.at("/")),
        (&fixture.at("/dir/"), &fixture.at("/dir/..")),
    ] {
        let output = run(["mv", from, to]);
        assert_eq!(output.status.code(), Some(1), "{from} {to}");
        let said = error(&output);
        assert!(said.contains("are the same file"), "{from} {to}: {said}");
    }
    let text = ok(["cat", &hello]);
    ok(["ln", &hello, &other]);
    // As with mv(1), a name that exists is left.
    run(["mv", "-n", &hello, &other]);
    ok(["cat", &hello]);
    ok(["mv", &hello, &other]);
    assert_eq!(run(["cat", &hello]).status.code(), Some(1));
    assert_eq!(ok(["cat", &other]), text);
    testkit::e2fsck(&fixture.image);
}

#[test]
fn a_time_that_no_inode_holds_is_stored_as_the_nearest_with_a_warning() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let hello = fixture.at("/hello.txt");
    for (date, warned) in [
        ("2446-05-11T00:00:00Z", true),
        ("@-2147483649", true),
        ("2446-05-10T00:00:00Z", false),
        ("1901-12-14T00:00:00Z", false),
    ] {
        let output = run(["touch", "-d", date, &hello]);
        assert_eq!(output.status.code(), Some(0), "{date}");
        let said = error(&output);
        assert_eq!(said.contains("2446-05-10"), warned, "{date}: {said}");
    }
}
