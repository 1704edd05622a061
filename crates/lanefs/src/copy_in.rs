//! Files and trees of the host copied into an image.
//!
//! A file is there whole or not at all ([`Fs::write`]); a tree is copied in the order of its names, each directory
//! before what is in it, so a cut leaves a part of it. Holes stay holes. Modes are those that GNU `cp` gives on the
//! host.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use device::host::{self, HostAttributes, Moment, Special};
use engine::{FileType, Ino, NewInode, SetAttributes, SetTime, Timestamp};

use crate::contents::{ACCESS_ACL, DEFAULT_ACL, TakenAttributes};
use crate::host_run::HostRun;
use crate::system;
use crate::{Error, Fs, Metadata};

/// How files and trees are copied into an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyOptions {
    /// Directories with all that is in them; links, devices and pipes as such. Without it, links are followed.
    pub recursive: bool,
    /// Keep owner and group; else everything belongs to root.
    pub owner: bool,
    /// Keep the whole mode, and ACLs with it. Otherwise new files get it as `cp -r` gives it: without what is in
    /// `umask`, files and directories without set-user-ID and set-group-ID, files without the sticky bit; those that
    /// exist keep theirs.
    pub mode: bool,
    /// Permissions that new files don't get without `mode`; the process's own umask is not asked for. Where a directory
    /// of the image has a default ACL, that counts instead.
    pub umask: u16,
    /// Keep the times of last access and modification.
    pub times: bool,
    /// With `times`: no kept time is after this one, and the time of last access, which reading changes, is that of
    /// last modification. For copies that are to give the same bytes at any time.
    pub newest_time: Option<Timestamp>,
    /// Keep extended attributes, as far as they can be read.
    pub xattrs: bool,
    /// Names that are one file in what is copied with `recursive` are one file in the image. Otherwise each becomes a
    /// file of its own.
    pub hard_links: bool,
    /// Whether files that exist are replaced; else they stay.
    pub replace: bool,
}

impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions {
            recursive: false,
            owner: false,
            mode: false,
            umask: 0,
            times: false,
            newest_time: None,
            xattrs: false,
            hard_links: false,
            replace: true,
        }
    }
}

/// What was copied.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct CopySummary {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, devices, pipes, sockets and further names of files.
    pub others: u64,
    /// Bytes of file data, holes not counted.
    pub bytes: u64,
    /// Files that were left as they are in the image.
    pub kept: u64,
    /// Extended attributes that ext4 has no place for, and that were left out.
    pub lost_xattrs: u64,
    /// The latest time that was kept, in seconds since 1970; 0 where none was.
    pub latest: i64,
}

/// Set-user-ID, set-group-ID and sticky.
const SPECIAL_BITS: u16 = 0o7000;
/// What `cp` gives to a new directory only when it is filled.
const OTHERS_WRITE: u16 = 0o022;

/// A copy under way.
struct Copy<'a> {
    fs: &'a Fs,
    options: CopyOptions,
    summary: CopySummary,
    /// Where files with several names went, by device and inode.
    linked: HashMap<(u64, u64), PathBuf>,
}

/// What is to be done yet.
enum Job {
    Enter(PathBuf, PathBuf),
    /// A directory's attributes, when all in it is there.
    Leave(fs::Metadata, PathBuf, PathBuf),
}

impl Fs {
    /// Copies a file of the host, or with `recursive` anything, to exactly this path of the image. Directories that
    /// exist are filled up.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let image = folder.path().join("disk.img");
    /// # let host = folder.path().join("notes.txt");
    /// # std::fs::write(&host, "from the host")?;
    /// # lanefs::make::make(&image, Some(8 << 20), &Default::default(), false)?;
    /// let fs = lanefs::Fs::open_for_writing(&image)?;
    /// fs.copy_in(&host, "/notes.txt", &lanefs::CopyOptions::default())?;
    /// assert_eq!(fs.read_to_string("/notes.txt")?, "from the host");
    /// fs.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// When the host's file can't be read, or as [`Fs::write`]. The copy stops there; what was copied stays.
    pub fn copy_in(
        &self,
        host: impl AsRef<Path>,
        path: impl AsRef<Path>,
        options: &CopyOptions,
    ) -> Result<CopySummary, Error> {
        self.refuse_without_room(host.as_ref(), path.as_ref(), options)?;
        let mut copy = Copy {
            fs: self,
            options: *options,
            summary: CopySummary::default(),
            linked: HashMap::new(),
        };
        let mut jobs = vec![Job::Enter(host.as_ref().into(), path.as_ref().into())];
        while let Some(job) = jobs.pop() {
            match job {
                Job::Enter(from, to) => copy.enter(&from, &to, &mut jobs)?,
                Job::Leave(metadata, from, to) => {
                    let held = self.reach(&to, true)?;
                    copy.xattrs(&from, held.ino(), &to)?;
                    let kept = copy.kept_over(&metadata, Some(&self.metadata(&to)?));
                    self.set_attributes(&to, &kept)?;
                }
            }
        }
        Ok(copy.summary)
    }
}

impl Copy<'_> {
    fn enter(&mut self, from: &Path, to: &Path, jobs: &mut Vec<Job>) -> Result<(), Error> {
        let metadata = if self.options.recursive {
            fs::symlink_metadata(from)
        } else {
            fs::metadata(from)
        };
        let metadata = metadata.map_err(|error| Error::host("reading", from, error))?;
        let times = self.times(&metadata);
        for time in [times.atime, times.mtime] {
            if let Some(SetTime::At(time)) = time {
                self.summary.latest = self.summary.latest.max(time.seconds);
            }
        }
        if metadata.is_dir() {
            return self.directory(from, to, metadata, jobs);
        }
        let taken = self.fs.symlink_metadata(to);
        let is_there = match taken {
            Ok(_) => true,
            Err(error) if error.is_not_found() => false,
            Err(error) => return Err(error),
        };
        if is_there && !self.options.replace {
            self.summary.kept += 1;
            return Ok(());
        }
        let own = HostAttributes::of(&metadata);
        let is_kept = self.options.recursive && self.options.hard_links;
        let shared = own.identity.filter(|_| own.nlink > 1 && is_kept);
        if let Some(original) = shared.and_then(|key| self.linked.get(&key)) {
            if is_there {
                self.fs.remove_file(to)?;
            }
            self.fs.hard_link(original, to)?;
            self.summary.others += 1;
            return Ok(());
        }
        if metadata.is_file() || !self.options.recursive {
            self.file(from, to, &metadata)?;
        } else {
            if is_there {
                self.fs.remove_file(to)?;
            }
            self.special(from, to, &metadata)?;
        }
        if let Some(key) = shared {
            self.linked.insert(key, to.to_path_buf());
        }
        Ok(())
    }

    fn directory(
        &mut self,
        from: &Path,
        to: &Path,
        metadata: fs::Metadata,
        jobs: &mut Vec<Job>,
    ) -> Result<(), Error> {
        let failed = |error| Error::host("reading", from, error);
        if !self.options.recursive {
            return Err(failed(std::io::ErrorKind::IsADirectory.into()));
        }
        match self.fs.metadata(to) {
            Ok(found) if found.file_type == FileType::Directory => {}
            Ok(_) => {
                let bytes = &*host::path_bytes(to);
                return Err(Error::at(bytes, engine::Error::NotDirectory));
            }
            Err(error) if error.is_not_found() => {
                self.make_directory(to, &metadata)?;
                self.summary.directories += 1;
            }
            Err(error) => return Err(error),
        }
        let names = fs::read_dir(from).map_err(failed)?;
        let names: Result<Vec<_>, _> = names.map(|entry| Ok(entry?.file_name())).collect();
        let mut names = names.map_err(failed)?;
        // The last job is done first.
        names.sort_unstable_by(|one, other| other.cmp(one));
        jobs.push(Job::Leave(metadata, from.to_path_buf(), to.to_path_buf()));
        for name in names {
            jobs.push(Job::Enter(from.join(&name), to.join(&name)));
        }
        Ok(())
    }

    fn file(&mut self, from: &Path, to: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
        let failed = |error| Error::host("reading", from, error);
        let mut source = File::open(from).map_err(failed)?;
        let mut bytes = 0;
        let taken = TakenAttributes {
            mode: self.options.mode,
            owner: self.options.owner,
            xattrs: self.options.xattrs,
        };
        let fs = self.fs;
        let replaced = fs.metadata(to).ok();
        fs.put(to, self.new_inode(metadata), taken, |ino| {
            // A device and a file made as it is read (in /proc) have bytes where their size and holes say none.
            bytes = if metadata.is_file() && metadata.len() > 0 {
                self.fill(ino, &mut source, from, to)?
            } else {
                fs.fill(ino, 0, &mut source, to)?
            };
            self.xattrs(from, ino, to)?;
            if !self.options.mode && !self.options.times {
                return Ok(());
            }
            let kept = self.kept_over(metadata, replaced.as_ref());
            fs.named(to, fs.engine.set_attributes(ino, &kept))
        })?;
        self.summary.files += 1;
        self.summary.bytes += bytes;
        Ok(())
    }

    /// Copies the data of a file, not its holes; says how many bytes.
    fn fill(&self, ino: Ino, source: &mut File, from: &Path, to: &Path) -> Result<u64, Error> {
        let failed = |error| Error::host("reading", from, error);
        let mut bytes = 0;
        let mut at = 0;
        let size = loop {
            let run = match system::next_run(source, at).map_err(failed)? {
                HostRun::Data(run) => run,
                HostRun::End(size) => break size,
                HostRun::Unknown => {
                    bytes = self.fs.fill(ino, at, source, to)?;
                    break bytes;
                }
            };
            let (data, hole) = (run.start, run.end);
            source.seek(SeekFrom::Start(data)).map_err(failed)?;
            let mut run = Read::by_ref(source).take(hole.saturating_sub(data));
            at = self.fs.fill(ino, data, &mut run, to)?;
            bytes += at - data;
            if at <= data {
                break at;
            }
        };
        self.fs.named(to, self.fs.engine.truncate(ino, size))?;
        Ok(bytes)
    }

    fn special(&mut self, from: &Path, to: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
        let kind = metadata.file_type();
        if kind.is_symlink() {
            let target = fs::read_link(from);
            let target = target.map_err(|error| Error::host("reading", from, error))?;
            self.fs.symlink(target, to)?;
        } else {
            let kind = match host::special_of(kind) {
                Special::CharDevice => FileType::CharDevice,
                Special::BlockDevice => FileType::BlockDevice,
                Special::Fifo => FileType::Fifo,
                Special::Socket => FileType::Socket,
            };
            let device = match kind {
                FileType::CharDevice | FileType::BlockDevice => HostAttributes::of(metadata).rdev,
                _ => (0, 0),
            };
            self.fs
                .create_special(to, kind, device, self.new_inode(metadata))?;
        }
        self.summary.others += 1;
        let ino = self.fs.find(to, false)?;
        self.xattrs(from, ino, to)?;
        self.fs.set_symlink_attributes(to, &self.kept(metadata))
    }

    /// Makes a directory. Without its whole mode it gets the rights of others to write in the end, less the umask, as
    /// `cp -r` gives them: where a default ACL decides what it lacks, they are added to that.
    fn make_directory(&self, to: &Path, metadata: &fs::Metadata) -> Result<(), Error> {
        let mut new = self.new_inode(metadata);
        let late = new.mode & OTHERS_WRITE & !self.options.umask;
        if self.options.mode {
            // What is below must not inherit what this gets in the end.
            new.mode &= !SPECIAL_BITS;
            return self.fs.create_dir_with(to, new);
        }
        new.mode &= !OTHERS_WRITE;
        self.fs.create_dir_with(to, new)?;
        let made = self.fs.metadata(to)?.mode & 0o7777;
        if made | late == made {
            Ok(())
        } else {
            self.fs.set_permissions(to, made | late)
        }
    }

    /// Gives an inode the extended attributes of a file of the host, if they are to be kept.
    fn xattrs(&mut self, from: &Path, ino: Ino, to: &Path) -> Result<(), Error> {
        if !self.options.xattrs && !self.options.mode {
            return Ok(());
        }
        // It may have them from its directory; a link has none.
        for name in [ACCESS_ACL, DEFAULT_ACL] {
            match self.fs.engine.remove_xattr(ino, name) {
                Ok(()) | Err(engine::Error::NotSupported(_)) => {}
                Err(error) => return self.fs.named(to, Err(error)),
            }
        }
        let failed = |error| Error::host("reading attributes of", from, error);
        // Without `recursive` a link was followed.
        let follows = !self.options.recursive;
        for name in system::list_xattrs(from, follows).map_err(failed)? {
            let is_acl = [ACCESS_ACL, DEFAULT_ACL].contains(&&*name);
            let is_kept = if is_acl {
                self.options.mode
            } else {
                self.options.xattrs
            };
            if !is_kept {
                continue;
            }
            // Removed meanwhile, or this user may not read it.
            let Some(value) = system::xattr(from, &name, follows).map_err(failed)? else {
                continue;
            };
            let set = self.fs.set_xattr_of(to, ino, &name, &value);
            match set {
                Err(Error::Fs {
                    source: engine::Error::NotSupported(_),
                    ..
                }) => self.summary.lost_xattrs += 1,
                done => done?,
            }
        }
        Ok(())
    }

    fn new_inode(&self, metadata: &fs::Metadata) -> NewInode {
        let kept = match self.options.mode {
            true => 0o7777,
            // As open(2), mkdir(2) and mknod(2) take it from `cp`.
            false if metadata.is_dir() => 0o1777,
            false if metadata.is_file() || !self.options.recursive => 0o777,
            false => 0o7777,
        };
        let own = HostAttributes::of(metadata);
        let (uid, gid) = if self.options.owner {
            (own.uid, own.gid)
        } else {
            (0, 0)
        };
        NewInode {
            mode: own.mode & kept,
            uid,
            gid,
            umask: if self.options.mode {
                0
            } else {
                self.options.umask
            },
            held: false,
        }
    }

    fn times(&self, metadata: &fs::Metadata) -> SetAttributes {
        let stamp = |(seconds, nanoseconds): Moment| Timestamp {
            seconds,
            nanoseconds,
        };
        let own = HostAttributes::of(metadata);
        let (mut atime, mut mtime) = (stamp(own.atime), stamp(own.mtime));
        if let Some(newest) = self.options.newest_time {
            mtime = mtime.min(newest);
            atime = mtime;
        }
        let kept = |time| Some(SetTime::At(time)).filter(|_| self.options.times);
        SetAttributes {
            atime: kept(atime),
            mtime: kept(mtime),
            ..SetAttributes::default()
        }
    }

    /// What is to be kept of something that is there.
    /// As [`Copy::kept`], for what replaces or fills up something: a source without special bits leaves those that are
    /// there, as `cp -p` does, which sets an ACL and no mode then. Another owner takes set-user-ID and set-group-ID
    /// from a file.
    fn kept_over(&self, metadata: &fs::Metadata, over: Option<&Metadata>) -> SetAttributes {
        let mut kept = self.kept(metadata);
        let (Some(mode), Some(over)) = (&mut kept.mode, over) else {
            return kept;
        };
        if *mode & SPECIAL_BITS != 0 {
            return kept;
        }
        let mut left = over.mode & SPECIAL_BITS;
        let is_given = |asked: Option<u32>, there| asked.is_some_and(|asked| asked != there);
        let changes = is_given(kept.uid, over.uid) || is_given(kept.gid, over.gid);
        if changes && !metadata.is_dir() {
            left &= !0o4000;
            if over.mode & 0o010 != 0 {
                left &= !0o2000;
            }
        }
        *mode |= left;
        kept
    }

    fn kept(&self, metadata: &fs::Metadata) -> SetAttributes {
        let new = self.new_inode(metadata);
        SetAttributes {
            mode: Some(new.mode).filter(|_| self.options.mode && !metadata.is_symlink()),
            uid: Some(new.uid).filter(|_| self.options.owner),
            gid: Some(new.gid).filter(|_| self.options.owner),
            ..self.times(metadata)
        }
    }
}
