//! From blocks to entries: headers, their extensions, and the data between them.

use std::io::ErrorKind;

use sync::Arc;

use super::super::acl_text;
use super::super::error::SourceError;
use super::super::limits;
use super::super::stream::Stream;
use super::super::time::Time;
use super::super::tree::{Attributes, DataExtent, S_IFBLK, S_IFCHR, S_IFIFO};
use super::super::xattrs::Xattrs;
use super::super::xattrs::{ACL_ACCESS, ACL_DEFAULT};
use super::ending::{Ending, Rules};
use super::header::{BLOCK, Header};
use super::pax::Records;
use super::sparse::{self, Sparse};

/// One member of an archive.
#[derive(Clone)]
pub(crate) struct TarMember {
    /// The name as it is stored.
    pub(crate) path: Vec<u8>,
    pub(crate) what: What,
    pub(crate) attributes: Attributes,
    pub(crate) xattrs: Xattrs,
    /// Where its header begins in the archive.
    pub(crate) header_at: u64,
}

impl TarMember {
    /// Bytes of memory, about.
    pub(crate) fn bytes(&self) -> usize {
        let more = match &self.what {
            What::File {
                extents: Some(extents),
                ..
            } => extents.len() * size_of::<DataExtent>(),
            What::Symlink(target) | What::HardLink(target) => target.len(),
            _ => 0,
        };
        size_of::<Self>() + self.path.len() + self.xattrs.bytes() + more
    }
}

/// What kind of member.
#[derive(Clone)]
pub(crate) enum What {
    Directory,
    File {
        /// With holes.
        size: u64,
        /// Where its bytes begin in the archive.
        offset: u64,
        /// Number among the archive's files that have bytes.
        index: u32,
        /// Data runs when it has holes.
        extents: Option<Vec<DataExtent>>,
    },
    Symlink(Vec<u8>),
    /// Another name of the entry with this one.
    HardLink(Vec<u8>),
    /// A device or fifo: file type bits, major, minor.
    Special(u16, u32, u32),
}

/// Why a visitor ends the reading.
pub(crate) enum TarStop {
    /// Something about this entry, to be reported with its name and place.
    Problem(String),
    /// Any other error, reported as it is.
    Error(SourceError),
}

impl From<String> for TarStop {
    fn from(problem: String) -> Self {
        Self::Problem(problem)
    }
}

impl From<&str> for TarStop {
    fn from(problem: &str) -> Self {
        Self::Problem(problem.into())
    }
}

impl From<SourceError> for TarStop {
    fn from(error: SourceError) -> Self {
        Self::Error(error)
    }
}

/// Receives the entries of an archive.
pub(crate) trait Visitor {
    /// Takes an entry; whether the data of this file is wanted.
    fn entry(&mut self, entry: TarMember) -> Result<bool, TarStop>;

    /// Bytes at `offset` of the file.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), TarStop>;

    /// The file's data is complete.
    fn end(&mut self) -> Result<(), TarStop>;
}

struct Reader<'a> {
    stream: &'a mut dyn Stream,
    visitor: &'a mut dyn Visitor,
    global: Arc<Records>,
    /// From extension headers, for the next member.
    local: Option<Records>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    /// Files with bytes so far.
    files: u32,
    /// The member being read, for messages.
    name: Option<Vec<u8>>,
    header_at: u64,
    /// Whether the last member may lack its padding.
    unpadded: bool,
}

/// Reads all members of `archive`, which is called so in messages.
pub(crate) fn read(
    stream: &mut dyn Stream,
    archive: &str,
    rules: Rules,
    visitor: &mut dyn Visitor,
) -> Result<Ending, SourceError> {
    let mut reader = Reader {
        stream,
        visitor,
        global: Arc::default(),
        local: None,
        long_name: None,
        long_link: None,
        files: 0,
        name: None,
        header_at: 0,
        unpadded: rules == Rules::Layer,
    };
    reader.run(rules).map_err(|stop| match stop {
        TarStop::Error(error) => error,
        TarStop::Problem(problem) => SourceError::Archive {
            archive: archive.into(),
            offset: reader.header_at,
            entry: reader.name.map(|name| {
                String::from_utf8_lossy(&name)
                    .chars()
                    .take(500)
                    .collect::<String>()
            }),
            problem,
        },
    })
}

impl Reader<'_> {
    fn run(&mut self, rules: Rules) -> Result<Ending, TarStop> {
        loop {
            self.header_at = self.stream.position();
            let Some(header) = self.header()? else {
                return self.without_mark(rules);
            };
            if header.is_zero() {
                self.name = None;
                return self.ending(rules);
            }
            if !header.checksum_fits() {
                let problem = if self.header_at == 0 {
                    "this is not a tar archive"
                } else {
                    "a header's checksum is wrong: the archive is damaged"
                };
                return Err(problem.into());
            }
            match header.typeflag() {
                b'x' | b'X' | b'g' | b'L' | b'K' => self.extension(&header)?,
                // A volume's label.
                b'V' => self.skip_padded(size_of_data(&header)?)?,
                b'M' | b'N' => {
                    return Err("archives of several volumes can't be read".into());
                }
                _ => self.member(&header)?,
            }
        }
    }

    /// The next header; `None` at the end of the file, or if less than a block of zeros is left.
    fn header(&mut self) -> Result<Option<Header>, TarStop> {
        if self.fill()? == 0 {
            return Ok(None);
        }
        let mut block = [0; BLOCK];
        match self.stream.exact(&mut block) {
            // The end mark is cut within its first block. All members are complete, and GNU tar reads such a tar.
            Err(error) if is_end(&error) && self.header_at > 0 && block == [0; BLOCK] => Ok(None),
            Err(error) => Err(truncated(&error)),
            Ok(()) => Ok(Some(Header(block))),
        }
    }

    /// At the end of the bytes, where a header or the end mark should be.
    fn without_mark(&mut self, rules: Rules) -> Result<Ending, TarStop> {
        if self.local.is_some() || self.long_name.is_some() || self.long_link.is_some() {
            return Err("the archive is truncated: an extension header is its last".into());
        }
        match (self.header_at, rules) {
            (0, Rules::Strict) => {
                self.name = None;
                Err("the archive is empty".into())
            }
            (0, Rules::Layer) => Ok(Ending::Marked),
            (at, _) => Ok(Ending::Unmarked(at)),
        }
    }

    /// After the first zero block.
    fn ending(&mut self, rules: Rules) -> Result<Ending, TarStop> {
        if rules == Rules::Layer {
            return Ok(Ending::Marked);
        }
        let first = self.stream.position();
        loop {
            let at = self.stream.position();
            let held = self
                .stream
                .fill()
                .map_err(|error| TarStop::Problem(error.to_string()))?;
            let len = held.len();
            if len == 0 {
                let lone = at - first < BLOCK as u64;
                return Ok(if lone {
                    Ending::Unmarked(at)
                } else {
                    Ending::Marked
                });
            }
            if let Some(garbage) = held.iter().position(|byte| *byte != 0) {
                self.header_at = at + garbage as u64;
                return Err(
                    "something follows the end of the archive: a second archive, or garbage".into(),
                );
            }
            self.stream.consume(len);
        }
    }

    /// A header that says something about the next one, or about all that follow.
    fn extension(&mut self, header: &Header) -> Result<(), TarStop> {
        let size = size_of_data(header)?;
        let typeflag = header.typeflag();
        let limit = match typeflag {
            b'L' | b'K' => limits::PATH as u64 + 1,
            _ => limits::PAX_HEADER,
        };
        if size > limit {
            return Err(format!("an extension header has {size} bytes, more than {limit}").into());
        }
        let mut bytes = vec![0; size as usize];
        self.exact(&mut bytes)?;
        self.skip_padding(size)?;
        match typeflag {
            b'L' | b'K' => {
                let end = bytes
                    .iter()
                    .position(|byte| *byte == 0)
                    .unwrap_or(bytes.len());
                bytes.truncate(end);
                let long = if typeflag == b'L' {
                    &mut self.long_name
                } else {
                    &mut self.long_link
                };
                *long = Some(bytes);
            }
            b'g' => {
                let mut global = (*self.global).clone();
                global.read(&bytes)?;
                if global.bytes() > limits::PAX_GLOBAL {
                    let limit = limits::PAX_GLOBAL;
                    return Err(format!("global headers of more than {limit} bytes").into());
                }
                self.global = Arc::new(global);
            }
            _ => self
                .local
                .get_or_insert_with(|| (*self.global).clone())
                .read(&bytes)?,
        }
        Ok(())
    }

    fn member(&mut self, header: &Header) -> Result<(), TarStop> {
        let local = self.local.take();
        let had_pax = local.is_some();
        let records = local.map_or_else(|| Arc::clone(&self.global), Arc::new);
        let long_name = self.long_name.take();
        let long_link = self.long_link.take();
        let path = records.text("path").map(<[u8]>::to_vec).or(long_name);
        let path = path.unwrap_or_else(|| header.name());
        self.name = Some(path.clone());
        let link = records.text("linkpath").map(<[u8]>::to_vec).or(long_link);
        let link = link.unwrap_or_else(|| header.link_name().to_vec());
        if path.len() > limits::PATH || link.len() > limits::PATH {
            return Err(format!("a name is longer than {} bytes", limits::PATH).into());
        }
        let stored = match records.number("size")? {
            Some(size) => size,
            None => size_of_data(header)?,
        };
        if i64::try_from(stored).is_err() {
            return Err("the size is out of range".into());
        }
        let attributes = attributes(header, &records)?;
        let xattrs = all_xattrs(&records)?;
        let header_at = self.header_at;
        let entry = |path, what| TarMember {
            path,
            what,
            attributes,
            xattrs,
            header_at,
        };
        match header.typeflag() {
            // The size of a directory is a quota where it is anything, and no data follows.
            b'5' => self.visitor.entry(entry(path, What::Directory)).map(drop),
            // GNU's incremental archives list the directory's names in it.
            b'D' => {
                self.visitor.entry(entry(path, What::Directory))?;
                self.skip_padded(stored)
            }
            // Before ustar, a slash at the end made a directory.
            b'0' | 0 if path.ends_with(b"/") => {
                self.visitor.entry(entry(path, What::Directory))?;
                self.skip_padded(stored)
            }
            b'0' | 0 | b'7' | b'S' => {
                let sparse = if header.typeflag() == b'S' {
                    Some(sparse::old_gnu(header, self.stream)?)
                } else {
                    sparse::pax(&records, stored, self.stream)?
                };
                let name = sparse.as_ref().and_then(|sparse| sparse.name.clone());
                let path = name.unwrap_or(path);
                self.name = Some(path.clone());
                self.file(stored, sparse, |what| entry(path, what))
            }
            b'1' => {
                self.visitor.entry(entry(path, What::HardLink(link)))?;
                // Only PAX has links that repeat the data; older programs left the size in.
                self.skip_padded(if had_pax { stored } else { 0 })
            }
            b'2' => self
                .visitor
                .entry(entry(path, What::Symlink(link)))
                .map(drop),
            b'3' | b'4' | b'6' => {
                let what = special(header, &records)?;
                self.visitor.entry(entry(path, what))?;
                Ok(())
            }
            other => Err(format!("its type `{}` is an unknown one", other.escape_ascii()).into()),
        }
    }

    fn file(
        &mut self,
        stored: u64,
        sparse: Option<Sparse>,
        entry: impl FnOnce(What) -> TarMember,
    ) -> Result<(), TarStop> {
        let map_bytes = sparse.as_ref().map_or(0, |sparse| sparse.map_bytes);
        let len = stored.saturating_sub(map_bytes);
        let (size, extents) = match sparse {
            None => (stored, None),
            Some(sparse) => {
                let extents = sparse.extents(len)?;
                let whole = DataExtent {
                    offset: 0,
                    len: sparse.size,
                };
                let dense = sparse.size == 0 || extents == [whole];
                (sparse.size, (!dense).then_some(extents))
            }
        };
        if i64::try_from(size).is_err() {
            return Err("the size is out of range".into());
        }
        let index = self.files;
        if len > 0 {
            self.files = index
                .checked_add(1)
                .ok_or("the archive has too many files")?;
        }
        let offset = self.stream.position();
        let runs = extents.clone().unwrap_or_else(|| {
            vec![DataExtent {
                offset: 0,
                len: size,
            }]
        });
        let wanted = self.visitor.entry(entry(What::File {
            size,
            offset,
            index,
            extents,
        }))?;
        if !wanted || len == 0 {
            return self.skip_padded(len);
        }
        for run in runs {
            let (mut at, mut left) = (run.offset, run.len);
            while left > 0 {
                let held = self.stream.fill().map_err(|error| truncated(&error))?;
                let take = (held.len() as u64).min(left);
                if take == 0 {
                    return Err(truncated(&ErrorKind::UnexpectedEof.into()));
                }
                self.visitor.data(at, &held[..take as usize])?;
                self.stream.consume(take as usize);
                at += take;
                left -= take;
            }
        }
        self.visitor.end()?;
        self.skip_padding(len)
    }

    fn fill(&mut self) -> Result<usize, TarStop> {
        self.stream
            .fill()
            .map(<[u8]>::len)
            .map_err(|error| truncated(&error))
    }

    fn exact(&mut self, buf: &mut [u8]) -> Result<(), TarStop> {
        self.stream.exact(buf).map_err(|error| truncated(&error))
    }

    fn skip_padded(&mut self, len: u64) -> Result<(), TarStop> {
        self.stream.skip(len).map_err(|error| truncated(&error))?;
        self.skip_padding(len)
    }

    fn skip_padding(&mut self, len: u64) -> Result<(), TarStop> {
        let block = BLOCK as u64;
        match self.stream.skip((block - len % block) % block) {
            // All data are there. The digest of a layer says that nothing was cut off, and container engines read it.
            Err(error) if self.unpadded && error.kind() == ErrorKind::UnexpectedEof => {
                self.skip_rest()
            }
            result => result.map_err(|error| truncated(&error)),
        }
    }

    /// Passes over what is left, less than a block.
    fn skip_rest(&mut self) -> Result<(), TarStop> {
        loop {
            let held = self.fill()?;
            if held == 0 {
                return Ok(());
            }
            self.stream.consume(held);
        }
    }
}

/// Whether an error means the end of the bytes, rather than a truncated compression format.
fn is_end(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof && error.get_ref().is_none()
}

fn truncated(error: &std::io::Error) -> TarStop {
    if is_end(error) {
        return "the archive is truncated".into();
    }
    error.to_string().into()
}

fn size_of_data(header: &Header) -> Result<u64, TarStop> {
    let size = header.size().and_then(|size| u64::try_from(size).ok());
    size.ok_or_else(|| "the size is not a number".into())
}

/// Extended attributes, with the ACLs that are given as text.
fn all_xattrs(records: &Records) -> Result<Xattrs, String> {
    let mut xattrs = records.xattrs.clone();
    for (key, name, default) in [
        ("SCHILY.acl.access", ACL_ACCESS, false),
        ("SCHILY.acl.default", ACL_DEFAULT, true),
    ] {
        if let Some(text) = records.text(key)
            && let Some(value) = acl_text::to_xattr(text, default, acl_text::of_this_machine)?
        {
            xattrs.set(name, &value);
        }
    }
    Ok(xattrs)
}

fn attributes(header: &Header, records: &Records) -> Result<Attributes, String> {
    let mode = header.mode().ok_or("the mode is not a number")?;
    let id = |key: &str, field: Option<i64>| -> Result<u32, String> {
        let value = match records.number(key)? {
            Some(value) => Some(value),
            None => field.and_then(|field| u64::try_from(field).ok()),
        };
        let value = value.ok_or_else(|| format!("the {key} is not a number"))?;
        u32::try_from(value).map_err(|_| format!("the {key} {value} is more than 4294967295"))
    };
    let mtime = match records.time("mtime")? {
        Some(time) => time,
        None => Time::new(header.mtime().ok_or("the time is not a number")?, 0),
    };
    let (gnu_atime, gnu_ctime) = header.gnu_times();
    let other = |key, gnu: Option<i64>| -> Result<Time, String> {
        Ok(records
            .time(key)?
            .or(gnu.map(|seconds| Time::new(seconds, 0)))
            .unwrap_or(mtime))
    };
    Ok(Attributes {
        mode: (mode & 0o7777) as u16,
        uid: id("uid", header.uid())?,
        gid: id("gid", header.gid())?,
        atime: other("atime", gnu_atime)?,
        mtime,
        ctime: other("ctime", gnu_ctime)?,
    })
}

fn special(header: &Header, records: &Records) -> Result<What, String> {
    let kind = match header.typeflag() {
        b'3' => S_IFCHR,
        b'4' => S_IFBLK,
        _ => return Ok(What::Special(S_IFIFO, 0, 0)),
    };
    let (major, minor) = header.device();
    let number = |key, field: Option<i64>| -> Result<u32, String> {
        let value = match records.number(key)? {
            Some(value) => Some(value),
            None => field.and_then(|field| u64::try_from(field).ok()),
        };
        value
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| "its device number is none".into())
    };
    let (major, minor) = (
        number("SCHILY.devmajor", major)?,
        number("SCHILY.devminor", minor)?,
    );
    if major > limits::MAJOR || minor > limits::MINOR {
        return Err(format!(
            "the device number {major}:{minor} is beyond what Linux has"
        ));
    }
    Ok(What::Special(kind, major, minor))
}
