//! `lanefs info`: what a file system is, how full, in which state, and which systems can use it. Counts are read from
//! the group descriptors, because those of the superblock are only right after a clean unmount.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use inspect::{FoundJournal, Fragmentation, GroupSums, ImageFacts};
use ondisk::features::{Feature, Features, Word};
use ondisk::superblock::state;
use ondisk::text::{PrintedName, SuperblockText};

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::on_disk;
use crate::progress::GroupLine;

mod frag;
mod journal;
mod json;
mod text;

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

impl InfoArgs {
    /// Runs the command.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let raw = on_disk::open(context, &self.image, &self.place)?;
        let replayed = on_disk::replayed(&raw, context, &self.image, &self.place);
        let newest = replayed.as_ref().unwrap_or(&raw);
        let frag = if self.frag {
            let progress = GroupLine::new(context, newest.geometry.groups());
            let frag = Fragmentation::look(newest, |group| progress.at(group))?;
            progress.done();
            Some(frag)
        } else {
            None
        };
        let facts = ImageFacts {
            groups: GroupSums::count(newest)?,
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
                frag::text(&mut out, frag, &raw.geometry, context.color())?;
            }
            if self.all {
                writeln!(out, "\nSuperblock\n{}", SuperblockText(&raw.superblock))?;
            }
        }
        out.flush()?;
        if let Some(remark) = facts.frag.as_ref().and_then(Fragmentation::remark) {
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

fn in_word(features: Features, word: Word) -> impl Iterator<Item = Feature> {
    features
        .iter()
        .filter(move |feature| feature.word() == word)
}
