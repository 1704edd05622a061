//! The classic transport: workers that read requests from `/dev/fuse` and write replies to it.
//!
//! Each worker has a channel of its own to the kernel where the host allows more than one (`FUSE_DEV_IOC_CLONE`); a
//! reply goes back by the channel that its request came from. A request takes one read and one gathered write, and no
//! lock here. `readers` decides which workers read, and whether they poll.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use lanefs::Ino;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, opcode};
use sync::Arc;
use zerocopy::IntoBytes;

use crate::abi;
use crate::counted_channel::CountedChannel;
use crate::messages::TimedRequest;
use crate::readers::{Pace, Readers, RequestSource};
use crate::reply::{Channel, Reply};
use crate::request::{self, FuseOperation, Malformed, Request, node};
use crate::serve::{self, MAX_IO, Wanted};
use crate::session::Session;
use crate::stale::Old;

/// The most parts of a reply behind its header.
const PARTS_MAX: usize = 3;

/// One open `/dev/fuse`.
pub(crate) struct FuseDevice(OwnedFd);

impl AsFd for FuseDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl FuseDevice {
    pub(crate) fn new(device: OwnedFd) -> FuseDevice {
        FuseDevice(device)
    }

    /// One more channel of the same connection, by a newly opened `/dev/fuse`.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn another(&self, opened: OwnedFd) -> io::Result<FuseDevice> {
        const CLONE: Opcode = opcode::read::<u32>(229, 0);
        let ours = self.0.as_raw_fd().cast_unsigned();
        #[allow(unsafe_code)]
        // SAFETY: the operation reads one u32 from the pointer that it is given, the number of an open descriptor.
        unsafe {
            rustix::ioctl::ioctl(&opened, Setter::<CLONE, u32>::new(ours))?;
        }
        Ok(FuseDevice(opened))
    }

    /// Channels for this many workers: one each, or the same for all if the host gives no more.
    pub(crate) fn channels(
        first: Arc<FuseDevice>,
        workers: usize,
        open: impl Fn() -> io::Result<OwnedFd>,
    ) -> Vec<Arc<FuseDevice>> {
        let mut channels = vec![Arc::clone(&first)];
        while channels.len() < workers {
            let another = open().and_then(|opened| first.another(opened));
            channels.push(another.map_or_else(|_| Arc::clone(&first), Arc::new));
        }
        channels
    }

    /// Reads one request into the buffer; `None` when the connection has ended.
    fn request<'a>(&self, buf: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match rustix::io::read(&self.0, &mut *buf) {
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Ok(len) => return Ok(Some(&buf[..len])),
                // A request that was interrupted before it was read.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes reads wait for a request, or return at once when no request is there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn set_read_waits(&self, waits: bool) -> io::Result<()> {
        let flags = if waits {
            OFlags::RDWR
        } else {
            OFlags::RDWR | OFlags::NONBLOCK
        };
        Ok(rustix::fs::fcntl_setfl(&self.0, flags)?)
    }

    /// Reads one request into the buffer without waiting; `None` if no request is pending, or the connection has ended.
    pub(crate) fn pending_request<'a>(&self, buf: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match rustix::io::read(&self.0, &mut *buf) {
                Ok(0) | Err(Errno::AGAIN | Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Ok(len) => return Ok(Some(&buf[..len])),
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send(&self, header: abi::OutHeader, parts: &[&[u8]]) -> Result<(), Errno> {
        let len = size_of::<abi::OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = abi::OutHeader {
            // A reply has little more than `MAX_IO` bytes.
            len: len as u32,
            ..header
        };
        let mut slices = [IoSlice::new(&[]); PARTS_MAX + 1];
        slices[0] = IoSlice::new(header.as_bytes());
        let behind = slices[1..].iter_mut();
        for (slice, part) in behind.zip(parts) {
            *slice = IoSlice::new(part);
        }
        let used = &slices[..=parts.len().min(PARTS_MAX)];
        rustix::io::writev(&self.0, used).map(|_| ())
    }

    /// Tells the kernel that what it keeps of an inode is old. Waits for nothing where that is attributes; for pages it
    /// may wait for requests that are under way, so no thread that answers requests may call it.
    pub(crate) fn invalidate(&self, ino: Ino, old: &Old) {
        let (offset, len) = match old {
            Old::Attributes => (-1, 0),
            // A length of 0 stands for all from the offset on.
            Old::Pages(range) => (
                i64::try_from(range.start).unwrap_or(0),
                i64::try_from(range.end - range.start).unwrap_or(0),
            ),
        };
        let header = abi::OutHeader {
            error: abi::NOTIFY_INVAL_INODE,
            ..abi::OutHeader::default()
        };
        let what = abi::InvalInode {
            node: node(ino),
            offset,
            len,
        };
        // An inode that the kernel does not know is not stale.
        let _ = self.send(header, &[what.as_bytes()]);
    }

    /// Waits for the first request, INIT, and answers it; returns the flags that the kernel offered. Those that
    /// [`serve::init`] asked for among them hold from now on.
    ///
    /// # Errors
    /// When the connection ends, or the kernel's version of the protocol is too old.
    pub(crate) fn shake_hands(&self, wanted: Wanted) -> io::Result<u64> {
        let mut buf = vec![0; abi::READ_BUFFER_MIN];
        loop {
            let Some(bytes) = self.request(&mut buf)? else {
                return Err(io::ErrorKind::ConnectionAborted.into());
            };
            let request = request::parse(bytes).map_err(|_| io::ErrorKind::InvalidData)?;
            let header = abi::OutHeader {
                unique: request.unique,
                ..abi::OutHeader::default()
            };
            let FuseOperation::Init(offer, offered) = request.operation else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            match serve::init(&offer, offered, wanted) {
                Ok(answer) => self.send(header, &[answer.as_bytes()])?,
                Err(error) => {
                    let error = abi::OutHeader {
                        error: -error.raw_os_error(),
                        ..header
                    };
                    self.send(error, &[])?;
                    return Err(Errno::PROTO.into());
                }
            }
            // A kernel of a newer major version asks again, in ours.
            if offer.major == abi::MAJOR {
                return Ok(offered);
            }
        }
    }
}

impl RequestSource for FuseDevice {
    fn wait(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(self.request(buf)?.map(<[u8]>::len))
    }

    fn look(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        Ok(self.pending_request(buf)?.map(<[u8]>::len))
    }

    fn set_waiting(&self, waits: bool) -> io::Result<()> {
        self.set_read_waits(waits)
    }
}

impl Channel for FuseDevice {
    fn answer(&self, unique: u64, error: i32, parts: &[&[u8]]) {
        let header = abi::OutHeader {
            len: 0,
            error,
            unique,
        };
        // The request may have been aborted, or the connection.
        let _ = self.send(header, parts);
    }
}

/// Answers requests until the connection ends.
///
/// # Errors
/// When the channel fails.
pub(crate) fn work(
    session: &Arc<Session>,
    worker: usize,
    device: &Arc<FuseDevice>,
    readers: &Readers,
) -> io::Result<()> {
    let mut place = readers.place(worker);
    let counted = CountedChannel::new(Arc::clone(device), Arc::clone(session.messages()));
    let channel: Arc<dyn Channel> = Arc::new(counted);
    let mut requested = vec![0; MAX_IO as usize + abi::HEADER_ROOM];
    let mut buf = vec![0; MAX_IO as usize];
    while let Some(len) = place.next(&**device, &mut requested)? {
        let request = request::parse(&requested[..len]);
        place.set_pace(pace(&request));
        answer(session, worker, request, &channel, &mut buf);
    }
    Ok(())
}

/// How a request affects its client and the worker that answers it. A malformed request is answered at once.
fn pace(request: &Result<Request<'_>, Malformed>) -> Pace {
    use FuseOperation as Op;
    match request.as_ref().map(|request| &request.operation) {
        Ok(Op::Forget(_) | Op::BatchForget(_) | Op::Interrupt) => Pace::Unawaited,
        Ok(Op::Release(_) | Op::ReleaseDir) => Pace::Unawaited,
        Ok(Op::Fsync(_) | Op::FsyncDir(_) | Op::SyncFs | Op::Destroy) => Pace::Slow,
        Ok(Op::Fallocate(_) | Op::Copy(_)) => Pace::Slow,
        _ => Pace::Awaited,
    }
}

/// Answers one request over a channel.
pub(crate) fn answer(
    session: &Arc<Session>,
    worker: usize,
    request: Result<Request<'_>, Malformed>,
    channel: &Arc<dyn Channel>,
    buf: &mut [u8],
) {
    match request {
        Ok(request) => {
            let bytes = match request.operation {
                FuseOperation::Write(_, bytes) => bytes.len() as u64,
                _ => 0,
            };
            let timed = TimedRequest::begin(request.opcode, bytes);
            let reply = Reply::timed(request.unique, channel, timed);
            session.answer(worker, request, reply, buf);
        }
        Err(malformed) => {
            if let Some(unique) = malformed.unique {
                Reply::new(unique, channel).error(Errno::IO);
            }
        }
    }
}
