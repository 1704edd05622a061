//! Changing images: each change survives any cut whole or not at all, and e2fsck and the kernel agree.

mod attributes;
mod cuts;
mod data;
mod files;
mod image;
mod mounting;
mod orphans;
mod threads;
