//! Records an interruption in a flag, for commands that must clean up before they end.

use std::io::{self, Write};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use sync::Arc;
use sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

/// A flag that is set when the user interrupts. After this call, a signal no longer ends the program.
pub fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(|error| Failure::new(format!("signals can't be caught: {error}")))?;
    }
    Ok(flag)
}

/// Makes a write beyond the limit of file sizes (`ulimit -f`) fail like any other write. Otherwise its signal would end
/// the program and leave an incomplete file.
pub fn survive_file_size_limit() {
    // If the signal can't be caught, it ends the program.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

/// A stream whose writes fail once the user has interrupted.
pub struct Stoppable<W> {
    inner: W,
    flag: Arc<AtomicBool>,
}

impl<W> Stoppable<W> {
    /// Writes to `inner` until `flag` is set.
    pub fn new(inner: W, flag: Arc<AtomicBool>) -> Stoppable<W> {
        Stoppable { inner, flag }
    }

    /// Whether the user interrupted.
    pub fn is_stopped(&self) -> bool {
        // Relaxed: the signal handler publishes nothing but the flag.
        self.flag.load(Ordering::Relaxed)
    }
}

impl<W: Write> Write for Stoppable<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_stopped() {
            // Not `Interrupted`, because `write_all` would try again.
            return Err(io::Error::other("interrupted"));
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_stops_when_the_flag_is_set() {
        let flag = Arc::new(AtomicBool::new(false));
        let mut stream = Stoppable::new(Vec::new(), Arc::clone(&flag));
        stream.write_all(b"a").unwrap();
        flag.store(true, Ordering::Relaxed);
        assert!(stream.write_all(b"b").is_err() && stream.is_stopped());
        assert_eq!(stream.inner, b"a");
    }
}
