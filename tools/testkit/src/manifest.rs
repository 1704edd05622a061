//! A manifest: everything a directory tree says about itself, in one comparable line a path.
//!
//! Two trees with equal manifests are the same to a user: path, type, mode, owner, size, device, mtime to the
//! nanosecond, extended attributes, which paths are links of one inode, and the SHA-256 of the contents.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// What one path is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ManifestEntry {
    /// `f`, `d`, `l`, `c`, `b`, `p` or `s`.
    pub kind: char,
    /// Permission bits, with set-uid, set-gid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes, of files and symbolic links; 0 otherwise.
    pub size: u64,
    /// Device number of devices; 0 otherwise.
    pub rdev: u64,
    /// Modification time in nanoseconds since 1970.
    pub mtime: i128,
    /// Name and value, by name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The first path, in the manifest's order, of the inode that this path links to, when it has several.
    pub link_of: Option<Vec<u8>>,
    /// SHA-256 of a file's bytes, or a symbolic link's target.
    pub contents: Vec<u8>,
}

/// All paths of a tree, relative to its root, which is the empty path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Manifest {
    /// By path.
    pub entries: BTreeMap<Vec<u8>, ManifestEntry>,
}

/// Where two manifests differ; `Display` prints the first few.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Differences(Vec<String>);

impl Differences {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} differences", self.0.len())?;
        self.0
            .iter()
            .take(20)
            .try_for_each(|line| writeln!(f, "  {line}"))
    }
}

impl Manifest {
    /// Reads the tree below `root`.
    ///
    /// # Errors
    /// The first path that cannot be read.
    pub fn of(root: &Path) -> io::Result<Manifest> {
        let mut entries = BTreeMap::new();
        let mut inodes: HashMap<(u64, u64), Vec<Vec<u8>>> = HashMap::new();
        let mut pending = vec![PathBuf::new()];
        while let Some(relative) = pending.pop() {
            let full = if relative.as_os_str().is_empty() {
                root.to_path_buf()
            } else {
                root.join(&relative)
            };
            let entry = read_entry(&full)?;
            let key = relative.as_os_str().as_bytes().to_vec();
            if entry.kind == 'd' {
                for child in std::fs::read_dir(&full)? {
                    pending.push(relative.join(child?.file_name()));
                }
            } else {
                let metadata = std::fs::symlink_metadata(&full)?;
                inodes
                    .entry((metadata.dev(), metadata.ino()))
                    .or_default()
                    .push(key.clone());
            }
            entries.insert(key, entry);
        }
        for mut paths in inodes.into_values().filter(|paths| paths.len() > 1) {
            paths.sort();
            for path in &paths {
                if let Some(entry) = entries.get_mut(path) {
                    entry.link_of = Some(paths[0].clone());
                }
            }
        }
        Ok(Manifest { entries })
    }

    /// The same tree without `lost+found` at its root.
    #[must_use]
    pub fn without_lost_found(mut self) -> Manifest {
        self.entries.remove(&b"lost+found"[..]);
        self
    }

    /// What `other` has, lacks or has otherwise. The root's own times are compared like any other's.
    #[must_use]
    pub fn differences(&self, other: &Manifest) -> Differences {
        let mut lines = Vec::new();
        for (path, entry) in &self.entries {
            let name = String::from_utf8_lossy(path);
            match other.entries.get(path) {
                None => lines.push(format!("{name}: missing")),
                Some(found) if found != entry => {
                    lines.push(format!("{name}: {}", describe(entry, found)));
                }
                Some(_) => {}
            }
        }
        let extra = other
            .entries
            .keys()
            .filter(|path| !self.entries.contains_key(*path));
        lines.extend(extra.map(|path| format!("{}: unexpected", String::from_utf8_lossy(path))));
        Differences(lines)
    }
}

/// The fields in which two entries differ.
fn describe(expected: &ManifestEntry, found: &ManifestEntry) -> String {
    let mut text = String::new();
    let mut field = |name: &str, expected: &dyn fmt::Debug, found: &dyn fmt::Debug| {
        let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
        if expected != found {
            text.push_str(&format!("{name} {found} instead of {expected}; "));
        }
    };
    field("kind", &expected.kind, &found.kind);
    field("mode", &expected.mode, &found.mode);
    field("uid", &expected.uid, &found.uid);
    field("gid", &expected.gid, &found.gid);
    field("size", &expected.size, &found.size);
    field("rdev", &expected.rdev, &found.rdev);
    field("mtime", &expected.mtime, &found.mtime);
    field("xattrs", &expected.xattrs, &found.xattrs);
    field("link of", &expected.link_of, &found.link_of);
    field("contents", &expected.contents, &found.contents);
    text
}

/// Everything about one path but its links.
fn read_entry(path: &Path) -> io::Result<ManifestEntry> {
    let metadata = std::fs::symlink_metadata(path)?;
    let file_type = metadata.file_type();
    let kind = match () {
        () if file_type.is_file() => 'f',
        () if file_type.is_dir() => 'd',
        () if file_type.is_symlink() => 'l',
        () if file_type.is_char_device() => 'c',
        () if file_type.is_block_device() => 'b',
        () if file_type.is_fifo() => 'p',
        () => 's',
    };
    let contents = match kind {
        'f' => digest(path)?,
        'l' => std::fs::read_link(path)?.as_os_str().as_bytes().to_vec(),
        _ => Vec::new(),
    };
    Ok(ManifestEntry {
        kind,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: if matches!(kind, 'f' | 'l') {
            metadata.size()
        } else {
            0
        },
        rdev: if matches!(kind, 'c' | 'b') {
            metadata.rdev()
        } else {
            0
        },
        mtime: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        xattrs: read_xattrs(path)?,
        link_of: None,
        contents,
    })
}

/// SHA-256 of these bytes, as a [`ManifestEntry`] holds it of a file's.
#[must_use]
pub fn sha256(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

/// SHA-256 of a file's bytes.
fn digest(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut sha = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let len = file.read(&mut buffer)?;
        if len == 0 {
            return Ok(sha.finalize().to_vec());
        }
        sha.update(&buffer[..len]);
    }
}

/// A path's extended attributes, by name; not those of a link's target.
fn read_xattrs(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0u8; 64 << 10];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => len,
        Err(rustix::io::Errno::NOTSUP) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut xattrs = Vec::new();
    for name in names[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0u8; 64 << 10];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        xattrs.push((name.to_vec(), value));
    }
    xattrs.sort();
    Ok(xattrs)
}
