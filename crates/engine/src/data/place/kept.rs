//! `prealloc=on`: what is kept for the file or for small files of the thread, else a normalised run, the rest of which
//! is kept. Kept blocks have locks of their own, held for a look; no other lock is taken except those of the groups.

use super::{Place, SMALL, Supply, bounded};
use crate::core::Error;
use crate::core::sb::BlockPurpose;
use crate::data::step::max_bytes;
use crate::map::Mappings;
use crate::space::mballoc::{Aside, NormalRequest, TakenBlocks, normalize};

pub(super) struct Kept;

impl Supply for Kept {
    fn take<'a>(&self, place: &Place<'a, '_>) -> Result<TakenBlocks<'a>, Error> {
        place.take_kept()
    }
}

impl<'a> Place<'a, '_> {
    fn take_kept(&self) -> Result<TakenBlocks<'a>, Error> {
        let (mounted, live) = (self.file.mounted, self.file.locked.inode());
        let kept = mounted.preallocations();
        let want = self.end - self.at;
        if let Some(blocks) = kept.take(live.kept(), self.at, bounded(want)) {
            return Ok(mounted.take_up(blocks));
        }
        let neighbors = live.kept().neighbors(self.at);
        let want = want.min(neighbors.behind - self.at);
        let file_end = self.file_end();
        let is_small = self.end.max(file_end) <= SMALL;
        if let Some(next) = self.next
            && self.reaches_all()
            && let Some(blocks) = kept.take_at(next, bounded(want))
        {
            return Ok(mounted.take_up(blocks));
        }
        if is_small
            && self.next.is_none()
            && let Some(blocks) = self.take_from_lane(want)?
        {
            return Ok(blocks);
        }
        // One write of a whole file, which is not open to be written further.
        if self.next.is_none() && self.at == 0 && !live.life.is_held() {
            return self.take_out(self.goal(), want, want);
        }
        self.refill(want, neighbors.before)
    }

    /// Takes a normalised run out of the bitmaps, and keeps what is not wanted of it.
    fn refill(&self, want: u64, kept_before: u64) -> Result<TakenBlocks<'a>, Error> {
        let (mounted, live) = (self.file.mounted, self.file.locked.inode());
        let range = self.normalized(want, kept_before)?;
        let mut blocks = self.take_out(self.goal(), range.1 - range.0, want)?;
        mounted.preallocations().refills.add(1);
        let lead = self.at - range.0;
        // If the kept run does not hold all wanted blocks in their places, the wanted blocks come first.
        if lead > 0 && lead + want <= u64::from(blocks.run().len) {
            let before = blocks.split(bounded(lead));
            mounted.keep_for(live, range.0, before.set_aside());
        }
        if u64::from(blocks.run().len) > want {
            let wanted = blocks.split(bounded(want));
            mounted.keep_for(live, self.at + want, blocks.set_aside());
            return Ok(wanted);
        }
        Ok(blocks)
    }

    /// The logical blocks to look for.
    fn normalized(&self, want: u64, kept_before: u64) -> Result<(u64, u64), Error> {
        let volume = self.file.volume();
        let geometry = volume.geometry();
        let bits = geometry.block_size().bits();
        let mut request = NormalRequest {
            block_bits: bits,
            logical: self.at,
            len: want,
            file_end: self.file_end(),
            hole: (kept_before, max_bytes(volume, self.inode) >> bits),
            free: self.file.mounted.spare_blocks(),
            group: geometry.blocks_per_group().into(),
        };
        request.hole.1 = request.hole.1.max(self.at + want);
        let wide = normalize(&request);
        let asked_end = self.at + want;
        if self.next.is_some() {
            request.hole.0 = self.at;
        } else if wide.start < self.at {
            for run in Mappings::new(volume, self.inode, wide.start..self.at)? {
                let run = run?;
                if run.physical.is_some() {
                    request.hole.0 = run.end();
                }
            }
        }
        if wide.end > asked_end {
            let behind = self.file.run_at(asked_end, wide.end)?;
            let free_to = if behind.physical.is_some() {
                asked_end
            } else {
                behind.end()
            };
            let live = self.file.locked.inode();
            let kept_behind = live.kept().neighbors(self.at).behind;
            request.hole.1 = free_to.min(kept_behind).max(asked_end);
        }
        let range = normalize(&request);
        Ok((range.start, range.end))
    }

    fn file_end(&self) -> u64 {
        let volume = self.file.volume();
        let size = volume.geometry().block_size();
        size.blocks_for(self.inode.bytes(volume))
    }

    /// Takes the next blocks of the thread's run for small files of this part of the volume, or of a new one. Nothing
    /// where there is too little free for that.
    fn take_from_lane(&self, want: u64) -> Result<Option<TakenBlocks<'a>>, Error> {
        let mounted = self.file.mounted;
        let kept = mounted.preallocations();
        let (home, mut goal) = self.first_goal(sync::thread_index());
        if !self.reaches_all() {
            // What is kept for others' small files may lie anywhere.
            return Ok(None);
        }
        match kept.take_near(home, bounded(want)) {
            Ok(blocks) => return Ok(Some(mounted.take_up(blocks))),
            Err(Some(rest)) => {
                goal = rest.run().start;
                drop(mounted.take_up(rest));
            }
            Err(None) => {}
        }
        let len = mounted.kept_at_once();
        if len < 2 * SMALL {
            return Ok(None);
        }
        let (most, least) = (bounded(len), bounded(want.max(SMALL)));
        let mut blocks =
            mounted.take_row(BlockPurpose::Growing, goal, self.reach(), least..=most)?;
        kept.lane_refills.add(1);
        if u64::from(blocks.run().len) <= want {
            return Ok(Some(blocks));
        }
        let wanted = blocks.split(bounded(want));
        let over: Option<Aside> = kept.keep_near(home, blocks.set_aside());
        drop(over.map(|over| mounted.take_up(over)));
        Ok(Some(wanted))
    }
}
