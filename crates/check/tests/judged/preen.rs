//! What `-p` mends, beside e2fsck -p: an image of each problem of the table, as far as one can be made.

use std::collections::{BTreeMap, BTreeSet};

use corpus::{PatchedBytes, Structures};
use lanefs_check::problem::{Code, TABLE};
use lanefs_check::repair::RepairScope;
use lanefs_check::{Preen, Severity};
use ondisk::{Ino, Superblock};
use sync::Arc;

use crate::mended::{Damaged, seed};
use crate::numbers;
use crate::preen_images;
use crate::repair::{decide, files, kept, written};
use crate::{check, shown};

/// Mutants that show what the images of `numbers` do not: their numbers, and whether their checksums are right.
const MUTANTS: &[(&str, &[(u64, bool)])] = &[
    (
        "bigalloc",
        &[
            (700_002, true),
            (700_009, false),
            (700_010, true),
            (700_014, false),
            (700_016, true),
            (700_030, true),
            (700_038, false),
            (700_039, true),
            (700_042, false),
            (700_043, true),
            (700_044, true),
            (700_045, true),
            (700_050, true),
            (700_057, false),
            (700_061, true),
            (700_066, true),
            (700_074, true),
            (700_085, true),
            (700_087, true),
            (700_091, true),
            (700_112, true),
            (700_114, true),
            (700_117, false),
            (700_127, true),
            (700_188, true),
            (700_218, true),
            (700_234, true),
            (700_247, true),
            (700_267, true),
            (700_317, true),
            (700_330, true),
            (700_429, true),
            (700_442, true),
            (700_448, true),
            (700_495, true),
            (700_497, true),
            (700_512, false),
            (700_556, true),
            (700_613, true),
            (700_674, true),
            (700_704, true),
            (700_741, true),
            (700_750, true),
            (700_767, true),
            (700_861, true),
            (700_943, true),
            (701_033, true),
            (701_376, true),
            (701_438, true),
            (701_448, true),
            (701_466, true),
        ],
    ),
    (
        "block-16k",
        &[
            (700_016, true),
            (700_058, true),
            (700_099, true),
            (700_124, true),
            (700_137, true),
            (700_242, true),
            (700_317, true),
            (700_396, true),
            (700_401, true),
            (700_483, true),
            (700_528, true),
            (700_714, true),
            (700_736, true),
            (701_040, true),
        ],
    ),
    (
        "block-64k",
        &[(700_234, true), (700_908, true), (701_316, true)],
    ),
    (
        "casefold",
        &[
            (700_002, true),
            (700_132, true),
            (700_425, true),
            (700_453, true),
            (701_028, true),
            (701_128, true),
            (701_491, true),
        ],
    ),
    ("csum-seed", &[(700_051, true), (701_018, true)]),
    ("default-2k", &[(700_077, true), (700_167, true)]),
    ("default-4k", &[(3_000_981, true)]),
    ("ea-inode", &[(700_260, true), (700_291, true)]),
    ("encrypted", &[(700_383, true)]),
    (
        "ext2-1k",
        &[
            (700_000, true),
            (700_007, true),
            (700_203, true),
            (700_599, true),
            (701_454, true),
        ],
    ),
    (
        "ext3-1k",
        &[(700_340, true), (3_000_365, true), (3_002_787, true)],
    ),
    (
        "inline-data",
        &[(700_801, true), (3_001_280, true), (3_002_480, true)],
    ),
    ("inline-data-512", &[(700_355, true)]),
    (
        "meta-bg",
        &[
            (700_181, true),
            (700_202, true),
            (700_243, true),
            (700_540, true),
            (700_892, true),
            (701_122, true),
            (701_443, true),
        ],
    ),
    ("no-journal", &[(700_371, true), (700_809, true)]),
    ("quota-verity", &[(700_002, true), (700_258, true)]),
    ("sparse-super2", &[(700_643, true)]),
];

/// Problems that no image has by itself: for blocks that can't be read the device must fail, as in `found.rs`, and what
/// became of the log is reported by the caller that replays it, as the tests of `lanefs` show.
const WITHOUT_IMAGE: &[Code] = &[
    Code::DescriptorUnreadable,
    Code::JournalReplayFailed,
    Code::JournalReplayed,
    Code::TableUnreadable,
    Code::MapUnreadable,
    Code::DirectoryUnreadable,
    Code::BlockBitmapUnreadable,
];

/// Problems for which `-p` refuses although an e2fsck -p mends an image with them, or sees nothing: section "What it
/// leaves" of docs/decisions/0024 says why.
const MENDED_BY_E2FSCK: &[Code] = &[
    Code::JournalInode,
    Code::JournalSuperblock,
    Code::ResizeInode,
    Code::ReservedMode,
    Code::JournalInodeLeft,
    Code::QuotaInodeLeft,
    Code::InodeSize,
    Code::DeviceSize,
    Code::ExtraSize,
    Code::InodeChecksum,
    Code::InlineSize,
    Code::ExtentsFlagMissing,
    Code::ExtentUnwrittenDirectory,
    Code::XattrHash,
    Code::XattrValueInode,
    Code::XattrValueSize,
    Code::EntryValueInode,
    Code::DirectoryFeature,
    Code::DirectoryChecksum,
    Code::EntryUnused,
    Code::EntryUninit,
    Code::InodeMode,
    Code::InodeReserved,
    Code::HtreeRoot,
    Code::HtreeLimit,
    Code::HtreeCount,
    Code::HtreeOrder,
    Code::HtreeMax,
    Code::HtreeRootChecksum,
    Code::HtreeChecksum,
    Code::NoRoot,
    Code::BlockFreeUsed,
    Code::InodeFreeUsed,
    Code::QuotaInode,
];

/// An image of which both judge.
struct Case {
    what: String,
    bytes: Vec<u8>,
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    numbers::each(|bytes, what, _| {
        cases.push(Case {
            what,
            bytes: bytes.to_vec(),
        });
    });
    for (name, mutants) in MUTANTS {
        let bytes: Arc<[u8]> = Arc::from(seed(name));
        let structures = Structures::of(&PatchedBytes::new(Arc::clone(&bytes)));
        for (number, is_sealed) in *mutants {
            let (mutant, _) = match is_sealed {
                true => corpus::mutant(&bytes, &structures, *number),
                false => corpus::unsealed_mutant(&bytes, &structures, *number),
            };
            cases.push(Case {
                what: format!("{name} {number}"),
                bytes: mutant.to_vec(),
            });
        }
    }
    for (code, image) in preen_images::IMAGES {
        let Some(bytes) = image() else { continue };
        let what = format!("the image of {code:?}");
        let report = check(&bytes, 1).unwrap();
        assert!(
            report.counts.contains_key(code),
            "{what}: {}",
            shown(&report)
        );
        cases.push(Case { what, bytes });
    }
    let mut late = Damaged::new(seed("default-1k"));
    late.change_superblock(|sb| {
        sb.set_mount_time(4_000_000_000);
        sb.set_write_time(4_000_000_000);
    });
    cases.push(Case {
        what: "times in the future".to_owned(),
        bytes: late.bytes,
    });
    cases
}

/// The files of an image without those that say how much the others take.
fn of_users(bytes: &[u8]) -> BTreeMap<u32, Vec<u8>> {
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

/// What e2fsck -fp makes of an image; `None` if it refuses.
fn by_e2fsck(bytes: &[u8], folder: &std::path::Path) -> Option<Vec<u8>> {
    let path = folder.join("image");
    testkit::write_image(&path, bytes);
    let output = testkit::e2fsck_within(10, &["-fp"], &path, None).unwrap();
    let status = output.status.code()?;
    (status & !3 == 0).then(|| testkit::read_image(&path))
}

#[test]
fn what_a_careful_repair_mends_and_refuses_is_what_e2fsck_p_mends_and_refuses() {
    if !testkit::have("mke2fs") || !testkit::have("debugfs") || !testkit::have("e2fsck") {
        return testkit::skip("mke2fs, debugfs or e2fsck is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut met = BTreeSet::new();
    let mut refused = BTreeSet::new();
    let mut wrong = Vec::new();
    for Case { what, bytes } in cases() {
        let Ok(decided) = decide(&bytes, RepairScope::Preen, 1) else {
            continue;
        };
        let found: Vec<Code> = decided.before.counts.keys().copied().collect();
        met.extend(found.iter().copied());
        let needs_decision = found
            .iter()
            .filter(|code| code.kind().preen == Preen::Refuses);
        let needs_decision: BTreeSet<Code> = needs_decision.copied().collect();
        let ours =
            (!decided.is_refused && decided.after.is_clean()).then(|| match &decided.writes {
                Some(writes) => written(&bytes, writes),
                None => bytes.clone(),
            });
        if ours.is_some() != needs_decision.is_empty() {
            wrong.push(format!("{what}, {found:?}: not as the table says"));
        }
        match (ours, by_e2fsck(&bytes, folder.path())) {
            (Some(ours), Some(theirs)) => {
                let all = of_users(&theirs);
                let (most, kept) = (kept(&all, &theirs), kept(&all, &ours));
                if kept < most {
                    wrong.push(format!("{what}, {found:?}: keeps {kept} of {most} pieces"));
                }
            }
            (Some(_), None)
                if found
                    .iter()
                    .any(|code| code.kind().severity != Severity::Note) =>
            {
                wrong.push(format!("{what}, {found:?}: e2fsck -p refuses"));
            }
            (None, Some(_)) => {
                let ours_alone = needs_decision
                    .into_iter()
                    .filter(|code| !code.is_beyond_e2fsck());
                refused.extend(ours_alone);
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let all = TABLE.iter().map(|kind| kind.code);
    let without: Vec<Code> = all.filter(|code| !met.contains(code)).collect();
    // Which of them it mends depends on its version.
    refused.retain(|code| !MENDED_BY_E2FSCK.contains(code));
    assert!(refused.is_empty(), "e2fsck -p mends {refused:?}");
    assert_eq!(without, WITHOUT_IMAGE);
}
