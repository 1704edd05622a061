//! What the kernel keeps of a file is what the image holds, beside asynchronous direct writes; `truth` has all other
//! changes.

use std::fs;
use std::process::Command;

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
