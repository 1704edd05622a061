//! Compares what the engine reads with what the kernel shows of the same image, inode by inode, and the runs of
//! blocks with what debugfs prints.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use lanefs_engine::{FileType, Ino, InodeFs, InodeRef, Mapping, Timestamp};
use rustix::fs::{SeekFrom, lgetxattr, llistxattr, major, minor, seek};

use crate::image::Image;

/// Every path below `root`, itself included, without what mke2fs adds.
pub fn walk(root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(path) = open.pop() {
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            let entries = fs::read_dir(&path)
                .unwrap()
                .map(|entry| entry.unwrap().path());
            open.extend(entries.filter(|path| !path.ends_with("lost+found")));
        }
        all.push(path);
    }
    all
}

/// Compares every inode below a mount with what the engine reads of it. Returns how many there were.
pub fn compare_with_mount(fs: &InodeFs, root: &Path) -> usize {
    let paths = walk(root);
    for path in &paths {
        let shown = fs::symlink_metadata(path).unwrap();
        let ino = Ino(u32::try_from(shown.ino()).unwrap());
        let inode = fs
            .inode(ino)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        compare_metadata(&inode, &shown, path);
        compare_xattrs(&inode, path);
        match inode.metadata().file_type {
            FileType::Regular => compare_contents(&inode, path),
            FileType::Symlink => {
                let target = fs::read_link(path).unwrap();
                assert_eq!(inode.read_link().unwrap(), target.as_os_str().as_bytes());
            }
            _ => (),
        }
    }
    paths.len()
}

fn compare_metadata(inode: &InodeRef<'_>, shown: &fs::Metadata, path: &Path) {
    let metadata = inode.metadata();
    let time = |seconds, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: nanoseconds as u32,
    };
    let rdev = (major(shown.rdev()), minor(shown.rdev()));
    let name = path.display();
    assert_eq!(u32::from(metadata.mode), shown.mode(), "{name}");
    assert_eq!(
        (metadata.uid, metadata.gid),
        (shown.uid(), shown.gid()),
        "{name}"
    );
    assert_eq!(metadata.size, shown.size(), "{name}");
    assert_eq!(metadata.blocks, shown.blocks(), "{name}");
    assert_eq!(u64::from(metadata.nlink), shown.nlink(), "{name}");
    assert_eq!(metadata.rdev, rdev, "{name}");
    assert_eq!(
        metadata.mtime,
        time(shown.mtime(), shown.mtime_nsec()),
        "{name}"
    );
    assert_eq!(
        metadata.ctime,
        time(shown.ctime(), shown.ctime_nsec()),
        "{name}"
    );
    assert_eq!(
        metadata.atime,
        time(shown.atime(), shown.atime_nsec()),
        "{name}"
    );
    if let (Some(birth), Ok(created)) = (metadata.crtime, shown.created()) {
        let created = created.duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(birth.seconds, created.as_secs() as i64, "{name}");
    }
}

/// The attributes that the kernel shows of a path, sorted.
pub fn shown_xattrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 1 << 16];
    let len = llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|byte| *byte == 0);
    let mut value = vec![0; 1 << 16];
    let mut all: Vec<_> = names
        .filter(|name| !name.is_empty())
        .map(|name| {
            let len = lgetxattr(path, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect();
    all.sort();
    all
}

fn compare_xattrs(inode: &InodeRef<'_>, path: &Path) {
    let read = inode
        .xattrs()
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut read: Vec<_> = read
        .into_iter()
        .map(|xattr| (xattr.name, xattr.value))
        .collect();
    read.sort();
    assert!(
        read == shown_xattrs(path),
        "attributes of {}",
        path.display()
    );
}

/// Compares a file's bytes wherever the kernel says there may be data, and 64 KiB around; elsewhere both must
/// say that there is a hole.
pub fn compare_contents(inode: &InodeRef<'_>, path: &Path) {
    let file = File::open(path).unwrap();
    let size = inode.metadata().size;
    let mut at = 0;
    while at < size {
        let data = seek(&file, SeekFrom::Data(at)).unwrap_or(size);
        assert_holes(inode, at..data, path);
        let hole = if data < size {
            seek(&file, SeekFrom::Hole(data)).unwrap_or(size)
        } else {
            size
        };
        let around = data.saturating_sub(1 << 16)..(hole + (1 << 16)).min(size);
        compare_range(inode, &file, around, path);
        at = hole.max(data);
    }
    let mut beyond = [0; 10];
    assert_eq!(inode.read(size, &mut beyond).unwrap(), 0);
    assert_eq!(inode.read(u64::MAX, &mut beyond).unwrap(), 0);
}

fn assert_holes(inode: &InodeRef<'_>, range: std::ops::Range<u64>, path: &Path) {
    let mut some = vec![1; ((range.end - range.start) as usize).min(1 << 20)];
    let len = inode.read(range.start, &mut some).unwrap();
    assert_eq!(len, some.len(), "{}", path.display());
    assert!(some.iter().all(|byte| *byte == 0), "{}", path.display());
}

fn compare_range(inode: &InodeRef<'_>, file: &File, range: std::ops::Range<u64>, path: &Path) {
    let (mut ours, mut theirs) = (vec![1; 333_333], vec![0; 333_333]);
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(ours.len() as u64) as usize;
        assert_eq!(inode.read(at, &mut ours[..len]).unwrap(), len);
        file.read_exact_at(&mut theirs[..len], at).unwrap();
        let name = path.display();
        assert!(
            ours[..len] == theirs[..len],
            "{name} differs after byte {at}"
        );
        at += len as u64;
    }
}

/// The runs of an inode's data as debugfs prints them, joined where they continue each other.
pub fn debugfs_runs(image: &Image, ino: Ino) -> Vec<Mapping> {
    let text = image.debugfs(&format!("stat <{ino}>"));
    let mut runs: Vec<Mapping> = Vec::new();
    let Some((_, list)) = text
        .split_once("EXTENTS:\n")
        .or_else(|| text.split_once("BLOCKS:\n"))
    else {
        return runs;
    };
    let list = list.lines().next().unwrap_or_default();
    for item in list.split(", ").filter(|item| item.starts_with('(')) {
        let (logical, physical) = item.split_once("):").unwrap();
        let logical = logical.trim_start_matches('(');
        let unwritten = logical.ends_with("[u]");
        let mut bounds = logical.trim_end_matches("[u]").split('-');
        let Some(first) = bounds.next().and_then(|text| text.parse::<u64>().ok()) else {
            // An index block.
            continue;
        };
        let last = bounds.next().map_or(first, |text| text.parse().unwrap());
        let start = physical.split('-').next().unwrap().parse().unwrap();
        let run = Mapping {
            logical: first,
            len: last - first + 1,
            physical: Some(lanefs_engine::FsBlock(start)),
            unwritten,
        };
        match runs.last_mut() {
            Some(before)
                if before.end() == first
                    && before.physical.map(|block| block.0 + before.len) == Some(start)
                    && before.unwritten == unwritten =>
            {
                before.len += run.len;
            }
            _ => runs.push(run),
        }
    }
    runs
}

/// Compares the runs of some files with debugfs's.
pub fn compare_runs(image: &Image, fs: &InodeFs, root: &Path, names: &[&str]) {
    for name in names {
        let Ok(shown) = fs::symlink_metadata(root.join(name)) else {
            continue;
        };
        let ino = Ino(u32::try_from(shown.ino()).unwrap());
        let all: Vec<_> = fs.mappings(ino).unwrap().map(Result::unwrap).collect();
        let mut at = 0;
        for run in &all {
            assert_eq!(run.logical, at, "{name}: runs follow each other");
            at = run.end();
        }
        let mapped: Vec<_> = all
            .into_iter()
            .filter(|run| run.physical.is_some())
            .collect();
        assert_eq!(mapped, debugfs_runs(image, ino), "{name}");
    }
}
