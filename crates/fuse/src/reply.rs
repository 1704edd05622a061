//! Replies: each request that has one is answered exactly once, by whichever thread holds its [`Reply`].
//!
//! A reply that is dropped without an answer (a panic) says `EIO`, so that no process waits for good. A reply knows
//! its transport by the trait [`Channel`] only.

use rustix::io::Errno;
use sync::Arc;
use zerocopy::IntoBytes;

use crate::abi;
use crate::messages::TimedRequest;

/// Where the answers to a transport's requests are written.
pub(crate) trait Channel: Send + Sync {
    /// Writes one answer: the header, then all parts behind each other. `error` is 0 or a negated error number.
    ///
    /// May be called from any thread. An answer that the kernel does not take (the request was aborted, the connection
    /// has ended) is dropped: no process waits for it.
    fn answer(&self, unique: u64, error: i32, parts: &[&[u8]]);

    /// A request that is timed was answered, with this number of bytes.
    fn answered(&self, _request: TimedRequest, _bytes: u64) {}
}

/// The right to answer one request.
pub(crate) struct Reply {
    unique: u64,
    channel: Arc<dyn Channel>,
    is_answered: bool,
    /// Where the time until the answer is counted.
    timed: Option<TimedRequest>,
}

impl Reply {
    /// The reply to a request that is timed.
    pub(crate) fn timed(unique: u64, channel: &Arc<dyn Channel>, request: TimedRequest) -> Reply {
        let mut reply = Reply::new(unique, channel);
        reply.timed = Some(request);
        reply
    }

    pub(crate) fn new(unique: u64, channel: &Arc<dyn Channel>) -> Reply {
        Reply {
            unique,
            channel: Arc::clone(channel),
            is_answered: false,
            timed: None,
        }
    }

    /// Answers with bytes, in up to a few parts.
    pub(crate) fn parts(mut self, parts: &[&[u8]]) {
        self.is_answered = true;
        self.channel.answer(self.unique, 0, parts);
        self.ended(parts.iter().map(|part| part.len() as u64).sum());
    }

    /// Answers with one structure.
    pub(crate) fn structure(self, answer: &(impl IntoBytes + zerocopy::Immutable)) {
        self.parts(&[answer.as_bytes()]);
    }

    /// Answers that it was done.
    pub(crate) fn done(self) {
        self.parts(&[]);
    }

    /// Answers with an error.
    pub(crate) fn error(mut self, error: Errno) {
        self.is_answered = true;
        self.channel.answer(self.unique, -error.raw_os_error(), &[]);
        self.ended(0);
    }

    fn ended(&mut self, bytes: u64) {
        if let Some(request) = self.timed.take() {
            self.channel.answered(request, bytes);
        }
    }

    /// Answers with nothing but success, or with the error.
    pub(crate) fn empty(self, answer: Result<(), Errno>) {
        match answer {
            Ok(()) => self.done(),
            Err(error) => self.error(error),
        }
    }

    /// A request that has no answer (FORGET).
    pub(crate) fn none(mut self) {
        self.is_answered = true;
        self.ended(0);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_answered {
            self.channel
                .answer(self.unique, -Errno::IO.raw_os_error(), &[]);
            self.ended(0);
        }
    }
}

/// A list of directory entries as READDIR and READDIRPLUS answer it, in a buffer of a fixed size.
pub(crate) struct Listing<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl<'a> Listing<'a> {
    pub(crate) fn new(buf: &'a mut [u8]) -> Listing<'a> {
        Listing { buf, len: 0 }
    }

    /// Adds one entry, with what READDIRPLUS says of it before it; false if it does not fit.
    pub(crate) fn add(
        &mut self,
        plus: Option<&abi::EntryOut>,
        entry: &abi::DirEntry,
        name: &[u8],
    ) -> bool {
        let plus = plus.map_or(&[][..], |plus| plus.as_bytes());
        let parts = [plus, entry.as_bytes(), name];
        let len: usize = parts.iter().map(|part| part.len()).sum();
        // Entries begin at multiples of 8 bytes.
        let padded = len.next_multiple_of(8);
        let Some(room) = self.buf.get_mut(self.len..self.len + padded) else {
            return false;
        };
        let mut at = 0;
        for part in parts {
            room[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        room[at..].fill(0);
        self.len += padded;
        true
    }

    /// The bytes of all entries that were added.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use sync::{Mutex, Rank};

    use super::*;

    /// Remembers what was answered.
    struct Kept(Mutex<Vec<(u64, i32, Vec<u8>)>>);

    impl Channel for Kept {
        fn answer(&self, unique: u64, error: i32, parts: &[&[u8]]) {
            self.0.lock().push((unique, error, parts.concat()));
        }
    }

    #[test]
    fn a_request_is_answered_once_and_a_dropped_one_with_an_error() {
        let kept = Arc::new(Kept(Mutex::new(Rank::Leaf, Vec::new())));
        let channel: Arc<dyn Channel> = Arc::clone(&kept) as Arc<dyn Channel>;
        Reply::new(1, &channel).parts(&[b"ab", b"c"]);
        Reply::new(2, &channel).error(Errno::NOENT);
        drop(Reply::new(3, &channel));
        Reply::new(4, &channel).none();
        let expected = [(1, 0, b"abc".to_vec()), (2, -2, vec![]), (3, -5, vec![])];
        assert_eq!(*kept.0.lock(), expected);
    }

    #[test]
    fn a_listing_takes_entries_while_they_fit() {
        let mut buf = [0xff; 80];
        let mut listing = Listing::new(&mut buf);
        let entry = abi::DirEntry {
            ino: 5,
            offset: 9,
            name_len: 3,
            kind: 8,
        };
        assert!(listing.add(None, &entry, b"abc") && listing.add(None, &entry, b"abc"));
        // 24 + 3 bytes take 32.
        assert!(!listing.add(None, &entry, b"abc"));
        let bytes = listing.bytes();
        assert_eq!(bytes.len(), 64);
        assert_eq!(&bytes[24..32], b"abc\0\0\0\0\0");
        assert_eq!(&bytes[..24], entry.as_bytes());
    }
}
