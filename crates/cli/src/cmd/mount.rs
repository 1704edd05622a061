//! `lanefs mount`: an image at a directory, until it is unmounted.
//!
//! Without `-f` a second process, in a session of its own, mounts and serves; the first waits until the directory is
//! ready, or until the second has said why it is not. The second tells by a byte on its standard output, and lets go of
//! the terminal then. SIGTERM, SIGINT and SIGHUP unmount.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fuse::{MountError, Mounted, Options, Unmounter};
use lanefs::Atime;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use sync::thread;

use crate::args::ImageArgs;
use crate::cmd::mount_options::Settings;
use crate::context::Context;
use crate::failure::Failure;
use crate::open::open_to_mount;

/// The exit status of mount(8) when mounting failed.
const MOUNT_FAILED: u8 = 32;
/// Between two tries to unmount what is in use, after a signal.
const PAUSE: Duration = Duration::from_millis(250);
/// How often that is tried.
const TRIES: u32 = 40;
/// What tells that the mount is over; signals write another byte.
const OVER: u8 = b'.';

/// Mount an image on a directory through FUSE, to be used like any file system
///
/// As root, or for any user through fusermount3. It is unmounted by `lanefs umount DIR`, which waits until the image is
/// closed; by `umount` or `fusermount3 -u`; or by SIGTERM. The image is then clean. Nobody else can use it meanwhile.
#[derive(clap::Args)]
#[command(after_help = "Options of -o, separated by commas:
  ro, rw               read only, or to be written to (default)
  allow_other          let other users in (means default_permissions)
  default_permissions  the kernel checks owners and modes; without it, who may enter may do all
  noload               do without the journal: with ro, leave out what is only in it; else the image must be
                       clean, and a crash leaves it to e2fsck
  commit=SECONDS       how long a change may be only in memory (default 5)
  errors=continue|remount-ro|panic
                       what to do when the image turns out to be corrupt (panic: change nothing more, at once)
  data=ordered|writeback, journal_async_commit, fast_commit|nofast_commit
                       as for ext4
  discard, nodiscard   tell the device or file which blocks are free, or not; else what the superblock says
  bsdgroups, sysvgroups
                       whose group new files are: their directory's, or their maker's; else what the superblock says
  noatime, relatime, strictatime, lazytime, nosuid, nodev, noexec, sb=KIB
                       as for mount(8) and ext4
  threads=N            how many requests are answered at once
  inode_cache=SIZE, metadata_cache=SIZE, live_cache=SIZE (default 32M each),
  group_cache=SIZE, staged_cache=SIZE (default 64M each)
                       memory for inodes; metadata as read; metadata that changed; which blocks
                       are free; what is committed and not yet written home. What is in use stays
                       beyond it
  orphan=lockless|locked|list, stream_goal=hashed|inode|global, group_lock=try|wait,
  mb_optimize_scan=1|0, prealloc=on|off, inode_lookup=rcu|locked,
  dir_ireserve=auto|off|low|normal|high|N, log_update=inplace|insert,
  log_use=auto|always
                       which form of a mechanism is used

Exit status: 0 mounted (with -f: unmounted), 1 a wrong option, 2 usage, 32 not mounted.")]
pub struct Args {
    /// The file or block device
    image: PathBuf,
    /// The directory
    directory: PathBuf,
    /// Options, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Be the process that serves
    #[arg(long, hide = true, conflicts_with = "foreground")]
    serve: bool,
    #[command(flatten)]
    place: ImageArgs,
}

impl Args {
    /// Mounts, and serves the mount or leaves that to another process.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let settings = Settings::parse(self.options.iter().map(String::as_str))?;
        match self.foreground || self.serve {
            true => self.mount_and_serve(context, &settings),
            false => self.start_server(context),
        }
    }

    /// Starts the process that serves, and waits until it is ready.
    fn start_server(&self, context: &Context) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::new(error).status(MOUNT_FAILED);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["mount", "--serve"]);
        if context.quiet() {
            command.arg("--quiet");
        }
        for _ in 0..context.verbosity() {
            command.arg("--verbose");
        }
        for options in &self.options {
            command.args(["-o", options]);
        }
        if let Some(number) = self.place.partition {
            command.args(["--partition", &number.to_string()]);
        }
        if let Some(offset) = self.place.offset {
            command.args(["--offset", &offset.to_string()]);
        }
        command.arg("--").arg(&self.image).arg(&self.directory);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut ready = [0];
        let said = child
            .stdout
            .take()
            .map(|mut out| out.read_exact(&mut ready));
        if matches!(said, Some(Ok(()))) {
            return Ok(());
        }
        let status = child.wait().map_err(failed)?;
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        // It has said why.
        Err(Failure::told().status(code.filter(|code| *code != 0).unwrap_or(MOUNT_FAILED)))
    }

    fn mount_and_serve(&self, context: &Context, settings: &Settings) -> Result<(), Failure> {
        if self.serve {
            // Fails only for who leads a group of processes, and then changes nothing.
            let _ = rustix::process::setsid();
        }
        let (mut events, ours) = UnixStream::pair().map_err(Failure::new)?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let end = ours.try_clone().map_err(Failure::new)?;
            pipe::register(signal, end).map_err(Failure::new)?;
        }
        let mounted = self.mount(context, settings)?;
        let unmounter = mounted.unmounter();
        if self.serve {
            tell_ready_and_leave();
        }
        let mut over = ours;
        let server = thread::spawn(move || {
            let served = mounted.serve();
            // Whoever reads this is still there: it waits for the byte.
            let _ = over.write_all(&[OVER]);
            served
        });
        wait_for_end(context, &mut events, &unmounter)?;
        let served = server.join();
        let served = served.map_err(|_| Failure::new("serving the mount failed"))?;
        served.map_err(|error| Failure::new(error).at(self.image.display()))
    }

    fn mount(&self, context: &Context, settings: &Settings) -> Result<Mounted, Failure> {
        let (fs, is_writable) = open_to_mount(
            context,
            &self.image,
            &self.place,
            &settings.open,
            settings.access.read_only,
        )
        .map_err(|failure| failure.status(MOUNT_FAILED))?;
        let image = self.image.canonicalize();
        let image = image.unwrap_or_else(|_| self.image.clone());
        let mut options = Options {
            source: image.to_string_lossy().into_owned(),
            access: settings.access.clone(),
            ..Options::default()
        };
        options.access.read_only |= !is_writable;
        options.access.no_atime = settings.open.atime == Atime::Never;
        if let Some(threads) = settings.threads {
            options.threads = threads;
        }
        let mounted = fuse::mount(fs, &self.directory, &options)
            .map_err(|error| explained(&self.directory, &error).status(MOUNT_FAILED))?;
        if !is_writable && !settings.access.read_only {
            let shown = self.image.display();
            context.note(format_args!(
                "{shown} may only be read, so it is mounted read-only"
            ));
        }
        Ok(mounted)
    }
}

/// Why a mount was refused, with the next step.
fn explained(directory: &Path, error: &MountError) -> Failure {
    let failure = Failure::new(error);
    match error {
        MountError::NoFuse => failure.hint("load it: modprobe fuse"),
        MountError::NoHelper => failure.hint("install the package fuse3, or mount as root"),
        MountError::Helper(text) if text.contains("user_allow_other") => {
            failure.hint("an administrator allows it in /etc/fuse.conf; or leave out allow_other")
        }
        MountError::Helper(text) if text.contains("/dev/fuse") => failure.hint(
            "you may not use FUSE here: mount as root, or have an administrator open it (chmod 666 /dev/fuse)",
        ),
        MountError::Helper(text) if text.contains("write access") => failure.hint(format!(
            "{} must be yours to be written to",
            directory.display()
        )),
        _ => failure,
    }
}

/// Says that the directory is ready, and lets go of the terminal and of the directory that this was started in.
fn tell_ready_and_leave() {
    // Whoever started this may be gone; the mount is there all the same.
    let mut out = io::stdout();
    let _ = out.write_all(b"+").and_then(|()| out.flush());
    if let Ok(nothing) = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        let _ = rustix::stdio::dup2_stdin(&nothing);
        let _ = rustix::stdio::dup2_stdout(&nothing);
        let _ = rustix::stdio::dup2_stderr(&nothing);
    }
    let _ = std::env::set_current_dir("/");
}

/// Waits until the mount is over; a signal unmounts. While files are open that is tried again and again, and at last,
/// or at a second signal, they are cut off.
fn wait_for_end(
    context: &Context,
    events: &mut UnixStream,
    unmounter: &Unmounter,
) -> Result<(), Failure> {
    let mut tries = 0;
    loop {
        let mut event = [0];
        match events.read(&mut event) {
            Ok(1) if event[0] == OVER => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // The first signal, or a pause after it.
            Ok(1) if tries == 0 => tries = 1,
            Err(_) if tries < TRIES => tries += 1,
            _ => {
                events.set_read_timeout(None).map_err(Failure::new)?;
                unmounter.abort().map_err(|error| {
                    Failure::new(error)
                        .hint("the image's journal is replayed when it is opened next")
                })?;
                continue;
            }
        }
        match unmounter.unmount() {
            Ok(()) => events.set_read_timeout(None).map_err(Failure::new)?,
            Err(MountError::Busy(directory)) => {
                if tries == 1 {
                    let (shown, seconds) = (directory.display(), (PAUSE * TRIES).as_secs());
                    context.note(format_args!(
                        "{shown} is in use; what is open is cut off in {seconds} s"
                    ));
                }
                events.set_read_timeout(Some(PAUSE)).map_err(Failure::new)?;
            }
            Err(error) => {
                context.error(&error);
                tries = 0;
            }
        }
    }
}
