//! The `lanefs` program: all of it is in the library beside this file, except the choice of an allocator.

/// musl's allocator has one lock for all threads.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    lanefs_cli::run()
}
