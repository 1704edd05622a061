//! SELinux labels from a `file_contexts` file: `PATTERN [TYPE] CONTEXT` on each line.
//!
//! A pattern is a regular expression for the whole path within the image, which begins with `/`. TYPE is `--` for
//! regular files, `-d`, `-l`, `-c`, `-b`, `-p` or `-s`; without it, all types match. As in libselinux, of the patterns
//! that match, one without special characters wins over those with, and among equals the last in the file. `<<none>>`
//! and no match leave the label of the source. A file with several names is looked up by the first in the tree's order.
//! What the `regex` crate lacks (look-around, backreferences) is refused, and the error names the line.

use std::path::Path;

use hashbrown::HashMap;
use regex::bytes::{Regex, RegexBuilder};

use super::error::SourceError;
use super::limits;
use super::tree::{
    NodeId, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, SourceTree,
};
use super::xattrs::XattrSet;

type Map<K, V> = HashMap<K, V, foldhash::fast::FixedState>;

/// One line.
struct Spec {
    pattern: String,
    compiled: Option<Regex>,
    /// File type bits, or none for all.
    kind: Option<u16>,
    /// With its NUL; `None` for `<<none>>`.
    context: Option<Vec<u8>>,
}

/// All lines, by what their paths begin with.
pub(super) struct Contexts {
    specs: Vec<Spec>,
    /// Lines without special characters, by path.
    exact: Map<Vec<u8>, Vec<usize>>,
    /// Others, by the bytes that all their paths begin with.
    prefixes: Map<Vec<u8>, Vec<usize>>,
    /// Lengths of these, rising.
    lengths: Vec<usize>,
}

/// Reads the file at `path` and labels all of `tree`.
pub(super) fn apply(path: &Path, tree: &mut SourceTree) -> Result<(), SourceError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| SourceError::Io {
        operation: "read",
        path: path.into(),
        error,
    })?;
    let contexts = Contexts::parse(&text).map_err(|(line, problem)| SourceError::Line {
        path: path.into(),
        line,
        problem,
    });
    contexts?.label(tree).map_err(|problem| SourceError::Line {
        path: path.into(),
        line: 0,
        problem,
    })
}

impl Contexts {
    /// Reads all lines; an error has its line.
    pub(super) fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut contexts = Self {
            specs: Vec::new(),
            exact: Map::default(),
            prefixes: Map::default(),
            lengths: Vec::new(),
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                contexts
                    .add(line)
                    .map_err(|problem| (number + 1, problem))?;
            }
        }
        contexts.lengths = contexts.prefixes.keys().map(Vec::len).collect();
        contexts.lengths.sort_unstable();
        contexts.lengths.dedup();
        Ok(contexts)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (pattern, kind, context) = match fields[..] {
            [pattern, context] => (pattern, None, context),
            [pattern, kind, context] => (pattern, Some(kind), context),
            _ => return Err("a line is a pattern, perhaps a type, and a context".into()),
        };
        let kind = match kind {
            None => None,
            Some("--") => Some(S_IFREG),
            Some("-d") => Some(S_IFDIR),
            Some("-l") => Some(S_IFLNK),
            Some("-c") => Some(S_IFCHR),
            Some("-b") => Some(S_IFBLK),
            Some("-p") => Some(S_IFIFO),
            Some("-s") => Some(S_IFSOCK),
            Some(other) => return Err(format!("unknown type `{other}`")),
        };
        let context = match context {
            "<<none>>" => None,
            context if context.contains(':') && context.len() < limits::XATTR_VALUE => {
                Some([context.as_bytes(), b"\0"].concat())
            }
            other => return Err(format!("`{other}` is not a context")),
        };
        if self.specs.len() >= limits::CONTEXTS {
            return Err(format!("more than {} lines", limits::CONTEXTS));
        }
        let number = self.specs.len();
        let (prefix, special) = literal_prefix(pattern);
        if special {
            // Compiled only to see whether it can be: most are never asked for.
            compile(pattern)?;
            self.prefixes.entry(prefix).or_default().push(number);
        } else {
            self.exact.entry(prefix).or_default().push(number);
        }
        self.specs.push(Spec {
            pattern: pattern.into(),
            compiled: None,
            kind,
            context,
        });
        Ok(())
    }

    /// The line for `path`, whose type bits are `kind`.
    fn lookup(&mut self, path: &[u8], kind: u16) -> Option<usize> {
        let of_kind =
            |specs: &[Spec], number: usize| specs[number].kind.is_none_or(|wanted| wanted == kind);
        if let Some(numbers) = self.exact.get(path)
            && let Some(found) = numbers
                .iter()
                .rev()
                .find(|number| of_kind(&self.specs, **number))
        {
            return Some(*found);
        }
        let mut candidates: Vec<usize> = Vec::new();
        for length in self
            .lengths
            .iter()
            .take_while(|length| **length <= path.len())
        {
            let numbers = self.prefixes.get(&path[..*length]).into_iter().flatten();
            candidates.extend(numbers.filter(|number| of_kind(&self.specs, **number)));
        }
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        candidates.into_iter().find(|number| {
            let spec = &mut self.specs[*number];
            if spec.compiled.is_none() {
                spec.compiled = compile(&spec.pattern).ok();
            }
            spec.compiled
                .as_ref()
                .is_some_and(|regex| regex.is_match(path))
        })
    }

    /// Labels all nodes.
    fn label(&mut self, tree: &mut SourceTree) -> Result<(), String> {
        let mut labelled: Map<(XattrSet, usize), XattrSet> = Map::default();
        let mut seen = vec![false; tree.len()];
        let mut directories = vec![(NodeId::ROOT, Vec::new())];
        self.label_one(tree, NodeId::ROOT, b"/", &mut labelled)?;
        let mut children = Vec::new();
        while let Some((directory, path)) = directories.pop() {
            children.clear();
            children.extend(
                tree.children(directory)
                    .map(|(name, id)| (name.to_vec(), id)),
            );
            for (name, id) in children.drain(..) {
                if std::mem::replace(&mut seen[id.index()], true) {
                    continue;
                }
                let path = [&path[..], b"/", &name].concat();
                self.label_one(tree, id, &path, &mut labelled)?;
                if tree.is_directory(id) {
                    directories.push((id, path));
                }
            }
        }
        Ok(())
    }

    fn label_one(
        &mut self,
        tree: &mut SourceTree,
        id: NodeId,
        path: &[u8],
        labelled: &mut Map<(XattrSet, usize), XattrSet>,
    ) -> Result<(), String> {
        let Some(number) = self.lookup(path, tree.mode(id) & S_IFMT) else {
            return Ok(());
        };
        let Some(context) = &self.specs[number].context else {
            return Ok(());
        };
        let old = tree.xattr_set(id);
        tree.nodes[id.index()].xattrs = match labelled.get(&(old, number)) {
            Some(new) => *new,
            None => {
                let mut set = tree.xattrs.set(old).clone();
                set.set(b"security.selinux", context);
                let new = tree.xattrs.intern(set)?;
                labelled.insert((old, number), new);
                new
            }
        };
        Ok(())
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    let compiled = RegexBuilder::new(&format!("^(?:{pattern})$"))
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(limits::REGEX)
        .build();
    compiled.map_err(|error| {
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default();
        format!("`{pattern}` is not a pattern that can be used: {last}")
    })
}

/// The bytes that all paths which match begin with, and whether there is anything special in the pattern; if not, they
/// are the whole path.
fn literal_prefix(pattern: &str) -> (Vec<u8>, bool) {
    let bytes = pattern.as_bytes();
    let mut prefix = Vec::new();
    let mut at = 0;
    let mut depth = 0_usize;
    // One of several at the top leaves nothing that all have.
    let mut alternatives = false;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b'|' if depth == 0 => alternatives = true,
            _ => {}
        }
        at += 1;
    }
    if alternatives {
        return (prefix, true);
    }
    at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => match bytes.get(at + 1) {
                Some(byte) if !byte.is_ascii_alphanumeric() => {
                    prefix.push(*byte);
                    at += 2;
                }
                _ => return (prefix, true),
            },
            b'?' | b'*' | b'{' => {
                prefix.pop();
                return (prefix, true);
            }
            b'.' | b'^' | b'$' | b'+' | b'|' | b'[' | b'(' | b')' => return (prefix, true),
            byte => {
                prefix.push(byte);
                at += 1;
            }
        }
    }
    (prefix, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(text: &str, path: &str, kind: u16) -> Option<String> {
        let mut contexts = Contexts::parse(text).unwrap();
        let found = contexts.lookup(path.as_bytes(), kind)?;
        let context = contexts.specs[found].context.clone()?;
        Some(
            String::from_utf8(context)
                .unwrap()
                .trim_end_matches('\0')
                .into(),
        )
    }

    const POLICY: &str = "\
        # refpolicy in small\n\
        /bin/ls\t--\tu:r:exact\n\
        /.*\tu:r:default\n\
        /(usr/)?s?bin(/.*)?\tu:r:bin\n\
        /etc(/.*)? -d u:r:etcdir\n\
        /etc/.*\\.conf -- u:r:conf\n\
        /dev/[hs]d[a-z] -b u:r:disk\n\
        /tmp/.* <<none>>\n\
        /a\\.b u:r:dot\n\
        /x|/y.* u:r:either\n";

    #[test]
    fn the_last_match_wins_but_exact_paths_come_first() {
        for (path, kind, expected) in [
            ("/", S_IFDIR, Some("u:r:default")),
            ("/bin/ls", S_IFREG, Some("u:r:exact")),
            ("/bin/ls", S_IFLNK, Some("u:r:bin")),
            ("/usr/sbin", S_IFDIR, Some("u:r:bin")),
            ("/usr/sbinx", S_IFDIR, Some("u:r:default")),
            ("/etc/x.conf", S_IFREG, Some("u:r:conf")),
            ("/etc/x.conf", S_IFDIR, Some("u:r:etcdir")),
            ("/etc/xconf", S_IFREG, Some("u:r:default")),
            ("/dev/sda", S_IFBLK, Some("u:r:disk")),
            ("/tmp/x", S_IFREG, None),
            ("/a.b", S_IFREG, Some("u:r:dot")),
            ("/aXb", S_IFREG, Some("u:r:default")),
            ("/y1", S_IFREG, Some("u:r:either")),
        ] {
            assert_eq!(context(POLICY, path, kind).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, line) in [
            ("/a", 1),
            ("\n/a -x u:r:t", 2),
            ("/a nope", 1),
            ("/( u:r:t", 1),
            ("/(?=a) u:r:t", 1),
        ] {
            assert_eq!(Contexts::parse(text).err().expect(text).0, line);
        }
    }
}
