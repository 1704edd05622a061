//! `lanefs-bench`: every bench, at a tiny scale in memory, gives figures, charts and a report that agree.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

fn bench() -> Command {
    testkit::heed_signals();
    Command::new(env!("CARGO_BIN_EXE_lanefs-bench"))
}

fn run<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> Output {
    bench().args(words).output().unwrap()
}

/// Runs the program, which must succeed; returns its output.
fn ok<S: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = S>) -> String {
    let output = run(words);
    assert!(output.status.success(), "{}", error(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The elements of an SVG file by name, with their text; every one is closed, and nothing is left unescaped.
fn elements(svg: &str) -> Vec<(String, String)> {
    let (mut found, mut open): (Vec<(String, String)>, Vec<usize>) = (Vec::new(), Vec::new());
    for piece in svg.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        for entity in text.split('&').skip(1) {
            let name = entity.split(';').next().unwrap();
            assert!(["amp", "lt", "gt", "quot"].contains(&name), "&{entity}");
        }
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop().expect("something is open");
            assert_eq!(found[last].0, name);
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap().to_owned();
        found.push((name, text.trim().to_owned()));
        if !tag.ends_with('/') {
            open.push(found.len() - 1);
        }
    }
    assert!(open.is_empty());
    found
}

/// All texts of a chart.
fn texts(path: &Path) -> Vec<String> {
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(
        svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""),
        "{}",
        path.display()
    );
    let texts = elements(&svg)
        .into_iter()
        .filter(|(name, _)| name == "text");
    texts.map(|(_, text)| text).collect()
}

fn array<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name]
        .as_array()
        .unwrap_or_else(|| panic!("{name} of {value}"))
}

#[test]
fn a_report_has_every_bench_with_all_samples_and_a_chart_for_each_table() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let tiny =
        "all -t 1,2 --rounds 1 --time 0.001 --pairs 1 --scale 0.0005 --size 64M --json --report";
    let words = tiny
        .split(' ')
        .map(Into::into)
        .chain([report.clone().into_os_string()]);
    let value: Value = serde_json::from_str(&ok(words)).unwrap();
    let value = &value["bench"];
    assert!(!value["machine"]["processor"].as_str().unwrap().is_empty());
    let page = std::fs::read_to_string(report.join("index.html")).unwrap();
    let [memory] = array(value, "devices") else {
        panic!("{}", value["devices"]);
    };
    assert_eq!(memory["device"], "memory");
    for name in [
        "write_mib_per_second",
        "read_mib_per_second",
        "flush_microseconds",
    ] {
        assert!(memory[name].as_f64() > Some(0.0), "{memory}");
    }
    assert!(page.contains("<td>device</td><td>memory: writes "));
    let mut names = Vec::new();
    for bench in array(value, "benches") {
        names.push(bench["name"].as_str().unwrap());
        let keys = array(bench, "tables")
            .iter()
            .map(|table| table["key"].as_str().unwrap());
        let keys: Vec<&str> = keys.collect();
        match names.last() {
            Some(&"core") => assert_eq!(keys, ["core", "core-scaling"]),
            Some(&"mix") => assert!(keys.contains(&"mix-mongo-pairs"), "{keys:?}"),
            _ => assert!(!keys.is_empty()),
        }
        for table in array(bench, "tables") {
            judge(table, &report, &page);
        }
    }
    let expected =
        "core orphan create-close fallocate lookup dir-reserve source-tree mix fsync fxmark";
    assert_eq!(names.join(" "), expected);
    let tables = std::fs::read_to_string(report.join("tables.md")).unwrap();
    assert!(tables.contains("\n- device: memory: writes "), "{tables}");
    assert!(
        tables.contains("| workers | lockless | locked | list |"),
        "{tables}"
    );
    assert!(
        !page.contains("http://")
            || page.matches("http://").count() == page.matches("xmlns=").count()
    );
}

/// A table has its columns and samples, its chart names them, and the page shows both.
fn judge(table: &Value, report: &Path, page: &str) {
    let key = table["key"].as_str().unwrap();
    let title = table["title"].as_str().unwrap();
    assert!(page.contains(title), "{key}");
    let columns = array(table, "columns");
    let chart = report.join(format!("{key}.svg"));
    if table["rows_are"] == "goal" {
        // Figures of several units.
        assert!(!chart.exists(), "{key}");
        let rows = array(table, "rows").iter();
        assert!(rows.len() > 0 && columns.len() == 3, "{key}");
        return;
    }
    let texts = texts(&chart);
    assert!(texts.iter().any(|text| text == title), "{key}: {texts:?}");
    let is_interval = key.ends_with("-pairs");
    for column in columns.iter().filter(|_| !is_interval) {
        let label = column["label"].as_str().unwrap();
        // In a legend, or behind the value of each of its bars.
        let behind = format!("   {label}");
        let names = |text: &String| text == label || text.ends_with(&behind);
        assert!(texts.iter().any(names), "{key}: {label}");
    }
    for row in array(table, "rows") {
        let name = row["name"].as_str().unwrap();
        assert!(texts.iter().any(|text| text == name), "{key}: {name}");
        let cells = array(row, "cells");
        assert_eq!(cells.len(), columns.len());
        for sample in cells.iter().flat_map(|cell| array(cell, "samples")) {
            assert!(sample["value"].as_f64().is_some(), "{key}: {sample}");
            let operations = &sample["details"]["operations"];
            assert!(
                operations.is_null() || operations.as_f64() >= Some(1.0),
                "{key}: {sample}"
            );
        }
        let is_repeated = table["rows_are"] == "workers" && !key.ends_with("-distance");
        if is_repeated {
            let counts = cells.iter().map(|cell| array(cell, "samples").len());
            assert!(counts.into_iter().all(|count| count == 1), "{key} {name}");
        }
    }
}

#[test]
fn what_can_not_be_measured_is_refused_before_anything_is_made() {
    for (words, said) in [
        ("frobnicate", "there are core, orphan"),
        ("stat --variants magic", "there are orphan, group_lock"),
        ("stat --threads 0", "from 1 to 1024"),
        ("stat --time 0", "from 0.001"),
        ("stat --time -1", "from 0.001"),
        ("stat --time=-1", "from 0.001"),
        ("stat --scale -0.5", "from 0.0001"),
        ("stat --rounds -1", "1..=1000"),
    ] {
        let output = run(words.split(' '));
        assert_eq!(output.status.code(), Some(2), "{words}");
        assert!(error(&output).contains(said), "{words}: {}", error(&output));
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, b"precious").unwrap();
    let words = ["stat", "--image"].map(Into::into);
    let output = run(words.into_iter().chain([image.clone().into_os_string()]));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read(&image).unwrap(), b"precious");
}

#[test]
fn above_the_tables_stands_how_fast_each_device_beneath_is() {
    let folder = tempfile::tempdir().unwrap();
    let (image, on) = (folder.path().join("image"), folder.path().join("on"));
    std::fs::create_dir(&on).unwrap();
    let words = "append -t 1 --rounds 1 --time 0.001 --pairs 0 --size 16M --image";
    let words = words.split(' ').map(Into::into);
    let paths = [
        image.clone().into(),
        "--on".into(),
        on.clone().into_os_string(),
    ];
    let text = ok(words.chain(paths));
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
    let named = |path: &Path| format!("device {}: writes ", path.display());
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("device memory: writes "), "{text}");
    assert!(lines[1].starts_with(&named(&image)), "{text}");
    assert!(lines[2].starts_with(&named(&on)), "{text}");
    for line in lines {
        let parts = [
            "MiB/s, reads ",
            " MiB/s, a flush ",
            " us (",
            "KiB one after the other",
        ];
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    assert_eq!(names(folder.path()), ["on"]);
    assert!(names(&on).is_empty());
}

/// What lies in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.collect()
}

#[test]
fn a_bench_that_fails_leaves_nothing_in_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("lanefs-bench.1.0"), b"another's").unwrap();
    let program = bench().get_program().to_owned();
    // Each of 64 workers has its directory open, more than the limit allows.
    let script =
        "ulimit -n 40; exec \"$0\" stat --no-engine -t 64 --rounds 1 --time 0.001 --on \"$1\"";
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .args([&*program, folder.path().as_os_str()]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", error(&output));
    assert_eq!(names(folder.path()), ["lanefs-bench.1.0"]);
}

#[test]
fn a_bench_that_is_interrupted_leaves_nothing_in_the_directory() {
    let folder = tempfile::tempdir().unwrap();
    let words = "create-unlink --no-engine -t 2 --time 600 --on";
    let mut command = bench();
    command.args(words.split(' ')).arg(folder.path());
    let mut child = command.spawn().unwrap();
    while names(folder.path()).is_empty() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(2));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn an_interrupted_bench_leaves_no_image_behind() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("engine.img");
    let words = "create-unlink -t 1 --time 600 --size 16M --image";
    let mut command = bench();
    command.args(words.split(' ')).arg(&image);
    let mut child = command.spawn().unwrap();
    while !image.exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(1));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn where_charts_and_report_can_not_be_written_nothing_is_measured() {
    let words = "readdir --no-engine --time 600 --on /";
    for option in ["--svg", "--report"] {
        let begin = std::time::Instant::now();
        let output = bench()
            .args(words.split(' '))
            .args([option, "/proc/nothing/here"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("/proc/nothing/here"), "{text}");
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}

#[test]
fn charts_of_one_bench_stand_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("readdir.svg");
    let words =
        "readdir -t 1 --rounds 1 --time 0.001 --pairs 2 --variants inode_lookup --size 16M --svg";
    let words = words
        .split(' ')
        .map(Into::into)
        .chain([svg.clone().into_os_string()]);
    let text = ok(words);
    assert!(
        text.contains("operations/s") && text.contains("rcu"),
        "{text}"
    );
    assert!(texts(&svg).iter().any(|text| text == "workers"));
    assert!(folder.path().join("readdir-readdir-pairs.svg").exists());
}
