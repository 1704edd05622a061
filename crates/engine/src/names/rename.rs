//! Renaming: within a directory or to another one, over what has the new name, or in exchange with it; with a whiteout
//! left under the old name, or with nothing.
//!
//! One step: the new name, the old one and the whiteout, `..` of a directory that gets another parent, and the deletion
//! of what was replaced. What a cut leaves: all of it or nothing.
//!
//! A directory moves to another parent only under the rename lock, which covers the walk from the new parent to the
//! root: so no two moves make a loop together. Names are looked up without other locks; then all inodes concerned are
//! locked in ascending order of their numbers and looked at again.

use ondisk::{Corrupt, FileType, Ino, Site, Timestamp};

use journal::Handle;
use journal::canary::{self, Canary};
use sync::Arc;

use super::NameIn;
use super::create::{NewWhiteout, PreparedWhiteout};
use super::lock::{self, Together};
use super::remove::{self, LostName};
use crate::core::Error;
use crate::core::limits;
use crate::dir::{self, DirDraft, FoundRecord, NameHint, PreparedNames};
use crate::inode::LoadedInode;
use crate::reap;
use crate::token::LiveFs;

/// What a rename does when the new name is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameFlag {
    /// Replaces the file that has the name: a file by a file, an empty directory by a directory.
    #[default]
    Replace,
    /// Fails.
    NoReplace,
    /// Gives the file that has the name the old name; it must exist.
    Exchange,
}

/// What is asked for.
#[derive(Clone, Copy)]
struct Asked<'a> {
    old: NameIn<'a>,
    new: NameIn<'a>,
    flag: RenameFlag,
    /// User and group of a whiteout that is to get the old name.
    whiteout: Option<(u32, u32)>,
}

/// What the two names stood for when they were looked up.
struct Found {
    old: NameHint,
    new: NameHint,
    moved: Ino,
    replaced: Option<Ino>,
    moved_is_directory: bool,
    replaced_is_directory: bool,
}

impl Found {
    /// Whether a directory gets another parent.
    fn is_across(&self, old: NameIn<'_>, new: NameIn<'_>, flag: RenameFlag) -> bool {
        let exchanged = flag == RenameFlag::Exchange && self.replaced_is_directory;
        old.directory != new.directory && (self.moved_is_directory || exchanged)
    }
}

/// Gives what is named `old` the name `new`. If a whiteout's user and group are given, a whiteout gets the old name.
pub(crate) fn rename(
    mounted: &LiveFs,
    old: NameIn<'_>,
    new: NameIn<'_>,
    flag: RenameFlag,
    whiteout: Option<(u32, u32)>,
) -> Result<(), Error> {
    let is_dots = |name: &[u8]| name == b"." || name == b"..";
    let is_contradiction = flag == RenameFlag::Exchange && whiteout.is_some();
    if is_dots(old.name) || is_dots(new.name) || is_contradiction {
        return Err(Error::InvalidArgument);
    }
    let asked = Asked {
        old,
        new,
        flag,
        whiteout,
    };
    reap::help(mounted);
    for _ in 0..lock::TRIES {
        let mut found = look_up(mounted, old, new)?;
        let moves = if found.is_across(old, new, flag) {
            let moves = mounted.writing().renames.lock();
            found = look_up(mounted, old, new)?;
            Some(moves)
        } else {
            None
        };
        if let Tried::Done { orphan } = try_rename(mounted, asked, &found)? {
            drop(moves);
            if let Some(ino) = orphan {
                remove::reap_after(mounted, ino);
            }
            return Ok(());
        }
    }
    Err(Error::Busy)
}

fn look_up(mounted: &LiveFs, old: NameIn<'_>, new: NameIn<'_>) -> Result<Found, Error> {
    let old = dir::see(mounted, old.directory, old.name)?;
    let moved = old.ino().ok_or(Error::NotFound)?;
    let seen = dir::see(mounted, new.directory, new.name)?;
    let replaced = seen.ino();
    if replaced.is_none() {
        lock::verify_new_name(new.name)?;
    }
    let is_directory = |ino| Ok::<_, Error>(mounted.load(ino)?.is(FileType::Directory));
    Ok(Found {
        old,
        new: seen,
        moved,
        replaced,
        moved_is_directory: is_directory(moved)?,
        replaced_is_directory: match replaced {
            Some(ino) => is_directory(ino)?,
            None => false,
        },
    })
}

/// Whether `above` is `ino` or a directory that contains it. No directory is moved meanwhile.
fn is_within(mounted: &LiveFs, ino: Ino, above: Ino) -> Result<bool, Error> {
    let mut here = ino;
    for _ in 0..limits::ANCESTORS {
        if here == above {
            return Ok(true);
        }
        if here == Ino::ROOT {
            return Ok(false);
        }
        here = dir::lookup_in(mounted, here, b"..")?;
    }
    Err(Corrupt::at(Site::ParentEntry).ino(ino).into())
}

/// Refuses what would make a directory lie in itself.
fn refuse_loops(
    mounted: &LiveFs,
    old: NameIn<'_>,
    new: NameIn<'_>,
    found: &Found,
    flag: RenameFlag,
) -> Result<(), Error> {
    let loops = Error::InvalidArgument;
    if found.moved == old.directory || found.replaced == Some(new.directory) {
        // Only in a broken image.
        return Err(loops);
    }
    if old.directory == new.directory {
        return Ok(());
    }
    if found.moved_is_directory && is_within(mounted, new.directory, found.moved)? {
        return Err(loops);
    }
    match found.replaced {
        // A file is never put over a directory; the walk then only tells why not.
        Some(replaced) if found.replaced_is_directory => {
            match is_within(mounted, old.directory, replaced)? {
                true if flag == RenameFlag::Exchange => Err(loops),
                true => Err(Error::NotEmpty),
                false => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// What came of one try.
enum Tried {
    /// It is done; what was replaced is to be reaped if it became an orphan.
    Done { orphan: Option<Ino> },
    /// Others changed the names between the look without locks and that with them.
    Again,
}

/// One try, all locks of which are gone when it returns. The caller holds the rename lock if it is needed.
fn try_rename(mounted: &LiveFs, asked: Asked<'_>, found: &Found) -> Result<Tried, Error> {
    let Asked { old, new, flag, .. } = asked;
    if flag == RenameFlag::Exchange && found.replaced.is_none() {
        return Err(Error::NotFound);
    }
    let is_taken = flag == RenameFlag::NoReplace && found.replaced.is_some();
    let is_across = found.is_across(old, new, flag);
    // Of one directory the names alone decide.
    let generations = || -> Result<_, Error> {
        if old.directory == new.directory {
            return Ok(None);
        }
        let of = |ino| Ok::<_, Error>(mounted.load(ino)?.generation());
        Ok(Some((of(old.directory)?, of(new.directory)?)))
    };
    let before = generations()?;
    if !is_taken {
        refuse_loops(mounted, old, new, found, flag)?;
    }
    let mut inos = vec![old.directory, new.directory, found.moved];
    inos.extend(found.replaced);
    let mut inodes = lock::load(mounted, &inos)?;
    let changes_nothing = is_taken || found.replaced == Some(found.moved);
    let whiteout = match asked.whiteout.filter(|_| !changes_nothing) {
        Some(owner) => {
            let whiteout = NewWhiteout::take(mounted, old, owner, &inos)?;
            inodes.push(Arc::clone(whiteout.own()));
            inodes.sort_by_key(|inode| inode.ino());
            Some(whiteout)
        }
        None => None,
    };
    let locked = Together::lock(&inodes);
    if before != generations()? {
        return Ok(Tried::Again);
    }
    let step = Step {
        mounted,
        locked: &locked,
        old,
        new,
        found,
    };
    if changes_nothing {
        // The names were looked up one after the other: what they led to must hold for both at one moment.
        return match step.drafts()? {
            None => Ok(Tried::Again),
            Some(_) if is_taken => Err(Error::Exists),
            Some(_) => Ok(Tried::Done { orphan: None }),
        };
    }
    match flag {
        RenameFlag::Exchange => step.exchange(is_across),
        _ => step.replace(is_across, whiteout),
    }
}

/// A rename whose inodes are locked.
struct Step<'a> {
    mounted: &'a LiveFs,
    locked: &'a Together<'a>,
    old: NameIn<'a>,
    new: NameIn<'a>,
    found: &'a Found,
}

/// The names of one or two directories.
struct Drafts<'a> {
    old: DirDraft<'a>,
    /// `None` when the new name is in the same directory.
    new: Option<DirDraft<'a>>,
    /// The records of both names.
    places: (FoundRecord, Option<FoundRecord>),
}

impl<'a> Drafts<'a> {
    /// The draft of the directory that holds the new name.
    fn target(&mut self) -> &mut DirDraft<'a> {
        self.new.as_mut().unwrap_or(&mut self.old)
    }
}

/// The prepared names of each directory that changes.
type Names<'a> = Vec<(Ino, PreparedNames<'a>)>;

impl<'a> Step<'a> {
    fn snapshot(&self, ino: Ino) -> LoadedInode {
        self.locked.of(ino).inode().snapshot()
    }

    /// The drafts, if the names still stand for what was found.
    fn drafts(&self) -> Result<Option<Drafts<'a>>, Error> {
        let draft = |ino| DirDraft::new(self.mounted, self.locked.of(ino));
        let old = draft(self.old.directory)?;
        let new = if self.old.directory == self.new.directory {
            None
        } else {
            Some(draft(self.new.directory)?)
        };
        let target = new.as_ref().unwrap_or(&old);
        let Some(moved) = old.find_seen(&self.found.old, self.old.name)? else {
            return Ok(None);
        };
        let replaced = target.find_seen(&self.found.new, self.new.name)?;
        let is_directory = |ino: Ino| self.snapshot(ino).is(FileType::Directory);
        let same = moved.ino == self.found.moved
            && replaced.map(|place| place.ino) == self.found.replaced
            && is_directory(moved.ino) == self.found.moved_is_directory
            && replaced
                .is_none_or(|place| is_directory(place.ino) == self.found.replaced_is_directory);
        Ok(same.then_some(Drafts {
            old,
            new,
            places: (moved, replaced),
        }))
    }

    fn finish(&self, drafts: Drafts<'a>) -> Result<Names<'a>, Error> {
        let mut names = vec![(self.old.directory, drafts.old.finish()?)];
        if let Some(new) = drafts.new {
            names.push((self.new.directory, new.finish()?));
        }
        Ok(names)
    }

    /// `..` of a directory that gets another parent.
    fn reparent(&self, names: &mut Names<'a>, ino: Ino, parent: Ino) -> Result<(), Error> {
        let mut draft = DirDraft::new(self.mounted, self.locked.of(ino))?;
        draft.set_parent(parent)?;
        names.push((ino, draft.finish()?));
        Ok(())
    }

    fn replace(&self, is_across: bool, whiteout: Option<NewWhiteout<'a>>) -> Result<Tried, Error> {
        let Some(drafts) = self.drafts()? else {
            return Ok(Tried::Again);
        };
        let moved = self.snapshot(self.found.moved);
        let above = self.snapshot(self.old.directory);
        lock::may_remove(&above, &moved)?;
        let replaced = self.found.replaced.map(|ino| self.snapshot(ino));
        self.verify_replaceable(replaced.as_ref(), is_across)?;
        let left = whiteout.as_ref().map(|whiteout| whiteout.own().ino());
        let mut names = self.move_name(drafts, lock::type_of(&moved)?, left)?;
        if is_across && !canary::makes(Canary::ParentKept) {
            self.reparent(&mut names, moved.ino(), self.new.directory)?;
        }
        let now = self.mounted.now()?;
        let prepared = whiteout.map(|whiteout| whiteout.prepare(self.mounted, &above, now));
        let whiteout = prepared.transpose()?;
        // Both may need the lock on blocks of attributes, which is taken once.
        let is_deleted_later = whiteout
            .as_ref()
            .is_some_and(PreparedWhiteout::locks_attribute_blocks);
        let lost = match &replaced {
            Some(inode) => {
                let locked = self.locked.of(inode.ino());
                Some(LostName::prepare(self.mounted, locked, is_deleted_later)?)
            }
            None => None,
        };
        let orphan = lost.as_ref().filter(|lost| lost.leaves_orphan());
        let orphan = orphan.and(self.found.replaced);
        let (blocks, revokes) = lost.as_ref().map_or((0, 0), LostName::cost);
        let for_whiteout = whiteout.as_ref().map_or(0, PreparedWhiteout::blocks);
        let for_names = names.iter().map(|(_, names)| names.blocks()).sum::<u32>();
        let blocks = 1 + blocks + for_whiteout + for_names;
        let credits = self.mounted.reserve(blocks, revokes)?;
        let whiteout = whiteout.map(PreparedWhiteout::lock).transpose()?;
        let handle = self.mounted.begin(credits)?;
        if let (Some(whiteout), Some(ino)) = (whiteout, left) {
            whiteout.apply(&handle, self.locked.of(ino));
        }
        self.apply_names(names, &handle, now);
        self.note_names(&handle, left);
        let parents = (self.old.directory, self.new.directory);
        self.move_subdirectory(parents, self.found.moved_is_directory, &handle);
        if self.found.replaced_is_directory {
            let parent = self.locked.of(self.new.directory);
            parent.change(&handle, lock::drop_subdirectory);
        }
        if let Some(lost) = lost {
            lost.apply(&handle, now);
        }
        let own = self.locked.of(moved.ino());
        own.change(&handle, |inode| inode.stamp(now));
        Ok(Tried::Done { orphan })
    }

    /// The names of the directories when the moved inode has the new name, and the old name stands for `left` or is
    /// removed.
    fn move_name(
        &self,
        mut drafts: Drafts<'a>,
        file_type: FileType,
        left: Option<Ino>,
    ) -> Result<Names<'a>, Error> {
        let moved = self.found.moved;
        // First what takes no other name from its place.
        let (place, taken) = drafts.places;
        if let Some(taken) = taken {
            drafts.target().retarget(taken, moved, file_type)?;
        }
        match left {
            Some(whiteout) => drafts.old.retarget(place, whiteout, FileType::CharDevice)?,
            None => drafts.old.remove(place)?,
        }
        if taken.is_none() {
            let (seen, name) = (&self.found.new, self.new.name);
            drafts.target().add_seen(seen, name, moved, file_type)?;
        }
        self.finish(drafts)
    }

    fn verify_replaceable(
        &self,
        replaced: Option<&LoadedInode>,
        is_across: bool,
    ) -> Result<(), Error> {
        let parent = self.snapshot(self.new.directory);
        let Some(replaced) = replaced else {
            lock::may_add(&parent)?;
            return if is_across {
                lock::may_add_subdirectory(self.mounted, &parent)
            } else {
                Ok(())
            };
        };
        lock::may_remove(&parent, replaced)?;
        match (
            self.found.moved_is_directory,
            self.found.replaced_is_directory,
        ) {
            (true, false) => Err(Error::NotDirectory),
            (false, true) => Err(Error::IsDirectory),
            (true, true) if !dir::is_empty(self.mounted, replaced.clone())? => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    fn exchange(&self, is_across: bool) -> Result<Tried, Error> {
        let Some(mut drafts) = self.drafts()? else {
            return Ok(Tried::Again);
        };
        let one = self.snapshot(self.found.moved);
        let Some(other) = self.found.replaced.map(|ino| self.snapshot(ino)) else {
            return Err(Error::NotFound);
        };
        let parents = (
            self.snapshot(self.old.directory),
            self.snapshot(self.new.directory),
        );
        lock::may_remove(&parents.0, &one)?;
        lock::may_remove(&parents.1, &other)?;
        if is_across && self.found.moved_is_directory != self.found.replaced_is_directory {
            let gains = if self.found.moved_is_directory {
                &parents.1
            } else {
                &parents.0
            };
            lock::may_add_subdirectory(self.mounted, gains)?;
        }
        let types = (lock::type_of(&one)?, lock::type_of(&other)?);
        let (old, new) = drafts.places;
        let new = new.ok_or(Error::NotFound)?;
        drafts.target().retarget(new, one.ino(), types.0)?;
        drafts.old.retarget(old, other.ino(), types.1)?;
        let mut names = self.finish(drafts)?;
        if is_across && self.found.moved_is_directory {
            self.reparent(&mut names, one.ino(), self.new.directory)?;
        }
        if is_across && self.found.replaced_is_directory {
            self.reparent(&mut names, other.ino(), self.old.directory)?;
        }
        let blocks = 2 + names.iter().map(|(_, names)| names.blocks()).sum::<u32>();
        let credits = self.mounted.reserve(blocks, 0)?;
        let now = self.mounted.now()?;
        let handle = self.mounted.begin(credits)?;
        self.apply_names(names, &handle, now);
        self.note_names(&handle, Some(other.ino()));
        let parents = (self.old.directory, self.new.directory);
        if self.found.moved_is_directory != self.found.replaced_is_directory {
            self.move_subdirectory(parents, self.found.moved_is_directory, &handle);
            let back = (parents.1, parents.0);
            self.move_subdirectory(back, self.found.replaced_is_directory, &handle);
        }
        for ino in [one.ino(), other.ino()] {
            let own = self.locked.of(ino);
            own.change(&handle, |inode| inode.stamp(now));
        }
        Ok(Tried::Done { orphan: None })
    }

    fn apply_names(&self, names: Names<'_>, handle: &Handle<'_>, now: Timestamp) {
        for (ino, names) in names {
            let locked = self.locked.of(ino);
            names.apply(handle);
            if ino == self.old.directory || ino == self.new.directory {
                locked.change(handle, |inode| lock::stamp_names(inode, now));
            }
        }
    }

    /// Records for fast commits that the new name stands for the moved inode, the old one for `left`. Fast commits do
    /// not support an exchange, a whiteout, or a directory's move.
    fn note_names(&self, handle: &Handle<'_>, left: Option<Ino>) {
        let (moved, replaced) = (self.found.moved, self.found.replaced);
        let (old, new) = (self.old, self.new);
        let mounted = self.mounted;
        mounted.note_name(handle, (new.directory, new.name), replaced, Some(moved));
        mounted.note_name(handle, (old.directory, old.name), Some(moved), left);
        if left.is_some() || self.found.moved_is_directory {
            for ino in [Some(moved), left].into_iter().flatten() {
                self.locked.of(ino).inode().set_unloggable(handle);
            }
        }
    }

    /// Counts a directory that leaves one parent for another.
    fn move_subdirectory(&self, parents: (Ino, Ino), is_directory: bool, handle: &Handle<'_>) {
        if is_directory && parents.0 != parents.1 {
            self.locked
                .of(parents.0)
                .change(handle, lock::drop_subdirectory);
            self.locked
                .of(parents.1)
                .change(handle, lock::add_subdirectory);
        }
    }
}
