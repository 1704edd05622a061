//! Repairs of images whose journal must be replayed, and of mutants of them, compared with e2fsck -fy. An image that
//! e2fsck makes clean must be clean after one repair for both checkers, no file may keep fewer of its bytes, and a
//! repair with -p must then find nothing to do.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use corpus::{PatchedBytes, Seed, Structures};
use device::{BlockDevice, MemoryDevice};
use engine::{InodeFs, MountOptions};
use lanefs::check::Options;
use lanefs::repair::{Outcome, RepairError, RepairScope, repair};
use ondisk::{FileType, Ino};
use sync::Arc;
use sync::atomic::AtomicBool;

const NOW: u64 = 1_795_800_000;
/// Bytes of a piece of a file, the unit in which kept bytes are counted.
const PIECE: usize = 512;
/// Bytes of the largest image of e2fsprogs that is repaired.
const IMAGE_MAX: usize = 1 << 30;
/// The most bytes that are read of a file.
const FILE_MAX: usize = 4 << 20;

fn options(cancelled: &AtomicBool) -> Options<'_> {
    Options {
        threads: 1,
        memory: None,
        superblock: None,
        is_replayed: false,
        cancelled,
        progress: &|_| {},
        trace: None,
    }
}

/// Repairs an image; returns its bytes after that.
fn mend(bytes: &[u8], extent: RepairScope) -> (Vec<u8>, Result<Outcome, RepairError>) {
    let cancelled = AtomicBool::new(false);
    let device = Arc::new(MemoryDevice::from_bytes(bytes));
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let outcome = repair(&shared, None, extent, &options(&cancelled), NOW);
    let mut after = vec![0; bytes.len()];
    device.read_at(0, &mut after).unwrap();
    (after, outcome)
}

fn is_clean(bytes: &[u8]) -> bool {
    let cancelled = AtomicBool::new(false);
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(bytes));
    lanefs::check::check(&device, None, &options(&cancelled)).is_ok_and(|report| report.is_clean())
}

/// Runs e2fsck, or the program that `LANEFS_E2FSCK` names; returns its status, its output, and the image after that.
fn e2fsck(bytes: &[u8], options: &str) -> (Option<i32>, String, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    testkit::write_image(&image, bytes);
    let output = testkit::e2fsck_within(20, &[options], &image, None).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // e2fsck writes blocks that the superblock names beyond the end: the file becomes terabytes long.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    let after = testkit::read_image(&image);
    (output.status.code(), text, after)
}

/// The readable contents of the regular files, by inode number.
fn files(bytes: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(bytes));
    let mut files = BTreeMap::new();
    let Ok(fs) = InodeFs::open(device, &MountOptions::default()) else {
        return files;
    };
    // Lower numbers are the file system's own files, whose contents depend on the other files.
    for ino in 13..=fs.geometry().inodes_count() {
        let Ok(metadata) = fs.metadata(Ino(ino)) else {
            continue;
        };
        if metadata.file_type != FileType::Regular || metadata.nlink == 0 {
            continue;
        }
        let mut contents = Vec::new();
        let mut piece = vec![0; 64 << 10];
        while contents.len() < FILE_MAX {
            match fs.read(Ino(ino), contents.len() as u64, &mut piece) {
                Ok(0) | Err(_) => break,
                Ok(len) => contents.extend_from_slice(&piece[..len]),
            }
        }
        files.insert(ino, contents);
    }
    files
}

/// Counts the pieces of files that are unchanged, except pieces of zeros.
fn kept(original: &BTreeMap<u32, Vec<u8>>, image: &[u8]) -> usize {
    let found = files(image);
    let pairs = original
        .iter()
        .filter_map(|(ino, old)| Some((old, found.get(ino)?)));
    let pieces = pairs.flat_map(|(old, new)| old.chunks(PIECE).zip(new.chunks(PIECE)));
    pieces
        .filter(|(old, new)| old == new && old.iter().any(|byte| *byte != 0))
        .count()
}

#[derive(Default, Debug)]
struct Sums {
    runs: u32,
    /// Images that e2fsck -fy makes clean.
    theirs: u32,
    /// Those of them that are clean for both checkers after a repair.
    ours: u32,
    only_ours: u32,
    fewer: u32,
    more: u32,
}

impl Sums {
    /// Repairs one image; returns why the repair is worse than e2fsck's, if it is. Without the original files, those
    /// that e2fsck keeps must be kept.
    fn judge(&mut self, original: Option<&BTreeMap<u32, Vec<u8>>>, bytes: &[u8]) -> Option<String> {
        self.runs += 1;
        let (status, _, theirs) = e2fsck(bytes, "-fy");
        let is_theirs =
            status.is_some_and(|status| status & !3 == 0) && e2fsck(&theirs, "-fn").0 == Some(0);
        self.theirs += u32::from(is_theirs);
        let (ours, outcome) = mend(bytes, RepairScope::All);
        let (status, text, _) = e2fsck(&ours, "-fn");
        let is_ours = is_clean(&ours) && status == Some(0);
        if !is_theirs {
            self.only_ours += u32::from(is_ours);
            return None;
        }
        if !is_ours {
            let left = outcome.map_or_else(
                |error| error.to_string(),
                |outcome| format!("{:#?}", outcome.repaired.after.problems),
            );
            return Some(format!("left: {left}\ne2fsck ({status:?}): {text}"));
        }
        self.ours += 1;
        let (again, outcome) = mend(&ours, RepairScope::Preen);
        assert!(
            again == ours && !outcome.unwrap().has_written(),
            "a repair with -p changes the mended image"
        );
        let of_theirs = original.is_none().then(|| files(&theirs));
        let original = original.or(of_theirs.as_ref())?;
        if let Some(folder) = std::env::var_os("LANEFS_REPAIR_DUMP") {
            std::fs::write(Path::new(&folder).join("ours.img"), &ours).unwrap();
            std::fs::write(Path::new(&folder).join("theirs.img"), &theirs).unwrap();
        }
        let (ours, theirs) = (kept(original, &ours), kept(original, &theirs));
        self.more += u32::from(ours > theirs);
        self.fewer += u32::from(ours < theirs);
        (ours < theirs).then(|| format!("keeps {ours} pieces, e2fsck {theirs}"))
    }
}

fn one_seed(seed: &Seed, numbers: std::ops::Range<u64>, sums: &mut Sums, is_loud: bool) {
    let original = files(&seed.bytes);
    assert!(!original.is_empty());
    let structures = Structures::of(&PatchedBytes::new(Arc::clone(&seed.bytes)));
    for number in std::iter::once(None).chain(numbers.map(Some)) {
        let bytes = match number {
            Some(number) => corpus::mutant(&seed.bytes, &structures, number).0.to_vec(),
            None => seed.bytes.to_vec(),
        };
        let words = sums.judge(Some(&original), &bytes);
        assert!(
            number.is_some() || words.is_none(),
            "{}: {words:?}",
            seed.name
        );
        if let (Some(words), true) = (words, is_loud) {
            println!("{} {number:?} {words}", seed.name);
            if let Some(folder) = std::env::var_os("LANEFS_REPAIR_SAVE") {
                let name = format!("{}-{}.img", seed.name, number.unwrap_or(0));
                std::fs::write(std::path::Path::new(&folder).join(name), &bytes).unwrap();
            }
        }
    }
}

/// `LANEFS_REPAIR_DIRTY` sets the number of mutants of each image and `LANEFS_REPAIR_FIRST` the number of the first
/// one. `LANEFS_REPAIR_SAVE` names a folder for images on which a repair is worse than e2fsck's.
#[test]
fn images_that_must_be_replayed_are_mended_in_one_run() {
    if !testkit::have("e2fsck") {
        return testkit::skip("e2fsck is missing");
    }
    let number = |variable: &str| std::env::var(variable).ok()?.parse::<u64>().ok();
    let asked = number("LANEFS_REPAIR_DIRTY");
    let first = number("LANEFS_REPAIR_FIRST").unwrap_or(0);
    let mut sums = Sums::default();
    for seed in corpus::seeds().filter(|seed| seed.name.starts_with("dirty")) {
        let numbers = first..first + asked.unwrap_or(2);
        one_seed(&seed, numbers, &mut sums, asked.is_some());
    }
    println!("{sums:?}");
    let short = sums.theirs - sums.ours + sums.fewer;
    assert!(short <= 1 + sums.theirs / 200, "{sums:?}");
}

#[test]
fn a_log_with_a_damaged_copy_of_a_block_is_replayed_without_that() {
    if !testkit::have("e2fsck") {
        return testkit::skip("e2fsck is missing");
    }
    for name in ["dirty-1k", "dirty-4k"] {
        let seed = corpus::seed(name);
        let structures = Structures::of(&PatchedBytes::new(Arc::clone(&seed.bytes)));
        // The second mutation of this mutant is in a file's inode, which the log mends.
        let bytes = corpus::mutant(&seed.bytes, &structures, 910_055).0.to_vec();
        let words = Sums::default().judge(Some(&files(&seed.bytes)), &bytes);
        assert_eq!(words, None, "{name}");
    }
}

/// The image of a test of e2fsprogs, unpacked; none where the test has none that is packed in one file.
fn unpacked(folder: &Path) -> Option<Vec<u8>> {
    let output = Command::new("gzip")
        .arg("-dc")
        .arg(folder.join("image.gz"))
        .output();
    let bytes = output.ok().filter(|it| it.status.success())?.stdout;
    (2048..IMAGE_MAX).contains(&bytes.len()).then_some(bytes)
}

/// `LANEFS_E2FSPROGS` names the folder `tests` of e2fsprogs' sources, `LANEFS_REPAIR_SEED` one test of them.
#[test]
fn images_of_e2fsprogs_are_mended_as_by_e2fsck() {
    let Some(tests) = std::env::var_os("LANEFS_E2FSPROGS") else {
        return testkit::skip("LANEFS_E2FSPROGS does not name e2fsprogs' folder of tests");
    };
    let only = std::env::var("LANEFS_REPAIR_SEED").ok();
    let entries = std::fs::read_dir(tests).unwrap();
    let mut folders: Vec<_> = entries.map(|it| it.unwrap().path()).collect();
    folders.sort();
    let mut sums = Sums::default();
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let is_asked = only.as_ref().is_none_or(|only| *only == name);
        let is_check = name.starts_with("f_") || name.starts_with("j_");
        if let Some(bytes) = unpacked(&folder).filter(|_| is_asked && is_check)
            && let Some(words) = sums.judge(None, &bytes)
        {
            println!("{name}: {words}");
        }
    }
    println!("{sums:?}");
}
