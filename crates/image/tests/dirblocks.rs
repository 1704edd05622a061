//! Directories laid out by [`lanefs_image::dirblocks`] are clean to e2fsck, and the kernel finds every name.
//!
//! The blocks are given to debugfs as a file's content, which is then declared a directory. Its names are hard links
//! to a few files.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use lanefs_image::dirblocks::{DirectoryFormat, DirectoryIdentity, DirectoryPlan, NamedInode};
use ondisk::dirent::DirForm;
use ondisk::dirhash::HashVersion;
use ondisk::htree;
use ondisk::{BlockSize, FileType, Generation, Ino};

/// The arguments of mke2fs, and the format that they make.
struct Case {
    mke2fs: &'static [&'static str],
    shape: DirectoryFormat,
}

const UUID: &str = "11111111-2222-3333-4444-555555555555";
const HASH_SEED_OPTION: &str = "hash_seed=5d8c2e71-90fa-4b36-8e17-c4a9d3b2f605";
const HASH_SEED: [u32; 4] = [0x712E_8C5D, 0x364B_FA90, 0xA9C4_178E, 0x05F6_B2D3];
/// The first inode that debugfs gives out behind lost+found.
const FIRST: u32 = 12;
/// Fewer links than a file may have.
const LINKS: usize = 60_000;

fn shape(block_size: BlockSize) -> DirectoryFormat {
    DirectoryFormat {
        block_size,
        checksum: true,
        filetype: true,
        dir_index: true,
        large_dir: false,
        hash: HashVersion::HalfMd4,
        hash_seed: HASH_SEED,
    }
}

/// The seed of an inode's checksums; debugfs gives the directory generation 0.
fn checksum_seed(ino: Ino) -> u32 {
    let uuid: Vec<u8> = UUID
        .bytes()
        .filter(|byte| *byte != b'-')
        .collect::<Vec<u8>>()
        .chunks(2)
        .map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("hex"))
        .collect();
    let fs_seed = ondisk::csum::crc32c(!0, &uuid);
    ondisk::inode::checksum_seed(fs_seed, ino, Generation(0))
}

fn debugfs(image: &Path, folder: &Path, script: &str) {
    let path = folder.join("script");
    fs::write(&path, script).expect("the script is written");
    let (path, image) = (
        path.to_str().expect("plain"),
        image.to_str().expect("plain"),
    );
    let output = testkit::debugfs(&["-w", "-f", path, image]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

/// An image with the directory /d of these names, and the plan that made it.
fn build(case: &Case, names: &[Vec<u8>], folder: &Path) -> (PathBuf, DirectoryPlan) {
    let plan = DirectoryPlan::new(case.shape, names.len(), |i| &names[i]).expect("a directory");
    let files = names.len().div_ceil(LINKS);
    let dir = Ino(FIRST + u32::try_from(files).expect("few files"));
    let identity = DirectoryIdentity {
        ino: dir,
        parent: Ino::ROOT,
        checksum_seed: checksum_seed(dir),
    };
    let target = |i: usize| NamedInode {
        ino: Ino(FIRST + u32::try_from(i / LINKS).expect("few files")),
        file_type: FileType::Regular,
    };
    let mut bytes = vec![0xAA; plan.blocks() as usize * case.shape.block_size.bytes()];
    for (number, block) in (0..).zip(bytes.chunks_mut(case.shape.block_size.bytes())) {
        plan.fill(number, identity, |i| &names[i], target, block);
    }
    let content = folder.join("d");
    fs::write(&content, &bytes).expect("the blocks are written");

    let image = folder.join("image");
    let size = 24 * 1024 * 1024 + 2 * bytes.len() as u64;
    File::create(&image)
        .and_then(|file| file.set_len(size))
        .expect("an image");
    let path = image.to_str().expect("plain");
    let mut arguments = vec!["-t", "ext4", "-U", UUID, "-E", HASH_SEED_OPTION];
    arguments.extend(case.mke2fs);
    arguments.push(path);
    testkit::mke2fs(&arguments);
    let mut script = String::new();
    for file in 0..files {
        let links = (names.len() - file * LINKS).min(LINKS) + 1;
        writeln!(
            script,
            "write /dev/null f{file}\nsif f{file} links_count {links}"
        )
        .expect("text");
    }
    let flags = if plan.is_indexed() {
        "0x81000"
    } else {
        "0x80000"
    };
    writeln!(
        script,
        "write {} plain\nsif plain mode 040755\nsif plain links_count 2\nsif plain flags {flags}\n\
         sif plain generation 0\nln plain d\nunlink plain\nsif / links_count 4\nset_bg 0 used_dirs_count 3\n\
         set_bg 0 checksum calc",
        content.display()
    )
    .expect("text");
    debugfs(&image, folder, &script);
    (image, plan)
}

fn check(case: &Case, names: &[Vec<u8>]) -> DirectoryPlan {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (image, plan) = build(case, names, folder.path());
    testkit::e2fsck(&image);
    if case.shape.block_size > BlockSize::K4 {
        return plan;
    }
    if !testkit::is_root() {
        testkit::skip("mounting needs root");
        return plan;
    }
    let mounted = testkit::KernelMount::read_only(&image).expect("the kernel mounts it");
    let directory = mounted.path().join("d");
    for (i, name) in names.iter().enumerate() {
        let path = directory.join(std::str::from_utf8(name).expect("plain names"));
        let found = fs::symlink_metadata(&path).map(|metadata| metadata.ino());
        assert_eq!(
            found.ok(),
            Some(u64::from(FIRST) + (i / LINKS) as u64),
            "{}",
            path.display()
        );
    }
    assert_eq!(
        fs::read_dir(&directory).expect("a directory").count(),
        names.len()
    );
    plan
}

fn numbered(count: usize, prefix: &str) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| format!("{prefix}{i}").into_bytes())
        .collect()
}

fn ready() -> bool {
    let ready = ["mke2fs", "debugfs", "e2fsck"]
        .into_iter()
        .all(testkit::have);
    if !ready {
        testkit::skip("no e2fsprogs");
    }
    ready
}

#[test]
fn directories_of_every_depth_are_clean_and_complete() {
    if !ready() {
        return;
    }
    let sizes: [(BlockSize, &'static [&'static str], Vec<usize>); 3] = [
        (
            BlockSize::K1,
            &["-b", "1024"],
            vec![0, 1, 36, 37, 100, 20_000],
        ),
        (
            BlockSize::K4,
            &["-b", "4096"],
            vec![1, 200, 20_000, 120_000],
        ),
        (BlockSize::K64, &["-b", "65536"], vec![1, 5_000, 50_000]),
    ];
    for (block_size, mke2fs, counts) in sizes {
        for count in counts {
            let case = Case {
                mke2fs,
                shape: shape(block_size),
            };
            check(&case, &numbered(count, "a file "));
        }
    }
}

#[test]
fn three_levels_take_large_dir() {
    if !ready() {
        return;
    }
    let names = numbered(300_000, "a name of more than a few bytes, number ");
    let refused = DirectoryPlan::new(shape(BlockSize::K1), names.len(), |i| &names[i]);
    let text = refused
        .map(|_| ())
        .expect_err("two levels do not do")
        .to_string();
    assert_eq!(
        text,
        "a directory of 300000 names in 1 KiB blocks needs the feature large_dir"
    );
    let case = Case {
        mke2fs: &["-b", "1024", "-O", "large_dir"],
        shape: DirectoryFormat {
            large_dir: true,
            ..shape(BlockSize::K1)
        },
    };
    let plan = check(&case, &names);
    assert!(plan.blocks() > 15_498);
}

#[test]
fn other_hashes_and_no_checksums_and_no_index_are_clean_too() {
    if !ready() {
        return;
    }
    let names = numbered(3_000, "größe ");
    let base = DirectoryFormat {
        checksum: false,
        ..shape(BlockSize::K1)
    };
    let cases = [
        Case {
            mke2fs: &["-b", "1024", "-O", "^metadata_csum,^filetype"],
            shape: DirectoryFormat {
                filetype: false,
                ..base
            },
        },
        Case {
            mke2fs: &["-b", "1024", "-O", "^metadata_csum,^dir_index"],
            shape: DirectoryFormat {
                dir_index: false,
                ..base
            },
        },
        Case {
            mke2fs: &["-b", "4096", "-O", "^dir_index"],
            shape: DirectoryFormat {
                dir_index: false,
                ..shape(BlockSize::K4)
            },
        },
    ];
    for case in cases {
        let plan = check(&case, &names);
        assert_eq!(plan.is_indexed(), case.shape.dir_index);
    }
}

/// Names of 250 bytes in groups of four with the same hash, found by trying 40 million of them.
const SAME_HASH: [[u32; 4]; 9] = [
    [14_565_769, 21_272_168, 30_478_981, 35_538_380],
    [2_378_777, 15_649_769, 20_724_042, 35_959_461],
    [113_154, 6_577_192, 12_089_190, 24_922_538],
    [222_463, 22_059_806, 24_352_707, 33_960_997],
    [415_970, 508_780, 11_724_999, 36_436_555],
    [213_224, 16_195_399, 28_765_199, 32_066_820],
    [9_168_301, 13_654_243, 17_878_800, 22_092_062],
    [960_329, 17_000_746, 28_979_245, 35_436_993],
    [10_425_337, 14_240_033, 14_709_291, 19_897_393],
];

#[test]
fn names_of_one_hash_that_fit_no_leaf_continue_in_the_next() {
    if !ready() {
        return;
    }
    // A leaf of 1 KiB holds three of them.
    let mut names: Vec<Vec<u8>> = SAME_HASH
        .iter()
        .flatten()
        .map(|number| format!("{}{number:08}", "n".repeat(242)).into_bytes())
        .collect();
    let case = Case {
        mke2fs: &["-b", "1024"],
        shape: shape(BlockSize::K1),
    };
    let plan = check(&case, &names);
    let mut root = vec![0; 1024];
    let identity = DirectoryIdentity {
        ino: Ino(FIRST),
        parent: Ino::ROOT,
        checksum_seed: 0,
    };
    let unused = |_| unreachable!("the root holds no names");
    plan.fill(0, identity, |i| &names[i], unused, &mut root);
    let form = DirForm {
        block_size: BlockSize::K1,
        filetype: true,
        checksum: true,
        hashes: false,
        max_ino: Ino(u32::MAX),
    };
    let (_, index) = htree::root(&root, form, htree::LEVELS_MAX, false).expect("a root");
    let continued = (0..index.count()).filter(|i| index.continues(*i)).count();
    assert!(continued >= SAME_HASH.len(), "{continued}");
    names.extend(numbered(2_000, "between them "));
    check(&case, &names);
}
