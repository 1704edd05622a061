//! Unit tests without optimisation, in a first build.
//!
//! A package has one level of optimisation for its library and for its unit tests, which are the library once more.
//! The library is optimised, because all tests run it; its unit tests take longer to optimise than to run. The engine's
//! take 43 seconds of processor time to compile with optimisation and 10 without, and then 3 more to run.

use std::process::Command;

use crate::compiler;

/// Unit tests that stay optimised: those that run schedules of threads by the thousand, and those of layouts of images,
/// which take longer to run without it than to optimise.
const OPTIMISED: [&str; 3] = ["lanefs_sync", "lanefs_journal", "lanefs_mkfs"];

/// Lets a build of the tests leave unit tests unoptimised, if it is the first build. Any other keeps what it has
/// compiled.
pub fn build_of_tests(cargo: &mut Command) -> Result<(), String> {
    if crate::is_first_build() && std::env::var_os(compiler::WRAPPER).is_none() {
        compiler::stand_in(cargo, compiler::TESTS)?;
    }
    Ok(())
}

/// Hands on a compiler's words, without optimisation if they compile unit tests of ours.
pub fn compile(compiler: &mut Command, mut words: Vec<String>) {
    let name = compiler::crate_of(&words);
    let is_plain = name.starts_with("lanefs") && !OPTIMISED.contains(&name);
    if is_plain && words.iter().any(|word| word == "--test") {
        for word in &mut words {
            if word.ends_with("opt-level=1") {
                word.replace_range(word.len() - 1.., "0");
            }
        }
    }
    compiler.args(words);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_tests_are_not_optimised_and_what_they_test_is() {
        let compiled = |words: &str| {
            let mut compiler = Command::new("rustc");
            compile(&mut compiler, words.split(' ').map(str::to_owned).collect());
            let words: Vec<_> = compiler.get_args().collect();
            words.join(" ".as_ref()).into_string().unwrap()
        };
        let units = "--crate-name lanefs_engine -C opt-level=1 --test -C codegen-units=1";
        assert_eq!(
            compiled(units),
            "--crate-name lanefs_engine -C opt-level=0 --test -C codegen-units=1"
        );
        for same in [
            "--crate-name lanefs_engine -C opt-level=1 -C codegen-units=1",
            "--crate-name lanefs_sync -C opt-level=1 --test",
            "--crate-name writing -C opt-level=1 --test",
        ] {
            assert_eq!(compiled(same), same);
        }
    }
}
