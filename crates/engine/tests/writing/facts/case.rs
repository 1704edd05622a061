//! An image with old files, its fast commits, and what the kernel's and e2fsck's replay make of them.

use std::path::Path;

use lanefs_engine::{Ino, InodeFs, MountOptions, RenameFlag, SetAttributes};
use simulate::CowDevice;
use sync::Arc;
use testkit::{KernelMount, Manifest, sha256};

use crate::fc_area::{FcArea, Tag};
use crate::fsync_log::{NEW, count, device, image, plain, shared};
use crate::image::open;
use crate::interop::manifest;

/// Bytes of the old files.
pub const OLD: usize = 20_000;

/// An image with the files `a`, `b` and `c`, full of their letters, in `dir`, all home, and open.
pub struct Case {
    pub device: Arc<CowDevice>,
    pub fs: InodeFs,
    pub dir: Ino,
}

impl Case {
    pub fn new() -> Option<Case> {
        if !testkit::is_root() {
            testkit::skip("mounting needs root");
            return None;
        }
        let device = device(image("4096")?);
        let fs = open(shared(&device));
        let dir = fs.mkdir(Ino::ROOT, b"dir", NEW).unwrap();
        for letter in [b'a', b'b', b'c'] {
            let file = fs.create(dir, &[letter], NEW).unwrap();
            fs.write(file, 0, &[letter; OLD]).unwrap();
        }
        fs.sync().unwrap();
        fs.checkpoint().unwrap();
        Some(Case { device, fs, dir })
    }

    pub fn ino(&self, name: &str) -> Ino {
        self.fs.lookup(self.dir, name.as_bytes()).unwrap()
    }

    /// A new file, full of a byte.
    pub fn create(&self, name: &str, bytes: u8, len: usize) -> Ino {
        let file = self.fs.create(self.dir, name.as_bytes(), NEW).unwrap();
        self.fs.write(file, 0, &vec![bytes; len]).unwrap();
        file
    }

    pub fn rename(&self, old: &str, new: &str) {
        let (old, new) = (old.as_bytes(), new.as_bytes());
        let flag = RenameFlag::Replace;
        self.fs.rename(self.dir, old, self.dir, new, flag).unwrap();
    }

    pub fn unlink(&self, name: &str) {
        self.fs.unlink(self.dir, name.as_bytes()).unwrap();
    }

    pub fn link(&self, old: &str, new: &str) {
        self.fs
            .link(self.ino(old), self.dir, new.as_bytes())
            .unwrap();
    }

    pub fn fsync(&self, name: &str) {
        self.fs.fsync(self.ino(name)).unwrap();
    }

    /// The name's file gets some bytes behind its end, durably, which takes a fast commit.
    pub fn grow(&self, name: &str) {
        self.fs
            .write(self.ino(name), OLD as u64, &[b'+'; 5000])
            .unwrap();
        self.fsync(name);
    }

    /// A file of `number` blocks, each after a hole of one, all home.
    pub fn pieces(&self, name: &str, number: u64) -> Ino {
        let file = self.fs.create(self.dir, name.as_bytes(), NEW).unwrap();
        for piece in 0..number {
            let offset = (2 * piece + 1) * 4096;
            self.fs.write(file, offset, &[b'p'; 4096]).unwrap();
        }
        self.fs.sync().unwrap();
        self.fs.checkpoint().unwrap();
        file
    }

    /// Changes nothing but an inode's fields.
    pub fn change_mode(&self, ino: Ino) {
        let private = SetAttributes {
            mode: Some(0o600),
            ..Default::default()
        };
        self.fs.set_attributes(ino, &private).unwrap();
    }

    /// What a cut leaves, and what its fast commits say.
    pub fn cut(&self) -> (Vec<u8>, FcArea, Vec<Tag>) {
        let image = self.device.bytes();
        let area = FcArea::of(&self.fs, &image);
        let tags = area.read(&image);
        (image, area, tags)
    }

    pub fn log_commits(&self) -> u64 {
        count(&self.fs, "fsync.log_commits")
    }
}

/// What someone's replay made of an image.
#[derive(Debug)]
pub struct Seen {
    /// What is there; none where that can't be read.
    pub tree: Option<Manifest>,
    /// What e2fsck then finds wrong, or why there was no replay.
    pub wrong: String,
}

impl Seen {
    pub fn has(&self, path: &str) -> bool {
        let tree = self.tree.as_ref();
        tree.is_some_and(|tree| tree.entries.contains_key(path.as_bytes()))
    }

    pub fn holds(&self, path: &str, bytes: &[u8]) -> bool {
        let tree = self.tree.as_ref();
        let entry = tree.and_then(|tree| tree.entries.get(path.as_bytes()));
        entry.is_some_and(|entry| entry.contents == sha256(bytes))
    }

    pub fn is_clean(&self) -> bool {
        self.wrong.is_empty()
    }
}

fn found_wrong(path: &Path) -> String {
    let output = testkit::e2fsck_with(&["-fn"], path);
    if testkit::found_nothing(&output) {
        String::new()
    } else {
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

pub fn kernel(image: &[u8]) -> Seen {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kernel.img");
    testkit::write_image(&path, image);
    let mounted = match KernelMount::with(&path, "loop") {
        Ok(mounted) => mounted,
        Err(error) => {
            let wrong = format!("no mount: {error}");
            return Seen { tree: None, wrong };
        }
    };
    let tree = Manifest::of(&mounted.path()).ok().map(plain);
    drop(mounted);
    let wrong = found_wrong(&path);
    Seen { tree, wrong }
}

/// e2fsck's replay, and what its other passes find after it.
pub fn e2fsck(image: &[u8]) -> Seen {
    by_e2fsck(image, &["-fy", "-E", "journal_only"])
}

/// The same as when a machine starts: e2fsck replays, sees that the image was clean otherwise, and looks no further.
pub fn e2fsck_at_boot(image: &[u8]) -> Seen {
    by_e2fsck(image, &["-p"])
}

/// The same, of files that take too long to read.
pub fn wrong_after_e2fsck_at_boot(image: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("e2fsck.img");
    testkit::write_image(&path, image);
    replay_by_e2fsck(&path, &["-p"])
}

/// What is wrong after it.
fn replay_by_e2fsck(path: &Path, options: &[&str]) -> String {
    // Whatever it says: what is there afterwards counts.
    let replay = testkit::e2fsck_with(options, path);
    let wrong = found_wrong(path);
    if wrong.is_empty() {
        wrong
    } else {
        String::from_utf8_lossy(&replay.stdout).into_owned() + &wrong
    }
}

fn by_e2fsck(image: &[u8], options: &[&str]) -> Seen {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("e2fsck.img");
    testkit::write_image(&path, image);
    let wrong = replay_by_e2fsck(&path, options);
    let all = testkit::e2fsck_with(&["-fy"], &path);
    assert!(all.status.code() < Some(8), "{all:?}");
    let device = Arc::new(CowDevice::new(testkit::read_image(&path).into()));
    let tree = InodeFs::open(device, &MountOptions::default()).ok();
    let tree = tree.map(|fs| plain(manifest(&fs)));
    Seen { tree, wrong }
}

/// A defect is there, or has been mended.
pub fn shows(is_there: bool, is_right: bool, seen: &Seen) {
    match (is_there, is_right) {
        (true, _) => {}
        (false, true) => testkit::skip("mended in this version"),
        (false, false) => panic!("neither the defect nor what is right: {seen:?}"),
    }
}

/// The byte of the image where an inode is, as debugfs says.
pub fn place(image: &[u8], ino: Ino) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    let request = format!("imap <{ino}>");
    let told = testkit::debugfs(&["-R", &request, path.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let (_, told) = told.split_once("located at block ").unwrap();
    let (block, offset) = told.trim().split_once(", offset 0x").unwrap();
    block.parse::<usize>().unwrap() * 4096 + usize::from_str_radix(offset, 16).unwrap()
}

/// The record of an inode as it is in an image.
pub fn record(image: &[u8], ino: Ino) -> Tag {
    let slot = &image[place(image, ino)..][..256];
    let extra = usize::from(u16::from_le_bytes([slot[128], slot[129]]));
    Tag::Inode(ino, slot[..128 + extra].to_vec())
}
