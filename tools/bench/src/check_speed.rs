//! Measures how long `e2fsck -fn` and `lanefs check -f -n` take on clean images, which `lanefs build` makes for this.
//!
//! Images are made and measured one after the other. For each image the programs run in an order that is drawn for each
//! round. The first round does not count: it brings the image into the kernel's cache. Both programs are measured as
//! whole processes, and both must find the image clean.

mod images;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lanefs::Error;
use sync::{clock, thread};

use self::images::Image;
use crate::leavings;
use crate::measure::Turns;
use crate::programs::{failed, lanefs, run};
use crate::suite::ProgressHook;
use crate::table::{Column, Sample, Table};

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct CheckPlan {
    /// The number of empty files in the first image; the others have proportional sizes.
    pub files: usize,
    /// The directory for the images, of which one exists at a time.
    pub folder: PathBuf,
    /// The rounds that count, after one that does not.
    pub rounds: usize,
    /// The seed for the order of the programs.
    pub seed: u64,
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The e2fsck that `LANEFS_E2FSCK` names, else the installed one.
fn e2fsck() -> Command {
    Command::new(std::env::var_os("LANEFS_E2FSCK").unwrap_or_else(|| "e2fsck".into()))
}

/// The version of the e2fsck that [`check_speed`] measures: `1.47.4`.
#[must_use]
pub fn e2fsck_version() -> String {
    let output = e2fsck().arg("-V").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    let text = text.unwrap_or_default();
    let version = text.split_whitespace().nth(1);
    version.unwrap_or("not there").to_owned()
}

/// The compared programs, by the number of threads; 0 stands for e2fsck.
fn contestants() -> Vec<usize> {
    let mut all = vec![0, 1];
    all.extend(Some(thread::available_parallelism()).filter(|cores| *cores > 1));
    all
}

fn check(threads: usize, image: &Path) -> Command {
    let mut command = match threads {
        0 => e2fsck(),
        _ => lanefs(),
    };
    match threads {
        0 => command.arg("-fn"),
        _ => command.args(["check", "-f", "-n", "--threads", &threads.to_string()]),
    };
    command.arg(image);
    command
}

/// Measures, and returns a table in seconds with a row for each image. The first column is e2fsck's, the next that of
/// one thread; on a machine with more cores, the last one is that of one thread for each core.
///
/// The images are in a folder named after this process. This function removes it before it returns, even with an error.
/// After a signal [`crate::clear_leavings`] removes it.
///
/// # Errors
/// If an image can't be made, or a program can't be run or does not find the image clean.
pub fn check_speed(plan: &CheckPlan, progress: &mut ProgressHook<'_>) -> Result<Table, Error> {
    let folder = Folder(plan.folder.join(leavings::name("check")));
    fs::create_dir_all(&folder.0).map_err(|error| failed("making", &folder.0, error))?;
    let path = folder.0.join("image");
    let contestants = contestants();
    let images = images::all(plan.files);
    let mut table = empty(plan, &images, &contestants);
    for (row, image) in images.iter().enumerate() {
        progress(&format!("{}: the image is made", image.name()));
        image.make(&path)?;
        let mut turns = Turns::new(contestants.len(), plan.seed);
        for round in 0..=plan.rounds {
            for column in turns.next() {
                let mut command = check(contestants[column], &path);
                let begin = clock::now();
                run(&mut command)?;
                let value = begin.elapsed().as_secs_f64();
                if round == 0 {
                    continue;
                }
                let label = &table.columns[column].label;
                progress(&format!("{}: {label}: {value:.4} s", image.name()));
                table.cells[row][column].samples.push(Sample {
                    value,
                    ..Sample::default()
                });
            }
        }
        fs::remove_file(&path).map_err(|error| failed("removing", &path, error))?;
    }
    Ok(table)
}

/// The table without figures.
fn empty(plan: &CheckPlan, images: &[Image], contestants: &[usize]) -> Table {
    let column = |threads: &usize| {
        let label = match threads {
            0 => "e2fsck".to_owned(),
            1 => "1 thread".to_owned(),
            more => format!("{more} threads"),
        };
        Column {
            label,
            way: String::new(),
        }
    };
    let about = format!(
        "Medians and ranges of {} interleaved runs on an image in the kernel's cache, from start to end of the \
         process. Empty files are {} a directory, the ones of {} bytes are in {} directories. Each extent is one \
         block; between two of a file lie blocks of the other files.",
        plan.rounds,
        images::IN_EACH,
        images::commas(images::SMALL),
        images::DIRECTORIES
    );
    let rows = images.iter().map(Image::name).collect();
    let columns = contestants.iter().map(column).collect();
    let title = "lanefs check beside e2fsck -fn";
    Table::new("check-speed", title, &about, rows, columns).in_seconds("image")
}
