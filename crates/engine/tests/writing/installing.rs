//! A finished file gets its name in one step, wherever the power is cut and however orphans are recorded.

use lanefs_engine::{Error, Ino, InodeFs, MountOptions, OrphanForm, Variants};

use crate::files::contents;
use crate::fsync_log::NEW;
use crate::image::{make, record_with, sweep};

const FORMS: [(OrphanForm, &str); 3] = [
    (OrphanForm::Lockless, "orphan_file"),
    (OrphanForm::Locked, "orphan_file"),
    (OrphanForm::List, "^orphan_file"),
];

fn options(form: OrphanForm) -> MountOptions {
    MountOptions {
        variants: Variants {
            orphan: form,
            ..Variants::default()
        },
        ..MountOptions::default()
    }
}

/// The names in the root directory.
fn names(fs: &InodeFs) -> Vec<Vec<u8>> {
    let names = fs.read_dir(Ino::ROOT).unwrap().map(|it| it.unwrap().name);
    names
        .filter(|name| !name.starts_with(b".") && name != b"lost+found")
        .collect()
}

/// Makes a file without a name: 1024 times this byte.
fn finished(fs: &InodeFs, byte: u8) -> Ino {
    let ino = fs.create_unnamed(Ino::ROOT, NEW).unwrap();
    fs.write(ino, 0, &[byte; 1024]).unwrap();
    ino
}

#[test]
fn a_name_stands_for_the_old_file_or_the_new_one_after_any_cut() {
    for (form, feature) in FORMS {
        let Some(image) = make(&["-b", "1024", "-O", feature], 8 << 20) else {
            return;
        };
        let cuts = record_with(&image, &options(form), |device, fs| {
            let install = |byte, replaced| {
                let ino = finished(&fs, byte);
                assert!(fs.install(ino, Ino::ROOT, b"file", replaced).unwrap());
                fs.sync().unwrap();
                device.mark(byte.into());
                ino
            };
            let one = install(1, None);
            // The old file is still open when it loses its name, so it becomes an orphan.
            let two = install(2, Some(one));
            fs.release(two).unwrap();
            // The old file is not open, so it is deleted in the same step.
            let three = install(3, Some(two));
            fs.release(one).unwrap();
            // The old file has another name.
            fs.link(three, Ino::ROOT, b"other").unwrap();
            fs.sync().unwrap();
            let four = install(4, Some(three));
            fs.release(three).unwrap();
            fs.release(four).unwrap();
            fs.close().unwrap();
        });
        let mut seen = std::collections::BTreeSet::new();
        sweep(cuts, 2, |cut, mark, fs| {
            let least = mark.unwrap_or(0) as u8;
            for name in names(fs) {
                assert!(
                    name == b"file" || least >= 3 && name == b"other",
                    "{cut}: {name:?}"
                );
            }
            let found = match fs.resolve(b"file", true) {
                Ok(ino) => contents(fs, ino),
                Err(Error::NotFound) => Vec::new(),
                Err(error) => panic!("{cut}: {error}"),
            };
            let byte = found.first().copied().unwrap_or(0);
            assert!(
                byte >= least && found == vec![byte; if byte == 0 { 0 } else { 1024 }],
                "{cut}"
            );
            seen.insert(byte);
        });
        assert_eq!(seen.len(), 5, "{seen:?}");
    }
}

#[test]
fn a_name_is_given_only_as_it_was_looked_up() {
    let Some(image) = make(&["-b", "4096"], 8 << 20) else {
        return;
    };
    crate::image::finish(&image, |fs| {
        let (one, two) = (finished(&fs, 1), finished(&fs, 2));
        let root = Ino::ROOT;
        assert!(!fs.install(one, root, b"file", Some(two)).unwrap());
        assert!(fs.install(one, root, b"file", None).unwrap());
        assert!(!fs.install(two, root, b"file", None).unwrap());
        // It has the name already.
        assert!(fs.install(one, root, b"file", Some(one)).unwrap());
        assert_eq!(fs.metadata(one).unwrap().nlink, 1);
        let directory = fs.mkdir(root, b"directory", NEW).unwrap();
        let refused = fs.install(two, root, b"directory", Some(directory));
        assert!(matches!(refused, Err(Error::IsDirectory)));
        let refused = fs.install(directory, root, b"other", None);
        assert!(matches!(refused, Err(Error::NotPermitted)));
        // Another name of a file, over one of another file.
        assert!(fs.install(two, root, b"second", None).unwrap());
        assert!(fs.install(one, root, b"second", Some(two)).unwrap());
        assert_eq!(fs.metadata(one).unwrap().nlink, 2);
        // Symbolic links: one with its target in the inode, one with its target in a block.
        for target in [vec![b't'; 20], vec![b't'; 200]] {
            let link = fs.create_unnamed_symlink(root, &target, NEW).unwrap();
            let there = fs.lookup(root, b"second").unwrap();
            assert!(fs.install(link, root, b"second", Some(there)).unwrap());
            fs.release(link).unwrap();
            let link = fs.lookup(root, b"second").unwrap();
            assert_eq!(fs.read_link(link).unwrap(), target);
        }
        assert_eq!(fs.metadata(one).unwrap().nlink, 1);
        fs.release(one).unwrap();
        fs.release(two).unwrap();
        let mut left = names(&fs);
        left.sort();
        assert_eq!(left, [&b"directory"[..], b"file", b"second"]);
        fs.close().unwrap();
    });
}
