//! What a client process does: operations that follow from a seed alone, so that the process which does them and the
//! judge that knows only how far it came agree on each.

use std::collections::{BTreeMap, VecDeque};

use testkit::Random;

/// Files that a client keeps at most, and the most bytes of one: together they fit the small images of this test.
const FILES_MOST: usize = 24;
const BYTES_MOST: u64 = 48 << 10;
/// Direct I/O is in multiples of this.
const DIRECT_UNIT: u64 = 4096;
/// The most bytes of one append to a file's last block: several fit the smallest block.
const TAIL_MOST: u64 = 400;
/// The most writes to one file in a row, each followed by a sync.
const ROW_MOST: u64 = 4;

/// The directory in which all clients have files.
pub const SHARED: &str = "shared";

/// How bytes are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Buffered,
    /// By O_DIRECT.
    Direct,
    /// Through a shared mapping, with msync: as fdatasync behind the write.
    Mapped,
    /// By O_SYNC: as fsync behind the write.
    Synchronous,
}

/// What is made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    Fsync,
    Fdatasync,
    /// fsync of a directory.
    Directory,
    /// syncfs, which is `sync -f`.
    All,
}

/// One operation. Files are numbered in the order of their creation, directories among them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    Create {
        name: String,
    },
    Mkdir {
        name: String,
    },
    Write {
        name: String,
        offset: u64,
        bytes: Vec<u8>,
        how: How,
    },
    Truncate {
        name: String,
        len: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        name: String,
    },
    /// Sets an attribute, or removes it.
    Xattr {
        name: String,
        key: String,
        value: Option<Vec<u8>>,
    },
    Sync {
        name: String,
        what: Sync,
    },
}

/// The operations of one client.
pub struct Workload {
    random: Random,
    client: u64,
    names: BTreeMap<String, usize>,
    directories: Vec<String>,
    /// By number: size, and the keys of the attributes.
    files: Vec<(u64, Vec<String>)>,
    made: u64,
    /// The operations that the next calls return: the rest of a row of writes and syncs.
    row: VecDeque<Op>,
}

/// The name of a client's own directory, which exists before it begins.
pub fn home(client: u64) -> String {
    format!("c{client}")
}

impl Workload {
    pub fn new(seed: u64, client: u64) -> Workload {
        Workload {
            random: Random::new(seed.rotate_left(17) ^ client),
            client,
            names: BTreeMap::new(),
            directories: vec![home(client)],
            files: Vec::new(),
            made: 0,
            row: VecDeque::new(),
        }
    }

    /// The next operation.
    pub fn next(&mut self) -> Op {
        if let Some(op) = self.row.pop_front() {
            return op;
        }
        if self.names.is_empty() {
            return self.create();
        }
        let is_full = self.names.len() >= FILES_MOST;
        loop {
            let op = match self.random.below(100) {
                0..14 if !is_full => Some(self.create()),
                14..24 => self.append(),
                24..28 => self.durable_overwrites(),
                28..31 => self.durable_appends(),
                31..38 => self.overwrite(),
                38..43 => self.direct(),
                43..46 => self.mapped(),
                46..49 => self.truncate(),
                49..58 => self.rename(),
                58..61 if !is_full => self.link(),
                61..66 => Some(self.unlink()),
                66..72 => self.xattr(),
                72..73 if self.directories.len() < 4 => Some(self.mkdir()),
                73..86 => Some(self.sync(Sync::Fsync)),
                86..91 => Some(self.sync(Sync::Fdatasync)),
                91..95 => Some(self.sync(Sync::Directory)),
                95..100 => Some(self.sync(Sync::All)),
                _ => None,
            };
            if let Some(op) = op {
                return op;
            }
        }
    }

    fn new_name(&mut self) -> String {
        self.made += 1;
        let (client, number) = (self.client, self.made);
        if self.random.one_in(3) {
            format!("{SHARED}/c{client}-{number}")
        } else {
            format!("{}/f{number}", self.random.pick(&self.directories))
        }
    }

    fn pick(&mut self) -> (String, usize) {
        let at = self.random.below(self.names.len() as u64) as usize;
        let (name, file) = self.names.iter().nth(at).unwrap();
        (name.clone(), *file)
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize + 8);
        while bytes.len() < len as usize {
            bytes.extend_from_slice(&self.random.bits().to_le_bytes());
        }
        bytes.truncate(len as usize);
        bytes
    }

    fn write(&mut self, offset: u64, len: u64, how: How, (name, file): (String, usize)) -> Op {
        let bytes = match how {
            // The process that maps stores one byte throughout.
            How::Mapped => vec![1 + self.random.below(255) as u8; len as usize],
            _ => self.bytes(len),
        };
        self.files[file].0 = self.files[file].0.max(offset + len);
        Op::Write {
            name,
            offset,
            bytes,
            how,
        }
    }

    fn buffered_or_synchronous(&mut self) -> How {
        if self.random.one_in(6) {
            How::Synchronous
        } else {
            How::Buffered
        }
    }

    fn create(&mut self) -> Op {
        let name = self.new_name();
        self.names.insert(name.clone(), self.files.len());
        self.files.push((0, Vec::new()));
        Op::Create { name }
    }

    fn mkdir(&mut self) -> Op {
        self.made += 1;
        let name = format!("{}/d{}", home(self.client), self.made);
        self.directories.push(name.clone());
        self.files.push((0, Vec::new()));
        Op::Mkdir { name }
    }

    fn append(&mut self) -> Option<Op> {
        let file = self.pick();
        let size = self.files[file.1].0;
        let len = 1 + self.random.below(12_000);
        let how = self.buffered_or_synchronous();
        // Sometimes behind a hole.
        let offset = size + u64::from(self.random.one_in(8)) * self.random.below(9000);
        (offset + len <= BYTES_MOST).then(|| self.write(offset, len, how, file))
    }

    fn overwrite(&mut self) -> Option<Op> {
        let file = self.pick();
        let size = self.files[file.1].0;
        let how = self.buffered_or_synchronous();
        (size > 1).then(|| {
            let offset = self.random.below(size - 1);
            let len = 1 + self.random.below(size - offset);
            self.write(offset, len, how, file)
        })
    }

    /// An append and its fsync, then overwrites of bytes that are durable by then, each followed by an fdatasync, which
    /// has only data to make durable.
    fn durable_overwrites(&mut self) -> Option<Op> {
        let (name, file) = self.pick();
        let size = self.files[file].0;
        let len = 1 + self.random.below(9000);
        (size + len <= BYTES_MOST).then(|| {
            let first = self.write(size, len, How::Buffered, (name.clone(), file));
            self.then_sync(&name, Sync::Fsync);
            for _ in 0..1 + self.random.below(ROW_MOST) {
                let offset = self.random.below(size + len);
                let len = 1 + self.random.below(size + len - offset);
                let how = if self.random.one_in(4) {
                    How::Mapped
                } else {
                    How::Buffered
                };
                let op = self.write(offset, len, how, (name.clone(), file));
                self.row.push_back(op);
                self.then_sync(&name, Sync::Fdatasync);
            }
            first
        })
    }

    /// Appends to a file's last block, each followed by a sync.
    fn durable_appends(&mut self) -> Option<Op> {
        let (name, file) = self.pick();
        (self.files[file].0 + (ROW_MOST + 1) * TAIL_MOST <= BYTES_MOST).then(|| {
            for _ in 0..1 + self.random.below(ROW_MOST) {
                let len = 1 + self.random.below(TAIL_MOST);
                let size = self.files[file].0;
                let op = self.write(size, len, How::Buffered, (name.clone(), file));
                self.row.push_back(op);
                let what = if self.random.one_in(2) {
                    Sync::Fsync
                } else {
                    Sync::Fdatasync
                };
                self.then_sync(&name, what);
            }
            Op::Sync {
                name,
                what: Sync::Fsync,
            }
        })
    }

    fn then_sync(&mut self, name: &str, what: Sync) {
        self.row.push_back(Op::Sync {
            name: name.to_owned(),
            what,
        });
    }

    fn direct(&mut self) -> Option<Op> {
        let file = self.pick();
        let units = self.files[file.1].0 / DIRECT_UNIT;
        let offset = self.random.below(units + 1) * DIRECT_UNIT;
        let len = (1 + self.random.below(3)) * DIRECT_UNIT;
        (offset + len <= BYTES_MOST).then(|| self.write(offset, len, How::Direct, file))
    }

    fn mapped(&mut self) -> Option<Op> {
        let file = self.pick();
        let size = self.files[file.1].0;
        (size > 1).then(|| {
            let offset = self.random.below(size - 1);
            let len = 1 + self.random.below(size - offset);
            self.write(offset, len, How::Mapped, file)
        })
    }

    fn truncate(&mut self) -> Option<Op> {
        let (name, file) = self.pick();
        let len = self.random.below(self.files[file].0 + 6000);
        (len <= BYTES_MOST).then(|| {
            self.files[file].0 = len;
            Op::Truncate { name, len }
        })
    }

    /// To a new name, or over another file.
    fn rename(&mut self) -> Option<Op> {
        let (from, file) = self.pick();
        let to = if self.random.one_in(2) {
            self.pick().0
        } else {
            self.new_name()
        };
        // Of two names of one file rename(2) leaves both.
        (self.names.get(&to) != Some(&file)).then(|| {
            self.names.remove(&from);
            self.names.insert(to.clone(), file);
            Op::Rename { from, to }
        })
    }

    fn link(&mut self) -> Option<Op> {
        let (from, file) = self.pick();
        let to = self.new_name();
        self.names.insert(to.clone(), file);
        Some(Op::Link { from, to })
    }

    fn unlink(&mut self) -> Op {
        let (name, _) = self.pick();
        self.names.remove(&name);
        Op::Unlink { name }
    }

    fn xattr(&mut self) -> Option<Op> {
        let (name, file) = self.pick();
        let key = format!("user.k{}", self.random.below(3));
        let has = self.files[file].1.contains(&key);
        let removes = has && self.random.one_in(3);
        // In the inode, or in a block of its own.
        let most = if self.random.one_in(3) { 260 } else { 30 };
        let len = 1 + self.random.below(most);
        let value = (!removes).then(|| self.bytes(len));
        self.files[file].1.retain(|known| *known != key);
        if value.is_some() {
            self.files[file].1.push(key.clone());
        }
        Some(Op::Xattr { name, key, value })
    }

    fn sync(&mut self, what: Sync) -> Op {
        let name = match what {
            Sync::Fsync | Sync::Fdatasync => self.pick().0,
            Sync::Directory if self.random.one_in(3) => SHARED.to_owned(),
            Sync::Directory => self.random.pick(&self.directories).clone(),
            Sync::All => String::new(),
        };
        Op::Sync { name, what }
    }
}
