//! Under fakeroot and pseudo a user who is not root sees the owners, types, devices and extended attributes that this
//! user has set. So does the program: it builds what mke2fs builds from the same tree, and stat shows the same of what
//! it extracts.
//!
//! fakeroot-tcp is not tried: its server may answer before it has read what another process told it (`cp -a` shows
//! that, too), and sometimes it ends.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use crate::fixture::{lanefs, tool};

/// Makes a tree, two images of it, and the tree again out of ours by two ways; compares what the session sees of these.
/// The files are many, so that several threads ask at once.
const SESSION: &str = r#"
set -e; cd "$0"; PATH=$PATH:/sbin:/usr/sbin
mkdir -p tree/d/e; cd tree/d/e; seq 400 | xargs touch; i=0; while [ $i -lt 20 ]; do
i=$((i+1)); echo $i >$i; chown $((100+i)):$((200+i)) $i; done; cd ../../..
echo program >tree/f; chown 33:44 tree/f; chmod 4755 tree/f; ln tree/f tree/d/second; chmod 600 tree/d/e/2
mknod tree/d/null c 1 3; mknod tree/d/disk b 8 1; chown 0:6 tree/d/disk; mknod tree/d/far c 300 70000
mkfifo tree/d/pipe; chown 5:5 tree/d/pipe; ln -s f tree/l; chown -h 7:8 tree/l; chown 1:2 tree/d tree
setfattr -n user.a -v 1 tree/f; setfattr -n trusted.b -v 2 tree/f; chmod 700 tree/d/e
setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 tree/d/e/1
mke2fs -q -F -t ext4 -d tree theirs.img 32M
./lanefs -q build tree ours.img
./lanefs extract ours.img extracted
./lanefs -q mkfs copied.img 32M; ./lanefs cp -a tree copied.img:/; ./lanefs cp -a copied.img:/tree copied
for i in tree extracted copied; do (cd $i; rm -rf lost+found
find . | LC_ALL=C sort | xargs stat -c '%n %F %a %u %g %t:%T %h'; getfattr -dhm - -R . | grep = | sort) >$i.seen; done
for i in extracted copied; do diff tree.seen $i.seen >&2; done
"#;

fn sees_what_others_see(program: &str) {
    let needed = [program, "setpriv", "mke2fs", "setfattr"];
    if !testkit::is_root() || needed.iter().any(|program| !testkit::have(program)) {
        return testkit::skip(&format!("this takes root, {needed:?}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    chown(folder.path(), Some(65534), Some(65534)).unwrap();
    testkit::copy_program(lanefs().get_program(), &folder.path().join("lanefs"));
    let mut session = Command::new("setpriv");
    session.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    session
        .args([program, "sh", "-c", SESSION])
        .arg(folder.path());
    tool(&mut session);
    let seen = |image: &str| {
        let image = folder.path().join(image);
        testkit::e2fsck(&image);
        let mounted = testkit::KernelMount::read_only(&image).unwrap();
        testkit::Manifest::of(&mounted.path()).unwrap().entries
    };
    let (theirs, ours) = (seen("theirs.img"), seen("ours.img"));
    assert_eq!(theirs.len(), ours.len());
    for (path, found) in &theirs {
        let (one, other) = (found, &ours[path]);
        let name = String::from_utf8_lossy(path);
        if name.is_empty() || name.contains("lost+found") {
            // mke2fs makes these two itself.
            continue;
        }
        let owners = |uid, gid| (uid, gid);
        assert_eq!((one.kind, one.mode), (other.kind, other.mode), "{name}");
        assert_eq!(
            owners(one.uid, one.gid),
            owners(other.uid, other.gid),
            "{name}"
        );
        assert_eq!(
            (one.rdev, &one.xattrs),
            (other.rdev, &other.xattrs),
            "{name}"
        );
        assert_eq!(one.contents, other.contents, "{name}");
    }
}

#[test]
fn fakeroot_is_seen_as_mke2fs_and_stat_see_it() {
    sees_what_others_see("fakeroot");
}

#[test]
fn pseudo_is_seen_as_mke2fs_and_stat_see_it() {
    sees_what_others_see("fakeroot-pseudo");
}
