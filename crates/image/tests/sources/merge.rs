//! Several sources in one tree, what is left out, and what can't be read.

use crate::support::*;
use lanefs_image::source::{Input, Kind, Options};

fn two() -> Option<tempfile::TempDir> {
    if !can_run(&["tar"]) {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    sh(
        directory.path(),
        "mkdir -p a/usr/lib a/etc a/x b/lib/modules b/etc; ln -s usr/lib a/lib; echo a > a/usr/lib/a;
         echo a > a/etc/conf; echo a > a/x/y
         echo b > b/lib/modules/m; echo b > b/etc/conf; chmod 700 b/etc; echo f > b/x; touch -d @5 a b;
         tar -cf b.tar -C b .; ln a/etc/conf a/etc/link",
    );
    Some(directory)
}

#[test]
fn later_sources_win_and_directories_merge() {
    let Some(directory) = two() else { return };
    let (a, b) = (directory.path().join("a"), directory.path().join("b"));
    let mut manifests = Vec::new();
    for second in [b.clone(), directory.path().join("b.tar")] {
        let tree = scan(&[&a, &second]).unwrap();
        let all = contents(&tree, &std::collections::HashMap::new());
        let text = |path: &str| all[&tree.find(path.as_bytes()).expect(path)].clone();
        // The link that leads to a directory stays, and what is laid over it goes where it leads.
        assert_eq!(
            tree.kind(tree.find(b"lib").unwrap()),
            Kind::Symlink(b"usr/lib")
        );
        assert_eq!(text("usr/lib/modules/m"), b"b\n");
        assert_eq!(
            (text("usr/lib/a"), text("x")),
            (b"a\n".to_vec(), b"f\n".to_vec())
        );
        assert_eq!(
            (text("etc/conf"), text("etc/link")),
            (b"b\n".to_vec(), b"a\n".to_vec())
        );
        assert_eq!(tree.attributes(tree.find(b"etc").unwrap()).mode, 0o700);
        assert_eq!(tree.links(tree.find(b"etc/link").unwrap()), 1);
        let seconds = Parts {
            nanoseconds: false,
            ..ALL
        };
        manifests.push(manifest(&tree, seconds));
    }
    assert_same(&manifests[0], &manifests[1], "directory and tar");
}

#[test]
fn a_source_goes_where_it_is_told_and_patterns_leave_things_out() {
    let Some(directory) = two() else { return };
    let mut input = directory.path().join("b").into_os_string();
    input.push(":/opt/deep");
    let options = Options {
        inputs: vec![Input::parse(&input)],
        exclude: vec!["modules".into(), "/etc/".into()],
        owner: Some((7, 8)),
        ..Options::default()
    };
    let tree = lanefs_image::source::scan(&options).unwrap();
    assert_eq!(tree.len(), 5, "/, opt, deep, lib, x");
    assert!(tree.find(b"opt/deep/x").is_some());
    assert_eq!(tree.attributes(tree.find(b"opt").unwrap()).mode, 0o755);
    assert!(
        tree.nodes()
            .all(|id| (tree.attributes(id).uid, tree.attributes(id).gid) == (7, 8))
    );
}

#[test]
fn a_link_to_an_excluded_file_of_an_archive_keeps_the_data() {
    let Some(directory) = two() else { return };
    sh(directory.path(), "tar -cf l.tar -C a etc/conf etc/link");
    let mut options = options(&[&directory.path().join("l.tar")]);
    options.exclude = vec!["conf".into()];
    let tree = lanefs_image::source::scan(&options).unwrap();
    let all = contents(&tree, &std::collections::HashMap::new());
    assert!(tree.find(b"etc/conf").is_none());
    assert_eq!(all[&tree.find(b"etc/link").unwrap()], b"a\n");
}

#[test]
fn the_image_itself_is_left_out_of_its_source() {
    let Some(directory) = two() else { return };
    let image = directory.path().join("a/image");
    std::fs::write(&image, "old").unwrap();
    let mut options = options(&[&directory.path().join("a")]);
    options.outputs = vec![image];
    assert!(
        lanefs_image::source::scan(&options)
            .unwrap()
            .find(b"image")
            .is_none()
    );
}

#[test]
fn table_and_contexts_are_applied_and_their_errors_have_lines() {
    let Some(directory) = two() else { return };
    let at = directory.path();
    std::fs::write(
        at.join("table"),
        "/dev d 755 0 0\n/dev/null c 666 0 0 1 3\n/etc r -1 5 6\n",
    )
    .unwrap();
    std::fs::write(at.join("contexts"), "/.* u:r:all\n/etc/conf -- u:r:conf\n").unwrap();
    let mut options = options(&[&at.join("a")]);
    options.table = Some(at.join("table"));
    options.file_contexts = Some(at.join("contexts"));
    let tree = lanefs_image::source::scan(&options).unwrap();
    let label = |path: &str| {
        tree.xattrs(tree.find(path.as_bytes()).unwrap())
            .next()
            .unwrap()
            .1
            .to_vec()
    };
    assert_eq!(
        (label("dev/null"), label("etc/conf")),
        (b"u:r:all\0".to_vec(), b"u:r:conf\0".to_vec())
    );
    assert_eq!(tree.attributes(tree.find(b"etc/conf").unwrap()).uid, 5);
    std::fs::write(at.join("table"), "\n/dev q 755 0 0\n").unwrap();
    let message = lanefs_image::source::scan(&options)
        .err()
        .unwrap()
        .to_string();
    assert!(message.contains("table:2:"), "{message}");
}

#[test]
fn all_files_that_cannot_be_read_are_named_in_one_error() {
    let Some(directory) = two() else { return };
    let at = directory.path();
    sh(
        at,
        "chmod 755 .; mkdir locked; echo x > locked/in; chmod 700 locked; echo s > a/secret;
         chmod 600 a/secret; mv locked a; chmod 644 a/etc/conf",
    );
    let program = std::env::current_exe().unwrap();
    // As another user, in a process of its own.
    let copy = at.join("test");
    std::fs::copy(program, &copy).unwrap();
    sh(
        at,
        &format!(
            "chmod 755 test; SCAN_AS_NOBODY={}/a setpriv --reuid 65534 --clear-groups ./test unreadable_probe --exact",
            at.display()
        ),
    );
}

/// Run by the test above as another user.
#[test]
fn unreadable_probe() {
    let Some(root) = std::env::var_os("SCAN_AS_NOBODY") else {
        return;
    };
    let message = scan(&[std::path::Path::new(&root)])
        .err()
        .unwrap()
        .to_string();
    assert!(message.contains("2 files can't be read"), "{message}");
    assert!(
        message.contains("a/locked") && message.contains("a/secret"),
        "{message}"
    );
}
