//! The numbers that the table calls e2fsck's: damage made with debugfs, which both name by the same number.

use std::fs;
use std::path::Path;
use std::process::Command;

use lanefs_check::problem::Code;

use crate::mended::mended;
use crate::{check, e2fsck};

/// What mke2fs is given beyond the defaults, debugfs's commands, and the problem that both find.
const DAMAGE: &[(&str, &[&str], Code)] = &[
    ("", &["sif <2> mode 0100644"], Code::RootNotDirectory),
    ("", &["sif <2> dtime 1795611834"], Code::RootDtime),
    (
        "",
        &["sif <9> mode 0100644", "sif <9> links_count 1"],
        Code::ReservedMode,
    ),
    ("", &["sif <3> links_count 1"], Code::QuotaInodeLeft),
    ("", &["sif <4> block[0] 700"], Code::QuotaInodeLeft),
    (
        "-O ^has_journal",
        &["sif <8> blocks 2"],
        Code::JournalInodeLeft,
    ),
    ("", &["sif <6> blocks 2"], Code::InodeBlocks),
    ("", &["sif <9> flags 0x1000"], Code::DirectoryFeature),
    (
        "",
        &["sif /f links_count 0", "sif /f dtime 0"],
        Code::ZeroDtime,
    ),
    ("", &["sif /f dtime 1795611834"], Code::SetDtime),
    ("", &["sif /f dtime 12"], Code::LowDtime),
    (
        "",
        &["sif /f dtime 12", "sif /f links_count 0"],
        Code::LowDtime,
    ),
    (
        "-O ^encrypt",
        &["sif /f flags 0x80800"],
        Code::EncryptWithoutContext,
    ),
    ("", &["sif /f flags 0x82000"], Code::ImagicFlag),
    ("", &["sif /p flags 0x10"], Code::DeviceFlags),
    ("", &["sif /p size 77"], Code::DeviceSize),
    ("", &["sif /f extra_isize 6"], Code::ExtraSize),
    (
        "",
        &["sif /f mtime 0xF0000000", "sif /f mtime_extra 3"],
        Code::TimeOutOfRange,
    ),
    ("", &["sif <1> mode 0100644"], Code::BadBlocksInode),
    ("", &["sif /big size 700"], Code::InodeSize),
    ("", &["sif /f blocks 7"], Code::InodeBlocks),
    (
        "-O ^extents,^64bit",
        &["sif /f flags 0x80000"],
        Code::ExtentsFeature,
    ),
    ("", &["sif /f flags 0"], Code::ExtentsFlagMissing),
    (
        "-O inline_data",
        &["sif /f flags 0x10080000"],
        Code::InlineExtents,
    ),
    ("", &["sif /f flags 0x81000"], Code::DirectoryFeature),
    ("", &["link <2> /d/root"], Code::EntryRoot),
    ("", &["link /d /d2"], Code::DirectoryLinked),
    ("", &["clri /f"], Code::EntryUnused),
    ("", &["sif /f mode 0070644"], Code::InodeMode),
    ("", &["sif /l size 5"], Code::SymlinkInvalid),
    ("", &["sif /f mode 0120777"], Code::EntryType),
    (
        "-O ^metadata_csum",
        &["zap -f /d -o 31 -l 1 -p 7 0"],
        Code::EntryType,
    ),
    ("", &["unlink /big"], Code::Unattached),
    ("", &["unlink /d/e"], Code::Unconnected),
    ("", &["link /f /another"], Code::Links),
    (
        "",
        &["set_bg 0 itable_unused 4090", "set_bg 0 checksum calc"],
        Code::NoRoot,
    ),
    ("", &["freeb 1200"], Code::BlockFreeUsed),
    ("", &["setb 12000"], Code::BlockUsedFree),
    ("", &["freei /f"], Code::InodeFreeUsed),
    ("", &["seti <90>"], Code::InodeUsedFree),
    (
        "",
        &["set_bg 0 free_blocks_count 5", "set_bg 0 checksum calc"],
        Code::GroupFreeBlocks,
    ),
    (
        "",
        &["set_bg 0 free_inodes_count 5", "set_bg 0 checksum calc"],
        Code::GroupFreeInodes,
    ),
    (
        "",
        &["set_bg 0 used_dirs_count 9", "set_bg 0 checksum calc"],
        Code::GroupDirectories,
    ),
    ("", &["ssv free_blocks_count 5"], Code::FreeBlocks),
    ("", &["ssv free_inodes_count 5"], Code::FreeInodes),
    (
        "",
        &["set_bg 0 itable_unused 4090", "set_bg 0 checksum calc"],
        Code::DescriptorCounts,
    ),
    ("", &["set_bg 0 checksum 0x1234"], Code::DescriptorChecksum),
    (
        "-O ^metadata_csum,^uninit_bg",
        &["set_bg 1 flags 2"],
        Code::DescriptorFlags,
    ),
    (
        "-b 4096",
        &["set_bg 0 block_bitmap 9999999", "set_bg 0 checksum calc"],
        Code::BlockBitmapPlace,
    ),
    (
        "-b 4096",
        &["set_bg 0 inode_bitmap 9999999", "set_bg 0 checksum calc"],
        Code::InodeBitmapPlace,
    ),
    ("", &["feature ^has_journal"], Code::JournalExtra),
    (
        "-O ^has_journal",
        &["feature needs_recovery"],
        Code::JournalRecoverWithout,
    ),
    ("", &["clri <8>"], Code::JournalInode),
    (
        "-O ^large_file",
        &["sif /f size 3000000000"],
        Code::LargeFile,
    ),
    // The resize inode of a file system with blocks of 4 KiB is larger than 2 GiB, too.
    ("-b 4096", &["feature -large_file"], Code::LargeFile),
    (
        "-b 4096 -O bigalloc",
        &["feature -large_file"],
        Code::LargeFile,
    ),
    ("", &["feature ^resize_inode"], Code::ResizeWithout),
    ("", &["feature ^resize_inode"], Code::ResizeLeft),
    ("", &["clri <7>"], Code::ResizeInode),
    (
        "",
        &["sif /f file_acl 3000", "feature ^ext_attr"],
        Code::XattrFeature,
    ),
    ("", &["sif /f file_acl 300000"], Code::XattrBlockPlace),
    ("-O quota", &["sif /f uid 77"], Code::QuotaUsage),
    ("-O quota", &["sif /big gid 99999"], Code::QuotaUsage),
    (
        "-O project,quota -E quotatype=prjquota",
        &["sif /f projid 3"],
        Code::QuotaUsage,
    ),
    ("", &["link /d /d/itself"], Code::EntryItself),
    (
        "",
        &["set_bg 0 itable_unused 2034", "set_bg 0 checksum calc"],
        Code::EntryUninit,
    ),
    (
        "-O casefold -E encoding=utf8",
        &["sif /f flags 0x40080000"],
        Code::CasefoldNotDirectory,
    ),
    ("", &["sif /d flags 0x40080000"], Code::CasefoldFeature),
    ("", &["sif /d mode 0140755"], Code::LooksDirectory),
    (
        "-O ^extents,^64bit",
        &["sif /d mode 0"],
        Code::LooksDirectory,
    ),
    ("", &["sif /l flags 0x80000"], Code::SymlinkInvalid),
    ("-O encrypt", &["sif /l flags 0x800"], Code::SymlinkInvalid),
    (
        "-O ^extents,^64bit",
        &["sif /long block[1] 9000"],
        Code::SymlinkInvalid,
    ),
    (
        "-O inline_data",
        &["sif /long size 90"],
        Code::SymlinkInvalid,
    ),
    (
        "-O ^metadata_csum",
        &["zap -f /d -o 9 -l 1 -p 98 0"],
        Code::DotNotTerminated,
    ),
    (
        "-O ^metadata_csum",
        &["zap -f /d -o 22 -l 1 -p 98 0"],
        Code::DotDotNotTerminated,
    ),
    (
        "-O ^metadata_csum",
        &["zap -f /d -o 4 -l 1 -p 36 0"],
        Code::DotLong,
    ),
    (
        "",
        &["set_bg 1 flags 2", "set_bg 1 checksum calc"],
        Code::LastGroupUninit,
    ),
    (
        "-O ^metadata_csum",
        &[
            "zap -f /d -o 30 -l 1 -p 1 0",
            "zap -f /d -o 32 -l 1 -p 46 0",
        ],
        Code::DotAgain,
    ),
    (
        "",
        &["set_bg 1 free_inodes_count 5", "set_bg 1 checksum calc"],
        Code::DescriptorCounts,
    ),
];

/// Problems of this list that a repair must also mend.
const MENDED: &[Code] = &[
    Code::CasefoldNotDirectory,
    Code::CasefoldFeature,
    Code::LooksDirectory,
    Code::SymlinkInvalid,
    Code::DotNotTerminated,
    Code::DotDotNotTerminated,
    Code::DotLong,
    Code::DotAgain,
    Code::LastGroupUninit,
    Code::DescriptorCounts,
    Code::QuotaInodeLeft,
    Code::JournalInodeLeft,
    Code::InodeBlocks,
    Code::DirectoryFeature,
    Code::LargeFile,
];

fn source(root: &Path) {
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::write(root.join("d/g"), "").unwrap();
    fs::write(root.join("f"), "f").unwrap();
    fs::write(root.join("big"), vec![9; 300_000]).unwrap();
    std::os::unix::fs::symlink("x", root.join("l")).unwrap();
    std::os::unix::fs::symlink("x".repeat(100), root.join("long")).unwrap();
    let _ = Command::new("mkfifo").arg(root.join("p")).output();
}

/// Makes each damaged image.
pub fn each(mut judge: impl FnMut(&[u8], String, Code)) {
    let folder = tempfile::tempdir().unwrap();
    let [root, image] = ["source", "image"].map(|name| folder.path().join(name));
    source(&root);
    for (options, commands, code) in DAMAGE {
        let _ = fs::remove_file(&image);
        let mut words = vec!["-t", "ext4", "-b", "1024"];
        words.extend(options.split_whitespace());
        words.extend(["-d", root.to_str().unwrap(), image.to_str().unwrap(), "16M"]);
        testkit::mke2fs(&words);
        // One session: debugfs may not open again what its first command left.
        testkit::debugfs_script(&image, &(commands.join("\n") + "\n"));
        let what = format!("{options} {commands:?}");
        judge(&testkit::read_image(&image), what, *code);
    }
}

#[test]
fn damage_has_the_number_that_e2fsck_gives_it() {
    if !testkit::have("mke2fs") || !testkit::have("debugfs") {
        return testkit::skip("mke2fs or debugfs is missing");
    }
    let mut wrong = Vec::new();
    each(|bytes, what, code| {
        let number = code.kind().number;
        let verdict = e2fsck(bytes).unwrap();
        let report = check(bytes, 2).unwrap();
        let is_found = report.counts.contains_key(&code);
        if !is_found
            || !verdict.numbers.contains(&number)
            || report.is_clean() == verdict.is_damage()
        {
            let (ours, theirs) = (crate::shown(&report), &verdict.numbers);
            wrong.push(format!(
                "{what}, {code:?} {number:#08x}:\n{ours}    e2fsck: {theirs:06x?}"
            ));
        }
        if MENDED.contains(&code) {
            mended(bytes, &what);
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
