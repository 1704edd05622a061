//! Makes the kernel drop what it caches of a file and has become old, where the answer to a request does not do that.
//!
//! Attributes: the thread that serves the request tells the kernel before it answers. The kernel only marks them as old
//! and waits for nothing.
//!
//! Pages: a request that fails may have changed bytes all the same. The kernel drops its pages of a file if a request
//! succeeds, but keeps them if it fails. To drop a page it waits for the page's lock, which a read holds until it is
//! answered. So a thread that serves must not wait for that: a separate thread tells the kernel, and then answers the
//! request. It runs only while there is something to tell.
//!
//! # Locking
//! One lock ([`Rank::Leaf`]), held for a look. Files wait in it by their numbers, so there are no more than the kernel
//! knows, and no more answers than requests under way.
//!
//! # Crash
//! Nothing of this is on disk.

use std::collections::BTreeMap;
use std::ops::Range;

use lanefs::Ino;
use sync::{Arc, Mutex, OnceLock, Rank, thread};

/// What of a file the kernel is to forget.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Old {
    /// Attributes and ACLs.
    Attributes,
    /// These too, and the pages of a range of bytes.
    Pages(Range<u64>),
}

/// Tells the kernel.
type Tell = dyn Fn(Ino, Old) + Send + Sync;
/// Answers a request.
pub(crate) type LateReply = Box<dyn FnOnce() + Send>;

/// What is reported to the kernel; see the module.
pub(crate) struct Invalidations {
    shared: Arc<Shared>,
}

struct Shared {
    /// [set once, before the first request]
    tell: OnceLock<Box<Tell>>,
    /// [leaf]
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// Files with pages to be dropped, and the requests to be answered then.
    files: BTreeMap<u32, (Range<u64>, Vec<LateReply>)>,
    /// Whether the thread runs that will look here again.
    is_watched: bool,
}

impl Invalidations {
    pub(crate) fn new() -> Invalidations {
        Invalidations {
            shared: Arc::new(Shared {
                tell: OnceLock::new(),
                waiting: Mutex::new(Rank::Leaf, Waiting::default()),
            }),
        }
    }

    /// Sets the function that reports to the kernel.
    pub(crate) fn tell_by(&self, tell: impl Fn(Ino, Old) + Send + Sync + 'static) {
        let _kept = self.shared.tell.get_or_init(|| Box::new(tell));
    }

    /// Has the kernel forget a file's attributes and ACLs, before this returns.
    pub(crate) fn attributes(&self, ino: Ino) {
        self.shared.tell(ino, Old::Attributes);
    }

    /// Has the kernel forget a directory's attributes and its listing, before this returns. No page of a listing is
    /// locked while a request waits, so the kernel waits for none.
    pub(crate) fn listing(&self, ino: Ino) {
        self.shared.tell(ino, Old::Pages(0..u64::MAX));
    }

    /// Has the kernel forget a file's attributes and its pages of a range of bytes, and then `reply` called, if the
    /// request is not answered yet; both by another thread, soon.
    pub(crate) fn pages(&self, ino: Ino, range: Range<u64>, reply: Option<LateReply>) {
        let is_watched = {
            let mut waiting = self.shared.waiting.lock();
            waiting.add(ino, range, reply);
            std::mem::replace(&mut waiting.is_watched, true)
        };
        if is_watched {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("lanefs-stale".into());
        if thread.spawn(move || shared.run()).is_err() {
            self.shared.answer_all();
        }
    }
}

impl Waiting {
    fn add(&mut self, ino: Ino, range: Range<u64>, reply: Option<LateReply>) {
        let (known, replies) = self
            .files
            .entry(ino.0)
            .or_insert_with(|| (range.clone(), Vec::new()));
        *known = known.start.min(range.start)..known.end.max(range.end);
        replies.extend(reply);
    }
}

impl Shared {
    fn tell(&self, ino: Ino, old: Old) {
        if let Some(tell) = self.tell.get() {
            tell(ino, old);
        }
    }

    /// Works until nothing waits.
    fn run(&self) {
        loop {
            let next = {
                let mut waiting = self.waiting.lock();
                let next = waiting.files.pop_first();
                waiting.is_watched = next.is_some();
                next
            };
            let Some((ino, (range, replies))) = next else {
                return;
            };
            self.tell(Ino(ino), Old::Pages(range));
            replies.into_iter().for_each(|reply| reply());
        }
    }

    /// Without a thread the requests are answered too, and the pages stay.
    fn answer_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for (_, replies) in waiting.files.into_values() {
            replies.into_iter().for_each(|reply| reply());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_kernel_is_told_before_a_request_is_answered() {
        let (said, heard) = channel();
        let stale = Invalidations::new();
        let told = said.clone();
        stale.tell_by(move |ino, old| told.send((ino, Some(old))).unwrap());
        stale.attributes(Ino(12));
        assert_eq!(heard.recv(), Ok((Ino(12), Some(Old::Attributes))));
        for round in 0..100 {
            let answer = said.clone();
            let reply = Box::new(move || answer.send((Ino(13), None)).unwrap());
            stale.pages(Ino(13), round..round + 5, Some(reply));
            let pages = Old::Pages(round..round + 5);
            assert_eq!(heard.recv(), Ok((Ino(13), Some(pages))));
            assert_eq!(heard.recv(), Ok((Ino(13), None)));
        }
    }

    #[test]
    fn what_comes_while_the_kernel_waits_is_told_together_and_all_are_answered() {
        let (told, heard) = channel();
        let (go, wait) = channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let stale = Invalidations::new();
        stale.tell_by(move |ino, old| {
            wait.lock().unwrap().recv().unwrap();
            told.send((ino, old)).unwrap();
        });
        let (said, answers) = channel();
        let pages = |ino, range| {
            let said = said.clone();
            let reply = Box::new(move || said.send(ino).unwrap());
            stale.pages(Ino(ino), range, Some(reply));
        };
        pages(12, 0..10);
        while !stale.shared.waiting.lock().files.is_empty() {
            thread::yield_now();
        }
        for at in 1..50 {
            pages(13, 1000 - at..1000);
            pages(14, 0..at);
        }
        (0..3).for_each(|_| go.send(()).unwrap());
        let expected = [(12, 0..10), (13, 951..1000), (14, 0..49)];
        for (ino, range) in expected {
            assert_eq!(heard.recv(), Ok((Ino(ino), Old::Pages(range))));
        }
        assert_eq!(answers.iter().take(99).filter(|ino| *ino == 14).count(), 49);
    }
}
