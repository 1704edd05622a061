//! Which layers make up the image that was asked for: from an OCI layout's indexes, or a docker-save manifest.

use serde::Deserialize;

use super::super::error::SourceError;
use super::super::limits;
use super::blobs::{Blob, Blobs};
use super::digest::Digest;
use super::documents::{
    Config, Descriptor, Document, List, Saved, SavedImages, looks_like_index, saved,
};
use super::platform::Platform;

/// One layer.
pub(super) struct Layer {
    pub(super) name: String,
    pub(super) blob: Blob,
    /// Digest of the bytes as they are stored, if the manifest records it.
    pub(super) stored: Option<Digest>,
    /// Digest of the uncompressed bytes: the configuration's `diff_id`.
    pub(super) plain: Digest,
}

/// How deep indexes may lie in indexes.
const DEPTH: usize = 8;

/// Annotations that name an image.
const NAMES: [&str; 2] = [
    "io.containerd.image.name",
    "org.opencontainers.image.ref.name",
];

/// What is asked for.
pub(super) struct Asked<'a> {
    pub(super) platform: Option<Platform>,
    /// A name, tag or digest.
    pub(super) image: Option<&'a str>,
}

struct Choice<'a> {
    blobs: &'a Blobs,
    asked: Asked<'a>,
}

/// One image that the layout or archive holds.
struct Candidate {
    /// Tags and annotations.
    names: Vec<String>,
    /// Digests of its indexes, its manifest and its configuration.
    digests: Vec<String>,
    platform: Option<Platform>,
    content: Content,
    /// The numbers of layers of its manifests in an index, where the layers are those of a `manifest.json`.
    indexed: Vec<usize>,
}

enum Content {
    /// A manifest that is not read: it is for another platform, or missing.
    Unread(Descriptor),
    Manifest(Document),
    Saved(Saved, Config),
}

impl Candidate {
    /// Whether `asked` is its name, its digest, or both as `NAME@DIGEST`.
    fn is_named(&self, asked: &str) -> bool {
        let digest = |asked: &str| {
            let same = |digest: &String| digest == asked || digest.split(':').nth(1) == Some(asked);
            self.digests.iter().any(same)
        };
        let name = |name: &String| name == asked || full_name(name) == full_name(asked);
        if digest(asked) || self.names.iter().any(name) {
            return true;
        }
        let Some((repository, asked)) = asked.split_once('@') else {
            return false;
        };
        // An image that was saved by its digest has no name to compare.
        digest(asked)
            && (self.names.is_empty()
                || self
                    .names
                    .iter()
                    .any(|name| is_of_repository(name, repository)))
    }

    /// Whether a name or tag of it is one of `other`, or neither has any.
    fn shares_name(&self, other: &Self) -> bool {
        self.names == other.names || self.names.iter().any(|name| other.names.contains(name))
    }

    /// Adds names and digests of the same image that another document has.
    fn merge(&mut self, names: &[String], digests: &[String]) {
        let add = |to: &mut Vec<String>, from: &[String]| {
            for one in from {
                if !to.contains(one) {
                    to.push(one.clone());
                }
            }
        };
        add(&mut self.names, names);
        add(&mut self.digests, digests);
    }
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let platform = self
            .platform
            .as_ref()
            .map_or("?".into(), Platform::to_string);
        if self.names.is_empty() {
            return write!(f, "{platform}");
        }
        let names = self.names.join(" ");
        write!(f, "{} ({platform})", names.escape_debug())
    }
}

/// A name with what Docker leaves out of it: `docker.io/library/` and `:latest`.
fn full_name(name: &str) -> String {
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    let name = name.strip_prefix("library/").unwrap_or(name);
    let last = name.rsplit('/').next().unwrap_or_default();
    let tag = if last.contains([':', '@']) {
        ""
    } else {
        ":latest"
    };
    format!("{name}{tag}")
}

/// Whether `name` is in the repository `asked`; with a tag, it must be that name.
fn is_of_repository(name: &str, asked: &str) -> bool {
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_string();
    if last(asked).contains(':') {
        return full_name(name) == full_name(asked);
    }
    let repository = |name: &str| {
        let full = full_name(name);
        let full = full.split('@').next().unwrap_or_default().to_string();
        let tag = last(&full)
            .split_once(':')
            .map_or(0, |(_, tag)| tag.len() + 1);
        full[..full.len() - tag].to_string()
    };
    repository(name) == repository(asked)
}

/// The layers of the image that is asked for, lowest first; of several platforms this machine's when none is asked
/// for. A `manifest.json` comes before the index: Docker 25 wrote indexes without manifests and without layers.
pub(super) fn layers(blobs: &Blobs, asked: Asked<'_>) -> Result<Vec<Layer>, SourceError> {
    let choice = Choice { blobs, asked };
    let saved = saved(blobs)?;
    let listed = saved.as_ref().is_some_and(|images| !images.0.is_empty());
    let index = match blobs.open("index.json")? {
        Some(index) => {
            let text = blobs.text(&index, "index.json")?;
            // Another program's file beside a `manifest.json` that lists images is ignored.
            let counts = !listed || looks_like_index(&text);
            let parse = || choice.parse::<Document>(&text, "index.json");
            counts.then(parse).transpose()?
        }
        None => None,
    };
    let saved = saved.filter(|_| index.is_none() || listed);
    let found = match (saved, index) {
        (Some(saved), index) => choice.of_saved(saved, index)?,
        (None, Some(index)) => choice.of_index(index, false)?,
        (None, None) => {
            let problem = "it has neither an index.json nor a manifest.json with a list of images";
            return Err(blobs.wrong(problem.into()));
        }
    };
    choice.layers_of(choice.one_of(found)?)
}

impl Choice<'_> {
    fn parse<T: for<'d> Deserialize<'d>>(&self, text: &[u8], name: &str) -> Result<T, SourceError> {
        serde_json::from_slice(text).map_err(|error| {
            self.blobs
                .wrong(format!("`{name}` can't be understood: {error}"))
        })
    }

    /// A document whose digest and size are right.
    fn document<T: for<'d> Deserialize<'d>>(&self, from: &Descriptor) -> Result<T, SourceError> {
        let digest = Digest::parse(&from.digest).map_err(|text| self.blobs.wrong(text))?;
        let blob = self.blobs.find(&digest, from.size)?;
        self.blobs.verify(blob.bytes(), &digest)?;
        let name = digest.to_string();
        self.parse(&self.blobs.text(&blob, &name)?, &name)
    }

    fn is_missing(&self, descriptor: &Descriptor) -> Result<bool, SourceError> {
        let digest = Digest::parse(&descriptor.digest).map_err(|text| self.blobs.wrong(text))?;
        Ok(self.blobs.open(&digest.path())?.is_none())
    }

    /// All images of an index and of the indexes in it. Beside a `manifest.json` every manifest is read that is there.
    fn of_index(&self, index: Document, beside: bool) -> Result<Vec<Candidate>, SourceError> {
        let mut found: Vec<Candidate> = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        let mut open = below(index.manifests, &[], &[], 0);
        // Bytes of the names that members have from the indexes above them.
        let mut held = 0;
        while let Some(step) = open.pop() {
            if !seen.insert(step.descriptor.digest.clone()) {
                continue;
            }
            if seen.len() > limits::MANIFESTS || step.depth > DEPTH {
                let problem = "its indexes are too many or too deep";
                return Err(self.blobs.wrong(problem.into()));
            }
            if step.is_attestation() {
                continue;
            }
            let missing = self.is_missing(&step.descriptor)?;
            let offered = step.descriptor.platform.clone();
            let is_manifest = step.descriptor.media_type().contains("manifest.v");
            let other = match (&self.asked.platform, &offered) {
                (Some(asked), Some(offered)) => !beside && !asked.accepts(offered),
                _ => false,
            };
            // An archive for one platform may have an index that names the manifests for others, too.
            if missing && beside || is_manifest && (other || missing && offered.is_some()) {
                found.push(Candidate {
                    names: step.names,
                    digests: step.digests,
                    platform: offered,
                    content: Content::Unread(step.descriptor),
                    indexed: Vec::new(),
                });
                continue;
            }
            let document: Document = self.document(&step.descriptor)?;
            let layers = document
                .layers
                .as_ref()
                .is_some_and(|list| !list.0.is_empty());
            let has_parts = document.config.is_some() || layers;
            if document.manifests.is_none() && has_parts {
                found.push(self.candidate(step, document)?);
            } else if has_parts {
                let digest = &step.descriptor.digest;
                let problem = format!("`{digest}` is an index and a manifest at the same time");
                return Err(self.blobs.wrong(problem));
            } else {
                let Step { names, digests, .. } = &step;
                let members = document.manifests.as_ref().map_or(0, |list| list.0.len());
                held += members * names.iter().map(String::len).sum::<usize>();
                if held > limits::HELD_NAMES {
                    let problem = "the names in its indexes are too many or too long";
                    return Err(self.blobs.wrong(problem.into()));
                }
                open.extend(below(document.manifests, names, digests, step.depth + 1));
            }
        }
        Ok(found)
    }

    /// The image of a manifest.
    fn candidate(&self, step: Step, manifest: Document) -> Result<Candidate, SourceError> {
        let mut platform = step.descriptor.platform;
        let mut digests = step.digests;
        if let Some(config) = &manifest.config {
            digests.push(config.digest.clone());
            if platform.is_none() && !self.is_missing(config)? {
                // Configurations of other things than images have no platform.
                let config: serde_json::Value = self.document(config)?;
                let config: Option<Config> = serde_json::from_value(config).ok();
                platform = config.and_then(|config| config.platform);
            }
        }
        Ok(Candidate {
            names: step.names,
            digests,
            platform,
            content: Content::Manifest(manifest),
            indexed: Vec::new(),
        })
    }

    /// The images of a `manifest.json`, with what an index beside it says of them.
    fn of_saved(
        &self,
        images: SavedImages,
        index: Option<Document>,
    ) -> Result<Vec<Candidate>, SourceError> {
        let mut found: Vec<Candidate> = Vec::new();
        for image in images.0 {
            let name = image.config.clone();
            let Some(blob) = self.blobs.open(&name)? else {
                let problem = format!("the configuration `{}` is missing", name.escape_debug());
                return Err(self.blobs.wrong(problem));
            };
            let text = self.blobs.text(&blob, &name)?;
            let digests = Digest::all_of(&text);
            if let Some(digest) = Digest::of_name(&name)
                && !digests.contains(&digest.to_string())
            {
                return Err(self.blobs.wrong(format!(
                    "the configuration `{}` has another digest than its name: it is damaged",
                    name.escape_debug()
                )));
            }
            let known = found.iter_mut().find(|known| known.digests == digests);
            if let Some(known) = known {
                known.merge(&image.repo_tags.0, &[]);
                continue;
            }
            let config: Config = self.parse(&text, &name)?;
            found.push(Candidate {
                names: image.repo_tags.0.clone(),
                digests,
                platform: config.platform.clone(),
                content: Content::Saved(image, config),
                indexed: Vec::new(),
            });
        }
        if let Some(index) = index {
            let indexed = self.of_index(index, true)?;
            self.merge_index(&mut found, indexed)?;
        }
        Ok(found)
    }

    /// Adds to the images of a `manifest.json` what an index beside it says of them.
    fn merge_index(
        &self,
        found: &mut Vec<Candidate>,
        indexed: Vec<Candidate>,
    ) -> Result<(), SourceError> {
        let mut common = 0;
        let mut others = Vec::new();
        for other in indexed {
            let Content::Manifest(Document {
                config: Some(config),
                layers,
                ..
            }) = &other.content
            else {
                continue;
            };
            let same = |image: &&mut Candidate| image.digests.contains(&config.digest);
            let layers = layers.as_ref().map_or(0, |layers| layers.0.len());
            match found.iter_mut().find(same) {
                Some(image) => {
                    common += 1;
                    image.merge(&other.names, &other.digests);
                    image.indexed.push(layers);
                }
                None => others.push(other),
            }
        }
        if common == 0 && !others.is_empty() {
            let problem = "its index.json and its manifest.json name different images: no configuration is in both";
            return Err(self.blobs.wrong(problem.into()));
        }
        // Programs that save an image for several platforms list only one of them in manifest.json.
        let listed = found.len();
        for other in others {
            let known = &found[..listed];
            let is_variant = other.platform.is_some()
                && known.iter().all(|image| image.platform != other.platform)
                && known.iter().any(|image| image.shares_name(&other));
            if is_variant {
                found.push(other);
            }
        }
        Ok(())
    }

    /// The one image that fits what is asked for.
    fn one_of(&self, mut found: Vec<Candidate>) -> Result<Candidate, SourceError> {
        if found.is_empty() {
            return Err(self.blobs.wrong("it holds no images".into()));
        }
        let offers: Vec<String> = found.iter().map(Candidate::to_string).collect();
        let offers = offers.join(", ");
        if let Some(asked) = self.asked.image {
            found.retain(|one| one.is_named(asked));
            if found.is_empty() {
                let asked = asked.escape_debug();
                return Err(self.blobs.wrong(format!(
                    "it holds no image `{asked}`, only: {offers}; choose one of them with --image"
                )));
            }
        }
        let several = |what: &str| {
            self.blobs.wrong(format!(
                "it holds several images{what}: {offers}; choose one with --image NAME, by its name or digest"
            ))
        };
        let first_differs = |list: &[Candidate]| list.iter().any(|one| !one.shares_name(&list[0]));
        let own = Platform::own();
        let asked = match &self.asked.platform {
            Some(asked) => Some(asked),
            // One image is taken whatever it is for.
            None if found.len() == 1 => None,
            None if first_differs(&found) => return Err(several("")),
            None => Some(&own),
        };
        if let Some(asked) = asked {
            let fits =
                |one: &Candidate| one.platform.as_ref().is_some_and(|one| asked.accepts(one));
            found.retain(fits);
        }
        let asked = asked.map_or("?".into(), Platform::to_string);
        // One image's variants for a platform are a choice, different images are not.
        let variant = |one: &Candidate| {
            one.platform
                .as_ref()
                .map(|platform| platform.variant.clone())
        };
        if let [first, second, ..] = &found[..]
            && (first_differs(&found) || variant(first) == variant(second))
        {
            return Err(several(&format!(" for {asked}")));
        }
        if found.is_empty() {
            return Err(self.blobs.wrong(format!(
                "it holds no image for {asked}, only: {offers}; choose with --platform"
            )));
        }
        Ok(found.swap_remove(0))
    }

    fn layers_of(&self, image: Candidate) -> Result<Vec<Layer>, SourceError> {
        let manifest = match image.content {
            Content::Saved(saved, config) => {
                return self.saved_layers(&saved, &config, &image.indexed);
            }
            Content::Manifest(manifest) => manifest,
            Content::Unread(descriptor) => self.document(&descriptor)?,
        };
        let Some(config) = &manifest.config else {
            let problem = "its manifest names no configuration";
            return Err(self.blobs.wrong(problem.into()));
        };
        let config: Config = self.document(config)?;
        let layers = manifest.layers.unwrap_or_default().0;
        let ids = self.diff_ids(&config, layers.len())?;
        let layers = layers.iter().zip(ids);
        layers.map(|(layer, id)| self.layer(layer, id)).collect()
    }

    /// The layers of a `manifest.json`; `indexed` are the numbers of layers that an index has for the same image.
    fn saved_layers(
        &self,
        image: &Saved,
        config: &Config,
        indexed: &[usize],
    ) -> Result<Vec<Layer>, SourceError> {
        let number = image.layers.0.len();
        let ids = self.diff_ids(config, number)?;
        // Docker 25 wrote manifests without layers into its indexes.
        if let Some(other) = indexed
            .iter()
            .find(|other| **other != number && **other != 0)
        {
            return Err(self.blobs.wrong(format!(
                "its manifest.json names {number} layers, but its index.json {other} of the same image"
            )));
        }
        let layer = |(name, plain): (&String, Digest)| {
            let Some(blob) = self.blobs.open(name)? else {
                let problem = format!("the layer `{}` is missing", name.escape_debug());
                return Err(self.blobs.wrong(problem));
            };
            let stored = match image.source(&plain) {
                Some(source) => Some(self.checked(&blob, source)?),
                None => None,
            };
            Ok(Layer {
                name: name.escape_debug().to_string(),
                blob,
                stored,
                plain,
            })
        };
        image.layers.0.iter().zip(ids).map(layer).collect()
    }

    /// The digest that `descriptor` has for `blob`, whose size is as it says.
    fn checked(&self, blob: &Blob, descriptor: &Descriptor) -> Result<Digest, SourceError> {
        let digest = Digest::parse(&descriptor.digest).map_err(|text| self.blobs.wrong(text))?;
        match descriptor.size {
            Some(size) if size != blob.len => Err(self.blobs.wrong(format!(
                "the blob {digest} has {} bytes, but should have {size}",
                blob.len
            ))),
            _ => Ok(digest),
        }
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
                "the layer {} is not a file system layer but `{}`",
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
}

/// A member of an index that is to be looked at.
struct Step {
    descriptor: Descriptor,
    /// Its names, and those of the indexes above it.
    names: Vec<String>,
    /// Its digest, and those of the indexes above it.
    digests: Vec<String>,
    depth: usize,
}

impl Step {
    /// Attestations beside an image are said to be for `unknown/unknown`.
    fn is_attestation(&self) -> bool {
        let platform = self.descriptor.platform.as_ref();
        platform.is_some_and(|platform| platform.os == "unknown")
            || self
                .descriptor
                .annotation("vnd.docker.reference.type")
                .is_some()
    }
}

/// The members of an index, the first last. One with several names may be listed once for each of them.
fn below(
    manifests: Option<List<Descriptor, { limits::MANIFESTS }>>,
    names: &[String],
    digests: &[String],
    depth: usize,
) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for descriptor in manifests.unwrap_or_default().0 {
        let annotations = NAMES.iter().filter_map(|key| descriptor.annotation(key));
        let mut own: Vec<String> = annotations.map(String::from).collect();
        let known = steps
            .iter_mut()
            .find(|step| step.descriptor.digest == descriptor.digest);
        if let Some(known) = known {
            known.names.append(&mut own);
            continue;
        }
        own.extend_from_slice(names);
        let mut digests = digests.to_vec();
        digests.push(descriptor.digest.clone());
        steps.push(Step {
            descriptor,
            names: own,
            digests,
            depth,
        });
    }
    steps.reverse();
    steps
}
