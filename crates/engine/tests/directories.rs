//! Directories made by the kernel, mke2fs -d, debugfs and e2fsck -D are listed whole, and every name is found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use device::{BlockDevice, FileDevice};
use lanefs_engine::{Error, FileType, Ino, InodeFs, MountOptions};
use sync::Arc;
use tempfile::TempDir;

type Names = BTreeMap<Vec<u8>, Ino>;

/// Fewer links than a file may have.
const LINKS: usize = 60_000;

fn ready() -> bool {
    let ready = ["mke2fs", "debugfs", "e2fsck"]
        .into_iter()
        .all(testkit::have);
    if !ready {
        testkit::skip("no e2fsprogs");
    }
    ready
}

fn can_mount() -> bool {
    if !testkit::is_root() {
        testkit::skip("mounting needs root");
    }
    testkit::is_root() && ready()
}

struct Image {
    folder: TempDir,
    path: PathBuf,
}

impl Image {
    /// A new file system of `mib` MiB.
    fn new(mib: u64, options: &[&str]) -> Image {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("image");
        File::create(&path)
            .and_then(|file| file.set_len(mib << 20))
            .expect("an image");
        let mut arguments = vec!["-t", "ext4"];
        arguments.extend(options);
        arguments.push(path.to_str().expect("a plain path"));
        testkit::mke2fs(&arguments);
        Image { folder, path }
    }

    /// A new file system with the tree that `fill` makes in a folder.
    fn from_tree(mib: u64, options: &[&str], fill: impl FnOnce(&Path)) -> Image {
        let source = tempfile::tempdir().expect("a temporary folder");
        fill(source.path());
        let source = source.path().to_str().expect("a plain path");
        Image::new(mib, &[options, &["-d", source]].concat())
    }

    /// Lets the kernel change it.
    fn mounted(&self, change: impl FnOnce(&Path)) {
        let mounted = testkit::KernelMount::with(&self.path, "loop").expect("the kernel mounts it");
        change(&mounted.path());
    }

    fn debugfs(&self, script: &str) {
        let path = self.folder.path().join("script");
        fs::write(&path, script).expect("the script is written");
        let path = path.to_str().expect("a plain path");
        let image = self.path.to_str().expect("a plain path");
        let output = testkit::debugfs(&["-w", "-f", path, image]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }

    /// Lets e2fsck index the directories anew.
    fn reindex(&self) {
        let output = testkit::e2fsck_with(&["-fyD"], &self.path);
        // 1: something was changed.
        assert!(
            output.status.code().is_some_and(|code| code <= 1),
            "{output:?}"
        );
    }

    fn open(&self) -> InodeFs {
        let device = FileDevice::open_read_only(&self.path).expect("the image opens");
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        InodeFs::open(device, &MountOptions::default()).expect("lanefs opens it")
    }
}

/// Makes `count` names in a new directory, hard links to a few files beside it.
fn link_names(parent: &Path, directory: &str, count: usize, prefix: &str) -> Names {
    let path = parent.join(directory);
    fs::create_dir(&path).expect("a directory");
    let mut names = Names::new();
    let mut target = (PathBuf::new(), Ino(0));
    for i in 0..count {
        if i % LINKS == 0 {
            let file = parent.join(format!("{directory} target {}", i / LINKS));
            File::create(&file).expect("a file");
            let ino = fs::metadata(&file).expect("its inode").ino();
            target = (file, Ino(u32::try_from(ino).expect("32 bits")));
        }
        let name = format!("{prefix}{i}");
        fs::hard_link(&target.0, path.join(&name)).expect("a link");
        names.insert(name.into_bytes(), target.1);
    }
    names
}

/// Asserts that the directory lists exactly these names, finds each, goes on from any cookie, and finds no other.
fn check(fs: &InodeFs, path: &str, names: &Names) {
    let directory = fs.resolve(path.as_bytes(), true).expect("the directory");
    let mut listed = Names::new();
    let mut dots = Vec::new();
    let mut cookies = vec![0];
    for entry in fs.read_dir(directory).expect("a directory") {
        let entry = entry.expect("a sound entry");
        assert!(entry.cookie > cookies[cookies.len() - 1]);
        cookies.push(entry.cookie);
        if entry.name.starts_with(b".") {
            dots.push((entry.name, entry.ino));
            continue;
        }
        assert!(
            listed.insert(entry.name, entry.ino).is_none(),
            "listed twice"
        );
    }
    assert!(
        listed == *names,
        "{path}: {} listed, {} made",
        listed.len(),
        names.len()
    );
    let parent = fs.lookup(directory, b"..").expect("a parent");
    assert_eq!(dots, [(b".".to_vec(), directory), (b"..".to_vec(), parent)]);
    assert_eq!(fs.lookup(directory, b".").expect("itself"), directory);

    for (i, cookie) in cookies.iter().enumerate().step_by(cookies.len() / 7 + 1) {
        let rest = fs.read_dir_from(directory, *cookie).expect("a directory");
        assert_eq!(rest.count(), cookies.len() - 1 - i);
    }
    for (name, ino) in names.iter().step_by(1 + names.len() / 30_000) {
        let found = fs.lookup(directory, name);
        let shown = String::from_utf8_lossy(name);
        assert_eq!(
            found.unwrap_or_else(|error| panic!("{shown}: {error}")),
            *ino
        );
    }
    for absent in ["absent", "name", "name -1", "zzz"] {
        let found = fs.lookup(directory, absent.as_bytes());
        assert!(matches!(found, Err(Error::NotFound)), "{absent}: {found:?}");
    }
}

#[test]
fn directories_of_the_kernel_are_read_whole() {
    if !can_mount() {
        return;
    }
    for (mib, options) in [
        (64, &["-b", "4096"][..]),
        (64, &["-b", "1024"]),
        (64, &["-b", "1024", "-O", "^dir_index"]),
        (64, &["-b", "2048", "-O", "^metadata_csum,^filetype"]),
    ] {
        let image = Image::new(mib, options);
        let counts = if options.contains(&"^dir_index") {
            vec![0, 1, 100, 2_000]
        } else {
            vec![0, 1, 100, 20_000]
        };
        let mut made = Vec::new();
        image.mounted(|root| {
            for count in counts {
                let names = link_names(root, &count.to_string(), count, "name ");
                made.push((count, names));
            }
        });
        let fs = image.open();
        for (count, names) in &made {
            check(&fs, &format!("/{count}"), names);
        }
    }
}

#[test]
fn large_directories_of_the_kernel_are_read_whole() {
    if !can_mount() {
        return;
    }
    // Names enough for an index of two levels, and of three.
    let kinds = [
        (&["-b", "4096"][..], 100_000),
        (&["-b", "1024", "-O", "large_dir"], 300_000),
    ];
    for (options, count) in kinds {
        let image = Image::new(96, options);
        let mut names = Names::new();
        image.mounted(|root| names = link_names(root, "d", count, "a name that is not short "));
        check(&image.open(), "/d", &names);
    }
}

#[test]
fn directories_of_mke2fs_are_read_whole() {
    if !ready() {
        return;
    }
    for options in [
        &["-b", "1024"][..],
        &["-b", "65536"],
        &["-b", "4096", "-O", "inline_data"],
        &[
            "-b",
            "1024",
            "-O",
            "^extents,^64bit,^metadata_csum,^has_journal",
        ],
    ] {
        let fill = |root: &Path| {
            for count in [1, 3, 8, 100, 1_000] {
                link_names(root, &count.to_string(), count, "größe ");
            }
        };
        let image = Image::from_tree(96, options, fill);
        let expected = |fs: &InodeFs, count: usize| -> Names {
            let target = fs
                .resolve(format!("/{count} target 0").as_bytes(), true)
                .expect("the links' target");
            (0..count)
                .map(|i| (format!("größe {i}").into_bytes(), target))
                .collect()
        };
        let linear = image.open();
        for count in [1, 3, 8, 100, 1_000] {
            check(&linear, &count.to_string(), &expected(&linear, count));
        }
        image.reindex();
        let indexed = image.open();
        for count in [1, 3, 8, 100, 1_000] {
            check(&indexed, &count.to_string(), &expected(&indexed, count));
        }
    }
}

#[test]
fn every_hash_signed_or_not_finds_its_names() {
    if !ready() {
        return;
    }
    for algorithm in ["legacy", "half_md4", "tea"] {
        for flags in [1, 2] {
            let fill = |root: &Path| drop(link_names(root, "d", 1_000, "größe nach Maß "));
            let options = ["-b", "1024", "-O", "^metadata_csum"];
            let image = Image::from_tree(32, &options, fill);
            image.debugfs(&format!(
                "ssv def_hash_version {algorithm}\nssv flags {flags}\n"
            ));
            image.reindex();
            let fs = image.open();
            let target = fs.resolve(b"/d target 0", true).expect("the links' target");
            let names = (0..1_000).map(|i| (format!("größe nach Maß {i}").into_bytes(), target));
            check(&fs, "d", &names.collect());
            let root = fs.resolve(b"d", true).expect("the directory");
            let flags = fs.metadata(root).expect("its inode").flags;
            assert!(flags.contains(lanefs_engine::Flags::INDEX));
        }
    }
}

#[test]
fn inline_directories_of_the_kernel_are_read_whole() {
    if !can_mount() {
        return;
    }
    let image = Image::new(16, &["-b", "4096", "-I", "512", "-O", "inline_data"]);
    let mut made = Vec::new();
    image.mounted(|root| {
        for count in [0, 1, 4, 12, 60] {
            let names = link_names(root, &count.to_string(), count, "name ");
            made.push((count, names));
        }
        // Free records between used ones, and a directory that grew out of its inode.
        fs::remove_file(root.join("12/name 3")).expect("a name less");
        made[3].1.remove(&b"name 3"[..]);
    });
    let fs = image.open();
    for (count, names) in &made {
        check(&fs, &count.to_string(), names);
    }
}

#[test]
fn casefolded_directories_compare_without_case() {
    if !ready() {
        return;
    }
    let options = ["-b", "1024", "-O", "casefold", "-E", "encoding=utf8-12.1"];
    let fill = |root: &Path| drop(link_names(root, "d", 500, "Größe im Maß "));
    let image = Image::from_tree(32, &options, fill);
    for indexed in [false, true] {
        if indexed {
            image.reindex();
        } else {
            image.debugfs("sif d flags 0x40080000\n");
        }
        let fs = image.open();
        let directory = fs.resolve(b"d", true).expect("the directory");
        let flags = fs.metadata(directory).expect("its inode").flags;
        assert_eq!(flags.contains(lanefs_engine::Flags::INDEX), indexed);
        let target = fs.resolve(b"d target 0", true).expect("the links' target");
        let read = |fs: &InodeFs| fs.cache_statistics().hits + fs.cache_statistics().misses;
        let before = read(&fs);
        for i in 0..500 {
            for name in ["Größe im Maß", "GRÖSSE IM MASS", "gro\u{308}\u{df}e im maß"] {
                let name = format!("{name} {i}");
                let found = fs.lookup(directory, name.as_bytes());
                assert_eq!(found.expect("another case of the name"), target, "{name}");
            }
        }
        // The inode, the root and a leaf, found through at most one extent block; not all twenty blocks and more.
        let reads = (read(&fs) - before) / 1_500;
        assert_eq!(reads < 6, indexed, "{reads} blocks a lookup");
        for absent in [&b"grosse im mass 1"[..], b"\xff", b"Gr\xc3"] {
            assert!(matches!(fs.lookup(directory, absent), Err(Error::NotFound)));
        }
    }
}

#[test]
fn encrypted_names_are_shown_and_found_encoded() {
    if !ready() {
        return;
    }
    let fill = |root: &Path| drop(link_names(root, "d", 300, "ciphertext "));
    let image = Image::from_tree(32, &["-b", "1024", "-O", "encrypt"], fill);
    image.reindex();
    image.debugfs("sif d flags 0x81800\n");
    let fs = image.open();
    let directory = fs.resolve(b"d", true).expect("the directory");
    let mut listed = Vec::new();
    for entry in fs.read_dir(directory).expect("a directory") {
        let entry = entry.expect("a sound entry");
        assert_eq!(entry.is_encrypted, !entry.name.starts_with(b"."));
        assert_eq!(fs.lookup(directory, &entry.name).expect("found"), entry.ino);
        listed.push(entry.name);
    }
    assert_eq!(listed.len(), 302);
    // base64 of "ciphertext 7".
    assert!(listed.contains(&b"Y2lwaGVydGV4dCA3".to_vec()));
    assert!(matches!(
        fs.lookup(directory, b"ciphertext 7"),
        Err(Error::NotFound)
    ));
}

#[test]
fn an_index_that_makes_no_sense_is_passed_over_as_in_the_kernel() {
    if !ready() {
        return;
    }
    let fill = |root: &Path| drop(link_names(root, "d", 1_000, "name "));
    let options = ["-b", "1024", "-O", "^metadata_csum"];
    let image = Image::from_tree(32, &options, fill);
    image.reindex();
    let fs = image.open();
    let directory = fs.resolve(b"d", true).expect("the directory");
    let mapping = fs
        .mappings(directory)
        .expect("mapped")
        .next()
        .expect("a run");
    let root_at = mapping.expect("sound").physical.expect("no hole").0 * 1024;
    let target = fs.resolve(b"d target 0", true).expect("the links' target");
    let bytes = testkit::read_image(&image.path);
    // Hash version, length of the description, levels, flags, limit, count.
    for (at, value) in [(28, 9), (29, 7), (30, 3), (31, 1), (32, 1), (34, 0)] {
        let mut broken = bytes.clone();
        broken[usize::try_from(root_at).expect("small") + at] = value;
        testkit::write_image(&image.path, &broken);
        let fs = image.open();
        for i in 0..1_000 {
            let found = fs.lookup(directory, format!("name {i}").as_bytes());
            assert_eq!(found.expect("found without the index"), target);
        }
        assert!(matches!(
            fs.lookup(directory, b"absent"),
            Err(Error::NotFound)
        ));
    }
    // A leaf beyond the end is an error of its own.
    let mut broken = bytes;
    let at = usize::try_from(root_at).expect("small") + 36;
    for entry in 0..100 {
        broken[at + 8 * entry..at + 8 * entry + 4].copy_from_slice(&0xFFFF_u32.to_le_bytes());
    }
    testkit::write_image(&image.path, &broken);
    let error = image
        .open()
        .lookup(directory, b"name 1")
        .expect_err("no such block");
    assert!(
        error
            .to_string()
            .contains("leads to a block that is not there"),
        "{error}"
    );
}

#[test]
fn an_index_that_goes_in_circles_is_left() {
    if !ready() {
        return;
    }
    let fill = |root: &Path| drop(link_names(root, "d", 1_000, "name "));
    let options = ["-b", "1024", "-O", "^metadata_csum"];
    let image = Image::from_tree(32, &options, fill);
    image.reindex();
    let fs = image.open();
    let directory = fs.resolve(b"d", true).expect("the directory");
    let run = fs
        .mappings(directory)
        .expect("mapped")
        .next()
        .expect("a run");
    let root_at = run.expect("sound").physical.expect("no hole").0 * 1024;
    let seed = fs.geometry().hash_seed();
    let hash = ondisk::dirhash::hash(ondisk::dirhash::HashVersion::HalfMd4, &seed, b"absent");
    let hash = hash.expect("no key is needed").major;
    // Every entry continues the one before it under the name's hash, and leads to block 1.
    let mut bytes = testkit::read_image(&image.path);
    let at = usize::try_from(root_at).expect("small") + 32;
    let limit = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    bytes[at + 2..at + 4].copy_from_slice(&limit.to_le_bytes());
    bytes[at + 4..at + 8].copy_from_slice(&1_u32.to_le_bytes());
    for entry in bytes[at + 8..at + 8 * usize::from(limit)].chunks_mut(8) {
        entry[..4].copy_from_slice(&(hash | 1).to_le_bytes());
        entry[4..].copy_from_slice(&1_u32.to_le_bytes());
    }
    testkit::write_image(&image.path, &bytes);
    let error = image
        .open()
        .lookup(directory, b"absent")
        .expect_err("circles");
    assert!(
        error
            .to_string()
            .contains("leads to more blocks than there are"),
        "{error}"
    );
}

#[test]
fn a_broken_block_is_reported_and_the_others_are_listed() {
    if !ready() {
        return;
    }
    let fill = |root: &Path| drop(link_names(root, "d", 300, "name "));
    let image = Image::from_tree(32, &["-b", "1024"], fill);
    let fs = image.open();
    let directory = fs.resolve(b"d", true).expect("the directory");
    let run = fs
        .mappings(directory)
        .expect("mapped")
        .next()
        .expect("a run");
    let first = run.expect("sound").physical.expect("no hole").0;
    let mut bytes = testkit::read_image(&image.path);
    let whole = fs.read_dir(directory).expect("a directory").count();
    bytes[usize::try_from(first).expect("small") * 1024 + 1024 + 9] ^= 1;
    testkit::write_image(&image.path, &bytes);
    let fs = image.open();
    let (good, bad): (Vec<_>, Vec<_>) = fs
        .read_dir(directory)
        .expect("a directory")
        .partition(Result::is_ok);
    assert_eq!(bad.len(), 1);
    assert!(good.len() > whole / 2 && good.len() < whole);
    let text = bad[0].as_ref().expect_err("the bad one").to_string();
    assert!(
        text.contains("a directory block's checksum is wrong"),
        "{text}"
    );
    assert!(text.contains(&format!("inode {directory}")), "{text}");
}

/// A tree with links of every kind, among them a chain of 45.
fn make_links(root: &Path) {
    use std::os::unix::fs::symlink;
    fs::create_dir_all(root.join("a/b/c")).expect("directories");
    fs::write(root.join("a/file"), b"x").expect("a file");
    let slow = format!("{}file", "./".repeat(60));
    for (target, name) in [
        ("file", "a/link"),
        ("b", "a/dirlink"),
        ("../a/./b//c/", "a/round"),
        ("nowhere", "a/dangling"),
        ("self", "self"),
        (&slow, "a/slow"),
        ("a", "chain0"),
    ] {
        symlink(target, root.join(name)).expect("a link");
    }
    for i in 1..45 {
        symlink(format!("chain{}", i - 1), root.join(format!("chain{i}"))).expect("a link");
    }
}

const PATHS: &[&str] = &[
    "a",
    "a/",
    "a/b/c",
    "a//b/./c/..",
    "..",
    "a/../../a",
    "a/file",
    "a/file/",
    "a/file/x",
    "a/link",
    "a/link/",
    "a/dirlink",
    "a/dirlink/",
    "a/dirlink/c",
    "a/round",
    "a/round/..",
    "a/dangling",
    "a/dangling/",
    "self",
    "self/",
    "self/x",
    "a/slow",
    "chain39",
    "chain40",
    "chain39/file",
    "absent",
    "absent/..",
    "a/absent/b",
    "a/.",
    "a/file/.",
    "a/file/..",
    ".",
];

/// What Linux says of a path below `root`: an inode or an errno.
fn there(root: &Path, path: &str, follow: bool) -> Result<u64, Option<i32>> {
    // `..` would leave the mount; at the root it stays in it.
    let clean = match path {
        ".." => ".",
        "a/../../a" => "a",
        other => other,
    };
    let path = format!("{}/{clean}", root.display());
    let found = if follow {
        fs::metadata(&path)
    } else {
        fs::symlink_metadata(&path)
    };
    found
        .map(|it| it.ino())
        .map_err(|error| error.raw_os_error())
}

#[test]
fn paths_lead_where_linux_says() {
    if !can_mount() {
        return;
    }
    let image = Image::new(16, &["-b", "1024"]);
    let long = "x".repeat(256);
    let mut expected = Vec::new();
    image.mounted(|root| {
        make_links(root);
        for path in PATHS.iter().copied().chain([&*long]) {
            for follow in [true, false] {
                expected.push((path, there(root, path, follow), follow));
            }
        }
    });
    let fs = image.open();
    let mut differences = String::new();
    for (path, there, follow) in expected {
        let here = fs.resolve(path.as_bytes(), follow);
        let agree = match (&here, there) {
            (Ok(ino), Ok(there)) => u64::from(ino.0) == there,
            (Err(Error::NotFound), Err(Some(2)))
            | (Err(Error::NotDirectory), Err(Some(20)))
            | (Err(Error::NameTooLong), Err(Some(36)))
            | (Err(Error::TooManyLinks), Err(Some(40))) => true,
            _ => false,
        };
        if !agree {
            writeln!(differences, "{path} {follow}: {here:?}, Linux {there:?}").expect("text");
        }
    }
    assert_eq!(differences, "");
    assert!(matches!(fs.resolve(b"", true), Err(Error::NotFound)));
    assert!(matches!(
        fs.resolve(&[b'/'; 4096], true),
        Err(Error::NameTooLong)
    ));
    assert_eq!(fs.resolve(b"///", false).expect("the root"), Ino::ROOT);
    let file = fs.resolve(b"a/file", true).expect("a file");
    assert!(matches!(fs.read_dir(file), Err(Error::NotDirectory)));
}

#[test]
fn entries_tell_the_types_of_files() {
    if !can_mount() {
        return;
    }
    let image = Image::new(16, &["-b", "1024"]);
    image.mounted(make_links);
    let fs = image.open();
    let types: BTreeMap<_, _> = fs
        .read_dir(Ino::ROOT)
        .expect("a directory")
        .map(|entry| entry.expect("sound"))
        .map(|entry| (entry.name, entry.file_type))
        .collect();
    assert_eq!(types[&b"self"[..]], Some(FileType::Symlink));
    assert_eq!(types[&b"a"[..]], Some(FileType::Directory));
}
