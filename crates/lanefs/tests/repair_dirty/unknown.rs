//! A file system with features that a check does not know is left as it is: a repair does not replay its log either.

use lanefs::check::Code;
use lanefs::repair::{RepairScope, is_marked_clean};
use ondisk::{Feature, Superblock};

use crate::forgotten::without_flag;
use crate::images::{by_e2fsck, bytes_of, check, first, mend, on, set_first};

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
    let mut bytes = bytes.to_vec();
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
    let seed = corpus::seeds().find(|seed| seed.name == "default-4k");
    let clean = seed.unwrap().bytes.to_vec();
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
    let seed = corpus::seeds()
        .find(|seed| seed.name == "dirty-4k")
        .unwrap();
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

/// Until the log is replayed, the superblock on the device does not show them.
#[test]
fn unknown_features_in_the_log_alone_end_a_repair_after_the_replay() {
    if !testkit::have("mke2fs") || !testkit::have("debugfs") {
        return testkit::skip("mke2fs or debugfs is missing");
    }
    for (what, change) in UNKNOWN {
        let dirty = with_superblock_in_log(change);
        let report = check(&on(&dirty), None);
        assert!(report.counts.contains_key(&Code::FeatureUnknown), "{what}");
        for bytes in [dirty.clone(), without_flag(&dirty)] {
            let device = on(&bytes);
            let outcome = mend(&device, RepairScope::All, None);
            let found = &outcome.repaired.before.counts;
            assert!(found.contains_key(&Code::FeatureUnknown), "{what}");
            assert!(!outcome.repaired.after.is_clean(), "{what}");
            let is_replayed = outcome.is_replayed && outcome.repaired.writes.is_none();
            assert!(is_replayed, "{what}: {outcome:?}");
            let replayed = bytes_of(&*device);
            assert_eq!(replayed[30_000 << 10..][..1024], [0x5A; 1024], "{what}");
            let outcome = mend(&device, RepairScope::All, None);
            assert!(!outcome.has_written(), "{what}");
            assert!(bytes_of(&*device) == replayed, "{what}: written to");
        }
    }
}
