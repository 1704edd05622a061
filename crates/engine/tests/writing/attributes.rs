//! Permissions, owners and times.

use lanefs_engine::{Ino, SetAttributes, Timestamp};

use crate::image::{clock, make, record, sweep};

#[test]
fn a_change_of_attributes_survives_any_cut_whole_or_not_at_all() {
    for options in [
        &["-b", "1024"][..],
        &["-b", "4096"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
    ] {
        let Some(image) = make(options, 8 << 20) else {
            return;
        };
        let cuts = record(&image, |device, fs| {
            for step in 1..=20_u32 {
                let attributes = SetAttributes {
                    mode: Some(0o700 + step as u16),
                    uid: Some(step * 70_000),
                    gid: Some(step),
                    mtime: Some(Timestamp {
                        seconds: i64::from(step),
                        nanoseconds: step,
                    }),
                    ..SetAttributes::default()
                };
                fs.set_attributes(Ino::ROOT, &attributes).unwrap();
                if step % 3 == 0 {
                    fs.sync().unwrap();
                    device.mark(step.into());
                }
            }
            fs.close().unwrap();
            device.mark(20);
        });
        let states = sweep(cuts, 4, |cut, promised, fs| {
            let metadata = fs.metadata(Ino::ROOT).unwrap();
            let step = metadata.gid;
            assert!(
                u64::from(step) >= promised.unwrap_or(0),
                "{cut}: {step} of {promised:?}"
            );
            if step > 0 {
                let expected = (0o700 + step as u16, step * 70_000, i64::from(step), clock());
                let found = (
                    metadata.mode & 0o7777,
                    metadata.uid,
                    metadata.mtime.seconds,
                    metadata.ctime,
                );
                assert_eq!(found, expected, "{cut}");
            }
        });
        assert!(states > 100);
    }
}

#[test]
fn attributes_in_the_inode_are_set_replaced_and_removed() {
    use lanefs_engine::{Error, XattrFlag};
    let Some(image) = make(&["-b", "1024"], 8 << 20) else {
        return;
    };
    crate::image::finish(&image, |fs| {
        let set = |name: &[u8], value: &[u8], flag| fs.set_xattr(Ino::ROOT, name, value, flag);
        set(b"user.a", b"one", XattrFlag::Create).unwrap();
        set(b"trusted.b", &[7; 12], XattrFlag::Any).unwrap();
        assert!(matches!(
            set(b"user.a", b"", XattrFlag::Create),
            Err(Error::Exists)
        ));
        assert!(matches!(
            set(b"user.c", b"", XattrFlag::Replace),
            Err(Error::NoAttribute)
        ));
        assert!(matches!(
            set(b"user.c", &[1; 500], XattrFlag::Any),
            Err(Error::Unsupported(_))
        ));
        assert!(matches!(
            set(b"nothing.c", b"", XattrFlag::Any),
            Err(Error::NotSupported(_))
        ));
        set(b"user.a", b"longer than it was", XattrFlag::Replace).unwrap();
        fs.remove_xattr(Ino::ROOT, b"trusted.b").unwrap();
        assert!(matches!(
            fs.remove_xattr(Ino::ROOT, b"trusted.b"),
            Err(Error::NoAttribute)
        ));
        set(b"user.e", b"", XattrFlag::Any).unwrap();
        let mut found = fs.xattrs(Ino::ROOT).unwrap();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let found: Vec<(&[u8], &[u8])> =
            found.iter().map(|x| (&x.name[..], &x.value[..])).collect();
        assert_eq!(
            found,
            [
                (&b"user.a"[..], &b"longer than it was"[..]),
                (b"user.e", b"")
            ]
        );
        fs.close().unwrap();
    });
}
