//! Which directories are container images: OCI layouts, and unpacked archives of `docker save`.

use std::path::Path;

use device::host;

use super::super::apply::is_image_name;
use super::super::error::SourceError;
use super::super::limits;
use super::super::system::beneath::open_root;
use super::blobs::{Blob, Blobs};
use super::documents::{OLD_SAVE, SKOPEO_DIRECTORY, SKOPEO_DIRECTORY_TOLD, looks_like_index};
use super::members::Member;
use super::recognize::{Texts, is_image};

/// The image in directory `path`, if it is one. A path that ends in `/.` is always a plain directory.
///
/// # Errors
/// If it can't be opened, or is a save from before Docker 1.10 or a directory in skopeo's form `dir:`.
pub(in super::super) fn in_directory(path: &Path) -> Result<Option<Blobs>, SourceError> {
    if path.as_os_str().as_encoded_bytes().ends_with(b"/.") {
        return Ok(None);
    }
    let has = |name: &str| path.join(name).symlink_metadata().is_ok();
    let named = ["oci-layout", "index.json", "manifest.json", "repositories"];
    if !named.iter().any(|name| has(name)) {
        return Ok(None);
    }
    let directory = open_root(path).map_err(|error| SourceError::Io {
        operation: "open",
        path: path.into(),
        error,
    })?;
    let blobs = Blobs::Directory(path.into(), directory);
    // An error of a file that can't be opened is reported when the file is needed.
    let find = |name: &str| match blobs.open(name) {
        Ok(Some(blob)) => Some(Member::File(0, blob.len)),
        Ok(None) => None,
        Err(_) => Some(Member::Other),
    };
    let start = |name: &str| {
        let blob = blobs.open(name).ok().flatten();
        blob.and_then(|blob| start_of(&blob))
    };
    let (manifest, index) = (start("manifest.json"), start("index.json"));
    let texts = Texts {
        manifest: manifest.as_deref(),
        index: index.as_deref(),
    };
    let indexed = index.as_deref().is_some_and(looks_like_index);
    if has("oci-layout") || has("blobs") && indexed || is_image(find, &texts, true) {
        return Ok(Some(blobs));
    }
    if !has("manifest.json") && !has("index.json") && is_old_save(path) {
        return Err(blobs.wrong(OLD_SAVE.into()));
    }
    if has("manifest.json")
        && start("version").is_some_and(|text| text.starts_with(SKOPEO_DIRECTORY))
    {
        return Err(blobs.wrong(SKOPEO_DIRECTORY_TOLD.into()));
    }
    Ok(None)
}

/// Whether a source that is this directory is a container image, or is refused as one.
#[must_use]
pub fn is_image_directory(path: &Path) -> bool {
    !matches!(in_directory(path), Ok(None))
}

/// The text of a file, cut off where it is longer than a document may be.
fn start_of(blob: &Blob) -> Option<Vec<u8>> {
    let mut text = vec![0; blob.len.min(limits::JSON + 1) as usize];
    host::read_exact_at(&blob.file, &mut text, blob.start).ok()?;
    Some(text)
}

/// Whether all names in the directory are those of a save from before Docker 1.10, and a layer is there.
fn is_old_save(path: &Path) -> bool {
    let Ok(entries) = path.read_dir() else {
        return false;
    };
    let mut layers = false;
    for entry in entries.take(limits::BLOBS) {
        let Ok(entry) = entry else { return false };
        if !is_image_name(entry.file_name().as_encoded_bytes()) {
            return false;
        }
        let below = |name: &str| entry.path().join(name).is_file();
        layers |= below("layer.tar") && below("json");
    }
    layers
}
