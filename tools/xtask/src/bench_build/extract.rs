//! Extracting an image, beside `cp -a` from the same image mounted by the kernel. Needs root for the mount.
//!
//! Warm: the image was read before. Cold: the mount is made anew and the image's pages are dropped before each run,
//! so its bytes come from the disk. The image lies in the cache directory; the destination where built images go, so
//! that the disk's writeback does not count.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Bench, Runs, Table, said, timed};

/// An image that is mounted as long as this lives.
struct Mounted {
    at: PathBuf,
}

impl Mounted {
    fn new(image: &Path, at: PathBuf) -> Result<Mounted, String> {
        fs::create_dir_all(&at).map_err(|error| format!("{}: {error}", at.display()))?;
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop,ro"]).arg(image).arg(&at);
        quietly(mount)?;
        Ok(Mounted { at })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg(&self.at);
        // What stays mounted shows in the next mount.
        let _ = quietly(unmount);
        let _ = fs::remove_dir(&self.at);
    }
}

/// Runs a program and says only whether it failed.
fn quietly(mut command: Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(text.lines().next().unwrap_or_default().replace('|', "/"))
}

/// Writes back a file's pages and drops them from the page cache.
fn drop_pages(path: &Path) -> Result<(), String> {
    let mut dd = Command::new("dd");
    let of = format!("of={}", path.display());
    dd.args(["if=/dev/null", "oflag=nocache", "conv=notrunc,fdatasync"])
        .args(["count=0", &of]);
    quietly(dd)
}

/// Measures both programs with an image of `source`, warm and cold.
pub(super) fn measure(
    bench: &Bench,
    name: &str,
    source: &Path,
    table: &mut Table,
) -> Result<(), String> {
    let image = bench.directory.join("extract.img");
    let destination = bench.output.join("lanefs-bench-extracted");
    let mut build = Command::new(&bench.lanefs);
    build.args(["build", "-q"]).arg(source).arg(&image);
    quietly(build)?;
    let result = [("warm", false), ("cold", true)]
        .into_iter()
        .try_for_each(|(state, cold)| both(bench, name, state, cold, &image, &destination, table));
    // The cache directory keeps inputs only; what stays is replaced by the next run.
    let _ = fs::remove_file(&image);
    result
}

fn both(
    bench: &Bench,
    name: &str,
    state: &str,
    cold: bool,
    image: &Path,
    destination: &Path,
    table: &mut Table,
) -> Result<(), String> {
    let mut ours = Runs::default();
    let mut theirs = Runs::default();
    // The first round warms up and does not count.
    for round in 0..=bench.rounds {
        for (program, runs) in [("lanefs extract", &mut ours), ("cp -a", &mut theirs)] {
            if !runs.wants_more() || (cold && round == 0) {
                continue;
            }
            let _ = fs::remove_dir_all(destination);
            if cold {
                drop_pages(image)?;
            }
            let sample = if program == "cp -a" {
                let mounted = Mounted::new(image, bench.directory.join("mounted"))?;
                if !cold {
                    // Into a pipe: tar reads nothing for /dev/null.
                    let mut read = Command::new("sh");
                    read.args(["-c", "tar -C \"$1\" -cf - . | cat > /dev/null", "sh"])
                        .arg(&mounted.at);
                    quietly(read)?;
                }
                let mut copy = Command::new("cp");
                copy.arg("-a").arg(mounted.at.join(".")).arg(destination);
                timed(copy)
            } else {
                let mut extract = Command::new(&bench.lanefs);
                extract.args(["extract", "-q"]).arg(image).arg(destination);
                timed(extract)
            };
            if round > 0 {
                eprintln!(
                    "extract {name}, {state}: round {round}: {program}: {}",
                    said(&sample)
                );
                runs.add(sample);
            }
        }
    }
    let _ = fs::remove_dir_all(destination);
    let input = format!("extract {name}, {state}");
    table.row(&input, "lanefs extract", &mut ours)?;
    table.row(&input, "cp -a from a kernel mount", &mut theirs)
}
