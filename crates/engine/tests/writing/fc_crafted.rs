//! Fast commits with good checksums that no file system could have made: they are refused, and nothing is written.

use device::{BlockDevice, MemoryDevice, Scratch};
use lanefs_engine::{Allocate, Error, FileType, Ino, InodeFs, MountOptions};
use sync::Arc;

use crate::fc_area::{FcArea, Kind, Tag};
use crate::fsync_log::{NEW, count, device, image, shared};
use crate::image::{clock, make, open};

/// A number that no inode has.
const FREE: Ino = Ino(90);

/// An image with one of each kind, and an empty fast commit to write others into.
struct Base {
    image: Vec<u8>,
    area: FcArea,
    /// `full`, which holds `within` and a file; `empty`; a file, a short link, a long one, a pipe.
    full: Ino,
    within: Ino,
    empty: Ino,
    file: Ino,
    short: Ino,
    long: Ino,
    pipe: Ino,
}

impl Base {
    fn new() -> Option<Base> {
        image("4096").and_then(Base::of)
    }

    fn of(image: Vec<u8>) -> Option<Base> {
        let device = device(image);
        let fs = open(shared(&device));
        let root = Ino::ROOT;
        let full = fs.mkdir(root, b"full", NEW).unwrap();
        let within = fs.mkdir(full, b"within", NEW).unwrap();
        let empty = fs.mkdir(root, b"empty", NEW).unwrap();
        let file = fs.create(full, b"file", NEW).unwrap();
        fs.write(file, 0, &[1; 20_000]).unwrap();
        let short = fs.symlink(root, b"short", b"target", NEW).unwrap();
        let long = fs.symlink(root, b"long", &[b'l'; 100], NEW).unwrap();
        let pipe = fs
            .mknod(root, b"pipe", FileType::Fifo, (0, 0), NEW)
            .unwrap();
        fs.sync().unwrap();
        fs.checkpoint().unwrap();
        fs.write(file, 20_000, &[2; 5000]).unwrap();
        fs.fsync(file).unwrap();
        assert_eq!(count(&fs, "fsync.log_commits"), 1);
        let image = device.bytes();
        let area = FcArea::of(&fs, &image);
        Some(Base {
            image,
            area,
            full,
            within,
            empty,
            file,
            short,
            long,
            pipe,
        })
    }

    /// An inode as it is home.
    fn raw(&self, ino: Ino) -> Vec<u8> {
        let word = |at: usize| u32::from_le_bytes(self.image[at..at + 4].try_into().unwrap());
        let a_group = word(1024 + 40);
        let (group, index) = ((ino.0 - 1) / a_group, (ino.0 - 1) % a_group);
        let table = word(4096 + 64 * group as usize + 8) as usize;
        self.image[table * 4096 + 256 * index as usize..][..160].to_vec()
    }

    fn inode(&self, ino: Ino, size: u32) -> Tag {
        Tag::Inode(ino, sized(self.raw(ino), size))
    }

    /// A new inode with the record of another, named in the root directory.
    fn new_as(&self, of: Ino, change: impl FnOnce(&mut Vec<u8>)) -> Vec<Tag> {
        let mut raw = self.raw(of);
        raw[100] ^= 0x55;
        change(&mut raw);
        vec![
            Tag::Inode(FREE, raw.clone()),
            name(Kind::Creat, Ino::ROOT, "new", FREE),
            Tag::Inode(FREE, raw),
        ]
    }

    /// Opens the image with these records as its one fast commit.
    fn open(&self, tags: &[Tag]) -> (Result<InodeFs, Error>, Arc<Scratch>) {
        let mut image = testkit::copy_image(&self.image);
        self.area.write(&mut image, tags, None);
        let device = Arc::new(Scratch::new(
            Arc::new(MemoryDevice::from_bytes(&image)),
            32 << 20,
        ));
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        (
            InodeFs::open_for_writing(shared, &MountOptions::default(), clock),
            device,
        )
    }

    fn is_refused(&self, what: &str, tags: &[Tag]) {
        let (opened, device) = self.open(tags);
        match opened {
            Err(Error::Corrupt(_)) => assert!(device.written(4096).is_empty(), "{what}"),
            Err(error) => panic!("{what}: {error}"),
            Ok(_) => panic!("{what}: replayed"),
        }
    }

    /// What is left is clean.
    fn is_replayed(&self, what: &str, tags: &[Tag]) {
        let (opened, device) = self.open(tags);
        opened
            .unwrap_or_else(|error| panic!("{what}: {error}"))
            .close()
            .unwrap();
        let mut image = vec![0; self.image.len()];
        device.read_at(0, &mut image).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("replayed.img");
        testkit::write_image(&path, &image);
        testkit::e2fsck(&path);
    }
}

fn sized(mut raw: Vec<u8>, size: u32) -> Vec<u8> {
    raw[4..8].copy_from_slice(&size.to_le_bytes());
    raw
}

fn name(kind: Kind, parent: Ino, name: &str, ino: Ino) -> Tag {
    Tag::Name(kind, parent, name.as_bytes().to_vec(), ino)
}

#[test]
fn directories_stay_where_they_are_and_go_when_they_are_empty() {
    let Some(base) = Base::new() else { return };
    let root = Ino::ROOT;
    let link = |parent, new, ino| name(Kind::Link, parent, new, ino);
    let unlink = |parent, old, ino| name(Kind::Unlink, parent, old, ino);
    base.is_refused("a second name", &[link(root, "two", base.full)]);
    base.is_refused("in itself", &[link(base.within, "loop", base.full)]);
    base.is_refused("the root", &[link(base.full, "root", root)]);
    base.is_refused("full", &[unlink(root, "full", base.full)]);
    let deleted = Tag::Inode(base.full, base.raw(base.full)).with_links(0);
    base.is_refused("deleted", &[unlink(root, "full", base.full), deleted]);
    let move_it = |parent| {
        [
            unlink(root, "empty", base.empty),
            link(parent, "e", base.empty),
        ]
    };
    base.is_refused("moved", &move_it(base.full));
    base.is_replayed("renamed", &move_it(root));
    base.is_replayed("empty", &[unlink(root, "empty", base.empty)]);
    base.is_replayed("new", &base.new_as(base.empty, |_| {}));
    let new = |ino: u32| base.new_as(base.empty, |_| {})[0].with_ino(Ino(ino));
    let named = |parent, ino| name(Kind::Creat, Ino(parent), "new", Ino(ino));
    let circle = [new(90), new(91), named(90, 91), named(91, 90)];
    base.is_refused("each in the other", &circle);
}

#[test]
fn links_and_pipes_are_as_long_as_they_can_be() {
    let Some(base) = Base::new() else { return };
    for size in [0, 5, 59, 60, 4000] {
        base.is_refused("short", &[base.inode(base.short, size)]);
        base.is_refused(
            "new",
            &base.new_as(base.short, |raw| {
                *raw = sized(raw.clone(), size);
            }),
        );
    }
    for size in [0, 30, 99, 101, 50_000] {
        base.is_refused("long", &[base.inode(base.long, size)]);
    }
    base.is_refused("no block", &base.new_as(base.long, |_| {}));
    base.is_refused("pipe", &[base.inode(base.pipe, 50_000)]);
    base.is_replayed("as it was", &[base.inode(base.long, 100)]);
    base.is_replayed("new", &base.new_as(base.short, |_| {}));
    base.is_replayed("new pipe", &base.new_as(base.pipe, |_| {}));
}

#[test]
fn pointers_in_a_record_are_those_of_the_files_ranges() {
    let Some(base) = Base::new() else { return };
    let no_extents = |raw: &mut Vec<u8>| raw[32..36].fill(0);
    base.is_refused("new", &base.new_as(base.file, no_extents));
    let mut raw = base.raw(base.file);
    no_extents(&mut raw);
    base.is_refused("old", &[Tag::Inode(base.file, raw.clone())]);
    // As `chattr -e` makes it.
    let first = u32::from_le_bytes(raw[40 + 20..40 + 24].try_into().unwrap());
    raw[40..100].fill(0);
    for index in 0..5_u32 {
        let at = 40 + 4 * index as usize;
        raw[at..at + 4].copy_from_slice(&(first + index).to_le_bytes());
    }
    base.is_replayed("pointers", &[Tag::Inode(base.file, raw.clone())]);
    raw[40] ^= 1;
    base.is_refused("others", &[Tag::Inode(base.file, raw)]);
}

/// A record of a range: where it begins in its file, how many blocks it has, and where they are.
fn add(ino: Ino, first: u32, blocks: u16, at: u32) -> Tag {
    let mut extent = [0; 12];
    extent[0..4].copy_from_slice(&first.to_le_bytes());
    extent[4..6].copy_from_slice(&blocks.to_le_bytes());
    extent[8..12].copy_from_slice(&at.to_le_bytes());
    Tag::Add(ino, extent)
}

#[test]
fn what_is_written_behind_a_files_end_is_left_out() {
    let Some(base) = Base::new() else { return };
    let free = (base.image.len() / 4096 - 20) as u32;
    let unwritten = 1 << 15;
    for (what, first, blocks) in [
        ("behind", 100, 4),
        ("across", 4, 4),
        ("preallocated", 100, unwritten + 4),
    ] {
        let tags = [
            add(base.file, first, blocks, free),
            base.inode(base.file, 20_000),
        ];
        base.is_replayed(what, &tags);
    }
}

#[test]
fn where_fast_commits_are_refused_a_torn_superblock_is_not_put_back() {
    let Some(base) = Base::new() else { return };
    let bad = [
        Tag::Inode(base.file, base.raw(base.file)),
        name(Kind::Link, Ino::ROOT, "a/b", base.file),
    ];
    let good = [Tag::Inode(base.file, base.raw(base.file))];
    for (tags, is_refused) in [(&bad[..], true), (&good[..], false)] {
        let mut image = testkit::copy_image(&base.image);
        base.area.write(&mut image, tags, None);
        // As a cut leaves it that tears it.
        image[1024 + 0x88] ^= 1;
        let below = Arc::new(MemoryDevice::from_bytes(&image));
        let device = Arc::new(Scratch::new(below, 32 << 20));
        let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
        let opened = InodeFs::open_for_writing(shared, &MountOptions::default(), clock);
        assert_eq!(opened.is_err(), is_refused, "{:?}", opened.err());
        assert_eq!(device.written(4096).is_empty(), is_refused);
    }
}

#[test]
fn what_is_no_name_is_refused_as_damage() {
    let Some(base) = Base::new() else { return };
    for wrong in [".", "..", "a/b", "a\0b"] {
        let tags = [
            Tag::Inode(base.file, base.raw(base.file)),
            name(Kind::Link, Ino::ROOT, wrong, base.file),
        ];
        base.is_refused(wrong, &tags);
    }
}

#[test]
fn fast_commits_that_can_not_be_read_are_told_of_and_unknown_ones_refused() {
    let Some(base) = Base::new() else { return };
    let mut image = testkit::copy_image(&base.image);
    let tags = base.new_as(base.pipe, |_| {});
    base.area.write(&mut image, &tags, None);
    let first = base.area.first(&image).to_vec();
    let open_with = |change: &dyn Fn(&mut Vec<u8>)| {
        let (mut image, mut first) = (testkit::copy_image(&image), first.clone());
        change(&mut first);
        base.area.set_first(&mut image, &first);
        let device = Arc::new(Scratch::new(
            Arc::new(MemoryDevice::from_bytes(&image)),
            32 << 20,
        ));
        let shared = || Arc::clone(&device) as Arc<dyn BlockDevice>;
        let reader = InodeFs::open(shared(), &MountOptions::default());
        let report = reader.map(|reader| *reader.recovery_report().unwrap());
        let opened = InodeFs::open_for_writing(shared(), &MountOptions::default(), clock);
        if opened.is_err() {
            assert!(device.written(4096).is_empty());
        }
        (report, opened)
    };
    // A flipped bit of a record, as a cut may leave it: every open reports it.
    let (report, opened) = open_with(&|first| first[100] ^= 1);
    assert!(report.unwrap().is_incomplete());
    let report = *opened.unwrap().recovery_report().unwrap();
    assert!(report.is_incomplete(), "{report}");
    assert!(report.to_string().contains("not shown"), "{report}");
    // HEAD's features.
    let (report, opened) = open_with(&|first| first[4] = 1);
    for error in [report.err(), opened.err()] {
        let error = error.unwrap().to_string();
        assert!(error.contains("unknown features"), "{error}");
    }
    // lanefs begins its area with a fast commit that is whole: what a cut leaves behind that is nothing to tell of.
    let (report, opened) = open_with(&|first| {
        first.copy_from_slice(base.area.first(&base.image));
        first[100] ^= 1;
    });
    let report = report.unwrap();
    assert!(!report.is_incomplete(), "{report}");
    assert_eq!(report.fast_commits.changes, 0);
    opened.unwrap().close().unwrap();
}

/// A file without extents that Linux was truncating: its record has the new size, and the old pointers still; its
/// ranges are those that are mapped still. As in the middle of `truncate`, when any fsync logs all changed inodes.
#[test]
fn pointers_behind_a_files_end_are_left_out_with_their_blocks() {
    let Some(base) = Base::new() else { return };
    let mut raw = base.raw(base.file);
    raw[32..36].fill(0);
    let first = u32::from_le_bytes(raw[40 + 20..40 + 24].try_into().unwrap());
    raw[40..100].fill(0);
    for index in 0..5_u32 {
        let at = 40 + 4 * index as usize;
        raw[at..at + 4].copy_from_slice(&(first + index).to_le_bytes());
    }
    let tags = [
        add(base.file, 0, 5, first),
        Tag::Inode(base.file, sized(raw, 12_288)),
    ];
    base.is_replayed("truncated", &tags);
}

/// Each directory in the one before: what is looked at of one that lies so deep does not grow with those above it.
/// It took minutes.
#[test]
fn new_directories_that_lie_deep_in_each_other_are_replayed_in_no_time() {
    let args = [
        "-b",
        "4096",
        "-O",
        "fast_commit",
        "-J",
        "size=16,fast_commit_size=1024",
    ];
    let Some(base) = make(&args, 64 << 20).and_then(Base::of) else {
        return;
    };
    let groups: Vec<Vec<Tag>> = (0..2500)
        .map(|depth| {
            let ino = Ino(FREE.0 + depth);
            let parent = if depth == 0 {
                Ino::ROOT
            } else {
                Ino(ino.0 - 1)
            };
            let record = base.new_as(base.empty, |_| {})[0].with_ino(ino);
            vec![record, name(Kind::Creat, parent, "d", ino)]
        })
        .collect();
    let mut image = testkit::copy_image(&base.image);
    base.area.write_blocks(&mut image, &groups);
    let device = Arc::new(MemoryDevice::from_bytes(&image));
    let begun = std::time::Instant::now();
    let fs = InodeFs::open(device, &MountOptions::default()).unwrap();
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    let mut ino = Ino::ROOT;
    for _ in &groups {
        ino = fs.lookup(ino, b"d").unwrap();
    }
}

/// Many inodes with one large map, which every look at the image read once for each of them.
#[test]
fn files_that_have_more_blocks_than_there_are_are_not_replayed() {
    let args = [
        "-b",
        "4096",
        "-O",
        "fast_commit,^metadata_csum",
        "-J",
        "size=8",
    ];
    let Some(image) = make(&args, 64 << 20) else {
        return;
    };
    let device = device(image);
    let fs = open(shared(&device));
    let files: Vec<Ino> = [&b"one"[..], b"two", b"three"]
        .iter()
        .map(|name| fs.create(Ino::ROOT, name, NEW).unwrap())
        .collect();
    fs.allocate(files[0], Allocate::KeepSize, 0, 28 << 20)
        .unwrap();
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    fs.write(files[1], 0, b"x").unwrap();
    fs.fsync(files[1]).unwrap();
    let mut image = device.bytes();
    let area = FcArea::of(&fs, &image);
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let table = word(4096 + 8) as usize * 4096;
    let map = |ino: Ino| table + 256 * (ino.0 as usize - 1) + 40;
    let tags: Vec<Tag> = files.iter().map(|ino| Tag::Del(*ino, 1 << 31, 0)).collect();
    for (number, is_shown) in [(1, true), (2, false)] {
        let one = image[map(files[0])..][..60].to_vec();
        image[map(files[number])..][..60].copy_from_slice(&one);
        area.write(&mut image, &tags, None);
        let device = Arc::new(MemoryDevice::from_bytes(&image));
        match InodeFs::open(device, &MountOptions::default()) {
            Ok(_) => assert!(is_shown),
            Err(error) => assert!(
                !is_shown && matches!(error, Error::FastCommits(_)),
                "{error}"
            ),
        }
    }
}

/// A directory without an index, nearly as long as the file system, of holes: a look at each of them for each name.
#[test]
fn names_in_a_directory_that_takes_long_to_look_through_are_not_replayed() {
    let args = [
        "-b",
        "4096",
        "-O",
        "fast_commit,^metadata_csum,^dir_index",
        "-J",
        "size=16,fast_commit_size=1024",
    ];
    let Some(base) = make(&args, 1 << 30).and_then(Base::of) else {
        return;
    };
    let names = (0..8000).map(|number| {
        let new = format!("n{number}");
        vec![name(Kind::Link, base.full, &new, base.file)]
    });
    let groups: Vec<Vec<Tag>> = names.collect();
    let mut image = testkit::copy_image(&base.image);
    let word = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().unwrap());
    let group = (base.full.0 - 1) / word(1024 + 40);
    let table = word(4096 + 64 * group as usize + 8) as usize * 4096;
    let record = table + 256 * ((base.full.0 - 1) % word(1024 + 40)) as usize;
    for (bytes, is_shown) in [(4096_u32, true), (1 << 29, false)] {
        image[record + 4..record + 8].copy_from_slice(&bytes.to_le_bytes());
        base.area.write_blocks(&mut image, &groups);
        let device = Arc::new(MemoryDevice::from_bytes(&image));
        match InodeFs::open(device, &MountOptions::default()) {
            Ok(_) => assert!(is_shown),
            Err(error) => assert!(
                !is_shown && matches!(error, Error::FastCommits(_)),
                "{error}"
            ),
        }
    }
}
