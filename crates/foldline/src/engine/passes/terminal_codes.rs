//! Removes terminal escape codes and lines that later output overwrote.
//!
//! The visible text is kept; a progress bar of four hundred steps becomes its last step. Done at ingest, since none
//! of it was sent before.

use crate::engine::marker;
use crate::engine::marker::MarkerHandle;

/// Returns the text as a terminal would show it, without colors; `None` if it is unchanged.
pub fn strip_terminal_codes(text: &str) -> Option<String> {
    let is_plain = |text: &str| memchr::memchr3(0x1b, b'\r', 0x08, text.as_bytes()).is_none();
    if is_plain(text) {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (line, end) = match line.strip_suffix("\r\n") {
            Some(line) => (line, "\r\n"),
            None => line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n")),
        };
        if is_plain(line) {
            out.push_str(line);
        } else {
            out.push_str(&without_codes(last_overwrite(line)));
        }
        out.push_str(end);
    }
    (out.len() < text.len()).then_some(out)
}

/// Returns the visible part of a line that was overwritten: the last layer that is not blank.
fn last_overwrite(line: &str) -> &str {
    let mut layers = line.split('\r').rev();
    let shows = |layer: &&str| !without_codes(layer).trim().is_empty();
    layers.find(shows).unwrap_or(line.rsplit('\r').next().unwrap_or(line))
}

fn without_codes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr2(0x1b, 0x08, rest.as_bytes()) {
        out.push_str(&rest[..at]);
        rest = if rest[at..].starts_with('\u{8}') {
            out.pop();
            &rest[at + 1..]
        } else {
            &rest[at + code_len(&rest[at..])..]
        };
    }
    out.push_str(rest);
    out
}

/// Returns the length in bytes of the escape code at the start of the text.
fn code_len(text: &str) -> usize {
    let bytes = text.as_bytes();
    match bytes.get(1) {
        // Colors, cursor movement and similar: up to a letter.
        Some(b'[') => {
            let body = bytes[2..].iter().take_while(|byte| (0x20..0x40).contains(*byte)).count();
            2 + body + usize::from(bytes.get(2 + body).is_some_and(|byte| (0x40..0x7f).contains(byte)))
        }
        // Titles and links: up to a BEL, or ESC and a backslash.
        Some(b']') => {
            let end = bytes[2..].iter().position(|byte| matches!(byte, 0x07 | 0x1b));
            match end.map(|end| end + 2) {
                Some(end) if bytes[end] == 0x07 => end + 1,
                Some(end) if bytes.get(end + 1) == Some(&b'\\') => end + 2,
                _ => 2,
            }
        }
        Some(byte) if (0x20..0x7f).contains(byte) => 2,
        _ => 1,
    }
}

/// Prefixes the visible text with the marker for the removed codes.
pub(crate) fn with_marker(shown: &str, handle: Option<MarkerHandle>) -> String {
    format!("{}\n{shown}", marker::described("escape codes", handle))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn colors_and_links_are_removed() {
        assert_eq!(
            strip_terminal_codes("\u{1b}[1;31merror\u{1b}[0m: \u{1b}]8;;file:///a\u{7}a.rs\u{1b}]8;;\u{1b}\\ broke\n")
                .as_deref(),
            Some("error: a.rs broke\n")
        );
    }

    #[test]
    fn last_progress_bar_step_is_kept() {
        let bar: String = (0..=100).map(|at| format!("\r{at:>3}% done")).collect();
        assert_eq!(strip_terminal_codes(&format!("start\n{bar}\nend")).as_deref(), Some("start\n100% done\nend"));
        assert_eq!(strip_terminal_codes("10%\r20%\r\u{1b}[K").as_deref(), Some("20%"));
    }

    #[test]
    fn plain_text_and_crlf_are_kept() {
        for text in ["plain\n", "one\r\ntwo\r\n", ""] {
            assert_eq!(strip_terminal_codes(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_codes_never_panic_and_shrink(text in "(\\PC|\u{1b}|\\[|[0-9;]|m|\r|\n|\u{7}|\u{8}|\\]){0,80}") {
            if let Some(shown) = strip_terminal_codes(&text) {
                prop_assert!(shown.len() < text.len());
                prop_assert_eq!(shown.matches('\n').count(), text.matches('\n').count());
            }
        }
    }
}
