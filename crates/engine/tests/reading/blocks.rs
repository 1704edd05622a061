//! Block sizes from 1 KiB to 64 KiB, most of which no kernel here mounts: mke2fs writes a tree, debugfs says
//! which inode each path is, the source says what must be read. `ext4-view` reads the same as a third opinion.

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lanefs_engine::{FileType, Ino, InodeFs};

use crate::image::{Image, can_mount};
use crate::oracle::{compare_contents, debugfs_runs, shown_xattrs, walk};
use crate::populate::{Abilities, populate};

/// The inode of each path, by one run of debugfs.
fn inodes_of(image: &Image, paths: &[PathBuf]) -> Vec<Ino> {
    let mut script = tempfile::NamedTempFile::new().unwrap();
    for path in paths {
        writeln!(script, "imap /{}", path.display()).unwrap();
    }
    let (script, path) = (
        script.path().to_str().unwrap(),
        image.path().to_str().unwrap(),
    );
    let output = testkit::debugfs(&["-f", script, path]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = text.lines().filter_map(|line| line.strip_prefix("Inode "));
    let numbers = lines.map(|line| line.split_whitespace().next().unwrap().parse().unwrap());
    let inodes: Vec<Ino> = numbers.map(Ino).collect();
    assert_eq!(inodes.len(), paths.len(), "{text}");
    inodes
}

fn compare_with_source(image: &Image, source: &Path) -> InodeFs {
    let fs = image.open();
    let relative = |path: &PathBuf| path.strip_prefix(source).unwrap().to_path_buf();
    let paths = walk(source);
    let inside: Vec<PathBuf> = paths.iter().map(relative).collect();
    for (path, ino) in paths.iter().zip(inodes_of(image, &inside)) {
        let name = path.display();
        let shown = fs::symlink_metadata(path).unwrap();
        let inode = fs
            .inode(ino)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let metadata = inode.metadata();
        assert_eq!(u32::from(metadata.mode), shown.mode(), "{name}");
        if path != source {
            assert_eq!(
                (metadata.uid, metadata.gid),
                (shown.uid(), shown.gid()),
                "{name}"
            );
            let mut read: Vec<_> = inode.xattrs().unwrap();
            read.sort_by(|a, b| a.name.cmp(&b.name));
            let read: Vec<_> = read
                .into_iter()
                .map(|xattr| (xattr.name, xattr.value))
                .collect();
            assert!(read == shown_xattrs(path), "attributes of {name}");
        }
        match metadata.file_type {
            FileType::Regular => {
                assert_eq!(metadata.size, shown.size(), "{name}");
                compare_contents(&inode, path);
                let mapped = inode.mappings().unwrap().map(Result::unwrap);
                let mapped: Vec<_> = mapped.filter(|run| run.physical.is_some()).collect();
                assert_eq!(mapped, debugfs_runs(image, ino), "{name}");
            }
            FileType::Symlink => {
                let target = fs::read_link(path).unwrap();
                assert_eq!(inode.read_link().unwrap(), target.as_os_str().as_bytes());
            }
            _ => (),
        }
    }
    fs
}

/// Compares names, sizes and contents of the source with what `ext4-view` reads. It refuses seconds words that are
/// negative as signed numbers (before 1970, after 2038), so files with such times are left out, and holes in block
/// maps, so ext2 is.
fn compare_with_view(image: &Image, source: &Path) {
    let view = ext4_view::Ext4::load_from_path(image.path()).unwrap();
    for path in walk(source) {
        let shown = fs::symlink_metadata(&path).unwrap();
        let inside = format!("/{}", path.strip_prefix(source).unwrap().display());
        let is_plain = (0..1 << 31).contains(&shown.mtime());
        if shown.is_file() && shown.len() < 1 << 24 && is_plain {
            assert!(
                view.read(inside.as_str()).unwrap() == fs::read(&path).unwrap(),
                "{inside}"
            );
        }
    }
}

#[test]
fn every_block_size_reads_as_what_mke2fs_was_given() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    let can = Abilities {
        block: 4096,
        xattr: 700,
        fallocate: true,
        large: false,
    };
    populate(source.path(), can);
    for (block, mebibytes) in [
        (1, 64),
        (2, 64),
        (4, 64),
        (8, 96),
        (16, 128),
        (32, 256),
        (64, 512),
    ] {
        for profile in [
            "-t ext2",
            "-t ext4 -O ^has_journal",
            "-t ext4 -O ea_inode,bigalloc,^resize_inode",
        ] {
            let bytes = block * 1024;
            let source_name = source.path().display();
            let arguments = format!("{profile} -b {bytes} -N 2048 -d {source_name}");
            let image = Image::make(&arguments, mebibytes);
            compare_with_source(&image, source.path());
            if profile.contains("has_journal") {
                compare_with_view(&image, source.path());
            }
        }
    }
}
