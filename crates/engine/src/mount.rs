//! From a device to a volume: the superblock, and the journal if it has something to say.

use device::{BlockDevice, DeviceError};
use jbd2::recovery;
use ondisk::superblock::{flags, mount_options, state};
use ondisk::{
    Corrupt, Feature, Features, FsBlock, Geometry, Ino, Site, Superblock, Timestamp, orphan_file,
};
use sync::Arc;
use sync::clock::Duration;

use crate::attr;
use crate::blocks::{Choices, OpenVolume, Writing};
use crate::core::Error;
use crate::core::limits;
use crate::core::options::{Atime, Clock, Synchronous};
use crate::core::sb::{self, Label, OnError, Reserve, Zones};
use crate::core::variants::{OrphanForm, Variants};
use crate::inode::MountedFs;
use crate::map::Mappings;
use crate::reap;
use crate::space::group::{DescriptorInodes, DescriptorSurvey};
use crate::space::orphan::{OrphanFile, Orphans};
use crate::token::LiveFs;

mod fast_commits;
mod hold;
mod reading;
mod superblock;
mod tune;

pub(crate) use hold::{abandon, hold, unmount_held};
pub use reading::CutDevice;
pub(crate) use reading::mount;
pub use superblock::{is_rebuildable, rebuilt_superblock};
pub use tune::tune;

/// Features that oblige a writer, and that lanefs obeys.
const WRITABLE: &[Feature] = &[
    Feature::FILETYPE,
    Feature::NEEDS_RECOVERY,
    Feature::EXTENT,
    Feature::BIT64,
    Feature::FLEX_BG,
    Feature::METADATA_CSUM_SEED,
    Feature::LARGE_DIR,
    Feature::SPARSE_SUPER,
    Feature::LARGE_FILE,
    Feature::HUGE_FILE,
    Feature::UNINIT_BG,
    Feature::DIR_NLINK,
    Feature::EXTRA_ISIZE,
    Feature::METADATA_CSUM,
    Feature::ORPHAN_PRESENT,
];

/// What to do with a journal that has changes not yet written home.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ReplayPolicy {
    /// Replay it in memory; the device is left alone.
    #[default]
    Replay,
    /// Read what is home, as if there were no journal (`noload`). It may contradict itself. To be written to, the
    /// image must be clean: it is then used as one without a journal, which a crash leaves to e2fsck.
    Ignore,
}

/// What is promised of file data after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DataMode {
    /// Data are durable before the blocks that hold them are a file's (`data=ordered`).
    #[default]
    Ordered,
    /// They may come later (`data=writeback`): where a commit takes one flush ([`MountOptions::async_commit`]), a crash
    /// may show what the blocks held before.
    Writeback,
}

/// How to open a file system.
#[derive(Clone)]
pub struct MountOptions {
    /// Which superblock to use: `None` for the first, else the place of a copy in units of 1 KiB, as mount's `sb=`.
    pub superblock: Option<u64>,
    /// The device that holds the journal, where it is not in the file system.
    pub journal_device: Option<Arc<dyn BlockDevice>>,
    /// What to do with changes in the journal.
    pub journal: ReplayPolicy,
    /// Bytes of metadata blocks to keep.
    pub cache_bytes: usize,
    /// The time of every change, whenever it is made; `None` for that of the clock. With it, the same changes to the
    /// same image by one thread give the same bytes, where no other thread commits (`commit_interval`).
    pub time: Option<Timestamp>,
    /// When reading changes times of last access; only where the file system is opened for writing, as all that
    /// follows.
    pub atime: Atime,
    /// Whether reading a directory changes its time of access, by the rule of `atime`; otherwise only reading files and
    /// links does (`nodiratime`).
    pub directory_atime: bool,
    /// Which changes are durable when they return.
    pub synchronous: Synchronous,
    /// Keep times of access in memory until the inode changes otherwise, a sync, or the end (`lazytime`). A crash
    /// loses them, and nothing else.
    pub lazytime: bool,
    /// A caller that is not named by [`crate::InodeFs::act_for`] may take the blocks reserved for root.
    pub as_root: bool,
    /// What to do when the image turns out to be corrupt; `None` for what its superblock says.
    pub errors: Option<OnError>,
    /// Whether freed blocks are discarded on the device, after the change that freed them is durable; `None`: as the
    /// superblock's default options say.
    pub discard: Option<bool>,
    /// Whether new files are their directory's group's (`bsdgroups`), set-group-ID or not; `None` for what the
    /// superblock's default options say.
    pub bsd_groups: Option<bool>,
    /// Which form of each mechanism is used.
    pub variants: Variants,
    /// What is on the device is of no use to anyone afterwards, and it is a [`device::MemoryDevice`]: forms that forget
    /// what a crash interrupts may be used, for measurements ([`crate::OrphanForm::Nothing`]).
    pub is_measurement: bool,
    /// Whether a thread of its own deletes what lost its names; else each caller does, when its operation is done.
    pub reaper_thread: bool,
    /// Bytes of metadata blocks that changed to keep as such, beyond those in use or not committed.
    pub live_bytes: usize,
    /// Bytes of memory in which it is kept which blocks of groups are free, beyond groups of which something is taken
    /// or freed that is not durable. It takes three bits a block: 64 MiB, the default, are enough for 680 GiB at 4 KiB
    /// blocks.
    pub group_bytes: usize,
    /// Inodes to keep, beyond those in use, held or not committed; each takes some 900 bytes.
    pub live_inodes: usize,
    /// Bytes of committed metadata to keep until they are written home; a transaction gets at most a quarter of it.
    pub staged_bytes: u64,
    /// How long a change may wait until it is committed without a request (`commit=`). One thread is started for that,
    /// which also commits and checkpoints when much is due. `None`: no thread; the threads that change something do it.
    pub commit_interval: Option<Duration>,
    /// Commit with one flush where that is enough (`journal_async_commit`): see [`journal::Options::async_commit`].
    pub async_commit: bool,
    /// What is promised of file data.
    pub data: DataMode,
    /// Log what one fsync needs in the journal's area for fast commits, where the image has one (`fast_commit`),
    /// instead of committing everything.
    pub fast_commits: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            superblock: None,
            journal_device: None,
            journal: ReplayPolicy::Replay,
            cache_bytes: limits::CACHE_BYTES,
            time: None,
            atime: Atime::default(),
            directory_atime: true,
            synchronous: Synchronous::default(),
            lazytime: false,
            as_root: true,
            errors: None,
            discard: None,
            bsd_groups: None,
            variants: Variants::default(),
            is_measurement: false,
            reaper_thread: false,
            live_bytes: limits::LIVE_BYTES,
            group_bytes: limits::GROUP_BYTES,
            live_inodes: limits::LIVE_INODES,
            staged_bytes: journal::Options::default().staged_bytes,
            commit_interval: None,
            async_commit: false,
            data: DataMode::Ordered,
            fast_commits: true,
        }
    }
}

/// What was met when a file system was opened.
pub(crate) struct FoundAtOpen {
    /// What replaying the journal found, if there was anything to replay.
    pub(crate) recovery: Option<recovery::ReplayReport>,
    /// Whether the first superblock was lost or torn.
    pub(crate) lost_superblock: bool,
    /// What is missing of a device that ends before the file system.
    pub(crate) cut: Option<CutDevice>,
}

/// Opens a volume to be written to: what the journal holds is written home first, and from then on the superblock
/// says that the journal must be looked at. CRASH: at any point the image is one that replays to the same state.
pub(crate) fn mount_for_writing(
    device: Arc<dyn BlockDevice>,
    options: &MountOptions,
    clock: Clock,
) -> Result<(Arc<LiveFs>, FoundAtOpen), Error> {
    let mut found = superblock::read(&device, options)?;
    refuse_unwritable(&*device, &found.superblock, options)?;
    if found.is_rebuilt {
        refuse_unreplayable(&device, &found.superblock, options, clock)?;
    }
    superblock::put_back(&*device, &mut found)?;
    let mut superblock = found.superblock;
    let mut report = None;
    if needs_replay(&superblock) {
        let geometry = Geometry::new(&superblock, device.size())?;
        report = Some(replay_home(
            &device,
            &superblock,
            &geometry,
            options,
            clock,
        )?);
        superblock = sb::read_superblock(&*device, options.superblock)?;
        // The journal may have held a newer superblock, and replaying it may have found damage.
        refuse_unwritable(&*device, &superblock, options)?;
    }
    let raised = raise(device, superblock, options, clock, Use::Mount)?;
    let mounted = raised.mounted;
    reap::recover(&mounted, raised.first_orphan, &raised.in_slots)?;
    let met = FoundAtOpen {
        recovery: report,
        lost_superblock: found.is_rebuilt,
        cut: None,
    };
    Ok((mounted, met))
}

/// Refuses a journal that can't be replayed before anything is written, a superblock found elsewhere among it.
fn refuse_unreplayable(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
    options: &MountOptions,
    clock: Clock,
) -> Result<(), Error> {
    if !needs_replay(superblock) {
        return Ok(());
    }
    let device = superblock::laid_over(Arc::clone(device), superblock)?;
    let geometry = Geometry::new(superblock, device.size())?;
    let external = options.journal_device.clone();
    let scanned = recovery::scan_and_overlay(device, superblock, &geometry, external)?;
    if !scanned.fast_commits.is_empty() {
        fast_commits::tried(scanned.device, &scanned.fast_commits, clock)?;
    }
    Ok(())
}

/// Writes home what the journal holds, fast commits included.
fn replay_home(
    device: &Arc<dyn BlockDevice>,
    superblock: &Superblock,
    geometry: &Geometry,
    options: &MountOptions,
    clock: Clock,
) -> Result<recovery::ReplayReport, Error> {
    let external = || options.journal_device.clone();
    match recovery::replay_to_device(device, superblock, geometry, external()) {
        Err(recovery::Error::FastCommitsPending { .. }) => {}
        replayed => return Ok(replayed?),
    }
    let found = fast_commits::commit(device, superblock, geometry, clock)?;
    let mut report = recovery::replay_to_device(device, superblock, geometry, external())?;
    report.fast_commits = found.fast_commits;
    Ok(report)
}

/// What a file system is opened for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// To be used: its superblock says so, and changes go through its journal.
    Mount,
    /// To try changes out on a device that is thrown away.
    Trial,
}

/// A file system that can be changed.
struct Raised {
    mounted: Arc<LiveFs>,
    /// The head of the classic list of orphans.
    first_orphan: Option<Ino>,
    /// Slots of the orphan file with their inodes.
    in_slots: Vec<(u32, Ino)>,
}

/// Opens a file system whose journal was replayed.
fn raise(
    device: Arc<dyn BlockDevice>,
    mut superblock: Superblock,
    options: &MountOptions,
    clock: Clock,
    purpose: Use,
) -> Result<Raised, Error> {
    let volume = OpenVolume::new(
        Arc::clone(&device),
        superblock,
        options.superblock,
        options.cache_bytes,
    )?;
    let reader = MountedFs::new(volume);
    let DescriptorSurvey { mut zones, said } = DescriptorSurvey::read(reader.volume())?;
    let journal = open_journal(&reader, &device, &mut zones, options, clock, purpose)?;
    let file = read_orphan_file(&reader, &superblock)?;
    if let (Some(file), Some(ino)) = (&file, superblock.orphan_file_ino()) {
        let mut blocks = file.blocks.iter();
        blocks.try_for_each(|block| zones.add(block.0..block.0 + 1, ino))?;
    }
    let zones = zones.finish()?;
    let in_slots = file
        .iter()
        .flat_map(|file| file.used.iter().copied())
        .collect::<Vec<_>>();
    let first_orphan = superblock.last_orphan();
    count_free(&mut superblock, &said);
    say_hash(&mut superblock);
    let defaults = superblock.default_mount_options();
    let by_default = |option| defaults & option != 0;
    match purpose {
        Use::Mount => {
            let has_log = journal.has_log();
            say_mounted(&mut superblock, has_log, file.is_some(), clock.now());
            put_on_record(&*device, &mut superblock, &journal)?;
            journal.begin_fast()?;
        }
        Use::Trial => write_superblock(&*device, &mut superblock)?,
    }
    let volume = OpenVolume::new(device, superblock, options.superblock, options.cache_bytes)?;
    let orphans = Orphans::new(volume.geometry(), file, options.variants.orphan);
    let choices = Choices {
        zones,
        reserve: Reserve::new(&superblock, volume.geometry(), options.as_root),
        errors: options.errors.unwrap_or(OnError::of(&superblock)),
        label: Label::new(&superblock),
        discard: options
            .discard
            .unwrap_or(by_default(mount_options::DISCARD)),
        bsd_groups: options
            .bsd_groups
            .unwrap_or(by_default(mount_options::BSD_GROUPS)),
        atime: options.atime,
        directory_atime: options.directory_atime,
        synchronous: options.synchronous,
        lazytime: options.lazytime,
        group_bytes: options.group_bytes,
        live_blocks: options.live_bytes / volume.geometry().block_size().bytes(),
    };
    let writing = Writing::new(volume.geometry(), journal, clock, choices);
    let (kept, variants) = (options.live_inodes, options.variants);
    Ok(Raised {
        mounted: LiveFs::new(volume, writing, &said, orphans, kept, variants),
        first_orphan,
        in_slots,
    })
}

/// Reads the orphan file, if the file system has one.
fn read_orphan_file(
    mounted: &MountedFs,
    superblock: &Superblock,
) -> Result<Option<OrphanFile>, Error> {
    let volume = mounted.volume();
    let ino = superblock
        .orphan_file_ino()
        .filter(|_| volume.has(Feature::ORPHAN_FILE));
    let Some(ino) = ino else { return Ok(None) };
    let inode = mounted.load_used(ino)?;
    let seed = volume.geometry().has_metadata_csum().then(|| inode.seed());
    let mut file = OrphanFile {
        blocks: Vec::new(),
        seed,
        used: Vec::new(),
    };
    let mut bytes = vec![0; volume.geometry().block_size().bytes()];
    for run in Mappings::new(volume, &inode, 0..u64::MAX)? {
        let run = run?;
        let start = run
            .physical
            .filter(|_| run.is_data())
            .ok_or(Corrupt::at(Site::OrphanHole).ino(ino))?;
        if run.len + file.blocks.len() as u64 > orphan_file::BLOCKS_MAX {
            return Err(Corrupt::at(Site::OrphanLength).ino(ino).into());
        }
        for block in (start.0..start.0 + run.len).map(FsBlock) {
            volume.load_newest(block, &mut bytes)?;
            orphan_file::verify(&bytes, block, seed)?;
            let slots = orphan_file::slots_per_block(volume.geometry().block_size());
            let first = file.blocks.len() * slots;
            let numbers = bytes.chunks_exact(4).take(slots).enumerate();
            // At most 512 blocks of 16,382 slots.
            let used = numbers.filter_map(|(slot, number)| {
                let number = u32::from_le_bytes(number.try_into().ok()?);
                (number != 0).then_some(((first + slot) as u32, Ino(number)))
            });
            file.used.extend(used);
            file.blocks.push(block);
        }
    }
    Ok(Some(file))
}

/// Commits and writes home everything, and says in the superblock that the journal holds nothing. Nobody else uses
/// the volume.
pub(crate) fn unmount(mounted: &LiveFs) -> Result<(), Error> {
    reap::drain(mounted);
    mounted.give_back_all();
    mounted.writing().journal.close(mounted)?;
    // What is still held by someone stays an orphan, which the next program that opens the image finishes.
    say_clean(mounted, mounted.orphans().is_empty())
}

/// Lets no change begin, and leaves an image that is clean as it is, until [`thaw`]. Frozen twice counts as frozen
/// once.
pub(crate) fn freeze(mounted: &LiveFs) -> Result<(), Error> {
    let writing = mounted.writing();
    if !writing.gate.close() {
        return Ok(());
    }
    reap::drain(mounted);
    mounted.give_back_all();
    let frozen = attr::write_lazy(mounted)
        .and_then(|()| Ok(writing.journal.freeze(mounted)?))
        .and_then(|()| {
            let said = say_clean(mounted, mounted.orphans().is_empty());
            // It may say so nevertheless, and nothing may be written to an image that does.
            said.inspect_err(|error| writing.journal.abort(&error.to_string()))
        });
    match frozen {
        Ok(()) => writing.gate.shut(),
        Err(_) => {
            writing.journal.thaw();
            writing.gate.open();
        }
    }
    frozen
}

/// Leaves a clean image, as [`freeze`], and refuses every change from then on; reads go on. A second call does nothing.
pub(crate) fn retire(mounted: &LiveFs) -> Result<(), Error> {
    let writing = mounted.writing();
    // Another thread may thaw in between.
    loop {
        freeze(mounted)?;
        if writing.gate.retire() {
            break;
        }
    }
    // A sync that waits for the thaw finds nothing to write: no change has begun since the freeze.
    writing.journal.thaw();
    Ok(())
}

/// Lets changes begin again; does nothing if they may.
pub(crate) fn thaw(mounted: &LiveFs) -> Result<(), Error> {
    let writing = mounted.writing();
    if !writing.gate.unlock() {
        return Ok(());
    }
    let device = mounted.volume().cache().device();
    let said = sb::read_superblock(&**device, None).and_then(|mut superblock| {
        let has_log = writing.journal.has_log();
        say_in_use(&mut superblock, has_log, mounted.orphans().has_file());
        write_superblock(&**device, &mut superblock)
    });
    if let Err(error) = &said {
        // Nothing may be written to an image that says it is clean.
        writing.journal.abort(&error.to_string());
    }
    writing.journal.thaw();
    writing.gate.open();
    said
}

/// Says in the superblock that the image needs no recovery. Everything is home, and stays so meanwhile.
fn say_clean(mounted: &LiveFs, without_orphans: bool) -> Result<(), Error> {
    let device = mounted.volume().cache().device();
    let mut superblock = sb::read_superblock(&**device, None)?;
    let mut features = superblock.features().without(Feature::NEEDS_RECOVERY);
    if without_orphans {
        features = features.without(Feature::ORPHAN_PRESENT);
    }
    superblock.set_features(features);
    if !mounted.writing().journal.has_log() {
        superblock.set_state(superblock.state() | state::VALID);
    }
    superblock.set_write_time(seconds(mounted.now()?));
    write_superblock(&**device, &mut superblock)
}

/// The state that Linux writes into the superblock of a file system that is open for writing. With a journal the state
/// stays valid, because the journal's replay makes it so. Without one in use it is not valid meanwhile, and a crash
/// leaves it to e2fsck.
fn say_in_use(superblock: &mut Superblock, has_log: bool, has_orphan_file: bool) {
    let mut features = superblock.features();
    // Another program did not finish its replay of fast commits; they are replayed by now.
    superblock.set_state(superblock.state() & !state::FC_REPLAY);
    if has_log {
        features = features.with(Feature::NEEDS_RECOVERY)
    } else {
        superblock.set_state(superblock.state() & !state::VALID)
    }
    if has_orphan_file {
        features = features.with(Feature::ORPHAN_PRESENT);
    }
    superblock.set_features(features);
}

/// As [`say_in_use`], with what Linux counts at a mount.
fn say_mounted(superblock: &mut Superblock, has_log: bool, has_orphan_file: bool, now: Timestamp) {
    say_in_use(superblock, has_log, has_orphan_file);
    superblock.set_mount_count(superblock.mount_count().wrapping_add(1));
    superblock.set_mount_time(seconds(now));
    superblock.set_write_time(seconds(now));
}

/// Sets how names are hashed if the superblock does not say, as Linux does before it writes. Linux takes bytes to be
/// signed or unsigned as they are on the machine that it runs on; since 6.2 they are unsigned everywhere, so it would
/// not find names that were hashed otherwise. Here they are signed, as on the machines of the time when superblocks did
/// not record it.
fn say_hash(superblock: &mut Superblock) {
    if superblock.flags() & (flags::SIGNED_HASH | flags::UNSIGNED_HASH) == 0 {
        superblock.set_flags(superblock.flags() | flags::SIGNED_HASH);
    }
}

/// Sets the superblock's counts to what the descriptors say of free blocks and inodes: Linux brings these counts up to
/// date only now and then, and commits only add to them.
fn count_free(superblock: &mut Superblock, said: &[DescriptorInodes]) {
    let blocks = said.iter().map(|said| u64::from(said.blocks)).sum();
    let inodes: u64 = said.iter().map(|said| u64::from(said.inodes)).sum();
    superblock.set_free_blocks_count(blocks);
    superblock.set_free_inodes_count(u32::try_from(inodes).unwrap_or(u32::MAX));
}

/// Writes the superblock, with an abort that a journal without anything to replay records; only then is that cleared in
/// the journal, as Linux does it.
fn put_on_record(
    device: &dyn BlockDevice,
    superblock: &mut Superblock,
    journal: &journal::Journal,
) -> Result<(), Error> {
    let was_aborted = journal.has_error();
    if was_aborted {
        superblock.set_state(superblock.state() | state::ERROR);
    }
    write_superblock(device, superblock)?;
    if was_aborted {
        Ok(journal.forget_error()?)
    } else {
        Ok(())
    }
}

/// Seconds since 1970 as the superblock holds them.
fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.seconds).unwrap_or(0)
}

/// Writes the superblock, durably.
fn write_superblock(device: &dyn BlockDevice, superblock: &mut Superblock) -> Result<(), Error> {
    superblock.seal();
    device.write_at(Superblock::OFFSET, superblock.bytes())?;
    Ok(device.flush()?)
}

/// The system for which an image was made whose inodes have a translator where others have a version.
const HURD: u32 = 1;

/// Refuses, by name, what can be read but not written (yet).
fn refuse_unwritable(
    device: &dyn BlockDevice,
    superblock: &Superblock,
    options: &MountOptions,
) -> Result<(), Error> {
    if device.is_read_only() {
        return Err(DeviceError::ReadOnly.into());
    }
    let features = superblock.features();
    let reasons = [
        (
            options.superblock.is_some(),
            "another than the first superblock was asked for",
        ),
        (
            options.journal == ReplayPolicy::Ignore && needs_replay(superblock),
            "its journal must be replayed, and was to be ignored",
        ),
        (
            options.variants.orphan == OrphanForm::Nothing
                && !(options.is_measurement && device.is_volatile()),
            "orphan=none is for measurements on a device in memory",
        ),
        (
            superblock.state() & state::VALID == 0,
            "it is not marked as closed after a use without a journal, so e2fsck comes first",
        ),
    ];
    let kinds = [
        (
            superblock.creator_os() == HURD,
            "it was made for the Hurd, whose inodes have other fields",
        ),
        (
            features.has(Feature::HAS_JOURNAL) && superblock.journal_ino().is_none(),
            "its journal is on another device",
        ),
    ];
    if let Some((_, reason)) = reasons.into_iter().find(|(is_so, _)| *is_so) {
        return Err(Error::Unwritable(reason));
    }
    if let Some((_, kind)) = kinds.into_iter().find(|(is_so, _)| *is_so) {
        return Err(Error::OnlyRead(kind));
    }
    // A compatible feature asks nothing of those who don't know it.
    let asking = Features {
        compat: 0,
        ..features
    };
    if let Some(feature) = asking.minus(Features::of(WRITABLE)).iter().next() {
        return Err(Error::UnwritableFeature(feature));
    }
    if Geometry::new(superblock, device.size())?.groups() > limits::WRITTEN_GROUPS {
        Err(Error::Unwritable("it has more groups than are kept"))
    } else {
        Ok(())
    }
}

/// Opens the journal in its inode, which the volume can read, or does without.
fn open_journal(
    mounted: &MountedFs,
    device: &Arc<dyn BlockDevice>,
    zones: &mut Zones,
    options: &MountOptions,
    clock: Clock,
    purpose: Use,
) -> Result<journal::Journal, Error> {
    let (geometry, home) = (mounted.volume().geometry(), Arc::clone(device));
    let block_size = geometry.block_size();
    let uses_journal = purpose == Use::Mount && options.journal == ReplayPolicy::Replay;
    let options = journal::Options {
        staged_bytes: options.staged_bytes,
        async_commit: options.async_commit,
        is_ordered: options.data == DataMode::Ordered,
        has_checksums: geometry.has_metadata_csum(),
        is_64bit: geometry.has(Feature::BIT64),
        fast_commits: options.fast_commits && geometry.has(Feature::FAST_COMMIT),
    };
    let clock = move || {
        let now = clock.now();
        (now.seconds, now.nanoseconds)
    };
    let mut map = None;
    if mounted.volume().superblock().journal_ino().is_some() {
        let runs = journal_map(mounted)?;
        for (start, len) in &runs {
            zones.add(start.0..start.0 + u64::from(*len), Ino::JOURNAL)?;
        }
        map = Some(journal::LogMap::new(Arc::clone(device), block_size, &runs));
    }
    match map.filter(|_| uses_journal) {
        Some(map) => Ok(journal::Journal::open(map, 0, home, options, clock)?),
        None => Ok(journal::Journal::without_log(
            block_size, home, options, clock,
        )),
    }
}

/// Where the journal's blocks are.
fn journal_map(mounted: &MountedFs) -> Result<Vec<(FsBlock, u32)>, Error> {
    let inode = mounted.load_used(Ino::JOURNAL)?;
    let mut runs = Vec::new();
    for run in Mappings::new(mounted.volume(), &inode, 0..u64::MAX)? {
        let run = run?;
        let start = run
            .physical
            .filter(|_| run.is_data())
            .ok_or(Corrupt::at(Site::LogHole).ino(Ino::JOURNAL))?;
        // A journal has fewer blocks than 2^32: its inode was read as a file of that size.
        runs.push((start, u32::try_from(run.len).unwrap_or(u32::MAX)));
    }
    Ok(runs)
}

/// The time by the clock on the wall, for what is only shown.
fn wall() -> Timestamp {
    let (seconds, nanoseconds) = sync::clock::wall();
    Timestamp {
        seconds,
        nanoseconds,
    }
}

fn needs_replay(superblock: &Superblock) -> bool {
    let features = superblock.features();
    features.has(Feature::NEEDS_RECOVERY) && features.has(Feature::HAS_JOURNAL)
}
