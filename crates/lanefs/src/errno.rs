//! Errors as the numbers that system calls give. The only place that chooses them.

use device::DeviceError;
use rustix::io::Errno;

use crate::Error;
use crate::locate::LocateError;

/// The number for an error.
#[must_use]
pub fn of(error: &Error) -> Errno {
    match error {
        Error::Fs { source, .. } => of_engine(source),
        Error::Locate(LocateError::Device(error)) => of_device(error),
        Error::Locate(
            LocateError::NoTable
            | LocateError::NoSuchPartition { .. }
            | LocateError::BeyondEnd { .. }
            | LocateError::NotExt(_),
        ) => Errno::INVAL,
        Error::Host { source, .. } | Error::Output(source) => of_io(source),
        Error::Invalid(_) => Errno::UCLEAN,
    }
}

fn of_engine(error: &engine::Error) -> Errno {
    use engine::Error as E;
    match error {
        E::NotFound => Errno::NOENT,
        E::NotDirectory => Errno::NOTDIR,
        E::IsDirectory => Errno::ISDIR,
        E::NotRegular | E::NotSymlink => Errno::INVAL,
        E::TooManyLinks => Errno::LOOP,
        E::NameTooLong => Errno::NAMETOOLONG,
        E::Encrypted => Errno::NOKEY,
        E::Unsupported(_) | E::UnsupportedImage(_) | E::Journal(_) => Errno::OPNOTSUPP,
        E::Truncated { .. } | E::Corrupt(_) => Errno::UCLEAN,
        E::Io(error) => of_device(error),
    }
}

fn of_device(error: &DeviceError) -> Errno {
    match error {
        DeviceError::Io { source, .. } | DeviceError::Open { source, .. } => of_io(source),
        DeviceError::ReadOnly => Errno::ROFS,
        DeviceError::InUse { .. } => Errno::BUSY,
        _ => Errno::IO,
    }
}

fn of_io(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
