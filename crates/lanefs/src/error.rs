//! The one error of the library. It says what failed and where; [`crate::errno`] says it as a number.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(feature = "build")]
use crate::build::BuildError;
use crate::errno;
use crate::locate::LocateError;
use crate::make::MakeError;

/// Why something could not be done. Its text names what failed and where; programs ask for [`Error::kind`] and
/// [`Error::errno`]. `Debug` shows paths and names as text, with escapes where they are not UTF-8.
#[non_exhaustive]
pub enum Error {
    /// The file system says no; where, if a path is known.
    Fs {
        /// The path in the image, as bytes; empty when the path is not known.
        path: Vec<u8>,
        /// What it says.
        source: engine::Error,
    },
    /// An extended attribute is larger than the block that an inode's attributes share.
    XattrTooLarge {
        /// The path in the image, as bytes.
        path: Vec<u8>,
        /// The attribute's whole name.
        name: Vec<u8>,
        /// Bytes of its value.
        len: usize,
    },
    /// The given place does not hold an ext2/3/4.
    Locate(LocateError),
    /// A file of the host can't be used.
    Host {
        /// What was tried: `creating`, `writing`, ...
        operation: &'static str,
        /// The host's path.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// An image was not built.
    #[cfg(feature = "build")]
    Build(BuildError),
    /// A file system was not made.
    Make(MakeError),
    /// Another program, or the host's kernel, uses the image.
    InUse {
        /// The image's path.
        path: PathBuf,
        /// How it is in use, as a clause: `mounted on /mnt`, `attached to /dev/loop0`.
        user: String,
    },
    /// The stream that is written to failed.
    Output(io::Error),
    /// Something that no sound image holds, and what.
    Invalid(&'static str),
    /// A directory has a name twice, which no sound one does: only the first entry counts.
    NameTwice(Vec<u8>),
}

impl Error {
    pub(crate) fn at(path: &[u8], source: engine::Error) -> Error {
        Error::Fs {
            path: path.to_vec(),
            source,
        }
    }

    pub(crate) fn host(operation: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Host {
            operation,
            path: path.to_path_buf(),
            source,
        }
    }

    /// The kind of error, as `std::fs` reports it for the same operation on a mounted file system. Where std has no
    /// kind for the kernel's number, it is the nearest one: `InvalidData` for a damaged image, `NotFound` for a missing
    /// attribute, `Unsupported` for encrypted contents, `PermissionDenied` for a file that was not opened for the
    /// operation. An [`std::io::Error`] made of the error has the same kind, except after an abort of the journal: it
    /// is `EIO` then, to which std gives no kind, while this is `Other`.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        errno::kind_of(self)
    }

    /// The number that Linux's system calls return for the error, on every host: `ENOENT` is 2.
    #[must_use]
    pub fn errno(&self) -> i32 {
        errno::of(self).raw_os_error()
    }

    /// Whether the error means that something does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Error::Fs {
                source: engine::Error::NotFound,
                ..
            }
        )
    }

    #[cfg(feature = "extract")]
    pub(crate) fn output(source: io::Error) -> Error {
        Error::Output(source)
    }

    pub(crate) fn name_twice(name: &[u8]) -> Error {
        Error::NameTwice(name.to_vec())
    }

    pub(crate) fn invalid(what: &'static str) -> Error {
        Error::Invalid(what)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Fs { path, source } if path.is_empty() => source.fmt(f),
            Error::Fs { path, source } => write!(f, "{}: {source}", printable(path)),
            Error::XattrTooLarge { path, name, len } => write!(
                f,
                "{}: the extended attribute {} has {len} bytes, more than the block holds that a file has for them",
                printable(path),
                printable(name)
            ),
            Error::Locate(error) => error.fmt(f),
            Error::Host {
                operation,
                path,
                source,
            } => {
                write!(
                    f,
                    "{operation} {} failed: {source}",
                    printable(path.as_os_str().as_encoded_bytes())
                )
            }
            #[cfg(feature = "build")]
            Error::Build(error) => error.fmt(f),
            Error::Make(error) => error.fmt(f),
            Error::InUse { path, user } => write!(f, "{} is in use: {user}", path.display()),
            Error::Output(source) => write!(f, "writing the output failed: {source}"),
            Error::Invalid(what) => f.write_str(what),
            Error::NameTwice(name) => write!(
                f,
                "the directory has the name `{}` twice; only the first entry counts",
                printable(name)
            ),
        }
    }
}

/// Shows bytes as a string literal of Rust, or as a byte string if they are not UTF-8.
struct Text<'a>(&'a [u8]);

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(self.0) {
            Ok(text) => text.fmt(f),
            Err(_) => write!(f, "b\"{}\"", self.0.escape_ascii()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Fs { path, source } => f
                .debug_struct("Fs")
                .field("path", &Text(path))
                .field("source", source)
                .finish(),
            Error::XattrTooLarge { path, name, len } => f
                .debug_struct("XattrTooLarge")
                .field("path", &Text(path))
                .field("name", &Text(name))
                .field("len", len)
                .finish(),
            Error::Host {
                operation,
                path,
                source,
            } => f
                .debug_struct("Host")
                .field("operation", operation)
                .field("path", path)
                .field("source", source)
                .finish(),
            Error::InUse { path, user } => f
                .debug_struct("InUse")
                .field("path", path)
                .field("user", user)
                .finish(),
            Error::Locate(source) => f.debug_tuple("Locate").field(source).finish(),
            #[cfg(feature = "build")]
            Error::Build(source) => f.debug_tuple("Build").field(source).finish(),
            Error::Make(source) => f.debug_tuple("Make").field(source).finish(),
            Error::Output(source) => f.debug_tuple("Output").field(source).finish(),
            Error::Invalid(what) => f.debug_tuple("Invalid").field(what).finish(),
            Error::NameTwice(name) => f.debug_tuple("NameTwice").field(&Text(name)).finish(),
        }
    }
}

/// A path as text in which nothing steers a terminal.
fn printable(path: &[u8]) -> String {
    String::from_utf8_lossy(path).replace(char::is_control, "?")
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Fs { source, .. } => Some(source),
            Error::Locate(source) => Some(source),
            #[cfg(feature = "build")]
            Error::Build(source) => Some(source),
            Error::Make(source) => Some(source),
            Error::Host { source, .. } | Error::Output(source) => Some(source),
            Error::InUse { .. }
            | Error::Invalid(_)
            | Error::NameTwice(_)
            | Error::XattrTooLarge { .. } => None,
        }
    }
}

impl From<engine::Error> for Error {
    fn from(source: engine::Error) -> Error {
        Error::at(b"", source)
    }
}

impl From<LocateError> for Error {
    fn from(error: LocateError) -> Error {
        Error::Locate(error)
    }
}

#[cfg(feature = "build")]
impl From<BuildError> for Error {
    fn from(error: BuildError) -> Error {
        Error::Build(error)
    }
}

impl From<MakeError> for Error {
    fn from(error: MakeError) -> Error {
        Error::Make(error)
    }
}

impl From<device::DeviceError> for Error {
    fn from(error: device::DeviceError) -> Error {
        match error {
            device::DeviceError::InUse { path, holder } => Error::InUse {
                path: path.into(),
                user: holder,
            },
            error => Error::Locate(LocateError::Device(error)),
        }
    }
}

/// One that was made of an [`Error`] becomes that again.
impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        match error.downcast::<Error>() {
            Ok(ours) => ours,
            Err(other) => Error::Output(other),
        }
    }
}

/// Keeps the text; the kind is that of the errno. Where nothing is written any more, it is the errno itself (`EIO`
/// after an abort, `EROFS`), which callers ask for, and the text is the system's.
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = error.kind();
        match error {
            Error::Fs {
                source:
                    engine::Error::Aborted(_) | engine::Error::Stopped(_) | engine::Error::ReadOnly,
                ..
            } => errno::as_io_error(errno::of(&error)),
            error => io::Error::new(kind, error),
        }
    }
}
