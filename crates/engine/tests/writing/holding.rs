//! Inodes that are held by a server: they outlive their last name, however many others pass through memory meanwhile.

use lanefs_engine::{Error, Ino, NewInode, limits};

use crate::image::{finish, make};

const NEW: NewInode = NewInode {
    mode: 0o644,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

#[test]
fn a_held_inode_that_left_memory_is_still_held_when_its_name_goes() {
    let others = u32::try_from(limits::LIVE_INODES).unwrap() + 2000;
    let inodes = (others + 2000).to_string();
    let Some(image) = make(&["-b", "1024", "-N", &inodes], 32 << 20) else {
        return;
    };
    finish(&image, |fs| {
        let held = fs.create(Ino::ROOT, b"held", NEW).unwrap();
        let twice = fs.create(Ino::ROOT, b"twice", NEW).unwrap();
        fs.write(held, 0, b"contents").unwrap();
        fs.hold(held).unwrap();
        fs.hold(twice).unwrap();
        fs.hold(twice).unwrap();
        fs.sync().unwrap();
        // Each number that is looked at is loaded, in use or not; a commit lets go of those beyond the limit.
        for number in 20..others {
            let _ = fs.inode(Ino(number));
        }
        fs.create(Ino::ROOT, b"another", NEW).unwrap();
        fs.sync().unwrap();

        fs.release(twice).unwrap();
        for name in [&b"held"[..], b"twice"] {
            fs.unlink(Ino::ROOT, name).unwrap();
        }
        let mut found = [0; 8];
        assert_eq!(fs.read(held, 0, &mut found).unwrap(), 8);
        assert_eq!(&found, b"contents");
        assert_eq!(fs.metadata(twice).unwrap().nlink, 0);
        for ino in [held, twice] {
            fs.release(ino).unwrap();
            assert!(matches!(fs.metadata(ino), Err(Error::NotFound)));
        }
        fs.close().unwrap();
    });
}
