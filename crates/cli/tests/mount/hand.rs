//! A process that does to files what has no safe function in Rust: io_submit(2), mappings, ioctls (`hand.py`).

use std::cell::RefCell;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const PROGRAM: &str = include_str!("hand.py");

/// The process, until this is dropped.
pub struct Hand {
    process: Child,
    pipes: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Hand {
    /// Whether there can be one here; says why not.
    pub fn is_there() -> bool {
        let has_python = testkit::have("python3");
        if !has_python {
            testkit::skip("needs python3");
        }
        has_python
    }

    /// Starts the process.
    pub fn start() -> Hand {
        let mut process = Command::new("python3")
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, answers) = (
            process.stdin.take().unwrap(),
            process.stdout.take().unwrap(),
        );
        Hand {
            process,
            pipes: RefCell::new((commands, BufReader::new(answers))),
        }
    }

    /// Has a function of `hand.py` called with these arguments.
    ///
    /// # Errors
    /// The function's own.
    pub fn run(&self, function: &str, arguments: &[&dyn Display]) -> io::Result<()> {
        let mut line = function.to_owned();
        for argument in arguments {
            line += &format!("\t{argument}");
        }
        let (commands, answers) = &mut *self.pipes.borrow_mut();
        writeln!(commands, "{line}").unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        let number = answer.trim().parse();
        match number.unwrap_or_else(|_| panic!("{line:?} is answered with {answer:?}")) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
