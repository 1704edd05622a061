//! Repair as a target: any image is repaired or left alone, and what a repair calls clean is clean.

use check::repair::{RepairOptions, RepairScope, Repaired};
use sync::atomic::AtomicBool;

use super::edited;
use crate::overlay::PatchedBytes;

/// An image with numbers changed, as for [`super::image`], repaired in memory and checked again. One that was damaged
/// and is clean afterwards is sound.
pub fn repair(data: &[u8]) -> bool {
    edited(data, |image, _| {
        let Some(repaired) = decided(image) else {
            return false;
        };
        let Some(writes) = &repaired.writes else {
            return false;
        };
        let size = writes.block_size.bytes();
        let old = image.to_vec();
        let mut new = old.clone();
        for (target, source) in &writes.copies {
            let (to, from) = (*target as usize * size, *source as usize * size);
            new[to..to + size].copy_from_slice(&old[from..from + size]);
        }
        for (block, bytes) in &writes.blocks {
            let at = *block as usize * size;
            new[at..at + size].copy_from_slice(bytes);
        }
        let again = decided(&PatchedBytes::new(new.into())).map(|again| again.before);
        let is_clean = repaired.after.is_clean();
        assert!(
            again
                .as_ref()
                .is_some_and(|again| again.is_clean() == is_clean),
            "the verdict after the repair is another: {:?}",
            again.map(|again| again.problems)
        );
        is_clean && !repaired.before.is_clean()
    })
}

/// What a repair decides; none without a verdict.
fn decided(image: &PatchedBytes) -> Option<Repaired> {
    let options = RepairOptions {
        check: check::Options {
            threads: 1,
            memory: None,
            superblock: None,
            is_replayed: false,
            cancelled: &AtomicBool::new(false),
            progress: &|_| {},
            trace: None,
        },
        extent: RepairScope::All,
        now: 1_700_000_000,
        replay_failed: None,
        may_overwrite: true,
    };
    check::repair::repair(image, &options).ok()
}
