//! The same tree on every kind of file system.

use std::path::Path;

use lanefs_engine::InodeFs;
use testkit::KernelMount;

use crate::image::{Image, can_mount};
use crate::oracle;
use crate::populate::{Abilities, populate};

/// mke2fs's arguments, bytes a block, longest attribute, whether extents.
const PROFILES: &[(&str, u64, usize, bool)] = &[
    ("-t ext2 -b 1024 -I 128", 1024, 800, false),
    ("-t ext2 -b 4096", 4096, 3000, false),
    ("-t ext3 -b 1024", 1024, 800, false),
    ("-t ext3 -b 2048 -I 256", 2048, 1500, false),
    ("-t ext4 -b 4096", 4096, 3000, true),
    ("-t ext4 -b 1024", 1024, 800, true),
    ("-t ext4 -b 2048 -I 1024", 2048, 1500, true),
    (
        "-t ext4 -b 4096 -I 128 -O ^metadata_csum,uninit_bg",
        4096,
        3000,
        true,
    ),
    (
        "-t ext4 -b 4096 -I 512 -O ^64bit,^flex_bg",
        4096,
        3000,
        true,
    ),
    ("-t ext4 -b 4096 -O bigalloc -C 65536", 4096, 3000, true),
    (
        "-t ext4 -b 1024 -O bigalloc,^resize_inode -C 8192",
        1024,
        800,
        true,
    ),
    ("-t ext4 -b 1024 -O meta_bg,^resize_inode", 1024, 800, true),
    ("-t ext4 -b 4096 -O inline_data", 4096, 3000, true),
    ("-t ext4 -b 1024 -I 1024 -O inline_data", 1024, 800, true),
    (
        "-t ext4 -b 4096 -O ea_inode,metadata_csum_seed",
        4096,
        60_000,
        true,
    ),
    (
        "-t ext4 -b 4096 -O project,quota,^has_journal",
        4096,
        3000,
        true,
    ),
    (
        "-t ext4 -b 4096 -O orphan_file,large_dir,sparse_super2",
        4096,
        3000,
        true,
    ),
];

fn compare(image: &Image, root: &Path) -> InodeFs {
    let fs = image.open();
    let inodes = oracle::compare_with_mount(&fs, root);
    assert!(inodes > 45, "{inodes}");
    let names = [
        "fragmented",
        "sparse",
        "large",
        "unwritten",
        "beyond-the-end",
        "last-block",
        "size-3000000",
    ];
    oracle::compare_runs(image, &fs, root, &names);
    fs
}

#[test]
fn trees_written_by_the_kernel_read_as_the_kernel_shows_them() {
    if !can_mount() {
        return;
    }
    for (arguments, block, xattr, extents) in PROFILES {
        let image = Image::make(arguments, 96);
        {
            let Some(mounted) = image.mount("loop") else {
                continue;
            };
            let can = Abilities {
                block: *block,
                xattr: *xattr,
                fallocate: *extents,
                large: true,
            };
            populate(&mounted.path(), can);
        }
        let mounted = KernelMount::read_only(image.path()).unwrap();
        eprintln!("{arguments}");
        compare(&image, &mounted.path());
    }
}

#[test]
fn trees_written_by_mke2fs_read_as_the_kernel_shows_them() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let can = Abilities {
        block: 4096,
        xattr: 700,
        fallocate: true,
        large: false,
    };
    populate(source.path(), can);
    for (arguments, ..) in PROFILES {
        eprintln!("{arguments}");
        let with_tree = format!("{arguments} -d {}", source.path().display());
        let image = Image::make(&with_tree, 96);
        let Some(mounted) = image.mount("loop,ro") else {
            continue;
        };
        compare(&image, &mounted.path());
    }
}

/// Free space and overhead are what the kernel's statfs says.
#[test]
fn statfs_is_the_kernels() {
    if !can_mount() {
        return;
    }
    for (arguments, ..) in PROFILES {
        eprintln!("{arguments}");
        let image = Image::make(arguments, 64);
        let Some(mounted) = image.mount("loop,ro") else {
            continue;
        };
        let shown = rustix::fs::statvfs(mounted.path()).unwrap();
        let read = image.open().statfs().unwrap();
        let name = *arguments;
        assert_eq!(read.block_size, shown.f_bsize, "{name}");
        assert_eq!(read.blocks, shown.f_blocks, "{name}");
        assert_eq!(read.free, shown.f_bfree, "{name}");
        assert_eq!(
            (read.files, read.free_files),
            (shown.f_files, shown.f_ffree),
            "{name}"
        );
    }
}

/// A tree of three levels of extent blocks: 84 entries a block, 30,000 runs.
#[test]
fn a_tree_of_depth_three_reads_right() {
    if !can_mount() {
        return;
    }
    let image = Image::make("-t ext4 -b 1024", 128);
    {
        let mounted = KernelMount::with(image.path(), "loop").unwrap();
        let file = std::fs::File::create(mounted.path().join("deep")).unwrap();
        for index in 0..30_000u64 {
            let bytes = crate::populate::pattern(index, 1024);
            std::os::unix::fs::FileExt::write_all_at(&file, &bytes, index * 2048).unwrap();
        }
    }
    let mounted = KernelMount::read_only(image.path()).unwrap();
    let fs = image.open();
    oracle::compare_with_mount(&fs, &mounted.path());
    oracle::compare_runs(&image, &fs, &mounted.path(), &["deep"]);
    assert!(
        image.debugfs("stat deep").contains("(ETB2)"),
        "three levels"
    );
}
