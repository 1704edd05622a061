//! Not only the verdict: the set of classes of what is found, beside that of e2fsck's problem log.
//!
//! `LANEFS_E2FSPROGS` names the folder `tests` of e2fsprogs' sources, whose images `f_*` and `j_*` are then compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use lanefs_check::problem::{Code, TABLE};
use lanefs_check::{Class, Report, Severity};

use crate::{Verdict, check, e2fsck};

/// The class of one of e2fsck's problem numbers; none for headlines and for its own trouble.
fn class_of(number: u32) -> Option<Class> {
    let class = match number {
        0x0A | 0x01_0000 | 0x01_002D | 0x01_0026..=0x01_002C => return None,
        0x01_1000 | 0x01_2000 | 0x01_3000 | 0x01_4000..=0x01_4FFF => return None,
        0x02_0000 | 0x03_0000 | 0x03_1000..=0x03_1FFF | 0x04_0000 | 0x05_0000 => return None,
        0x01..=0x03 | 0x35 | 0x36 | 0x38 | 0x39 | 0x3E | 0x45 | 0x06_0003 => Class::Descriptor,
        0x42 | 0x43 | 0x47 => Class::Mmp,
        0x0F..=0x19 | 0x25..=0x2D | 0x33 | 0x3A | 0x4A => Class::Journal,
        0x20..=0x24 | 0x52..=0x55 | 0x01_0036 | 0x01_0037 => Class::Orphan,
        0x2E..=0x30 | 0x51 | 0x01_004E => Class::Resize,
        0x41 | 0x4C | 0x4F | 0x01_0062..=0x01_0064 | 0x06_0002 | 0x06_0006 => Class::Quota,
        0x0D | 0x3F | 0x40 => Class::Count,
        0x00..=0xFF | 0x02_0033 | 0x02_0039 | 0x04_0006 => Class::Superblock,
        0x01_0007..=0x01_000B | 0x01_0017..=0x01_0025 => Class::Descriptor,
        0x01_0034 | 0x01_0035 | 0x06_0001 => Class::Journal,
        0x01_0038..=0x01_0042 | 0x01_0050..=0x01_0054 | 0x01_0069 | 0x01_006C => Class::Xattr,
        0x01_0083..=0x01_0086 | 0x01_0091 | 0x01_0092 | 0x01_1007 => Class::Xattr,
        0x01_0047..=0x01_004C | 0x01_008D | 0x01_008E => Class::Htree,
        0x01_008F | 0x01_0090 | 0x06_0007..=0x06_0010 => Class::Orphan,
        0x01_000E..=0x01_0016 | 0x01_0043..=0x01_0046 | 0x01_004D => Class::Map,
        0x01_0056..=0x01_0061 | 0x01_0066 | 0x01_006A | 0x01_006D | 0x01_006E => Class::Map,
        0x01_0071..=0x01_0074 | 0x01_007B..=0x01_0081 | 0x01_0087 => Class::Map,
        0x01_1000..=0x01_3FFF => Class::Map,
        0x01_0000..=0x01_0FFF => Class::Inode,
        0x02_000E | 0x02_0032 | 0x02_003B | 0x02_0048 => Class::Xattr,
        0x02_000D..=0x02_0012 | 0x02_0018 | 0x02_0019 | 0x02_0023 => Class::Inode,
        0x02_0025 | 0x02_0026 | 0x02_0031 | 0x02_0044 => Class::Inode,
        0x02_0034..=0x02_0038 | 0x02_003A | 0x02_003C..=0x02_0040 => Class::Htree,
        0x02_0045 | 0x02_0049 | 0x02_004A => Class::Htree,
        0x02_0000..=0x02_0FFF => Class::Directory,
        0x03_0000..=0x03_0FFF | 0x04_0001 | 0x04_0002 => Class::Connectivity,
        0x04_0005 | 0x04_0008 => Class::Xattr,
        0x04_0000..=0x04_0FFF | 0x05_000B..=0x05_000F => Class::Count,
        0x05_0000..=0x05_0FFF => Class::Bitmap,
        _ => return None,
    };
    Some(class)
}

/// Whether our table has the number as a note.
fn is_note(number: u32) -> bool {
    let mut kinds = TABLE.iter();
    kinds.any(|kind| kind.number == number && kind.severity == Severity::Note)
}

/// What a comparison of classes adds up to.
#[derive(Default)]
pub struct Classes {
    pub runs: u32,
    pub same: u32,
    /// e2fsck gave up, so that it says less than there is.
    pub ended: u32,
    /// Classes that only e2fsck has, with the numbers that it logged, and in how many images.
    missing: BTreeMap<(Class, Vec<u32>), u32>,
    /// Classes that only we have, with our kinds, and in how many images.
    extra: BTreeMap<(Class, Vec<Code>), u32>,
}

impl Classes {
    /// Compares the classes that both found. Returns whether the sets are the same.
    pub fn add(&mut self, report: &Report, verdict: &Verdict) -> bool {
        let is_kept =
            |code: &&Code| code.kind().severity != Severity::Note && !code.is_beyond_e2fsck();
        let our_codes: Vec<Code> = report.counts.keys().filter(is_kept).copied().collect();
        let ours: BTreeSet<Class> = our_codes.iter().map(|code| code.kind().class).collect();
        let numbers = verdict.numbers.iter().filter(|number| !is_note(**number));
        let their_numbers: Vec<u32> = numbers.copied().collect();
        let theirs: BTreeSet<Class> = their_numbers
            .iter()
            .filter_map(|it| class_of(*it))
            .collect();
        self.runs += 1;
        if verdict.is_without() {
            self.ended += 1;
            return true;
        }
        for class in theirs.difference(&ours) {
            let of_class = their_numbers
                .iter()
                .filter(|it| class_of(**it) == Some(*class));
            *self
                .missing
                .entry((*class, of_class.copied().collect()))
                .or_default() += 1;
        }
        for class in ours.difference(&theirs) {
            let of_class = our_codes.iter().filter(|it| it.kind().class == *class);
            *self
                .extra
                .entry((*class, of_class.copied().collect()))
                .or_default() += 1;
        }
        let is_same = ours == theirs;
        self.same += u32::from(is_same);
        is_same
    }

    /// Prints the sums and what differs, the most frequent first.
    pub fn print(&self, what: &str) {
        let Classes {
            runs, same, ended, ..
        } = self;
        println!("{what}: {runs} images, the same classes in {same}, e2fsck gave up in {ended}");
        let mut lines: Vec<_> = self
            .missing
            .iter()
            .map(|((class, numbers), runs)| {
                (*runs, format!("only e2fsck: {class:?} {numbers:06x?}"))
            })
            .collect();
        lines.extend(
            self.extra
                .iter()
                .map(|((class, codes), runs)| (*runs, format!("only ours: {class:?} {codes:?}"))),
        );
        lines.sort_by(|a, b| b.cmp(a));
        for (runs, line) in lines {
            println!("  {runs} {line}");
        }
    }
}

/// The kinds of damage in a report, in words.
fn damage(report: &Report) -> String {
    let codes = report.counts.keys();
    let damage = codes.filter(|code| code.kind().severity != Severity::Note);
    format!("{:?}", damage.collect::<Vec<_>>())
}

/// The image of a test folder, unpacked; none where it has none that is packed in one file.
fn unpacked(folder: &Path) -> Option<Vec<u8>> {
    let packed = folder.join("image.gz");
    let output = Command::new("gzip").arg("-dc").arg(&packed).output().ok()?;
    (output.status.success() && !output.stdout.is_empty()).then_some(output.stdout)
}

#[test]
fn images_of_e2fsprogs_are_judged_as_by_e2fsck() {
    let Some(tests) = std::env::var_os("LANEFS_E2FSPROGS") else {
        return testkit::skip("LANEFS_E2FSPROGS does not name e2fsprogs' folder of tests");
    };
    let mut folders: Vec<_> = std::fs::read_dir(tests)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    folders.sort();
    let mut classes = Classes::default();
    let [mut missed, mut alarms, mut beyond] = [0; 3];
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("f_") && !name.starts_with("j_") {
            continue;
        }
        let Some(bytes) = unpacked(&folder) else {
            continue;
        };
        let verdict = e2fsck(&bytes).unwrap();
        let report = check(&bytes, 2);
        let is_clean = report.as_ref().is_ok_and(Report::is_clean);
        let is_same = report
            .as_ref()
            .is_ok_and(|report| classes.add(report, &verdict));
        let is_beyond = report.as_ref().is_ok_and(crate::is_beyond);
        if is_clean != verdict.is_damage() && is_same {
            continue;
        }
        if verdict.is_without() {
            println!(
                "no verdict of e2fsck on {name}: it ended with {}",
                verdict.status
            );
            continue;
        }
        let word = match (is_clean, verdict.is_damage()) {
            (true, true) => {
                missed += 1;
                "MISSED"
            }
            (false, false) if is_beyond => {
                beyond += 1;
                "beyond"
            }
            (false, false) => {
                alarms += 1;
                "FALSE ALARM"
            }
            _ => "classes",
        };
        let ours = report.map_or_else(|error| error.to_string(), |report| damage(&report));
        println!(
            "{word} {name}: ours {ours}, e2fsck {} {:06x?}",
            verdict.status, verdict.numbers
        );
    }
    classes.print("e2fsprogs");
    println!("{missed} missed, {alarms} false alarms, {beyond} beyond e2fsck");
}
