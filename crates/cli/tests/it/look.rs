//! `info`, `map` and `dump` say the same as dumpe2fs and debugfs, fit their columns, and end without a panic on any
//! bytes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use testkit::{have, skip};

const PROFILES: &[(&str, &[&str])] = &[
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("ext3", &["-t", "ext3", "-b", "2048"]),
    (
        "ext4",
        &["-t", "ext4", "-b", "4096", "-O", "metadata_csum,64bit"],
    ),
    (
        "bigalloc",
        &["-t", "ext4", "-b", "1024", "-C", "8192", "-O", "bigalloc"],
    ),
    (
        "meta_bg",
        &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"],
    ),
    ("inline", &["-t", "ext4", "-b", "4096", "-O", "inline_data"]),
];

/// A directory of images that goes away with the test.
struct Images(tempfile::TempDir);

impl Images {
    /// `None`, and said why, without mke2fs.
    fn new() -> Option<Images> {
        if !have("mke2fs") || !have("dumpe2fs") || !have("debugfs") {
            skip("e2fsprogs is not there");
            return None;
        }
        Some(Images(tempfile::tempdir().unwrap()))
    }

    /// An image with a few files and directories, made by mke2fs.
    fn make(&self, name: &str, options: &[&str]) -> PathBuf {
        let source = self.0.path().join(format!("{name}.d"));
        std::fs::create_dir_all(source.join("dir/deep")).unwrap();
        for index in 0..300 {
            let path = source.join(format!("dir/file{index}"));
            std::fs::write(path, vec![b'x'; index * 40]).unwrap();
        }
        std::fs::write(source.join("dir/deep/large"), vec![7; 3 << 20]).unwrap();
        let image = self.0.path().join(format!("{name}.img"));
        std::fs::File::create(&image)
            .unwrap()
            .set_len(32 << 20)
            .unwrap();
        let paths = [image.to_str().unwrap(), source.to_str().unwrap()];
        testkit::mke2fs(&[&["-d", paths[1]], options, &[paths[0]]].concat());
        image
    }
}

fn lanefs(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lanefs"))
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = lanefs(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The value of a line `name: value` of dumpe2fs.
fn dumpe2fs(image: &Path, name: &str) -> String {
    let output = testkit::dumpe2fs(&["-h", text(image)]);
    let output = String::from_utf8(output.stdout).unwrap();
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.unwrap_or_else(|| panic!("dumpe2fs says nothing of {name}"))
        .trim()
        .to_string()
}

#[test]
fn info_agrees_with_dumpe2fs() {
    let Some(images) = Images::new() else { return };
    for (name, options) in PROFILES {
        let image = images.make(name, options);
        let info: Value = serde_json::from_str(&stdout(&["info", "--json", text(&image)])).unwrap();
        assert_eq!(info["version"], 1);
        for (ours, theirs) in [
            ("blocks", "Block count"),
            ("block_size", "Block size"),
            ("inodes", "Inode count"),
            ("free_inodes", "Free inodes"),
            ("inode_size", "Inode size"),
            ("blocks_per_group", "Blocks per group"),
        ] {
            assert_eq!(
                info[ours].to_string(),
                dumpe2fs(&image, theirs),
                "{name}: {ours}"
            );
        }
        let free: u64 = dumpe2fs(&image, "Free blocks").parse().unwrap();
        let block = info["block_size"].as_u64().unwrap();
        assert_eq!(info["free_bytes"].as_u64(), Some(free * block), "{name}");
        assert_eq!(info["uuid"], dumpe2fs(&image, "Filesystem UUID"));
        let mut theirs: Vec<String> = dumpe2fs(&image, "Filesystem features")
            .split_whitespace()
            .map(str::to_string)
            .collect();
        let words = ["compat", "incompat", "ro_compat"]
            .map(|word| info["features"][word].as_array().unwrap());
        let mut ours: Vec<String> = words
            .into_iter()
            .flatten()
            .map(|name| name.as_str().unwrap().to_string())
            .collect();
        theirs.sort();
        ours.sort();
        assert_eq!(ours, theirs, "{name}");
        assert_eq!(info["state"]["clean"], true, "{name}");
        let human = stdout(&["info", "-a", text(&image)]);
        assert!(
            human.contains("Programs that can use it") && !human.contains("WRONG"),
            "{human}"
        );
    }
}

#[test]
fn maps_fit_their_columns_and_add_up() {
    let Some(images) = Images::new() else { return };
    for (name, options) in PROFILES {
        let image = images.make(name, options);
        for width in [40, 80, 200] {
            let picture = stdout(&["map", "--width", &width.to_string(), text(&image)]);
            assert!(!picture.contains('\x1b'), "no colors in a pipe");
            for line in picture
                .lines()
                .filter(|line| width >= 80 || line.contains('|'))
            {
                assert!(line.chars().count() <= width, "{name}: {line}");
            }
        }
        let picture = stdout(&["map", text(&image)]);
        let legend = picture.lines().filter(|line| !line.contains('|'));
        let shares = legend.filter_map(|line| {
            line.split_once('%')?
                .0
                .split(' ')
                .next_back()?
                .parse::<f64>()
                .ok()
        });
        let sum: f64 = shares.sum();
        assert!((sum - 100.0).abs() < 0.5, "{name}: {sum}\n{picture}");
        let files = picture
            .lines()
            .filter_map(|line| line.split_once("%  ")?.1.split_once(" file"));
        let files: u32 = files.map(|(count, _)| count.parse::<u32>().unwrap()).sum();
        // Empty files have no data, and tiny ones may lie in their inodes.
        assert!(
            files == 300 || *name == "inline",
            "{name}: {files}
{picture}"
        );
        assert!(
            !picture.contains("in use, by nothing found"),
            "{name}: all blocks have an owner\n{picture}"
        );
        let svg = stdout(&["map", "--svg", "-", text(&image)]);
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{name}"
        );
        for word in [
            "<title>",
            "metadata",
            "data, files in one piece",
            "free",
            "a cell",
        ] {
            assert!(svg.contains(word), "{name}: {word}");
        }
    }
}

#[test]
fn dump_agrees_with_debugfs() {
    let Some(images) = Images::new() else { return };
    for (name, options) in PROFILES {
        let image = images.make(name, options);
        let debugfs = |request: &str| {
            let output = testkit::debugfs(&["-R", request, text(&image)]);
            String::from_utf8(output.stdout).unwrap()
        };
        let stat = debugfs("stat /dir/deep/large");
        let inode = stat.split_whitespace().nth(1).unwrap();
        let ours = stdout(&["dump", text(&image), "inode", "/dir/deep/large"]);
        assert!(
            ours.starts_with(&format!("inode:                    {inode}\n")),
            "{name}: {ours}"
        );
        assert!(
            ours.contains(&format!("size:                     {}\n", 3 << 20)),
            "{ours}"
        );
        assert!(!ours.contains("WRONG"), "{name}: {ours}");

        let blocks = debugfs("blocks /dir/deep/large");
        let first: u64 = blocks.split_whitespace().next().unwrap().parse().unwrap();
        let extents = stdout(&["dump", text(&image), "extents", "/dir/deep/large"]);
        assert!(
            extents.contains(&format!(" {first}..=")),
            "{name}: {first}\n{extents}"
        );
        let block: u64 = dumpe2fs(&image, "Block size").parse().unwrap();
        let expected = format!("{} blocks,", (3 << 20) / block);
        assert!(extents.contains(&expected), "{name}: {expected}\n{extents}");

        let entries = stdout(&["dump", text(&image), "dir", "/dir"]);
        let names = entries
            .lines()
            .filter(|line| line.contains(" file"))
            .count();
        assert_eq!(names, 300, "{name}");
        for what in [
            &["superblock"][..],
            &["group", "0"],
            &["orphan"],
            &["deleted"],
            &["block", "0"],
        ] {
            let arguments = [&["dump", text(&image)], what].concat();
            let text = stdout(&arguments);
            assert!(!text.contains("WRONG"), "{name}: {text}");
        }
        assert!(
            !lanefs(&["dump", text(&image), "group", "99999"])
                .status
                .success()
        );
        assert!(
            !lanefs(&["dump", text(&image), "inode", "/nothing"])
                .status
                .success()
        );
    }
}

#[test]
fn deleted_inodes_are_listed_until_their_numbers_are_used_again() {
    let Some(images) = Images::new() else { return };
    let image = images.make("deleted", &["-t", "ext4", "-b", "1024"]);
    let number = |name: &str| {
        let json = stdout(&["stat", "--json", text(&image), &format!("/dir/{name}")]);
        let said: Value = serde_json::from_str(&json).unwrap();
        said["entries"][0]["inode"].as_u64().unwrap()
    };
    assert!(stdout(&["dump", text(&image), "deleted"]).contains("  0 deleted inodes"));
    let gone = number("file7");
    assert!(
        lanefs(&["rm", &format!("{}:/dir/file7", text(&image))])
            .status
            .success()
    );
    let list = stdout(&["dump", text(&image), "deleted"]);
    assert!(list.contains("  1 deleted inodes"), "{list}");
    assert!(
        list.contains(&format!("  inode {gone}: deleted 2")),
        "{list}"
    );
    // debugfs finds the same time of deletion.
    let request = format!("stat <{gone}>");
    let debugfs = testkit::debugfs(&["-R", &request, text(&image)]).stdout;
    let debugfs = String::from_utf8(debugfs).unwrap();
    assert!(debugfs.contains("dtime: "), "{debugfs}");
    let time = debugfs.split("dtime: 0x").nth(1).unwrap();
    let seconds = i64::from_str_radix(&time[..8], 16).unwrap();
    assert!(seconds > 1_600_000_000, "{debugfs}");
    assert!(
        lanefs(&["touch", &format!("{}:/dir/new", text(&image))])
            .status
            .success()
    );
    if number("new") == gone {
        assert!(stdout(&["dump", text(&image), "deleted"]).contains("  0 deleted inodes"));
    }
    // debugfs leaves the mode and the size of an inode that it removes; Linux leaves the mode.
    testkit::debugfs(&["-w", "-R", "rm /dir/file9", text(&image)]);
    let list = stdout(&["dump", text(&image), "deleted"]);
    assert!(list.contains(", -rw"), "{list}");
    assert!(list.contains("360 bytes"), "{list}");
}

#[test]
fn journals_are_printed_with_their_transactions() {
    let Some(images) = Images::new() else { return };
    let image = images.make("journal", &["-t", "ext4", "-b", "1024"]);
    // debugfs writes a transaction of one block, and leaves it to be replayed.
    let script = images.0.path().join("script");
    std::fs::write(&script, "jo\njw -b 333 /dev/zero\njc\n").unwrap();
    testkit::debugfs(&["-w", "-f", text(&script), text(&image)]);
    let journal = stdout(&["dump", text(&image), "journal"]);
    assert!(journal.contains("for blocks 333\n"), "{journal}");
    assert!(journal.contains("commit of transaction"), "{journal}");
    let info: Value = serde_json::from_str(&stdout(&["info", "--json", text(&image)])).unwrap();
    assert_eq!(info["state"]["needs_recovery"], true);
    assert_eq!(info["journal"]["empty"], false);
    assert!(lanefs(&["map", text(&image)]).status.success());
}

#[test]
fn a_superblock_that_nothing_can_be_read_with_is_still_printed() {
    let Some(images) = Images::new() else { return };
    let image = images.make(
        "unknown",
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    );
    testkit::debugfs(&["-w", "-R", "ssv feature_incompat 0x80000042", text(&image)]);
    let info = lanefs(&["info", text(&image)]);
    assert_eq!(info.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&info.stderr).contains("can't read: FEATURE_I31"));
    assert!(stdout(&["dump", text(&image), "superblock"]).contains("FEATURE_I31"));
    // The copy in group 1 does not have the feature.
    let copy = stdout(&["info", "--superblock", "8193", text(&image)]);
    assert!(
        copy.contains("incompat") && !copy.contains("FEATURE_I31"),
        "{copy}"
    );
}

#[test]
fn any_bytes_end_in_words_or_an_error_not_in_a_panic() {
    look_at_broken_bytes(2);
}

#[test]
#[ignore = "minutes: cargo xtask suites long"]
fn many_broken_bytes_end_in_words_or_an_error_not_in_a_panic() {
    look_at_broken_bytes(12);
}

/// Runs the commands that look at an image on this number of broken copies of each kind of image.
fn look_at_broken_bytes(copies: usize) {
    let Some(images) = Images::new() else { return };
    let mut random = testkit::Random::new(1);
    for (name, options) in PROFILES {
        let image = images.make(name, &[options, &["-O", "^metadata_csum"][..]].concat());
        let original = testkit::read_image(&image);
        let used = 2 << 20;
        for _ in 0..copies {
            let mut bytes = original[..used].to_vec();
            for _ in 0..1 + random.bits() % 40 {
                // Half of the changes hit the superblock and the descriptors.
                let reach = if random.bits().is_multiple_of(2) {
                    8192
                } else {
                    used as u64
                };
                let at = random.bits() % reach;
                bytes[at as usize] = random.bits() as u8;
            }
            // The magic number stays, or nothing is looked at.
            bytes[1080..1082].copy_from_slice(&original[1080..1082]);
            let mut file = original.clone();
            file[..used].copy_from_slice(&bytes);
            let broken = images.0.path().join("broken.img");
            std::fs::write(&broken, file).unwrap();
            for command in [
                &["info", "-a", "--frag"][..],
                &["map"],
                &["dump", "orphan"],
                &["dump", "journal"],
                &["dump", "dir", "/"],
                &["dump", "extents", "<8>"],
                &["dump", "inode", "/dir/deep/large"],
                &["dump", "group", "1"],
            ] {
                let mut arguments = vec![command[0]];
                if command[0] == "dump" {
                    arguments.push(text(&broken));
                    arguments.extend(&command[1..]);
                } else {
                    arguments.extend(&command[1..]);
                    arguments.push(text(&broken));
                }
                let output = lanefs(&arguments);
                let code = output.status.code();
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(
                    matches!(code, Some(0 | 1)),
                    "{name}: {arguments:?}: {code:?}\n{errors}"
                );
            }
        }
    }
}
