//! The mount options of the kernel's ext4 that lanefs has no setting for. A line of fstab can be used as it is if its
//! options are true of every mount by lanefs; otherwise it is refused, with the reason.

use crate::failure::Failure;

/// Options that describe every mount by lanefs.
pub const ALWAYS_SO: &[&str] = &[
    "acl",
    "user_xattr",
    "barrier",
    "barrier=1",
    "journal_checksum",
    "block_validity",
    "nodelalloc",
    "auto_da_alloc",
    "auto_da_alloc=1",
    "bsddf",
    "noquota",
];

/// Options that lanefs refuses: their names, what a mount does instead, and what the user can do.
const REFUSED: &[(&[&str], &str, &str)] = &[
    (
        &["noacl", "nouser_xattr"],
        "a mount always has access control lists and attributes of users",
        LEAVE_OUT,
    ),
    (
        &["nobarrier", "barrier"],
        "a commit always flushes the device's cache",
        LEAVE_OUT,
    ),
    (
        &["nojournal_checksum"],
        "the journal of an image with metadata_csum always has checksums",
        LEAVE_OUT,
    ),
    (
        &["journal_dev", "journal_path"],
        "lanefs mounts no image whose journal is on another device",
        "mount such an image by the kernel (mount -t ext4)",
    ),
    (
        &[
            "usrquota",
            "grpquota",
            "prjquota",
            "quota",
            "usrjquota",
            "grpjquota",
            "jqfmt",
        ],
        "lanefs does not keep quotas",
        "leave it out; where quotas must hold, mount the image by the kernel (mount -t ext4)",
    ),
    (
        &["resuid", "resgid"],
        "the user and group of the reserved blocks are those of the superblock",
        "leave it out; `lanefs tune IMAGE reserved_uid=N` or `reserved_gid=N` changes them while it is not mounted",
    ),
    (
        &["noblock_validity"],
        "blocks of files are always compared with those of the file system's own tables",
        LEAVE_OUT,
    ),
    (
        &["delalloc", "noauto_da_alloc"],
        "blocks are allocated when data is written",
        LEAVE_OUT,
    ),
    (
        &["minixdf"],
        "statfs(2) leaves the blocks of the file system's own tables out",
        LEAVE_OUT,
    ),
    (
        &["i_version", "iversion"],
        "lanefs does not count the changes of an inode",
        LEAVE_OUT,
    ),
    (
        &["nouid32"],
        "users and groups always have 32 bits",
        LEAVE_OUT,
    ),
    (
        &[
            "dax",
            "inlinecrypt",
            "test_dummy_encryption",
            "data_err",
            "abort",
            "debug",
        ],
        ONLY_KERNEL,
        LEAVE_OUT,
    ),
    (
        &[
            "stripe",
            "inode_readahead_blks",
            "max_batch_time",
            "min_batch_time",
            "journal_ioprio",
            "max_dir_size_kb",
            "init_itable",
            "noinit_itable",
            "dioread_lock",
            "dioread_nolock",
            "nodioread_nolock",
            "nombcache",
            "no_mbcache",
            "prefetch_block_bitmaps",
            "no_prefetch_block_bitmaps",
        ],
        ONLY_KERNEL,
        LEAVE_OUT,
    ),
];

const LEAVE_OUT: &str = "leave it out";
const ONLY_KERNEL: &str = "only the kernel's ext4 has this option";

/// Whether an option of ext4 describes every mount by lanefs.
pub fn is_always_so(option: &str) -> bool {
    ALWAYS_SO.contains(&option)
}

/// Why an option of ext4 is refused, and the next step; `None` if ext4 has no option of this name.
pub fn refused(name: &str, value: Option<&str>) -> Option<Failure> {
    let (_, instead, hint) = REFUSED.iter().find(|(names, ..)| names.contains(&name))?;
    let shown = value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
    Some(Failure::usage(format!("{shown}: {instead}")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::mount_options::{OPTIONS, Settings, WITHOUT_EFFECT};

    #[test]
    fn an_option_of_ext4_is_accepted_where_it_is_so_and_else_refused_with_the_next_step() {
        let usual = "defaults,acl,user_xattr,barrier=1,data=ordered,journal_checksum,auto_da_alloc,nodelalloc,noquota";
        assert!(Settings::parse([usual, "barrier,block_validity,bsddf"]).is_ok());
        for (given, reason) in [
            ("nobarrier", "flushes"),
            ("barrier=0", "barrier=0: a commit always flushes"),
            ("usrquota", "quotas"),
            ("usrjquota=aquota.user", "quotas"),
            ("noacl", "access control lists"),
            ("stripe=16", "stripe=16: only the kernel's ext4"),
            ("resuid=5", "superblock"),
            ("acl=1", "acl takes no value"),
        ] {
            let failure = Settings::parse([given]).err().unwrap();
            assert!(failure.text().contains(reason), "{}", failure.text());
        }
        // No option is in two lists.
        for name in REFUSED.iter().flat_map(|(names, ..)| *names) {
            // `barrier` without a value is accepted before `barrier=0` is looked for.
            assert!(*name == "barrier" || !is_always_so(name), "{name}");
            assert!(
                !OPTIONS.contains(name) && !WITHOUT_EFFECT.contains(name),
                "{name}"
            );
        }
    }
}
