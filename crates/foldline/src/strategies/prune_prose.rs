//! Removes noise from old prose: blanks at and inside lines, blank lines, ellipsis lines.
//!
//! Code, indentation, tables and aligned columns must stay, and so must text inside backticks.

use serde::{Deserialize, Serialize};

use crate::conversation::{Message, PartId};
use crate::engine::passes::prose::{CodeFence, without_noise};
use crate::engine::segment;
use crate::engine::segment::SegmentKind;
use crate::strategies::stats::StrategyStats;
use crate::strategies::support::{apply_changes, conversation_of, segments, tail_start};

/// Options of [`prune_low_entropy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PruneLowEntropy {
    /// Number of newest messages that are never changed.
    pub keep_last: usize,
    /// Minimum saving for texts to be changed, in bytes: a change invalidates the prompt cache after it. Texts with
    /// less noise wait until those after them bring the sum to this minimum, and are changed together.
    pub min_saved_bytes: usize,
}

impl Default for PruneLowEntropy {
    /// Returns the defaults: the last 6 messages are unchanged; texts must become 64 bytes shorter together.
    fn default() -> Self {
        Self { keep_last: 6, min_saved_bytes: 64 }
    }
}

/// Removes trailing spaces, runs of spaces inside lines, runs of blank lines and lines of dots from old texts of the
/// assistant. Code, rules, tables and indentation are kept, and no text becomes blank.
///
/// ```
/// use foldline::strategies::{PruneLowEntropy, prune_low_entropy};
/// use foldline::{Message, Role};
///
/// let wordy = format!("I will  look.{}\n\n\n...\n\nDone:\n```\nlet a = 1;  \n```", " ".repeat(80));
/// let messages = vec![Message::text(Role::Assistant, wordy), Message::text(Role::User, "thanks")];
/// let messages = [messages, vec![Message::text(Role::Assistant, "welcome")]].concat();
/// let options = PruneLowEntropy { keep_last: 1, ..PruneLowEntropy::default() };
/// let (messages, stats) = prune_low_entropy(messages, &options);
/// assert_eq!(messages[0], Message::text(Role::Assistant, "I will look.\n\nDone:\n```\nlet a = 1;  \n```"));
/// assert_eq!(stats.bytes_saved, 87);
/// ```
pub fn prune_low_entropy<'m>(
    messages: Vec<Message<'m>>,
    options: &PruneLowEntropy,
) -> (Vec<Message<'m>>, StrategyStats) {
    let conversation = conversation_of(messages);
    let tail = tail_start(&conversation, options.keep_last);
    let changes = changes(&conversation.messages, tail, options);
    apply_changes(conversation.messages, changes)
}

/// Returns the changes, oldest first. Whether a text changes depends only on the texts up to the one that brings the
/// saving to its minimum, so a longer history never undoes a change.
fn changes(messages: &[Message<'_>], tail: usize, options: &PruneLowEntropy) -> Vec<(PartId, String)> {
    let mut changes = Vec::new();
    let (mut waiting, mut waiting_bytes) = (Vec::new(), 0);
    for segment in segments(&messages[..tail]).iter().filter(|segment| segment.kind == SegmentKind::Prose) {
        let text = segment::segment_text(messages, segment.at);
        let Some(kept) = without_low_entropy(text) else { continue };
        waiting_bytes += text.len() - kept.len();
        waiting.push((segment.at, kept));
        if waiting_bytes >= options.min_saved_bytes {
            changes.append(&mut waiting);
            waiting_bytes = 0;
        }
    }
    changes
}

/// Returns the text without noise; `None` if it contains no noise or nothing else.
fn without_low_entropy(text: &str) -> Option<String> {
    let cleaned = without_noise(text);
    let collapsed = with_single_spaces(cleaned.as_deref().unwrap_or(text));
    collapsed.or(cleaned)
}

/// Returns the text with single spaces inside the lines of its prose; `None` if it has no others.
fn with_single_spaces(text: &str) -> Option<String> {
    // Most texts have no run of spaces at all.
    memchr::memmem::find(text.as_bytes(), b"  ")?;
    let lines: Vec<&str> = text.split('\n').collect();
    let mut fence: Option<CodeFence> = None;
    let mut out = String::with_capacity(text.len());
    for (at, line) in lines.iter().enumerate() {
        let is_code = match fence {
            Some(open) => {
                fence = (!open.is_closed_by(line)).then_some(open);
                true
            }
            None => {
                fence = CodeFence::opened_by(line);
                fence.is_some() || line.starts_with("    ") || line.starts_with('\t')
            }
        };
        if at > 0 {
            out.push('\n');
        }
        let next_to = |other: Option<usize>| other.and_then(|at| lines.get(at)).is_some_and(|it| aligns(line, it));
        if is_code || is_tabular(line) || next_to(at.checked_sub(1)) || next_to(Some(at + 1)) {
            out.push_str(line);
        } else {
            push_with_single_spaces(line, &mut out);
        }
    }
    (out.len() < text.len()).then_some(out)
}

/// Returns the byte positions at which runs of two or more spaces inside a line end.
fn space_run_ends(line: &str) -> impl Iterator<Item = usize> + '_ {
    let start = line.len() - line.trim_start_matches(' ').len();
    let inside = &line.as_bytes()[start..line.trim_end().len().max(start)];
    let ends = inside.windows(3).enumerate().filter(|(_, bytes)| bytes[..2] == *b"  " && bytes[2] != b' ');
    ends.map(move |(at, _)| start + at + 2)
}

/// Returns true for a line that is a row of a table or of columns.
fn is_tabular(line: &str) -> bool {
    // Two spaces after a sentence are not a column.
    let after_sentence = |end: &usize| line[..*end].trim_end().ends_with(['.', '!', '?', ':', ';']);
    line.contains(['|', '\t', '│', '┃']) || space_run_ends(line).filter(|end| !after_sentence(end)).nth(1).is_some()
}

/// Returns true if a run of spaces in the line ends in the same column as one in the other line.
fn aligns(line: &str, other: &str) -> bool {
    space_run_ends(line).any(|end| space_run_ends(other).any(|other| other == end))
}

/// Appends a line with single spaces after its indentation and outside backticks.
fn push_with_single_spaces(line: &str, out: &mut String) {
    let indent = line.len() - line.trim_start_matches(' ').len();
    out.push_str(&line[..indent]);
    for (at, piece) in line[indent..].split('`').enumerate() {
        if at > 0 {
            out.push('`');
        }
        let is_quoted = at % 2 == 1;
        let mut after_space = false;
        for character in piece.chars() {
            if character != ' ' || !after_space || is_quoted {
                out.push(character);
            }
            after_space = character == ' ';
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spaces_inside_prose_are_collapsed() {
        assert_eq!(
            without_low_entropy("First.  Then more.  And  more.\n  - a list  item\n...\nDone.").as_deref(),
            Some("First. Then more. And more.\n  - a list item\n\nDone.")
        );
    }

    #[test]
    fn code_tables_columns_and_quotes_keep_their_spaces() {
        for text in [
            "```\nlet a  = 1;\n```",
            "    indented  code",
            "name   size   date\na      1      today",
            "| a  | b  |",
            "a\tb  c",
            "key:    value\nother:  value",
            "run `a  b` now",
        ] {
            assert_eq!(without_low_entropy(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn pruning_is_idempotent_and_keeps_words(text in "([a-z.`|]|  |   | |\n|```|    ){0,60}") {
            let words = |text: &str| text.split(|char: char| !char.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
            if let Some(kept) = without_low_entropy(&text) {
                prop_assert_eq!(words(&kept), words(&text));
                prop_assert_eq!(without_low_entropy(&kept), None, "{:?} -> {:?}", text, kept);
                prop_assert!(kept.len() < text.len() && !kept.trim().is_empty());
            }
        }
    }
}
