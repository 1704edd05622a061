//! Requests to a mount as a target: each request is answered once, and the image is clean afterwards.

use fuse::{Broken, Parts, answer_all};
use lanefs::mkfs::{self, Layout};
use lanefs::{Fs, MemoryDevice, MountOptions, Timestamp};
use sync::atomic::AtomicBool;
use sync::{Arc, LazyLock};

use crate::overlay::PatchedBytes;

const IMAGE_BYTES: u64 = 8 << 20;
/// The most requests of one input.
const REQUESTS: usize = 64;
/// Bits of a request's first byte: the operation, and whether the request is split as over io_uring.
const KIND: u8 = 0x7f;
const SPLIT: u8 = 0x80;
/// Bits of the second byte: the inode, a few of them with large numbers, the caller, and whether there is an
/// extension.
const NODE: u8 = 0x3f;
const FAR: [u64; 4] = [0, 1 << 20, u32::MAX as u64, u64::MAX];
const BY_USER: u8 = 0x40;
const EXTENDED: u8 = 0x80;
/// Bits of the arguments' last byte: the number of words of 8 bytes in the extension.
const WORDS: u8 = 0x1f;
/// Bytes before a request's arguments: these two, and the arguments' length.
const HEAD: usize = 4;

/// An empty file system.
static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    // The size and the options are constants.
    let layout = Layout::plan(IMAGE_BYTES, &mkfs::Options::default()).expect("a layout");
    let device = MemoryDevice::new(IMAGE_BYTES);
    // Memory takes every write.
    mkfs::format(&device, &layout).expect("an empty file system");
    bytes_of(&device)
});

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    use lanefs::BlockDevice as _;
    let mut bytes = vec![0; IMAGE_BYTES as usize];
    // The device has this number of bytes.
    device.read_at(0, &mut bytes).expect("memory can be read");
    bytes
}

/// A clock that shows the same time in every run.
fn now() -> Timestamp {
    Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    }
}

/// The requests of an input. Each is two bytes, a length and arguments.
fn requests(mut data: &[u8]) -> Vec<Parts<'_>> {
    let mut requests = Vec::new();
    while let (Some(head), true) = (data.first_chunk::<HEAD>(), requests.len() < REQUESTS) {
        let [kind, node, len @ ..] = *head;
        let rest = &data[HEAD..];
        let len = usize::from(u16::from_le_bytes(len)).min(rest.len());
        let number = u64::from(node & NODE);
        let far = number.checked_sub(u64::from(NODE) + 1 - FAR.len() as u64);
        let last = rest[..len].last().copied().unwrap_or(0);
        requests.push(Parts {
            opcode: (kind & KIND).into(),
            node: far.map_or(number, |at| FAR[at as usize]),
            uid: if node & BY_USER == 0 { 0 } else { 1000 },
            arguments: &rest[..len],
            extension_words: match node & EXTENDED {
                0 => 0,
                _ => (last & WORDS).into(),
            },
            is_split: kind & SPLIT != 0,
        });
        data = &rest[len..];
    }
    requests
}

/// Sends the requests to an empty file system. The input is sound if at least two of them succeed.
pub fn request(data: &[u8]) -> bool {
    let device = Arc::new(MemoryDevice::from_bytes(&IMAGE));
    let opened = Fs::open_for_writing_with(
        Arc::clone(&device) as Arc<dyn lanefs::BlockDevice>,
        &MountOptions::default(),
        now,
    );
    // The image is what mkfs made.
    let fs = opened.expect("an empty file system is opened");
    let done = match answer_all(fs, requests(data)) {
        Ok(done) => done,
        Err(Broken(what)) => panic!("{what}"),
    };
    let options = check::Options {
        threads: 1,
        memory: None,
        superblock: None,
        is_replayed: false,
        cancelled: &AtomicBool::new(false),
        progress: &|_| {},
        trace: None,
    };
    let image = PatchedBytes::new(bytes_of(&device).into());
    // Memory can be read, and the check is never cancelled.
    let report = check::check(&image, &options).expect("the image can be checked");
    assert!(report.is_clean(), "{:?}", report.problems);
    done > 1
}
