//! Changes that are one transaction: a cut at any write, and giving up, leave all of them or nothing.

use device::BlockDevice;
use lanefs_engine::{Error, Ino, InodeFs, RenameFlag, SetAttributes, XattrFlag};
use simulate::CowDevice;
use sync::Arc;

use crate::image::{NEW, e2fsck, finish, make, open, record, sweep};

/// A file system with something to change.
fn populated(options: &[&str]) -> Option<Vec<u8>> {
    let image = make(options, 8 << 20)?;
    Some(finish(&image, |fs| {
        let old = fs.create(Ino::ROOT, b"old", NEW).unwrap();
        fs.write(old, 0, &[1; 100_000]).unwrap();
        fs.set_xattr(old, b"user.v", &[1; 500], XattrFlag::Any)
            .unwrap();
        let directory = fs.mkdir(Ino::ROOT, b"directory", NEW).unwrap();
        fs.create(directory, b"inside", NEW).unwrap();
        let kept = fs.create(Ino::ROOT, b"kept", NEW).unwrap();
        fs.write(kept, 0, &[2; 5000]).unwrap();
        fs.close().unwrap();
    }))
}

/// All of the change.
fn work(fs: &InodeFs) -> Result<(), Error> {
    let root = Ino::ROOT;
    for index in 0..20_u8 {
        let file = fs.create_unnamed(root, NEW)?;
        let bytes = vec![index; 3000 * usize::from(index)];
        fs.write(file, 0, &bytes)?;
        fs.write(file, 10, b"in place, in a new file")?;
        fs.link(file, root, format!("new-{index}").as_bytes())?;
        fs.release(file)?;
    }
    let directory = fs.lookup(root, b"directory")?;
    fs.unlink(directory, b"inside")?;
    fs.rmdir(root, b"directory")?;
    fs.unlink(root, b"old")?;
    fs.rename(root, b"new-3", root, b"kept", RenameFlag::Replace)?;
    let made = fs.mkdir(root, b"made", NEW)?;
    fs.symlink(made, b"link", &[b'l'; 300], NEW)?;
    let mode = SetAttributes {
        mode: Some(0o700),
        ..SetAttributes::default()
    };
    fs.set_attributes(made, &mode)?;
    fs.set_xattr(made, b"user.v", &[1; 500], XattrFlag::Any)
}

/// Whether nothing of the change is there, or (`true`) all of it.
fn is_done(fs: &InodeFs, cut: &dyn std::fmt::Display) -> bool {
    let has = |path: &str| fs.resolve(path.as_bytes(), false).is_ok();
    let old = ["old", "directory/inside"].map(has);
    let new: Vec<bool> = ["made/link", "new-0", "new-19", "new-7"].map(has).into();
    let kept = fs.resolve(b"kept", true).unwrap();
    let size = fs.metadata(kept).unwrap().size;
    if old[0] {
        assert!(old[1] && !new.contains(&true) && size == 5000, "{cut}");
        let mut bytes = vec![0; 5000];
        fs.read(kept, 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 2), "{cut}");
        false
    } else {
        assert!(!old[1] && !new.contains(&false) && size == 9000, "{cut}");
        let last = fs.resolve(b"new-19", true).unwrap();
        let mut bytes = vec![0; 57_000];
        assert_eq!(fs.read(last, 0, &mut bytes).unwrap(), 57_000, "{cut}");
        assert!(bytes[33..].iter().all(|byte| *byte == 19), "{cut}");
        true
    }
}

#[test]
fn a_cut_at_any_write_leaves_all_or_nothing() {
    for options in [
        &["-b", "1024"][..],
        &["-b", "4096", "-O", "^metadata_csum,^64bit"],
    ] {
        let Some(image) = populated(options) else {
            return;
        };
        let cuts = record(&image, |_, mut fs| {
            fs.begin_atomic().unwrap();
            work(&fs).unwrap();
            fs.close_atomic().unwrap();
        });
        let (mut nothing, mut all) = (0, 0);
        sweep(cuts, 4, |cut, _, fs| {
            if is_done(fs, &cut) {
                all += 1
            } else {
                nothing += 1
            }
        });
        assert!(all > 20 && nothing > 20, "{all} all, {nothing} nothing");
    }
}

#[test]
fn a_cut_while_it_is_given_up_leaves_nothing() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    let cuts = record(&image, |_, mut fs| {
        fs.begin_atomic().unwrap();
        work(&fs).unwrap();
        fs.abandon().unwrap();
    });
    let states = sweep(cuts, 2, |cut, _, fs| assert!(!is_done(fs, &cut)));
    assert!(states > 20);
}

#[test]
fn what_does_not_fit_one_transaction_changes_nothing() {
    let Some(image) = populated(&["-b", "1024", "-J", "size=1"]) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let mut fs = open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    fs.begin_atomic().unwrap();
    work(&fs).unwrap();
    let mut outcome = Ok(());
    for index in 0..2000 {
        let name = format!("a-long-name-so-that-directories-grow-{index}");
        if let Err(error) = fs.mkdir(Ino::ROOT, name.as_bytes(), NEW) {
            outcome = Err(error);
            break;
        }
    }
    // Found out on the way, or at the end: 2,000 new blocks don't fit 1,024.
    match outcome {
        Ok(()) => {
            let outcome = fs.close_atomic();
            assert!(matches!(outcome, Err(Error::Aborted(_))), "{outcome:?}");
        }
        outcome => {
            assert!(matches!(outcome, Err(Error::Aborted(_))), "{outcome:?}");
            fs.abandon().unwrap();
        }
    }
    let cut = simulate::Cut { event: 0, seed: 0 };
    e2fsck(&device, cut);
    let fs = open(device as Arc<dyn BlockDevice>);
    assert!(!is_done(&fs, &"abandoned"));
    fs.close().unwrap();
}

#[test]
fn bytes_of_old_files_are_not_changed_in_place() {
    let Some(image) = populated(&["-b", "1024"]) else {
        return;
    };
    finish(&image, |mut fs| {
        let kept = fs.resolve(b"kept", true).unwrap();
        fs.begin_atomic().unwrap();
        for refused in [fs.write(kept, 100, b"x").map(drop), fs.truncate(kept, 1500)] {
            assert!(matches!(refused, Err(Error::NotSupported(_))));
        }
        // What needs no such change is done.
        fs.write(kept, 5000, b"behind the end").unwrap();
        fs.truncate(kept, 2048).unwrap();
        fs.truncate(kept, 9000).unwrap();
        assert!(matches!(fs.sync(), Err(Error::Aborted(_))));
        fs.close_atomic().unwrap();
    });
}
