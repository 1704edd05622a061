//! The program as its users meet it: on images made by mke2fs, compared with the kernel and the usual tools.

mod bench;
mod block_devices;
mod build;
mod change;
mod check;
mod cli_page;
mod containers;
mod copy_modes;
mod damaged;
mod disks;
mod epoch;
mod examples;
mod extract;
mod fixture;
mod frag;
mod full;
mod hostile;
mod look;
mod matrix;
mod pipe;
mod preload;
mod read;
mod readme;
mod status;
mod tune;
mod unchanged;
