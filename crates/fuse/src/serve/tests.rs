//! Requests that no kernel sends, and those of future kernels: each is answered once, and the image stays valid.

use lanefs::mkfs::{self, Layout};
use lanefs::{FileDevice, Fs};
use sync::clock::Duration;
use sync::{Condvar, Mutex, Rank};
use testkit::Random;
use zerocopy::IntoBytes;

use super::*;
use crate::connect::Synced;
use crate::operations::Named;
use crate::reply::Channel;
use crate::request::parse;
use crate::volume::{Agreed, MountedImage};

const OF_ROOT: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};
/// The group for which images have reserved blocks.
const OF_RESERVE: &str = "2345";
const IMAGE_BYTES: u64 = 16 << 20;
/// How many requests a run sends, unless `LANEFS_HOSTILE_REQUESTS` sets it.
const REQUESTS: u64 = 6000;
/// One more than the largest opcode that is tried.
const OPCODES: u64 = 60;

/// The longest time that an answer may take; a request that failed is answered by a thread of its own.
const PATIENCE: Duration = Duration::from_secs(20);

/// Records the answers to the request that is under way.
struct Counted(Mutex<Vec<(u64, i32)>>, Condvar);

impl Counted {
    /// Takes the answers once there are `expected` of them, or the time is up.
    fn take(&self, expected: usize) -> Vec<(u64, i32)> {
        let mut answers = self.0.lock();
        if answers.len() < expected {
            self.1.wait_for(&mut answers, PATIENCE);
        }
        std::mem::take(&mut *answers)
    }
}

impl Channel for Counted {
    fn answer(&self, unique: u64, error: i32, _: &[&[u8]]) {
        self.0.lock().push((unique, error));
        self.1.notify_all();
    }
}

/// Draws the requests of a run.
struct Numbers(Random);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0.bits()
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    fn one_of<T: Clone>(&mut self, these: &[T]) -> T {
        let index = self.below(these.len() as u64) as usize;
        these[index].clone()
    }

    /// A word that is at the edge of a range more often than a random word is.
    fn word(&mut self) -> u64 {
        let any = self.next();
        let edges = [
            0,
            1,
            2,
            12,
            4096,
            1 << 20,
            u64::from(u32::MAX),
            i64::MAX as u64,
            u64::MAX - 4095,
            u64::MAX,
        ];
        match self.below(8) {
            0 => any,
            1 => any % 100_000,
            _ => self.one_of(&edges),
        }
    }

    /// The bytes after a request's header: words, then names.
    fn arguments(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.below(13) {
            bytes.extend(self.word().to_ne_bytes());
        }
        let long = [b'x'; 300];
        let names: [&[u8]; 9] = [
            b"",
            b".",
            b"..",
            b"a",
            b"b",
            b"lost+found",
            b"user.a",
            b"a/b",
            &long,
        ];
        for _ in 0..self.below(3) {
            bytes.extend(self.one_of(&names));
            bytes.push(0);
        }
        let cut = self.below(8) as usize;
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(4)));
        bytes
    }

    fn request(&mut self, unique: u64) -> Vec<u8> {
        let arguments = self.arguments();
        let other = self.word();
        let header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + arguments.len()) as u32,
            opcode: self.below(OPCODES) as u32,
            unique,
            node: self.one_of(&[1, 1, 1, 2, 11, 12, 13, 14, other]),
            uid: self.one_of(&[0, 1000]),
            ..abi::InHeader::default()
        };
        [header.as_bytes(), &arguments].concat()
    }
}

fn has_no_answer(opcode: u32) -> bool {
    matches!(
        opcode,
        abi::opcode::FORGET | abi::opcode::BATCH_FORGET | abi::opcode::DESTROY
    )
}

/// A new image that is served, and its folder.
fn served() -> (tempfile::TempDir, Arc<BoxedFs>) {
    served_by(Agreed {
        takes_privileges: true,
        ..Agreed::default()
    })
}

/// The same, with this negotiated. Blocks are reserved for root and for the group [`OF_RESERVE`].
fn served_by(agreed: Agreed) -> (tempfile::TempDir, Arc<BoxedFs>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(IMAGE_BYTES).unwrap();
    let layout = Layout::plan(IMAGE_BYTES, &mkfs::Options::default()).unwrap();
    let device = FileDevice::open(&path).unwrap();
    mkfs::format(&device, &layout).unwrap();
    let device: Arc<dyn lanefs::BlockDevice> = Arc::new(device);
    let group = [("reserved_gid", OF_RESERVE)];
    lanefs::tune::tune(&device, &group, lanefs::tune::Clock::Ask(lanefs::now)).unwrap();
    drop(device);
    let volume: BoxedFs = Box::new(MountedImage::new(
        Fs::open_for_writing(&path).unwrap(),
        true,
        Synced::All.into(),
        None,
        agreed,
    ));
    (folder, Arc::new(volume))
}

/// How often work that finds no space is tried for a caller.
fn tries(volume: &BoxedFs, caller: Caller) -> u32 {
    let tries = std::cell::Cell::new(0);
    let outcome: Answer<()> = for_caller(volume, caller, || {
        tries.set(tries.get() + 1);
        Err(Errno::NOSPC)
    });
    assert_eq!(outcome, Err(Errno::NOSPC));
    tries.get()
}

#[test]
fn what_finds_no_space_is_tried_again_only_for_callers_who_may_take_reserved_blocks() {
    if !testkit::is_root() || !testkit::have("setpriv") {
        return testkit::skip("needs root and setpriv");
    }
    let process = |groups: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=1000", "--regid=1000", "--groups", groups]);
        // Prints a line once it is that user.
        let script = ["sh", "-c", "echo; exec sleep 60"];
        let command = command.args(script).stdout(std::process::Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut line).unwrap();
        process
    };
    let (mut user, mut member) = (process("7"), process(OF_RESERVE));
    let of = |uid, gid, pid| Caller { uid, gid, pid };
    let (_folder, volume) = served();
    assert_eq!(tries(&volume, of(1000, 1000, user.id())), 1);
    assert_eq!(tries(&volume, of(1000, 1000, member.id())), 2);
    assert_eq!(tries(&volume, of(1000, 2345, member.id())), 1);
    assert_eq!(tries(&volume, of(0, 0, std::process::id())), 1);
    let (_folder, volume) = served_by(Agreed {
        maps_ids: true,
        ..Agreed::default()
    });
    let nobody = |pid| of(abi::NO_ID, abi::NO_ID, pid);
    assert_eq!(tries(&volume, nobody(user.id())), 1);
    assert_eq!(tries(&volume, nobody(member.id())), 2);
    assert_eq!(tries(&volume, nobody(std::process::id())), 2);
    assert_eq!(tries(&volume, nobody(0)), 1);
    for process in [&mut user, &mut member] {
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

#[test]
fn requests_that_no_kernel_sends_are_answered_once_and_leave_the_image_whole() {
    let (folder, volume) = served();
    let path = folder.path().join("image");
    let count = std::env::var("LANEFS_HOSTILE_REQUESTS");
    let count = count.map_or(REQUESTS, |count| count.parse().unwrap());
    let waiters = Arc::new(Waiters::new(1));
    let server = Server::new(Arc::clone(&waiters));
    let answers = Arc::new(Counted(Mutex::new(Rank::Leaf, Vec::new()), Condvar::new()));
    let channel: Arc<dyn Channel> = Arc::clone(&answers) as Arc<dyn Channel>;
    let mut buf = vec![0; MAX_IO as usize];
    let mut numbers = Numbers(Random::new(0x1a9e_f500));
    for unique in 1..=count {
        let bytes = numbers.request(unique);
        let opcode = u32::from_ne_bytes(*bytes[4..].first_chunk().unwrap());
        match parse(&bytes) {
            Ok(request) => {
                let reply = Reply::new(request.unique, &channel);
                match server.answer(&volume, request, reply, &mut buf) {
                    ServeOutcome::Next => {}
                    ServeOutcome::Destroy(reply) => reply.none(),
                }
                let expected = usize::from(!has_no_answer(opcode));
                let answered = answers.take(expected);
                assert_eq!(answered.len(), expected, "{bytes:?}: {answered:?}");
                assert!(answered.iter().all(|answer| answer.0 == unique));
            }
            Err(malformed) => assert_eq!(malformed.unique, Some(unique)),
        }
    }
    assert!(!waiters.end());
    drop(server);
    Arc::into_inner(volume).unwrap().close_image().unwrap();
    if testkit::have("e2fsck") {
        testkit::e2fsck(&path);
    } else {
        testkit::skip("needs e2fsck");
    }
}

/// Sends a request whose caller has no supplementary group known to the host; returns the error's number.
fn send(volume: &Arc<BoxedFs>, opcode: u32, arguments: &[&[u8]], extension: &[u8]) -> i32 {
    let arguments = [&arguments.concat(), extension].concat();
    let header = abi::InHeader {
        len: (size_of::<abi::InHeader>() + arguments.len()) as u32,
        opcode,
        unique: 1,
        node: 1,
        uid: 1000,
        gid: 1000,
        extension_words: (extension.len() / 8) as u16,
        ..abi::InHeader::default()
    };
    let answers = Arc::new(Counted(Mutex::new(Rank::Leaf, Vec::new()), Condvar::new()));
    let channel: Arc<dyn Channel> = Arc::clone(&answers) as Arc<dyn Channel>;
    let bytes = [header.as_bytes(), &arguments].concat();
    let request = parse(&bytes).unwrap();
    let waiters = Arc::new(Waiters::new(1));
    let server = Server::new(Arc::clone(&waiters));
    let answered = server.answer(volume, request, Reply::new(1, &channel), &mut []);
    assert!(matches!(answered, ServeOutcome::Next) && !waiters.end());
    answers.take(1)[0].1
}

#[test]
fn an_interrupt_is_answered_as_not_implemented_so_that_the_kernel_sends_no_more() {
    let (_folder, volume) = served();
    let unique = 8u64.to_ne_bytes();
    let answer = send(&volume, abi::opcode::INTERRUPT, &[&unique], &[]);
    assert_eq!(answer, -Errno::NOSYS.raw_os_error());
}

/// A record of an extension.
fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(8), 0);
    let head = [8 + body.len() as u32, kind].map(u32::to_ne_bytes);
    [head.concat(), body].concat()
}

#[test]
fn what_is_made_has_the_security_label_that_the_kernel_sends_with_it() {
    const LABEL: &[u8] = b"system_u:object_r:etc_t:s0\0";
    let (folder, volume) = served();
    let with = |name: &[u8], value: &[u8]| {
        let head = [value.len() as u32, 0].map(u32::to_ne_bytes).concat();
        record(1, &[&head, name, b"\0", value].concat())
    };
    let label = with(b"security.selinux", LABEL);
    let create = abi::CreateIn {
        mode: 0o644,
        ..abi::CreateIn::default()
    };
    let create = create.as_bytes();
    let (node, directory) = ([0o010_600_u32, 0, 0, 0], [0o755_u32, 0]);
    let requests: [(u32, &[&[u8]]); 5] = [
        (abi::opcode::CREATE, &[create, b"file\0"]),
        (abi::opcode::MKNOD, &[node.as_bytes(), b"pipe\0"]),
        (abi::opcode::MKDIR, &[directory.as_bytes(), b"directory\0"]),
        (abi::opcode::SYMLINK, &[b"link\0", b"target\0"]),
        (abi::opcode::TMPFILE, &[create, b"/\0"]),
    ];
    for (opcode, arguments) in requests {
        assert_eq!(send(&volume, opcode, arguments, &label), 0, "{opcode}");
    }
    // One extension has no module, the other does not fit.
    assert_eq!(
        send(
            &volume,
            abi::opcode::CREATE,
            &[create, b"none\0"],
            &record(0, b"")
        ),
        0
    );
    let long = with(b"security.selinux", &[b'x'; 5000]);
    let refused = send(&volume, abi::opcode::CREATE, &[create, b"long\0"], &long);
    assert_eq!(refused, -Errno::NOSPC.raw_os_error());

    let root = Ino::ROOT;
    let at = |name| Named {
        directory: root,
        name,
    };
    for name in [&b"file"[..], b"pipe", b"directory", b"link"] {
        let ino = volume.lookup(at(name)).unwrap().ino;
        assert_eq!(volume.xattr(ino, b"security.selinux").as_deref(), Ok(LABEL));
    }
    let ino = volume.lookup(at(b"none")).unwrap().ino;
    assert_eq!(volume.xattr_names(ino, OF_ROOT), Ok(Vec::new()));
    assert!(volume.lookup(at(b"long")).is_err());
    Arc::into_inner(volume).unwrap().close_image().unwrap();
    testkit::e2fsck(&folder.path().join("image"));
}

#[test]
fn a_member_of_the_directorys_group_keeps_set_group_id() {
    let (_folder, volume) = served();
    let change = |mode, gid| SetAttributes {
        mode: Some(mode),
        gid: Some(gid),
        ..SetAttributes::default()
    };
    let create = |name: &[u8], mode, groups: &[u32]| {
        let create = abi::CreateIn {
            mode,
            ..abi::CreateIn::default()
        };
        let numbers: Vec<u8> = groups.iter().flat_map(|gid| gid.to_ne_bytes()).collect();
        let body = [(groups.len() as u32).to_ne_bytes().to_vec(), numbers].concat();
        let extension = record(32, &body);
        let arguments: &[&[u8]] = &[create.as_bytes(), name, b"\0"];
        assert_eq!(send(&volume, abi::opcode::CREATE, arguments, &extension), 0);
        let at = Named {
            directory: Ino::ROOT,
            name,
        };
        let made = volume.lookup(at).unwrap();
        (made.mode & 0o7777, made.gid)
    };
    volume
        .change(Ino::ROOT, &change(0o2777, 70), OF_ROOT, false)
        .unwrap();
    assert_eq!(create(b"member", 0o2755, &[70]), (0o2755, 70));
    assert_eq!(create(b"other", 0o2755, &[71]), (0o755, 70));
    assert_eq!(create(b"nobody", 0o2755, &[]), (0o755, 70));
    assert_eq!(create(b"not executable", 0o2644, &[]), (0o2644, 70));
    volume
        .change(Ino::ROOT, &change(0o777, 70), OF_ROOT, false)
        .unwrap();
    assert_eq!(create(b"plain directory", 0o2755, &[]), (0o2755, 1000));
}

#[test]
fn what_is_not_agreed_on_is_left_out_and_old_kernels_are_refused() {
    let offer = |major, minor| abi::InitIn {
        major,
        minor,
        max_readahead: 1 << 17,
        flags: 0,
    };
    let nothing = Wanted::default();
    let acls = Wanted {
        checks: true,
        maps_ids: true,
        ..nothing
    };
    let ring = Wanted {
        ring_io: Some(1 << 17),
        ..acls
    };
    let all = init(&offer(7, 99), u64::MAX, acls).unwrap();
    assert_eq!((all.major, all.minor), (abi::MAJOR, abi::MINOR));
    let flags = u64::from(all.flags) | u64::from(all.flags2) << 32;
    assert_eq!(
        flags,
        WISHES | abi::init::POSIX_ACL | abi::init::ALLOW_IDMAP
    );
    let none = init(&offer(7, 31), 0, ring).unwrap();
    assert_eq!((none.flags, none.flags2, none.minor), (0, 0, 31));
    assert_eq!((none.max_write, none.max_pages), (MAX_IO, 256));
    let ring = init(&offer(7, 45), u64::MAX, ring).unwrap();
    assert_eq!(
        (ring.flags2, ring.max_write, ring.max_pages),
        (1 << 9 | 1 << 8 | 1 << 2 | 1, 1 << 17, 32)
    );
    let kept = Wanted {
        writeback: true,
        ..nothing
    };
    let kept = init(&offer(7, 45), u64::MAX, kept).unwrap();
    let without = init(&offer(7, 31), u64::MAX, nothing).unwrap();
    assert_eq!(u64::from(without.flags) & abi::init::POSIX_ACL, 0);
    let changed = kept.flags ^ without.flags;
    assert_eq!(u64::from(changed), abi::init::WRITEBACK_CACHE);
    // A future kernel asks again, in this version.
    assert_eq!(init(&offer(8, 0), 0, nothing).unwrap().major, abi::MAJOR);
    for old in [offer(7, 27), offer(6, 99)] {
        assert!(init(&old, u64::MAX, nothing).is_err());
    }
}
