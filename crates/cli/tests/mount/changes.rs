//! Every operation that changes a file, a directory or their attributes, as a table: what it does to the files of a
//! small tree, on any mount.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    XattrFlags, makedev, mknodat, removexattr, renameat_with, setxattr, utimensat,
};

use crate::hand::Hand;

/// Bytes of `a/file`: neither whole blocks nor whole pages.
pub const FILE_BYTES: usize = 40_000;
/// Bytes of `a/other`.
pub const OTHER_BYTES: usize = 20_000;

/// The directory of one change: `a/file` with another name `b/name`, `a/other`, `a/symlink`, and the empty directories
/// `a/dir` and `b/empty`.
pub struct Place<'a> {
    pub root: PathBuf,
    pub hand: &'a Hand,
}

impl Place<'_> {
    pub fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn file(&self) -> PathBuf {
        self.at("a/file")
    }

    pub fn other(&self) -> PathBuf {
        self.at("a/other")
    }

    /// Makes the tree.
    pub fn make(&self) -> io::Result<()> {
        for name in ["a", "b", "a/dir", "b/empty"] {
            fs::create_dir_all(self.at(name))?;
        }
        fs::write(self.file(), [b'f'; FILE_BYTES])?;
        fs::write(self.other(), [b'o'; OTHER_BYTES])?;
        fs::hard_link(self.file(), self.at("b/name"))?;
        symlink("file", self.at("a/symlink"))
    }

    fn hand(&self, function: &str, arguments: &[&dyn Display]) -> io::Result<()> {
        let file = self.file();
        let file = file.display();
        let mut all: Vec<&dyn Display> = vec![&file];
        all.extend(arguments);
        self.hand.run(function, &all)
    }

    fn allocate(&self, mode: u32, offset: u64, len: u64) -> io::Result<()> {
        self.hand("fallocate", &[&mode, &offset, &len])
    }

    fn copy(&self, to: &Path, from_offset: u64, to_offset: u64, len: u64) -> io::Result<()> {
        let (from, to) = (self.other(), to.display());
        let arguments: &[&dyn Display] = &[&from.display(), &to, &from_offset, &to_offset, &len];
        self.hand.run("copy", arguments)
    }

    fn writable(&self) -> io::Result<File> {
        File::options().write(true).open(self.file())
    }

    fn mode(&self, name: &str, mode: u32) -> io::Result<()> {
        fs::set_permissions(self.at(name), Permissions::from_mode(mode))
    }

    fn attribute(&self, name: &str, value: &[u8]) -> io::Result<()> {
        Ok(setxattr(self.file(), name, value, XattrFlags::empty())?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn node(&self, name: &str, file_type: FileType, device: u64) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o640);
        Ok(mknodat(CWD, self.at(name), file_type, mode, device)?)
    }
}

/// A change: its name, and what does it.
pub type Change = (&'static str, fn(&Place<'_>) -> io::Result<()>);

const KEEP_SIZE: u32 = 1;
const PUNCH: u32 = 2 | KEEP_SIZE;
const COLLAPSE: u32 = 8;
const ZERO: u32 = 16;
const INSERT: u32 = 32;
const UNSHARE: u32 = 64;

/// Changes of a file's contents.
pub const CONTENTS: &[Change] = &[
    ("write in the middle", |at| {
        at.writable()?.write_all_at(&[1; 5000], 6000)
    }),
    ("write of nothing", |at| at.writable()?.write_all(b"")),
    ("write over the end", |at| {
        at.writable()?.write_all_at(&[1; 5000], 38_000)
    }),
    ("write behind a hole", |at| {
        at.writable()?.write_all_at(&[1; 5000], 150_000)
    }),
    ("append", |at| {
        let mut file = OpenOptions::new().append(true).open(at.file())?;
        file.write_all(&[1; 3000])
    }),
    ("synchronous write", |at| {
        let mut options = OpenOptions::new();
        let options = options.write(true);
        let flags = OFlags::SYNC.bits().cast_signed();
        let file = options.custom_flags(flags).open(at.file())?;
        file.write_all_at(&[1; 5000], 38_000)
    }),
    ("O_DIRECT in the middle", |at| {
        at.hand("direct", &[&8192, &8192, &1])
    }),
    ("O_DIRECT over the end", |at| {
        at.hand("direct", &[&36_864, &8192, &1])
    }),
    ("O_DIRECT behind a hole", |at| {
        at.hand("direct", &[&131_072, &8192, &1])
    }),
    ("io_submit in the middle", |at| {
        at.hand("submit", &[&8192, &8192, &1])
    }),
    ("io_submit over the end", |at| {
        at.hand("submit", &[&36_864, &8192, &1])
    }),
    ("mmap and msync", |at| {
        at.hand("map", &[&6000, &9000, &1, &"msync"])
    }),
    ("mmap and fsync", |at| {
        at.hand("map", &[&6000, &9000, &1, &"fsync"])
    }),
    ("mmap into a hole, and msync", |at| {
        at.writable()?.set_len(200_000)?;
        at.hand("map", &[&100_000, &9000, &1, &"msync"])
    }),
    ("sendfile", |at| {
        let (from, to) = (at.other(), at.file());
        let arguments: &[&dyn Display] = &[&from.display(), &to.display(), &OTHER_BYTES];
        at.hand.run("send", arguments)
    }),
    ("write by another user to a set-user-ID file", |at| {
        at.mode("a/file", 0o6777)?;
        let (directory, name) = (at.at("a"), "file");
        let arguments: &[&dyn Display] = &[&directory.display(), &name, &77, &1];
        at.hand.run("as_user", arguments)
    }),
    ("truncate down", |at| at.writable()?.set_len(10_001)),
    ("truncate down and write", |at| {
        let file = at.writable()?;
        file.set_len(10_001)?;
        file.write_all_at(&[1; 100], 20_000)
    }),
    ("truncate up", |at| at.writable()?.set_len(90_001)),
    ("truncate down and up", |at| {
        at.writable()?.set_len(5000)?;
        at.writable()?.set_len(FILE_BYTES as u64)
    }),
    ("truncate to the same size", |at| {
        at.writable()?.set_len(FILE_BYTES as u64)
    }),
    ("truncate to nothing", |at| at.writable()?.set_len(0)),
    ("O_TRUNC", |at| File::create(at.file()).map(drop)),
    ("O_TRUNC of an empty file", |at| {
        File::create(at.file())?;
        File::create(at.file()).map(drop)
    }),
    ("O_TRUNC and write", |at| fs::write(at.file(), [1; 7000])),
];

/// Changes of what lies where in a file, and copies.
pub const SPACE: &[Change] = &[
    ("fallocate within", |at| at.allocate(0, 10_000, 10_000)),
    ("fallocate beyond", |at| at.allocate(0, 30_000, 70_000)),
    ("fallocate behind a hole", |at| {
        at.allocate(0, 200_000, 70_000)
    }),
    ("fallocate, keeping the size, within", |at| {
        at.allocate(KEEP_SIZE, 10_000, 10_000)
    }),
    ("fallocate, keeping the size, beyond", |at| {
        at.allocate(KEEP_SIZE, 200_000, 100_000)
    }),
    ("punch of whole blocks", |at| at.allocate(PUNCH, 8192, 8192)),
    ("punch of a part of a block", |at| {
        at.allocate(PUNCH, 9000, 100)
    }),
    ("punch of odd bytes", |at| at.allocate(PUNCH, 5000, 20_000)),
    ("punch over the end", |at| {
        at.allocate(PUNCH, 30_000, 90_000)
    }),
    ("punch behind the end", |at| {
        at.allocate(PUNCH, 90_000, 9000)
    }),
    ("punch of a hole", |at| {
        at.writable()?.set_len(200_000)?;
        at.allocate(PUNCH, 65_536, 65_536)
    }),
    ("zeros in whole blocks", |at| at.allocate(ZERO, 8192, 8192)),
    ("zeros at odd bytes", |at| at.allocate(ZERO, 5000, 20_000)),
    ("zeros over the end", |at| at.allocate(ZERO, 35_000, 20_000)),
    ("zeros, keeping the size, over the end", |at| {
        at.allocate(ZERO | KEEP_SIZE, 35_000, 20_000)
    }),
    ("zeros, keeping the size, behind it", |at| {
        at.allocate(ZERO | KEEP_SIZE, 90_000, 20_000)
    }),
    ("collapse", |at| at.allocate(COLLAPSE, 8192, 8192)),
    ("insert", |at| at.allocate(INSERT, 8192, 8192)),
    ("unshare", |at| at.allocate(UNSHARE, 8192, 8192)),
    ("fallocate of nothing", |at| at.allocate(0, 8192, 0)),
    ("copy_file_range in the middle", |at| {
        at.copy(&at.file(), 100, 7000, 9000)
    }),
    ("copy_file_range over the end", |at| {
        at.copy(&at.file(), 100, 35_000, 9000)
    }),
    ("copy_file_range behind a hole", |at| {
        at.copy(&at.file(), 0, 150_000, 9000)
    }),
    ("copy_file_range within a file", |at| {
        at.copy(&at.other(), 0, 9000, 9000)
    }),
    ("copy_file_range from behind the end", |at| {
        let failed = at.copy(&at.file(), 90_000, 0, 9000);
        assert!(failed.is_err());
        Ok(())
    }),
];

/// The attribute that holds the ACL of a file.
const ACCESS: &str = "system.posix_acl_access";
/// The attribute that holds the ACL that new files of a directory get.
const DEFAULT: &str = "system.posix_acl_default";

/// An ACL: owner rw, user 7 r, group r, mask r, others none.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 7, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255,
    255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];
/// An ACL that says no more than a mode: owner rwx, group rx, others x.
const MODE_ONLY: &[u8] = &[
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 32, 0, 1, 0, 255,
    255, 255, 255,
];

const NO_ATIME: u32 = 0x80;
const NO_DUMP: u32 = 0x40;
/// `NO_DUMP` in the form that all file systems share.
const SHARED_NO_DUMP: u32 = 0x80;

const fn seconds(tv_sec: i64) -> Timespec {
    Timespec { tv_sec, tv_nsec: 5 }
}

const fn special(tv_nsec: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec }
}

fn stamp(path: &Path, last_access: Timespec, last_modification: Timespec) -> io::Result<()> {
    let times = Timestamps {
        last_access,
        last_modification,
    };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Changes of attributes.
pub const ATTRIBUTES: &[Change] = &[
    ("chmod", |at| at.mode("a/file", 0o640)),
    ("chmod to the same", |at| {
        let mode = fs::metadata(at.file())?.permissions().mode();
        at.mode("a/file", mode)
    }),
    ("chmod of a directory", |at| at.mode("a", 0o2750)),
    ("chmod of an open file", |at| {
        at.writable()?
            .set_permissions(Permissions::from_mode(0o6711))
    }),
    ("chown", |at| chown(at.file(), Some(5), Some(6))),
    ("chown to the same", |at| chown(at.file(), Some(0), Some(0))),
    ("chown of nothing", |at| chown(at.file(), None, None)),
    ("chown of a set-user-ID file", |at| {
        at.mode("a/file", 0o6755)?;
        chown(at.file(), Some(5), None)
    }),
    ("chown of a directory", |at| {
        chown(at.at("a"), None, Some(6))
    }),
    ("chown of a symbolic link", |at| {
        std::os::unix::fs::lchown(at.at("a/symlink"), Some(5), Some(6))
    }),
    ("utimensat", |at| {
        stamp(&at.file(), seconds(1000), seconds(2000))
    }),
    ("utimensat to now", |at| {
        stamp(&at.file(), special(UTIME_NOW), special(UTIME_NOW))
    }),
    ("utimensat of one time", |at| {
        stamp(&at.file(), special(UTIME_OMIT), seconds(3000))
    }),
    ("utimensat of a directory", |at| {
        stamp(&at.at("a"), seconds(1000), seconds(2000))
    }),
    ("utimensat of a symbolic link", |at| {
        stamp(&at.at("a/symlink"), seconds(1000), seconds(2000))
    }),
    ("a small attribute", |at| at.attribute("user.a", b"1")),
    ("an attribute in a block", |at| {
        at.attribute("user.b", &[7; 800])
    }),
    ("an attribute set to the same", |at| {
        at.attribute("user.a", b"1")?;
        at.attribute("user.a", b"1")
    }),
    ("an attribute that leaves its block", |at| {
        at.attribute("user.b", &[7; 800])?;
        at.attribute("user.b", b"7")
    }),
    ("a removed attribute", |at| {
        at.attribute("user.b", &[7; 800])?;
        Ok(removexattr(at.file(), "user.b")?)
    }),
    ("an attribute that is too large", |at| {
        let failed = at.attribute("user.large", &[7; 60_000]);
        assert!(failed.is_err());
        Ok(())
    }),
    ("a trusted attribute", |at| at.attribute("trusted.a", b"1")),
    ("an attribute of a directory", |at| {
        Ok(setxattr(at.at("a"), "user.a", b"1", XattrFlags::empty())?)
    }),
    ("an ACL", |at| at.attribute(ACCESS, ACL)),
    ("an ACL that is a mode", |at| {
        at.attribute(ACCESS, MODE_ONLY)
    }),
    ("a removed ACL", |at| {
        at.attribute(ACCESS, ACL)?;
        Ok(removexattr(at.file(), ACCESS)?)
    }),
    ("chmod of a file with an ACL", |at| {
        at.attribute(ACCESS, ACL)?;
        at.mode("a/file", 0o664)
    }),
    ("a default ACL", |at| {
        Ok(setxattr(at.at("a"), DEFAULT, ACL, XattrFlags::empty())?)
    }),
    ("a new file under a default ACL", |at| {
        setxattr(at.at("a"), DEFAULT, ACL, XattrFlags::empty())?;
        fs::write(at.at("a/new"), b"new")
    }),
    ("a new directory under a default ACL", |at| {
        setxattr(at.at("a"), DEFAULT, ACL, XattrFlags::empty())?;
        fs::create_dir(at.at("a/new"))
    }),
    ("FS_IOC_SETFLAGS", |at| at.hand("flag", &[&NO_ATIME, &1])),
    ("FS_IOC_SETFLAGS and back", |at| {
        at.hand("flag", &[&NO_DUMP, &1])?;
        at.hand("flag", &[&NO_DUMP, &0])
    }),
    ("FS_IOC_SETFLAGS of a directory", |at| {
        let directory = at.at("a");
        let arguments: &[&dyn Display] = &[&directory.display(), &NO_DUMP, &1];
        at.hand.run("flag", arguments)
    }),
    ("FS_IOC_FSSETXATTR", |at| {
        at.hand("shared_flag", &[&SHARED_NO_DUMP, &1])
    }),
    ("FS_IOC_SETVERSION", |at| {
        at.hand("version", &[&7, &"shared"])
    }),
    ("EXT4_IOC_SETVERSION", |at| {
        at.hand("version", &[&7, &"ext4"])
    }),
];

/// Changes of names.
pub const NAMES: &[Change] = &[
    ("create", |at| File::create_new(at.at("a/new")).map(drop)),
    ("link", |at| fs::hard_link(at.file(), at.at("b/link"))),
    ("unlink of another name", |at| {
        fs::remove_file(at.at("b/name"))
    }),
    ("unlink of the name", |at| fs::remove_file(at.file())),
    ("unlink of the last name", |at| fs::remove_file(at.other())),
    ("unlink of a symbolic link", |at| {
        fs::remove_file(at.at("a/symlink"))
    }),
    ("rename", |at| at.rename("a/file", "a/renamed")),
    ("rename to another directory", |at| {
        at.rename("a/file", "b/file")
    }),
    ("rename of the last name", |at| {
        at.rename("a/other", "b/other")
    }),
    ("rename to a name of the same file", |at| {
        at.rename("a/file", "b/name")
    }),
    ("rename over a file", |at| at.rename("a/other", "a/file")),
    ("rename over the last name", |at| {
        at.rename("a/file", "a/other")
    }),
    ("rename of a directory", |at| {
        at.rename("a/dir", "a/renamed")
    }),
    ("rename of a directory to another", |at| {
        at.rename("a/dir", "b/dir")
    }),
    ("rename of a directory over another", |at| {
        at.rename("a/dir", "b/empty")
    }),
    ("exchange", |at| {
        let (one, other) = (at.file(), at.at("b/empty"));
        let exchanged = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
        Ok(exchanged?)
    }),
    ("rename that leaves a whiteout", |at| {
        let (one, other) = (at.file(), at.other());
        let renamed = renameat_with(CWD, one, CWD, other, RenameFlags::WHITEOUT);
        Ok(renamed?)
    }),
    ("rename of a directory that leaves a whiteout", |at| {
        let (one, other) = (at.at("a/dir"), at.at("b/dir"));
        let renamed = renameat_with(CWD, one, CWD, other, RenameFlags::WHITEOUT);
        Ok(renamed?)
    }),
    ("rename that is refused", |at| {
        let (one, other) = (at.file(), at.other());
        let refused = renameat_with(CWD, one, CWD, other, RenameFlags::NOREPLACE);
        assert!(refused.is_err());
        Ok(())
    }),
    ("mkdir", |at| fs::create_dir(at.at("a/new"))),
    ("rmdir", |at| fs::remove_dir(at.at("a/dir"))),
    ("mkdir and rmdir", |at| {
        fs::create_dir(at.at("a/new"))?;
        fs::remove_dir(at.at("a/new"))
    }),
    ("rmdir that is refused", |at| {
        assert!(fs::remove_dir(at.at("a")).is_err());
        Ok(())
    }),
    ("symlink", |at| symlink("nowhere", at.at("a/new"))),
    ("a long symlink", |at| {
        symlink("n/".repeat(900), at.at("a/new"))
    }),
    ("mknod of a fifo", |at| at.node("a/new", FileType::Fifo, 0)),
    ("mknod of a device", |at| {
        at.node("a/new", FileType::CharacterDevice, makedev(7, 300))
    }),
    ("mknod of a file", |at| {
        at.node("a/new", FileType::RegularFile, 0)
    }),
];

/// Operations that may change the time of access. Each runs without other readers, which would change it too.
pub const ACCESSES: &[Change] = &[
    ("read", |at| fs::read(at.file()).map(drop)),
    ("read of nothing", |at| {
        let mut file = File::open(at.file())?;
        file.seek(SeekFrom::Start(FILE_BYTES as u64))?;
        file.read(&mut [0; 100]).map(drop)
    }),
    ("read by O_DIRECT", |at| {
        let mut options = OpenOptions::new();
        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = options.read(true).custom_flags(flags).open(at.file())?;
        read_direct(&file).map(drop)
    }),
    ("read by mmap", |at| at.hand("touch_map", &[])),
    ("readdir", |at| {
        fs::read_dir(at.at("a"))?.for_each(drop);
        Ok(())
    }),
    ("readlink", |at| fs::read_link(at.at("a/symlink")).map(drop)),
    ("source of copy_file_range", |at| {
        at.copy(&at.file(), 100, 7000, 9000)
    }),
    ("open and close", |at| File::open(at.file()).map(drop)),
    ("O_NOATIME", |at| {
        let mut options = OpenOptions::new();
        let flags = OFlags::NOATIME.bits().cast_signed();
        let mut file = options.read(true).custom_flags(flags).open(at.file())?;
        file.read_to_end(&mut Vec::new()).map(drop)
    }),
];

/// Bytes that are aligned as direct I/O has them.
const ALIGNED: usize = 4096;

/// All of a file that is open with `O_DIRECT`.
pub fn read_direct(file: &File) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len() as usize;
    let mut buffer = vec![0; len.next_multiple_of(ALIGNED) + 2 * ALIGNED];
    let start = buffer.as_ptr().align_offset(ALIGNED);
    let end = buffer.len() / ALIGNED * ALIGNED - ALIGNED;
    let aligned = &mut buffer[start..start + end];
    let mut done = 0;
    loop {
        let read = file.read_at(&mut aligned[done..], done as u64)?;
        done += read;
        // The end is where a read is not of whole blocks.
        if read == 0 || !read.is_multiple_of(ALIGNED) || done == aligned.len() {
            return Ok(aligned[..done].to_vec());
        }
    }
}
