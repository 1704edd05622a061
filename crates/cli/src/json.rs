//! What `--json` prints: one object with a version, so that scripts know what to expect.
//!
//! Names are text where they are UTF-8; else they are text with replacement characters, and `NAME_hex` has the bytes.

use std::io::{self, Write};

use lanefs::{Metadata, Timestamp};
use serde_json::{Map, Value};

use crate::format;

/// The version of the format; it grows when something that was there changes or goes.
const VERSION: u32 = 1;

/// An object.
pub type JsonObject = Map<String, Value>;

/// Writes `{"version": 1, "NAME": value}` and a line's end.
pub fn write(output: &mut dyn Write, name: &str, value: Value) -> io::Result<()> {
    let mut object = JsonObject::new();
    object.insert("version".into(), VERSION.into());
    object.insert(name.into(), value);
    serde_json::to_writer_pretty(&mut *output, &object)?;
    writeln!(output)
}

/// Puts bytes that are mostly text.
pub fn put_bytes(object: &mut JsonObject, name: &str, bytes: &[u8]) {
    object.insert(name.into(), String::from_utf8_lossy(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        object.insert(format!("{name}_hex"), hex(bytes).into());
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All that `stat` reports.
pub fn metadata(metadata: &Metadata) -> JsonObject {
    let time = |time: Timestamp| Value::from(format::time_json(time));
    let mut object = JsonObject::new();
    let mut put = |name: &str, value: Value| object.insert(name.into(), value);
    put("inode", metadata.ino.0.into());
    put("type", format::kind_word(metadata.file_type).into());
    put("mode", format!("{:04o}", metadata.mode & 0o7777).into());
    put("uid", metadata.uid.into());
    put("gid", metadata.gid.into());
    put("size", metadata.size.into());
    put("allocated", metadata.blocks.saturating_mul(512).into());
    put("links", metadata.nlink.into());
    put("accessed", time(metadata.atime));
    put("modified", time(metadata.mtime));
    put("changed", time(metadata.ctime));
    if let Some(born) = metadata.crtime {
        put("born", time(born));
    }
    if metadata.rdev != (0, 0) {
        put("major", metadata.rdev.0.into());
        put("minor", metadata.rdev.1.into());
    }
    put("flags", format!("{:#x}", metadata.flags.0).into());
    put("generation", metadata.generation.0.into());
    if metadata.project != 0 {
        put("project", metadata.project.into());
    }
    object
}
