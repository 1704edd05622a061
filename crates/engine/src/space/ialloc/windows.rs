//! The form with windows (`dir_ireserve=auto|low|normal|high|N`): a directory's files get adjacent numbers that no
//! other directory gets. So they share blocks of the inode table with each other, and no cache lines with other
//! directories' files.
//!
//! ```text
//! auto        a directory's first file takes a number of its thread's window; from the second on the directory has a
//!             window, about a quarter as large as it has names: 2 to 128 numbers, to 512 if it is indexed;
//!             directories take numbers of the thread's window, in ascending order
//! low, ...    16, 64, 128 or N numbers a directory: it takes the first and its files the others; then N again
//! ```
//!
//! A window is filled with numbers that the directory had and that are free again; else with numbers next to those of
//! the files around the new name's slot; else with those after the last window; else with an aligned chunk. The
//! directory's own group is used while it has numbers. A window is not filled if fewer than a thirty-second of all
//! numbers would be left for other directories. Then one number is taken at a time, and when none is available, all
//! windows are taken back.
//!
//! Locks: a window's ([`Rank::InodeWindow`](sync::Rank)), and that of the list of windows ([`Rank::InodeWindows`]);
//! bitmaps are read with neither held.

use ondisk::Ino;
use sync::clock::{self, Duration, Instant};
use sync::{Arc, CachePadded, Counter, Mutex, Rank, Statistic, Weak};

use super::core_window::{self, CoreWindows};
use super::orlov::{self, Choice};
use super::plain;
use super::window::{Filling, Window};
use super::{InodeRequest, Neighbours, OfInode, Place, SlotHints, Source, Taken};
use crate::core::Error;
use crate::core::variants::{Chosen, DirReserve};
use crate::space::group::InodeNumbers;

/// Numbers of the smallest window that grows: of a directory with few names, and of other directories.
const LEAST: [u32; 2] = [2, 4];
/// Numbers of the largest window: of a directory without an index, and of one with an index.
const MOST: [u32; 2] = [128, 512];
/// The shortest time of a tick; a tick ends with a commit.
const TICK: Duration = Duration::from_secs(10);
/// A window from which nothing was taken for this number of ticks is given back.
const IDLE: u32 = 6;

const SHARDS: usize = 16;

/// A part of the list of windows; some of them may not exist any more.
struct Shard {
    windows: Vec<Weak<Window>>,
    /// The length at which windows that do not exist any more are removed from the list.
    prune_at: usize,
}

/// The form with windows.
pub(super) struct Windows {
    form: Chosen<DirReserve>,
    cores: CoreWindows,
    /// [inode windows]
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    /// Ticks so far. [written once in a tick, so its cache line stays shared]
    ticks: CachePadded<Statistic<u32>>,
    /// When the last tick began. [leaf]
    tick_began: Mutex<Instant>,
    hits: Counter,
    core_hits: Counter,
    refills: Counter,
    core_refills: Counter,
    singles: Counter,
    drawn_back: Counter,
}

impl Windows {
    pub(super) fn new(form: DirReserve) -> Windows {
        let shard = || Shard {
            windows: Vec::new(),
            prune_at: 64,
        };
        Windows {
            form: Chosen::new(form),
            cores: CoreWindows::default(),
            shards: std::array::from_fn(|_| {
                CachePadded::new(Mutex::new(Rank::InodeWindows, shard()))
            }),
            ticks: CachePadded::new(Statistic::new(0)),
            tick_began: Mutex::new(Rank::Leaf, clock::now()),
            hits: Counter::new(),
            core_hits: Counter::new(),
            refills: Counter::new(),
            core_refills: Counter::new(),
            singles: Counter::new(),
            drawn_back: Counter::new(),
        }
    }

    pub(super) fn choose(&self, form: DirReserve) {
        self.form.set(form);
    }

    /// A new empty window, which is added to the list.
    fn window(&self, inodes: &Arc<InodeNumbers>, parent: Ino) -> Arc<Window> {
        let window = Arc::new(Window::new(inodes));
        let mut shard = self.shards[parent.0 as usize % SHARDS].lock();
        if shard.windows.len() >= shard.prune_at {
            shard.windows.retain(|window| window.strong_count() > 0);
            shard.prune_at = (shard.windows.len() * 2).max(64);
        }
        shard.windows.push(Arc::downgrade(&window));
        window
    }

    /// Gives back the numbers of all windows; returns whether there were any.
    pub(super) fn draw_back(&self, inodes: &InodeNumbers) -> bool {
        let mut count = self.cores.draw_back(inodes);
        for shard in 0..SHARDS {
            for window in self.of_shard(shard) {
                count += window.draw_back();
            }
        }
        self.drawn_back.add(count.into());
        count > 0
    }

    /// The windows of a shard. They are locked after the list's lock was released.
    fn of_shard(&self, shard: usize) -> Vec<Arc<Window>> {
        let shard = self.shards[shard].lock();
        shard.windows.iter().filter_map(Weak::upgrade).collect()
    }

    fn tick(&self) -> u32 {
        self.ticks.get()
    }

    /// Once in a tick, gives back the windows that were not used for [`IDLE`] ticks.
    pub(super) fn draw_back_idle(&self) {
        let now = clock::now();
        {
            let mut began = self.tick_began.lock();
            if now.duration_since(*began) < TICK {
                return;
            }
            *began = now;
        }
        let tick = self.ticks.add(1) + 1;
        let mut count = 0;
        for shard in 0..SHARDS {
            for window in self.of_shard(shard) {
                count += window.draw_back_idle(tick, IDLE);
            }
        }
        self.drawn_back.add(count.into());
    }

    /// The counts since the mount.
    pub(super) fn counters(&self) -> [(&'static str, u64); 6] {
        [
            ("ialloc.window_hits", self.hits.sum()),
            ("ialloc.window_refills", self.refills.sum()),
            ("ialloc.core_window_hits", self.core_hits.sum()),
            ("ialloc.core_window_refills", self.core_refills.sum()),
            ("ialloc.single_numbers", self.singles.sum()),
            ("ialloc.numbers_drawn_back", self.drawn_back.sum()),
        ]
    }

    /// How many numbers the next window of a directory with `names` names has; 0 for no window.
    fn size(&self, names: u32, is_indexed: bool) -> u32 {
        match self.form.get().numbers() {
            Some(numbers) => numbers,
            None if names == 0 => 0,
            None => {
                let least = LEAST[usize::from(names >= 4)];
                let quarter = (names / 4).clamp(least, MOST[usize::from(is_indexed)]);
                // The power of two that is nearest to `quarter`.
                1 << (quarter + quarter / 3).ilog2()
            }
        }
    }

    /// Takes a number that was set aside, if one exists: for a file, from the directory's window; for a directory among
    /// its siblings, from the thread's window in the group that was used last for them.
    fn take_at_once(&self, place: Place<'_>, wanted: &InodeRequest<'_>) -> Option<Taken> {
        let slot = wanted.slot?;
        if !wanted.is_directory {
            let window = wanted.directory.window()?;
            let (group, index) = window.take(slot.hash(), self.tick())?;
            self.hits.add(1);
            return Some(Taken::new(group, index));
        }
        if wanted.is_top || self.form.get().numbers().is_some() {
            return None;
        }
        let group = wanted.directory.last_group()?;
        let index = self.cores.take(&place.groups.inodes, group)?;
        self.core_hits.add(1);
        Some(orlov::count(place, wanted, Taken::new(group, index)))
    }

    /// Fills a window, of the parent or of a new directory, from the first group that has numbers for it; then takes a
    /// number from it.
    fn fill(
        &self,
        place: Place<'_>,
        choice: &Choice,
        window: &Window,
        size: u32,
        around: &Neighbours,
        hash: Option<u32>,
    ) -> Result<Option<Taken>, Error> {
        let inodes = &place.groups.inodes;
        for group in choice.groups(place) {
            let Some(bits) = place.ready(group, size + 64)? else {
                continue;
            };
            let share = inodes.share_for_window(size);
            if share == 0 {
                return Ok(None);
            }
            let index = |ino: &Ino| place.volume.geometry().group_of_ino(*ino);
            let here = around.numbers.iter().filter_map(index);
            let here = here.filter(|(of, _)| *of == group);
            let beside: Vec<u32> = here.map(|(_, index)| index).collect();
            let filling = Filling {
                group,
                bits,
                share,
                beside: &beside,
                names: around.names,
                all_at: around.all_at,
            };
            let (taken, rest, looked) = window.fill_and_take(&filling, hash, self.tick());
            inodes.give_back_share(rest);
            place.count_words(looked);
            if let Some((group, index)) = taken {
                self.refills.add(1);
                return Ok(Some(Taken::new(group, index)));
            }
        }
        Ok(None)
    }

    /// Takes a number for a new directory, and sets others aside for the directory's files.
    fn take_with_window(
        &self,
        place: Place<'_>,
        choice: &Choice,
        parent: Ino,
        size: u32,
    ) -> Result<Option<Taken>, Error> {
        let window = self.window(&place.groups.inodes, parent);
        let around = Neighbours::default();
        let taken = self.fill(place, choice, &window, size, &around, None)?;
        Ok(taken.map(|taken| Taken {
            rest: Some(window),
            ..taken
        }))
    }

    /// Takes a number from the calling thread's window.
    fn take_of_core(&self, place: Place<'_>, choice: &Choice) -> Result<Option<Taken>, Error> {
        let inodes = &place.groups.inodes;
        if let Some(index) = self.cores.take(inodes, choice.first()) {
            self.core_hits.add(1);
            return Ok(Some(Taken::new(choice.first(), index)));
        }
        for group in choice.groups(place) {
            let Some(bits) = place.ready(group, core_window::NUMBERS)? else {
                continue;
            };
            let share = inodes.share_for_window(core_window::NUMBERS);
            if share == 0 {
                return Ok(None);
            }
            let (taken, rest) = self.cores.fill_and_take(place, group, bits, share);
            inodes.give_back_share(rest);
            if let Some(index) = taken {
                self.core_refills.add(1);
                return Ok(Some(Taken::new(group, index)));
            }
        }
        Ok(None)
    }

    /// Takes a number for an inode in a directory that has no window, or an empty one.
    fn take_anew(
        &self,
        place: Place<'_>,
        wanted: &InodeRequest<'_>,
        choice: &Choice,
    ) -> Result<Option<Taken>, Error> {
        let hash = wanted.slot.and_then(|slot| slot.hash());
        let around = match (wanted.slot, self.form.get().numbers()) {
            (_, Some(numbers)) if wanted.is_directory => {
                return self.take_with_window(place, choice, wanted.parent, numbers);
            }
            _ if choice.is_spread() => return Ok(None),
            (Some(slot), _) if !wanted.is_directory => look_around(slot, wanted.directory),
            _ => return self.take_of_core(place, choice),
        };
        match self.size(around.names, hash.is_some()) {
            0 => self.take_of_core(place, choice),
            size => {
                let new = || self.window(&place.groups.inodes, wanted.parent);
                let window = match wanted.directory.window() {
                    Some(window) => window,
                    None => wanted.directory.set(new()),
                };
                self.fill(place, choice, window, size, &around, hash)
            }
        }
    }
}

/// What is around a slot, as far as the directory's window does not know it, and roughly how many names the directory
/// has. The directory's block is not read for each window of a directory that grows: the window then knows the number
/// of names.
fn look_around(slot: &dyn SlotHints, directory: &OfInode) -> Neighbours {
    let window = directory.window();
    let (names, is_known) = window.map_or((0, false), |window| window.names(slot.changes()));
    let around = if is_known {
        Neighbours::default()
    } else {
        slot.neighbours()
    };
    let most = around.most.unwrap_or(u32::MAX);
    Neighbours {
        names: names.max(around.names).min(most),
        ..around
    }
}

impl Source for Windows {
    fn take(&self, place: Place<'_>, wanted: &InodeRequest<'_>) -> Result<Option<Taken>, Error> {
        if let Some(taken) = self.take_at_once(place, wanted) {
            return Ok(Some(taken));
        }
        let choice = orlov::choose(place, wanted);
        let mut taken = self.take_anew(place, wanted, &choice)?;
        if taken.is_none() {
            self.singles.add(1);
            taken = plain::take_one(place, &choice)?;
        }
        Ok(taken.map(|taken| orlov::note(place, wanted, taken)))
    }
}
