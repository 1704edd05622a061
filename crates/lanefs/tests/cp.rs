//! The first usable step: a file copied into an image is there whole or not at all, wherever the power was cut; lanefs,
//! e2fsck and the kernel agree.

use std::path::Path;
use std::sync::Arc;

use lanefs::{BlockDevice, CopyOptions, Error, Fs, FsError, MountOptions, Timestamp};
use simulate::{CowDevice, Cut, Cuts, Recorder};
use testkit::{KernelMount, e2fsck, have, is_root, skip};

const MIB: u64 = 1 << 20;
const SEEDS: u64 = 3;

fn clock() -> Timestamp {
    Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    }
}

fn open(device: Arc<dyn BlockDevice>) -> Fs {
    Fs::open_for_writing_with(device, &MountOptions::default(), clock).unwrap()
}

/// An image, with this as `/file` if it is not empty.
fn image(options: &[&str], before: &[u8]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    std::fs::create_dir(&source).unwrap();
    if !before.is_empty() {
        std::fs::write(source.join("file"), before).unwrap();
    }
    let path = folder.path().join("image");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (source, image) = (text(&source), text(&path));
    let mut arguments = vec!["-t", "ext4", "-d", &source];
    arguments.extend(options);
    arguments.extend([&image, "8M"]);
    testkit::mke2fs(&arguments);
    std::fs::read(&path).unwrap()
}

/// The contents of `/file`; `None` if it does not exist. No other file may exist.
fn found(fs: &Fs) -> Option<Vec<u8>> {
    let allowed = |name: &[u8]| matches!(name, b"file" | b"lost+found");
    for entry in fs.read_dir("/").unwrap() {
        let entry = entry.unwrap();
        assert!(allowed(entry.name()), "{}", entry.file_name().display());
    }
    match fs.read("/file") {
        Ok(bytes) => Some(bytes),
        Err(Error::Fs {
            source: FsError::NotFound,
            ..
        }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Whether the cut tore the superblock's write. Then lanefs opens the image; Linux refuses it, and e2fsck needs a copy.
fn is_torn(state: &CowDevice) -> bool {
    let bytes = state.bytes()[1024..2048].try_into().unwrap();
    lanefs::Superblock::view(&bytes).verify().is_err()
}

/// e2fsck's and the kernel's recovery of the same cut.
fn others_recover(
    state: &CowDevice,
    cut: Cut,
    is_allowed: &dyn Fn(Option<&[u8]>) -> bool,
    mounts: bool,
) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let text = path.to_str().unwrap();
    testkit::write_image(&path, &state.bytes());
    if mounts {
        let mounted = KernelMount::with(&path, "loop").unwrap();
        let bytes = std::fs::read(mounted.path().join("file")).ok();
        assert!(is_allowed(bytes.as_deref()), "{cut}: the kernel's recovery");
        drop(mounted);
    } else {
        let preened = testkit::e2fsck_with(&["-f", "-p"], text.as_ref());
        assert!(
            preened.status.code().is_some_and(|code| code <= 1),
            "{cut}: {preened:?}"
        );
        let fs = Fs::open(&path).unwrap();
        assert!(
            is_allowed(found(&fs).as_deref()),
            "{cut}: e2fsck's recovery"
        );
    }
    e2fsck(&path);
}

/// Copies a file over `before` and cuts it everywhere; says how many states there were.
fn sweep(options: &[&str], before: &[u8], after: &[u8]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let host = folder.path().join("host");
    std::fs::write(&host, after).unwrap();
    let device = Arc::new(Recorder::new(&image(options, before)));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    fs.copy_in(&host, "/file", &CopyOptions::default()).unwrap();
    fs.close().unwrap();
    device.mark(1);
    let (start, events) = device.recording();
    let mut cuts = Cuts::new(start, events);
    let points: Vec<usize> = cuts.points().collect();
    let mut states = 0;
    for event in points {
        let is_promised = cuts.mark_before(event).is_some();
        let is_allowed = |bytes: Option<&[u8]>| match bytes {
            Some(bytes) => bytes == after || !is_promised && bytes == before,
            None => !is_promised && before.is_empty(),
        };
        for seed in 0..SEEDS {
            let cut = Cut { event, seed };
            let torn = is_torn(&cuts.state(cut));
            let state = Arc::new(cuts.state(cut));
            let fs = open(Arc::clone(&state) as Arc<dyn BlockDevice>);
            assert!(is_allowed(found(&fs).as_deref()), "{cut}");
            fs.close().unwrap();
            if states % 5 == 0 || torn {
                let path = folder.path().join("closed");
                testkit::write_image(&path, &state.bytes());
                e2fsck(&path);
            }
            if states % 5 == 0 && !torn {
                others_recover(&cuts.state(cut), cut, &is_allowed, false);
            }
            if states % 20 == 0 && !torn && is_root() {
                others_recover(&cuts.state(cut), cut, &is_allowed, true);
            }
            states += 1;
        }
    }
    states
}

#[test]
fn cp_into_an_image_survives_a_cut_at_any_write() {
    if !have("mke2fs") || !have("e2fsck") {
        return skip("needs mke2fs and e2fsck");
    }
    if !is_root() {
        skip("the kernel's recovery needs root");
    }
    let after: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    for options in [
        &["-b", "1024"][..],
        &["-b", "4096", "-O", "orphan_file"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit,^extent"],
    ] {
        let states = sweep(options, b"", &after);
        assert!(states > 50, "{states}");
    }
}

#[test]
fn a_file_that_is_replaced_survives_a_cut_as_it_was_or_as_it_is() {
    if !have("mke2fs") || !have("e2fsck") {
        return skip("needs mke2fs and e2fsck");
    }
    let after: Vec<u8> = (0..50_000_u32).map(|at| (at * 3 % 253) as u8).collect();
    let states = sweep(&["-b", "1024"], b"what was there before", &after);
    assert!(states > 50, "{states}");
}

#[test]
fn an_image_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    lanefs::make::make(&image, Some(8 * MIB), &Default::default(), false).unwrap();
    let fs = Fs::open_for_writing(&image).unwrap();
    let second = Fs::open_for_writing(&image).err().unwrap();
    assert!(second.to_string().contains("in use"), "{second}");
    assert!(Fs::open(&image).is_err());
    fs.close().unwrap();
    if !is_root() {
        return skip("loop devices need root");
    }
    let mounted = KernelMount::read_only(&image).unwrap();
    let error = Fs::open_for_writing(&image).err().unwrap();
    assert!(
        error.to_string().contains("attached to /dev/loop"),
        "{error}"
    );
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
    drop(mounted);
    Fs::open_for_writing(&image).unwrap().close().unwrap();
}
