//! Extended attributes: shared blocks, values in inodes of their own, and attributes that do not fit.

use std::fs;

use lanefs_image::BuildOptions;
use mkfs::Options;
use rustix::fs::{XattrFlags, lsetxattr};

use crate::tree::{build_image, judge, noise, try_build};

#[test]
fn equal_sets_share_blocks_of_at_most_1024_references() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("shared.img"),
    );
    fs::create_dir(&source).unwrap();
    let value = noise(700, 1);
    for number in 0..2500 {
        let path = source.join(format!("f{number}"));
        fs::write(&path, b"").unwrap();
        if lsetxattr(&path, "user.big", &value, XattrFlags::empty()).is_err() {
            return testkit::skip("the host's file system has no user attributes");
        }
    }
    build_image(&BuildOptions::from_directory(&source), &output);
    judge(&source, &output, true);
    let blocks: std::collections::BTreeSet<String> = (0..2500)
        .step_by(100)
        .map(|number| {
            let image = output.to_str().unwrap();
            let stat = testkit::debugfs(&["-R", &format!("stat /f{number}"), image]).stdout;
            let stat = String::from_utf8_lossy(&stat).into_owned();
            let acl = stat.split("File ACL: ").nth(1).unwrap();
            acl.split_whitespace().next().unwrap().to_string()
        })
        .collect();
    assert_eq!(blocks.len(), 3, "{blocks:?}");
}

#[test]
fn a_lost_found_that_no_source_has_gets_its_label() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("labelled.img"),
    );
    fs::create_dir(&source).unwrap();
    let contexts = scratch.path().join("contexts");
    fs::write(
        &contexts,
        "/.* u:object_r:everything_t:s0\n/lost\\+found(/.*)? -d u:object_r:lost_found_t:s0\n",
    )
    .unwrap();
    let mut options = BuildOptions::from_directory(&source);
    options.source.file_contexts = Some(contexts.clone());
    build_image(&options, &output);
    testkit::e2fsck(&output);
    let image = output.to_str().unwrap();
    let label = |path: &str| {
        let text = testkit::debugfs(&["-R", &format!("ea_get {path} security.selinux"), image]);
        String::from_utf8_lossy(&text.stdout).into_owned()
    };
    let found = label("/lost+found");
    assert!(found.contains("u:object_r:lost_found_t:s0"), "{found}");
    assert!(!label("/").contains("lost_found_t"));
    // As another input, it gives another UUID.
    let uuid = |options: &BuildOptions| build_image(options, &output).file_system.uuid;
    options.reproducible = true;
    let one = uuid(&options);
    fs::write(&contexts, "/.* u:object_r:everything_t:s0\n").unwrap();
    assert_ne!(one, uuid(&options));
    // An inode of 128 bytes has no room for it: then it is in a block, whether the source has a lost+found or not.
    options.mkfs.inode_size = Some(128);
    for is_own in [false, true] {
        if is_own {
            fs::create_dir(source.join("lost+found")).unwrap();
        }
        build_image(&options, &output);
        testkit::e2fsck(&output);
        let found = label("/lost+found");
        assert!(found.contains("everything_t"), "{found}");
    }
}

#[test]
fn values_too_large_for_a_block_need_ea_inode_and_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let (source, output) = (
        scratch.path().join("source"),
        scratch.path().join("large.img"),
    );
    fs::create_dir(&source).unwrap();
    // Of one set, and of another with one more large value.
    for name in ["a", "b", "c"] {
        fs::write(source.join(name), b"x").unwrap();
        for attribute in ["user.one", "user.two"] {
            // What the host can't hold in one block it may hold in several.
            let set = lsetxattr(
                source.join(name),
                attribute,
                &noise(1900, 7),
                XattrFlags::empty(),
            );
            if set.is_err() {
                return testkit::skip("the host's file system does not hold these attributes");
            }
        }
    }
    let small = Options {
        block_size: ondisk::BlockSize::from_bytes(1024),
        ..Options::default()
    };
    let options = BuildOptions {
        mkfs: small.clone(),
        ..BuildOptions::from_directory(&source)
    };
    let error = try_build(&options, &output).unwrap_err().to_string();
    assert!(
        error.contains("/a: ") && error.contains("ea_inode"),
        "{error}"
    );
    assert!(!output.exists());
    let options = BuildOptions {
        mkfs: Options {
            features: "ea_inode".into(),
            ..small
        },
        ..options
    };
    build_image(&options, &output);
    judge(&source, &output, true);
}
