//! A server that hands out inode numbers, as FUSE, NFS and 9P do: several threads answer requests about one file
//! system, and an inode that a client knows stays until the client forgets it. `cargo run -p lanefs --example inodes`

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use lanefs::{Fs, FsError, Ino, NewInode};

/// What a client asks for.
enum Request {
    Lookup(Ino, String),
    Create(Ino, String),
    Write(Ino, u64, Vec<u8>),
    Read(Ino, u64, usize),
    Unlink(Ino, String),
    Forget(Ino),
}

/// The answer to a request: an inode, bytes, or the number of an error.
#[derive(Debug, PartialEq)]
enum Reply {
    Inode(Ino),
    Bytes(Vec<u8>),
    Done,
    Failed(i32),
}

fn answer(fs: &Fs, request: Request) -> Result<Reply, FsError> {
    let inodes = fs.inodes();
    Ok(match request {
        // Lookup and create both hold the inode for the client.
        Request::Lookup(parent, name) => Reply::Inode(inodes.lookup_held(parent, name.as_bytes())?),
        Request::Create(parent, name) => {
            let new = NewInode {
                mode: 0o644,
                umask: 0o022,
                uid: 0,
                gid: 0,
                held: true,
            };
            Reply::Inode(inodes.create(parent, name.as_bytes(), new)?)
        }
        Request::Write(ino, offset, bytes) => {
            inodes.write(ino, offset, &bytes)?;
            Reply::Done
        }
        Request::Read(ino, offset, len) => {
            let mut bytes = vec![0; len];
            let read = inodes.read(ino, offset, &mut bytes)?;
            bytes.truncate(read);
            Reply::Bytes(bytes)
        }
        Request::Unlink(parent, name) => {
            inodes.unlink(parent, name.as_bytes())?;
            Reply::Done
        }
        Request::Forget(ino) => {
            inodes.forget(ino, 1)?;
            Reply::Done
        }
    })
}

type Queue = Arc<Mutex<Receiver<(Request, Sender<Reply>)>>>;

fn serve(fs: &Fs, queue: &Queue) {
    loop {
        let next = queue.lock().unwrap().recv();
        // All clients are gone.
        let Ok((request, client)) = next else { return };
        let reply = answer(fs, request)
            .unwrap_or_else(|error| Reply::Failed(lanefs::Error::from(error).errno()));
        // The client may be gone by now.
        let _ = client.send(reply);
    }
}

/// Runs the example; a test does so too.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fs = Fs::in_memory(32 << 20)?;
    let (requests, queue) = channel();
    let queue: Queue = Arc::new(Mutex::new(queue));
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let (fs, queue) = (fs.clone(), Arc::clone(&queue));
            std::thread::spawn(move || serve(&fs, &queue))
        })
        .collect();

    let ask = |request| {
        let (reply, answer) = channel();
        requests.send((request, reply)).map_err(|_| "no worker")?;
        answer.recv().map_err(|_| "no reply")
    };
    let Reply::Inode(file) = ask(Request::Create(Ino::ROOT, "file".into()))? else {
        return Err("not created".into());
    };
    ask(Request::Write(file, 0, b"bytes".to_vec()))?;
    // The name is removed; the client still holds the inode.
    ask(Request::Unlink(Ino::ROOT, "file".into()))?;
    let gone = ask(Request::Lookup(Ino::ROOT, "file".into()))?;
    assert_eq!(gone, Reply::Failed(2));
    let read = ask(Request::Read(file, 1, 3))?;
    assert_eq!(read, Reply::Bytes(b"yte".to_vec()));
    ask(Request::Forget(file))?;
    assert!(matches!(ask(Request::Read(file, 0, 1))?, Reply::Failed(_)));
    println!("answered by {} threads", workers.len());

    drop(requests);
    for worker in workers {
        worker.join().map_err(|_| "a worker panicked")?;
    }
    Ok(fs.close()?)
}
