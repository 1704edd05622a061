//! Shell patterns, as `find -name` accepts them: `*`, `?`, `[a-z]`, `[!a]`, and `\` before a character that stands for
//! itself.

/// Whether the pattern matches the whole name; `*` and `?` match `/` too, as in `find -path`. The time is at most
/// proportional to the product of the lengths.
pub fn matches(pattern: &[u8], name: &[u8], ignore_case: bool) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to continue if a later part does not match: the last star, and the part of the name that it matches.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, n));
            p += 1;
            continue;
        }
        if n < name.len()
            && let Some(next) = one(&pattern[p..], name[n], ignore_case)
        {
            p += next;
            n += 1;
            continue;
        }
        if n == name.len() && p == pattern.len() {
            return true;
        }
        match star {
            Some((at, reach)) if reach < name.len() => {
                star = Some((at, reach + 1));
                (p, n) = (at + 1, reach + 1);
            }
            _ => return false,
        }
    }
}

/// Matches one byte; returns the length of the part of the pattern that matched.
fn one(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<usize> {
    let same = |a: u8, b: u8| {
        if ignore_case {
            a.eq_ignore_ascii_case(&b)
        } else {
            a == b
        }
    };
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => same(*escaped, byte).then_some(2),
        [b'[', ..] => match class(pattern, byte, ignore_case) {
            Some((matched, len)) => matched.then_some(len),
            None => same(b'[', byte).then_some(1),
        },
        [plain, ..] => same(*plain, byte).then_some(1),
    }
}

/// Whether a class like `[a-z]` contains the byte, and the length of the class; `None` if the class is not closed.
fn class(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if negated { 2 } else { 1 };
    let mut at = first;
    let mut found = false;
    loop {
        let start = *pattern.get(at)?;
        if start == b']' && at > first {
            return Some((found != negated, at + 1));
        }
        let is_range =
            pattern.get(at + 1) == Some(&b'-') && pattern.get(at + 2).is_some_and(|c| *c != b']');
        let end = if is_range {
            *pattern.get(at + 2)?
        } else {
            start
        };
        let holds = |byte: u8| (start..=end).contains(&byte);
        found |= holds(byte)
            || ignore_case
                && (holds(byte.to_ascii_lowercase()) || holds(byte.to_ascii_uppercase()));
        at += if is_range { 3 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_the_shell() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.gz", false),
            ("a*b*c", "axxbyybzc", true),
            ("a*b*c", "axxbyyb", false),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("/usr/*", "/usr/lib/x", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes(), false),
                expected,
                "{pattern} {name}"
            );
        }
        assert!(matches(b"READ*", b"readme", true));
        assert!(!matches(b"a*a*a*a*a*a*a*b", &[b'a'; 200], false));
    }
}
