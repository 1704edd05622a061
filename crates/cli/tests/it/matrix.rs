//! Every kind of input, into file systems of many block sizes and features, built by the program and judged by others:
//! e2fsck, the kernel's mount with a manifest of the source, `ext4-view`, and debugfs on inodes and places of data.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lanefs::Fs;
use testkit::{KernelMount, Manifest, e2fsck};

use crate::fixture::{Fixture, lanefs, ok, tool};

/// Bytes a block; above 4096 the kernel here does not mount, and what `extract` restores is compared instead.
const BLOCKS: &[&str] = &["1024", "2048", "4096", "16384", "65536"];

/// Features, and whether `ext4-view` reads images that have them.
const FEATURES: &[(&str, bool)] = &[
    ("", true),
    ("^has_journal", true),
    ("^metadata_csum,^64bit,^orphan_file", true),
    ("^extent,^64bit", false),
    ("^flex_bg,^resize_inode,^dir_index", true),
    ("meta_bg,^resize_inode,sparse_super2", false),
    ("bigalloc,large_dir,ea_inode", false),
];

/// What is built from, and what the kernel shows of it.
struct Inputs {
    fixture: Fixture,
    tar: PathBuf,
    layout: PathBuf,
}

/// Packs the fixture's tree with tar, and an OCI image of two layers around it: the first has one file more, which the
/// second takes away.
fn inputs() -> Option<Inputs> {
    for program in ["tar", "sha256sum", "debugfs", "e2fsck", "gzip"] {
        if !testkit::have(program) {
            testkit::skip(&format!("{program} is not installed"));
            return None;
        }
    }
    let fixture = Fixture::as_root()?;
    let pack = |archive: &str, options: &[&str], names: &[&str]| {
        let archive = fixture.path(archive);
        let all = ["--xattrs", "--xattrs-include=*", "--acls"];
        tool(
            Command::new("tar")
                .args(["--format=pax", "--numeric-owner", "--sparse", "-cf"])
                .arg(&archive)
                .args(all)
                .args(options)
                .arg("-C")
                .arg(&fixture.source)
                .args(names),
        );
        archive
    };
    let tar = pack("tree.tar", &[], &["."]);
    fs::write(fixture.path("doomed"), "doomed\n").unwrap();
    fs::write(fixture.path(".wh.doomed"), "").unwrap();
    let folder = fixture.folder.path().display().to_string();
    let lower = pack("lower.tar", &[], &[".", "-C", &folder, "doomed"]);
    let upper = pack("upper.tar", &[], &["-C", &folder, ".wh.doomed"]);
    let layout = layout(&fixture, &[lower, upper]);
    Some(Inputs {
        fixture,
        tar,
        layout,
    })
}

fn digest(path: &Path) -> String {
    let line = tool(Command::new("sha256sum").arg(path));
    line.split_whitespace().next().unwrap().to_owned()
}

/// An OCI layout of layers, the last of them compressed.
fn layout(fixture: &Fixture, layers: &[PathBuf]) -> PathBuf {
    let layout = fixture.path("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let keep = |file: &Path, kind: &str| {
        let sum = digest(file);
        fs::copy(file, blobs.join(&sum)).unwrap();
        let size = file.metadata().unwrap().len();
        let media = format!("application/vnd.oci.image.{kind}");
        serde_json::json!({ "mediaType": media, "digest": format!("sha256:{sum}"), "size": size })
    };
    let keep_json = |value: &serde_json::Value, kind: &str| {
        let file = fixture.path("blob.json");
        fs::write(&file, value.to_string()).unwrap();
        keep(&file, kind)
    };
    let diff_ids: Vec<String> = layers
        .iter()
        .map(|layer| format!("sha256:{}", digest(layer)))
        .collect();
    let mut stored = vec![keep(&layers[0], "layer.v1.tar")];
    for layer in &layers[1..] {
        tool(Command::new("gzip").arg("-k").arg(layer));
        stored.push(keep(&layer.with_extension("tar.gz"), "layer.v1.tar+gzip"));
    }
    let config = serde_json::json!({
        "os": "linux", "architecture": "amd64",
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    });
    let manifest = serde_json::json!({
        "schemaVersion": 2, "config": keep_json(&config, "config.v1+json"), "layers": stored,
    });
    let mut named = keep_json(&manifest, "manifest.v1+json");
    named["platform"] = serde_json::json!({ "os": "linux", "architecture": "amd64" });
    let index = serde_json::json!({ "schemaVersion": 2, "manifests": [named] });
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
    fs::write(
        layout.join("oci-layout"),
        "{\"imageLayoutVersion\":\"1.0.0\"}",
    )
    .unwrap();
    layout
}

/// Builds an image of one kind of input.
fn build(inputs: &Inputs, kind: &str, options: &[&str], image: &Path) {
    let mut command = lanefs();
    command.args(["build", "-q"]).args(options);
    let mut cat = None;
    match kind {
        "directory" => command.arg(&inputs.fixture.source),
        "tar" => command.arg(&inputs.tar),
        "pipe" => {
            let mut feed = Command::new("cat");
            let feed = feed.arg(&inputs.tar).stdout(Stdio::piped());
            let feed = cat.insert(feed.spawn().unwrap());
            command.arg("-").stdin(feed.stdout.take().unwrap())
        }
        _ => command
            .args(["--platform", "linux/amd64"])
            .arg(&inputs.layout),
    };
    tool(command.arg(image));
    if let Some(mut cat) = cat {
        assert!(cat.wait().unwrap().success());
    }
}

/// Compares with the source what the kernel shows, or what `extract` restores where the kernel does not mount.
fn compare_manifests(source: &Manifest, inputs: &Inputs, image: &Path, mounts: bool, case: &str) {
    let found = if mounts {
        let mounted = KernelMount::read_only(image).unwrap();
        Manifest::of(&mounted.path()).unwrap().without_lost_found()
    } else {
        let out = inputs.fixture.path("out");
        ok(["extract", image.to_str().unwrap(), out.to_str().unwrap()]);
        let found = Manifest::of(&out).unwrap();
        fs::remove_dir_all(&out).unwrap();
        found
    };
    let differences = source.differences(&found);
    assert!(differences.is_empty(), "{case}: {differences}");
}

/// Paths of the source, relative, below its root.
fn paths(source: &Manifest) -> impl Iterator<Item = (String, char)> {
    let named = source.entries.iter().filter(|(path, _)| !path.is_empty());
    named.map(|(path, entry)| (String::from_utf8(path.clone()).unwrap(), entry.kind))
}

fn compare_with_view(source: &Manifest, root: &Path, image: &Path, case: &str) {
    let view =
        ext4_view::Ext4::load_from_path(image).unwrap_or_else(|error| panic!("{case}: {error}"));
    for (path, kind) in paths(source) {
        let (inside, outside) = (format!("/{path}"), root.join(&path));
        let shown = outside.symlink_metadata().unwrap();
        let read = view.symlink_metadata(inside.as_str()).unwrap();
        assert_eq!(
            (u32::from(read.mode()), read.uid(), read.gid()),
            (shown.mode() & 0o7777, shown.uid(), shown.gid()),
            "{case}: {path}"
        );
        match kind {
            'f' => assert!(
                view.read(inside.as_str()).unwrap() == fs::read(&outside).unwrap(),
                "{case}: {path}"
            ),
            'l' => assert_eq!(
                view.read_link(inside.as_str()).unwrap().as_ref(),
                std::os::unix::ffi::OsStrExt::as_bytes(
                    fs::read_link(&outside).unwrap().as_os_str()
                ),
                "{case}: {path}"
            ),
            _ => (),
        }
    }
}

/// What debugfs answers to one command of a script for each line.
fn debugfs(inputs: &Inputs, image: &Path, commands: &[String]) -> Vec<String> {
    let script = inputs.fixture.path("script");
    fs::write(&script, commands.join("\n") + "\n").unwrap();
    let output = testkit::debugfs(&["-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    let answers = text.split("debugfs: ").skip(1);
    let answers = answers.map(|answer| answer.split_once('\n').map_or("", |(_, rest)| rest));
    answers.map(str::to_owned).collect()
}

/// Compares inode, mode, owner, size, links and where the first, middle and last blocks lie with what our reader says.
fn compare_with_debugfs(source: &Manifest, inputs: &Inputs, image: &Path, case: &str) {
    let fs = Fs::open(image).unwrap();
    let block = fs.inodes().geometry().block_size().bytes_u64();
    let (mut commands, mut expected) = (Vec::new(), Vec::new());
    for (path, kind) in paths(source).filter(|(path, _)| !path.contains(' ')) {
        let read = fs.symlink_metadata(format!("/{path}")).unwrap();
        commands.push(format!("stat /{path}"));
        expected.push(vec![
            format!("Inode: {} ", read.ino.0),
            format!("Mode:  0{:03o} ", read.mode & 0o7777),
            format!("User: {:5} ", read.uid),
            format!("Group: {:5} ", read.gid),
            format!("Size: {}\n", read.size),
            format!("Links: {} ", read.nlink),
        ]);
        let blocks = read.size.div_ceil(block);
        let inode = fs.inodes().inode(read.ino).unwrap();
        if kind != 'f' || blocks == 0 || inode.is_inline() {
            continue;
        }
        for logical in [0, blocks / 2, blocks - 1] {
            let runs = inode.mappings().unwrap().map(Result::unwrap);
            let place = runs
                .filter(|run| run.logical <= logical && logical < run.end())
                .find_map(|run| Some(run.physical?.0 + (logical - run.logical)));
            commands.push(format!("bmap <{}> {logical}", read.ino.0));
            expected.push(vec![format!("{}\n", place.unwrap_or(0))]);
        }
    }
    let answers = debugfs(inputs, image, &commands);
    assert_eq!(answers.len(), commands.len(), "{case}");
    for ((command, answer), parts) in commands.iter().zip(&answers).zip(&expected) {
        for part in parts {
            assert!(
                answer.contains(part.as_str()),
                "{case}: {command}: no {part:?} in {answer}"
            );
        }
    }
}

/// What images are built from.
const KINDS: [&str; 4] = ["directory", "tar", "pipe", "oci"];

#[test]
fn every_input_gives_the_same_tree_in_every_file_system() {
    compare_inputs(false);
}

#[test]
#[ignore = "minutes: cargo xtask suites long"]
fn many_inputs_give_the_same_tree_in_every_file_system() {
    compare_inputs(true);
}

/// Builds every kind of file system, from all inputs or from one in turn. The numbers of inputs and of features have no
/// common divisor, so each input meets every block size and all features.
fn compare_inputs(from_all: bool) {
    let Some(inputs) = inputs() else { return };
    let source = Manifest::of(&inputs.fixture.source).unwrap();
    let image = inputs.fixture.path("built.img");
    let mut turn = 0;
    for block in BLOCKS {
        let mounts = block.parse::<u64>().unwrap() <= 4096;
        for (features, view) in FEATURES {
            turn += 1;
            for (number, kind) in KINDS.into_iter().enumerate() {
                if !from_all && turn % KINDS.len() != number {
                    continue;
                }
                let case = format!("-b {block} -O {features} from {kind}");
                let options = ["-b", block, "-O", features, "--size", "auto"];
                build(&inputs, kind, &options, &image);
                e2fsck(&image);
                compare_manifests(&source, &inputs, &image, mounts, &case);
                if *view {
                    compare_with_view(&source, &inputs.fixture.source, &image, &case);
                }
                if matches!(kind, "directory" | "pipe") {
                    compare_with_debugfs(&source, &inputs, &image, &case);
                }
                fs::remove_file(&image).unwrap();
            }
        }
    }
}
