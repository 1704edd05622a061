//! What is mounted: the kernel's ext4, fuse2fs, lanefs and the server without an image, each at a directory of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lanefs::Error;
use rustix::fs::{FlockOperation, flock};
use sync::{clock, thread};

use crate::leavings;
pub(super) use crate::programs::{failed, lanefs, run};

/// Bytes of each image, and its inodes.
const IMAGE_BYTES: u64 = 3 << 30;
const INODES: &str = "200000";
/// How long a mount or its end may take.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);
/// Whether the kernel offers FUSE over io_uring, to be read and set.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The server of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Kernel,
    Fuse2fs,
    Null,
    Lanefs,
}

/// A column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contestant {
    pub(super) label: &'static str,
    pub(super) kind: Kind,
    /// For `-o`.
    pub(super) options: &'static str,
}

const fn of(label: &'static str, kind: Kind, options: &'static str) -> Contestant {
    Contestant {
        label,
        kind,
        options,
    }
}

/// All of them.
pub(super) const ALL: [Contestant; 10] = [
    of("kernel", Kind::Kernel, ""),
    of("fuse2fs", Kind::Fuse2fs, ""),
    of("null", Kind::Null, "io_uring=off"),
    of("lanefs", Kind::Lanefs, "io_uring=off"),
    of("null, dp", Kind::Null, "io_uring=off,default_permissions"),
    of(
        "lanefs, dp",
        Kind::Lanefs,
        "io_uring=off,default_permissions",
    ),
    of("null, uring", Kind::Null, "io_uring=on"),
    of("lanefs, uring", Kind::Lanefs, "io_uring=on"),
    of(
        "null, uring, dp",
        Kind::Null,
        "io_uring=on,default_permissions",
    ),
    of(
        "lanefs, uring, dp",
        Kind::Lanefs,
        "io_uring=on,default_permissions",
    ),
];

/// A folder in memory for images and directories, which is removed at the end.
pub(super) struct Place(pub(super) PathBuf);

impl Place {
    /// Makes it where this number of bytes is free.
    pub(super) fn new(room: u64) -> Result<Place, Error> {
        let scratch = leavings::scratch();
        let space = rustix::fs::statvfs(&scratch);
        let space = space.map_err(|errno| failed("measuring in", &scratch, errno.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free < room {
            let (room, free) = (room >> 20, free >> 20);
            let why = format!("it takes {room} MiB of memory, and {free} MiB are free there");
            let why = std::io::Error::other(why);
            return Err(failed("measuring in", &scratch, why));
        }
        let path = scratch.join(leavings::name("mounts"));
        fs::create_dir_all(&path).map_err(|error| failed("making", &path, error))?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes an image that all others are copies of, and has `fill` fill it as the kernel mounts it.
pub(super) fn base(
    place: &Place,
    fill: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    let image = place.0.join("base.img");
    let made = File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES));
    made.map_err(|error| failed("making", &image, error))?;
    let mut make = Command::new("mke2fs");
    make.args(["-q", "-F", "-t", "ext4", "-N", INODES]);
    make.args(["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]);
    run(make.arg(&image))?;
    let mounted = Mounted::kernel(&image, place.0.join("base"))?;
    let filled = fill(&mounted.directory);
    mounted.end()?;
    filled?;
    Ok(image)
}

/// A mount, with the process that serves it if there is one.
pub(super) struct Mounted {
    pub(super) directory: PathBuf,
    server: Option<Child>,
    image: Option<PathBuf>,
}

impl Mounted {
    /// Mounts a copy of the image.
    pub(super) fn start(
        contestant: &Contestant,
        number: usize,
        base: &Path,
        place: &Place,
        null: &[&str],
    ) -> Result<Mounted, Error> {
        let directory = place.0.join(format!("on{number}"));
        let image = place.0.join(format!("{number}.img"));
        if contestant.kind != Kind::Null {
            let mut copy = Command::new("cp");
            run(copy.args(["--sparse=always"]).arg(base).arg(&image))?;
        }
        if contestant.kind == Kind::Kernel {
            return Mounted::kernel(&image, directory);
        }
        let mut command = match contestant.kind {
            Kind::Null => {
                let this = std::env::current_exe();
                let mut command =
                    Command::new(this.map_err(|error| failed("finding", &directory, error))?);
                command.arg("null-server").args(null);
                command.args(["-o", contestant.options]).arg(&directory);
                command
            }
            Kind::Lanefs => {
                let mut command = lanefs();
                command.args(["mount", "-f", "-o", contestant.options]);
                command.arg(&image).arg(&directory);
                command
            }
            _ => {
                let mut command = Command::new("fuse2fs");
                command.arg("-f").arg(&image).arg(&directory);
                command
            }
        };
        fs::create_dir(&directory).map_err(|error| failed("making", &directory, error))?;
        let queues = contestant.options.contains("io_uring=on");
        let offer = queues.then(Offer::new).transpose()?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let server = command.spawn();
        let server = server.map_err(|error| failed("starting", &directory, error))?;
        let mut mounted = Mounted {
            directory,
            server: Some(server),
            image: (contestant.kind != Kind::Null).then_some(image),
        };
        mounted.await_mount()?;
        drop(offer);
        Ok(mounted)
    }

    fn kernel(image: &Path, directory: PathBuf) -> Result<Mounted, Error> {
        fs::create_dir(&directory).map_err(|error| failed("making", &directory, error))?;
        let mut mount = Command::new("mount");
        run(mount
            .args(["-t", "ext4", "-o", "loop"])
            .arg(image)
            .arg(&directory))?;
        Ok(Mounted {
            directory,
            server: None,
            image: None,
        })
    }

    fn await_mount(&mut self) -> Result<(), Error> {
        let wanted = format!(" {} ", self.directory.display());
        let begin = clock::now();
        loop {
            let list = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            // The first answer shows that the server works.
            if list.contains(&wanted) && self.directory.metadata().is_ok() {
                return Ok(());
            }
            let ended = self.server.as_mut().map(Child::try_wait);
            if !matches!(ended, Some(Ok(None))) || begin.elapsed() > PATIENCE {
                let why = std::io::Error::other("the server did not mount it");
                return Err(failed("mounting", &self.directory, why));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Processor time of the server's threads, in seconds.
    pub(super) fn cpu(&self) -> f64 {
        let Some(server) = &self.server else {
            return 0.0;
        };
        let tasks = fs::read_dir(format!("/proc/{}/task", server.id()));
        let nanoseconds = |task: fs::DirEntry| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        };
        let tasks = tasks.into_iter().flatten().flatten();
        tasks.filter_map(nanoseconds).sum::<f64>() / 1e9
    }

    /// Messages that the server counted; those of this question are among them. `None` where none are counted.
    pub(super) fn messages(&self) -> Option<f64> {
        let mut counters = vec![0; 1 << 16];
        let name = "lanefs.counters";
        let len = rustix::fs::getxattr(&self.directory, name, &mut counters[..]).ok()?;
        let text = String::from_utf8_lossy(&counters[..len]);
        let counts = text
            .lines()
            .filter_map(|line| line.strip_prefix("messages.")?.split_once(' '));
        let numbers = counts.filter_map(|(_, count)| count.parse::<f64>().ok());
        Some(numbers.sum())
    }

    /// Unmounts, and waits for the server.
    pub(super) fn end(mut self) -> Result<(), Error> {
        run(Command::new("umount").arg(&self.directory))?;
        if let Some(mut server) = self.server.take() {
            let ended = server.wait();
            ended.map_err(|error| failed("ending", &self.directory, error))?;
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What is left of one that failed.
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
        let mut umount = Command::new("umount");
        let umount = umount.arg("-l").arg(&self.directory);
        let _ = umount.stderr(Stdio::null()).status();
        let _ = fs::remove_dir(&self.directory);
        if let Some(image) = &self.image {
            let _ = fs::remove_file(image);
        }
    }
}

/// Has the kernel offer FUSE over io_uring while it is held.
struct Offer {
    before: String,
    /// Locked against other programs that set it.
    _parameter: File,
}

impl Offer {
    fn new() -> Result<Offer, Error> {
        let path = Path::new(PARAMETER);
        let set = || -> std::io::Result<Offer> {
            let parameter = File::open(path)?;
            flock(&parameter, FlockOperation::LockExclusive)?;
            let before = fs::read_to_string(path)?;
            fs::write(path, "Y")?;
            Ok(Offer {
                before: before.trim().to_owned(),
                _parameter: parameter,
            })
        };
        set().map_err(|error| failed("setting", path, error))
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, &self.before);
    }
}
