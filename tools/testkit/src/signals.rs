//! Signals that end the programs under test, whatever started the tests.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Has SIGINT, SIGTERM and SIGHUP end this process and each program that it starts from now on.
///
/// A shell starts what it runs in the background with SIGINT ignored, and `nohup` with SIGHUP ignored; both are
/// inherited. A program under test would then outlive the signal that a test sends, and the test would wait for ever.
///
/// # Panics
/// When the system refuses a handler.
pub fn heed_signals() {
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // What a process handles is back at its default in the programs that it starts; what it ignores is not.
            let always = Arc::new(AtomicBool::new(true));
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, always).unwrap();
        }
    });
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const INNER: &str = "LANEFS_TEST_IGNORES_SIGNALS";

    #[test]
    fn a_program_ends_by_a_signal_that_was_ignored_where_the_tests_were_started() {
        let this = std::env::current_exe().unwrap();
        if std::env::var_os(INNER).is_none() {
            let output = Command::new("sh")
                .args(["-c", "trap '' INT HUP TERM; exec \"$0\" \"$@\""])
                .arg(this)
                .arg("a_program_ends_by_a_signal")
                .env(INNER, "1")
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            return;
        }
        heed_signals();
        for signal in ["INT", "HUP", "TERM"] {
            let script = format!("kill -{signal} $$; exit 7");
            let status = Command::new("sh").args(["-c", &script]).status().unwrap();
            assert!(status.signal().is_some(), "{signal}: {status}");
        }
    }
}
