//! What a caller is beyond what a request says of it: its supplementary groups, of which the host tells.
//!
//! A request has a user, one group, and the process that waits for the answer; the host says what groups that has. A
//! process of which it says nothing (of another namespace, say) has no more than the one group. No locks.

use crate::operations::Caller;

/// Set-user-ID.
const SET_UID: u16 = 0o4000;
/// Set-group-ID.
pub(crate) const SET_GID: u16 = 0o2000;
/// With it, set-group-ID makes a program run as its group.
const GROUP_EXECUTES: u16 = 0o10;

/// Whether a file of this mode and group loses set-group-ID when the caller changes what is in it, or its owner. Linux
/// takes it from a file that its group may not execute unless the caller is privileged or in the group. From other
/// files, and set-user-ID from all, the kernel takes it itself before it asks for the change, unless it agreed that the
/// server does so ([`privileges_lost`]).
pub(crate) fn costs_set_gid(caller: Caller, mode: u16, gid: u32) -> bool {
    mode & (SET_GID | GROUP_EXECUTES) == SET_GID && !is_privileged_or_in(caller, gid)
}

/// Which of set-user-ID and set-group-ID a file of this mode and group loses when a caller without CAP_FSETID changes
/// what is in it, or any caller its owner.
pub(crate) fn privileges_lost(caller: Caller, mode: u16, gid: u32) -> u16 {
    let executes = mode & (SET_GID | GROUP_EXECUTES) == SET_GID | GROUP_EXECUTES;
    let with_group = executes || costs_set_gid(caller, mode, gid);
    mode & (SET_UID | if with_group { SET_GID } else { 0 })
}

/// Whether the caller is root or in a group.
pub(crate) fn is_privileged_or_in(caller: Caller, gid: u32) -> bool {
    caller.uid == 0 || caller.gid == gid || groups_of(caller.pid).contains(&gid)
}

/// The supplementary groups of a process, or of one of its threads.
fn groups_of(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.map_or_else(|_| Vec::new(), |status| groups_in(&status))
}

fn groups_in(status: &str) -> Vec<u32> {
    let mut lines = status.lines();
    let groups = lines.find_map(|line| line.strip_prefix("Groups:"));
    let numbers = groups.unwrap_or("").split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
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
    fn only_who_is_neither_root_nor_in_the_group_costs_the_bit() {
        let caller = |uid, gid| Caller { uid, gid, pid: 0 };
        assert!(costs_set_gid(caller(7, 7), 0o2666, 8));
        assert!(!costs_set_gid(caller(7, 8), 0o2666, 8));
        assert!(!costs_set_gid(caller(0, 7), 0o2666, 8));
        // The kernel's business, and nothing to lose.
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
