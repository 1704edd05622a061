//! jbd2 scan and replay for lanefs.
