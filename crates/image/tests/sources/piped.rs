//! Archives of container images that are compressed or come through a pipe, and plain archives that look like one.

use std::path::Path;

use serde_json::json;

use crate::documents::*;
use crate::support::*;
use lanefs_image::source::{Options, SourceTree};

/// Reads what is at `path` through a pipe.
fn piped(path: &Path, asked: &Options) -> SourceTree {
    let pipe = path.with_extension("pipe");
    let options = Options {
        inputs: options(&[&pipe]).inputs,
        ..asked.clone()
    };
    through_a_pipe(&pipe, &std::fs::read(path).unwrap(), &options).unwrap()
}

#[test]
fn image_archives_are_read_through_pipes_and_every_compression() {
    let Some(directory) = crate::oci::image() else {
        return;
    };
    let at = directory.path();
    let asked = Options {
        platform: Some("linux/amd64".into()),
        ..Options::default()
    };
    let read = |name: &str| {
        let options = Options {
            inputs: options(&[&at.join(name)]).inputs,
            ..asked.clone()
        };
        lanefs_image::source::scan(&options).unwrap()
    };
    let expected = manifest(&read("layout"), ALL);
    assert_same(
        &manifest(&read("saved"), ALL),
        &expected,
        "an unpacked docker-save",
    );
    for archive in ["layout.tar", "saved.tar", "jib.tar"] {
        sh(
            at,
            &format!("gzip -k {archive}; zstd -qk {archive}; xz -0k {archive}"),
        );
        for ending in ["", ".gz", ".zst", ".xz"] {
            let name = format!("{archive}{ending}");
            assert_same(&manifest(&read(&name), ALL), &expected, &name);
            assert_same(
                &manifest(&piped(&at.join(&name), &asked), ALL),
                &expected,
                &name,
            );
        }
    }
}

#[test]
fn archives_of_skopeo_and_umoci_are_read_through_a_pipe() {
    let Some(directory) = crate::oci::image() else {
        return;
    };
    if !can_run(&["skopeo", "umoci"]) {
        return;
    }
    let at = directory.path();
    sh(
        at,
        "export TMPDIR=$PWD; copy='skopeo --insecure-policy copy -q docker-archive:jib.tar'
         $copy oci-archive:s.oci.tar:x:1; $copy docker-archive:s.docker.tar:x:1; $copy oci:one:x
         umoci config --image one:x --config.env A=b; tar -cf umoci.tar -C one .",
    );
    let one = scan(&[&at.join("one")]).unwrap();
    let expected = manifest(&one, ALL);
    for name in ["s.oci.tar", "s.docker.tar", "umoci.tar"] {
        sh(at, &format!("gzip -k {name}"));
        for name in [name.to_string(), format!("{name}.gz")] {
            let file = scan(&[&at.join(&name)]).unwrap();
            assert_same(&manifest(&file, ALL), &expected, &name);
            let tree = piped(&at.join(&name), &Options::default());
            assert_same(&manifest(&tree, ALL), &expected, &name);
        }
    }
}

/// The members of a docker-save archive of the one layer `in`, its `manifest.json` last.
pub fn docker_save() -> Vec<(String, u8, Vec<u8>)> {
    let layer = layer_with("in");
    let config = config_of(&[&layer]);
    let list = saved_list("conf", &["base.tar"]);
    vec![
        ("base.tar".into(), b'0', layer),
        ("conf".into(), b'0', config.into_bytes()),
        ("manifest.json".into(), b'0', list.into_bytes()),
    ]
}

pub fn archive(members: &[(String, u8, Vec<u8>)]) -> Vec<u8> {
    let members = members
        .iter()
        .map(|(name, kind, data)| (&**name, *kind, &**data));
    tar_of(&members.collect::<Vec<_>>())
}

#[test]
fn an_image_after_what_no_image_has_is_found_in_a_file_and_refused_from_a_pipe() {
    let save = docker_save();
    assert_eq!(built_from(&archive(&save)).as_deref(), Ok("in"));
    let large = vec![("prog".to_string(), b'0', vec![1; (1 << 20) + 1])];
    let split = (0..3)
        .map(|number| (format!("p{number}"), b'0', vec![1; 400_000]))
        .collect();
    let many = (0..5000)
        .map(|number| (format!("d/{number}"), b'0', vec![]))
        .collect();
    let device = vec![("null".to_string(), b'3', vec![])];
    for before in [large, split, many, device] {
        let members = [before, save.clone()].concat();
        let [file, compressed, pipe, both] = in_every_way(&archive(&members), &Options::default());
        assert_eq!(
            (file.as_deref(), compressed.as_deref()),
            (Ok("in"), Ok("in"))
        );
        for message in [pipe, both].map(Result::unwrap_err) {
            assert!(
                message.contains("too late") && message.contains("save it as a file"),
                "{message}"
            );
        }
        // After what says that it is one, it is.
        let mut members = members;
        members.rotate_right(3);
        members.swap(0, 2);
        assert_eq!(built_from(&archive(&members)).as_deref(), Ok("in"));
    }
}

#[test]
fn hundreds_of_layers_with_the_files_of_old_docker_are_read_through_a_pipe() {
    let layers: Vec<Vec<u8>> = (0..300)
        .map(|number| layer_with(&format!("f{number:03}")))
        .collect();
    let config = config_of(&layers.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let mut members = Vec::new();
    let mut names = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        let name = |file: &str| format!("l{number}/{file}");
        members.push((name(""), b'5', Vec::new()));
        members.push((name("VERSION"), b'0', b"1.0".to_vec()));
        members.push((name("json"), b'0', b"{}".to_vec()));
        members.push((name("data"), b'0', layer.clone()));
        members.push((name("layer.tar"), b'2', b"./data".to_vec()));
        names.push(name("layer.tar"));
    }
    members.push(("c.json".into(), b'0', config.into_bytes()));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    members.push((
        "manifest.json".into(),
        b'0',
        saved_list("c.json", &names).into_bytes(),
    ));
    let built = built_from(&archive(&members)).unwrap();
    assert_eq!(built.split(' ').count(), 300);
}

/// All orders of `items`.
fn orders<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    if items.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..items.len() {
        let mut rest = items.to_vec();
        let first = rest.remove(at);
        for mut order in orders(&rest) {
            order.insert(0, first.clone());
            all.push(order);
        }
    }
    all
}

#[test]
fn layers_are_found_through_links_in_every_order() {
    let layer = layer_with("in");
    let config = config_of(&[layer.as_slice(); 5]);
    let list = saved_list("c", &["a", "b", "d/c", "e", "a"]);
    let members: Vec<(&str, u8, &[u8])> = vec![
        ("a", b'0', &layer),
        ("b", b'1', b"a"),
        ("d/c", b'2', b"../a"),
        // A chain, also of links that come before their targets.
        ("e", b'1', b"b"),
        ("manifest.json", b'0', list.as_bytes()),
    ];
    for (number, mut order) in orders(&members).into_iter().enumerate() {
        order.insert(number % 6, ("c", b'0', config.as_bytes()));
        // All ways take their time, and each has its turn.
        let built = match number % 8 {
            0 => built_from(&tar_of(&order)),
            _ => {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("pipe");
                let tree = through_a_pipe(&path, &tar_of(&order), &options(&[&path]));
                root_of(tree.map_err(|error| error.to_string()))
            }
        };
        let names: Vec<&str> = order.iter().map(|(name, ..)| *name).collect();
        assert_eq!(built.as_deref(), Ok("in"), "{names:?}");
    }
}

#[test]
fn a_link_takes_the_place_of_what_had_its_name() {
    let (old, new) = (layer_with("old"), layer_with("new"));
    let config = config_of(&[&new]);
    let list = saved_list("c", &["a"]);
    let rest: Vec<(&str, u8, &[u8])> = vec![
        ("c", b'0', config.as_bytes()),
        ("manifest.json", b'0', list.as_bytes()),
    ];
    let cases: [Vec<(&str, u8, &[u8])>; 7] = [
        vec![("a", b'0', &old), ("b", b'0', &new), ("a", b'1', b"b")],
        vec![("a", b'0', &old), ("a", b'1', b"b"), ("b", b'0', &new)],
        vec![("a", b'0', &old), ("b", b'0', &new), ("a", b'2', b"b")],
        vec![("a", b'1', b"b"), ("a", b'0', &new), ("b", b'0', &old)],
        vec![("b", b'0', &new), ("a", b'1', b"b"), ("b", b'0', &old)],
        vec![
            ("a", b'1', b"x"),
            ("a", b'1', b"b"),
            ("x", b'0', &old),
            ("b", b'0', &new),
        ],
        vec![
            ("d", b'2', b"e"),
            ("e/", b'5', b""),
            ("d/f", b'0', &new),
            ("a", b'2', b"e/f"),
        ],
    ];
    for case in cases {
        let members = [case, rest.clone()].concat();
        assert_eq!(
            built_from(&tar_of(&members)).as_deref(),
            Ok("new"),
            "{:?}",
            members
                .iter()
                .map(|(name, kind, _)| (name, kind))
                .collect::<Vec<_>>()
        );
    }
    // In plain archives, too: chains of links before their targets, as long as may be.
    let names: Vec<String> = (0..2000).map(|number| format!("n{number:04}")).collect();
    let links = names
        .windows(2)
        .map(|pair| (&*pair[0], b'1', pair[1].as_bytes()));
    let mut members: Vec<(&str, u8, &[u8])> = links.collect();
    members.push((names.last().unwrap(), b'0', b"text"));
    assert_eq!(
        built_from(&tar_of(&members)).unwrap().split(' ').count(),
        2000
    );
    let circle: [(&str, u8, &[u8]); 2] = [("a", b'1', b"b"), ("b", b'1', b"a")];
    let message = built_from(&tar_of(&circle)).unwrap_err();
    assert!(message.contains("hard link to"), "{message}");
}

#[test]
fn a_configuration_and_layers_are_what_their_names_and_sources_say() {
    let layer = layer_with("in");
    let config = config_of(&[&layer]);
    let right = digest(config.as_bytes())[7..].to_string();
    let wrong = "0".repeat(64);
    let part = "has another digest than its name";
    for (name, expected) in [
        (format!("{right}.json"), None),
        (format!("blobs/sha256/{right}"), None),
        (format!("sha256:{right}"), None),
        ("any.json".into(), None),
        // As for `docker load` and skopeo, digits alone are any name.
        (format!("{wrong}.json"), None),
        (format!("blobs/sha256/{wrong}"), Some(part)),
        (format!("sha256:{wrong}"), Some(part)),
    ] {
        let list = saved_list(&name, &["l.tar"]);
        let members: [(&str, u8, &[u8]); 3] = [
            ("l.tar", b'0', &layer),
            (&name, b'0', config.as_bytes()),
            ("manifest.json", b'0', list.as_bytes()),
        ];
        refused(&tar_of(&members), expected, &name);
    }
    let id = digest(&layer);
    for (source, expected) in [
        (json!({ "digest": id, "size": layer.len() }), None),
        (json!(null), None),
        (
            json!({ "digest": id, "size": 5 }),
            Some("bytes, but should have 5"),
        ),
        (
            json!({ "digest": digest(b"x"), "size": layer.len() }),
            Some("another digest"),
        ),
        (
            json!({ "digest": "md5:0", "size": layer.len() }),
            Some("sha256 or sha512 digest"),
        ),
    ] {
        let list =
            json!([{ "Config": "c", "Layers": ["l.tar"], "LayerSources": { &*id: source } }])
                .to_string();
        let members: [(&str, u8, &[u8]); 3] = [
            ("l.tar", b'0', &layer),
            ("c", b'0', config.as_bytes()),
            ("manifest.json", b'0', list.as_bytes()),
        ];
        refused(&tar_of(&members), expected, &list);
    }
}

/// The archive gives `in`, or an error that says `expected`.
fn refused(archive: &[u8], expected: Option<&str>, what: &str) {
    match (built_from(archive), expected) {
        (Ok(names), None) => assert_eq!(names, "in", "{what}"),
        (Err(message), Some(part)) => assert!(message.contains(part), "{what}: {message}"),
        (built, _) => panic!("{what}: {built:?}"),
    }
}

#[test]
fn an_image_is_chosen_by_name_and_digest_together() {
    let mut files = Files::default();
    let (a, image_a) = both(
        &mut files,
        "in",
        &json!(["reg.io:5000/team/app:1", "app:2"]),
    );
    let (b, image_b) = both(&mut files, "other", &json!(["app:3"]));
    let mut named = image_b.clone();
    named["annotations"] = json!({ "org.opencontainers.image.ref.name": "app:3" });
    files.index(json!([image_a, named]));
    files.put("manifest.json", json!([a, b]).to_string());
    let digest_a = image_a["digest"].as_str().unwrap();
    let digest_b = image_b["digest"].as_str().unwrap();
    for (asked, expected) in [
        (format!("app@{digest_a}"), Ok("in")),
        (format!("app@{digest_b}"), Ok("other")),
        (format!("docker.io/library/app@{digest_a}"), Ok("in")),
        (format!("app:2@{digest_a}"), Ok("in")),
        (format!("reg.io:5000/team/app@{digest_a}"), Ok("in")),
        (format!("reg.io:5000/team/app:1@{digest_a}"), Ok("in")),
        (format!("app:3@{digest_a}"), Err("holds no image")),
        (format!("web@{digest_a}"), Err("holds no image")),
        (format!("app@{}", digest(b"")), Err("holds no image")),
    ] {
        let options = Options {
            image: Some(asked.clone()),
            ..Options::default()
        };
        for built in in_every_way(&files.tar(), &options) {
            match (built, expected) {
                (Ok(names), Ok(expected)) => assert_eq!(names, expected, "{asked}"),
                (Err(message), Err(part)) => {
                    assert!(
                        message.contains(part) && message.contains("app:3"),
                        "{asked}: {message}"
                    );
                }
                (built, _) => panic!("{asked}: {built:?}"),
            }
        }
    }
}

#[test]
fn a_directory_in_skopeos_own_form_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("copied");
    std::fs::create_dir(&at).unwrap();
    let digest = "4".repeat(64);
    std::fs::write(at.join(&digest), layer_with("in")).unwrap();
    let layer = json!({ "digest": format!("sha256:{digest}"), "size": 1 });
    let manifest = json!({ "schemaVersion": 2, "config": layer, "layers": [layer] });
    std::fs::write(at.join("manifest.json"), manifest.to_string()).unwrap();
    // Another program's manifest.json.
    assert!(names(&at).is_ok());
    std::fs::write(at.join("version"), "Directory Transport Version: 1.1\n").unwrap();
    let message = names(&at).unwrap_err();
    assert!(message.contains("skopeo copy dir:"), "{message}");
    assert!(names(&at.join(".")).is_ok());
}

#[test]
fn saves_of_old_dockers_and_choices_among_nothing_are_refused_by_name() {
    let id = "4".repeat(64);
    let layer = layer_with("in");
    let [directory, version, text, tar] =
        ["", "VERSION", "json", "layer.tar"].map(|name| format!("{id}/{name}"));
    let tags = json!({ "app": { "1": id } }).to_string();
    let mut members: Vec<(&str, u8, &[u8])> = vec![
        (&directory, b'5', b""),
        (&version, b'0', b"1.0"),
        (&text, b'0', b"{}"),
        (&tar, b'0', &layer),
        ("repositories", b'0', tags.as_bytes()),
    ];
    for _ in 0..2 {
        let message = built_from(&tar_of(&members)).unwrap_err();
        assert!(message.contains("Docker before 1.10"), "{message}");
        let unpacked = tempfile::tempdir().unwrap();
        let tar = unpacked.path().join("t");
        std::fs::write(&tar, tar_of(&members)).unwrap();
        sh(unpacked.path(), "mkdir d; tar -xf t -C d");
        let built = names(&unpacked.path().join("d"));
        assert_eq!(built.is_err(), members.len() == 5, "{built:?}");
        // One that was saved by its number has no tags.
        members.pop();
    }
    for (option, asked) in [
        (
            "--platform linux/arm64",
            Options {
                platform: Some("linux/arm64".into()),
                ..Options::default()
            },
        ),
        (
            "--image x",
            Options {
                image: Some("x".into()),
                ..Options::default()
            },
        ),
    ] {
        for message in in_every_way(&layer, &asked).map(Result::unwrap_err) {
            assert!(
                message.contains(option) && message.contains("no source is a container image"),
                "{message}"
            );
        }
    }
}

#[test]
fn an_unpacked_docker_save_is_an_image_and_links_in_it_lead_nowhere_else() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let unpacked = at.join("d");
    for (name, kind, data) in docker_save() {
        assert_eq!(kind, b'0');
        std::fs::create_dir_all(&unpacked).unwrap();
        std::fs::write(unpacked.join(name), data).unwrap();
    }
    assert_eq!(names(&unpacked).as_deref(), Ok("in"));
    let plain = names(&unpacked.join("."));
    assert_eq!(plain.as_deref(), Ok("base.tar conf manifest.json"));
    sh(
        &unpacked,
        "mkdir x; mv base.tar x/kept; ln -s /x/kept base.tar",
    );
    assert_eq!(names(&unpacked).as_deref(), Ok("in"));
    sh(&unpacked, "mv x/kept ..; ln -sf ../kept base.tar");
    let message = names(&unpacked).unwrap_err();
    assert!(message.contains("`base.tar` is missing"), "{message}");
    // Another program's directory.
    std::fs::write(unpacked.join("manifest.json"), saved_list("no", &["none"])).unwrap();
    assert!(names(&unpacked).unwrap().contains("manifest.json"));
}

#[test]
fn all_platforms_of_an_index_beside_a_manifest_json_may_be_asked_for() {
    let mut files = Files::default();
    let mut of = |arch: &str, name: &str| {
        let layer = layer_with(name);
        let rootfs = json!({ "type": "layers", "diff_ids": [digest(&layer)] });
        let config = json!({ "os": "linux", "architecture": arch, "rootfs": rootfs }).to_string();
        let config = files.blob(config);
        let layer = files.blob(&layer);
        let mut image = files.blob(json!({ "config": config, "layers": [layer] }).to_string());
        image["platform"] = json!({ "os": "linux", "architecture": arch });
        let path = |one: &serde_json::Value| {
            format!(
                "blobs/{}",
                one["digest"].as_str().unwrap().replace(':', "/")
            )
        };
        let saved =
            json!({ "Config": path(&config), "RepoTags": ["app:1"], "Layers": [path(&layer)] });
        (image, saved)
    };
    let (amd, saved) = of("amd64", "in");
    let (arm, _) = of("arm64", "arm");
    let mut nested = files.blob(json!({ "manifests": [amd, arm] }).to_string());
    nested["annotations"] = json!({ "io.containerd.image.name": "docker.io/library/app:1" });
    nested["annotations"]["org.opencontainers.image.ref.name"] = json!("app:1");
    files.index(json!([nested]));
    let layout = files.clone();
    files.put("manifest.json", json!([saved]).to_string());
    for files in [layout, files] {
        for (platform, expected) in [("linux/amd64", "in"), ("linux/arm64", "arm")] {
            let asked = Options {
                platform: Some(platform.into()),
                ..Options::default()
            };
            for built in in_every_way(&files.tar(), &asked) {
                assert_eq!(built.as_deref(), Ok(expected), "{platform}");
            }
        }
    }
}

#[test]
fn hostile_documents_and_cut_streams_are_refused() {
    let layer = layer_with("in");
    let config = config_of(&[&layer]);
    let deep = format!("[{{\"Layers\":[\"l\"],\"Config\":{}", "[".repeat(1 << 20));
    let long = format!(
        "[{{\"Config\":\"c\",\"Layers\":[\"l\"],\"x\":\"{}\"}}]",
        "x".repeat(9 << 20)
    );
    let many = saved_list("c", &vec!["l"; 1025]);
    for (list, part) in [
        (&deep, "can't be understood"),
        (&long, "more than"),
        (&many, "more than 1024"),
    ] {
        for config_name in ["c", &format!("{}.json", &digest(config.as_bytes())[7..])] {
            let list = list.replacen("\"c\"", &format!("\"{config_name}\""), 1);
            let members: [(&str, u8, &[u8]); 3] = [
                ("l", b'0', &layer),
                (config_name, b'0', config.as_bytes()),
                ("manifest.json", b'0', list.as_bytes()),
            ];
            let built = in_every_way(&tar_of(&members), &Options::default());
            for message in built.map(Result::unwrap_err) {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
    }
    let whole = archive(&docker_save());
    for cut in [100, 600, whole.len() - 1024 - 600, whole.len() - 1024 - 10] {
        for built in in_every_way(&whole[..cut], &Options::default()) {
            let message = built.unwrap_err();
            assert!(message.contains("truncated"), "{cut}: {message}");
        }
    }
}

#[test]
fn what_is_kept_of_an_image_has_a_limit() {
    let mut members = docker_save();
    let options = |spool| Options {
        spool: Some(spool),
        ..Options::default()
    };
    let bytes: u64 = members.iter().map(|(.., data)| data.len() as u64).sum();
    let [file, others @ ..] = in_every_way(&archive(&members), &options(bytes));
    assert_eq!(file.as_deref(), Ok("in"));
    assert!(others.iter().all(|built| *built == file), "{others:?}");
    let mut orders = vec![archive(&members)];
    members.rotate_right(1);
    orders.push(archive(&members));
    for order in orders {
        let [file, others @ ..] = in_every_way(&order, &options(bytes - 1));
        assert_eq!(file.as_deref(), Ok("in"));
        for message in others.map(Result::unwrap_err) {
            assert!(
                message.contains("--spool") && message.contains("TMPDIR"),
                "{message}"
            );
        }
    }
    // A plain archive needs none of it.
    let plain = tar_of(&[("a.tar", b'0', &layer_with("in")), ("b", b'0', b"text")]);
    for built in in_every_way(&plain, &options(0)) {
        assert_eq!(built.as_deref(), Ok("a.tar b"));
    }
}
