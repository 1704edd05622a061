//! `cargo xtask demo`: makes an ext4 image of a real directory tree of this machine, lets e2fsck judge it, and compares
//! what is read back with the source. Needs Rust only; other programs are used if they exist.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The trees to choose from, the best first.
const CANDIDATES: [&str; 5] = [
    "/usr/share/doc",
    "/usr/include",
    "/usr/share/zoneinfo",
    "/usr/share/man",
    "/etc",
];
/// The most bytes of a tree that is chosen.
const MAX_BYTES: u64 = 256 << 20;
/// The most entries of a tree that is chosen.
const MAX_ENTRIES: u64 = 60_000;
/// How many lines of a listing are shown.
const LINES: usize = 16;

/// Runs the demo.
pub fn run(root: &Path) -> Result<(), String> {
    let demo = Demo::prepare(root)?;
    let source = choose(root)?;
    demo.say(&format!(
        "a tree of this machine: {} ({} files, {} directories, {})",
        source.path.display(),
        source.files.len(),
        source.directories,
        human(source.bytes)
    ));
    demo.build(&source)?;
    demo.check()?;
    demo.list()?;
    demo.read_back(&source)?;
    demo.next_steps();
    Ok(())
}

/// A tree that can be built.
struct Source {
    path: PathBuf,
    /// Regular files that can be read, with their sizes.
    files: Vec<(PathBuf, u64)>,
    directories: u64,
    bytes: u64,
}

/// The first candidate that exists, can be read completely, and is neither tiny nor huge; else the project's own
/// crates.
fn choose(root: &Path) -> Result<Source, String> {
    let fits = |source: &Source| source.files.len() >= 20 && source.bytes >= 64 << 10;
    CANDIDATES
        .iter()
        .filter_map(|path| survey(Path::new(path)).ok())
        .find(fits)
        .map_or_else(
            || survey(&root.join("crates")).map_err(|error| error.to_string()),
            Ok,
        )
}

fn survey(path: &Path) -> io::Result<Source> {
    let mut source = Source {
        path: path.to_path_buf(),
        files: Vec::new(),
        directories: 0,
        bytes: 0,
    };
    let mut folders = vec![path.to_path_buf()];
    let mut entries = 0;
    while let Some(folder) = folders.pop() {
        source.directories += 1;
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            entries += 1;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                // Opening a file shows whether it can be read, which permissions alone do not.
                let len = fs::File::open(entry.path())?.metadata()?.len();
                source.bytes += len;
                source.files.push((entry.path(), len));
            }
            if entries > MAX_ENTRIES || source.bytes > MAX_BYTES {
                return Err(io::Error::other("too big for a demo"));
            }
        }
    }
    source.files.sort();
    Ok(source)
}

struct Demo {
    lanefs: PathBuf,
    /// The path from the folder in which the demo was called, as short as possible.
    image: PathBuf,
    color: bool,
}

/// A path relative to the current folder, if it is below it.
fn short(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).to_path_buf()
}

impl Demo {
    /// Builds the program and makes a folder for the image.
    fn prepare(root: &Path) -> Result<Demo, String> {
        let color = io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let target = crate::built(root);
        let folder = short(&target.join("demo"));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let demo = Demo {
            lanefs: short(&target.join("release/lanefs")),
            image: folder.join("demo.img"),
            color,
        };
        let _ = fs::remove_file(&demo.image);
        demo.say("building lanefs (optimized; the first time takes a minute or two)");
        let status = crate::cargo()
            .current_dir(root)
            .args([
                "build",
                "--release",
                "--quiet",
                "--locked",
                "--package",
                "lanefs-cli",
            ])
            .status()
            .map_err(|error| format!("cargo does not start: {error}"))?;
        if status.success() {
            Ok(demo)
        } else {
            Err("lanefs does not build".into())
        }
    }

    fn say(&self, text: &str) {
        let (bold, plain) = if self.color {
            ("\x1b[1m", "\x1b[0m")
        } else {
            ("", "")
        };
        println!("\n{bold}==> {text}{plain}");
    }

    fn good(&self, text: &str) {
        let (green, plain) = if self.color {
            ("\x1b[32m", "\x1b[0m")
        } else {
            ("", "")
        };
        println!("    {green}ok{plain} {text}");
    }

    /// Shows a command as the user would type it.
    fn show(program: &str, arguments: &[&str]) {
        println!("    $ {program} {}", arguments.join(" "));
    }

    fn lanefs(&self, arguments: &[&str]) -> Result<Vec<u8>, String> {
        let output = Command::new(&self.lanefs)
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .map_err(|error| format!("lanefs does not start: {error}"))?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(format!(
                "lanefs {} ended with {}",
                arguments.join(" "),
                output.status
            ))
        }
    }

    /// Runs `lanefs` and shows the beginning of what it prints.
    fn show_lanefs(&self, arguments: &[&str]) -> Result<(), String> {
        Demo::show("lanefs", arguments);
        let output = self.lanefs(arguments)?;
        let text = String::from_utf8_lossy(&output);
        let lines: Vec<&str> = text.lines().collect();
        for line in lines.iter().take(LINES) {
            println!("    {line}");
        }
        if lines.len() > LINES {
            println!("    ... ({} more lines)", lines.len() - LINES);
        }
        Ok(())
    }

    fn image(&self) -> String {
        self.image.display().to_string()
    }

    fn build(&self, source: &Source) -> Result<(), String> {
        self.say("it becomes an ext4 image: no root, no mount, no loop device");
        let (path, image) = (source.path.display().to_string(), self.image());
        Demo::show("lanefs", &["build", &path, &image]);
        let begun = Instant::now();
        self.lanefs(&["build", &path, &image])?;
        let time = begun.elapsed();
        let size = fs::metadata(&self.image)
            .map_err(|error| format!("{image}: {error}"))?
            .len();
        self.good(&format!("{} in {:.2} s", human(size), time.as_secs_f64()));
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.say("somebody else judges it: e2fsck of e2fsprogs");
        let Some(e2fsck) = find_program("e2fsck") else {
            println!("    e2fsck is not installed here (package e2fsprogs), so nobody did");
            return Ok(());
        };
        let image = self.image();
        Demo::show("e2fsck", &["-fn", &image]);
        let output = Command::new(e2fsck).args(["-fn", &image]).output();
        let output = output.map_err(|error| format!("e2fsck does not start: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            return Err(format!("e2fsck found errors:\n{text}"));
        }
        self.good(text.lines().last().unwrap_or("clean"));
        Ok(())
    }

    fn list(&self) -> Result<(), String> {
        self.say("what is in it");
        let image = self.image();
        self.show_lanefs(&["ls", "-l", &image])?;
        self.show_lanefs(&["map", &image])
    }

    /// Reads one file with `cat`, then everything with `extract`, and compares both with the source.
    fn read_back(&self, source: &Source) -> Result<(), String> {
        self.say("read back and compared");
        let image = self.image();
        if let Some((file, _)) = source.files.iter().max_by_key(|(_, len)| *len) {
            let inside = file.strip_prefix(&source.path).unwrap_or(file);
            let target = format!("{image}:/{}", inside.display());
            Demo::show("lanefs", &["cat", &target]);
            let wanted = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
            if self.lanefs(&["cat", &target])? != wanted {
                return Err(format!("{} differs in the image", file.display()));
            }
            self.good(&format!(
                "the same {} as in {}",
                human(wanted.len() as u64),
                file.display()
            ));
        }
        let out = self.image.with_file_name("out");
        let _ = fs::remove_dir_all(&out);
        let out_name = out.display().to_string();
        Demo::show("lanefs", &["extract", &image, &out_name]);
        self.lanefs(&["--quiet", "extract", &image, &out_name])?;
        for (file, _) in &source.files {
            let copy = out.join(file.strip_prefix(&source.path).unwrap_or(file));
            if !same(file, &copy).map_err(|error| format!("{}: {error}", copy.display()))? {
                return Err(format!(
                    "{} differs from {}",
                    copy.display(),
                    file.display()
                ));
            }
        }
        self.good(&format!(
            "all {} files are the same, byte for byte",
            source.files.len()
        ));
        let _ = fs::remove_dir_all(&out);
        Ok(())
    }

    fn next_steps(&self) {
        let image = self.image();
        let folder = self.lanefs.parent().unwrap_or(Path::new(""));
        let here = if folder.is_absolute() { "" } else { "$PWD/" };
        self.say("done; try next");
        println!("    export PATH=\"{here}{}:$PATH\"", folder.display());
        for (command, what) in [
            (
                format!("lanefs info {image}"),
                "features, groups, who can use it",
            ),
            (format!("lanefs tree {image} | less"), "all that is in it"),
            (
                format!("lanefs find {image} -size +100k"),
                "as find does, without mounting",
            ),
            (
                format!("lanefs extract {image} - | tar t"),
                "all of it as a tar",
            ),
            (
                "lanefs build ANY-DIRECTORY new.img".to_owned(),
                "an image of your own",
            ),
            (
                format!("sudo mount -o loop,ro {image} /mnt"),
                "the kernel reads it too",
            ),
        ] {
            println!("    {command:<50} {what}");
        }
    }
}

fn same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (fs::File::open(one)?, fs::File::open(other)?);
    let (mut a, mut b) = (Vec::new(), Vec::new());
    one.read_to_end(&mut a)?;
    other.read_to_end(&mut b)?;
    Ok(a == b)
}

fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/sbin".into(), "/usr/sbin".into()]);
    folders
        .map(|folder: PathBuf| folder.join(name))
        .find(|path| path.exists())
}

fn human(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}
