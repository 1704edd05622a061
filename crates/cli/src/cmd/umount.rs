//! `lanefs umount`: unmounts a directory, and waits until the image is closed.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use device::{DeviceError, FileDevice};
use fuse::{ListedMount, MountError, Unmounter};
use lanefs::{Fs, MountOptions, ReplayPolicy};
use ondisk::Feature;
use ondisk::superblock::state::VALID;
use sync::{Arc, clock, thread};

use crate::context::Context;
use crate::failure::Failure;
use crate::mount_state::{MountState, WHAT_IS_LOST, described, reported_state};

/// The exit status of umount(8) when unmounting failed.
const UNMOUNT_FAILED: u8 = 32;
/// How long a mount may take to say what its state is; that needs no device.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// How long an unmount is tried again that finds the mount in use. A program that asks every mount for its state (df,
/// xfs_io) uses each until its server has answered, some milliseconds on a machine with much work.
const PASSING_USE: Duration = Duration::from_secs(1);
/// Pauses between looks whether the image is closed.
const PAUSE: Duration = Duration::from_millis(20);
/// The number of looks after which a note says what `lanefs umount` waits for.
const LOOKS_IN_SILENCE: u32 = 100;

/// Unmount a directory that `lanefs mount` mounted, and wait until the image is clean
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 unmounted and everything written, 1 usage, 32 not unmounted or not all written."
)]
pub struct Args {
    /// The directory
    directory: PathBuf,
    /// Detach it now, even if files on it are open; the image is closed with the last of them
    #[arg(short, long)]
    lazy: bool,
    /// Be the process that asks the mount for its state
    #[arg(long, hide = true, conflicts_with = "lazy")]
    report_state: bool,
}

impl Args {
    /// Unmounts and waits.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        if self.report_state {
            let report = reported_state(&self.directory).unwrap_or_default();
            return std::io::stdout()
                .write_all(report.as_bytes())
                .map_err(Failure::new);
        }
        let directory = followed(self.directory);
        let shown = directory.display();
        let Some(mount) = fuse::mounted_at(&directory) else {
            let failure = Failure::new(format!("no image is mounted on {shown} by lanefs"));
            return Err(failure.status(UNMOUNT_FAILED));
        };
        // Asked before the unmount, which ends the server. Nothing is reported after a lazy unmount.
        let state = if self.lazy {
            None
        } else {
            answered_state(&directory)?
        };
        let before = others(&mount);
        let unmounter = Unmounter::new(&directory);
        let unmounted = if self.lazy {
            unmounter.detach()
        } else {
            unmounted_soon(&unmounter)
        };
        unmounted.map_err(|error| {
            let failure = Failure::new(&error).status(UNMOUNT_FAILED);
            match error {
                MountError::Busy(_) => {
                    failure.hint("close the files that are open there, or use --lazy")
                }
                _ => failure,
            }
        })?;
        if self.lazy {
            return Ok(());
        }
        if let Some(elsewhere) = elsewhere(&mount) {
            let (image, directory) = (mount.source.display(), elsewhere.directory.display());
            context.note(format_args!("{image} is still mounted at {directory}"));
            return Ok(());
        }
        // A mount that only read left the image as it was.
        if mount.is_read_only {
            return Ok(());
        }
        let is_gone = matches!(state, Some(MountState::Gone));
        // A server that has ended holds no image, so any other mount of it was made later.
        let known = if is_gone { &[][..] } else { &before };
        let is_mounted_anew = || others(&mount).iter().any(|other| !is_among(other, known));
        wait_until_closed(context, &mount.source, is_mounted_anew);
        let image = &mount.source;
        if let Some(MountState::Stopped(stopped)) = state {
            let mut message = described(&stopped);
            if !is_clean(image) {
                message += "; not everything could be written home";
            }
            let failure = Failure::new(message).at(image.display());
            return Err(failure.status(UNMOUNT_FAILED).hint(WHAT_IS_LOST));
        }
        if is_clean(image) {
            Ok(())
        } else {
            let failure = Failure::new("not everything could be written home").at(image.display());
            let failure = failure.status(UNMOUNT_FAILED);
            Err(failure.hint(
                    "synced changes are in its journal, and replayed when it is opened; without a journal, run e2fsck",
                ))
        }
    }
}

/// Unmounts. If the mount is in use, tries again for [`PASSING_USE`], unless another program has unmounted it: then
/// another mount may be there.
fn unmounted_soon(unmounter: &Unmounter) -> Result<(), MountError> {
    let begin = clock::now();
    loop {
        let unmounted = unmounter.unmount();
        let is_busy = matches!(unmounted, Err(MountError::Busy(_)));
        if !is_busy || begin.elapsed() > PASSING_USE {
            return unmounted;
        }
        thread::sleep(PAUSE);
        if !unmounter.is_mounted() {
            return Ok(());
        }
    }
}

/// The place that a path leads to where it is a symbolic link. To follow one asks no server, also not that of a mount
/// there.
fn followed(path: PathBuf) -> PathBuf {
    match path.read_link() {
        Ok(_) => path.canonicalize().unwrap_or(path),
        Err(_) => path,
    }
}

/// What a mount says of its state; refused where its server does not answer.
///
/// A separate process asks. The kernel does not release a thread whose request a server has taken and does not answer,
/// and a process with such a thread can't end.
fn answered_state(directory: &Path) -> Result<Option<MountState>, Failure> {
    let failed = |error: std::io::Error| Failure::new(error).status(UNMOUNT_FAILED);
    let mut asking = Command::new(std::env::current_exe().map_err(failed)?)
        .args(["umount", "--report-state", "--"])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let begin = clock::now();
    let mut pause = Duration::from_micros(100);
    while asking.try_wait().map_err(failed)?.is_none() {
        if begin.elapsed() > ANSWER_TIME {
            // It may not be able to end now, so nobody waits for that. The question itself keeps the mount in use.
            let _ = asking.kill();
            let shown = directory.display();
            let failure = Failure::new(format!("the server of {shown} does not answer"));
            return Err(failure.status(UNMOUNT_FAILED).hint(
                "its device may hang: detach it by umount --lazy, and end the server by SIGTERM",
            ));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE);
    }
    let mut report = String::new();
    if let Some(mut out) = asking.stdout.take() {
        out.read_to_string(&mut report).map_err(failed)?;
    }
    Ok(MountState::parse(&report))
}

/// Whether the image is marked as closed; true also if it can't be read here (a partition's place is not known).
fn is_clean(image: &Path) -> bool {
    let Ok(device) = FileDevice::open_read_only(image) else {
        return true;
    };
    let options = MountOptions {
        journal: ReplayPolicy::Ignore,
        ..MountOptions::default()
    };
    match Fs::open_with(Arc::new(device), &options) {
        Ok(fs) => {
            let superblock = fs.inodes().superblock();
            // Without a journal, the superblock's state alone records it.
            superblock.state() & VALID != 0 && !superblock.features().has(Feature::NEEDS_RECOVERY)
        }
        Err(_) => true,
    }
}

/// Another directory where a mount still is that was unmounted from one.
fn elsewhere(mount: &ListedMount) -> Option<ListedMount> {
    let all = fuse::mounts_of(&mount.source);
    all.into_iter().find(|other| other.is_same(mount))
}

/// Other mounts of the image of this one.
fn others(mount: &ListedMount) -> Vec<ListedMount> {
    let all = fuse::mounts_of(&mount.source);
    all.into_iter()
        .filter(|other| !other.is_same(mount))
        .collect()
}

fn is_among(mount: &ListedMount, mounts: &[ListedMount]) -> bool {
    mounts.iter().any(|known| known.is_same(mount))
}

/// Waits while the image is open for writing: the server of the mount writes it home and closes it. If the image is
/// mounted anew, it has done so, or had ended before.
fn wait_until_closed(context: &Context, image: &Path, is_mounted_anew: impl Fn() -> bool) {
    let mut looks = 0;
    while let Err(DeviceError::InUse { .. }) = FileDevice::open_read_only(image) {
        // One program at a time may write to an image.
        if is_mounted_anew() {
            return;
        }
        looks += 1;
        if looks == LOOKS_IN_SILENCE {
            let image = image.display();
            context.note(format_args!(
                "waiting until {image} is written home and closed (a container may have a mount of it still)"
            ));
        }
        thread::sleep(PAUSE);
    }
}
