//! What is measured on demand, in a release build:
//! `cargo test --release -p lanefs-engine --test measuring -- --ignored --nocapture --test-threads 1`.

mod memory;
mod seal;

use lanefs_engine::{NewInode, Timestamp};

/// A clock that stands still: what is measured is not how the system tells the time.
fn clock() -> Timestamp {
    Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 5,
    }
}

fn new() -> NewInode {
    NewInode {
        mode: 0o644,
        umask: 0,
        uid: 0,
        gid: 0,
        held: false,
    }
}
