//! The metadata block cache of lanefs.
