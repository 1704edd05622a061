//! Locks on ranges of a file (fcntl), by which QEMU and other programs announce that they use an image.
//!
//! QEMU locks single bytes, always shared: byte `100 + i` for each permission that it uses, and byte `200 + i` for each
//! permission that no other program may use meanwhile; a program that opens the image checks the bytes of the other
//! kind. The permissions are, by number: 0 reads contents that do not change, 1 writes, 3 resizes. Here the same bytes
//! are locked, so that QEMU refuses an image that lanefs has open. Other range locks count, too: an exclusive one keeps
//! readers away, and any keeps writers away.
//!
//! The locks belong to the open file (OFD), and end with it.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::purpose::Purpose;

/// The byte of the first permission in use.
const USED: i64 = 100;
/// The byte of the first permission that other programs may not use.
const NOT_SHARED: i64 = 200;
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;
/// The number of permissions.
const PERMISSIONS: i64 = 4;

/// Whether another open file has a lock that forbids the purpose; `false` if the file system does not support such
/// locks.
pub(crate) fn is_forbidden(file: &File, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Write => conflict(file, libc::F_WRLCK, 0, 0).is_some(),
        Purpose::Read => {
            let forbidding = [USED + WRITE, USED + RESIZE, NOT_SHARED + READ];
            let mut bytes = forbidding.into_iter();
            conflict(file, libc::F_RDLCK, 0, 0).is_some()
                // A shared lock of a longer range does not come from QEMU but from another reader.
                || bytes.any(|byte| {
                    conflict(file, libc::F_WRLCK, byte, 1).is_some_and(|start| start >= USED)
                })
        }
    }
}

/// Locks the bytes that tell QEMU the purpose. A failure is ignored, because flock excludes other instances of lanefs.
pub(crate) fn announce(file: &File, purpose: Purpose) {
    let bytes: &[(i64, i64)] = match purpose {
        Purpose::Read => &[
            (USED + READ, 1),
            (NOT_SHARED + WRITE, 1),
            (NOT_SHARED + RESIZE, 1),
        ],
        Purpose::Write => &[
            (USED + READ, 2),
            (USED + RESIZE, 1),
            (NOT_SHARED, PERMISSIONS),
        ],
    };
    for (start, len) in bytes {
        let _ = lock(file, libc::F_OFD_SETLK, libc::F_RDLCK, *start, *len);
    }
}

/// Where a lock of another open file begins that conflicts with this one.
fn conflict(file: &File, kind: libc::c_int, start: i64, len: i64) -> Option<i64> {
    let found = lock(file, libc::F_OFD_GETLK, kind, start, len)?;
    (libc::c_int::from(found.l_type) != libc::F_UNLCK).then_some(found.l_start)
}

fn lock(
    file: &File,
    command: libc::c_int,
    kind: libc::c_int,
    start: i64,
    len: i64,
) -> Option<libc::flock> {
    #[allow(clippy::cast_possible_truncation)]
    let mut asked = libc::flock {
        // The kinds are 0, 1 and 2.
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    #[allow(unsafe_code)]
    // SAFETY: the descriptor is open as long as `file` is borrowed, and these commands take a pointer to a struct
    // flock, which `asked` is.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut asked) };
    (done != -1).then_some(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_say_what_their_bytes_mean() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let ours = open();
        let forbidden = |locks: &[(libc::c_int, i64, i64)]| {
            let other = open();
            for (kind, start, len) in locks {
                lock(&other, libc::F_OFD_SETLK, *kind, *start, *len).unwrap();
            }
            [Purpose::Read, Purpose::Write].map(|purpose| is_forbidden(&ours, purpose))
        };
        let (shared, exclusive) = (libc::F_RDLCK, libc::F_WRLCK);
        assert_eq!(forbidden(&[]), [false, false]);
        assert_eq!(forbidden(&[(exclusive, 5000, 1)]), [true, true]);
        assert_eq!(forbidden(&[(shared, 0, 0)]), [false, true]);
        // A QEMU that writes, and a QEMU that reads.
        let writer = [
            (shared, 100, 2),
            (shared, 103, 1),
            (shared, 201, 1),
            (shared, 203, 1),
        ];
        assert_eq!(forbidden(&writer), [true, true]);
        assert_eq!(
            forbidden(&[(shared, 100, 1), (shared, 201, 1)]),
            [false, true]
        );
        let announced = |purpose| {
            let other = open();
            announce(&other, purpose);
            [Purpose::Read, Purpose::Write].map(|purpose| is_forbidden(&ours, purpose))
        };
        assert_eq!(announced(Purpose::Read), [false, true]);
        assert_eq!(announced(Purpose::Write), [true, true]);
    }
}
