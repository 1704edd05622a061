//! How libraries that are preloaded into this process change the calls by which files of the host are opened.
//!
//! fakeroot and pseudo replace functions of libc, so that a user who is not root sees the owners, types, devices and
//! extended attributes that this user has set. All calls that read or set those go through libc (rustix's feature
//! `use-libc`). That is enough for fakeroot, which identifies files by inode. pseudo identifies them by path, too.

use sync::OnceLock;

/// The end of the path of pseudo's library in /proc/self/maps.
const FOLLOWER: &str = "/libpseudo.so";

/// Whether a preloaded library (pseudo) keeps its own list of open directories, and one working directory for the whole
/// process. Then directories must be opened with `openat`, because `openat2`, which has no function in libc, bypasses
/// the library; and no thread may have its own working directory.
///
/// The answer can't change while the process runs, so the list of mapped files is read once.
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
