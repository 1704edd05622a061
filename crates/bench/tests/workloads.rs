//! Every workload on the engine and on a directory: it counts what it does and leaves nothing behind.

use std::time::Duration;

use engine::OpenOptions;
use lanefs_bench::{Contender, Directory, InProcess, Plan, Workload, run};

#[test]
fn every_workload_runs_on_both_targets_and_removes_what_it_made() {
    for workload in Workload::ALL {
        let directory = tempfile::tempdir().unwrap();
        let image = tempfile::tempdir().unwrap();
        let image = image.path().join("image");
        let engine = InProcess::in_file(&image, 64 << 20, &OpenOptions::default()).unwrap();
        let plan = Plan {
            workload,
            threads: vec![2],
            rounds: 1,
            time: Duration::from_millis(5),
        };
        let contenders = [
            Contender::new("engine", engine),
            Contender::new("directory", Directory::open(directory.path()).unwrap()),
        ];
        let mut heard = 0;
        let rows = run(&plan, &contenders, |_, _, _, _| heard += 1).unwrap();
        assert_eq!(heard, 2 * 2);
        let seen: Vec<(&str, usize, usize)> = rows
            .iter()
            .map(|row| (row.label.as_str(), row.threads, row.samples.len()))
            .collect();
        let expected = [("engine", 2, 1), ("directory", 2, 1)];
        assert_eq!(seen, expected);
        for row in &rows {
            let (median, least, greatest) = row.rates();
            assert!(
                0.0 < least && least <= median && median <= greatest,
                "{row:?}"
            );
            assert!(row.cpu_micros() > 0.0, "{row:?}");
        }
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        drop(contenders);
        let fs = lanefs::Fs::open(&image).unwrap();
        let names = fs.read_dir("/").unwrap().map(|entry| entry.unwrap());
        let names: Vec<_> = names.map(|entry| entry.file_name().to_owned()).collect();
        assert_eq!(names, ["lost+found"]);
        if e2fsck_replays(&image) {
            continue;
        }
        eprintln!("skipped: needs e2fsck");
    }
}

/// e2fsck replays the journal of the file system that was dropped without a close, and finds nothing else to do.
fn e2fsck_replays(image: &std::path::Path) -> bool {
    testkit::have("e2fsck") && {
        let replay = std::process::Command::new("e2fsck")
            .args(["-fy"])
            .arg(image)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&replay.stdout).into_owned();
        assert!(matches!(replay.status.code(), Some(0 | 1)), "{text}");
        assert!(!text.contains("Fix? yes"), "{text}");
        true
    }
}

#[test]
fn an_error_of_the_file_system_ends_the_run_and_is_told() {
    let engine = InProcess::in_memory(2 << 20, &OpenOptions::default()).unwrap();
    let plan = Plan {
        workload: Workload::Stat,
        threads: vec![2],
        rounds: 1,
        time: Duration::from_millis(1),
    };
    let error = run(&plan, &[Contender::new("small", engine)], |_, _, _, _| ()).unwrap_err();
    let error = std::io::Error::from(error);
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
}
