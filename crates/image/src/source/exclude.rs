//! Patterns of names that are left out of every source.
//!
//! A pattern is matched against the path from its source's root. `*` matches any bytes except `/`, `**` any bytes, `?`
//! one byte except `/`, `[a-z]` and `[!a-z]` one byte of (not of) a set, and `\` takes the next byte as it is. A
//! pattern with a `/` at its start is matched from the root; any other one may begin at any component, so `*.o` leaves
//! out each object file and `doc/man` each `man` in a `doc`. With a `/` at its end it matches directories only. What
//! lies in an excluded directory is excluded.

/// A set of patterns.
#[derive(Clone, Debug, Default)]
pub struct Excludes(Vec<Pattern>);

#[derive(Clone, Debug)]
struct Pattern {
    items: Vec<Item>,
    anchored: bool,
    directories_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Byte(u8),
    /// `?`
    Any,
    /// `[...]`: whether it is negated, and the ranges.
    Set(bool, Vec<(u8, u8)>),
    /// `*`
    Run,
    /// `**`
    Deep,
}

impl Excludes {
    /// Reads the patterns.
    #[must_use]
    pub fn new<P: AsRef<[u8]>>(patterns: &[P]) -> Self {
        let patterns = patterns
            .iter()
            .map(|pattern| Pattern::new(pattern.as_ref()));
        Self(
            patterns
                .filter(|pattern| !pattern.items.is_empty())
                .collect(),
        )
    }

    /// Whether the list has no patterns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `path` (from the source's root, without a leading `/`) is left out, seen alone: its parents are asked
    /// first.
    #[must_use]
    pub fn matches(&self, path: &[u8], directory: bool) -> bool {
        self.0
            .iter()
            .any(|pattern| pattern.matches(path, directory))
    }

    /// Whether `path` or a directory that it lies in is left out.
    #[must_use]
    pub fn hides(&self, path: &[u8], directory: bool) -> bool {
        if self.0.is_empty() {
            return false;
        }
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        slashes
            .into_iter()
            .any(|(at, _)| self.matches(&path[..at], true))
            || self.matches(path, directory)
    }
}

impl Pattern {
    fn new(text: &[u8]) -> Self {
        let anchored = text.starts_with(b"/");
        let text = text.strip_prefix(b"/").unwrap_or(text);
        let text = text.strip_prefix(b"./").unwrap_or(text);
        let directories_only = text.len() > 1 && text.ends_with(b"/");
        let text = if directories_only {
            &text[..text.len() - 1]
        } else {
            text
        };
        let mut items = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let (item, used) = item(&text[at..]);
            at += used;
            if !(item == Item::Deep && items.last() == Some(&Item::Deep)) {
                items.push(item);
            }
        }
        Self {
            items,
            anchored,
            directories_only,
        }
    }

    fn matches(&self, path: &[u8], directory: bool) -> bool {
        if self.directories_only && !directory {
            return false;
        }
        if matches(&self.items, path) {
            return true;
        }
        let later = |at: usize| path[at] == b'/' && matches(&self.items, &path[at + 1..]);
        !self.anchored && (0..path.len()).any(later)
    }
}

/// The first item of `text`, and how many bytes it takes.
fn item(text: &[u8]) -> (Item, usize) {
    match text {
        [b'*', b'*', ..] => (Item::Deep, 2),
        [b'*', ..] => (Item::Run, 1),
        [b'?', ..] => (Item::Any, 1),
        [b'\\', byte, ..] => (Item::Byte(*byte), 2),
        [b'[', rest @ ..] => set(rest).unwrap_or((Item::Byte(b'['), 1)),
        [byte, ..] => (Item::Byte(*byte), 1),
        [] => (Item::Deep, 0),
    }
}

/// A set whose `[` was read; `None` when it has no end.
fn set(text: &[u8]) -> Option<(Item, usize)> {
    let negated = matches!(text.first(), Some(b'!' | b'^'));
    let mut at = usize::from(negated);
    let mut ranges = Vec::new();
    loop {
        let byte = *text.get(at)?;
        // A `]` that comes first stands for itself.
        if byte == b']' && !ranges.is_empty() {
            return Some((Item::Set(negated, ranges), at + 2));
        }
        match text.get(at + 1..at + 3) {
            Some([b'-', end]) if *end != b']' => {
                ranges.push((byte, *end));
                at += 3;
            }
            _ => {
                ranges.push((byte, byte));
                at += 1;
            }
        }
    }
}

/// Whether the whole of `path` matches: one pass over all positions of the pattern at once, so that no pattern takes
/// longer than its length times the path's.
fn matches(items: &[Item], path: &[u8]) -> bool {
    // reached[i]: the items before i match what was read.
    let mut reached = vec![false; items.len() + 1];
    reached[0] = true;
    skip_runs(items, &mut reached);
    for byte in path {
        let mut next = vec![false; items.len() + 1];
        for (at, item) in items.iter().enumerate() {
            if reached[at] {
                match item {
                    Item::Byte(want) => next[at + 1] |= want == byte,
                    Item::Any => next[at + 1] |= *byte != b'/',
                    Item::Set(negated, ranges) => {
                        let inside = ranges
                            .iter()
                            .any(|(low, high)| (*low..=*high).contains(byte));
                        next[at + 1] |= inside != *negated && *byte != b'/';
                    }
                    Item::Run => next[at] |= *byte != b'/',
                    Item::Deep => next[at] = true,
                }
            }
        }
        skip_runs(items, &mut next);
        reached = next;
        if !reached.contains(&true) {
            return false;
        }
    }
    reached[items.len()]
}

fn skip_runs(items: &[Item], reached: &mut [bool]) {
    for (at, item) in items.iter().enumerate() {
        if reached[at] && matches!(item, Item::Run | Item::Deep) {
            reached[at + 1] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Excludes;

    fn hides(pattern: &str, path: &str) -> bool {
        Excludes::new(&[pattern]).hides(path.as_bytes(), false)
    }

    #[test]
    fn patterns_match_whole_components_anywhere_or_from_the_root() {
        for (pattern, path, expected) in [
            ("*.o", "a/b.o", true),
            ("*.o", "a/b.oo", false),
            ("*.o", "a.o/x", true),
            ("/a", "b/a", false),
            ("/a", "a/b", true),
            ("doc/man", "x/doc/man/y", true),
            ("doc/man", "x/doc/other/man", false),
            ("doc/**/man", "x/doc/other/man", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "b", false),
            ("./a", "a", true),
            ("tmp/*", "tmp", false),
            ("tmp/*", "tmp/x", true),
            ("", "a", false),
            ("\u{e4}*", "\u{e4}b", true),
        ] {
            assert_eq!(hides(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_slash_at_the_end_means_directories_only() {
        let excludes = Excludes::new(&["build/"]);
        assert!(!excludes.hides(b"x/build", false));
        assert!(excludes.hides(b"x/build", true));
        assert!(excludes.hides(b"build/x", false));
    }

    #[test]
    fn a_pattern_of_many_stars_takes_no_exponential_time() {
        let pattern = "*a".repeat(200);
        assert!(!hides(&pattern, &"a".repeat(199)));
        assert!(hides(&pattern, &"a".repeat(2000)));
    }
}
