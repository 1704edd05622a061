//! A device that ends before its file system does, for example a file whose copy was interrupted. It can be read up to
//! its end, and never be written. No locks of its own.

use sync::Arc;

use crate::block_device::{BlockDevice, DeviceError, check_range};

/// A device that was cut short, with the size that it should have. Reads of the missing part fail with
/// [`DeviceError::Missing`].
#[derive(Clone)]
pub struct Incomplete {
    inner: Arc<dyn BlockDevice>,
    size: u64,
}

impl Incomplete {
    /// `inner`, shown as a device of `size` bytes.
    #[must_use]
    pub fn new(inner: Arc<dyn BlockDevice>, size: u64) -> Incomplete {
        Incomplete { inner, size }
    }
}

impl BlockDevice for Incomplete {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        check_range("read", offset, len, self.size)?;
        let present = self.inner.size();
        // `check_range` checked that the sum fits 64 bits.
        if offset + len > present {
            return Err(DeviceError::Missing {
                offset: offset.max(present),
                size: self.size,
                present,
            });
        }
        self.inner.read_at(offset, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn what_is_there_is_read_and_what_is_missing_is_an_error_of_its_own() {
        let device = Incomplete::new(Arc::new(MemoryDevice::from_bytes(b"0123")), 8);
        let mut buf = [0; 2];
        device.read_at(2, &mut buf).unwrap();
        assert_eq!(&buf, b"23");
        for (at, first) in [(3, 4), (6, 6)] {
            match device.read_at(at, &mut buf) {
                Err(DeviceError::Missing {
                    offset,
                    size: 8,
                    present: 4,
                }) => assert_eq!(offset, first),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(
            device.read_at(7, &mut buf),
            Err(DeviceError::OutOfRange { .. })
        ));
        assert!(matches!(
            device.write_at(0, b"x"),
            Err(DeviceError::ReadOnly)
        ));
        assert_eq!((device.size(), device.is_read_only()), (8, true));
    }
}
