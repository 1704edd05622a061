//! `cp -r` out of an image and into one gives the modes that GNU `cp -r` gives on the host, under any umask.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FileType, Mode, mknodat};

use crate::fixture::{lanefs, mke2fs, ok, tool};

const UMASKS: [&str; 4] = ["022", "077", "002", "000"];
const OPTIONS: [&str; 3] = ["-r", "-rp", "-a"];
const NOBODY: u32 = 65534;

/// Every umask with every way to copy.
fn ways() -> impl Iterator<Item = (&'static str, &'static str)> {
    UMASKS
        .into_iter()
        .flat_map(|umask| OPTIONS.map(|options| (umask, options)))
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A tree with modes of every kind. Without `devices`, one that a user can copy who owns it.
fn fill(root: &Path, devices: bool) {
    fs::create_dir(root).unwrap();
    let mut directories = vec![0o7777, 0o1777, 0o2775, 0o775, 0o555, 0o500];
    let mut files = vec![0o4755, 0o2755, 0o1644, 0o666, 0o444];
    if devices {
        directories.extend([0o200, 0o000]);
        files.extend([0o000, 0o6711]);
    }
    for mode in files {
        let name = |kind| root.join(format!("{kind}{mode:o}"));
        fs::write(name("file"), "contents").unwrap();
        drop(UnixListener::bind(name("socket")).unwrap());
        let node = |kind, device| {
            let path = name(if device == 0 { "fifo" } else { "device" });
            mknodat(rustix::fs::CWD, path, kind, Mode::empty(), device).unwrap();
        };
        node(FileType::Fifo, 0);
        if devices {
            node(FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        }
        for entry in fs::read_dir(root).unwrap() {
            let path = entry.unwrap().path();
            if path.to_str().unwrap().ends_with(&format!("{mode:o}")) {
                set_mode(&path, mode);
            }
        }
    }
    fs::hard_link(root.join("file666"), root.join("second-name")).unwrap();
    symlink("file666", root.join("link")).unwrap();
    for mode in directories {
        let path = root.join(format!("directory{mode:o}"));
        fs::create_dir_all(path.join("below/deep")).unwrap();
        fs::write(path.join("file"), "inside").unwrap();
        set_mode(&path.join("below"), 0o511);
        set_mode(&path, mode);
    }
}

/// What a copy is judged by: type and mode, group, device number, and how many names it has.
type Seen = BTreeMap<PathBuf, (String, u32, u64, u64)>;

fn seen(root: &Path) -> Seen {
    let mut seen = Seen::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let found = fs::symlink_metadata(root.join(&path)).unwrap();
        if found.is_dir() {
            let entries = fs::read_dir(root.join(&path)).unwrap();
            waiting.extend(entries.map(|entry| path.join(entry.unwrap().file_name())));
        }
        let names = if found.is_dir() { 0 } else { found.nlink() };
        let kind = found.file_type();
        let is_device = kind.is_char_device() || kind.is_block_device();
        let device = if is_device { found.rdev() } else { 0 };
        let mode = format!("{:06o}", found.mode());
        seen.insert(path, (mode, found.gid(), device, names));
    }
    seen
}

/// Runs a program under a umask, as this user.
fn under(umask: &str, uid: u32, program: &Path, arguments: &[&str]) {
    let mut command = Command::new("setpriv");
    if uid == 0 {
        command = Command::new("env");
    } else {
        let id = uid.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    command.args(["sh", "-c", "umask $0; exec \"$@\"", umask]);
    tool(command.arg(program).args(arguments));
}

fn assert_as_gnu(gnu: &Path, ours: &Path, what: &str) {
    let (mut gnu, mut ours) = (seen(gnu), seen(ours));
    if what.contains("-a") {
        // Which of two names of a file is copied, and which one linked to it, is the host's order in a directory; what
        // was in the way of a name that is linked leaves nothing.
        for name in ["file666", "second-name"] {
            gnu.remove(Path::new(name));
            ours.remove(Path::new(name));
        }
    }
    let names: Vec<_> = gnu.keys().chain(ours.keys()).collect();
    for name in names {
        assert_eq!(gnu.get(name), ours.get(name), "{what}: {}", name.display());
    }
}

/// A place where everyone may work, with a tree and an image of it.
fn place(devices: bool, uid: u32) -> Option<tempfile::TempDir> {
    if !testkit::is_root() || !testkit::have("mke2fs") || !testkit::have("setpriv") {
        testkit::skip("this takes root, mke2fs and setpriv");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o777);
    let tree = folder.path().join("tree");
    fill(&tree, devices);
    if uid != 0 {
        let id = uid.to_string();
        tool(Command::new("chown").args(["-hR", &id]).arg(&tree));
    }
    mke2fs(&tree, &folder.path().join("disk.img"));
    // The build folder may be closed to others, so the program comes along.
    testkit::copy_program(lanefs().get_program(), &folder.path().join("lanefs"));
    Some(folder)
}

/// A directory to copy into, with a group of its own that is inherited, and something in the way of the copies.
fn destination(path: &Path, uid: u32, gid: u32) {
    fs::create_dir(path).unwrap();
    for name in ["file666", "file4755", "directory775/file"] {
        let file = path.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "in the way").unwrap();
        chown(&file, Some(uid), Some(gid)).unwrap();
        set_mode(&file, 0o1640);
    }
    chown(path.join("directory775"), Some(uid), Some(gid)).unwrap();
    set_mode(&path.join("directory775"), 0o1711);
    chown(path, Some(uid), Some(gid)).unwrap();
    set_mode(path, 0o2750);
}

#[test]
fn a_tree_out_of_an_image_gets_the_modes_of_gnu_cp() {
    for (uid, gid) in [(0, 44), (NOBODY, NOBODY)] {
        let Some(folder) = place(uid == 0, uid) else {
            return;
        };
        let at = |name: String| folder.path().join(name);
        let image = format!("{}:/.", folder.path().join("disk.img").display());
        let tree = format!("{}/.", folder.path().join("tree").display());
        for (umask, options) in ways() {
            if uid != 0 && options != "-r" {
                continue;
            }
            let (gnu, ours) = (
                at(format!("gnu{umask}{options}")),
                at(format!("ours{umask}{options}")),
            );
            destination(&gnu, uid, gid);
            destination(&ours, uid, gid);
            let to = |path: &Path| path.to_str().unwrap().to_owned();
            under(umask, uid, Path::new("cp"), &[options, &tree, &to(&gnu)]);
            let program = folder.path().join("lanefs");
            let arguments = ["-q", "cp", options, &image, &to(&ours)];
            under(umask, uid, &program, &arguments);
            fs::remove_dir(ours.join("lost+found")).ok();
            assert_as_gnu(
                &gnu,
                &ours,
                &format!("umask {umask}, {options}, user {uid}"),
            );
        }
    }
}

#[test]
fn a_tree_into_an_image_gets_the_modes_of_gnu_cp() {
    let Some(folder) = place(true, 0) else {
        return;
    };
    let tree = format!("{}/.", folder.path().join("tree").display());
    let image = folder.path().join("into.img");
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    for (umask, options) in ways() {
        destination(&empty.join(format!("{umask}{options}")), 0, 44);
    }
    mke2fs(&empty, &image);
    let program = lanefs().get_program().to_owned();
    for (umask, options) in ways() {
        let to = format!("{}:/{umask}{options}", image.display());
        let arguments = ["-q", "cp", options, &tree, &to];
        under(umask, 0, Path::new(&program), &arguments);
        let gnu = empty.join(format!("{umask}{options}"));
        let arguments = [options, &tree, gnu.to_str().unwrap()];
        under(umask, 0, Path::new("cp"), &arguments);
    }
    // Links to nothing and to directories are copied as links.
    symlink("nowhere", folder.path().join("dangling")).unwrap();
    symlink("tree", folder.path().join("to-tree")).unwrap();
    for name in ["dangling", "to-tree"] {
        for options in OPTIONS {
            let from = folder.path().join(name);
            let to = format!("{}:/{name}{options}", image.display());
            ok(["-q", "cp", options, from.to_str().unwrap(), &to]);
        }
    }
    testkit::e2fsck(&image);
    let mounted = testkit::KernelMount::read_only(&image).unwrap();
    for (umask, options) in ways() {
        let name = format!("{umask}{options}");
        assert_as_gnu(&empty.join(&name), &mounted.path().join(&name), &name);
    }
    for name in ["dangling", "to-tree"] {
        for options in OPTIONS {
            let link = fs::read_link(mounted.path().join(format!("{name}{options}")));
            let original = fs::read_link(folder.path().join(name));
            assert_eq!(link.unwrap(), original.unwrap(), "{options}");
        }
    }
}

/// The two ACLs of all that is below a directory, and of itself.
fn acls(root: &Path) -> BTreeMap<PathBuf, [Vec<u8>; 2]> {
    let acl = |path: &Path, name: &str| {
        let mut value = vec![0; 4096];
        let read = rustix::fs::lgetxattr(root.join(path), name, &mut value[..]);
        value[..read.unwrap_or(0)].to_vec()
    };
    let names = ["system.posix_acl_access", "system.posix_acl_default"];
    let paths = seen(root).into_keys();
    paths
        .map(|path| (path.clone(), names.map(|name| acl(&path, name))))
        .collect()
}

#[test]
fn acls_and_modes_below_a_default_acl_are_those_of_gnu_cp() {
    let Some(folder) = place(false, 0) else {
        return;
    };
    if !testkit::have("setfacl") {
        return testkit::skip("setfacl is not installed");
    }
    let tree = folder.path().join("tree");
    let set = |acl: &str, path: &Path| tool(Command::new("setfacl").args(["-m", acl]).arg(path));
    set("u:9:rx,d:u:7:rwx,d:o::-", &tree.join("directory775"));
    set("u:9:rw", &tree.join("file666"));
    set("g:8:rwx", &tree.join("directory775/file"));
    let (from, into) = (
        folder.path().join("disk.img"),
        folder.path().join("into.img"),
    );
    mke2fs(&tree, &from);
    let (gnu, ours) = (folder.path().join("gnu"), folder.path().join("ours"));
    for path in [&gnu, &ours] {
        fs::create_dir(path).unwrap();
        set("d:u::rwx,d:u:7:rwx,d:g::rx,d:o::x", path);
    }
    mke2fs(&ours, &into);
    let program = folder.path().join("lanefs");
    let ways = || {
        ["022", "007"]
            .into_iter()
            .flat_map(|umask| OPTIONS.map(|options| (umask, options)))
    };
    for (umask, options) in ways() {
        let name = format!("{umask}{options}");
        let to = gnu.join(&name);
        let tree = tree.to_str().unwrap();
        under(
            umask,
            0,
            Path::new("cp"),
            &[options, tree, to.to_str().unwrap()],
        );
        let to = ours.join(&name);
        let image = format!("{}:/", from.display());
        under(
            umask,
            0,
            &program,
            &["-q", "cp", options, &image, to.to_str().unwrap()],
        );
        let to = format!("{}:/{name}", into.display());
        under(umask, 0, &program, &["-q", "cp", options, tree, &to]);
    }
    testkit::e2fsck(&into);
    let mounted = testkit::KernelMount::read_only(&into).unwrap();
    for (umask, options) in ways() {
        let name = format!("{umask}{options}");
        for (way, root) in [("out", &ours), ("in", &mounted.path())] {
            let (gnu, ours) = (gnu.join(&name), root.join(&name));
            assert_as_gnu(&gnu, &ours, &format!("{way}: {name}"));
            assert_eq!(acls(&gnu), acls(&ours), "{way}: {name}");
        }
    }
}

#[test]
fn names_of_one_file_stay_that_with_a_and_not_with_r() {
    let Some(folder) = place(false, 0) else {
        return;
    };
    let image = folder.path().join("disk.img");
    let names = |options: &str, to: &str| {
        let out = folder.path().join(to);
        let from = format!("{}:/.", image.display());
        fs::create_dir(&out).unwrap();
        ok(["-q", "cp", options, &from, out.to_str().unwrap()]);
        fs::metadata(out.join("second-name")).unwrap().nlink()
    };
    assert_eq!((names("-r", "plain"), names("-a", "archive")), (1, 2));
    let tree = folder.path().join("tree");
    for (options, to, names) in [("-r", "plain", 1), ("-a", "archive", 2)] {
        let place = format!("{}:/{to}", image.display());
        ok(["-q", "cp", options, tree.to_str().unwrap(), &place]);
        let shown = ok(["stat", "--json", &format!("{place}/second-name")]);
        assert!(shown.contains(&format!("\"links\": {names}")), "{shown}");
    }
}

/// What a tree has, by path: the contents of files, the targets of links.
fn contents(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |path: &Path| match fs::read_link(root.join(path)) {
        Ok(target) => target.into_os_string().into_encoded_bytes(),
        Err(_) if root.join(path).is_file() => fs::read(root.join(path)).unwrap(),
        Err(_) => Vec::new(),
    };
    let paths = seen(root).into_keys();
    paths.map(|path| (path.clone(), read(&path))).collect()
}

#[test]
fn files_that_exist_stay_with_n_in_a_directory_that_is_not_empty() {
    let Some(folder) = place(true, 0) else {
        return;
    };
    let at = |name: &str| folder.path().join(name);
    let image = at("disk.img");
    for (number, options) in ["-rn", "-an", "-rpn"].into_iter().enumerate() {
        let (gnu, ours) = (at(&format!("gnu{number}")), at(&format!("ours{number}")));
        for path in [&gnu, &ours] {
            destination(path, 0, 44);
            // In the way of a device, a link and one of the names of a file.
            fs::write(path.join("device444"), "kept").ok();
            symlink("elsewhere", path.join("link")).unwrap();
            fs::write(path.join("second-name"), "kept").unwrap();
            fs::create_dir(path.join("directory500")).unwrap();
            fs::write(path.join("directory500/more"), "kept").unwrap();
        }
        let to = |path: &Path| path.to_str().unwrap().to_owned();
        let tree = format!("{}/.", at("tree").display());
        under("022", 0, Path::new("cp"), &[options, &tree, &to(&gnu)]);
        let from = format!("{}:/.", image.display());
        under(
            "022",
            0,
            &at("lanefs"),
            &["-q", "cp", options, &from, &to(&ours)],
        );
        fs::remove_dir(ours.join("lost+found")).ok();
        assert_eq!(contents(&gnu), contents(&ours), "{options}");
        if options == "-rn" {
            assert_as_gnu(&gnu, &ours, options);
        }
    }
}
