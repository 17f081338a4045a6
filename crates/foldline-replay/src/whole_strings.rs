//! Whole strings: a second definition of what an action refers to, deliberately unlike `identifiers`.
//!
//! A whole string is everything between blanks and quotes, if it has a digit, an underscore, an inner
//! capital, a slash or an inner hyphen. It knows nothing of names, so an engine that was tuned to one
//! definition cannot gain by the other: a change counts as a gain only if it shows in both.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Returns the hash of a whole string. It differs from that of an identifier with the same bytes.
pub(crate) fn string_hash(text: &str) -> u64 {
    xxh3_64_with_seed(text.as_bytes(), 1)
}

/// Minimum bytes of a whole string.
const MIN_BYTES: usize = 3;

/// Calls `visit` with every whole string of a line, in order, including repeats.
///
/// ```
/// let mut seen = Vec::new();
/// foldline_replay::for_each_whole_string("call read_file(path), see \"a/b\" or not", |it| seen.push(it.to_owned()));
/// assert_eq!(seen, ["read_file(path),", "a/b"]);
/// ```
pub fn for_each_whole_string<'t>(line: &'t str, mut visit: impl FnMut(&'t str)) {
    let bytes = line.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if BYTE_CLASSES[bytes[at] as usize] & SEPARATOR != 0 {
            at += 1;
            continue;
        }
        let start = at;
        // A capital or a hyphen counts only inside; the last byte is looked at below.
        let mut classes = BYTE_CLASSES[bytes[at] as usize] & ALWAYS;
        at += 1;
        let mut last = 0;
        while at < bytes.len() && BYTE_CLASSES[bytes[at] as usize] & SEPARATOR == 0 {
            classes |= last;
            last = BYTE_CLASSES[bytes[at] as usize];
            at += 1;
        }
        classes |= last & !HYPHEN;
        if classes != 0 && at - start >= MIN_BYTES {
            visit(&line[start..at]);
        }
    }
}

/// Byte classes, as bits.
const SEPARATOR: u8 = 1;
/// Digits, underscores and slashes.
const ALWAYS: u8 = 2;
const UPPER: u8 = 4;
const HYPHEN: u8 = 8;

const BYTE_CLASSES: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | b'"' | b'\'' | b'`' => SEPARATOR,
            b'0'..=b'9' | b'_' | b'/' => ALWAYS,
            b'A'..=b'Z' => UPPER,
            b'-' => HYPHEN,
            _ => 0,
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn strings_in(line: &str) -> Vec<&str> {
        let mut seen = Vec::new();
        for_each_whole_string(line, |it| seen.push(it));
        seen
    }

    #[test]
    fn strings_end_at_blanks_and_quotes_only() {
        assert_eq!(strings_in("let x = config.read_all(3)?; // ok"), ["config.read_all(3)?;"]);
        assert_eq!(strings_in("{\"path\":\"src/a.rs\",'b-c':`D_e`}"), ["src/a.rs", "b-c", "D_e"]);
    }

    #[test]
    fn plain_words_are_left_out() {
        assert!(strings_in("The quick fox - jumps, over. Dogs -rf end- A I").is_empty());
        assert_eq!(strings_in("readFile ABC a-b x1y größe_x"), ["readFile", "ABC", "a-b", "x1y", "größe_x"]);
    }
}
