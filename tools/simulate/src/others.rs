//! Lets lanefs, the kernel and e2fsck each replay what a cut left, and compares the trees that they show. All states
//! are written to the same file in memory, one after another; the kernel mounts a loop device over it.
//!
//! # Where e2fsck may differ
//!
//! A full commit writes its record before the first block of the fast-commit area is wiped. In a state between the two
//! (e2fsck's window, [`crate::area::JournalPlace::is_stale`]), e2fsck gives up the whole journal, and with it both the
//! fast commits and the full one. Such states are counted, and e2fsck need not agree about them.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path as File, PathBuf};
use std::time::Duration;

use device::BlockDevice;
use model::{Device, FileBytes, Kind, ModelNode, ModelPath, ModelTree, Op, OpTarget};
use ondisk::{Superblock, Tid};
use rustix::fs as sys;
use rustix::mount::{MountFlags, UnmountFlags};
use testkit::LoopDevice;

use crate::CowDevice;
use crate::image::{Image, memory_folder};
use crate::sweep::{read, recover};
use crate::verdict::{check_verdict, e2fsck_verdict, joint};

/// Bytes of a page of [`CowDevice`].
const PAGE: u64 = 4096;
/// How many times an unmount is tried. Another thread that is starting a program can keep a mount busy for a moment.
const UNMOUNT_TRIES: u32 = 40;
/// The pause between two tries.
const UNMOUNT_PAUSE: Duration = Duration::from_millis(25);
/// The most bytes of an attribute's value, or of all attribute names of a file.
const XATTR_BYTES: usize = 65_536;

/// The byte at which the superblock begins.
const SUPERBLOCK: u64 = 1024;

/// How many states were compared, and how that went.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Compared {
    /// States that the kernel replayed to the same tree as lanefs.
    pub by_kernel: u64,
    /// States that e2fsck replayed to the same tree as lanefs.
    pub by_e2fsck: u64,
    /// States in e2fsck's window (see the module).
    pub in_window: u64,
    /// States in e2fsck's window that it replayed to the same tree nevertheless.
    pub in_window_agreed: u64,
    /// States whose superblock is torn between its two sectors. The kernel does not open them, and e2fsck only by
    /// another copy of the superblock, so they are not compared.
    pub torn_superblock: u64,
    /// States with a torn commit record. Linux and lanefs verify the record itself, which is in the first sector, but
    /// e2fsck 1.47 the whole block, so it leaves the transaction out. It must then show the tree that lanefs shows
    /// without that record.
    pub torn_commit: u64,
}

impl Compared {
    /// Adds the numbers of another part.
    pub fn add(&mut self, other: &Compared) {
        self.by_kernel += other.by_kernel;
        self.by_e2fsck += other.by_e2fsck;
        self.in_window += other.in_window;
        self.in_window_agreed += other.in_window_agreed;
        self.torn_superblock += other.torn_superblock;
        self.torn_commit += other.torn_commit;
    }
}

/// The kernel and e2fsck, and the file in which they find a state.
pub struct Others<'a> {
    image: &'a Image,
    file: tempfile::NamedTempFile,
    /// The pages of the image that are not zeros, with their numbers.
    base: Vec<(u64, Vec<u8>)>,
    /// `None` without root or loop devices.
    kernel: Option<Kernel>,
    /// What has been compared so far.
    pub compared: Compared,
}

/// The result of e2fsck's replay of a state.
struct Replayed {
    tree: ModelTree,
    /// The transaction at which the replay ended, because e2fsck found its commit record corrupt.
    leaves_out: Option<Tid>,
}

/// A loop device over the file, and the folder in which it is mounted.
struct Kernel {
    device: LoopDevice,
    folder: tempfile::TempDir,
}

impl<'a> Others<'a> {
    /// Prepares to compare states of this image. Without root or loop devices, only e2fsck replays them.
    ///
    /// # Errors
    /// If the file can't be made.
    pub fn new(image: &'a Image) -> Result<Others<'a>, String> {
        let file = tempfile::Builder::new()
            .prefix("lanefs-others")
            .tempfile_in(memory_folder())
            .map_err(|error| error.to_string())?;
        file.as_file()
            .set_len(image.base.len() as u64)
            .map_err(|error| error.to_string())?;
        let pages = (0..).zip(image.base.chunks(PAGE as usize));
        let base = pages
            .filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0))
            .map(|(page, bytes)| (page, bytes.to_vec()))
            .collect();
        Ok(Others {
            image,
            base,
            kernel: Kernel::over(file.path()),
            file,
            compared: Compared::default(),
        })
    }

    /// Whether the kernel replays states, too.
    #[must_use]
    pub fn has_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Lets all three replay a state, and compares their trees. Returns whether the state is in e2fsck's window.
    ///
    /// # Errors
    /// If the kernel's or e2fsck's replay fails or shows another tree than lanefs's, or if e2fsck or the checker finds
    /// errors after it.
    pub fn compare(&mut self, state: &CowDevice) -> Result<bool, String> {
        let ours = read(&recover(state)?)?;
        let agrees = |theirs: &ModelTree| {
            let compared = ours.compare(theirs);
            compared.map_err(|difference| difference.to_string())
        };
        if has_torn_superblock(state) {
            self.compared.torn_superblock += 1;
            return Ok(false);
        }
        if self.kernel.is_some() {
            let theirs = self.by_kernel(state);
            let same = theirs.and_then(|theirs| agrees(&theirs));
            same.map_err(|why| format!("the kernel's replay: {why}"))?;
            self.compared.by_kernel += 1;
        }
        let theirs = self.by_e2fsck(state);
        let is_in_window = self.image.area.is_stale(state)?;
        match theirs {
            theirs if is_in_window => {
                let same = theirs.and_then(|theirs| agrees(&theirs.tree));
                self.compared.in_window += 1;
                self.compared.in_window_agreed += u64::from(same.is_ok());
            }
            Ok(theirs) if theirs.leaves_out.is_some() => {
                let without = self.image.area.without_commit(state, theirs.leaves_out);
                let ours = read(&recover(&without)?)?;
                let same = ours.compare(&theirs.tree);
                same.map_err(|why| format!("e2fsck's replay without the torn commit: {why}"))?;
                self.compared.torn_commit += 1;
            }
            theirs => {
                let same = theirs.and_then(|theirs| agrees(&theirs.tree));
                same.map_err(|why| format!("e2fsck's replay: {why}"))?;
                self.compared.by_e2fsck += 1;
            }
        }
        Ok(is_in_window)
    }

    /// Writes a state to the file `path`.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn keep(&mut self, state: &CowDevice, path: &File) -> Result<(), String> {
        self.lay_out(state)?;
        let copied = fs::copy(self.file.path(), path);
        copied.map(drop).map_err(|error| error.to_string())
    }

    /// Writes a state to the file that the kernel and e2fsck read.
    fn lay_out(&mut self, state: &CowDevice) -> Result<(), String> {
        let mut write = || {
            let file = self.file.as_file_mut();
            file.set_len(0)?;
            file.set_len(self.image.base.len() as u64)?;
            let pages = state.changed_pages();
            let changed = pages.iter().map(|(page, bytes)| (*page, &**bytes));
            let base = self.base.iter().map(|(page, bytes)| (*page, &**bytes));
            for (page, bytes) in base.chain(changed) {
                file.seek(SeekFrom::Start(page * PAGE))?;
                file.write_all(bytes)?;
            }
            file.flush()
        };
        write().map_err(|error: std::io::Error| error.to_string())
    }

    /// The tree that the kernel shows after its replay of a state. The image that it leaves must be clean.
    fn by_kernel(&mut self, state: &CowDevice) -> Result<ModelTree, String> {
        self.lay_out(state)?;
        let Some(kernel) = &self.kernel else {
            return Err("no root, or no loop device".into());
        };
        let tree = kernel.tree()?;
        self.left()?;
        Ok(tree)
    }

    /// Reads the image in the file after a replay. Fails if e2fsck or the checker finds an error in it.
    fn left(&self) -> Result<CowDevice, String> {
        let output = testkit::e2fsck_with(&["-f", "-n"], self.file.path());
        let left = CowDevice::new(fs::read(self.file.path()).map_err(said)?.into());
        let verdict = joint(e2fsck_verdict(&output), check_verdict(&left, &[]));
        verdict.map(|()| left).map_err(|why| format!("left: {why}"))
    }

    /// Lets e2fsck replay a state. It may also correct bitmaps and counts, because its replay leaves those to its
    /// later passes, but it must find no unattached inode, wrong link count or block that is claimed twice.
    fn by_e2fsck(&mut self, state: &CowDevice) -> Result<Replayed, String> {
        self.lay_out(state)?;
        let output = testkit::e2fsck_with(&["-f", "-y"], self.file.path());
        let text = String::from_utf8_lossy(&output.stdout);
        let is_lost = ["nattached", "ef count is", "ultiply-claimed"];
        // The bits of the exit status: 1 means that errors were corrected, 2 asks for a restart of the system.
        let is_done = matches!(output.status.code(), Some(0..=3));
        if !is_done || is_lost.iter().any(|word| text.contains(word)) {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} {}", brief(&text), brief(&errors)));
        }
        let left = self.left()?;
        let (_, after) = text.split_once("Journal transaction ").unwrap_or_default();
        let number = after.split_once(" was corrupt").map(|(number, _)| number);
        Ok(Replayed {
            tree: read(&left)?,
            leaves_out: number.and_then(|number| number.parse().ok()).map(Tid),
        })
    }
}

fn has_torn_superblock(state: &CowDevice) -> bool {
    let mut bytes = [0; Superblock::SIZE];
    let read = state.read_at(SUPERBLOCK, &mut bytes);
    read.is_err() || Superblock::view(&bytes).verify().is_err()
}

fn brief(text: &str) -> String {
    text.trim().replace('\n', "; ")
}

impl Kernel {
    /// A loop device over a file; `None` without root or loop devices.
    fn over(image: &File) -> Option<Kernel> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let folder = tempfile::tempdir().ok()?;
        let device = LoopDevice::over(image, &[]).ok()?;
        Some(Kernel { device, folder })
    }

    /// Mounts the image in the file, which replays its journal; reads the tree, and unmounts the image.
    fn tree(&self) -> Result<ModelTree, String> {
        let (flags, options) = (MountFlags::NOATIME, None::<&std::ffi::CStr>);
        let mounted = rustix::mount::mount(
            self.device.path(),
            self.folder.path(),
            "ext4",
            flags,
            options,
        );
        mounted.map_err(|error| format!("does not mount: {error}"))?;
        let tree = tree(self.folder.path());
        self.unmount()?;
        tree
    }

    fn unmount(&self) -> Result<(), String> {
        let unmount = || rustix::mount::unmount(self.folder.path(), UnmountFlags::empty());
        let mut last = unmount();
        for _ in 0..UNMOUNT_TRIES {
            if last.is_ok() {
                return Ok(());
            }
            sync::thread::sleep(UNMOUNT_PAUSE);
            last = unmount();
        }
        last.map_err(|error| format!("does not unmount: {error}"))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The image is still mounted only if reading it panicked. An error of this unmount is not reported.
        let _ = rustix::mount::unmount(self.folder.path(), UnmountFlags::empty());
    }
}

/// Reads the tree of the file system that is mounted at `root`, without `lost+found`. Fails if a link count is wrong.
fn tree(root: &File) -> Result<ModelTree, String> {
    let mut tree = ModelTree::new();
    let mut inodes = std::collections::HashMap::new();
    let mut links = vec![(
        ModelPath(Vec::new()),
        fs::symlink_metadata(root).map_err(said)?.nlink(),
    )];
    put(&mut tree, root, &ModelPath(Vec::new()))?;
    let mut rest = vec![ModelPath(Vec::new())];
    while let Some(directory) = rest.pop() {
        for entry in fs::read_dir(host(root, &directory)).map_err(said)? {
            let entry = entry.map_err(said)?;
            let path = directory.join(entry.file_name().as_bytes());
            if path == ModelPath::new("lost+found") {
                links[0].1 -= 1;
                continue;
            }
            let metadata = entry.metadata().map_err(said)?;
            if let Some(first) = inodes.get(&metadata.ino()) {
                let from = OpTarget::Path(ModelPath::clone(first));
                let linked = tree.apply(&Op::Link { from, to: path });
                linked.map_err(|errno| format!("{errno:?}"))?;
                continue;
            }
            put(&mut tree, &host(root, &path), &path)?;
            links.push((path.clone(), metadata.nlink()));
            if metadata.is_dir() {
                rest.push(path);
            } else {
                inodes.insert(metadata.ino(), path);
            }
        }
    }
    for (path, counted) in links {
        let id = tree.lookup(&path).map_err(|errno| format!("{errno:?}"))?;
        let expected = u64::from(tree.node(id).links);
        if counted != expected {
            return Err(format!("{path} has {expected} names and counts {counted}"));
        }
    }
    Ok(tree)
}

fn said(error: std::io::Error) -> String {
    error.to_string()
}

fn host(root: &File, path: &ModelPath) -> PathBuf {
    let names = path.0.iter().map(|name| OsStr::from_bytes(name));
    names.fold(root.to_path_buf(), |at, name| at.join(name))
}

fn put(tree: &mut ModelTree, at: &File, path: &ModelPath) -> Result<(), String> {
    let node = node(at).map_err(|error| format!("{path}: {error}"))?;
    let put = tree.put(path, node);
    put.map(drop).map_err(|errno| format!("{path}: {errno:?}"))
}

fn node(path: &File) -> Result<ModelNode, std::io::Error> {
    let metadata = fs::symlink_metadata(path)?;
    let mut names = vec![0; XATTR_BYTES];
    let len = sys::llistxattr(path, &mut names[..])?;
    let mut xattrs = std::collections::BTreeMap::new();
    for name in names[..len].split(|byte| *byte == 0) {
        if !name.is_empty() {
            let mut value = vec![0; XATTR_BYTES];
            let len = sys::lgetxattr(path, name, &mut value[..])?;
            xattrs.insert(name.to_vec(), value[..len].to_vec());
        }
    }
    Ok(ModelNode {
        kind: kind(path, &metadata)?,
        // The mask leaves twelve bits, which fit.
        mode: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        links: 0,
        linkable: false,
        xattrs,
    })
}

fn kind(path: &File, metadata: &Metadata) -> Result<Kind, std::io::Error> {
    let file_type = metadata.file_type();
    let (major, minor) = (sys::major(metadata.rdev()), sys::minor(metadata.rdev()));
    Ok(match () {
        () if file_type.is_dir() => Kind::Directory(Default::default()),
        () if file_type.is_symlink() => {
            Kind::Symlink(fs::read_link(path)?.into_os_string().into_encoded_bytes())
        }
        () if file_type.is_fifo() => Kind::Device(Device::Fifo),
        () if file_type.is_socket() => Kind::Device(Device::Socket),
        () if file_type.is_char_device() => Kind::Device(Device::Char(major, minor)),
        () if file_type.is_block_device() => Kind::Device(Device::Block(major, minor)),
        () => Kind::File(FileBytes::from_bytes(&fs::read(path)?)),
    })
}
