//! A Rust file as the rules see it: its lines, their code and comments, and which lines belong to tests.
//!
//! This is a lexer of the few tokens that matter (comments, strings, characters, braces), not a parser.

use std::path::{Path, PathBuf};

/// A line of a Rust file.
#[derive(Debug, Default)]
pub struct Line {
    /// The line as written.
    pub text: String,
    /// The line with comments and the contents of strings blanked.
    pub code: String,
    /// The text of the line's comment, without its slashes.
    pub comment: Option<String>,
    /// Whether the line belongs to tests.
    pub test: bool,
}

/// A Rust file.
#[derive(Debug)]
pub struct RustFile {
    /// The path from the workspace's root, with forward slashes.
    pub path: String,
    /// Its lines.
    pub lines: Vec<Line>,
    /// The strings as written, with the numbers of their first lines from 0.
    pub strings: Vec<(usize, String)>,
}

impl RustFile {
    /// Splits a file into lines, code and comments.
    pub fn new(path: &Path, text: &str) -> RustFile {
        let path = path.to_string_lossy().replace('\\', "/");
        let (code, comments, strings) = mask(text);
        let all_test = is_test_path(&path);
        let mut lines: Vec<Line> = text
            .lines()
            .zip(
                code.lines()
                    .map(str::to_owned)
                    .chain(std::iter::repeat(String::new())),
            )
            .map(|(text, code)| Line {
                text: text.to_owned(),
                code,
                comment: None,
                test: all_test,
            })
            .collect();
        for (line, comment) in comments {
            if let Some(line) = lines.get_mut(line) {
                line.comment.get_or_insert(comment);
            }
        }
        let mut source = RustFile {
            path,
            lines,
            strings,
        };
        source.mark_tests();
        source
    }

    /// The crate's folder name (`ondisk`, `xtask`), if the file is in one.
    pub fn crate_name(&self) -> Option<&str> {
        let mut parts = self.path.split('/');
        match parts.next()? {
            "crates" | "tools" => parts.next(),
            _ => None,
        }
    }

    /// The module below the crate's root that the file belongs to: `dir` for `src/dir.rs` and `src/dir/htree.rs`.
    pub fn module(&self) -> Option<&str> {
        let (_, inside) = self.path.split_once("/src/")?;
        let first = inside.split('/').next()?;
        Some(first.strip_suffix(".rs").unwrap_or(first))
    }

    /// The module, and the part of it that the file is in: `a::b` for `a/b.rs` and `a/b/c.rs`.
    pub fn part(&self) -> Option<String> {
        let (_, inside) = self.path.split_once("/src/")?;
        let (module, rest) = inside.split_once('/')?;
        let part = rest.split('/').next()?;
        Some(format!(
            "{module}::{}",
            part.strip_suffix(".rs").unwrap_or(part)
        ))
    }

    /// The code of all lines that do not belong to tests, with their numbers from 1.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..)
            .zip(&self.lines)
            .filter(|(_, line)| !line.test)
            .map(|(number, line)| (number, line.code.as_str()))
    }

    /// Marks the lines from `#[cfg(test)]` to the end of its braces.
    fn mark_tests(&mut self) {
        let mut index = 0;
        while index < self.lines.len() {
            if !self.lines[index]
                .code
                .replace(' ', "")
                .contains("#[cfg(test)]")
            {
                index += 1;
                continue;
            }
            let end = self.end_of_item(index);
            for line in &mut self.lines[index..=end] {
                line.test = true;
            }
            index = end + 1;
        }
    }

    /// The last line of the item that begins at this line: where its braces close, or its semicolon.
    pub fn end_of_item(&self, start: usize) -> usize {
        let mut depth = 0_i32;
        for (index, line) in self.lines.iter().enumerate().skip(start) {
            let mut brackets = 0_i32;
            for character in line.code.chars() {
                match character {
                    '{' => depth += 1,
                    '}' => {
                        depth -= 1;
                        if depth <= 0 {
                            return index;
                        }
                    }
                    '(' | '[' => brackets += 1,
                    ')' | ']' => brackets -= 1,
                    ';' if depth == 0 && brackets == 0 => return index,
                    _ => {}
                }
            }
        }
        self.lines.len() - 1
    }
}

fn is_test_path(path: &str) -> bool {
    if path.starts_with("tools/testkit/") {
        return true;
    }
    let parts: Vec<&str> = path.split('/').collect();
    let (file, folders) = parts.split_last().unwrap_or((&"", &[]));
    folders
        .iter()
        .any(|folder| matches!(*folder, "tests" | "benches" | "examples" | "fuzz"))
        || *file == "tests.rs"
        || file.ends_with("_tests.rs")
}

/// Texts with their line numbers from 0.
type Texts = Vec<(usize, String)>;

/// Blanks comments and the insides of strings and characters; returns the code, the comments and the strings.
fn mask(text: &str) -> (String, Texts, Texts) {
    let chars: Vec<char> = text.chars().collect();
    let mut masker = Masker {
        chars: &chars,
        at: 0,
        line: 0,
        code: String::new(),
        comments: Vec::new(),
        strings: Vec::new(),
    };
    while masker.at < chars.len() {
        masker.step();
    }
    (masker.code, masker.comments, masker.strings)
}

struct Masker<'a> {
    chars: &'a [char],
    at: usize,
    line: usize,
    code: String,
    comments: Texts,
    strings: Texts,
}

impl Masker<'_> {
    fn peek(&self, ahead: usize) -> char {
        self.chars.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn keep(&mut self) {
        let character = self.peek(0);
        self.line += usize::from(character == '\n');
        self.code.push(character);
        self.at += 1;
    }

    fn blank(&mut self) {
        let character = self.peek(0);
        self.line += usize::from(character == '\n');
        self.code.push(if character == '\n' { '\n' } else { ' ' });
        self.at += 1;
    }

    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => self.line_comment(),
            ('/', '*') => self.block_comment(),
            ('"', _) => self.string(),
            ('r', '"' | '#') if !self.after_word() && self.raw_hashes().is_some() => {
                self.raw_string()
            }
            ('\'', _) => self.character(),
            _ => self.keep(),
        }
    }

    /// Whether the character before belongs to a word, so that `r` is the end of that word; the `b` of `br"..."` does
    /// not count.
    fn after_word(&self) -> bool {
        let before = |back: usize| self.at.checked_sub(back).map_or(' ', |at| self.chars[at]);
        let in_word = |c: char| c.is_alphanumeric() || c == '_';
        in_word(before(1)) && (before(1) != 'b' || in_word(before(2)))
    }

    fn line_comment(&mut self) {
        let mut comment = String::new();
        let line = self.line;
        while self.at < self.chars.len() && self.peek(0) != '\n' {
            comment.push(self.peek(0));
            self.blank();
        }
        let words = comment
            .trim_start_matches('/')
            .trim_start_matches('!')
            .trim();
        self.comments.push((line, words.to_owned()));
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        let mut comment = String::new();
        let line = self.line;
        while self.at < self.chars.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                _ => {
                    comment.push(self.peek(0));
                    self.blank();
                    continue;
                }
            }
            self.blank();
            self.blank();
            if depth == 0 {
                break;
            }
        }
        self.comments.push((line, comment.trim().to_owned()));
    }

    fn string(&mut self) {
        let line = self.line;
        let mut inside = String::new();
        self.keep();
        while self.at < self.chars.len() && self.peek(0) != '"' {
            if self.peek(0) == '\\' {
                self.blank();
                if self.peek(0) == '\n' {
                    // The string continues after the indentation of the next line.
                    while self.peek(0).is_whitespace() {
                        self.blank();
                    }
                    continue;
                }
            }
            if self.at < self.chars.len() {
                inside.push(self.peek(0));
                self.blank();
            }
        }
        self.strings.push((line, inside));
        if self.at < self.chars.len() {
            self.keep();
        }
    }

    fn raw_hashes(&self) -> Option<usize> {
        let hashes = self.chars[self.at + 1..]
            .iter()
            .take_while(|c| **c == '#')
            .count();
        (self.peek(1 + hashes) == '"').then_some(hashes)
    }

    fn raw_string(&mut self) {
        let line = self.line;
        let mut inside = String::new();
        let hashes = self.raw_hashes().unwrap_or(0);
        for _ in 0..hashes + 2 {
            self.keep();
        }
        while self.at < self.chars.len() {
            let closes = self.peek(0) == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == '#');
            if closes {
                for _ in 0..=hashes {
                    self.keep();
                }
                self.strings.push((line, inside));
                return;
            }
            inside.push(self.peek(0));
            self.blank();
        }
    }

    /// A character literal, or the quote of a lifetime.
    fn character(&mut self) {
        if self.peek(1) == '\\' {
            self.keep();
            self.blank();
            self.blank();
            while self.at < self.chars.len() && self.peek(0) != '\'' {
                self.blank();
            }
            if self.at < self.chars.len() {
                self.keep();
            }
        } else if self.peek(2) == '\'' {
            self.keep();
            self.blank();
            self.keep();
        } else {
            self.keep();
        }
    }
}

/// All files under `root` that belong to the project, by path: not the build's output, and not git's files.
pub fn files(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if name != "target" && name != ".git" && name != "artifacts" {
                    folders.push(entry.path());
                }
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> RustFile {
        RustFile::new(Path::new("crates/x/src/a.rs"), text)
    }

    #[test]
    fn comments_and_strings_are_not_code() {
        let file = source(
            "let a = \"unsafe // no\"; // unsafe\nlet b = r#\"dbg!\"#; /* x /* y */ z */ b;\n",
        );
        assert_eq!(file.lines[0].code.trim_end(), "let a = \"            \";");
        assert_eq!(file.lines[0].comment.as_deref(), Some("unsafe"));
        assert!(!file.lines[1].code.contains("dbg"));
        assert!(file.lines[1].code.trim_end().ends_with(" b;"));
    }

    #[test]
    fn quotes_of_lifetimes_and_characters_do_not_open_strings() {
        let file = source("fn a<'a>(b: &'a str) { f('\"', '\\'', b'x') } // end\n");
        assert!(file.lines[0].code.contains("str) {"));
        assert_eq!(file.lines[0].comment.as_deref(), Some("end"));
    }

    #[test]
    fn what_is_under_cfg_test_is_test_and_what_follows_is_not() {
        let file = source("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n");
        let tests: Vec<bool> = file.lines.iter().map(|line| line.test).collect();
        assert_eq!(tests, [false, true, true, true, true, false]);
        let file = source("#[cfg(test)]\nmod tests;\nfn c() {}\n");
        let tests: Vec<bool> = file.lines.iter().map(|line| line.test).collect();
        assert_eq!(tests, [true, true, false]);
    }

    #[test]
    fn a_module_is_named_by_its_first_folder_or_file() {
        let file = RustFile::new(Path::new("crates/engine/src/dir/htree.rs"), "");
        assert_eq!(
            (file.crate_name(), file.module()),
            (Some("engine"), Some("dir"))
        );
    }
}
