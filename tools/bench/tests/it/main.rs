//! The benches and the program that runs them.

mod program;
mod workloads;
