//! How fast the devices beneath a run are: what its figures are to be held against.
//!
//! Each is measured for less than half a second, before the benches: bytes written one after the other in batches that
//! grow, each flushed; single blocks written and flushed; and what was written, read. Memory and an image's place are
//! measured as the engine uses them, through [`BlockDevice`]; so is a directory's, with a file in it.
//!
//! Nothing that was on the devices is changed. In a directory, a new file without a name is written. On a device or a
//! file that a bench is to use as it is, the bytes that were read are written back, so a crash leaves the same bytes
//! too. A measurement that fails reports why, and does not fail the run. No lock.

use std::path::{Path, PathBuf};
use std::time::Duration;

use device::{BlockDevice, DeviceError, FileDevice, MemoryDevice};
use rustix::fs::Advice;
use sync::clock;

use crate::directory::HostDirectory;
use crate::leavings;
use crate::suite::{Setup, Suite};
use crate::table::Spread;
use model::Random;

/// What is written and flushed at once: the first time, and at most.
const BATCH_FIRST: usize = 256 << 10;
const BATCH_LAST: usize = 32 << 20;
/// All batches: each is twice the one before.
const AREA: u64 = (2 * BATCH_LAST - BATCH_FIRST) as u64;
/// What is written or read by one call.
const CALL: usize = 1 << 20;
/// What is written before a flush that is timed.
const BLOCK: usize = 4096;
/// Flushes that are timed, at most.
const FLUSHES: usize = 101;
/// For how long each of the three is measured.
const TIME: Duration = Duration::from_millis(120);
const MIB: f64 = (1 << 20) as f64;

/// How fast a device is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// MiB a second written one after the other, with the flush after them.
    pub write: f64,
    /// MiB a second read one after the other, dropped from the page cache before where there is one.
    pub read: f64,
    /// The middle time of a flush after one block of 4 KiB, in microseconds.
    pub flush: f64,
    /// Flushes of which it is the middle.
    pub flushes: usize,
    /// Bytes that were written between two flushes, where the rate of writing is from.
    pub batch: u64,
}

/// A device beneath a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Speed {
    /// What was measured: `memory`, or a path.
    pub of: String,
    /// In which way.
    pub how: String,
    /// What was found, or why nothing was.
    pub figures: Result<Figures, String>,
}

/// The devices that these benches will use, each measured by itself.
#[must_use]
pub fn speeds(suites: &[Suite], setup: &Setup, mut heard: impl FnMut(&Speed)) -> Vec<Speed> {
    let mut speeds = Vec::new();
    let mut add = |of: String, how: &str, figures: Result<Figures, DeviceError>| {
        let figures = figures.map_err(|error| error.to_string());
        let how = how.to_owned();
        let speed = Speed { of, how, figures };
        heard(&speed);
        speeds.push(speed);
    };
    if setup.engine {
        let memory = MemoryDevice::new(AREA);
        let how = "memory of this process";
        add("memory".into(), how, measure(&memory, false, || ()));
        let all = suites.iter().flat_map(|suite| suite.used_as_it_is(setup));
        let mut in_place: Vec<PathBuf> = all.collect();
        in_place.dedup();
        for path in in_place {
            let figures = rewritten(&path);
            let how = "itself, with what it held; pages dropped before reading";
            add(path.display().to_string(), how, figures);
        }
        let is_new =
            |path: &&PathBuf| !path.exists() && suites.iter().any(|suite| suite.makes_image(setup));
        if let Some(path) = setup.image.as_ref().filter(is_new) {
            let place = match path.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            let how = "a new file beside it; pages dropped before reading";
            add(path.display().to_string(), how, in_new_file(place));
        }
    }
    for path in &setup.on {
        let way = HostDirectory::open(path, false).map(|directory| directory.way());
        let way = way.unwrap_or_else(|error| error.to_string());
        let how = format!("a new file in it, by {way}; pages dropped before reading");
        add(path.display().to_string(), &how, in_new_file(path));
    }
    speeds
}

/// On a file that nobody else sees.
fn in_new_file(place: &Path) -> Result<Figures, DeviceError> {
    let path = place.join(leavings::name("speed"));
    let device = FileDevice::create_new(&path, AREA)?;
    // Open until the end, and gone with this process however it ends.
    let _ = std::fs::remove_file(&path);
    measure(&device, false, || forget(&device))
}

/// On what is there, which stays what it is.
fn rewritten(path: &Path) -> Result<Figures, DeviceError> {
    let device = FileDevice::open(path)?;
    measure(&device, true, || forget(&device))
}

/// Has the kernel drop what it knows of a file's bytes, so that they are read from where they lie.
fn forget(device: &FileDevice) {
    // A file system that can't has them in memory anyhow, and reading is as fast as it is there.
    let _ = rustix::fs::fadvise(device, 0, None, Advice::DontNeed);
}

/// Measures, at the device's begin. `keeps`: what is written is what was read there.
fn measure(
    device: &dyn BlockDevice,
    keeps: bool,
    forget: impl Fn(),
) -> Result<Figures, DeviceError> {
    let area = device.size().min(AREA);
    // The first batch must fit.
    if area < BATCH_FIRST as u64 {
        return Err(DeviceError::OutOfRange {
            operation: "measuring",
            offset: 0,
            len: BATCH_FIRST as u64,
            size: area,
        });
    }
    // What was written before the run is not this measurement's to wait for.
    device.flush()?;
    let (written, write, batch) = written(device, area, keeps)?;
    let times = flushes(device, written)?;
    forget();
    let read = read(device, written)?;
    let flushes = times.len();
    let flush = Spread::of(times).map_or(0.0, |spread| spread.median);
    Ok(Figures {
        write,
        read,
        flush,
        flushes,
        batch,
    })
}

/// Writes batches, each twice the one before, as long as the next one should fit into time and space: how far, MiB a
/// second in the last one, and its bytes.
fn written(
    device: &dyn BlockDevice,
    area: u64,
    keeps: bool,
) -> Result<(u64, f64, u64), DeviceError> {
    let begin = clock::now();
    let (mut end, mut rate, mut last) = (0, 0.0, 0);
    let mut batch = BATCH_FIRST;
    let mut bytes = Vec::new();
    while batch <= BATCH_LAST && end + batch as u64 <= area {
        let batch_begin = clock::now();
        bytes.resize(batch, 0);
        if keeps {
            device.read_at(end, &mut bytes)?
        } else {
            Random::new(end).fill(&mut bytes)
        }
        let write_begin = clock::now();
        let put = bytes.chunks(CALL).zip(0..);
        let mut put = put.map(|(call, number)| device.write_at(end + number * CALL as u64, call));
        let put = put.try_for_each(|put| put).and_then(|()| device.flush());
        match put {
            // What there was room for says enough.
            Err(error) if error.is_no_space() && end > 0 => break,
            put => put?,
        }
        let time = write_begin.elapsed();
        rate = batch as f64 / MIB / time.as_secs_f64().max(1e-9);
        last = batch as u64;
        end += last;
        if begin.elapsed() + 2 * batch_begin.elapsed() > TIME {
            break;
        }
        batch *= 2;
    }
    Ok((end, rate, last))
}

/// How long flushes take, each after a block that is written back as it was, in microseconds.
fn flushes(device: &dyn BlockDevice, written: u64) -> Result<Vec<f64>, DeviceError> {
    let blocks = written / BLOCK as u64;
    let mut block = [0; BLOCK];
    let mut times = Vec::new();
    let begin = clock::now();
    for number in 0..FLUSHES as u64 {
        let offset = number % blocks * BLOCK as u64;
        device.read_at(offset, &mut block)?;
        device.write_at(offset, &block)?;
        let flush = clock::now();
        device.flush()?;
        times.push(flush.elapsed().as_secs_f64() * 1e6);
        if begin.elapsed() > TIME {
            break;
        }
    }
    Ok(times)
}

/// MiB read a second from the begin on, as far as was written or until time is up.
fn read(device: &dyn BlockDevice, written: u64) -> Result<f64, DeviceError> {
    let mut bytes = vec![0; BATCH_FIRST];
    let len = bytes.len() as u64;
    let mut end = 0;
    let begin = clock::now();
    while end + len <= written && (end == 0 || begin.elapsed() < TIME) {
        device.read_at(end, &mut bytes)?;
        end += len;
    }
    Ok(end as f64 / MIB / begin.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow_flush::SlowFlushDevice;

    #[test]
    fn a_flush_that_takes_its_time_is_seen_and_the_measurement_is_bounded() {
        let device = SlowFlushDevice::new(MemoryDevice::new(AREA), Duration::from_millis(20));
        let begin = clock::now();
        let figures = measure(&device, false, || ()).unwrap();
        // Three parts, the last batch of each may be under way when time is up.
        assert!(begin.elapsed() < 10 * TIME);
        assert!(figures.flush >= 20_000.0, "{figures:?}");
        assert!((1..=FLUSHES).contains(&figures.flushes), "{figures:?}");
        assert!(figures.write > 0.0 && figures.read > 0.0, "{figures:?}");
    }

    #[test]
    fn an_image_that_is_measured_in_place_keeps_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let mut bytes = vec![0; (5 << 20) + 123];
        Random::new(7).fill(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let figures = rewritten(&path).unwrap();
        assert!(figures.write > 0.0 && figures.read > 0.0, "{figures:?}");
        assert!(std::fs::read(&path).unwrap() == bytes);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_is_too_small_or_not_there_is_an_error() {
        assert!(measure(&MemoryDevice::new(4096), false, || ()).is_err());
        assert!(in_new_file(Path::new("/nowhere")).is_err());
    }
}
