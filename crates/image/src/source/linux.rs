//! Sources on Linux: directories walked through open descriptors, extended attributes, holes, and pipes that are
//! polled. `elsewhere` has the same functions for other systems.

pub(super) mod beneath;
pub(super) mod pipe;
mod probe;
pub(super) mod temporary;
pub(super) mod walk;
