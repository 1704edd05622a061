//! Damage is refused by name, at its place; what lanefs can't read is reported as such.

use device::{BlockDevice, MemoryDevice};
use lanefs_engine::{Error, Ino, InodeFs, MountOptions};
use std::sync::Arc;

use crate::image::{Image, can_mount};

fn bytes_of(image: &Image) -> Vec<u8> {
    testkit::read_image(image.path())
}

fn open(bytes: &[u8]) -> Result<InodeFs, Error> {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(bytes));
    InodeFs::open(device, &MountOptions::default())
}

#[test]
fn a_damaged_superblock_is_replaced_by_its_copy_also_on_request() {
    if !can_mount() {
        return;
    }
    let image = Image::make("-t ext4 -b 1024 -d /usr/share/doc/e2fsprogs", 32);
    let mut bytes = bytes_of(&image);
    let good = open(&bytes).unwrap();
    let root = good.metadata(Ino::ROOT).unwrap();
    // A bit of the UUID, which never changes; then the descriptors behind it too.
    bytes[1024 + 0x68] ^= 1;
    let replaced = open(&bytes).unwrap();
    assert_eq!(replaced.metadata(Ino::ROOT).unwrap(), root);
    assert_eq!(replaced.geometry(), good.geometry());
    bytes[1024 + 0x68] ^= 1;
    // Another second sector: what never changes in it is in a copy.
    let mut torn = bytes.clone();
    torn[1536..2048].fill(0x5a);
    let mended = open(&torn).unwrap();
    assert_eq!(mended.metadata(Ino::ROOT).unwrap(), root);
    assert_eq!(
        mended.superblock().bytes()[..512],
        good.superblock().bytes()[..512]
    );
    bytes[1024 + 0x68] ^= 1;
    bytes[2048..4096].fill(0xff);
    let error = open(&bytes).err().unwrap();
    assert!(error.to_string().contains("superblock"), "{error}");
    let options = MountOptions {
        superblock: Some(8193),
        ..MountOptions::default()
    };
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&bytes));
    let copy = InodeFs::open(device, &options).unwrap();
    assert_eq!(copy.metadata(Ino::ROOT).unwrap(), root);
}

#[test]
fn a_damaged_inode_or_descriptor_is_named() {
    if !can_mount() {
        return;
    }
    let image = Image::make("-t ext4 -b 1024", 32);
    let mut bytes = bytes_of(&image);
    let text = image.debugfs("imap <2>");
    let place: Vec<&str> = text.split_whitespace().collect();
    let after = |word: &str| {
        let at = place.iter().position(|found| *found == word).unwrap();
        place[at + 1].trim_end_matches(',').to_owned()
    };
    let block: usize = after("block").parse().unwrap_or_else(|_| {
        let at = place.iter().rposition(|found| *found == "block").unwrap();
        place[at + 1].trim_end_matches(',').parse().unwrap()
    });
    let offset = usize::from_str_radix(after("offset").trim_start_matches("0x"), 16).unwrap();
    bytes[block * 1024 + offset + 4] ^= 1;
    let error = open(&bytes).unwrap().metadata(Ino::ROOT).unwrap_err();
    assert!(error.to_string().contains("inode 2"), "{error}");
    bytes[2048 + 8] ^= 1;
    let error = open(&bytes).unwrap().metadata(Ino::ROOT).unwrap_err();
    assert!(error.to_string().contains("group 0"), "{error}");
}

#[test]
fn what_is_no_file_system_is_refused() {
    assert!(open(&[]).is_err());
    assert!(open(&[0; 1500]).is_err());
    assert!(open(&[0xff; 100_000]).is_err());
}

#[test]
fn inodes_that_do_not_exist_are_not_found() {
    if !can_mount() {
        return;
    }
    let image = Image::make("-t ext4", 32);
    let fs = image.open();
    assert!(matches!(fs.metadata(Ino(0)), Err(Error::NotFound)));
    assert!(matches!(fs.metadata(Ino(u32::MAX)), Err(Error::NotFound)));
    // In the table, but never used.
    assert!(matches!(fs.metadata(Ino(500)), Err(Error::Corrupt(_))));
    assert!(matches!(
        fs.read(Ino::ROOT, 0, &mut [0]),
        Err(Error::IsDirectory)
    ));
    assert!(matches!(fs.read_link(Ino::ROOT), Err(Error::NotSymlink)));
}

/// Only debugfs can set these flags without a kernel that has the features.
#[test]
fn encrypted_and_verity_files_are_said_to_be_so() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    std::fs::write(source.path().join("file"), b"contents").unwrap();
    std::os::unix::fs::symlink("target", source.path().join("link")).unwrap();
    let arguments = format!("-t ext4 -O encrypt,verity -d {}", source.path().display());
    let image = Image::make(&arguments, 32);
    let path = image.path().to_str().unwrap().to_owned();
    let ino = |name: &str| {
        let text = image.debugfs(&format!("imap {name}"));
        Ino(text.split_whitespace().nth(1).unwrap().parse().unwrap())
    };
    let (file, link) = (ino("/file"), ino("/link"));
    let mut contents = [0; 20];
    assert_eq!(image.open().read(file, 0, &mut contents).unwrap(), 8);
    testkit::debugfs(&["-w", "-R", "sif /file flags 0x180000", &path]);
    let error = image.open().read(file, 0, &mut contents).unwrap_err();
    assert!(matches!(error, Error::Unsupported(what) if what.contains("verity")));
    testkit::debugfs(&["-w", "-R", "sif /file flags 0x80800", &path]);
    testkit::debugfs(&["-w", "-R", "sif /link flags 0x800", &path]);
    let fs = image.open();
    assert!(matches!(
        fs.read(file, 0, &mut contents),
        Err(Error::Encrypted)
    ));
    assert!(matches!(fs.read_link(link), Err(Error::Encrypted)));
    assert_eq!(fs.metadata(file).unwrap().size, 8);
}
