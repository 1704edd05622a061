//! Reading block maps of ext2 and ext3: twelve pointers, then trees of one, two and three levels.

use ondisk::Ino;

use crate::map::{MapRun, Sink, word32};
use crate::problem::Code;
use crate::report::Problem;
use crate::volume::Volume;

/// A block of pointers on the way down.
struct Frame {
    bytes: Vec<u8>,
    next: usize,
    /// Levels below these pointers; 0 where they name data.
    levels: u32,
    /// The logical block of the first pointer.
    lblk: u64,
}

/// Joins pointers that follow each other into runs.
struct Runs<'a> {
    run: Option<MapRun>,
    sink: &'a mut dyn Sink,
}

impl Runs<'_> {
    fn push(&mut self, lblk: u64, pblk: u64) {
        if let Some(run) = &mut self.run
            && run.lblk + run.len == lblk
            && run.pblk + run.len == pblk
        {
            run.len += 1;
            return;
        }
        self.flush();
        self.run = Some(MapRun {
            lblk,
            pblk,
            len: 1,
            unwritten: false,
        });
    }

    fn flush(&mut self) {
        if let Some(run) = self.run.take() {
            self.sink.run(run);
        }
    }
}

/// Hands every run of an inode's block map to the sink.
pub fn walk(volume: &Volume<'_>, ino: Ino, words: &[u8], sink: &mut dyn Sink) {
    let bits = volume.geometry.block_size().bits() - 2;
    let mut runs = Runs { run: None, sink };
    let mut lblk = 0;
    let illegal = |lblk: u64, block: u64| {
        let problem = Problem::new(Code::IllegalBlock).ino(ino);
        problem.lblk(lblk).found(block)
    };
    for index in 0..15_usize {
        let levels = (index as u32).saturating_sub(11);
        let span = 1_u64 << (bits * levels);
        let pointer = u64::from(word32(words, 4 * index));
        let mut stack = Vec::new();
        step(
            volume, ino, pointer, levels, lblk, &mut runs, &mut stack, &illegal,
        );
        while let Some(frame) = stack.last_mut() {
            if frame.next >= 1 << bits {
                stack.pop();
                continue;
            }
            let pointer = u64::from(word32(&frame.bytes, 4 * frame.next));
            let levels = frame.levels;
            let at = frame.lblk + ((frame.next as u64) << (bits * levels));
            frame.next += 1;
            step(
                volume, ino, pointer, levels, at, &mut runs, &mut stack, &illegal,
            );
        }
        lblk += span;
    }
    runs.flush();
}

/// Follows one pointer.
#[allow(clippy::too_many_arguments)]
fn step(
    volume: &Volume<'_>,
    ino: Ino,
    pointer: u64,
    levels: u32,
    lblk: u64,
    runs: &mut Runs<'_>,
    stack: &mut Vec<Frame>,
    illegal: &dyn Fn(u64, u64) -> Problem,
) {
    if pointer == 0 {
        return;
    }
    if !volume.contains(pointer, 1) {
        runs.sink.problem(illegal(lblk, pointer));
        return;
    }
    if levels == 0 {
        return runs.push(lblk, pointer);
    }
    runs.flush();
    if !runs.sink.node(pointer) {
        return;
    }
    match volume.block(pointer) {
        Some(bytes) => stack.push(Frame {
            bytes,
            next: 0,
            levels: levels - 1,
            lblk,
        }),
        None => {
            volume.unread.add_map();
            volume.unread.add_names();
            let problem = Problem::new(Code::MapUnreadable).ino(ino);
            runs.sink.problem(problem.block(pointer));
        }
    }
}
