//! What is found in an image after a replay, read through a mount of the kernel or by lanefs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lanefs::FileType;
use lanefs::Fs;

/// One name of a file or directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub is_directory: bool,
    pub inode: u64,
    pub bytes: Vec<u8>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

/// All names but `lost+found`, relative to the root.
pub type FoundTree = BTreeMap<String, Found>;

/// The tree below a directory of the host.
pub fn of_directory(root: &Path) -> std::io::Result<FoundTree> {
    let mut tree = FoundTree::new();
    let mut rest = vec![String::new()];
    while let Some(directory) = rest.pop() {
        for entry in std::fs::read_dir(root.join(&directory))? {
            let entry = entry?;
            let name = joined(&directory, &entry.file_name().to_string_lossy());
            if name == "lost+found" {
                continue;
            }
            let (path, metadata) = (entry.path(), entry.metadata()?);
            let is_directory = metadata.is_dir();
            if is_directory {
                rest.push(name.clone());
            }
            let found = Found {
                is_directory,
                inode: metadata.ino(),
                bytes: if is_directory {
                    Vec::new()
                } else {
                    std::fs::read(&path)?
                },
                xattrs: xattrs(&path)?,
            };
            tree.insert(name, found);
        }
    }
    Ok(tree)
}

fn xattrs(path: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..])?;
    let mut xattrs = BTreeMap::new();
    for name in names[..len].split(|byte| *byte == 0) {
        if !name.is_empty() {
            let mut value = vec![0; 4096];
            let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
            let name = String::from_utf8_lossy(name).into_owned();
            xattrs.insert(name, value[..len].to_vec());
        }
    }
    Ok(xattrs)
}

/// The tree of an open image.
pub fn of_image(fs: &Fs) -> Result<FoundTree, lanefs::Error> {
    let mut tree = FoundTree::new();
    let mut rest = vec![String::new()];
    while let Some(directory) = rest.pop() {
        for entry in fs.read_dir(format!("/{directory}"))? {
            let entry = entry?;
            let name = joined(&directory, &entry.file_name().to_string_lossy());
            if name == "lost+found" || name.ends_with('.') {
                continue;
            }
            let path = format!("/{name}");
            let metadata = fs.symlink_metadata(&path)?;
            let is_directory = metadata.file_type == FileType::Directory;
            if is_directory {
                rest.push(name.clone());
            }
            let found = Found {
                is_directory,
                inode: metadata.ino.0.into(),
                bytes: if is_directory {
                    Vec::new()
                } else {
                    fs.read(&path)?
                },
                xattrs: fs
                    .xattrs(&path)?
                    .into_iter()
                    .map(|xattr| {
                        let name = String::from_utf8_lossy(&xattr.name).into_owned();
                        (name, xattr.value)
                    })
                    .collect(),
            };
            tree.insert(name, found);
        }
    }
    Ok(tree)
}

fn joined(directory: &str, name: &str) -> String {
    if directory.is_empty() {
        name.to_owned()
    } else {
        format!("{directory}/{name}")
    }
}
