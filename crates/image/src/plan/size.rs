//! How large an image is: the sizes that can be asked for, and the free space of an image whose size is not given.

/// How large the image is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// As small as its contents allow, and room beside them.
    Auto(Extra),
    /// This number of bytes.
    Fixed(u64),
}

/// Room beyond the smallest size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Extra {
    /// Enough that the image can be used: at least 5 % and 4 MiB (3 MiB for trees below 1 MiB) are free for everybody,
    /// beside what only root may use.
    #[default]
    Usable,
    /// None: the smallest image.
    None,
    /// This number of bytes.
    Bytes(u64),
    /// This percentage of the smallest size.
    Percent(u64),
}

/// Linux keeps one cluster in 50 for itself, at most this number of them.
const KERNEL_SHARE: u64 = 50;
const KERNEL_CLUSTERS_MAX: u64 = 4096;
/// The share of a usable image that is free: one in 20, which is 5 %.
const USABLE_SHARE: u64 = 20;
/// The least free bytes of a usable image.
const USABLE_BYTES: u64 = 4 << 20;
/// The same for trees with less data than [`SMALL_TREE_BYTES`], whose smallest image with a journal has that much.
const USABLE_BYTES_SMALL: u64 = 3 << 20;
const SMALL_TREE_BYTES: u64 = 1 << 20;

impl Extra {
    /// `smallest` bytes and the extra room.
    pub(crate) fn add(self, smallest: u64) -> u64 {
        match self {
            Extra::Usable | Extra::None => smallest,
            Extra::Bytes(more) => smallest.saturating_add(more),
            Extra::Percent(percent) => {
                let more = u128::from(smallest) * u128::from(percent) / 100;
                smallest.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
            }
        }
    }
}

/// The bytes that are free in a usable image of `image` bytes with `data` bytes of files: those that everybody may use,
/// `reserved` ones that only root may, and those that Linux keeps for itself, in clusters of `cluster` bytes.
pub(crate) fn usable_bytes(image: u64, data: u64, reserved: u64, cluster: u64) -> u64 {
    let least = if data < SMALL_TREE_BYTES {
        USABLE_BYTES_SMALL
    } else {
        USABLE_BYTES
    };
    let kernel = (image / cluster / KERNEL_SHARE).min(KERNEL_CLUSTERS_MAX) * cluster;
    least.max(image.div_ceil(USABLE_SHARE)) + reserved + kernel
}

/// The inodes for `needed` and for `free` bytes: one for each `ratio` bytes that remain when those inodes, of
/// `inode_size` bytes each, have taken their own room out of `free`.
pub(crate) fn proportional_inodes(needed: u64, free: u64, ratio: u64, inode_size: u64) -> u64 {
    needed + free / (ratio + inode_size)
}
