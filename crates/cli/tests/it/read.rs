//! The commands that read, compared with the kernel and the usual tools on the same tree.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::fixture::{Fixture, error, ok, run, tool};

/// Lines as a set, since the order of a walk is the walker's.
fn set(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

#[test]
fn ls_shows_what_ls_shows() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let mounted = testkit::KernelMount::read_only(&fixture.image).unwrap();
    for options in [
        "-lA", "-laA", "-liA", "-lsA", "-lhA", "-lAS", "-lAtr", "-A1r", "-lAR", "-lAd", "-R",
    ] {
        for path in ["", "dir"] {
            let theirs = tool(
                Command::new("ls")
                    .arg(format!("{options}n"))
                    .arg("--")
                    .arg(mounted.path().join(path)),
            );
            let theirs = theirs.replace(&format!("{}/", mounted.path().display()), "/");
            let theirs = theirs.replace(&mounted.path().display().to_string(), "/");
            let mut ours = ok(["ls", options, &fixture.at(&format!("/{path}"))]);
            if !options.contains('l') {
                // -n means -l to ls.
                ours = ok([
                    "ls",
                    &format!("{options}l"),
                    &fixture.at(&format!("/{path}")),
                ]);
            }
            // Columns may be wider; what is in them counts.
            let words = |text: &str| -> Vec<Vec<String>> {
                text.lines()
                    .map(|line| line.split_whitespace().map(str::to_owned).collect())
                    .collect()
            };
            assert_eq!(words(&ours), words(&theirs), "ls {options} /{path}");
        }
    }
}

#[test]
fn find_finds_what_find_finds() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let mounted = testkit::KernelMount::read_only(&fixture.image).unwrap();
    for expression in [
        "",
        "-name *.txt",
        "-iname readme*",
        "-path */sub/*",
        "-type f",
        "-type d,l",
        "-type b -o -type c -o -type p",
        "-size +1M",
        "-size -3k",
        "-size 12c",
        "-empty",
        "-perm 640",
        "-perm -4000",
        "-perm /011",
        "-uid 1234",
        "-gid +60000",
        "-links +1 -type f",
        "-maxdepth 1",
        "-mindepth 2 -maxdepth 3",
        "! -type f ! -type d",
        "-not -name *.txt -type f -o -name dir",
        "( -name a* -o -name d* ) -type d",
        "-name sub -prune -o -print",
        "-false -o -true -a ! ( -false -o -empty )",
        "-mtime +3000",
    ] {
        let words: Vec<&str> = expression.split_whitespace().collect();
        let theirs = tool(Command::new("find").arg(mounted.path()).args(&words));
        let theirs = theirs.replace(&format!("{}/", mounted.path().display()), "/");
        let theirs = theirs.replace(&mounted.path().display().to_string(), "/");
        let ours = ok([&["find", &fixture.at("/")][..], &words].concat());
        assert_eq!(set(&ours), set(&theirs), "find {expression}");
    }
    let zeros = run(["find", &fixture.at("/dir"), "-name", "*.md", "-print0"]);
    assert_eq!(zeros.stdout, b"/dir/README.md\0");
    assert_eq!(
        ok([
            "find",
            &fixture.at("/"),
            "-newer",
            "/hello.txt",
            "-name",
            "nothing"
        ]),
        "/nothing\n"
    );
    let wrong = run(["find", &fixture.at("/"), "(", "-name", "a"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", error(&wrong));
}

#[test]
fn du_and_df_count_as_the_kernel_does() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let mounted = testkit::KernelMount::read_only(&fixture.image).unwrap();
    for options in [
        &["-kl"][..],
        &["-kal"],
        &["-sk"],
        &["-bl"],
        &["-hs"],
        &["-kld1"],
        &["-kcs"],
    ] {
        let theirs = tool(Command::new("du").args(options).arg(mounted.path()));
        let theirs = theirs.replace(&format!("{}/", mounted.path().display()), "/");
        let theirs = theirs.replace(&mounted.path().display().to_string(), "/");
        let ours: Vec<String> = options
            .iter()
            .map(|option| option.replace('k', ""))
            .filter(|option| option != "-")
            .collect();
        let mut arguments = vec!["du".to_owned()];
        arguments.extend(ours);
        arguments.push(fixture.at("/"));
        assert_eq!(set(&ok(&arguments)), set(&theirs), "du {options:?}");
    }
    for options in ["-k", "-i"] {
        let theirs = tool(Command::new("df").arg(options).arg(mounted.path()));
        let numbers = |text: &str| -> Vec<String> {
            text.lines()
                .nth(1)
                .unwrap()
                .split_whitespace()
                .skip(1)
                .take(4)
                .map(str::to_owned)
                .collect()
        };
        let image = fixture.image.to_str().unwrap();
        let ours = if options == "-k" {
            ok(["df", image])
        } else {
            ok(["df", options, image])
        };
        assert_eq!(numbers(&ours), numbers(&theirs), "df {options}");
    }
}

#[test]
fn stat_says_what_the_kernel_says() {
    let Some(fixture) = Fixture::as_root() else {
        return;
    };
    let mounted = testkit::KernelMount::read_only(&fixture.image).unwrap();
    for path in [
        "hello.txt",
        "dir",
        "fast",
        "big",
        "holes",
        "fifo",
        "null",
        "dir/README.md",
        "nothing",
    ] {
        let theirs = mounted.path().join(path).symlink_metadata().unwrap();
        let json = ok(["stat", "--json", &fixture.at(&format!("/{path}"))]);
        for (key, value) in [
            ("inode", theirs.ino()),
            ("uid", theirs.uid().into()),
            ("gid", theirs.gid().into()),
            ("size", theirs.size()),
            ("links", theirs.nlink()),
            ("allocated", theirs.blocks() * 512),
        ] {
            assert!(
                json.contains(&format!("\"{key}\": {value}")),
                "{path}: {key} {value} in {json}"
            );
        }
        assert!(
            json.contains(&format!("\"mode\": \"{:04o}\"", theirs.mode() & 0o7777)),
            "{path}: {json}"
        );
        let text = ok(["stat", &fixture.at(&format!("/{path}"))]);
        let theirs = tool(
            Command::new("stat")
                .args(["-c", "%y"])
                .arg(mounted.path().join(path)),
        );
        assert!(
            text.contains(&format!("Modify: {}", theirs.trim())),
            "{path}: {text}"
        );
    }
}

#[test]
fn cat_and_cp_give_the_same_bytes() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    for name in [
        "hello.txt",
        "nothing",
        "big",
        "holes",
        "dir/README.md",
        "umlaut ä and space",
    ] {
        let wanted = std::fs::read(fixture.source.join(name)).unwrap();
        assert_eq!(
            run(["cat", &fixture.at(&format!("/{name}"))]).stdout,
            wanted,
            "{name}"
        );
        let image = fixture.image.to_str().unwrap();
        assert_eq!(
            run(["cat", image, &format!("/{name}")]).stdout,
            wanted,
            "{name}"
        );
        assert_eq!(
            run(["cp", &fixture.at(&format!("/{name}")), "-"]).stdout,
            wanted,
            "{name}"
        );
        let copy = fixture.path("copy");
        ok([
            "cp",
            &fixture.at(&format!("/{name}")),
            copy.to_str().unwrap(),
        ]);
        assert_eq!(std::fs::read(&copy).unwrap(), wanted, "{name}");
    }
    // Links in the image stay in the image.
    assert_eq!(ok(["cat", &fixture.at("/absolute/deeper/x")]), "x");
    let output = run(["cat", &fixture.at("/dir")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error(&output).contains("/dir: is a directory"),
        "{}",
        error(&output)
    );
}

#[test]
fn tree_draws_and_counts() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let expected = "\
/dir
├── README.md
├── same.txt
└── sub
    └── deeper
        └── x

2 directories, 3 files
";
    assert_eq!(ok(["tree", &fixture.at("/dir")]), expected);
    let shallow = ok(["tree", "-d", "-L", "1", &fixture.at("/")]);
    assert!(shallow.ends_with("\n3 directories\n"), "{shallow}");
    assert!(
        !shallow.contains(".hidden") && ok(["tree", "-a", &fixture.at("/")]).contains(".hidden")
    );
}

#[test]
fn json_has_a_version_and_holds_every_entry() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    for arguments in [
        &["ls", "-A", "--json"][..],
        &["tree", "-a", "--json"],
        &["du", "-a", "--json"],
        &["find", "--json"],
    ] {
        let mut arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        arguments.push(fixture.at("/"));
        let json: serde_json::Value = serde_json::from_str(&ok(&arguments)).unwrap();
        assert_eq!(json["version"], 1, "{arguments:?}");
        let entries = json["entries"].as_array().unwrap();
        assert!(entries.len() >= 15, "{arguments:?}: {}", entries.len());
    }
    let json: serde_json::Value =
        serde_json::from_str(&ok(["df", "--json", fixture.image.to_str().unwrap()])).unwrap();
    assert_eq!(json["filesystems"][0]["block_size"], 1024);
}
