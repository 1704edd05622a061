//! Parses the bytes that the kernel sends into one checked request.
//!
//! The kernel is not trusted. A request that is cut short, has a name without an end, or a length that its bytes
//! contradict becomes [`Malformed`], which is answered with `EIO`. A request of an unknown kind becomes
//! [`FuseOperation::Unknown`], which is answered with `ENOSYS`. No I/O, no locks.

use lanefs::Ino;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, KnownLayout};

use crate::abi::{self, opcode};
use crate::extension::Extension;
use crate::operations::{Caller, Setting};

/// One request.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    /// The number that the answer must carry.
    pub(crate) unique: u64,
    /// The number of its kind, which may be unknown here.
    pub(crate) opcode: u32,
    /// The node that the request is about.
    pub(crate) node: u64,
    pub(crate) caller: Caller,
    pub(crate) extension: Extension<'a>,
    pub(crate) operation: FuseOperation<'a>,
}

/// Bytes that are not a valid request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// The number that the answer must carry, if the bytes have a header.
    pub(crate) unique: Option<u64>,
}

/// What a request asks for.
#[derive(Debug)]
pub(crate) enum FuseOperation<'a> {
    /// The first request of a connection, with all flags that the kernel offers.
    Init(abi::InitIn, u64),
    Destroy,
    Interrupt,
    Forget(u64),
    BatchForget(Forgotten<'a>),
    Lookup(&'a [u8]),
    GetAttr,
    Statx,
    SetAttr(abi::SetAttrIn),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod(abi::MkNodIn, &'a [u8]),
    MkDir(abi::MkDirIn, &'a [u8]),
    Unlink(&'a [u8]),
    RmDir(&'a [u8]),
    Rename {
        name: &'a [u8],
        new_directory: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        old_node: u64,
        name: &'a [u8],
    },
    Open(abi::OpenIn),
    OpenDir,
    Create(abi::CreateIn, &'a [u8]),
    TmpFile(abi::CreateIn),
    Read(abi::ReadIn),
    Write(abi::WriteIn, &'a [u8]),
    StatFs,
    Release(abi::ReleaseIn),
    ReleaseDir,
    Fsync(abi::FsyncIn),
    FsyncDir(abi::FsyncIn),
    SyncFs,
    ReadDir(abi::ReadIn),
    ReadDirPlus(abi::ReadIn),
    SetXattr(Setting<'a>),
    GetXattr(abi::GetXattrIn, &'a [u8]),
    ListXattr(abi::GetXattrIn),
    RemoveXattr(&'a [u8]),
    Ioctl(abi::IoctlIn, &'a [u8]),
    Fallocate(abi::FallocateIn),
    Seek(abi::SeekIn),
    Copy(abi::CopyIn),
    /// An operation that this server does not know.
    Unknown,
}

impl FuseOperation<'_> {
    /// Whether the operation is still answered normally after the file system was shut down.
    pub(crate) fn works_after_shut_down(&self) -> bool {
        use FuseOperation as Op;
        match self {
            Op::GetXattr(_, name) => name.starts_with(b"lanefs."),
            Op::Destroy | Op::Interrupt | Op::Forget(_) | Op::BatchForget(_) => true,
            Op::Release(_) | Op::ReleaseDir => true,
            Op::GetAttr | Op::Statx | Op::StatFs | Op::Unknown => true,
            _ => false,
        }
    }

    /// Whether the operation may change the image.
    pub(crate) fn is_change(&self) -> bool {
        use FuseOperation as Op;
        matches!(
            self,
            Op::SetAttr(_)
                | Op::Symlink { .. }
                | Op::MkNod(..)
                | Op::MkDir(..)
                | Op::Unlink(_)
                | Op::RmDir(_)
                | Op::Rename { .. }
                | Op::Link { .. }
                | Op::Create(..)
                | Op::TmpFile(_)
                | Op::Write(..)
                | Op::SetXattr(_)
                | Op::RemoveXattr(_)
                | Op::Ioctl(..)
        )
    }
}

/// The nodes of one batch of FORGETs, each with the number of lookups that are taken back.
#[derive(Debug)]
pub(crate) struct Forgotten<'a>(&'a [u8]);

impl Forgotten<'_> {
    /// Each node and its number of lookups.
    pub(crate) fn iter(&self) -> impl Iterator<Item = abi::ForgetOne> {
        let entries = self.0.chunks_exact(size_of::<abi::ForgetOne>());
        entries.filter_map(|entry| abi::ForgetOne::read_from_bytes(entry).ok())
    }
}

/// The bytes of a request after its header, read from the front. Over `/dev/fuse` they are in one piece (`first`). Over
/// io_uring the operation's structure is in `first` and everything else in `rest`. No value crosses the two pieces.
#[derive(Clone, Copy)]
struct Arguments<'a> {
    first: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Arguments<'a> {
    /// Cuts off the last `len` bytes, which are in one piece; `None` if there are fewer.
    fn split_off(mut self, len: usize) -> Option<(Arguments<'a>, &'a [u8])> {
        let piece = match self.rest {
            [] => &mut self.first,
            _ => &mut self.rest,
        };
        let (before, end) = piece.split_at(piece.len().checked_sub(len)?);
        *piece = before;
        Some((self, end))
    }

    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.rest.is_empty()
    }

    /// The piece from which the next value is read.
    fn piece(&mut self) -> &mut &'a [u8] {
        if self.first.is_empty() {
            self.first = std::mem::take(&mut self.rest);
        }
        &mut self.first
    }

    fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Option<T> {
        let piece = self.piece();
        let (value, rest) = T::read_from_prefix(piece).ok()?;
        *piece = rest;
        Some(value)
    }

    /// A name or target, up to the zero byte that ends it.
    fn name(&mut self) -> Option<&'a [u8]> {
        let piece = self.piece();
        let end = piece.iter().position(|byte| *byte == 0)?;
        let name = &piece[..end];
        *piece = &piece[end + 1..];
        Some(name)
    }

    fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let piece = self.piece();
        let (bytes, rest) = piece.split_at_checked(usize::try_from(len).ok()?)?;
        *piece = rest;
        Some(bytes)
    }
}

/// Reads one request.
///
/// # Errors
/// [`Malformed`] when the bytes are not one whole request.
pub(crate) fn parse(bytes: &[u8]) -> Result<Request<'_>, Malformed> {
    let header = bytes.len().min(size_of::<abi::InHeader>());
    let (header, arguments) = bytes.split_at(header);
    parse_parts(header, arguments, &[])
}

/// Reads one request whose header, operation's structure (`own`) and remaining bytes are in three places.
///
/// # Errors
/// [`Malformed`] when the bytes are not one whole request.
pub(crate) fn parse_parts<'a>(
    header: &[u8],
    own: &'a [u8],
    rest: &'a [u8],
) -> Result<Request<'a>, Malformed> {
    let header = abi::InHeader::read_from_bytes(header).map_err(|_| Malformed { unique: None })?;
    let malformed = || Malformed {
        unique: Some(header.unique),
    };
    let len = size_of::<abi::InHeader>() + own.len() + rest.len();
    if header.len as usize != len {
        return Err(malformed());
    }
    // The extension follows the arguments.
    let extension = usize::from(header.extension_words) * 8;
    let arguments = Arguments { first: own, rest }.split_off(extension);
    let (arguments, extension) = arguments.ok_or_else(malformed)?;
    let extension = Extension::parse(extension).ok_or_else(malformed)?;
    let operation = operation(header.opcode, arguments).ok_or_else(malformed)?;
    Ok(Request {
        unique: header.unique,
        opcode: header.opcode,
        node: header.node,
        caller: Caller {
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
        },
        extension,
        operation,
    })
}

/// The operation that an opcode and its arguments ask for; `None` if the arguments are cut short.
fn operation(opcode: u32, mut rest: Arguments<'_>) -> Option<FuseOperation<'_>> {
    use FuseOperation as Op;
    Some(match opcode {
        opcode::LOOKUP => Op::Lookup(rest.name()?),
        opcode::FORGET => Op::Forget(rest.take::<abi::ForgetIn>()?.lookups),
        opcode::BATCH_FORGET => {
            let count = rest.take::<abi::BatchForgetIn>()?.count;
            let entry = size_of::<abi::ForgetOne>() as u32;
            Op::BatchForget(Forgotten(rest.bytes(count.checked_mul(entry)?)?))
        }
        opcode::GETATTR => Op::GetAttr,
        opcode::STATX => {
            // The answer always has all fields, whichever are asked for.
            let _asked: abi::StatxIn = rest.take()?;
            Op::Statx
        }
        opcode::SETATTR => Op::SetAttr(rest.take()?),
        opcode::READLINK => Op::ReadLink,
        opcode::SYMLINK => Op::Symlink {
            name: rest.name()?,
            target: rest.name()?,
        },
        opcode::MKNOD => Op::MkNod(rest.take()?, rest.name()?),
        opcode::MKDIR => Op::MkDir(rest.take()?, rest.name()?),
        opcode::UNLINK => Op::Unlink(rest.name()?),
        opcode::RMDIR => Op::RmDir(rest.name()?),
        opcode::RENAME | opcode::RENAME2 => rename(opcode, &mut rest)?,
        opcode::LINK => Op::Link {
            old_node: rest.take::<abi::LinkIn>()?.old_node,
            name: rest.name()?,
        },
        opcode::OPEN => Op::Open(rest.take()?),
        opcode::OPENDIR => Op::OpenDir,
        opcode::CREATE => Op::Create(rest.take()?, rest.name()?),
        // The name that follows is a placeholder.
        opcode::TMPFILE => Op::TmpFile(rest.take()?),
        opcode::READ => Op::Read(rest.take()?),
        opcode::WRITE => {
            let write: abi::WriteIn = rest.take()?;
            Op::Write(write, rest.bytes(write.size)?)
        }
        opcode::STATFS => Op::StatFs,
        opcode::RELEASE => Op::Release(rest.take()?),
        opcode::RELEASEDIR => Op::ReleaseDir,
        opcode::FSYNC => Op::Fsync(rest.take()?),
        opcode::FSYNCDIR => Op::FsyncDir(rest.take()?),
        opcode::SYNCFS => Op::SyncFs,
        opcode::READDIR => Op::ReadDir(rest.take()?),
        opcode::READDIRPLUS => Op::ReadDirPlus(rest.take()?),
        opcode::SETXATTR => set_xattr(&mut rest)?,
        opcode::GETXATTR => Op::GetXattr(rest.take()?, rest.name()?),
        opcode::LISTXATTR => Op::ListXattr(rest.take()?),
        opcode::REMOVEXATTR => Op::RemoveXattr(rest.name()?),
        opcode::INIT => init(&mut rest)?,
        opcode::DESTROY => Op::Destroy,
        opcode::INTERRUPT => Op::Interrupt,
        opcode::IOCTL => {
            let ioctl: abi::IoctlIn = rest.take()?;
            Op::Ioctl(ioctl, rest.bytes(ioctl.in_size)?)
        }
        opcode::FALLOCATE => Op::Fallocate(rest.take()?),
        opcode::LSEEK => Op::Seek(rest.take()?),
        opcode::COPY_FILE_RANGE => Op::Copy(rest.take()?),
        _ => Op::Unknown,
    })
}

fn rename<'a>(opcode: u32, rest: &mut Arguments<'a>) -> Option<FuseOperation<'a>> {
    let (new_directory, flags) = match opcode {
        opcode::RENAME2 => {
            let rename: abi::Rename2In = rest.take()?;
            (rename.new_directory, rename.flags)
        }
        _ => (rest.take::<abi::RenameIn>()?.new_directory, 0),
    };
    Some(FuseOperation::Rename {
        name: rest.name()?,
        new_directory,
        new_name: rest.name()?,
        flags,
    })
}

fn set_xattr<'a>(rest: &mut Arguments<'a>) -> Option<FuseOperation<'a>> {
    let set: abi::SetXattrIn = rest.take()?;
    let attribute = |mut rest: Arguments<'a>| {
        let (name, value) = (rest.name()?, rest.bytes(set.size)?);
        rest.is_empty().then_some((name, value))
    };
    // Whether more flags follow depends on what was agreed on. If they do, the rest (a name, a zero and the value) is 8
    // bytes shorter, so the lengths never fit both forms.
    let (more_flags, (name, value)) = match attribute(*rest) {
        Some(attribute) => (0, attribute),
        None => {
            let more: abi::SetXattrMore = rest.take()?;
            (more.more_flags, attribute(*rest)?)
        }
    };
    Some(FuseOperation::SetXattr(Setting {
        name,
        value,
        flags: set.flags,
        takes_set_gid: more_flags & abi::ACL_KILL_SGID != 0,
    }))
}

fn init<'a>(rest: &mut Arguments<'a>) -> Option<FuseOperation<'a>> {
    let init: abi::InitIn = rest.take()?;
    let mut flags = u64::from(init.flags);
    if flags & abi::init::EXTENDED != 0 {
        // Kernels that do not have the second word do not set the bit.
        flags |= u64::from(rest.take::<u32>()?) << 32;
    }
    Some(FuseOperation::Init(init, flags))
}

/// The inode of a node. The root's own number is never a node: it would be a second inode of one directory.
///
/// # Errors
/// `NOENT` for a node that no inode can have.
pub(crate) fn ino(node: u64) -> Result<Ino, Errno> {
    match node {
        abi::ROOT => Ok(Ino::ROOT),
        other => u32::try_from(other)
            .ok()
            .map(Ino)
            .filter(|ino| *ino != Ino::ROOT)
            .ok_or(Errno::NOENT),
    }
}

/// The node by which the kernel knows an inode: the inverse of [`ino`].
pub(crate) fn node(ino: Ino) -> u64 {
    match ino {
        Ino::ROOT => abi::ROOT,
        other => other.0.into(),
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn request(opcode: u32, arguments: &[u8]) -> Vec<u8> {
        let header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + arguments.len()) as u32,
            opcode,
            unique: 7,
            node: abi::ROOT,
            ..abi::InHeader::default()
        };
        [header.as_bytes(), arguments].concat()
    }

    #[test]
    fn a_request_that_is_cut_anywhere_is_refused_with_its_number() {
        let write = abi::WriteIn {
            size: 3,
            ..abi::WriteIn::default()
        };
        let setting = abi::SetXattrIn { size: 2, flags: 0 };
        let whole = [
            request(opcode::LOOKUP, b"name\0"),
            request(opcode::SYMLINK, b"name\0target\0"),
            request(opcode::WRITE, &[write.as_bytes(), b"abc"].concat()),
            request(
                opcode::SETXATTR,
                &[setting.as_bytes(), b"user.a\0vv"].concat(),
            ),
            request(opcode::BATCH_FORGET, &[1, 0, 0, 0, 0, 0, 0, 0].repeat(3)),
            request(opcode::SETATTR, &[0; size_of::<abi::SetAttrIn>()]),
            request(opcode::STATX, &[0; size_of::<abi::StatxIn>()]),
        ];
        for whole in whole {
            assert!(parse(&whole).is_ok());
            for len in 0..whole.len() {
                let expected = (len >= size_of::<abi::InHeader>()).then_some(7);
                let refused = parse(&whole[..len]).err().unwrap();
                assert_eq!(refused.unique, expected);
                // Even a correct length does not make a cut request valid.
                let mut cut = whole[..len].to_vec();
                if let Some(stated) = cut.get_mut(..4) {
                    stated.copy_from_slice(&(len as u32).to_ne_bytes());
                    assert!(parse(&cut).is_err(), "{len} of {}", whole.len());
                }
            }
        }
    }

    #[test]
    fn a_request_in_two_parts_is_the_same_as_in_one() {
        let create = abi::CreateIn {
            mode: 0o644,
            ..abi::CreateIn::default()
        };
        let write = abi::WriteIn {
            size: 3,
            ..abi::WriteIn::default()
        };
        for (opcode, own, rest) in [
            (opcode::LOOKUP, &[][..], &b"name\0"[..]),
            (opcode::SYMLINK, &[], b"name\0target\0"),
            (opcode::CREATE, create.as_bytes(), b"name\0"),
            (opcode::WRITE, write.as_bytes(), b"abc"),
            (opcode::STATFS, &[], &[]),
        ] {
            let whole = request(opcode, &[own, rest].concat());
            let one = format!("{:?}", parse(&whole).unwrap());
            let parts = parse_parts(&whole[..40], own, rest).unwrap();
            assert_eq!(format!("{parts:?}"), one);
            assert!(parse_parts(&whole[..40], own, b"more").is_err());
            assert!(parse_parts(&whole[..39], own, rest).is_err());
        }
    }

    #[test]
    fn a_setxattr_has_its_further_flags_where_they_were_agreed_on() {
        let setting = abi::SetXattrIn { size: 2, flags: 1 };
        let more = abi::SetXattrMore {
            more_flags: abi::ACL_KILL_SGID,
            padding: 0,
        };
        let none = abi::SetXattrMore::default();
        let attribute = &b"a\0vv"[..];
        for (parts, takes) in [
            (vec![setting.as_bytes(), attribute], false),
            (vec![setting.as_bytes(), none.as_bytes(), attribute], false),
            (vec![setting.as_bytes(), more.as_bytes(), attribute], true),
        ] {
            let whole = request(opcode::SETXATTR, &parts.concat());
            let own = parts[..parts.len() - 1].concat();
            let whole = parse(&whole).map(|request| request.operation);
            let header = request(opcode::SETXATTR, &parts.concat());
            let split = parse_parts(&header[..40], &own, attribute);
            for parsed in [whole, split.map(|request| request.operation)] {
                let FuseOperation::SetXattr(found) = parsed.unwrap() else {
                    panic!("another operation");
                };
                assert_eq!((found.takes_set_gid, found.flags), (takes, 1));
                assert_eq!((found.name, found.value), (&b"a"[..], &b"vv"[..]));
            }
        }
        let cut = [setting.as_bytes(), more.as_bytes(), b"a\0v"].concat();
        assert!(parse(&request(opcode::SETXATTR, &cut)).is_err());
    }

    #[test]
    fn lengths_that_the_bytes_contradict_are_refused() {
        let mut forget = request(opcode::BATCH_FORGET, &[0; 24]);
        forget[40..44].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(parse(&forget).is_err());
        let mut lookup = request(opcode::LOOKUP, b"a\0");
        // The extension is longer than the request.
        lookup[36..38].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert!(parse(&lookup).is_err());
        // The extension's own length is wrong.
        let mut lookup = request(opcode::LOOKUP, b"a\0\x08\0\0\0\0\0\0\0");
        lookup[36..38].copy_from_slice(&1_u16.to_ne_bytes());
        assert!(parse(&lookup).is_ok());
        lookup[42] = 16;
        assert!(parse(&lookup).is_err());
    }

    #[test]
    fn bytes_that_are_no_request_do_no_harm() {
        let mut random = testkit::Random::new(0x1a9e_f500);
        let mut next = || random.bits();
        for round in 0..200_000_u32 {
            let len = (next() % 160) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| (next() >> 32) as u8).collect();
            // Most requests get a correct length and a known opcode, so that they are parsed further.
            if round % 8 > 0 && len >= 8 {
                bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                bytes[4..8].copy_from_slice(&((next() % 60) as u32).to_ne_bytes());
            }
            if round % 8 > 1 && len >= 40 {
                bytes[36..38].fill(0);
            }
            if let Ok(Request {
                operation: FuseOperation::BatchForget(forgotten),
                ..
            }) = parse(&bytes)
            {
                assert!(forgotten.iter().count() <= len / 16);
            }
        }
    }

    #[test]
    fn what_is_not_known_is_told_from_what_is_broken() {
        let unknown = request(999, b"anything");
        assert!(matches!(
            parse(&unknown).unwrap().operation,
            FuseOperation::Unknown
        ));
    }

    #[test]
    fn the_root_has_a_node_of_its_own() {
        assert_eq!(node(ino(abi::ROOT).unwrap()), abi::ROOT);
        assert_eq!(node(ino(12).unwrap()), 12);
        assert!(ino(1 << 40).is_err() && ino(Ino::ROOT.0.into()).is_err());
    }
}
