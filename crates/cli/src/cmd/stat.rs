//! `lanefs stat`: all metadata of files, in the form of `stat`, followed by what only ext4 has.

use std::ffi::OsString;
use std::io::Write;

use lanefs::{FileType, Fs, Metadata, Xattr};

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::images::Images;
use crate::target::ImagePath;
use crate::{format, json};

/// Show all metadata of files of an image
#[derive(clap::Args)]
pub struct Args {
    /// IMAGE:PATH, or IMAGE followed by paths
    #[arg(required = true, value_name = "IMAGE[:PATH]")]
    targets: Vec<OsString>,
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: FsArgs,
}

/// The metadata of a file.
struct Facts {
    metadata: Metadata,
    target: Option<Vec<u8>>,
    xattrs: Vec<Xattr>,
    /// The number of runs of blocks; `None` if the file has no blocks.
    extents: Option<usize>,
}

/// The most runs of blocks that are counted.
const MAX_EXTENTS: usize = 10_000_000;

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let targets = ImagePath::parse_all(&self.targets)?;
        let images = Images::open(context, &targets, &self.from)?;
        let mut output = context.stdout();
        let mut failed = false;
        let mut entries = Vec::new();
        for target in &targets {
            let fs = images.of(target);
            match self.facts(fs, target) {
                Ok(facts) if self.json => entries.push(json_of(target, &facts)),
                Ok(facts) => print(&mut output, context, fs, target, &facts)?,
                Err(error) => {
                    output.flush()?;
                    context.error(error);
                    failed = true;
                }
            }
        }
        if self.json {
            json::write(&mut output, "entries", entries.into())?;
        }
        output.flush()?;
        if failed { Err(Failure::told()) } else { Ok(()) }
    }

    fn facts(&self, fs: &Fs, target: &ImagePath) -> Result<Facts, lanefs::Error> {
        let path = target.path();
        let metadata = if self.dereference {
            fs.metadata(path)?
        } else {
            fs.symlink_metadata(path)?
        };
        let inode = fs.inodes().inode(metadata.ino)?;
        let is_link = metadata.file_type == FileType::Symlink;
        let has_blocks = matches!(metadata.file_type, FileType::Regular | FileType::Directory);
        let extents = if has_blocks && !inode.is_inline() {
            let mut count = 0;
            for mapping in inode.mappings()?.take(MAX_EXTENTS) {
                count += usize::from(mapping?.physical.is_some());
            }
            Some(count)
        } else {
            None
        };
        let target = if is_link {
            Some(inode.read_link()?)
        } else {
            None
        };
        Ok(Facts {
            metadata,
            target,
            xattrs: inode.xattrs()?,
            extents,
        })
    }
}

fn print(
    output: &mut dyn Write,
    context: &Context,
    fs: &Fs,
    target: &ImagePath,
    facts: &Facts,
) -> Result<(), Failure> {
    let metadata = &facts.metadata;
    let terminal = context.terminal();
    write!(output, "  File: ")?;
    output.write_all(&format::name(&target.path, terminal))?;
    if let Some(link) = &facts.target {
        output.write_all(b" -> ")?;
        output.write_all(&format::name(link, terminal))?;
    }
    let kind = format::kind(metadata.file_type, metadata.size);
    let block = fs.inodes().geometry().block_size().bytes();
    writeln!(
        output,
        "\n  Size: {:<10}\tBlocks: {:<10} IO Block: {block:<6} {kind}",
        metadata.size, metadata.blocks
    )?;
    write!(
        output,
        " Inode: {:<10}\tLinks: {}",
        metadata.ino, metadata.nlink
    )?;
    if matches!(
        metadata.file_type,
        FileType::CharDevice | FileType::BlockDevice
    ) {
        write!(
            output,
            "     Device type: {},{}",
            metadata.rdev.0, metadata.rdev.1
        )?;
    }
    writeln!(
        output,
        "\nAccess: ({:04o}/{})  Uid: {:>5}   Gid: {:>5}",
        metadata.mode & 0o7777,
        format::mode(metadata.mode),
        metadata.uid,
        metadata.gid
    )?;
    writeln!(output, "Access: {}", format::time_full(metadata.atime))?;
    writeln!(output, "Modify: {}", format::time_full(metadata.mtime))?;
    writeln!(output, "Change: {}", format::time_full(metadata.ctime))?;
    match metadata.crtime {
        Some(born) => writeln!(output, " Birth: {}", format::time_full(born))?,
        None => writeln!(output, " Birth: -")?,
    }
    write!(output, " Flags: {:#x}", metadata.flags.0)?;
    write!(output, "  Generation: {}", metadata.generation)?;
    if let Some(extents) = facts.extents {
        write!(output, "  Extents: {extents}")?;
    }
    if metadata.project != 0 {
        write!(output, "  Project: {}", metadata.project)?;
    }
    writeln!(output)?;
    for xattr in &facts.xattrs {
        let name = format::safe(&xattr.name);
        writeln!(output, " Xattr: {name}={}", value(&xattr.value))?;
    }
    Ok(())
}

/// A value as text if it is text, else in hexadecimal, as `getfattr` shows it.
fn value(bytes: &[u8]) -> String {
    let text = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    match std::str::from_utf8(text) {
        Ok(text) if !text.contains(char::is_control) => format!("\"{text}\""),
        _ => format!("0x{}", json::hex(bytes)),
    }
}

fn json_of(target: &ImagePath, facts: &Facts) -> serde_json::Value {
    let mut object = json::metadata(&facts.metadata);
    json::put_bytes(&mut object, "path", &target.path);
    if let Some(link) = &facts.target {
        json::put_bytes(&mut object, "target", link);
    }
    if let Some(extents) = facts.extents {
        object.insert("extents".into(), extents.into());
    }
    let xattrs = facts.xattrs.iter().map(|xattr| {
        let mut object = json::JsonObject::new();
        json::put_bytes(&mut object, "name", &xattr.name);
        object.insert("value_hex".into(), json::hex(&xattr.value).into());
        serde_json::Value::from(object)
    });
    object.insert("xattrs".into(), xattrs.collect());
    object.into()
}
