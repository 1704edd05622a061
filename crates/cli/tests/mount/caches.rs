//! What the kernel keeps of a file is what the image holds, also during asynchronous direct writes; `truth` has all
//! other changes.

use std::fs;
use std::process::Command;

use crate::served::{Served, can_mount, image};

/// Direct writes through io_submit(2), which has no safe wrapper, while threads read the file. After each write a
/// buffered read must show it. Some writes extend the file, some change its middle.
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

/// The names in a directory with their numbers of inodes, in order.
fn listed(path: &std::path::Path) -> Vec<(String, u64)> {
    let flags = rustix::fs::OFlags::DIRECTORY;
    let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
    let entries = rustix::fs::Dir::new(opened).unwrap();
    let mut entries: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().to_str().unwrap().to_owned(), entry.ino()))
        .collect();
    entries.sort();
    entries
}

#[test]
fn a_listing_that_the_kernel_keeps_is_that_of_the_directory_as_it_is() {
    use std::os::unix::fs::MetadataExt;
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    for options in ["", "default_permissions", "no_open"] {
        let served = Served::start(&image, options);
        let root = served.path().join(format!("of-{options}"));
        let (from, to) = (root.join("from"), root.join("to"));
        for path in [&root, &from, &to, &from.join("moves"), &to.join("other")] {
            fs::create_dir(path).unwrap();
        }
        let verify = |path: &std::path::Path, what: &str| {
            let mut expected: Vec<_> = listed(path).into_iter().map(|(name, _)| name).collect();
            expected.sort();
            for (name, ino) in listed(path) {
                let found = fs::symlink_metadata(path.join(&name)).unwrap().ino();
                assert_eq!(ino, found, "{options}: {what}: {name}");
            }
            assert!(expected.contains(&"..".to_owned()), "{what}");
            expected.len() - 2
        };
        let moved = |path: &std::path::Path| path.join("moves");
        fs::write(moved(&from).join("in"), "in").unwrap();
        for path in [&from, &to, &moved(&from), &to.join("other")] {
            // The second is the kernel's own.
            assert_eq!(verify(path, "at first"), verify(path, "again"));
        }
        fs::rename(moved(&from), moved(&to)).unwrap();
        assert_eq!(verify(&moved(&to), "moved"), 1);
        assert_eq!((verify(&from, "source"), verify(&to, "target")), (0, 2));
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        fs::create_dir(from.join("third")).unwrap();
        assert_eq!(verify(&from.join("third"), "third"), 0);
        let (one, other) = (from.join("third"), moved(&to));
        rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, flags).unwrap();
        assert_eq!(
            (verify(&one, "exchanged"), verify(&other, "exchanged")),
            (1, 0)
        );
        fs::write(one.join("more"), "more").unwrap();
        fs::hard_link(one.join("more"), other.join("link")).unwrap();
        assert_eq!((verify(&one, "create"), verify(&other, "link")), (2, 1));
        fs::rename(one.join("more"), other.join("link")).unwrap();
        fs::remove_file(one.join("in")).unwrap();
        fs::write(one.join("new"), "new").unwrap();
        fs::rename(one.join("new"), other.join("link")).unwrap();
        let whiteout = rustix::fs::RenameFlags::WHITEOUT;
        let (old, new) = (other.join("link"), other.join("left"));
        rustix::fs::renameat_with(rustix::fs::CWD, &old, rustix::fs::CWD, &new, whiteout).unwrap();
        assert_eq!(
            (verify(&one, "emptied"), verify(&other, "whiteout")),
            (1, 2)
        );
        served.unmount();
        testkit::e2fsck(&image);
    }
}
