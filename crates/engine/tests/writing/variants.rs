//! Each form of each mechanism, alone and mixed: what one leaves, the others take up, and e2fsck agrees.

use device::BlockDevice;
use lanefs_engine::{Fs, Ino, NewInode, OpenOptions, OrphanForm, StreamGoal, Variants};
use simulate::CowDevice;
use sync::Arc;

use crate::files::{contents, judge_image};
use crate::image::{clock, make};

const NEW: NewInode = NewInode {
    mode: 0o600,
    umask: 0,
    uid: 0,
    gid: 0,
    held: false,
};

fn all() -> Vec<Variants> {
    let mut all = Vec::new();
    for orphan in [OrphanForm::Locked, OrphanForm::List] {
        for stream_goal in [StreamGoal::Inode, StreamGoal::Global] {
            all.push(Variants {
                orphan,
                stream_goal,
            });
        }
    }
    all
}

fn open(device: &Arc<CowDevice>, variants: Variants, reaper_thread: bool) -> Fs {
    let options = OpenOptions {
        variants,
        reaper_thread,
        ..OpenOptions::default()
    };
    let shared = Arc::clone(device) as Arc<dyn BlockDevice>;
    Fs::open_for_writing(shared, &options, clock).unwrap()
}

#[test]
fn what_one_form_leaves_the_others_take_up() {
    let Some(image) = make(&["-b", "1024", "-O", "orphan_file"], 12 << 20) else {
        return;
    };
    let device = Arc::new(CowDevice::new(image.into()));
    let mut free = None;
    for (round, variants) in all().into_iter().cycle().take(9).enumerate() {
        let fs = open(&device, variants, round % 3 == 2);
        let byte = 1 + round as u8;
        // What the round before left without names is gone, and the rest is there.
        if let Some(last) = round.checked_sub(1) {
            let kept = fs.lookup(Ino::ROOT, b"kept").unwrap();
            assert_eq!(contents(&fs, kept), vec![1 + last as u8; 60_000]);
            fs.unlink(Ino::ROOT, b"kept").unwrap();
        }
        fs.sync().unwrap();
        let now = fs.statfs().unwrap();
        assert_eq!(
            *free.get_or_insert((now.free, now.free_files)),
            (now.free, now.free_files)
        );
        let kept = fs.create(Ino::ROOT, b"kept", NEW).unwrap();
        fs.write(kept, 0, &[byte; 60_000]).unwrap();
        for number in 0..6 {
            let name = format!("held{number}").into_bytes();
            let ino = fs.create(Ino::ROOT, &name, NEW).unwrap();
            for piece in 0..30 {
                fs.write(ino, piece * 40_960, &[byte; 20_000]).unwrap();
            }
            fs.hold(ino).unwrap();
            fs.unlink(Ino::ROOT, &name).unwrap();
            if number % 2 == 0 {
                fs.release(ino).unwrap();
            }
        }
        fs.sync().unwrap();
        // As after a crash; three of them are orphans still.
        drop(fs);
    }
    let fs = open(&device, Variants::default(), false);
    fs.close().unwrap();
    judge_image(&device);
}
