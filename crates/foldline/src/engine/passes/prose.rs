//! Prose without what says nothing: blanks at the end of lines, runs of blank lines, lines of dots.
//!
//! What has a meaning stays as it is: code between fences, indented lines, rules and underlines of
//! headings, rows of tables, the indentation of lists. A text never becomes blank, since that is
//! refused.

use crate::engine::marker;
use crate::engine::planner::Stage;
use crate::engine::segment::SegmentKind;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::{FoldProposal, PassView};

/// What is shorter than a marker and a few words has nothing to gain.
pub(crate) const MIN_PROSE_TOKENS: u64 = 16;

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    for piece in view.old_segments(SegmentKind::Prose, Stage::Excerpts).filter(|piece| piece.has_noise) {
        let text = view.text(piece);
        let Some(kept) = without_noise(text) else { continue };
        let marker = marker::described("blank lines", view.handle(text));
        let folded = format!("{marker}\n{kept}");
        let tokens = view.options.meter.text(&folded);
        if tokens < piece.tokens {
            proposals.push(FoldProposal {
                at: piece.at,
                edit: PartEdit::Text(folded),
                tokens,
                expected_unfold_cost: 0.0,
            });
        }
    }
}

/// The text without noise; `None` when there is none, or nothing else.
pub(crate) fn without_noise(text: &str) -> Option<String> {
    let mut kept = String::with_capacity(text.len());
    let mut fence: Option<CodeFence> = None;
    let mut blanks = false;
    let mut any = false;
    for line in text.split('\n') {
        let verbatim = match &fence {
            Some(open) => {
                if open.is_closed_by(line) {
                    fence = None;
                }
                true
            }
            None => {
                fence = CodeFence::opened_by(line);
                fence.is_some() || is_indented(line)
            }
        };
        let said = if verbatim { line } else { line.trim_end() };
        if !verbatim && (said.is_empty() || is_dots(said)) {
            blanks = true;
            continue;
        }
        if any {
            kept.push('\n');
        }
        // Of a run of blank lines one stays: it parts paragraphs.
        if blanks && any {
            kept.push('\n');
        }
        (blanks, any) = (false, true);
        kept.push_str(said);
    }
    let ends = text.ends_with('\n') && any && !kept.ends_with('\n');
    kept.push_str(if ends { "\n" } else { "" });
    (any && kept.len() < text.len() && !kept.trim().is_empty()).then_some(kept)
}

/// The line that opens a block of code.
#[derive(Clone, Copy)]
pub(crate) struct CodeFence {
    delimiter: char,
    length: usize,
}

impl CodeFence {
    /// What the line opens, if it opens a block. A line such as ```` ```code``` ```` opens none: it is whole.
    pub(crate) fn opened_by(line: &str) -> Option<Self> {
        let (sign, length, rest) = Self::parse(line)?;
        (sign == '~' || !rest.contains('`')).then_some(Self { delimiter: sign, length })
    }

    /// Whether the line ends the block.
    pub(crate) fn is_closed_by(self, line: &str) -> bool {
        Self::parse(line).is_some_and(|(sign, length, rest)| {
            sign == self.delimiter && length >= self.length && rest.trim().is_empty()
        })
    }

    fn parse(line: &str) -> Option<(char, usize, &str)> {
        let bare = line.trim_start_matches(' ');
        let sign = bare.chars().next().filter(|sign| matches!(sign, '`' | '~'))?;
        let rest = bare.trim_start_matches(sign);
        let length = bare.len() - rest.len();
        (line.len() - bare.len() < 4 && length >= 3).then_some((sign, length, rest))
    }
}

/// Four blanks or a tab in front of something: code, or the inside of a list.
fn is_indented(line: &str) -> bool {
    (line.starts_with("    ") || line.starts_with('\t')) && !line.trim().is_empty()
}

fn is_dots(line: &str) -> bool {
    line.chars().all(|sign| matches!(sign, '.' | '…' | '·' | '•' | ' '))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn noise_is_removed_text_is_kept() {
        assert_eq!(
            without_noise("I read it.   \n\n\n\n...\n\n  - one\t\n  - two\n…\nDone.\n").as_deref(),
            Some("I read it.\n\n  - one\n  - two\n\nDone.\n")
        );
    }

    #[test]
    fn text_of_only_noise_is_kept() {
        for text in ["...", "", "  \n ...\n", "\n\n"] {
            assert_eq!(without_noise(text), None, "{text:?}");
        }
    }

    #[test]
    fn rules_tables_indents_and_code_are_kept() {
        for text in [
            "Title\n=====\n\n---\n\n***\n\n| a | b |\n|---|---|",
            "```\nlet a = 1;   \n\n\n...\n```\ntext",
            "~~~text\n```\n...\n\n\n~~~",
            "    indented code   \n    more   ",
            "\tcode   ",
            "}\n)\n-\n+\n>",
        ] {
            assert_eq!(without_noise(text), None, "{text:?}");
        }
    }

    #[test]
    fn single_line_fence_opens_no_block() {
        let text = "```let a = 1;```\nprose   \n\n\n```\ncode   \n```";
        assert_eq!(without_noise(text).as_deref(), Some("```let a = 1;```\nprose\n\n```\ncode   \n```"));
    }

    #[test]
    fn unclosed_fence_extends_to_the_end() {
        assert_eq!(without_noise("```rust\ncode   \n\n\nmore   "), None);
    }

    proptest! {
        #[test]
        fn noise_removal_is_idempotent_and_keeps_words(text in "([a-z.` ~\t-]|\n|```|    ){0,80}") {
            let words = |text: &str| text.split(|sign: char| !sign.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
            if let Some(kept) = without_noise(&text) {
                prop_assert_eq!(words(&kept), words(&text));
                prop_assert_eq!(without_noise(&kept), None, "{:?} -> {:?}", text, kept);
                prop_assert!(kept.len() < text.len() && !kept.trim().is_empty());
            }
        }
    }
}
