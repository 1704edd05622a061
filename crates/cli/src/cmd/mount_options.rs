//! The options of `lanefs mount -o`: those of mount(8) and ext4, as far as they are useful here.

mod ext4;
pub mod shown;

use std::time::Duration;

use fuse::{Access, Fuseblk, IoUring, Polling};
use lanefs::{Atime, DataMode, MountOptions, ReplayPolicy, Synchronous, Variants};

use crate::args::parse_size;
use crate::failure::Failure;

/// The exit status of mount(8) for a call that can't be understood.
const USAGE: u8 = 1;
/// How long a change may be only in memory, as in ext4. `commit=0` means this interval, too.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// The longest time that an unmount may wait, in seconds: a day.
const DESTROY_TIMEOUT_MAX: u64 = 86_400;
/// The longest useful time of a poll, in microseconds.
const POLL_MAX: u64 = 1000;
/// The most threads that are useful.
const THREADS_MAX: usize = 1024;
/// The memory that is counted for an inode in bytes: some 900, and its share of the table.
const INODE_BYTES: usize = 1024;

/// Options that describe every mount here, or that only mount(8) uses.
const WITHOUT_EFFECT: &[&str] = &[
    "defaults",
    "rw",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nofail",
    "comment",
    "_netdev",
    "owner",
    "group",
    "loop",
    "norelatime",
    "nostrictatime",
    "silent",
    "loud",
    "nomand",
    "noiversion",
];

/// All other options, for suggestions when an option is unknown.
const OPTIONS: &[&str] = &[
    "ro",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "allow_other",
    "default_permissions",
    "noload",
    "norecovery",
    "check",
    "nocheck",
    "commit",
    "sb",
    "threads",
    "io_uring",
    "poll",
    "destroy_timeout",
    "fuseblk",
    "nofuseblk",
    "no_open",
    "writeback_cache",
    "discard",
    "nodiscard",
    "grpid",
    "bsdgroups",
    "nogrpid",
    "sysvgroups",
    "data",
    "fast_commit",
    "nofast_commit",
    "journal_async_commit",
    "errors",
    "noatime",
    "relatime",
    "atime",
    "strictatime",
    "diratime",
    "nodiratime",
    "sync",
    "async",
    "dirsync",
    "lazytime",
    "nolazytime",
    "metadata_cache",
    "live_cache",
    "group_cache",
    "inode_cache",
    "staged_cache",
];
/// Names that other programs have for an option of ours.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("readonly", "ro"),
    ("read-only", "ro"),
    ("allow_root", "allow_other"),
    ("nosync", "async"),
];
/// The most letters that differ between an unknown option and one that is suggested for it.
const DIFFERENCES_MAX: usize = 2;

/// The settings that the options ask for.
pub struct Settings {
    /// How the file system is opened.
    pub open: MountOptions,
    /// Which users the kernel lets in, and what it allows them.
    pub access: Access,
    /// How many threads answer requests, if an option sets it.
    pub threads: Option<usize>,
    /// Whether requests are taken over io_uring.
    pub io_uring: IoUring,
    /// Whether a thread looks for the next request before it sleeps.
    pub poll: Polling,
    /// Whether the kernel gets a block device for the mount.
    pub block_device: Fuseblk,
    /// Whether the server commits once nothing has changed for a moment, if sync(1) does not reach the mount.
    pub idle_commits: bool,
    /// How long an unmount waits until the image is closed, if an option sets it.
    pub destroy_timeout: Option<Duration>,
    /// Whether the kernel opens and closes files without requests.
    pub no_open: bool,
    /// Whether the kernel keeps what programs write, and sends it later.
    pub writeback_cache: bool,
    /// Whether the file system is checked before it is mounted.
    pub checks: bool,
}

impl Settings {
    /// Reads lists of options, separated by commas. If two options contradict each other, the later one counts.
    ///
    /// # Errors
    /// A usage failure that names the option.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Settings, Failure> {
        let mut settings = Settings {
            open: MountOptions {
                reaper_thread: true,
                commit_interval: Some(COMMIT_INTERVAL),
                ..MountOptions::default()
            },
            access: Access::default(),
            threads: None,
            io_uring: IoUring::default(),
            poll: Polling::default(),
            block_device: Fuseblk::default(),
            idle_commits: true,
            destroy_timeout: None,
            no_open: false,
            writeback_cache: false,
            checks: false,
        };
        let words = lists.into_iter().flat_map(|list| list.split(','));
        for word in words.filter(|word| !word.is_empty()) {
            settings.take(word)?;
        }
        // A mount that other users may use also checks permissions.
        settings.access.default_permissions |= settings.access.allow_other;
        settings.open.directory_atime = !settings.access.no_directory_atime;
        settings.open.synchronous = match (
            settings.access.synchronous,
            settings.access.synchronous_names,
        ) {
            (true, _) => Synchronous::All,
            (false, true) => Synchronous::Names,
            (false, false) => Synchronous::Flagged,
        };
        Ok(settings)
    }

    /// The forms of mechanisms that differ from the default, as options. Only changes use these mechanisms, so a
    /// read-only mount ignores the options.
    pub fn chosen_forms(&self) -> Vec<String> {
        let default = Variants::default();
        let pairs = self.open.variants.options().zip(default.options());
        let differing = pairs.filter(|((_, value), (_, default))| value != default);
        differing
            .map(|((name, value), _)| format!("{name}={value}"))
            .collect()
    }

    fn take(&mut self, word: &str) -> Result<(), Failure> {
        if ext4::is_always_so(word) {
            return Ok(());
        }
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let flag = match name {
            "ro" | "rw" => &mut self.access.read_only,
            "nosuid" | "suid" => &mut self.access.no_suid,
            "nodev" | "dev" => &mut self.access.no_devices,
            "noexec" | "exec" => &mut self.access.no_exec,
            "allow_other" => &mut self.access.allow_other,
            "default_permissions" => &mut self.access.default_permissions,
            "nodiratime" | "diratime" => &mut self.access.no_directory_atime,
            "sync" | "async" => &mut self.access.synchronous,
            "dirsync" => &mut self.access.synchronous_names,
            _ => return self.take_other(name, value),
        };
        *flag = !matches!(name, "rw" | "suid" | "dev" | "exec" | "diratime" | "async");
        no_value(name, value)
    }

    fn take_other(&mut self, name: &str, value: Option<&str>) -> Result<(), Failure> {
        match name {
            "noload" | "norecovery" => self.open.journal = ReplayPolicy::Ignore,
            "commit" => return self.take_commit(value),
            "sb" => {
                self.open.superblock = Some(number(name, value)?);
                return Ok(());
            }
            "threads" => {
                let threads: usize = number(name, value)?;
                if !(1..=THREADS_MAX).contains(&threads) {
                    return Err(wrong(format!("threads={threads}: 1 to {THREADS_MAX}")));
                }
                self.threads = Some(threads);
                return Ok(());
            }
            "io_uring" => return self.take_io_uring(value),
            "poll" => return self.take_poll(value),
            "destroy_timeout" => return self.take_destroy_timeout(value),
            "no_open" => self.no_open = true,
            "writeback_cache" => self.writeback_cache = true,
            "check" | "nocheck" => self.checks = name == "check",
            "fuseblk" => self.block_device = Fuseblk::Always,
            "nofuseblk" => self.block_device = Fuseblk::Never,
            known if known.ends_with("_cache") => return self.take_memory(name, value),
            "discard" | "nodiscard" => self.open.discard = Some(name == "discard"),
            "grpid" | "bsdgroups" => self.open.bsd_groups = Some(true),
            "nogrpid" | "sysvgroups" => self.open.bsd_groups = Some(false),
            "data" => {
                self.open.data = match value.unwrap_or_default() {
                    "ordered" => DataMode::Ordered,
                    "writeback" => DataMode::Writeback,
                    other => return Err(wrong(format!("data={other}: ordered or writeback"))),
                };
                return Ok(());
            }
            "fast_commit" | "nofast_commit" => self.open.fast_commits = name == "fast_commit",
            "journal_async_commit" => self.open.async_commit = true,
            "errors" => {
                let value = value.unwrap_or_default();
                let errors = value
                    .parse()
                    .map_err(|_| wrong(format!("errors={value}: continue, remount-ro or panic")))?;
                self.open.errors = Some(errors);
                return Ok(());
            }
            known if Variants::knows(known) => {
                let option = format!("{name}={}", value.unwrap_or_default());
                return self.open.variants.set(&option).map_err(wrong);
            }
            "noatime" => self.open.atime = Atime::Never,
            "relatime" | "atime" => self.open.atime = Atime::Relative,
            "strictatime" => self.open.atime = Atime::Always,
            "lazytime" | "nolazytime" => self.open.lazytime = name == "lazytime",
            known if WITHOUT_EFFECT.contains(&known) || is_for_others(known) => return Ok(()),
            "remount" => {
                let message =
                    "remount: a mount can't change its options; unmount it, and mount it anew";
                return Err(wrong(message));
            }
            _ => match ext4::refused(name, value) {
                Some(failure) => return Err(failure.status(USAGE)),
                None if ext4::is_always_so(name) => {}
                None => return Err(unknown(name)),
            },
        }
        no_value(name, value)
    }

    fn take_commit(&mut self, value: Option<&str>) -> Result<(), Failure> {
        let seconds: u32 = number("commit", value)?;
        self.idle_commits = false;
        let interval = Duration::from_secs(seconds.into());
        self.open.commit_interval = if interval.is_zero() {
            Some(COMMIT_INTERVAL)
        } else {
            Some(interval)
        };
        Ok(())
    }

    fn take_io_uring(&mut self, value: Option<&str>) -> Result<(), Failure> {
        let value = value.unwrap_or_default();
        self.io_uring = match value {
            "auto" => IoUring::Auto,
            "on" => IoUring::On,
            "off" => IoUring::Off,
            _ => return Err(wrong(format!("io_uring={value}: expected auto, on or off"))),
        };
        Ok(())
    }

    fn take_poll(&mut self, value: Option<&str>) -> Result<(), Failure> {
        let value = value.unwrap_or_default();
        self.poll = match (value, value.parse()) {
            ("auto", _) => Polling::Auto,
            ("off", _) => Polling::Off,
            (_, Ok(time @ 1..=POLL_MAX)) => Polling::Most(Duration::from_micros(time)),
            _ => {
                return Err(wrong(format!(
                    "poll={value}: expected auto, off, or 1 to {POLL_MAX} microseconds"
                )));
            }
        };
        Ok(())
    }

    fn take_destroy_timeout(&mut self, value: Option<&str>) -> Result<(), Failure> {
        let seconds: u64 = number("destroy_timeout", value)?;
        if !(1..=DESTROY_TIMEOUT_MAX).contains(&seconds) {
            return Err(wrong(format!(
                "destroy_timeout={seconds}: expected 1 to {DESTROY_TIMEOUT_MAX}"
            )));
        }
        self.destroy_timeout = Some(Duration::from_secs(seconds));
        Ok(())
    }

    /// Sets how much memory a cache may use.
    fn take_memory(&mut self, name: &str, value: Option<&str>) -> Result<(), Failure> {
        let bytes = match name {
            "metadata_cache" => &mut self.open.cache_bytes,
            "live_cache" => &mut self.open.live_bytes,
            "group_cache" => &mut self.open.group_bytes,
            "inode_cache" => {
                self.open.live_inodes = size(name, value)? / INODE_BYTES;
                return Ok(());
            }
            "staged_cache" => {
                self.open.staged_bytes = size(name, value)? as u64;
                return Ok(());
            }
            _ => return Err(unknown(name)),
        };
        *bytes = size(name, value)?;
        Ok(())
    }
}

/// Whether an option is a comment for other programs (`x-systemd.automount`, `X-mount.mkdir`).
fn is_for_others(name: &str) -> bool {
    name.starts_with("x-") || name.starts_with("X-")
}

fn unknown(name: &str) -> Failure {
    if let Some((_, ours)) = OTHER_WORDS.iter().find(|(others, _)| *others == name) {
        return wrong(format!("unknown option `{name}`: did you mean `{ours}`?"));
    }
    let mechanisms = Variants::choices().map(|(name, _)| name);
    let known = [OPTIONS, WITHOUT_EFFECT, ext4::ALWAYS_SO]
        .into_iter()
        .flatten()
        .copied();
    let nearest = known
        .chain(mechanisms)
        .map(|known| (differences(name, known), known))
        .min_by_key(|(count, _)| *count);
    match nearest {
        Some((1..=DIFFERENCES_MAX, known)) => {
            wrong(format!("unknown option `{name}`: did you mean `{known}`?"))
        }
        _ => wrong(format!("unknown option `{name}`")),
    }
}

/// How many letters of a word must be added, removed, changed or exchanged with their neighbours to make another word
/// (the optimal string alignment distance).
fn differences(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before = vec![0; other.len() + 1];
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut next = vec![at + 1];
        for (column, candidate) in other.iter().enumerate() {
            let changed = row[column] + usize::from(letter != candidate);
            let mut least = changed.min(row[column + 1] + 1).min(next[column] + 1);
            let is_exchange =
                at > 0 && column > 0 && one[at - 1] == *candidate && other[column - 1] == *letter;
            if is_exchange {
                least = least.min(before[column - 1] + 1);
            }
            next.push(least);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[other.len()]
}

fn wrong(message: impl std::fmt::Display) -> Failure {
    Failure::usage(message)
        .status(USAGE)
        .hint("lanefs mount --help lists the options")
}

fn no_value(name: &str, value: Option<&str>) -> Result<(), Failure> {
    match value {
        None => Ok(()),
        Some(_) => Err(wrong(format!("{name} takes no value"))),
    }
}

fn number<N: std::str::FromStr>(name: &str, value: Option<&str>) -> Result<N, Failure> {
    let value = value.unwrap_or_default();
    value
        .parse()
        .map_err(|_| wrong(format!("{name}={value}: a number was expected")))
}

/// A number of bytes of memory.
fn size(name: &str, value: Option<&str>) -> Result<usize, Failure> {
    let value = value.unwrap_or_default();
    let bytes = parse_size(value).map_err(|said| wrong(format!("{name}={value}: {said}")))?;
    usize::try_from(bytes).map_err(|_| wrong(format!("{name}={value}: more than memory can have")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_by_sizes() {
        let list = "inode_cache=4M,metadata_cache=512K,live_cache=1048576,group_cache=2MiB,staged_cache=16M";
        let open = Settings::parse([list]).unwrap().open;
        assert_eq!((open.live_inodes, open.cache_bytes), (4096, 512 << 10));
        assert_eq!((open.live_bytes, open.group_bytes), (1 << 20, 2 << 20));
        assert_eq!(open.staged_bytes, 16 << 20);
        for wrong in [
            "inode_cache",
            "metadata_cache=",
            "live_cache=much",
            "group_cache=-1",
            "staged_cache=16X",
            "other_cache=1M",
        ] {
            let failure = Settings::parse([wrong]).err().unwrap();
            let name = wrong.split('=').next().unwrap();
            assert!(failure.text().contains(name), "{}", failure.text());
        }
    }

    #[test]
    fn an_unknown_option_names_the_nearest_one() {
        for (given, nearest) in [
            ("nosiud", "nosuid"),
            ("noautime", "noatime"),
            ("commmit=9", "commit"),
            ("orfan=list", "orphan"),
            ("no_fail", "nofail"),
            ("nodirtime", "nodiratime"),
            ("dirsnyc", "dirsync"),
            ("aysnc", "async"),
            ("nosync", "async"),
            ("default_permission", "default_permissions"),
            ("readonly", "ro"),
        ] {
            let failure = Settings::parse([given]).err().unwrap();
            let expected = format!("did you mean `{nearest}`?");
            assert!(failure.text().contains(&expected), "{}", failure.text());
        }
        let failure = Settings::parse(["frobnicate"]).err().unwrap();
        assert!(!failure.text().contains("mean"), "{}", failure.text());
        // All suggested options are known.
        for name in OPTIONS.iter().chain(WITHOUT_EFFECT) {
            for value in ["", "=1", "=ordered", "=continue", "=off"] {
                let parsed = Settings::parse([&*format!("{name}{value}")]);
                let refused = parsed.err().map(|failure| failure.text());
                let text = refused.unwrap_or_default();
                assert!(!text.contains("unknown option"), "{text}");
            }
        }
    }

    #[test]
    fn options_are_those_of_mount_and_ext4() {
        let settings = Settings::parse(["ro,noload", "allow_other,commit=30,x-gvfs"]).unwrap();
        assert!(settings.access.read_only && settings.open.journal == ReplayPolicy::Ignore);
        assert!(settings.access.allow_other && settings.access.default_permissions);
        assert_eq!(settings.open.commit_interval, Some(Duration::from_secs(30)));
        let settings = Settings::parse(["norecovery"]).unwrap();
        assert!(!settings.access.read_only && settings.open.journal == ReplayPolicy::Ignore);
        let settings = Settings::parse(["errors=remount-ro,discard,orphan=list"]).unwrap();
        assert_eq!(settings.open.errors, Some(lanefs::OnError::ReadOnly));
        assert_eq!(settings.open.variants.orphan, lanefs::OrphanForm::List);
        assert_eq!(settings.chosen_forms(), ["orphan=list"]);
        assert_eq!(settings.open.discard, Some(true));
        assert!(!Settings::parse(["ro,rw"]).unwrap().access.read_only);
        let synchronous = |list| Settings::parse([list]).unwrap().open.synchronous;
        assert_eq!(synchronous("sync,async"), Synchronous::Flagged);
        assert_eq!(synchronous("dirsync,sync"), Synchronous::All);
        assert_eq!(synchronous("sync,dirsync,async"), Synchronous::Names);
        let reading = |list| Settings::parse([list]).unwrap().open.directory_atime;
        assert!(!reading("nodiratime") && reading("nodiratime,diratime,X-mount.mkdir=0755"));
        for wrong in [
            "frobnicate",
            "errors=never",
            "ro=1",
            "commit=soon",
            "commit=99999999999",
            "io_uring=yes",
            "poll=no",
            "poll=0",
            "poll",
            "poll=1001",
            "io_uring",
            "commit",
            "threads=0",
            "errors=ignore",
            "data=journal",
            "orphan=none",
            "remount",
            "sync=1",
        ] {
            let failure = Settings::parse([wrong]).err().unwrap();
            let name = wrong.split('=').next().unwrap();
            assert!(failure.text().contains(name), "{}", failure.text());
        }
    }
}
