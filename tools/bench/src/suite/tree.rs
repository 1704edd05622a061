//! Work on whole trees with one worker: they are made, listed with the metadata of every file, and removed. And a tree
//! like that of the kernel's sources.

use lanefs::Error;

use crate::leavings;
use crate::target::Target;
use model::Random;

/// The contents of files: zeros, which a device in memory stores without memory.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

/// A directory of a tree.
pub(super) struct Node {
    /// The parent's index in the tree's list, which is smaller than this node's; `None` for the root.
    parent: Option<usize>,
    name: String,
    /// Names and sizes in bytes of its files.
    files: Vec<(String, u64)>,
}

/// A tree in the order of an archive: parents first, and files after their directory.
pub(super) struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    /// A tree of `directories` directories and `files` files with sizes and depths like those of the kernel's sources:
    /// most files are small, few are large, and the mean is 14.7 KB.
    pub(super) fn like_sources(directories: usize, files: usize, seed: u64) -> Tree {
        let mut random = Random::new(seed);
        let mut nodes = vec![Node {
            parent: None,
            name: leavings::name("sources"),
            files: Vec::new(),
        }];
        let mut depths = vec![0];
        while nodes.len() < directories {
            let parent = random.index(nodes.len());
            if depths[parent] < 8 {
                depths.push(depths[parent] + 1);
                nodes.push(Node {
                    parent: Some(parent),
                    name: format!("dir{}", nodes.len()),
                    files: Vec::new(),
                });
            }
        }
        for number in 0..files {
            let node = random.index(nodes.len());
            let size = (1200 << random.doublings(11)) + random.index(3000);
            nodes[node]
                .files
                .push((format!("source_{number}.c"), size as u64));
        }
        Tree { nodes }
    }

    /// The number of directories and files.
    pub(super) fn count(&self) -> usize {
        self.nodes.iter().map(|node| 1 + node.files.len()).sum()
    }

    /// The bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.nodes
            .iter()
            .flat_map(|node| &node.files)
            .map(|(_, size)| size)
            .sum()
    }

    /// The root's name.
    pub(super) fn name(&self) -> &str {
        &self.nodes[0].name
    }

    /// Makes the tree.
    pub(super) fn unpack<T: Target>(&self, target: &T) -> Result<(), Error> {
        let mut made: Vec<T::Dir> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let parent = node.parent.map_or(target.root(), |parent| &made[parent]);
            let directory = target.mkdir(parent, &node.name)?;
            for (name, size) in &node.files {
                let file = target.creat(&directory, name)?;
                let mut at = 0;
                while at < *size {
                    let bytes = (size - at).min(ZEROS.len() as u64);
                    target.write(&file, at, &ZEROS[..bytes as usize])?;
                    at += bytes;
                }
                target.close(file)?;
            }
            made.push(directory);
        }
        target.settle()
    }
}

/// Writes the contents of a file in one call.
pub(super) fn small_file<T: Target>(
    target: &T,
    directory: &T::Dir,
    name: &str,
    bytes: usize,
) -> Result<(), Error> {
    let file = target.creat(directory, name)?;
    target.write(&file, 0, &ZEROS[..bytes])?;
    target.close(file)
}

fn entries<T: Target>(target: &T, directory: &T::Dir) -> Result<Vec<(String, bool)>, Error> {
    let mut names = Vec::new();
    target.read_dir(directory, &mut |name, is_dir| {
        names.push((String::from_utf8_lossy(name).into_owned(), is_dir));
    })?;
    Ok(names)
}

/// Lists a tree and reads all metadata; returns the number of names.
pub(super) fn find<T: Target>(target: &T, parent: &T::Dir, name: &str) -> Result<usize, Error> {
    let mut open = vec![target.open_dir(parent, name)?];
    let mut count = 0;
    while let Some(directory) = open.pop() {
        for (name, is_dir) in entries(target, &directory)? {
            target.stat(&directory, &name)?;
            count += 1;
            if is_dir {
                open.push(target.open_dir(&directory, &name)?);
            }
        }
    }
    Ok(count)
}

/// Removes a tree as `rm -rf` does: the names of each directory in the order in which they are listed, and a directory
/// once it is empty.
pub(super) fn remove<T: Target>(target: &T, parent: &T::Dir, name: &str) -> Result<(), Error> {
    struct Level<D> {
        directory: D,
        name: String,
        left: std::vec::IntoIter<(String, bool)>,
    }
    let open = |parent: &T::Dir, name: &str| {
        let directory = target.open_dir(parent, name)?;
        let left = entries(target, &directory)?.into_iter();
        let name = name.to_owned();
        Ok::<_, Error>(Level {
            directory,
            name,
            left,
        })
    };
    let mut levels: Vec<Level<T::Dir>> = vec![open(parent, name)?];
    while let Some(level) = levels.last_mut() {
        match level.left.next() {
            Some((name, true)) => {
                let next = open(&level.directory, &name)?;
                levels.push(next);
            }
            Some((name, false)) => target.unlink(&level.directory, &name)?,
            None => {
                let name = std::mem::take(&mut level.name);
                levels.pop();
                let above = levels.last().map_or(parent, |level| &level.directory);
                target.rmdir(above, &name)?;
            }
        }
    }
    Ok(())
}
