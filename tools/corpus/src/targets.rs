//! What is fuzzed: functions of any bytes, which must neither panic nor hang.
//!
//! The fuzzer (`fuzz/`) calls them with what it thinks up; the ordinary tests with the structures of all images, with
//! mutants of these, and with the fuzzer's finds in tests/corpus/fuzz.

mod archives;
mod check;
mod repair;
mod replay;
mod request;

use std::cell::RefCell;

use engine::ReplayPolicy;
use ondisk::casefold::FoldedName;
use ondisk::dirent::{self, DirBlockWriter, DirForm};
use ondisk::dirhash::{self, HashVersion};
use ondisk::extent::{self, Expect, ExtentEntries, ExtentNode};
use ondisk::fast_commit;
use ondisk::htree;
use ondisk::jbd2::{self, CommitBlock, JournalChecksum, JournalSuperblock, LogFormat};
use ondisk::text::{
    DirectoryText, ExtentNodeText, GroupText, IndexText, InodeText, JournalText, LogBlockText,
    SuperblockText, XattrsText,
};
use ondisk::xattr::{self, ListPlace, Value};
use ondisk::{BlockSize, Geometry, Group, Ino, Superblock, Tid, acl, inode};
use sync::Arc;

use crate::exercise::{ExerciseSummary, exercise_with};
use crate::overlay::PatchedBytes;
use crate::seeds::{Seed, seeds};
use crate::structures::{Kind, Structures};

pub use archives::{oci, tables, tar};
pub use check::check;
pub use repair::repair;
pub use replay::replay;
pub use request::request;

/// A target's name and its function, which returns whether its input was sound: one that led to a tree, a node, an
/// opened image and not to an error. Tests count these, so that it shows when inputs stop getting anywhere.
pub type FuzzTarget = (&'static str, fn(&[u8]) -> bool);

/// All targets.
pub const TARGETS: &[FuzzTarget] = &[
    ("superblock", superblock),
    ("directory", directory),
    ("extents", extents),
    ("xattrs", xattrs),
    ("journal", journal),
    ("replay", replay),
    ("image", image),
    ("check", check),
    ("repair", repair),
    ("request", request),
    ("tar", tar),
    ("oci", oci),
    ("tables", tables),
];

/// Groups that are looked at.
const GROUPS: usize = 64;

/// The superblock, and behind it descriptors and inodes.
pub fn superblock(data: &[u8]) -> bool {
    let mut raw = [0; Superblock::SIZE];
    let len = data.len().min(raw.len());
    raw[..len].copy_from_slice(&data[..len]);
    raw[0x38..0x3A].copy_from_slice(&0xEF53_u16.to_le_bytes());
    let mut superblock = *Superblock::view(&raw);
    superblock.seal();
    let _ = SuperblockText(&superblock).to_string();
    if superblock.verify().is_err() {
        return false;
    }
    let Ok(geometry) = Geometry::new(&superblock, u64::MAX) else {
        return false;
    };
    let rest = data.get(len..).unwrap_or_default();
    for group in geometry.all_groups().take(GROUPS) {
        look_at_group(&geometry, group, rest);
    }
    let last = Group(geometry.groups().saturating_sub(1));
    look_at_group(&geometry, last, rest);
    for slot in rest.chunks_exact(geometry.inode_size()).take(4) {
        let _ = InodeText {
            slot,
            geometry: &geometry,
            ino: Ino(12),
        }
        .to_string();
        let mut slot = slot.to_vec();
        inode::set_checksum(&mut slot, geometry.csum_seed(), Ino(12));
        assert!(inode::verify_checksum(&slot, geometry.csum_seed(), Ino(12)).is_ok());
    }
    true
}

fn look_at_group(geometry: &Geometry, group: Group, rest: &[u8]) {
    let first = geometry.group_first_block(group);
    assert!(geometry.group_blocks(group) > 0);
    assert_eq!(geometry.group_of_block(first), Some(group));
    let _ = geometry.desc_place(group);
    let _ = geometry.group_start(group);
    if let Some(raw) = rest.get(..geometry.desc_size()) {
        let text = GroupText {
            raw,
            geometry,
            group,
        };
        let _ = text.to_string();
    }
}

/// A directory block: its entries, and what it is as an index block. The first byte chooses the form.
pub fn directory(data: &[u8]) -> bool {
    let Some((choice, block)) = data.split_first() else {
        return false;
    };
    let form = DirForm {
        block_size: if choice & 16 == 0 {
            BlockSize::K1
        } else {
            BlockSize::K64
        },
        filetype: choice & 1 == 0,
        checksum: choice & 2 == 0,
        hashes: choice & 4 != 0,
        max_ino: Ino(u32::MAX >> (choice & 8)),
    };
    let _ = DirectoryText { block, form }.to_string();
    let mut copy = vec![0; form.block_size.bytes()];
    let mut writer = DirBlockWriter::new(&mut copy, form);
    let mut written = Vec::new();
    for entry in dirent::entries(block, form).flatten() {
        for version in [
            HashVersion::Legacy,
            HashVersion::HalfMd4Unsigned,
            HashVersion::Tea,
        ] {
            let _ = dirhash::hash(version, &[1, 2, 3, 4], entry.name);
        }
        assert!(FoldedName::new(entry.name).is(entry.name));
        if entry.is_used() && writer.push(entry.ino, entry.name, entry.file_type, entry.hash) {
            written.push((entry.ino, entry.name.to_vec(), entry.file_type, entry.hash));
        }
    }
    writer.finish();
    let reread: Vec<_> = dirent::entries(&copy, form)
        // A target is there to panic: what was just written must be sound.
        .map(|entry| entry.expect("what was written is sound"))
        .filter(|entry| entry.is_used())
        .map(|entry| (entry.ino, entry.name.to_vec(), entry.file_type, entry.hash))
        .collect();
    assert!(reread == written, "entries are read as they were written");
    let root = htree::root(block, form, htree::LEVELS_MAX_LARGE, form.hashes);
    let root = root.map(|(_, index)| index);
    for index in [root, htree::node(block, form)].into_iter().flatten() {
        let _ = IndexText(index).to_string();
        let _ = index.verify_order();
        assert!(index.find(0x8000_0000) < index.count());
    }
    let _ = htree::verify_checksum(block, htree::Kind::Root, 1);
    let _ = htree::verify_checksum(block, htree::Kind::Node, 1);
    let _ = dirent::verify_checksum(block, 1);
    !written.is_empty()
}

/// An extent node; the first byte says what its parent expects.
pub fn extents(data: &[u8]) -> bool {
    let Some((choice, bytes)) = data.split_first() else {
        return false;
    };
    let mut expect = Expect::root(1..1 << 20);
    if choice & 1 != 0 {
        expect.depth = Some(u16::from(choice >> 4));
        expect.covers = 1000..u64::from(u32::MAX);
    }
    let _ = extent::verify_tail(bytes, 1);
    let _ = ExtentNode::view(bytes);
    let Ok(node) = ExtentNode::verify(bytes, &expect) else {
        return false;
    };
    let _ = ExtentNodeText(&node).to_string();
    match node.entries() {
        ExtentEntries::Extents(all) => {
            assert!(all.iter().all(|it| it.end() <= 1 << 32));
            assert!(all.iter().all(|it| expect.blocks.contains(&it.start().0)));
        }
        ExtentEntries::Indices(all) => {
            assert!(!all.is_empty());
            assert!(all.iter().all(|it| expect.blocks.contains(&it.leaf().0)));
        }
    }
    true
}

/// A list of extended attributes, in an inode and in a block; values as ACLs.
pub fn xattrs(data: &[u8]) -> bool {
    let mut sound = false;
    for area in [ListPlace::Inode(data), ListPlace::Block(data)] {
        let _ = XattrsText(area).to_string();
        let Ok(entries) = xattr::entries(area) else {
            continue;
        };
        for entry in entries {
            sound = true;
            if let Value::Here(value) = entry.value
                && let Ok(shown) = acl::disk_to_xattr(value)
            {
                assert!(acl::xattr_to_disk(&shown).is_some());
            }
        }
    }
    let _ = acl::disk_to_xattr(data);
    let _ = acl::xattr_to_disk(data);
    sound
}

/// A journal's superblock, and blocks of its log; the first byte chooses the format.
pub fn journal(data: &[u8]) -> bool {
    let Some((choice, bytes)) = data.split_first() else {
        return false;
    };
    let mut sound = false;
    if let Some(mut superblock) = JournalSuperblock::read(bytes) {
        superblock.seal();
        sound |= superblock.verify(BlockSize::K1, 1 << 16).is_ok();
        let _ = JournalText(&superblock).to_string();
    }
    let format = LogFormat {
        block_size: BlockSize::K1,
        is_64bit: choice & 1 == 0,
        checksum: match choice >> 1 & 3 {
            0 => JournalChecksum::None,
            1 => JournalChecksum::V1,
            2 => JournalChecksum::V2,
            _ => JournalChecksum::V3,
        },
        csum_seed: 1,
    };
    let mut scan = fast_commit::Scan::new(Tid(1), 256);
    for block in bytes.chunks(BlockSize::K1.bytes()) {
        let _ = LogBlockText {
            format: &format,
            block,
        }
        .to_string();
        let _ = format.verify_tail(block);
        let _ = CommitBlock::verify(&format, block);
        let tags = jbd2::Tags::of(&format, block).count();
        assert!(tags <= block.len());
        sound |= tags > 0;
        if let Ok(revoked) = jbd2::revoked(&format, block) {
            assert!(revoked.count() <= block.len());
        }
        let _ = scan.block(block);
    }
    sound
}

/// Bytes of one edit of [`image`].
const EDIT: usize = 12;
/// Edits of one image.
const EDITS: usize = 32;

thread_local! {
    /// Images that were unpacked before, with their structures, since that takes longer than to read them.
    static KEPT: RefCell<Vec<(Seed, Structures)>> = const { RefCell::new(Vec::new()) };
}

/// An image with numbers changed and sealed again. The first byte chooses the image, and whether its journal is read;
/// each twelve bytes after it a structure, a place in it, a width, and a value.
pub fn image(data: &[u8]) -> bool {
    edited(data, |image, is_replayed| {
        let mut summary = ExerciseSummary::default();
        let journal = if is_replayed {
            ReplayPolicy::Replay
        } else {
            ReplayPolicy::Ignore
        };
        exercise_with(image, journal, &mut summary);
        summary.opened > 0
    })
}

/// Makes the image that the bytes describe and hands it to `visit`, with whether its journal is to be read. False where
/// they describe none.
fn edited(data: &[u8], visit: impl FnOnce(&PatchedBytes, bool) -> bool) -> bool {
    let Some((choice, edits)) = data.split_first() else {
        return false;
    };
    KEPT.with_borrow_mut(|kept| {
        if kept.is_empty() {
            kept.extend(seeds().map(|seed| {
                let structures = Structures::of(&PatchedBytes::new(Arc::clone(&seed.bytes)));
                (seed, structures)
            }));
        }
        let (seed, structures) = &kept[usize::from(choice & 127) % kept.len()];
        let mut image = PatchedBytes::new(Arc::clone(&seed.bytes));
        for edit in edits.chunks_exact(EDIT).take(EDITS) {
            apply(&mut image, structures, edit);
        }
        visit(&image, choice & 128 == 0)
    })
}

fn apply(image: &mut PatchedBytes, structures: &Structures, edit: &[u8]) {
    let word = |at: usize| usize::from(u16::from_le_bytes([edit[at], edit[at + 1]]));
    let class = &structures.classes[usize::from(edit[0]) % structures.classes.len()];
    let structure = class[word(1) % class.len()];
    let mut bytes = image.get(structure.offset, structure.len);
    let width = 1 << (edit[5] & 3);
    let at = word(3) % (bytes.len() - width + 1);
    let mut value = [0; 8];
    value[..6].copy_from_slice(&edit[6..]);
    bytes[at..at + width].copy_from_slice(&value[..width]);
    if structure.kind == Kind::Superblock {
        bytes[0x38..0x3A].copy_from_slice(&0xEF53_u16.to_le_bytes());
    }
    if edit[5] & 0x80 == 0 {
        structure.kind.seal(&mut bytes, &structures.geometry);
    }
    image.set(structure.offset, bytes);
}
