//! Large trees: unpacked, cloned, listed, compared, removed; on a mount and beside it on the kernel's ext4.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use testkit::{KernelMount, Manifest};

use crate::served::{Served, can_mount, image};

/// The folder that is packed, if another than this repository's sources shall be.
const TREE: &str = "LANEFS_SUITE_TREE";
const SIZE: u64 = 3 << 30;
/// Bytes of the image for a small one.
const SMALL: u64 = 256 << 20;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn shell(script: &str, place: &Path) -> String {
    let output = Command::new("sh")
        .args(["-ec", script])
        .current_dir(place)
        .output();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Does the work at a place, and says how long each part took. The tree is left as `tree`, the clone is removed.
fn work(who: &str, place: &Path, archive: &Path, expected: &str, clones: bool) {
    let repository = repository();
    let clone = format!(
        "git -c safe.directory='*' clone -q --no-hardlinks '{}' clone && \
         git -c safe.directory='*' -C clone fsck --full >/dev/null 2>&1 && \
         test -z \"$(git -c safe.directory='*' -C clone status --porcelain)\"",
        repository.display()
    );
    let untar = format!("mkdir tree && tar -xpf '{}' -C tree", archive.display());
    let mut steps = vec![("untar", untar.as_str()), ("find", "find tree | wc -l")];
    if clones {
        steps.push(("git clone, fsck, status", clone.as_str()));
        steps.push(("rm -rf the clone", "rm -rf clone"));
    }
    for (name, script) in steps {
        let start = Instant::now();
        let found = shell(script, place);
        println!(
            "{who:>10} {name:<24} {:6.2} s",
            start.elapsed().as_secs_f64()
        );
        assert!(
            name != "find" || found == expected,
            "{who}: {found} of {expected} names"
        );
    }
}

fn compare(tree: &Path, size: u64, clones: bool) {
    if !can_mount() {
        return;
    }
    let clones = clones && testkit::have("git") && repository().join(".git").exists();
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("tree.tar");
    testkit::run(
        "tar",
        &[
            // What was built in this repository is larger than the images.
            "--exclude=./target",
            "-cf",
            archive.to_str().unwrap(),
            "-C",
            tree.to_str().unwrap(),
            ".",
        ],
    );
    let expected = shell("find . -path ./target -prune -o -print | wc -l", tree);

    let kernel_image = image(folder.path(), "kernel.img", size, &[]);
    let kernel = KernelMount::with(&kernel_image, "loop").unwrap();
    work("kernel", &kernel.path(), &archive, &expected, clones);
    let theirs = Manifest::of(&kernel.path().join("tree")).unwrap();
    drop(kernel);

    let image = image(folder.path(), "a.img", size, &[]);
    let served = Served::start(&image, "");
    work("lanefs", served.path(), &archive, &expected, clones);
    let ours = Manifest::of(&served.path().join("tree")).unwrap();
    let differences = ours.differences(&theirs);
    assert!(differences.is_empty(), "{differences}");
    served.unmount();
    testkit::e2fsck(&image);

    let kernel = KernelMount::read_only(&image).unwrap();
    let seen = Manifest::of(&kernel.path().join("tree")).unwrap();
    let differences = seen.differences(&ours);
    assert!(differences.is_empty(), "{differences}");
    drop(kernel);

    let served = Served::start(&image, "");
    let start = Instant::now();
    shell("rm -rf tree", served.path());
    println!(
        "    lanefs rm -rf                   {:6.2} s",
        start.elapsed().as_secs_f64()
    );
    served.unmount();
    testkit::e2fsck(&image);
    let used = shell(
        &format!(
            "dumpe2fs -h '{}' 2>/dev/null | grep -i 'free inodes'",
            image.display()
        ),
        folder.path(),
    );
    let all = shell(
        &format!(
            "dumpe2fs -h '{}' 2>/dev/null | grep -i 'inode count'",
            image.display()
        ),
        folder.path(),
    );
    let number = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(number(&all) - number(&used), 11);
}

#[test]
fn a_small_tree_is_unpacked_as_by_the_kernel_and_removed() {
    compare(&repository().join("crates/engine"), SMALL, false);
}

#[test]
#[ignore = "takes minutes: cargo xtask suites trees"]
fn a_large_tree_and_a_clone_are_as_on_the_kernels_ext4() {
    let tree = std::env::var_os(TREE).map(PathBuf::from);
    compare(&tree.unwrap_or_else(repository), SIZE, true);
}
