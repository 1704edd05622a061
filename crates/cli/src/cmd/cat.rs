//! `lanefs cat`: the bytes of files, one after the other, on standard output.

use std::ffi::OsString;
use std::io::Write;

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::images::Images;
use crate::target::ImagePath;

/// How many bytes are read at once.
const COPY_BYTES: usize = 1 << 20;
/// How many bytes are read at once before a place that can't be read.
const PIECE_BYTES: usize = 512;

/// Print files of an image
#[derive(clap::Args)]
pub struct Args {
    /// IMAGE:PATH, or IMAGE followed by paths
    #[arg(required = true, value_name = "IMAGE:PATH")]
    targets: Vec<OsString>,
    #[command(flatten)]
    from: FsArgs,
}

impl Args {
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let targets = ImagePath::parse_all(&self.targets)?;
        let images = Images::open(context, &targets, &self.from)?;
        let mut output = context.stdout();
        let mut failed = false;
        for target in &targets {
            if !target.has_path {
                let failure = Failure::usage(format!("{} names no file", target.image.display()));
                return Err(failure.hint("write IMAGE:/PATH"));
            }
            let fs = images.of(target);
            // What came before an error must come out before its message does.
            match fs.file(target.path()) {
                Ok(file) => failed |= !copy(context, target, &file, &mut output)?,
                Err(error) => {
                    output.flush()?;
                    context.error(error);
                    failed = true;
                }
            }
        }
        output.flush()?;
        if failed { Err(Failure::told()) } else { Ok(()) }
    }
}

/// Copies a file; returns whether all of it could be read.
pub fn copy(
    context: &Context,
    target: &ImagePath,
    file: &lanefs::File,
    output: &mut dyn Write,
) -> Result<bool, Failure> {
    let size = usize::try_from(file.metadata()?.size).unwrap_or(COPY_BYTES);
    let mut buffer = vec![0; size.clamp(1, COPY_BYTES)];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at) {
            Ok(0) => return Ok(true),
            Ok(read) => output.write_all(&buffer[..read])?,
            // What precedes the byte that can't be read is read in small pieces.
            Err(_) if buffer.len() > PIECE_BYTES => {
                buffer.truncate(PIECE_BYTES);
                continue;
            }
            Err(error) => {
                output.flush()?;
                context.error(format_args!("{}: {error}", target.shown()));
                return Ok(false);
            }
        }
        at += buffer.len() as u64;
        if at >= file.metadata()?.size {
            return Ok(true);
        }
    }
}
