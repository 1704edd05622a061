//! Tars of random trees: names in directories of all sizes, empty to large files, long names, attributes, links.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use super::draw::Numbers;

/// One entry of a tar.
fn entry(out: &mut impl Write, name: &str, kind: u8, link: &str, data: &[u8]) {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[108..115].copy_from_slice(b"0000000");
    header[116..123].copy_from_slice(b"0000000");
    header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
    header[136..147].copy_from_slice(b"14000000000");
    header[148..156].fill(b' ');
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    out.write_all(&header).unwrap();
    out.write_all(data).unwrap();
    let padding = data.len().next_multiple_of(512) - data.len();
    out.write_all(&[0; 512][..padding]).unwrap();
}

/// A record of a PAX header.
fn record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    // The length counts its own digits.
    let digits = (1..20).find(|digits| (rest + digits).to_string().len() == *digits);
    format!("{} {key}={value}\n", rest + digits.unwrap())
}

/// A PAX header for the entry that follows it.
fn pax(out: &mut impl Write, records: &str) {
    entry(out, "pax", b'x', "", records.as_bytes());
}

/// Directories below one another in a random tree.
const DEPTH_MAX: u64 = 6;
/// Bytes of files in a random tree, and in one of ten.
const TREE_BYTES: u64 = 48 << 20;
const LARGE_TREE_BYTES: u64 = 200 << 20;

/// The path of a directory, below up to `depth` others; its parents may be implied.
fn directory_name(random: &mut Numbers, here: u64, depth: u64) -> String {
    let parents = (0..random.below(depth + 1)).fold(String::new(), |path, level| {
        format!("{path}p{}/", here % (level + 2))
    });
    format!("{parents}d{here}")
}

/// The name of a file in its directory: sometimes a long one.
fn file_name(random: &mut Numbers, number: u64) -> String {
    let letters = match random.below(50) {
        0 => random.below(240),
        1 => 60,
        _ => 0,
    };
    format!("{number}{}", "x".repeat(letters as usize))
}

/// Writes a random tree of `names` names in directories of all sizes, and returns the bytes that its files have.
pub fn make_tar(
    path: &Path,
    random: &mut Numbers,
    names: u64,
    has_ea_inode: bool,
    is_long: bool,
) -> u64 {
    let mut out = BufWriter::new(File::create(path).unwrap());
    let in_directory = 1 + random.log_uniform(2_000.0);
    let (most, largest_max) = match random.below(10) {
        0 if is_long => (LARGE_TREE_BYTES, 200e6),
        _ => (TREE_BYTES, 300e3),
    };
    // Both sizes are multiples of it.
    let period: Vec<u8> = (0..1 << 16).map(|at| (at ^ at >> 8) as u8).collect();
    let pattern = period.repeat(most as usize / period.len());
    let mut budget = most;
    let largest = random.log_uniform(largest_max) as f64;
    let value_max = match (has_ea_inode, random.below(8)) {
        (true, 0) => 20_000.0,
        (true, _) => 2_000.0,
        // What fits a block of 1 KiB.
        (false, _) => 900.0,
    };
    let depth = random.below(DEPTH_MAX);
    let mut last_file: Option<String> = None;
    let mut directory = String::new();
    for number in 0..names {
        if number % in_directory == 0 {
            let here = number / in_directory;
            directory = directory_name(random, here, depth);
            entry(&mut out, &format!("{directory}/"), b'5', "", b"");
        }
        let name = format!("{directory}/{}", file_name(random, number));
        let mut header_name = name.as_str();
        let mut records = String::new();
        if name.len() > 100 {
            records.push_str(&record("path", &name));
            header_name = "long";
        }
        let what = random.below(40);
        if what == 2 {
            let value = "v".repeat(random.log_uniform(value_max) as usize);
            records.push_str(&record("SCHILY.xattr.user.note", &value));
        }
        if !records.is_empty() {
            pax(&mut out, &records);
        }
        match (what, &last_file) {
            (0, Some(file)) => entry(&mut out, header_name, b'1', file, b""),
            (1, _) => {
                let target = "target/".repeat(1 + number as usize % 12);
                entry(&mut out, header_name, b'2', &target, b"");
            }
            _ => {
                let size = random.log_uniform(largest).min(budget);
                budget -= size;
                let from = (number % 251).min(most - size) as usize;
                let data = &pattern[from..from + size as usize];
                entry(&mut out, header_name, b'0', "", data);
                if name.len() <= 100 {
                    last_file = Some(name);
                }
            }
        }
    }
    out.write_all(&[0; 1024]).unwrap();
    out.flush().unwrap();
    most - budget
}
