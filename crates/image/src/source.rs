//! What the user names as input, read into one [`tree::SourceTree`] in memory: directories, tar archives, OCI images.
//!
//! A scan looks at everything and reads no file's data; afterwards the tree says where each file's bytes are and
//! opens them. Nothing here writes anything.

mod acl_text;
mod apply;
mod archive;
mod batch;
pub mod builder;
pub mod bytes;
mod capability;
mod contexts;
mod directory;
pub mod error;
pub mod exclude;
mod inputs;
pub mod limits;
pub(crate) mod lost_found;
mod oci;
pub mod options;
pub mod origin;
mod resolve;
mod scan;
mod spool;
mod stream;
mod system;
mod table;
mod tar;
pub mod time;
pub mod tree;
pub mod xattrs;

#[cfg(target_os = "linux")]
mod linux;
// Compiled on Linux for tests only, which compare it with `linux`.
#[cfg(any(test, not(target_os = "linux")))]
#[cfg_attr(target_os = "linux", allow(dead_code))]
mod elsewhere;

pub use error::{SinkError, SourceError};
pub use lost_found::LostFoundTime;
pub use oci::is_image_directory;
pub use options::{Input, Options, SourcePlace};
pub use origin::{DataSink, FileReader, Nearby};
pub use scan::{reads_once, scan, scan_streaming};
pub use time::Time;
pub use tree::{Attributes, Data, DataExtent, Kind, NodeId, SourceId, SourceTree};
