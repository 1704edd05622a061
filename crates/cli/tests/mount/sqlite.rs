//! SQLite on a mount whose server is killed while the disk loses its power: every transaction that was committed is
//! there, whole, with a rollback journal and with a write-ahead log.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use testkit::FailingDisk;

use crate::served::{Served, can_mount, image};

const PROGRAM: &str = include_str!("sqlite.py");
/// Transactions of the long run, for each kind of journal, and kills meanwhile.
const TRANSACTIONS: u64 = 10_000;
const KILLS: u64 = 50;

/// Whether Python has SQLite; says why not.
fn has_sqlite() -> bool {
    let import = Command::new("python3")
        .args(["-c", "import sqlite3"])
        .output();
    let has = import.is_ok_and(|output| output.status.success());
    if !has {
        testkit::skip("needs python3 with its module sqlite3");
    }
    has
}

fn python(arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", PROGRAM]).args(arguments);
    command
}

/// Commits from a number on, and prints each number once its transaction is committed.
fn commit_from(database: &Path, journal: &str, first: u64) -> Child {
    python(&[
        "commit",
        database.to_str().unwrap(),
        journal,
        &first.to_string(),
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::null())
    .spawn()
    .unwrap()
}

/// The first number that is not in the database, all before which are whole.
fn found_in(database: &Path) -> u64 {
    let output = python(&["check", database.to_str().unwrap()])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn kill_under(journal: &str, transactions: u64, kills: u64) {
    if !can_mount() || !has_sqlite() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let features = ["-O", "fast_commit", "-J", "size=16"];
    let image = image(folder.path(), "a.img", 64 << 20, &features);
    let disk = FailingDisk::recording(&image).unwrap();
    let (mut next, mut killed) = (0, 0);
    while next < transactions || killed < kills {
        let served = Served::start(&disk.path(), "");
        let database = served.path().join("database");
        let mut program = commit_from(&database, journal, next);
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        // An equal share before each kill, so that all kills take place before the last transaction.
        let until = next + (transactions - next).div_ceil(kills - killed).max(1);
        let mut promised = next;
        while promised < until {
            let line = lines.next().expect("a committed transaction").unwrap();
            promised = line.parse::<u64>().unwrap() + 1;
        }
        std::thread::sleep(Duration::from_millis(killed * 7 % 20));
        served.kill();
        killed += 1;
        for line in lines.map_while(Result::ok) {
            promised = line.parse::<u64>().unwrap() + 1;
        }
        program.wait().unwrap();
        disk.cut_power(3 + killed);
        let served = Served::start(&disk.path(), "");
        let found = found_in(&served.path().join("database"));
        // The transaction that was under way may be there.
        assert!(
            (promised..=promised + 1).contains(&found),
            "{journal}, kill {killed}: {found} of {promised} committed transactions"
        );
        next = found;
        served.unmount();
        testkit::e2fsck(&disk.path());
    }
    println!("{journal}: {next} transactions, {killed} kills with power cuts, none lost");
}

#[test]
#[ignore = "takes minutes: cargo xtask suites kill"]
fn ten_thousand_transactions_survive_fifty_kills_with_a_rollback_journal() {
    kill_under("delete", TRANSACTIONS, KILLS);
}

#[test]
#[ignore = "takes minutes: cargo xtask suites kill"]
fn ten_thousand_transactions_survive_fifty_kills_with_a_write_ahead_log() {
    kill_under("wal", TRANSACTIONS, KILLS);
}
