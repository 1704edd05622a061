//! The JSON documents of an image: index, manifest, configuration, and the `manifest.json` of docker-save.
//!
//! Go writes `null` for an empty list, and other tools omit empty members: both are read as empty here. Every list has
//! a bound, so that a small document can't take much memory.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::super::error::SourceError;
use super::super::limits;
use super::blobs::Blobs;
use super::digest::Digest;
use super::lenient;
use super::platform::Platform;

/// A list of at most `MAX` items; `null` is the empty list.
#[derive(Clone, Debug)]
pub(super) struct List<T, const MAX: usize>(pub(super) Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'d, T: Deserialize<'d>, const MAX: usize> Deserialize<'d> for List<T, MAX> {
    fn deserialize<D: Deserializer<'d>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);

        impl<'d, T: Deserialize<'d>, const MAX: usize> Visitor<'d> for Items<T, MAX> {
            type Value = List<T, MAX>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "a list or null")
            }

            fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
                Ok(List::default())
            }

            fn visit_seq<A: SeqAccess<'d>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() == MAX {
                        return Err(A::Error::custom(format!("a list of more than {MAX} items")));
                    }
                    items.push(item);
                }
                Ok(List(items))
            }
        }

        deserializer.deserialize_any(Items(PhantomData))
    }
}

/// What an index records about a document, or a manifest about its configuration and layers.
#[derive(Deserialize, Clone)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    media_type: Option<String>,
    pub(super) digest: String,
    pub(super) size: Option<u64>,
    pub(super) platform: Option<Platform>,
    annotations: Option<BTreeMap<String, Option<String>>>,
}

impl Descriptor {
    /// The media type; empty if the document has none.
    pub(super) fn media_type(&self) -> &str {
        self.media_type.as_deref().unwrap_or_default()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key)?.as_deref()
    }
}

/// An index or a manifest, which differ only in the members that they have.
#[derive(Deserialize, Default)]
pub(super) struct Document {
    pub(super) manifests: Option<List<Descriptor, { limits::MANIFESTS }>>,
    pub(super) config: Option<Descriptor>,
    pub(super) layers: Option<List<Descriptor, { limits::LAYERS }>>,
}

/// One image of a `manifest.json`.
#[derive(Deserialize, Clone)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Saved {
    pub(super) config: String,
    #[serde(default)]
    pub(super) repo_tags: List<String, { limits::MANIFESTS }>,
    #[serde(default)]
    pub(super) layers: List<String, { limits::LAYERS }>,
    /// What Docker records about layers, by their `diff_id`.
    layer_sources: Option<BTreeMap<String, Option<Descriptor>>>,
}

impl Saved {
    /// What it records about the layer with this `diff_id`.
    pub(super) fn source(&self, id: &Digest) -> Option<&Descriptor> {
        self.layer_sources.as_ref()?.get(&id.to_string())?.as_ref()
    }
}

/// A `manifest.json`.
pub(super) type SavedImages = List<Saved, { limits::MANIFESTS }>;

/// An image's configuration.
#[derive(Deserialize)]
pub(super) struct Config {
    #[serde(flatten)]
    pub(super) platform: Option<Platform>,
    rootfs: Option<RootFs>,
}

#[derive(Deserialize, Default)]
struct RootFs {
    #[serde(default)]
    diff_ids: List<String, { limits::LAYERS }>,
}

impl Config {
    /// Digests of the uncompressed layers, lowest first.
    pub(super) fn diff_ids(&self) -> &[String] {
        self.rootfs
            .as_ref()
            .map_or(&[], |rootfs| &rootfs.diff_ids.0)
    }
}

/// The error for a save without a `manifest.json`.
pub(super) const OLD_SAVE: &str = "this was saved by Docker before 1.10 and has no manifest.json: save it again \
     with a newer Docker (docker load, then docker save)";

/// The beginning of the file `version` in a directory that skopeo or podman wrote as `dir:DIRECTORY`.
pub(super) const SKOPEO_DIRECTORY: &[u8] = b"Directory Transport Version:";

/// The error for such a directory, in which files are named by digest without an index.
pub(super) const SKOPEO_DIRECTORY_TOLD: &str = "this is skopeo's form `dir:` of a container image: copy it into an OCI \
     layout (skopeo copy dir:DIRECTORY oci:LAYOUT), or name DIRECTORY/. to take its files as they are";

impl SavedImages {
    /// The names of all configurations and layers.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.0
            .iter()
            .flat_map(|image| image.layers.0.iter().chain([&image.config]))
    }
}

/// The images that the text of a `manifest.json` lists; `None` if it is not a list, because other programs have files
/// of this name, too.
pub(super) fn saved_images(text: &[u8]) -> Result<Option<SavedImages>, String> {
    let text = &*lenient::text(text);
    if !text.trim_ascii_start().starts_with(b"[") {
        return Ok(None);
    }
    if text.len() as u64 > limits::JSON {
        return Err(format!("it has more than {} bytes", limits::JSON));
    }
    serde_json::from_slice(text)
        .map(Some)
        .map_err(|error| error.to_string())
}

/// Whether the text of a `manifest.json` that can't be read is nevertheless one of docker-save: it names a file that
/// `has` knows as a configuration or layer, or it is damaged and has docker-save's keys. The list of another program is
/// complete and has no such names.
pub(super) fn looks_saved(text: &[u8], mut has: impl FnMut(&str) -> bool) -> bool {
    let text = &*lenient::text(text);
    let is = |key: &[u8], keys: &[&str]| keys.iter().any(|known| known.as_bytes() == key);
    let mut keys = false;
    for (key, value) in lenient::Members::of(text) {
        keys |= is(key, &["Config", "Layers", "RepoTags"]);
        // Go ignores the case of keys.
        let names = value.filter(|_| is(&key.to_ascii_lowercase(), &["config", "layers"]));
        if names.is_some_and(|name| has(&name)) {
            return true;
        }
    }
    keys && !lenient::is_whole(text)
}

/// Whether the text of an `index.json` belongs to an image; another program's has no `manifests`.
pub(super) fn looks_like_index(text: &[u8]) -> bool {
    let text = &*lenient::text(text);
    text.trim_ascii_start().starts_with(b"{")
        && lenient::Members::of(text).any(|(key, _)| key == b"manifests")
}

/// The images of `manifest.json`, if that file exists and lists images.
pub(super) fn saved(blobs: &Blobs) -> Result<Option<SavedImages>, SourceError> {
    let Some(blob) = blobs.open("manifest.json")? else {
        return Ok(None);
    };
    let text = blobs.text(&blob, "manifest.json")?;
    let images = saved_images(&text);
    images.map_err(|error| {
        blobs.wrong(format!(
            "`manifest.json` can't be understood: {error}; if it is another program's file, unpack the archive and \
             build from DIRECTORY/."
        ))
    })
}
