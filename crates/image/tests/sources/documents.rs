//! What the JSON documents of an image may say: absent and null lists, layers against `diff_ids`, contradictions.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::*;

/// `sha256:` and the digest of `bytes`.
fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(bytes);
    let digits: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", digits.concat())
}

/// A tar of members: name, type, and the data or the target of a link.
fn tar_of(members: &[(&str, u8, &[u8])]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (name, kind, data) in members {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        let linked = matches!(kind, b'1' | b'2');
        let size = if linked { 0 } else { data.len() };
        if linked {
            header[157..157 + data.len()].copy_from_slice(data);
        }
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..116].copy_from_slice(b"0000000\0");
        header[116..124].copy_from_slice(b"0000000\0");
        header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        header[136..148].copy_from_slice(b"00000000000\0");
        header[156] = *kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend_from_slice(&header);
        if !linked {
            tar.extend_from_slice(data);
            tar.resize(tar.len().next_multiple_of(512), 0);
        }
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// A layer with the one file `name`.
fn layer_with(name: &str) -> Vec<u8> {
    tar_of(&[(name, b'0', name.as_bytes())])
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Files of an image that are made by hand, by name.
#[derive(Default, Clone)]
struct Files(std::collections::BTreeMap<String, Vec<u8>>);

impl Files {
    fn put(&mut self, name: &str, bytes: impl AsRef<[u8]>) {
        self.0.insert(name.into(), bytes.as_ref().to_vec());
    }

    /// Keeps a blob; its descriptor.
    fn blob(&mut self, bytes: impl AsRef<[u8]>) -> Value {
        let digest = digest(bytes.as_ref());
        self.put(&format!("blobs/{}", digest.replace(':', "/")), &bytes);
        json!({ "digest": digest, "size": bytes.as_ref().len() })
    }

    /// Keeps an image of `layers`, each as it is stored, with what its configuration has for `diff_ids`; its descriptor.
    fn image(&mut self, layers: &[Vec<u8>], diff_ids: Value) -> Value {
        let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
        let config = json!({ "os": "linux", "architecture": "amd64", "rootfs": rootfs });
        let config = self.blob(config.to_string());
        let layers: Vec<Value> = layers.iter().map(|layer| self.blob(layer)).collect();
        self.blob(json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string())
    }

    fn index(&mut self, manifests: Value) {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        self.put("index.json", index.to_string());
        self.put("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    }

    fn tar(&self) -> Vec<u8> {
        let members = self.0.iter().map(|(name, data)| (&**name, b'0', &**data));
        tar_of(&members.collect::<Vec<_>>())
    }

    /// What is built of it as a directory and as an archive: the names in the root, or the error.
    fn built(&self) -> [Result<String, String>; 2] {
        let directory = tempfile::tempdir().unwrap();
        let layout = directory.path().join("layout");
        for (name, bytes) in &self.0 {
            let path = layout.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        std::fs::write(directory.path().join("tar"), self.tar()).unwrap();
        [layout, directory.path().join("tar")].map(|path| names(&path))
    }
}

/// The names in the root of what is built of `path`, or the error.
fn names(path: &Path) -> Result<String, String> {
    let tree = scan(&[path]).map_err(|error| error.to_string())?;
    let root = tree.find(b"").unwrap();
    let names = tree
        .children(root)
        .map(|(name, _)| String::from_utf8_lossy(name).into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    Ok(names.join(" "))
}

#[test]
fn null_and_absent_lists_are_empty() {
    let layer = layer_with("a");
    let mut plain = Files::default();
    let image = plain.image(&[layer.clone()], json!([digest(&layer)]));
    let config = plain
        .0
        .values()
        .find(|text| text.starts_with(b"{\"arch"))
        .unwrap()
        .clone();
    let config: Value = serde_json::from_slice(&config).unwrap();
    // Each of them is set to null in a document of an image that is fine otherwise.
    let platform = json!({ "os": "linux", "architecture": "amd64", "variant": null });
    for (key, value) in [
        ("annotations", Value::Null),
        (
            "annotations",
            json!({ "org.opencontainers.image.ref.name": null }),
        ),
        ("mediaType", Value::Null),
        ("platform", Value::Null),
        ("platform", platform),
    ] {
        let mut files = plain.clone();
        let mut image = image.clone();
        image[key] = value.clone();
        files.index(json!([image]));
        for built in files.built() {
            assert_eq!(built.as_deref(), Ok("a"), "{key}: {value}");
        }
    }
    // An image without layers, whose lists are null, absent or empty.
    let lists = [Some(Value::Null), None, Some(json!([]))];
    for layers in &lists {
        for ids in &lists {
            let mut files = Files::default();
            let mut config = config.clone();
            config["variant"] = Value::Null;
            config["rootfs"] = json!({ "type": "layers" });
            if let Some(ids) = ids {
                config["rootfs"]["diff_ids"] = ids.clone();
            }
            files.put("config.json", config.to_string());
            let mut manifest =
                json!({ "schemaVersion": 2, "config": files.blob(config.to_string()) });
            let mut saved = json!({ "Config": "config.json", "RepoTags": null });
            if let Some(layers) = layers {
                manifest["layers"] = layers.clone();
                saved["Layers"] = layers.clone();
            }
            let mut layout = files.clone();
            let image = layout.blob(manifest.to_string());
            layout.index(json!([image]));
            for built in layout.built() {
                assert_eq!(built.as_deref(), Ok(""), "{layers:?} {ids:?}");
            }
            let archive = tar_of(&[
                ("manifest.json", b'0', json!([saved]).to_string().as_bytes()),
                ("config.json", b'0', config.to_string().as_bytes()),
            ]);
            assert_eq!(
                built_from(&archive).as_deref(),
                Ok(""),
                "{layers:?} {ids:?}"
            );
        }
    }
    // An index without images holds none, and a list has a bound.
    let image_of = |layers: Value| {
        let mut files = plain.clone();
        let manifest = json!({ "config": files.blob(config.to_string()), "layers": layers });
        let image = files.blob(manifest.to_string());
        files.index(json!([image]));
        files
    };
    let mut none = plain.clone();
    none.index(Value::Null);
    let many = vec![json!({ "digest": digest(b""), "size": 0 }); 1025];
    for (files, part) in [
        (none, "no image"),
        (image_of(json!(many)), "more than 1024 items"),
        (image_of(json!("x")), "a list or null"),
    ] {
        for built in files.built() {
            let message = built.unwrap_err();
            assert!(message.contains(part), "{part}: {message}");
        }
    }
}

/// What is built of an archive.
fn built_from(archive: &[u8]) -> Result<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tar");
    std::fs::write(&path, archive).unwrap();
    names(&path)
}

/// A docker-save archive of `layers`, whose configuration has `diff_ids`.
fn saved(layers: &[Vec<u8>], diff_ids: &Value) -> Vec<u8> {
    let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
    let config = json!({ "os": "linux", "architecture": "amd64", "rootfs": rootfs }).to_string();
    let names: Vec<String> = layers
        .iter()
        .map(|layer| format!("{}.tar", &digest(layer)[7..]))
        .collect();
    let manifest =
        json!([{ "Config": "config.json", "RepoTags": ["x:1"], "Layers": names }]).to_string();
    let mut members = vec![
        ("config.json", b'0', config.as_bytes()),
        ("manifest.json", b'0', manifest.as_bytes()),
    ];
    let layers = names.iter().zip(layers);
    members.extend(layers.map(|(name, layer)| (&**name, b'0', &**layer)));
    tar_of(&members)
}

#[test]
fn layers_are_compared_with_the_configuration_in_every_form() {
    let [a, b] = ["a", "b"].map(layer_with);
    let (ida, idb) = (digest(&a), digest(&b));
    let sha512 = {
        use sha2::Digest;
        let hash = sha2::Sha512::digest(&b);
        let digits: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha512:{}", digits.concat())
    };
    let number = "digests of layers (diff_ids)";
    for (diff_ids, wrong) in [
        (json!([ida, idb]), None),
        (json!([ida, sha512]), None),
        (json!([ida]), Some(number)),
        (json!([ida, idb, idb]), Some(number)),
        (json!([]), Some(number)),
        (Value::Null, Some(number)),
        (json!([idb, ida]), Some("another digest")),
        (json!([ida, ida]), Some("another digest")),
        (
            json!([ida, format!("sha512:{}", "0".repeat(128))]),
            Some("another digest"),
        ),
        (
            json!([ida, "md5:0123456789abcdef0123456789abcdef"]),
            Some("layer 2 can't be verified"),
        ),
        (
            json!([ida, idb.to_uppercase()]),
            Some("layer 2 can't be verified"),
        ),
        (json!([ida, ""]), Some("layer 2 can't be verified")),
    ] {
        for layers in [
            [a.clone(), b.clone()],
            [gzip(&a), gzip(&b)],
            [a.clone(), gzip(&b)],
        ] {
            let mut files = Files::default();
            let image = files.image(&layers, diff_ids.clone());
            files.index(json!([image]));
            let [directory, archive] = files.built();
            for built in [directory, archive, built_from(&saved(&layers, &diff_ids))] {
                match wrong {
                    None => assert_eq!(built.as_deref(), Ok("a b"), "{diff_ids}"),
                    Some(part) => {
                        let message = built.unwrap_err();
                        assert!(message.contains(part), "{diff_ids}: {message}");
                    }
                }
            }
        }
    }
}
