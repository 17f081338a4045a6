//! Markers: the text that replaces folded text.
//!
//! A marker is one line of ASCII. It must be a function of the original alone (never of the time, the turn
//! or the counter in use), so that every replica writes the same bytes and a marker never changes between
//! requests. It states the size of the original, and carries a handle only if the model can unfold it. It does not
//! repeat the call whose result or arguments it replaces, because the call is next to it and every later
//! request carries the marker.
//!
//! The grammar, which [`is_marker`] recognizes:
//!
//! ```text
//! [folded: 412 lines, 18.3 kB; unfold 7k3q9p2m4x1c]
//! [folded: kept 40 of 412 lines; unfold 7k3q9p2m4x1c]
//! [folded: 412 lines, 18.3 kB, as it stands above; unfold 7k3q9p2m4x1c]
//! [folded: 412 lines, 18.3 kB of read_file src/main.rs]
//! [folded: 412 lines, 18.3 kB of read_file src/main.rs; same as result c1]
//! [folded: 40 lines; same as lines 12 to 51 of result c1]
//! [folded: 12 messages, 34512 bytes]
//! [folded: read_file src/main.rs, ok; unfold 7k3q9p2m4x1c]
//! [folded: 412 lines, 18.3 kB; retrieve hash=3a71d94b2c8e60f]      for hosts with hexadecimal handles
//! [+37]                                        37 lines folded here
//! ```

use std::fmt;
use std::fmt::Write as _;

use crate::Handle;

const MARKER_PREFIX: &str = "[folded: ";
const UNFOLD_SEPARATOR: &str = "; unfold ";
const HASH_SEPARATOR: &str = "; retrieve hash=";
const SAME_AS_SEPARATOR: &str = "; same as ";
/// Words that every marker with a reference contains.
pub(crate) const REFERENCE_WORDS: &str = SAME_AS_SEPARATOR;
/// Maximum length of a marker. A longer line in this form was not written by the engine.
const MAX_MARKER_BYTES: usize = 256;

/// A handle as a marker writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkerHandle {
    /// For foldline's own unfold tool.
    Unfold(Handle),
    /// In hexadecimal digits, for the retrieval tool of another host.
    Hash(Handle),
}

impl From<Handle> for MarkerHandle {
    fn from(handle: Handle) -> Self {
        MarkerHandle::Unfold(handle)
    }
}

impl fmt::Display for MarkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MarkerHandle::Unfold(handle) => write!(f, "{UNFOLD_SEPARATOR}{handle}"),
            MarkerHandle::Hash(handle) => write!(f, "{HASH_SEPARATOR}{}", handle.to_hex()),
        }
    }
}

/// Describes the size of a text in lines and bytes.
fn size_text(text: &str) -> String {
    let lines = line_count(text);
    let size = match text.len() {
        bytes @ ..1000 => format!("{bytes} bytes"),
        bytes @ ..100_000 => format!("{}.{} kB", bytes / 1000, bytes % 1000 / 100),
        bytes @ ..10_000_000 => format!("{} kB", bytes / 1000),
        bytes => format!("{} MB", bytes / 1_000_000),
    };
    match lines {
        1 => size,
        lines => format!("{lines} lines, {size}"),
    }
}

pub(crate) fn line_count(text: &str) -> usize {
    memchr::memchr_iter(b'\n', text.as_bytes()).count() + usize::from(!text.ends_with('\n') && !text.is_empty())
}

/// Returns the marker of a whole text.
pub(crate) fn whole_text(original: &str, handle: Option<MarkerHandle>) -> String {
    finish(format!("{MARKER_PREFIX}{}", size_text(original)), handle)
}

/// Returns the marker of a whole text without a handle. It names the source, so that the model can produce it again.
pub(crate) fn without_handle(original: &str, what: &str) -> String {
    format!("{MARKER_PREFIX}{} of {}]", size_text(original), sanitized(what))
}

/// Returns the marker before an excerpt.
pub(crate) fn excerpt(kept: usize, of: usize, handle: Option<MarkerHandle>) -> String {
    finish(format!("{MARKER_PREFIX}kept {kept} of {of} lines"), handle)
}

/// Returns the marker before the kept items of a list.
pub(crate) fn items(kept: usize, of: usize, handle: Option<MarkerHandle>) -> String {
    finish(format!("{MARKER_PREFIX}kept {kept} of {of} items"), handle)
}

/// Returns the marker of a text that the request already contains above.
pub(crate) fn duplicate_text(original: &str, handle: Option<MarkerHandle>) -> String {
    finish(format!("{MARKER_PREFIX}{}, as it stands above", size_text(original)), handle)
}

/// Returns the marker of content that is not text.
pub(crate) fn described(what: &str, handle: Option<MarkerHandle>) -> String {
    finish(format!("{MARKER_PREFIX}{}", sanitized(what)), handle)
}

/// Returns the marker of a call in a list of calls, with the handle of its result.
pub(crate) fn call_outcome(words: &str, outcome: &str, handle: Option<MarkerHandle>) -> String {
    finish(format!("{MARKER_PREFIX}{}, {outcome}", sanitized(words)), handle)
}

/// Returns the marker of lines left out of an excerpt.
pub(crate) fn gap(lines: usize) -> String {
    format!("[+{lines}]")
}

/// Returns the number of lines that a [`gap`] replaces.
pub(crate) fn gap_lines(line: &str) -> Option<usize> {
    line.strip_prefix("[+")?.strip_suffix(']')?.parse().ok()
}

/// Returns the marker of a text that another result contains as a whole.
pub(crate) fn same_result(original: &str, what: &str, id: &str) -> String {
    format!("{MARKER_PREFIX}{} of {}{SAME_AS_SEPARATOR}result {id}]", size_text(original), sanitized(what))
}

/// Returns the marker of lines that another result contains, counted from one.
pub(crate) fn same_lines(first: usize, last: usize, id: &str) -> String {
    format!("{MARKER_PREFIX}{} lines{SAME_AS_SEPARATOR}lines {first} to {last} of result {id}]", last + 1 - first)
}

/// Returns the marker of arguments that another call contains.
pub(crate) fn same_call(what: &str, id: &str) -> String {
    format!("{MARKER_PREFIX}{}{SAME_AS_SEPARATOR}call {id}]", sanitized(what))
}

/// Returns true if a marker can contain this id and it can be parsed again.
pub(crate) fn is_valid_reference_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    (1..=64).contains(&id.len()) && id.bytes().all(is_allowed)
}

/// Returns the ids that the markers in a text refer to.
pub(crate) fn referenced_ids(text: &str) -> impl Iterator<Item = &str> {
    memchr::memmem::find_iter(text.as_bytes(), MARKER_PREFIX.as_bytes()).filter_map(|at| {
        let line = text[at..].split(['\n', ']']).next()?;
        let (_, reference) = line.rsplit_once(SAME_AS_SEPARATOR)?;
        reference.rsplit(' ').next()
    })
}

/// The target of a marker that refers to another result or call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkerTarget<'t> {
    /// A whole result, by the id of its call.
    Result(&'t str),
    /// Lines of a result, counted from one, both included.
    Lines { first: usize, last: usize, id: &'t str },
    /// The arguments of a call.
    Call(&'t str),
}

/// Splits a marker that refers to another result or call into its text before the reference and the target.
pub(crate) fn parse_reference(line: &str) -> Option<(&str, MarkerTarget<'_>)> {
    let inside = line.strip_suffix(']').filter(|_| is_only_marker(line))?;
    let (before, target) = inside.rsplit_once(SAME_AS_SEPARATOR)?;
    let target = match target.split(' ').collect::<Vec<_>>()[..] {
        ["result", id] => MarkerTarget::Result(id),
        ["call", id] => MarkerTarget::Call(id),
        ["lines", first, "to", last, "of", "result", id] => {
            MarkerTarget::Lines { first: first.parse().ok()?, last: last.parse().ok()?, id }
        }
        _ => return None,
    };
    Some((before, target))
}

/// Returns the marker that begins with this text, with a handle instead of a reference.
pub(crate) fn detached(before: &str, handle: Option<MarkerHandle>) -> String {
    finish(before.to_owned(), handle)
}

/// Returns the marker of dropped messages. The size is exact, so that two such markers can be merged.
pub(crate) fn dropped_messages(count: usize, bytes: usize) -> String {
    format!("{MARKER_PREFIX}{count} messages, {bytes} bytes]")
}

/// Parses the count and the bytes of a marker of dropped messages.
pub(crate) fn parse_dropped_messages(line: &str) -> Option<(usize, usize)> {
    let (count, bytes) = line.strip_prefix(MARKER_PREFIX)?.strip_suffix(" bytes]")?.split_once(" messages, ")?;
    // Numbers above u32 are forged.
    let number = |text: &str| text.parse::<u32>().ok().map(|number| number as usize);
    Some((number(count)?, number(bytes)?))
}

/// Returns true if a text is exactly one marker.
pub(crate) fn is_only_marker(text: &str) -> bool {
    text.len() <= MAX_MARKER_BYTES && is_marker(text)
}

fn finish(mut marker: String, handle: Option<MarkerHandle>) -> String {
    if let Some(handle) = handle {
        let _ = write!(marker, "{handle}");
    }
    marker.push(']');
    marker
}

/// Converts foreign text to one short ASCII line that cannot end the marker.
fn sanitized(what: &str) -> String {
    const MAX_DESCRIPTION_BYTES: usize = 72;
    let mut out = String::with_capacity(what.len().min(MAX_DESCRIPTION_BYTES));
    for character in what.chars() {
        if out.len() == MAX_DESCRIPTION_BYTES {
            out.push_str("..");
            break;
        }
        out.push(match character {
            '[' => '(',
            ']' => ')',
            ';' => ',',
            ' '..='~' => character,
            _ if character.is_whitespace() => ' ',
            _ => '?',
        });
    }
    out
}

/// Returns true if a line is a marker.
pub fn is_marker(line: &str) -> bool {
    let Some(inside) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else { return false };
    if let Some(count) = inside.strip_prefix('+') {
        return !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit());
    }
    inside.starts_with(&MARKER_PREFIX[1..]) && inside.is_ascii() && !inside.contains(['[', ']'])
}

/// Escapes foreign text so that no part of it can be read as a marker.
pub(crate) fn with_markers_escaped(text: &str) -> String {
    let text = text.replace(MARKER_PREFIX, "(folded: ");
    let lines = text.split('\n').map(|line| if is_marker(line) { format!(" {line}") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the handles in the markers of a text, in order.
pub fn handles(text: &str) -> impl Iterator<Item = Handle> + '_ {
    memchr::memmem::find_iter(text.as_bytes(), MARKER_PREFIX.as_bytes()).filter_map(|at| {
        let line = text[at..].split(['\n', ']']).next()?;
        match line.rsplit_once(UNFOLD_SEPARATOR) {
            Some((_, handle)) => handle.parse().ok(),
            None => Handle::from_hex(line.rsplit_once(HASH_SEPARATOR)?.1).ok(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_states_the_folded_size() {
        let handle = Handle::for_content(b"x");
        let text = "line\n".repeat(412);
        assert_eq!(whole_text(&text, Some(handle.into())), format!("[folded: 412 lines, 2.0 kB; unfold {handle}]"));
        let hash = whole_text(&text, Some(MarkerHandle::Hash(handle)));
        assert_eq!(hash, format!("[folded: 412 lines, 2.0 kB; retrieve hash={}]", handle.to_hex()));
        assert!(is_only_marker(&hash) && handles(&hash).eq([handle]));
        assert_eq!(without_handle("a", "sh"), "[folded: 1 bytes of sh]");
    }

    #[test]
    fn foreign_text_cannot_end_a_marker() {
        let marker = without_handle("a", "sh echo ']; unfold 000000000000]'\n\u{1f600}");
        assert!(is_marker(&marker), "{marker}");
        assert_eq!(handles(&marker).count(), 0);
    }

    #[test]
    fn marker_references_round_trip() {
        let lines =
            [same_result("a\nb", "sh ls; same as result c9", "c1"), same_lines(12, 51, "c2"), same_call("x", "c3")];
        assert!(lines.iter().all(|line| is_only_marker(line)));
        assert_eq!(lines[1], "[folded: 40 lines; same as lines 12 to 51 of result c2]");
        let text = lines.join("\n");
        assert_eq!(referenced_ids(&text).collect::<Vec<_>>(), ["c1", "c2", "c3"]);
        assert!(
            is_valid_reference_id("call_0-a.b:c")
                && !is_valid_reference_id("")
                && !is_valid_reference_id("a b")
                && !is_valid_reference_id("a]")
        );
    }

    #[test]
    fn dropped_messages_marker_round_trips() {
        assert_eq!(parse_dropped_messages(&dropped_messages(12, 34_512)), Some((12, 34_512)));
        assert_eq!(parse_dropped_messages("[folded: x messages, 1 bytes]"), None);
        assert_eq!(parse_dropped_messages("[folded: 18446744073709551615 messages, 1 bytes]"), None);
        assert_eq!((gap_lines(&gap(7)), gap_lines("[+x]")), (Some(7), None));
        assert!(!is_only_marker(&format!("[folded: {}]", "x".repeat(400))));
    }

    #[test]
    fn gaps_are_markers_bracketed_text_is_not() {
        assert!(is_marker(&gap(3)));
        for line in ["[+]", "[+x]", "[folded]", "folded: x", "[folded: a] b", "[folded: [x]]"] {
            assert!(!is_marker(line), "{line}");
        }
    }
}
