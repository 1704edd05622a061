//! A file system with features that a check does not know is left as it is: a repair does not replay its log either.

use lanefs::check::Code;
use lanefs::repair::{RepairScope, is_marked_clean};
use ondisk::jbd2::JournalSuperblock;
use ondisk::{BlockSize, Feature, Superblock};

use crate::forgotten::without_flag;
use crate::images::{
    by_e2fsck, bytes_of, check, first, journal_at, mend, on, set_first, try_to_mend,
};

type Change = fn(&mut Superblock);

/// Sets one of two features that have no name: a file system with the first may be written to without it, one with the
/// second may be read only.
const UNKNOWN: [(&str, Change); 2] = [
    ("compatible", |sb| {
        let mut features = sb.features();
        features.compat |= 1 << 30;
        sb.set_features(features);
    }),
    ("compatible for reading", |sb| {
        let mut features = sb.features();
        features.ro_compat |= 1 << 30;
        sb.set_features(features);
    }),
];

fn with(bytes: &[u8], change: Change) -> Vec<u8> {
    let mut bytes = testkit::copy_image(bytes);
    let mut sb = first(&bytes);
    change(&mut sb);
    sb.seal();
    set_first(&mut bytes, &sb);
    bytes
}

/// An image whose log holds a copy of a free block alone.
fn with_log() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let [image, new] = ["image", "new"].map(|name| folder.path().join(name));
    testkit::mke2fs(&["-t", "ext4", "-b", "4096", image.to_str().unwrap(), "64M"]);
    std::fs::write(&new, [0x5A; 4096]).unwrap();
    let script = format!(
        "journal_open\njournal_write -b 15000 {}\njournal_close\n",
        new.display()
    );
    testkit::debugfs_script(&image, &script);
    testkit::read_image(&image)
}

#[test]
fn a_log_of_a_file_system_with_unknown_features_is_not_replayed() {
    if !testkit::have("mke2fs") || !testkit::have("debugfs") {
        return testkit::skip("mke2fs or debugfs is missing");
    }
    let dirty = with_log();
    for (number, (what, change)) in UNKNOWN.into_iter().enumerate() {
        let bytes = with(&dirty, change);
        let report = check(&on(&bytes), None);
        assert!(report.counts.contains_key(&Code::FeatureUnknown), "{what}");
        for scope in [RepairScope::Preen, RepairScope::All] {
            let device = on(&bytes);
            let outcome = mend(&device, scope, None);
            let found = &outcome.repaired.before.counts;
            assert!(found.contains_key(&Code::FeatureUnknown), "{what}");
            assert!(!outcome.repaired.after.is_clean(), "{what}");
            assert!(!outcome.has_written(), "{what}");
            assert!(bytes_of(&*device) == bytes, "{what}: written to");
        }
        // e2fsck -fy refuses both, too; the first only after it has replayed the log.
        if let Some(theirs) = by_e2fsck(&bytes) {
            assert_eq!(theirs == bytes, number == 1, "{what}");
        }
    }
}

#[test]
fn a_mark_that_all_is_clean_does_not_count_with_unknown_features() {
    let clean = testkit::copy_image(&corpus::seed("default-4k").bytes);
    assert!(is_marked_clean(&on(&clean)).unwrap());
    for (what, change) in UNKNOWN {
        assert!(
            !is_marked_clean(&on(&with(&clean, change))).unwrap(),
            "{what}"
        );
    }
}

/// As the kernel leaves it, whose log holds a superblock.
#[test]
fn an_older_superblock_in_the_log_decides_which_compatible_features_there_are() {
    let seed = corpus::seed("dirty-4k");
    let [compatible, for_reading] = UNKNOWN.map(|(_, change)| with(&seed.bytes, change));
    let (device, untouched) = (on(&compatible), on(&for_reading));
    let outcome = mend(&device, RepairScope::All, None);
    assert!(outcome.repaired.after.is_clean(), "{outcome:?}");
    assert!(outcome.is_replayed);
    let outcome = mend(&untouched, RepairScope::All, None);
    assert!(!outcome.repaired.after.is_clean());
    assert!(bytes_of(&*untouched) == for_reading, "written to");
    if let Some(theirs) = by_e2fsck(&compatible) {
        let all = first(&theirs).features();
        assert_eq!(all, first(&bytes_of(&*device)).features());
    }
    if let Some(theirs) = by_e2fsck(&for_reading) {
        assert!(theirs == for_reading);
    }
}

/// An image whose log holds copies of a free block and of the superblock, which is changed there.
fn with_superblock_in_log(change: Change) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let [image, free, new] = ["image", "free", "new"].map(|name| folder.path().join(name));
    testkit::mke2fs(&["-t", "ext4", "-b", "1024", image.to_str().unwrap(), "32M"]);
    std::fs::write(&free, [0x5A; 1024]).unwrap();
    let mut sb = first(&testkit::read_image(&image));
    sb.set_features(sb.features().with(Feature::NEEDS_RECOVERY));
    change(&mut sb);
    sb.seal();
    std::fs::write(&new, sb.bytes()).unwrap();
    let script = format!(
        "journal_open\njournal_write -b 30000 {}\njournal_write -b 1 {}\njournal_close\n",
        free.display(),
        new.display()
    );
    testkit::debugfs_script(&image, &script);
    testkit::read_image(&image)
}

/// Changes the copy of the free block, which is the second block of the log, so that its checksum is wrong.
fn with_damaged_copy(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let journal = journal_at(BlockSize::K1, &bytes);
    let start = JournalSuperblock::read(&bytes[journal..]).unwrap().start() as usize;
    let copy = &mut bytes[journal + (start + 1) * 1024..][..1024];
    assert_eq!(copy, [0x5A; 1024]);
    copy[1000] = 0;
    bytes
}

/// Until the log is replayed, the superblock on the device does not show them.
#[test]
fn a_log_whose_superblock_has_unknown_features_is_not_replayed() {
    if !testkit::have("mke2fs") || !testkit::have("debugfs") {
        return testkit::skip("mke2fs or debugfs is missing");
    }
    let needed: (&str, Change) = ("needed for reading", |sb| {
        let mut features = sb.features();
        features.incompat |= 1 << 30;
        sb.set_features(features);
    });
    let mut wrong = Vec::new();
    for (what, change) in UNKNOWN.into_iter().chain([needed]) {
        let dirty = with_superblock_in_log(change);
        assert!(first(&dirty).features() != first(&with(&dirty, change)).features());
        let mut lost = dirty.clone();
        lost[1024..2048].fill(0);
        let states = [
            ("as it is", dirty.clone()),
            ("no flag", without_flag(&dirty)),
            ("lost superblock", lost),
            ("damaged copy", with_damaged_copy(&dirty)),
        ];
        for (state, bytes) in states {
            let device = on(&bytes);
            let is_refused = match try_to_mend(&device, RepairScope::All, None) {
                Ok(outcome) => {
                    let found = &outcome.repaired.before.counts;
                    found.contains_key(&Code::FeatureUnknown)
                        && !outcome.repaired.after.is_clean()
                        && !outcome.has_written()
                }
                Err(error) => what == needed.0 && error.to_string().contains("feature"),
            };
            let is_written = bytes_of(&*device) != bytes;
            if !is_refused || is_written {
                wrong.push(format!("{what}, {state}: {is_refused}, {is_written}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
