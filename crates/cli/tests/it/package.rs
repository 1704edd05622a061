//! What `cargo xtask dist` makes, as its users meet it: in a Debian that has nothing but the package, in a folder that
//! has nothing but the static program, and for another processor. The suite `package` runs these tests: they build all
//! of it, twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::fixture::{error, tool};
use crate::readme::{run_commands, run_sessions};

/// The Debian that the package is installed on.
const SUITE: &str = "bookworm";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Runs `cargo xtask dist` in a checkout; gives the folder of the files, or says what is missing.
fn dist(checkout: &Path) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["xtask", "dist"])
        .current_dir(checkout)
        .env_remove("CARGO_TARGET_DIR")
        .output()
        .unwrap();
    let text = error(&output);
    if let Some((_, missing)) = text.split_once("dist: install first:") {
        return Err(missing.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    assert!(output.status.success(), "{text}");
    Ok(checkout.join("target/dist"))
}

/// The files of this checkout, made once; or those in the folder `LANEFS_DIST`.
fn made() -> Option<&'static Path> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match MADE.get_or_init(|| match std::env::var_os("LANEFS_DIST") {
        Some(folder) => Ok(folder.into()),
        None => dist(&root()),
    }) {
        Ok(folder) => Some(folder),
        Err(missing) => {
            testkit::skip(&format!("packages can't be made before: {missing}"));
            None
        }
    }
}

/// The only file whose name begins and ends so.
fn file(folder: &Path, begin: &str, end: &str) -> PathBuf {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(begin) && name.ends_with(end)
    };
    let files: Vec<PathBuf> = entries.filter(fits).collect();
    assert_eq!(files.len(), 1, "{begin}*{end}: {files:?}");
    files[0].clone()
}

/// A folder with the file tree of a system; what is mounted in it is unmounted at the end.
struct System {
    folder: TempDir,
}

impl System {
    /// A minimal Debian, with the host's devices.
    fn debian() -> System {
        let system = System {
            folder: tempfile::tempdir_in("/var/tmp").unwrap(),
        };
        let path = system.folder.path();
        tool(
            Command::new("debootstrap")
                .args(["--variant=minbase", SUITE])
                .arg(path),
        );
        for name in ["dev", "proc"] {
            let from = Path::new("/").join(name);
            tool(
                Command::new("mount")
                    .arg("--bind")
                    .arg(from)
                    .arg(path.join(name)),
            );
        }
        fs::create_dir(path.join("work")).unwrap();
        system
    }

    /// Runs a line of shell in the folder `work`.
    fn run(&self, line: &str) -> Output {
        Command::new("chroot")
            .arg(self.folder.path())
            .args(["sh", "-c", &format!("exec 2>&1; cd /work\n{line}")])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("COLUMNS", "100")
            .output()
            .unwrap()
    }

    /// Runs a line that must succeed; gives what it printed.
    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{line}: {text}");
        text
    }
}

impl Drop for System {
    fn drop(&mut self) {
        for name in ["work/mnt", "dev", "proc"] {
            let path = self.folder.path().join(name);
            let _ = Command::new("umount").arg(path).output();
        }
    }
}

#[test]
#[ignore = "builds all packages, installs a Debian: cargo xtask suites package"]
fn every_command_of_the_readme_works_in_a_debian_with_the_package_alone() {
    if !testkit::is_root() || !testkit::have("debootstrap") || !Path::new("/dev/fuse").exists() {
        return testkit::skip("a Debian in a folder takes root, debootstrap and /dev/fuse");
    }
    let Some(made) = made() else { return };
    let debian = System::debian();
    let package = file(made, "lanefs_", ".deb");
    fs::copy(package, debian.folder.path().join("lanefs.deb")).unwrap();
    println!("{}", debian.ok("dpkg -i /lanefs.deb && dpkg -s lanefs"));
    run_sessions(&|line| debian.run(line));
    debian.ok("rm -r *");
    run_commands(&|line| debian.run(line), true);
    // Under its other names, as mount(8) and fsck(8) run it, and by a user who is not root.
    debian.ok("mount -t lanefs disk.img mnt && echo hello > mnt/hello && umount mnt");
    debian.ok("mount -t fuse.lanefs disk.img mnt && grep hello mnt/hello && lanefs umount mnt");
    debian.ok("fsck -t lanefs disk.img && fsck.fuse.lanefs -p disk.img");
    debian.ok(
        "mount -t fuseblk.lanefs disk.img mnt && umount mnt && fsck -t fuseblk.lanefs disk.img",
    );
    let user = "setpriv --reuid 1000 --regid 1000 --clear-groups";
    let line = format!(
        "chmod 777 . && {user} lanefs build rootfs user.img && {user} lanefs check user.img"
    );
    debian.ok(&line);
    for page in [
        "man1/lanefs-build.1.gz",
        "man8/mount.lanefs.8.gz",
        "man8/fsck.lanefs.8.gz",
    ] {
        debian.ok(&format!("zcat /usr/share/man/{page} | grep -q EXAMPLES"));
    }
    debian.ok("test -s /usr/share/bash-completion/completions/lanefs");
    debian.ok("dpkg -r lanefs && ! test -e /usr/sbin/mount.lanefs");
}

/// Runs the README's sessions with a program that is the only one of ours, perhaps by another one that runs it.
fn check_program(program: &Path, runner: &str) {
    let folder = tempfile::tempdir().unwrap();
    let run = |line: &str| {
        let name = format!("lanefs() {{ {runner} {} \"$@\"; }}", program.display());
        Command::new("sh")
            .args(["-c", &format!("exec 2>&1\n{name}\n{line}")])
            .current_dir(folder.path())
            .env("COLUMNS", "100")
            .output()
            .unwrap()
    };
    run_sessions(&run);
    run_commands(&run, false);
}

#[test]
#[ignore = "builds all packages: cargo xtask suites package"]
fn the_static_program_needs_nothing_else() {
    let Some(made) = made() else { return };
    let program = file(made, "lanefs-", "x86_64-linux-musl");
    check_program(&program, "");
    if !testkit::is_root() {
        return testkit::skip("chroot takes root");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::copy(program, folder.path().join("lanefs")).unwrap();
    for words in [
        ["mkfs", "/a.img", "16M"].as_slice(),
        &["check", "/a.img"],
        &["tree", "/a.img"],
    ] {
        tool(
            Command::new("chroot")
                .arg(folder.path())
                .arg("/lanefs")
                .args(words),
        );
    }
}

#[test]
#[ignore = "builds all packages: cargo xtask suites package"]
fn the_program_for_aarch64_runs_under_qemu() {
    if !testkit::have("qemu-aarch64") {
        return testkit::skip("qemu-user is not installed");
    }
    let Some(made) = made() else { return };
    check_program(&file(made, "lanefs-", "aarch64-linux-musl"), "qemu-aarch64");
}

#[test]
#[ignore = "builds all packages twice: cargo xtask suites package"]
fn another_folder_makes_the_same_bytes() {
    let Some(made) = made() else { return };
    let changed = tool(
        Command::new("git")
            .args(["status", "--porcelain"])
            .current_dir(root()),
    );
    if !changed.is_empty() {
        return testkit::skip("the work tree has changes that no other checkout has");
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let clone = folder.path().join("elsewhere");
    tool(
        Command::new("git")
            .args(["clone", "-q"])
            .arg(root())
            .arg(&clone),
    );
    let again = dist(&clone).unwrap();
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    assert_eq!(sums(&again), sums(made));
}

#[test]
#[ignore = "builds every crate as it would be published: cargo xtask suites package"]
fn every_crate_can_be_published() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "publish",
        "--workspace",
        "--dry-run",
        "--locked",
        "--allow-dirty",
    ]);
    tool(command.current_dir(root()));
}
