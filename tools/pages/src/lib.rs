//! Man pages and shell completions, made from the definition of the command line: `clap_mangen` and `clap_complete` do
//! the work. What is ours is the order of the sections, text whose lines stay as they are in `--help` (tables of
//! options), and the examples.

mod man;

use std::fs;
use std::io;
use std::path::Path;

use clap_complete::Shell;
use clap_complete::aot::generate_to;

/// Shells that get completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// Writes `man1/*.1` and `completions/*` into a folder; what is in these folders is removed first.
///
/// # Errors
/// What fails to be written.
pub fn write(folder: &Path) -> io::Result<()> {
    let [pages, completions] = ["man1", "completions"].map(|name| folder.join(name));
    for folder in [&pages, &completions] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
    }
    for (name, page) in man::pages(cli::command()) {
        fs::write(pages.join(name), page)?;
    }
    let mut command = cli::command();
    for shell in SHELLS {
        generate_to(shell, &mut command, "lanefs", &completions)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (
                    entry.file_name().into_string().unwrap(),
                    fs::read(entry.path()).unwrap(),
                )
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn each_command_has_a_page_with_examples_and_the_same_bytes_each_time() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [&one, &other] {
            write(folder.path()).unwrap();
        }
        for name in ["man1", "completions"] {
            assert_eq!(
                files(&one.path().join(name)),
                files(&other.path().join(name))
            );
        }
        for command in cli::command().get_subcommands() {
            let path = one
                .path()
                .join(format!("man1/lanefs-{}.1", command.get_name()));
            let page = fs::read_to_string(&path).unwrap();
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES"] {
                assert!(
                    page.contains(&format!(".SH {section}\n")),
                    "{}: {section}",
                    path.display()
                );
            }
        }
        assert!(one.path().join("man1/lanefs.1").exists());
        assert!(one.path().join("man1/lanefs-dump-inode.1").exists());
    }

    #[test]
    fn man_finds_nothing_wrong_with_the_pages() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        if !testkit::have("man") {
            return testkit::skip("man is not installed");
        }
        for (name, _) in files(&folder.path().join("man1")) {
            let output = Command::new("man")
                .args(["--local-file", "--warnings", "--encoding=UTF-8"])
                .arg(folder.path().join("man1").join(&name))
                .env("MANWIDTH", "100")
                .output()
                .unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{name}: {output:?}"
            );
        }
    }

    #[test]
    fn bash_reads_the_completions_and_completes_a_command() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        if !testkit::have("bash") {
            return testkit::skip("bash is not installed");
        }
        let script = "source completions/lanefs.bash && COMP_WORDS=(lanefs ext) COMP_CWORD=1 \
                      && _lanefs lanefs ext lanefs && echo \"${COMPREPLY[@]}\"";
        let output = Command::new("bash")
            .args(["-c", script])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "extract\n",
            "{output:?}"
        );
    }
}
