//! Repairs of images whose journal must be replayed.

mod elsewhere;
mod fast_commits;
mod forgotten;
mod images;
mod lost;
mod unknown;
mod unread;
mod unstable;
