//! `cargo xtask dist`: the files that users install, in `target/dist`: a Debian package with the program linked to the
//! host's glibc, man pages and completions; and static programs for x86_64 and aarch64.
//!
//! The same commit gives the same bytes, whatever folder it is built in: paths in the program are mapped to fixed
//! names, and the time is that of the commit. docs/dist.md describes what a build needs.

mod needs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use self::needs::Needs;

/// The profile of Cargo.toml that all programs are built in.
const PROFILE: &str = "shipped";
/// The Debian package, and the processors of the static programs.
const PARTS: [&str; 3] = ["deb", "x86_64", "aarch64"];

/// Makes the parts with these names, or all.
pub fn run(root: &Path, names: &[&str]) -> Result<(), String> {
    if let Some(name) = names.iter().find(|name| !PARTS.contains(name)) {
        return Err(format!("dist: no part `{name}`: {}", PARTS.join(", ")));
    }
    let parts: Vec<&str> = PARTS
        .into_iter()
        .filter(|part| names.is_empty() || names.contains(part))
        .collect();
    let dist = Dist::new(root)?;
    Needs::of(&parts).check()?;
    fs::create_dir_all(&dist.folder)
        .map_err(|error| format!("{}: {error}", dist.folder.display()))?;
    for part in parts {
        println!("==> {part}");
        match part {
            "deb" => dist.package()?,
            processor => dist.program(processor)?,
        }
    }
    dist.sums()
}

/// A run of the command.
struct Dist {
    root: PathBuf,
    /// Where the files are put.
    folder: PathBuf,
    version: String,
    /// The time of the commit, in seconds since 1970.
    epoch: String,
    /// The folder where cargo keeps the sources of crates.
    cargo_home: PathBuf,
}

impl Dist {
    fn new(root: &Path) -> Result<Dist, String> {
        let manifest = fs::read_to_string(root.join("Cargo.toml"))
            .map_err(|error| format!("Cargo.toml: {error}"))?;
        let version = manifest
            .lines()
            .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
        let epoch =
            match std::env::var("SOURCE_DATE_EPOCH") {
                Ok(epoch) => epoch,
                Err(_) => output(Command::new("git").current_dir(root).args([
                    "log",
                    "-1",
                    "--format=%ct",
                ]))
                .map_err(|error| {
                    format!("dist: {error}; outside a git repository, set SOURCE_DATE_EPOCH")
                })?,
            };
        let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo"));
        Ok(Dist {
            root: root.to_path_buf(),
            folder: root.join("target/dist"),
            version: version.ok_or("dist: Cargo.toml has no version")?.to_owned(),
            epoch,
            cargo_home: cargo_home.or(home).ok_or("dist: set CARGO_HOME")?,
        })
    }

    /// The paths that a program must not contain, each with its replacement.
    fn mapped(&self) -> Result<Vec<(PathBuf, String)>, String> {
        let mut mapped = vec![
            (self.cargo_home.clone(), "/cargo".to_owned()),
            (crate::built(&self.root), "/target".to_owned()),
            (self.root.clone(), "/lanefs".to_owned()),
        ];
        // If the sources of Rust's library are installed, rustc puts their path into the program instead of the
        // original one.
        let commit = of_rustc("commit-hash: ")?;
        let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
        let real = fs::canonicalize(&sysroot).map_err(|error| format!("{sysroot}: {error}"))?;
        for sysroot in [PathBuf::from(sysroot), real] {
            let sources = sysroot.join("lib/rustlib/src/rust");
            mapped.push((sources, format!("/rustc/{commit}")));
        }
        // rustc uses the last rule that matches, so the most specific rule comes last.
        mapped.sort_by_key(|(path, _)| path.components().count());
        Ok(mapped)
    }

    /// Builds the program for a target; returns its path.
    fn build(&self, target: &str, adjust: impl FnOnce(&mut Command)) -> Result<PathBuf, String> {
        let mapped = self.mapped()?;
        let flags = mapped
            .iter()
            .map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()));
        let flags: Vec<String> = flags.collect();
        let mut command = crate::cargo();
        command
            .current_dir(&self.root)
            .env("SOURCE_DATE_EPOCH", &self.epoch)
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env("CARGO_TARGET_DIR", crate::built(&self.root))
            .args(["build", "--locked", "--quiet", "--package", "lanefs-cli"])
            .args(["--profile", PROFILE, "--target", target]);
        adjust(&mut command);
        succeed(&mut command)?;
        let built = crate::built(&self.root).join(target).join(PROFILE);
        Ok(built.join("lanefs"))
    }

    /// The Debian package for this machine's processor.
    fn package(&self) -> Result<(), String> {
        // The target that rustc builds for by default.
        let target = of_rustc("host: ")?;
        self.build(&target, |_| ())?;
        succeed(
            crate::cargo()
                .current_dir(&self.root)
                .args(["run", "--locked", "--quiet", "--package", "lanefs-pages"])
                .arg("--")
                .arg(self.folder.join("pages")),
        )?;
        for old in self.files("deb")? {
            fs::remove_file(&old).map_err(|error| format!("{}: {error}", old.display()))?;
        }
        succeed(
            crate::cargo()
                .current_dir(&self.root)
                .env("SOURCE_DATE_EPOCH", &self.epoch)
                .env("CARGO_TARGET_DIR", crate::built(&self.root))
                .args(["deb", "--no-build", "--no-strip", "--quiet"])
                .args(["--package", "lanefs-cli", "--profile", PROFILE])
                .args(["--target", &target, "--output"])
                .arg(&self.folder),
        )
    }

    /// The static program for a processor.
    fn program(&self, processor: &str) -> Result<(), String> {
        let target = format!("{processor}-unknown-linux-musl");
        let compiler = needs::compiler(processor);
        let headers = needs::headers(processor);
        // The allocator is written in C and must be built with musl's headers, not the host's.
        let own = output(Command::new(&compiler).arg("-print-file-name=include"))?;
        let mapped = self.mapped()?;
        let maps = mapped
            .iter()
            .map(|(path, name)| format!("-ffile-prefix-map={}={name}", path.display()));
        let maps: Vec<String> = maps.collect();
        let flags = format!(
            "-nostdinc -isystem {} -isystem {own} {}",
            headers.display(),
            maps.join(" ")
        );
        let name = target.replace('-', "_");
        let linker = format!("CARGO_TARGET_{}_LINKER", name.to_uppercase());
        let program = self.build(&target, |command| {
            command
                .args(["--features", "mimalloc"])
                .env(format!("CC_{name}"), &compiler)
                .env(format!("CFLAGS_{name}"), flags)
                .env(linker, &compiler);
        })?;
        let name = format!("lanefs-{}-{processor}-linux-musl", self.version);
        let path = self.folder.join(name);
        fs::copy(&program, &path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(())
    }

    /// The files of the folder whose names end with `end`.
    fn files(&self, end: &str) -> Result<Vec<PathBuf>, String> {
        let failed = |error| format!("{}: {error}", self.folder.display());
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let is_one = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().ends_with(end));
            if path.is_file() && is_one {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// Writes the checksums of all files to a file next to them, and prints them.
    fn sums(&self) -> Result<(), String> {
        let mut files = self.files("deb")?;
        files.extend(self.files("-linux-musl")?);
        let names = files.iter().filter_map(|path| path.file_name());
        let mut command = Command::new("sha256sum");
        let sums = output(command.current_dir(&self.folder).args(names))?;
        let path = self.folder.join("SHA256SUMS");
        fs::write(&path, format!("{sums}\n"))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{sums}");
        for path in files {
            let length = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            println!("{:>6} KiB  {}", length >> 10, path.display());
        }
        Ok(())
    }
}

/// The value after this heading in the output of `rustc -vV`.
fn of_rustc(heading: &str) -> Result<String, String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let found = version.lines().find_map(|line| line.strip_prefix(heading));
    found
        .map(str::to_owned)
        .ok_or_else(|| format!("dist: rustc -vV has no line `{heading}`"))
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|error| format!("dist: {:?} does not start: {error}", command.get_program()))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("dist: failed: {command:?}"))
    }
}

/// The output of a command, which must succeed, without the end of its last line.
fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{:?} does not start: {error}", command.get_program()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    } else {
        Err(format!(
            "{:?} failed: {}",
            command.get_program(),
            String::from_utf8_lossy(&output.stderr).trim_end()
        ))
    }
}
