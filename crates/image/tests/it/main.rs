//! Images built from real trees, judged by e2fsck, the kernel's mount and a manifest of the source.

mod attributes;
mod failures;
mod lost_found;
mod profiles;
mod reproducible;
mod scale;
mod sizes;
mod tree;
