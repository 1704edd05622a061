//! Every cut of what several threads did, replayed by the recovery crate, and what the bank says of it.

use device::BlockDevice;
use lanefs_journal::JournalError;
use simulate::{Cut, Cuts, Event, Fault, Recorder};
use sync::Arc;

use crate::bank::{Bank, Canary, THREADS, check};
use crate::image::{Image, replay, try_replay};

/// What a thread may rely on before a cut.
pub fn promised(events: &[Event]) -> [u64; THREADS] {
    let mut promised = [0; THREADS];
    for event in events {
        if let Event::Mark(mark) = event {
            promised[(mark >> 32) as usize] = mark & 0xffff_ffff;
        }
    }
    promised
}

/// Runs the bank, cuts it everywhere, and gives the number of states checked or the first that is wrong.
pub fn sweep(image: &Image, bank: &Bank, seeds: u64, drop_flushes: bool) -> Result<usize, String> {
    let (start, mut events) = bank.device.recording();
    if drop_flushes {
        // The flush between a transaction's blocks and its commit record: the first of each pair.
        let mut seen = 0;
        events.retain(|event| {
            *event != Event::Flush || {
                seen += 1;
                seen % 2 == 0
            }
        });
    }
    let mut cuts = Cuts::new(start, events);
    let points: Vec<usize> = cuts.points().collect();
    let mut states = 0;
    for event in points {
        let promised = promised(&cuts.events()[..event]);
        for seed in 0..seeds {
            let cut = Cut { event, seed };
            let device: Arc<dyn BlockDevice> = Arc::new(cuts.state(cut));
            try_replay(&device).map_err(|error| format!("{cut}: {error}"))?;
            check(image, &*device, &promised).map_err(|wrong| format!("{cut}: {wrong}"))?;
            states += 1;
        }
    }
    Ok(states)
}

#[test]
fn every_cut_leaves_whole_epochs_and_loses_nothing_promised() {
    for (block_size, features, is_v2) in [
        (1024, "64bit,metadata_csum", false),
        (1024, "^64bit,^metadata_csum", false),
        (1024, "64bit,^metadata_csum", true),
        (4096, "^64bit,metadata_csum", false),
    ] {
        let Some(mut image) = Image::make(block_size, features) else {
            return;
        };
        if is_v2 {
            image = image.with_checksums_v2();
        }
        let (mut states, mut revokes) = (0, 0);
        for seed in 0..3 {
            let bank = Bank::open(&image, image.options(), None);
            bank.run(THREADS, seed, 60).unwrap();
            states += sweep(&image, &bank, 5, false).unwrap();
            revokes += bank.journal.statistics().revokes.sum();
        }
        eprintln!("{states} states with blocks of {block_size} bytes and {features}");
        assert!(states > 1000);
        assert!(revokes > 0, "the runs must revoke something");
    }
}

#[test]
fn a_log_that_wraps_many_times_stays_whole() {
    let Some(image) = Image::make(1024, "64bit,metadata_csum") else {
        return;
    };
    let bank = Bank::open(&image, image.options(), None);
    bank.run(2, 11, 3000).unwrap();
    let statistics = bank.journal.statistics();
    assert!(
        statistics.logged_blocks.sum() > 3 * 1024,
        "the log must wrap"
    );
    bank.journal.close(&bank).unwrap();
    let (_, events) = bank.device.recording();
    let device: Arc<dyn BlockDevice> =
        Arc::new(simulate::CowDevice::new(bank.device.contents().into()));
    assert_eq!(
        replay(&device).blocks,
        0,
        "a closed journal has nothing to replay"
    );
    check(&image, &*device, &promised(&events)).unwrap();
}

#[test]
fn each_mistake_on_purpose_is_seen() {
    let Some(image) = Image::make(1024, "64bit,metadata_csum") else {
        return;
    };
    let canaries = [
        Canary::RevokeLeftOut,
        Canary::ReusedBeforeCommit,
        Canary::NextEpochInSealedImage,
        Canary::CleanNeighbourFromMemory,
        Canary::MappedBeforeData,
    ];
    for canary in canaries {
        let seen = (0..40).find_map(|seed| {
            let bank = Bank::open(&image, image.options(), Some(canary));
            bank.run(THREADS, seed, 120).unwrap();
            sweep(&image, &bank, 4, false)
                .err()
                .map(|wrong| (seed, wrong))
        });
        let (seed, wrong) = seen.unwrap_or_else(|| panic!("{canary:?} was not seen"));
        eprintln!("{canary:?}: seen with seed {seed}: {wrong}");
    }
    let seen = (0..10).find_map(|seed| {
        let bank = Bank::open(&image, image.options(), None);
        bank.run(THREADS, seed, 120).unwrap();
        sweep(&image, &bank, 8, true).err()
    });
    eprintln!(
        "flush left out: {}",
        seen.expect("a flush left out was not seen")
    );
}

#[test]
fn each_failing_write_and_flush_aborts_with_its_cause_and_loses_nothing_promised() {
    let Some(image) = Image::make(1024, "64bit,metadata_csum") else {
        return;
    };
    let contents = Bank::contents(&image);
    for kind in [Fault::Write as fn(u64) -> Fault, Fault::Flush] {
        for n in 0..400 {
            let device = Recorder::failing(&contents, kind(n), true);
            let bank = Bank::on(&image, device, image.options(), None);
            let result = bank.run(2, 5, 40).and_then(|()| bank.journal.close(&bank));
            if !bank.device.has_failed() {
                assert!(n > 10 && result.is_ok());
                break;
            }
            assert!(
                matches!(
                    result,
                    Err(JournalError::Device(_) | JournalError::Aborted(_))
                ),
                "{:?}: {result:?}",
                kind(n)
            );
            // Where only data could not be written, and nothing was changed since, there is nothing to commit.
            let was_aborted = bank.journal.check().is_err();
            let again = bank.journal.commit(&bank, bank.journal.current_epoch());
            assert!(
                again.is_err() || !was_aborted,
                "an aborted journal commits nothing"
            );
            let (start, events) = bank.device.recording();
            let promised = promised(&events);
            let event = events.len();
            let mut cuts = Cuts::new(start, events);
            for seed in 0..3 {
                let device: Arc<dyn BlockDevice> = Arc::new(cuts.state(Cut { event, seed }));
                replay(&device);
                check(&image, &*device, &promised)
                    .unwrap_or_else(|wrong| panic!("{:?}, seed {seed}: {wrong}", kind(n)));
            }
        }
    }
}
