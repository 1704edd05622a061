//! The first superblock is lost, wrong, or not the one that was asked for: what the log holds is kept, as by e2fsck
//! -fy.

use std::collections::BTreeSet;

use device::BlockDevice;
use lanefs::check::Code;
use lanefs::repair::RepairScope;
use lanefs::undo::{self, Draft};
use ondisk::superblock;
use sync::Arc;

use crate::images::{
    FILES, KINDS, Kind, bytes_of, check, copy_at, cuts_of_repair, dirty, first, judge, kept, mend,
    on, set_first,
};

/// Ways to lose the first superblock: what they are called, the image, and the copy that the user names, if one must be
/// named.
pub fn lost(kind: &Kind, bytes: &[u8]) -> Vec<(&'static str, Vec<u8>, Option<u64>)> {
    let changed = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = testkit::copy_image(bytes);
        change(&mut bytes);
        bytes
    };
    let other_size = |is_sealed: bool| {
        changed(&|bytes| {
            let mut sb = first(bytes);
            let log = sb.log_block_size();
            sb.set_log_block_size(if log == 0 { 2 } else { 0 });
            if is_sealed {
                sb.seal();
            }
            set_first(bytes, &sb);
        })
    };
    vec![
        ("zeros", changed(&|bytes| bytes[1024..2048].fill(0)), None),
        ("junk", changed(&|bytes| bytes[1024..2048].fill(0xA5)), None),
        ("wrong size", other_size(false), None),
        ("wrong size with its checksum", other_size(true), None),
        (
            "wrong inodes per group",
            changed(&|bytes| {
                let mut sb = first(bytes);
                sb.set_inodes_per_group(sb.inodes_per_group() + 8);
                sb.seal();
                set_first(bytes, &sb);
            }),
            None,
        ),
        (
            "a named copy",
            testkit::copy_image(bytes),
            Some(copy_at(kind)),
        ),
        (
            "zeros and a named copy",
            changed(&|bytes| bytes[1024..2048].fill(0)),
            Some(copy_at(kind)),
        ),
    ]
}

#[test]
fn a_repair_keeps_what_the_log_holds_whatever_became_of_the_first_superblock() {
    for kind in &KINDS {
        let whole = dirty(kind);
        assert!(
            first(&whole)
                .features()
                .has(ondisk::Feature::NEEDS_RECOVERY)
        );
        let unharmed = ("nothing", testkit::copy_image(&whole), None);
        for (how, bytes, copy) in lost(kind, &whole).into_iter().chain([unharmed]) {
            let what = format!("{}, {how}", kind.name);
            let device = on(&bytes);
            let outcome = mend(&device, RepairScope::All, copy);
            let after = bytes_of(&*device);
            assert!(outcome.repaired.after.is_clean(), "{what}: {outcome:?}");
            assert!(outcome.has_written(), "{what}");
            assert_eq!(kept(&after), FILES, "{what}");
            let sb = first(&after);
            assert_eq!(sb.state() & superblock::state::ERROR, 0, "{what}");
            assert!(check(&device, None).is_clean(), "{what}");
            judge(&after, &what);
        }
    }
}

/// Problems that are about the first superblock itself.
const OF_SUPERBLOCK: [Code; 3] = [
    Code::SuperblockFromBackup,
    Code::InodesPerGroup,
    Code::InodesCount,
];

#[test]
fn a_verdict_sees_the_log_whatever_became_of_the_first_superblock() {
    for kind in &KINDS {
        let whole = dirty(kind);
        for (how, bytes, copy) in lost(kind, &whole) {
            let what = format!("{}, {how}", kind.name);
            let report = check(&on(&bytes), copy);
            let codes: BTreeSet<Code> = report.counts.keys().copied().collect();
            assert!(
                codes.contains(&Code::JournalReplayed),
                "{what}: {:?}",
                report.problems
            );
            let is_expected = |it: &lanefs::check::Problem| {
                OF_SUPERBLOCK.contains(&it.code)
                    || it.kind().severity == lanefs::check::Severity::Note
            };
            assert!(
                report.problems.iter().all(is_expected),
                "{what}: {:?}",
                report.problems
            );
            assert_eq!(report.is_clean(), copy.is_some(), "{what}");
        }
    }
}

#[test]
fn a_careful_repair_leaves_a_lost_superblock_alone_unless_a_copy_is_named() {
    let kind = &KINDS[0];
    let whole = dirty(kind);
    for (how, bytes, copy) in lost(kind, &whole) {
        let device = on(&bytes);
        let outcome = mend(&device, RepairScope::Preen, copy);
        let after = bytes_of(&*device);
        assert_eq!(outcome.has_written(), copy.is_some(), "{how}");
        assert_eq!(outcome.repaired.after.is_clean(), copy.is_some(), "{how}");
        match copy {
            Some(_) => assert_eq!(kept(&after), FILES, "{how}"),
            None => assert!(after == bytes, "{how}: written to"),
        }
    }
}

#[test]
fn a_careful_repair_under_a_named_copy_that_refuses_only_sets_the_error_flag_of_the_first_superblock()
 {
    let kind = &KINDS[0];
    let mut bytes = dirty(kind);
    // Damage that needs a decision and that the log does not mend: lost+found's entry of itself names another inode.
    let dot = [11, 0, 0, 0, 12, 0, 1, 2, b'.'];
    let mut blocks = bytes.chunks_mut(kind.block_size.bytes());
    let block = blocks.find(|block| block.starts_with(&dot)).unwrap();
    block[0] = 13;
    let device = on(&bytes);
    let outcome = mend(&device, RepairScope::Preen, Some(copy_at(kind)));
    assert!(!outcome.repaired.after.is_clean(), "{outcome:?}");
    assert!(!outcome.has_written());
    // e2fsck -p sets it, too, but in the copy, which it writes over the first one.
    let mut sb = first(&bytes);
    sb.set_state(sb.state() | ondisk::superblock::state::ERROR);
    sb.seal();
    set_first(&mut bytes, &sb);
    assert!(bytes_of(&*device) == bytes, "written to");
}

#[test]
fn an_undo_file_takes_back_the_superblock_and_the_replay() {
    let kind = &KINDS[0];
    let whole = dirty(kind);
    let folder = tempfile::tempdir().unwrap();
    for (number, (how, bytes, copy)) in lost(kind, &whole).into_iter().enumerate() {
        let device = on(&bytes);
        let draft = Arc::new(Draft::new(Arc::clone(&device)));
        let tried = Arc::clone(&draft) as Arc<dyn BlockDevice>;
        mend(&tried, RepairScope::All, copy);
        assert!(bytes_of(&*device) == bytes, "{how}: written to");
        let file = folder.path().join(number.to_string());
        draft.save(&file).unwrap();
        mend(&device, RepairScope::All, copy);
        assert!(bytes_of(&*device) == bytes_of(&*tried), "{how}: as tried");
        undo::apply(&*device, &file).unwrap();
        assert!(bytes_of(&*device) == bytes, "{how}: taken back");
    }
}

/// Faults of the layout, which a repair mends before its transaction.
fn layout_faults(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>, Option<u64>)> {
    let mut reserved = testkit::copy_image(bytes);
    let mut sb = first(&reserved);
    sb.set_reserved_blocks_count(sb.blocks_count());
    sb.seal();
    set_first(&mut reserved, &sb);
    vec![("too many reserved blocks", reserved, None)]
}

/// With LANEFS_REPAIR_CUTS set, repairs are cut at every write.
#[test]
fn a_cut_at_any_write_loses_nothing_of_the_log() {
    for kind in [&KINDS[0], &KINDS[3]] {
        let whole = dirty(kind);
        let some = lost(kind, &whole)
            .into_iter()
            .filter(|(how, ..)| ["zeros", "a named copy"].contains(how));
        for (how, bytes, copy) in some.chain(layout_faults(&whole)) {
            let what = format!("{}, {how}", kind.name);
            let after = cuts_of_repair(&what, &bytes, copy, &|cut, what| {
                assert_eq!(kept(cut), FILES, "{what}");
            });
            judge(&after, &what);
        }
    }
}
