//! The state that a cut leaves, replayed by lanefs, by the kernel and by e2fsck: everything promised before the cut is
//! found after each, and e2fsck then finds nothing wrong.
//!
//! Two kinds of states are counted, because others than lanefs can't open them: those whose superblock is torn between
//! its two sectors, and, for e2fsck 1.47 alone, those in which the area for fast commits begins with a transaction that
//! is committed in full, where it gives up the whole journal (F1 in docs/logtree.md).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lanefs::{BlockDevice, FileDevice, Fs, Ino, MountOptions};
use ondisk::Superblock;
use ondisk::fast_commit::FcRecord;
use ondisk::jbd2::JournalSuperblock;
use testkit::KernelMount;

use super::expect::Expect;
use super::tree::{FoundTree, of_directory, of_image};

const PAGE: usize = 4096;
/// Where the superblock is.
const SUPERBLOCK: usize = 1024;

/// What was looked at.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// States replayed by lanefs.
    pub states: usize,
    /// Names that had to be there, over all states.
    pub promised: usize,
    pub by_kernel: usize,
    pub by_e2fsck: usize,
    pub torn_superblock: usize,
    pub in_window: usize,
}

/// Judges states of one image.
pub struct Judge {
    folder: tempfile::TempDir,
    pub counts: Counts,
}

impl Judge {
    pub fn new() -> Judge {
        let mut memory = PathBuf::from("/dev/shm");
        if !memory.is_dir() {
            memory = std::env::temp_dir();
        }
        Judge {
            folder: tempfile::Builder::new()
                .prefix("lanefs-crash")
                .tempdir_in(memory)
                .unwrap(),
            counts: Counts::default(),
        }
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Puts a state into the file; holes stay holes.
    fn lay_out(&self, state: &[u8]) -> Result<PathBuf, String> {
        let write = || -> io::Result<()> {
            let file = File::create(self.image())?;
            file.set_len(state.len() as u64)?;
            for (number, page) in (0..).zip(state.chunks(PAGE)) {
                if page != &[0; PAGE][..page.len()] {
                    file.write_all_at(page, number * PAGE as u64)?;
                }
            }
            Ok(())
        };
        write().map_err(text)?;
        Ok(self.image())
    }

    /// Replays a state in each way.
    ///
    /// # Errors
    /// The replay that lost something, or what e2fsck found.
    pub fn judge(&mut self, state: &[u8], expects: &[Expect]) -> Result<(), String> {
        let path = self.lay_out(state)?;
        let by_lanefs = |error: String| format!("after the replay by lanefs: {error}");
        let is_in_window = self.by_reader(&path, expects).map_err(by_lanefs)?;
        let ours = self.by_lanefs(&path, expects).map_err(by_lanefs)?;
        self.counts.states += 1;
        if Superblock::view(&state[SUPERBLOCK..][..Superblock::SIZE].try_into().unwrap())
            .verify()
            .is_err()
        {
            self.counts.torn_superblock += 1;
            return Ok(());
        }
        let path = self.lay_out(state)?;
        self.by_kernel(&path, expects, &ours)
            .map_err(|error| format!("after the replay by the kernel: {error}"))?;
        let path = self.lay_out(state)?;
        let by_e2fsck = self.by_e2fsck(&path, expects);
        match by_e2fsck {
            Err(_) if is_in_window => self.counts.in_window += 1,
            Err(error) => return Err(format!("after the replay by e2fsck: {error}")),
            Ok(()) => self.counts.by_e2fsck += 1,
        }
        Ok(())
    }

    /// Has lanefs read a state, with a replay in memory.
    ///
    /// # Errors
    /// What was lost.
    #[cfg(feature = "canaries")]
    pub fn read(&self, state: &[u8], expects: &[Expect]) -> Result<(), String> {
        self.by_reader(&self.lay_out(state)?, expects).map(drop)
    }

    /// Replays in memory, as for reading; gives whether e2fsck gives up the journal of this state.
    fn by_reader(&self, path: &Path, expects: &[Expect]) -> Result<bool, String> {
        let fs = Fs::open(path).map_err(text)?;
        check(expects, &of_image(&fs).map_err(text)?)?;
        is_beyond_e2fsck(&fs, path)
    }

    fn by_lanefs(&mut self, path: &Path, expects: &[Expect]) -> Result<FoundTree, String> {
        let device = FileDevice::open(path).map_err(text)?;
        let options = MountOptions::default();
        let device: std::sync::Arc<dyn BlockDevice> = std::sync::Arc::new(device);
        let fs = Fs::open_for_writing_with(device, &options, lanefs::now).map_err(text)?;
        let tree = of_image(&fs).map_err(text)?;
        fs.close().map_err(text)?;
        self.counts.promised += check(expects, &tree)?;
        e2fsck("-fn", path)?;
        Ok(tree)
    }

    fn by_kernel(
        &mut self,
        path: &Path,
        expects: &[Expect],
        ours: &FoundTree,
    ) -> Result<(), String> {
        let mounted = KernelMount::with(path, "loop").map_err(text)?;
        let tree = of_directory(&mounted.path()).map_err(text)?;
        drop(mounted);
        check(expects, &tree)?;
        e2fsck("-fn", path)?;
        if let Some((name, _)) = tree
            .iter()
            .find(|(name, found)| ours.get(*name) != Some(found))
        {
            return Err(format!("{name} is not as lanefs shows it"));
        }
        if let Some(name) = ours.keys().find(|name| !tree.contains_key(*name)) {
            return Err(format!("{name}, which lanefs shows, is not there"));
        }
        self.counts.by_kernel += 1;
        Ok(())
    }

    fn by_e2fsck(&self, path: &Path, expects: &[Expect]) -> Result<(), String> {
        e2fsck("-fy", path)?;
        e2fsck("-fn", path)?;
        let mounted = KernelMount::read_only(path).map_err(text)?;
        let tree = of_directory(&mounted.path()).map_err(text)?;
        check(expects, &tree).map(drop)
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// All that was promised to the clients is there, and no name that is nobody's; gives how many names were promised.
fn check(expects: &[Expect], tree: &FoundTree) -> Result<usize, String> {
    // What exists before the clients begin: directories at the root.
    let mut names = tree.keys().filter(|name| name.contains('/'));
    if let Some(name) = names.find(|name| !expects.iter().any(|expect| expect.owns(name))) {
        return Err(format!("no client made {name}"));
    }
    expects.iter().map(|expect| expect.check(tree)).sum()
}

/// e2fsck -fn has to find nothing; -fy may correct bitmaps and counts, which its replay leaves to its passes.
fn e2fsck(option: &str, path: &Path) -> Result<(), String> {
    let output = testkit::e2fsck_with(&[option], path);
    let is_fine = match option {
        "-fn" => testkit::found_nothing(&output),
        _ => matches!(output.status.code(), Some(0..=1)),
    };
    if is_fine {
        Ok(())
    } else {
        Err(format!(
            "e2fsck {option}: {}",
            String::from_utf8_lossy(&output.stdout).trim()
        ))
    }
}

/// Whether the area for fast commits begins with a transaction that is committed in full.
fn is_beyond_e2fsck(fs: &Fs, path: &Path) -> Result<bool, String> {
    let fs = fs.inodes();
    let file = File::open(path).map_err(text)?;
    let mut block = vec![0; fs.geometry().block_size().bytes()];
    let mut places = Vec::new();
    for run in fs.mappings(Ino::JOURNAL).map_err(text)? {
        let run = run.map_err(text)?;
        if let Some(start) = run.physical {
            places.extend(start.0..start.0 + run.len);
        }
    }
    let mut read = |number: usize| -> Result<Vec<u8>, String> {
        let at = places[number] * block.len() as u64;
        file.read_exact_at(&mut block, at).map_err(text)?;
        Ok(block.clone())
    };
    let Some(superblock) = JournalSuperblock::read(&read(0)?) else {
        return Ok(false);
    };
    if superblock.fast_commit_blocks() == 0 || superblock.start() == 0 {
        return Ok(false);
    }
    let first = read(superblock.fast_commit_first() as usize)?;
    let tid = match FcRecord::read(&first, fs.geometry().inode_size()) {
        Ok((FcRecord::Head { tid, .. }, _)) => tid,
        _ => return Ok(false),
    };
    Ok(fs.recovery_report().is_some_and(|report| report.end != tid))
}
