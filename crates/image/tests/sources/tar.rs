//! Directories and the tar archives that GNU tar, Python and hand make of them give the same tree.

use std::path::Path;

use crate::support::*;
use lanefs_image::source::Kind;
use sync::atomic::AtomicBool;

fn everything() -> Option<tempfile::TempDir> {
    if !can_run(&["tar", "setfattr", "setfacl", "python3", "xz", "zstd"]) {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("tree")).unwrap();
    sh(&directory.path().join("tree"), EVERYTHING);
    Some(directory)
}

#[test]
fn a_directory_is_what_the_kernel_says_it_is() {
    let Some(directory) = everything() else {
        return;
    };
    let root = directory.path().join("tree");
    let expected = manifest_of_directory(&root, ALL);
    for threads in [1, 2, 7] {
        let options = lanefs_image::source::Options {
            threads,
            ..options(&[&root])
        };
        let tree = lanefs_image::source::scan(&options).unwrap();
        assert_same(&manifest(&tree, ALL), &expected, "directory");
        let sparse = tree.find(b"sparse").unwrap();
        assert!(tree.is_sparse(sparse) && tree.data_bytes(sparse) < 100_000);
        assert_eq!(tree.data_bytes(tree.find(b"hole").unwrap()), 0);
    }
}

#[test]
fn gnu_tar_archives_of_every_format_hold_what_the_directory_holds() {
    let Some(directory) = everything() else {
        return;
    };
    let root = directory.path().join("tree");
    let pax = "--format=pax --xattrs --xattrs-include='*' --acls --selinux --numeric-owner";
    // What the older formats can hold: their numbers and names are bounded, and there are no extended attributes.
    let old = Parts {
        nanoseconds: false,
        xattrs: false,
        sockets: false,
    };
    let full = Parts {
        sockets: false,
        ..ALL
    };
    for (flags, parts) in [
        (pax.to_string(), full),
        (format!("{pax} --sparse"), full),
        (format!("{pax} --sparse --sparse-version=0.1"), full),
        (format!("{pax} --sparse --sparse-version=0.0"), full),
        (format!("{pax} --hole-detection=raw --sparse"), full),
        ("--format=gnu".to_string(), old),
        ("--format=gnu --sparse".to_string(), old),
        ("--format=oldgnu --sparse".to_string(), old),
    ] {
        sh(
            directory.path(),
            &format!("tar -c --exclude ./socket {flags} -C tree -f t.tar ."),
        );
        let expected = manifest_of_directory(&root, parts);
        let tree = scan(&[&directory.path().join("t.tar")]).unwrap();
        assert_same(&manifest(&tree, parts), &expected, &flags);
        if flags.contains("--sparse") {
            assert!(tree.is_sparse(tree.find(b"sparse").unwrap()), "{flags}");
        }
    }
}

#[test]
fn files_beyond_eight_gibibytes_are_read_from_every_format_that_holds_them() {
    let Some(directory) = everything() else {
        return;
    };
    let root = directory.path().join("big");
    std::fs::create_dir(&root).unwrap();
    sh(
        &root,
        "truncate -s 9G big; printf x | dd of=big bs=1 seek=9000000000 conv=notrunc status=none;
         touch -d @5 . big",
    );
    for format in ["gnu", "oldgnu", "pax", "pax --sparse-version=0.0"] {
        let flags = format!("tar -c --format={format} --sparse -C big -f t.tar .");
        sh(directory.path(), &flags);
        let tree = scan(&[&directory.path().join("t.tar")]).unwrap();
        let big = tree.find(b"big").unwrap();
        assert_eq!(tree.kind(big), Kind::File { size: 9 << 30 }, "{format}");
        let mut byte = [0];
        tree.open(big, &mut lanefs_image::source::Nearby::default())
            .unwrap()
            .read_at(9_000_000_000, &mut byte)
            .unwrap();
        assert_eq!((byte[0], tree.links(big)), (b'x', 1));
    }
}

#[test]
fn v7_and_ustar_archives_hold_what_they_can() {
    let Some(directory) = everything() else {
        return;
    };
    sh(
        directory.path(),
        "cd tree && rm -rf n* random hole socket dir/link dir/slow dir/big && chmod 2775 dir;
         chmod 1777 empty; touch -d @5 dir .",
    );
    let root = directory.path().join("tree");
    let parts = Parts {
        nanoseconds: false,
        xattrs: false,
        sockets: false,
    };
    sh(
        directory.path(),
        "touch -d @77 tree/dir/file; tar -c --format=ustar -C tree -f t.tar .",
    );
    let expected = manifest_of_directory(&root, parts);
    let tree = scan(&[&directory.path().join("t.tar")]).unwrap();
    assert_same(&manifest(&tree, parts), &expected, "ustar");
    sh(directory.path(), "rm tree/fifo tree/char tree/block");
    sh(
        directory.path(),
        "touch -d @5 tree; tar -c --format=v7 -C tree -f t.tar .",
    );
    let expected = manifest_of_directory(&root, parts);
    let tree = scan(&[&directory.path().join("t.tar")]).unwrap();
    assert_same(&manifest(&tree, parts), &expected, "v7");
}

#[test]
fn compressed_and_piped_archives_give_the_same_tree_and_data() {
    let Some(directory) = everything() else {
        return;
    };
    let make = "tar -c --exclude ./socket --format=pax --xattrs --xattrs-include='*' --acls \
                --numeric-owner --sparse -C tree -f t.tar .";
    sh(directory.path(), make);
    sh(
        directory.path(),
        "gzip -k t.tar; zstd -q -k t.tar; xz -0 -k t.tar
         split -n 3 t.tar part.; for p in part.a?; do gzip -c $p; done > joined.gz
         (zstd -qc part.aa; printf '\\x53\\x2a\\x4d\\x18\\x03\\0\\0\\0abc';
         zstd -qc --check part.ab part.ac) > joined.zst
         for p in part.a?; do xz -0c $p; done > joined.xz
         (cat t.tar.gz; head -c 1000 /dev/zero) > padded.gz;
         xz -0 -T2 --block-size=500000 -kc t.tar > blocks.xz",
    );
    let parts = Parts {
        sockets: false,
        ..ALL
    };
    let plain = scan(&[&directory.path().join("t.tar")]).unwrap();
    let expected = manifest(&plain, parts);
    for name in [
        "t.tar.gz",
        "t.tar.zst",
        "t.tar.xz",
        "joined.gz",
        "joined.zst",
        "joined.xz",
        "padded.gz",
        "blocks.xz",
    ] {
        let path = directory.path().join(name);
        let tree = scan(&[&path]).unwrap();
        assert!(!tree.streams().is_empty());
        assert_same(&manifest(&tree, parts), &expected, name);
        let mut sink = Collect::default();
        let tree = lanefs_image::source::scan_streaming(
            &options(&[&path]),
            &AtomicBool::new(false),
            &mut sink,
        )
        .unwrap();
        assert_eq!(tree.streams(), [], "{name}");
        assert_same(&manifest_with(&tree, parts, &sink.items), &expected, name);
    }
    for name in ["t.tar", "t.tar.gz"] {
        let fifo = directory.path().join(format!("{name}.fifo"));
        sh(directory.path(), &format!("mkfifo {name}.fifo"));
        let (from, to) = (directory.path().join(name), fifo.clone());
        let writer = std::thread::spawn(move || std::fs::copy(from, to).unwrap());
        let options = options(&[&fifo]);
        assert!(lanefs_image::source::reads_once(&options));
        let mut sink = Collect::default();
        let tree =
            lanefs_image::source::scan_streaming(&options, &AtomicBool::new(false), &mut sink)
                .unwrap();
        writer.join().unwrap();
        assert_same(&manifest_with(&tree, parts, &sink.items), &expected, name);
    }
}

#[test]
fn pythons_tarfile_writes_what_we_read() {
    let Some(directory) = everything() else {
        return;
    };
    let root = directory.path().join("tree");
    for (format, parts) in [
        (
            "PAX_FORMAT",
            Parts {
                nanoseconds: false,
                xattrs: false,
                sockets: false,
            },
        ),
        (
            "GNU_FORMAT",
            Parts {
                nanoseconds: false,
                xattrs: false,
                sockets: false,
            },
        ),
    ] {
        sh(
            directory.path(),
            &format!(
                "rm -f tree/hole tree/l2; touch -d @7 tree; python3 -c 'import tarfile; \
                 t=tarfile.open(\"t.tar\",\"w\",format=tarfile.{format}); t.add(\"tree\",\".\"); t.close()'"
            ),
        );
        let tree = scan(&[&directory.path().join("t.tar")]).unwrap();
        let expected = manifest_of_directory(&root, parts);
        // Python rounds times before 1970 the other way in its GNU format.
        let keep = |text: &str| -> String {
            text.lines()
                .filter(|line| !line.contains(" -"))
                .map(|l| format!("{l}\n"))
                .collect()
        };
        assert_same(&keep(&manifest(&tree, parts)), &keep(&expected), format);
    }
}

#[test]
fn an_archive_or_file_that_changes_after_the_scan_is_an_error() {
    if !can_run(&["tar", "gzip"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    sh(
        at,
        "mkdir a b c; echo 1 > a/f; echo 12 > b/f; echo 1 > c/g; : > c/f",
    );
    sh(
        at,
        "for d in a b c; do tar -czf $d.gz -C $d .; done; cp a.gz x.gz",
    );
    for other in ["b.gz", "c.gz"] {
        sh(at, "cp a.gz x.gz");
        let tree = scan(&[&at.join("x.gz")]).unwrap();
        sh(at, &format!("cp {other} x.gz"));
        // The same bytes once more, but another archive: what it said of its length may not fit, either.
        let streamed = tree.stream(tree.streams()[0], &mut Collect::default());
        assert!(streamed.is_err(), "{other}");
    }
    let tree = scan(&[&at.join("a")]).unwrap();
    sh(at, "echo longer > a/f");
    let message = tree
        .open(
            tree.find(b"f").unwrap(),
            &mut lanefs_image::source::Nearby::default(),
        )
        .and_then(|reader| reader.check())
        .err()
        .unwrap()
        .to_string();
    assert!(
        message.contains("a/f: changed its size from 2 to 7 bytes"),
        "{message}"
    );
}

fn error_of(path: &Path) -> String {
    match scan(&[path]) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_wrong_with_an_archive_is_said() {
    let Some(directory) = everything() else {
        return;
    };
    let at = directory.path();
    sh(
        at,
        "tar -cf t.tar -C tree dir; size=$(stat -c %s t.tar)
         head -c 5000 t.tar > cut.tar; (cat t.tar; echo x) > garbage.tar;
         cat t.tar t.tar > two.tar
         cp t.tar bad.tar; printf zz | dd of=bad.tar bs=1 seek=0 conv=notrunc status=none
         cp t.tar later.tar; printf zz | dd of=later.tar bs=1 seek=520 conv=notrunc status=none
         : > empty.tar; head -c 100 t.tar > tiny.tar; head -c 2000 /dev/urandom > noise;
         gzip -c t.tar | head -c 300 > cut.gz
         xz -c t.tar | head -c 200 > cut.xz; zstd -qc t.tar | head -c 200 > cut.zst;
         bzip2 -c t.tar > t.bz2 || printf BZh9 > t.bz2
         (gzip -c t.tar; echo rubbish) > rubbish.gz
         gzip -c t.tar > flipped.gz
         printf '\\0\\0\\0\\0' | dd of=flipped.gz bs=1 seek=$(($(stat -c %s flipped.gz) - 8)) conv=notrunc status=none
         tar -cPf up.tar --transform 's,^dir,a/../../dir,' -C tree dir",
    );
    for (name, expected) in [
        ("cut.tar", "truncated"),
        ("garbage.tar", "something follows the end"),
        ("two.tar", "something follows the end"),
        ("bad.tar", "not a tar archive"),
        ("later.tar", "checksum"),
        ("empty.tar", "empty"),
        ("tiny.tar", "truncated"),
        ("noise", "not a tar archive"),
        ("cut.gz", "truncated"),
        ("cut.xz", "xz data"),
        ("cut.zst", "zstd data"),
        ("t.bz2", "bunzip2"),
        ("rubbish.gz", "follows the gzip data"),
        ("flipped.gz", "gzip data is damaged"),
        ("up.tar", "entry `a/../../dir/`"),
        ("up.tar", "`..`"),
        ("absent.tar", "absent.tar: cannot open"),
    ] {
        let message = error_of(&at.join(name));
        assert!(message.contains(expected), "{name}: {message}");
        assert!(message.contains(name), "{name}: {message}");
    }
}
