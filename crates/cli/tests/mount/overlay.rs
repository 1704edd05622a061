//! A mount as upper and work directory of the kernel's overlayfs, and files without names.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::served::{Served, can_mount, image};

const SIZE: u64 = 64 << 20;
/// How often an overlay that is in use is unmounted once more, and after which time.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// An overlay that is unmounted whatever the test does.
struct Overlay(PathBuf);

impl Overlay {
    /// Mounts `folder/low` below `upper/up`; `None` if the kernel has no overlayfs.
    fn mount(folder: &Path, upper: &Path) -> Option<Overlay> {
        Overlay::of(&folder.join("low"), upper, folder.join("merged"))
    }

    /// Mounts `lower` below `upper/up`, to be seen at `at`.
    fn of(lower: &Path, upper: &Path, at: PathBuf) -> Option<Overlay> {
        fs::create_dir_all(&at).unwrap();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}\0",
            lower.display(),
            upper.join("up").display(),
            upper.join("work").display()
        );
        let options = CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
        match rustix::mount::mount("overlay", &at, "overlay", MountFlags::empty(), options) {
            Ok(()) => Some(Overlay(at)),
            Err(rustix::io::Errno::NODEV) => {
                testkit::skip("the kernel has no overlayfs");
                None
            }
            Err(error) => panic!("overlayfs refuses the mount as its upper directory: {error}"),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let listed = fs::read_dir(self.at(directory)).unwrap();
        let mut names: Vec<_> = listed
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // Programs that other tests start hold this process's files for a moment. An overlay that stays keeps the mount
        // below it, for whose end `lanefs umount` then waits.
        for _ in 0..TRIES {
            match rustix::mount::unmount(&self.0, UnmountFlags::empty()) {
                Err(rustix::io::Errno::BUSY) => std::thread::sleep(PAUSE),
                _ => return,
            }
        }
    }
}

/// What the kernel's log has from overlayfs that names this folder, or came since the mark was written.
fn complaints(mark: &str) -> Vec<String> {
    let log = testkit::run("dmesg", &[]);
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let since = log.split(mark).last().unwrap_or_default();
    let lines = since.lines().filter(|line| line.contains("overlayfs:"));
    lines.map(str::to_owned).collect()
}

fn is_whiteout(path: &Path) -> bool {
    let metadata = fs::symlink_metadata(path).unwrap();
    metadata.file_type().is_char_device() && metadata.rdev() == 0 && metadata.mode() & 0o7777 == 0
}

/// The lower tree: files, a directory that is deleted, one that is renamed, and one that becomes opaque.
fn lower(folder: &Path) {
    for name in ["low/gone", "low/moves/below", "low/opaque"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in [
        "low/f",
        "low/g",
        "low/h",
        "low/gone/x",
        "low/opaque/x",
        "low/moves/below/x",
    ] {
        fs::write(folder.join(name), name).unwrap();
    }
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 253) as u8).collect();
    fs::write(folder.join("low/large"), large).unwrap();
}

/// Changes the overlay in each way that leaves a mark in the upper directory.
fn change(overlay: &Overlay) {
    let at = |name: &str| overlay.at(name);
    // Renames of lower files: to a free name, over a lower file, over a new one, into a new directory.
    fs::rename(at("f"), at("renamed")).unwrap();
    fs::rename(at("g"), at("h")).unwrap();
    fs::create_dir(at("new")).unwrap();
    fs::write(at("new/file"), "new").unwrap();
    fs::rename(at("h"), at("new/file")).unwrap();
    fs::remove_dir_all(at("gone")).unwrap();
    // A directory that hides the lower one of its name.
    fs::remove_dir_all(at("opaque")).unwrap();
    fs::create_dir(at("opaque")).unwrap();
    fs::write(at("opaque/y"), "y").unwrap();
    // A copy of a large file by a change in its middle, and of attributes alone.
    let file = File::options().write(true).open(at("large")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"changed", 1_500_000).unwrap();
    fs::hard_link(at("large"), at("new/link")).unwrap();
    let below = at("moves/below/x");
    rustix::fs::setxattr(&below, "user.a", b"value", XattrFlags::empty()).unwrap();
    // A file without a name that gets one.
    let mode = Mode::from_raw_mode(0o640);
    let unnamed = rustix::fs::open(at("new"), OFlags::TMPFILE | OFlags::RDWR, mode).unwrap();
    File::from(unnamed.try_clone().unwrap())
        .write_all(b"unnamed")
        .unwrap();
    rustix::fs::linkat(&unnamed, "", CWD, at("new/named"), AtFlags::EMPTY_PATH).unwrap();
}

fn verify(overlay: &Overlay) {
    let read = |name: &str| fs::read_to_string(overlay.at(name)).unwrap();
    assert_eq!(
        overlay.names(""),
        ["large", "moves", "new", "opaque", "renamed"]
    );
    assert_eq!(overlay.names("new"), ["file", "link", "named"]);
    assert_eq!(overlay.names("opaque"), ["y"]);
    assert_eq!(
        (read("renamed"), read("new/file")),
        ("low/f".into(), "low/g".into())
    );
    assert_eq!(read("new/named"), "unnamed");
    let large = fs::read(overlay.at("new/link")).unwrap();
    assert_eq!(
        (large.len(), &large[1_500_000..1_500_007]),
        (3_000_000, &b"changed"[..])
    );
    assert!((0..1_500_000).all(|at| large[at] == (at % 253) as u8));
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(overlay.at("moves/below/x"), "user.a", &mut value).unwrap();
    assert_eq!(&value[..len], b"value");
}

#[test]
fn the_kernels_overlayfs_has_its_upper_directory_on_a_mount() {
    if !can_mount() {
        return;
    }
    for options in ["", "default_permissions", "nofuseblk"] {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), "a.img", SIZE, &[]);
        lower(folder.path());
        let served = Served::start(&image, options);
        let upper = served.path();
        fs::create_dir(upper.join("up")).unwrap();
        fs::create_dir(upper.join("work")).unwrap();
        let mark = format!("lanefs test {}", folder.path().display());
        let logged = fs::write("/dev/kmsg", &mark).is_ok();
        let Some(overlay) = Overlay::mount(folder.path(), upper) else {
            return;
        };
        change(&overlay);
        verify(&overlay);
        for name in ["f", "g", "h", "gone"] {
            assert!(is_whiteout(&upper.join("up").join(name)), "{name}");
        }
        drop(overlay);
        served.unmount();
        testkit::e2fsck(&image);
        // What is in the image means the same on the next mount.
        let served = Served::start(&image, options);
        let Some(overlay) = Overlay::mount(folder.path(), served.path()) else {
            return;
        };
        verify(&overlay);
        drop(overlay);
        served.unmount();
        if logged && testkit::have("dmesg") {
            assert_eq!(complaints(&mark), Vec::<String>::new())
        } else {
            testkit::skip("the kernel's log can't be read")
        }
    }
}

/// Has an ordinary user change files of a lower directory with attributes; those of the copies, and what that user is
/// shown of a lower file.
fn copied_up(folder: &Path, lower: &Path) -> Option<String> {
    let upper = folder.join("upper");
    for name in ["up", "work"] {
        fs::create_dir_all(upper.join(name)).unwrap();
    }
    let script = "mkdir -p root; for name in written changed root/within; do
            echo x > $name; chown 1000:1000 $name
            setfattr -n trusted.a -v 1 $name; setfattr -n user.a -v 1 $name
        done";
    let in_shell = |script: &str, at: &Path| {
        let mut command = Command::new("sh");
        let output = command.args(["-c", script]).current_dir(at).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    in_shell(script, lower);
    let overlay = Overlay::of(lower, &upper, folder.join("merged"))?;
    let change = "setpriv --reuid=1000 --regid=1000 --clear-groups \
        sh -c 'getfattr -m - written; echo y >> written; chmod 640 changed; getfattr -m - written'";
    let shown = in_shell(change, &overlay.0);
    // A process in a chroot is not shown the overlay that it is in.
    let within = "import os; os.chroot('root'); os.setgroups([]); os.setgid(1000); os.setuid(1000); \
        os.write(os.open('/within', os.O_WRONLY | os.O_APPEND), b'y')";
    in_shell(&format!("python3 -c \"{within}\""), &overlay.0);
    let copies = in_shell(
        "getfattr -d -m '^(trusted.a|user)' written changed root/within",
        &upper.join("up"),
    );
    drop(overlay);
    fs::remove_dir_all(&upper).unwrap();
    Some(shown + &copies)
}

#[test]
fn an_overlay_over_a_mount_copies_all_attributes_up_whoever_changes_a_file() {
    if !can_mount() {
        return;
    }
    let programs = ["setpriv", "getfattr", "python3"];
    if !programs.into_iter().all(testkit::have) {
        return testkit::skip("needs setpriv, getfattr and python3");
    }
    // Not below a directory that only root may search.
    let folder = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), mode).unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let copy = folder.path().join("b.img");
    fs::copy(&image, &copy).unwrap();
    let kernel = testkit::KernelMount::with(&copy, "loop").unwrap();
    let Some(expected) = copied_up(folder.path(), &kernel.path()) else {
        return;
    };
    drop(kernel);
    assert_eq!(expected.matches("trusted.a=").count(), 3, "{expected}");
    for options in ["allow_other", "allow_other,nofuseblk"] {
        let served = Served::start(&image, options);
        let found = copied_up(folder.path(), served.path()).unwrap();
        assert_eq!(found, expected, "{options}");
        served.unmount();
        testkit::e2fsck(&image);
    }
}

#[test]
fn a_whiteout_is_left_under_the_old_name_by_renameat2() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "");
    let at = |name: &str| served.path().join(name);
    let rename =
        |from: &str, to: &str, flags| rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags);
    fs::write(at("a"), "a").unwrap();
    fs::write(at("b"), "b").unwrap();
    // The kernel knows both names before, so it has to learn of the whiteout.
    assert!(at("a").exists() && at("b").exists() && !at("c").exists());
    rename("a", "b", RenameFlags::WHITEOUT).unwrap();
    assert!(is_whiteout(&at("a")));
    assert_eq!(fs::read(at("b")).unwrap(), b"a");
    rename("b", "c", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE).unwrap();
    assert!(is_whiteout(&at("b")) && at("c").exists());
    let taken = rename("c", "a", RenameFlags::WHITEOUT | RenameFlags::NOREPLACE);
    assert_eq!(taken, Err(rustix::io::Errno::EXIST));
    let exchanged = rename("c", "a", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE);
    assert_eq!(exchanged, Err(rustix::io::Errno::INVAL));
    assert_eq!(fs::read_dir(served.path()).unwrap().count(), 4);
    served.unmount();
    testkit::e2fsck(&image);
}

#[test]
fn a_file_without_a_name_gets_one_by_linkat_or_leaves_nothing() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", SIZE, &[]);
    let served = Served::start(&image, "");
    let free = || rustix::fs::statvfs(served.path()).unwrap().f_ffree;
    let before = free();
    let open = |flags, mode| {
        let flags = OFlags::TMPFILE | OFlags::RDWR | flags;
        let opened = rustix::fs::open(served.path(), flags, Mode::from_raw_mode(mode));
        File::from(opened.unwrap())
    };
    let to = served.path().join("named");
    let link = |file: &File| rustix::fs::linkat(file, "", CWD, &to, AtFlags::EMPTY_PATH);
    let mut file = open(OFlags::empty(), 0o600);
    file.write_all(&[5; 100_000]).unwrap();
    assert_eq!((file.metadata().unwrap().nlink(), free()), (0, before - 1));
    link(&file).unwrap();
    let metadata = fs::metadata(&to).unwrap();
    assert_eq!((metadata.nlink(), metadata.len()), (1, 100_000));
    assert_eq!(metadata.mode() & 0o7777, 0o600);
    // With O_EXCL it never gets a name.
    let exclusive = open(OFlags::EXCL, 0o600);
    fs::remove_file(&to).unwrap();
    assert_eq!(link(&exclusive), Err(rustix::io::Errno::NOENT));
    drop((file, exclusive));
    served.unmount();
    testkit::e2fsck(&image);
    let listed = crate::served::lanefs()
        .arg("ls")
        .arg(&image)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "lost+found");
}
