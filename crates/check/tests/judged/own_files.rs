//! Files of the file system itself, which the superblock names: names that lead to them, and superblocks that name
//! another file instead.

use std::fs;

use lanefs_check::Problem;
use lanefs_check::problem::Code;
use ondisk::{Ino, Superblock};

use crate::found::Made;
use crate::mended::{Damaged, contents, mended};
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
    "sif <13> size 1500",
    "sif <13> size 40000",
    "sif <13> size 65536",
    "sif <13> size 0",
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

/// A file of the file system: the field of the superblock that names it, that field's offset, and the file's inode.
const OWN: [(&str, usize, u32); 5] = [
    ("usr_quota_inum", 0x240, 3),
    ("grp_quota_inum", 0x244, 4),
    ("prj_quota_inum", 0x26C, 12),
    ("orphan_file_inum", 0x280, 13),
    ("journal_inum", 0xE0, 8),
];

/// What is wrong with the superblock's names of its own files, and with the contents of those that no repair of
/// `command` has to write anew. The judges have compared the contents of quota files with what is in use.
fn wrong_own_files(command: &str, whole: &[u8], after: &[u8]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let dumped = |bytes: &[u8], ino: u32| {
        let [image, copy] = ["image", "copy"].map(|name| folder.path().join(name));
        testkit::write_image(&image, bytes);
        let dump = format!("dump <{ino}> {}", copy.display());
        testkit::debugfs(&["-R", &dump, image.to_str().unwrap()]);
        fs::read(&copy).unwrap()
    };
    let mut wrong = Vec::new();
    for (field, at, ino) in OWN {
        let named = u32::from_le_bytes(*after[1024 + at..].first_chunk().unwrap());
        // A file that is damaged, or that the superblock named wrongly, may be given up.
        let is_damaged = command.contains(field) || command.contains(&format!("<{ino}>"));
        if named != ino && (named != 0 || !is_damaged) {
            wrong.push(format!("{command}: {field} is {named}"));
        }
        let has_same_contents = [8, 13].contains(&ino) && !is_damaged;
        if has_same_contents && dumped(whole, ino) != dumped(after, ino) {
            wrong.push(format!("{command}: {ino} has other contents"));
        }
    }
    wrong
}

/// A copy of the quota file is a file without a name, which the superblock names in the place of the reserved inode.
#[test]
fn a_quota_file_elsewhere_is_judged_as_by_e2fsck_and_left() {
    let options = "-O quota,project -E quotatype=usrquota:grpquota:prjquota";
    for (kind, old) in [("usr", 3), ("grp", 4), ("prj", 12)] {
        let Some(made) = Made::new(options, "16M", |_| ()) else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        made.asked(&format!("dump <{old}> {}", copy.display()));
        made.debugfs(&[
            &format!("write {} copy", copy.display()),
            "unlink copy",
            "sif <13> links_count 1",
            &format!("ssv {kind}_quota_inum 13"),
        ]);
        let bytes = made.bytes();
        let report = check(&bytes, 1).unwrap();
        let is_unattached = report.counts.contains_key(&Code::Unattached);
        // The projects' old file is without a name then.
        assert!(is_unattached, "{kind}: {}", shown(&report));
        let of_copy = |it: &&Problem| it.code == Code::Unattached && it.ino == Some(13);
        let is_copy = report.problems.iter().any(|it| of_copy(&it));
        assert_eq!(is_copy, kind != "prj", "{kind}: {}", shown(&report));
        if let Some(verdict) = e2fsck(&bytes) {
            let is_copy = verdict.text.contains("Unattached inode 13");
            assert_eq!(is_copy, kind != "prj", "{kind}: {}", verdict.text);
        }
        mended(&bytes, kind);
    }
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
                wrong.append(&mut wrong_own_files(command, &whole, &after));
            }
            Err(_) => wrong.push(format!("{command}: is not mended")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The blocks of an inode that is not in use may be those of another file by now.
#[test]
fn what_an_unused_inode_once_had_is_not_written_to_where_the_superblock_names_it() {
    let fill = |root: std::path::PathBuf| fs::write(root.join("a"), vec![7; 1_200_000]).unwrap();
    let options = "-O quota,orphan_file,^extent,^64bit,^resize_inode";
    let Some(made) = Made::new(options, "8M", fill) else {
        return;
    };
    let whole = Damaged::new(made.bytes());
    let before = contents(&whole.bytes);
    let (&user, _) = before.iter().max_by_key(|it| it.1.len()).unwrap();
    let old = whole.bytes[whole.slot(user)].to_vec();
    for file in ["quota file", "orphan file", "journal"] {
        // One with a link is behind the inodes that the group's descriptor calls used.
        for links in [0, 1] {
            let mut damaged = Damaged::new(whole.bytes.clone());
            damaged.change_inode(100, |slot| {
                slot.copy_from_slice(&old);
                slot[0x1A] = links;
                slot[0x14] = 1 - links;
            });
            let ino = Some(Ino(100));
            damaged.change_superblock(|sb| match file {
                "quota file" => sb.set_user_quota_ino(ino),
                "orphan file" => sb.set_orphan_file_ino(ino),
                _ => sb.set_journal_ino(ino),
            });
            let what = format!("{file}, {links} links");
            let (new, _) = mended(&damaged.bytes, &what);
            assert!(contents(&new)[&user] == before[&user], "{what}");
        }
    }
}

#[test]
fn a_file_that_the_superblock_names_as_the_journal_is_left_to_its_user() {
    let fill = |root: std::path::PathBuf| fs::write(root.join("a"), vec![7; 1_200_000]).unwrap();
    let Some(made) = Made::new("", "8M", fill) else {
        return;
    };
    let mut damaged = Damaged::new(made.bytes());
    // The file is 12, and the journal is 8.
    let before = files(&damaged.bytes)[&12].clone();
    damaged.change_superblock(|sb| sb.set_journal_ino(Some(Ino(12))));
    let (new, _) = mended(&damaged.bytes, "journal");
    assert!(files(&new)[&12] == before);
    let sb = *Superblock::view(new[1024..].first_chunk().unwrap());
    assert_eq!(sb.journal_ino(), Some(Ino::JOURNAL));
    // It is where it was: the superblock has a copy of its map.
    let map = |bytes: &[u8]| bytes[damaged.slot(8)][0x28..0x64].to_vec();
    assert_eq!(map(&new), map(&damaged.bytes));
}
