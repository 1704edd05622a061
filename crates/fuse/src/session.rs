//! A mounted image while it is served: which worker answers with it, and how it is closed once all have answered.
//!
//! # Locking
//!
//! Each worker holds its share of the image in a lane of its own, whose lock ([`Rank::Served`]) only that worker takes
//! while requests come. When the mount ends (the kernel sends DESTROY, or the connection ends) the closing thread
//! takes the shares out of all lanes, which waits for the requests under way, then ends the threads that wait for the
//! disk, and closes the image as its last owner. Its progress is in `state`, whose lock is held for one access.
//!
//! # Crash
//!
//! A crash before the close leaves the image's journal to be replayed. So does a device that does not answer: DESTROY
//! is answered after the longest time that the kernel waits, and the server then ends without closing.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lanefs::Stopped;
use sync::clock::{self, Duration};
use sync::{Arc, CachePadded, Condvar, Mutex, Rank, thread};

use crate::idle::Idle;
use crate::messages::Messages;
use crate::operations::BoxedFs;
use crate::reply::Reply;
use crate::request::Request;
use crate::serve::{ServeOutcome, Server};
use crate::waiters::Waiters;

/// Why serving a mount did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The connection to the kernel broke; the image was closed.
    #[error("the connection to the kernel failed: {0}")]
    Connection(io::Error),
    /// The image could not be closed.
    #[error("closing the image failed: {0}")]
    Close(#[from] lanefs::Error),
    /// A request panicked; the image was closed.
    #[error("a request ended in a panic")]
    Panicked,
    /// A thread did not end.
    #[error("a request is still under way, so the image was not closed")]
    StillUsed,
    /// The image's device did not answer while an unmount waited.
    #[error("the image's device did not answer within {} s, so the image was not closed", .0.as_secs())]
    NotClosed(Duration),
}

/// A worker's share of the image; `None` once the mount has ended.
type Lane = CachePadded<Mutex<Option<Arc<BoxedFs>>>>;

/// See the module.
pub(crate) struct Session {
    server: Server,
    waiters: Arc<Waiters>,
    messages: Arc<Messages>,
    /// One a worker, and the last for the thread of `idle`. [served]
    lanes: Vec<Lane>,
    /// Where changes are committed when nothing follows them.
    idle: Option<Arc<Idle>>,
    /// How long the kernel waits for the image to be closed when it unmounts.
    patience: Duration,
    /// [leaf]
    state: Mutex<State>,
    /// The state moved on.
    moved: Condvar,
}

/// How far a session is.
struct State {
    /// Workers that have not ended.
    working: usize,
    /// Whether a request ended in a panic.
    has_panicked: bool,
    /// The first channel that failed.
    failure: Option<io::Error>,
    closing: Closing,
}

/// How far the end of a session is.
enum Closing {
    NotBegun,
    UnderWay,
    /// It takes longer than the kernel waits.
    Overdue,
    Ended(Result<(), ServeError>),
}

impl Session {
    /// A session for this many workers, at least one.
    pub(crate) fn new(
        image: BoxedFs,
        workers: usize,
        waiters: Waiters,
        patience: Duration,
        idle: Option<Arc<Idle>>,
    ) -> Session {
        let waiters = Arc::new(waiters);
        let image = Arc::new(image);
        let lane = || CachePadded::new(Mutex::new(Rank::Served, Some(Arc::clone(&image))));
        Session {
            server: Server::new(Arc::clone(&waiters)),
            waiters,
            messages: Arc::clone(image.messages()),
            lanes: (0..=workers).map(|_| lane()).collect(),
            idle,
            patience,
            state: Mutex::new(
                Rank::Leaf,
                State {
                    working: 0,
                    has_panicked: false,
                    failure: None,
                    closing: Closing::NotBegun,
                },
            ),
            moved: Condvar::new(),
        }
    }

    /// What the kernel has asked for.
    pub(crate) fn messages(&self) -> &Arc<Messages> {
        &self.messages
    }

    /// Sets the function that is called when changes stop; see [`crate::Mounted::on_stop`].
    pub(crate) fn on_stop(&self, hook: impl Fn(&Stopped) + Send + Sync + 'static) {
        if let Some(image) = self.lanes.first().and_then(|lane| lane.lock().clone()) {
            image.on_stop(Box::new(hook));
        }
    }

    /// Starts a worker thread. A panic of a request does not end it ([`Session::answer`] catches it); any other panic
    /// is reported as a failed channel.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(crate) fn start(
        self: &Arc<Session>,
        number: usize,
        work: impl FnOnce(&Arc<Session>) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let session = Arc::clone(self);
        let worker = thread::Builder::new().name(format!("lanefs-{number}"));
        self.state.lock().working += 1;
        let started = worker.spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| work(&session)));
            let ended = ended.unwrap_or_else(|_| {
                session.note_panic();
                Err(io::Error::other("a thread that answers requests panicked"))
            });
            let mut state = session.state.lock();
            state.working -= 1;
            let failure = state.failure.take();
            state.failure = failure.or(ended.err());
            drop(state);
            session.moved.notify_all();
        });
        if started.is_err() {
            self.state.lock().working -= 1;
        }
        started.map(drop)
    }

    /// Records that a request ended in a panic.
    fn note_panic(&self) {
        self.state.lock().has_panicked = true;
    }

    /// Waits until all workers have ended.
    fn await_workers(&self) {
        let mut state = self.state.lock();
        while state.working > 0 {
            self.moved.wait(&mut state);
        }
    }

    /// Waits until all workers have ended, and returns the image; `None` if something else still holds it.
    pub(crate) fn dissolve(&self) -> Option<BoxedFs> {
        self.await_workers();
        self.take_shares().and_then(Arc::into_inner)
    }

    /// Takes the shares of the image out of all lanes, which waits for the requests under way; returns one of them.
    fn take_shares(&self) -> Option<Arc<BoxedFs>> {
        let mut last = None;
        for lane in &self.lanes {
            last = lane.lock().take().or(last);
        }
        last
    }

    /// Starts the thread that commits when nothing has changed for a moment, where one is wanted. Where the system
    /// gives no thread, the commit interval is the limit.
    pub(crate) fn commit_when_idle(self: &Arc<Session>) {
        let Some(idle) = self.idle.clone() else {
            return;
        };
        let session = Arc::clone(self);
        let committer = thread::Builder::new().name("lanefs-idle".into());
        let _started = committer.spawn(move || {
            idle.commit_when_quiet(|| {
                let lane = session.lanes.last().map(|lane| lane.lock());
                if let Some(image) = lane.as_ref().and_then(|lane| lane.as_ref()) {
                    // A failure stops the mount, which is reported as such.
                    let _ = image.sync_all();
                }
            });
        });
    }

    /// Answers one request that a worker has read. If that panics, the unwinding releases the locks and drops the
    /// reply, which then answers `EIO`; the worker continues.
    pub(crate) fn answer(
        self: &Arc<Session>,
        worker: usize,
        request: Request<'_>,
        reply: Reply,
        buf: &mut [u8],
    ) {
        let answer = AssertUnwindSafe(|| self.answer_one(worker, request, reply, buf));
        if catch_unwind(answer).is_err() {
            self.note_panic();
        }
    }

    fn answer_one(
        self: &Arc<Session>,
        worker: usize,
        request: Request<'_>,
        reply: Reply,
        buf: &mut [u8],
    ) {
        let outcome = {
            let lane = self.lanes[worker].lock();
            // After the end the kernel sends no requests; a reply that is dropped answers `EIO`.
            let Some(image) = &*lane else { return };
            self.server.answer(image, request, reply, buf)
        };
        if let ServeOutcome::Destroy(reply) = outcome {
            self.close_within_patience();
            reply.done();
        }
    }

    /// Closes the image; returns when that is done, or when the kernel has waited long enough for it: an unmount can't
    /// be killed, so a device that does not answer must not hold it for good.
    fn close_within_patience(self: &Arc<Session>) {
        let deadline = clock::now() + self.patience;
        let session = Arc::clone(self);
        let closer = thread::Builder::new().name("lanefs-close".into());
        // Where the system gives no thread, the kernel waits as long as it takes.
        if closer.spawn(move || session.close()).is_err() {
            self.close();
        }
        let mut state = self.state.lock();
        while !matches!(state.closing, Closing::Ended(_)) {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                state.closing = Closing::Overdue;
                drop(state);
                self.moved.notify_all();
                return;
            }
            let _is_late = self.moved.wait_for(&mut state, left);
        }
    }

    /// Closes the image when all requests are answered; does nothing for a session that is being closed.
    fn close(&self) {
        {
            let mut state = self.state.lock();
            if !matches!(state.closing, Closing::NotBegun) {
                return;
            }
            state.closing = Closing::UnderWay;
        }
        let ended = catch_unwind(AssertUnwindSafe(|| self.close_image()));
        let ended = ended.unwrap_or(Err(ServeError::Panicked));
        let mut state = self.state.lock();
        // Once the close is overdue, that is what it is reported as.
        if matches!(state.closing, Closing::UnderWay) {
            state.closing = Closing::Ended(ended);
        }
        drop(state);
        self.moved.notify_all();
    }

    fn close_image(&self) -> Result<(), ServeError> {
        if let Some(idle) = &self.idle {
            idle.end();
        }
        let last = self.take_shares();
        // Also when the connection was cut while they waited.
        let has_panicked = self.waiters.end();
        let image = last.and_then(Arc::into_inner);
        let image = image.ok_or(ServeError::StillUsed)?;
        image.close_image().map_err(ServeError::Close)?;
        if has_panicked || self.state.lock().has_panicked {
            Err(ServeError::Panicked)
        } else {
            Ok(())
        }
    }

    /// Waits until all workers have ended, and closes the image unless the kernel's DESTROY had it closed.
    ///
    /// # Errors
    /// What closing came to, or else why a channel failed; `NotClosed` when the device did not answer in time and the
    /// kernel waits no longer: threads may then still work on the image, until the process ends.
    pub(crate) fn end(&self) -> Result<(), ServeError> {
        let mut state = self.state.lock();
        while state.working > 0 && !matches!(state.closing, Closing::Overdue) {
            self.moved.wait(&mut state);
        }
        drop(state);
        self.close();
        let mut state = self.state.lock();
        match std::mem::replace(&mut state.closing, Closing::Overdue) {
            Closing::Ended(Ok(())) => state
                .failure
                .take()
                .map_or(Ok(()), |failure| Err(ServeError::Connection(failure))),
            Closing::Ended(error) => error,
            _ => Err(ServeError::NotClosed(self.patience)),
        }
    }
}
