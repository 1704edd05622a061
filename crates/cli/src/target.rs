//! `IMAGE:PATH` and `IMAGE /path`: which image, and which path in it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::failure::Failure;

/// A place in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePath {
    /// The image's file or device.
    pub image: PathBuf,
    /// The absolute path in it, as bytes; `/` when none was given.
    pub path: Vec<u8>,
    /// Whether the user gave a path.
    pub has_path: bool,
}

impl ImagePath {
    /// Splits at the first `:/`; without one, all of it names the image. A URI (`http://host/disk.img`) names the
    /// image as a whole, and splits at the first `#/`.
    pub fn parse(argument: &OsStr) -> ImagePath {
        let bytes = argument.as_bytes();
        let separator = if is_uri(bytes) { b"#/" } else { b":/" };
        match bytes.windows(2).position(|pair| pair == separator) {
            Some(at) if at > 0 => ImagePath {
                image: OsString::from_vec(bytes[..at].to_vec()).into(),
                path: bytes[at + 1..].to_vec(),
                has_path: true,
            },
            _ => ImagePath {
                image: argument.into(),
                path: b"/".to_vec(),
                has_path: false,
            },
        }
    }

    /// The path, as the library takes it.
    pub fn path(&self) -> &OsStr {
        OsStr::from_bytes(&self.path)
    }

    /// The last part of the path; for a root, a dot.
    pub fn name(&self) -> &[u8] {
        let path = self.path.strip_suffix(b"/").unwrap_or(&self.path);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if name.is_empty() { b"." } else { name }
    }

    /// The target as the user would write it, safe to print.
    pub fn shown(&self) -> String {
        format!(
            "{}:{}",
            self.image.display(),
            crate::format::safe(&self.path)
        )
    }

    /// The targets that a command line names: `IMAGE`, `IMAGE:/a IMAGE:/b OTHER:/c`, or `IMAGE /a /b`, where a path
    /// that stands alone belongs to the image before it.
    ///
    /// # Errors
    /// A usage failure when a path comes before any image.
    pub fn parse_all(arguments: &[OsString]) -> Result<Vec<ImagePath>, Failure> {
        let mut targets: Vec<ImagePath> = Vec::new();
        for argument in arguments {
            let target = ImagePath::parse(argument);
            let stands_alone = !target.has_path && argument.as_bytes().starts_with(b"/");
            match targets.last_mut() {
                Some(last) if stands_alone => {
                    let path = argument.as_bytes().to_vec();
                    if last.has_path {
                        let image = last.image.clone();
                        targets.push(ImagePath {
                            image,
                            path,
                            has_path: true,
                        });
                    } else {
                        last.path = path;
                        last.has_path = true;
                    }
                }
                _ => targets.push(target),
            }
        }
        if targets.is_empty() {
            return Err(Failure::usage("no image was named"));
        }
        Ok(targets)
    }
}

/// Whether an argument begins with a URI's scheme and `://` (RFC 3986: a letter, then letters, digits, `+` and `-`).
/// Unlike in the RFC, a scheme has at least two characters and no dot, so that `a://b` and `disk.img://b` are still the
/// path `//b` of an image.
pub fn is_uri(argument: &[u8]) -> bool {
    let Some(end) = argument.windows(3).position(|three| three == b"://") else {
        return false;
    };
    let scheme = &argument[..end];
    scheme.len() > 1
        && scheme[0].is_ascii_alphabetic()
        && scheme
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Vec<(String, String, bool)> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        ImagePath::parse_all(&arguments)
            .unwrap()
            .into_iter()
            .map(|target| {
                let path = String::from_utf8(target.path).unwrap();
                (
                    target.image.to_string_lossy().into_owned(),
                    path,
                    target.has_path,
                )
            })
            .collect()
    }

    #[test]
    fn a_target_splits_at_the_first_colon_slash() {
        assert_eq!(
            parse(&["a:b:/c:/d"]),
            [("a:b".into(), "/c:/d".into(), true)]
        );
        assert_eq!(parse(&["a:b"]), [("a:b".into(), "/".into(), false)]);
        assert_eq!(
            parse(&["/dev/loop0"]),
            [("/dev/loop0".into(), "/".into(), false)]
        );
    }

    #[test]
    fn a_uri_is_an_image_as_a_whole_and_splits_at_a_hash() {
        for whole in [
            "http://host:/x",
            "nbd://host:10809/export",
            "s3+https://a/b:/c",
        ] {
            assert_eq!(parse(&[whole]), [(whole.into(), "/".into(), false)]);
        }
        assert_eq!(
            parse(&["http://h/d.img#/etc/motd"]),
            [("http://h/d.img".into(), "/etc/motd".into(), true)]
        );
        // An image whose name is one letter, or not a scheme, with a path of two slashes.
        assert_eq!(parse(&["a://b"]), [("a".into(), "//b".into(), true)]);
        assert_eq!(
            parse(&["d.img://b"]),
            [("d.img".into(), "//b".into(), true)]
        );
        assert_eq!(parse(&["./aa://b"]), [("./aa".into(), "//b".into(), true)]);
    }

    #[test]
    fn a_path_that_stands_alone_belongs_to_the_image_before_it() {
        let expected = [
            ("i".into(), "/a".into(), true),
            ("i".into(), "/b".into(), true),
        ];
        assert_eq!(parse(&["i", "/a", "/b"]), expected);
        assert_eq!(parse(&["i:/a", "i:/b"]), expected);
        assert_eq!(parse(&["/x/i", "/a"]), [("/x/i".into(), "/a".into(), true)]);
    }
}
