//! Layers in the form that AUFS and incomplete writers gave them.

use std::path::Path;

use lanefs_image::source::{Kind, SourceTree};

use crate::support::*;

/// Makes layout `layout` of the layers that `script` puts into the list `layers`, each the bytes of a tar. `member`
/// adds one to the tar that is open.
fn layout(directory: &Path, script: &str) {
    let make = format!(
        r#"rm -rf layout; mkdir -p layout/blobs/sha256; cat > make.py <<'PY'
import gzip, hashlib, io, json, tarfile
layers = []
def put(data, media):
    d = hashlib.sha256(data).hexdigest(); open("layout/blobs/sha256/" + d, "wb").write(data)
    return dict(mediaType=media, digest="sha256:" + d, size=len(data))
class Layer:
    def __init__(self):
        self.bytes = io.BytesIO(); self.tar = tarfile.open(fileobj=self.bytes, mode="w", format=tarfile.USTAR_FORMAT)
    def __enter__(self): return self
    def __exit__(self, *_): self.tar.close(); layers.append(self.bytes.getvalue())
    def member(self, name, data=b"", kind=b"0", link="", mode=0o644):
        i = tarfile.TarInfo(name); i.type = kind; i.linkname = link; i.size = len(data); i.mode = mode
        self.tar.addfile(i, io.BytesIO(data))
    def link(self, name, to): self.member(name, kind=b"1", link=to)
{script}
stored = [gzip.compress(l) if n % 2 else l for n, l in enumerate(layers)]
oci = "application/vnd.oci.image."
found = [put(l, oci + "layer.v1.tar") for l in stored]
ids = ["sha256:" + hashlib.sha256(l).hexdigest() for l in layers]
config = dict(os="linux", architecture="amd64", rootfs=dict(type="layers", diff_ids=ids))
c = put(json.dumps(config).encode(), oci + "config.v1+json")
m = put(json.dumps(dict(schemaVersion=2, config=c, layers=found)).encode(), oci + "manifest.v1+json")
json.dump(dict(schemaVersion=2, manifests=[m]), open("layout/index.json", "w"))
open("layout/oci-layout", "w").write('{{"imageLayoutVersion":"1.0.0"}}')
PY
python3 make.py"#
    );
    sh(directory, &make);
}

fn text(tree: &SourceTree, path: &str) -> String {
    let id = tree.find(path.as_bytes()).expect(path);
    let all = contents(tree, &std::collections::HashMap::new());
    String::from_utf8_lossy(&all[&id]).into_owned()
}

#[test]
fn hard_links_of_aufs_lead_to_one_file_wherever_its_directory_comes() {
    if !can_run(&["python3"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let meta = "    l.member('.wh..wh.aufs')\n    for d in 'orph', 'plnk': l.member('.wh..wh.' + d, kind=b'5')\n";
    let data = "    l.member('.wh..wh.plnk/1.2', b'data', mode=0o755)\n";
    let links =
        "    l.link('bin/one', '.wh..wh.plnk/1.2'); l.link('bin/two', './.wh..wh.plnk/1.2')\n";
    let back = "    l.member('bin/one', b'data', mode=0o755); l.link('.wh..wh.plnk/1.2', 'bin/one')
    l.link('bin/two', '.wh..wh.plnk/1.2')\n";
    let layer = "with Layer() as l:\n";
    for (what, script) in [
        ("first", [layer, meta, data, links].concat()),
        ("last", [layer, links, meta, data].concat()),
        ("a link itself", [layer, meta, back].concat()),
        (
            "in a layer below",
            [layer, meta, data, layer, links].concat(),
        ),
        (
            "in both",
            [
                layer,
                "    l.member('.wh..wh.plnk/1.2', b'other')\n",
                layer,
                meta,
                data,
                links,
            ]
            .concat(),
        ),
        (
            "over a whiteout",
            [
                layer,
                "    l.member('bin/one', b'old'); l.member('bin/old')\n",
                layer,
                data,
                "    l.member('bin/.wh..wh..opq')\n",
                links,
            ]
            .concat(),
        ),
    ] {
        layout(at, &script);
        let tree = scan(&[&at.join("layout")]).unwrap();
        assert_eq!(text(&tree, "bin/one"), "data", "{what}");
        let one = tree.find(b"bin/one").unwrap();
        assert_eq!(tree.find(b"bin/two"), Some(one), "{what}");
        assert_eq!(
            (tree.links(one), tree.attributes(one).mode),
            (2, 0o755),
            "{what}"
        );
        // The root, `bin` and the file: nothing else has a name.
        assert_eq!(tree.nodes().count(), 3, "{what}");
    }
}

#[test]
fn hard_links_of_aufs_lead_to_links_and_fifos_and_never_to_what_is_not_there() {
    if !can_run(&["python3"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    layout(
        at,
        "with Layer() as l:\n    l.member('.wh..wh.plnk/9.9', kind=b'2', link='to'); l.link('a', '.wh..wh.plnk/9.9')
    l.member('.wh..wh.plnk/8.8', kind=b'6'); l.link('b', '.wh..wh.plnk/8.8'); l.member('.wh..wh.plnk/7.7', b'unused')",
    );
    let tree = scan(&[&at.join("layout")]).unwrap();
    assert_eq!(tree.kind(tree.find(b"a").unwrap()), Kind::Symlink(b"to"));
    assert_eq!(tree.kind(tree.find(b"b").unwrap()), Kind::Fifo);
    assert_eq!(tree.nodes().count(), 3);
    layout(at, "with Layer() as l: l.link('a', '.wh..wh.plnk/1.2')");
    let message = scan(&[&at.join("layout")]).err().unwrap().to_string();
    assert!(message.contains("which is not there"), "{message}");
}

#[test]
fn a_layer_may_lack_its_end_mark_and_its_last_padding() {
    if !can_run(&["python3"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (len, warned) in [("10240", 0), ("1024", 2), ("517", 2)] {
        layout(
            at,
            &format!(
                "for name in ('a', 'b'):
    with Layer() as l: l.member(name, b'hello')
layers = [l[:{len}] for l in layers]"
            ),
        );
        let tree = scan(&[&at.join("layout")]).unwrap();
        assert_eq!(
            (text(&tree, "a"), text(&tree, "b")),
            ("hello".into(), "hello".into())
        );
        assert_eq!(
            tree.warnings().len(),
            warned,
            "{len}: {:?}",
            tree.warnings()
        );
    }
    layout(
        at,
        "with Layer() as l: l.member('a', b'hello')\nlayers = [l[:514] for l in layers]",
    );
    let message = scan(&[&at.join("layout")]).err().unwrap().to_string();
    assert!(message.contains("truncated"), "{message}");
}
