//! This program in the compiler's place: cargo starts it instead of the compiler, and it starts the compiler with other
//! words for some crates. `cargo xtask sharing` and the tests of `cargo xtask ci` are built so.

use std::ffi::OsStr;
use std::process::{Command, ExitCode};

/// The variable that is set while this program stands in for the compiler. It says for which command.
const STANDS_IN: &str = "LANEFS_COMPILES_FOR";
/// What cargo starts in the compiler's place.
pub const WRAPPER: &str = "RUSTC_WRAPPER";

/// A command that needs this program in the compiler's place: its name, and the function that gives the words to the
/// compiler.
type Purpose = (&'static str, fn(&mut Command, Vec<String>));

pub const SHARING: Purpose = ("sharing", crate::sharing::compile);
pub const TESTS: Purpose = ("tests", crate::ci::compile_test);

/// Lets this program stand in for the compiler that a command of cargo starts.
pub fn stand_in(cargo: &mut Command, (name, _): Purpose) -> Result<(), String> {
    let this =
        std::env::current_exe().map_err(|error| format!("the path of this program: {error}"))?;
    cargo.env(STANDS_IN, name).env(WRAPPER, this);
    Ok(())
}

/// Compiles one crate, if cargo started this program in the compiler's place.
pub fn as_compiler() -> Option<ExitCode> {
    let wanted = std::env::var_os(STANDS_IN)?;
    let mut words = std::env::args().skip(1);
    let mut compiler = Command::new(words.next()?);
    let is_wanted = |(name, _): &Purpose| wanted == OsStr::new(name);
    let Some((_, compile)) = [SHARING, TESTS].into_iter().find(is_wanted) else {
        eprintln!("{STANDS_IN}: {} is unknown", wanted.display());
        return Some(ExitCode::FAILURE);
    };
    compile(&mut compiler, words.collect());
    let code = match compiler.status() {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()),
        Err(error) => {
            eprintln!("the compiler does not start: {error}");
            None
        }
    };
    Some(ExitCode::from(code.unwrap_or(1)))
}

/// The name of the crate that a compiler with these words compiles.
pub fn crate_of(words: &[String]) -> &str {
    let name = words.iter().position(|word| word == "--crate-name");
    name.and_then(|at| words.get(at + 1))
        .map_or("", String::as_str)
}
