//! `info --frag` counts as e2freefrag and debugfs's filefrag count, on images that mke2fs made and debugfs tore up.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::fixture::{ok, run, tool};

const PROFILES: &[(&str, &[&str])] = &[
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("ext4", &["-t", "ext4", "-b", "1024"]),
    (
        "4k",
        &["-t", "ext4", "-b", "4096", "-g", "2048", "-N", "4096"],
    ),
    (
        "bigalloc",
        &["-t", "ext4", "-b", "1024", "-C", "8192", "-O", "bigalloc"],
    ),
];

/// Whether there is all that the tests need; says why not.
fn is_there() -> bool {
    let is_there = ["mke2fs", "debugfs", "e2freefrag"].map(testkit::have) == [true; 3];
    if !is_there {
        testkit::skip("e2fsprogs is not there");
    }
    is_there
}

/// What debugfs prints for a request.
fn asked(image: &Path, request: &str) -> String {
    let output = testkit::debugfs(&["-R", request, image.to_str().unwrap()]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An image of 24 MiB with files in one piece, holes between them, and files in many pieces within these.
fn torn(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let source = folder.join(format!("{name}.d"));
    std::fs::create_dir_all(source.join("dir")).unwrap();
    for index in 0..200usize {
        let path = source.join(format!("dir/file{index:03}"));
        std::fs::write(path, vec![b'x'; 1 + index % 40 * 1000]).unwrap();
    }
    let image = folder.join(format!("{name}.img"));
    let (from, to) = (source.to_str().unwrap(), image.to_str().unwrap());
    testkit::mke2fs(&[&["-d", from][..], options, &[to, "24M"]].concat());
    let large = folder.join("large");
    std::fs::write(&large, vec![7; 3_000_000]).unwrap();
    let holes: String = (0..200)
        .step_by(2)
        .map(|index| format!("rm /dir/file{index:03}\n"))
        .collect();
    let more: String = (1..200)
        .step_by(6)
        .map(|index| format!("rm /dir/file{index:03}\n"))
        .collect();
    let large = large.display();
    testkit::debugfs_script(
        &image,
        &format!("{holes}write {large} scattered\nmkdir empty\n{more}"),
    );
    image
}

fn frag(image: &Path) -> Value {
    let text = ok(["info", "--frag", "--json", image.to_str().unwrap()]);
    let all: Value = serde_json::from_str(&text).unwrap();
    all["fragmentation"].clone()
}

/// The number in a line of e2freefrag's.
fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let word = line.unwrap().split_whitespace().next().unwrap();
    word.parse().unwrap()
}

#[test]
fn free_space_is_counted_as_e2freefrag_counts_it() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Where blocks lie in clusters, e2freefrag of 1.47 joins runs that have used ones between them.
    let plain = PROFILES.iter().filter(|(name, _)| *name != "bigalloc");
    for (name, options) in plain {
        let image = torn(folder.path(), name, options);
        let theirs = tool(Command::new("e2freefrag").arg(&image));
        let ours = &frag(&image)["free"];
        assert_eq!(ours["blocks"], number(&theirs, "Free blocks:"), "{name}");
        assert_eq!(
            ours["extents"],
            number(&theirs, "Num. free extent:"),
            "{name}"
        );
        for (field, line) in [
            ("smallest_bytes", "Min. free extent:"),
            ("largest_bytes", "Max. free extent:"),
            ("average_bytes", "Avg. free extent:"),
        ] {
            // It cuts the average to whole blocks.
            let bytes = ours[field].as_u64().unwrap();
            let kib = (bytes - bytes % number(&theirs, "Blocksize:")) / 1024;
            assert_eq!(kib, number(&theirs, line), "{name}: {line}\n{theirs}");
        }
        let rows: Vec<(u64, u64)> = theirs
            .lines()
            .filter_map(|line| line.split_once("-  :"))
            .map(|(_, counts)| {
                let mut words = counts.split_whitespace().map(|word| word.parse().ok());
                (
                    words.next().flatten().unwrap(),
                    words.next().flatten().unwrap(),
                )
            })
            .collect();
        let histogram = ours["histogram"].as_array().unwrap();
        let of = |row: &Value, field: &str| row[field].as_u64().unwrap();
        let ours: Vec<(u64, u64)> = histogram
            .iter()
            .map(|row| (of(row, "extents"), of(row, "blocks")))
            .collect();
        assert_eq!(ours, rows, "{name}\n{theirs}");
        assert!(rows.len() > 2, "{theirs}");
    }
}

/// Free blocks in runs, as dumpe2fs lists them (by the first block of each cluster of `ratio` blocks), joined where one
/// group's go on in the next.
fn free_runs(image: &Path, ratio: u64) -> Vec<(u64, u64)> {
    let text = String::from_utf8(testkit::dumpe2fs(&[image]).stdout).unwrap();
    let lists = text
        .lines()
        .filter_map(|line| line.strip_prefix("  Free blocks: "));
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for range in lists
        .flat_map(|list| list.split(", "))
        .filter(|range| !range.is_empty())
    {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
        match runs.last_mut() {
            Some((_, end)) if *end + ratio == first => *end = last,
            _ => runs.push((first, last)),
        }
    }
    runs
}

#[test]
fn free_runs_are_those_that_dumpe2fs_lists() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, options) in PROFILES {
        let image = torn(folder.path(), name, options);
        let ratio = if *name == "bigalloc" { 8 } else { 1 };
        let theirs = free_runs(&image, ratio);
        let ours = &frag(&image)["free"];
        assert_eq!(ours["extents"], theirs.len(), "{name}: {theirs:?}");
        let blocks: u64 = theirs
            .iter()
            .map(|(first, last)| last - first + ratio)
            .sum();
        assert_eq!(ours["blocks"], blocks, "{name}: {theirs:?}");
    }
}

#[test]
fn files_have_as_many_extents_as_debugfs_says() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, options) in PROFILES {
        let image = torn(folder.path(), name, options);
        let theirs = asked(&image, "filefrag -r /");
        let counts: Vec<u64> = theirs
            .lines()
            .filter_map(|line| line.split_once(": ")?.1.strip_suffix(" contiguous extents"))
            .map(|count| count.parse().unwrap())
            .filter(|count| *count > 0)
            .collect();
        let frag = frag(&image);
        let files = &frag["files"];
        let of = |field: &str| files[field].as_u64().unwrap();
        assert_eq!(of("files"), counts.len() as u64, "{name}\n{theirs}");
        assert_eq!(
            of("extents"),
            counts.iter().sum::<u64>(),
            "{name}\n{theirs}"
        );
        assert_eq!(
            of("worst"),
            *counts.iter().max().unwrap(),
            "{name}\n{theirs}"
        );
        assert!(of("worst") > 3, "the large file lies in the holes");
        let scattered = asked(&image, "stat /scattered");
        let inode = format!("Inode: {} ", files["worst_inode"]);
        assert!(scattered.starts_with(&inode), "{name}: {scattered}");
        assert_eq!(frag["left_out"], 0, "{name}");
    }
}

#[test]
fn people_get_tables_that_fit_a_terminal() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = torn(folder.path(), PROFILES[1].0, PROFILES[1].1);
    let text = ok(["info", "--frag", image.to_str().unwrap()]);
    for heading in ["Free space", "Files", "Directories", "on average"] {
        assert!(text.contains(heading), "{heading}: {text}");
    }
    assert!(!text.contains('\x1b'), "no colors in a pipe");
    let tables = text.split("\nFree space").nth(1).unwrap();
    assert!(
        tables.lines().all(|line| line.chars().count() <= 95),
        "{text}"
    );
    let none = run(["info", image.to_str().unwrap()]);
    assert!(
        !String::from_utf8(none.stdout)
            .unwrap()
            .contains("Free space")
    );
}

#[test]
fn an_image_with_changes_in_its_journal_is_counted_as_e2fsck_leaves_it() {
    if !is_there() || !testkit::have("e2fsck") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = torn(folder.path(), PROFILES[1].0, PROFILES[1].1);
    let before = frag(&image);
    let device = device::FileDevice::open(&image).unwrap();
    let fs = lanefs::Fs::open_for_writing_with(
        sync::Arc::new(device),
        &lanefs::MountOptions::default(),
        lanefs::now,
    )
    .unwrap();
    fs.remove_file("/scattered").unwrap();
    fs.inodes().sync().unwrap();
    drop(fs);
    let bytes = testkit::read_image(&image);
    let dirty = frag(&image);
    assert!(
        testkit::read_image(&image) == bytes,
        "the image was changed"
    );
    assert_ne!(dirty, before);
    let replayed = testkit::e2fsck_with(&["-p", "-E", "journal_only"], &image);
    assert!(replayed.status.code() <= Some(1), "{replayed:?}");
    assert_eq!(dirty, frag(&image));
}
