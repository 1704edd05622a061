//! Makes the images that simulations start from: mke2fs makes small ones, and the engine adds a few files. The model
//! applies the same operations, so it knows what is on them.
//!
//! Each run of the program makes them anew. The same options give the same bytes, except the times that mke2fs sets and
//! the checksums over these; no run depends on them.

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
    /// The kind's name in reports and on the command line.
    pub name: &'static str,
    options: &'static [&'static str],
    inodes: &'static str,
    bytes: u64,
    /// Bytes of a block.
    pub unit: u64,
    /// Whether files have extents. Without them, fallocate can neither reserve nor move blocks.
    pub has_extents: bool,
    /// Whether metadata has checksums, and the journal's commits too.
    pub has_checksums: bool,
    /// Whether the image has a journal.
    pub has_log: bool,
    /// Whether the journal has an area for fast commits, so that an fsync is a fast commit where that is possible.
    pub has_fast_commits: bool,
    /// The number of blocks that are left free, if the image is to be nearly full.
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
/// An image on which fsyncs are fast commits.
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
/// An image without a journal. It has a second group with a copy of the superblock, which e2fsck needs if the first
/// superblock is torn.
const UNLOGGED: Profile = Profile {
    name: "1k-nolog",
    bytes: 12 << 20,
    options: &["-b", "1024", "-O", "metadata_csum,64bit,^has_journal"],
    has_log: false,
    ..ONE_KIB
};

/// The images of sequences, faults and the walk.
pub const PROFILES: [Profile; 5] = [FOUR_KIB, ONE_KIB, PLAIN, EXT3, FAST];
/// The images of random work: those of [`PROFILES`], one that is nearly full, and one without a journal.
pub const WORKED_ON: [Profile; 7] = [FOUR_KIB, ONE_KIB, PLAIN, EXT3, FULL, UNLOGGED, FAST];

impl Profile {
    /// The model's history of a run on an image of this kind, which begins with `start`. `times` says whether the run
    /// reads the times of files.
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

/// An image that simulations start from.
#[derive(Clone)]
pub struct Image {
    /// The kind of the image.
    pub profile: Profile,
    /// A device with the image's bytes.
    pub device: CowDevice,
    /// The image's bytes in one piece.
    pub base: Base,
    /// The tree that is on the image.
    pub tree: ModelTree,
    /// The byte ranges of the journal's blocks, except its superblock. Digests of clean images leave them out, because
    /// they mean nothing there.
    pub journal: Vec<Range<u64>>,
    /// Where the journal's blocks are, to read its commit records and its area for fast commits.
    pub area: JournalPlace,
}

/// Opens a device for writing with the options of [`logging`] and a clock that stands still, so that states differ by
/// what was done and not by when.
///
/// # Errors
/// Those of [`InodeFs::open_for_writing`].
pub fn open(device: &Arc<dyn BlockDevice>) -> Result<InodeFs, engine::Error> {
    open_with(device, &logging(), SimulatedClock::Still)
}

/// Options with which each fsync that can be logged is logged, even if a full commit would cost less.
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

/// Opens a device for writing with these options and this clock.
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

/// Makes an image and applies these operations to it. If the kind is to be nearly full, a file takes the rest.
///
/// # Errors
/// The message of mke2fs, the engine or the model.
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

/// The operations that make an empty file and reserve `bytes` bytes of the image for it.
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

/// The byte ranges of the journal's blocks, except the first. That one holds the journal's superblock, which has a
/// meaning on a clean image, too.
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

/// Where all of the journal's blocks are; the list is empty if the image has no journal.
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

/// Whether the programs that simulations need can be started.
#[must_use]
pub fn have_programs() -> bool {
    let starts = |program: &str| Command::new(program).arg("-V").output().is_ok();
    starts("mke2fs") && starts("e2fsck")
}

/// A folder whose files are in memory; `/tmp` if the system has none.
#[must_use]
pub fn memory_folder() -> &'static File {
    let shared = File::new("/dev/shm");
    if shared.is_dir() {
        shared
    } else {
        File::new("/tmp")
    }
}

/// The operations that make what sequences work on: two directories with two files and an empty directory each.
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
            // The sizes are less than one block of 4 KiB, and more than two.
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
