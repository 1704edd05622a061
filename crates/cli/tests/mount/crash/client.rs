//! A client: a process of its own, so that its mappings and descriptors are its own. It is this test program once more,
//! with one ignored test, which does nothing unless a parent asks for it.
//!
//! Before and after each operation the client sends a mark to the parent and waits until it is in the disk's record. A
//! promise that was given is thus recorded after the call has returned, and a change that may undo it before the call
//! begins.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{OFlags, XattrFlags};

use super::work::{How, Op, Sync, Workload};
use crate::hand::Hand;

const SOCKET: &str = "LANEFS_CRASH_CLIENT_SOCKET";
const ROOT: &str = "LANEFS_CRASH_CLIENT_ROOT";
const NUMBERS: &str = "LANEFS_CRASH_CLIENT_NUMBERS";
const TEST: &str = "crash::client::does_what_its_parent_asks_for";

/// A point in a client's work: before or after the operation of this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    pub client: u64,
    pub number: u64,
    pub is_done: bool,
}

impl Mark {
    pub fn encode(self) -> u64 {
        self.client << 48 | self.number << 1 | u64::from(self.is_done)
    }

    pub fn decode(mark: u64) -> Mark {
        Mark {
            client: mark >> 48,
            number: mark << 16 >> 17,
            is_done: mark & 1 == 1,
        }
    }
}

/// Starts a client that ends after this number of operations, or when the mount fails.
pub fn start(socket: &Path, root: &Path, seed: u64, client: u64, operations: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--ignored", "--nocapture"])
        .env(SOCKET, socket)
        .env(ROOT, root)
        .env(NUMBERS, format!("{seed} {client} {operations}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "a process of the tests of crashes, which start it"]
fn does_what_its_parent_asks_for() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let numbers = std::env::var(NUMBERS).unwrap();
    let numbers: Vec<u64> = numbers
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    let [seed, client, operations] = numbers[..] else {
        panic!("{numbers:?}");
    };
    let mut hands = Hands {
        root: std::env::var_os(ROOT).unwrap().into(),
        open: None,
        hand: Hand::start(),
    };
    let mut parent = UnixStream::connect(socket).unwrap();
    let mut tell = |number, is_done| {
        let mark = Mark {
            client,
            number,
            is_done,
        };
        parent.write_all(&mark.encode().to_le_bytes()).unwrap();
        parent.read_exact(&mut [0]).unwrap();
    };
    let mut work = Workload::new(seed, client);
    for number in 0..operations {
        let op = work.next();
        tell(number, false);
        match hands.apply(&op) {
            Ok(()) => tell(number, true),
            // The server was killed.
            Err(error) if matches!(error.raw_os_error(), Some(103 | 107)) => return,
            Err(error) => {
                // The beginning: an operation may have many bytes.
                let op = format!("{op:?}");
                panic!("client {client}, operation {number}, {op:.120}: {error}");
            }
        }
    }
}

struct Hands {
    root: PathBuf,
    /// A file that is kept open, also while its last name goes.
    open: Option<File>,
    hand: Hand,
}

impl Hands {
    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn apply(&mut self, op: &Op) -> io::Result<()> {
        match op {
            Op::Create { name } => {
                self.open = Some(File::create_new(self.path(name))?);
                Ok(())
            }
            Op::Mkdir { name } => fs::create_dir(self.path(name)),
            Op::Write {
                name,
                offset,
                bytes,
                how,
            } => self.write(&self.path(name), *offset, bytes, *how),
            Op::Truncate { name, len } => {
                let file = OpenOptions::new().write(true).open(self.path(name))?;
                file.set_len(*len)
            }
            Op::Rename { from, to } => fs::rename(self.path(from), self.path(to)),
            Op::Link { from, to } => fs::hard_link(self.path(from), self.path(to)),
            Op::Unlink { name } => fs::remove_file(self.path(name)),
            Op::Xattr { name, key, value } => {
                let path = self.path(name);
                match value {
                    Some(value) => {
                        rustix::fs::setxattr(path, &key[..], value, XattrFlags::empty())?;
                    }
                    None => rustix::fs::removexattr(path, &key[..])?,
                }
                Ok(())
            }
            Op::Sync { name, what } => {
                let file = File::open(self.path(name))?;
                match what {
                    Sync::Fsync | Sync::Directory => file.sync_all(),
                    Sync::Fdatasync => file.sync_data(),
                    Sync::All => Ok(rustix::fs::syncfs(&file)?),
                }
            }
        }
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8], how: How) -> io::Result<()> {
        // Within the bits of an open's flags.
        let opened = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(flags.bits() as i32);
            options.open(path)
        };
        match how {
            How::Buffered => opened(OFlags::empty())?.write_all_at(bytes, offset),
            How::Synchronous => opened(OFlags::SYNC)?.write_all_at(bytes, offset),
            How::Direct => {
                const ALIGNMENT: usize = 4096;
                let mut buffer = vec![0; bytes.len() + ALIGNMENT];
                let start = buffer.as_ptr().align_offset(ALIGNMENT);
                buffer[start..start + bytes.len()].copy_from_slice(bytes);
                let file = opened(OFlags::DIRECT)?;
                file.write_all_at(&buffer[start..start + bytes.len()], offset)
            }
            How::Mapped => {
                let (path, len) = (path.display(), bytes.len());
                let arguments: [&dyn std::fmt::Display; 5] =
                    [&path, &offset, &len, &bytes[0], &"msync"];
                self.hand.run("map", &arguments)
            }
        }
    }
}

#[test]
fn a_mark_is_what_was_encoded() {
    for (client, number, is_done) in [(0, 0, false), (3, 70_000, true), (1, 1, false)] {
        let mark = Mark {
            client,
            number,
            is_done,
        };
        assert_eq!(Mark::decode(mark.encode()), mark);
    }
}
