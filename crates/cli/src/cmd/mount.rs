//! `lanefs mount`: an image at a directory, until it is unmounted.
//!
//! Without `-f` a second process, in a session of its own, mounts and serves; the first waits until the directory is
//! ready, or until the second has reported an error. The second reports with a byte on its standard output, and leaves
//! the terminal then. SIGTERM, SIGINT and SIGHUP unmount.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fuse::{IoUring, ListedMount, MountError, Mounted, Options, Synced, Unmounter};
use lanefs::{Atime, Stopped};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;
use sync::{Arc, OnceLock, thread};

use crate::args::ImageArgs;
use crate::cmd::mount_options::{Settings, shown};
use crate::context::Context;
use crate::failure::Failure;
use crate::mount_state::{WHAT_IS_LOST, described};
use crate::open::{ToMount, open_to_mount};

/// The exit status of mount(8) when mounting failed.
const MOUNT_FAILED: u8 = 32;
/// Between two tries to unmount what is in use, after a signal.
const PAUSE: Duration = Duration::from_millis(250);
/// How often that is tried.
const TRIES: u32 = 40;
/// How long serving may take to end once the connection is cut, before the process ends without it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The exit status of a server that ended without closing the image.
const NOT_CLOSED: u8 = 1;
/// The byte that reports that the mount is over; signals write another byte.
const OVER: u8 = b'.';
/// The byte that reports that the mount stopped accepting changes.
const STOPPED: u8 = b'!';

/// Mount an image on a directory through FUSE
///
/// Root can mount, and other users through fusermount3. `lanefs umount DIR` unmounts and returns when the image is
/// closed and clean. `umount`, `fusermount3 -u` and SIGTERM unmount, too. While an image is mounted for writing, other
/// lanefs commands refuse it.
#[derive(clap::Args)]
#[command(after_help = "Options of -o, separated by commas:
  ro, rw               read only; read and write (default)
  allow_other          let other users in (implies default_permissions)
  default_permissions  let the kernel check owners and modes; without it, a user of the mount
                       may do everything
  noload               do not use the journal. With ro: show the image without the changes that are
                       only in it. With rw: refused unless the image is clean; after a crash the
                       image needs e2fsck
  commit=SECONDS       how long a change may be in memory only (default 5)
  fuseblk, nofuseblk   give the kernel a block device, so that sync(1) and umount(8) wait until
                       everything is written, or do not (default: give it one if root mounts and
                       the host has a free loop device)
  no_open              let the kernel open and close files without asking: fewer messages; see
                       docs/mount-server.md for what differs then
  writeback_cache      let the kernel keep what programs write, and write it later: only fsync
                       makes it durable then, not sync(1); see docs/mount-server.md
  destroy_timeout=SECONDS
                       how long umount(8) waits for a device that does not answer, if the kernel
                       has a block device (default 30)
  check                first repair what needs no decision (lanefs check -p), and do not mount if
                       anything else is wrong; with ro, check only
  errors=continue|remount-ro|panic
                       what to do when the image turns out to be corrupt (panic: change nothing
                       more, at once)
  data=ordered|writeback, journal_async_commit, fast_commit|nofast_commit
                       as for ext4
  discard, nodiscard   tell the device or file which blocks are free, or not (default: as the
                       superblock says)
  bsdgroups, sysvgroups
                       new files belong to their directory's group, or to their maker's
                       (default: as the superblock says)
  sync, dirsync        make every change (sync) or every change of a name (dirsync) durable before
                       the call returns
  nosuid, nodev        ignore set-user-ID bits, and refuse to open device files. For root's mounts
                       they are not set by default: use both for an image that you do not trust
  noatime, relatime, strictatime, nodiratime, lazytime, noexec, sb=KIB
                       as for mount(8) and ext4
  threads=N            number of threads that answer requests, without io_uring
  poll=auto|off|US     without io_uring: look for the next request for up to US microseconds before
                       a thread sleeps, while one client sends many (default auto: 50, but not on
                       one core or with a CPU quota)
  io_uring=auto|on|off take requests over io_uring (default off; auto: if the kernel offers it and
                       threads= is not given)
  inode_cache=SIZE, metadata_cache=SIZE, live_cache=SIZE (default 32M each),
  group_cache=SIZE, staged_cache=SIZE (default 64M each)
                       memory for inodes; metadata as read; changed metadata; free blocks of
                       groups; committed metadata that is not written home. What is in use is
                       not counted
Further options choose the form of a mechanism: see docs/scaling.md.

Exit status: 0 mounted (with -f: unmounted), 1 usage, 32 not mounted.")]
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
    /// Check the options, and mount nothing (mount -f)
    #[arg(long, hide = true)]
    fake: bool,
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
        if self.fake {
            return Ok(());
        }
        // The process that serves is started once the check has passed.
        if settings.checks && !self.serve {
            self.check(context, &settings)?;
        }
        if self.foreground || self.serve {
            self.mount_and_serve(context, &settings)
        } else {
            self.start_server(context)
        }
    }

    /// Repairs what needs no decision, as fsck does for a line of fstab; a read-only mount is only checked. What is
    /// left keeps the image from being mounted.
    fn check(&self, context: &Context, settings: &Settings) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::new(error).status(MOUNT_FAILED);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("check");
        if !settings.access.read_only {
            command.arg("-p");
        }
        if let Some(kib) = settings.open.superblock {
            command.args(["--superblock", &kib.to_string()]);
        }
        if let Some(number) = self.place.partition {
            command.args(["--partition", &number.to_string()]);
        }
        if let Some(offset) = self.place.offset {
            command.args(["--offset", &offset.to_string()]);
        }
        command.arg("--").arg(&self.image).stdin(Stdio::null());
        let output = command.stderr(Stdio::inherit()).output().map_err(failed)?;
        // fsck(8): 0 clean, 1 repaired.
        if matches!(output.status.code(), Some(0 | 1)) {
            return Ok(());
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            context.error(line);
        }
        // fsck(8) adds these: 1 repaired, 4 errors are left, 8 and more the check is not complete.
        if !matches!(output.status.code(), Some(4 | 5)) {
            let failure = Failure::new("not mounted: -o check came to no verdict");
            return Err(failure.at(self.image.display()).status(MOUNT_FAILED));
        }
        let failure = Failure::new("not mounted: -o check found what it does not repair");
        let hint = format!(
            "`lanefs check -y {}` repairs everything",
            self.image.display()
        );
        Err(failure
            .at(self.image.display())
            .hint(hint)
            .status(MOUNT_FAILED))
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
            // Fails only in the leader of a process group, and then changes nothing.
            let _ = rustix::process::setsid();
            // A signal that ends the process which waits for the directory ends this one too, until it is ready.
            let _ = set_parent_process_death_signal(Some(Signal::TERM));
            if is_starter_gone() {
                return Err(Failure::told().status(MOUNT_FAILED));
            }
        }
        let (mut events, ours) = UnixStream::pair().map_err(Failure::new)?;
        let mounted = self.mount(context, settings, &ours)?;
        let unmounter = mounted.unmounter();
        let stopped = self.watch(&mounted, &ours)?;
        if self.serve {
            tell_ready_and_leave();
            let context = context.in_background();
            let served = self.serve(&context, mounted, &mut events, ours, &unmounter, &stopped);
            // The process that was started by the user is gone.
            return served.map_err(|failure| {
                failure.report(&context);
                Failure::told()
            });
        }
        self.serve(context, mounted, &mut events, ours, &unmounter, &stopped)
    }

    /// Has a byte sent, and the cause kept, when the mount stops accepting changes.
    fn watch(
        &self,
        mounted: &Mounted,
        events: &UnixStream,
    ) -> Result<Arc<OnceLock<Stopped>>, Failure> {
        let cause = Arc::new(OnceLock::new());
        let kept = Arc::clone(&cause);
        let end = events.try_clone().map_err(Failure::new)?;
        mounted.on_stop(move |stopped| {
            if kept.set(stopped.clone()).is_ok() {
                // The process that reads this is still there.
                let _ = (&end).write_all(&[STOPPED]);
            }
        });
        Ok(cause)
    }

    fn serve(
        &self,
        context: &Context,
        mounted: Mounted,
        events: &mut UnixStream,
        ours: UnixStream,
        unmounter: &Unmounter,
        stopped: &OnceLock<Stopped>,
    ) -> Result<(), Failure> {
        let mut over = ours;
        let server = thread::spawn(move || {
            let served = mounted.serve();
            // The process that reads this is still there: it waits for the byte.
            let _ = over.write_all(&[OVER]);
            served
        });
        wait_for_end(context, events, unmounter, &|| {
            if let Some(stopped) = stopped.get() {
                context.error(format_args!(
                    "{}: {}",
                    self.image.display(),
                    described(stopped)
                ));
                context.hint(format_args!("unmount it; {WHAT_IS_LOST}"));
            }
        })?;
        let served = server.join();
        let served = served.map_err(|_| Failure::new("serving the mount failed"))?;
        served.map_err(|error| Failure::new(error).at(self.image.display()))
    }

    /// Opens the image and mounts it. Until the image is open a signal ends the process as ever: what is there then is
    /// what a crash leaves. From then on signals are bytes for the other end of `signals`.
    fn mount(
        &self,
        context: &Context,
        settings: &Settings,
        signals: &UnixStream,
    ) -> Result<Mounted, Failure> {
        leave_clients_memory(context, settings);
        let ToMount { fs, writing } = open_to_mount(
            context,
            &self.image,
            &self.place,
            &settings.open,
            settings.access.read_only,
        )
        .map_err(|failure| failure.status(MOUNT_FAILED))?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let end = signals.try_clone().map_err(Failure::new)?;
            pipe::register(signal, end).map_err(Failure::new)?;
        }
        let image = self.image.canonicalize();
        let image = image.unwrap_or_else(|_| self.image.clone());
        let mut options = Options {
            source: image.to_string_lossy().into_owned(),
            access: settings.access.clone(),
            ..Options::default()
        };
        let is_writable = writing.is_some();
        options.access.read_only |= !is_writable;
        options.access.no_atime = settings.open.atime == Atime::Never;
        options.io_uring = match (settings.io_uring, settings.threads) {
            // `threads=` is about the workers that read /dev/fuse, which io_uring does not have.
            (IoUring::Auto, Some(_)) => IoUring::Off,
            (wanted, _) => wanted,
        };
        options.threads = settings.threads.unwrap_or(options.threads);
        options.poll = settings.poll;
        options.block_device = settings.block_device;
        options.image = writing.as_ref().map(|image| Arc::clone(&image.device));
        options.idle_commits = settings.idle_commits;
        options.no_open = settings.no_open;
        options.writeback_cache = settings.writeback_cache;
        options.shown = shown::rows(settings, &fs, is_writable);
        options.destroy_timeout = settings.destroy_timeout.unwrap_or(options.destroy_timeout);
        let left = fuse::mounts_of(Path::new(&options.source));
        let mounted = fuse::mount(fs, &self.directory, &options)
            .map_err(|error| explained(&self.directory, &error).status(MOUNT_FAILED))?;
        // A mount that fails has changed nothing; no request is answered before this.
        if let Some(image) = writing
            && let Err(error) = image.held.release()
        {
            // The directory is not to stay behind; why it failed says more than whether this does.
            let _ = mounted.abandon();
            let failure = Failure::new(error).at(self.image.display());
            return Err(failure.status(MOUNT_FAILED));
        }
        self.note_what_differs(context, settings, &mounted, is_writable, &left);
        Ok(mounted)
    }

    /// Prints a note for each way in which the mount is not what the options asked for or a user expects. `left` are
    /// mounts of the image whose servers have ended.
    fn note_what_differs(
        &self,
        context: &Context,
        settings: &Settings,
        mounted: &Mounted,
        is_writable: bool,
        left: &[ListedMount],
    ) {
        if let Synced::FsyncOnly(why) = mounted.synced()
            && is_writable
        {
            note_fsync_only(context, settings.writeback_cache, why);
        }
        if let Some(why) = mounted.why_no_ring() {
            context.note(format_args!(
                "requests come over /dev/fuse, not over io_uring: {why}"
            ));
        }
        for mount in left {
            let directory = mount.directory.display();
            context.note(format_args!(
                "a mount of this image whose server has ended is still at {directory}: umount {directory}"
            ));
        }
        let forms = settings.chosen_forms();
        if !is_writable && !forms.is_empty() {
            context.note(format_args!(
                "{} has no effect on a read-only mount",
                forms.join(",")
            ));
        }
        if !is_writable && !settings.access.read_only {
            let shown = self.image.display();
            context.note(format_args!(
                "{shown} may only be read, so it is mounted read-only"
            ));
        }
    }
}

/// With `writeback_cache`, moves the server out of the memory control group of its clients. Prints a note if it remains
/// there.
fn leave_clients_memory(context: &Context, settings: &Settings) {
    // Called before the server starts its threads, which inherit the group.
    if settings.writeback_cache
        && let Err(why) = fuse::leave_memory_group()
    {
        context.note(format_args!(
            "programs that wait for memory may wait for this server, and it for them: {why}"
        ));
    }
}

fn note_fsync_only(context: &Context, is_kept: bool, why: &str) {
    let what = if is_kept {
        "only fsync makes changes durable"
    } else {
        "sync(1) does not reach this mount, only fsync does"
    };
    context.note(format_args!("{what}: {why}"));
}

/// Why a mount was refused, with the next step.
fn explained(directory: &Path, error: &MountError) -> Failure {
    let failure = Failure::new(error);
    match error {
        MountError::NoFuse => failure.hint("load it: modprobe fuse"),
        MountError::Dead(directory) => {
            failure.hint(format!("unmount it: umount {}", directory.display()))
        }
        MountError::NoBlockDevice(_) => failure
            .hint("without -o fuseblk it is mounted all the same; sync(1) then does not reach it"),
        MountError::NoRing(_) => failure.hint(
            "it needs Linux 6.14, with `echo Y >/sys/module/fuse/parameters/enable_uring`; or leave out io_uring=on",
        ),
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
        MountError::System { path, source, .. }
            if path == directory && source.kind() == io::ErrorKind::NotFound =>
        {
            failure.hint(format!("make it: mkdir {}", directory.display()))
        }
        _ => failure,
    }
}

/// Whether the process that waits for the directory has ended: no process reads standard output, a pipe, any more.
/// Asked once its end is a signal to this process, so that an end before that is not missed.
fn is_starter_gone() -> bool {
    let out = io::stdout();
    let mut ends = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut ends, Some(&at_once)).is_ok() && ends[0].revents().contains(PollFlags::ERR)
}

/// Reports that the directory is ready, and leaves the terminal and the directory that this was started in.
fn tell_ready_and_leave() {
    let _ = set_parent_process_death_signal(None);
    // The process that started this may be gone; the mount exists nevertheless.
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

/// How far a process that may be asked to end has got with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// No signal came.
    No,
    /// The directory is being unmounted; open files make a try fail. Counts the tries.
    Unmounting(u32),
    /// The connection to the kernel was cut.
    Cut,
}

/// Waits until the mount is over. A signal unmounts; while files are open, or another mount namespace still has the
/// mount, that is tried again and again, and at last, or at a second signal, the connection is cut. Where serving does
/// not end even then (a device that does not answer), the process ends at the third signal, or after a minute without a
/// write.
fn wait_for_end(
    context: &Context,
    events: &mut UnixStream,
    unmounter: &Unmounter,
    on_stop: &dyn Fn(),
) -> Result<(), Failure> {
    let mut ending = Ending::No;
    let mut written = None;
    let mut tries = Tries {
        unmounter: unmounter.clone(),
        under_way: None,
        is_first: true,
    };
    loop {
        let mut event = [0];
        let is_signal = match events.read(&mut event) {
            Ok(1) if event[0] == OVER => return Ok(()),
            Ok(1) if event[0] == STOPPED => {
                on_stop();
                continue;
            }
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => false,
        };
        ending = match (ending, is_signal) {
            (Ending::No, _) => Ending::Unmounting(1),
            (Ending::Unmounting(tries), false) if tries < TRIES => Ending::Unmounting(tries + 1),
            (Ending::Unmounting(_), _) => Ending::Cut,
            (Ending::Cut, false) if writes() != written => Ending::Cut,
            (Ending::Cut, _) => {
                context.error("serving the mount does not end, so the image was not closed");
                context.hint("the image's journal is replayed when it is opened next");
                // The threads that serve wait for a device that may never answer.
                std::process::exit(NOT_CLOSED.into());
            }
        };
        written = writes();
        let pause = match ending {
            Ending::Cut => PATIENCE,
            _ => PAUSE,
        };
        events.set_read_timeout(Some(pause)).map_err(Failure::new)?;
        match ending {
            Ending::Unmounting(_) => tries.again(context),
            _ => {
                if let Err(error) = unmounter.abort() {
                    context.error(error);
                }
            }
        }
    }
}

/// How many writes this process has made, as the host counts them.
fn writes() -> Option<String> {
    let counts = std::fs::read_to_string("/proc/self/io").ok()?;
    let mut lines = counts.lines();
    lines
        .find(|line| line.starts_with("syscw:"))
        .map(str::to_owned)
}

/// Attempts to unmount the directory. Each is made by a thread of its own, because umount(2) waits until the pages of
/// mappings are written, which can take forever on a device that does not answer, and signals must be handled
/// meanwhile. The pages are written even if open files make the attempt fail, because the connection may be cut before
/// anything else writes them.
struct Tries {
    unmounter: Unmounter,
    under_way: Option<thread::JoinHandle<Result<(), MountError>>>,
    /// Whether no try has ended yet.
    is_first: bool,
}

impl Tries {
    /// Says how the last try ended, and makes another, unless the last is under way.
    fn again(&mut self, context: &Context) {
        if self
            .under_way
            .as_ref()
            .is_some_and(|last| !last.is_finished())
        {
            return;
        }
        let ended = self.under_way.take().map(thread::JoinHandle::join);
        if let Some(Ok(Err(error))) = ended {
            if self.is_first {
                not_unmounted(context, &error);
            }
            self.is_first = false;
        }
        let unmounter = self.unmounter.clone();
        // Only if this mount is still there: it may have been detached, and the directory be another's by now.
        let unmount = move || {
            if unmounter.is_mounted() {
                unmounter.unmount().inspect_err(|_| unmounter.write_back())
            } else {
                Ok(())
            }
        };
        self.under_way = thread::Builder::new().spawn(unmount).ok();
    }
}

fn not_unmounted(context: &Context, error: &MountError) {
    match error {
        MountError::Busy(directory) => {
            let (shown, seconds) = (directory.display(), (PAUSE * TRIES).as_secs());
            context.note(format_args!(
                "{shown} is in use; open files are cut off in {seconds} s"
            ));
        }
        error => context.error(error),
    }
}
