//! What the kernel keeps of a mount in its caches is what the image holds: contents beside asynchronous direct writes,
//! and attributes that change without the kernel's knowledge.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Statx, StatxFlags, XattrFlags, copy_file_range, fallocate,
    removexattr, setxattr, statx,
};

use crate::served::{Served, can_mount, image};

/// Direct writes through io_submit(2), for which there is no safe function, beside threads that read the file. After
/// each write a buffered read must show it. Some writes extend the file, some change its middle.
const WRITES: &str = "
import ctypes, mmap, os, struct, sys, threading
path, rounds = sys.argv[1], 600
N, BLOCK = 655360, 131072
libc = ctypes.CDLL(None, use_errno=True)
SETUP, GETEVENTS, SUBMIT = {'x86_64': (206, 208, 209), 'aarch64': (0, 4, 2)}[os.uname().machine]
context = ctypes.c_ulong()
assert libc.syscall(SETUP, 1, ctypes.byref(context)) == 0
direct, reader = os.open(path, os.O_RDWR | os.O_DIRECT), os.open(path, os.O_RDONLY)
buffer = mmap.mmap(-1, N)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
over = threading.Event()
def read():
    fd = os.open(path, os.O_RDONLY)
    while not over.is_set():
        os.pread(fd, N * 2, 0)
readers = [threading.Thread(target=read) for _ in range(2)]
for thread in readers: thread.start()
try:
    for at in range(rounds):
        offset, length = [(0, N), (BLOCK, BLOCK), (N - BLOCK + at // 30 * 4096, BLOCK)][at % 3]
        buffer[:length] = bytes([97 + at % 26]) * length
        block = ctypes.create_string_buffer(struct.pack('<QIIHhIQQqQII', 0, 0, 0, 1, 0, direct, address, length,
                                                        offset, 0, 0, 0))
        pointer, event = ctypes.c_void_p(ctypes.addressof(block)), ctypes.create_string_buffer(32)
        assert libc.syscall(SUBMIT, context, 1, ctypes.byref(pointer)) == 1
        assert libc.syscall(GETEVENTS, context, 1, 1, event, 0) == 1
        assert struct.unpack('<QQqq', event.raw)[2] == length
        if os.pread(reader, length, offset) != buffer[:length]:
            sys.exit(f'write {at} has returned, and a read shows what was there before')
finally:
    over.set()
    for thread in readers: thread.join()
";

#[test]
fn a_buffered_read_shows_what_an_asynchronous_direct_write_wrote() {
    if !can_mount() {
        return;
    }
    if !testkit::have("python3") {
        return testkit::skip("needs python3");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let served = Served::start(&image, "");
    let path = served.path().join("file");
    fs::write(&path, vec![0; 655_360]).unwrap();
    let mut command = Command::new("python3");
    let output = command.args(["-c", WRITES]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    served.unmount();
    testkit::e2fsck(&image);
}

/// What stat shows, but for the time of access, of which the kernel does not ask after each read.
#[derive(PartialEq, Debug)]
struct Shown {
    mode: u16,
    links: u32,
    owners: (u32, u32),
    size: u64,
    blocks: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
}

fn shown(path: &Path, flags: AtFlags) -> Shown {
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW;
    let found: Statx = statx(CWD, path, flags, StatxFlags::BASIC_STATS).unwrap();
    Shown {
        mode: found.stx_mode,
        links: found.stx_nlink,
        owners: (found.stx_uid, found.stx_gid),
        size: found.stx_size,
        blocks: found.stx_blocks,
        mtime: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
        ctime: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
    }
}

/// The kernel's file, the server's, and whether the two agree.
fn truth(path: &Path, after: &str) -> Shown {
    let kept = shown(path, AtFlags::empty());
    let asked = shown(path, AtFlags::STATX_FORCE_SYNC);
    assert_eq!(kept, asked, "{} after {after}", path.display());
    kept
}

/// An ACL as its attribute holds it: owner rw, user 7 r, group r, mask r, others none.
const ACL: &[u8] = &[
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 7, 0, 0, 0, 4, 0, 4, 0, 255, 255, 255,
    255, 16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

type Change = (&'static str, fn(&Path, &Path));

fn writable(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

fn allocated(path: &Path, mode: FallocateFlags, offset: u64, len: u64) {
    fallocate(writable(path), mode, offset, len).unwrap();
}

fn chattr(path: &Path, flag: &str) {
    testkit::run("chattr", &[flag, path.to_str().unwrap()]);
}

/// Each changes `file` or its directory; `other` is another file there.
const CHANGES: &[Change] = &[
    ("chattr +A", |file, _| chattr(file, "+A")),
    ("chattr -A", |file, _| chattr(file, "-A")),
    ("chattr +d of the directory", |file, _| {
        chattr(file.parent().unwrap(), "+d");
    }),
    ("a small attribute", |file, _| {
        setxattr(file, "user.a", b"1", XattrFlags::empty()).unwrap();
    }),
    ("an attribute in a block", |file, _| {
        setxattr(file, "user.b", &[7; 400], XattrFlags::empty()).unwrap();
    }),
    ("a removed attribute", |file, _| {
        removexattr(file, "user.b").unwrap()
    }),
    ("an ACL", |file, _| {
        setxattr(file, "system.posix_acl_access", ACL, XattrFlags::empty()).unwrap();
    }),
    ("chmod", |file, _| {
        fs::set_permissions(file, fs::Permissions::from_mode(0o640)).unwrap();
    }),
    ("chown", |file, _| {
        std::os::unix::fs::chown(file, Some(5), Some(6)).unwrap()
    }),
    ("write", |file, _| fs::write(file, [1; 10_000]).unwrap()),
    ("fallocate", |file, _| {
        allocated(file, FallocateFlags::empty(), 0, 100_000);
    }),
    ("fallocate, keeping the size", |file, _| {
        allocated(file, FallocateFlags::KEEP_SIZE, 200_000, 100_000);
    }),
    ("a hole", |file, _| {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        allocated(file, mode, 0, 50_000);
    }),
    ("zeros", |file, _| {
        allocated(file, FallocateFlags::ZERO_RANGE, 90_000, 20_000);
    }),
    ("copy_file_range", |file, other| {
        let from = File::open(other).unwrap();
        let copied = copy_file_range(from, None, writable(file), None, 5000).unwrap();
        assert_eq!(copied, 5000);
    }),
    ("truncate", |file, _| writable(file).set_len(3).unwrap()),
    ("link", |file, _| {
        fs::hard_link(file, file.with_extension("link")).unwrap()
    }),
    ("rename of the other name", |file, _| {
        fs::rename(file.with_extension("link"), file.with_extension("name")).unwrap();
    }),
    ("unlink of the other name", |file, _| {
        fs::remove_file(file.with_extension("name")).unwrap();
    }),
    ("rename over", |file, other| {
        fs::rename(other, file).unwrap()
    }),
    ("mkdir beside it", |file, _| {
        fs::create_dir(file.with_extension("dir")).unwrap()
    }),
    ("rmdir beside it", |file, _| {
        fs::remove_dir(file.with_extension("dir")).unwrap()
    }),
];

#[test]
fn stat_shows_what_the_server_and_the_next_mount_show_after_every_change() {
    if !can_mount() {
        return;
    }
    if !testkit::have("chattr") {
        return testkit::skip("needs chattr");
    }
    for options in ["", "default_permissions"] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", 64 << 20, &["-b", "4096"]);
        let mut served = Served::start(&image, options);
        fs::create_dir(served.path().join("d")).unwrap();
        for name in ["d/file", "d/other"] {
            fs::write(served.path().join(name), [3; 9000]).unwrap();
        }
        for (name, change) in CHANGES {
            let dir = served.path().join("d");
            let (file, other) = (dir.join("file"), dir.join("other"));
            let before = [truth(&file, name), truth(&dir, name)];
            // Longer than a tick of the clock that stamps.
            std::thread::sleep(Duration::from_millis(15));
            change(&file, &other);
            let after = [truth(&file, name), truth(&dir, name)];
            assert_ne!(before, after, "{name} shows nothing new");
            served.unmount();
            served = Served::start(&image, options);
            let dir = served.path().join("d");
            let later = [truth(&dir.join("file"), name), truth(&dir, name)];
            assert_eq!(after, later, "on the next mount, after {name}");
        }
        served.unmount();
        testkit::e2fsck(&image);
    }
}
