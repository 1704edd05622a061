//! `lanefs dump`: one structure of an image in words, as it lies on the disk: nothing is replayed, and what does not
//! verify is printed together with the fault. The printers are `ondisk`'s, so that messages and tests say the same.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use inspect::{InspectError, RawImage, find, geometry_of};
use ondisk::features::Feature;
use ondisk::mmp::Mmp;
use ondisk::text::{GroupText, Hex, MmpText, PrintedName, SuperblockText};
use ondisk::{FsBlock, Group, Superblock, bitmap};

use crate::args::{FsArgs, ImageArgs};
use crate::context::Context;
use crate::failure::Failure;
use crate::on_disk::{self, read_superblock};

mod deleted;
mod directory;
mod file;
mod journal;
mod orphan;

/// Print one on-disk structure in words (nothing is replayed)
#[derive(Args)]
pub struct DumpArgs {
    /// The image, a file or block device
    image: PathBuf,
    #[command(flatten)]
    place: ImageArgs,
    /// Use the copy of the superblock at this place, in units of 1 KiB (as mount's sb=)
    #[arg(long, value_name = "KIB")]
    superblock: Option<u64>,
    /// Read an image that another program uses, with a warning: the contents may be half changed
    #[arg(long)]
    in_use: bool,
    #[command(subcommand)]
    what: What,
}

/// Which structure.
#[derive(Subcommand)]
enum What {
    /// The superblock, or a copy of it
    Superblock {
        /// The copy in this group
        #[arg(long, value_name = "N", default_value_t = 0)]
        group: u32,
    },
    /// A group: its descriptor and the metadata at its start
    Group {
        /// Its number
        number: u32,
    },
    /// An inode with its attributes
    Inode {
        /// Path, or inode number as <N>
        #[arg(value_name = "PATH|<INO>")]
        file: String,
    },
    /// A block's bytes, and its use
    Block {
        /// Its number
        number: u64,
    },
    /// A directory, block by block
    Dir {
        /// Path, or inode number as <N>
        #[arg(value_name = "PATH|<INO>")]
        file: String,
    },
    /// A file's extents or block pointers
    Extents {
        /// Path, or inode number as <N>
        #[arg(value_name = "PATH|<INO>")]
        file: String,
    },
    /// The journal: its superblock, the log, fast commits
    Journal,
    /// Orphans: the list and the orphan file
    Orphan,
    /// Inodes that were deleted and whose numbers were not used again
    Deleted,
    /// The multi-mount protection block
    Mmp,
}

impl DumpArgs {
    /// Runs the command.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let options = FsArgs {
            image: self.place.clone(),
            superblock: self.superblock,
            in_use: self.in_use,
            ..FsArgs::default()
        };
        if let What::Superblock { group: 0 } = self.what {
            return self.superblock(context, &options);
        }
        let raw = on_disk::open(context, &self.image, &options)?;
        if raw.needs_recovery() && !matches!(self.what, What::Journal) {
            context.note("the journal holds changes that are not shown here");
        }
        let mut out = context.stdout();
        match &self.what {
            What::Superblock { group } => superblock(&mut out, &raw, Group(*group))?,
            What::Group { number } => group(&mut out, &raw, Group(*number))?,
            What::Inode { file } => file::inode(&mut out, &raw, find(&raw, file)?)?,
            What::Block { number } => block(&mut out, &raw, FsBlock(*number))?,
            What::Dir { file } => directory::dump(&mut out, &raw, find(&raw, file)?)?,
            What::Extents { file } => file::extents(&mut out, &raw, find(&raw, file)?)?,
            What::Journal => journal::dump(&mut out, &raw)?,
            What::Orphan => orphan::dump(&mut out, &raw)?,
            What::Deleted => deleted::dump(&mut out, &raw)?,
            What::Mmp => mmp(&mut out, &raw)?,
        }
        out.flush()?;
        Ok(())
    }

    /// Prints the superblock in use, also one that nothing else can be read with.
    fn superblock(&self, context: &Context, options: &FsArgs) -> Result<(), Failure> {
        let (_, superblock) = read_superblock(context, &self.image, options)?;
        let mut out = context.stdout();
        writeln!(out, "{}", SuperblockText(&superblock))?;
        out.flush()?;
        if let Err(error) = geometry_of(&superblock) {
            context.warn(error);
        }
        Ok(())
    }
}

/// Prints the copy of the superblock in a group.
fn superblock(out: &mut impl Write, raw: &RawImage, group: Group) -> Result<(), Failure> {
    let place = (group.0 < raw.geometry.groups())
        .then(|| raw.geometry.group_start(group).superblock)
        .flatten();
    let Some(block) = place else {
        return Err(InspectError::NoSuperblock(group).into());
    };
    let mut bytes = [0; Superblock::SIZE];
    raw.read(block, 0, &mut bytes)?;
    writeln!(out, "{}", SuperblockText(Superblock::view(&bytes)))?;
    Ok(())
}

fn group(out: &mut impl Write, raw: &RawImage, group: Group) -> Result<(), Failure> {
    let bytes = raw.desc_bytes(group)?;
    let text = GroupText {
        raw: &bytes,
        geometry: &raw.geometry,
        group,
    };
    writeln!(out, "{text}")?;
    Ok(())
}

fn block(out: &mut impl Write, raw: &RawImage, block: FsBlock) -> Result<(), Failure> {
    let bytes = raw.block(block)?;
    match raw.geometry.bit_of_block(block) {
        None => writeln!(out, "block {block}, before the first group")?,
        Some((group, bit)) => {
            let state = state(raw, block, group, bit);
            writeln!(out, "block {block}, group {group}: {state}")?;
        }
    }
    writeln!(out, "{}", Hex(&bytes))?;
    Ok(())
}

/// What the group knows of a block.
fn state(raw: &RawImage, block: FsBlock, group: Group, bit: u32) -> String {
    let geometry = &raw.geometry;
    let start = geometry.group_start(group);
    if start.superblock == Some(block) {
        return "superblock".into();
    }
    if start.descriptors.contains(&block.0) {
        return "group descriptors".into();
    }
    if start.reserved.contains(&block.0) {
        return "reserved for group descriptors".into();
    }
    let desc = match raw.desc(group) {
        Ok(desc) => desc,
        Err(error) => return error.to_string(),
    };
    if desc.has(ondisk::group_desc::flags::BLOCK_UNINIT) {
        return "in a group never used".into();
    }
    match raw.block(desc.block_bitmap()) {
        Ok(bits) if bitmap::test(&bits, bit) => "in use".into(),
        Ok(_) => "free".into(),
        Err(error) => error.to_string(),
    }
}

fn mmp(out: &mut impl Write, raw: &RawImage) -> Result<(), Failure> {
    if !raw.geometry.has(Feature::MMP) {
        return Err(InspectError::NoMmp.into());
    }
    let block = raw.superblock.mmp_block();
    let mmp = Mmp::read(&raw.block(block)?).ok_or(InspectError::ShortBlock)?;
    let seed = raw
        .geometry
        .has_metadata_csum()
        .then(|| raw.geometry.csum_seed());
    writeln!(out, "{}", MmpText { mmp: &mmp, seed })?;
    Ok(())
}

/// A line that says what follows.
fn heading(out: &mut impl Write, text: &str) -> Result<(), Failure> {
    writeln!(out, "{}", PrintedName(text.as_bytes()))?;
    Ok(())
}
