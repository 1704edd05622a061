//! Compares the walk of other systems with that of Linux, on Linux, where both run.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;

use super::super::batch::Batch;
use super::super::exclude::Excludes;
use super::super::linux;
use super::{beneath, walk};

/// The result of a walk: mode, owner, size, times and target by path, and which names are one file.
#[derive(Default, PartialEq, Debug)]
struct Seen {
    nodes: BTreeMap<Vec<u8>, String>,
    linked: BTreeMap<(u64, u64), Vec<Vec<u8>>>,
    paths: Vec<Vec<u8>>,
}

impl Seen {
    fn add(&mut self, batch: &Batch) {
        let above = self.paths[batch.directory as usize].clone();
        for (index, found) in batch.found.iter().enumerate() {
            let text = &batch.text[found.name as usize..];
            let (name, rest) = text.split_at(usize::from(found.name_len));
            let path = [&above[..], b"/", name].concat();
            let node = &found.node;
            let target = &rest[..usize::from(found.target_len)];
            let line = format!(
                "{:o} {}:{} {} {:?} {:?} {:?}",
                node.mode, node.uid, node.gid, node.size, node.mtime, node.data, target
            );
            if node.is_directory() {
                let number = found.number as usize;
                self.paths
                    .resize(self.paths.len().max(number + 1), Vec::new());
                self.paths[number].clone_from(&path);
            }
            let names = batch.linked.iter().filter(|(at, _)| *at as usize == index);
            for (_, identity) in names {
                self.linked.entry(*identity).or_default().push(path.clone());
            }
            self.nodes.insert(path, line);
        }
    }
}

#[test]
fn both_walks_find_the_same_tree() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(at("b/deep/er")).unwrap();
    std::fs::create_dir(at("a")).unwrap();
    File::create(at("b/data"))
        .unwrap()
        .write_all(b"bytes")
        .unwrap();
    File::create(at("b/deep/er/empty")).unwrap();
    File::create(at("image")).unwrap();
    File::create(at("b/left.out")).unwrap();
    std::fs::hard_link(at("b/data"), at("a/same")).unwrap();
    symlink("../b/deep", at("a/link")).unwrap();
    let excludes = Excludes::new(&["*.out".to_owned()]);
    let outputs: Vec<_> = device::host::identity(&at("image")).into_iter().collect();
    let (mut here, mut there) = (Seen::default(), Seen::default());
    for seen in [&mut here, &mut there] {
        seen.paths.push(Vec::new());
    }
    let root = linux::beneath::open_root(folder.path()).unwrap();
    linux::walk::Walk::new(&root, folder.path(), &excludes, &outputs, 0)
        .run(1, |batch| {
            here.add(&batch);
            Ok(())
        })
        .unwrap();
    let root = beneath::open_root(folder.path()).unwrap();
    walk::Walk::new(&root, folder.path(), &excludes, &outputs, 0)
        .run(1, |batch| {
            there.add(&batch);
            Ok(())
        })
        .unwrap();
    assert_eq!(here, there);
    assert_eq!(here.nodes.len(), 8, "{here:?}");
    assert_eq!(here.linked.values().next().unwrap().len(), 2);
}

#[test]
fn no_way_leads_out_of_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("in")).unwrap();
    std::fs::write(folder.path().join("out"), b"secret").unwrap();
    std::fs::write(folder.path().join("in/file"), b"open").unwrap();
    symlink("..", folder.path().join("in/up")).unwrap();
    let root = beneath::open_root(&folder.path().join("in")).unwrap();
    assert!(beneath::open_in_root(&root, "file").is_ok());
    for name in ["../out", "up/out", "/etc/passwd", "up", "."] {
        assert!(beneath::open_in_root(&root, name).is_err(), "{name}");
    }
}
