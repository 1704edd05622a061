//! The journal's test client: accounts between which amounts move, counters added to without a lock, each thread's
//! progress, and a pool of blocks that are metadata, data or free, each naming its tag in an owners' table.
//!
//! What must hold after any crash: amounts sum up to zero; the accounts' counts, the lock-free counters and the
//! threads' progress agree; every owned block holds what its owner says; nothing committed is lost.

use device::BlockDevice;
use lanefs_journal::{
    Client, Epoch, EpochLists, Folded, Handle, Journal, JournalError, Object, Options, Stageable,
};
use model::Random;
use ondisk::FsBlock;
use simulate::{Recorder, SlowFlush};
use sync::clock::Duration;
use sync::{Arc, Mutex, OnceLock, Rank};

use crate::image::{CELLS, Image};

const ACCOUNT_BLOCKS: usize = 8;
const SLOT: usize = 32;
const COUNTERS: usize = 8;
pub const THREADS: usize = 4;
const PROGRESS: usize = 9;
const OWNERS: usize = PROGRESS + THREADS;
const POOL: usize = OWNERS + 1;
const JBD2_MAGIC: u32 = 0xC03B_3998;

/// A mistake made on purpose, to see that the checks see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Canary {
    RevokeLeftOut,
    ReusedBeforeCommit,
    NextEpochInSealedImage,
    CleanNeighbourFromMemory,
    MappedBeforeData,
    /// The step that maps data does not say so.
    MappedUnsaid,
}

#[derive(Clone, Copy, Default)]
struct Account {
    amount: i64,
    count: u64,
}

/// One of many objects in a block.
struct AccountSlot {
    block: FsBlock,
    offset: usize,
    value: Object<Account>,
    canary: Option<Canary>,
    /// The other slots of the block, for the canary that encodes them.
    neighbours: OnceLock<Vec<Arc<AccountSlot>>>,
}

impl AccountSlot {
    fn write(offset: usize, account: Account, image: &mut [u8]) {
        image[offset..offset + 8].copy_from_slice(&account.amount.to_le_bytes());
        image[offset + 8..offset + 16].copy_from_slice(&account.count.to_le_bytes());
    }
}

impl Stageable for AccountSlot {
    fn block(&self) -> FsBlock {
        self.block
    }
    fn is_whole_block(&self) -> bool {
        false
    }
    fn stage(&self, sealed: Epoch, image: &mut [u8]) {
        let account = self.value.take_sealed(sealed);
        match self.canary {
            Some(Canary::NextEpochInSealedImage) => {
                sync::thread::yield_now();
                Self::write(self.offset, self.value.read(|live| *live), image);
            }
            Some(Canary::CleanNeighbourFromMemory) => {
                Self::write(self.offset, account, image);
                for neighbour in self.neighbours.get().into_iter().flatten() {
                    Self::write(neighbour.offset, neighbour.value.read(|live| *live), image);
                }
            }
            _ => Self::write(self.offset, account, image),
        }
    }
}

/// An object that is a whole block.
struct Whole {
    block: FsBlock,
    bytes: Object<Vec<u8>>,
}

impl Stageable for Whole {
    fn block(&self) -> FsBlock {
        self.block
    }
    fn is_whole_block(&self) -> bool {
        true
    }
    fn stage(&self, sealed: Epoch, image: &mut [u8]) {
        image.copy_from_slice(&self.bytes.take_sealed(sealed));
    }
}

/// The client.
pub struct Bank {
    pub device: Arc<Recorder>,
    pub journal: Journal,
    image: Image,
    accounts: Vec<Arc<AccountSlot>>,
    progress: Vec<Arc<Whole>>,
    owners: Arc<Whole>,
    /// Additions to the lock-free counters.
    added: EpochLists<(usize, i64)>,
    /// Pool blocks that became free.
    freed: EpochLists<usize>,
    pool: Mutex<Vec<usize>>,
    canary: Option<Canary>,
}

fn meta_bytes(tag: u64, bytes: usize) -> Vec<u8> {
    let mut block: Vec<u8> = (0..bytes)
        .map(|at| (tag as u8).wrapping_add(at as u8))
        .collect();
    if tag.is_multiple_of(3) {
        block[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
    }
    block
}

fn data_bytes(tag: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (tag as u8).wrapping_mul(31) ^ (at as u8) ^ 0x5a)
        .collect()
}

impl Client for Bank {
    fn fold(&self, sealed: Epoch, folded: &mut Folded<'_>) -> Result<(), JournalError> {
        let added = self.added.take(sealed);
        if added.is_empty() {
            return Ok(());
        }
        let image = folded.image(self.image.cells[ACCOUNT_BLOCKS])?;
        for (counter, amount) in added {
            let at = counter * 8;
            let before = i64::from_le_bytes(image[at..at + 8].try_into().unwrap());
            image[at..at + 8].copy_from_slice(&(before + amount).to_le_bytes());
        }
        Ok(())
    }

    fn committed(&self, epoch: Epoch) {
        let freed = self.freed.take(epoch);
        self.pool.lock().extend(freed);
    }

    fn read_home(&self, block: FsBlock, buf: &mut [u8]) -> Result<(), JournalError> {
        Ok(self
            .device
            .read_at(block.offset(self.image.block_size), buf)?)
    }
}

impl Bank {
    /// A bank on a fresh image; its blocks are zeroed before the recording begins.
    pub fn open(image: &Image, options: Options, canary: Option<Canary>) -> Bank {
        Bank::on(
            image,
            Recorder::new(&Bank::contents(image)),
            options,
            canary,
        )
    }

    /// The image with an empty bank.
    pub fn contents(image: &Image) -> Vec<u8> {
        let mut bytes = image.opened();
        for block in &image.cells {
            let start = usize::try_from(block.offset(image.block_size)).unwrap();
            bytes[start..start + image.block_size.bytes()].fill(0);
        }
        bytes
    }

    pub fn on(image: &Image, device: Recorder, options: Options, canary: Option<Canary>) -> Bank {
        let device = Arc::new(device);
        let home = Arc::clone(&device) as Arc<dyn BlockDevice>;
        Bank::with_home(image, device, home, options, canary)
    }

    /// A bank whose checkpoints write to another device than its journal.
    pub fn with_home(
        image: &Image,
        device: Arc<Recorder>,
        home: Arc<dyn BlockDevice>,
        options: Options,
        canary: Option<Canary>,
    ) -> Bank {
        let log = image.map(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let journal = Journal::open(log, 0, home, options, || (1_700_000_000, 0));
        Bank::with(image, device, journal.unwrap(), canary)
    }

    /// A bank on a device whose flushes take so long.
    pub fn slow(image: &Image, flush: Duration) -> Bank {
        let device = Arc::new(Recorder::new(&Bank::contents(image)));
        let slow: Arc<dyn BlockDevice> = Arc::new(SlowFlush::new(Arc::clone(&device), flush));
        let log = image.map(Arc::clone(&slow));
        let journal = Journal::open(log, 0, slow, image.options(), || (1_700_000_000, 0));
        Bank::with(image, device, journal.unwrap(), None)
    }

    /// A bank on an image whose journal is not used.
    pub fn without_log(image: &Image) -> Bank {
        let device = Arc::new(Recorder::new(&Bank::contents(image)));
        let home = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let journal = Journal::without_log(image.block_size, home, Options::default(), || (0, 0));
        Bank::with(image, device, journal, None)
    }

    fn with(
        image: &Image,
        device: Arc<Recorder>,
        journal: Journal,
        canary: Option<Canary>,
    ) -> Bank {
        let slots = image.block_size.bytes() / SLOT;
        let whole = |index: usize| {
            let bytes = Object::new(vec![0; image.block_size.bytes()]);
            Arc::new(Whole {
                block: image.cells[index],
                bytes,
            })
        };
        let slot = |index: usize| {
            Arc::new(AccountSlot {
                block: image.cells[index / slots],
                offset: index % slots * SLOT,
                value: Object::new(Account::default()),
                canary,
                neighbours: OnceLock::new(),
            })
        };
        let accounts: Vec<_> = (0..ACCOUNT_BLOCKS * slots).map(slot).collect();
        if canary == Some(Canary::CleanNeighbourFromMemory) {
            for account in &accounts {
                let others = accounts.iter().filter(|other| other.block == account.block);
                assert!(account.neighbours.set(others.cloned().collect()).is_ok());
            }
        }
        Bank {
            device,
            journal,
            image: image.clone(),
            accounts,
            progress: (0..THREADS)
                .map(|thread| whole(PROGRESS + thread))
                .collect(),
            owners: whole(OWNERS),
            added: EpochLists::new(),
            freed: EpochLists::new(),
            pool: Mutex::new(Rank::Leaf, (POOL..CELLS).collect()),
            canary,
        }
    }

    fn count(&self, handle: &Handle<'_>, thread: usize) {
        handle.change(
            &self.progress[thread % THREADS],
            |whole| &whole.bytes,
            |bytes| {
                let count = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                bytes[..8].copy_from_slice(&(count + 1).to_le_bytes());
            },
        );
    }

    fn own(&self, handle: &Handle<'_>, index: usize, kind: u64, tag: u64) {
        handle.change(
            &self.owners,
            |whole| &whole.bytes,
            |bytes| {
                let at = (index - POOL) * 16;
                bytes[at..at + 8].copy_from_slice(&kind.to_le_bytes());
                bytes[at + 8..at + 16].copy_from_slice(&tag.to_le_bytes());
            },
        );
    }

    /// Moves an amount and counts it everywhere.
    pub fn transfer(&self, thread: usize, random: &mut Random) -> Result<(), JournalError> {
        let credits = self.journal.reserve(self, 4, 0)?;
        let handle = self.journal.begin(credits);
        let (from, to) = (random.pick(&self.accounts), random.pick(&self.accounts));
        for (account, amount) in [(from, -7), (to, 7)] {
            handle.change(
                account,
                |slot| &slot.value,
                |account| {
                    account.amount += amount;
                    account.count += 1;
                },
            );
            // A thread that is interrupted here must not tear the pair apart.
            sync::thread::yield_now();
        }
        handle.use_block();
        self.added
            .push(&handle, (random.below(COUNTERS as u64) as usize, 2));
        self.count(&handle, thread);
        Ok(())
    }

    /// Gives a free block an owner, as metadata or as data, or frees one that the thread holds.
    fn turn_over(
        &self,
        thread: usize,
        random: &mut Random,
        mine: &mut Vec<(usize, bool)>,
    ) -> Result<(), JournalError> {
        let credits = self.journal.reserve(self, 3, 1)?;
        let bytes = self.image.block_size.bytes();
        if !mine.is_empty() && (mine.len() > 5 || random.one_in(2)) {
            let (index, is_metadata) = mine.swap_remove(random.below(mine.len() as u64) as usize);
            let handle = self.journal.begin(credits);
            self.own(&handle, index, 0, 0);
            if is_metadata && self.canary != Some(Canary::RevokeLeftOut) {
                handle.forget(self.image.cells[index]);
            }
            if self.canary != Some(Canary::ReusedBeforeCommit) {
                self.freed.push(&handle, index);
            }
            self.count(&handle, thread);
            drop(handle);
            if self.canary == Some(Canary::ReusedBeforeCommit) {
                self.pool.lock().push(index);
            }
            return Ok(());
        }
        let Some(index) = self.pool.lock().pop() else {
            return self.transfer(thread, random);
        };
        let (block, tag) = (self.image.cells[index], random.bits());
        let is_metadata = random.one_in(2);
        mine.push((index, is_metadata));
        let write = || {
            self.device
                .write_at(block.offset(self.image.block_size), &data_bytes(tag, bytes))
        };
        if !is_metadata && self.canary != Some(Canary::MappedBeforeData) {
            write()?;
        }
        let handle = self.journal.begin(credits);
        if is_metadata {
            let whole = Arc::new(Whole {
                block,
                bytes: Object::new(Vec::new()),
            });
            handle.change(
                &whole,
                |whole| &whole.bytes,
                |live| *live = meta_bytes(tag, bytes),
            );
        }
        if !is_metadata && self.canary != Some(Canary::MappedUnsaid) {
            handle.maps_data();
        }
        self.own(&handle, index, if is_metadata { 1 } else { 2 }, tag);
        self.count(&handle, thread);
        drop(handle);
        if !is_metadata && self.canary == Some(Canary::MappedBeforeData) {
            // What another thread's commit would do at the worst moment.
            self.journal.commit(self, self.journal.current_epoch())?;
            write()?;
        }
        if !is_metadata && self.canary == Some(Canary::MappedUnsaid) {
            // With nothing else in the transaction, most likely.
            self.journal.commit(self, self.journal.current_epoch())?;
        }
        Ok(())
    }

    /// One thread's work; marks the recording with its number and count each time a commit has returned.
    pub fn work(&self, thread: usize, seed: u64, operations: u64) -> Result<(), JournalError> {
        let mut random = Random::new(seed ^ (thread as u64) << 32);
        let mut mine = Vec::new();
        for done in 1..=operations {
            if random.one_in(3) {
                self.turn_over(thread, &mut random, &mut mine)?;
            } else {
                self.transfer(thread, &mut random)?;
            }
            if random.one_in(12) {
                self.journal.commit(self, self.journal.current_epoch())?;
                self.device.mark((thread as u64) << 32 | done);
            }
            if random.one_in(50) {
                self.journal.checkpoint()?;
            }
        }
        Ok(())
    }

    /// All threads' work.
    pub fn run(&self, threads: usize, seed: u64, operations: u64) -> Result<(), JournalError> {
        let results = Mutex::new(Rank::Leaf, Vec::new());
        sync::thread::workers(threads, |thread| {
            let result = self.work(thread, seed, operations);
            results.lock().push(result);
        });
        results.into_inner().into_iter().collect()
    }
}

/// Checks that every block of data holds what its owner says: all that may be asked of what a cut leaves of a bank
/// without a log.
pub fn check_data(image: &Image, device: &dyn BlockDevice) -> Result<usize, String> {
    let size = image.block_size;
    let read = |index: usize| {
        let mut bytes = vec![0; size.bytes()];
        device
            .read_at(image.cells[index].offset(size), &mut bytes)
            .unwrap();
        bytes
    };
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let owners = read(OWNERS);
    let mut checked = 0;
    for index in POOL..CELLS {
        let at = (index - POOL) * 16;
        if word(&owners, at) == 2 {
            if read(index) != data_bytes(word(&owners, at + 8), size.bytes()) {
                return Err(format!("block {index} does not hold its owner's data"));
            }
            checked += 1;
        }
    }
    Ok(checked)
}

/// Checks the cells of a replayed device; `promised` are the threads' counts that must be there.
pub fn check(
    image: &Image,
    device: &dyn BlockDevice,
    promised: &[u64; THREADS],
) -> Result<(), String> {
    let size = image.block_size;
    let read = |index: usize| {
        let mut bytes = vec![0; size.bytes()];
        device
            .read_at(image.cells[index].offset(size), &mut bytes)
            .unwrap();
        bytes
    };
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (mut amounts, mut counts) = (0_i64, 0);
    for index in 0..ACCOUNT_BLOCKS {
        let block = read(index);
        for at in (0..size.bytes()).step_by(SLOT) {
            amounts += word(&block, at) as i64;
            counts += word(&block, at + 8);
        }
    }
    if amounts != 0 {
        return Err(format!("amounts sum up to {amounts}"));
    }
    let counters = read(ACCOUNT_BLOCKS);
    let added: u64 = (0..COUNTERS)
        .map(|counter| word(&counters, counter * 8))
        .sum();
    if added != counts {
        return Err(format!("the accounts count {counts}, the counters {added}"));
    }
    for (thread, promised) in promised.iter().enumerate() {
        let progress = word(&read(PROGRESS + thread), 0);
        if progress < *promised {
            return Err(format!(
                "thread {thread} did {progress} operations, {promised} were promised"
            ));
        }
    }
    let owners = read(OWNERS);
    for index in POOL..CELLS {
        let at = (index - POOL) * 16;
        let (kind, tag) = (word(&owners, at), word(&owners, at + 8));
        let expected = match kind {
            0 => continue,
            1 => meta_bytes(tag, size.bytes()),
            2 => data_bytes(tag, size.bytes()),
            kind => return Err(format!("block {index} has an owner of kind {kind}")),
        };
        if read(index) != expected {
            return Err(format!(
                "block {index} of kind {kind} does not hold what its owner says"
            ));
        }
    }
    Ok(())
}
