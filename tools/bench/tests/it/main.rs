//! The benches and the program that runs them.

mod null_server;
mod program;
mod workloads;
