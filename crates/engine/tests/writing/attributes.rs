//! Permissions, owners and times.

use lanefs_engine::{Ino, SetAttributes, SetTime, Timestamp};

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
                    mtime: Some(SetTime::At(Timestamp {
                        seconds: i64::from(step),
                        nanoseconds: step,
                    })),
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
