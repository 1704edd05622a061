//! Archives of other programs that have files named as those of container images, and images whose documents are
//! damaged.

use lanefs_image::source::Options;
use serde_json::json;

use crate::documents::*;
use crate::piped::{archive, docker_save};

#[test]
fn what_only_looks_like_an_image_is_a_plain_archive_in_every_form() {
    let layer = layer_with("in");
    let object = br#"{ "name": "an app" }"#.to_vec();
    let absent = saved_list("not/there.json", &["nor/this.tar"]).into_bytes();
    let index = json!({ "schemaVersion": 2, "manifests": [] })
        .to_string()
        .into_bytes();
    let text = |name: &str, data: &[u8]| (name.to_string(), b'0', data.to_vec());
    for (members, expected) in [
        (
            vec![
                text("index.html", b"<html>"),
                text("manifest.json", &object),
                text("index.json", b"{}"),
            ],
            "index.html index.json manifest.json",
        ),
        (
            vec![text("manifest.json", &absent), text("bin", b"x")],
            "bin manifest.json",
        ),
        (
            vec![text("index.json", &index), text("etc", b"x")],
            "etc index.json",
        ),
        (
            vec![text("a.tar", &layer), text("b.tgz", &gzip(&layer))],
            "a.tar b.tgz",
        ),
        (
            vec![text("oci-layout", b"{}"), text("x", b"x")],
            "oci-layout x",
        ),
        (
            vec![
                text("app/manifest.json", &saved_list("a", &["b"]).into_bytes()),
                text("a", b""),
                text("b", b""),
            ],
            "a app b",
        ),
        (
            vec![
                ("manifest.json".into(), b'2', b"x".to_vec()),
                text("x", b"x"),
            ],
            "manifest.json x",
        ),
        (
            vec![("manifest.json".into(), b'5', vec![]), text("x", b"x")],
            "manifest.json x",
        ),
        (
            vec![
                ("null".into(), b'3', vec![]),
                text("manifest.json", &object),
            ],
            "manifest.json null",
        ),
    ] {
        assert_eq!(built_from(&archive(&members)).as_deref(), Ok(expected));
    }
}

#[test]
fn documents_of_other_programs_make_no_image_and_damaged_ones_are_refused() {
    let save = docker_save();
    let list = String::from_utf8(save[2].2.clone()).unwrap();
    let with = |name: &'static str, text: &[u8], root: bool| {
        let mut members: Vec<(String, u8, Vec<u8>)> = Vec::new();
        if root {
            members.push(("etc".into(), b'5', Vec::new()));
            members.push(("etc/passwd".into(), b'0', b"root".to_vec()));
        } else {
            members.extend_from_slice(&save[..2]);
        }
        members.push((name.into(), b'0', text.to_vec()));
        archive(&members)
    };
    for (name, text) in [
        (
            "manifest.json",
            r#"[{"Config":null,"RepoTags":["a:b"],"Layers":[]}]"#,
        ),
        (
            "manifest.json",
            r#"[{"Config":7,"Layers":{"a":["nothing"]}}]"#,
        ),
        ("manifest.json", r#"["etc/passwd", {"file": "etc/passwd"}]"#),
        ("manifest.json", r#"{"Config":"etc/passwd","Layers":[]}"#),
        ("manifest.json", "[]"),
        ("index.json", "{}"),
        ("index.json", r#"["manifests"]"#),
        ("index.json", "no JSON"),
    ] {
        let expected = format!("etc {name}");
        let built = built_from(&with(name, text.as_bytes(), true));
        assert_eq!(built.as_deref(), Ok(&*expected), "{text}");
        let alone = built_from(&tar_of(&[(name, b'0', text.as_bytes())]));
        assert_eq!(alone.as_deref(), Ok(name), "{text}");
    }
    let (long, spaces) = ("x".repeat(5000), " ".repeat(5000));
    let utf16: Vec<u8> = std::iter::once(0xfeff)
        .chain(list.encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    for text in [
        &list.as_bytes()[..list.len() - 1],
        &list.as_bytes()[..20],
        format!(r#"[{{"X":"{long}","Config":"conf","Layers":["base.tar"]"#).as_bytes(),
        format!(r#"[{spaces}{{"Config":null,"Layers":["base.tar"]}}]"#).as_bytes(),
        format!(r#"[{{"X":"{long}","Config":"conf","Layers":["base.tar"],}}]"#).as_bytes(),
        br#"[{"config":"conf","layers":["base.tar"]}]"#,
        br#"[{"RepoTags":["a:b"],"Layers":["base.tar"]}]"#,
        br#"[{"Config":"conf","Layers":"base.tar"}]"#,
        b"[{\"Config\":\"conf\",\"RepoTags\":[\"\xff\"],\"Layers\":[\"base.tar\"]}]",
    ] {
        for built in in_every_way(&with("manifest.json", text, false), &Options::default()) {
            let message = built.expect_err(&String::from_utf8_lossy(text));
            assert!(message.contains("can't be understood"), "{message}");
        }
    }
    for text in [format!("\u{feff}{list}").as_bytes(), &utf16] {
        let built = built_from(&with("manifest.json", text, false));
        assert_eq!(built.as_deref(), Ok("in"));
    }
}
