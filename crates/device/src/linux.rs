//! What only Linux supports: which names lead to the same bytes and which program holds them, from sysfs and procfs;
//! leases and range locks; files without names; holes. `elsewhere` has the same functions for other systems.

pub(crate) mod files;
pub(crate) mod ground;
pub(crate) mod holder;
pub(crate) mod lease;
mod mapping;
pub(crate) mod preload;
mod record_lock;
