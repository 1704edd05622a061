//! What a dropped file system reports through `tracing`.

use std::fmt;

use lanefs::Fs;
use simulate::{Event as DeviceEvent, Fault, Recorder};
use sync::{Arc, Mutex, Rank};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The bytes of a device.
const SIZE: usize = 8 << 20;

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

fn reported(work: impl FnOnce()) -> Vec<String> {
    let texts = Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
    tracing::subscriber::with_default(Collected(Arc::clone(&texts)), work);
    let texts = texts.lock();
    texts.clone()
}

/// A file system with a change that is not on its device yet.
fn changed(device: &Arc<Recorder>) -> Fs {
    let fs = Fs::builder().make_on(Arc::clone(device) as _).unwrap();
    fs.create_dir("/a").unwrap();
    fs
}

/// The same, on a device to which nothing can be written any more.
fn failing() -> Fs {
    // A first run counts the writes until then.
    let sound = Arc::new(Recorder::new(&[0; SIZE]));
    changed(&sound).abandon();
    let events = sound.recording().1;
    let writes = events
        .iter()
        .filter(|event| matches!(event, DeviceEvent::Write { .. }));
    let fault = Fault::Write(writes.count() as u64);
    changed(&Arc::new(Recorder::failing(&[0; SIZE], fault, true)))
}

#[test]
fn a_drop_that_loses_changes_is_reported() {
    let fs = failing();
    let texts = reported(|| drop(fs));
    assert_eq!(texts.len(), 1, "{texts:?}");
    assert!(texts[0].starts_with("ERROR "), "{texts:?}");
    assert!(
        texts[0].contains("may be lost") && texts[0].contains("injected fault"),
        "{texts:?}"
    );
}

#[test]
fn a_drop_that_loses_nothing_and_a_close_that_fails_report_nothing() {
    let fs = failing();
    let mut closed = Ok(());
    assert!(reported(|| closed = fs.close()).is_empty());
    assert!(closed.is_err());
    let fs = Fs::in_memory(8 << 20).unwrap();
    fs.create_dir("/a").unwrap();
    assert!(reported(|| drop(fs)).is_empty());
    let fs = failing();
    assert!(reported(|| fs.abandon()).is_empty());
}
