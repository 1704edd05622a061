//! Runs programs in a mount namespace of their own, without the images that others have mounted.
//!
//! *Why*. Two things that other programs of the machine do disturb tests that unmount:
//!
//! - A process that makes a mount namespace gets a copy of every mount. An unmount elsewhere then does not end the file
//!   system. Mounts in a namespace of their own are copied by no other process.
//! - A program that asks every mount for its state, as xfs_io does when it starts, keeps each mount in use until it is
//!   answered. On a FUSE mount a server has to answer, so umount(8) finds the target busy for some milliseconds. A
//!   program does not see the mounts of another namespace.
//!
//! The new namespace in turn has copies of the mounts of others. [`command`] detaches those of images before the
//! program begins. Takes no lock.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// A script of sh(1): its words are mounts to detach, `--`, and the program with its arguments.
const DETACH: &str =
    r#"while [ "$1" != -- ]; do umount -l "$1" 2>/dev/null; shift; done; shift; exec "$@""#;

/// The command that runs a program apart, where this process may make a mount namespace. Elsewhere it runs the program
/// as it is.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    if !is_allowed() {
        return Command::new(program);
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut kept = vec![
        std::env::current_dir().unwrap_or_default(),
        std::env::temp_dir(),
        crate::root(),
    ];
    kept.extend(std::env::vars_os().filter_map(|(name, value)| path_in(&name, &value)));
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", DETACH, "sh"])
        .args(images_of_others(&mounts, &kept))
        .arg("--")
        .arg(program);
    command
}

/// The same command, to run apart. How it treats the standard streams is not taken over.
pub fn apart(it: &Command) -> Command {
    let mut command = command(it.get_program());
    command.args(it.get_args());
    for (name, value) in it.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = it.get_current_dir() {
        command.current_dir(folder);
    }
    command
}

/// The path that a variable of a suite, of cargo or of rustup gives.
fn path_in(name: &OsStr, value: &OsStr) -> Option<PathBuf> {
    let name = name.to_str()?;
    let is_ours = ["LANEFS_", "CARGO", "RUST"]
        .iter()
        .any(|start| name.starts_with(start));
    let path = PathBuf::from(value);
    (is_ours && path.is_absolute()).then_some(path)
}

/// Whether this process may make a mount namespace.
fn is_allowed() -> bool {
    static IS_ALLOWED: OnceLock<bool> = OnceLock::new();
    *IS_ALLOWED.get_or_init(|| {
        let tried = Command::new("unshare").args(["--mount", "true"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    })
}

/// Where images are mounted, by a FUSE server or through a loop device, as `mounts` lists them
/// (`/proc/self/mountinfo`); without those that one of the folders `kept` is in.
fn images_of_others(mounts: &str, kept: &[PathBuf]) -> Vec<PathBuf> {
    let places = mounts.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let (kind, source) = file_system.split_once(' ')?;
        let is_fuse = kind == "fuse" || kind.starts_with("fuse.") || kind.starts_with("fuseblk");
        let is_image = is_fuse || source.starts_with("/dev/loop");
        is_image.then(|| unescaped(mount.split(' ').nth(4).unwrap_or_default()))
    });
    let is_kept = |place: &PathBuf| kept.iter().any(|folder| folder.starts_with(place));
    places.filter(|place| !is_kept(place)).collect()
}

/// A path of the kernel's table, in which blanks, tabs, newlines and backslashes are written as `\ooo`.
fn unescaped(word: &str) -> PathBuf {
    let mut parts = word.split('\\');
    let mut path: Vec<u8> = parts.next().unwrap_or_default().into();
    for part in parts {
        let octal = part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.extend(octal);
        path.extend(part.bytes().skip(3));
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_apart_sees_mounts_that_no_new_namespace_copies() {
        if !is_allowed() {
            eprintln!("skipped: this process may not make a mount namespace");
            return;
        }
        let mut asked = command("readlink");
        let asked = asked.arg("/proc/self/ns/mnt").output().unwrap();
        assert!(asked.status.success(), "{asked:?}");
        let theirs = String::from_utf8(asked.stdout).unwrap();
        let ours = fs::read_link("/proc/self/ns/mnt").unwrap();
        assert!(theirs.starts_with("mnt:["), "{theirs}");
        assert_ne!(theirs.trim(), ours.to_str().unwrap());
    }

    #[test]
    fn folders_that_variables_name_are_kept() {
        let path = |name: &str, value: &str| path_in(name.as_ref(), value.as_ref());
        assert_eq!(path("LANEFS_SUITE_TREE", "/iso"), Some("/iso".into()));
        assert_eq!(path("CARGO_HOME", "/opt/cargo"), Some("/opt/cargo".into()));
        assert_eq!(path("LANEFS_MUTANTS", "500"), None);
        assert_eq!(path("HOME", "/iso"), None);
        let mounts = "42 30 7:2 / /iso rw - ext4 /dev/loop2 rw";
        assert_eq!(
            images_of_others(mounts, &["/iso/tree".into()]),
            [] as [PathBuf; 0]
        );
        assert_eq!(
            images_of_others(mounts, &["/other".into()]),
            ["/iso"].map(PathBuf::from)
        );
    }

    #[test]
    fn images_that_others_mounted_are_detached_and_nothing_else() {
        let mounts = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
            44 23 0:39 / /sys/fs/fuse/connections rw - fusectl none rw\n\
            42 30 7:2 / /a\\040b rw,relatime shared:3 - ext4 /dev/loop2 rw\n\
            43 30 7:3 / /c rw - fuseblk.lanefs /dev/loop3 rw\n\
            45 30 0:50 / /d rw - fuse.lanefs /d.img rw\n\
            46 30 7:4 / /work rw - ext4 /dev/loop4 rw\n\
            an odd line\n";
        let found = images_of_others(mounts, &["/work/tree".into()]);
        assert_eq!(found, ["/a b", "/c", "/d"].map(PathBuf::from));
        let script = format!("umount() {{ echo \"$2\"; }}; {DETACH}");
        let output = Command::new("sh")
            .args(["-c", &script, "sh", "/a b", "/c", "--", "echo", "x  y"])
            .output()
            .unwrap();
        assert_eq!(output.stdout, b"/a b\n/c\nx  y\n");
    }
}
