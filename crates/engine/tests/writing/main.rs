//! Changing images: each change survives any cut whole or not at all, and e2fsck and the kernel agree.

mod acls;
mod atomic;
mod attributes;
mod cuts;
mod damage;
mod data;
mod errors;
mod executor;
mod faults;
mod files;
mod flags;
mod full;
mod guard;
mod holding;
mod image;
mod interop;
mod journaling;
mod large;
mod mounting;
mod names;
mod orphans;
mod recovery;
mod sizes;
mod threads;
mod turns;
mod xattrs;
