//! Makes the images of tests/corpus anew, with mke2fs, debugfs and the kernel: `cargo test -p lanefs-corpus --test
//! make_seeds -- --ignored`, as root.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::XattrFlags;

/// How an image is filled.
#[derive(Clone, Copy, PartialEq)]
enum Fill {
    /// By the kernel, and unmounted.
    Kernel,
    /// By the kernel; taken while it is mounted, with the journal full of changes.
    Dirty,
    /// By mke2fs -d; debugfs then does these, and e2fsck -D after them.
    Mke2fs(&'static str),
}

struct Profile {
    name: &'static str,
    mib: u64,
    options: &'static [&'static str],
    fill: Fill,
}

const fn by_kernel(name: &'static str, mib: u64, options: &'static [&'static str]) -> Profile {
    Profile {
        name,
        mib,
        options,
        fill: Fill::Kernel,
    }
}

const fn dirty(name: &'static str, mib: u64, options: &'static [&'static str]) -> Profile {
    Profile {
        name,
        mib,
        options,
        fill: Fill::Dirty,
    }
}

const PROFILES: &[Profile] = &[
    by_kernel("default-4k", 8, &["-b", "4096"]),
    by_kernel("default-1k", 4, &["-b", "1024"]),
    by_kernel("default-2k", 4, &["-b", "2048"]),
    by_kernel("ext2-1k", 4, &["-t", "ext2", "-b", "1024"]),
    by_kernel("ext3-1k", 4, &["-t", "ext3", "-b", "1024"]),
    by_kernel(
        "inode-128",
        4,
        &["-b", "1024", "-I", "128", "-O", "^metadata_csum"],
    ),
    by_kernel("inode-1024", 4, &["-b", "1024", "-I", "1024"]),
    by_kernel(
        "uninit-bg",
        4,
        &["-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    ),
    by_kernel("no-journal", 4, &["-b", "1024", "-O", "^has_journal"]),
    by_kernel("inline-data", 4, &["-b", "1024", "-O", "inline_data"]),
    by_kernel(
        "inline-data-512",
        8,
        &["-b", "4096", "-I", "512", "-O", "inline_data"],
    ),
    by_kernel("ea-inode", 4, &["-b", "1024", "-O", "ea_inode"]),
    by_kernel(
        "bigalloc",
        8,
        &["-b", "1024", "-O", "bigalloc", "-C", "8192"],
    ),
    by_kernel(
        "meta-bg",
        24,
        &[
            "-b",
            "1024",
            "-O",
            "meta_bg,^resize_inode",
            "-g",
            "256",
            "-N",
            "2048",
        ],
    ),
    by_kernel(
        "no-flex-bg",
        24,
        &["-b", "1024", "-O", "^flex_bg,^64bit", "-g", "2048"],
    ),
    by_kernel(
        "csum-seed",
        4,
        &["-b", "1024", "-O", "metadata_csum_seed,orphan_file"],
    ),
    by_kernel(
        "sparse-super2",
        24,
        &["-b", "1024", "-O", "sparse_super2,mmp", "-g", "1024"],
    ),
    by_kernel("large-dir", 4, &["-b", "1024", "-O", "large_dir"]),
    dirty("dirty-4k", 8, &["-b", "4096"]),
    dirty("dirty-1k", 4, &["-b", "1024"]),
    dirty(
        "dirty-no-csum",
        4,
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    ),
    dirty("dirty-fast-commit", 4, &["-b", "1024", "-O", "fast_commit"]),
    Profile {
        name: "block-64k",
        mib: 16,
        options: &["-b", "65536", "-O", "^has_journal"],
        fill: Fill::Mke2fs(""),
    },
    Profile {
        name: "block-16k",
        mib: 8,
        options: &["-b", "16384", "-O", "inline_data,^has_journal"],
        fill: Fill::Mke2fs(""),
    },
    Profile {
        name: "quota-verity",
        mib: 4,
        options: &["-b", "1024", "-O", "quota,project,verity,stable_inodes"],
        fill: Fill::Mke2fs("sif small flags 0x180000\n"),
    },
    Profile {
        name: "casefold",
        mib: 4,
        options: &["-b", "1024", "-O", "casefold", "-E", "encoding=utf8-12.1"],
        fill: Fill::Mke2fs("sif names flags 0x40080000\nsif deep flags 0x40080000\n"),
    },
    Profile {
        name: "encrypted",
        mib: 4,
        options: &["-b", "1024", "-O", "encrypt"],
        fill: Fill::Mke2fs(
            "sif names flags 0x80800\nsif small flags 0x80800\nsif long-link flags 0x80800\n",
        ),
    },
];

/// Names in the large directory: enough for an index of two levels in blocks of 1 KiB.
const NAMES: usize = 1_100;

/// A tree with something of every kind. Only the kernel can make the last part.
fn fill(root: &Path, kernel: bool) {
    fs::write(root.join("small"), b"a few bytes\n").expect("a file");
    fs::write(root.join("tiny"), b"x").expect("a file");
    fs::write(root.join("large"), vec![b'L'; 300_000]).expect("a file");
    let mut holes = File::create(root.join("holes")).expect("a file");
    for i in 0..if kernel { 400_u64 } else { 8 } {
        holes.seek(SeekFrom::Start(i * 8192)).expect("sparse");
        holes.write_all(b"island").expect("written");
    }
    symlink("small", root.join("link")).expect("a link");
    symlink("deep/".repeat(30) + "end", root.join("long-link")).expect("a link");
    let deep = root.join("deep/a/b/c/d/e");
    fs::create_dir_all(&deep).expect("directories");
    fs::hard_link(root.join("small"), deep.join("hard link")).expect("a link");
    fs::create_dir(root.join("empty")).expect("a directory");
    fs::create_dir(root.join("names")).expect("a directory");
    for i in 0..if kernel { NAMES } else { 120 } {
        let name = format!("names/a Name of some Length, so that Blocks are soon full {i}");
        fs::hard_link(root.join("tiny"), root.join(name)).expect("a link");
    }
    let null = rustix::fs::makedev(1, 3);
    for (name, kind) in [
        ("char", rustix::fs::FileType::CharacterDevice),
        ("block", rustix::fs::FileType::BlockDevice),
        ("fifo", rustix::fs::FileType::Fifo),
        ("socket", rustix::fs::FileType::Socket),
    ] {
        let path = root.join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, 0o600.into(), null).expect("a node");
    }
    let set = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::setxattr(root.join(name), key, value, XattrFlags::empty())
            .expect("an attribute");
    };
    set("small", "user.short", b"value");
    set("large", "user.long", &[b'v'; 300]);
    set("large", "security.selinux", b"system_u:object_r:etc_t:s0\0");
    set("deep", "trusted.overlay.opaque", b"y");
    set("small", "system.posix_acl_access", &acl());
    if kernel {
        fs::set_permissions(
            root.join("tiny"),
            std::os::unix::fs::PermissionsExt::from_mode(0o4711),
        )
        .expect("a mode");
        let ahead = File::create(root.join("unwritten")).expect("a file");
        rustix::fs::fallocate(&ahead, rustix::fs::FallocateFlags::empty(), 0, 100_000)
            .unwrap_or_default();
        drop(ahead);
        // Free records and blocks with history.
        for i in (0..NAMES).step_by(9) {
            let name = format!("names/a Name of some Length, so that Blocks are soon full {i}");
            fs::remove_file(root.join(name)).expect("a name less");
        }
        // Large enough for an inode of its own, where the file system has that; refused elsewhere.
        let _ = rustix::fs::setxattr(
            root.join("tiny"),
            "user.large",
            &[b'V'; 3000],
            XattrFlags::empty(),
        );
    }
}

/// An access ACL as system calls take it: owner, user 1000, group, mask, others.
fn acl() -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in [
        (1_u16, 6_u16, !0_u32),
        (2, 4, 1000),
        (4, 4, !0),
        (16, 4, !0),
        (32, 4, !0),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(rights.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn make(profile: &Profile, folder: &Path) -> PathBuf {
    let path = folder.join(profile.name);
    File::create(&path)
        .and_then(|file| file.set_len(profile.mib << 20))
        .expect("an image");
    let image = path.to_str().expect("a plain path");
    let mut arguments = vec!["-U", "11111111-2222-3333-4444-555555555555"];
    if !profile.options.contains(&"-t") {
        arguments.extend(["-t", "ext4"]);
    }
    if !profile.options.contains(&"-N") {
        arguments.extend(["-N", "128"]);
    }
    arguments.extend(profile.options);
    let source = tempfile::tempdir().expect("a folder");
    if matches!(profile.fill, Fill::Mke2fs(_)) {
        fill(source.path(), false);
        arguments.extend(["-d", source.path().to_str().expect("a plain path")]);
    }
    arguments.push(image);
    testkit::mke2fs(&arguments);
    match profile.fill {
        Fill::Mke2fs(script) => {
            let commands = folder.join("script");
            fs::write(&commands, script).expect("a script");
            testkit::debugfs(&["-w", "-f", commands.to_str().expect("plain"), image]);
            if !script.contains("0x80800") {
                // 1: something was changed.
                let indexed = testkit::e2fsck_with(&["-fyD"], image.as_ref());
                assert!(indexed.status.code().is_some_and(|code| code <= 1));
            }
            path
        }
        Fill::Kernel => {
            let mounted = testkit::KernelMount::with(&path, "loop").expect("mounted");
            fill(&mounted.path(), true);
            path
        }
        Fill::Dirty => {
            let mounted = testkit::KernelMount::with(&path, "loop,commit=300").expect("mounted");
            fill(&mounted.path(), true);
            rustix::fs::sync();
            fs::remove_file(mounted.path().join("large")).expect("revokes blocks");
            let after = File::create(mounted.path().join("deep/after")).expect("a file");
            after.sync_all().expect("committed");
            fs::rename(mounted.path().join("fifo"), mounted.path().join("renamed"))
                .expect("renamed");
            after.sync_all().expect("committed");
            let copy = folder.join(format!("{}-copy", profile.name));
            fs::copy(&path, &copy).expect("a copy");
            copy
        }
    }
}

#[test]
#[ignore = "needs root, and changes tests/corpus"]
fn seeds_are_made_by_the_kernel_and_e2fsprogs() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus");
    fs::create_dir_all(&target).expect("a folder");
    for profile in PROFILES {
        let path = make(profile, folder.path());
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|mut file| file.read_to_end(&mut bytes))
            .expect("the image");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&bytes).expect("memory");
        let packed = encoder.finish().expect("memory");
        eprintln!("{}: {} KiB", profile.name, packed.len() / 1024);
        fs::write(target.join(format!("{}.img.gz", profile.name)), packed).expect("written");
    }
}
