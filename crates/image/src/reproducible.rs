//! The same input gives the same bytes: what would otherwise be random or depend on the current time is derived from
//! the tree.
//!
//! UUID and hash seed are the two halves of a SHA-256 over the label and everything in the tree: names, types, modes,
//! owners, sizes, times of change, targets, device numbers, attributes. The contents of files are not read for it, so
//! trees that differ only in contents get the same UUID and seed. Generations come from the UUID. A UUID or a seed that
//! an option gives is kept. If a random UUID is asked for, mkfs chooses it, and the seed still comes from the digest;
//! the command line refuses that together with `--reproducible`.
//!
//! Times of access and of inode changes are the host's, not the input's, so the time of change stands for them. Times
//! after the newest allowed are moved to it.

use sha2::{Digest, Sha256};

use crate::options::BuildOptions;
use crate::source::{Attributes, Kind, SourceTree, Time};

/// How times go into inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Clamp {
    /// As they are.
    AsIs,
    /// One time for all three, and none after this one.
    NotAfter(Time),
}

impl Clamp {
    /// The attributes as they go into the inode.
    pub(crate) fn apply(self, attributes: Attributes) -> Attributes {
        let Clamp::NotAfter(newest) = self else {
            return attributes;
        };
        let time = attributes.mtime.min(newest);
        Attributes {
            atime: time,
            mtime: time,
            ctime: time,
            ..attributes
        }
    }
}

/// Decides about times, and settles what mkfs would otherwise choose at random or by the clock.
pub(crate) fn clamp(options: &BuildOptions, tree: &SourceTree, mkfs: &mut mkfs::Options) -> Clamp {
    if !options.reproducible && options.newest_time.is_none() {
        return Clamp::AsIs;
    }
    let newest = match options.newest_time {
        Some(seconds) => Time::new(seconds, 0),
        None => {
            let times = tree.nodes().map(|id| tree.attributes(id).mtime);
            times.max().unwrap_or(Time::EPOCH)
        }
    };
    let clamp = Clamp::NotAfter(newest);
    identify(mkfs, digest(tree, clamp, &mkfs.label));
    mkfs.time.get_or_insert(newest.seconds());
    clamp
}

/// Gives a file system that is the same whenever it is made, of this size and with these options, its UUID and hash
/// seed, where no option has.
pub fn identify_empty(mkfs: &mut mkfs::Options, size: u64) {
    let mut sha = Sha256::new();
    for word in [
        size,
        mkfs.time.unwrap_or_default().cast_unsigned(),
        mkfs.block_size.map_or(0, ondisk::BlockSize::bytes_u64),
        mkfs.inodes.unwrap_or_default(),
    ] {
        sha.update(word.to_le_bytes());
    }
    for bytes in [&mkfs.label[..], mkfs.features.as_bytes()] {
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    }
    identify(mkfs, sha.finalize().into());
}

/// UUID and hash seed from a digest, where no option gives them.
fn identify(mkfs: &mut mkfs::Options, digest: [u8; 32]) {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&digest[..16]);
    // The form of RFC 9562 for UUIDs made from a digest: version 8.
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    if !mkfs.random_uuid {
        mkfs.uuid.get_or_insert(uuid);
    }
    let mut seed = [0; 16];
    seed.copy_from_slice(&digest[16..]);
    mkfs.hash_seed.get_or_insert(seed);
}

/// What the tree says, as 32 bytes.
fn digest(tree: &SourceTree, clamp: Clamp, label: &[u8]) -> [u8; 32] {
    let mut sha = Sha256::new();
    let field = |sha: &mut Sha256, bytes: &[u8]| {
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    };
    field(&mut sha, label);
    for id in tree.nodes() {
        let attributes = clamp.apply(tree.attributes(id));
        sha.update(tree.mode(id).to_le_bytes());
        sha.update(attributes.uid.to_le_bytes());
        sha.update(attributes.gid.to_le_bytes());
        sha.update(attributes.mtime.seconds().to_le_bytes());
        sha.update(attributes.mtime.nanoseconds().to_le_bytes());
        match tree.kind(id) {
            Kind::Directory => {
                for (name, child) in tree.children(id) {
                    field(&mut sha, name);
                    sha.update(child.0.to_le_bytes());
                }
            }
            Kind::File { size } => sha.update(size.to_le_bytes()),
            Kind::Symlink(target) => field(&mut sha, target),
            Kind::CharDevice { major, minor } | Kind::BlockDevice { major, minor } => {
                sha.update(major.to_le_bytes());
                sha.update(minor.to_le_bytes());
            }
            Kind::Fifo | Kind::Socket => {}
        }
        for (name, value) in tree.xattrs(id) {
            field(&mut sha, name);
            field(&mut sha, value);
        }
    }
    sha.finalize().into()
}
