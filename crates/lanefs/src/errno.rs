//! Errors as the numbers that system calls give, and as the kinds of `std::io`. The only place that chooses them.

pub use crate::system::errno::{Errno, as_io_error};
use std::io::ErrorKind;

use device::DeviceError;
#[cfg(feature = "build")]
use image::{BuildError, source::SourceError};

use crate::Error;
use crate::locate::LocateError;
use crate::make::MakeError;

/// The number for an error.
#[must_use]
pub fn of(error: &Error) -> Errno {
    match error {
        Error::Fs { source, .. } => of_engine(source),
        Error::XattrTooLarge { .. } => Errno::NOSPC,
        Error::Locate(LocateError::Device(error)) => of_device(error),
        Error::Locate(
            LocateError::NoTable
            | LocateError::NoSuchPartition { .. }
            | LocateError::BeyondEnd { .. }
            | LocateError::PartitionBeyondEnd { .. }
            | LocateError::CutSuperblock(_)
            | LocateError::Empty
            | LocateError::TooShort(_)
            | LocateError::NotExt(_),
        ) => Errno::INVAL,
        #[cfg(feature = "build")]
        Error::Build(error) => of_build(error),
        Error::Make(error) => of_make(error),
        Error::InUse { .. } => Errno::BUSY,
        Error::Host { source, .. } | Error::Output(source) => of_io(source),
        Error::Invalid(_) | Error::NameTwice(_) => Errno::UCLEAN,
    }
}

/// The kind of an error. A number for which std has no kind gets the nearest one.
pub(crate) fn kind_of(error: &Error) -> ErrorKind {
    if let Error::Host { source, .. } | Error::Output(source) = error {
        return source.kind();
    }
    match of(error) {
        Errno::UCLEAN => ErrorKind::InvalidData,
        Errno::NODATA => ErrorKind::NotFound,
        Errno::NOKEY => ErrorKind::Unsupported,
        Errno::BADF => ErrorKind::PermissionDenied,
        Errno::RANGE | Errno::TOOBIG => ErrorKind::InvalidInput,
        Errno::IO => ErrorKind::Other,
        number => as_io_error(number).kind(),
    }
}

fn of_engine(error: &engine::Error) -> Errno {
    use engine::Error as E;
    match error {
        E::NotFound => Errno::NOENT,
        E::NotDirectory => Errno::NOTDIR,
        E::IsDirectory => Errno::ISDIR,
        E::NotRegular | E::NotSymlink | E::InvalidArgument => Errno::INVAL,
        E::FileTooLarge => Errno::FBIG,
        E::NotPermitted => Errno::PERM,
        E::TooManyLinks => Errno::LOOP,
        E::NameTooLong => Errno::NAMETOOLONG,
        E::Encrypted => Errno::NOKEY,
        E::Unsupported(_) | E::UnsupportedImage(_) | E::NotSupported(_) | E::Journal(_) => {
            Errno::OPNOTSUPP
        }
        E::FastCommits(cause) => of_engine(cause),
        E::UnwritableFeature(_)
        | E::Unwritable(_)
        | E::OnlyRead(_)
        | E::ReadOnly
        | E::Closed
        | E::Stopped(_) => Errno::ROFS,
        E::NoSpace | E::DirectoryFull => Errno::NOSPC,
        E::Stale => Errno::STALE,
        E::Exists => Errno::EXIST,
        E::NoAttribute => Errno::NODATA,
        E::ValueTooLarge => Errno::TOOBIG,
        E::NotOpenedSo => Errno::BADF,
        E::NameLength => Errno::RANGE,
        E::AccessDenied => Errno::ACCESS,
        E::NotEmpty => Errno::NOTEMPTY,
        E::LinkLimit => Errno::MLINK,
        E::Busy => Errno::BUSY,
        // A promise was not kept; what is only refused from then on is `Stopped`.
        E::Aborted(_) => Errno::IO,
        E::Truncated { .. } | E::Corrupt(_) => Errno::UCLEAN,
        E::Io(error) => of_device(error),
    }
}

#[cfg(feature = "build")]
fn of_build(error: &BuildError) -> Errno {
    match error {
        BuildError::Source(SourceError::Io { error, .. }) | BuildError::Output { error, .. } => {
            of_io(error)
        }
        BuildError::Source(SourceError::Unreadable(_)) => Errno::ACCESS,
        BuildError::Mkfs(error) => of_mkfs(error),
        BuildError::Device(error) => of_device(error),
        BuildError::TooSmall { .. } | BuildError::TooFewInodes { .. } => Errno::NOSPC,
        BuildError::Interrupted => Errno::INTR,
        _ => Errno::INVAL,
    }
}

fn of_make(error: &MakeError) -> Errno {
    match error {
        MakeError::Mkfs(error) => of_mkfs(error),
        MakeError::Device(error) => of_device(error),
        MakeError::Occupied(_) | MakeError::NotInPartition { .. } => Errno::EXIST,
        MakeError::InUse(_) => Errno::BUSY,
        MakeError::NoSize | MakeError::Offset(_) => Errno::INVAL,
    }
}

fn of_mkfs(error: &mkfs::Error) -> Errno {
    match error {
        mkfs::Error::TooSmall { .. } => Errno::NOSPC,
        mkfs::Error::Device(error) => of_device(error),
        _ => Errno::INVAL,
    }
}

fn of_device(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Io { source, .. }
        | DeviceError::Open { source, .. }
        | DeviceError::Spool { source, .. }
        | DeviceError::NoRoom { source, .. } => of_io(source),
        DeviceError::ReadOnly | DeviceError::WriteProtected { .. } => Errno::ROFS,
        DeviceError::InUse { .. } => Errno::BUSY,
        _ => Errno::IO,
    }
}

fn of_io(error: &std::io::Error) -> Errno {
    crate::system::errno::from_io_error(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_an_io_error_of_its_kind_with_its_text() {
        let error = std::io::Error::from(Error::at(b"/a", engine::Error::NotFound));
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.to_string(), "/a: no such file or directory");
        let error = std::io::Error::from(Error::from(engine::Error::IsDirectory));
        assert_eq!(error.kind(), ErrorKind::IsADirectory);
    }

    #[test]
    fn numbers_for_which_std_has_no_kind_get_the_nearest() {
        use engine::Error as E;
        let kind = |error: E| Error::from(error).kind();
        assert_eq!(kind(E::NoAttribute), ErrorKind::NotFound);
        assert_eq!(kind(E::Encrypted), ErrorKind::Unsupported);
        assert_eq!(kind(E::NotOpenedSo), ErrorKind::PermissionDenied);
        assert_eq!(kind(E::NameLength), ErrorKind::InvalidInput);
        assert_eq!(kind(E::ValueTooLarge), ErrorKind::InvalidInput);
        assert_eq!(Error::invalid("x").kind(), ErrorKind::InvalidData);
        let io = std::io::Error::from(Error::invalid("x"));
        assert_eq!(io.kind(), ErrorKind::InvalidData);
        assert_eq!(Error::from(E::NotFound).errno(), 2);
    }

    #[test]
    fn debug_shows_paths_and_names_as_text() {
        let error = Error::at(b"/a\nb", engine::Error::NotFound);
        assert_eq!(
            format!("{error:?}"),
            r#"Fs { path: "/a\nb", source: NotFound }"#
        );
        let error = Error::name_twice(b"\xff\"");
        assert_eq!(format!("{error:?}"), r#"NameTwice(b"\xff\"")"#);
    }
}
