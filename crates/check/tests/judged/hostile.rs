//! Images that are made to take long: what a check and a repair read grows with the image, not with its square.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use device::{CountedDevice, FileDevice, MemoryDevice};
use lanefs_check::Report;
use lanefs_check::repair::RepairScope;
use ondisk::xattr::{self, Value, XattrEntry};

use crate::found::Made;
use crate::mended::Damaged;
use crate::repair::decide_on;
use crate::shown;

/// Groups of the image whose descriptors are damaged.
const GROUPS: u64 = 1024;
/// Blocks of a group, of 1 KiB each.
const GROUP_BLOCKS: u64 = 256;
/// Files that share their attribute blocks with another file.
const FILES: u32 = 1000;
/// Reads for each group or file that a repair may take: some in each of its checks and steps.
const READS_EACH: u64 = 150;

/// Makes an image of many groups without checksums and without copies of its descriptors.
fn of_many_groups(image: &Path) {
    let groups = (GROUPS * GROUP_BLOCKS).to_string();
    let inodes = (16 * GROUPS).to_string();
    let blocks = GROUP_BLOCKS.to_string();
    let options = ["-b", "1024", "-I", "128", "-E", "num_backup_sb=0"];
    let features = "none,filetype,sparse_super2";
    let more = ["-O", features, "-g", &blocks, "-N", &inodes];
    let place = [image.to_str().unwrap(), &groups];
    testkit::mke2fs(&[&options[..], &more, &place].concat());
}

/// Changes the descriptor of every group.
fn change_descriptors(image: &File, change: impl Fn(&mut [u8])) {
    let mut descs = vec![0; 32 * GROUPS as usize];
    image.read_exact_at(&mut descs, 2048).unwrap();
    for desc in descs.chunks_exact_mut(32) {
        change(desc);
    }
    image.write_all_at(&descs, 2048).unwrap();
}

/// Repairs an image in place; how often that read the device.
fn repaired_in(image: &Path) -> (Report, u64) {
    let device = CountedDevice::new(FileDevice::open_read_only(image).unwrap());
    let repaired = decide_on(&device, RepairScope::All, 2).unwrap();
    let reads = device.counts().reads;
    drop(device);
    let file = File::options().write(true).open(image).unwrap();
    let writes = repaired.writes.unwrap();
    assert!(writes.copies.is_empty());
    for (block, bytes) in &writes.blocks {
        let offset = block << writes.block_size.bits();
        file.write_all_at(bytes, offset).unwrap();
    }
    (repaired.after, reads)
}

#[test]
fn descriptors_of_many_groups_are_mended_without_a_look_through_all_for_each() {
    if !testkit::have("mke2fs") || !testkit::have("e2fsck") {
        return testkit::skip("mke2fs or e2fsck is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    let image: PathBuf = folder.path().join("image");
    type Damage = fn(&mut [u8]);
    let damages: [(&str, Damage); 3] = [
        ("no bitmap can be", |desc| desc[..4].fill(0)),
        ("no table can be", |desc| desc[8..12].fill(0)),
        ("every bitmap lies in a table", |desc| {
            desc.copy_within(8..12, 0)
        }),
    ];
    for (what, damage) in damages {
        of_many_groups(&image);
        let file = File::options().read(true).write(true).open(&image);
        change_descriptors(&file.unwrap(), damage);
        let (after, reads) = repaired_in(&image);
        assert!(after.is_clean(), "{what}: {}", shown(&after));
        assert!(reads < READS_EACH * GROUPS, "{what}: {reads} reads");
        let output = testkit::chosen_e2fsck(&["-fn"], &image);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{what}: {text}");
    }
}

#[test]
fn attribute_blocks_of_many_files_are_moved_without_a_look_through_all_for_each() {
    // A file whose blocks could be attribute blocks.
    let mut block = vec![0; 1024];
    let mut entries = [XattrEntry {
        index: 1,
        name: b"a",
        value: Value::Here(b"x"),
        hash: xattr::entry_hash(b"a", b"x"),
    }];
    assert!(xattr::encode_block(&mut block, &mut entries));
    let fill =
        |root: PathBuf| std::fs::write(root.join("all"), block.repeat(FILES as usize)).unwrap();
    let options = "-O ^metadata_csum,^has_journal,^resize_inode";
    let Some(made) = Made::new(options, "16M", fill) else {
        return;
    };
    let commands = (0..FILES).map(|number| format!("write /dev/null f{number}"));
    let commands: Vec<String> = commands.collect();
    made.debugfs(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    let mut damaged = Damaged::new(made.bytes());
    let all = 12;
    let extent = damaged.slot(all).start + 0x3C;
    let first = u32::from_le_bytes(damaged.bytes[extent..extent + 4].try_into().unwrap());
    for number in 0..FILES {
        damaged.change_inode(all + 1 + number, |slot| {
            slot[0x68..0x6C].copy_from_slice(&(first + number).to_le_bytes());
            slot[0x1C] = 2;
        });
    }
    let device = CountedDevice::new(MemoryDevice::from_bytes(&damaged.bytes));
    let repaired = decide_on(&device, RepairScope::All, 2).unwrap();
    assert!(repaired.after.is_clean(), "{}", shown(&repaired.after));
    let (reads, files) = (device.counts().reads, u64::from(FILES));
    assert!(reads < READS_EACH * files, "{reads} reads");
}
