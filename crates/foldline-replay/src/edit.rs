//! Edit anchors: the old text that a replacement edit names.
//!
//! An agent that replaces text must quote it exactly, so the old text must be in its context,
//! verbatim and in one piece. The formats of common tools are parsed: an argument with the old text
//! (Claude Code, SWE-agent, OpenHands, pi), patches of `apply_patch` (Codex), search blocks in prose
//! (aider).

use std::ops::Range;

use foldline::{Message, Part};
use memchr::memmem::Finder;
use serde_json::Value;

use crate::engine::SharedMessage;
use crate::text::{argument_object, for_each_argument, for_each_text, without_line_numbers};

/// The old text of an edit, and the messages of the full request that contain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EditAnchor {
    /// The old text.
    pub old_text: String,
    /// Indices of the messages.
    pub messages: Vec<usize>,
    /// Index of the part of the last of them.
    pub part: usize,
}

/// Argument names for the text to be replaced.
const OLD_TEXT_KEYS: [&str; 5] = ["old_string", "old_str", "oldText", "old_text", "search"];

/// Returns for each action the anchors that appear in a message before it.
pub(crate) fn find_anchors(
    messages: &[SharedMessage],
    actions: impl Iterator<Item = Range<usize>>,
) -> Vec<Vec<EditAnchor>> {
    let mut plain: Vec<Vec<(usize, String)>> = Vec::new();
    let anchors_of = |action: Range<usize>| {
        let edits: Vec<String> = messages[action.clone()].iter().flat_map(|message| replaced_texts(message)).collect();
        if edits.is_empty() {
            return Vec::new();
        }
        plain.extend(messages[plain.len()..action.start].iter().map(|message| plain_texts(message)));
        edits
            .into_iter()
            .filter_map(|old| {
                let finder = Finder::new(&old);
                let part_with = |at: usize| {
                    let holds = |(_, text): &&(usize, String)| finder.find(text.as_bytes()).is_some();
                    plain[at].iter().find(holds).map(|&(part, _)| part)
                };
                let messages: Vec<usize> = (0..action.start).filter(|&at| part_with(at).is_some()).collect();
                let part = part_with(*messages.last()?)?;
                Some(EditAnchor { old_text: old, messages, part })
            })
            .collect()
    };
    actions.map(anchors_of).collect()
}

/// Returns true if a rendered message contains the old text.
pub(crate) fn contains_text(old: &Finder<'_>, message: &Message<'_>) -> bool {
    let mut found = false;
    for_each_text(message, |_, _, text| {
        found =
            found || (text.len() >= old.needle().len() && old.find(without_line_numbers(text).as_bytes()).is_some());
    });
    found
}

/// Returns the texts of a message without line numbers, and the part of each.
fn plain_texts(message: &Message<'_>) -> Vec<(usize, String)> {
    let mut plain = Vec::new();
    for_each_text(message, |_, part, text| plain.push((part, without_line_numbers(text).into_owned())));
    plain
}

/// Returns the texts that the edits in a message replace.
fn replaced_texts(message: &Message<'_>) -> Vec<String> {
    let mut old = Vec::new();
    for part in &message.parts {
        match part {
            Part::Text { text } => search_blocks(text, &mut old),
            Part::ToolCall(call) => {
                if let Some(fields) = argument_object(&call.arguments) {
                    old_fields(&fields, &mut old);
                    if let Some(Value::Array(edits)) = fields.get("edits") {
                        edits.iter().filter_map(Value::as_object).for_each(|fields| old_fields(fields, &mut old));
                    }
                }
                for_each_argument(&call.arguments, |text| patch_hunks(text, &mut old));
            }
            _ => {}
        }
    }
    old.retain(|text| !text.trim().is_empty());
    old
}

fn old_fields(fields: &serde_json::Map<String, Value>, old: &mut Vec<String>) {
    for name in OLD_TEXT_KEYS {
        if let Some(Value::String(text)) = fields.get(name) {
            old.push(text.clone());
        }
    }
}

/// Collects the old side of each hunk of a patch: kept and removed lines.
fn patch_hunks(text: &str, old: &mut Vec<String>) {
    let Some(start) = text.find("*** Begin Patch") else { return };
    let mut hunk: Option<Vec<&str>> = None;
    let mut end = |hunk: &mut Option<Vec<&str>>| {
        if let Some(lines) = hunk.take().filter(|lines| !lines.is_empty()) {
            old.push(lines.join("\n"));
        }
    };
    for line in text[start..].lines() {
        if line.starts_with("*** ") || line.starts_with("@@") {
            end(&mut hunk);
            if line.starts_with("*** Update File:") || line.starts_with("@@") {
                hunk = Some(Vec::new());
            }
        } else if let Some(lines) = &mut hunk {
            if let Some(kept) = line.strip_prefix([' ', '-']) {
                lines.push(kept);
            } else if line.is_empty() {
                lines.push("");
            }
        }
    }
    end(&mut hunk);
}

/// Collects the search side of blocks between `<<<<<<< SEARCH` and `=======`.
fn search_blocks(text: &str, old: &mut Vec<String>) {
    let mut block: Option<Vec<&str>> = None;
    for line in text.lines() {
        if line.starts_with("<<<<<<<") && line.trim_end().ends_with("SEARCH") {
            block = Some(Vec::new());
        } else if line.starts_with("=======") {
            if let Some(lines) = block.take() {
                old.push(lines.join("\n"));
            }
        } else if let Some(lines) = &mut block {
            lines.push(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::Role;
    use std::sync::Arc;

    fn edit_call(arguments: &'static str) -> Message<'static> {
        Message::new(Role::Assistant, vec![Part::call("c", "edit", arguments)])
    }

    #[test]
    fn common_edit_tools_are_parsed() {
        assert_eq!(
            replaced_texts(&edit_call(r#"{"file_path":"a","old_string":"x = 1","new_string":"x = 2"}"#)),
            ["x = 1"]
        );
        assert_eq!(replaced_texts(&edit_call(r#"{"edits":[{"oldText":"a"},{"old_str":"b"}]}"#)), ["a", "b"]);
        let patch = r#"{"input":"*** Begin Patch\n*** Update File: a.rs\n@@ fn a\n keep\n-gone\n+come\n@@\n-two\n*** Add File: b\n+new\n*** End Patch"}"#;
        assert_eq!(replaced_texts(&edit_call(patch)), ["keep\ngone", "two"]);
        // Codex also passes its patch to a shell, as one of the arguments.
        let shell = r#"{"command":["bash","-lc","apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a.rs\n@@\n-two\n+2\n*** End Patch\nEOF"]}"#;
        assert_eq!(replaced_texts(&edit_call(shell)), ["two"]);
        // SWE-agent and OpenHands have an editor with a command argument.
        let editor = r#"{"command":"str_replace","path":"a.py","old_str":"x = 1\n","new_str":"x = 2\n"}"#;
        assert_eq!(replaced_texts(&edit_call(editor)), ["x = 1\n"]);
        let aider = Message::text(Role::Assistant, "a.py\n<<<<<<< SEARCH\none\ntwo\n=======\nthree\n>>>>>>> REPLACE");
        assert_eq!(replaced_texts(&aider), ["one\ntwo"]);
    }

    /// A file that was read with line numbers matches an edit without them.
    #[test]
    fn anchor_must_be_contiguous() {
        let messages: Vec<SharedMessage> = vec![
            Arc::new(Message::new(Role::Tool, vec![Part::result("r", "   1→fn a() {\n   2→    b();\n   3→}")])),
            Arc::new(edit_call(r#"{"old_string":"a() {\n    b();","new_string":""}"#)),
            Arc::new(edit_call(r#"{"old_string":"never seen","new_string":""}"#)),
        ];
        let found = find_anchors(&messages, [1..2, 2..3].into_iter());
        assert_eq!(found[0][0].messages, [0]);
        assert!(found[1].is_empty());
        let old = Finder::new("a() {\n    b();");
        assert!(contains_text(&old, &messages[0]));
        assert!(!contains_text(&old, &Message::text(Role::User, "a() {\n[2 lines folded]\n    b();")));
    }
}
