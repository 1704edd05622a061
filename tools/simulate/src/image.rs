//! The images that simulations start from: small ones by mke2fs, with a few files made by the engine, and what the
//! model says is on them. Made anew in each run of the program; the same options give the same bytes except the
//! file system's own number, which decides nothing.

use std::ops::Range;
use std::path::Path as File;
use std::process::Command;

use device::BlockDevice;
use engine::{Ino, InodeFs, LogUse, MountOptions, Variants};
use model::{History, ModelPath, ModelTree, Op, OpTarget};
use sync::Arc;

use crate::executor::{Executor, brief};
use crate::times::{RunTimes, SimulatedClock};
use crate::{Base, CowDevice, JournalPlace};

/// A kind of image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// What it is called in reports.
    pub name: &'static str,
    options: &'static [&'static str],
    inodes: &'static str,
    bytes: u64,
    /// Bytes a block.
    pub unit: u64,
    /// Whether files have extents: without, blocks can't be reserved or moved.
    pub has_extents: bool,
    /// Whether metadata has checksums, the journal's commits among it.
    pub has_checksums: bool,
    /// Whether there is a journal.
    pub has_log: bool,
    /// Whether an fsync is a fast commit where it can be.
    pub has_fast_commits: bool,
    /// How many blocks are left free, where the image is to be nearly full.
    pub left: Option<u64>,
}

const UUID: [&str; 4] = [
    "-U",
    "6c616e65-6673-4372-a173-680000000001",
    "-E",
    "hash_seed=6c616e65-6673-4372-a173-680000000002,lazy_itable_init=0,root_owner=0:0",
];

const FOUR_KIB: Profile = Profile {
    name: "4k",
    options: &["-b", "4096", "-J", "size=4", "-O", "metadata_csum,64bit"],
    inodes: "256",
    bytes: 16 << 20,
    unit: 4096,
    has_extents: true,
    has_checksums: true,
    has_log: true,
    has_fast_commits: false,
    left: None,
};
/// Whose fsyncs are fast commits.
pub const FAST: Profile = Profile {
    name: "4k-fast",
    options: &[
        "-b",
        "4096",
        "-J",
        "size=4",
        "-O",
        "metadata_csum,64bit,fast_commit,orphan_file",
    ],
    has_fast_commits: true,
    ..FOUR_KIB
};
const ONE_KIB: Profile = Profile {
    name: "1k",
    options: &[
        "-b",
        "1024",
        "-J",
        "size=1",
        "-O",
        "metadata_csum,64bit,orphan_file",
    ],
    bytes: 4 << 20,
    unit: 1024,
    ..FOUR_KIB
};
const PLAIN: Profile = Profile {
    name: "1k-plain",
    options: &["-b", "1024", "-J", "size=1", "-O", "^metadata_csum,^64bit"],
    has_checksums: false,
    ..ONE_KIB
};
const EXT3: Profile = Profile {
    name: "1k-ext3",
    options: &[
        "-b",
        "1024",
        "-J",
        "size=1",
        "-O",
        "^extents,^64bit,^metadata_csum",
    ],
    has_extents: false,
    ..PLAIN
};
const FULL: Profile = Profile {
    name: "1k-full",
    inodes: "32",
    bytes: 5 << 19,
    left: Some(10),
    ..ONE_KIB
};
/// With a second group, which has a copy of the superblock: e2fsck needs one where the first is torn.
const UNLOGGED: Profile = Profile {
    name: "1k-nolog",
    bytes: 12 << 20,
    options: &["-b", "1024", "-O", "metadata_csum,64bit,^has_journal"],
    has_log: false,
    ..ONE_KIB
};

/// The images of the crash tests.
pub const PROFILES: [Profile; 5] = [FOUR_KIB, ONE_KIB, PLAIN, EXT3, FAST];
/// Those of random work: one that is nearly full, and one without a journal, too.
pub const WORKED_ON: [Profile; 7] = [FOUR_KIB, ONE_KIB, PLAIN, EXT3, FULL, UNLOGGED, FAST];

impl Profile {
    /// A history that begins with a state of such an image, of a run with such times.
    #[must_use]
    pub fn history(&self, start: ModelTree, times: RunTimes) -> History {
        let history = if self.has_fast_commits {
            History::new_of_each(start)
        } else {
            History::new(start)
        };
        if times.are_seen {
            history
        } else {
            history.with_times_kept()
        }
    }
}

/// An image to start from.
#[derive(Clone)]
pub struct Image {
    /// Its kind.
    pub profile: Profile,
    /// Its bytes.
    pub device: CowDevice,
    /// Its bytes once more, in one piece.
    pub base: Base,
    /// What is on it.
    pub tree: ModelTree,
    /// Where the journal's blocks are: they say nothing on a clean image.
    pub journal: Vec<Range<u64>>,
    /// The same, for what it says: its area for fast commits, and its commit records.
    pub area: JournalPlace,
}

/// Opens a device for writing, with a clock that stands still, so that states differ by what was done and not by when.
/// What can be logged by an fsync is, whether or not that is worth it.
///
/// # Errors
/// Those of [`InodeFs::open_for_writing`].
pub fn open(device: &Arc<dyn BlockDevice>) -> Result<InodeFs, engine::Error> {
    open_with(device, &logging(), SimulatedClock::Still)
}

/// Options with which all is logged that can be, whether or not it is worth it.
#[must_use]
pub fn logging() -> MountOptions {
    MountOptions {
        variants: Variants {
            log_use: LogUse::Always,
            ..Variants::default()
        },
        ..MountOptions::default()
    }
}

/// As [`open`], with options and a clock.
///
/// # Errors
/// Those of [`InodeFs::open_for_writing`].
pub fn open_with(
    device: &Arc<dyn BlockDevice>,
    options: &MountOptions,
    clock: SimulatedClock,
) -> Result<InodeFs, engine::Error> {
    InodeFs::open_for_writing(Arc::clone(device), options, clock.reader())
}

/// Makes an image and does these operations on it.
///
/// # Errors
/// What mke2fs or the engine said.
pub fn make(profile: Profile, setup: &[Op]) -> Result<Image, String> {
    let empty = mke2fs(&profile)?;
    let device = CowDevice::new(empty.into());
    let shared: Arc<dyn BlockDevice> = Arc::new(device.clone());
    let fs = open(&shared).map_err(|error| error.to_string())?;
    let mut tree = ModelTree::new();
    let mut executor = Executor::new(&fs);
    let mut ops = setup.to_vec();
    if let Some(left) = profile.left {
        let free = fs.statfs().map_err(|error| error.to_string())?.available;
        ops.extend(ballast(profile.unit * free.saturating_sub(left)));
    }
    for op in &ops {
        executor
            .apply(op)
            .map_err(|refusal| format!("{}: {refusal:?}", brief(op)))?;
        tree.apply(op)
            .map_err(|errno| format!("{}: {errno:?}", brief(op)))?;
    }
    drop(executor);
    let journal = if profile.has_log {
        journal_of(&fs).map_err(|error| error.to_string())?
    } else {
        Vec::new()
    };
    let area = area_of(&fs, profile).map_err(|error| error.to_string())?;
    fs.close().map_err(|error| error.to_string())?;
    let mut base = vec![0; usize::try_from(shared.size()).unwrap_or(0)];
    shared
        .read_at(0, &mut base)
        .map_err(|error| error.to_string())?;
    let base: Base = base.into();
    Ok(Image {
        profile,
        device: CowDevice::new(base.clone()),
        base,
        tree,
        journal,
        area,
    })
}

/// An empty file that takes `bytes` bytes of the image.
fn ballast(bytes: u64) -> [Op; 2] {
    let path = ModelPath::new("ballast");
    [
        Op::Create {
            path: path.clone(),
            mode: 0o600,
        },
        Op::Fallocate {
            file: OpTarget::Path(path),
            mode: model::FallocateMode::KeepSize,
            offset: 0,
            len: bytes,
        },
    ]
}

/// Where the journal's blocks are, except the first, which holds its superblock: that counts.
fn journal_of(fs: &InodeFs) -> Result<Vec<Range<u64>>, engine::Error> {
    let block = fs.geometry().block_size().bytes_u64();
    let mut journal = Vec::new();
    for run in fs.mappings(Ino::JOURNAL)? {
        let run = run?;
        if let Some(start) = run.physical {
            let skipped = u64::from(run.logical == 0);
            journal.push((start.0 + skipped) * block..(start.0 + run.len) * block);
        }
    }
    Ok(journal)
}

/// Where all of the journal's blocks are; nowhere without one.
fn area_of(fs: &InodeFs, profile: Profile) -> Result<JournalPlace, engine::Error> {
    let block = fs.geometry().block_size();
    let mut area = JournalPlace {
        blocks: Vec::new(),
        block_bytes: block.bytes(),
        inode_bytes: fs.geometry().inode_size(),
    };
    if profile.has_log {
        for run in fs.mappings(Ino::JOURNAL)? {
            let run = run?;
            if let Some(start) = run.physical {
                let blocks = start.0..start.0 + run.len;
                area.blocks.extend(blocks.map(|at| at * block.bytes_u64()));
            }
        }
    }
    Ok(area)
}

fn mke2fs(profile: &Profile) -> Result<Vec<u8>, String> {
    let said = |error: std::io::Error| error.to_string();
    let folder = tempfile::tempdir().map_err(said)?;
    let path = folder.path().join("image");
    let file = std::fs::File::create(&path).map_err(said)?;
    file.set_len(profile.bytes).map_err(said)?;
    let mut options = vec!["-t", "ext4", "-m", "0"];
    options.extend(UUID);
    options.extend(["-N", profile.inodes]);
    options.extend(profile.options);
    options.push(path.to_str().ok_or("the path is not UTF-8")?);
    let output = testkit::try_mke2fs(&options);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::read(&path).map_err(said)
}

/// Whether the programs that simulations need are there.
#[must_use]
pub fn have_programs() -> bool {
    let starts = |program: &str| Command::new(program).arg("-V").output().is_ok();
    starts("mke2fs") && starts("e2fsck")
}

/// A folder whose files are in memory, if there is one.
#[must_use]
pub fn memory_folder() -> &'static File {
    let shared = File::new("/dev/shm");
    if shared.is_dir() {
        shared
    } else {
        File::new("/tmp")
    }
}

/// Two directories with two files each, and one empty directory in each: what sequences work on.
#[must_use]
pub fn two_directories() -> Vec<Op> {
    let mut ops = Vec::new();
    for (index, directory) in ["d0", "d1"].into_iter().enumerate() {
        let here = ModelPath::new(directory);
        ops.push(Op::Mkdir {
            path: here.clone(),
            mode: 0o755,
        });
        ops.push(Op::Mkdir {
            path: here.join(b"e"),
            mode: 0o700,
        });
        for (number, name) in [b"f0", b"f1"].into_iter().enumerate() {
            let path = here.join(name);
            ops.push(Op::Create {
                path: path.clone(),
                mode: 0o644,
            });
            // Sizes within a block, and beyond a few.
            let len = 3000 + 6000 * number + 100 * index;
            ops.push(Op::Write {
                file: OpTarget::Path(path.clone()),
                offset: 0,
                bytes: vec![b'0' + (2 * index + number) as u8; len],
            });
            ops.push(Op::SetXattr {
                file: OpTarget::Path(path),
                name: b"user.a".to_vec(),
                value: b"old".to_vec(),
                flag: model::XattrCondition::Any,
            });
        }
    }
    ops
}
