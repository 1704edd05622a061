//! Inode allocation: which number a new inode gets. [`orlov`] says in which group; the form that is chosen
//! (`dir_ireserve`), how the number is found there: the first free one ([`plain`]), or one of a window that was set
//! aside for the directory, or for the thread ([`windows`]). Both work on the same bits, so they may follow one another
//! at any time.
//!
//! A number is taken out of the bits in memory while preparing ([`Ialloc::take`]), dropping it gives it back, applying
//! it puts it on the epoch's list. Freeing one is prepared too ([`claim`]): one that is free already is refused.
//! Windows are set bits in memory and nothing else: no bitmap's image has a number before an inode with it is applied,
//! so a crash forgets them. No space means that every window was drawn back and no number was found after.

use journal::Handle;
use ondisk::{Corrupt, Geometry, Group, Ino, Site};
use sync::Arc;

use crate::blocks::OpenVolume;
use crate::core::Error;
use crate::core::variants::{Chosen, DirReserve};
use crate::space::group::{Groups, InodeChange};

mod core_window;
mod of_inode;
mod orlov;
mod plain;
mod window;
mod windows;

use of_inode::Known;
pub(crate) use of_inode::OfInode;
use window::Window;
use windows::Windows;

/// Blocks of a handle that taking or freeing a number uses: bitmaps, a descriptor block, the superblock.
pub(crate) const BLOCKS_AN_INODE: u32 = 4;

/// The place that a new name will have in its directory, found before the number is taken. All values are hints.
pub(crate) trait SlotHints {
    /// The name's hash, where the directory is indexed by it.
    fn hash(&self) -> Option<u32>;

    /// How often names of the directory had changed when it was found, since the directory came into memory; `None` if
    /// they changed meanwhile.
    fn changes(&self) -> Option<u64>;

    /// What is around it.
    fn neighbours(&self) -> Neighbours;
}

/// What is around a slot.
#[derive(Default)]
pub(crate) struct Neighbours {
    /// Numbers of inodes that have names in the same block of the directory; some of them, where there are many.
    pub(crate) numbers: Vec<Ino>,
    /// About how many names the directory has, `.` and `..` not counted.
    pub(crate) names: u32,
    /// The directory has hardly more names, if that is known: removed names are not subtracted.
    pub(crate) most: Option<u32>,
    /// How often names had changed, if these are all the names that the directory had then.
    pub(crate) all_at: Option<u64>,
}

/// What a number is wanted for.
pub(crate) struct InodeRequest<'a> {
    /// The directory that the inode is made in.
    pub(crate) parent: Ino,
    /// What is set aside for that directory.
    pub(crate) directory: &'a OfInode,
    /// Whether the new inode is a directory.
    pub(crate) is_directory: bool,
    /// Whether subdirectories of the parent are unrelated to each other.
    pub(crate) is_top: bool,
    /// The name that it will have; empty if none.
    pub(crate) name: &'a [u8],
    /// Where the name will be put; `None` for an inode without one.
    pub(crate) slot: Option<&'a dyn SlotHints>,
}

/// Where numbers are taken from.
#[derive(Clone, Copy)]
struct Place<'a> {
    volume: &'a OpenVolume,
    groups: &'a Groups,
}

/// A number that a form took.
struct Taken {
    group: Group,
    index: u32,
    /// A directory that its group's count in memory has already.
    is_counted: bool,
    /// What was set aside with it for the new directory's files.
    rest: Option<Arc<Window>>,
}

impl Taken {
    fn new(group: Group, index: u32) -> Taken {
        Taken {
            group,
            index,
            is_counted: false,
            rest: None,
        }
    }
}

/// How a number is found.
trait Source {
    /// Takes a number; `None` if only windows may still have one.
    fn take(&self, place: Place<'_>, wanted: &InodeRequest<'_>) -> Result<Option<Taken>, Error>;
}

/// The forms, and which of them is used.
pub(crate) struct Ialloc {
    form: Chosen<DirReserve>,
    plain: plain::FirstFree,
    windows: Windows,
}

/// How often a thread with a share looks through all groups although it finds nothing, and how often windows are drawn
/// back for a thread that finds none: only the takes and frees of other threads in between can hide a number.
const LOOKS: usize = 64;

impl Ialloc {
    /// With this form.
    pub(crate) fn new(form: DirReserve) -> Ialloc {
        Ialloc {
            form: Chosen::new(form),
            plain: plain::FirstFree,
            windows: Windows::new(form),
        }
    }

    /// Uses this form from now on.
    pub(crate) fn choose(&self, form: DirReserve) {
        self.form.set(form);
        self.windows.choose(form);
    }

    /// Gives the numbers of all windows back.
    pub(crate) fn draw_back(&self, groups: &Groups) {
        self.windows.draw_back(&groups.inodes);
    }

    /// Takes a number for a new inode. Called while preparing, without a handle.
    ///
    /// # Errors
    /// `NoSpace` if no number is available now; `Corrupt`, `Io` from reading bitmaps.
    pub(crate) fn take<'a>(
        &self,
        volume: &'a OpenVolume,
        groups: &'a Groups,
        wanted: &InodeRequest<'_>,
    ) -> Result<InodeNumber<'a>, Error> {
        let place = Place { volume, groups };
        for _ in 0..LOOKS {
            let taken = match self.form.get() {
                DirReserve::Off => self.plain.take(place, wanted)?,
                _ => self.windows.take(place, wanted)?,
            };
            if let Some(taken) = taken {
                return Ok(InodeNumber::new(place, taken, wanted.is_directory));
            }
            if !self.windows.draw_back(&groups.inodes) {
                break;
            }
        }
        Err(Error::NoSpace)
    }

    /// Gives back windows that were not used for long; called now and then.
    pub(crate) fn keep_bounds(&self) {
        self.windows.draw_back_idle();
    }

    /// What was counted so far.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 6] {
        self.windows.counters()
    }
}

/// A number taken and not yet applied.
pub(crate) struct InodeNumber<'a> {
    groups: &'a Groups,
    geometry: &'a Geometry,
    /// `None` once it was applied.
    ino: Option<Ino>,
    group: Group,
    is_directory: bool,
    is_counted: bool,
    rest: Option<Arc<Window>>,
}

impl<'a> InodeNumber<'a> {
    fn new(place: Place<'a>, taken: Taken, is_directory: bool) -> InodeNumber<'a> {
        let geometry = place.volume.geometry();
        InodeNumber {
            groups: place.groups,
            geometry,
            ino: Some(geometry.ino_of(taken.group, taken.index)),
            group: taken.group,
            is_directory,
            is_counted: taken.is_counted,
            rest: taken.rest,
        }
    }

    /// Which number.
    pub(crate) fn ino(&self) -> Ino {
        // Only `apply` takes the number out, and it consumes the value.
        self.ino.expect("a number that was not applied")
    }

    /// Excludes a number that can't be a new inode's although its bit is clear: it is not offered again as long as the
    /// file system is open, and does not count as available. On disk it stays as it is.
    pub(crate) fn leave_out(mut self) {
        self.ino = None;
        if self.is_counted {
            self.groups.inodes.count_directories(self.group, -1);
        }
    }

    /// The number is in use from the handle's epoch on, by the inode that `of_inode` is part of. Uses
    /// [`BLOCKS_AN_INODE`] of the handle's blocks; the inode's own record counts on top of that.
    pub(crate) fn apply(mut self, handle: &Handle<'_>, of_inode: &OfInode) -> Ino {
        let ino = self.ino();
        self.ino = None;
        use_blocks(handle, self.group);
        let change = InodeChange {
            ino,
            is_set: true,
            is_directory: self.is_directory,
            is_counted: self.is_counted,
        };
        self.groups.inode_changes.push(handle, change);
        of_inode.set_known(Known::Applied);
        if let Some(window) = self.rest.take() {
            of_inode.set(window);
        }
        ino
    }
}

impl Drop for InodeNumber<'_> {
    fn drop(&mut self) {
        if let Some(ino) = self.ino.take() {
            self.groups.inodes.give_back(self.geometry, ino);
            if self.is_counted {
                self.groups.inodes.count_directories(self.group, -1);
            }
        }
    }
}

/// Counts the blocks that a number's change changes: once an epoch and thread for each group.
fn use_blocks(handle: &Handle<'_>, group: Group) {
    handle.use_blocks_for(u64::from(group.0) << 2 | 1, BLOCKS_AN_INODE);
}

/// Takes a certain number, if it is available. Called while preparing, without a handle.
///
/// # Errors
/// `NotFound` for a number that no inode has; `Corrupt`, `Io` from reading bitmaps.
pub(crate) fn take_exact<'a>(
    volume: &'a OpenVolume,
    groups: &'a Groups,
    ino: Ino,
    is_directory: bool,
) -> Result<Option<InodeNumber<'a>>, Error> {
    volume.check_ordinary(ino)?;
    let number = volume.geometry().group_of_ino(ino);
    let (group, index) = number.ok_or(Error::NotFound)?;
    let bits = groups.ready_inode(volume, group, index)?;
    if !groups.inodes.share_one() {
        return Ok(None);
    }
    if bits.take_exact(index).is_none() {
        groups.inodes.give_back_share(1);
        return Ok(None);
    }
    let (place, taken) = (Place { volume, groups }, Taken::new(group, index));
    Ok(Some(InodeNumber::new(place, taken, is_directory)))
}

/// A number in use that the owner of this value is about to free; no other thread can. Dropping it leaves it in use.
pub(crate) struct FreeingNumber<'a> {
    groups: &'a Groups,
    group: Group,
    of_inode: &'a OfInode,
    ino: Ino,
    /// What was known of it; `None` once it was freed.
    before: Option<Known>,
}

/// Prepares to free the number of an inode whose lock the caller has exclusively. Reads its group's bitmap. Called
/// while preparing, without a handle.
///
/// # Errors
/// `Corrupt` for a number of the file system's own, and for one that is free or being freed already; `Corrupt`, `Io`
/// from reading bitmaps.
pub(crate) fn claim<'a>(
    volume: &'a OpenVolume,
    groups: &'a Groups,
    ino: Ino,
    of_inode: &'a OfInode,
) -> Result<FreeingNumber<'a>, Error> {
    volume.check_ordinary(ino)?;
    let number = volume.geometry().group_of_ino(ino);
    let (group, index) = number.ok_or(Error::NotFound)?;
    let bits = groups.inode_bits(volume, group)?;
    let before = of_inode.known();
    let is_in_use = match before {
        Known::Nothing => bits.is_in_image(index),
        Known::Applied => true,
        Known::Leaving => false,
    };
    if !is_in_use {
        return Err(Corrupt::at(Site::InodeFreedTwice).ino(ino).into());
    }
    of_inode.set_known(Known::Leaving);
    Ok(FreeingNumber {
        groups,
        group,
        of_inode,
        ino,
        before: Some(before),
    })
}

impl FreeingNumber<'_> {
    /// Frees the number in the handle's epoch: it is available again when that is durable. Uses [`BLOCKS_AN_INODE`] of
    /// the handle's blocks.
    pub(crate) fn apply(mut self, handle: &Handle<'_>, is_directory: bool) {
        self.before = None;
        use_blocks(handle, self.group);
        let change = InodeChange {
            ino: self.ino,
            is_set: false,
            is_directory,
            is_counted: false,
        };
        self.groups.inode_changes.push(handle, change);
        self.groups.inodes.freed();
    }
}

impl Drop for FreeingNumber<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            self.of_inode.set_known(before);
        }
    }
}
