//! Images of every block size and feature are clean to e2fsck, and the kernel works on them: it mounts, writes,
//! deletes, unmounts, and what it leaves is clean again. The first needs e2fsprogs, the second root.

mod tools;

use std::path::Path;

use testkit::{KernelMount, e2fsck};
use tools::Case;

/// Writes through the kernel: directories, small files, one that needs many blocks, a deleted one.
fn work_on(root: &Path) {
    for directory in 0..10 {
        let directory = root.join(format!("directory {directory}"));
        std::fs::create_dir(&directory).unwrap();
        for file in 0..5 {
            std::fs::write(
                directory.join(format!("file {file}")),
                vec![file; 700 * usize::from(file)],
            )
            .unwrap();
        }
    }
    let large = root.join("large");
    std::fs::write(&large, vec![0xA5; 300_000]).unwrap();
    std::fs::remove_file(root.join("directory 3/file 4")).unwrap();
    std::fs::rename(root.join("directory 1"), root.join("directory 2/inside")).unwrap();
    std::fs::hard_link(&large, root.join("directory 5/again")).unwrap();
    assert!(root.join("lost+found").is_dir());
}

/// Makes the image, checks it, has the kernel work on it, and checks it again. `mounts`: whether every kernel we test
/// on knows it.
fn check(case: &Case, mounts: bool) {
    check_in(&std::env::temp_dir(), case, mounts);
}

fn check_in(place: &Path, case: &Case, mounts: bool) {
    let directory = tempfile::tempdir_in(place).unwrap();
    let image = directory.path().join("image");
    let summary = case.ours(&image);
    if !testkit::is_root() {
        testkit::skip("mounting needs root");
        return;
    }
    match KernelMount::with(&image, "loop") {
        Ok(mounted) => {
            if summary.free_inodes > 100 {
                work_on(&mounted.path());
            }
            drop(mounted);
            e2fsck(&image);
        }
        Err(error) if mounts => panic!("{case}: {error}"),
        // Not the kernel's message: it has the image's random name, and equal reasons are counted together.
        Err(_) => testkit::skip(&format!("this kernel does not mount {case}")),
    }
}

fn check_all(cases: &[Case], mounts: bool) {
    if tools::ready() {
        for case in cases {
            check(case, mounts);
        }
    }
}

#[test]
fn every_block_size_is_clean_and_the_kernel_works_on_it() {
    for block in ["1024", "2048", "4096"] {
        let cases = ["2200K", "8M", "100M", "600M"]
            .map(|size| Case::new(size, &format!("-O ^has_journal -b {block}")));
        check_all(&cases, true);
        let cases = ["16M", "100M", "600M"].map(|size| Case::new(size, &format!("-b {block}")));
        check_all(&cases, true);
    }
}

#[test]
fn blocks_larger_than_a_page_are_clean() {
    for block in ["8192", "16384", "32768", "65536"] {
        let cases =
            ["16M", "100M", "600M", "5G"].map(|size| Case::new(size, &format!("-b {block}")));
        check_all(&cases, false);
    }
}

#[test]
fn every_feature_is_clean_and_the_kernel_works_on_it() {
    for features in [
        "fast_commit",
        "meta_bg",
        "sparse_super2",
        "^sparse_super",
        "^resize_inode",
        "^64bit",
        "^metadata_csum",
        "uninit_bg,^metadata_csum",
        "^metadata_csum_seed",
        "mmp",
        "^flex_bg",
        "^has_journal",
        "^orphan_file",
        "^extent",
        "bigalloc",
        "inline_data",
        "ea_inode,large_dir",
        "stable_inodes,encrypt",
        "^filetype",
        "^dir_index",
        "^huge_file,^large_file,^extra_isize,^dir_nlink",
        "none",
        "none,extent,metadata_csum",
        "none,has_journal,sparse_super,filetype",
        "meta_bg,bigalloc,inline_data,mmp,fast_commit",
    ] {
        let cases = ["16M", "100M", "600M"].map(|size| Case::new(size, &format!("-O {features}")));
        check_all(&cases, true);
    }
    let rarer = ["casefold", "verity", "project"]
        .map(|features| Case::new("64M", &format!("-O {features}")));
    check_all(&rarer, false);
}

#[test]
fn every_letter_is_clean_and_the_kernel_works_on_it() {
    let lines = "100M -I 128|100M -I 1024|100M -g 1024 -b 1024|100M -g 4096 -b 4096|600M -G 64|600M -G 1|100M -i 1024|\
                 600M -T largefile4|600M -J size=64|600M -J location=3000|600M -E packed_meta_blocks=1|\
                 600M -E desc_size=128|600M -E desc_size=1024|600M -E resize=10000000|64M -E orphan_file_size=1|\
                 100M -E orphan_file_size=512K|600M -O fast_commit -J size=16,fast_commit_size=4096|\
                 100M -O bigalloc -b 1024 -C 65536|600M -O bigalloc -C 8192|2G -O bigalloc -b 1024 -C 16384|\
                 8G -O bigalloc -C 4194304|2G -O bigalloc -b 1024 -C 1048576|\
                 600M -O sparse_super2 -E num_backup_sb=1|600M -O sparse_super2 -E num_backup_sb=0|\
                 600M -O meta_bg -g 256 -b 4096|100M -O mmp -E mmp_update_interval=10|100M -e remount-ro|\
                 100M -E root_owner=1000:1001|256K -O ^has_journal -N 12|2M -J size=1|\
                 64M -E test_fs,stride=4,stripe_width=8|100M -m 0";
    let cases = lines
        .split('|')
        .filter(|line| !line.contains("4000000000"))
        .map(|line| {
            let (size, letters) = line.split_once(' ').unwrap();
            Case::new(size, letters)
        });
    check_all(&cases.collect::<Vec<_>>(), true);
}

#[test]
fn ext2_and_ext3_are_clean_and_the_kernel_works_on_them() {
    for fs_type in ["ext2", "ext3"] {
        let cases = ["16M", "100M", "600M"].map(|size| Case::of_type(fs_type, size, ""));
        check_all(&cases, true);
    }
}

#[test]
#[ignore = "e2fsck takes a minute over half a million groups: cargo xtask suites long"]
fn the_largest_images_are_clean_and_the_kernel_works_on_them() {
    // Few file systems have files beyond 16 TiB.
    let place = Path::new("/dev/shm");
    if !tools::ready() || !place.is_dir() {
        return testkit::skip("there is no tmpfs for files of 17 TiB");
    }
    check_in(place, &Case::new("15T", "-E lazy_journal_init=1"), true);
    // 2^32 blocks and more: descriptors in their own groups, no resize inode.
    check_in(place, &Case::new("17T", ""), true);
}
