//! `lanefs tune`: shows and changes settings. For an image these are fields of the superblock; for a mount, the forms
//! of its mechanisms, which change while it is in use. For a mount it also shows counters.

use std::io::Write;
use std::path::{Path, PathBuf};

use device::BlockDevice;
use lanefs::tune::{TUNABLES, TuneError, tunable, tune};
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;
use sync::Arc;

use crate::args::{FsArgs, ImageArgs};
use crate::context::Context;
use crate::epoch;
use crate::failure::Failure;
use crate::json::{self, JsonObject};
use crate::mount_state::{MountState, sync_of};
use crate::open::{cannot_read, held, open_fs, place_for_writing};

/// The most bytes of an attribute of a mount.
const ATTRIBUTE_BYTES: usize = 1 << 16;

/// The name of the row that shows a mount's state.
const STATE: &str = "state";
/// The name of the row that shows what makes changes on a mount durable.
const SYNC: &str = "sync";

/// Show and change settings of a mounted file system, or of an image's superblock
///
/// For a directory that `lanefs mount` mounted, it shows `state` (writing, read-only, or stopped, since when and why),
/// `sync` (whether sync(1) makes changes durable, or fsync only, and why), how requests arrive and the options, and the
/// form of each mechanism, which root and the user who mounted it can change. `--counters` shows the counters since the
/// mount; `lanefs top` shows rates.
///
/// For an image that is not in use, it shows and changes settings of the superblock, as tune2fs does. Several changes
/// are made in one write.
#[derive(clap::Args)]
#[command(
    after_help = "Of an image: label, errors, reserved_percent, reserved_blocks, reserved_uid, reserved_gid,
default_mount_opts, mount_opts, max_mount_count, mount_count, check_interval, stride, stripe_width,
hash_alg, fast_commit.
Without a name all are shown, with their possible values."
)]
pub struct Args {
    /// An image, or the directory where one is mounted
    #[arg(value_name = "IMAGE|MOUNTPOINT")]
    place: PathBuf,
    /// What to show or change
    #[arg(value_name = "NAME[=VALUE]")]
    settings: Vec<String>,
    /// Show the counters of a mount
    #[arg(long, conflicts_with = "settings")]
    counters: bool,
    /// Print JSON; of a mount with its counters
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageArgs,
    /// Show an image that another program uses, with a warning: the contents may be half changed
    #[arg(long)]
    in_use: bool,
}

/// A row that can be shown: name, value, and the possible values.
struct Shown {
    name: String,
    value: String,
    values: String,
    kind: ShownKind,
}

/// The kind of a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShownKind {
    /// A setting that can be changed.
    Setting,
    /// A report of a mount's state.
    Report,
    /// An option of the mount, or its result.
    Option,
}

impl Shown {
    fn report(name: &str, value: String) -> Shown {
        Shown {
            name: name.to_owned(),
            value,
            values: String::new(),
            kind: ShownKind::Report,
        }
    }
}

impl Args {
    /// Makes the changes, and shows the rows that are asked for, or all rows if none is.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let changes: Vec<(&str, &str)> = self
            .settings
            .iter()
            .filter_map(|setting| setting.split_once('='))
            .collect();
        let asked: Vec<&str> = self
            .settings
            .iter()
            .filter(|setting| !setting.contains('='))
            .map(String::as_str)
            .collect();
        let (kind, mut all, counters) = match self.place.is_dir() {
            true => {
                switch(&self.place, &changes)?;
                let (mut forms, counters) = (live(&self.place)?, counters(&self.place)?);
                let state = MountState::of(&self.place).map(|state| state.to_string());
                let sync = sync_of(&self.place);
                let reported = [(STATE, state), (SYNC, sync)].into_iter();
                forms
                    .extend(reported.filter_map(|(name, value)| Some(Shown::report(name, value?))));
                forms.extend(options(&self.place));
                ("mount", forms, counters)
            }
            false if self.counters => {
                let failure = Failure::usage("an image has no counters, only a mount has them");
                return Err(failure.at(self.place.display()));
            }
            false => {
                self.check_names(&asked)?;
                self.change(&changes)?;
                ("image", self.of_image(context)?, Vec::new())
            }
        };
        let mut counted = counters;
        if !self.settings.is_empty() {
            if let Some(name) = asked.iter().find(|name| !is_there(name, &all, &counted)) {
                return Err(Failure::new(format!("unknown name `{name}`")).at(self.place.display()));
            }
            let is_asked = |name: &str| asked.contains(&name);
            all.retain(|shown| is_asked(&shown.name));
            counted.retain(|(name, _)| is_asked(name));
        } else if !self.json {
            // Settings or counters, each of which fits one screen.
            if self.counters {
                all.clear()
            } else {
                counted.clear()
            }
        }
        let mut output = context.stdout();
        if self.json {
            json::write(&mut output, kind, self.object(&all, &counted))?
        } else {
            write_text(&mut output, &all, &counted, !asked.is_empty())?
        }
        Ok(output.flush()?)
    }

    /// Checks before anything is changed that an image has all rows that are asked for.
    fn check_names(&self, asked: &[&str]) -> Result<(), Failure> {
        asked
            .iter()
            .try_for_each(|name| tunable(name).map(drop).map_err(|error| self.refused(error)))
    }

    fn change(&self, changes: &[(&str, &str)]) -> Result<(), Failure> {
        if changes.is_empty() {
            return Ok(());
        }
        if self.in_use {
            return Err(Failure::usage("--in-use is for reading only"));
        }
        let clock = epoch::clock()?;
        let held = held(place_for_writing(&self.place, &self.image)?);
        let device = Arc::clone(&held) as Arc<dyn BlockDevice>;
        tune(&device, changes, clock).map_err(|error| match error {
            TuneError::Fs(error) => cannot_read(&self.place, &device, &self.image, &error),
            error => self.refused(error),
        })?;
        let released = held.release();
        released.map_err(|error| Failure::new(error).at(self.place.display()))
    }

    fn refused(&self, error: TuneError) -> Failure {
        match error {
            TuneError::Fs(error) => Failure::new(error).at(self.place.display()),
            error => Failure::usage(error),
        }
    }

    /// All settings of the image that can be changed.
    fn of_image(&self, context: &Context) -> Result<Vec<Shown>, Failure> {
        let from = FsArgs {
            image: self.image.clone(),
            in_use: self.in_use,
            ..FsArgs::default()
        };
        let fs = open_fs(context, &self.place, &from)?;
        let superblock = fs.inodes().superblock();
        let shown = TUNABLES.iter().map(|tunable| Shown {
            name: tunable.name.to_owned(),
            value: tunable.get(superblock),
            values: tunable.values.to_owned(),
            kind: ShownKind::Setting,
        });
        Ok(shown.collect())
    }

    fn object(&self, all: &[Shown], counted: &[(String, u64)]) -> Value {
        let of_kind = |kind: ShownKind| {
            let mut values = JsonObject::new();
            for shown in all.iter().filter(|shown| shown.kind == kind) {
                values.insert(shown.name.clone(), shown.value.clone().into());
            }
            values
        };
        let mut object = JsonObject::new();
        let place = self.place.to_string_lossy().into_owned();
        object.insert("place".into(), place.into());
        object.insert("values".into(), of_kind(ShownKind::Setting).into());
        object.extend(of_kind(ShownKind::Report));
        if self.place.is_dir() {
            object.insert("options".into(), of_kind(ShownKind::Option).into());
            let mut counters = JsonObject::new();
            for (name, count) in counted {
                counters.insert(name.clone(), (*count).into());
            }
            object.insert("counters".into(), counters.into());
        }
        object.into()
    }
}

fn is_there(name: &str, all: &[Shown], counted: &[(String, u64)]) -> bool {
    all.iter().any(|shown| shown.name == name) || counted.iter().any(|(known, _)| known == name)
}

/// Prints the rows in columns; prints only the values if rows were asked for by name.
fn write_text(
    output: &mut dyn Write,
    all: &[Shown],
    counted: &[(String, u64)],
    only_values: bool,
) -> std::io::Result<()> {
    if only_values {
        for shown in all {
            writeln!(output, "{}", shown.value)?;
        }
        for (_, count) in counted {
            writeln!(output, "{count}")?;
        }
        return Ok(());
    }
    let names = all.iter().map(|shown| shown.name.len());
    let width = names
        .chain(counted.iter().map(|(name, _)| name.len()))
        .max();
    let width = width.unwrap_or(0);
    let values = all.iter().map(|shown| shown.value.chars().count()).max();
    // One long value does not widen the column of all values.
    let wide = values.unwrap_or(0).min(20);
    for Shown {
        name,
        value,
        values,
        ..
    } in all
    {
        if values.is_empty() {
            writeln!(output, "{name:<width$}  {value}")?
        } else {
            writeln!(output, "{name:<width$}  {value:<wide$}  ({values})")?
        }
    }
    for (name, count) in counted {
        writeln!(output, "{name:<width$}  {count}")?;
    }
    Ok(())
}

/// The value of an attribute of a mount's root directory.
pub(super) fn attribute(directory: &Path, name: &str) -> Result<String, Failure> {
    let mut value = vec![0; ATTRIBUTE_BYTES];
    let read = getxattr(directory, format!("lanefs.{name}"), &mut value[..]);
    let len = read.map_err(|error| match error {
        Errno::NODATA | Errno::OPNOTSUPP => not_a_mount(directory),
        error => Failure::new(error).at(directory.display()),
    })?;
    value.truncate(len);
    Ok(String::from_utf8_lossy(&value).into_owned())
}

fn not_a_mount(directory: &Path) -> Failure {
    let shown = directory.display();
    Failure::new(format!("no image is mounted on {shown} by lanefs"))
}

/// The counters of a mount, by name.
pub(super) fn counters(directory: &Path) -> Result<Vec<(String, u64)>, Failure> {
    let counters = attribute(directory, "counters")?;
    let counters = counters.lines().filter_map(|line| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    Ok(counters.collect())
}

/// The transport and the options of a mount; none if the server has an older version.
fn options(directory: &Path) -> Vec<Shown> {
    let lines = attribute(directory, "options").unwrap_or_default();
    let lines = lines.lines().filter_map(|line| line.split_once('='));
    let shown = lines.map(|(name, value)| Shown {
        kind: ShownKind::Option,
        ..Shown::report(name, value.to_owned())
    });
    shown.collect()
}

/// The forms of a mount's mechanisms.
fn live(directory: &Path) -> Result<Vec<Shown>, Failure> {
    let there = attribute(directory, "there")?;
    let there: Vec<(&str, &str)> = there
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let forms = attribute(directory, "forms")?;
    let forms = forms.lines().filter_map(|line| line.split_once('='));
    let shown = forms.map(|(name, value)| {
        let values = there.iter().find(|(known, _)| *known == name);
        Shown {
            name: name.to_owned(),
            value: value.to_owned(),
            values: values.map_or("", |(_, words)| words).to_owned(),
            kind: ShownKind::Setting,
        }
    });
    Ok(shown.collect())
}

/// Changes forms of a mount, one after the other.
fn switch(directory: &Path, changes: &[(&str, &str)]) -> Result<(), Failure> {
    if changes.is_empty() {
        return Ok(());
    }
    let forms = live(directory)?;
    let unknown = changes
        .iter()
        .find(|(name, _)| !forms.iter().any(|form| form.name == *name));
    if let Some((name, _)) = unknown {
        let all: Vec<&str> = forms.iter().map(|form| form.name.as_str()).collect();
        let all = all.join(", ");
        return Err(Failure::usage(format!(
            "unknown name `{name}`; known are {all}"
        )));
    }
    for (name, value) in changes {
        let set = setxattr(
            directory,
            format!("lanefs.{name}"),
            value.as_bytes(),
            XattrFlags::empty(),
        );
        set.map_err(|error| match error {
            Errno::INVAL => {
                let known = forms.iter().find(|form| form.name == *name);
                let values = known.map_or("", |form| &form.values);
                Failure::usage(format!("{name} is one of {values}"))
            }
            Errno::PERM | Errno::ACCESS => Failure::new(error)
                .at(directory.display())
                .hint("root and the user who mounted it may change it"),
            // Forms decide how changes are made.
            Errno::ROFS => Failure::new(format!("{name} has no effect on a read-only mount"))
                .at(directory.display()),
            error => Failure::new(error).at(directory.display()),
        })?;
    }
    Ok(())
}
