//! `lanefs mount` as its users meet it, and what outside suites say of it.
//!
//! The ignored tests are long runs, or need programs from elsewhere: `cargo xtask suites` runs them, and
//! results/suites.md says what they found.

mod anchors;
mod basics;
mod caches;
mod changes;
mod clocks;
mod crash;
mod endings;
mod halfway;
mod hand;
mod handles;
mod holders;
mod idmap;
mod ioctls;
mod kill;
mod messages;
mod outside;
mod overlay;
mod rings;
mod served;
mod set_gid;
mod sharing;
mod sqlite;
mod stops;
mod storms;
mod syncs;
mod trees;
mod truth;
mod tuning;
mod waiters;
mod writeback;
