//! What the host knows about a caller in addition to the request: its supplementary groups and its capabilities.
//!
//! A request names a user, one group, and the process that waits for the answer. The host knows the groups and
//! capabilities of that process, and its user if the request has none. A process that the host does not know (of
//! another namespace, for example) has only the one group and no capabilities. So has every process where `/proc` has
//! other numbers than requests do ([`knows_processes`]). No locks.

use std::path::Path;

use rustix::io::Errno;

use crate::abi;
use crate::operations::{Answer, Caller};

/// Set-user-ID.
pub(crate) const SET_UID: u16 = 0o4000;
/// Set-group-ID.
pub(crate) const SET_GID: u16 = 0o2000;
/// With this bit, set-group-ID makes a program run as its group.
pub(crate) const GROUP_EXECUTES: u16 = 0o10;

/// Whether a file of this mode and group loses set-group-ID when the caller changes its contents or its owner. Linux
/// clears the bit of a file that its group may not execute, unless the caller is privileged or in the group. In all
/// other cases the kernel itself clears set-user-ID and set-group-ID before it asks for the change, unless it agreed
/// that the server does so ([`privileges_lost`]).
pub(crate) fn costs_set_gid(caller: Caller, mode: u16, gid: u32) -> bool {
    mode & (SET_GID | GROUP_EXECUTES) == SET_GID && !is_privileged_or_in(caller, gid)
}

/// Which of set-user-ID and set-group-ID a file of this mode and group loses when a caller without CAP_FSETID changes
/// its contents, or any caller its owner.
pub(crate) fn privileges_lost(caller: Caller, mode: u16, gid: u32) -> u16 {
    let executes = mode & (SET_GID | GROUP_EXECUTES) == SET_GID | GROUP_EXECUTES;
    let with_group = executes || costs_set_gid(caller, mode, gid);
    mode & (SET_UID | if with_group { SET_GID } else { 0 })
}

/// The bit of CAP_SYS_ADMIN in a set of capabilities.
const SYS_ADMIN: u64 = 1 << 21;
/// The contents of `/proc/self/uid_map` if users are not mapped.
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// Refuses a caller that is not the host's root with CAP_SYS_ADMIN, which is what ext4 requires for changes of the file
/// system as a whole. A server in a user namespace has no such callers.
///
/// # Errors
/// `PERM`.
pub(crate) fn check_admin(caller: Caller) -> Answer<()> {
    let users = std::fs::read_to_string("/proc/self/uid_map");
    let is_host = users.is_ok_and(|users| users.split_whitespace().eq(ALL_USERS));
    if is_host && is_admin(&status_of(caller.pid)) {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

/// Whether a process with this status acts as root and has CAP_SYS_ADMIN.
fn is_admin(status: &str) -> bool {
    // The real, effective and saved user, and the one for access to files.
    let user = value_in(status, "Uid:").split_whitespace().nth(3);
    let capabilities = u64::from_str_radix(value_in(status, "CapEff:").trim(), 16);
    user == Some("0") && capabilities.is_ok_and(|set| set & SYS_ADMIN != 0)
}

/// The caller with the user and the group of its process, for a request that has none; with those of nobody if the host
/// does not know the process. A thread of the kernel acts for others (the NFS server does), and the host shows the
/// thread as root; so it counts as nobody.
pub(crate) fn identified(caller: Caller) -> Caller {
    identified_by(caller, &status_of(caller.pid))
}

fn identified_by(caller: Caller, status: &str) -> Caller {
    let is_kernel = value_in(status, "Kthread:").trim() == "1";
    // The real, effective and saved one, and the one for access to files.
    let of_files = |name| {
        let number = value_in(status, name).split_whitespace().nth(3);
        let number = number.filter(|_| !is_kernel);
        number.and_then(|number| number.parse().ok())
    };
    Caller {
        uid: of_files("Uid:").unwrap_or(abi::NO_ID),
        gid: of_files("Gid:").unwrap_or(abi::NO_ID),
        ..caller
    }
}

/// The caller with all its groups, as its process has them; with `is_named`, its user and its first group are those of
/// the request.
pub(crate) fn with_groups(caller: Caller, is_named: bool) -> (Caller, Vec<u32>) {
    let status = status_of(caller.pid);
    let found = identified_by(caller, &status);
    let is_process = found.uid != abi::NO_ID;
    let caller = if is_named { caller } else { found };
    let mut gids = vec![caller.gid];
    // A thread of the kernel acts for others, so its groups are not theirs.
    if is_process {
        gids.extend(groups_in(&status));
    }
    (caller, gids)
}

/// Whether overlayfs may have sent the caller's request: then it has the rights of the process that mounted the
/// overlay, which the host does not show. A process in a chroot may be in an overlay that its list of mounts leaves
/// out.
pub(crate) fn may_be_overlay(caller: Caller) -> bool {
    let root = std::fs::read_link(format!("/proc/{}/root", caller.pid));
    if root.is_ok_and(|root| root != Path::new("/")) && knows_processes() {
        return true;
    }
    let mounts = record_of(caller.pid, "mountinfo");
    let types = mounts.lines().filter_map(|line| line.split_once(" - "));
    let mut types = types.filter_map(|(_, rest)| rest.split(' ').next());
    types.any(|name| name == "overlay")
}

/// Whether the caller is root or in a group.
pub(crate) fn is_privileged_or_in(caller: Caller, gid: u32) -> bool {
    caller.uid == 0 || caller.gid == gid || groups_of(caller.pid).contains(&gid)
}

/// The supplementary groups of a process, or of one of its threads.
fn groups_of(pid: u32) -> Vec<u32> {
    groups_in(&status_of(pid))
}

/// Whether `/proc` has the numbers of this process's namespace, which are those in requests. A server in a namespace of
/// its own may see the `/proc` of the host, where another process has the caller's number.
pub(crate) fn knows_processes() -> bool {
    let number = rustix::process::getpid().as_raw_nonzero().to_string();
    let is_shown = std::fs::read_link("/proc/self").is_ok_and(|shown| shown == Path::new(&number));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_shown && has_one_number(&status)
}

/// Whether a process has a number in the namespace of this `/proc` only. One of a namespace below has another number
/// there, which may happen to be the same.
fn has_one_number(status: &str) -> bool {
    value_in(status, "NSpid:").split_whitespace().count() == 1
}

/// The host's record of the state of a process, or of one of its threads; empty if it has none.
fn status_of(pid: u32) -> String {
    record_of(pid, "status")
}

/// What the host records about a process, or one of its threads; empty if it does not know the process.
fn record_of(pid: u32, name: &str) -> String {
    if !knows_processes() {
        return String::new();
    }
    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default()
}

fn groups_in(status: &str) -> Vec<u32> {
    let numbers = value_in(status, "Groups:").split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// The rest of the line that begins with this word.
fn value_in<'a>(status: &'a str, name: &str) -> &'a str {
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix(name)).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_line_that_names_them() {
        let status = "Name:\tGroups: 7\nGid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \nNStgid:\t9\n";
        assert_eq!(groups_in(status), [4, 24, 1000]);
        assert!(groups_in("Name:\tx\n").is_empty());
        assert!(groups_in("Groups:\t \n").is_empty());
    }

    #[test]
    fn a_process_of_a_namespace_below_has_two_numbers() {
        assert!(has_one_number("Pid:\t7\nNSpid:\t7\nNSsid:\t1\t1\n"));
        assert!(!has_one_number("Pid:\t7\nNSpid:\t7\t7\nNSsid:\t1\n"));
        assert!(!has_one_number("Pid:\t7\n"));
    }

    #[test]
    fn a_process_acts_as_the_user_and_group_that_it_has_for_files() {
        let caller = Caller {
            uid: abi::NO_ID,
            gid: abi::NO_ID,
            pid: 7,
        };
        let found = identified_by(caller, "Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n");
        assert_eq!((found.uid, found.gid, found.pid), (4, 8, 7));
        let kernel = "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nKthread:\t1\n";
        let kernel = identified_by(caller, kernel);
        assert_eq!((kernel.uid, kernel.gid), (abi::NO_ID, abi::NO_ID));
        let unknown = identified_by(Caller { uid: 0, ..caller }, "");
        assert_eq!((unknown.uid, unknown.gid), (abi::NO_ID, abi::NO_ID));
    }

    #[test]
    fn root_without_the_capability_is_not_the_administrator() {
        let status = |user, capabilities| {
            format!("Name:\tx\nUid:\t0\t0\t0\t{user}\nCapInh:\t0\nCapEff:\t{capabilities}\n")
        };
        assert!(is_admin(&status("0", "000001ffffffffff")));
        assert!(!is_admin(&status("0", "00000000a80425fb")));
        assert!(!is_admin(&status("7", "000001ffffffffff")));
        assert!(!is_admin(&status("0", "x")) && !is_admin(""));
    }

    #[test]
    fn only_who_is_neither_root_nor_in_the_group_costs_the_bit() {
        let caller = |uid, gid| Caller { uid, gid, pid: 0 };
        assert!(costs_set_gid(caller(7, 7), 0o2666, 8));
        assert!(!costs_set_gid(caller(7, 8), 0o2666, 8));
        assert!(!costs_set_gid(caller(0, 7), 0o2666, 8));
        // The kernel clears the bit in the first case; in the second it is not set.
        assert!(!costs_set_gid(caller(7, 7), 0o2676, 8));
        assert!(!costs_set_gid(caller(7, 7), 0o666, 8));
    }

    #[test]
    fn set_user_id_is_lost_by_all_and_set_group_id_where_it_means_something() {
        let of = |uid, gid, mode| privileges_lost(Caller { uid, gid, pid: 0 }, mode, 8);
        assert_eq!((of(7, 7, 0o4755), of(7, 8, 0o6755)), (0o4000, 0o6000));
        assert_eq!((of(7, 7, 0o6745), of(7, 8, 0o6745)), (0o6000, 0o4000));
        assert_eq!((of(0, 0, 0o6745), of(0, 0, 0o6755)), (0o4000, 0o6000));
        assert_eq!(of(7, 7, 0o777), 0);
    }
}
