//! What a library that is preloaded into this process changes in how files of the host are asked for.
//!
//! fakeroot and pseudo answer in place of libc's functions: a user who is not root sees the owners, types, devices and
//! extended attributes that he has set. All calls that see or set those go through libc (rustix's feature `use-libc`).
//! That is enough for fakeroot, which knows files by their inodes. pseudo knows them by their paths, too.

use sync::OnceLock;

/// The name, as the kernel lists it, of the library that follows descriptors.
const FOLLOWER: &str = "/libpseudo.so";

/// Whether a preloaded library (pseudo) keeps its own list of open directories and its own working directory, one a
/// process. Then directories must be opened by `openat`, since libc has no function for `openat2` and what that opens
/// is unknown to the library, and no thread may have a working directory of its own.
///
/// This can't change while the process lives; the list of what the process has mapped is read once.
#[must_use]
pub fn follows_descriptors() -> bool {
    static FOLLOWS: OnceLock<bool> = OnceLock::new();
    *FOLLOWS.get_or_init(|| {
        std::fs::read("/proc/self/maps").is_ok_and(|maps| {
            maps.windows(FOLLOWER.len())
                .any(|window| window == FOLLOWER.as_bytes())
        })
    })
}
