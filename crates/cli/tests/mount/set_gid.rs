//! Which changes of a file clear set-user-ID and set-group-ID, on a mount and on the kernel's ext4.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::served::{Served, can_mount, image};

/// What is done to a file by a user of a group and of a supplementary one.
const DEEDS: [(&str, &str); 12] = [
    ("append", "printf x >> $f"),
    ("overwrite", "printf x | dd of=$f conv=notrunc status=none"),
    ("empty", "cp /dev/null $f"),
    ("cut", "truncate -s 5 $f"),
    ("allocate", "fallocate -l 5000 $f"),
    ("chgrp", "chgrp 2345 $f"),
    ("chown", "chown 1234 $f"),
    ("touch", "touch $f"),
    // Also by copy_file_range(2).
    (
        "copy",
        "head -c 9000 /dev/zero >from-$f; cp --reflink=auto from-$f $f; rm from-$f",
    ),
    ("same", "chown --no-dereference $(stat -c %u $f) $f"),
    // Of another user's file ext4 refuses this only if it would cost a bit, which the kernel does not tell a server.
    (
        "none",
        "[ -O $f -o $1 = root ] && python3 -c 'import os, sys; os.chown(sys.argv[1], -1, -1)' $f",
    ),
    (
        "direct",
        "dd if=/dev/zero of=$f bs=4096 count=1 oflag=direct status=none",
    ),
];

/// The modes, before and after each deed, of files of each owner, group and mode.
fn modes(place: &Path) -> String {
    let deeds: String = DEEDS
        .iter()
        .map(|(name, deed)| format!("{name}) {deed} ;;\n"))
        .collect();
    let names = DEEDS.map(|(name, _)| name).join(" ");
    let script = format!(
        r#"set -e
        for who in user root; do for mode in 2666 2676 6666 6777 4755; do
        for group in 3456 2345; do for owner in 1234 5555; do for deed in {names}; do
            f=$who-$mode-$group-$owner-$deed
            echo {{}} > $f
            chown $owner:$group $f
            chmod $mode $f
        done; done; done; done; done
        cat > deeds.sh <<'END'
        for f in $1-*; do
            case ${{f##*-}} in
            {deeds}
            esac 2>/dev/null || echo $f: refused
        done
END
        setpriv --reuid=1234 --regid=1234 --groups=2345 sh deeds.sh user
        sh deeds.sh root
        stat -c '%n %a' user-* root-*"#
    );
    let mut command = Command::new("sh");
    let output = command.args(["-c", &script]).current_dir(place).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn set_user_id_and_set_group_id_go_with_the_changes_with_which_they_go_on_the_kernels_ext4() {
    if !can_mount() || !testkit::have("setpriv") || !testkit::have("python3") {
        testkit::skip("needs setpriv and python3");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let open_to_all = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    };
    open_to_all(folder.path());
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let copy = folder.path().join("b.img");
    fs::copy(&image, &copy).unwrap();
    let mounted = testkit::KernelMount::with(&copy, "loop").unwrap();
    open_to_all(&mounted.path());
    let expected = modes(&mounted.path());
    drop(mounted);
    let served = Served::start(&image, "allow_other");
    open_to_all(served.path());
    let found = modes(served.path());
    let (ours, theirs): (BTreeSet<_>, BTreeSet<_>) =
        (found.lines().collect(), expected.lines().collect());
    let differ: Vec<_> = ours.symmetric_difference(&theirs).collect();
    assert!(differ.is_empty() && found == expected, "{differ:?}");
    served.unmount();
    testkit::e2fsck(&image);
}

const CAPABILITIES: &str = "security.capability";
/// The attribute of a program that may bind privileged ports: version 2, effective, CAP_NET_BIND_SERVICE permitted.
const CAN_BIND: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Writes as root to a set-user-ID file with or without capabilities; returns its permissions after that, and whether
/// it still has capabilities.
fn written_by_root(place: &Path, has_capabilities: bool) -> (u32, bool) {
    let path = place.join(format!("setuid-{has_capabilities}"));
    fs::write(&path, "before").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    if has_capabilities {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, CAPABILITIES, &CAN_BIND, flags).unwrap();
    }
    let mut file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all(b"after").unwrap();
    drop(file);
    let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
    let mut value = [0; CAN_BIND.len()];
    let capabilities = rustix::fs::getxattr(&path, CAPABILITIES, &mut value[..]);
    (mode, capabilities.is_ok())
}

#[test]
fn a_write_by_root_takes_set_user_id_off_only_where_a_file_also_has_capabilities() {
    if !can_mount() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let copy = folder.path().join("b.img");
    fs::copy(&image, &copy).unwrap();
    let mounted = testkit::KernelMount::with(&copy, "loop").unwrap();
    let of_kernel = [false, true].map(|has| written_by_root(&mounted.path(), has));
    drop(mounted);
    assert_eq!(of_kernel, [(0o4755, false), (0o4755, false)]);
    for option in ["", "default_permissions"] {
        let served = Served::start(&image, option);
        let ours = [false, true].map(|has| written_by_root(served.path(), has));
        // This difference is documented in docs/mount.md.
        assert_eq!(ours, [(0o4755, false), (0o755, false)], "`{option}`");
        served.unmount();
    }
    testkit::e2fsck(&image);
}

/// Makes files of several modes in a set-group-ID directory and a plain one, as users in its group, in it by a
/// supplementary group, and not in it; their modes and groups.
fn made(place: &Path) -> String {
    let script = r#"set -e
        mkdir with without
        chgrp 2345 with without
        chmod 2777 with
        chmod 777 without
        cat > make.py <<'END'
import os, sys
uid, gid, *groups = map(int, sys.argv[2:])
os.setgroups(groups), os.setgid(gid), os.setuid(uid)
for mode in (0o2644, 0o2755, 0o6755):
    name = f'{sys.argv[1]}-{mode:o}'
    os.umask(0)
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    os.mknod(name + '-pipe', 0o010000 | mode)
    os.mkdir(name + '-directory', mode)
    fd = os.open('.', os.O_TMPFILE | os.O_WRONLY, mode)
    unnamed = os.fstat(fd)
    os.mkdir(f'{name}-unnamed-{unnamed.st_mode:o}-{unnamed.st_gid}')
END
        for directory in with without; do
            cd $directory
            python3 ../make.py group 1234 2345
            python3 ../make.py member 1234 1234 7 2345
            python3 ../make.py other 1234 1234 7
            python3 ../make.py root 0 0
            cd ..
        done
        stat -c '%n %a %g' with/* without/*"#;
    let mut command = Command::new("sh");
    let output = command.args(["-c", script]).current_dir(place).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn new_files_have_set_group_id_where_they_have_it_on_the_kernels_ext4() {
    if !can_mount() || !testkit::have("python3") {
        testkit::skip("needs python3");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let open_to_all = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    };
    open_to_all(folder.path());
    let image = image(folder.path(), "a.img", 64 << 20, &[]);
    let copy = folder.path().join("b.img");
    fs::copy(&image, &copy).unwrap();
    let mounted = testkit::KernelMount::with(&copy, "loop").unwrap();
    open_to_all(&mounted.path());
    let expected = made(&mounted.path());
    drop(mounted);
    assert_eq!(expected.lines().count(), 96);
    let served = Served::start(&image, "allow_other");
    open_to_all(served.path());
    assert_eq!(made(served.path()), expected);
    served.unmount();
    testkit::e2fsck(&image);
}
