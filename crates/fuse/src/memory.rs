//! Memory of a server whose clients' writes are in the kernel's cache.
//!
//! # Why
//!
//! A program that writes more than its memory control group allows waits until the kernel has written some of it, which
//! is a request to the server. If the server is in the same group it may wait for memory too, and neither goes on. The
//! same holds for the whole machine, where a thread that writes to the image would be slowed down because its own
//! clients have written much.
//!
//! Takes no lock; nothing of it is on disk.

use std::io;
use std::path::{Path, PathBuf};

use rustix::process::configure_io_flusher_behavior;

/// The number of the first control group namespace (`PROC_CGROUP_INIT_INO`), as its link in `/proc` shows it.
const FIRST_NAMESPACE: &str = "cgroup:[4026531835]";

/// Prepares this process, before it opens the image, for serving a mount with the writeback cache: moves it to the root
/// of the memory control groups, in which no client waits for memory, and has the kernel not count it as one of those
/// that wait until changes are written (`PR_SET_IO_FLUSHER`). Both need root.
///
/// # Errors
/// The group in which the process remains, and why. The mount works all the same.
pub fn leave_memory_group() -> Result<(), String> {
    // Without it the server is slowed down like its clients, but it goes on.
    let _ = configure_io_flusher_behavior(true);
    let group = own_group().map_err(|error| format!("its memory control group: {error}"))?;
    let Some(group) = group else { return Ok(()) };
    if group.path == "/" {
        let namespace = std::fs::read_link("/proc/self/ns/cgroup");
        let is_first = namespace.is_ok_and(|link| link == Path::new(FIRST_NAMESPACE));
        return if is_first {
            Ok(())
        } else {
            Err("its memory control group is the container's".into())
        };
    }
    let failed = |error: io::Error| format!("its memory control group is {}: {error}", group.path);
    let root = root_of(group.is_unified).map_err(failed)?;
    let processes = root.join("cgroup.procs");
    std::fs::write(processes, std::process::id().to_string()).map_err(failed)
}

/// A memory control group.
#[derive(PartialEq, Eq, Debug)]
struct MemoryGroup {
    path: String,
    /// Whether it is one of version 2.
    is_unified: bool,
}

/// The group of this process; `None` if the kernel has none.
fn own_group() -> io::Result<Option<MemoryGroup>> {
    match std::fs::read_to_string("/proc/self/cgroup") {
        Ok(list) => Ok(listed(&list)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The memory control group in a list of a process's groups: that of version 1 if the controller is there.
fn listed(list: &str) -> Option<MemoryGroup> {
    let groups = list.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_unified = controllers.is_empty();
        let is_memory = is_unified || controllers.split(',').any(|name| name == "memory");
        let path = path.to_owned();
        is_memory.then_some(MemoryGroup { path, is_unified })
    });
    groups.min_by_key(|group| group.is_unified)
}

/// The directory of the root group.
fn root_of(is_unified: bool) -> io::Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    mounted(&mounts, is_unified).ok_or_else(|| io::Error::other("no directory of the root group"))
}

/// The directory of the root group in a list of mounts (`/proc/self/mountinfo`).
fn mounted(mounts: &str, is_unified: bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let (mut place, mut system) = (place.split(' ').skip(3), system.split(' '));
        let (root, directory) = (place.next()?, place.next()?);
        let (kind, options) = (system.next()?, system.nth(1)?);
        let is_it = if is_unified {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && options.split(',').any(|option| option == "memory")
        };
        (is_it && root == "/").then(|| PathBuf::from(directory))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_group_is_that_of_the_version_that_has_the_controller() {
        let group = |list, path: &str, is_unified| {
            let path = path.to_owned();
            assert_eq!(listed(list), Some(MemoryGroup { path, is_unified }));
        };
        group("0::/user.slice/a:b\n", "/user.slice/a:b", true);
        group("4:cpu,memory:/one\n1:cpu:/\n0::/other\n", "/one", false);
        group("0::/other\n4:memory:/one\n", "/one", false);
        assert_eq!(listed("1:cpu:/\n"), None);
        let mounts = "30 23 0:26 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n\
                      31 23 0:27 /part /mnt rw - cgroup cgroup rw,memory\n\
                      32 23 0:27 / /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory\n\
                      33 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n";
        let found = |is_unified| mounted(mounts, is_unified).unwrap();
        assert_eq!(found(false), Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(found(true), Path::new("/sys/fs/cgroup/unified"));
    }
}
