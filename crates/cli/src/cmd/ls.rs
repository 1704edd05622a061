//! `lanefs ls`: directories as `ls` lists them. Owners are numbers: the names belong to the image, not to this machine.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;

use clap::ArgAction;
use lanefs::{FileType, Fs, Metadata};

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::format;
use crate::images::Images;
use crate::json;
use crate::table::columns;
use crate::target::ImagePath;

/// List directories of an image
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// IMAGE, IMAGE:PATH, or IMAGE followed by paths
    #[arg(required = true, value_name = "IMAGE[:PATH]")]
    targets: Vec<OsString>,
    /// Long format: mode, links, owner, group, size, time
    #[arg(short, long)]
    long: bool,
    /// Include entries that begin with a dot
    #[arg(short, long, overrides_with = "almost_all")]
    all: bool,
    /// As -a, but without `.` and `..`
    #[arg(short = 'A', long, overrides_with = "all")]
    almost_all: bool,
    /// Inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Allocated size of each entry, in KiB
    #[arg(short = 's', long)]
    size: bool,
    /// Sizes with units (4.0K, 23M)
    #[arg(short, long)]
    human_readable: bool,
    /// List directories recursively
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List directories themselves, not their entries
    #[arg(short, long)]
    directory: bool,
    /// One name on each line
    #[arg(short = '1')]
    one: bool,
    /// Sort by time, newest first
    #[arg(short = 't', conflicts_with = "by_size")]
    by_time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S')]
    by_size: bool,
    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: FsArgs,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// An entry to list.
struct Row {
    name: Vec<u8>,
    metadata: Metadata,
    link: Option<Vec<u8>>,
    has_acl: bool,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let targets = ImagePath::parse_all(&self.targets)?;
        let images = Images::open(context, &targets, &self.from)?;
        let mut listing = Listing {
            args: &self,
            context,
            output: Box::new(context.stdout()),
            now: sync::clock::wall().0,
            failed: false,
            json: Vec::new(),
            first: true,
        };
        let headings = targets.len() > 1 || self.recursive;
        // Files before directories, as ls does.
        let is_dir = |target: &ImagePath| {
            let path = target.path();
            let metadata = images.of(target).metadata(path);
            !self.directory
                && metadata.is_ok_and(|metadata| metadata.file_type == FileType::Directory)
        };
        let (directories, others): (Vec<&ImagePath>, Vec<&ImagePath>) =
            targets.iter().partition(|target| is_dir(target));
        let mut rows = Vec::new();
        for target in others {
            match listing.row(images.of(target), &target.path, &target.path) {
                Ok(row) => rows.push(row),
                Err(error) => listing.complain(error)?,
            }
        }
        if !rows.is_empty() {
            listing.rows(rows, None)?;
        }
        for target in directories {
            listing.directory(images.of(target), &target.path, headings)?;
        }
        listing.finish()
    }
}

struct Listing<'a> {
    args: &'a Args,
    context: &'a Context,
    output: Box<dyn Write>,
    now: i64,
    failed: bool,
    json: Vec<serde_json::Value>,
    first: bool,
}

impl Listing<'_> {
    fn complain(&mut self, error: lanefs::Error) -> Result<(), Failure> {
        // What came before an error must come out before its message does.
        self.output.flush()?;
        self.context.error(error);
        self.failed = true;
        Ok(())
    }

    /// The same, of what lies at a path.
    fn complain_of(&mut self, path: &[u8], what: impl Display) -> Result<(), Failure> {
        self.output.flush()?;
        let path = format::safe(path);
        self.context.error(format_args!("{path}: {what}"));
        self.failed = true;
        Ok(())
    }

    fn row(&self, fs: &Fs, path: &[u8], name: &[u8]) -> Result<Row, lanefs::Error> {
        use std::os::unix::ffi::{OsStrExt, OsStringExt};
        let os = std::ffi::OsStr::from_bytes(path);
        let metadata = fs.symlink_metadata(os)?;
        self.complete(fs, name, metadata, || {
            Ok(fs.read_link(os)?.into_os_string().into_vec())
        })
    }

    fn complete(
        &self,
        fs: &Fs,
        name: &[u8],
        metadata: Metadata,
        link: impl FnOnce() -> Result<Vec<u8>, lanefs::Error>,
    ) -> Result<Row, lanefs::Error> {
        let details = self.args.long || self.args.json;
        let is_link = metadata.file_type == FileType::Symlink;
        let link = if details && is_link {
            Some(link()?)
        } else {
            None
        };
        let has_acl = details && {
            let xattrs = fs.inodes().xattrs(metadata.ino)?;
            xattrs
                .iter()
                .any(|xattr| xattr.name.starts_with(b"system.posix_acl_"))
        };
        Ok(Row {
            name: name.to_vec(),
            metadata,
            link,
            has_acl,
        })
    }

    /// Lists a directory, and with -R those below, without recursion.
    fn directory(&mut self, fs: &Fs, path: &[u8], headings: bool) -> Result<(), Failure> {
        let ino =
            match fs.resolve(std::os::unix::ffi::OsStrExt::from_bytes(path) as &std::ffi::OsStr) {
                Ok(ino) => ino,
                Err(error) => return self.complain(error),
            };
        let mut stack = vec![(path.to_vec(), ino)];
        let mut met = std::collections::HashSet::from([ino]);
        while let Some((path, ino)) = stack.pop() {
            let rows = match self.entries(fs, ino, &path)? {
                Some(rows) => rows,
                None => continue,
            };
            if self.args.recursive {
                let below = rows.iter().rev().filter(|row| {
                    row.metadata.file_type == FileType::Directory
                        && !matches!(&row.name[..], b"." | b"..")
                });
                for row in below {
                    let path = join(&path, &row.name);
                    if met.insert(row.metadata.ino) {
                        stack.push((path, row.metadata.ino));
                    } else {
                        self.complain_of(&path, "a directory that is also elsewhere in the tree")?;
                    }
                }
            }
            self.rows(
                rows,
                Some(&path)
                    .filter(|_| headings || self.args.json)
                    .map(Vec::as_slice),
            )?;
        }
        Ok(())
    }

    /// The entries of a directory in the order asked for.
    fn entries(
        &mut self,
        fs: &Fs,
        ino: lanefs::Ino,
        path: &[u8],
    ) -> Result<Option<Vec<Row>>, Failure> {
        let mut rows = Vec::new();
        let hidden = !self.args.all && !self.args.almost_all;
        let entries = match fs.inodes().read_dir(ino) {
            Ok(entries) => entries,
            Err(error) => {
                self.complain_of(path, error)?;
                return Ok(None);
            }
        };
        let mut broken = false;
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                // The names in its other blocks count still.
                Err(error) => {
                    if !std::mem::replace(&mut broken, true) {
                        self.complain_of(path, error)?;
                    }
                    continue;
                }
            };
            let dots = matches!(&entry.name[..], b"." | b"..");
            if entry.name.starts_with(b".") && (hidden || dots && !self.args.all) {
                continue;
            }
            let row = fs
                .inodes()
                .metadata(entry.ino)
                .map_err(lanefs::Error::from)
                .and_then(|metadata| {
                    self.complete(fs, &entry.name, metadata, || {
                        Ok(fs.inodes().read_link(entry.ino)?)
                    })
                });
            match row {
                Ok(row) => rows.push(row),
                Err(error) => {
                    self.complain_of(&join(path, &entry.name), error)?;
                }
            }
        }
        self.sort(&mut rows);
        Ok(Some(rows))
    }

    fn sort(&self, rows: &mut [Row]) {
        rows.sort_by(|a, b| {
            let first = if self.args.by_time {
                let key = |row: &Row| (row.metadata.mtime.seconds, row.metadata.mtime.nanoseconds);
                key(b).cmp(&key(a))
            } else if self.args.by_size {
                b.metadata.size.cmp(&a.metadata.size)
            } else {
                std::cmp::Ordering::Equal
            };
            let order = first.then_with(|| a.name.cmp(&b.name));
            if self.args.reverse {
                order.reverse()
            } else {
                order
            }
        });
    }

    fn rows(&mut self, rows: Vec<Row>, heading: Option<&[u8]>) -> Result<(), Failure> {
        if self.args.json {
            self.json
                .extend(rows.iter().map(|row| json_of(row, heading)));
            return Ok(());
        }
        if !std::mem::take(&mut self.first) {
            writeln!(self.output)?;
        }
        let terminal = self.context.terminal();
        if let Some(path) = heading {
            self.output.write_all(&format::name(path, terminal))?;
            writeln!(self.output, ":")?;
        }
        if self.args.long || self.args.size {
            let sectors: u64 = rows
                .iter()
                .map(|row| row.metadata.blocks)
                .fold(0, u64::saturating_add);
            if heading.is_some() || rows.len() != 1 {
                let total = self.blocks(sectors);
                writeln!(self.output, "total {total}")?;
            }
        }
        let lines: Vec<Vec<String>> = rows.iter().map(|row| self.cells(row)).collect();
        let names: Vec<Vec<u8>> = rows.iter().map(|row| self.shown_name(row)).collect();
        let plain = !self.args.long && !self.args.inode && !self.args.size && !self.args.one;
        if plain && terminal {
            return Ok(columns(&mut *self.output, &names, self.context.width())?);
        }
        let cells = lines.first().map_or(0, Vec::len);
        let widths: Vec<usize> = (0..cells)
            .map(|cell| lines.iter().map(|line| line[cell].len()).max().unwrap_or(0))
            .collect();
        for (line, name) in lines.iter().zip(names) {
            for (cell, width) in line.iter().zip(&widths) {
                // Numbers to the right; a mode, with or without its `+`, to the left.
                match cell.as_bytes().first() {
                    Some(b'0'..=b'9') | None => write!(self.output, "{cell:>width$} ")?,
                    Some(_) => write!(self.output, "{cell:<width$} ")?,
                }
            }
            self.output.write_all(&name)?;
            writeln!(self.output)?;
        }
        Ok(())
    }

    fn blocks(&self, sectors: u64) -> String {
        if self.args.human_readable {
            format::human(sectors.saturating_mul(512))
        } else {
            sectors.div_ceil(2).to_string()
        }
    }

    /// What stands before the name.
    fn cells(&self, row: &Row) -> Vec<String> {
        let metadata = &row.metadata;
        let mut cells = Vec::new();
        if self.args.inode {
            cells.push(metadata.ino.to_string());
        }
        if self.args.size {
            cells.push(self.blocks(metadata.blocks));
        }
        if self.args.long {
            let acl = if row.has_acl { "+" } else { "" };
            cells.push(format!("{}{acl}", format::mode(metadata.mode)));
            cells.push(metadata.nlink.to_string());
            cells.push(metadata.uid.to_string());
            cells.push(metadata.gid.to_string());
            cells.push(match metadata.file_type {
                FileType::CharDevice | FileType::BlockDevice => {
                    format!("{}, {}", metadata.rdev.0, metadata.rdev.1)
                }
                _ if self.args.human_readable => format::human(metadata.size),
                _ => metadata.size.to_string(),
            });
            cells.push(format::time_short(metadata.mtime, self.now));
        }
        cells
    }

    fn shown_name(&self, row: &Row) -> Vec<u8> {
        let terminal = self.context.terminal();
        let mut shown = format::name(&row.name, terminal).into_owned();
        if self.context.color() {
            shown = format::colored(&shown, &row.metadata);
        }
        if let (true, Some(link)) = (self.args.long, &row.link) {
            shown.extend(b" -> ");
            shown.extend(&*format::name(link, terminal));
        }
        shown
    }

    fn finish(mut self) -> Result<(), Failure> {
        if self.args.json {
            let entries = std::mem::take(&mut self.json);
            json::write(&mut *self.output, "entries", entries.into())?;
        }
        self.output.flush()?;
        if self.failed {
            Err(Failure::told())
        } else {
            Ok(())
        }
    }
}

/// A name below a path of an image.
fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
    [path, slash, name].concat()
}

/// An entry with all there is to know of it.
fn json_of(row: &Row, directory: Option<&[u8]>) -> serde_json::Value {
    let mut object = json::metadata(&row.metadata);
    json::put_bytes(&mut object, "name", &row.name);
    if let Some(directory) = directory {
        json::put_bytes(&mut object, "directory", directory);
    }
    if let Some(link) = &row.link {
        json::put_bytes(&mut object, "target", link);
    }
    object.into()
}
