//! The entry point of the fuzz target `request`: answers requests of arbitrary bytes, without a kernel.
//!
//! Each request must get exactly one answer, with its number and with no more bytes than it asked for, or none if its
//! kind has no answer. The image is closed at the end.

use lanefs::Fs;
use rustix::io::Errno;
use sync::clock::Duration;
use sync::{Arc, Condvar, Mutex, Rank};
use zerocopy::IntoBytes;

use crate::abi::{self, opcode};
use crate::connect::Synced;
use crate::operations::BoxedFs;
use crate::reply::{Channel, Reply};
use crate::request::{Malformed, Request, parse, parse_parts};
use crate::serve::{MAX_IO, ServeOutcome, Server};
use crate::volume::{Agreed, MountedImage};
use crate::waiters::Waiters;

/// The longest time until an answer, which another thread may give: after a failed write it is sent when the kernel has
/// dropped its pages.
const PATIENCE: Duration = Duration::from_secs(20);
const HEADER: usize = size_of::<abi::InHeader>();

/// The parts of a request that the fuzzer chooses; the rest of its header is correct.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The number of the operation.
    pub opcode: u32,
    /// The inode.
    pub node: u64,
    /// The user of the calling process.
    pub uid: u32,
    /// The bytes behind the header.
    pub arguments: &'a [u8],
    /// How many words of 8 bytes at their end are the request's extension.
    pub extension_words: u16,
    /// Whether it is split as over io_uring: the header, up to 128 bytes of the operation's structure, and the rest.
    pub is_split: bool,
}

/// An answer that broke a rule, and the request.
#[derive(Debug)]
pub struct Broken(pub String);

/// Collects the answers to the current request.
struct Answers(Mutex<Vec<Answer>>, Condvar);

#[derive(Debug)]
struct Answer {
    unique: u64,
    error: i32,
    len: usize,
}

impl Answers {
    /// Takes the answers, once there are `expected` of them or [`PATIENCE`] is over.
    fn take(&self, expected: usize) -> Vec<Answer> {
        let mut answers = self.0.lock();
        if answers.len() < expected {
            self.1.wait_for(&mut answers, PATIENCE);
        }
        std::mem::take(&mut *answers)
    }
}

impl Channel for Answers {
    fn answer(&self, unique: u64, error: i32, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        self.0.lock().push(Answer { unique, error, len });
        self.1.notify_all();
    }
}

/// Answers requests one after the other, then closes the image; returns how many succeeded.
///
/// # Errors
/// [`Broken`] if an answer is missing or the kernel would refuse it, or if closing failed.
pub fn answer_all<'a>(
    fs: Fs,
    requests: impl IntoIterator<Item = Parts<'a>>,
) -> Result<usize, Broken> {
    let agreed = Agreed {
        takes_privileges: true,
        ..Agreed::default()
    };
    let volume: BoxedFs = Box::new(MountedImage::new(
        fs,
        true,
        Synced::All.into(),
        None,
        agreed,
    ));
    let volume = Arc::new(volume);
    let waiters = Arc::new(Waiters::new(1));
    let server = Server::new(Arc::clone(&waiters));
    let answers = Arc::new(Answers(Mutex::new(Rank::Leaf, Vec::new()), Condvar::new()));
    let channel: Arc<dyn Channel> = Arc::clone(&answers) as Arc<dyn Channel>;
    let mut buf = vec![0; MAX_IO as usize];
    let mut done = 0;
    for (unique, parts) in (1..).zip(requests) {
        let bytes = whole(unique, parts);
        let expected = match read(&bytes, parts.is_split) {
            Ok(request) => {
                let has_no_answer = matches!(request.opcode, opcode::FORGET | opcode::BATCH_FORGET);
                let reply = Reply::new(unique, &channel);
                match server.answer(&volume, request, reply, &mut buf) {
                    ServeOutcome::Next => {}
                    ServeOutcome::Destroy(reply) => reply.done(),
                }
                usize::from(!has_no_answer)
            }
            Err(malformed) if malformed.unique == Some(unique) => {
                Reply::new(unique, &channel).error(Errno::IO);
                1
            }
            Err(malformed) => return Err(Broken(format!("{parts:?}: {malformed:?}"))),
        };
        let answered = answers.take(expected);
        if answered.len() != expected {
            return Err(Broken(format!("{parts:?}: {answered:?}")));
        }
        for answer in &answered {
            check(answer, unique, parts)?;
            done += usize::from(answer.error == 0);
        }
    }
    drop(server);
    if waiters.end() {
        return Err(Broken("a waiter panicked".into()));
    }
    let volume =
        Arc::into_inner(volume).ok_or_else(|| Broken("the image is still in use".into()))?;
    let closed = volume.close_image();
    closed.map_err(|error| Broken(format!("closing: {error}")))?;
    Ok(done)
}

/// A request in one piece.
fn whole(unique: u64, parts: Parts<'_>) -> Vec<u8> {
    let header = abi::InHeader {
        // The fuzzer's inputs are far shorter.
        len: (HEADER + parts.arguments.len()) as u32,
        opcode: parts.opcode,
        unique,
        node: parts.node,
        uid: parts.uid,
        extension_words: parts.extension_words,
        ..abi::InHeader::default()
    };
    [header.as_bytes(), parts.arguments].concat()
}

fn read(bytes: &[u8], is_split: bool) -> Result<Request<'_>, Malformed> {
    if !is_split {
        return parse(bytes);
    }
    let (header, rest) = bytes.split_at(HEADER);
    let (own, rest) = rest.split_at(rest.len().min(abi::ring::OPERATION.len()));
    parse_parts(header, own, rest)
}

/// Checks that an answer fits its request.
fn check(answer: &Answer, unique: u64, parts: Parts<'_>) -> Result<(), Broken> {
    let size = |at: usize| {
        let word = parts
            .arguments
            .get(at..at + 4)
            .and_then(|word| word.first_chunk());
        word.map_or(0, |word| u32::from_ne_bytes(*word) as usize)
    };
    // The kernel refuses an answer that is longer than its buffer.
    let most = match parts.opcode {
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size(16).min(MAX_IO as usize),
        opcode::GETXATTR | opcode::LISTXATTR => size(0).max(size_of::<abi::GetXattrOut>()),
        _ => MAX_IO as usize,
    };
    let is_errno = (-4095..=0).contains(&answer.error);
    let is_empty = answer.error == 0 || answer.len == 0;
    if answer.unique == unique && is_errno && is_empty && answer.len <= most {
        Ok(())
    } else {
        Err(Broken(format!("{parts:?}: {answer:?}")))
    }
}
