//! What the kernel's and e2fsck's replay of fast commits get wrong (F1 to F23 in docs/logtree.md), each shown on a log
//! made for it, and that what lanefs logs avoids it: they and lanefs show the same tree after it.
//!
//! If a later kernel or e2fsck has mended one, the test does not fail: it prints `skipped:`.

use std::fs;

use lanefs_engine::Ino;
use ondisk::jbd2::JournalFeatures;
use testkit::sha256;

use crate::fast_commits::Linux;
use crate::fc_area::{FcArea, Kind, Tag};
use crate::fsync_log::{NEW, after_a_cut, count, device, shared};
use crate::image::open;

mod area;
mod attributes;
mod budget;
mod case;
mod end;
mod fields;
mod half;
mod index;
mod leftovers;
mod ranges;
mod room;

use case::{Case, OLD, e2fsck, kernel, shows};

/// The log of `ln a x; rm a; new a; fsync a`, and the records in the order in which Linux writes them.
fn replaced(case: &Case) -> (Vec<u8>, FcArea, Vec<Tag>) {
    case.link("a", "x");
    case.unlink("a");
    case.create("a", b'n', 9000);
    case.fsync("a");
    assert_eq!(case.log_commits(), 1);
    case.cut()
}

#[test]
fn f1_e2fsck_gives_up_the_journal_where_an_old_fast_commit_is_left() {
    let Some(case) = Case::new() else { return };
    case.create("f", b'f', 9000);
    case.fsync("f");
    let (image, area, tags) = case.cut();
    assert!(!tags.is_empty());
    let head = area.first(&image).to_vec();
    case.create("g", b'g', 9000);
    case.fs.sync().unwrap();
    let (mut image, area, _) = case.cut();
    area.set_first(&mut image, &head);
    let seen = kernel(&image);
    assert!(seen.has("dir/g") && seen.is_clean(), "{seen:?}");
    let seen = e2fsck(&image);
    shows(!seen.has("dir/g"), seen.has("dir/f"), &seen);
}

#[test]
fn f1_a_full_commit_leaves_no_fast_commit_behind() {
    let Some(case) = Case::new() else { return };
    case.create("f", b'f', 9000);
    case.fsync("f");
    case.create("g", b'g', 9000);
    case.fs.sync().unwrap();
    let (image, area, _) = case.cut();
    assert!(area.first(&image).iter().all(|byte| *byte == 0));
    let seen = after_a_cut(&case.device);
    assert!(seen.entries.contains_key(&b"dir/f"[..]) && seen.entries.contains_key(&b"dir/g"[..]));
}

#[test]
fn f1_what_linux_left_in_the_area_goes_before_the_log_is_used() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    fs::write(linux.at("new"), [5; 9000]).unwrap();
    linux.fsync("new");
    let Linux {
        directory: _directory,
        image: path,
        mounted,
    } = linux;
    drop(mounted);
    let left = testkit::read_image(&path);
    let device = device(left.clone());
    let fs = open(shared(&device));
    let area = FcArea::of(&fs, &left);
    assert!(
        area.first(&left).starts_with(&[9, 0, 8, 0]),
        "Linux wrote a fast commit"
    );
    fs.create(Ino::ROOT, b"later", NEW).unwrap();
    fs.sync().unwrap();
    let seen = after_a_cut(&device);
    assert!(seen.entries.contains_key(&b"later"[..]) && seen.entries.contains_key(&b"dir/new"[..]));
}

#[test]
fn f2_the_kernel_refuses_an_inode_without_links() {
    let Some(case) = Case::new() else { return };
    case.grow("a");
    case.create("f", b'f', 9000);
    case.fsync("f");
    let (mut image, area, mut tags) = case.cut();
    let a = case.ino("a");
    let of_a = tags
        .iter()
        .rfind(|tag| tag.ino() == a && tag.links().is_some())
        .unwrap();
    let of_a = of_a.with_links(0);
    tags.retain(|tag| tag.ino() != a);
    let mut without = testkit::copy_image(&image);
    area.write(&mut without, &tags, None);
    assert!(kernel(&without).has("dir/f"));
    tags.insert(0, of_a);
    area.write(&mut image, &tags, None);
    let seen = kernel(&image);
    shows(seen.tree.is_none(), seen.has("dir/f"), &seen);
}

#[test]
fn f2_a_file_without_names_is_not_logged() {
    let Some(case) = Case::new() else { return };
    let a = case.ino("a");
    case.fs.hold(a).unwrap();
    case.unlink("a");
    case.create("f", b'f', 9000);
    case.fsync("f");
    case.fs.write(a, 0, b"still open").unwrap();
    case.fs.fsync(a).unwrap();
    assert_eq!(case.log_commits(), 1);
    let (_, _, tags) = case.cut();
    assert!(tags.iter().all(|tag| tag.ino() != a), "{tags:?}");
    let seen = after_a_cut(&case.device);
    assert!(seen.entries.contains_key(&b"dir/f"[..]));
    // Nor is it when the directory's names are what counts.
    case.fs.fsync(case.dir).unwrap();
    assert_eq!(case.log_commits(), 1);
    let seen = after_a_cut(&case.device);
    assert!(seen.entries.contains_key(&b"dir/f"[..]) && !seen.entries.contains_key(&b"dir/a"[..]));
}

#[test]
fn f3_the_kernel_replays_a_new_directory_without_its_block() {
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    fs::create_dir(linux.at("made")).unwrap();
    fs::write(linux.at("made/file"), [7; 9000]).unwrap();
    linux.fsync("made/file");
    let seen = kernel(&testkit::read_image(&linux.crashed("made.img")));
    shows(
        !seen.is_clean(),
        seen.holds("dir/made/file", &[7; 9000]),
        &seen,
    );
    fs::remove_dir_all(linux.at("made")).unwrap();
    testkit::run("sync", &["-f", linux.mounted.path().to_str().unwrap()]);
    fs::create_dir(linux.at("made")).unwrap();
    testkit::run("sync", &["-f", linux.mounted.path().to_str().unwrap()]);
    fs::remove_dir(linux.at("made")).unwrap();
    fs::write(linux.at("new"), [7; 9000]).unwrap();
    linux.fsync("new");
    let seen = kernel(&testkit::read_image(&linux.crashed("removed.img")));
    shows(!seen.is_clean(), seen.holds("dir/new", &[7; 9000]), &seen);
}

#[test]
fn f3_directories_that_come_and_go_are_committed_in_full() {
    let Some(case) = Case::new() else { return };
    let made = case.fs.mkdir(case.dir, b"made", NEW).unwrap();
    let file = case.fs.create(made, b"file", NEW).unwrap();
    case.fs.write(file, 0, &[7; 9000]).unwrap();
    case.fs.fsync(file).unwrap();
    let seen = after_a_cut(&case.device);
    assert_eq!(seen.entries[&b"dir/made/file"[..]].size, 9000);
    case.rename("made", "moved");
    case.fs.unlink(made, b"file").unwrap();
    case.fs.fsync(made).unwrap();
    let seen = after_a_cut(&case.device);
    assert!(seen.entries.contains_key(&b"dir/moved"[..]));
    case.fs.rmdir(case.dir, b"moved").unwrap();
    case.create("f", b'f', 9000);
    case.fsync("f");
    let seen = after_a_cut(&case.device);
    assert!(!seen.entries.contains_key(&b"dir/moved"[..]));
    assert_eq!(case.log_commits(), 0);
}

#[test]
fn f4_the_kernel_takes_a_link_from_the_inode_whatever_the_name_stands_for() {
    let Some(case) = Case::new() else { return };
    case.grow("b");
    let (mut image, area, mut tags) = case.cut();
    tags.push(Tag::Name(
        Kind::Unlink,
        case.dir,
        b"a".to_vec(),
        case.ino("b"),
    ));
    area.write(&mut image, &tags, None);
    let seen = kernel(&image);
    let is_right = seen.is_clean() && seen.has("dir/a") && seen.has("dir/b");
    shows(!is_right, is_right, &seen);
}

#[test]
fn f4_e2fsck_gives_up_its_replay_at_a_name_that_is_not_there() {
    let Some(case) = Case::new() else { return };
    case.grow("b");
    let (mut image, area, mut tags) = case.cut();
    let b = case.ino("b");
    let twice = tags
        .iter()
        .rfind(|tag| tag.links().is_some())
        .map(|tag| tag.with_links(2));
    let before = tags.len();
    tags.push(Tag::Name(Kind::Link, case.dir, b"later".to_vec(), b));
    tags.extend(twice);
    let mut without = testkit::copy_image(&image);
    area.write(&mut without, &tags, None);
    assert!(e2fsck(&without).has("dir/later"));
    let never = Tag::Name(Kind::Unlink, case.dir, b"never".to_vec(), b);
    tags.insert(before, never);
    area.write(&mut image, &tags, None);
    let seen = e2fsck(&image);
    shows(!seen.has("dir/later"), seen.has("dir/later"), &seen);
}

#[test]
fn f4_names_are_taken_only_where_they_are_and_from_whom_they_stand_for() {
    let Some(case) = Case::new() else { return };
    case.rename("a", "x");
    case.rename("b", "a");
    case.fsync("a");
    let seen = after_a_cut(&case.device);
    assert_eq!(seen.entries[&b"dir/a"[..]].contents, sha256(&[b'b'; OLD]));
    case.rename("x", "y");
    case.rename("y", "b");
    case.fsync("b");
    let seen = after_a_cut(&case.device);
    assert_eq!(seen.entries[&b"dir/b"[..]].contents, sha256(&[b'a'; OLD]));
    // Names that came and went are in no record.
    case.create("t", b't', 100);
    case.rename("t", "u");
    case.rename("c", "t");
    case.rename("t", "c");
    case.rename("u", "v");
    case.fsync("v");
    let (_, _, tags) = case.cut();
    let of = |name: &[u8]| {
        tags.iter()
            .any(|tag| matches!(tag, Tag::Name(_, _, of, _) if of == name))
    };
    assert!(!of(b"u") && !of(b"t") && !of(b"c") && of(b"v"), "{tags:?}");
    after_a_cut(&case.device);
    assert_eq!(case.log_commits(), 3);
}

#[test]
fn f5_the_kernel_keeps_what_a_name_stood_for_when_it_is_given_again() {
    let Some(case) = Case::new() else { return };
    case.create("n", b'n', 9000);
    case.fsync("n");
    let (image, area, tags) = case.cut();
    let mut given: Vec<Tag> = tags.clone();
    for tag in &mut given {
        if let Tag::Name(_, _, name, _) = tag {
            *name = b"a".to_vec();
        }
    }
    let mut twice = testkit::copy_image(&image);
    area.write(&mut twice, &given, None);
    let seen = kernel(&twice);
    shows(!seen.is_clean(), seen.holds("dir/a", &[b'n'; 9000]), &seen);
    // A new inode's name without its inode before it.
    let place = tags
        .iter()
        .position(|tag| tag.is_name(Kind::Creat))
        .unwrap();
    let mut bare = image;
    area.write(&mut bare, &tags[place..], None);
    let seen = kernel(&bare);
    shows(
        seen.tree.is_none() || !seen.is_clean(),
        seen.has("dir/n"),
        &seen,
    );
}

#[test]
fn f5_a_name_is_taken_before_it_is_given_and_its_inode_is_there() {
    let Some(case) = Case::new() else { return };
    case.rename("a", "x");
    case.create("a", b'n', 9000);
    case.fsync("a");
    let seen = after_a_cut(&case.device);
    assert_eq!(seen.entries[&b"dir/a"[..]].contents, sha256(&[b'n'; 9000]));
    assert_eq!(seen.entries[&b"dir/x"[..]].contents, sha256(&[b'a'; OLD]));
    assert_eq!(case.log_commits(), 1);
    // A file that had no name in the last full commit.
    let unnamed = case.fs.create_unnamed(case.dir, NEW).unwrap();
    case.fs.write(unnamed, 0, &[b'u'; 9000]).unwrap();
    case.fs.sync().unwrap();
    case.fs.link(unnamed, case.dir, b"u").unwrap();
    case.fsync("u");
    let seen = after_a_cut(&case.device);
    assert_eq!(seen.entries[&b"dir/u"[..]].contents, sha256(&[b'u'; 9000]));
}

#[test]
fn f6_without_the_other_names_old_data_are_lost() {
    let Some(case) = Case::new() else { return };
    let (image, area, tags) = replaced(&case);
    for kind in [Kind::Link, Kind::Unlink] {
        let (mut image, mut left) = (testkit::copy_image(&image), tags.clone());
        let before = left.len();
        left.retain(|tag| !tag.is_name(kind));
        assert_eq!(left.len(), before - 1, "{tags:?}");
        area.write(&mut image, &left, None);
        let seen = kernel(&image);
        let is_right = seen.is_clean() && seen.holds("dir/x", &[b'a'; OLD]);
        shows(!is_right, is_right, &seen);
    }
}

#[test]
fn f6_a_name_brings_the_file_that_had_it_and_that_files_names() {
    let Some(case) = Case::new() else { return };
    replaced(&case);
    let seen = after_a_cut(&case.device);
    assert_eq!(seen.entries[&b"dir/a"[..]].contents, sha256(&[b'n'; 9000]));
    assert_eq!(seen.entries[&b"dir/x"[..]].contents, sha256(&[b'a'; OLD]));
}

#[test]
fn f7_the_kernel_loses_what_a_short_link_and_a_device_say() {
    let Some(case) = Case::new() else { return };
    case.fs.create(case.dir, b"n", NEW).unwrap();
    case.fsync("n");
    let (image, area, tags) = case.cut();
    // Of a link to `a`, and of the device 1:3.
    let link = (0o120_777, 1, *b"a\0\0\0\0\0\0\0");
    let null = (0o020_644, 0, [3, 1, 0, 0, 0, 0, 0, 0]);
    for (mode, size, says) in [link, null] {
        let mut special = tags.clone();
        for tag in &mut special {
            if let Tag::Inode(_, raw) = tag {
                make_special(raw, mode, size, says);
            }
        }
        let mut image = testkit::copy_image(&image);
        area.write(&mut image, &special, None);
        let seen = kernel(&image);
        let tree = seen.tree.as_ref();
        let entry = tree.and_then(|tree| tree.entries.get(&b"dir/n"[..]));
        let is_right =
            seen.is_clean() && entry.is_some_and(|entry| entry.contents == b"a" || entry.rdev != 0);
        shows(!is_right, is_right, &seen);
    }
}

/// Makes an empty file's record one that holds these bytes in place of a map.
fn make_special(raw: &mut [u8], mode: u16, size: u8, says: [u8; 8]) {
    const EXTENTS: u32 = 0x8_0000;
    raw[..2].copy_from_slice(&mode.to_le_bytes());
    raw[4] = size;
    let flags = u32::from_le_bytes(raw[32..36].try_into().unwrap()) & !EXTENTS;
    raw[32..36].copy_from_slice(&flags.to_le_bytes());
    raw[40..100].fill(0);
    raw[40..48].copy_from_slice(&says);
}

#[test]
fn f7_links_and_devices_are_committed_in_full() {
    let Some(case) = Case::new() else { return };
    case.fs.symlink(case.dir, b"short", b"a", NEW).unwrap();
    let of_device = lanefs_engine::FileType::CharDevice;
    case.fs
        .mknod(case.dir, b"null", of_device, (1, 3), NEW)
        .unwrap();
    case.create("new", b'n', 9000);
    case.fs.fsync(case.dir).unwrap();
    let seen = after_a_cut(&case.device);
    assert_eq!(seen.entries[&b"dir/short"[..]].contents, b"a");
    assert_ne!(seen.entries[&b"dir/null"[..]].rdev, 0);
    assert_eq!(case.log_commits(), 0);
}

#[test]
fn f8_no_record_has_what_else_changed_of_a_directory() {
    use std::os::unix::fs::PermissionsExt;
    let Some(linux) = Linux::new("4096") else {
        return;
    };
    // In Linux's order: what came before is there when what came later is, except fast commits.
    fs::set_permissions(linux.at(""), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(linux.at("later"), [7; 9000]).unwrap();
    linux.fsync("later");
    let seen = kernel(&testkit::read_image(&linux.crashed("mode.img")));
    assert!(seen.holds("dir/later", &[7; 9000]), "{seen:?}");
    let mode = seen.tree.as_ref().unwrap().entries[&b"dir"[..]].mode & 0o777;
    shows(mode != 0o700, mode == 0o700, &seen);
}

#[test]
fn f8_e2fsck_gives_up_where_a_directory_has_no_room_for_a_name() {
    let Some(case) = Case::new() else { return };
    // Names of 104 bytes each leave less than 200 of a block.
    for number in 0..37 {
        let name = format!("{number:0>94}");
        case.fs.create(case.dir, name.as_bytes(), NEW).unwrap();
    }
    case.fs.sync().unwrap();
    case.fs.checkpoint().unwrap();
    case.create("n", b'n', 100);
    case.fsync("n");
    let (mut image, area, mut tags) = case.cut();
    for tag in &mut tags {
        if let Tag::Name(_, _, name, _) = tag {
            *name = vec![b'n'; 200];
        }
    }
    assert!(!tags.is_empty());
    area.write(&mut image, &tags, None);
    let path = format!("dir/{}", "n".repeat(200));
    assert!(kernel(&image).has(&path), "the kernel makes room");
    let seen = e2fsck(&image);
    shows(!seen.has(&path), seen.has(&path), &seen);
}

#[test]
fn f8_a_directory_that_changed_in_more_than_names_or_grew_is_committed_in_full() {
    let Some(case) = Case::new() else { return };
    let private = lanefs_engine::SetAttributes {
        mode: Some(0o700),
        ..Default::default()
    };
    case.fs.set_attributes(case.dir, &private).unwrap();
    case.fs.fsync(case.dir).unwrap();
    let seen = after_a_cut(&case.device);
    assert_eq!(seen.entries[&b"dir"[..]].mode & 0o777, 0o700);
    // A directory of one block becomes an index with two leaves.
    let unloggable = || count(&case.fs, "fsync.full_unloggable");
    let mut has_grown = false;
    for number in 0..100 {
        let name = format!("{number:0>100}");
        let size = case.fs.metadata(case.dir).unwrap().size;
        case.fs.create(case.dir, name.as_bytes(), NEW).unwrap();
        let before = unloggable();
        case.fs.fsync(case.dir).unwrap();
        let grows = case.fs.metadata(case.dir).unwrap().size > size;
        assert_eq!(unloggable() - before, u64::from(grows), "{number}");
        has_grown |= grows;
        if number % 25 == 24 || grows {
            let seen = after_a_cut(&case.device);
            assert!(seen.entries.contains_key(format!("dir/{name}").as_bytes()));
        }
    }
    assert!(has_grown);
}

#[test]
fn f9_e2fsck_gives_a_number_that_is_used_again_the_old_blocks() {
    let Some(case) = Case::new() else { return };
    let n = case.fs.create(case.dir, b"n", NEW).unwrap();
    case.fs.truncate(n, OLD as u64).unwrap();
    case.fsync("n");
    let (mut image, area, tags) = case.cut();
    let a = case.ino("a");
    let mut again: Vec<Tag> = tags.iter().map(|tag| tag.with_ino(a)).collect();
    again.retain(|tag| !matches!(tag, Tag::Del(..) | Tag::Add(..)));
    let of_a = Tag::Name(Kind::Unlink, case.dir, b"a".to_vec(), a);
    again.insert(0, of_a);
    area.write(&mut image, &again, None);
    let seen = e2fsck(&image);
    let is_old = seen.holds("dir/n", &[b'a'; OLD]);
    shows(is_old, seen.holds("dir/n", &[0; OLD]), &seen);
}

#[test]
fn f9_numbers_and_blocks_wait_for_a_full_commit() {
    let Some(case) = Case::new() else { return };
    let a = case.ino("a");
    let blocks = |ino| {
        let runs = case.fs.mappings(ino).unwrap();
        runs.filter_map(|run| run.unwrap().physical)
            .collect::<Vec<_>>()
    };
    let of_a = blocks(a);
    case.unlink("a");
    for number in 0..12 {
        let name = format!("n{number}");
        let new = case.create(&name, b'n', OLD);
        assert_ne!(new, a);
        assert!(blocks(new).iter().all(|block| !of_a.contains(block)));
        case.fsync(&name);
    }
    assert_eq!(case.log_commits(), 12);
    after_a_cut(&case.device);
}

#[test]
fn f10_fast_commits_of_a_log_that_does_not_say_so_are_not_read() {
    let Some(case) = Case::new() else { return };
    case.create("f", b'f', 9000);
    case.fsync("f");
    let (image, area, tags) = case.cut();
    let superblock = area.superblock(&image);
    let mut unused = superblock;
    unused.set_start(0);
    let mut without = superblock;
    let mut features = superblock.features();
    features.incompat &= !JournalFeatures::INCOMPAT_FAST_COMMIT;
    without.set_features(features);
    for (what, changed, tid) in [
        ("not in use", unused, None),
        ("without the feature", without, None),
        (
            "another transaction",
            superblock,
            Some(superblock.sequence().next()),
        ),
    ] {
        let mut image = testkit::copy_image(&image);
        area.set_superblock(&mut image, &changed);
        area.write(&mut image, &tags, tid);
        for (who, seen) in [("kernel", kernel(&image)), ("e2fsck", e2fsck(&image))] {
            assert!(
                !seen.has("dir/f") && seen.has("dir/a"),
                "{what}, {who}: {seen:?}"
            );
        }
    }
}

#[test]
fn f10_the_log_says_so_from_the_first_fsync_to_the_close() {
    let Some(case) = Case::new() else { return };
    let Case { device, fs, .. } = case;
    fs.close().unwrap();
    let (closed, fs) = (device.bytes(), open(shared(&device)));
    let area = FcArea::of(&fs, &closed);
    let feature = JournalFeatures::INCOMPAT_FAST_COMMIT;
    let says = |image: &[u8]| {
        let superblock = area.superblock(image);
        (
            superblock.start() != 0,
            superblock.features().has_incompat(feature),
        )
    };
    assert_eq!(says(&closed), (false, false));
    // No full commit comes before it.
    let file = fs.create(Ino::ROOT, b"first", NEW).unwrap();
    fs.write(file, 0, &[1; 9000]).unwrap();
    fs.fsync(file).unwrap();
    assert_eq!(count(&fs, "fsync.log_commits"), 1);
    assert_eq!(count(&fs, "journal.commits"), 0);
    assert_eq!(says(&device.bytes()), (true, true));
    let seen = after_a_cut(&device);
    assert!(seen.entries.contains_key(&b"first"[..]));
    fs.close().unwrap();
    assert_eq!(says(&device.bytes()), (false, false));
}

#[test]
fn f11_the_order_of_linux_played_twice_empties_the_new_file() {
    let Some(case) = Case::new() else { return };
    let (mut image, area, tags) = replaced(&case);
    let (old, new) = (case.ino("x"), case.ino("a"));
    let name = |kind| tags.iter().find(|tag| tag.is_name(kind)).unwrap().clone();
    let inode = |ino| {
        tags.iter()
            .rfind(|tag| tag.ino() == ino && tag.links().is_some())
            .unwrap()
            .clone()
    };
    let ranges = tags.iter().filter(|tag| matches!(tag, Tag::Add(..)));
    let mut linux = vec![name(Kind::Link), name(Kind::Unlink), inode(new)];
    linux.extend(ranges.cloned());
    linux.extend([name(Kind::Creat), inode(old), inode(new)]);
    let once = linux.clone();
    linux.extend(once);
    area.write(&mut image, &linux, None);
    let seen = kernel(&image);
    let is_right =
        seen.is_clean() && seen.holds("dir/a", &[b'n'; 9000]) && seen.holds("dir/x", &[b'a'; OLD]);
    shows(!is_right, is_right, &seen);
}

#[test]
fn f11_the_order_of_lanefs_gives_the_same_once_and_twice() {
    let Some(case) = Case::new() else { return };
    let (mut image, area, tags) = replaced(&case);
    let once = after_a_cut(&case.device);
    area.write(&mut image, &[&tags[..], &tags].concat(), None);
    for seen in [kernel(&image), e2fsck(&image)] {
        let tree = seen.tree.as_ref().unwrap();
        let differences = once.differences(tree);
        assert!(differences.is_empty(), "{differences}");
        assert!(seen.holds("dir/a", &[b'n'; 9000]), "{seen:?}");
    }
}
