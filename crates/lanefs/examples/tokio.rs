//! An async program: calls block, so they run on tokio's blocking threads. `cargo run -p lanefs --example tokio`

use std::io::Write;
use std::sync::Arc;

use lanefs::{Error, Fs, OpenOptions};
use tokio::task::{JoinError, JoinSet, spawn_blocking};

/// Awaits a call of the file system, which runs on a blocking thread.
async fn with<T: Send + 'static>(
    fs: &Fs,
    call: impl FnOnce(&Fs) -> Result<T, Error> + Send + 'static,
) -> Result<Result<T, Error>, JoinError> {
    let fs = fs.clone();
    spawn_blocking(move || call(&fs)).await
}

async fn work() -> Result<(), Box<dyn std::error::Error>> {
    let fs = spawn_blocking(|| Fs::in_memory(32 << 20)).await??;
    with(&fs, |fs| fs.create_dir("/logs")).await??;

    // Tasks share one open file: an append is one step.
    let log = with(&fs, |fs| {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(fs, "/logs/all")
    });
    let log = Arc::new(log.await??);
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let (fs, log) = (fs.clone(), Arc::clone(&log));
        tasks.spawn_blocking(move || {
            fs.write(format!("/logs/{number}"), format!("task {number}\n"))?;
            writeln!(&*log, "task {number}")
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    // An fsync waits for the device; other tasks run meanwhile.
    let synced = Arc::clone(&log);
    spawn_blocking(move || synced.sync_data()).await??;
    drop(log);

    let all = with(&fs, |fs| fs.read_to_string("/logs/all")).await??;
    assert_eq!(all.lines().count(), 8);
    // Closing commits, which blocks. The last drop would close too, but on this thread, and it returns no error.
    spawn_blocking(|| fs.close()).await??;
    Ok(())
}

/// Runs the example; a test does so too.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()?;
    runtime.block_on(work())
}
