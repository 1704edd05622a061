//! When an inode is freed, every block that its map names is freed too. This includes blocks of pointers and leaves of
//! extents that are empty: older kernels and e2fsck leave such blocks. The kernel does the same operations on a copy;
//! afterwards the same number of blocks is free, and e2fsck finds nothing wrong.

use std::path::Path;

use device::BlockDevice;
use lanefs_engine::{Allocate, Ino, InodeFs, NewInode, RenameFlag};
use ondisk::extent::{self, Extent, ExtentEntries, ExtentIndex};
use ondisk::{FsBlock, LBlock, inode};
use simulate::CowDevice;
use sync::Arc;
use testkit::KernelMount;

use crate::image::{make, open};

/// Blocks of each file that gives its blocks to others' maps; all of them are named by its record.
const GIVEN: usize = 12;
const GIVERS: usize = 6;

/// A word of a map, and in it a chain: at each level a block of pointers whose pointer at this index names the next
/// one, and the last names nothing.
const CHAINS: [&[(&str, &[usize])]; 8] = [
    &[("IND", &[0])],
    &[("DIND", &[0])],
    &[("DIND", &[0, 0])],
    &[("DIND", &[255, 0])],
    &[("TIND", &[0])],
    &[("TIND", &[3, 0])],
    &[("TIND", &[7, 9, 0])],
    &[("IND", &[0]), ("DIND", &[1, 0]), ("TIND", &[0, 2, 0])],
];

/// An image that is being made by hand.
struct Crafted {
    bytes: Vec<u8>,
    block_bytes: usize,
    /// What is left to give away, in the order of the files that have it.
    given: Vec<u32>,
    /// Whether files have extents.
    is_tree: bool,
    /// Requests for debugfs.
    script: String,
}

/// Runs `work` on an image in a file, and gives what is there then.
fn in_file<T>(image: &[u8], work: impl FnOnce(&Path) -> T) -> (Vec<u8>, T) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    testkit::write_image(&path, image);
    let result = work(&path);
    (testkit::read_image(&path), result)
}

/// The numbers that debugfs answers to a request.
fn numbers(image: &[u8], request: &str) -> Vec<u32> {
    let (_, answer) = in_file(image, |path| {
        testkit::debugfs_script(path, &format!("{request}\n"))
    });
    let lines = answer.lines().filter(|line| !line.starts_with("debugfs"));
    lines
        .flat_map(str::split_whitespace)
        .filter_map(|word| word.parse().ok())
        .collect()
}

impl Crafted {
    /// An image with files `f*`, directories `d*`, links `l*`, pipes `p*`, one of each for each chain, and blocks to
    /// give away.
    fn new(options: &[&str], block_bytes: usize, is_tree: bool) -> Option<Crafted> {
        let tree = tempfile::tempdir().unwrap();
        let at = |name: String| tree.path().join(name);
        for chain in 0..CHAINS.len() {
            std::fs::write(at(format!("f{chain}")), b"hi").unwrap();
            std::fs::create_dir(at(format!("d{chain}"))).unwrap();
            std::os::unix::fs::symlink("x".repeat(100), at(format!("l{chain}"))).unwrap();
        }
        for giver in 0..GIVERS {
            std::fs::write(at(format!("giver{giver}")), vec![7; GIVEN * block_bytes]).unwrap();
        }
        let size = block_bytes.to_string();
        let mut all = vec!["-b", &size, "-N", "128", "-d", tree.path().to_str()?];
        all.extend(options);
        let bytes = make(&all, 16 << 20)?;
        let mut given = Vec::new();
        let mut script = String::new();
        for giver in 0..GIVERS {
            let blocks = numbers(&bytes, &format!("blocks giver{giver}"));
            assert_eq!(blocks.len(), GIVEN);
            given.extend(blocks);
        }
        for pipe in 0..CHAINS.len() {
            script += &format!(
                "mknod p{pipe} p\nea_set p{pipe} user.long {}\n",
                "v".repeat(600)
            );
        }
        Some(Crafted {
            bytes,
            block_bytes,
            given,
            is_tree,
            script,
        })
    }

    fn take(&mut self) -> u32 {
        self.given.pop().expect("enough blocks are given")
    }

    fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let at = block as usize * self.block_bytes;
        &mut self.bytes[at..at + self.block_bytes]
    }

    /// Lets a file's space be what it was and these blocks more.
    fn add_blocks(&mut self, name: &str, blocks: usize) {
        let (_, answer) = in_file(&self.bytes, |path| {
            testkit::debugfs_script(path, &format!("stat {name}\n"))
        });
        let (_, count) = answer.split_once("Blockcount: ").unwrap();
        let count: usize = count.split_whitespace().next().unwrap().parse().unwrap();
        let count = count + blocks * self.block_bytes / 512;
        self.script += &format!("sif {name} blocks {count}\n");
    }

    /// Gives a file chains of blocks of pointers.
    fn chain(&mut self, name: &str, chains: &[(&str, &[usize])]) {
        for (word, indices) in chains {
            let mut below = 0_u32;
            for index in indices.iter().rev() {
                let block = self.take();
                let bytes = self.block_mut(block);
                bytes.fill(0);
                bytes[index * 4..index * 4 + 4].copy_from_slice(&below.to_le_bytes());
                below = block;
            }
            self.script += &format!("sif {name} block[{word}] {below}\n");
        }
        self.add_blocks(name, chains.iter().map(|(_, indices)| indices.len()).sum());
    }

    /// Makes a file's extents a leaf of its own, with leaves without extents behind it: all below the root, or below
    /// another node.
    fn leaves(&mut self, name: &str, empty: usize, is_deep: bool) {
        let device = Arc::new(CowDevice::new(self.bytes.as_slice().into()));
        let fs = InodeFs::open(device as Arc<dyn BlockDevice>, &<_>::default()).unwrap();
        let ino = fs.resolve(format!("/{name}").as_bytes(), false).unwrap();
        let extents: Vec<Extent> = fs
            .mappings(ino)
            .unwrap()
            .map(|run| run.unwrap())
            .map(|run| {
                Extent::new(
                    LBlock(run.logical as u32),
                    run.len as u16,
                    run.physical.unwrap(),
                    false,
                )
            })
            .collect();
        let generation = fs.inode(ino).unwrap().metadata().generation;
        let seed = inode::checksum_seed(fs.geometry().csum_seed(), ino, generation);
        let full = self.node(0, ExtentEntries::Extents(&extents), seed);
        let mut indices = vec![ExtentIndex::new(LBlock(0), FsBlock(full.into()))];
        for leaf in 1..=empty as u32 {
            let block = self.node(0, ExtentEntries::Extents(&[]), seed);
            indices.push(ExtentIndex::new(LBlock(1000 * leaf), FsBlock(block.into())));
        }
        let mut depth = 1;
        if is_deep {
            let block = self.node(1, ExtentEntries::Indices(&indices), seed);
            indices = vec![ExtentIndex::new(LBlock(0), FsBlock(block.into()))];
            depth = 2;
        }
        let mut root = [0; inode::BLOCK_AREA];
        extent::encode(&mut root, depth, ExtentEntries::Indices(&indices));
        for (index, word) in root.chunks(4).enumerate() {
            let word = u32::from_le_bytes(word.try_into().unwrap());
            self.script += &match index {
                12 => format!("sif {name} block[IND] {word}\n"),
                13 => format!("sif {name} block[DIND] {word}\n"),
                14 => format!("sif {name} block[TIND] {word}\n"),
                _ => format!("sif {name} block[{index}] {word}\n"),
            };
        }
        self.add_blocks(name, 1 + empty + usize::from(is_deep));
    }

    fn node(&mut self, depth: u16, entries: ExtentEntries<'_>, seed: u32) -> u32 {
        let block = self.take();
        let bytes = self.block_mut(block);
        extent::encode(bytes, depth, entries);
        extent::set_tail(bytes, seed);
        block
    }

    fn done(mut self) -> Vec<u8> {
        for giver in 0..GIVERS {
            let kept = self.given.len().saturating_sub(giver * GIVEN).min(GIVEN);
            if kept == GIVEN {
                continue;
            }
            let (name, size) = (format!("giver{giver}"), kept * self.block_bytes);
            self.script += &match (self.is_tree, kept) {
                // The header without entries; the length of the first extent.
                (true, 0) => format!("sif {name} block[0] 0xf30a\n"),
                (true, _) => format!("sif {name} block[4] {kept}\n"),
                (false, _) => (kept..GIVEN)
                    .map(|word| format!("sif {name} block[{word}] 0\n"))
                    .collect(),
            };
            let sectors = size / 512;
            self.script += &format!("sif {name} size {size}\nsif {name} blocks {sectors}\n");
        }
        in_file(&self.bytes, |path| {
            testkit::debugfs_script(path, &self.script)
        })
        .0
    }
}

/// What is done to each of the files and directories.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Done {
    Removed,
    RenamedOver,
    /// While it was open.
    RemovedHeld,
    Truncated(u64),
    Punched,
}

const ALL: [Done; 6] = [
    Done::Removed,
    Done::RenamedOver,
    Done::RemovedHeld,
    Done::Truncated(0),
    Done::Truncated(1),
    Done::Punched,
];

impl Done {
    fn by_lanefs(self, fs: &InodeFs) {
        for chain in 0..CHAINS.len() {
            let name = |kind: &str| format!("{kind}{chain}").into_bytes();
            let file = fs.resolve(format!("/f{chain}").as_bytes(), false).unwrap();
            match self {
                Done::Removed => {
                    for kind in ["f", "l", "p"] {
                        fs.unlink(Ino::ROOT, &name(kind)).unwrap();
                    }
                    fs.rmdir(Ino::ROOT, &name("d")).unwrap();
                }
                Done::RenamedOver => {
                    let over = |from: &str, to: &str| {
                        let flag = RenameFlag::Replace;
                        fs.rename(Ino::ROOT, &name(from), Ino::ROOT, &name(to), flag)
                            .unwrap();
                    };
                    over("p", "f");
                    let lost_found = fs.resolve(b"/lost+found", true).unwrap();
                    fs.mkdir(lost_found, b"e", NEW_DIRECTORY).unwrap();
                    let flag = RenameFlag::Replace;
                    fs.rename(lost_found, b"e", Ino::ROOT, &name("d"), flag)
                        .unwrap();
                }
                Done::RemovedHeld => {
                    fs.hold(file).unwrap();
                    fs.unlink(Ino::ROOT, &name("f")).unwrap();
                    fs.release(file).unwrap();
                }
                Done::Truncated(size) => fs.truncate(file, size).unwrap(),
                Done::Punched => fs.allocate(file, Allocate::Punch, 0, 1 << 30).unwrap(),
            }
        }
    }

    fn by_kernel(self, root: &Path) {
        for chain in 0..CHAINS.len() {
            let at = |kind: &str| root.join(format!("{kind}{chain}"));
            let file = || std::fs::File::options().write(true).open(at("f")).unwrap();
            match self {
                Done::Removed => {
                    for kind in ["f", "l", "p"] {
                        std::fs::remove_file(at(kind)).unwrap();
                    }
                    std::fs::remove_dir(at("d")).unwrap();
                }
                Done::RenamedOver => {
                    std::fs::rename(at("p"), at("f")).unwrap();
                    std::fs::create_dir(root.join("lost+found/e")).unwrap();
                    std::fs::rename(root.join("lost+found/e"), at("d")).unwrap();
                }
                Done::RemovedHeld => {
                    let held = file();
                    std::fs::remove_file(at("f")).unwrap();
                    drop(held);
                }
                Done::Truncated(size) => file().set_len(size).unwrap(),
                Done::Punched => {
                    use rustix::fs::FallocateFlags as Flags;
                    let flags = Flags::PUNCH_HOLE | Flags::KEEP_SIZE;
                    rustix::fs::fallocate(file(), flags, 0, 1 << 30).unwrap();
                }
            }
        }
    }
}

const NEW_DIRECTORY: NewInode = NewInode {
    mode: 0o755,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

/// The counts of free blocks and inodes that an image records.
fn free(image: &[u8]) -> (String, String) {
    let (_, output) = in_file(image, |path| {
        testkit::dumpe2fs(&["-h", path.to_str().unwrap()])
    });
    let text = String::from_utf8(output.stdout).unwrap();
    let of = |label| {
        let line = text.lines().find(|line| line.starts_with(label));
        line.unwrap_or_default().to_owned()
    };
    (of("Free blocks"), of("Free inodes"))
}

/// Does it to copies of an image, and compares what lanefs and the kernel leave; e2fsck finds nothing wrong.
fn compare(image: &[u8], done: Done, label: &str) {
    let ours = compare_counts(image, done, label);
    in_file(&ours, testkit::e2fsck);
}

/// As [`compare`], without e2fsck; gives what lanefs leaves.
fn compare_counts(image: &[u8], done: Done, label: &str) -> Vec<u8> {
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    done.by_lanefs(&fs);
    fs.close().unwrap();
    let ours = device.bytes();
    let (theirs, ()) = in_file(image, |path| {
        let mounted = KernelMount::with(path, "loop").unwrap();
        done.by_kernel(&mounted.path());
    });
    assert_eq!(free(&ours), free(&theirs), "{label}: {done:?}");
    ours
}

fn can_run() -> bool {
    let can = testkit::is_root()
        && ["mke2fs", "debugfs", "dumpe2fs"]
            .into_iter()
            .all(testkit::have);
    if !can {
        testkit::skip("needs root, mke2fs, debugfs and dumpe2fs");
    }
    can
}

const MAPPED: [(&[&str], usize); 5] = [
    (&["-t", "ext2"], 1024),
    (&["-t", "ext2"], 4096),
    (&["-t", "ext3"], 1024),
    (&["-O", "^extents,^64bit"], 1024),
    (&["-O", "^extents,^64bit,orphan_file"], 4096),
];

/// An image whose files and directories have chains of blocks of pointers that name nothing, e2fsck being content.
fn mapped(options: &[&str], block_bytes: usize) -> Option<Vec<u8>> {
    let mut crafted = Crafted::new(options, block_bytes, false)?;
    for (index, chains) in CHAINS.iter().enumerate() {
        crafted.chain(&format!("f{index}"), chains);
        crafted.chain(&format!("d{index}"), chains);
    }
    let image = crafted.done();
    in_file(&image, testkit::e2fsck);
    Some(image)
}

#[test]
fn blocks_of_pointers_that_name_nothing_are_freed_with_the_map() {
    if !can_run() {
        return;
    }
    for (options, block_bytes) in MAPPED {
        let Some(image) = mapped(options, block_bytes) else {
            return;
        };
        for done in ALL {
            compare(&image, done, &format!("{options:?} {block_bytes}"));
        }
    }
}

/// An image whose files and directories have leaves without extents. e2fsck refuses such, Linux reads them.
fn leafy(options: &[&str], block_bytes: usize) -> Option<Vec<u8>> {
    let mut crafted = Crafted::new(options, block_bytes, true)?;
    for index in 0..CHAINS.len() {
        for kind in ["f", "d", "l"] {
            let is_deep = index == 1;
            let empty = if index < 3 { 1 + index } else { 0 };
            if index < 4 {
                crafted.leaves(&format!("{kind}{index}"), empty, is_deep);
            }
        }
    }
    Some(crafted.done())
}

#[test]
fn leaves_without_extents_are_freed_with_the_tree() {
    if !can_run() {
        return;
    }
    for (options, block_bytes) in [
        (&["-O", "metadata_csum"][..], 1024),
        (&["-O", "^metadata_csum,^has_journal"], 4096),
    ] {
        let Some(image) = leafy(options, block_bytes) else {
            return;
        };
        for done in [
            Done::Removed,
            Done::RenamedOver,
            Done::RemovedHeld,
            Done::Truncated(0),
        ] {
            let label = format!("{options:?} {block_bytes}");
            match done {
                // e2fsck refuses the directories and links that are left.
                Done::Removed => compare(&image, done, &label),
                _ => drop(compare_counts(&image, done, &label)),
            }
        }
    }
}

/// Linux 6.18 can't delete the same file: its handle has no room for that number of revokes.
#[test]
fn a_tree_of_many_leaves_without_extents_is_deleted() {
    if !can_run() {
        return;
    }
    let Some(mut crafted) = Crafted::new(&["-O", "metadata_csum"], 1024, true) else {
        return;
    };
    crafted.leaves("f0", 60, true);
    let image = crafted.done();
    let device = Arc::new(CowDevice::new(image.as_slice().into()));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let before = fs.statfs().unwrap().free;
    fs.unlink(Ino::ROOT, b"f0").unwrap();
    // Data, a full leaf, the empty ones, and the node above.
    assert_eq!(fs.statfs().unwrap().free, before + 63);
    fs.close().unwrap();
    in_file(&device.bytes(), testkit::e2fsck);
}

/// What lanefs and the kernel each make of an image that was not unmounted.
fn compare_recovery(dirty: &[u8], label: &str) {
    let device = Arc::new(CowDevice::new(dirty.into()));
    open(Arc::clone(&device) as Arc<dyn BlockDevice>)
        .close()
        .unwrap();
    let (theirs, ()) = in_file(dirty, |path| drop(KernelMount::with(path, "loop").unwrap()));
    assert_eq!(free(&device.bytes()), free(&theirs), "{label}");
    in_file(&device.bytes(), testkit::e2fsck);
}

#[test]
fn they_are_freed_with_orphans_too() {
    if !can_run() {
        return;
    }
    for (options, block_bytes) in MAPPED {
        let Some(image) = mapped(options, block_bytes) else {
            return;
        };
        let label = format!("{options:?} {block_bytes}");
        // Cut in the middle of a truncation: on the list, with a name.
        let mut script = String::new();
        let fs = InodeFs::open(
            Arc::new(CowDevice::new(image.as_slice().into())) as Arc<dyn BlockDevice>,
            &<_>::default(),
        )
        .unwrap();
        let mut next = 0;
        for index in 0..CHAINS.len() {
            let ino = fs.resolve(format!("/f{index}").as_bytes(), false).unwrap();
            script += &format!(
                "sif f{index} dtime {next}\nsif f{index} size {}\n",
                index % 2
            );
            next = ino.0;
        }
        script += &format!("ssv last_orphan {next}\n");
        let (cut, _) = in_file(&image, |path| testkit::debugfs_script(path, &script));
        compare_recovery(&cut, &format!("{label} cut"));
        // Without a journal the kernel keeps no orphans.
        if options.contains(&"ext2") {
            continue;
        }
        let (_, deleted) = in_file(&image, |path| {
            let mounted = KernelMount::with(path, "loop").unwrap();
            let root = mounted.path();
            let held: Vec<_> = (0..CHAINS.len())
                .flat_map(|index| [format!("f{index}"), format!("d{index}")])
                .map(|name| std::fs::File::open(root.join(name)).unwrap())
                .collect();
            for index in 0..CHAINS.len() {
                std::fs::remove_file(root.join(format!("f{index}"))).unwrap();
                std::fs::remove_dir(root.join(format!("d{index}"))).unwrap();
            }
            rustix::fs::syncfs(&held[0]).unwrap();
            testkit::read_mounted_image(path)
        });
        compare_recovery(&deleted, &format!("{label} deleted"));
    }
}
