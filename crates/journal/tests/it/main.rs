//! The journal under a small client of its own (accounts, counters, blocks that change between metadata and data), with
//! threads, power cuts, faults, deliberate mistakes, and e2fsck and the kernel as judges.

mod attendant;
mod bank;
mod crash;
mod delays;
mod image;
mod interop;
mod modes;
mod turn;
