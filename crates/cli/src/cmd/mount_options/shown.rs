//! What a mount reports of its options: `lanefs tune DIR`.

use std::time::Duration;

use lanefs::tune::tunable;
use lanefs::{Atime, DataMode, Fs, OnError, ReplayPolicy};

use super::Settings;

/// Rows beside those of the transport: name and value. `is_writable` is false also if the image may only be read.
pub fn rows(settings: &Settings, fs: &Fs, is_writable: bool) -> Vec<(&'static str, String)> {
    let mut rows = vec![("options", words(settings, fs, is_writable).join(","))];
    if is_writable {
        let interval = settings.open.commit_interval.unwrap_or(Duration::ZERO);
        rows.push(("commit", format!("{} s", interval.as_secs())));
    }
    rows
}

/// The options in words of mount(8) and ext4; those that the superblock decides as it does.
fn words(settings: &Settings, fs: &Fs, is_writable: bool) -> Vec<String> {
    let (open, access) = (&settings.open, &settings.access);
    let atime = match open.atime {
        Atime::Relative => "relatime",
        Atime::Always => "strictatime",
        Atime::Never => "noatime",
    };
    let mut words = vec![if is_writable { "rw" } else { "ro" }, atime];
    let flags = [
        (access.no_directory_atime, "nodiratime"),
        (open.lazytime, "lazytime"),
        (access.synchronous, "sync"),
        (access.synchronous_names, "dirsync"),
        (access.allow_other, "allow_other"),
        (access.default_permissions, "default_permissions"),
        (access.no_suid, "nosuid"),
        (access.no_devices, "nodev"),
        (access.no_exec, "noexec"),
        (settings.no_open, "no_open"),
        (settings.writeback_cache, "writeback_cache"),
        (open.journal == ReplayPolicy::Ignore, "noload"),
    ];
    words.extend(
        flags
            .into_iter()
            .filter(|(is_set, _)| *is_set)
            .map(|(_, word)| word),
    );
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    if is_writable {
        words.extend(of_changes(settings, fs));
    }
    words
}

/// Those that only concern changes.
fn of_changes(settings: &Settings, fs: &Fs) -> Vec<String> {
    let open = &settings.open;
    let superblock = fs.inodes().superblock();
    let of_image = |name: &str| {
        tunable(name)
            .map(|known| known.get(superblock))
            .unwrap_or_default()
    };
    let defaults = of_image("default_mount_opts");
    let is_default = |word: &str| defaults.split(',').any(|default| default == word);
    let data = match open.data {
        DataMode::Ordered => "data=ordered",
        DataMode::Writeback => "data=writeback",
    };
    let errors = match open.errors {
        Some(OnError::Continue) => "continue".to_owned(),
        Some(OnError::ReadOnly) => "remount-ro".to_owned(),
        Some(OnError::Abort) => "panic".to_owned(),
        None => of_image("errors"),
    };
    let choose = |is_set: bool, yes: &str, no: &str| if is_set { yes } else { no }.to_owned();
    let discard = open.discard.unwrap_or_else(|| is_default("discard"));
    let bsd_groups = open.bsd_groups.unwrap_or_else(|| is_default("bsdgroups"));
    let mut words = vec![
        data.to_owned(),
        format!("errors={errors}"),
        choose(discard, "discard", "nodiscard"),
        choose(bsd_groups, "bsdgroups", "sysvgroups"),
        choose(open.fast_commits, "fast_commit", "nofast_commit"),
    ];
    if open.async_commit {
        words.push("journal_async_commit".to_owned());
    }
    words
}
