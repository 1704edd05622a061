//! `bench-mkext4 DIRECTORY IMAGE BYTES INODES`: an image of a directory, made with the crate mkext4.
//!
//! Only for comparison (`cargo xtask bench-build`); what mkext4 has no call for is left out: extended attributes are,
//! so its job is the smaller one.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mkext4::sink::FileSink;
use mkext4::{FsBuilder, InodeCount, InodeHandle, Meta, Options, ROOT, SpecialKind};
use walkdir::WalkDir;

type Failure = Box<dyn std::error::Error>;

fn meta(found: &Metadata) -> Meta {
    let time = |seconds: i64, nanoseconds: i64| (seconds, nanoseconds as u32);
    let mode = (found.mode() & 0o7777) as u16;
    let modified = time(found.mtime(), found.mtime_nsec());
    let mut meta = Meta::new(mode, found.uid(), found.gid(), modified);
    meta.atime = Some(time(found.atime(), found.atime_nsec()));
    meta.ctime = Some(time(found.ctime(), found.ctime_nsec()));
    meta
}

fn special(found: &Metadata) -> SpecialKind {
    let device = found.rdev();
    let major = (device >> 8 & 0xfff) as u32;
    let minor = (device & 0xff | device >> 12 & 0xfff00) as u32;
    match found.file_type() {
        kind if kind.is_char_device() => SpecialKind::Char { major, minor },
        kind if kind.is_block_device() => SpecialKind::Block { major, minor },
        kind if kind.is_fifo() => SpecialKind::Fifo,
        _ => SpecialKind::Socket,
    }
}

/// Declares every path; returns the files to fill, in the order of their declaration.
fn declare(builder: &mut FsBuilder, source: &Path) -> Result<Vec<(InodeHandle, PathBuf)>, Failure> {
    let mut directories = vec![ROOT];
    let mut links = HashMap::new();
    let mut files = Vec::new();
    for entry in WalkDir::new(source).min_depth(1).sort_by_file_name() {
        let entry = entry?;
        let name = entry.file_name().to_str().ok_or("a name is not UTF-8")?;
        let found = entry.path().symlink_metadata()?;
        directories.truncate(entry.depth());
        let parent = directories[entry.depth() - 1];
        let kind = found.file_type();
        if kind.is_dir() {
            directories.push(builder.mkdir(parent, name, meta(&found))?);
        } else if kind.is_symlink() {
            let target = std::fs::read_link(entry.path())?;
            let target = target.to_str().ok_or("a target is not UTF-8")?;
            builder.symlink(parent, name, target, meta(&found))?;
        } else if !kind.is_file() {
            builder.mknod(parent, name, meta(&found), special(&found))?;
        } else if let Some(first) = links.get(&(found.dev(), found.ino())) {
            builder.hardlink(parent, name, *first)?;
        } else {
            let file = builder.file(parent, name, meta(&found), found.len())?;
            if found.nlink() > 1 {
                links.insert((found.dev(), found.ino()), file);
            }
            if found.len() > 0 {
                files.push((file, entry.into_path()));
            }
        }
    }
    Ok(files)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, image, bytes, inodes] = arguments.as_slice() else {
        return Err("usage: bench-mkext4 DIRECTORY IMAGE BYTES INODES".into());
    };
    let mut options = Options::new(bytes.parse()?, *b"lanefs benchmark", 1_700_000_000);
    options.inodes = InodeCount::Exact(inodes.parse()?);
    let mut builder = FsBuilder::new(options)?;
    let files = declare(&mut builder, Path::new(source))?;
    let layout = builder.seal()?;
    let mut sink = FileSink::create(Path::new(image), layout.image_len())?;
    let mut writer = layout.writer(&mut sink)?;
    for (file, path) in files {
        writer.fill(file, &mut File::open(path)?)?;
    }
    writer.finish()?;
    Ok(())
}
