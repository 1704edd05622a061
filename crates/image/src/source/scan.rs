//! Scans all sources of a build, in order, into one tree.

use std::fs::FileType;

use device::host;
use sync::atomic::AtomicBool;

use super::archive::{self, Adding};
use super::builder::Builder;
use super::contexts;
use super::directory::Scan;
use super::error::SourceError;
use super::exclude::Excludes;
use super::lost_found;
use super::oci;
use super::options::{Options, SourcePlace};
use super::origin::DataSink;
use super::table;
use super::tree::SourceTree;

/// Looks at all sources and reads no file's data.
///
/// # Errors
/// When a source can't be read, or an option does not fit; then nothing was written anywhere. A pipe can't be scanned
/// so.
pub fn scan(options: &Options) -> Result<SourceTree, SourceError> {
    scan_with(options, &AtomicBool::new(false), None)
}

/// Looks at all sources; the data of tar archives that are compressed or come through a pipe goes to `sink` meanwhile.
///
/// # Errors
/// When a source can't be read, an option does not fit, or the sink ends it; or when `cancel` is set while a pipe is
/// waited for.
pub fn scan_streaming(
    options: &Options,
    cancel: &AtomicBool,
    sink: &mut dyn DataSink,
) -> Result<SourceTree, SourceError> {
    scan_with(options, cancel, Some(sink))
}

/// Whether a source is a pipe, so that only [`scan_streaming`] can be used.
#[must_use]
pub fn reads_once(options: &Options) -> bool {
    let once = |kind: FileType| !(kind.is_file() || kind.is_dir() || host::is_block_device(kind));
    options.inputs.iter().any(|input| match &input.place {
        SourcePlace::Path(path) => path.metadata().is_ok_and(|found| once(found.file_type())),
        SourcePlace::Stdin => host::stdin()
            .and_then(|file| file.metadata())
            .is_ok_and(|found| !found.is_file()),
    })
}

fn scan_with(
    options: &Options,
    cancel: &AtomicBool,
    mut sink: Option<&mut dyn DataSink>,
) -> Result<SourceTree, SourceError> {
    let mut builder = Builder::new();
    let excludes = Excludes::new(&options.exclude);
    let outputs: Vec<(u64, u64)> = options
        .outputs
        .iter()
        .filter_map(|path| host::identity(path))
        .collect();
    let threads = match options.threads {
        0 => sync::thread::available_parallelism(),
        threads => threads,
    };
    let asked = (options.platform.as_deref(), options.image.as_deref());
    let mut images = 0;
    for input in &options.inputs {
        let wrong = |problem| SourceError::Tree {
            path: String::from_utf8_lossy(&input.at).into_owned(),
            problem,
        };
        let at = builder.directory_from(0, &input.at).map_err(wrong)?;
        let sink = sink.as_mut().map(|sink| &mut **sink as &mut dyn DataSink);
        match &input.place {
            SourcePlace::Path(path) if path.is_dir() => {
                if let Some(image) = oci::in_directory(path)? {
                    image.add(&mut builder, at, &excludes, asked, threads)?;
                    images += 1;
                    continue;
                }
                let scan = Scan {
                    path,
                    excludes: &excludes,
                    outputs: &outputs,
                    threads,
                };
                scan.add(&mut builder, at)?;
            }
            place => {
                let opened = archive::opened_at(place, cancel)?;
                let adding = Adding {
                    at,
                    excludes: &excludes,
                    spool: options.spool,
                };
                if let Some(image) = archive::add(opened, &mut builder, &adding, sink)? {
                    image.add(&mut builder, at, &excludes, asked, threads)?;
                    images += 1;
                }
            }
        }
    }
    refuse_choice_of_nothing(options, images)?;
    finished(builder, options)
}

/// The tree of all sources, with what the options change in it.
fn finished(mut builder: Builder, options: &Options) -> Result<SourceTree, SourceError> {
    if let Some((uid, gid)) = options.owner {
        builder.own(uid, gid);
    }
    if let Some(path) = &options.table {
        table::apply(path, &mut builder)?;
    }
    if let Some(time) = options.lost_found {
        lost_found::add(&mut builder, time)?;
    }
    let mut tree = builder.finish();
    if let Some(path) = &options.file_contexts {
        contexts::apply(path, &mut tree)?;
    }
    tree.number_xattrs();
    Ok(tree)
}

/// Refuses options that choose among container images where no source is one.
fn refuse_choice_of_nothing(options: &Options, images: usize) -> Result<(), SourceError> {
    let asked = [
        ("--platform", &options.platform),
        ("--image", &options.image),
    ];
    for (option, value) in asked {
        if let (Some(value), 0) = (value, images) {
            return Err(SourceError::Usage(format!(
                "{option} {value}: no source is a container image; leave {option} out"
            )));
        }
    }
    Ok(())
}
