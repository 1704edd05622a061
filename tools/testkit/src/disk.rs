//! A disk under the control of a test: it fails when the test says so, records every write and flush, and can lose what
//! was not flushed. It is a file on a small FUSE file system that this process serves itself, by the kernel's protocol
//! (linux/fuse.h), so that it needs no library and no module of the kernel but fuse.
//!
//! One thread answers, from memory. All I/O is direct: every read and write of a program arrives here, nothing is
//! cached. One lock covers the bytes and the record, so the order of recorded events is the order in which the disk
//! carried them out, and a mark that is set after a call has returned follows every event that the call waited for.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::power_cut::{DiskEvent, PowerCuts, whole_sectors};

/// The name of the only file.
const NAME: &str = "disk";
const ROOT: u64 = 1;
const NODE: u64 = 2;
/// Bytes of one write, which a kernel allows without more being agreed.
const MAX_WRITE: u32 = 128 << 10;
/// Bytes of a request: those of a write, and its headers.
const REQUEST_BYTES: usize = (MAX_WRITE as usize) + 4096;
const HEADER: usize = 40;
/// Seconds for which the kernel keeps names and attributes: programs that look at all mounts then never wait for a disk
/// that takes no requests.
const KEPT: u64 = 1 << 20;
const PAUSE: Duration = Duration::from_millis(5);
const EIO: i32 = 5;
const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;

/// What a disk does with requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum DiskState {
    /// It does them.
    Works,
    /// Writes and flushes fail with EIO.
    FailsToWrite,
    /// All requests fail with EIO.
    Fails,
    /// It takes a request and does not answer, until its state is another.
    Hangs,
    /// It takes no requests, as a server that was stopped.
    Stopped,
}

const STATES: [DiskState; 5] = [
    DiskState::Works,
    DiskState::FailsToWrite,
    DiskState::Fails,
    DiskState::Hangs,
    DiskState::Stopped,
];

/// The disk, until this is dropped; see the module.
#[derive(Debug)]
pub struct FailingDisk {
    directory: tempfile::TempDir,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    /// Writes that go well before the state becomes [`DiskState::FailsToWrite`]; negative for any number.
    left: AtomicI64,
    contents: Mutex<Contents>,
}

#[derive(Debug)]
struct Contents {
    bytes: Vec<u8>,
    record: Option<Record>,
}

/// The disk's bytes when the record began, and what has happened since.
#[derive(Debug)]
struct Record {
    start: Arc<[u8]>,
    events: Vec<DiskEvent>,
}

impl Contents {
    fn note(&mut self, event: impl FnOnce(&[u8]) -> DiskEvent) {
        if let Some(record) = &mut self.record {
            record.events.push(event(&self.bytes));
        }
    }

    fn begin_record(&mut self) {
        self.record = Some(Record {
            start: self.bytes.as_slice().into(),
            events: Vec::new(),
        });
    }

    fn cuts(&self) -> PowerCuts {
        let record = self.record.as_ref().expect("the disk records");
        PowerCuts::new(Arc::clone(&record.start), record.events.clone())
    }
}

impl FailingDisk {
    /// A disk with the bytes of an image. Needs root.
    ///
    /// # Errors
    /// When the image can't be read, or the system refuses the mount.
    pub fn of(image: &Path) -> io::Result<FailingDisk> {
        let directory = tempfile::tempdir()?;
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::empty();
        let kind = "fuse.testdisk";
        rustix::mount::mount("disk", directory.path(), kind, flags, options.as_c_str())?;
        let shared = Arc::new(Shared {
            state: AtomicU8::new(DiskState::Works as u8),
            left: AtomicI64::new(-1),
            contents: Mutex::new(Contents {
                bytes: std::fs::read(image)?,
                record: None,
            }),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || served.serve(device));
        let disk = FailingDisk {
            directory,
            shared,
            thread: Some(thread),
        };
        // Asked once, kept from then on.
        std::fs::metadata(disk.directory.path())?;
        std::fs::metadata(disk.path())?;
        Ok(disk)
    }

    /// As [`FailingDisk::of`]; the disk also records every write and flush.
    ///
    /// # Errors
    /// As for [`FailingDisk::of`].
    pub fn recording(image: &Path) -> io::Result<FailingDisk> {
        let disk = FailingDisk::of(image)?;
        disk.contents().begin_record();
        Ok(disk)
    }

    /// Adds a mark to the record.
    pub fn mark(&self, mark: u64) {
        self.contents().note(|_| DiskEvent::Mark(mark));
    }

    /// The cuts of what was recorded so far.
    ///
    /// # Panics
    /// When the disk does not record.
    #[must_use]
    pub fn cuts(&self) -> PowerCuts {
        self.contents().cuts()
    }

    /// Cuts the power now: of the unflushed writes the seed chooses those that survive, and the record begins again.
    ///
    /// # Panics
    /// When the disk does not record.
    pub fn cut_power(&self, seed: u64) {
        let mut contents = self.contents();
        let mut cuts = contents.cuts();
        contents.bytes = cuts.state(cuts.events().len(), seed);
        contents.begin_record();
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.shared.contents.lock().unwrap()
    }

    /// The file that is the disk.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(NAME)
    }

    /// Has it behave so from now on.
    pub fn set(&self, state: DiskState) {
        self.shared.set(state);
        // What it was about to do is done.
        std::thread::sleep(4 * PAUSE);
    }

    /// Has all writes and flushes fail after this number of further writes.
    pub fn fail_after(&self, writes: u32) {
        // Relaxed: a count; the requests that it is about come later, through the kernel.
        self.shared.left.store(writes.into(), Ordering::Relaxed);
    }

    /// What is on it now.
    ///
    /// # Panics
    /// When the thread that serves has panicked.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.contents().bytes.clone()
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        self.shared.set(DiskState::Works);
        let flags = UnmountFlags::DETACH | UnmountFlags::FORCE;
        let _ = rustix::mount::unmount(self.directory.path(), flags);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn set(&self, state: DiskState) {
        // Relaxed: nothing else hangs on it.
        self.left.store(-1, Ordering::Relaxed);
        self.state.store(state as u8, Ordering::Relaxed);
    }

    fn state(&self) -> DiskState {
        // Relaxed: as in `set`.
        STATES[self.state.load(Ordering::Relaxed) as usize]
    }

    fn serve(&self, mut device: File) {
        let mut request = vec![0; REQUEST_BYTES];
        loop {
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: 5_000_000,
            };
            let mut fds = [PollFd::new(&device, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&pause)).unwrap_or(0);
            if self.state() == DiskState::Stopped {
                std::thread::sleep(PAUSE);
                continue;
            }
            if ready == 0 {
                continue;
            }
            let Ok(len) = device.read(&mut request) else {
                // The mount is gone.
                return;
            };
            while self.state() == DiskState::Hangs {
                std::thread::sleep(PAUSE);
            }
            let unique = &request[8..16];
            let Some(answer) = self.answer(&request[..len]) else {
                continue;
            };
            let (error, body) = match answer {
                Ok(body) => (0, body),
                Err(error) => (-error, Vec::new()),
            };
            let mut reply = Vec::with_capacity(16 + body.len());
            reply.extend(((16 + body.len()) as u32).to_ne_bytes());
            reply.extend(error.to_ne_bytes());
            reply.extend(unique);
            reply.extend(body);
            // The process that asked may be gone.
            let _ = device.write(&reply);
        }
    }

    /// The answer to a request; `None` for those that have none.
    fn answer(&self, request: &[u8]) -> Option<Result<Vec<u8>, i32>> {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
        let (opcode, node) = (word(4), long(16));
        let (offset, size) = match opcode {
            15 | 16 => (long(HEADER + 8) as usize, word(HEADER + 16) as usize),
            _ => (0, 0),
        };
        // INIT and the release of files go well on any disk.
        let may_fail = matches!(opcode, 15 | 16 | 20);
        let is_failing = match self.state() {
            DiskState::Fails => may_fail,
            DiskState::FailsToWrite => matches!(opcode, 16 | 20),
            _ => opcode == 16 && self.was_last() || opcode == 20 && self.has_failed(),
        };
        if is_failing {
            return Some(Err(EIO));
        }
        Some(Ok(match opcode {
            // FORGET, INTERRUPT, BATCH_FORGET
            2 | 36 | 42 => return None,
            // INIT
            26 => init(),
            // LOOKUP
            1 if &request[HEADER..] == b"disk\0" => self.entry(),
            1 => return Some(Err(ENOENT)),
            // GETATTR, SETATTR
            3 | 4 => [
                KEPT.to_ne_bytes().to_vec(),
                vec![0; 8],
                self.attributes(node),
            ]
            .concat(),
            // OPEN, with direct I/O
            14 => [[0; 8], 1u64.to_ne_bytes()].concat(),
            // OPENDIR
            27 => vec![0; 16],
            // READ
            15 => {
                let contents = self.contents.lock().unwrap();
                let bytes = &contents.bytes;
                let (start, end) = (offset.min(bytes.len()), (offset + size).min(bytes.len()));
                bytes[start..end].to_vec()
            }
            // WRITE
            16 => {
                let mut contents = self.contents.lock().unwrap();
                let end = (offset + size).min(contents.bytes.len());
                let data = &request[HEADER + 40..][..end.saturating_sub(offset)];
                contents.bytes[offset..end].copy_from_slice(data);
                contents.note(|bytes| whole_sectors(bytes, offset, end));
                [(data.len() as u32).to_ne_bytes(), [0; 4]].concat()
            }
            // STATFS
            17 => vec![0; 80],
            // FSYNC
            20 => {
                self.contents.lock().unwrap().note(|_| DiskEvent::Flush);
                Vec::new()
            }
            // RELEASE, RELEASEDIR, FSYNCDIR, DESTROY
            18 | 29 | 30 | 38 => Vec::new(),
            // Among them FLUSH, which the kernel then does without: a process that ends would wait for its answer.
            _ => return Some(Err(ENOSYS)),
        }))
    }

    /// Counts a write; whether it and all later ones fail.
    fn was_last(&self) -> bool {
        // Relaxed: only the thread that serves counts.
        match self.left.load(Ordering::Relaxed) {
            0 => true,
            left => {
                self.left.store(left - 1, Ordering::Relaxed);
                false
            }
        }
    }

    fn has_failed(&self) -> bool {
        // Relaxed: as in `was_last`.
        self.left.load(Ordering::Relaxed) == 0
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, links, size) = match node {
            ROOT => (0o40_755u32, 2u32, 0),
            _ => (
                0o100_600,
                1,
                self.contents.lock().unwrap().bytes.len() as u64,
            ),
        };
        let longs = [node, size, size / 512, 0, 0, 0];
        let words = [0, 0, 0, mode, links, 0, 0, 0, 4096, 0];
        let longs = longs.iter().flat_map(|long| long.to_ne_bytes());
        longs
            .chain(words.iter().flat_map(|word: &u32| word.to_ne_bytes()))
            .collect()
    }

    fn entry(&self) -> Vec<u8> {
        let mut entry: Vec<u8> = [NODE, 0, KEPT, KEPT]
            .iter()
            .flat_map(|long| long.to_ne_bytes())
            .collect();
        entry.extend([0; 8]);
        entry.extend(self.attributes(NODE));
        entry
    }
}

/// The answer to INIT: version 7.31, no read-ahead, large writes.
fn init() -> Vec<u8> {
    const BIG_WRITES: u32 = 1 << 5;
    let words = [7, 31, 0, BIG_WRITES, 0, MAX_WRITE, 1];
    let mut answer: Vec<u8> = words
        .iter()
        .flat_map(|word: &u32| word.to_ne_bytes())
        .collect();
    answer.resize(64, 0);
    answer
}
