//! The kernel's and e2fsck's own replay of what a cut left, beside lanefs's: the three must show the same tree. One
//! file in memory and one loop device over it serve all states, one after another.
//!
//! What e2fsck may not agree on: the journal of a cut between the record of a full commit and the wipe of the area's
//! first block, where e2fsck throws away what both hold ([`crate::area::JournalPlace::is_stale`]). Those cuts are
//! counted.

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
/// A program that is just being started holds a mount for a moment.
const UNMOUNT_TRIES: u32 = 40;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(25);
/// Bytes of an attribute's value, or of all names, at most.
const XATTR_BYTES: usize = 65_536;

/// Where the superblock is.
const SUPERBLOCK: u64 = 1024;

/// What was compared.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Compared {
    /// States that the kernel replayed to the same tree as lanefs.
    pub by_kernel: u64,
    /// States that e2fsck replayed to the same tree as lanefs.
    pub by_e2fsck: u64,
    /// States in e2fsck's window.
    pub in_window: u64,
    /// Those of them that e2fsck replayed to the same tree nevertheless.
    pub in_window_agreed: u64,
    /// States whose superblock is torn between its two sectors: neither the kernel nor e2fsck, without another copy of
    /// it, opens those.
    pub torn_superblock: u64,
    /// States with a torn commit record, of which Linux and lanefs look at the first sector and e2fsck 1.47 at the
    /// whole: it leaves the transaction out, and shows what lanefs shows without it.
    pub torn_commit: u64,
}

impl Compared {
    /// Adds what another part compared.
    pub fn add(&mut self, other: &Compared) {
        self.by_kernel += other.by_kernel;
        self.by_e2fsck += other.by_e2fsck;
        self.in_window += other.in_window;
        self.in_window_agreed += other.in_window_agreed;
        self.torn_superblock += other.torn_superblock;
        self.torn_commit += other.torn_commit;
    }
}

/// The others, and where they look at a state.
pub struct Others<'a> {
    image: &'a Image,
    file: tempfile::NamedTempFile,
    /// The pages of the base that are not zeros.
    base: Vec<(u64, Vec<u8>)>,
    kernel: Option<Kernel>,
    /// So far.
    pub compared: Compared,
}

/// What e2fsck made of a state.
struct Replayed {
    tree: ModelTree,
    /// The transaction before which its replay ended.
    leaves_out: Option<Tid>,
}

/// A loop device over the file, and where it is mounted.
struct Kernel {
    device: LoopDevice,
    folder: tempfile::TempDir,
}

impl<'a> Others<'a> {
    /// For states over this image; without root or loop devices, e2fsck is alone.
    ///
    /// # Errors
    /// When the file can't be made.
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

    /// Whether the kernel takes part.
    #[must_use]
    pub fn has_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// Has a state replayed by all three, and compares what they show; says whether it is in e2fsck's window.
    ///
    /// # Errors
    /// The judge whose replay fails or shows another tree than lanefs, or what e2fsck or the checker finds after it.
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

    /// Writes a state to a file that stays.
    ///
    /// # Errors
    /// Those of the file.
    pub fn keep(&mut self, state: &CowDevice, path: &File) -> Result<(), String> {
        self.lay_out(state)?;
        let copied = fs::copy(self.file.path(), path);
        copied.map(drop).map_err(|error| error.to_string())
    }

    /// Puts a state into the file.
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

    /// What the kernel shows of a state. What it wrote must be clean.
    fn by_kernel(&mut self, state: &CowDevice) -> Result<ModelTree, String> {
        self.lay_out(state)?;
        let Some(kernel) = &self.kernel else {
            return Err("no root, or no loop device".into());
        };
        let tree = kernel.tree()?;
        self.left()?;
        Ok(tree)
    }

    /// The image in the file, in which neither e2fsck nor the checker may find anything.
    fn left(&self) -> Result<CowDevice, String> {
        let output = testkit::e2fsck_with(&["-f", "-n"], self.file.path());
        let left = CowDevice::new(fs::read(self.file.path()).map_err(said)?.into());
        let verdict = joint(e2fsck_verdict(&output), check_verdict(&left, &[]));
        verdict.map(|()| left).map_err(|why| format!("left: {why}"))
    }

    /// What e2fsck makes of a state. It may mend bitmaps and counts: its replay leaves those to its later passes.
    fn by_e2fsck(&mut self, state: &CowDevice) -> Result<Replayed, String> {
        self.lay_out(state)?;
        let output = testkit::e2fsck_with(&["-f", "-y"], self.file.path());
        let text = String::from_utf8_lossy(&output.stdout);
        let is_lost = ["nattached", "ef count is", "ultiply-claimed"];
        // Errors corrected, and perhaps the wish for a restart.
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
    /// A loop device over a file, if we may have one.
    fn over(image: &File) -> Option<Kernel> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let folder = tempfile::tempdir().ok()?;
        let device = LoopDevice::over(image, &[]).ok()?;
        Some(Kernel { device, folder })
    }

    /// Mounts what is in the file, reads it, and unmounts it.
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
        // Still mounted only if reading panicked. A failed unmount is not reported.
        let _ = rustix::mount::unmount(self.folder.path(), UnmountFlags::empty());
    }
}

/// What is mounted somewhere, except `lost+found`.
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
        // Twelve bits.
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
