//! Repairs of images whose journal must be replayed.

mod images;
mod lost;
mod unread;
