//! `lanefs-bench null-server`: a server without an image at a directory, until it is unmounted.

use std::path::PathBuf;
use std::time::Duration;

use fuse::{Access, Fuseblk, IoUring, NullTree, Options, Polling};

use crate::failure::RunFailure;

/// The word that runs this in place of a bench.
pub const NAME: &str = "null-server";

/// Mount a FUSE server without a file system, until it is unmounted
///
/// It speaks over the same transports as `lanefs mount`, keeps names and attributes in memory and no contents. So the
/// time of a workload on it is that of the kernel, the protocol and the transport.
#[derive(clap::Parser)]
#[command(name = "lanefs-bench null-server", max_term_width = 100)]
pub struct Args {
    /// The directory
    directory: PathBuf,
    /// default_permissions, no_open, io_uring=on|off|auto, poll=auto|off|US, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<MountOption>,
    /// Threads that read /dev/fuse
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Begin with directories d0, d1, ..., each with files f0, f1, ... of this size
    #[arg(long, value_name = "DIRECTORIES,FILES,BYTES", value_delimiter = ',')]
    tree: Vec<u64>,
    /// Begin with a file `stream` of this size
    #[arg(long, value_name = "BYTES")]
    stream: Option<u64>,
}

/// An option of the mount.
#[derive(Clone, Copy)]
enum MountOption {
    DefaultPermissions,
    NoOpen,
    IoUring(IoUring),
    Poll(Polling),
}

impl std::str::FromStr for MountOption {
    type Err = String;

    fn from_str(word: &str) -> Result<MountOption, String> {
        Ok(match word {
            "default_permissions" => MountOption::DefaultPermissions,
            "no_open" => MountOption::NoOpen,
            "io_uring=on" => MountOption::IoUring(IoUring::On),
            "io_uring=auto" => MountOption::IoUring(IoUring::Auto),
            "io_uring=off" => MountOption::IoUring(IoUring::Off),
            "poll=auto" => MountOption::Poll(Polling::Auto),
            "poll=off" => MountOption::Poll(Polling::Off),
            _ => {
                let time = word
                    .strip_prefix("poll=")
                    .and_then(|time| time.parse().ok());
                let time = time.ok_or(
                    "expected default_permissions, no_open, io_uring=on|auto|off or poll=auto|off|US",
                )?;
                MountOption::Poll(Polling::Most(Duration::from_micros(time)))
            }
        })
    }
}

impl Args {
    /// Mounts, and serves the mount.
    ///
    /// # Errors
    /// When the directory can't be mounted, or serving it fails.
    pub fn run(self) -> Result<(), RunFailure> {
        let tree = self.tree()?;
        let mut options = Options {
            source: "null".into(),
            access: Access::default(),
            block_device: Fuseblk::Never,
            ..Options::default()
        };
        options.threads = self.threads.map_or(options.threads, usize::from);
        for option in self.options {
            match option {
                MountOption::DefaultPermissions => options.access.default_permissions = true,
                MountOption::NoOpen => options.no_open = true,
                MountOption::IoUring(wanted) => options.io_uring = wanted,
                MountOption::Poll(wanted) => options.poll = wanted,
            }
        }
        let mounted = fuse::mount_null(&self.directory, &options, tree);
        let mounted = mounted.map_err(RunFailure::new)?;
        mounted.serve().map_err(RunFailure::new)
    }

    fn tree(&self) -> Result<NullTree, RunFailure> {
        let wrong = || RunFailure::usage("--tree: expected three numbers, such as 100,200,4096");
        let number = |value: u64| usize::try_from(value).map_err(|_| wrong());
        let (directories, files, file_bytes) = match self.tree[..] {
            [] => (0, 0, 0),
            [directories, files, bytes] => (number(directories)?, number(files)?, bytes),
            _ => return Err(wrong()),
        };
        Ok(NullTree {
            directories,
            files,
            file_bytes,
            stream_bytes: self.stream,
        })
    }
}
