//! `null-server DIRECTORY [-o default_permissions,no_open,io_uring=on|off] [--threads N]
//! [--tree DIRECTORIES,FILES,BYTES] [--stream BYTES]`: serves a mount without an image at a directory, until it is
//! unmounted. The time of a workload there is the share of a mount's time that the kernel and the protocol take.

use std::path::PathBuf;
use std::process::ExitCode;

use lanefs_fuse::{Access, Fuseblk, IoUring, NullTree, Options};

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("null-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), String> {
    let mut directory = None;
    let mut options = Options {
        source: "null".into(),
        access: Access::default(),
        block_device: Fuseblk::Never,
        io_uring: IoUring::Off,
        ..Options::default()
    };
    let mut tree = NullTree::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match &*word {
            "-o" => take(&mut options, &words.next().unwrap_or_default())?,
            "--threads" => {
                let count = words.next().unwrap_or_default();
                options.threads = count
                    .parse()
                    .map_err(|_| format!("--threads {count}: expected a number"))?;
            }
            "--tree" => {
                let list = words.next().unwrap_or_default();
                let numbers: Result<Vec<usize>, _> = list.split(',').map(str::parse).collect();
                let Ok([directories, files, bytes]) = numbers.as_deref() else {
                    return Err(format!("--tree {list}: expected three numbers"));
                };
                (tree.directories, tree.files) = (*directories, *files);
                tree.file_bytes = *bytes as u64;
            }
            "--stream" => {
                let bytes = words.next().unwrap_or_default();
                let bytes = bytes.parse().map_err(|_| format!("--stream {bytes}"))?;
                tree.stream_bytes = Some(bytes);
            }
            _ => directory = Some(PathBuf::from(word)),
        }
    }
    let directory = directory.ok_or("expected a directory")?;
    let mounted =
        lanefs_fuse::mount_null(&directory, &options, tree).map_err(|error| error.to_string())?;
    mounted.serve().map_err(|error| error.to_string())
}

fn take(options: &mut Options, list: &str) -> Result<(), String> {
    for word in list.split(',') {
        match word {
            "default_permissions" => options.access.default_permissions = true,
            "no_open" => options.no_open = true,
            "io_uring=on" => options.io_uring = IoUring::On,
            "io_uring=off" => options.io_uring = IoUring::Off,
            _ => return Err(format!("unknown option `{word}`")),
        }
    }
    Ok(())
}
