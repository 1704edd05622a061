//! ACLs: lanefs and the kernel do the same to the same directories, and what is found afterwards is the same.

use std::path::Path;
use std::process::Command;

use lanefs_engine::{Error, FileType, Ino, InodeFs, NewInode, SetAttributes, XattrFlag};
use rustix::fs::{CWD, Mode, XattrFlags, chmod, mkdirat, mknodat, open, removexattr, setxattr};
use testkit::KernelMount;

use crate::image::{finish, make, record, sweep};
use crate::xattrs::attributes;

pub const ACCESS: &[u8] = b"system.posix_acl_access";
pub const DEFAULT: &[u8] = b"system.posix_acl_default";
const UMASK: u16 = 0o027;

/// An ACL in the form of system calls. Tags: 1 owner, 2 user, 4 owning group, 8 group, 16 mask, 32 other.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const NO: u32 = u32::MAX;

pub fn named(user: u16, mask: u16) -> Vec<u8> {
    acl(&[
        (1, 7, NO),
        (2, user, 1000),
        (2, 4, 1001),
        (4, 5, NO),
        (8, 6, 50),
        (16, mask, NO),
        (32, 1, NO),
    ])
}

pub fn minimal(owner: u16, group: u16, other: u16) -> Vec<u8> {
    acl(&[(1, owner, NO), (4, group, NO), (32, other, NO)])
}

/// An ACL that fits into no inode.
fn large() -> Vec<u8> {
    let users = (0..40).map(|id| (2, 6, 2000 + id));
    let mut entries = vec![(1, 7, NO)];
    entries.extend(users);
    entries.extend([(4, 7, NO), (16, 7, NO), (32, 4, NO)]);
    acl(&entries)
}

/// Something done to a path.
#[derive(Debug, Clone)]
enum Step {
    Set(&'static str, &'static [u8], Vec<u8>),
    Remove(&'static str, &'static [u8]),
    Chmod(&'static str, u16),
    Create(&'static str, u16),
    Mkdir(&'static str, u16),
    Fifo(&'static str, u16),
    Symlink(&'static str),
}

fn steps() -> Vec<Step> {
    use Step::{Chmod, Create, Fifo, Mkdir, Remove, Set, Symlink};
    vec![
        Mkdir("d", 0o777),
        Create("d/plain", 0o666),
        Set("d/plain", ACCESS, named(6, 7)),
        Chmod("d/plain", 0o640),
        Set("d/plain", ACCESS, named(3, 2)),
        Chmod("d/plain", 0o4711),
        Create("d/minimal", 0o2755),
        Set("d/minimal", ACCESS, minimal(6, 4, 1)),
        Create("d/back", 0o600),
        Set("d/back", ACCESS, named(7, 7)),
        Remove("d/back", ACCESS),
        Set("d/back", ACCESS, named(7, 7)),
        Set("d/back", ACCESS, minimal(7, 0, 0)),
        Set("d", DEFAULT, named(5, 6)),
        Create("d/file", 0o666),
        Create("d/file600", 0o600),
        Create("d/file777", 0o777),
        Mkdir("d/sub", 0o755),
        Mkdir("d/sub/sub", 0o700),
        Create("d/sub/file", 0o644),
        Fifo("d/fifo", 0o622),
        Symlink("d/link"),
        Set("d/sub", DEFAULT, minimal(7, 5, 4)),
        Create("d/sub/minimal", 0o666),
        Mkdir("d/sub/dir", 0o777),
        Chmod("d/sub/dir", 0o2775),
        Mkdir("d/sub/dir/below", 0o777),
        Remove("d/sub", DEFAULT),
        Create("d/sub/umasked", 0o666),
        Set("d", DEFAULT, large()),
        Mkdir("d/large", 0o777),
        Create("d/large/file", 0o666),
        Create("d/large/second", 0o666),
        Mkdir("d/large/below", 0o750),
        Set("d/large/file", ACCESS, named(7, 5)),
        Set("d", DEFAULT, acl(&[])),
        Create("d/last", 0o666),
    ]
}

fn new(mode: u16) -> NewInode {
    NewInode {
        mode,
        umask: UMASK,
        uid: 0,
        gid: 0,
        held: false,
    }
}

fn place<'p>(fs: &InodeFs, path: &'p str) -> (Ino, &'p [u8]) {
    let (above, name) = path.rsplit_once('/').unwrap_or(("/", path));
    (fs.resolve(above.as_bytes(), true).unwrap(), name.as_bytes())
}

fn by_lanefs(fs: &InodeFs, step: &Step) {
    let at = |path: &str| fs.resolve(path.as_bytes(), false).unwrap();
    match step {
        Step::Set(path, name, acl) => fs.set_xattr(at(path), name, acl, XattrFlag::Any).unwrap(),
        Step::Remove(path, name) => fs.remove_xattr(at(path), name).unwrap(),
        Step::Chmod(path, mode) => {
            let mode = Some(*mode);
            let attributes = SetAttributes {
                mode,
                ..SetAttributes::default()
            };
            fs.set_attributes(at(path), &attributes).unwrap();
        }
        Step::Create(path, mode) => {
            let (parent, name) = place(fs, path);
            fs.create(parent, name, new(*mode)).unwrap();
        }
        Step::Mkdir(path, mode) => {
            let (parent, name) = place(fs, path);
            fs.mkdir(parent, name, new(*mode)).unwrap();
        }
        Step::Fifo(path, mode) => {
            let (parent, name) = place(fs, path);
            fs.mknod(parent, name, FileType::Fifo, (0, 0), new(*mode))
                .unwrap();
        }
        Step::Symlink(path) => {
            let (parent, name) = place(fs, path);
            fs.symlink(parent, name, b"target", new(0o777)).unwrap();
        }
    }
}

fn by_kernel(root: &Path, step: &Step) {
    let text = |name: &'static [u8]| std::str::from_utf8(name).unwrap();
    let mode = |mode: u16| Mode::from_raw_mode(mode.into());
    match step {
        Step::Set(path, name, acl) => {
            setxattr(root.join(path), text(name), acl, XattrFlags::empty()).unwrap();
        }
        Step::Remove(path, name) => removexattr(root.join(path), text(name)).unwrap(),
        Step::Chmod(path, bits) => chmod(root.join(path), mode(*bits)).unwrap(),
        Step::Create(path, bits) => {
            use rustix::fs::OFlags;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            drop(open(root.join(path), flags, mode(*bits)).unwrap());
        }
        Step::Mkdir(path, bits) => mkdirat(CWD, root.join(path), mode(*bits)).unwrap(),
        Step::Fifo(path, bits) => {
            let kind = rustix::fs::FileType::Fifo;
            mknodat(CWD, root.join(path), kind, mode(*bits), 0).unwrap();
        }
        Step::Symlink(path) => std::os::unix::fs::symlink("target", root.join(path)).unwrap(),
    }
}

/// What `getfacl` and `stat` tell of all below a mount's `d`.
fn told(root: &Path) -> String {
    let script = "cd \"$1\" && getfacl -R -n --omit-header -p d && find d -printf '%p %m %y\\n' | LC_ALL=C sort && \
        find d | LC_ALL=C sort | while read f; do getfattr -h -d -m . -e hex \"$f\"; done";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(root)
        .output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn acls_and_permissions_are_those_that_the_kernel_makes() {
    if !testkit::is_root() || !testkit::have("getfacl") || !testkit::have("getfattr") {
        return testkit::skip("needs root, getfacl and getfattr");
    }
    for options in [&["-b", "1024"][..], &["-b", "4096", "-I", "128"]] {
        let Some(image) = make(options, 8 << 20) else {
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        testkit::write_image(&path, &image);
        let expected = {
            let mounted = KernelMount::with(&path, "loop").unwrap();
            // The umask is the process's, so a child has it.
            let before = rustix::process::umask(Mode::from_raw_mode(UMASK.into()));
            for step in steps() {
                by_kernel(&mounted.path(), &step);
            }
            rustix::process::umask(before);
            told(&mounted.path())
        };
        let ours = finish(&image, |fs| {
            for step in steps() {
                by_lanefs(&fs, &step);
            }
            fs.close().unwrap();
        });
        std::fs::write(&path, &ours).unwrap();
        let mounted = KernelMount::read_only(&path).unwrap();
        let found = told(&mounted.path());
        for (found, expected) in found.lines().zip(expected.lines()) {
            assert_eq!(found, expected, "{options:?}");
        }
        assert_eq!(found.lines().count(), expected.lines().count());
    }
}

#[test]
fn acls_that_say_nothing_sensible_are_refused() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let file = fs.create(Ino::ROOT, b"file", new(0o644)).unwrap();
        let set = |value: &[u8]| fs.set_xattr(file, ACCESS, value, XattrFlag::Any);
        let wrong = [
            acl(&[(1, 7, NO), (4, 7, NO)]),
            acl(&[(1, 7, NO), (2, 7, 5), (4, 7, NO), (32, 7, NO)]),
            acl(&[(4, 7, NO), (1, 7, NO), (32, 7, NO)]),
            acl(&[(1, 8, NO), (4, 7, NO), (32, 7, NO)]),
            acl(&[(1, 7, NO), (2, 7, NO), (4, 7, NO), (16, 7, NO), (32, 7, NO)]),
            acl(&[(1, 7, NO), (4, 7, NO), (32, 7, NO), (32, 7, NO)]),
            acl(&[(3, 7, NO), (4, 7, NO), (32, 7, NO)]),
            vec![2, 0, 0, 0, 1],
            vec![2, 0],
        ];
        for value in wrong {
            assert!(
                matches!(set(&value), Err(Error::InvalidArgument)),
                "{value:?}"
            );
        }
        assert!(matches!(set(&[1, 0, 0, 0]), Err(Error::NotSupported(_))));
        let default = fs.set_xattr(file, DEFAULT, &named(1, 1), XattrFlag::Any);
        assert!(matches!(default, Err(Error::AccessDenied)));
        let link = fs.symlink(Ino::ROOT, b"link", b"to", new(0o777)).unwrap();
        let refused = fs.set_xattr(link, ACCESS, &named(1, 1), XattrFlag::Any);
        assert!(matches!(refused, Err(Error::NotSupported(_))));
        // Set-group-ID goes where that is asked for.
        let mode = SetAttributes {
            mode: Some(0o2755),
            ..SetAttributes::default()
        };
        fs.set_attributes(file, &mode).unwrap();
        set(&named(7, 5)).unwrap();
        assert_eq!(fs.metadata(file).unwrap().mode & 0o7777, 0o2751);
        fs.set_acl_without_set_gid(file, &named(7, 7)).unwrap();
        assert_eq!(fs.metadata(file).unwrap().mode & 0o7777, 0o771);
        fs.close().unwrap();
    });
}

/// Blocks of a file that nobody holds any more, and that nobody deleted yet, are room for an ACL.
#[test]
fn an_acl_that_costs_set_group_id_finds_room_where_any_other_does() {
    let Some(image) = make(&["-b", "1024", "-N", "64", "-m", "0"], 8 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let files = [&b"one"[..], b"two"].map(|name| {
            let file = fs.create(Ino::ROOT, name, new(0o2755)).unwrap();
            let doomed = fs.create(Ino::ROOT, b"doomed", new(0o600)).unwrap();
            fs.write(doomed, 0, &[1; 4096]).unwrap();
            fs.hold(doomed).unwrap();
            fs.unlink(Ino::ROOT, b"doomed").unwrap();
            (file, doomed)
        });
        let filler = fs.create(Ino::ROOT, b"filler", new(0o600)).unwrap();
        let fill = || {
            let mut at = fs.metadata(filler).unwrap().size;
            while let Ok(written) = fs.write(filler, at, &[1; 1024]) {
                at += written as u64;
            }
        };
        fill();
        fs.let_go(files[0].1);
        let set = fs.set_xattr(files[0].0, ACCESS, &large(), XattrFlag::Any);
        assert!(set.is_ok(), "{set:?}");
        fill();
        fs.let_go(files[1].1);
        let mut other = large();
        // Another one, or it would share the first one's block.
        other[6] = 4;
        let set = fs.set_acl_without_set_gid(files[1].0, &other);
        assert!(set.is_ok(), "{set:?}");
        assert_eq!(fs.metadata(files[1].0).unwrap().mode & 0o2000, 0);
        fs.close().unwrap();
    });
}

/// The permissions of one of two files that share a block of attributes change, and it needs a block of its own.
#[test]
fn chmod_of_a_file_with_an_acl_finds_room_where_any_other_change_does() {
    let Some(image) = make(&["-b", "1024", "-N", "64", "-m", "0"], 8 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let files = [&b"one"[..], b"two"].map(|name| {
            let file = fs.create(Ino::ROOT, name, new(0o755)).unwrap();
            fs.set_xattr(file, ACCESS, &large(), XattrFlag::Any)
                .unwrap();
            file
        });
        let doomed = fs.create(Ino::ROOT, b"doomed", new(0o600)).unwrap();
        fs.write(doomed, 0, &[1; 4096]).unwrap();
        fs.hold(doomed).unwrap();
        fs.unlink(Ino::ROOT, b"doomed").unwrap();
        let filler = fs.create(Ino::ROOT, b"filler", new(0o600)).unwrap();
        let mut at = 0;
        while let Ok(written) = fs.write(filler, at, &[1; 1024]) {
            at += written as u64;
        }
        fs.let_go(doomed);
        let mode = SetAttributes {
            mode: Some(0o700),
            ..SetAttributes::default()
        };
        let set = fs.set_attributes(files[0], &mode);
        assert!(set.is_ok(), "{set:?}");
        assert_eq!(fs.metadata(files[0]).unwrap().mode & 0o7777, 0o700);
        fs.close().unwrap();
    });
}

#[test]
fn a_cut_leaves_a_new_file_with_its_acls_or_no_file() {
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    let cuts = record(&image, |_, fs| {
        for (name, default) in [("small", named(7, 7)), ("large", large())] {
            let directory = fs.mkdir(Ino::ROOT, name.as_bytes(), new(0o777)).unwrap();
            fs.set_xattr(directory, DEFAULT, &default, XattrFlag::Any)
                .unwrap();
            fs.create(directory, b"file", new(0o666)).unwrap();
            fs.sync().unwrap();
            fs.mkdir(directory, b"directory", new(0o755)).unwrap();
            let unnamed = fs.create_unnamed(directory, new(0o600)).unwrap();
            fs.sync().unwrap();
            fs.link(unnamed, directory, b"named").unwrap();
            fs.release(unnamed).unwrap();
        }
        fs.close().unwrap();
    });
    let states = sweep(cuts, 3, |cut, _, fs| {
        for above in ["small", "large"] {
            for (name, names) in [("file", 1), ("directory", 2), ("named", 1)] {
                let path = format!("{above}/{name}");
                if let Ok(ino) = fs.resolve(path.as_bytes(), false) {
                    let found = attributes(fs, ino);
                    assert_eq!(found.len(), names, "{cut}: {path}");
                    assert!(found.contains_key(ACCESS), "{cut}: {path}");
                }
            }
        }
    });
    assert!(states > 50, "{states}");
}
