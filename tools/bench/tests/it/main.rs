//! The benches and the program that runs them.

mod check;
mod null_server;
mod program;
mod workloads;
