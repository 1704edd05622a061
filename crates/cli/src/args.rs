//! Options and number formats that several commands share.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::failure::Failure;

/// Where in the file or device the file system lies.
#[derive(Args, Clone, Debug, Default)]
pub struct ImageArgs {
    /// Use partition N of a whole disk (MBR or GPT)
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// The file system begins at this byte (suffixes K, M, G, T; s for sectors of 512 bytes)
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub offset: Option<u64>,
}

/// Which file system to read, and what to do with its journal.
#[derive(Args, Clone, Debug, Default)]
pub struct FsArgs {
    #[command(flatten)]
    pub image: ImageArgs,
    /// The device of an external journal, if it must be replayed
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Read what is on disk without the changes that are only in the journal
    #[arg(long, conflicts_with = "journal")]
    pub no_replay: bool,
    /// Use the copy of the superblock at this place, in units of 1 KiB (as mount's sb=)
    #[arg(long, value_name = "KIB")]
    pub superblock: Option<u64>,
    /// Read an image that another program uses, with a warning: the contents may be half changed
    #[arg(long)]
    pub in_use: bool,
}

impl FsArgs {
    /// Where the file system lies, for a command that writes to it; what only makes sense for reading is refused.
    pub fn for_writing(&self) -> Result<&ImageArgs, Failure> {
        let given = [
            ("--journal", self.journal.is_some()),
            ("--no-replay", self.no_replay),
            ("--superblock", self.superblock.is_some()),
            ("--in-use", self.in_use),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(Failure::usage(format!("{option} is for reading only"))),
            None => Ok(&self.image),
        }
    }
}

/// Refuses `-` as the image: its blocks are not written in the order of their numbers, so a pipe can't take them.
///
/// # Errors
/// A usage failure.
pub fn refuse_stdout(output: &Path) -> Result<(), Failure> {
    if output != Path::new("-") {
        return Ok(());
    }
    let failure = Failure::usage("an image can't be written to standard output");
    Err(failure.hint("name a file, and copy it afterwards; ./- is a file of that name"))
}

/// Reads a number of bytes: plain, or with s (512), K, M, G, T (powers of 1024; `KiB` and `KB` mean the same).
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let factor: u64 = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "s" => 512,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => {
            return Err(format!(
                "invalid size `{text}`: write 4096, 64K, 10M, 2G or 1T"
            ));
        }
    };
    if number.is_empty() {
        return Err(format!(
            "invalid size `{text}`: it must begin with a number"
        ));
    }
    // Digits only: what fails is too large.
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| format!("`{text}` is more bytes than there can be"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_the_usual_suffixes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("2048s"), Ok(1 << 20));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert!(parse_size("K").is_err());
        assert!(parse_size("1X").is_err());
        for size in ["99999999999T", "99999999999999999999"] {
            let refused = parse_size(size).unwrap_err();
            assert!(refused.contains("more bytes"), "{refused}");
        }
    }
}
