//! The fast commits in a journal's area as a list of records that can be edited and written back, for tests that ask
//! what the kernel and e2fsck make of records in another order, left out, or changed.

use lanefs_engine::InodeFs;
use ondisk::fast_commit::{DentryInfo, FcRecord, records};
use ondisk::jbd2::{JournalFeatures, JournalSuperblock};
use ondisk::{Ino, LBlock, Tid, csum};

/// Bytes a block of the images here.
const BLOCK: usize = 4096;

/// A name's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Creat,
    Link,
    Unlink,
}

/// One record of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tag {
    Name(Kind, Ino, Vec<u8>, Ino),
    Inode(Ino, Vec<u8>),
    Add(Ino, [u8; 12]),
    Del(Ino, u32, u32),
}

impl Tag {
    /// The inode that it is about.
    pub fn ino(&self) -> Ino {
        match self {
            Tag::Name(_, _, _, ino)
            | Tag::Inode(ino, _)
            | Tag::Add(ino, _)
            | Tag::Del(ino, _, _) => *ino,
        }
    }

    /// An INODE record's count of links.
    pub fn links(&self) -> Option<u16> {
        match self {
            Tag::Inode(_, raw) => Some(u16::from_le_bytes([raw[26], raw[27]])),
            _ => None,
        }
    }

    /// The same INODE record with another count of links.
    pub fn with_links(&self, links: u16) -> Tag {
        let mut tag = self.clone();
        if let Tag::Inode(_, raw) = &mut tag {
            raw[26..28].copy_from_slice(&links.to_le_bytes());
        }
        tag
    }

    /// The same record about another inode.
    pub fn with_ino(&self, new: Ino) -> Tag {
        let mut tag = self.clone();
        match &mut tag {
            Tag::Name(_, _, _, ino)
            | Tag::Inode(ino, _)
            | Tag::Add(ino, _)
            | Tag::Del(ino, _, _) => *ino = new,
        }
        tag
    }

    pub fn is_name(&self, wanted: Kind) -> bool {
        matches!(self, Tag::Name(kind, ..) if *kind == wanted)
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Tag::Name(kind, parent, name, ino) => {
                let named = DentryInfo {
                    parent: *parent,
                    ino: *ino,
                    name,
                };
                match kind {
                    Kind::Creat => FcRecord::Creat(named),
                    Kind::Link => FcRecord::Link(named),
                    Kind::Unlink => FcRecord::Unlink(named),
                }
                .write(out);
            }
            Tag::Inode(ino, raw) => FcRecord::Inode { ino: *ino, raw }.write(out),
            Tag::Add(ino, extent) => FcRecord::AddRange {
                ino: *ino,
                extent: *extent,
            }
            .write(out),
            Tag::Del(ino, first, blocks) => FcRecord::DelRange {
                ino: *ino,
                first: LBlock(*first),
                blocks: *blocks,
            }
            .write(out),
        }
    }
}

/// Where an image has its journal's superblock and its area.
pub struct FcArea {
    superblock_at: usize,
    /// The device's byte of each block of the area.
    blocks: Vec<usize>,
}

impl FcArea {
    /// Of an image that is open.
    pub fn of(fs: &InodeFs, image: &[u8]) -> FcArea {
        let mut places = Vec::new();
        for run in fs.mappings(Ino(8)).unwrap() {
            let run = run.unwrap();
            let start = run.physical.unwrap().0;
            places.extend((start..start + run.len).map(|block| block as usize * BLOCK));
        }
        let superblock_at = places[0];
        let mut superblock = JournalSuperblock::read(&image[superblock_at..]).unwrap();
        // A log that is not in use does not say that it has one.
        let mut features = superblock.features();
        features.incompat |= JournalFeatures::INCOMPAT_FAST_COMMIT;
        superblock.set_features(features);
        let (first, end) = (superblock.fast_commit_first(), superblock.blocks_count());
        FcArea {
            superblock_at,
            blocks: places[first as usize..end as usize].to_vec(),
        }
    }

    /// The journal's superblock.
    pub fn superblock(&self, image: &[u8]) -> JournalSuperblock {
        JournalSuperblock::read(&image[self.superblock_at..]).unwrap()
    }

    /// Puts another one in its place.
    pub fn set_superblock(&self, image: &mut [u8], superblock: &JournalSuperblock) {
        let mut superblock = *superblock;
        superblock.seal();
        image[self.superblock_at..][..JournalSuperblock::SIZE].copy_from_slice(superblock.bytes());
    }

    /// Blocks of the area.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// One of them.
    pub fn block<'a>(&self, image: &'a mut [u8], number: usize) -> &'a mut [u8] {
        &mut image[self.blocks[number]..][..BLOCK]
    }

    /// The area's first block.
    pub fn first<'a>(&self, image: &'a [u8]) -> &'a [u8] {
        &image[self.blocks[0]..][..BLOCK]
    }

    /// Puts another one in its place.
    pub fn set_first(&self, image: &mut [u8], block: &[u8]) {
        image[self.blocks[0]..][..BLOCK].copy_from_slice(block);
    }

    /// All changes that the fast commits of the transaction that its HEAD names tell, in order.
    pub fn read(&self, image: &[u8]) -> Vec<Tag> {
        let mut tags = Vec::new();
        let head = records(self.first(image), 256).next();
        let Some(Ok(FcRecord::Head { tid: expected, .. })) = head else {
            return tags;
        };
        for at in &self.blocks {
            let block = &image[*at..][..BLOCK];
            let tail = records(block, 256).filter_map(Result::ok);
            let tids = tail.filter_map(|record| match record {
                FcRecord::Tail { tid, .. } => Some(tid),
                _ => None,
            });
            if tids.last() != Some(expected) {
                break;
            }
            for record in records(block, 256) {
                let name = |kind, named: DentryInfo<'_>| {
                    Tag::Name(kind, named.parent, named.name.to_vec(), named.ino)
                };
                tags.push(match record.unwrap() {
                    FcRecord::Creat(named) => name(Kind::Creat, named),
                    FcRecord::Link(named) => name(Kind::Link, named),
                    FcRecord::Unlink(named) => name(Kind::Unlink, named),
                    FcRecord::Inode { ino, raw } => Tag::Inode(ino, raw.to_vec()),
                    FcRecord::AddRange { ino, extent } => Tag::Add(ino, extent),
                    FcRecord::DelRange { ino, first, blocks } => Tag::Del(ino, first.0, blocks),
                    FcRecord::Pad(_) | FcRecord::Tail { .. } | FcRecord::Head { .. } => continue,
                });
            }
        }
        tags
    }

    /// Makes these the fast commits in the area, each block one of the next transaction; a group of records is in one.
    pub fn write_blocks(&self, image: &mut [u8], groups: &[Vec<Tag>]) {
        let tid = self.superblock(image).sequence();
        let mut blocks = vec![Vec::new()];
        FcRecord::Head { features: 0, tid }.write(&mut blocks[0]);
        for group in groups {
            let mut bytes = Vec::new();
            group.iter().for_each(|tag| tag.write(&mut bytes));
            match blocks.last_mut() {
                Some(last) if last.len() + bytes.len() + 16 <= BLOCK => last.extend(bytes),
                _ => blocks.push(bytes),
            }
        }
        assert!(blocks.len() < self.blocks.len(), "{} blocks", blocks.len());
        for (at, mut bytes) in self.blocks.iter().zip(blocks) {
            end(&mut bytes, tid);
            image[*at..][..BLOCK].copy_from_slice(&bytes);
        }
    }

    /// Makes these the one fast commit in the area, of the next transaction or another.
    pub fn write(&self, image: &mut [u8], tags: &[Tag], tid: Option<Tid>) {
        let tid = tid.unwrap_or(self.superblock(image).sequence());
        let mut bytes = Vec::new();
        FcRecord::Head { features: 0, tid }.write(&mut bytes);
        for tag in tags {
            tag.write(&mut bytes);
        }
        end(&mut bytes, tid);
        self.set_first(image, &bytes);
        for at in &self.blocks[1..] {
            image[*at..][..BLOCK].fill(0);
        }
    }
}

/// Ends a fast commit where its block does.
fn end(bytes: &mut Vec<u8>, tid: Tid) {
    let at = bytes.len();
    assert!(at + 12 <= BLOCK, "one block");
    let rest = vec![0; BLOCK - at - 12];
    let tail = |crc| FcRecord::Tail {
        tid,
        crc,
        rest: &rest,
    };
    tail(0).write(bytes);
    let crc = csum::crc32c(0, &bytes[..at + 8]);
    bytes.truncate(at);
    tail(crc).write(bytes);
}
