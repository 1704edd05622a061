//! `lanefs-bench check`: images are made, both programs find them clean, and nothing is left.

use std::process::Command;

#[test]
fn checks_are_measured_beside_e2fsck() {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_lanefs-bench"));
    let is_built = program.with_file_name("lanefs").is_file();
    if !testkit::have("e2fsck") || !is_built {
        return testkit::skip("measuring checks needs e2fsck, and lanefs beside lanefs-bench");
    }
    testkit::heed_signals();
    let folder = tempfile::tempdir().unwrap();
    let images = folder.path().join("images");
    let chart = folder.path().join("chart.svg");
    std::fs::create_dir(&images).unwrap();
    let mut bench = Command::new(program);
    // As `lanefs bench -v` passes it on.
    let bench = bench.args(["--verbose", "check", "--files", "1000", "--rounds", "2"]);
    let bench = bench.args(["--markdown", "--folder"]).arg(&images);
    let output = bench.arg("--svg").arg(&chart).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    let is_multiple = std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    let programs = if is_multiple { 3 } else { 2 };
    let rows = ["1,000 empty files", "200 of 1,500 bytes", "8 of 65 extents"];
    for row in rows {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("| {row} |")));
        let cells: Vec<&str> = line
            .unwrap_or_else(|| panic!("{text}"))
            .split(" | ")
            .collect();
        // The name; median and range of each; the ratio of all but e2fsck.
        assert_eq!(cells.len(), 2 * programs, "{text}");
        assert_eq!(error.matches(&format!("{row}: e2fsck: ")).count(), 2);
    }
    assert!(text.contains("- e2fsck: 1."), "{text}");
    let chart = std::fs::read_to_string(chart).unwrap();
    assert!(rows.iter().all(|row| chart.contains(row)), "{chart}");
    assert_eq!(std::fs::read_dir(images).unwrap().count(), 0);
}
