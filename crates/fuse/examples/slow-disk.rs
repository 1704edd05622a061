//! `slow-disk FILES MOUNTPOINT MICROSECONDS`: the files of a directory once more, with fsyncs that take so long.
//!
//! A loop device on such a file is a disk whose flushes take their time: the kernel's file systems can be measured on
//! it beside ours. The kernel reads and writes the file beneath itself (FUSE passthrough); an fsync comes here and
//! waits. The kernel lets no write to a file begin while its fsync is under way.
//!
//! Runs until it is unmounted. Needs root. No lock but the table's of open files; a crash leaves the files as they are.

#[path = "../src/abi.rs"]
#[allow(dead_code)]
mod abi;

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};
use rustix::mount::MountFlags;
use sync::clock::Duration;
use sync::{Arc, Mutex, Rank, clock, thread};
use zerocopy::{FromBytes, IntoBytes};

use abi::opcode as op;

/// How long the kernel may believe what it was told of a file, in seconds: its size does not change.
const VALID: u64 = 3600;
/// Threads that answer.
const THREADS: usize = 4;
/// Bytes that a request has at most: no data comes here.
const REQUEST_BYTES: usize = 1 << 17;
/// The most bytes of a write.
const MAX_WRITE: u32 = 1 << 16;
/// `FUSE_FLUSH`, which is asked for at each close.
const FLUSH: u32 = 25;
/// `FUSE_PASSTHROUGH` among the flags of INIT.
const PASSTHROUGH: u64 = 1 << 37;
/// `FOPEN_PASSTHROUGH`.
const OPEN_PASSTHROUGH: u32 = 1 << 7;
const DIRECTORY: u32 = 0o040_700;
const REGULAR: u32 = 0o100_700;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// Gives the kernel a file to read and write itself; the answer is the file's number there.
struct OpenBacking(BackingMap);

#[allow(unsafe_code)]
// SAFETY: the operation reads one `struct fuse_backing_map`, and gives a number by its return value.
unsafe impl Ioctl for OpenBacking {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<BackingMap>(229, 1)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        returned: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<i32> {
        Ok(returned)
    }
}

/// Takes a file back by its number.
struct CloseBacking(i32);

#[allow(unsafe_code)]
// SAFETY: the operation reads one 32-bit number.
unsafe impl Ioctl for CloseBacking {
    type Output = ();
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<u32>(229, 2)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Files that are open, by their nodes: how often, and the kernel's number of the one beneath.
type Open = HashMap<u64, (u64, i32)>;

struct SlowDisk {
    device: File,
    /// In the order of their nodes, from 2.
    files: Vec<PathBuf>,
    /// [leaf]
    open: Mutex<Open>,
    flush: Duration,
}

/// An answer: its bytes.
type Answer = Result<Vec<u8>, Errno>;

impl SlowDisk {
    fn file(&self, node: u64) -> Result<&PathBuf, Errno> {
        let index = usize::try_from(node.wrapping_sub(2)).map_err(|_| Errno::NOENT)?;
        self.files.get(index).ok_or(Errno::NOENT)
    }

    fn attributes(&self, node: u64) -> Result<abi::Attr, Errno> {
        let (mode, size) = match node {
            abi::ROOT => (DIRECTORY, 0),
            _ => {
                let found = self.file(node)?.metadata();
                (REGULAR, found.map_err(|_| Errno::IO)?.size())
            }
        };
        Ok(abi::Attr {
            ino: node,
            size,
            blocks: size / 512,
            mode,
            nlink: 1,
            block_size: 4096,
            ..abi::Attr::default()
        })
    }

    fn look_up(&self, directory: u64, name: &[u8]) -> Answer {
        let name = name.strip_suffix(b"\0").unwrap_or(name);
        let is_it = |path: &PathBuf| path.file_name() == Some(OsStr::from_bytes(name));
        let index = self.files.iter().position(is_it);
        let index = index
            .filter(|_| directory == abi::ROOT)
            .ok_or(Errno::NOENT)?;
        let node = index as u64 + 2;
        let entry = abi::EntryOut {
            node,
            entry_valid: VALID,
            attr_valid: VALID,
            attr: self.attributes(node)?,
            ..abi::EntryOut::default()
        };
        Ok(entry.as_bytes().to_vec())
    }

    /// The kernel wants a file's descriptor once, however often it is open.
    fn open(&self, node: u64) -> Answer {
        let path = self.file(node)?;
        let mut open = self.open.lock();
        let number = match open.get_mut(&node) {
            Some((count, number)) => {
                *count += 1;
                *number
            }
            None => {
                let file = File::options().read(true).write(true).open(path);
                let file = file.map_err(|_| Errno::IO)?;
                let map = BackingMap {
                    fd: file.as_raw_fd(),
                    flags: 0,
                    padding: 0,
                };
                #[allow(unsafe_code)]
                // SAFETY: the device is /dev/fuse, whose operation this is; the file is open until it returns.
                let number = unsafe { rustix::ioctl::ioctl(&self.device, OpenBacking(map))? };
                open.insert(node, (1, number));
                number
            }
        };
        let opened = abi::OpenOut {
            handle: node,
            open_flags: OPEN_PASSTHROUGH,
            // The kernel's number of the file beneath is where the header has it.
            padding: number.cast_unsigned(),
        };
        Ok(opened.as_bytes().to_vec())
    }

    fn release(&self, node: u64) {
        let mut open = self.open.lock();
        let Some((count, number)) = open.get_mut(&node) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            #[allow(unsafe_code)]
            // SAFETY: the device is /dev/fuse, whose operation this is.
            let closed = unsafe { rustix::ioctl::ioctl(&self.device, CloseBacking(*number)) };
            // The kernel takes it back with the connection in any case.
            let _ = closed;
            open.remove(&node);
        }
    }

    fn wait(&self) {
        let begin = clock::now();
        // Sleeping takes a few microseconds more than asked for.
        thread::sleep(self.flush.saturating_sub(Duration::from_micros(5)));
        while begin.elapsed() < self.flush {
            thread::yield_now();
        }
    }

    /// The answer to one request; `None` for one that has none.
    fn answer(&self, header: &abi::InHeader, arguments: &[u8]) -> Option<Answer> {
        Some(match header.opcode {
            op::INIT => init(arguments),
            op::LOOKUP => self.look_up(header.node, arguments),
            op::GETATTR => self.attributes(header.node).map(|attr| {
                let answer = abi::AttrOut {
                    valid: VALID,
                    attr,
                    ..abi::AttrOut::default()
                };
                answer.as_bytes().to_vec()
            }),
            op::OPEN => self.open(header.node),
            op::RELEASE => {
                self.release(header.node);
                Ok(Vec::new())
            }
            op::FSYNC => {
                self.wait();
                Ok(Vec::new())
            }
            FLUSH | op::DESTROY => Ok(Vec::new()),
            op::FORGET | op::BATCH_FORGET => return None,
            _ => Err(Errno::NOSYS),
        })
    }

    /// Answers requests until it is unmounted.
    fn serve(&self) -> io::Result<()> {
        let mut buf = vec![0; REQUEST_BYTES];
        loop {
            let len = match rustix::io::read(&self.device, &mut buf[..]) {
                Ok(len) => len,
                Err(Errno::NODEV) => return Ok(()),
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            let request = abi::InHeader::read_from_prefix(&buf[..len]);
            let (header, arguments) = request.map_err(|_| io::ErrorKind::InvalidData)?;
            let Some(answer) = self.answer(&header, arguments) else {
                continue;
            };
            let (error, bytes) = match answer {
                Ok(bytes) => (0, bytes),
                Err(error) => (-error.raw_os_error(), Vec::new()),
            };
            let head = abi::OutHeader {
                len: (size_of::<abi::OutHeader>() + bytes.len()) as u32,
                error,
                unique: header.unique,
            };
            let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(&bytes)];
            // An interrupted request takes no answer.
            let _ = rustix::io::writev(&self.device, &parts);
        }
    }
}

/// Agrees with the kernel on passthrough, or on nothing.
fn init(arguments: &[u8]) -> Answer {
    let (offer, rest) = abi::InitIn::read_from_prefix(arguments).map_err(|_| Errno::PROTO)?;
    let (more, _) = u32::read_from_prefix(rest).map_err(|_| Errno::PROTO)?;
    let wanted = abi::init::EXTENDED | PASSTHROUGH;
    let offered = u64::from(offer.flags) | u64::from(more) << 32;
    if offered & wanted != wanted {
        return Err(Errno::PROTO);
    }
    let answer = abi::InitOut {
        major: abi::MAJOR,
        minor: abi::MINOR.min(offer.minor),
        max_readahead: offer.max_readahead,
        flags: abi::init::EXTENDED as u32,
        flags2: (PASSTHROUGH >> 32) as u32,
        max_write: MAX_WRITE,
        time_granularity: 1,
        // The first is the depth of file systems on each other.
        unused: [1, 0, 0, 0, 0, 0, 0],
        ..abi::InitOut::default()
    };
    Ok(answer.as_bytes().to_vec())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [files, mountpoint, micros] = &arguments[..] else {
        return Err("usage: slow-disk FILES MOUNTPOINT MICROSECONDS".into());
    };
    // A thread that wakes when it should, not within the usual 50 microseconds after; threads begin with their maker's.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(files)? {
        found.push(entry?.path());
    }
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        device.as_raw_fd()
    );
    let options = CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(
        "slow-disk",
        &**mountpoint,
        "fuse.slow-disk",
        flags,
        &*options,
    )?;
    let disk = Arc::new(SlowDisk {
        device,
        files: found,
        open: Mutex::new(Rank::Leaf, HashMap::new()),
        flush: Duration::from_micros(micros.parse()?),
    });
    let serve = |_| {
        let disk = Arc::clone(&disk);
        thread::spawn(move || disk.serve())
    };
    let threads: Vec<_> = (0..THREADS).map(serve).collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    Ok(())
}
