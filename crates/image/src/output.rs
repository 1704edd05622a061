//! The image's file: made under a temporary name in the final directory, and renamed when all is written.
//!
//! Dropping an [`Output`] without [`Output::commit`] removes the temporary file, so that a failed or interrupted build
//! leaves nothing, and the file under the final name stays as it was. A crash of the machine may leave the temporary
//! file; never half an image under the final name. A block device is written in place.
//!
//! The file under the final name is replaced only if nobody uses it: it is locked from the beginning to the rename, and
//! other users are looked for again just before the rename.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use device::host;
use device::in_use::{self, Replaced};
use device::{BlockDevice, DeviceError, FileDevice, Resize};

use crate::error::BuildError;

/// How many temporary names are tried.
const NAMES: u32 = 100;

/// A file that becomes the image.
pub(crate) struct Output {
    device: FileDevice,
    /// The temporary name; none for a block device, and after the commit.
    temporary: Option<PathBuf>,
    path: PathBuf,
    /// The file under the final name, while it is there.
    replaced: Option<Replaced>,
}

impl Output {
    /// Makes the temporary file, `size` bytes long, or opens the block device.
    ///
    /// # Errors
    /// When the place can't be written, or the name stands for neither.
    pub(crate) fn create(path: &Path, size: u64) -> Result<Output, BuildError> {
        let failed = |operation, error| BuildError::Output {
            path: path.display().to_string(),
            operation,
            error,
        };
        let found = match fs::metadata(path) {
            Ok(metadata) => Some(metadata.file_type()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("look at it", error)),
        };
        match found {
            Some(kind) if host::is_block_device(kind) => {
                let device = in_use::open_to_write(path)?;
                // It keeps its size, which must be enough.
                device.set_size(size)?;
                return Ok(Output {
                    device,
                    temporary: None,
                    path: path.into(),
                    replaced: None,
                });
            }
            Some(kind) if !kind.is_file() => {
                let error = io::Error::other("it is neither a file nor a block device");
                return Err(failed("write an image there", error));
            }
            _ => {}
        }
        // A link's target is what is to be replaced.
        let target = match found {
            Some(_) => fs::canonicalize(path).map_err(|error| failed("find it", error))?,
            None => path.into(),
        };
        let Some(name) = target.file_name() else {
            return Err(failed(
                "write an image there",
                io::ErrorKind::InvalidInput.into(),
            ));
        };
        let replaced = Some(Replaced::hold(&target)?);
        for number in 0..NAMES {
            let mut temporary = std::ffi::OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{}-{number}.part", std::process::id()));
            let temporary = target.with_file_name(temporary);
            if temporary.exists() {
                continue;
            }
            let device = FileDevice::create_new(&temporary, size).map_err(|error| match error {
                // The temporary name means nothing to the caller.
                DeviceError::Open { source, .. } => failed("make a file of its size", source),
                other => other.into(),
            })?;
            return Ok(Output {
                device,
                temporary: Some(temporary),
                path: target,
                replaced,
            });
        }
        Err(failed(
            "make a temporary file beside it",
            io::ErrorKind::AlreadyExists.into(),
        ))
    }

    /// The device to write to.
    pub(crate) fn device(&self) -> &FileDevice {
        &self.device
    }

    /// Gives the file its final name.
    ///
    /// # Errors
    /// When it can't be flushed (if asked for) or renamed; the temporary file is then removed.
    pub(crate) fn commit(mut self, sync: bool) -> Result<(), BuildError> {
        if sync {
            self.device.flush()?;
        }
        if let Some(temporary) = &self.temporary {
            let replaced = self.replaced.take();
            let _replaced = replaced.map(|file| file.again(&self.path)).transpose()?;
            fs::rename(temporary, &self.path).map_err(|error| BuildError::Output {
                path: self.path.display().to_string(),
                operation: "put the image there",
                error,
            })?;
            self.temporary = None;
            if sync && let Some(directory) = self.path.parent() {
                let directory = if directory.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    directory
                };
                // The image is whole either way; only its name may be lost by a crash.
                let _ = fs::File::open(directory).and_then(|directory| directory.sync_all());
            }
        }
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // No caller gets this error, and nothing else can be tried.
            let _ = fs::remove_file(temporary);
        }
    }
}
