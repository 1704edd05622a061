//! The program that `cargo xtask instructions` runs under callgrind: it calls one operation of the engine
//! [`CALLS`] times on a file system in memory, from one thread.
//!
//! Only the instructions inside [`lanefs_measured`] are counted; what an operation needs is prepared outside. The count
//! is the same in each run and on each machine: the program runs on one CPU, so nothing is sized by the number of CPUs;
//! no thread of the engine's own is started; an allocation costs the same whatever was allocated before; and the clock
//! is the standard library's, which asks the kernel where callgrind hides the vDSO.

mod heap;
mod operation;

use std::io::Write;
use std::process::ExitCode;

use device::{BlockDevice, MemoryDevice};
use engine::{InodeFs, MountOptions, Timestamp};
use operation::{CountedOperation, CountedWorker};
use sync::Arc;

#[global_allocator]
static HEAP: heap::FixedHeap = heap::FixedHeap;

/// Calls of an operation.
const CALLS: usize = 10_000;
/// Bytes of the file system.
const SIZE: u64 = 4 << 30;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut out = std::io::stdout();
    let done = match words.as_slice() {
        ["--list"] => {
            let names = CountedOperation::ALL.map(CountedOperation::name).join("\n");
            writeln!(out, "{CALLS}\n{names}").map_err(|error| error.to_string())
        }
        [name, cpu] => match CountedOperation::ALL
            .into_iter()
            .find(|one| one.name() == *name)
        {
            Some(operation) => run(operation, cpu),
            None => Err(format!("unknown operation `{name}`: see --list")),
        },
        _ => Err("usage: instructions OPERATION CPU | --list".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prepares the operation and calls it, on the CPU with this number among those that the process may use.
fn run(operation: CountedOperation, cpu: &str) -> Result<(), String> {
    let cpu = cpu
        .parse()
        .map_err(|_| format!("invalid CPU `{cpu}`: expected a number from 0"))?;
    stay_on(cpu).map_err(|error| format!("binding to one CPU failed: {error}"))?;
    let fs = fresh(operation)?;
    let mut worker =
        CountedWorker::new(&fs, operation, CALLS).map_err(|error| error.to_string())?;
    for call in 0..CALLS {
        let name = operation.name();
        worker
            .prepare(call)
            .and_then(|()| {
                let mut result = Ok(());
                lanefs_measured(&mut || result = worker.call(call));
                result
            })
            .map_err(|error| format!("call {call} of {name} failed: {error}"))?;
    }
    Ok(())
}

/// Runs what is counted: callgrind collects from this function's entry to its return.
#[inline(never)]
fn lanefs_measured(operation: &mut dyn FnMut()) {
    operation();
    // The call above must not become a jump, after which the function would not return.
    std::hint::black_box(());
}

/// Binds the process to one of the CPUs that it may use.
fn stay_on(number: usize) -> rustix::io::Result<()> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let allowed = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    let mut cpus = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .cycle();
    one.set(cpus.nth(number).ok_or(rustix::io::Errno::INVAL)?);
    sched_setaffinity(None, &one)
}

/// The wall clock, by the standard library.
fn clock() -> Timestamp {
    let (seconds, nanoseconds) = sync::clock::wall();
    Timestamp {
        seconds,
        nanoseconds,
    }
}

/// A new file system with the features that `lanefs mkfs` chooses, and those that the operation needs.
fn fresh(operation: CountedOperation) -> Result<InodeFs, String> {
    let device = MemoryDevice::new(SIZE);
    let options = mkfs::Options {
        device_is_zero: true,
        uuid: Some([7; 16]),
        hash_seed: Some([7; 16]),
        features: operation.features().to_owned(),
        ..mkfs::Options::default()
    };
    let layout = mkfs::Layout::plan(SIZE, &options).map_err(|error| error.to_string())?;
    mkfs::format(&device, &layout).map_err(|error| error.to_string())?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    InodeFs::open_for_writing(device, &MountOptions::default(), clock)
        .map_err(|error| error.to_string())
}
