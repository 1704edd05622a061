//! Finds the keys, and the strings that are their values, in a JSON text that can't be parsed or does not have the
//! expected form.
//!
//! The text is scanned once from start to end, without recursion. Brackets are skipped, so a value belongs to the last
//! key before it, at whatever depth.

use std::borrow::Cow;

/// The text without its byte order mark, in UTF-8.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, [u8]> {
    let decoded = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units = bytes.as_chunks().0.iter().map(|pair| unit(*pair));
        String::from_utf16_lossy(&units.collect::<Vec<_>>()).into_bytes()
    };
    match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => Cow::Borrowed(rest),
        [0xff, 0xfe, rest @ ..] => Cow::Owned(decoded(rest, u16::from_le_bytes)),
        [0xfe, 0xff, rest @ ..] => Cow::Owned(decoded(rest, u16::from_be_bytes)),
        _ => Cow::Borrowed(bytes),
    }
}

/// Whether `text` is one JSON value, of any form and depth.
pub(super) fn is_whole(text: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok()
}

/// The keys of a text: each alone, then with every string that follows it before the next key.
pub(super) struct Members<'t> {
    rest: &'t [u8],
    key: &'t [u8],
}

impl<'t> Members<'t> {
    pub(super) fn of(text: &'t [u8]) -> Self {
        Self {
            rest: text,
            key: b"",
        }
    }
}

impl<'t> Iterator for Members<'t> {
    /// A key as it is spelled, and a value; the key alone comes before its values.
    type Item = (&'t [u8], Option<String>);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.rest.iter().position(|byte| *byte == b'"')?;
        let text = &self.rest[start..];
        let mut end = 1;
        while *text.get(end)? != b'"' {
            end += if text[end] == b'\\' { 2 } else { 1 };
        }
        let (literal, rest) = text.split_at(end + 1);
        self.rest = rest;
        if rest.trim_ascii_start().starts_with(b":") {
            self.key = &literal[1..end];
            return Some((self.key, None));
        }
        let value = serde_json::from_slice(literal).unwrap_or_default();
        Some((self.key, Some(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_strings_are_found_in_text_that_ends_anywhere() {
        let whole = br#"[ {"Config" : "c\"\u0041", "n":{"x":[[1,"a" ,"b"]]}, "Layers":[] }"#;
        let found = |text: &[u8]| {
            let found = Members::of(text).map(|(key, value)| {
                let key = String::from_utf8_lossy(key).into_owned();
                value.map_or(key.clone(), |value| format!("{key}={value}"))
            });
            found.collect::<Vec<_>>()
        };
        let all = found(whole);
        let expected = ["Config", "Config=c\"A", "n", "x", "x=a", "x=b", "Layers"];
        assert_eq!(all, expected);
        for end in 0..whole.len() {
            let part = found(&whole[..end]);
            // A key without a colon counts as a value.
            assert!(part.len() <= all.len(), "{part:?}");
        }
        assert!(!is_whole(whole) && is_whole(b"[1]") && !is_whole(b""));
        assert!(is_whole(&[[b'['; 100_000], [b']'; 100_000]].concat()));
        assert_eq!(&*text(b"\xef\xbb\xbf[]"), b"[]");
        assert_eq!(&*text(b"\xff\xfe[\0]\0"), b"[]");
        assert_eq!(&*text(b"\xfe\xff\0[\0]"), b"[]");
    }
}
