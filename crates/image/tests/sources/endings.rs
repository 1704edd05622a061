//! Archives without the two blocks of zeros at their end, as files, compressed, through a pipe and as layers; GNU tar
//! says which of them it reads.

use std::path::Path;
use std::process::Command;

use lanefs_image::source::SourceTree;
use sync::atomic::AtomicBool;

use crate::support::*;

/// Whether GNU tar lists `path` without an error.
fn gnu_reads(path: &Path) -> bool {
    let listed = Command::new("tar").arg("tf").arg(path).output().unwrap();
    listed.status.success()
}

/// The file read through a pipe.
fn through_a_pipe(directory: &Path, name: &str) -> Result<SourceTree, String> {
    sh(
        directory,
        &format!("rm -f fifo; mkfifo fifo; (cat {name} > fifo) > /dev/null 2>&1 & disown"),
    );
    let mut sink = Collect::default();
    let piped = options(&[&directory.join("fifo")]);
    lanefs_image::source::scan_streaming(&piped, &AtomicBool::new(false), &mut sink)
        .map_err(|error| error.to_string())
}

#[test]
fn an_archive_without_its_end_mark_is_read_with_a_warning_and_a_truncated_one_is_refused() {
    if !can_run(&["tar", "gzip", "zstd", "xz"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    // `whole` has a member of 512 bytes and an odd one: headers at 0 and 1024, its end mark at 2048.
    sh(
        at,
        "printf %512s x > even; printf hello > odd; tar --format=ustar -b 4 -cf whole even odd
         head -c 2048 whole > unmarked; head -c 2560 whole > lone; head -c 1024 whole > first
         head -c 2100 whole > partial
         head -c 0 whole > empty; head -c 1000 whole > data; head -c 1541 whole > padding
         head -c 1300 whole > header; tar --format=pax -cf pax --pax-option=comment:=x even
         head -c 1024 pax > extension",
    );
    for (name, files, warned) in [
        ("whole", 2, false),
        ("unmarked", 2, true),
        ("lone", 2, true),
        ("partial", 2, true),
        ("first", 1, true),
    ] {
        assert!(gnu_reads(&at.join(name)), "{name}");
        sh(
            at,
            &format!("gzip -k {name}; zstd -qk {name}; xz -0k {name}"),
        );
        for kind in ["", ".gz", ".zst", ".xz"] {
            let name = format!("{name}{kind}");
            let file = scan(&[&at.join(&name)]).unwrap();
            for tree in [file, through_a_pipe(at, &name).unwrap()] {
                assert_eq!(tree.nodes().count(), files + 1, "{name}");
                let about = |text: &String| text.contains("without its end mark");
                assert_eq!(
                    tree.warnings().iter().filter(|text| about(text)).count(),
                    usize::from(warned),
                    "{name}"
                );
            }
        }
    }
    for (name, part) in [
        ("empty", "is empty"),
        ("data", "truncated"),
        ("padding", "truncated"),
        ("extension", "truncated"),
        // GNU tar drops part of a header, or one that nothing follows, without a word: a member is lost with it.
        ("header", "truncated"),
    ] {
        assert!(
            ["header", "extension"].contains(&name) || !gnu_reads(&at.join(name)),
            "{name}"
        );
        sh(at, &format!("gzip -k {name}"));
        for name in [name.to_string(), format!("{name}.gz")] {
            let message = scan(&[&at.join(&name)]).err().expect(&name).to_string();
            assert!(message.contains(part), "{name}: {message}");
            let message = through_a_pipe(at, &name).err().expect(&name);
            assert!(message.contains(part), "{name}: {message}");
        }
    }
}
