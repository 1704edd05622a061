//! Ioctls. The kernel passes on those whose number says how many bytes go in and out, with these bytes and no others.

use super::convert::{shared_flags, with_shared_flags};
use super::{Asked, Errno, Reply, Server, abi, ino};
use crate::callers;
use crate::operations::Answer;

/// `FS_IOC_GETVERSION` and `EXT4_IOC_GETVERSION`, as 64-bit and as 32-bit programs number them.
const GET_VERSION: [u32; 4] = [0x8008_7601, 0x8004_7601, 0x8008_6603, 0x8004_6603];
/// `FS_IOC_GETFSLABEL` and `FS_IOC_SETFSLABEL`.
const GET_LABEL: u32 = 0x8100_9431;
const SET_LABEL: u32 = 0x4100_9432;
/// Bytes that ext4 reads and writes of their argument: a label, and the zero that ends it.
const LABEL_ROOM: usize = 17;
/// `EXT4_IOC_SHUTDOWN`. The kernel does not pass its flag on.
const SHUT_DOWN: u32 = 0x8004_587d;
/// `FITRIM`.
const TRIM: u32 = 0xc018_5879;
/// The ioctl that asks for the flags of lsattr, as 64-bit and as 32-bit programs number it.
const GET_FLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
/// The ioctl that asks for them in the form that all file systems share: the kernel asks so before it sets any.
const GET_SHARED_FLAGS: u32 = 0x801c_581f;
/// The ioctl that sets them in that form.
const SET_SHARED_FLAGS: u32 = 0x401c_5820;
/// The ioctl that sets them.
const SET_FLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];

fn reply_ioctl(answer: Answer<Vec<u8>>, reply: Reply) {
    match answer {
        Ok(output) => {
            let head = abi::IoctlOut::default();
            reply.parts(&[zerocopy::IntoBytes::as_bytes(&head), &output]);
        }
        Err(error) => reply.error(error),
    }
}

/// The words of 64 bits that an ioctl's argument has.
fn words<const N: usize>(input: &[u8]) -> Answer<[u64; N]> {
    let mut words = [0; N];
    let (found, []) = input.as_chunks() else {
        return Err(Errno::INVAL);
    };
    if found.len() != N {
        return Err(Errno::INVAL);
    }
    for (word, bytes) in words.iter_mut().zip(found) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(words)
}

/// The label in an ioctl's argument.
fn label_in(input: &[u8]) -> Answer<Vec<u8>> {
    let room = &input[..input.len().min(LABEL_ROOM)];
    let end = room.iter().position(|byte| *byte == 0);
    end.map(|end| room[..end].to_vec()).ok_or(Errno::INVAL)
}

impl Server {
    /// Answers an ioctl: by another thread if it may wait for the disk.
    pub(super) fn ioctl(&self, asked: Asked<'_>, command: u32, input: &[u8]) {
        match command {
            TRIM => self.trim(asked, input),
            SHUT_DOWN => self.shut_down(asked),
            SET_LABEL => self.set_label(asked, input),
            _ => asked.short_ioctl(command, input),
        }
    }

    fn shut_down(&self, asked: Asked<'_>) {
        let Asked { caller, reply, .. } = asked;
        if let Err(error) = callers::check_admin(caller) {
            return reply.error(error);
        }
        self.is_shut_down.set(true);
        self.waiters.run(asked.operations, move |operations| {
            reply_ioctl(operations.shut_down().map(|()| Vec::new()), reply);
        });
    }

    fn set_label(&self, asked: Asked<'_>, input: &[u8]) {
        let Asked { caller, reply, .. } = asked;
        let label = callers::check_admin(caller).and_then(|()| label_in(input));
        self.waiters.run(asked.operations, move |operations| {
            let set = label.and_then(|label| operations.set_label(&label));
            reply_ioctl(set.map(|()| Vec::new()), reply);
        });
    }

    /// The argument is `struct fstrim_range`: where the range begins, its length, and the length of runs that are too
    /// short. The length is answered with how many bytes were discarded.
    fn trim(&self, asked: Asked<'_>, input: &[u8]) {
        let Asked { caller, reply, .. } = asked;
        let range = callers::check_admin(caller).and_then(|()| words(input));
        self.waiters.run(asked.operations, move |operations| {
            let trimmed = range.and_then(|[start, len, least]| {
                let trimmed = operations.trim(start..start.saturating_add(len), least)?;
                let words = [start, trimmed, least].map(u64::to_ne_bytes);
                Ok(words.concat())
            });
            reply_ioctl(trimmed, reply);
        });
    }
}

impl Asked<'_> {
    /// Answers an ioctl that does not wait.
    fn short_ioctl(self, command: u32, input: &[u8]) {
        let answer = ino(self.node).and_then(|ino| match command {
            command if GET_FLAGS.contains(&command) => {
                let flags = self.operations.flags(ino)?;
                Ok(flags.to_ne_bytes().to_vec())
            }
            GET_SHARED_FLAGS => {
                let metadata = self.operations.attributes(ino)?;
                let flags = self.operations.flags(ino)?;
                Ok(shared_flags(flags, metadata.project).to_vec())
            }
            command if GET_VERSION.contains(&command) => {
                // An int, whatever the number says of its size.
                let generation = self.operations.attributes(ino)?.generation.0;
                Ok(generation.to_ne_bytes().to_vec())
            }
            GET_LABEL => {
                let mut label = self.operations.label()?;
                label.resize(LABEL_ROOM, 0);
                Ok(label)
            }
            command if SET_FLAGS.contains(&command) => {
                let flags = input.first_chunk().ok_or(Errno::INVAL)?;
                let set = self.operations.set_flags(ino, u32::from_ne_bytes(*flags));
                set.map(|()| Vec::new())
            }
            SET_SHARED_FLAGS => {
                let flags = self.operations.flags(ino)?;
                let set = self
                    .operations
                    .set_flags(ino, with_shared_flags(flags, input)?);
                set.map(|()| Vec::new())
            }
            _ => Err(Errno::NOTTY),
        });
        reply_ioctl(answer, self.reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_of_another_length_is_refused() {
        let bytes = [1_u64.to_ne_bytes(), 2_u64.to_ne_bytes()].concat();
        assert_eq!(words::<2>(&bytes), Ok([1, 2]));
        for len in [0, 8, 15] {
            assert_eq!(words::<2>(&bytes[..len]), Err(Errno::INVAL));
        }
        assert_eq!(words::<1>(&bytes), Err(Errno::INVAL));
    }

    #[test]
    fn a_label_ends_within_its_room() {
        assert_eq!(label_in(b"data\0rest"), Ok(b"data".to_vec()));
        assert_eq!(
            label_in(b"0123456789abcdef\0"),
            Ok(b"0123456789abcdef".to_vec())
        );
        for refused in [&b"0123456789abcdefg\0"[..], b"data", b""] {
            assert_eq!(label_in(refused), Err(Errno::INVAL));
        }
    }
}
