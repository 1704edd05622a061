//! Digests of blobs: `sha256:` or `sha512:`, followed by the hexadecimal digits.

use std::io::Read;

use sha2::{Digest as _, Sha256, Sha512};

use super::super::stream::Stream;

/// A digest, as an image names it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Digest(String);

impl Digest {
    /// # Errors
    /// When it can't be verified. Only a verified digest may become part of a path.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let digits = match text.split_once(':') {
            Some(("sha256", digits)) if digits.len() == 64 => digits,
            Some(("sha512", digits)) if digits.len() == 128 => digits,
            _ => "",
        };
        let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.is_empty() || !digits.bytes().all(lower) {
            return Err(format!(
                "`{}` is not a sha256 or sha512 digest",
                text.chars().take(150).collect::<String>().escape_debug()
            ));
        }
        Ok(Self(text.into()))
    }

    /// The digests of all kinds for `bytes`, as text.
    pub(super) fn all_of(bytes: &[u8]) -> Vec<String> {
        let (short, long) = (Sha256::digest(bytes), Sha512::digest(bytes));
        vec![
            format!("sha256:{}", digits(&short)),
            format!("sha512:{}", digits(&long)),
        ]
    }

    /// The digest that is a configuration's name: `KIND:DIGITS`, or in a directory `KIND`. Digits alone are an ordinary
    /// name, as for `docker load` and skopeo.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.split('/').rev();
        let last = parts.next().unwrap_or_default();
        let parent = parts.next().unwrap_or_default();
        let parsed = Self::parse(last).or_else(|_| Self::parse(&format!("{parent}:{last}")));
        parsed.ok()
    }

    /// The path of the blob in a layout.
    pub(super) fn path(&self) -> String {
        format!("blobs/{}", self.0.replacen(':', "/", 1))
    }

    /// A hasher whose result can be compared with this digest.
    pub(super) fn hasher(&self) -> Hasher {
        if self.0.starts_with("sha256:") {
            Hasher::Sha256(Sha256::new())
        } else {
            Hasher::Sha512(Sha512::new())
        }
    }

    /// Whether `bytes` have this digest.
    ///
    /// # Errors
    /// When they can't be read.
    pub(super) fn fits(&self, bytes: impl Read) -> std::io::Result<bool> {
        let mut hashed = Hashed::new(bytes, Some(self));
        hashed.drain()?;
        Ok(hashed.fits(self))
    }
}

/// The state of a digest's hash function.
#[derive(Clone)]
pub(super) enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// Whether all bytes have `digest`.
    pub(super) fn fits(self, digest: &Digest) -> bool {
        let found = match self {
            Self::Sha256(hasher) => format!("sha256:{}", digits(&hasher.finalize())),
            Self::Sha512(hasher) => format!("sha512:{}", digits(&hasher.finalize())),
        };
        found == digest.0
    }
}

fn digits(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that are hashed while they are read.
pub(super) struct Hashed<R> {
    bytes: R,
    hasher: Option<Hasher>,
}

impl<R: Read> Hashed<R> {
    /// Hashes for `digest`, if it is given.
    pub(super) fn new(bytes: R, digest: Option<&Digest>) -> Self {
        Self {
            bytes,
            hasher: digest.map(Digest::hasher),
        }
    }

    /// Reads the remaining bytes.
    pub(super) fn drain(&mut self) -> std::io::Result<()> {
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match self.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether all that was read has `digest`.
    pub(super) fn fits(self, digest: &Digest) -> bool {
        self.hasher.is_none_or(|hasher| hasher.fits(digest))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let got = self.bytes.read(buf)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buf[..got]);
        }
        Ok(got)
    }
}

/// A stream that hashes its bytes when they are used or skipped.
pub(super) struct HashedStream<'s> {
    stream: &'s mut dyn Stream,
    hasher: Option<Hasher>,
}

impl<'s> HashedStream<'s> {
    /// Hashes for `digest`, if it is given.
    pub(super) fn new(stream: &'s mut dyn Stream, digest: Option<&Digest>) -> Self {
        let hasher = digest.map(Digest::hasher);
        Self { stream, hasher }
    }

    /// Uses the remaining bytes, and returns whether all bytes have `digest`.
    pub(super) fn finish(mut self, digest: Option<&Digest>) -> std::io::Result<bool> {
        loop {
            let held = self.fill()?.len();
            if held == 0 {
                break;
            }
            self.consume(held);
        }
        Ok(match (self.hasher, digest) {
            (Some(hasher), Some(digest)) => hasher.fits(digest),
            _ => true,
        })
    }
}

impl Stream for HashedStream<'_> {
    fn fill(&mut self) -> std::io::Result<&[u8]> {
        self.stream.fill()
    }

    fn consume(&mut self, count: usize) {
        if let Some(hasher) = &mut self.hasher
            && let Ok(held) = self.stream.fill()
        {
            hasher.update(&held[..count.min(held.len())]);
        }
        self.stream.consume(count);
    }

    fn position(&self) -> u64 {
        self.stream.position()
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn a_configuration_may_have_its_digest_as_its_name() {
        let digits = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest = Digest::parse(&format!("sha256:{digits}")).unwrap();
        for name in [format!("sha256:{digits}"), format!("blobs/sha256/{digits}")] {
            assert_eq!(Digest::of_name(&name).as_ref(), Some(&digest), "{name}");
        }
        for name in [
            "",
            "config.json",
            digits,
            &format!("{digits}.json"),
            &format!("x/{digits}"),
        ] {
            assert_eq!(Digest::of_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_digest_is_verified_and_never_a_way_out_of_the_layout() {
        // The example of FIPS 180-2.
        let abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest = Digest::parse(abc).unwrap();
        assert!(digest.fits(&b"abc"[..]).unwrap());
        assert!(!digest.fits(&b"abd"[..]).unwrap());
        assert!(digest.path().starts_with("blobs/sha256/ba78"));
        for wrong in [
            "",
            "sha256:",
            "sha256:../../etc",
            "md5:abc",
            &abc.to_uppercase(),
            &abc[1..],
        ] {
            assert!(Digest::parse(wrong).is_err(), "{wrong}");
        }
    }
}
