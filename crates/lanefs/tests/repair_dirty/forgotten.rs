//! The log is in use, but the superblock does not ask for a replay: a repair of everything replays it, as by e2fsck
//! -fy, and a careful one refuses, as e2fsck -p does.

use lanefs::check::Code;
use lanefs::repair::{RepairScope, is_marked_clean};
use ondisk::Feature;

use crate::images::{
    FILES, KINDS, by_e2fsck, bytes_of, check, cuts_of_repair, dirty, first, judge, kept, mend, on,
    set_first,
};

/// Takes away the flag that asks for a replay.
pub fn without_flag(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = testkit::copy_image(bytes);
    let mut sb = first(&bytes);
    sb.set_features(sb.features().without(Feature::NEEDS_RECOVERY));
    sb.seal();
    set_first(&mut bytes, &sb);
    bytes
}

#[test]
fn a_repair_of_everything_replays_a_log_that_nothing_asks_to_replay() {
    for kind in &KINDS {
        let bytes = without_flag(&dirty(kind));
        let after = cuts_of_repair(kind.name, &bytes, None, &|cut, what| {
            assert_eq!(kept(cut), FILES, "{what}");
        });
        judge(&after, kind.name);
        let outcome = mend(&on(&bytes), RepairScope::All, None);
        let found = &outcome.repaired.before.counts;
        assert!(
            found.contains_key(&Code::JournalNotReplayed),
            "{}",
            kind.name
        );
        if let Some(theirs) = by_e2fsck(&bytes) {
            assert!(kept(&theirs) <= FILES, "{}", kind.name);
            // A note: a mount would not replay it either, and e2fsck -fn exits with 0.
            let report = check(&on(&bytes), None);
            assert!(report.is_clean(), "{}", kind.name);
            assert!(report.counts.contains_key(&Code::JournalNotReplayed));
        }
    }
}

#[test]
fn a_careful_repair_leaves_such_a_log() {
    for kind in &KINDS {
        let bytes = without_flag(&dirty(kind));
        let device = on(&bytes);
        assert!(!is_marked_clean(&device).unwrap(), "{}", kind.name);
        let outcome = mend(&device, RepairScope::Preen, None);
        assert!(!outcome.has_written(), "{}", kind.name);
        assert!(outcome.repaired.is_refused, "{}", kind.name);
        mend(&device, RepairScope::All, None);
        assert_eq!(kept(&bytes_of(&*device)), FILES, "{}", kind.name);
    }
}
