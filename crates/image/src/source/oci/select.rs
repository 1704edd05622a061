//! Which layers make up the image that was asked for: from an OCI layout's indexes, or a docker-save manifest.

use serde::Deserialize;

use super::super::error::SourceError;
use super::super::limits;
use super::blobs::{Blob, Blobs};
use super::digest::Digest;
use super::documents::{Config, Descriptor, Document, SavedImages};
use super::platform::Platform;

/// One layer.
pub(super) struct Layer {
    pub(super) name: String,
    pub(super) blob: Blob,
    /// Digest of the bytes as they are stored, where the manifest has it.
    pub(super) stored: Option<Digest>,
    /// Digest of the uncompressed bytes: the configuration's `diff_id`.
    pub(super) plain: Digest,
}

/// How deep indexes may lie in indexes.
const DEPTH: usize = 8;

struct Choice<'a> {
    blobs: &'a Blobs,
    asked: Option<Platform>,
}

/// The layers of the image for platform `asked`, lowest first, and this machine's platform when none is asked for and
/// there are several.
pub(super) fn layers(blobs: &Blobs, asked: Option<Platform>) -> Result<Vec<Layer>, SourceError> {
    let choice = Choice { blobs, asked };
    match blobs.open("index.json")? {
        Some(index) => choice.of_index(&index),
        None => match blobs.open("manifest.json")? {
            Some(manifest) => choice.of_saved(&manifest),
            None => Err(blobs.wrong("it has neither an index.json nor a manifest.json".into())),
        },
    }
}

impl Choice<'_> {
    fn parse<T: for<'d> Deserialize<'d>>(&self, text: &[u8], name: &str) -> Result<T, SourceError> {
        serde_json::from_slice(text).map_err(|error| {
            self.blobs
                .wrong(format!("`{name}` can't be understood: {error}"))
        })
    }

    /// A document whose digest and size are right.
    fn document(&self, descriptor: &Descriptor) -> Result<Document, SourceError> {
        let (blob, digest) = self.verified(descriptor)?;
        let name = digest.to_string();
        self.parse(&self.blobs.text(&blob, &name)?, &name)
    }

    fn verified(&self, descriptor: &Descriptor) -> Result<(Blob, Digest), SourceError> {
        let digest = Digest::parse(&descriptor.digest).map_err(|text| self.blobs.wrong(text))?;
        let blob = self.blobs.find(&digest, descriptor.size)?;
        self.blobs.verify(blob.bytes(), &digest)?;
        Ok((blob, digest))
    }

    fn of_index(&self, index: &Blob) -> Result<Vec<Layer>, SourceError> {
        let text = self.blobs.text(index, "index.json")?;
        let index: Document = self.parse(&text, "index.json")?;
        // Manifests with the platform they are for, as far as it is known.
        let mut found: Vec<(Descriptor, Document, Option<Platform>)> = Vec::new();
        let mut open: Vec<(Descriptor, usize)> = index
            .manifests
            .unwrap_or_default()
            .0
            .into_iter()
            .map(|one| (one, 0))
            .collect();
        open.reverse();
        let mut seen = std::collections::BTreeSet::new();
        while let Some((descriptor, depth)) = open.pop() {
            if !seen.insert(descriptor.digest.clone()) {
                continue;
            }
            if seen.len() > limits::MANIFESTS || depth > DEPTH {
                return Err(self
                    .blobs
                    .wrong("its indexes are too many or too deep".into()));
            }
            let offered = descriptor.platform.clone();
            // Attestations beside an image are said to be for `unknown/unknown`.
            let attestation = offered
                .as_ref()
                .is_some_and(|platform| platform.os == "unknown")
                || descriptor.annotation("vnd.docker.reference.type").is_some();
            let refused = match (&self.asked, &offered) {
                (Some(asked), Some(offered)) => !asked.accepts(offered),
                _ => false,
            };
            if attestation || refused && descriptor.media_type().contains("manifest.v") {
                if refused && !attestation {
                    found.push((descriptor, Document::default(), offered));
                }
                continue;
            }
            let document = self.document(&descriptor)?;
            if let Some(manifests) = document.manifests {
                let below = manifests.0.into_iter().rev().map(|one| (one, depth + 1));
                open.extend(below);
            } else if !found
                .iter()
                .any(|(known, ..)| known.digest == descriptor.digest)
            {
                let offered = match offered {
                    Some(offered) => Some(offered),
                    None => self.platform_of(&document)?,
                };
                found.push((descriptor, document, offered));
            }
        }
        self.one_of(found)
    }

    /// What a manifest's configuration says.
    fn platform_of(&self, manifest: &Document) -> Result<Option<Platform>, SourceError> {
        let Some(config) = &manifest.config else {
            return Ok(None);
        };
        let (blob, digest) = self.verified(config)?;
        let text = self.blobs.text(&blob, &digest.to_string())?;
        // Configurations of other things than images are not what is asked for.
        Ok(serde_json::from_slice::<Config>(&text)
            .ok()
            .and_then(|config| config.platform))
    }

    fn one_of(
        &self,
        found: Vec<(Descriptor, Document, Option<Platform>)>,
    ) -> Result<Vec<Layer>, SourceError> {
        let offers: Vec<String> = found
            .iter()
            .map(|(descriptor, _, platform)| {
                let platform = platform.as_ref().map_or("?".into(), Platform::to_string);
                match descriptor.annotation("org.opencontainers.image.ref.name") {
                    Some(name) => format!("{name} ({platform})"),
                    None => platform,
                }
            })
            .collect();
        let asked = match &self.asked {
            Some(asked) => Some(asked.clone()),
            // One image is taken whatever it is for.
            None if found.len() == 1 => None,
            None => Some(Platform::own()),
        };
        let fits = |platform: &Option<Platform>| match (&asked, platform) {
            (Some(asked), Some(platform)) => asked.accepts(platform),
            (Some(_), None) => false,
            (None, _) => true,
        };
        let mut fitting: Vec<_> = found
            .into_iter()
            .filter(|(_, _, platform)| fits(platform))
            .collect();
        let asked = asked.map_or("?".into(), |asked| asked.to_string());
        let offers = offers.join(", ");
        // One platform's variants are a choice, different images are not.
        let variants = |a: &Option<Platform>, b: &Option<Platform>| match (a, b) {
            (Some(a), Some(b)) => a.variant != b.variant,
            _ => false,
        };
        if fitting.len() > 1 && !variants(&fitting[0].2, &fitting[1].2) {
            return Err(self.blobs.wrong(format!(
                "it holds several images for {asked}: {offers}; save only the one that is meant"
            )));
        }
        if fitting.is_empty() {
            return Err(self.blobs.wrong(format!(
                "it holds no image for {asked}, only: {offers}; choose with --platform"
            )));
        }
        let (_, manifest, _) = fitting.swap_remove(0);
        let layers = manifest.layers.unwrap_or_default().0;
        let ids = match &manifest.config {
            Some(config) => {
                let (blob, digest) = self.verified(config)?;
                let name = digest.to_string();
                let config: Config = self.parse(&self.blobs.text(&blob, &name)?, &name)?;
                self.diff_ids(&config, layers.len())?
            }
            None => {
                return Err(self
                    .blobs
                    .wrong("its manifest names no configuration".into()));
            }
        };
        let layers = layers.iter().zip(ids);
        layers.map(|(layer, id)| self.layer(layer, id)).collect()
    }

    /// The digests that the configuration has for its uncompressed layers: as many as there are layers.
    fn diff_ids(&self, config: &Config, layers: usize) -> Result<Vec<Digest>, SourceError> {
        let ids = config.diff_ids();
        if ids.len() != layers {
            return Err(self.blobs.wrong(format!(
                "its manifest names {layers} layers, but its configuration has {} digests of layers (diff_ids): they \
                 belong to different images, or the image is incomplete",
                ids.len()
            )));
        }
        let parsed = ids.iter().enumerate().map(|(number, id)| {
            Digest::parse(id).map_err(|problem| {
                let problem = format!("layer {} can't be verified: {problem}", number + 1);
                self.blobs.wrong(problem)
            })
        });
        parsed.collect()
    }

    fn layer(&self, descriptor: &Descriptor, plain: Digest) -> Result<Layer, SourceError> {
        let kind = descriptor.media_type();
        if kind.contains("encrypted") {
            return Err(self
                .blobs
                .wrong(format!("the layer {} is encrypted", descriptor.digest)));
        }
        if !(kind.is_empty() || kind.contains("layer") || kind.contains("diff.tar")) {
            return Err(self.blobs.wrong(format!(
                "the layer {} is no file system layer but `{}`",
                descriptor.digest,
                kind.chars().take(100).collect::<String>().escape_debug()
            )));
        }
        let digest = Digest::parse(&descriptor.digest).map_err(|text| self.blobs.wrong(text))?;
        let blob = self.blobs.find(&digest, descriptor.size)?;
        Ok(Layer {
            name: digest.to_string(),
            blob,
            stored: Some(digest),
            plain,
        })
    }

    fn of_saved(&self, manifest: &Blob) -> Result<Vec<Layer>, SourceError> {
        let text = self.blobs.text(manifest, "manifest.json")?;
        let images: SavedImages = self.parse(&text, "manifest.json")?;
        let mut fitting = Vec::new();
        let mut offers = Vec::new();
        for image in &images.0 {
            let Some(config) = self.blobs.open(&image.config)? else {
                return Err(self.blobs.wrong(format!("`{}` is missing", image.config)));
            };
            let config: Config =
                self.parse(&self.blobs.text(&config, &image.config)?, &image.config)?;
            let tags = image.repo_tags.0.join(" ");
            let platform = config
                .platform
                .as_ref()
                .map_or("?".into(), Platform::to_string);
            offers.push(format!("{tags} ({platform})"));
            let accepts = |asked: &Platform| {
                config
                    .platform
                    .as_ref()
                    .is_some_and(|platform| asked.accepts(platform))
            };
            if self.asked.as_ref().is_none_or(accepts) {
                fitting.push((image, config));
            }
        }
        let offers = offers.join(", ");
        let [(image, config)] = &fitting[..] else {
            let what = if fitting.is_empty() {
                "no fitting image"
            } else {
                "several images"
            };
            return Err(self.blobs.wrong(format!(
                "it holds {what}: {offers}; save only the one that is meant, or choose with --platform"
            )));
        };
        let ids = self.diff_ids(config, image.layers.0.len())?;
        let mut layers = Vec::new();
        for (name, plain) in image.layers.0.iter().zip(ids) {
            let Some(blob) = self.blobs.open(name)? else {
                return Err(self.blobs.wrong(format!("the layer `{name}` is missing")));
            };
            layers.push(Layer {
                name: name.clone(),
                blob,
                stored: None,
                plain,
            });
        }
        Ok(layers)
    }
}
