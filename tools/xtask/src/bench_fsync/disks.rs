//! Disks whose flushes take a given time, for one part of a run, with what is made and mounted on them.
//!
//! Everything lies in one directory in /dev/shm, which no other flush time uses. Dropping the disks undoes all of it,
//! whether the part succeeded or failed: no step waits longer than [`PATIENCE`]; what can't be undone is reported by
//! name, and does not fail the run. No lock; a crash leaves the mounts, the loop devices and the directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::output;

/// A disk's size.
const DISK_BYTES: u64 = 2 << 30;
/// How long is waited for a server to answer or to end, and for a mount that is busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file system of the kernel: its name here, what makes it, and how it is mounted.
pub(super) struct Peer {
    pub(super) name: &'static str,
    make: &'static [&'static str],
    mount: &'static [&'static str],
}

pub(super) const PEERS: [Peer; 3] = [
    Peer {
        name: "ext4",
        make: &["lanefs", "mkfs", "-q"],
        mount: &["-t", "ext4", "-o", "noinit_itable"],
    },
    Peer {
        name: "ext4-fast_commit",
        make: &["lanefs", "mkfs", "-q", "-O", "fast_commit"],
        mount: &["-t", "ext4", "-o", "noinit_itable"],
    },
    Peer {
        name: "btrfs",
        make: &["mkfs.btrfs", "-q", "-K", "-d", "single", "-m", "single"],
        mount: &["-t", "btrfs", "-o", "ssd"],
    },
];

/// Disks of ours: in process with the log, with full commits, and mounted.
const OURS: [&str; 3] = ["engine.log", "engine.full", "lanefs"];
/// And in process with the log, without a loop device.
const IMAGE_FILE: &str = "engine.file";

/// Disks of one flush time and what is mounted on them; undone when it goes.
pub(super) struct Disks {
    /// Holds the files, where they are seen through a slow disk, and the mounts.
    pub(super) place: PathBuf,
    pub(super) lanefs: PathBuf,
    server: Option<Child>,
    /// Loop devices by name.
    devices: Vec<(String, String)>,
    pub(super) mounted: Vec<PathBuf>,
}

impl Disks {
    /// In a directory of their own, so that leftovers of another flush time are not in the way.
    pub(super) fn new(lanefs: &Path, slow_disk: &Path, micros: u32) -> Result<Disks, String> {
        let name = format!("lanefs-fsync.{}-{micros}", std::process::id());
        let place = Path::new("/dev/shm").join(name);
        let said = |error: std::io::Error| format!("{}: {error}", place.display());
        // Before there is anything to undo: one that is there already is not ours to remove.
        fs::create_dir(&place).map_err(said)?;
        let mut disks = Disks {
            place: place.clone(),
            lanefs: lanefs.to_owned(),
            server: None,
            devices: Vec::new(),
            mounted: Vec::new(),
        };
        let files = place.join("files");
        fs::create_dir(&files).map_err(said)?;
        let names = || PEERS.iter().map(|peer| peer.name).chain(OURS);
        for name in names().chain([IMAGE_FILE]) {
            let file = fs::File::create(files.join(name)).map_err(said)?;
            file.set_len(DISK_BYTES).map_err(said)?;
        }
        let seen = match micros {
            0 => files,
            _ => disks.serve(slow_disk, &files, micros)?,
        };
        for name in names() {
            let attach = ["--find", "--show"];
            let device = output(Command::new("losetup").args(attach).arg(seen.join(name)))?;
            disks.devices.push((name.to_owned(), device));
        }
        for name in OURS {
            std::os::unix::fs::symlink(disks.device(name)?, place.join(name)).map_err(said)?;
        }
        std::os::unix::fs::symlink(seen.join(IMAGE_FILE), place.join(IMAGE_FILE)).map_err(said)?;
        Ok(disks)
    }

    /// Has the files served by a disk that is slow, and says where.
    fn serve(&mut self, slow_disk: &Path, files: &Path, micros: u32) -> Result<PathBuf, String> {
        let seen = self.place.join("slow");
        fs::create_dir(&seen).map_err(|error| format!("{}: {error}", seen.display()))?;
        let mut server = Command::new(slow_disk);
        server.args([files, &seen]).arg(micros.to_string());
        let child = server.spawn();
        let child = child.map_err(|error| format!("{server:?}: {error}"))?;
        let child = self.server.insert(child);
        let mut ended = false;
        let serves = until(|| {
            ended = !matches!(child.try_wait(), Ok(None));
            ended || is_mounted(&seen) && seen.join(OURS[0]).exists()
        });
        if serves && !ended {
            Ok(seen)
        } else {
            Err(format!("{server:?} serves nothing"))
        }
    }

    fn device(&self, name: &str) -> Result<&str, String> {
        let found = self.devices.iter().find(|(known, _)| known == name);
        found
            .map(|(_, device)| device.as_str())
            .ok_or_else(|| format!("no disk for {name}"))
    }

    /// Makes and mounts a peer's file system.
    pub(super) fn mount(&mut self, peer: &Peer) -> Result<(), String> {
        let device = self.device(peer.name)?.to_owned();
        let (program, arguments) = peer.make.split_first().ok_or("no program")?;
        let mut make = match *program {
            "lanefs" => Command::new(&self.lanefs),
            program => Command::new(program),
        };
        output(make.args(arguments).arg(&device))?;
        let mut mount = Command::new("mount");
        mount.args(peer.mount).arg(&device);
        self.mounted_by(peer.name, mount)
    }

    /// Mounts ours through FUSE.
    pub(super) fn mount_ours(&mut self) -> Result<(), String> {
        let device = self.device("lanefs")?.to_owned();
        let lanefs = self.lanefs.clone();
        let mut make = Command::new(&lanefs);
        output(make.args(["mkfs", "-q", "-O", "fast_commit"]).arg(&device))?;
        let mut mount = Command::new(&lanefs);
        mount.arg("mount").arg(&device);
        self.mounted_by("lanefs-mount", mount)
    }

    fn mounted_by(&mut self, name: &str, mut mount: Command) -> Result<(), String> {
        let at = self.place.join(name);
        fs::create_dir(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        output(mount.arg(&at))?;
        self.mounted.push(at);
        Ok(())
    }

    /// Undoes all of it, and retries what is busy for a while. What can't be undone is left as it is, and returned.
    fn undo(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        for at in self.mounted.drain(..).rev() {
            left.extend(unmount(&at).err());
        }
        for (_, device) in self.devices.drain(..) {
            left.extend(output(Command::new("losetup").args(["-d", &device])).err());
        }
        if let Some(mut server) = self.server.take() {
            // A loop device is released after `losetup -d` has returned, if it is still open: by a file system that is
            // being unmounted, or by its server. Until then the slow disk is busy.
            match unmount(&self.place.join("slow")) {
                Ok(()) => left.extend(end(&mut server).err()),
                // It ends when it is unmounted, and must not be waited for before.
                Err(error) => left.push(format!("{error}; its server is {}", server.id())),
            }
        }
        // Never through what is still mounted.
        if !left.is_empty() {
            left.push(format!("{} is not removed", self.place.display()));
        } else if let Err(error) = fs::remove_dir_all(&self.place) {
            left.push(format!("{}: {error}", self.place.display()));
        }
        left
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for line in self.undo() {
            eprintln!("left behind: {line}");
        }
    }
}

/// Asks until the condition holds or the time is over; returns whether it holds.
fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if begin.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether something is mounted there, as the kernel's list says: a server that hangs is not asked.
fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    places.any(|place| Path::new(place) == at)
}

/// Unmounts, as soon as the mount is not in use; fine if nothing is mounted.
fn unmount(at: &Path) -> Result<(), String> {
    let mut said = String::new();
    let gone = until(|| {
        if is_mounted(at)
            && let Err(error) = output(Command::new("umount").arg(at))
        {
            said = error;
        }
        !is_mounted(at)
    });
    if gone { Ok(()) } else { Err(said) }
}

/// Waits for a server whose mount is gone; one that does not end is asked to.
fn end(server: &mut Child) -> Result<(), String> {
    if until(|| !matches!(server.try_wait(), Ok(None))) {
        return Ok(());
    }
    // It may not listen to that either.
    let _ = server.kill();
    if until(|| !matches!(server.try_wait(), Ok(None))) {
        Ok(())
    } else {
        Err(format!(
            "the slow disk's server {} does not end",
            server.id()
        ))
    }
}
