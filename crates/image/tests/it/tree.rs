//! A tree with every kind of inode and attribute, and what all tests do with an image.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use lanefs_image::{BuildOptions, BuildReport, Silent, build};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, lsetxattr, makedev,
    mknodat, utimensat,
};
use sync::atomic::AtomicBool;
use testkit::{KernelMount, Manifest, e2fsck, is_root};

/// Builds, and panics with the error.
pub fn build_image(options: &BuildOptions, output: &Path) -> BuildReport {
    try_build(options, output).unwrap_or_else(|error| panic!("{}: {error}", output.display()))
}

/// Builds.
pub fn try_build(
    options: &BuildOptions,
    output: &Path,
) -> Result<BuildReport, lanefs_image::BuildError> {
    build(options, output, &Silent, &AtomicBool::new(false))
}

/// Has e2fsck judge the image and, as root, compares what the kernel sees with the source.
pub fn judge(source: &Path, output: &Path, kernel: bool) {
    e2fsck(output);
    if !kernel || !is_root() {
        testkit::skip("mounting needs root, and blocks no larger than a page");
        return;
    }
    let mounted = KernelMount::read_only(output).unwrap();
    let found = Manifest::of(&mounted.path()).unwrap().without_lost_found();
    let expected = Manifest::of(source).unwrap();
    let differences = expected.differences(&found);
    assert!(
        differences.is_empty(),
        "{}: {differences}",
        output.display()
    );
}

/// Deterministic bytes without structure.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testkit::Random::new(seed).fill(&mut bytes);
    bytes
}

fn stamp(path: &Path, seconds: i64, nanoseconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Fills `root` with files of many sizes, links, directories, sparse files and odd names; as root also with devices,
/// owners and extended attributes. `times` must fit what the file system can store.
pub fn make_tree(root: &Path, old_inodes: bool) {
    for (number, len) in [
        0, 1, 59, 60, 1023, 1024, 1025, 4095, 4096, 4097, 65_536, 1_000_003,
    ]
    .into_iter()
    .enumerate()
    {
        fs::write(root.join(format!("file-{len}")), noise(len, number as u64)).unwrap();
    }
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::write(root.join("deep/er/x"), b"x").unwrap();
    fs::hard_link(root.join("file-4097"), root.join("deep/er/and/linked")).unwrap();
    fs::hard_link(root.join("file-4097"), root.join("deep/again")).unwrap();
    fs::write(root.join("n".repeat(255)), b"long name").unwrap();
    fs::write(root.join("sp ace\nnew\u{fc}"), b"odd name").unwrap();
    for len in [1, 59, 60, 61, 400, 1000] {
        symlink("t".repeat(len), root.join(format!("link-{len}"))).unwrap();
    }
    sparse(root);
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..1500 {
        fs::write(
            many.join(format!("a-rather-long-name-of-file-{number:05}")),
            b"",
        )
        .unwrap();
    }
    fs::set_permissions(root.join("file-60"), PermissionsExt::from_mode(0o4755)).unwrap();
    fs::set_permissions(root.join("empty"), PermissionsExt::from_mode(0o1777)).unwrap();
    if is_root() {
        privileged(root);
    }
    let (early, late) = if old_inodes {
        (7, 0x7fff_ffff)
    } else {
        (-1, 0x1_8000_0000)
    };
    let ns = |ns| if old_inodes { 0 } else { ns };
    stamp(&root.join("file-0"), early, ns(1));
    stamp(&root.join("file-1"), late, ns(999_999_999));
    stamp(&root.join("link-59"), 1_000_000_000, ns(5));
    if old_inodes {
        for path in testkit::Manifest::of(root).unwrap().entries.keys() {
            let path = root.join(String::from_utf8(path.clone()).unwrap());
            stamp(&path, 1_234_567_890, 0);
        }
    }
}

fn sparse(root: &Path) {
    let file = File::create(root.join("sparse")).unwrap();
    for (number, offset) in [0u64, 70_000, 1 << 20, (1 << 24) + 12_345]
        .into_iter()
        .enumerate()
    {
        file.write_all_at(&noise(5000, 50 + number as u64), offset)
            .unwrap();
    }
    file.set_len(1 << 25).unwrap();
    let file = File::create(root.join("hole-only")).unwrap();
    file.set_len(123_456).unwrap();
    let mut file = File::create(root.join("ends-in-data")).unwrap();
    file.seek(SeekFrom::Start(3 << 20)).unwrap();
    file.write_all(b"end").unwrap();
}

fn privileged(root: &Path) {
    let mode = Mode::from_raw_mode(0o640);
    for (name, kind, device) in [
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("big-char", FileType::CharacterDevice, makedev(300, 70_000)),
        ("loop7", FileType::BlockDevice, makedev(7, 7)),
        ("pipe", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
    ] {
        mknodat(CWD, root.join(name), kind, mode, device).unwrap();
    }
    let owner = |path: &str, uid: u32, gid: u32| {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let path = root.join(path);
        rustix::fs::chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).unwrap();
    };
    owner("file-1", 1000, 1001);
    owner("link-60", 70_000, 4_000_000_000);
    owner("deep", 3_000_000_000, 5);
    let set = |path: &str, name: &str, value: &[u8]| {
        lsetxattr(root.join(path), name, value, XattrFlags::empty()).unwrap();
    };
    set("file-59", "user.small", b"value");
    set("file-60", "user.a", &noise(300, 1));
    set("file-60", "user.b", &noise(200, 2));
    set("file-60", "trusted.c", b"");
    for name in ["file-1023", "file-1024", "file-1025"] {
        set(name, "user.shared", &noise(500, 3));
    }
    set("deep", "security.label", b"system_u:object_r:etc_t:s0\0");
    set("link-400", "trusted.on-a-link", b"yes");
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    set("file-4096", "security.capability", &capability);
    // Version 2; owner rwx, user 1000 rw, group r, mask rwx, other none.
    let acl: Vec<u8> = [
        &2u32.to_le_bytes()[..],
        &[1, 0, 7, 0, 255, 255, 255, 255],
        &[2, 0, 6, 0, 0xe8, 3, 0, 0],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[16, 0, 7, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    set("file-4095", "system.posix_acl_access", &acl);
    set("deep/er", "system.posix_acl_default", &acl);
}
