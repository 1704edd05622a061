//! The block of multi-mount protection: a sequence number that the host with the file system mounted keeps changing, so
//! that another host can see that it is in use. Pure functions over its 1024 bytes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::csum;
use crate::site::{Corrupt, Site};

/// "MMP" in ASCII.
pub const MAGIC: u32 = 0x004D_4D50;
/// The sequence of a file system that is not mounted.
const SEQUENCE_CLEAN: u32 = 0xFF4D_4D50;
/// The sequence while e2fsck works on the file system.
const SEQUENCE_FSCK: u32 = 0xE24D_4D50;
/// The greatest sequence number of a mounted file system.
pub const SEQUENCE_MAX: u32 = 0xE24D_4D4F;

/// What the sequence says about the use of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MmpUse {
    /// The file system is not mounted.
    Clean,
    /// A check works on it, or was interrupted.
    Check,
    /// A host has it mounted, or had when it died: only waiting for a change can tell.
    Mounted(u32),
    /// A number that no implementation writes.
    Unknown(u32),
}

/// The structure (`struct mmp_struct`); the rest of its block is not used.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Mmp {
    pub(crate) mmp_magic: U32,
    pub(crate) mmp_seq: U32,
    pub(crate) mmp_time: U64,
    pub(crate) mmp_nodename: [u8; 64],
    pub(crate) mmp_bdevname: [u8; 32],
    pub(crate) mmp_check_interval: U16,
    pub(crate) mmp_pad1: U16,
    pub(crate) mmp_pad2: [U32; 226],
    pub(crate) mmp_checksum: U32,
}

impl Mmp {
    /// Bytes the structure takes.
    pub const SIZE: usize = size_of::<Mmp>();

    /// The structure of a clean file system, as mke2fs leaves it; sealed where there are metadata checksums.
    #[must_use]
    pub fn clean(check_interval_seconds: u16, seed: Option<u32>) -> Mmp {
        let mut mmp = Mmp::new_zeroed();
        mmp.mmp_magic.set(MAGIC);
        mmp.mmp_seq.set(SEQUENCE_CLEAN);
        mmp.mmp_check_interval.set(check_interval_seconds);
        mmp.seal(seed);
        mmp
    }

    /// The structure at the beginning of a block; `None` when the block is too short.
    #[must_use]
    pub fn read(block: &[u8]) -> Option<Mmp> {
        Mmp::read_from_prefix(block).ok().map(|(mmp, _)| mmp)
    }

    /// The structure's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    accessors! {
        /// The sequence number as stored.
        sequence, set_sequence: u32 = mmp_seq;
        /// When it was last written, in seconds since 1970; for people only.
        time, set_time: u64 = mmp_time;
        /// Seconds between checks that no other host writes.
        check_interval, set_check_interval: u16 = mmp_check_interval;
        /// The stored checksum.
        checksum, set_checksum: u32 = mmp_checksum;
    }

    /// The host that last wrote the block: its name, up to the first zero byte.
    #[must_use]
    pub fn node(&self) -> &[u8] {
        until_zero(&self.mmp_nodename)
    }

    /// Sets [`Mmp::node`]; a longer name is cut.
    pub fn set_node(&mut self, name: &[u8]) {
        self.mmp_nodename = padded(name);
    }

    /// On which device: its name on that host, up to the first zero byte.
    #[must_use]
    pub fn device(&self) -> &[u8] {
        until_zero(&self.mmp_bdevname)
    }

    /// Sets [`Mmp::device`]; a longer name is cut.
    pub fn set_device(&mut self, name: &[u8]) {
        self.mmp_bdevname = padded(name);
    }

    /// What the sequence says.
    #[must_use]
    pub fn used_by(&self) -> MmpUse {
        match self.sequence() {
            SEQUENCE_CLEAN => MmpUse::Clean,
            SEQUENCE_FSCK => MmpUse::Check,
            number if number <= SEQUENCE_MAX => MmpUse::Mounted(number),
            number => MmpUse::Unknown(number),
        }
    }

    fn computed_checksum(&self, seed: u32) -> u32 {
        csum::crc32c(seed, &self.as_bytes()[..Self::SIZE - 4])
    }

    /// Writes the checksum, from the file system's seed where it has metadata checksums.
    pub fn seal(&mut self, seed: Option<u32>) {
        if let Some(seed) = seed {
            self.mmp_checksum.set(self.computed_checksum(seed));
        }
    }

    /// Checks magic number and, where the file system has metadata checksums, the checksum.
    ///
    /// # Errors
    /// The check that fails.
    pub fn verify(&self, seed: Option<u32>) -> Result<(), Corrupt> {
        if self.mmp_magic.get() != MAGIC {
            return Err(Corrupt::at(Site::MmpMagic));
        }
        match seed {
            Some(seed) if self.computed_checksum(seed) != self.checksum() => {
                Err(Corrupt::at(Site::MmpChecksum))
            }
            _ => Ok(()),
        }
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(&[])
}

fn padded<const N: usize>(name: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = name.len().min(N);
    bytes[..len].copy_from_slice(&name[..len]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_tells_who_has_it() {
        let mut mmp = Mmp::clean(5, Some(9));
        assert_eq!(mmp.verify(Some(9)), Ok(()));
        assert_eq!(mmp.used_by(), MmpUse::Clean);
        mmp.set_sequence(17);
        mmp.set_node(b"host");
        assert_eq!(mmp.used_by(), MmpUse::Mounted(17));
        assert_eq!(mmp.node(), b"host");
        let stale = mmp.verify(Some(9)).unwrap_err();
        assert_eq!(stale.site(), Site::MmpChecksum);
        assert_eq!(mmp.verify(None), Ok(()));
        mmp.set_sequence(SEQUENCE_FSCK);
        assert_eq!(mmp.used_by(), MmpUse::Check);
        mmp.set_sequence(SEQUENCE_MAX + 2);
        assert_eq!(mmp.used_by(), MmpUse::Unknown(SEQUENCE_MAX + 2));
    }
}
