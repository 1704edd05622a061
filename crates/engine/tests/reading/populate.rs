//! A tree with one of everything, made through the kernel below any directory.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps, XattrFlags, fallocate,
    makedev, mknodat, setxattr, utimensat,
};

/// What the file system below the tree can hold.
#[derive(Clone, Copy)]
pub struct Abilities {
    /// Bytes a block, which decide where holes go.
    pub block: u64,
    /// Bytes of the longest attribute value.
    pub xattr: usize,
    /// Whether `fallocate` works.
    pub fallocate: bool,
    /// Whether files of 5 GiB are possible.
    pub large: bool,
}

/// `len` bytes that depend on `seed` and on nothing else.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testkit::Random::new(seed).fill(&mut bytes);
    bytes
}

/// Fills `root` with files of every type and shape.
pub fn populate(root: &Path, can: Abilities) {
    files(root);
    shapes(root, can);
    links_and_nodes(root);
    attributes(root, can);
}

fn files(root: &Path) {
    let sizes = [
        0usize, 1, 59, 60, 61, 120, 159, 160, 161, 500, 1023, 1024, 1025, 4095, 4096, 4097, 65_536,
        70_001, 3_000_000,
    ];
    for size in sizes {
        fs::write(
            root.join(format!("size-{size}")),
            pattern(size as u64, size),
        )
        .unwrap();
    }
    let deep = root.join("a/b/c/d");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("leaf"), b"leaf").unwrap();
    fs::set_permissions(deep.join("leaf"), fs::Permissions::from_mode(0o6711)).unwrap();
    rustix::fs::chown(
        &deep,
        Some(rustix::fs::Uid::from_raw(70_000)),
        Some(rustix::fs::Gid::from_raw(0x1234_5678)),
    )
    .unwrap();
    let moment = |seconds, nanoseconds| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    for (name, seconds) in [("old", -1_000_000_000), ("new", 4_000_000_000)] {
        fs::write(root.join(name), b"time").unwrap();
        let times = Timestamps {
            last_access: moment(seconds, 1),
            last_modification: moment(seconds + 1, 999_999_999),
        };
        utimensat(CWD, root.join(name), &times, AtFlags::empty()).unwrap();
    }
}

fn shapes(root: &Path, can: Abilities) {
    let fragmented = File::create(root.join("fragmented")).unwrap();
    for index in 0..2000 {
        let bytes = pattern(index, can.block as usize);
        fragmented
            .write_all_at(&bytes, 2 * index * can.block)
            .unwrap();
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 1_234_567).unwrap();
    sparse.set_len(9_999_999).unwrap();
    File::create(root.join("all-hole"))
        .unwrap()
        .set_len(7_777_777)
        .unwrap();
    if can.large {
        let large = File::create(root.join("large")).unwrap();
        large.write_all_at(b"start", 0).unwrap();
        large.write_all_at(&pattern(5, 100_000), 5 << 30).unwrap();
    }
    if can.fallocate && can.large {
        // The last block that a file can have: logical block 2^32 - 2.
        let last = File::create(root.join("last-block")).unwrap();
        let at = u64::from(u32::MAX - 1) * can.block;
        last.write_all_at(b"the end", at).unwrap();
    }
    if can.fallocate {
        let unwritten = File::create(root.join("unwritten")).unwrap();
        fallocate(&unwritten, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        unwritten
            .write_all_at(&pattern(6, 10_000), 300_000)
            .unwrap();
        let beyond = File::create(root.join("beyond-the-end")).unwrap();
        beyond.write_all_at(b"short", 0).unwrap();
        fallocate(&beyond, FallocateFlags::KEEP_SIZE, 0, 1 << 18).unwrap();
    }
}

fn links_and_nodes(root: &Path) {
    for len in [1usize, 58, 59, 60, 61, 200, 1000] {
        let target: String = (0..len)
            .map(|at| char::from(b'a' + (at % 26) as u8))
            .collect();
        symlink(target, root.join(format!("link-{len}"))).unwrap();
    }
    fs::hard_link(root.join("size-4096"), root.join("hard")).unwrap();
    let nodes = [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("wide", FileType::BlockDevice, makedev(300, 70_000)),
    ];
    for (name, file_type, number) in nodes {
        let mode = Mode::from_raw_mode(0o640);
        mknodat(CWD, root.join(name), file_type, mode, number).unwrap();
    }
}

fn attributes(root: &Path, can: Abilities) {
    let set = |path: &Path, name: &str, value: &[u8]| {
        setxattr(path, name, value, XattrFlags::empty()).unwrap();
    };
    let small = root.join("xattr-small");
    fs::write(&small, b"x").unwrap();
    set(&small, "user.one", b"1");
    set(&small, "user.empty", b"");
    let many = root.join("xattr-many");
    fs::write(&many, b"x").unwrap();
    for index in 0..if can.block == 1024 { 6 } else { 12 } {
        set(
            &many,
            &format!("user.name-{index}"),
            &pattern(index, 20 + index as usize),
        );
    }
    set(&many, "trusted.t", b"only root sees this");
    set(&many, "security.any", b"label");
    // Version 2 of a capability set: cap_net_raw, effective.
    let capability = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    set(&many, "security.capability", &capability);
    let long = root.join("xattr-long");
    fs::write(&long, b"x").unwrap();
    set(&long, "user.long", &pattern(9, can.xattr));
    let acl_entry = |tag: u16, perm: u16, id: u32| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes
    };
    let entries = [
        acl_entry(1, 7, u32::MAX),
        acl_entry(2, 6, 1000),
        acl_entry(4, 5, u32::MAX),
        acl_entry(8, 4, 70_000),
        acl_entry(16, 7, u32::MAX),
        acl_entry(32, 0, u32::MAX),
    ];
    let acl = [2u32.to_le_bytes().to_vec(), entries.concat()].concat();
    let directory = root.join("acl");
    fs::create_dir(&directory).unwrap();
    set(&directory, "system.posix_acl_access", &acl);
    set(&directory, "system.posix_acl_default", &acl);
    fs::write(directory.join("inherits"), b"x").unwrap();
}
