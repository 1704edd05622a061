//! `lanefs info`: what a file system is, how full, in which state, and who can use it. Counts come from the group
//! descriptors, not from the superblock, whose own are only right after a clean unmount.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use ondisk::features::{Feature, Features, Word};
use ondisk::group_desc::flags;
use ondisk::superblock::state;
use ondisk::text::{Bytes, Name, SuperblockText, Utc, Uuid};
use serde_json::{Value, json};

use crate::args::ImageArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::raw::Raw;

mod journal;
mod users;

use journal::Journal;
use users::{Need, Since, Use};

/// What the file system is, how full, in which state, and who can use it
#[derive(Args)]
pub struct InfoArgs {
    /// The image, a file or block device
    image: PathBuf,
    #[command(flatten)]
    place: ImageArgs,
    /// Print every field of the superblock too
    #[arg(short, long)]
    all: bool,
    /// Print JSON (version 1)
    #[arg(long, conflicts_with = "all")]
    json: bool,
}

/// Sums over all groups.
#[derive(Default)]
struct Groups {
    free_clusters: u64,
    free_inodes: u64,
    directories: u64,
    block_uninit: u64,
    inode_uninit: u64,
    full: u64,
    broken: u64,
    first_error: Option<String>,
}

struct Facts<'a> {
    raw: &'a Raw,
    groups: Groups,
    journal: Journal,
}

impl InfoArgs {
    /// Runs the command.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let raw = Raw::open(&self.image, &self.place)?;
        let facts = Facts {
            groups: count(&raw)?,
            journal: Journal::look(&raw),
            raw: &raw,
        };
        let mut out = context.stdout();
        if self.json {
            serde_json::to_writer_pretty(&mut out, &facts.json()).map_err(std::io::Error::from)?;
            writeln!(out)?;
        } else {
            writeln!(
                out,
                "{}",
                facts.text(&Name(self.image.as_os_str().as_encoded_bytes()))
            )?;
            if self.all {
                writeln!(out, "\nSuperblock\n{}", SuperblockText(&raw.superblock))?;
            }
        }
        out.flush()?;
        if let Some(error) = &facts.groups.first_error {
            context.warn(format!(
                "{} group descriptors are broken, so the sums are too low; the first: {error}",
                facts.groups.broken
            ));
        }
        Ok(())
    }
}

fn count(raw: &Raw) -> Result<Groups, Failure> {
    let mut sums = Groups::default();
    raw.descs(|group, desc| {
        match desc {
            Ok(desc) => {
                sums.free_clusters += u64::from(desc.free_clusters());
                sums.free_inodes += u64::from(desc.free_inodes());
                sums.directories += u64::from(desc.used_dirs());
                sums.block_uninit += u64::from(desc.has(flags::BLOCK_UNINIT));
                sums.inode_uninit += u64::from(desc.has(flags::INODE_UNINIT));
                sums.full += u64::from(desc.free_clusters() == 0);
            }
            Err(corrupt) => {
                sums.broken += 1;
                sums.first_error
                    .get_or_insert_with(|| corrupt.group(group).to_string());
            }
        }
        Ok(())
    })?;
    Ok(sums)
}

/// The name of a family of file systems with these features, as everyone calls it.
fn family(features: Features) -> &'static str {
    let ext3 = Features::of(&[Feature::FILETYPE, Feature::NEEDS_RECOVERY, Feature::META_BG]);
    let ext3_ro = Features::of(&[
        Feature::SPARSE_SUPER,
        Feature::LARGE_FILE,
        Feature::BTREE_DIR,
    ]);
    let newer = features.minus(ext3.union(ext3_ro));
    if newer.incompat != 0 || newer.ro_compat != 0 {
        "ext4"
    } else if features.has(Feature::HAS_JOURNAL) {
        "ext3"
    } else {
        "ext2"
    }
}

impl Facts<'_> {
    fn free_bytes(&self) -> u64 {
        let geometry = &self.raw.geometry;
        let cluster = u64::from(geometry.cluster_ratio()) << geometry.block_size().bits();
        self.groups
            .free_clusters
            .saturating_mul(cluster)
            .min(geometry.bytes())
    }

    fn state(&self) -> String {
        let sb = &self.raw.superblock;
        let mut words = Vec::new();
        if self.raw.needs_recovery() {
            words.push("the journal must be replayed".to_string());
        }
        if sb.state() & state::ERROR != 0 || sb.error_count() > 0 {
            words.push(format!("errors were found ({} so far)", sb.error_count()));
        }
        if sb.state() & state::VALID == 0 {
            words.push("in use, or not unmounted cleanly".into());
        }
        if sb.last_orphan().is_some() || self.raw.geometry.has(Feature::ORPHAN_PRESENT) {
            words.push("orphans wait to be removed".into());
        }
        if words.is_empty() {
            "clean".into()
        } else {
            words.join("; ")
        }
    }

    fn text(&self, image: &Name<'_>) -> String {
        let raw = self.raw;
        let (sb, geometry) = (&raw.superblock, &raw.geometry);
        let mut lines = vec![format!(
            "{image}: {} file system",
            family(geometry.features())
        )];
        let mut field = |name: &str, value: String| lines.push(format!("  {name:<14}{value}"));
        let label = sb.label();
        field(
            "label",
            if label.is_empty() {
                "(none)".into()
            } else {
                Name(label).to_string()
            },
        );
        field("UUID", Uuid(sb.uuid()).to_string());
        field("state", self.state());
        let block = Bytes(geometry.block_size().bytes_u64());
        field(
            "size",
            format!(
                "{} ({} blocks of {block})",
                Bytes(geometry.bytes()),
                geometry.blocks_count()
            ),
        );
        let percent = self.free_bytes() as f64 * 100.0 / geometry.bytes() as f64;
        let reserved = sb.reserved_blocks_count() << geometry.block_size().bits();
        let kept = if reserved == 0 {
            String::new()
        } else {
            format!(", {} of it reserved", Bytes(reserved))
        };
        field(
            "free",
            format!("{} ({percent:.1}%){kept}", Bytes(self.free_bytes())),
        );
        field(
            "inodes",
            format!(
                "{} of {} bytes, {} free, {} directories",
                geometry.inodes_count(),
                geometry.inode_size(),
                self.groups.free_inodes,
                self.groups.directories
            ),
        );
        field("groups", self.groups_line());
        field("journal", self.journal.to_string());
        let made = i64::try_from(sb.mkfs_time()).unwrap_or(i64::MAX);
        field("made", Utc(made).to_string());
        if sb.mount_time() != 0 {
            let mounted = i64::try_from(sb.mount_time()).unwrap_or(i64::MAX);
            let at = Name(sb.last_mounted());
            field("last mounted", format!("{} at {at}", Utc(mounted)));
        }
        for (name, word) in [
            ("compat", Word::Compat),
            ("incompat", Word::Incompat),
            ("ro_compat", Word::RoCompat),
        ] {
            let names: Vec<String> = in_word(geometry.features(), word)
                .map(|f| f.to_string())
                .collect();
            field(
                name,
                if names.is_empty() {
                    "(none)".into()
                } else {
                    names.join(" ")
                },
            );
        }
        lines.push("Who can use it".into());
        for (name, need, verb) in self.needs() {
            lines.push(format!("  {name:<14}{}", sentence(&need, verb)));
        }
        if geometry.block_size().bytes() > 4096 {
            lines.push(format!(
                "  {:<14}Linux mounts blocks of {block} where memory pages are as large, and from 6.19 on anywhere",
                "note"
            ));
        }
        lines.join("\n")
    }

    fn groups_line(&self) -> String {
        let geometry = &self.raw.geometry;
        let bytes = u64::from(geometry.blocks_per_group()) << geometry.block_size().bits();
        let mut line = format!("{} of {}", geometry.groups(), Bytes(bytes));
        if geometry.flex_size() > 1 {
            line += &format!(", {} to a flexible group", geometry.flex_size());
        }
        if geometry.cluster_ratio() > 1 {
            let cluster = u64::from(geometry.cluster_ratio()) << geometry.block_size().bits();
            line += &format!(", clusters of {}", Bytes(cluster));
        }
        if self.groups.block_uninit > 0 {
            line += &format!(", {} never used", self.groups.block_uninit);
        }
        if self.groups.full > 0 {
            line += &format!(", {} full", self.groups.full);
        }
        line
    }

    fn needs(&self) -> [(&'static str, Need, &'static str); 4] {
        let features = self.raw.geometry.features();
        let need = |purpose| users::need(features, purpose);
        [
            ("Linux reads", need(Use::LinuxRead), "read it"),
            ("Linux writes", need(Use::LinuxWrite), "write it"),
            ("e2fsprogs", need(Use::E2fsprogs), "check and change it"),
            ("GRUB", need(Use::Grub), "boot from it"),
        ]
    }

    fn json(&self) -> Value {
        let raw = self.raw;
        let (sb, geometry) = (&raw.superblock, &raw.geometry);
        let names = |word| {
            in_word(geometry.features(), word)
                .map(|f| f.to_string())
                .collect::<Vec<_>>()
        };
        let needs = self.needs();
        let use_of = |index: usize| {
            let need: &Need = &needs[index].1;
            let because: Vec<String> = need.because.iter().map(Feature::to_string).collect();
            json!({
                "possible": need.since != Since::Never,
                "since": need.since.version(),
                "because": because,
            })
        };
        json!({
            "version": 1,
            "family": family(geometry.features()),
            "label": Name(sb.label()).to_string(),
            "uuid": Uuid(sb.uuid()).to_string(),
            "state": {
                "clean": self.state() == "clean",
                "needs_recovery": raw.needs_recovery(),
                "errors": sb.error_count(),
                "text": self.state(),
            },
            "block_size": geometry.block_size().bytes(),
            "cluster_size": u64::from(geometry.cluster_ratio()) << geometry.block_size().bits(),
            "blocks": geometry.blocks_count(),
            "bytes": geometry.bytes(),
            "free_bytes": self.free_bytes(),
            "reserved_blocks": sb.reserved_blocks_count(),
            "inode_size": geometry.inode_size(),
            "inodes": geometry.inodes_count(),
            "free_inodes": self.groups.free_inodes,
            "directories": self.groups.directories,
            "groups": geometry.groups(),
            "blocks_per_group": geometry.blocks_per_group(),
            "inodes_per_group": geometry.inodes_per_group(),
            "flex_size": geometry.flex_size(),
            "broken_groups": self.groups.broken,
            "journal": self.journal.json(),
            "made": sb.mkfs_time(),
            "last_mounted": sb.mount_time(),
            "last_mounted_at": Name(sb.last_mounted()).to_string(),
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
        })
    }
}

fn in_word(features: Features, word: Word) -> impl Iterator<Item = Feature> {
    features
        .iter()
        .filter(move |feature| feature.word() == word)
}

/// When a program can do what `verb` says, and why not earlier.
fn sentence(need: &Need, verb: &str) -> String {
    let names: Vec<String> = need.because.iter().map(Feature::to_string).collect();
    match need.since.version() {
        Some(version) => format!("from {version} on (because of {})", names.join(", ")),
        None if need.since == Since::Always => "any release".into(),
        None => format!("can't {verb} (because of {})", names.join(", ")),
    }
}
