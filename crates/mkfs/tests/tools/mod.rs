//! What the tests share: one set of letters for mke2fs and for us, and dumpe2fs's lines.

// Each test file uses its part.
#![allow(dead_code)]

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use device::{BlockDevice, FileDevice};
use lanefs_mkfs::{FormatSummary, Layout, Options, format, parse_size};

/// Whether e2fsprogs are installed; prints a line if not.
pub fn ready() -> bool {
    let ready = testkit::have("mke2fs") && testkit::have("dumpe2fs") && testkit::have("e2fsck");
    if !ready {
        testkit::skip("mke2fs, dumpe2fs or e2fsck is missing");
    }
    ready
}

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
const HASH_SEED: &str = "fedcba98-7654-3210-fedc-ba9876543210";

/// A size and letters, in mke2fs's words.
pub struct Case {
    fs_type: String,
    size: String,
    letters: Vec<(char, String)>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.fs_type, self.size)?;
        for (letter, value) in &self.letters {
            write!(f, " -{letter} {value}")?;
        }
        Ok(())
    }
}

impl Case {
    /// ext4 of this size, with letters like `-b 4096 -O bigalloc`.
    pub fn new(size: &str, letters: &str) -> Case {
        Case::of_type("ext4", size, letters)
    }

    /// As [`Case::new`], of another type.
    pub fn of_type(fs_type: &str, size: &str, letters: &str) -> Case {
        let mut words = letters.split_whitespace();
        let mut list = Vec::new();
        while let Some(word) = words.next() {
            let letter = word.strip_prefix('-').and_then(|rest| rest.chars().next());
            list.push((letter.unwrap(), words.next().unwrap().to_owned()));
        }
        Case {
            fs_type: fs_type.into(),
            size: size.into(),
            letters: list,
        }
    }

    pub fn size_bytes(&self) -> u64 {
        parse_size("SIZE", &self.size, 1024).unwrap()
    }

    /// Our options, with fixed UUID and hash seed.
    pub fn options(&self) -> Options {
        let mut options = Options {
            time: Some(1_700_000_000),
            device_is_zero: true,
            ..Options::default()
        };
        options.set('t', &self.fs_type).unwrap();
        options.set('U', UUID).unwrap();
        options.set('E', &format!("hash_seed={HASH_SEED}")).unwrap();
        for (letter, value) in &self.letters {
            options.set(*letter, value).unwrap();
        }
        options
    }

    /// Makes the image with mke2fs. Debian's 1.47.0 needs two of our default features as options.
    pub fn mke2fs(&self, image: &Path) {
        make_file(image, self.size_bytes());
        let mut options = vec!["-t".to_owned(), self.fs_type.clone()];
        let mut features = match self.fs_type.as_str() {
            "ext4" => "metadata_csum_seed,orphan_file".to_owned(),
            _ => String::new(),
        };
        let mut extended = format!("hash_seed={HASH_SEED},lazy_journal_init=1");
        let mut uuid = UUID;
        for (letter, value) in &self.letters {
            match letter {
                'O' => features = format!("{features},{value}"),
                'E' => extended = format!("{extended},{value}"),
                'U' => uuid = value,
                _ => {
                    options.extend([format!("-{letter}"), value.clone()]);
                }
            }
        }
        if !features.is_empty() {
            options.extend(["-O", features.trim_matches(',')].map(str::to_owned));
        }
        options.extend(["-U", uuid, "-E", &extended].map(str::to_owned));
        options.push(image.to_str().unwrap().to_owned());
        testkit::mke2fs(&options);
    }

    /// Makes the image with our code, into a new sparse file, and has e2fsck read it.
    pub fn ours(&self, image: &Path) -> FormatSummary {
        let layout = Layout::plan(self.size_bytes(), &self.options())
            .unwrap_or_else(|error| panic!("{self}: {error}"));
        make_file(image, 0);
        let device = FileDevice::create(image, self.size_bytes()).unwrap();
        let summary = format(&device, &layout).unwrap_or_else(|error| panic!("{self}: {error}"));
        device.flush().unwrap();
        drop(device);
        testkit::e2fsck(image);
        summary
    }
}

fn make_file(path: &Path, size: u64) {
    std::fs::File::create(path).unwrap().set_len(size).unwrap();
}

/// dumpe2fs's lines: what stands before the colon, and what after.
pub struct Numbers(HashMap<String, String>);

impl Numbers {
    /// Of an image.
    pub fn of(image: &Path) -> Numbers {
        let output = testkit::dumpe2fs(&["-h", image.to_str().unwrap()]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Numbers(
            pairs
                .map(|(name, value)| (name.trim().into(), value.trim().into()))
                .collect(),
        )
    }

    /// Of the image that mke2fs makes.
    pub fn of_mke2fs(case: &Case) -> Numbers {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("theirs");
        case.mke2fs(&image);
        Numbers::of(&image)
    }

    /// Of the image that we make.
    pub fn of_ours(case: &Case) -> Numbers {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("ours");
        case.ours(&image);
        Numbers::of(&image)
    }

    /// What stands after a name; `None` where the line is missing.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}
