//! What a dropped file system reports, and to whom.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{BlockDevice, DeviceError, MemoryDevice};
use lanefs::Fs;
use sync::{Arc, Mutex, Rank};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Collects the texts of events.
struct Collected(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{field}: {value:?}; ");
    }
}

impl Subscriber for Collected {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string() + " ");
        event.record(&mut text);
        self.0.lock().push(text.0);
    }
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

/// A device that can't be written to any more at some point.
struct Failing {
    device: MemoryDevice,
    fails: AtomicBool,
}

impl BlockDevice for Failing {
    fn size(&self) -> u64 {
        self.device.size()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.device.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        // Relaxed: one thread.
        match self.fails.load(Ordering::Relaxed) {
            true => Err(DeviceError::Io {
                operation: "write",
                offset,
                len: from.len() as u64,
                source: std::io::Error::other("pulled out"),
            }),
            false => self.device.write_at(offset, from),
        }
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }
    fn discard(&self, range: Range<u64>) -> Result<(), DeviceError> {
        self.device.discard(range)
    }
}

fn reported(work: impl FnOnce()) -> Vec<String> {
    let texts = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
    tracing::subscriber::with_default(Collected(Arc::clone(&texts)), work);
    let texts = texts.lock();
    texts.clone()
}

fn failing() -> (Arc<Failing>, Fs) {
    let device = Arc::new(Failing {
        device: MemoryDevice::new(8 << 20),
        fails: AtomicBool::new(false),
    });
    let fs = Fs::builder().make_on(Arc::clone(&device) as _).unwrap();
    fs.create_dir("/a").unwrap();
    // Relaxed: one thread.
    device.fails.store(true, Ordering::Relaxed);
    (device, fs)
}

#[test]
fn a_drop_that_loses_changes_is_reported() {
    let (_device, fs) = failing();
    let texts = reported(|| drop(fs));
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].starts_with("ERROR "), "{texts:?}");
    assert!(
        texts[0].contains("may be lost") && texts[0].contains("pulled out"),
        "{texts:?}"
    );
}

#[test]
fn a_drop_that_loses_nothing_and_a_close_that_fails_report_nothing() {
    let (_device, fs) = failing();
    let mut closed = Ok(());
    assert!(reported(|| closed = fs.close()).is_empty());
    assert!(closed.is_err());
    let fs = Fs::in_memory(8 << 20).unwrap();
    fs.create_dir("/a").unwrap();
    assert!(reported(|| drop(fs)).is_empty());
    let (_device, fs) = failing();
    assert!(reported(|| fs.abandon()).is_empty());
}
