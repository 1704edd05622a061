//! OCI layouts, archives of them and docker-save archives, made by hand: layers, whiteouts, platforms, damage.

use std::path::Path;

use crate::support::*;
use lanefs_image::source::{Kind, Options, SourceTree};

/// Makes three layers with everything that a layer can do to the ones below it, and an image of them: `layout`
/// (OCI, with two platforms through a nested index), `layout.tar`, and `saved.tar` (docker-save).
const MAKE: &str = r#"
mkdir l1 l2 l3
mkdir -p l1/dir/sub l1/gone/deep l1/opaque/below l1/usr/lib l1/both; echo one > l1/dir/file;
echo old > l1/dir/old; echo x > l1/gone/deep/x
echo lower > l1/opaque/lower; echo l > l1/opaque/below/l; ln -s usr/lib l1/lib; echo first > l1/target;
ln l1/target l1/alias; echo b > l1/both/lower
echo u > l1/usr/lib/u; echo swap > l1/swap; mkdir l1/swapdir; echo s > l1/swapdir/s;
setfattr -n user.k -v v l1/dir; chmod 700 l1/dir
mkdir -p l1/late/deep l1/hidden/deep; echo o | tee l1/late/deep/older l1/late/older > l1/hidden/deep/older
head -c 300000 /dev/urandom > l1/big; touch -d @1000000.5 l1/dir/file
mkdir -p l2/dir l2/opaque l2/both; echo two > l2/dir/file; : > l2/dir/.wh.old; : > l2/.wh.gone;
echo upper > l2/opaque/upper; : > l2/opaque/.wh..wh..opq
mkdir l2/swap; echo in > l2/swap/in; echo f > l2/swapdir; : > l2/.wh.absent; : > l2/both/.wh.upper;
echo mine > l2/both/upper; chmod 711 l2/dir
echo again > l3/alias; echo third > l3/new
pax="--format=pax --xattrs --xattrs-include=* --numeric-owner"
for l in 1 2 3; do tar -c $pax -C l$l -f l$l.tar $(ls -A l$l); done
# A layer may link to a file of a lower one, and put files through a lower one's link.
python3 - <<'PY'
import tarfile, io, hashlib, json, os, gzip, shutil, subprocess
t = tarfile.open("l3.tar", "a")
i = tarfile.TarInfo("linked"); i.type = tarfile.LNKTYPE; i.linkname = "target"; t.addfile(i)
i = tarfile.TarInfo("lib/through"); i.size = 3; t.addfile(i, io.BytesIO(b"abc"))
# What a whiteout hides is below its layer, also where it comes last and the layer does not name the directories.
for name in ("late/deep/kept", "hidden/deep/kept"):
    i = tarfile.TarInfo(name); i.size = 3; t.addfile(i, io.BytesIO(b"abc"))
for name in (".wh.late", "hidden/.wh..wh..opq"):
    t.addfile(tarfile.TarInfo(name))
t.close()
raw = [open(f"l{n}.tar", "rb").read() for n in (1, 2, 3)]
zst = subprocess.run(["zstd", "-qc"], input=raw[1], capture_output=True).stdout
stored = [gzip.compress(raw[0]), zst, raw[2]]
kinds = ["tar+gzip", "tar+zstd", "tar"]
os.makedirs("layout/blobs/sha256")
def put(data, media, **more):
    d = hashlib.sha256(data).hexdigest()
    open("layout/blobs/sha256/" + d, "wb").write(data)
    return dict(mediaType=media, digest="sha256:" + d, size=len(data), **more)
oci = "application/vnd.oci.image."
rootfs = dict(type="layers", diff_ids=["sha256:" + hashlib.sha256(r).hexdigest() for r in raw])
layers = [put(s, oci + "layer.v1." + k) for s, k in zip(stored, kinds)]
def image(arch, layers, **more):
    own = dict(rootfs, diff_ids=rootfs["diff_ids"][:len(layers)])
    config = dict(os="linux", architecture=arch, rootfs=own, **more)
    c = put(json.dumps(config).encode(), oci + "config.v1+json")
    m = dict(schemaVersion=2, mediaType=oci + "manifest.v1+json", config=c, layers=layers)
    return put(json.dumps(m).encode(), oci + "manifest.v1+json", platform=dict(os="linux", architecture=arch, **more))
a = image("amd64", layers)
b = image("arm", layers[:1], variant="v7")
c = image("arm", layers[:2], variant="v6")
att = put(b'{"layers":[],"config":null}', oci + "manifest.v1+json", platform=dict(os="unknown", architecture="unknown"))
inner = put(json.dumps(dict(schemaVersion=2, manifests=[a, b, c, att])).encode(), oci + "index.v1+json")
json.dump(dict(schemaVersion=2, manifests=[inner]), open("layout/index.json", "w"))
open("layout/oci-layout", "w").write('{"imageLayoutVersion":"1.0.0"}')
ids = []
os.mkdir("saved")
for n, r in enumerate(raw):
    i = hashlib.sha256(b"%d" % n).hexdigest(); ids.append(i); os.mkdir("saved/" + i);
    open(f"saved/{i}/layer.tar", "wb").write(r)
config = json.dumps(dict(os="linux", architecture="amd64", rootfs=rootfs)).encode()
cid = hashlib.sha256(config).hexdigest(); open(f"saved/{cid}.json", "wb").write(config)
# As docker does for a layer that is there twice.
os.rename(f"saved/{ids[2]}/layer.tar", f"saved/{ids[2]}/kept")
os.symlink("../" + ids[2] + "/kept", f"saved/{ids[2]}/layer.tar")
saved = dict(Config=cid + ".json", RepoTags=["x:1"], Layers=[i + "/layer.tar" for i in ids])
json.dump([saved], open("saved/manifest.json", "w"))
PY
tar -cf layout.tar -C layout . ; tar -cf saved.tar -C saved . 
# As Jib makes it: no directories, layers compressed and named by their digests, the configuration by no digest.
python3 - <<'PY'
import tarfile, io, hashlib, json, gzip
t = tarfile.open("jib.tar", "w", format=tarfile.USTAR_FORMAT)
def put(name, data):
    i = tarfile.TarInfo(name); i.size = len(data); t.addfile(i, io.BytesIO(data))
raw = [open(f"l{n}.tar", "rb").read() for n in (1, 2, 3)]
names = []
for r in raw:
    z = gzip.compress(r); names.append(hashlib.sha256(z).hexdigest() + ".tar.gz"); put(names[-1], z)
rootfs = dict(type="layers", diff_ids=["sha256:" + hashlib.sha256(r).hexdigest() for r in raw])
put("config.json", json.dumps(dict(os="linux", architecture="amd64", rootfs=rootfs)).encode())
put("manifest.json", json.dumps([dict(Config="config.json", RepoTags=["x:1"], Layers=names)]).encode())
t.close()
rootfs["diff_ids"][1] = rootfs["diff_ids"][0]
t = tarfile.open("swapped.tar", "w", format=tarfile.USTAR_FORMAT)
for n, r in zip(names, raw): put(n, gzip.compress(r))
put("config.json", json.dumps(dict(os="linux", architecture="amd64", rootfs=rootfs)).encode())
put("manifest.json", json.dumps([dict(Config="config.json", RepoTags=["x:1"], Layers=names)]).encode())
t.close()
PY
"#;

pub fn image() -> Option<tempfile::TempDir> {
    if !can_run(&["tar", "python3", "zstd", "setfattr"]) {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    sh(directory.path(), MAKE);
    Some(directory)
}

fn scan_for(path: &Path, platform: &str) -> Result<SourceTree, String> {
    let platform = Some(platform.to_string()).filter(|text| !text.is_empty());
    let options = Options {
        platform,
        ..options(&[path])
    };
    lanefs_image::source::scan(&options).map_err(|error| error.to_string())
}

fn read(tree: &SourceTree, path: &str) -> Option<String> {
    let id = tree.find(path.as_bytes())?;
    let all = contents(tree, &std::collections::HashMap::new());
    Some(String::from_utf8_lossy(&all[&id]).into_owned())
}

#[test]
fn layers_are_applied_in_order_with_whiteouts_from_every_kind_of_image() {
    let Some(directory) = image() else { return };
    let mut manifests = Vec::new();
    for name in ["layout", "layout.tar", "saved.tar", "jib.tar"] {
        let tree = scan_for(&directory.path().join(name), "linux/amd64").unwrap();
        let has = |path: &str| tree.find(path.as_bytes()).is_some();
        let text = |path: &str| read(&tree, path).unwrap();
        assert_eq!(text("dir/file"), "two\n", "{name}");
        assert!(!has("dir/old") && !has("gone") && has("dir/sub"));
        assert!(!has("opaque/lower") && !has("opaque/below"));
        assert_eq!(text("opaque/upper"), "upper\n");
        for emptied in ["late", "hidden"] {
            assert_eq!(text(&format!("{emptied}/deep/kept")), "abc", "{name}");
            assert!(!has(&format!("{emptied}/deep/older")) && !has("late/older"));
        }
        assert_eq!(
            (text("both/lower"), text("both/upper")),
            ("b\n".into(), "mine\n".into())
        );
        assert_eq!(
            (text("swap/in"), text("swapdir")),
            ("in\n".into(), "f\n".into())
        );
        assert_eq!(
            (text("alias"), text("target")),
            ("again\n".into(), "first\n".into())
        );
        // `alias` was replaced, `linked` was added.
        let target = tree.find(b"target").unwrap();
        assert_eq!(
            (tree.links(target), tree.find(b"linked")),
            (2, Some(target))
        );
        let lib = tree.find(b"lib").unwrap();
        assert_eq!(tree.kind(lib), Kind::Symlink(b"usr/lib"));
        assert_eq!(
            (text("usr/lib/through"), text("usr/lib/u")),
            ("abc".into(), "u\n".into())
        );
        let dir = tree.find(b"dir").unwrap();
        assert_eq!(
            (tree.attributes(dir).mode, tree.xattrs(dir).len()),
            (0o711, 0)
        );
        let names: Vec<_> = tree.children(tree.find(b"opaque").unwrap()).collect();
        assert_eq!(names.len(), 1);
        manifests.push(manifest(&tree, ALL));
    }
    assert_same(&manifests[0], &manifests[1], "archive of the layout");
    assert_same(&manifests[0], &manifests[2], "docker-save");
    assert_same(&manifests[0], &manifests[3], "as Jib makes it");
    let one = Options {
        threads: 1,
        ..options(&[&directory.path().join("layout")])
    };
    let one = Options {
        platform: Some("linux/amd64".into()),
        ..one
    };
    let tree = lanefs_image::source::scan(&one).unwrap();
    assert_same(&manifests[0], &manifest(&tree, ALL), "one thread");
}

#[test]
fn the_platform_chooses_among_the_images_of_an_index() {
    let Some(directory) = image() else { return };
    let layout = directory.path().join("layout");
    let v7 = scan_for(&layout, "linux/arm/v7").unwrap();
    assert_eq!(read(&v7, "dir/file").unwrap(), "one\n");
    let v6 = scan_for(&layout, "linux/arm/v6").unwrap();
    assert_eq!(read(&v6, "dir/file").unwrap(), "two\n");
    // The first variant when none is asked for.
    assert_eq!(
        read(&scan_for(&layout, "linux/arm").unwrap(), "dir/file").unwrap(),
        "one\n"
    );
    let message = scan_for(&layout, "linux/s390x").err().unwrap();
    assert!(message.contains("no image for linux/s390x"), "{message}");
    assert!(
        message.contains("linux/amd64, linux/arm/v7, linux/arm/v6"),
        "{message}"
    );
    assert!(
        scan_for(&layout, "linux")
            .err()
            .unwrap()
            .contains("os/architecture")
    );
    let message = scan_for(&directory.path().join("saved.tar"), "linux/arm64")
        .err()
        .unwrap();
    assert!(
        message.contains("no image for linux/arm64, only: x:1 (linux/amd64)"),
        "{message}"
    );
    // As a plain directory when that is what is meant.
    let plain = scan_for(&layout.join("."), "").unwrap();
    assert!(plain.find(b"oci-layout").is_some());
}

#[test]
fn a_damaged_image_is_refused_by_name() {
    let Some(directory) = image() else { return };
    let at = directory.path();
    let digest_of = |number: usize| {
        let script = format!("ls -S layout/blobs/sha256 | sed -n {number}p > name");
        sh(at, &script);
        std::fs::read_to_string(at.join("name"))
            .unwrap()
            .trim()
            .to_string()
    };
    // The biggest blob is the first layer.
    let layer = digest_of(1);
    sh(at, "cp -r layout broken");
    let blob = at.join("broken/blobs/sha256").join(&layer);
    let mut bytes = std::fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&blob, &bytes).unwrap();
    let message = scan_for(&at.join("broken"), "linux/amd64").err().unwrap();
    assert!(
        message.contains(&layer) && message.contains("another digest"),
        "{message}"
    );
    bytes.pop();
    std::fs::write(&blob, &bytes).unwrap();
    let message = scan_for(&at.join("broken"), "linux/amd64").err().unwrap();
    assert!(
        message.contains(&layer) && message.contains("bytes, but should have"),
        "{message}"
    );
    std::fs::remove_file(&blob).unwrap();
    let message = scan_for(&at.join("broken"), "linux/amd64").err().unwrap();
    assert!(
        message.contains(&layer) && message.contains("missing"),
        "{message}"
    );
    for (index, part) in [
        ("{}", "no image"),
        ("[", "can't be understood"),
        (
            r#"{"manifests":[{"digest":"sha256:../../../etc/passwd","size":1}]}"#,
            "not a sha256",
        ),
        (
            r#"{"manifests":[{"digest":"md5:00","size":1}]}"#,
            "not a sha256",
        ),
    ] {
        std::fs::write(at.join("broken/index.json"), index).unwrap();
        let message = scan_for(&at.join("broken"), "linux/amd64").err().unwrap();
        assert!(message.contains(part), "{index}: {message}");
    }
    // docker-save layers have no digest of their own, but the configuration has one.
    sh(
        at,
        "cd saved; echo x | dd of=$(ls -d */ | head -1)layer.tar bs=1 seek=600 conv=notrunc status=none;
         tar -cf ../damaged.tar .",
    );
    let message = scan_for(&at.join("damaged.tar"), "").err().unwrap();
    assert!(message.contains("another digest"), "{message}");
    // The same for compressed ones, whose configuration speaks of what is in them.
    let message = scan_for(&at.join("swapped.tar"), "").err().unwrap();
    assert!(message.contains("another digest"), "{message}");
}
