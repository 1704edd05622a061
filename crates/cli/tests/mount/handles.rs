//! Handles of files (name_to_handle_at, as an NFS server makes them): they mean the same file on a later mount, and
//! nothing once it is deleted, even if another file has its number then.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::served::{Served, can_mount, image};

/// The system calls, which have no safe wrapper: prints a file's handle, or what is read through one.
const SCRIPT: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('type', ctypes.c_int), ('data', ctypes.c_ubyte * 128)]
handle, mount = Handle(128), ctypes.c_int()
if sys.argv[1] == 'name':
    path = os.fsencode(sys.argv[2])
    if libc.name_to_handle_at(-100, path, ctypes.byref(handle), ctypes.byref(mount), 0):
        sys.exit(os.strerror(ctypes.get_errno()))
    print(handle.type, bytes(handle.data[:handle.bytes]).hex())
else:
    data = bytes.fromhex(sys.argv[4])
    handle.bytes, handle.type = len(data), int(sys.argv[3])
    handle.data[:len(data)] = data
    root = os.open(sys.argv[2], os.O_RDONLY)
    fd = libc.open_by_handle_at(root, ctypes.byref(handle), os.O_RDONLY)
    if fd < 0:
        print(os.strerror(ctypes.get_errno()))
    elif os.path.isdir('/proc/self/fd/%d' % fd):
        print(os.fstat(fd).st_ino, os.readlink('/proc/self/fd/%d' % fd))
    else:
        print(os.read(fd, 100).decode())
";

fn python(arguments: &[&str]) -> String {
    let mut command = Command::new("python3");
    let output = command.args(["-c", SCRIPT]).args(arguments).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{output:?}");
    text
}

fn handle(path: &Path) -> String {
    python(&["name", path.to_str().unwrap()])
}

fn through(root: &Path, handle: &str) -> String {
    let (kind, data) = handle.split_once(' ').unwrap();
    python(&["open", root.to_str().unwrap(), kind, data])
}

#[test]
fn handles_outlive_the_mount_and_not_the_file() {
    if !can_mount() {
        return;
    }
    if !testkit::have("python3") {
        return testkit::skip("needs python3");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 16 << 20, &["-N", "64"]);
    let served = Served::start(&image, "");
    let root = served.path();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/one"), "first").unwrap();
    fs::write(root.join("d/two"), "second").unwrap();
    let (one, two) = (handle(&root.join("d/one")), handle(&root.join("d/two")));
    assert_eq!(through(root, &one), "first");
    served.unmount();

    // Nothing was looked up by name there.
    for options in ["ro", ""] {
        let served = Served::start(&image, options);
        assert_eq!(through(served.path(), &two), "second");
        assert_eq!(through(served.path(), &one), "first");
        served.unmount();
    }
    let served = Served::start(&image, "");
    let root = served.path();
    let number = fs::metadata(root.join("d/one")).unwrap().ino();
    fs::remove_file(root.join("d/one")).unwrap();
    assert_eq!(through(root, &one), "Stale file handle");
    served.unmount();
    let served = Served::start(&image, "");
    let root = served.path();
    assert_eq!(through(root, &one), "Stale file handle");
    let again = (0..64).find(|file| {
        let path = root.join(format!("file{file}"));
        fs::write(&path, "third").unwrap();
        fs::metadata(&path).unwrap().ino() == number
    });
    let again = handle(&root.join(format!("file{}", again.unwrap())));
    assert_eq!(through(root, &one), "Stale file handle");
    assert_eq!(through(root, &again), "third");
    served.unmount();
    testkit::e2fsck(&image);
}

/// Has the kernel forget the directories that nobody uses.
fn forget_names() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

#[test]
fn handles_of_directories_lead_to_their_place_once_the_kernel_has_forgotten_them() {
    if !can_mount() {
        return;
    }
    if !testkit::have("python3") {
        return testkit::skip("needs python3");
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 16 << 20, &[]);
    let served = Served::start(&image, "");
    let root = served.path().to_owned();
    fs::create_dir_all(root.join("d/sub/deep")).unwrap();
    fs::create_dir(root.join("gone")).unwrap();
    let gone = handle(&root.join("gone"));
    fs::remove_dir(root.join("gone")).unwrap();
    let names = ["", "d", "d/sub", "d/sub/deep"];
    let handles = names.map(|name| handle(&root.join(name)));
    let seen = |root: &Path, name: &str| {
        let path = root.join(name);
        let number = fs::metadata(&path).unwrap().ino();
        let shown = path.to_str().unwrap().trim_end_matches('/').to_owned();
        format!("{number} {shown}")
    };
    for (name, handle) in names.iter().zip(&handles).rev() {
        forget_names();
        assert_eq!(through(&root, handle), seen(&root, name), "{name}");
        assert_eq!(fs::metadata(&root).unwrap().ino(), 2);
    }
    assert_eq!(through(&root, &gone), "Stale file handle");
    // Numbers that are nobody's to open: the journal's inode, the root under its own number.
    for number in [2_u8, 8, 7, 3] {
        let made = format!("129 0000000000{number:02x}000000{:08x}", 0);
        let made = made.replacen("0000000000", "00000000", 1);
        assert!(through(&root, &made).contains("tale"), "{number}: {made}");
    }
    fs::rename(root.join("d/sub"), root.join("moved")).unwrap();
    forget_names();
    assert_eq!(through(&root, &handles[3]), seen(&root, "moved/deep"));
    served.unmount();

    for options in ["ro", ""] {
        let served = Served::start(&image, options);
        let root = served.path();
        for (name, handle) in [("moved/deep", 3), ("moved", 2), ("d", 1), ("", 0)] {
            assert_eq!(through(root, &handles[handle]), seen(root, name), "{name}");
        }
        served.unmount();
    }
    testkit::e2fsck(&image);
}
