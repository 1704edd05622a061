//! What `info --json` prints for programs.

use inspect::{ImageFacts, Since};
use ondisk::features::{Feature, Word};
use ondisk::text::{PrintedName, Uuid};
use serde_json::{Value, json};

use super::{frag, in_word, journal};

/// All of it; `version` changes when a field changes its meaning or goes away.
pub fn json(facts: &ImageFacts<'_>) -> Value {
    let raw = facts.raw;
    let (sb, geometry) = (&raw.superblock, &raw.geometry);
    let names = |word| {
        in_word(geometry.features(), word)
            .map(|f| f.to_string())
            .collect::<Vec<_>>()
    };
    let needs = facts.needs();
    let use_of = |index: usize| {
        let need = &needs[index];
        let because: Vec<String> = need.because.iter().map(Feature::to_string).collect();
        json!({
            "possible": need.since != Since::Never,
            "since": need.version(),
            "because": because,
        })
    };
    let mut all = json!({
        "version": 1,
        "family": facts.family(),
        "label": PrintedName(sb.label()).to_string(),
        "uuid": Uuid(sb.uuid()).to_string(),
        "state": {
            "clean": facts.state() == "clean",
            "needs_recovery": raw.needs_recovery(),
            "errors": sb.error_count(),
            "text": facts.state(),
        },
        "block_size": geometry.block_size().bytes(),
        "cluster_size": u64::from(geometry.cluster_ratio()) << geometry.block_size().bits(),
        "blocks": geometry.blocks_count(),
        "bytes": geometry.bytes(),
        "free_bytes": facts.free_bytes(),
        "reserved_blocks": sb.reserved_blocks_count(),
        "inode_size": geometry.inode_size(),
        "inodes": geometry.inodes_count(),
        "free_inodes": facts.groups.free_inodes,
        "directories": facts.groups.directories,
        "groups": geometry.groups(),
        "blocks_per_group": geometry.blocks_per_group(),
        "inodes_per_group": geometry.inodes_per_group(),
        "flex_size": geometry.flex_size(),
        "broken_groups": facts.groups.broken,
        "journal": journal::json(&facts.journal),
        "made": sb.mkfs_time(),
        "last_mounted": sb.mount_time(),
        "last_mounted_at": PrintedName(sb.last_mounted()).to_string(),
        "features": {
            "compat": names(Word::Compat),
            "incompat": names(Word::Incompat),
            "ro_compat": names(Word::RoCompat),
        },
        "usable_by": {
            "linux_read": use_of(0),
            "linux_write": use_of(1),
            "e2fsprogs": use_of(2),
            "grub": use_of(3),
        },
    });
    if let Some(found) = &facts.frag {
        all["fragmentation"] = frag::json(found, geometry);
    }
    all
}
