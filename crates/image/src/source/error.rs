//! Why an input can't be used. Every error says which input, and where in it.

use std::path::PathBuf;

/// An error of a sink that receives data, passed through unchanged as [`SourceError::Sink`].
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Why a source can't be read or merged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A system call on a path failed.
    #[error("{}: cannot {operation}: {error}", path.display())]
    Io {
        /// What was tried: `open`, `read`, `list`, ...
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// Files that this user may not read, all of them.
    #[error("{}", unreadable(.0))]
    Unreadable(Vec<(PathBuf, std::io::Error)>),
    /// A file changed while it was read.
    #[error("{}: {what} while it was read; build again when nothing writes to it", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// How it changed.
        what: String,
    },
    /// An archive, or one entry of it, is damaged, truncated or beyond a limit.
    #[error("{archive}: {problem} (at byte {offset}{})", named(entry))]
    Archive {
        /// The archive, or a layer's digest.
        archive: String,
        /// Byte within the archive, after decompression.
        offset: u64,
        /// The entry's name, when known.
        entry: Option<String>,
        /// What is wrong.
        problem: String,
    },
    /// An OCI or docker-save image can't be used.
    #[error("{image}: {problem}")]
    Image {
        /// The image.
        image: String,
        /// What is wrong, with the digest or the file concerned.
        problem: String,
    },
    /// A line of the ownership table, of the SELinux contexts, or of another text file is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// An option can't be used.
    #[error("{0}")]
    Usage(String),
    /// A path can't become part of the tree.
    #[error("/{path}: {problem}")]
    Tree {
        /// The path within the image, without the leading `/`.
        path: String,
        /// What is wrong.
        problem: String,
    },
    /// The receiver of the data refused it.
    #[error(transparent)]
    Sink(SinkError),
}

fn named(entry: &Option<String>) -> String {
    entry
        .as_ref()
        .map_or(String::new(), |entry| format!(", entry `{entry}`"))
}

/// How many unreadable files are named in one message.
const NAMED: usize = 1000;

fn unreadable(files: &[(PathBuf, std::io::Error)]) -> String {
    let mut text = match files.len() {
        1 => String::from("one file can't be read:"),
        count => format!("{count} files can't be read:"),
    };
    for (path, error) in files.iter().take(NAMED) {
        text.push_str(&format!("\n  {}: {error}", path.display()));
    }
    if files.len() > NAMED {
        text.push_str(&format!("\n  and {} more", files.len() - NAMED));
    }
    text.push_str("\nrun as a user who may read them, or leave them out with --exclude");
    text
}
