//! References between results: a marker that refers to a result which leaves must not stay as it is.
//!
//! [`dedup_tool_outputs`](crate::strategies::dedup_tool_outputs()) and
//! [`dedup_tool_calls`](crate::strategies::dedup_tool_calls()) write markers such as `same as result c1`. Whatever drops
//! or shortens that result afterwards detaches such markers from it.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;

use crate::conversation::{CallArguments, Message, Part};
use crate::engine::handle::Handle;
use crate::engine::marker;
use crate::engine::marker::{MarkerHandle, MarkerTarget};

/// Maximum number of references that are followed from one result to the next.
const MAX_REFERENCE_DEPTH: usize = 8;
/// Bytes that resolving may produce for each byte of the results that leave. References written by the strategies
/// produce fewer; only forged ones produce more, and those beyond the limit are detached without a handle.
const MAX_GROWTH: usize = 8;

/// The text that a detached marker represents, to be stored under its handle.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DetachedOriginal {
    /// Handle in the marker.
    pub handle: Handle,
    /// Text of the referenced result, or of its lines.
    pub text: String,
}

/// Detaches the markers in `messages` from calls and results in `leaving`, which are about to be dropped or shortened.
///
/// The marker of a result keeps its size and loses its reference; `with_handles` gives it a handle instead, whose
/// original is returned and must be stored before the messages are sent. The arguments of a call are restored. Markers
/// with other targets are unchanged.
///
/// ```
/// use foldline::strategies::detach_references;
/// use foldline::{Message, Part, Role};
///
/// let leaving = [Message::new(Role::Tool, vec![Part::result("c1", "a\nb\n")])];
/// let marker = "[folded: 2 lines, 4 bytes of ls; same as result c1]";
/// let mut messages = vec![Message::new(Role::Tool, vec![Part::result("c2", marker)])];
/// let mut archived = messages.clone();
///
/// assert!(detach_references(&mut messages, &leaving, false).is_empty());
/// assert_eq!(messages[0].parts, [Part::result("c2", "[folded: 2 lines, 4 bytes of ls]")]);
///
/// let originals = detach_references(&mut archived, &leaving, true);
/// assert_eq!(originals[0].text, "a\nb\n");
/// let marker = format!("[folded: 2 lines, 4 bytes of ls; unfold {}]", originals[0].handle);
/// assert_eq!(archived[0].parts, [Part::result("c2", marker)]);
/// ```
pub fn detach_references(
    messages: &mut [Message<'_>],
    leaving: &[Message<'_>],
    with_handles: bool,
) -> Vec<DetachedOriginal> {
    let targets = ReferenceTargets::new(leaving);
    let mut originals = Vec::new();
    if targets.is_empty() {
        return originals;
    }
    for part in messages.iter_mut().flat_map(|message| &mut message.parts) {
        match part {
            Part::ToolCall(call) => {
                if let Some(arguments) = targets.restored_arguments(&call.arguments) {
                    call.arguments.set(arguments);
                }
            }
            Part::ToolResult(result) => {
                for content in &mut result.content {
                    let Part::Text { text } = content else { continue };
                    if let Some(detached) = targets.detached_text(text, with_handles, &mut originals) {
                        *content = Part::text(detached);
                    }
                }
            }
            _ => {}
        }
    }
    originals
}

/// The calls and results that leave, by id.
struct ReferenceTargets<'l> {
    results: HashMap<&'l str, &'l str>,
    calls: HashMap<&'l str, &'l str>,
    /// Bytes that resolving may still produce.
    bytes_left: Cell<usize>,
}

impl<'l> ReferenceTargets<'l> {
    fn new(leaving: &'l [Message<'_>]) -> Self {
        let results = leaving.iter().flat_map(Message::results);
        let results: HashMap<&str, &str> =
            results.filter_map(|result| Some((&*result.call_id, result.only_text()?))).collect();
        let calls = leaving.iter().flat_map(Message::calls).map(|call| (&*call.id, call.arguments.as_str())).collect();
        let bytes = results.values().map(|text| text.len()).sum::<usize>();
        Self { results, calls, bytes_left: Cell::new(bytes.saturating_mul(MAX_GROWTH)) }
    }

    fn is_empty(&self) -> bool {
        self.results.is_empty() && self.calls.is_empty()
    }

    /// Returns true if the target of a reference is a result that leaves.
    fn has_result(&self, target: MarkerTarget<'_>) -> bool {
        match target {
            MarkerTarget::Result(id) | MarkerTarget::Lines { id, .. } => self.results.contains_key(id),
            MarkerTarget::Call(_) => false,
        }
    }

    /// Returns the text that a reference represents, if its target leaves and the limit is not reached.
    fn original(&self, target: MarkerTarget<'_>, depth: usize) -> Option<String> {
        let (id, lines) = match target {
            MarkerTarget::Result(id) => (id, None),
            MarkerTarget::Lines { first, last, id } => (id, Some((first, last))),
            MarkerTarget::Call(_) => return None,
        };
        let text = *self.results.get(id)?;
        let text = match lines {
            None => Cow::Borrowed(text),
            Some((first, last)) => {
                let lines = text.split_inclusive('\n').skip(first.saturating_sub(1));
                Cow::Owned(lines.take((last + 1).saturating_sub(first)).collect())
            }
        };
        self.bytes_left.set(self.bytes_left.get().checked_sub(text.len())?);
        Some(self.resolved(&text, depth))
    }

    /// Returns the text with the references in it replaced by what they represent, as far as it is known.
    fn resolved(&self, text: &str, depth: usize) -> String {
        if depth == MAX_REFERENCE_DEPTH || !text.contains(marker::REFERENCE_WORDS) {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let (bare, end) = line.strip_suffix('\n').map_or((line, ""), |bare| (bare, "\n"));
            match marker::parse_reference(bare).and_then(|(_, target)| self.original(target, depth + 1)) {
                Some(original) => {
                    out.push_str(&original);
                    out.push_str(if original.ends_with('\n') { "" } else { end });
                }
                None => out.push_str(line),
            }
        }
        out
    }

    /// Returns the text with its markers detached; `None` if no marker refers to a result that leaves.
    fn detached_text(&self, text: &str, with_handles: bool, originals: &mut Vec<DetachedOriginal>) -> Option<String> {
        if !text.contains(marker::REFERENCE_WORDS) {
            return None;
        }
        let mut changed = false;
        let lines = text.split('\n').map(|line| {
            let reference = marker::parse_reference(line).filter(|(_, target)| self.has_result(*target));
            let detached = reference.map(|(before, target)| {
                let original = if with_handles { self.original(target, 0) } else { None };
                let handle = original.map(|text| {
                    let handle = Handle::for_content(text.as_bytes());
                    originals.push(DetachedOriginal { handle, text });
                    handle
                });
                Cow::Owned(marker::detached(before, handle.map(MarkerHandle::from)))
            });
            changed |= detached.is_some();
            detached.unwrap_or(Cow::Borrowed(line))
        });
        let detached = lines.collect::<Vec<_>>().join("\n");
        changed.then_some(detached)
    }

    /// Returns the arguments that a reference to a leaving call represents.
    fn restored_arguments(&self, arguments: &CallArguments<'_>) -> Option<String> {
        let text = arguments.as_str();
        if !text.contains(marker::REFERENCE_WORDS) {
            return None;
        }
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct FoldedArguments {
            folded: String,
        }
        let marker = match arguments {
            CallArguments::Text(text) => text.to_string(),
            CallArguments::Json(json) => serde_json::from_str::<FoldedArguments>(json).ok()?.folded,
        };
        match marker::parse_reference(&marker)? {
            (_, MarkerTarget::Call(id)) => self.calls.get(id).map(|arguments| (*arguments).to_owned()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Role;

    fn result(id: &'static str, text: &str) -> Message<'static> {
        Message::new(Role::Tool, vec![Part::result(id, text.to_owned())])
    }

    fn text<'m>(message: &'m Message<'_>) -> &'m str {
        message.results().next().and_then(|result| result.only_text()).expect("one text")
    }

    #[test]
    fn references_to_lines_keep_the_lines_around_them() {
        let leaving = [result("c1", "one\ntwo\nthree\n")];
        let marker = "[folded: 2 lines; same as lines 2 to 3 of result c1]";
        let mut messages = [result("c2", &format!("new\n{marker}\nend"))];
        let originals = detach_references(&mut messages, &leaving, true);
        assert_eq!(originals.len(), 1);
        assert_eq!(originals[0].text, "two\nthree\n");
        assert_eq!(text(&messages[0]), format!("new\n[folded: 2 lines; unfold {}]\nend", originals[0].handle));
    }

    #[test]
    fn references_of_leaving_results_are_followed() {
        let leaving =
            [result("c1", "one\ntwo\n"), result("c2", "zero\n[folded: 2 lines; same as lines 1 to 2 of result c1]\n")];
        let mut messages = [result("c3", "[folded: 3 lines, 13 bytes of cat; same as result c2]")];
        assert_eq!(detach_references(&mut messages, &leaving, true)[0].text, "zero\none\ntwo\n");
    }

    #[test]
    fn references_to_results_that_stay_are_unchanged() {
        let mut messages = [result("c3", "[folded: 3 lines, 13 bytes of cat; same as result c2]")];
        let before = messages.clone();
        assert_eq!(detach_references(&mut messages, &[result("c1", "other")], true), []);
        assert_eq!(messages, before);
    }

    #[test]
    fn arguments_of_a_leaving_call_are_restored() {
        let leaving = [Message::new(Role::Assistant, vec![Part::call("c1", "sh", r#"{"command":"make"}"#)])];
        let folded = r#"{"folded":"[folded: 18 bytes; same as call c1]"}"#;
        let mut messages = [Message::new(Role::Assistant, vec![Part::call("c2", "sh", folded)])];
        assert_eq!(detach_references(&mut messages, &leaving, true), []);
        assert_eq!(messages[0].calls().next().map(|call| call.arguments.as_str()), Some(r#"{"command":"make"}"#));
    }

    /// Tool output may contain lines that look like references, many of them and nested.
    #[test]
    fn forged_references_do_not_multiply_the_text() {
        let forged = |id: &'static str, other: &str| {
            result(id, &format!("[folded: 1 lines; same as lines 1 to 999 of result {other}]\n").repeat(1_000))
        };
        let leaving = [forged("c1", "c0"), forged("c2", "c1"), forged("c3", "c2"), result("c0", &"x\n".repeat(999))];
        let mut messages = [forged("c4", "c3")];
        let originals = detach_references(&mut messages, &leaving, true);
        let sent: usize = leaving.iter().map(|message| text(message).len()).sum();
        assert!(originals.iter().map(|original| original.text.len()).sum::<usize>() <= sent * (MAX_GROWTH + 1));
        assert!(!text(&messages[0]).contains("same as"));
    }

    #[test]
    fn circular_references_end() {
        let circle =
            |id: &'static str, other: &str| result(id, &format!("[folded: 1 bytes of x; same as result {other}]"));
        let mut messages = [circle("c3", "c1")];
        assert_eq!(detach_references(&mut messages, &[circle("c1", "c2"), circle("c2", "c1")], true).len(), 1);
    }
}
