//! Errors that can't be returned, reported through the crate `tracing` if the feature of that name is on.

/// Reports that a file system was dropped and closing it failed.
#[cfg(feature = "tracing")]
pub(crate) fn not_closed(error: &engine::Error) {
    tracing::error!(%error, "a dropped file system could not be closed: changes since the last sync may be lost");
}

/// Reports nothing, because the feature is off.
#[cfg(not(feature = "tracing"))]
pub(crate) fn not_closed(_error: &engine::Error) {}
