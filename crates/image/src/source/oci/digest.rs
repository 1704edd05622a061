//! Digests of blobs: `sha256:` or `sha512:` and as many hexadecimal digits as it takes.

use std::io::Read;

use sha2::{Digest as _, Sha256, Sha512};

/// A digest as an image names it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Digest(String);

impl Digest {
    /// # Errors
    /// When it is none that can be verified: nothing else may become part of a path.
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

    /// The digests of every kind that `bytes` have, as text.
    pub(super) fn all_of(bytes: &[u8]) -> Vec<String> {
        let digits = |hash: &[u8]| {
            hash.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let (short, long) = (Sha256::digest(bytes), Sha512::digest(bytes));
        vec![
            format!("sha256:{}", digits(&short)),
            format!("sha512:{}", digits(&long)),
        ]
    }

    /// Where a layout keeps the blob.
    pub(super) fn path(&self) -> String {
        format!("blobs/{}", self.0.replacen(':', "/", 1))
    }

    /// Whether `bytes` have this digest.
    ///
    /// # Errors
    /// When they can't be read.
    pub(super) fn fits(&self, bytes: impl Read) -> std::io::Result<bool> {
        let found = if self.0.starts_with("sha256:") {
            format!("sha256:{}", hash::<Sha256>(bytes)?)
        } else {
            format!("sha512:{}", hash::<Sha512>(bytes)?)
        };
        Ok(found == self.0)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn hash<D: sha2::Digest>(mut bytes: impl Read) -> std::io::Result<String> {
    let mut hasher = D::new();
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match bytes.read(&mut buffer) {
            Ok(0) => break,
            Ok(got) => hasher.update(&buffer[..got]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn a_digest_is_verified_and_never_a_way_out_of_the_layout() {
        // From FIPS 180-2.
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
