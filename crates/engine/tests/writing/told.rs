//! Which callers get an error: each handle of a file once after a write-out failed, and the next mount after the
//! journal was aborted. And what threads see of two names that change at once.

use device::{BlockDevice, DeviceError};
use lanefs_engine::{Error, Ino, InodeFs, MountOptions, NewInode, RenameFlag};
use simulate::{CowDevice, Fault, Recorder};
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::schedule::{self, SchedulePlan};
use sync::{Arc, Mutex, Rank};

use crate::image::{clock, make};

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: true,
};
/// Where the journal's superblock keeps the number of its abort.
const ERRNO_AT: usize = 0x20;

fn open(device: Arc<dyn BlockDevice>) -> InodeFs {
    InodeFs::open_for_writing(device, &MountOptions::default(), clock).unwrap()
}

#[test]
fn every_handle_is_told_once_of_a_write_that_failed() {
    let Some(image) = make(&["-b", "1024"], 16 << 20) else {
        return;
    };
    let start = CowDevice::new(image.into());
    // A hole behind the first block splits the write, so that its second part fails.
    let mut found = false;
    for number in 0..60 {
        let recorder = Arc::new(Recorder::over(&start).fails(Fault::Write(number), false));
        let shared = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
        let Ok(fs) = InodeFs::open_for_writing(shared, &MountOptions::default(), clock) else {
            continue;
        };
        let written = fs.create(Ino::ROOT, b"file", NEW).and_then(|ino| {
            fs.write(ino, 0, &[1; 1024])?;
            fs.write(ino, 2048, &[1; 1024])?;
            Ok((ino, fs.write(ino, 0, &[2; 4096])?))
        });
        let Ok((ino, written)) = written else {
            continue;
        };
        if written == 4096 {
            continue;
        }
        found = true;
        let (mut one, mut other) = (0, 0);
        let early = fs.write_failures(ino).unwrap();
        assert!(matches!(
            fs.fsync_of(ino, false, &mut one),
            Err(Error::Io(_))
        ));
        assert!(fs.fsync_of(ino, false, &mut one).is_ok());
        assert!(matches!(
            fs.fsync_of(ino, true, &mut other),
            Err(Error::Io(_))
        ));
        assert!(fs.fsync_of(ino, true, &mut other).is_ok());
        // A handle opened before the failure was reported reports it; one opened now does not, nor do callers without
        // handles.
        let (mut early, mut late) = (early, fs.write_failures(ino).unwrap());
        assert!(fs.fsync_of(ino, false, &mut late).is_ok());
        assert!(fs.fsync_of(ino, false, &mut early).is_err());
        assert!(fs.fsync(ino).is_ok() && fs.fdatasync(ino).is_ok());
        fs.release(ino).unwrap();
        fs.close().unwrap();
    }
    assert!(found, "no write was cut short");
}

/// Where the journal's superblock is.
fn journal_at(fs: &InodeFs) -> usize {
    let first = fs.mappings(Ino::JOURNAL).unwrap().next().unwrap().unwrap();
    first.physical.unwrap().0 as usize * fs.geometry().block_size().bytes()
}

#[test]
fn an_abort_is_on_record_for_who_opens_the_image_next() {
    if !testkit::have("e2fsck") {
        return testkit::skip("needs e2fsck");
    }
    let Some(image) = make(&["-b", "1024", "-J", "size=1"], 8 << 20) else {
        return;
    };
    let start = CowDevice::new(image.into());
    let mut aborted = 0;
    for number in 0..40 {
        let recorder = Arc::new(Recorder::over(&start).fails(Fault::Flush(number), false));
        let shared = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
        let Ok(fs) = InodeFs::open_for_writing(shared, &MountOptions::default(), clock) else {
            continue;
        };
        let made = fs.create(Ino::ROOT, b"file", NEW);
        let synced = made.and_then(|_| fs.sync());
        let at = journal_at(&fs);
        drop(fs);
        if !matches!(synced, Err(Error::Aborted(_))) {
            assert_eq!(recorder.contents()[at + ERRNO_AT..][..4], [0; 4]);
            continue;
        }
        aborted += 1;
        let left = recorder.contents();
        assert_eq!(left[at + ERRNO_AT..][..4], (-5_i32).to_be_bytes());
        // e2fsck takes it for what it is, and so does lanefs.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &left).unwrap();
        let output = testkit::e2fsck_with(&["-y"], file.path());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.contains("contains a file system with errors"),
            "{text}"
        );
        testkit::e2fsck(file.path());
        let fs = open(Arc::new(CowDevice::new(left.into())));
        assert!(fs.recorded_errors() > 0);
        fs.close().unwrap();
    }
    assert!(aborted > 0);
}

#[test]
fn an_abort_while_the_image_said_it_was_clean_is_on_record_too() {
    let Some(image) = make(&["-b", "1024", "-J", "size=1"], 8 << 20) else {
        return;
    };
    let start = CowDevice::new(image.into());
    let mut aborted = 0;
    for number in 0..80 {
        let recorder = Arc::new(Recorder::over(&start).fails(Fault::Read(number), false));
        let shared = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
        let Ok(fs) = InodeFs::open_for_writing(shared, &MountOptions::default(), clock) else {
            continue;
        };
        let made = fs.create(Ino::ROOT, b"file", NEW);
        if made.and_then(|_| fs.freeze()).is_err() || fs.thaw().is_ok() {
            continue;
        }
        aborted += 1;
        let at = journal_at(&fs);
        drop(fs);
        let left = recorder.live();
        assert_eq!(left.bytes()[at + ERRNO_AT..][..4], (-5_i32).to_be_bytes());
        let device = Arc::new(left);
        let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        fs.lookup(Ino::ROOT, b"file").unwrap();
        assert!(fs.recorded_errors() > 0);
        fs.close().unwrap();
        assert_eq!(device.bytes()[at + ERRNO_AT..][..4], [0; 4]);
        crate::files::judge_image(&device);
    }
    assert!(aborted > 0);
}

/// A device may drop what it had when a flush fails, and say of the next one that all is durable.
#[test]
fn a_flush_that_fails_while_an_inode_table_is_made_readable_is_an_abort() {
    let lazy = "nodiscard,lazy_itable_init=1";
    let Some(image) = make(&["-b", "1024", "-N", "1024", "-E", lazy], 16 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
    fs.write(file, 0, &[1; 4096]).unwrap();
    fs.close().unwrap();
    let mut told = 0;
    for number in 0..12 {
        let recorder = Arc::new(Recorder::over(&device).fails(Fault::Flush(number), false));
        let shared = Arc::clone(&recorder) as Arc<dyn BlockDevice>;
        let Ok(fs) = InodeFs::open_for_writing(shared, &MountOptions::default(), clock) else {
            continue;
        };
        fs.write(file, 0, &[2; 4096]).unwrap();
        // One of these is the first in its group.
        let made = (0..100).try_for_each(|number| {
            let name = format!("new{number}");
            fs.mkdir(Ino::ROOT, name.as_bytes(), NEW).map(drop)
        });
        if !recorder.has_failed() {
            made.unwrap();
            break;
        }
        let synced = fs.fsync(file);
        assert!(
            matches!(synced, Err(Error::Aborted(_))),
            "{number}: {synced:?}"
        );
        assert!(made.is_err());
        assert!(!fs.is_writable() && fs.close().is_err());
        told += 1;
    }
    assert!(told > 0, "no table was made readable");
}

/// Of two flushes side by side the first fails once the second has begun, and that one then finds nothing to do.
struct TwoFlushes {
    device: CowDevice,
    /// Of flushes since it was armed: how many began, and whether the first has failed.
    begun: AtomicU64,
    has_failed: AtomicBool,
    is_armed: AtomicBool,
}

impl BlockDevice for TwoFlushes {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.device.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let ms = sync::clock::Duration::from_millis;
        // SeqCst: a test's own words; each pairs with all the others.
        if !self.is_armed.load(Ordering::SeqCst) || self.has_failed.load(Ordering::SeqCst) {
            return Ok(());
        }
        // SeqCst: a test's own words; each pairs with all the others; so for all that follow.
        if self.begun.fetch_add(1, Ordering::SeqCst) > 0 {
            while !self.has_failed.load(Ordering::SeqCst) {
                sync::thread::sleep(ms(1));
            }
            // Until the first has told its caller.
            sync::thread::sleep(ms(30));
            return Ok(());
        }
        let begin = sync::clock::now();
        while self.begun.load(Ordering::SeqCst) < 2 && sync::clock::now() - begin < ms(2000) {
            sync::thread::sleep(ms(1));
        }
        // SeqCst: a test's own word; pairs with the loads above.
        self.has_failed.store(true, Ordering::SeqCst);
        Err(DeviceError::Io {
            operation: "flush",
            offset: 0,
            len: 0,
            source: std::io::Error::from_raw_os_error(5),
        })
    }

    fn discard(&self, range: std::ops::Range<u64>) -> Result<(), DeviceError> {
        self.device.discard(range)
    }
}

#[test]
fn who_flushes_beside_one_that_fails_is_told() {
    let Some(image) = make(&["-b", "1024", "-J", "size=1"], 8 << 20) else {
        return;
    };
    let device = Arc::new(TwoFlushes {
        device: CowDevice::new(image.into()),
        begun: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
        is_armed: AtomicBool::new(false),
    });
    let fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    let file = fs.create(Ino::ROOT, b"file", NEW).unwrap();
    fs.write(file, 0, &[1; 4096]).unwrap();
    fs.sync().unwrap();
    fs.write(file, 0, &[2; 4096]).unwrap();
    fs.create(Ino::ROOT, b"other", NEW).unwrap();
    // SeqCst: as in the device; so below.
    device.is_armed.store(true, Ordering::SeqCst);
    sync::thread::workers(2, |thread| {
        if thread == 0 {
            let flushed = fs.fdatasync(file);
            assert!(flushed.is_err());
            return;
        }
        while device.begun.load(Ordering::SeqCst) == 0 {
            sync::thread::yield_now();
        }
        let synced = fs.sync();
        assert!(matches!(synced, Err(Error::Aborted(_))), "{synced:?}");
    });
    // The record that would make the lost copies count was not written.
    drop(fs);
    let left = Arc::new(device.device.clone());
    let fs = InodeFs::open(left as Arc<dyn BlockDevice>, &MountOptions::default()).unwrap();
    assert!(matches!(
        fs.lookup(Ino::ROOT, b"other"),
        Err(Error::NotFound)
    ));
}

/// The results of two threads that both rename `p` to `q`.
fn both_rename(image: &CowDevice, seed: u64, flag: RenameFlag) -> [Result<(), Error>; 2] {
    let plan = SchedulePlan {
        seed,
        points: 1_000_000,
    };
    let work = || {
        let fs = open(Arc::new(image.clone()));
        fs.create(Ino::ROOT, b"p", NEW).unwrap();
        let told = Mutex::new(Rank::Job, [Ok(()), Ok(())]);
        sync::thread::workers(2, |thread| {
            let flag = if thread == 0 {
                flag
            } else {
                RenameFlag::Replace
            };
            let renamed = fs.rename(Ino::ROOT, b"p", Ino::ROOT, b"q", flag);
            told.lock()[thread] = renamed;
        });
        fs.lookup(Ino::ROOT, b"q").unwrap();
        assert!(fs.lookup(Ino::ROOT, b"p").is_err());
        told.into_inner()
    };
    schedule::run(plan, work).unwrap().0
}

/// A rename once looked its two names up one after the other, and answered for a moment that never was: "file exists"
/// for a name that was taken only when the other was gone, or success for a name moved by another.
#[test]
fn a_rename_sees_both_its_names_at_one_moment() {
    let Some(image) = make(&["-b", "1024", "-J", "size=1"], 4 << 20) else {
        return;
    };
    let image = CowDevice::new(image.into());
    for flag in [RenameFlag::Replace, RenameFlag::NoReplace] {
        let mut first = 0;
        for seed in 0..150 {
            let told = both_rename(&image, seed, flag);
            // One moved it, and to the other it was gone.
            match told {
                [Ok(()), Err(Error::NotFound)] => first += 1,
                [Err(Error::NotFound), Ok(())] => {}
                told => panic!("{flag:?}, seed {seed}: {told:?}"),
            }
        }
        assert!((1..150).contains(&first), "{first}");
    }
}
