//! The mechanisms of a mounted file system, seen and switched through attributes of its root directory that no list
//! shows: `lanefs tune` reads and sets them, on the live mount.
//!
//! | attribute | value |
//! |---|---|
//! | `lanefs.forms` | `NAME=VALUE`, a line each: the form of each mechanism |
//! | `lanefs.choices` | `NAME=VALUE,VALUE...`, a line each: what there is, the default first |
//! | `lanefs.there` | `NAME=WORDS`, a line each: the same in words, where numbers are a range |
//! | `lanefs.counters` | `NAME VALUE`, a line each: what was counted since the mount |
//! | `lanefs.operations` | requests of the kernel, a line each kind: see `Messages::lines` |
//! | `lanefs.state` | `writing`, `read-only`, or three lines: `stopped`, seconds since 1970, the first cause |
//! | `lanefs.sync` | `all`, or two lines: `fsync only`, why |
//! | `lanefs.options` | `NAME=VALUE`, a line each: the transport, and what the mount was asked for |
//! | `lanefs.NAME` | the form of one mechanism; setting it switches |
//!
//! Only root and the user who mounted may switch. Takes no lock; nothing of it is on disk.

use lanefs::{InodeFs, Stopped, VariantError, Variants};
use rustix::io::Errno;
use sync::{Arc, OnceLock};

use crate::connect::Synced;
use crate::messages::Messages;
use crate::operations::{Answer, Caller};

const PREFIX: &[u8] = b"lanefs.";

/// What a mount reports of itself that the file system does not know.
pub(crate) struct Reports {
    /// What makes changes durable.
    pub(crate) synced: Synced,
    /// The value of `lanefs.options`; set once the transport is known, before a request is served.
    pub(crate) options: Arc<OnceLock<String>>,
}

impl From<Synced> for Reports {
    fn from(synced: Synced) -> Reports {
        Reports {
            synced,
            options: Arc::default(),
        }
    }
}

/// The rest of an attribute's name, if it is one of these.
pub(crate) fn name(attribute: &[u8]) -> Option<&str> {
    std::str::from_utf8(attribute.strip_prefix(PREFIX)?).ok()
}

/// The value of an attribute.
pub(crate) fn read(
    fs: &InodeFs,
    name: &str,
    reports: &Reports,
    messages: &Messages,
) -> Answer<Vec<u8>> {
    let forms = fs.variants();
    let mut options = forms.options();
    let text = match name {
        "forms" => options
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect(),
        "operations" => messages.lines(),
        "state" => state(fs),
        "options" => reports.options.get().cloned().unwrap_or_default(),
        "sync" => match &reports.synced {
            Synced::All => "all\n".to_owned(),
            Synced::FsyncOnly(why) => format!("fsync only\n{why}\n"),
        },
        "choices" => Variants::choices()
            .map(|(name, values)| format!("{name}={}\n", values.join(",")))
            .collect(),
        "there" => Variants::all_there()
            .map(|(name, words)| format!("{name}={words}\n"))
            .collect(),
        "counters" => {
            let of_fs = fs.counters().into_iter();
            let of_fs = of_fs.map(|(name, value)| format!("{name} {value}\n"));
            of_fs.chain(messages.counter_lines()).collect()
        }
        one => {
            let found = options.find(|(name, _)| *name == one);
            found.map(|(_, value)| value).ok_or(Errno::NODATA)?
        }
    };
    Ok(text.into_bytes())
}

/// Whether the mount accepts changes. If it has stopped doing so: since when, and the first cause.
fn state(fs: &InodeFs) -> String {
    match fs.stopped() {
        Some(Stopped { cause, since }) => {
            format!("stopped\n{}\n{cause}\n", since.seconds)
        }
        None if fs.is_opened_for_writing() => "writing\n".to_owned(),
        None => "read-only\n".to_owned(),
    }
}

/// Switches a mechanism to another form.
pub(crate) fn write(fs: &InodeFs, name: &str, value: &[u8], caller: Caller) -> Answer<()> {
    if caller.uid != 0 && caller.uid != rustix::process::getuid().as_raw() {
        return Err(Errno::PERM);
    }
    let value = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
    let chosen = fs.choose(&format!("{name}={value}"));
    chosen.map_err(|error| match error {
        VariantError::Unknown(_) => Errno::OPNOTSUPP,
        VariantError::Value { .. } => Errno::INVAL,
    })
}
