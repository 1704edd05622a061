//! Golden bytes: what mke2fs wrote is read as mke2fs meant it, and written back the same. `tests/golden/make.sh`
//! says how each file was made.

mod journal;
mod superblock;
mod text;
