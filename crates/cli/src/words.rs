//! Splits a line of a script into words, quoted as in sh: blanks separate, `'...'` and `"..."` keep together, `\` takes
//! the next character as it is, `#` at the beginning of a word begins a comment. Nothing is expanded: `$`, `*` and `~`
//! stand for themselves.

/// Why a line has no words: a quote that is not closed, or a backslash at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unfinished(pub &'static str);

/// The words of a line.
///
/// # Errors
/// When a quote is open at the line's end, or it ends with a backslash.
pub fn split(line: &[u8]) -> Result<Vec<Vec<u8>>, Unfinished> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut rest = line.iter().copied();
    while let Some(byte) = rest.next() {
        match byte {
            b' ' | b'\t' | b'\r' => words.extend(word.take()),
            b'#' if word.is_none() => break,
            b'\'' => quoted(&mut rest, word.get_or_insert_default(), b'\'')?,
            b'"' => quoted(&mut rest, word.get_or_insert_default(), b'"')?,
            b'\\' => {
                let escaped = rest.next().ok_or(Unfinished("the line ends with \\"))?;
                word.get_or_insert_default().push(escaped);
            }
            _ => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    Ok(words)
}

/// What is quoted, up to the closing quote. Within `"`, a backslash escapes what means something there.
fn quoted(
    rest: &mut impl Iterator<Item = u8>,
    word: &mut Vec<u8>,
    quote: u8,
) -> Result<(), Unfinished> {
    let open = Unfinished(if quote == b'"' {
        "a \" is not closed"
    } else {
        "a ' is not closed"
    });
    loop {
        match rest.next().ok_or(open)? {
            byte if byte == quote => return Ok(()),
            b'\\' if quote == b'"' => match rest.next().ok_or(open)? {
                byte @ (b'"' | b'\\' | b'$' | b'`') => word.push(byte),
                byte => word.extend([b'\\', byte]),
            },
            byte => word.push(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        let words = split(line.as_bytes()).unwrap();
        words
            .into_iter()
            .map(|word| String::from_utf8(word).unwrap())
            .collect()
    }

    #[test]
    fn words_are_quoted_as_in_sh() {
        assert_eq!(words("  mkdir\t/a  /b "), ["mkdir", "/a", "/b"]);
        assert_eq!(
            words("mkdir '/a b' \"/c 'd'\" /e\\ f"),
            ["mkdir", "/a b", "/c 'd'", "/e f"]
        );
        assert_eq!(
            words(r#"a"b"'c'\d "\$\"\\\n" '\n' ''"#),
            ["abcd", "$\"\\\\n", "\\n", ""]
        );
        assert_eq!(words("touch /a#b # a comment"), ["touch", "/a#b"]);
        assert_eq!(words("# only a comment"), [""; 0]);
        assert_eq!(words(""), [""; 0]);
    }

    #[test]
    fn a_line_that_is_not_finished_is_refused() {
        assert_eq!(split(b"mkdir 'a"), Err(Unfinished("a ' is not closed")));
        assert_eq!(split(b"mkdir \"a\\"), Err(Unfinished("a \" is not closed")));
        assert_eq!(
            split(b"mkdir a\\"),
            Err(Unfinished("the line ends with \\"))
        );
    }
}
