//! The block device that the kernel wants for a mount of type `fuseblk`, of an image that is not one itself: a loop
//! device over the first 512 bytes of the image's file.
//!
//! # Why
//!
//! The kernel passes sync(1) and syncfs(2) on to a FUSE server, and lets umount(8) wait until the server has closed the
//! image, only for mounts of type `fuseblk`, which are mounts of a block device. The kernel neither reads nor writes
//! that device: all it does is to hold it open. The anchor is long enough for one sector and no longer, so no program
//! that looks for file systems finds one on it.
//!
//! # Lifetime
//!
//! The loop device is configured to detach itself (`LO_FLAGS_AUTOCLEAR`) once nothing holds it open: first this
//! process, then the mount. After a crash of this process the anchor stays until its directory is unmounted. It holds
//! no lock on the image, and `device::ground` knows it and leaves it out where it looks for users of the image.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter};
use zerocopy::{Immutable, IntoBytes};

/// The size of the anchor: one sector.
const BYTES: u64 = 512;
/// The beginning of the name of the memory that backs an anchor for a block device; the kernel shows this name.
const MEMORY_NAME: &str = "lanefs:";
const MEMORY_SHOWN: &[u8] = b"/memfd:lanefs:";
const DELETED: &[u8] = b" (deleted)";
/// The most bytes that the kernel accepts in the name of such memory.
const MEMORY_NAME_MAX: usize = 249;
/// Where a free loop device is asked for.
const CONTROL: &str = "/dev/loop-control";
/// `LOOP_CTL_GET_FREE`.
const GET_FREE: Opcode = 0x4C82;
/// `LOOP_CONFIGURE`.
const CONFIGURE: Opcode = 0x4C0A;
/// `LO_FLAGS_READ_ONLY`.
const READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`.
const AUTOCLEAR: u32 = 4;
/// How often a free device is asked for: another program may take it before it is configured here.
const TRIES: u32 = 16;
/// Bytes of a name in [`Info`], the zero at its end included.
const NAME_BYTES: usize = 64;

/// `struct loop_info64`.
#[derive(IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME_BYTES],
    crypt_name: [u8; NAME_BYTES],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}
const _: () = assert!(size_of::<Info>() == 232);

/// `struct loop_config`.
#[derive(IntoBytes, Immutable, Clone, Copy)]
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}
const _: () = assert!(size_of::<Config>() == 304);

/// A loop device for one mount.
pub(crate) struct Anchor {
    path: PathBuf,
    /// Keeps the device configured until the mount holds it.
    _open: File,
}

impl Anchor {
    /// Makes an anchor for an image.
    ///
    /// A regular file is its own backing. A block device can't be, because the kernel claims it for only one mount. Its
    /// anchor is backed by memory, which only has the device's name; it serves read-only mounts, of which a device can
    /// have several, and hosts where the kernel can't mount the device itself.
    ///
    /// # Errors
    /// Why the host provides no loop device, or none on this file.
    pub(crate) fn new(image: &Path, is_read_only: bool) -> io::Result<Anchor> {
        let backing: OwnedFd = if image.metadata()?.is_file() {
            File::options()
                .read(true)
                .write(!is_read_only)
                .open(image)?
                .into()
        } else {
            memory(image)?
        };
        let control = File::options().read(true).write(true).open(CONTROL)?;
        let config = config(&backing, image, is_read_only);
        for _ in 0..TRIES {
            let path = PathBuf::from(format!("/dev/loop{}", free_number(&control)?));
            let open = File::options()
                .read(true)
                .write(!is_read_only)
                .open(&path)?;
            match configure(&open, config) {
                Ok(()) => return Ok(Anchor { path, _open: open }),
                Err(Errno::BUSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// The path by which the kernel mounts it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The image behind an anchor, by the name of its loop device.
pub(crate) fn image_behind(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?;
    let folder = Path::new("/sys/block").join(name).join("loop");
    let size = std::fs::read_to_string(folder.join("sizelimit")).ok()?;
    if size.trim().parse() != Ok(BYTES) {
        return None;
    }
    Some(image_named(
        &std::fs::read(folder.join("backing_file")).ok()?,
    ))
}

/// The path of the image, from the line in which the kernel shows a loop device's backing.
fn image_named(line: &[u8]) -> PathBuf {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let of_memory = line.strip_prefix(MEMORY_SHOWN);
    let of_memory = of_memory.and_then(|rest| rest.strip_suffix(DELETED));
    PathBuf::from(OsStr::from_bytes(of_memory.unwrap_or(line)))
}

/// Read-only memory that stands for a device's bytes, and has the device's name.
fn memory(image: &Path) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut name = [MEMORY_NAME.as_bytes(), image.as_os_str().as_bytes()].concat();
    name.truncate(MEMORY_NAME_MAX);
    let memory = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&memory, BYTES)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(memory)
}

fn config(backing: &OwnedFd, image: &Path, is_read_only: bool) -> Config {
    let mut file_name = [0; NAME_BYTES];
    let shown = image.as_os_str().as_bytes();
    // A name that is too long is cut, as losetup(8) does.
    let shown = &shown[..shown.len().min(NAME_BYTES - 1)];
    file_name[..shown.len()].copy_from_slice(shown);
    Config {
        fd: backing.as_raw_fd().cast_unsigned(),
        block_size: 0,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: BYTES,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: AUTOCLEAR | if is_read_only { READ_ONLY } else { 0 },
            file_name,
            crypt_name: [0; NAME_BYTES],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    }
}

/// The number of a free loop device; `LOOP_CTL_GET_FREE` returns it as its return value.
fn free_number(control: &File) -> io::Result<u32> {
    #[allow(unsafe_code)]
    // SAFETY: `Returned` passes no pointer, and the operation takes none.
    let number = unsafe { rustix::ioctl::ioctl(control, Returned::<GET_FREE>) };
    Ok(number?)
}

/// An operation without an argument that returns its answer as its return value.
struct Returned<const OPCODE: Opcode>;

#[allow(unsafe_code)]
// SAFETY: the operation takes no argument and gives a number; nothing is read or written through the pointer.
unsafe impl<const OPCODE: Opcode> rustix::ioctl::Ioctl for Returned<OPCODE> {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        returned: rustix::ioctl::IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<u32> {
        u32::try_from(returned).map_err(|_| Errno::IO)
    }
}

fn configure(device: &File, config: Config) -> Result<(), Errno> {
    #[allow(unsafe_code)]
    // SAFETY: the operation reads one `struct loop_config` from the pointer, which has that layout (asserted).
    unsafe {
        rustix::ioctl::ioctl(device, Setter::<CONFIGURE, Config>::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_anchors_backing() {
        let named = |line: &[u8]| image_named(line);
        assert_eq!(named(b"/tmp/a b.img\n"), Path::new("/tmp/a b.img"));
        let memory = b"/memfd:lanefs:/dev/vdb1 (deleted)\n";
        assert_eq!(named(memory), Path::new("/dev/vdb1"));
        assert_eq!(image_behind(Path::new("/dev/nothing")), None);
    }
}
