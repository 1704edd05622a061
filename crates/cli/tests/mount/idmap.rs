//! Mounts of a mount that map users and groups (`mount_setattr(2)`, `MOUNT_ATTR_IDMAP`): what users see and may do
//! there, and what is in the image, are as on the kernel's ext4.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::served::{Served, can_mount, image, lanefs, said};

const MAPPER: &str = include_str!("idmap.py");
/// The image's users 0 to 9 are 1000 to 1009 outside.
const MAP: &str = "0 1000 10";

/// A directory that shows another one with users mapped, until this is dropped.
struct Mapped(PathBuf);

impl Mapped {
    /// Shows `source` at `at`, which is made.
    fn at(source: &Path, at: &Path) -> Result<Mapped, String> {
        fs::create_dir(at).unwrap();
        let mut command = Command::new("python3");
        let command = command.args(["-c", MAPPER]).arg(source).arg(at).arg(MAP);
        let output = command.output().unwrap();
        if output.status.success() {
            Ok(Mapped(at.to_owned()))
        } else {
            Err(said(&output))
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        let _ = umount.arg("--lazy").arg(&self.0).status();
    }
}

/// What users do by a mapped directory. Each line is what a user sees, or the error.
const SCRIPT: &str = r#"
as() { # USER GROUPS COMMAND
    setpriv --reuid=$1 --regid=$1 --groups=$2 sh -c "umask 022; $3" 2>&1 || echo "$1: $3: refused"
}
as 1000 1000 'echo x > file; mkdir dir; ln -s file link; mknod pipe p; chmod 640 file'
as 1001 1003 'mkdir mine; echo x > mine/a; ln mine/a mine/b; mv mine/b mine/c; chmod 2775 mine; chgrp 1003 mine'
as 1001 1003 'echo x > mine/inherits; mkdir mine/below'
as 1001 1001 'cat file; echo x > file; chmod 600 file'
# This user has no number in the image.
as 4000 4000 'echo x > unmapped'
as 4000 4000 'mkdir unmapped'
as 0 0 'echo x > of-host'
chown 1005:1006 file; chown 1001:1001 dir; chown 5:5 link
for user in 1000 1001; do
    as $user $user 'getfattr -d -m - tagged; getfattr -n trusted.a tagged; setfattr -n user.b -v 2 tagged'
done
getfattr -d -m - tagged
as 1001 1001 'setfacl -m u:1002:rw,g:1003:r mine/a; getfacl -n mine/a; setfacl -d -m u:1004:rwx mine'
as 1001 1001 'echo x > mine/default; getfacl -n mine/default; chmod 2755 mine/a; setfacl -m u:1002:r mine/a'
as 1002 1002 'cat mine/a; echo x > mine/a'
n=0
for mode in 4755 6755 2666 6777; do
    for owner in 1000 1001; do
        for deed in 'printf x >> $f' 'truncate -s 1 $f' 'fallocate -l 5000 $f' 'chown $(id -u) $f' 'touch $f' \
            'head -c 9000 /dev/zero > $f.from; cp --reflink=auto $f.from $f; rm $f.from' 'chgrp $(id -g) $f'; do
            for user in 0 1000 1001; do
                n=$((n + 1)) f=bits-$mode-$owner-$n
                as 1000 1000 "echo x > bits/$f"; chown $owner:$owner bits/$f; chmod $mode bits/$f
                as $user $user "cd bits; f=$f; $deed"
            done
        done
    done
done
# The owner is in the file's group, as its own or as a supplementary one, or is not.
n=0
for group in 1001 1003 1005; do
    for mode in 644 2644 2755 6666; do
        for deed in 'chmod 2755 $f' 'chmod 2644 $f' 'chmod 6666 $f' 'chmod g+s $f' 'chmod g-x $f' 'chmod u+x $f' \
            'chgrp 1003 $f' 'chown 1001 $f' 'printf x >> $f' 'truncate -s 1 $f' 'fallocate -l 5000 $f' \
            'dd if=/dev/zero of=$f bs=4096 count=1 oflag=direct status=none'; do
            n=$((n + 1)) f=bits-group-$group-$mode-$n
            as 1000 1000 "echo x > bits/$f"; chown 1001:$group bits/$f; chmod $mode bits/$f
            as 1001 1003 "cd bits; f=$f; $deed"
        done
    done
done
as 1001 1001 'python3 -c "
import os
for name in \"file\", \"dir\", \"mine\":
    print(name, [os.access(name, how) for how in (os.R_OK, os.W_OK, os.X_OK)])
fd = os.open(\"mine\", os.O_TMPFILE | os.O_RDWR, 0o600)
print(os.fstat(fd).st_uid, os.fstat(fd).st_gid)"'
find . -name 'bits-*' -o -print | sort | xargs stat -c '%n %u %g %a %F'
stat -c '%n %u %g %a' bits/*
"#;

/// Runs the script in a mapped directory of a file system; what its users see, then what the image has.
fn seen(place: &Path, mapped: &Path) -> String {
    let prepare = "chmod 777 .; mkdir bits; chmod 777 bits; echo x > tagged; chmod 666 tagged
        setfattr -n trusted.a -v 1 tagged; setfattr -n user.a -v 1 tagged";
    let in_shell = |script: &str, place: &Path| -> Output {
        let mut command = Command::new("sh");
        let command = command.args(["-c", script]).current_dir(place);
        command.output().unwrap()
    };
    let prepared = in_shell(prepare, place);
    assert!(prepared.status.success(), "{}", said(&prepared));
    let through = in_shell(SCRIPT, mapped);
    let inside = "find . -name 'bits-*' -prune -o -print | sort | xargs stat -c '%n %u %g %a'
        stat -c '%n %u %g %a' bits/*; getfacl -n mine/* mine 2>&1";
    let inside = in_shell(inside, place);
    let all = [through.stdout, through.stderr, inside.stdout].concat();
    let all = String::from_utf8_lossy(&all);
    all.into_owned()
}

/// Whether a line of ours is that of the kernel's ext4. The server does not know which of the image's groups a caller
/// is in, so it may take set-group-ID off a file that its group can't execute; but it never leaves the bit where ext4
/// takes it off.
fn is_as_safe(ours: &str, theirs: &str) -> bool {
    if ours == theirs {
        return true;
    }
    let mode = |line: &str| {
        let (rest, word) = line.trim_end_matches(" regular file").rsplit_once(' ')?;
        Some((rest.to_owned(), u32::from_str_radix(word, 8).ok()?))
    };
    match (mode(ours), mode(theirs)) {
        (Some((rest, ours)), Some((other, theirs))) => {
            rest.contains("bits-")
                && rest == other
                && theirs & 0o2010 == 0o2000
                && ours == theirs & !0o2000
        }
        _ => false,
    }
}

/// Whether the programs are there; says what is missing.
fn can_map() -> bool {
    let programs = ["setpriv", "python3", "setfacl", "getfattr", "unshare"];
    let missing = programs.iter().find(|program| !testkit::have(program));
    if let Some(missing) = missing {
        testkit::skip(&format!("needs {missing}"));
    }
    missing.is_none() && can_mount()
}

/// Shows a mount of ours with users mapped; says so where the kernel refuses that.
fn map_served(served: &Served, at: &Path) -> Option<Mapped> {
    let mapped = Mapped::at(served.path(), at);
    if let Err(why) = &mapped {
        testkit::skip(&format!(
            "users of FUSE mounts are mapped from Linux 6.12 on: {why}"
        ));
    }
    mapped.ok()
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn a_mount_that_maps_users_shows_and_allows_what_one_of_the_kernels_ext4_does() {
    if !can_map() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    open_to_all(folder.path());
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let copy = folder.path().join("b.img");
    fs::copy(&image, &copy).unwrap();
    let kernel = testkit::KernelMount::with(&copy, "loop").unwrap();
    let Ok(mapped) = Mapped::at(&kernel.path(), &folder.path().join("theirs")) else {
        return testkit::skip("mounts can't map users here");
    };
    let expected = seen(&kernel.path(), &mapped.0);
    drop(mapped);
    drop(kernel);
    for options in ["allow_other", "allow_other,nofuseblk"] {
        let copy = folder.path().join(format!("{}.img", options.len()));
        fs::copy(&image, &copy).unwrap();
        let served = Served::start(&copy, options);
        let at = folder.path().join(format!("ours{}", options.len()));
        let Some(mapped) = map_served(&served, &at) else {
            return;
        };
        let found = seen(served.path(), &mapped.0);
        drop(mapped);
        served.unmount();
        testkit::e2fsck(&copy);
        let differ: Vec<_> = found
            .lines()
            .zip(expected.lines())
            .filter(|(ours, theirs)| !is_as_safe(ours, theirs))
            .collect();
        let is_whole = found.lines().count() == expected.lines().count();
        assert!(differ.is_empty() && is_whole, "{options}: {differ:#?}");
    }
}

/// The image's root fills it, then others write on: this shows which users may take reserved blocks. 2345 is the group
/// of the reserve.
const FILL: &str = r#"
as() { # USER GROUPS COMMAND
    setpriv --reuid=$1 --regid=$1 --groups=$2 sh -c "$3" 2>/dev/null
}
as 1000 1000 'echo x > last; chmod 666 last; cat /dev/zero > large'
n=2
for who in '1000 1000' '1000 2345' '0 0'; do
    as $who 'dd if=/dev/zero of=last bs=64k count=16 conv=notrunc oflag=append,direct' && echo $who writes
    n=$((n * 8))
    as $who "fallocate -o ${n}M -l 1M last" && echo $who allocates
done
"#;

/// Fills a file system; the users that may still write.
fn fill(place: &Path, by: &Path) -> String {
    open_to_all(place);
    let mut command = Command::new("sh");
    let output = command.args(["-c", FILL]).current_dir(by).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn reserved_blocks_are_for_the_hosts_users_and_groups() {
    if !can_map() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    open_to_all(folder.path());
    let image = image(folder.path(), "a.img", 64 << 20, &["-m", "20"]);
    testkit::tune2fs(&["-g", "2345", image.to_str().unwrap()]);
    let copy = |name: &str| {
        let copy = folder.path().join(name);
        fs::copy(&image, &copy).unwrap();
        copy
    };
    let may = |who| format!("{who} writes\n{who} allocates\n");
    let allowed = ["1000 2345", "0 0"].map(may).concat();
    for is_mapped in [false, true] {
        // Linux 6.18 does not read the group from the superblock.
        let kernel = testkit::KernelMount::with(&copy("b.img"), "loop,resgid=2345").unwrap();
        let mapped = Mapped::at(&kernel.path(), &folder.path().join(format!("a{is_mapped}")));
        let Ok(mapped) = mapped else {
            return testkit::skip("mounts can't map users here");
        };
        let by = |place: &Path, mapped: &Mapped| {
            let by = if is_mapped { &mapped.0 } else { place };
            fill(place, by)
        };
        assert_eq!(by(&kernel.path(), &mapped), allowed);
        drop(mapped);
        drop(kernel);
        let path = copy("c.img");
        let served = Served::start(&path, "allow_other");
        let at = folder.path().join(format!("b{is_mapped}"));
        let Some(mapped) = map_served(&served, &at) else {
            return;
        };
        assert_eq!(by(served.path(), &mapped), allowed);
        drop(mapped);
        served.unmount();
        testkit::e2fsck(&path);
    }
}

/// A server in a namespace of processes that sees the `/proc` of another one: process 1 is root there, and an ordinary
/// user here.
#[test]
fn a_server_that_sees_the_processes_of_another_namespace_does_not_take_them_for_its_callers() {
    if !can_map() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    open_to_all(folder.path());
    let image = image(folder.path(), "a.img", 64 << 20, &["-m", "20"]);
    let served = Served::start(&image, "");
    let file = served.path().join("f");
    fs::write(&file, "x").unwrap();
    let mut command = Command::new("setfattr");
    let command = command.args(["-n", "trusted.a", "-v", "1"]).arg(&file);
    assert!(command.status().unwrap().success());
    served.unmount();
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let list = |user: &str| {
        let script = r#"
            lanefs=$1 image=$2 place=$3 user=$4
            $lanefs mount -o allow_other "$image" "$place" || exit
            exec setpriv --reuid=$user --regid=$user --clear-groups getfattr --absolute-names -m - "$place/f""#;
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "sh", "-c", script, "sh"]);
        command.arg(lanefs().get_program()).arg(&image).arg(&place);
        let output = command.arg(user).output().unwrap();
        // The end of process 1 ended the server.
        testkit::run("umount", &["--lazy", place.to_str().unwrap()]);
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(list("1000"), "");
    assert!(list("0").contains("trusted.a"));
    Served::start(&image, "").unmount();
    testkit::e2fsck(&image);
}

#[test]
fn the_root_of_an_image_may_not_tune_its_mount() {
    if !can_map() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    open_to_all(folder.path());
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let served = Served::start(&image, "allow_other");
    let Some(mapped) = map_served(&served, &folder.path().join("ours")) else {
        return;
    };
    open_to_all(served.path());
    let tune = |user: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]);
        let name = ["setfattr", "-n", "lanefs.orphan", "-v", "locked"];
        let output = command.args(name).arg(&mapped.0).output().unwrap();
        output.status.success()
    };
    assert!(!tune("1000") && tune("0"));
    drop(mapped);
    served.unmount();
}
