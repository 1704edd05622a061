//! Files of the file system itself, which the superblock names: names that lead to them, and superblocks that name
//! another file instead.

use std::fs;

use crate::found::Made;
use crate::mended::mended;
use crate::repair::{files, kept};
use crate::{check, e2fsck, shown};

/// 12 is the projects' quota file, 13 the orphan file, 14 a file with two names, 15 a directory.
const DAMAGE: &[&str] = &[
    "link <12> /x",
    "link <13> /x",
    "link <13> /directory/x",
    "sif <12> links_count 2",
    "sif <12> links_count 0",
    "sif <13> links_count 2",
    "sif <13> links_count 0",
    "ssv usr_quota_inum 14",
    "ssv grp_quota_inum 3",
    "ssv usr_quota_inum 4",
    "ssv prj_quota_inum 3",
    "ssv prj_quota_inum 13",
    "ssv prj_quota_inum 14",
    "ssv prj_quota_inum 15",
    "ssv usr_quota_inum 2",
    "ssv prj_quota_inum 2",
    "ssv prj_quota_inum 5",
    "ssv prj_quota_inum 7",
    "ssv grp_quota_inum 8",
    "ssv orphan_file_inum 3",
    "ssv orphan_file_inum 8",
    "ssv orphan_file_inum 12",
    "ssv orphan_file_inum 14",
    "ssv orphan_file_inum 15",
    "ssv orphan_file_inum 2",
    "ssv orphan_file_inum 90000",
    "ssv orphan_file_inum 0",
];

/// What debugfs lists in the root and in the directory: numbers, modes, owners and names.
fn listed(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::write_image(&image, bytes);
    let ls = |name: &str| {
        let command = format!("ls -p {name}");
        let output = testkit::debugfs(&["-R", &command, image.to_str().unwrap()]);
        String::from_utf8(output.stdout).unwrap()
    };
    ls("/") + &ls("/directory")
}

#[test]
fn files_of_the_file_system_and_of_users_are_told_apart() {
    let options = "-O orphan_file,quota,project -E quotatype=usrquota:grpquota:prjquota";
    let fill = |root: std::path::PathBuf| {
        fs::write(root.join("a file"), vec![7; 3000]).unwrap();
        fs::hard_link(root.join("a file"), root.join("the same")).unwrap();
        fs::create_dir(root.join("directory")).unwrap();
    };
    let Some(made) = Made::new(options, "16M", fill) else {
        return;
    };
    let whole = made.bytes();
    let files = files(&whole);
    let mut wrong = Vec::new();
    for command in DAMAGE {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        testkit::write_image(&image, &whole);
        testkit::debugfs_script(&image, &format!("{command}\n"));
        let bytes = testkit::read_image(&image);
        let (report, verdict) = (check(&bytes, 1).unwrap(), e2fsck(&bytes).unwrap());
        if report.is_clean() || !verdict.is_damage() {
            wrong.push(format!("{command}: {}{}", shown(&report), verdict.text));
        }
        let repaired = std::panic::catch_unwind(|| mended(&bytes, command).0);
        match repaired {
            Ok(after) => {
                let user = files
                    .get(&14)
                    .map(|file| [(14, file.clone())].into())
                    .unwrap();
                if kept(&user, &after) != kept(&user, &whole) {
                    wrong.push(format!("{command}: a file is lost"));
                }
                if listed(&after) != listed(&whole) {
                    wrong.push(format!("{command}: a name is lost"));
                }
            }
            Err(_) => wrong.push(format!("{command}: is not mended")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
