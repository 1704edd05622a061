//! The images of tests/corpus.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use sync::Arc;

/// Bytes of the largest image.
const IMAGE_MAX: u64 = 64 << 20;

/// An image, unpacked.
#[derive(Clone, Debug)]
pub struct Seed {
    /// Its file's name without endings.
    pub name: String,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
}

/// All images, by name; each is unpacked when it is its turn.
///
/// # Panics
/// When tests/corpus or an image in it cannot be read.
pub fn seeds() -> impl ExactSizeIterator<Item = Seed> {
    files().into_iter().map(Seed::read)
}

/// The image with this name.
///
/// # Panics
/// When it is not there or cannot be read.
#[must_use]
pub fn seed(name: &str) -> Seed {
    let found = files().into_iter().find(|(of, _)| of == name);
    Seed::read(found.unwrap_or_else(|| panic!("tests/corpus has no image {name}")))
}

impl Seed {
    fn read((name, path): (String, PathBuf)) -> Seed {
        let bytes = unpacked(&path).into();
        Seed { name, bytes }
    }
}

/// The images' names and files, by name.
fn files() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_suffix(".img.gz")?;
            Some((name.to_owned(), path))
        })
        .collect();
    paths.sort();
    paths
}

fn unpacked(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path);
    let read = file.and_then(|file| GzDecoder::new(file).take(IMAGE_MAX).read_to_end(&mut bytes));
    read.unwrap_or_else(|error| panic!("{path:?}: {error}"));
    bytes
}
