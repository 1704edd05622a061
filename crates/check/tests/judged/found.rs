//! What is found: damage that e2fsck does not look for, paths in messages, and what is judged where a device fails.

use std::fs;
use std::path::PathBuf;

use device::{BlockDevice, DeviceError, MemoryDevice};
use lanefs_check::problem::Code;
use lanefs_check::{Report, Severity};
use tempfile::TempDir;

use crate::{check, check_device, e2fsck, shown};

/// An image that mke2fs fills from a folder.
pub struct Made {
    folder: TempDir,
}

impl Made {
    /// `None`, with a line that reports it, if the programs are missing.
    pub fn new(options: &str, size: &str, fill: impl Fn(PathBuf)) -> Option<Made> {
        if !testkit::have("mke2fs") || !testkit::have("debugfs") {
            testkit::skip("mke2fs or debugfs is missing");
            return None;
        }
        let made = Made {
            folder: tempfile::tempdir().unwrap(),
        };
        let source = made.folder.path().join("source");
        fs::create_dir(&source).unwrap();
        fill(source.clone());
        let (image, source) = (made.image(), source.to_str().unwrap());
        let mut words = vec!["-t", "ext4", "-b", "1024"];
        words.extend(options.split_whitespace());
        words.extend(["-d", source, image.to_str().unwrap(), size]);
        testkit::mke2fs(&words);
        Some(made)
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    pub fn debugfs(&self, commands: &[&str]) {
        testkit::debugfs_script(&self.image(), &(commands.join("\n") + "\n"));
    }

    pub fn bytes(&self) -> Vec<u8> {
        testkit::read_image(&self.image())
    }

    /// What debugfs prints for a command.
    pub fn asked(&self, command: &str) -> String {
        let output = testkit::debugfs(&["-R", command, self.image().to_str().unwrap()]);
        String::from_utf8(output.stdout).unwrap()
    }
}

fn codes(report: &Report) -> Vec<Code> {
    report.counts.keys().copied().collect()
}

fn many(root: PathBuf) {
    fs::create_dir(root.join("many")).unwrap();
    for number in 0..200 {
        fs::write(
            root.join(format!("many/a name of some length {number:04}")),
            "x",
        )
        .unwrap();
    }
}

/// Puts other bytes in the place of those that stand there once.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let mut places = (0..=bytes.len() - from.len()).filter(|at| bytes[*at..].starts_with(from));
    let at = places.next().unwrap();
    assert_eq!(places.next(), None);
    bytes[at..at + from.len()].copy_from_slice(to);
}

#[test]
fn a_name_in_two_blocks_is_found_where_e2fsck_sees_nothing() {
    let options = "-O ^dir_index,^metadata_csum,^has_journal";
    let Some(made) = Made::new(options, "16M", many) else {
        return;
    };
    let entry = |number: &str| [b"\x1A\x01a name of some length ", number.as_bytes()].concat();
    // Names in the order in which mke2fs met them: whether two are in one block is seen by what is found.
    let mut kinds = Vec::new();
    for other in ["0003", "0198"] {
        let mut bytes = made.bytes();
        replace(&mut bytes, &entry("0100"), &entry(other));
        let report = check(&bytes, 2).unwrap();
        let verdict = e2fsck(&bytes).unwrap();
        let found = codes(&report);
        assert_eq!(found.len(), 1, "{}", shown(&report));
        let problem = &report.problems[0];
        let name = format!("a name of some length {other}");
        assert_eq!(problem.name.as_deref(), Some(name.as_bytes()));
        assert_eq!(problem.path.as_deref(), Some(&b"/many"[..]));
        let is_beyond = found[0] == Code::NameInTwoBlocks;
        assert!(is_beyond || found[0] == Code::EntryTwice, "{found:?}");
        assert_eq!(found[0].is_beyond_e2fsck(), is_beyond);
        assert_eq!(
            verdict.status,
            if is_beyond { 0 } else { 4 },
            "{}",
            verdict.text
        );
        if is_beyond {
            assert!(problem.lblk != problem.expected);
        } else {
            assert!(verdict.numbers.contains(&found[0].kind().number));
        }
        kinds.push(is_beyond);
    }
    assert!(
        kinds.contains(&true),
        "both names are in one block with the third"
    );
}

#[test]
fn a_file_that_is_larger_than_its_inline_data_is_found_where_e2fsck_sees_nothing() {
    let fill = |root: PathBuf| {
        fs::write(root.join("file"), "inline").unwrap();
        fs::create_dir(root.join("directory")).unwrap();
    };
    let Some(made) = Made::new("-O inline_data", "16M", fill) else {
        return;
    };
    made.debugfs(&["sif /file size 32524"]);
    let shown = made.asked("stat /file");
    assert!(shown.contains("Size: 32524") && shown.contains("Size of inline data: 60"));
    let (report, verdict) = (
        check(&made.bytes(), 2).unwrap(),
        e2fsck(&made.bytes()).unwrap(),
    );
    assert_eq!(codes(&report), [Code::InlineFileSize]);
    assert!(Code::InlineFileSize.is_beyond_e2fsck());
    assert!(!verdict.is_damage(), "{}", verdict.text);
    crate::mended::mended(&made.bytes(), "a file's size");
    // e2fsck compares the size of a directory.
    made.debugfs(&["sif /file size 6", "sif /directory size 61"]);
    let (report, verdict) = (
        check(&made.bytes(), 2).unwrap(),
        e2fsck(&made.bytes()).unwrap(),
    );
    assert!(report.counts.contains_key(&Code::InlineSize));
    assert!(verdict.is_damage(), "{}", verdict.text);
}

#[test]
fn a_wrong_inode_of_the_journal_is_found_where_e2fsck_uses_its_copy_without_a_message() {
    type Change = fn(&mut [u8]);
    // Its size, and its count of links.
    let changes: [Change; 2] = [|slot| slot[6] = 0xD9, |slot| slot[0x1A] = 0];
    for change in changes {
        let mut damaged = crate::mended::Damaged::new(crate::mended::seed("ext3-1k"));
        damaged.change_inode(8, change);
        let report = check(&damaged.bytes, 2).unwrap();
        assert_eq!(codes(&report), [Code::JournalInodeCopy]);
        assert!(Code::JournalInodeCopy.is_beyond_e2fsck());
        if let Some(verdict) = e2fsck(&damaged.bytes) {
            assert!(!verdict.is_damage(), "{}", verdict.text);
        }
        crate::mended::mended(&damaged.bytes, "the journal's inode");
        // The copy of a map of extents is of no use to e2fsck.
        let mut damaged = crate::mended::Damaged::new(crate::mended::seed("default-1k"));
        damaged.change_inode(8, change);
        let report = check(&damaged.bytes, 2).unwrap();
        assert!(report.counts.contains_key(&Code::JournalInode));
        if let Some(verdict) = e2fsck(&damaged.bytes) {
            assert!(verdict.is_damage(), "{}", verdict.text);
        }
    }
}

/// Offsets of attributes of a file with inline data whose values take no room in the list.
#[test]
fn an_offset_beyond_the_list_is_damage_where_data_are_inline() {
    for inline in [true, false] {
        let fill = |root: PathBuf| fs::write(root.join("file"), "inline").unwrap();
        let options = if inline { "-O inline_data" } else { "" };
        let Some(made) = Made::new(options, "16M", fill) else {
            return;
        };
        made.debugfs(&["ea_set /file user.a v", "ea_set /file user.empty \"\""]);
        let mut damaged = crate::mended::Damaged::new(made.bytes());
        let ino = made.asked("stat /file");
        let ino = ino.split_whitespace().nth(1).unwrap().parse().unwrap();
        let is_entry = |entry: &[u8]| entry[..2] == [5, 1] && entry[16..21] == *b"empty";
        damaged.change_inode(ino, |slot| {
            let at = slot.windows(24).position(is_entry).unwrap();
            slot[at + 2..at + 4].copy_from_slice(&0xFFF_u16.to_le_bytes());
        });
        let (report, verdict) = (
            check(&damaged.bytes, 2).unwrap(),
            e2fsck(&damaged.bytes).unwrap(),
        );
        let expected: &[Code] = if inline { &[Code::XattrOffset] } else { &[] };
        assert_eq!(codes(&report), expected, "{}", verdict.text);
        assert_eq!(verdict.is_damage(), inline, "{}", verdict.text);
        let before = crate::repair::files(&made.bytes());
        let (after, _) = crate::mended::mended(&damaged.bytes, "an offset");
        assert_eq!(crate::repair::files(&after), before);
    }
}

#[test]
fn dots_that_stand_elsewhere_have_the_number_that_e2fsck_gives_them() {
    let fill = |root: PathBuf| {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/x"), "x").unwrap();
        fs::write(root.join("d/yy"), "y").unwrap();
    };
    let Some(made) = Made::new("-O ^metadata_csum,^has_journal", "16M", fill) else {
        return;
    };
    for (from, to, code) in [
        (&b"\x01\x01x\0"[..], &b"\x01\x01.\0"[..], Code::DotAgain),
        (&b"\x02\x01yy"[..], &b"\x02\x01.."[..], Code::DotDotAgain),
    ] {
        let mut bytes = made.bytes();
        replace(&mut bytes, from, to);
        let (report, verdict) = (check(&bytes, 2).unwrap(), e2fsck(&bytes).unwrap());
        assert!(report.counts.contains_key(&code), "{}", shown(&report));
        assert!(
            verdict.numbers.contains(&code.kind().number),
            "{}",
            verdict.text
        );
    }
}

#[test]
fn a_problem_names_the_path_of_its_inode() {
    for options in ["", "-O inline_data", "-O ^dir_index"] {
        let fill = |root: PathBuf| {
            fs::create_dir_all(root.join("a/b")).unwrap();
            fs::write(root.join("a/b/file"), vec![1; 5000]).unwrap();
            many(root);
        };
        let Some(made) = Made::new(options, "16M", fill) else {
            return;
        };
        made.debugfs(&["sif /a/b/file blocks 8", "sif /a/b links_count 9"]);
        let report = check(&made.bytes(), 2).unwrap();
        let paths: Vec<_> = report
            .problems
            .iter()
            .map(|it| (it.code, it.path.clone()))
            .collect();
        let path = |code, path: &str| (code, Some(path.as_bytes().to_vec()));
        let expected = [
            path(Code::InodeBlocks, "/a/b/file"),
            path(Code::Links, "/a/b"),
        ];
        assert_eq!(paths, expected, "{options}");
    }
}

#[test]
fn copies_of_superblock_and_descriptors_that_can_not_be_used_are_noted() {
    for (block, code) in [
        (8193, Code::BackupSuperblock),
        (8194, Code::BackupDescriptors),
    ] {
        let Some(made) = Made::new("", "32M", many) else {
            return;
        };
        let mut bytes = made.bytes();
        bytes[block * 1024..(block + 1) * 1024].fill(0);
        assert_eq!(e2fsck(&bytes).unwrap().status, 0);
        let report = check(&bytes, 2).unwrap();
        assert_eq!(codes(&report), [code], "{}", shown(&report));
        assert_eq!(code.kind().severity, Severity::Note);
        assert!(report.is_clean());
    }
}

#[test]
fn copies_behind_group_65535_are_sound_as_mke2fs_makes_them() {
    if !testkit::have("mke2fs") {
        return testkit::skip("mke2fs is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let options = "-q -t ext4 -b 1024 -N 70000 -O sparse_super2,^resize_inode,^has_journal";
    let mut words: Vec<&str> = options.split_whitespace().collect();
    words.extend([image.to_str().unwrap(), "520G"]);
    testkit::mke2fs(&words);
    let device = device::FileDevice::open_read_only(&image).unwrap();
    let report = check_device(&device, 2).unwrap();
    assert_eq!(codes(&report), [], "{}", shown(&report));
}

/// A device some of whose blocks can't be read.
pub struct Worn {
    inner: MemoryDevice,
    /// Numbers of blocks of 1 KiB.
    blocks: Vec<u64>,
}

impl Worn {
    /// A device with these bytes on which these blocks of 1 KiB can't be read.
    pub fn new(bytes: &[u8], blocks: &[u64]) -> Worn {
        Worn {
            inner: MemoryDevice::from_bytes(bytes),
            blocks: blocks.to_vec(),
        }
    }
}

impl BlockDevice for Worn {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let end = offset + bytes.len() as u64;
        let is_worn = |block: &u64| block * 1024 < end && offset < (block + 1) * 1024;
        if self.blocks.iter().any(is_worn) {
            return Err(DeviceError::OutOfRange {
                operation: "read",
                offset,
                len: bytes.len() as u64,
                size: self.size(),
            });
        }
        self.inner.read_at(offset, bytes)
    }
}

/// What is found when these blocks can't be read: problems, notes left out.
fn found_worn(made: &Made, blocks: Vec<u64>) -> Report {
    let inner = MemoryDevice::from_bytes(&made.bytes());
    check_device(&Worn { inner, blocks }, 2).unwrap()
}

#[test]
fn a_block_that_can_not_be_read_is_a_problem_and_what_depends_on_it_is_not_judged() {
    let Some(made) = Made::new("-O ^dir_index", "16M", |root| {
        many(root.clone());
        fs::create_dir(root.join("many/below")).unwrap();
        fs::write(root.join("many/below/file"), "x").unwrap();
    }) else {
        return;
    };
    let number = |text: String| {
        text.split_whitespace()
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    // The second block of the directory: names of files, which then have no known name.
    let block = number(made.asked("bmap /many 1"));
    let report = found_worn(&made, vec![block]);
    assert_eq!(
        codes(&report),
        [Code::DirectoryUnreadable],
        "{}",
        shown(&report)
    );
    let problem = &report.problems[0];
    assert_eq!((problem.block, problem.lblk), (Some(block), Some(1)));
    assert_eq!(problem.path.as_deref(), Some(&b"/many"[..]));
    // A block of the inode table.
    let place = made.asked("imap \"/many/a name of some length 0100\"");
    let at = place
        .split("at block ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    let block = at.trim().parse::<u64>().unwrap();
    let report = found_worn(&made, vec![block]);
    assert_eq!(
        codes(&report),
        [Code::TableUnreadable],
        "{}",
        shown(&report)
    );
    assert_eq!(report.problems[0].block, Some(block));
}

/// An image with an encrypted directory `/d` in which one file has the directory's policy, one another policy, and one
/// none. `None` if the programs are missing.
pub fn encrypted() -> Option<Vec<u8>> {
    let fill = |root: PathBuf| {
        fs::create_dir(root.join("d")).unwrap();
        for name in ["same", "other", "plain"] {
            fs::write(root.join(format!("d/{name} name of 16 bytes")), "x").unwrap();
        }
        for (name, key) in [("first", 1_u8), ("second", 2)] {
            let mut context = [key; 28];
            context[..4].copy_from_slice(&[1, 1, 4, 0]);
            fs::write(root.join(name), context).unwrap();
        }
    };
    let made = Made::new("-O encrypt,^metadata_csum", "16M", fill)?;
    let [first, second] = ["first", "second"].map(|it| made.folder.path().join("source").join(it));
    let [first, second] = [first.display(), second.display()];
    made.debugfs(&[
        &format!("ea_set -f {first} /d c"),
        "sif /d flags 0x80800",
        &format!("ea_set -f {first} \"/d/same name of 16 bytes\" c"),
        "sif \"/d/same name of 16 bytes\" flags 0x80800",
        &format!("ea_set -f {second} \"/d/other name of 16 bytes\" c"),
        "sif \"/d/other name of 16 bytes\" flags 0x80800",
    ]);
    let mut bytes = made.bytes();
    // debugfs gives the attribute no prefix; the kernel's is that of encryption.
    for name in [
        "/d",
        "/d/same name of 16 bytes",
        "/d/other name of 16 bytes",
    ] {
        let place = made.asked(&format!("imap \"{name}\""));
        let place = place.split("at block ").nth(1).unwrap().trim();
        let (block, offset) = place.split_once(", offset 0x").unwrap();
        let at =
            block.parse::<usize>().unwrap() * 1024 + usize::from_str_radix(offset, 16).unwrap();
        let entry = &mut bytes[at + 128 + 32 + 4..];
        assert_eq!(entry[..2], [1, 0]);
        entry[1] = 9;
    }
    Some(bytes)
}

#[test]
fn files_of_an_encrypted_directory_have_its_policy() {
    let Some(bytes) = encrypted() else {
        return;
    };
    let (report, verdict) = (check(&bytes, 2).unwrap(), e2fsck(&bytes).unwrap());
    let expected = [Code::EntryUnencrypted, Code::EntryOtherPolicy];
    assert_eq!(
        codes(&report),
        expected,
        "{}{}",
        shown(&report),
        verdict.text
    );
    for code in expected {
        assert_eq!(report.counts[&code], 1);
        assert!(
            verdict.numbers.contains(&code.kind().number),
            "{}",
            verdict.text
        );
    }
}
