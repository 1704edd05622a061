//! No false alarms: images of many feature sets and block sizes, filled by mke2fs -d and by the kernel, are clean to
//! `lanefs check` exactly when e2fsck -fn finds nothing.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use device::FileDevice;
use testkit::KernelMount;

use crate::{check_device, shown};

/// Feature sets that mke2fs fills: its arguments, and the size of the image.
const BY_MKE2FS: &[(&str, &str)] = &[
    ("-t ext2 -b 1024", "24M"),
    ("-t ext2 -b 4096 -I 128", "32M"),
    ("-t ext2 -b 65536 -N 8000", "128M"),
    ("-t ext3 -b 1024", "32M"),
    ("-t ext3 -b 4096 -O ^dir_index", "48M"),
    ("-t ext4 -b 1024", "32M"),
    ("-t ext4 -b 2048", "48M"),
    ("-t ext4 -b 4096", "64M"),
    ("-t ext4 -b 65536 -N 8000", "256M"),
    ("-t ext4 -b 1024 -g 1024", "32M"),
    ("-t ext4 -b 1024 -O ^extents,^64bit", "32M"),
    ("-t ext4 -b 4096 -O ^extents,^64bit,^flex_bg", "64M"),
    ("-t ext4 -b 1024 -O bigalloc -C 8192", "64M"),
    ("-t ext4 -b 4096 -O bigalloc -C 65536 -N 8000", "256M"),
    (
        "-t ext4 -b 4096 -O bigalloc,^has_journal,^resize_inode -C 16384",
        "128M",
    ),
    ("-t ext4 -b 1024 -O meta_bg,^resize_inode", "64M"),
    ("-t ext4 -b 4096 -O meta_bg,^resize_inode,^flex_bg", "64M"),
    ("-t ext4 -b 1024 -O sparse_super2,^resize_inode", "64M"),
    ("-t ext4 -b 1024 -O sparse_super2 -E num_backup_sb=1", "64M"),
    ("-t ext4 -b 1024 -O ^sparse_super,^resize_inode", "64M"),
    ("-t ext4 -b 1024 -O inline_data", "32M"),
    ("-t ext4 -b 4096 -O inline_data -I 1024", "64M"),
    ("-t ext4 -b 4096 -O ea_inode", "64M"),
    ("-t ext4 -b 1024 -O ea_inode,inline_data -I 512", "64M"),
    ("-t ext4 -b 4096 -O casefold -E encoding=utf8", "64M"),
    (
        "-t ext4 -b 4096 -O casefold -E encoding=utf8,encoding_flags=strict",
        "64M",
    ),
    (
        "-t ext4 -b 4096 -O project,quota -E quotatype=usrquota:grpquota:prjquota",
        "64M",
    ),
    ("-t ext4 -b 1024 -O quota", "64M"),
    ("-t ext4 -b 1024 -O large_dir", "64M"),
    ("-t ext4 -b 1024 -O ^flex_bg", "64M"),
    ("-t ext4 -b 1024 -O ^metadata_csum", "64M"),
    ("-t ext4 -b 1024 -O ^metadata_csum,uninit_bg", "64M"),
    ("-t ext4 -b 4096 -O metadata_csum_seed", "64M"),
    ("-t ext4 -b 4096 -O ^64bit", "64M"),
    ("-t ext4 -b 1024 -O mmp", "64M"),
    ("-t ext4 -b 4096 -O orphan_file", "64M"),
    ("-t ext4 -b 1024 -O orphan_file,^metadata_csum", "64M"),
    ("-t ext4 -b 4096 -O fast_commit", "64M"),
    ("-t ext4 -b 4096 -O ^has_journal", "64M"),
    ("-t ext4 -b 1024 -I 128", "64M"),
    ("-t ext4 -b 4096 -O encrypt,verity,stable_inodes", "64M"),
    ("-t ext4 -b 1024 -E resize=16777216", "64M"),
    ("-t ext4 -b 4096 -E lazy_itable_init=0 -G 4", "300M"),
    (
        "-t ext4 -b 1024 -m 0 -E hash_seed=00010203-0405-0607-0809-0a0b0c0d0e0f",
        "64M",
    ),
    ("-t ext4 -b 1024 -E packed_meta_blocks=1", "64M"),
];

/// Feature sets that the kernel fills. Never fast_commit without extents: its replay is a kernel bug.
const BY_KERNEL: &[(&str, &str)] = &[
    ("-t ext2 -b 1024 -N 24000", "64M"),
    ("-t ext3 -b 1024 -N 24000", "96M"),
    ("-t ext4 -b 1024 -N 24000", "96M"),
    ("-t ext4 -b 4096 -N 24000", "128M"),
    ("-t ext4 -b 4096 -N 24000 -O ^extents,^64bit", "128M"),
    ("-t ext4 -b 1024 -N 24000 -O bigalloc -C 8192", "256M"),
    (
        "-t ext4 -b 4096 -N 24000 -O inline_data,ea_inode -I 512",
        "128M",
    ),
    (
        "-t ext4 -b 4096 -N 24000 -O casefold -E encoding=utf8",
        "128M",
    ),
    ("-t ext4 -b 4096 -N 24000 -O quota,project", "128M"),
    (
        "-t ext4 -b 1024 -N 24000 -O large_dir,^metadata_csum",
        "128M",
    ),
    (
        "-t ext4 -b 4096 -N 24000 -O orphan_file,fast_commit",
        "128M",
    ),
    (
        "-t ext4 -b 1024 -N 24000 -O meta_bg,^resize_inode,^flex_bg",
        "128M",
    ),
];

/// Names in the large directory: the variable sets how many.
fn names() -> u32 {
    let asked = crate::number_from("LANEFS_CHECK_NAMES");
    asked.map_or(2000, |names| u32::try_from(names).unwrap())
}

fn set_attribute(path: &Path, name: &str, value: &str) {
    // A source's own file system may have no attributes: then the kernel's images have them alone.
    let _ = Command::new("setfattr")
        .args(["-n", name, "-v", value])
        .arg(path)
        .output();
}

/// Fills a folder with every kind of file; `names` in the large directory.
fn fill(root: &Path, names: u32) {
    for folder in ["many", "deep/a/b/c/d", "empty", "attributes"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for number in 0..names {
        let path = root.join(format!("many/a name of some length {number}"));
        File::create(path).unwrap();
    }
    fs::write(root.join("small"), "small").unwrap();
    fs::write(root.join("deep/a/medium"), vec![7; 150_000]).unwrap();
    for number in 0..3 {
        fs::hard_link(
            root.join("small"),
            root.join(format!("deep/a/b/link {number}")),
        )
        .unwrap();
    }
    let holes = File::create(root.join("holes")).unwrap();
    for number in 0..400 {
        holes
            .write_all_at(&[number as u8 | 1; 1500], number * 8192)
            .unwrap();
    }
    holes.set_len(40 << 20).unwrap();
    let far = File::create(root.join("far")).unwrap();
    far.write_all_at(b"x", 3 << 30).unwrap();
    symlink("small", root.join("fast")).unwrap();
    symlink("d/".repeat(100), root.join("slow")).unwrap();
    symlink("x".repeat(59), root.join("fifty-nine")).unwrap();
    symlink("x".repeat(60), root.join("sixty")).unwrap();
    for arguments in ["fifo p", "null c 1 3", "disk b 7 300"] {
        let mut arguments = arguments.split(' ');
        let path = root.join(arguments.next().unwrap());
        // Without root only the fifo can be made.
        let _ = Command::new("mknod").arg(path).args(arguments).output();
    }
    for number in 0..6 {
        let path = root.join(format!("attributes/{number}"));
        fs::write(&path, "attributes").unwrap();
        set_attribute(&path, "user.small", "in the inode");
        if number > 0 {
            set_attribute(&path, "user.shared", &"shared ".repeat(60));
        }
        set_attribute(
            &path,
            "user.number",
            &number.to_string().repeat(if number > 3 { 400 } else { 1 }),
        );
    }
}

/// What a use of the file system leaves: deleted names and files, files in pieces, files cut short.
fn wear(root: &Path, names: u32) {
    for number in (0..names).filter(|number| number % 3 == 0) {
        fs::remove_file(root.join(format!("many/a name of some length {number}"))).unwrap();
    }
    fs::rename(
        root.join("many/a name of some length 1"),
        root.join("empty/moved"),
    )
    .unwrap();
    let [first, second] = ["first", "second"].map(|name| File::create(root.join(name)).unwrap());
    for number in 0..200 {
        for file in [&first, &second] {
            file.write_all_at(&[1; 4096], number * 4096).unwrap();
            file.sync_data().unwrap();
        }
    }
    // Only a file system with ea_inode, or with large blocks, takes it.
    set_attribute(&root.join("small"), "user.large", &"large ".repeat(1500));
    first.set_len(123_456).unwrap();
    fs::remove_file(root.join("second")).unwrap();
    let _ = Command::new("fallocate")
        .args(["-l", "1M"])
        .arg(root.join("reserved"))
        .output();
    let punch = ["-p", "-o", "65536", "-l", "65536"];
    let _ = Command::new("fallocate")
        .args(punch)
        .arg(root.join("holes"))
        .output();
    fs::remove_dir_all(root.join("deep/a/b/c")).unwrap();
}

fn mke2fs(options: &str, size: &str, source: Option<&Path>, image: &Path) -> Result<(), String> {
    let mut words: Vec<&str> = options.split(' ').collect();
    if let Some(source) = source {
        words.extend(["-d", source.to_str().unwrap()]);
    }
    words.extend([image.to_str().unwrap(), size]);
    let output = testkit::try_mke2fs(&words);
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Whether e2fsck -fn finds nothing, and what it prints.
fn e2fsck(image: &Path) -> (bool, String) {
    let output = testkit::chosen_e2fsck(&["-fn"], image);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

/// Compares the verdicts on an image that e2fsck must call clean. What is wrong in words.
fn judge(image: &Path, what: &str) -> Option<String> {
    let (is_clean, text) = e2fsck(image);
    if !is_clean {
        return Some(format!("{what}: e2fsck finds this in the image:\n{text}"));
    }
    let device = FileDevice::open_read_only(image).unwrap();
    let report = match check_device(&device, 2) {
        Ok(report) => report,
        Err(error) => return Some(format!("{what}: {error}")),
    };
    // A note would be allowed, but a file system just made has none.
    if !report.problems.is_empty() {
        return Some(format!("{what}:\n{}", shown(&report)));
    }
    let totals = report.totals?;
    let sums = [
        format!("{}/{} files", totals.files, totals.inodes),
        format!("{}/{} blocks", totals.used_blocks, totals.blocks),
    ];
    let wrong = sums.iter().find(|sum| !text.contains(*sum))?;
    Some(format!("{what}: {wrong}, but e2fsck says:\n{text}"))
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn images_that_mke2fs_fills_are_clean() {
    if !testkit::have("mke2fs") {
        return testkit::skip("mke2fs is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fill(&source, names() / 4);
    let image = folder.path().join("image");
    let mut wrong = Vec::new();
    for (options, size) in BY_MKE2FS {
        let _ = fs::remove_file(&image);
        if let Err(error) = mke2fs(options, size, Some(&source), &image) {
            wrong.push(format!("mke2fs {options} {size}: {error}"));
            continue;
        }
        // mke2fs 1.47.0 itself makes mistakes with quota files and values in inodes; e2fsck repairs them below.
        if e2fsck(&image).0 {
            wrong.extend(judge(&image, options));
        }
        // Directories are made anew, with indices.
        testkit::chosen_e2fsck(&["-fyD"], &image);
        wrong.extend(judge(&image, &format!("{options}, after e2fsck -D")));
    }
    assert_none(&wrong);
}

#[test]
fn images_that_the_kernel_fills_are_clean() {
    if !testkit::is_root() || !testkit::have("mke2fs") {
        return testkit::skip("mounting needs root and mke2fs");
    }
    let folder = tempfile::tempdir().unwrap();
    let image: PathBuf = folder.path().join("image");
    let mut wrong = Vec::new();
    for (options, size) in BY_KERNEL {
        let _ = fs::remove_file(&image);
        if let Err(error) = mke2fs(options, size, None, &image) {
            wrong.push(format!("mke2fs {options} {size}: {error}"));
            continue;
        }
        let Ok(mounted) = KernelMount::with(&image, "rw,loop") else {
            testkit::skip(&format!("the kernel does not mount {options}"));
            continue;
        };
        fill(&mounted.path(), names());
        wear(&mounted.path(), names());
        drop(mounted);
        wrong.extend(judge(&image, &format!("kernel, {options}")));
    }
    assert_none(&wrong);
}
