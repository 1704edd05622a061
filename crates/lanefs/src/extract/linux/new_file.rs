//! A regular file that is there whole or not at all: until it is kept, dropping it removes it.
//!
//! If its name is free, it is written under that name. If it replaces another file, it is written under a temporary
//! name in the same directory until it is kept, so the old file stays if the new one fails. The new file then takes
//! over what `cp` would leave of the old one: owner, mode, ACL and extended attributes that are not the image's.
//!
//! No locks; names of one directory are created by one thread each. A kill that can't be caught leaves the file that
//! was being written.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::super::{Existing, Keep};
use super::host::{self, Inheritance};

/// How many names are tried for a file that replaces another.
const TRIES: u32 = 100;

/// A file that is being written.
pub struct NewFile<'a> {
    parent: &'a OwnedFd,
    /// The name it is to have.
    name: &'a CStr,
    /// The name it has until then, if that is another.
    own_name: Option<CString>,
    /// What the file that has the name leaves to this one.
    inheritance: Option<Inheritance>,
    file: OwnedFd,
    is_kept: bool,
}

impl<'a> NewFile<'a> {
    /// Creates a file; `None` where what has the name is kept. What is replaced may be anything but a directory.
    ///
    /// # Errors
    /// When it can't be created, or the name is taken and must not be.
    pub fn create(
        parent: &'a OwnedFd,
        name: &'a CStr,
        mode: u32,
        existing: Existing,
    ) -> io::Result<Option<NewFile<'a>>> {
        let mut inheritance = None;
        let (own_name, file) = match host::create_file(parent, name, mode) {
            Err(Errno::EXIST) if existing == Existing::Keep => return Ok(None),
            Err(Errno::EXIST) if existing == Existing::Replace => {
                inheritance = Inheritance::of(parent, name)?;
                let (own_name, file) = beside(parent, mode)?;
                (Some(own_name), file)
            }
            other => (None, other?),
        };
        Ok(Some(NewFile {
            parent,
            name,
            own_name,
            inheritance,
            file,
            is_kept: false,
        }))
    }

    /// What to write to.
    pub fn handle(&self) -> &OwnedFd {
        &self.file
    }

    /// Gives the new file its name, so that it stays, and the metadata that it takes over from the file it replaces.
    ///
    /// # Errors
    /// When what has the name can't be replaced.
    pub fn keep(&mut self, keep: &Keep) -> io::Result<()> {
        if let Some(inheritance) = &self.inheritance {
            inheritance.give(&self.file, keep)?;
        }
        if let Some(own_name) = &self.own_name {
            rustix::fs::renameat(self.parent, own_name, self.parent, self.name)?;
        }
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let name = self.own_name.as_deref().unwrap_or(self.name);
            // Nothing can be done about a file that can't be removed again.
            let _ = rustix::fs::unlinkat(self.parent, name, AtFlags::empty());
        }
    }
}

/// Creates a file under a name that nothing has.
fn beside(parent: &OwnedFd, mode: u32) -> io::Result<(CString, OwnedFd)> {
    let pid = std::process::id();
    let thread = rustix::thread::gettid().as_raw_nonzero();
    for number in 0..TRIES {
        let name = CString::new(format!(".lanefs-{pid}-{thread}-{number}.part"))?;
        match host::create_file(parent, &name, mode) {
            Err(Errno::EXIST) => {}
            other => return Ok((name, other?)),
        }
    }
    Err(Errno::EXIST.into())
}
