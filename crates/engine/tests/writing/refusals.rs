//! What is refused, and with which error: every operation on names and on attributes, on each kind of file with each
//! flag, is done by lanefs and by the kernel, which must agree.

use std::path::Path;

use lanefs_engine::{Error, FileType, Flags, Ino, InodeFs, NewInode, RenameFlag, XattrFlag};
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, XattrFlags};
use rustix::io::Errno;
use testkit::KernelMount;

use crate::acls::{ACCESS, DEFAULT, minimal, named};
use crate::image::{finish, make};

const NEW: NewInode = NewInode {
    mode: 0o755,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// What was said: nothing wrong, or an error.
type Said = Result<(), Errno>;

/// The number that the library's face gives for an error.
fn errno(error: Error) -> Errno {
    match error {
        Error::NotFound => Errno::NOENT,
        Error::NotDirectory => Errno::NOTDIR,
        Error::IsDirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::Exists => Errno::EXIST,
        Error::NotPermitted => Errno::PERM,
        Error::AccessDenied => Errno::ACCESS,
        Error::NotSupported(_) => Errno::OPNOTSUPP,
        Error::InvalidArgument => Errno::INVAL,
        Error::NoAttribute => Errno::NODATA,
        Error::NameLength => Errno::RANGE,
        Error::NoSpace => Errno::NOSPC,
        Error::ValueTooLarge => Errno::TOOBIG,
        other => panic!("{other:?}"),
    }
}

/// Does the same to the same image by lanefs and, on a mount, by the kernel.
fn compare<C: std::fmt::Debug>(
    image: &[u8],
    cases: &[C],
    by_lanefs: impl Fn(&InodeFs, &C) -> Said,
    by_kernel: impl Fn(&Path, &C) -> Said,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    testkit::write_image(&path, image);
    let mounted = KernelMount::with(&path, "loop").unwrap();
    let expected: Vec<Said> = cases
        .iter()
        .map(|case| by_kernel(&mounted.path(), case))
        .collect();
    drop(mounted);
    let mut found = Vec::new();
    finish(image, |fs| {
        found.extend(cases.iter().map(|case| by_lanefs(&fs, case)));
        fs.close().unwrap();
    });
    let differ: Vec<String> = (cases.iter().zip(&found).zip(&expected))
        .filter(|((_, found), expected)| found != expected)
        .map(|((case, found), expected)| format!("{case:?}: {found:?}, Linux {expected:?}"))
        .collect();
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    assert!(expected.iter().any(Result::is_ok) && expected.iter().any(Result::is_err));
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    File,
    Empty,
    Full,
}

const KINDS: [Kind; 3] = [Kind::File, Kind::Empty, Kind::Full];

#[derive(Clone, Copy, Debug)]
enum Op {
    Unlink,
    Rmdir,
    Create,
    Mkdir,
    LinkOut,
    LinkOver,
    RenameHere,
    RenameOut,
    Onto(Kind, RenameFlag),
    Over(Kind, RenameFlag),
}

/// In a directory of its own, `d/v` with flags, and `free` with one of each kind.
#[derive(Clone, Copy, Debug)]
struct Case {
    number: usize,
    above: Flags,
    kind: Kind,
    flags: Flags,
    op: Op,
}

fn ops() -> Vec<Op> {
    let mut ops = vec![
        Op::Unlink,
        Op::Rmdir,
        Op::Create,
        Op::Mkdir,
        Op::LinkOut,
        Op::LinkOver,
        Op::RenameHere,
        Op::RenameOut,
    ];
    for kind in KINDS {
        use RenameFlag::{Exchange, NoReplace, Replace};
        ops.extend([Replace, NoReplace, Exchange].map(|flag| Op::Onto(kind, flag)));
        ops.extend([Replace, NoReplace, Exchange].map(|flag| Op::Over(kind, flag)));
    }
    ops
}

fn cases() -> Vec<Case> {
    let flags = [Flags(0), Flags::APPEND, Flags::IMMUTABLE];
    let mut cases = Vec::new();
    for above in flags {
        for (kind, flags) in KINDS.into_iter().flat_map(|kind| flags.map(|f| (kind, f))) {
            cases.extend(ops().into_iter().map(|op| Case {
                number: 0,
                above,
                kind,
                flags,
                op,
            }));
        }
    }
    for (number, case) in cases.iter_mut().enumerate() {
        case.number = number;
    }
    cases
}

fn put(fs: &InodeFs, directory: Ino, name: &str, kind: Kind) -> Ino {
    if kind == Kind::File {
        return fs.create(directory, name.as_bytes(), NEW).unwrap();
    }
    let made = fs.mkdir(directory, name.as_bytes(), NEW).unwrap();
    if kind == Kind::Full {
        fs.mknod(made, b"in", FileType::Fifo, (0, 0), NEW).unwrap();
    }
    made
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Empty => "empty",
        Kind::Full => "full",
    }
}

fn lanefs_does(fs: &InodeFs, case: &Case) -> Said {
    let find = |name: &str| {
        let path = format!("{}/{name}", case.number);
        fs.resolve(path.as_bytes(), false).unwrap()
    };
    let (d, free) = (find("d"), find("free"));
    let named = |kind| name_of(kind).as_bytes();
    let replace = RenameFlag::Replace;
    let done = match case.op {
        Op::Unlink => fs.unlink(d, b"v"),
        Op::Rmdir => fs.rmdir(d, b"v"),
        Op::Create => fs.mknod(d, b"v", FileType::Fifo, (0, 0), NEW).map(drop),
        Op::Mkdir => fs.mkdir(d, b"v", NEW).map(drop),
        Op::LinkOut => fs.link(find("d/v"), free, b"new"),
        Op::LinkOver => fs.link(find("free/file"), d, b"v"),
        Op::RenameHere => fs.rename(d, b"v", d, b"w", replace),
        Op::RenameOut => fs.rename(d, b"v", free, b"new", replace),
        Op::Onto(kind, flag) => fs.rename(d, b"v", free, named(kind), flag),
        Op::Over(kind, flag) => fs.rename(free, named(kind), d, b"v", flag),
    };
    done.map_err(errno)
}

fn kernel_does(root: &Path, case: &Case) -> Said {
    let root = root.join(case.number.to_string());
    let (d, free) = (root.join("d"), root.join("free"));
    let (v, new, mode) = (d.join("v"), free.join("new"), Mode::from_raw_mode(0o755));
    let fifo = rustix::fs::FileType::Fifo;
    let link = |from: &Path, to: &Path| rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty());
    let rename = |from: &Path, to: &Path, flag| {
        let flags = match flag {
            RenameFlag::Replace => RenameFlags::empty(),
            RenameFlag::NoReplace => RenameFlags::NOREPLACE,
            RenameFlag::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(CWD, from, CWD, to, flags)
    };
    let replace = RenameFlag::Replace;
    match case.op {
        Op::Unlink => rustix::fs::unlinkat(CWD, &v, AtFlags::empty()),
        Op::Rmdir => rustix::fs::unlinkat(CWD, &v, AtFlags::REMOVEDIR),
        Op::Create => rustix::fs::mknodat(CWD, &v, fifo, mode, 0),
        Op::Mkdir => rustix::fs::mkdirat(CWD, &v, mode),
        Op::LinkOut => link(&v, &new),
        Op::LinkOver => link(&free.join("file"), &v),
        Op::RenameHere => rename(&v, &d.join("w"), replace),
        Op::RenameOut => rename(&v, &new, replace),
        Op::Onto(kind, flag) => rename(&v, &free.join(name_of(kind)), flag),
        Op::Over(kind, flag) => rename(&free.join(name_of(kind)), &v, flag),
    }
}

#[test]
fn names_are_refused_with_the_kernels_errors() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let Some(image) = make(&["-b", "1024", "-N", "16384"], 64 << 20) else {
        return;
    };
    let cases = cases();
    let image = finish(&image, |fs| {
        for case in &cases {
            let name = case.number.to_string();
            let own = fs.mkdir(Ino::ROOT, name.as_bytes(), NEW).unwrap();
            let d = fs.mkdir(own, b"d", NEW).unwrap();
            let v = put(&fs, d, "v", case.kind);
            let free = fs.mkdir(own, b"free", NEW).unwrap();
            for kind in KINDS {
                put(&fs, free, name_of(kind), kind);
            }
            for (ino, flags) in [(v, case.flags), (d, case.above)] {
                let old = fs.metadata(ino).unwrap().flags;
                fs.set_flags(ino, old.with(flags)).unwrap();
            }
        }
        fs.close().unwrap();
    });
    compare(&image, &cases, lanefs_does, kernel_does);
}

/// What is done to an attribute.
#[derive(Clone, Debug)]
enum Deed {
    Get,
    Set(Vec<u8>, XattrFlag),
    Remove,
}

const FILES: [&str; 6] = ["file", "directory", "link", "fifo", "immutable", "append"];

fn names() -> Vec<Vec<u8>> {
    let plain = [
        "foo",
        "foo.bar",
        ".",
        ".x",
        "user",
        "user.",
        "user.x",
        "User.x",
        "trusted.",
        "trusted.x",
        "security",
        "security.",
        "security.x",
        "system.",
        "system.x",
        "system.data",
        "system.richacl",
        "system.posix_acl_accessx",
        "gnu.x",
        "os2.x",
        "encryption.c",
        "",
    ];
    let mut names: Vec<Vec<u8>> = plain.map(|name| name.as_bytes().to_vec()).into();
    names.extend([ACCESS.to_vec(), DEFAULT.to_vec()]);
    names.extend([255, 256].map(|len| {
        let mut name = b"user.".to_vec();
        name.resize(len, b'n');
        name
    }));
    names
}

/// The place of the file, the name, and what is done.
fn deeds() -> Vec<(&'static str, Vec<u8>, Deed)> {
    let any = XattrFlag::Any;
    let values = [
        b"v".to_vec(),
        Vec::new(),
        vec![0; 4],
        vec![2, 0, 0, 0],
        minimal(7, 5, 1),
        named(6, 7),
        // The mask is missing.
        named(6, 7)[..28].to_vec(),
        vec![7; (1 << 16) + 1],
    ];
    let mut deeds = Vec::new();
    for (file, name) in FILES.into_iter().flat_map(|file| {
        let names = names().into_iter();
        names.map(move |name| (file, name))
    }) {
        let is_acl = name == ACCESS || name == DEFAULT;
        deeds.push((file, name.clone(), Deed::Get));
        deeds.push((file, name.clone(), Deed::Remove));
        for value in &values {
            deeds.push((file, name.clone(), Deed::Set(value.clone(), any)));
        }
        // Create and replace mean nothing for ACLs.
        for flag in [XattrFlag::Create, XattrFlag::Replace] {
            if !is_acl {
                deeds.push((file, name.clone(), Deed::Set(b"w".to_vec(), flag)));
            }
        }
        deeds.push((file, name.clone(), Deed::Get));
        deeds.push((file, name.clone(), Deed::Remove));
        deeds.push((file, name.clone(), Deed::Remove));
        deeds.push((
            file,
            name.clone(),
            Deed::Set(b"w".to_vec(), XattrFlag::Replace),
        ));
    }
    deeds
}

#[test]
fn attributes_are_refused_with_the_kernels_errors() {
    if !testkit::is_root() {
        return testkit::skip("mounting needs root");
    }
    let Some(image) = make(&["-b", "4096"], 8 << 20) else {
        return;
    };
    let image = finish(&image, |fs| {
        for name in FILES {
            let bytes = name.as_bytes();
            let made = match name {
                "directory" => fs.mkdir(Ino::ROOT, bytes, NEW),
                "link" => fs.symlink(Ino::ROOT, bytes, b"nowhere", NEW),
                "fifo" => fs.mknod(Ino::ROOT, bytes, FileType::Fifo, (0, 0), NEW),
                _ => fs.create(Ino::ROOT, bytes, NEW),
            };
            let flag = match name {
                "immutable" => Flags::IMMUTABLE,
                "append" => Flags::APPEND,
                _ => continue,
            };
            let (ino, any) = (made.unwrap(), XattrFlag::Any);
            fs.set_xattr(ino, b"user.x", b"old", any).unwrap();
            let old = fs.metadata(ino).unwrap().flags;
            fs.set_flags(ino, old.with(flag)).unwrap();
        }
        fs.close().unwrap();
    });
    let by_lanefs = |fs: &InodeFs, (file, name, deed): &(&str, Vec<u8>, Deed)| {
        let ino = fs.resolve(file.as_bytes(), false).unwrap();
        let done = match deed {
            Deed::Get => fs.xattr(ino, name).map(drop),
            Deed::Set(value, flag) => fs.set_xattr(ino, name, value, *flag),
            Deed::Remove => fs.remove_xattr(ino, name),
        };
        done.map_err(errno)
    };
    let by_kernel = |root: &Path, (file, name, deed): &(&str, Vec<u8>, Deed)| {
        let path = root.join(file);
        let name = &name[..];
        match deed {
            Deed::Get => rustix::fs::lgetxattr(&path, name, &mut vec![0; 1 << 16][..]).map(drop),
            Deed::Set(value, flag) => {
                let flags = match flag {
                    XattrFlag::Any => XattrFlags::empty(),
                    XattrFlag::Create => XattrFlags::CREATE,
                    XattrFlag::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::lsetxattr(&path, name, value, flags)
            }
            Deed::Remove => rustix::fs::lremovexattr(&path, name),
        }
    };
    compare(&image, &deeds(), by_lanefs, by_kernel);
}
