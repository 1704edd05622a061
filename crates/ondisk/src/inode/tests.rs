//! Slots written by a kernel (6.x, `mke2fs -O metadata_csum,64bit,ea_inode -I 256`), one after another.

use super::*;

const SLOTS: &[u8] = include_bytes!("../../tests/golden/inodes.bin");
const NUMBERS: [u32; 10] = [12, 13, 14, 15, 16, 17, 18, 19, 20, 2049];
const UUID: [u8; 16] = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";

fn slot(number: u32) -> &'static [u8] {
    let at = NUMBERS.iter().position(|n| *n == number).unwrap();
    &SLOTS[256 * at..256 * (at + 1)]
}

fn seed() -> u32 {
    crc32c(!0, &UUID)
}

#[test]
fn golden_slots_verify_and_are_written_back_identical() {
    for number in NUMBERS {
        let slot = slot(number);
        verify_checksum(slot, seed(), Ino(number)).unwrap();
        let inode = Inode::parse(slot).unwrap();
        let mut written = slot.to_vec();
        written[..160].fill(0xee);
        inode.write_to(&mut written);
        written[CHECKSUM_LO..CHECKSUM_LO + 2].fill(0);
        written[CHECKSUM_HI..CHECKSUM_HI + 2].fill(0);
        set_checksum(&mut written, seed(), Ino(number));
        assert_eq!(written, slot, "inode {number}");
    }
}

#[test]
fn every_changed_bit_and_number_breaks_the_checksum() {
    for bit in 0..256 * 8 {
        let mut changed = slot(12).to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(verify_checksum(&changed, seed(), Ino(12)).is_err(), "{bit}");
    }
    assert!(verify_checksum(slot(12), seed(), Ino(13)).is_err());
    assert!(verify_checksum(&slot(12)[..100], seed(), Ino(12)).is_err());
}

#[test]
fn fields_are_what_debugfs_says() {
    let plain = Inode::parse(slot(12)).unwrap();
    assert_eq!(plain.file_type(), Some(FileType::Regular));
    assert_eq!(plain.mode(), 0o104_755);
    assert_eq!((plain.uid(), plain.gid()), (70_000, 80_000));
    assert_eq!((plain.size(false), plain.links_count()), (6, 1));
    assert_eq!(plain.sectors(true, BlockSize::K1), 2);
    assert_eq!(plain.flags(), Flags::EXTENTS);
    assert_eq!(plain.generation(), Generation(4_226_713_869));
    assert_eq!(plain.version(), 6);
    assert_eq!(plain.checksum(), 0xdd41_0fea);
    let time = Timestamp {
        seconds: 10_413_889_445,
        nanoseconds: 123_456_789,
    };
    assert_eq!((plain.mtime(), plain.atime()), (time, time));
    assert_eq!(plain.crtime().unwrap().seconds, 0x6b00_3414);
    let device = Inode::parse(slot(13)).unwrap();
    assert_eq!(device.device_number(), (300, 70_000));
    let link = Inode::parse(slot(14)).unwrap();
    assert_eq!(link.file_type(), Some(FileType::Symlink));
    assert_eq!(&link.block_area()[..6], b"short\0");
    let attributes = Inode::parse(slot(17)).unwrap();
    assert_eq!(attributes.xattr_block(), FsBlock(2329));
    let value = Inode::parse(slot(19)).unwrap();
    assert!(value.flags().contains(Flags::EA_INODE));
    assert_eq!((value.value_references(), value.size(false)), (1, 5120));
    let directory = Inode::parse(slot(2049)).unwrap();
    assert!(directory.flags().contains(Flags::NO_ATIME));
    assert_eq!(directory.flags().to_string(), "-------A------e-------");
}

#[test]
fn setters_write_what_getters_read() {
    let mut inode = Inode::zeroed();
    inode.set_extra_size(EXTRA_SIZE);
    inode.set_uid(0x1234_5678);
    inode.set_size(0x1_2345_6789);
    inode.set_mode(FileType::Regular.mode_bits());
    inode.set_xattr_block(FsBlock(0xabcd_1234_5678));
    inode.set_project(42);
    inode.set_version(1 << 40);
    assert_eq!(
        (inode.uid(), inode.size(false)),
        (0x1234_5678, 0x1_2345_6789)
    );
    assert_eq!(inode.xattr_block(), FsBlock(0xabcd_1234_5678));
    assert_eq!((inode.project(), inode.version()), (42, 1 << 40));
    for numbers in [(8, 1), (255, 255), (256, 0), (0, 256), (0xfff, 0xf_ffff)] {
        inode.set_device_number(numbers.0, numbers.1);
        assert_eq!(inode.device_number(), numbers);
    }
    for sectors in [7, 1 << 33, (1 << 48) - 8, 1 << 49] {
        assert!(inode.set_sectors(sectors, true, BlockSize::K4));
        assert_eq!(inode.sectors(true, BlockSize::K4), sectors);
    }
    assert!(inode.flags().contains(Flags::HUGE_FILE));
    assert!(!inode.set_sectors(1 << 32, false, BlockSize::K4));
}

#[test]
fn a_slot_of_128_bytes_has_no_extra_fields() {
    let mut slot = [0xff; 128];
    let inode = Inode::parse(&slot).unwrap();
    assert_eq!(
        (inode.extra_size(), inode.crtime(), inode.project()),
        (0, None, 0)
    );
    assert_eq!(
        inode.mtime(),
        Timestamp {
            seconds: -1,
            nanoseconds: 0
        }
    );
    assert_eq!(attribute_area(&slot), None);
    set_checksum(&mut slot, 1, Ino(11));
    verify_checksum(&slot, 1, Ino(11)).unwrap();
    slot[127] ^= 1;
    assert!(verify_checksum(&slot, 1, Ino(11)).is_err());
}

#[test]
fn extra_sizes_that_do_not_fit_are_refused() {
    let mut slot = vec![0; 256];
    for (extra, good) in [
        (0u16, true),
        (32, true),
        (128, true),
        (132, false),
        (30, false),
        (0xffff, false),
    ] {
        slot[128..130].copy_from_slice(&extra.to_le_bytes());
        assert_eq!(Inode::parse(&slot).is_ok(), good, "{extra}");
    }
    assert!(Inode::parse(&slot[..127]).is_err());
}
