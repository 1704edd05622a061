//! In which group a new inode goes, as Linux chooses it. Reads hints only; takes no lock, reads nothing from disk.
//!
//! ```text
//! a directory in the root or in a top directory: unrelated to its siblings, so they are spread
//!     start where the hash of its name says; of the flex groups with at least the average of free inodes and of free
//!     blocks, the one with the fewest directories
//! any other directory: near its parent, as long as that does not get crowded
//!     from the flex group that served this parent last (or its own): the first one with not too many directories, and
//!     not too few free inodes and blocks
//! any other inode: in its directory's group, else in its flex group, else in the one that served it last, else as a
//!     directory goes
//! within a flex group: the first group with a free inode, so that inode tables fill up one after the other
//! ```
//!
//! Without `flex_bg` a group is its own flex group; an inode other than a directory then looks at groups ever farther
//! from its directory's, from a place that differs from directory to directory, for one with free blocks too.

use ondisk::dirhash::{self, HashVersion};
use ondisk::{Geometry, Group, Ino};

use super::{InodeRequest, Place, Taken};
use crate::core::Error;
use crate::space::group::InodeBits;

/// How many flex groups are looked at, at most, for the best or the first good one.
const LOOKED_AT: u32 = 1024;

/// A group that was chosen.
pub(super) struct Choice {
    group: Group,
    /// Whether that is far from the parent on purpose.
    is_spread: bool,
}

impl Choice {
    /// The group.
    pub(super) fn first(&self) -> Group {
        self.group
    }

    /// Whether that is far from the parent on purpose.
    pub(super) fn is_spread(&self) -> bool {
        self.is_spread
    }

    /// The group, and all others behind it, that seem to have free inodes.
    pub(super) fn groups<'a>(&self, place: Place<'a>) -> impl Iterator<Item = Group> + use<'a> {
        let (first, all) = (self.group.0, place.volume.geometry().groups());
        (0..all)
            // Both are far below 2^31.
            .map(move |step| Group((first + step) % all))
            .filter(move |group| place.groups.inodes.free(*group) > 0)
    }
}

impl<'a> Place<'a> {
    /// A group's numbers, `ahead` of them beyond those ever used ready to be given out; nothing if its bitmap is
    /// broken, which others need not care about.
    pub(super) fn ready(self, group: Group, ahead: u32) -> Result<Option<&'a InodeBits>, Error> {
        match self.groups.ready_inodes(self.volume, group, ahead) {
            Err(Error::Corrupt(corrupt)) => {
                self.groups.exclude_inodes(group, corrupt);
                Ok(None)
            }
            bits => bits.map(Some),
        }
    }

    pub(super) fn count_words(self, looked: u32) {
        let counters = &self.groups.inodes.counters;
        counters.words_searched.add(looked.into());
    }
}

/// Chooses a group.
pub(super) fn choose(place: Place<'_>, wanted: &InodeRequest<'_>) -> Choice {
    let flex = Flex::new(place);
    let parent = place.volume.geometry().group_of_ino(wanted.parent);
    let parent = parent.map_or(Group(0), |(group, _)| group);
    let near = |group: Option<Group>| Choice {
        group: group.unwrap_or(parent),
        is_spread: false,
    };
    if !wanted.is_directory {
        return near(flex.for_file(parent, wanted));
    }
    if wanted.is_top {
        let seed = place.volume.geometry().hash_seed();
        let hash = dirhash::hash(HashVersion::HalfMd4, &seed, wanted.name);
        let start = hash.map_or(0, |hash| hash.major) % flex.count;
        if let Some(group) = flex
            .spread(start)
            .and_then(|flex_group| flex.first(flex_group))
        {
            return Choice {
                group,
                is_spread: true,
            };
        }
        return near(flex.fallback(parent));
    }
    near(flex.near(parent, wanted).or_else(|| flex.fallback(parent)))
}

/// Notes down in which group a number was taken.
pub(super) fn note(place: Place<'_>, wanted: &InodeRequest<'_>, taken: Taken) -> Taken {
    wanted.directory.set_last_group(taken.group);
    count(place, wanted, taken)
}

/// Counts a directory in its group.
pub(super) fn count(place: Place<'_>, wanted: &InodeRequest<'_>, taken: Taken) -> Taken {
    if wanted.is_directory {
        place.groups.inodes.count_directory(taken.group);
    }
    Taken {
        is_counted: wanted.is_directory,
        ..taken
    }
}

/// What a flex group has.
#[derive(Default)]
struct Stock {
    inodes: u64,
    blocks: u64,
    directories: u64,
}

/// The flex groups.
struct Flex<'a> {
    place: Place<'a>,
    geometry: &'a Geometry,
    /// Groups of one, a power of two.
    size: u32,
    /// How many there are, at least 1.
    count: u32,
}

impl<'a> Flex<'a> {
    fn new(place: Place<'a>) -> Flex<'a> {
        let geometry = place.volume.geometry();
        let size = geometry.flex_size();
        Flex {
            place,
            geometry,
            size,
            count: geometry.groups().div_ceil(size).max(1),
        }
    }

    /// The groups of a flex group.
    fn groups(&self, flex_group: u32) -> impl Iterator<Item = Group> + use<> {
        let first = flex_group * self.size;
        let end = first.saturating_add(self.size).min(self.geometry.groups());
        (first..end).map(Group)
    }

    /// The first group of a flex group with a free inode.
    fn first(&self, flex_group: u32) -> Option<Group> {
        let inodes = &self.place.groups.inodes;
        self.groups(flex_group)
            .find(|group| inodes.free(*group) > 0)
    }

    fn stock(&self, flex_group: u32) -> Stock {
        let mut stock = Stock::default();
        for group in self.groups(flex_group) {
            stock.inodes += u64::from(self.place.groups.inodes.free(group));
            stock.blocks += u64::from(self.place.groups.free_blocks(group));
            stock.directories += u64::from(self.place.groups.inodes.directories(group));
        }
        stock
    }

    /// Of all flex groups, what one has on average.
    fn average(&self) -> Stock {
        let count = u64::from(self.count);
        let directories = self.geometry.all_groups().take(LOOKED_AT as usize);
        let inodes = &self.place.groups.inodes;
        let looked = u64::from(self.geometry.groups().min(LOOKED_AT));
        let sum: u64 = directories
            .map(|group| u64::from(inodes.directories(group)))
            .sum();
        Stock {
            inodes: inodes.hint() / count,
            blocks: self.place.groups.blocks.hint() / count,
            directories: sum * u64::from(self.size) / looked.max(1),
        }
    }

    /// The flex groups from one on, as many as are looked at.
    fn from(&self, start: u32) -> impl Iterator<Item = u32> + use<> {
        let count = self.count;
        (0..count.min(LOOKED_AT)).map(move |step| (start % count + step) % count)
    }

    /// For a directory that has nothing to do with its siblings.
    fn spread(&self, start: u32) -> Option<u32> {
        let average = self.average();
        let is_roomy = |stock: &Stock| {
            stock.inodes > 0 && stock.inodes >= average.inodes && stock.blocks >= average.blocks
        };
        let recent = self.place.groups.inodes.recent_directories();
        let newest = |flex_group: u32| -> u64 {
            let of = |group| recent.get(&group).copied().unwrap_or(0);
            self.groups(flex_group)
                .map(|group| u64::from(of(group)))
                .sum()
        };
        let stock = |flex_group: u32| {
            let mut stock = self.stock(flex_group);
            stock.directories += newest(flex_group);
            stock
        };
        self.from(start)
            .map(|flex_group| (flex_group, stock(flex_group)))
            .filter(|(_, stock)| is_roomy(stock))
            // The first of those that have as few.
            .min_by_key(|(_, stock)| stock.directories)
            .map(|(flex_group, _)| flex_group)
    }

    /// For a directory among its like: the first flex group that is not crowded.
    fn near(&self, parent: Group, wanted: &InodeRequest<'_>) -> Option<Group> {
        let average = self.average();
        let inodes = u64::from(self.geometry.inodes_per_group()) * u64::from(self.size);
        let blocks = u64::from(self.geometry.clusters_per_group()) * u64::from(self.size);
        let most_directories = average.directories + inodes / 16;
        let least_inodes = average.inodes.saturating_sub(inodes / 4).max(1);
        let least_blocks = average.blocks.saturating_sub(blocks / 4);
        let start = wanted.directory.last_group().unwrap_or(parent);
        self.from(start.0 / self.size).find_map(|flex_group| {
            let stock = self.stock(flex_group);
            let is_crowded = stock.directories >= most_directories
                || stock.inodes < least_inodes
                || stock.blocks < least_blocks;
            if is_crowded {
                None
            } else {
                self.first(flex_group)
            }
        })
    }

    /// For what is not a directory.
    fn for_file(&self, parent: Group, wanted: &InodeRequest<'_>) -> Option<Group> {
        let groups = self.place.groups;
        let is_free = |group: Group| groups.inodes.free(group) > 0;
        if self.size == 1 {
            return self.beside(parent, wanted.parent);
        }
        let last = || self.first(wanted.directory.last_group()?.0 / self.size);
        Some(parent)
            .filter(|group| is_free(*group))
            .or_else(|| self.first(parent.0 / self.size))
            .or_else(last)
            .or_else(|| self.near(parent, wanted))
            .or_else(|| self.fallback(parent))
    }

    /// Without flex groups: the directory's group, else one at distances that double.
    fn beside(&self, parent: Group, directory: Ino) -> Option<Group> {
        let (groups, all) = (self.place.groups, self.geometry.groups());
        let has_both =
            |group: &Group| groups.inodes.free(*group) > 0 && groups.free_blocks(*group) > 0;
        let start = u64::from(parent.0) + u64::from(directory.0);
        let farther = (0..all.ilog2() + 1).map(|step| {
            // Below the number of groups.
            Group(((start + (2_u64 << step) - 1) % u64::from(all)) as u32)
        });
        std::iter::once(parent).chain(farther).find(has_both)
    }

    /// When no flex group is good: the first group from the parent's on with the average of free inodes, or with any.
    fn fallback(&self, parent: Group) -> Option<Group> {
        let (inodes, all) = (&self.place.groups.inodes, self.geometry.groups());
        let average = inodes.hint() / u64::from(all.max(1));
        let from_parent = || (0..all).map(|step| Group((parent.0 + step) % all));
        from_parent()
            .take(LOOKED_AT as usize)
            .find(|group| u64::from(inodes.free(*group)) >= average.max(1))
            .or_else(|| from_parent().find(|group| inodes.free(*group) > 0))
    }
}
