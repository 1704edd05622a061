//! The sources of a build, as the user gives them.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::error::SourceError;
use super::lost_found::LostFoundTime;

/// The place of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourcePlace {
    /// A directory, an archive or a container image; the contents decide which.
    Path(PathBuf),
    /// A tar archive on standard input.
    Stdin,
}

/// One input and the directory of the image that it is put into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The input's place.
    pub place: SourcePlace,
    /// The directory of the image that becomes the input's root, without a leading `/`: empty for the image's root.
    pub at: Vec<u8>,
}

impl Input {
    /// Reads `PLACE` or `PLACE:/PATH`. If a place with the whole name exists, it is used. `-` is standard input.
    #[must_use]
    pub fn parse(text: &OsStr) -> Self {
        let bytes = text.as_encoded_bytes();
        let colon = bytes.windows(2).rposition(|pair| pair == b":/");
        let (place, at) = match colon {
            Some(colon) if !std::path::Path::new(text).exists() => (
                device::host::name(&bytes[..colon]).into_owned(),
                bytes[colon + 2..].to_vec(),
            ),
            _ => (text.to_os_string(), Vec::new()),
        };
        let place = if place == "-" {
            SourcePlace::Stdin
        } else {
            SourcePlace::Path(PathBuf::from(place))
        };
        Self { place, at }
    }
}

/// Everything that decides the contents of the tree.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The inputs in order. An entry of a later input replaces one of an earlier input; directories are merged.
    pub inputs: Vec<Input>,
    /// Patterns of names that are left out.
    pub exclude: Vec<String>,
    /// Owner and group of everything, before the table is applied.
    pub owner: Option<(u32, u32)>,
    /// An ownership and device table.
    pub table: Option<PathBuf>,
    /// An SELinux `file_contexts` file.
    pub file_contexts: Option<PathBuf>,
    /// The image of a multi-platform OCI index to use, as `os/architecture[/variant]`; by default this machine's
    /// platform.
    pub platform: Option<String>,
    /// The container image to use if a source has several: a tag, name or digest.
    pub image: Option<String>,
    /// The most bytes of a container image that are kept in a temporary file while it is read; by default half of the
    /// free space there.
    pub spool: Option<u64>,
    /// Whether the root gets a lost+found if no source has one, and its time. [`crate::build`] sets this according to
    /// the options of the file system.
    pub lost_found: Option<LostFoundTime>,
    /// The image that will be written, and its temporary file, which are left out of directory sources. A name that
    /// does not exist is ignored.
    pub outputs: Vec<PathBuf>,
    /// The number of threads that scan; 0 for the number that the machine has.
    pub threads: usize,
}

/// Reads `UID:GID`.
///
/// # Errors
/// When it is not two numbers up to 4294967295.
pub fn parse_owner(text: &str) -> Result<(u32, u32), SourceError> {
    let parsed = text
        .split_once(':')
        .and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    parsed
        .ok_or_else(|| SourceError::Usage(format!("`{text}` is not an owner in the form UID:GID")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_may_name_the_directory_it_goes_to() {
        let input = Input::parse(OsStr::new("no/such:/opt/x"));
        assert_eq!(input.place, SourcePlace::Path("no/such".into()));
        assert_eq!(input.at, b"opt/x");
        assert_eq!(
            Input::parse(OsStr::new("-")),
            Input {
                place: SourcePlace::Stdin,
                at: Vec::new()
            }
        );
        assert_eq!(
            Input::parse(OsStr::new("-:/a")),
            Input {
                place: SourcePlace::Stdin,
                at: b"a".to_vec()
            }
        );
        assert_eq!(
            Input::parse(OsStr::new("/")).place,
            SourcePlace::Path("/".into())
        );
    }

    #[test]
    fn an_owner_is_two_numbers() {
        assert_eq!(parse_owner("0:4294967295").unwrap(), (0, u32::MAX));
        for wrong in ["", "1", "a:b", "1:", "-1:0", "4294967296:0"] {
            assert!(parse_owner(wrong).is_err(), "{wrong}");
        }
    }
}
