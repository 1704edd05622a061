//! The structures of `<linux/fuse.h>`, protocol 7: what the kernel writes into a request and reads from a reply.
//!
//! Each structure has the header's layout (its size is asserted), in the machine's own byte order. Fields have the
//! header's meaning; their names are ours. Source: the kernel's `include/uapi/linux/fuse.h`, which is also licensed
//! under BSD-2-Clause.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version whose structures are those below.
pub(crate) const MINOR: u32 = 41;
/// The oldest minor version that is served (Linux 4.20); older kernels have shorter structures.
pub(crate) const MINOR_OLDEST: u32 = 28;
/// The node that stands for the root directory.
pub(crate) const ROOT: u64 = 1;
/// Bytes that a request's fixed parts and names take at most in addition to its data.
pub(crate) const HEADER_ROOM: usize = 4096;
/// Bytes below which the kernel refuses to hand out a request.
pub(crate) const READ_BUFFER_MIN: usize = 8192;

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident[$size:literal] { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Clone, Copy, Debug, Default)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structures! {
    /// `fuse_in_header`: how every request begins.
    InHeader[40] {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        extension_words: u16, padding: u16,
    }
    /// `fuse_out_header`: how every reply and every notification begins.
    OutHeader[16] { len: u32, error: i32, unique: u64 }
    /// `fuse_attr`.
    Attr[88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atime_nsec: u32, mtime_nsec: u32, ctime_nsec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, block_size: u32, flags: u32,
    }
    /// `fuse_entry_out`.
    EntryOut[128] {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    /// `fuse_attr_out`.
    AttrOut[104] { valid: u64, valid_nsec: u32, padding: u32, attr: Attr }
    /// `fuse_forget_in`.
    ForgetIn[8] { lookups: u64 }
    /// `fuse_batch_forget_in`.
    BatchForgetIn[8] { count: u32, padding: u32 }
    /// `fuse_forget_one`.
    ForgetOne[16] { node: u64, lookups: u64 }
    /// `fuse_mknod_in`.
    MkNodIn[16] { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// `fuse_mkdir_in`.
    MkDirIn[8] { mode: u32, umask: u32 }
    /// `fuse_rename_in`.
    RenameIn[8] { new_directory: u64 }
    /// `fuse_rename2_in`.
    Rename2In[16] { new_directory: u64, flags: u32, padding: u32 }
    /// `fuse_link_in`.
    LinkIn[8] { old_node: u64 }
    /// `fuse_setattr_in`.
    SetAttrIn[88] {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atime_nsec: u32, mtime_nsec: u32, ctime_nsec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// `fuse_open_in`.
    OpenIn[8] { flags: u32, open_flags: u32 }
    /// `fuse_create_in`.
    CreateIn[16] { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// `fuse_open_out`.
    OpenOut[16] { handle: u64, open_flags: u32, padding: u32 }
    /// `fuse_release_in`.
    ReleaseIn[24] { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// `fuse_read_in`, also for directories.
    ReadIn[40] {
        handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// `fuse_write_in`.
    WriteIn[40] {
        handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    /// `fuse_write_out`.
    WriteOut[8] { size: u32, padding: u32 }
    /// `fuse_kstatfs`.
    StatFsOut[80] {
        blocks: u64, free: u64, available: u64, files: u64, free_files: u64,
        block_size: u32, name_max: u32, fragment_size: u32, padding: u32, spare: [u32; 6],
    }
    /// `fuse_fsync_in`.
    FsyncIn[16] { handle: u64, flags: u32, padding: u32 }
    /// `fuse_setxattr_in` as far as it is used without `FUSE_SETXATTR_EXT`.
    SetXattrIn[8] { size: u32, flags: u32 }
    /// What follows it with `FUSE_SETXATTR_EXT`.
    SetXattrMore[8] { more_flags: u32, padding: u32 }
    /// `fuse_getxattr_in`, also for lists.
    GetXattrIn[8] { size: u32, padding: u32 }
    /// `fuse_getxattr_out`.
    GetXattrOut[8] { size: u32, padding: u32 }
    /// `fuse_init_in` up to the flags that every kernel sends.
    InitIn[16] { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    /// `fuse_init_out`.
    InitOut[64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_granularity: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, unused: [u32; 7],
    }
    /// `fuse_interrupt_in`.
    InterruptIn[8] { unique: u64 }
    /// `fuse_ioctl_in`.
    IoctlIn[32] { handle: u64, flags: u32, command: u32, argument: u64, in_size: u32, out_size: u32 }
    /// `fuse_ioctl_out`.
    IoctlOut[16] { result: i32, flags: u32, in_vectors: u32, out_vectors: u32 }
    /// `fuse_fallocate_in`.
    FallocateIn[32] { handle: u64, offset: u64, len: u64, mode: u32, padding: u32 }
    /// `fuse_lseek_in`.
    SeekIn[24] { handle: u64, offset: u64, whence: u32, padding: u32 }
    /// `fuse_lseek_out`.
    SeekOut[8] { offset: u64 }
    /// `fuse_copy_file_range_in`.
    CopyIn[56] {
        from_handle: u64, from_offset: u64, to_node: u64, to_handle: u64, to_offset: u64, len: u64, flags: u64,
    }
    /// `fuse_statx_in`.
    StatxIn[24] { get_flags: u32, reserved: u32, handle: u64, flags: u32, mask: u32 }
    /// `fuse_sx_time`.
    StatxTime[16] { seconds: i64, nanoseconds: u32, reserved: i32 }
    /// `fuse_statx`.
    Statx[256] {
        mask: u32, block_size: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: StatxTime, btime: StatxTime, ctime: StatxTime, mtime: StatxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spares: [u64; 14],
    }
    /// `fuse_statx_out`.
    StatxOut[288] { valid: u64, valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    /// `fuse_dirent` before its name.
    DirEntry[24] { ino: u64, offset: u64, name_len: u32, kind: u32 }
    /// `fuse_notify_inval_inode_out`.
    InvalInode[24] { node: u64, offset: i64, len: i64 }
    /// `fuse_uring_ent_in_out`.
    RingEntry[32] { flags: u64, commit: u64, payload_size: u32, padding: u32, reserved: u64 }
    /// `fuse_uring_cmd_req`.
    RingCommand[24] { flags: u64, commit: u64, queue: u16, padding: [u8; 6] }
}

/// FUSE over io_uring: the layout of the first buffer of an entry (`fuse_uring_req_header`), which begins with
/// `fuse_in_header` or `fuse_out_header`, and the commands that the server submits.
pub(crate) mod ring {
    use std::ops::Range;

    /// The structure of the request's operation.
    pub(crate) const OPERATION: Range<usize> = 128..256;
    pub(crate) const ENTRY: Range<usize> = 256..288;
    pub(crate) const HEADER_BYTES: usize = 288;
    /// How many buffers an entry has: one for the headers, one for the data.
    pub(crate) const SEGMENTS: u32 = 2;
    /// Registers an entry, which the kernel fills with a request.
    pub(crate) const REGISTER: u32 = 1;
    /// Sends the answer in an entry, which the kernel then fills with the next request.
    pub(crate) const COMMIT_AND_FETCH: u32 = 2;
}

/// The numbers of requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;

    /// One more than the greatest.
    pub(crate) const END: usize = 53;
    /// All of them, with what counters call them.
    pub(crate) const ALL: [(u32, &str); 39] = [
        (LOOKUP, "lookup"),
        (FORGET, "forget"),
        (GETATTR, "getattr"),
        (SETATTR, "setattr"),
        (READLINK, "readlink"),
        (SYMLINK, "symlink"),
        (MKNOD, "mknod"),
        (MKDIR, "mkdir"),
        (UNLINK, "unlink"),
        (RMDIR, "rmdir"),
        (RENAME, "rename"),
        (LINK, "link"),
        (OPEN, "open"),
        (READ, "read"),
        (WRITE, "write"),
        (STATFS, "statfs"),
        (RELEASE, "release"),
        (FSYNC, "fsync"),
        (SETXATTR, "setxattr"),
        (GETXATTR, "getxattr"),
        (LISTXATTR, "listxattr"),
        (REMOVEXATTR, "removexattr"),
        (INIT, "init"),
        (OPENDIR, "opendir"),
        (READDIR, "readdir"),
        (RELEASEDIR, "releasedir"),
        (FSYNCDIR, "fsyncdir"),
        (CREATE, "create"),
        (INTERRUPT, "interrupt"),
        (DESTROY, "destroy"),
        (IOCTL, "ioctl"),
        (BATCH_FORGET, "batch_forget"),
        (FALLOCATE, "fallocate"),
        (READDIRPLUS, "readdirplus"),
        (LSEEK, "lseek"),
        (COPY_FILE_RANGE, "copy_file_range"),
        (SYNCFS, "syncfs"),
        (TMPFILE, "tmpfile"),
        (STATX, "statx"),
    ];
}

/// What kernel and server agree on at the beginning: the bits of `flags`, and above 32 those of `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const EXTENDED: u64 = 1 << 30;
    pub(crate) const SECURITY_CTX: u64 = 1 << 32;
    pub(crate) const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub(crate) const ALLOW_IDMAP: u64 = 1 << 40;
    pub(crate) const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of statx(2).
pub(crate) mod statx {
    /// What stat(2) has.
    pub(crate) const BASIC: u32 = 0x7ff;
    pub(crate) const BTIME: u32 = 0x800;
    /// The inode's flags that [`super::Statx::attributes`] has under the same bits: compressed, immutable, append-only,
    /// not dumped, encrypted; and verity.
    pub(crate) const OF_FLAGS: u64 = 0x10_0874;
}

/// Bits of [`SetAttrIn::valid`].
pub(crate) mod valid {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    /// The caller may not keep set-user-ID and set-group-ID.
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// The bit of [`OpenOut::open_flags`] that keeps what the kernel has of a file's contents.
pub(crate) const KEEP_CACHE: u32 = 1 << 1;
/// The bit of [`WriteIn::write_flags`] of pages that the kernel writes back, for no process in particular.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// The bit of [`WriteIn::write_flags`] of a caller that may not keep set-user-ID and set-group-ID.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// The bit of [`SetXattrMore::more_flags`] of an ACL that takes set-group-ID off.
pub(crate) const ACL_KILL_SGID: u32 = 1 << 0;
/// The user and group in a request's header that does not have those of the caller.
pub(crate) const NO_ID: u32 = u32::MAX;
/// The bit of [`FsyncIn::flags`] that asks for data only.
pub(crate) const DATA_ONLY: u32 = 1 << 0;
/// The types of an extension's records: up to this, a number of labels; and groups.
pub(crate) const LABELS_MOST: usize = 31;
pub(crate) const GROUPS: usize = 32;
/// The notification that drops what the kernel knows of an inode.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
