//! What the JSON documents of an image may say: absent and null lists, layers against `diff_ids`, contradictions.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::*;
use lanefs_image::source::{Options, SourceTree};

/// `sha256:` and the digest of `bytes`.
pub fn digest(bytes: &[u8]) -> String {
    use sha2::Digest;
    let hash = sha2::Sha256::digest(bytes);
    let digits: Vec<String> = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{}", digits.concat())
}

/// A tar of members: name, type, and the data or the target of a link.
pub fn tar_of(members: &[(&str, u8, &[u8])]) -> Vec<u8> {
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
pub fn layer_with(name: &str) -> Vec<u8> {
    tar_of(&[(name, b'0', name.as_bytes())])
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Files of an image that are made by hand, by name.
#[derive(Default, Clone)]
pub struct Files(pub std::collections::BTreeMap<String, Vec<u8>>);

impl Files {
    pub fn put(&mut self, name: &str, bytes: impl AsRef<[u8]>) {
        self.0.insert(name.into(), bytes.as_ref().to_vec());
    }

    /// Keeps a blob; its descriptor.
    pub fn blob(&mut self, bytes: impl AsRef<[u8]>) -> Value {
        let digest = digest(bytes.as_ref());
        self.put(&format!("blobs/{}", digest.replace(':', "/")), &bytes);
        json!({ "digest": digest, "size": bytes.as_ref().len() })
    }

    /// Keeps an image of `layers`, as they are stored, whose configuration has these `diff_ids`; its descriptor.
    pub fn image(&mut self, layers: &[Vec<u8>], diff_ids: Value) -> Value {
        let rootfs = json!({ "type": "layers", "diff_ids": diff_ids });
        let config = json!({ "os": "linux", "architecture": "amd64", "rootfs": rootfs });
        let config = self.blob(config.to_string());
        let layers: Vec<Value> = layers.iter().map(|layer| self.blob(layer)).collect();
        self.blob(json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string())
    }

    pub fn index(&mut self, manifests: Value) {
        let index = json!({ "schemaVersion": 2, "manifests": manifests });
        self.put("index.json", index.to_string());
        self.put("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
    }

    pub fn tar(&self) -> Vec<u8> {
        let members = self.0.iter().map(|(name, data)| (&**name, b'0', &**data));
        tar_of(&members.collect::<Vec<_>>())
    }

    /// What is built of it as a directory and as an archive: the names in the root, or the error.
    pub fn built(&self) -> [Result<String, String>; 2] {
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
pub fn names(path: &Path) -> Result<String, String> {
    root_of(scan(&[path]).map_err(|error| error.to_string()))
}

/// The names in the root of a tree.
pub fn root_of(tree: Result<SourceTree, String>) -> Result<String, String> {
    let tree = tree?;
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
    let image = plain.image(std::slice::from_ref(&layer), json!([digest(&layer)]));
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
}

#[test]
fn an_image_may_have_no_layers() {
    let config: Value = serde_json::from_str(&config_of(&[])).unwrap();
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
}

#[test]
fn an_index_without_images_and_a_list_beyond_its_bound_are_refused() {
    let plain = Files::default();
    let config = config_of(&[]);
    // An index without images holds none, and a list has a bound.
    let image_of = |layers: Value| {
        let mut files = plain.clone();
        let manifest = json!({ "config": files.blob(&config), "layers": layers });
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

/// What is built of an archive: the same as a file, compressed and through a pipe.
pub fn built_from(archive: &[u8]) -> Result<String, String> {
    let [file, others @ ..] = in_every_way(archive, &Options::default());
    for other in others {
        assert_eq!(other, file);
    }
    file
}

/// What is built of an archive as a file, as a compressed file, through a pipe, and compressed through a pipe; errors
/// call it `archive`.
pub fn in_every_way(archive: &[u8], asked: &Options) -> [Result<String, String>; 4] {
    let directory = tempfile::tempdir().unwrap();
    let gzipped = gzip(archive);
    [
        (archive, false),
        (&gzipped, false),
        (archive, true),
        (&gzipped, true),
    ]
    .map(|(bytes, pipe)| {
        let path = directory.path().join(if pipe { "pipe" } else { "file" });
        let options = Options {
            inputs: options(&[&path]).inputs,
            ..asked.clone()
        };
        let tree = if pipe {
            through_a_pipe(&path, bytes, &options)
        } else {
            std::fs::write(&path, bytes).unwrap();
            lanefs_image::source::scan(&options)
        };
        let told = |error: lanefs_image::source::SourceError| {
            error
                .to_string()
                .replace(&path.display().to_string(), "archive")
        };
        root_of(tree.map_err(told))
    })
}

/// Reads `bytes` through a pipe at `path`.
pub fn through_a_pipe(
    path: &Path,
    bytes: &[u8],
    options: &Options,
) -> Result<SourceTree, lanefs_image::source::SourceError> {
    let _ = std::fs::remove_file(path);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    std::thread::scope(|scope| {
        // A reader that has seen enough closes the pipe.
        scope.spawn(|| drop(std::fs::write(path, bytes)));
        let mut sink = Collect::default();
        let cancel = sync::atomic::AtomicBool::new(false);
        lanefs_image::source::scan_streaming(options, &cancel, &mut sink)
    })
}

/// A docker-save archive of `layers`, whose configuration has `diff_ids`.
pub fn saved(layers: &[Vec<u8>], diff_ids: &Value) -> Vec<u8> {
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

/// A configuration for layers of these contents.
pub fn config_of(layers: &[&[u8]]) -> String {
    let ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
    let rootfs = json!({ "type": "layers", "diff_ids": ids });
    json!({ "os": "linux", "architecture": "amd64", "rootfs": rootfs }).to_string()
}

pub fn saved_list(config: &str, layers: &[&str]) -> String {
    json!([{ "Config": config, "RepoTags": ["x:1"], "Layers": layers }]).to_string()
}

#[test]
fn a_manifest_json_makes_an_archive_a_docker_save_archive() {
    let (a, b) = (layer_with("a"), layer_with("b"));
    let config = config_of(&[&a, &b]);
    let (config, a, b) = (config.as_bytes(), &a[..], &b[..]);
    let list = |config: &str, layers: &[&str]| saved_list(config, layers).into_bytes();
    let plain = list("config.json", &["l0/layer.tar", "l1/layer.tar"]);
    let repeated = list("c", &["a", "b"]);
    let linked = list("c", &["links/hard", "links/to/b"]);
    let outside = list("c", &["up", "b"]);
    let object = br#"{ "name": "an app", "icons": [] }"#;
    let array = br#"[{ "name": "not an image" }]"#;
    type Member<'a> = (&'a str, u8, &'a [u8]);
    #[rustfmt::skip]
    let cases: &[(&str, &[Member], Result<&str, &str>)] = &[
        ("names of its own", &[("config.json", b'0', config), ("l0", b'5', b""), ("l0/layer.tar", b'0', a),
            ("l1/layer.tar", b'0', b), ("manifest.json", b'0', &plain)], Ok("a b")),
        ("with ./, AppleDouble and other files", &[("./._manifest.json", b'0', b"x"), ("./manifest.json", b'0', &plain),
            ("./._config.json", b'0', b"x"), ("./config.json", b'0', config), ("./l0/._layer.tar", b'0', b"x"),
            ("./l0/layer.tar", b'0', a), ("./l1/layer.tar", b'0', b), ("./README", b'0', b"text")], Ok("a b")),
        ("hard and symbolic links, also to directories and later members", &[("manifest.json", b'0', &linked),
            ("links/hard", b'1', b"a"), ("links/to", b'2', b"../dir/./x/.."), ("a", b'0', a), ("dir/b", b'2', b"/b"),
            ("b", b'0', b), ("c", b'0', config)], Ok("a b")),
        ("a link that leads out ends at the archive's root", &[("manifest.json", b'0', &outside),
            ("up", b'2', b"../../../a"), ("a", b'0', a), ("b", b'0', b), ("c", b'0', config)], Ok("a b")),
        ("its manifest.json is a link", &[("m", b'0', &repeated), ("manifest.json", b'2', b"m"), ("a", b'0', a),
            ("b", b'0', b), ("c", b'0', config)], Ok("a b")),
        ("the last member of a name counts", &[("a", b'2', b"b"), ("a", b'0', a), ("b", b'0', b), ("c", b'0', config),
            ("manifest.json", b'0', &repeated)], Ok("a b")),
        ("a loop of links", &[("a", b'2', b"a2"), ("a2", b'2', b"a"), ("b", b'0', b), ("c", b'0', config),
            ("manifest.json", b'0', &repeated)], Err("the layer `a` is missing")),
        ("a layer is missing", &[("a", b'0', a), ("c", b'0', config), ("manifest.json", b'0', &repeated)],
            Err("the layer `b` is missing")),
        ("the configuration is missing", &[("a", b'0', a), ("manifest.json", b'0', &repeated)],
            Err("the configuration `c` is missing")),
        ("another program's file", &[("manifest.json", b'0', object), ("x", b'0', b"x")], Ok("manifest.json x")),
        ("another program's list", &[("manifest.json", b'0', array), ("x", b'0', b"x")], Ok("manifest.json x")),
        ("a manifest.json further below", &[("app/manifest.json", b'0', &plain), ("x", b'0', b"x")], Ok("app x")),
    ];
    for (what, members, expected) in cases {
        match (built_from(&tar_of(members)), expected) {
            (Ok(names), Ok(expected)) => assert_eq!(&names, expected, "{what}"),
            (Err(message), Err(part)) => assert!(message.contains(part), "{what}: {message}"),
            (built, _) => panic!("{what}: {built:?}"),
        }
    }
}

#[test]
fn a_layer_may_be_there_twice() {
    let a = layer_with("a");
    let (config, again) = (config_of(&[&a, &a]), saved_list("c", &["a", "a"]));
    let twice = [
        ("a", b'0', &*a),
        ("c", b'0', config.as_bytes()),
        ("manifest.json", b'0', again.as_bytes()),
    ];
    assert_eq!(built_from(&tar_of(&twice)).as_deref(), Ok("a"));
    let linked = saved_list("c", &["a", "also"]);
    let linked = [
        ("a", b'0', &*a),
        ("also", b'1', b"a"),
        ("c", b'0', config.as_bytes()),
        ("manifest.json", b'0', linked.as_bytes()),
    ];
    assert_eq!(built_from(&tar_of(&linked)).as_deref(), Ok("a"));
}

/// An image of the one layer `name`, as a docker-save entry and as a descriptor.
pub fn both(files: &mut Files, name: &str, tags: &Value) -> (Value, Value) {
    let layer = layer_with(name);
    let image = files.image(std::slice::from_ref(&layer), json!([digest(&layer)]));
    let path = |digest: &str| format!("blobs/{}", digest.replace(':', "/"));
    let manifest = path(image["digest"].as_str().unwrap());
    let manifest: Value = serde_json::from_slice(&files.0[&manifest]).unwrap();
    let config = path(manifest["config"]["digest"].as_str().unwrap());
    let saved = json!({ "Config": config, "RepoTags": tags, "Layers": [path(&digest(&layer))] });
    (saved, image)
}

#[test]
fn an_index_beside_a_manifest_json_must_name_the_same_image() {
    let mut files = Files::default();
    let (a, image_a) = both(&mut files, "a", &json!(["x:1"]));
    let (_, image_b) = both(&mut files, "b", &Value::Null);
    let layer = layer_with("a");
    let without = {
        let config = config_of(&[&layer]);
        let config = files.blob(config);
        files.blob(json!({ "config": config, "layers": [] }).to_string())
    };
    let absent = json!({ "digest": digest(b"absent"), "size": 6 });
    files.put("manifest.json", json!([a]).to_string());
    let nested = files.blob(json!({ "manifests": [absent, image_a] }).to_string());
    for (manifests, expected) in [
        (json!([image_a]), Ok("a")),
        (json!([image_b, image_a]), Ok("a")),
        (json!([without]), Ok("a")),
        (json!([nested]), Ok("a")),
        (Value::Null, Ok("a")),
        (json!([image_b]), Err("name different images")),
    ] {
        files.index(manifests.clone());
        for built in files.built() {
            match (built, expected) {
                (Ok(names), Ok(expected)) => assert_eq!(names, expected, "{manifests}"),
                (Err(message), Err(part)) => assert!(message.contains(part), "{message}"),
                (built, _) => panic!("{manifests}: {built:?}"),
            }
        }
    }
}

/// Which of the images `a` and `b` is built.
fn chosen(files: &Files, image: Option<&str>) -> Result<&'static str, String> {
    let image = image.map(String::from);
    let options = Options {
        image,
        ..Options::default()
    };
    let [file, others @ ..] = in_every_way(&files.tar(), &options);
    for other in others {
        assert_eq!(other, file);
    }
    Ok(if file? == "a" { "a" } else { "b" })
}

#[test]
fn an_image_is_chosen_by_its_name_or_digest() {
    let mut files = Files::default();
    let (saved_a, mut a) = both(&mut files, "a", &json!(["alpine:latest", "local/a:1"]));
    let (saved_b, mut b) = both(&mut files, "b", &json!(["local/b:1"]));
    let digest_b = b["digest"].as_str().unwrap().to_string();
    let config_b = saved_b["Config"]
        .as_str()
        .unwrap()
        .rsplit('/')
        .next()
        .unwrap()
        .to_string();
    let platform = json!({ "os": "linux", "architecture": "amd64" });
    (a["platform"], b["platform"]) = (platform.clone(), platform);
    let mut again = a.clone();
    a["annotations"] = json!({ "org.opencontainers.image.ref.name": "latest",
        "io.containerd.image.name": "docker.io/library/alpine:latest" });
    again["annotations"] = json!({ "org.opencontainers.image.ref.name": "local/a:1" });
    let nested = files.blob(json!({ "manifests": [b] }).to_string());
    let mut layout = files.clone();
    let mut named = nested.clone();
    named["annotations"] = json!({ "org.opencontainers.image.ref.name": "local/b:1" });
    layout.index(json!([a, again, named]));
    files.put("manifest.json", json!([saved_a, saved_b]).to_string());
    let mut mixed = layout.clone();
    mixed.put("manifest.json", &files.0["manifest.json"]);
    for (form, files) in [
        ("layout", &layout),
        ("docker-save", &files),
        ("both", &mixed),
    ] {
        for (image, expected) in [
            ("alpine", "a"),
            ("alpine:latest", "a"),
            ("docker.io/library/alpine", "a"),
            ("local/a:1", "a"),
            ("docker.io/local/b:1", "b"),
            (&config_b, "b"),
            (&format!("sha256:{config_b}"), "b"),
        ] {
            assert_eq!(
                chosen(files, Some(image)).as_deref(),
                Ok(expected),
                "{form}: {image}"
            );
        }
        if form != "docker-save" {
            assert_eq!(chosen(files, Some(&digest_b)).as_deref(), Ok("b"), "{form}");
            assert_eq!(
                chosen(files, nested["digest"].as_str()).as_deref(),
                Ok("b"),
                "{form}"
            );
        }
        for (image, part) in [
            (None, "several images"),
            (Some("local/b"), "no image `local/b`"),
            (Some(""), "no image ``"),
        ] {
            let message = chosen(files, image).unwrap_err();
            assert!(
                message.contains(part) && message.contains("--image"),
                "{form}: {message}"
            );
            for name in ["alpine:latest", "local/a:1", "local/b:1"] {
                assert!(message.contains(name), "{form}: {message}");
            }
        }
    }
}
