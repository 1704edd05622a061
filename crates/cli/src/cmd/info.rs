//! `lanefs info`: what a file system is, how full, in which state, and who can use it. Counts come from the group
//! descriptors, not from the superblock, whose own are only right after a clean unmount.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use ondisk::features::{Feature, Features, Word};
use ondisk::group_desc::flags;
use ondisk::superblock::state;
use ondisk::text::{PrintedName, SuperblockText};

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::raw::Raw;

mod frag;
mod journal;
mod json;
mod text;
mod users;

use frag::Frag;
use journal::FoundJournal;
use users::{Need, Use};

/// Show size, state and features of a file system, and the programs that can use it
#[derive(Args)]
pub struct InfoArgs {
    /// The image, a file or block device
    image: PathBuf,
    #[command(flatten)]
    place: FsArgs,
    /// Print every field of the superblock too
    #[arg(short, long)]
    all: bool,
    /// Print how large the runs of free blocks are, and how many extents files have
    #[arg(long)]
    frag: bool,
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

/// What there is to say: the image as it lies on the disk, and sums as after a replay.
struct Facts<'a> {
    raw: &'a Raw,
    groups: Groups,
    journal: FoundJournal,
    frag: Option<Frag>,
}

impl InfoArgs {
    /// Runs the command.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let raw = Raw::open(context, &self.image, &self.place)?;
        let replayed = raw.replayed(context, &self.image, &self.place);
        let newest = replayed.as_ref().unwrap_or(&raw);
        let frag = self.frag.then(|| Frag::look(newest, context)).transpose()?;
        let facts = Facts {
            groups: count(newest)?,
            frag,
            journal: FoundJournal::look(&raw),
            raw: &raw,
        };
        let mut out = context.stdout();
        if self.json {
            let value = json::json(&facts);
            serde_json::to_writer_pretty(&mut out, &value).map_err(std::io::Error::from)?;
            writeln!(out)?;
        } else {
            let image = PrintedName(self.image.as_os_str().as_encoded_bytes());
            writeln!(out, "{}", text::text(&facts, &image))?;
            if let Some(frag) = &facts.frag {
                frag.text(&mut out, &raw.geometry, context.color())?;
            }
            if self.all {
                writeln!(out, "\nSuperblock\n{}", SuperblockText(&raw.superblock))?;
            }
        }
        out.flush()?;
        if let Some(remark) = facts.frag.as_ref().and_then(Frag::remark) {
            context.warn(remark);
        }
        if let Some(error) = &facts.groups.first_error {
            context.warn(format!(
                "{} group descriptors are broken or missing, so the sums are too low; the first: {error}",
                facts.groups.broken
            ));
        }
        let has_errors = raw.superblock.state() & state::ERROR != 0;
        if has_errors || facts.groups.first_error.is_some() {
            context.warn(format_args!(
                "{0}: the file system has errors: `lanefs check {0}` says what is wrong",
                self.image.display()
            ));
        }
        Ok(())
    }
}

fn count(raw: &Raw) -> Result<Groups, Failure> {
    let mut sums = Groups::default();
    let unvisited = raw.descs(|group, desc| {
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
    if let Some(unvisited) = unvisited {
        sums.broken += unvisited.groups;
        sums.first_error.get_or_insert(unvisited.why);
    }
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
}

fn in_word(features: Features, word: Word) -> impl Iterator<Item = Feature> {
    features
        .iter()
        .filter(move |feature| feature.word() == word)
}
