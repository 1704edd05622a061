//! Workers read from a simulated connection under random schedules: each request is taken, even while the answers to
//! all others wait for it.

use std::cell::Cell;
use std::collections::VecDeque;

use sync::schedule::{self, SchedulePlan};
use sync::thread;

use super::*;

const WORKERS: usize = 4;
/// Much longer than the time that passes under a schedule between two requests of a client.
const WINDOW: Duration = Duration::from_millis(1);
const SEEDS: u64 = 60;
/// The most turns of a run: far more than it needs if no thread ticks while nothing happens.
const POINTS: u64 = 60_000;

/// A request of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// It is answered at once.
    Quick,
    /// It is answered after this number of other requests.
    After(u64, Pace),
}

/// The kernel's side of a connection.
struct Connection {
    /// [leaf]
    queue: Mutex<Queue>,
    /// Notified when a request arrives, and when a client ends.
    came: Condvar,
    /// Notified when a request was answered.
    went: Condvar,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Asked>,
    asked: u64,
    answered: u64,
    clients: usize,
}

impl Connection {
    fn new(clients: usize) -> Connection {
        Connection {
            queue: Mutex::new(
                Rank::Leaf,
                Queue {
                    clients,
                    ..Queue::default()
                },
            ),
            came: Condvar::new(),
            went: Condvar::new(),
        }
    }

    /// Sends a request, and waits until the number of answers is that of all requests up to this one.
    fn ask(&self, what: Asked) {
        let mut queue = self.queue.lock();
        queue.requests.push_back(what);
        queue.asked += 1;
        let wanted = queue.asked;
        self.came.notify_one();
        while queue.answered < wanted {
            self.went.wait(&mut queue);
        }
    }

    /// Ends a client. The connection ends with the last one.
    fn leave(&self) {
        self.queue.lock().clients -= 1;
        self.came.notify_all();
    }

    /// Answers a request, after the answers that it waits for.
    fn answer(&self, what: Asked) {
        let mut queue = self.queue.lock();
        if let Asked::After(count, _) = what {
            while queue.answered < count {
                self.went.wait(&mut queue);
            }
        }
        queue.answered += 1;
        self.went.notify_all();
    }
}

/// A worker's channel to the simulated connection.
struct Channel<'c> {
    connection: &'c Connection,
    waits: Cell<bool>,
    taken: Cell<Option<Asked>>,
}

impl Channel<'_> {
    fn take(&self, queue: &mut Queue, buf: &mut [u8]) -> Option<usize> {
        let request = queue.requests.pop_front()?;
        self.taken.set(Some(request));
        buf[0] = 1;
        Some(1)
    }
}

impl RequestSource for Channel<'_> {
    fn wait(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        assert!(self.waits.get());
        let mut queue = self.connection.queue.lock();
        while queue.requests.is_empty() && queue.clients > 0 {
            self.connection.came.wait(&mut queue);
        }
        Ok(self.take(&mut queue, buf))
    }

    fn look(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        assert!(!self.waits.get());
        Ok(self.take(&mut self.connection.queue.lock(), buf))
    }

    fn set_waiting(&self, waits: bool) -> io::Result<()> {
        self.waits.set(waits);
        Ok(())
    }
}

fn work(readers: &Readers, number: usize, connection: &Connection) {
    let channel = Channel {
        connection,
        waits: Cell::new(true),
        taken: Cell::new(None),
    };
    let mut place = readers.place(number);
    let mut buf = [0; 1];
    while place.next(&channel, &mut buf).unwrap().is_some() {
        let what = channel.taken.take().unwrap();
        place.set_pace(match what {
            Asked::Quick => Pace::Awaited,
            Asked::After(_, pace) => pace,
        });
        connection.answer(what);
    }
}

/// Runs workers and clients under a schedule; returns how many polls found a request.
fn run(seed: u64, clients: &[&(dyn Fn(&Connection) + Sync)]) -> u64 {
    let plan = SchedulePlan {
        seed,
        points: POINTS,
    };
    let hits = || {
        let messages = Arc::new(Messages::default());
        let readers = Readers::new(WINDOW, Arc::clone(&messages));
        let connection = Connection::new(clients.len());
        thread::workers(WORKERS + clients.len(), |number| {
            match number.checked_sub(WORKERS) {
                None => work(&readers, number, &connection),
                Some(client) => {
                    clients[client](&connection);
                    connection.leave();
                }
            }
        });
        let lines: Vec<String> = messages.counter_lines().collect();
        let hits = lines
            .iter()
            .find_map(|line| line.strip_prefix("polling.hits "));
        hits.unwrap().trim().parse().unwrap()
    };
    let (hits, _) = schedule::run(plan, hits).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    hits
}

fn ask(connection: &Connection, times: u64) {
    for _ in 0..times {
        connection.ask(Asked::Quick);
    }
}

#[test]
fn one_client_is_polled_for() {
    let often = |connection: &Connection| ask(connection, 2 * STREAK);
    let hits: u64 = (0..SEEDS).map(|seed| run(seed, &[&often])).sum();
    assert!(hits > SEEDS, "{hits}");
}

#[test]
fn during_a_pause_no_request_is_counted() {
    let readers = Readers::new(WINDOW, Arc::new(Messages::default()));
    let rhythm = &readers.rhythm;
    let counted = || {
        let values = [&rhythm.answered, &rhythm.streak];
        values.map(|value| value.get())
    };
    rhythm.pause(Duration::from_secs(3600));
    for _ in 0..2 * STREAK {
        rhythm.answered();
        assert!(!rhythm.is_steady());
    }
    assert_eq!(counted(), [0, 0]);
}

#[test]
fn whatever_a_request_waits_for_the_next_one_is_taken() {
    for pace in [Pace::Awaited, Pace::Slow, Pace::Unawaited] {
        for seed in 0..SEEDS {
            // Around the moment when one worker begins to read alone.
            let before = STREAK - 2 + seed % 8;
            // The first client's last request waits for one of the second client.
            let late = |connection: &Connection| {
                ask(connection, before);
                connection.ask(Asked::After(before + 1, pace));
            };
            let later = |connection: &Connection| {
                while connection.queue.lock().asked <= before {
                    thread::sleep(Duration::from_micros(300));
                }
                connection.ask(Asked::Quick);
            };
            run(seed, &[&late, &later]);
        }
    }
}

#[test]
fn when_all_readers_are_busy_a_parked_worker_reads() {
    const BUSY: u64 = WORKERS as u64 - 1;
    for seed in 0..SEEDS {
        let before = STREAK - 2 + seed % 8;
        let is_asked = |connection: &Connection, count: u64| {
            while connection.queue.lock().asked < count {
                thread::sleep(Duration::from_micros(300));
            }
        };
        // These keep all workers but one busy until the last client's request is answered.
        let first = |connection: &Connection| {
            ask(connection, before);
            connection.ask(Asked::After(before + 1, Pace::Awaited));
        };
        let other = |connection: &Connection| {
            is_asked(connection, before + 1);
            connection.ask(Asked::After(before + 1, Pace::Slow));
        };
        let last = |connection: &Connection| {
            is_asked(connection, before + BUSY);
            connection.ask(Asked::Quick);
        };
        run(seed, &[&first, &other, &other, &last]);
    }
}

#[test]
fn many_clients_are_answered() {
    let often = |connection: &Connection| ask(connection, 2 * STREAK);
    for seed in 0..SEEDS {
        run(seed, &[&often, &often, &often]);
    }
}

#[test]
fn a_mount_that_nobody_uses_wakes_no_thread() {
    for seed in 0..SEEDS / 4 {
        let rest = |connection: &Connection| {
            ask(connection, STREAK + seed % 8);
            // With a tick every two milliseconds the run would take more turns than it may.
            thread::sleep(Duration::from_secs(600));
            connection.ask(Asked::Quick);
        };
        run(seed, &[&rest]);
    }
}
