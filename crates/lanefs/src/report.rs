//! Errors that can't be returned, reported through the crate `tracing` if the feature of that name is on.

/// A file system was dropped, and closing it failed.
#[cfg(feature = "tracing")]
pub(crate) fn not_closed(error: &engine::Error) {
    tracing::error!(%error, "closing a file system that was dropped failed: changes since the last sync may be lost");
}

/// Without the feature, nothing is reported.
#[cfg(not(feature = "tracing"))]
pub(crate) fn not_closed(_error: &engine::Error) {}
