//! Repairs of mutants beside e2fsck -y: what it makes clean, a repair makes clean, too, by e2fsck's judgement and ours,
//! and no file has fewer of its bytes.

use std::collections::BTreeMap;
use std::path::Path;

use corpus::{PatchedBytes, Seed, Structures};
use device::{BlockDevice, MemoryDevice};
use engine::{InodeFs, MountOptions};
use lanefs_check::Options;
use lanefs_check::repair::{RepairOptions, RepairScope, Repaired, WriteSet, repair};
use ondisk::{FileType, Ino, Superblock};
use sync::Arc;
use sync::atomic::AtomicBool;

use crate::{Verdict, check, e2fsck, number_from, seeds_from, shown};

/// The time of all repairs here, after the images of the corpus were made.
const NOW: u64 = 1_795_800_000;
/// Bytes of a file that are compared at once.
const PIECE: usize = 512;

/// Decides on a repair of these bytes.
pub fn decide(
    bytes: &[u8],
    extent: RepairScope,
    threads: usize,
) -> Result<Repaired, lanefs_check::Error> {
    decide_on(&MemoryDevice::from_bytes(bytes), extent, threads)
}

/// Decides on a repair of a device.
pub fn decide_on(
    device: &dyn BlockDevice,
    extent: RepairScope,
    threads: usize,
) -> Result<Repaired, lanefs_check::Error> {
    let cancelled = AtomicBool::new(false);
    let options = RepairOptions {
        check: Options {
            threads,
            memory: None,
            superblock: None,
            is_replayed: false,
            cancelled: &cancelled,
            progress: &|_| {},
            trace: None,
        },
        extent,
        now: NOW,
        replay_failed: None,
        may_overwrite: true,
    };
    repair(device, &options)
}

/// The bytes with a write set written.
pub fn written(bytes: &[u8], writes: &WriteSet) -> Vec<u8> {
    let mut new = bytes.to_vec();
    let size = writes.block_size.bytes();
    for (target, source) in &writes.copies {
        let (to, from) = (*target as usize * size, *source as usize * size);
        new[to..to + size].copy_from_slice(&bytes[from..from + size]);
    }
    for (block, bytes) in &writes.blocks {
        let at = *block as usize * size;
        new[at..at + size].copy_from_slice(bytes);
    }
    new
}

/// The image after e2fsck -y; `None` if e2fsck leaves errors or fails.
pub fn e2fsck_yes(bytes: &[u8]) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    testkit::write_image(&path, bytes);
    let output = testkit::e2fsck_within(10, &["-fy"], &path, None).unwrap();
    let status = output.status.code();
    status.filter(|status| *status & !3 == 0)?;
    // e2fsck may have written blocks that the superblock names beyond the end.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    Some(testkit::read_image(&path))
}

/// The contents of the regular files of an image, by inode; what can't be read is left out.
pub fn files(bytes: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(bytes));
    let mut files = BTreeMap::new();
    let Ok(fs) = InodeFs::open(device, &MountOptions::default()) else {
        return files;
    };
    for ino in 11..=fs.geometry().inodes_count() {
        let Ok(metadata) = fs.metadata(Ino(ino)) else {
            continue;
        };
        if metadata.file_type != FileType::Regular || metadata.nlink == 0 {
            continue;
        }
        let mut contents = Vec::new();
        let mut piece = vec![0; 64 << 10];
        while contents.len() < 16 << 20 {
            match fs.read(Ino(ino), contents.len() as u64, &mut piece) {
                Ok(0) | Err(_) => break,
                Ok(len) => contents.extend_from_slice(&piece[..len]),
            }
        }
        files.insert(ino, contents);
    }
    files
}

/// How many pieces of the files are as they were. Pieces of zeros are not counted.
pub fn kept(original: &BTreeMap<u32, Vec<u8>>, image: &[u8]) -> usize {
    let found = files(image);
    let mut kept = 0;
    for (ino, contents) in original {
        let Some(found) = found.get(ino) else {
            continue;
        };
        for (old, new) in contents.chunks(PIECE).zip(found.chunks(PIECE)) {
            kept += usize::from(old == new && old.iter().any(|byte| *byte != 0));
        }
    }
    kept
}

/// The sums of a run.
#[derive(Default, Debug)]
pub struct Sums {
    runs: u32,
    /// Damaged by e2fsck's judgement or ours.
    damaged: u32,
    /// e2fsck -y makes them clean.
    theirs: u32,
    /// Of those, a repair makes clean by both judgements.
    ours: u32,
    /// A repair makes them clean, e2fsck -y does not.
    only_ours: u32,
    /// Of those that both make clean: fewer bytes of files than with e2fsck.
    fewer: u32,
    /// More bytes of files.
    more: u32,
}

impl Sums {
    /// Repairs one mutant; the reason in words, where it falls short.
    pub fn judge(&mut self, original: &BTreeMap<u32, Vec<u8>>, bytes: &[u8]) -> Option<String> {
        self.runs += 1;
        let repaired = decide(bytes, RepairScope::All, 1);
        let found = e2fsck(bytes)?;
        let is_damaged = found.is_damage()
            || !repaired
                .as_ref()
                .is_ok_and(|repaired| repaired.before.is_clean());
        if !is_damaged {
            return None;
        }
        self.damaged += 1;
        let theirs =
            e2fsck_yes(bytes).filter(|image| e2fsck(image).is_some_and(|it| it.status == 0));
        self.theirs += u32::from(theirs.is_some());
        let repaired = match repaired {
            Ok(repaired) => repaired,
            Err(error) => return theirs.map(|_| format!("no verdict: {error}")),
        };
        let new = match &repaired.writes {
            Some(writes) => written(bytes, writes),
            None => bytes.to_vec(),
        };
        let verdict = e2fsck(&new)?;
        let again = check(&new, 1);
        let is_clean = verdict.status == 0
            && !verdict.is_damage()
            && again.as_ref().is_ok_and(lanefs_check::Report::is_clean);
        let Some(theirs) = theirs else {
            self.only_ours += u32::from(is_clean);
            return None;
        };
        if !is_clean {
            let again = again.map_or_else(|error| error.to_string(), |report| shown(&report));
            return Some(words(&repaired, &again, &verdict));
        }
        self.ours += 1;
        let (ours, theirs) = (kept(original, &new), kept(original, &theirs));
        self.more += u32::from(ours > theirs);
        if ours < theirs {
            self.fewer += 1;
            return Some(format!(
                "keeps {ours} pieces, e2fsck {theirs}:\n{}",
                shown(&repaired.before)
            ));
        }
        None
    }

    fn short(&self) -> u32 {
        self.theirs - self.ours + self.fewer
    }

    /// One in 200 may fall short, and one of few.
    pub fn assert_not_short(&self) {
        let most = 1 + self.theirs / 200;
        assert!(self.short() <= most, "see LANEFS_REPAIR_MUTANTS: {self:?}");
    }

    /// None falls short, and there is something to compare with.
    pub fn assert_all_as_good(&self) {
        assert!(self.theirs > 0 && self.short() == 0, "{self:?}");
    }
}

fn words(repaired: &Repaired, again: &str, verdict: &Verdict) -> String {
    let theirs = verdict
        .text
        .lines()
        .filter(|line| !line.starts_with("Pass"));
    let theirs: String = theirs.take(8).map(|line| format!("    {line}\n")).collect();
    format!(
        "not clean after {} checks:\n  before:\n{}  left:\n{again}  e2fsck:\n{theirs}",
        repaired.checks,
        shown(&repaired.before)
    )
}

/// Keeps an image in the folder that LANEFS_REPAIR_SAVE names.
pub fn save(name: &str, bytes: &[u8]) {
    if let Some(folder) = std::env::var_os("LANEFS_REPAIR_SAVE") {
        std::fs::write(Path::new(&folder).join(name), bytes).unwrap();
    }
}

/// The contents of the regular files without quota files: these say how much the files take, which depends on the
/// repair.
pub fn files_of_users(bytes: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let mut files = files(bytes);
    let sb = Superblock::view(bytes[1024..].first_chunk().unwrap());
    let quota = [
        sb.user_quota_ino(),
        sb.group_quota_ino(),
        sb.project_quota_ino(),
    ];
    files.retain(|ino, _| !quota.contains(&Some(Ino(*ino))));
    files
}

fn one_seed(seed: &Seed, first: u64, count: u64, sums: &mut [Sums; 2], is_loud: bool) {
    let original = files_of_users(&seed.bytes);
    let structures = Structures::of(&PatchedBytes::new(Arc::clone(&seed.bytes)));
    for (sums, seals) in sums.iter_mut().zip(["right", "stale"]) {
        for number in first..first + count {
            let (mutant, changed) = match seals {
                "right" => corpus::mutant(&seed.bytes, &structures, number),
                _ => corpus::unsealed_mutant(&seed.bytes, &structures, number),
            };
            let bytes = mutant.to_vec();
            if let Some(words) = sums.judge(&original, &bytes)
                && is_loud
            {
                let kinds: Vec<_> = changed.iter().map(|it| (it.kind, it.offset)).collect();
                save(&format!("{}-{number}-{seals}.img", seed.name), &bytes);
                println!("{} {number} {seals} {kinds:?} {words}", seed.name);
            }
        }
    }
}

#[test]
fn neither_a_check_nor_a_repair_depends_on_the_number_of_threads() {
    for seed in corpus::seeds().filter(|seed| !seed.name.starts_with("dirty")) {
        let structures = Structures::of(&PatchedBytes::new(Arc::clone(&seed.bytes)));
        for number in 60_000..60_003 {
            let (mutant, _) = corpus::mutant(&seed.bytes, &structures, number);
            let bytes = mutant.to_vec();
            let what = format!("{} {number}", seed.name);
            let checked = [1, 2, 8].map(|threads| check(&bytes, threads).map(|it| it.problems));
            assert!(
                checked[0] == checked[1] && checked[0] == checked[2],
                "{what}"
            );
            let decided = [1, 2, 8].map(|threads| {
                let repaired = decide(&bytes, RepairScope::All, threads).ok()?;
                let writes = repaired.writes.map(|writes| {
                    let journal = (writes.journal, writes.superblock, writes.stages);
                    (writes.first, writes.copies, writes.blocks, journal)
                });
                Some((repaired.after.problems, repaired.checks, writes))
            });
            assert!(
                decided[0] == decided[1] && decided[0] == decided[2],
                "{what}"
            );
        }
    }
}

/// Mutants of every profile. LANEFS_REPAIR_MUTANTS sets how many of each, LANEFS_REPAIR_FIRST the first number,
/// LANEFS_REPAIR_SAVE a folder for those that a repair falls short of.
#[test]
fn mutants_are_repaired_as_by_e2fsck() {
    if !testkit::have("e2fsck") {
        return testkit::skip("e2fsck is missing");
    }
    let asked = number_from("LANEFS_REPAIR_MUTANTS");
    let first = number_from("LANEFS_REPAIR_FIRST").unwrap_or(0);
    let mut sums = [Sums::default(), Sums::default()];
    for seed in seeds_from("LANEFS_REPAIR_SEED") {
        one_seed(&seed, first, asked.unwrap_or(1), &mut sums, asked.is_some());
    }
    for (sums, seals) in sums.iter().zip(["right", "stale"]) {
        println!("{seals} checksums: {sums:?}");
        sums.assert_not_short();
    }
}
