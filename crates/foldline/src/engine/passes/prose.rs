//! Removes noise from prose: trailing spaces, runs of blank lines, lines of dots.
//!
//! Meaningful layout is kept: fenced code, indented lines, rules and underlines of headings, table rows, the
//! indentation of lists. A text never becomes blank, since providers reject blank texts.

use crate::engine::marker;
use crate::engine::segment::SegmentKind;
use crate::engine::stage::Stage;

use crate::engine::overlay::PartEdit;
use crate::engine::passes::view::{FoldProposal, PassView};

/// Minimum size of prose; a shorter one gains nothing over a marker and a few words.
pub(crate) const MIN_PROSE_TOKENS: u64 = 16;

pub(crate) fn propose(view: &PassView<'_>, proposals: &mut Vec<FoldProposal>) {
    for segment in view.old_segments(SegmentKind::Prose, Stage::Excerpts).filter(|segment| segment.has_noise) {
        let text = view.text(segment);
        let Some(kept) = without_noise(text) else { continue };
        let marker = marker::described("blank lines", view.handle(text));
        let folded = format!("{marker}\n{kept}");
        let tokens = view.options.meter.text(&folded);
        if tokens < segment.tokens {
            proposals.push(FoldProposal {
                at: segment.at,
                edit: PartEdit::Text(folded),
                tokens,
                expected_unfold_cost: 0.0,
            });
        }
    }
}

/// Returns the text without noise; `None` if it contains no noise or nothing else.
pub(crate) fn without_noise(text: &str) -> Option<String> {
    let mut kept = String::with_capacity(text.len());
    let mut fence: Option<CodeFence> = None;
    let mut after_blank = false;
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
        let content = if verbatim { line } else { line.trim_end() };
        if !verbatim && (content.is_empty() || is_dots(content)) {
            after_blank = true;
            continue;
        }
        if any {
            kept.push('\n');
        }
        // One line of a run of blank lines is kept: it separates paragraphs.
        if after_blank && any {
            kept.push('\n');
        }
        (after_blank, any) = (false, true);
        kept.push_str(content);
    }
    let needs_newline = text.ends_with('\n') && any && !kept.ends_with('\n');
    kept.push_str(if needs_newline { "\n" } else { "" });
    (any && kept.len() < text.len() && !kept.trim().is_empty()).then_some(kept)
}

/// The opening line of a code block.
#[derive(Clone, Copy)]
pub(crate) struct CodeFence {
    delimiter: char,
    length: usize,
}

impl CodeFence {
    /// Returns the fence that the line opens, if any. A line such as ```` ```code``` ```` is complete and opens none.
    pub(crate) fn opened_by(line: &str) -> Option<Self> {
        let (delimiter, length, rest) = Self::parse(line)?;
        (delimiter == '~' || !rest.contains('`')).then_some(Self { delimiter, length })
    }

    /// Returns true if the line closes the block.
    pub(crate) fn is_closed_by(self, line: &str) -> bool {
        Self::parse(line).is_some_and(|(delimiter, length, rest)| {
            delimiter == self.delimiter && length >= self.length && rest.trim().is_empty()
        })
    }

    fn parse(line: &str) -> Option<(char, usize, &str)> {
        let bare = line.trim_start_matches(' ');
        let delimiter = bare.chars().next().filter(|delimiter| matches!(delimiter, '`' | '~'))?;
        let rest = bare.trim_start_matches(delimiter);
        let length = bare.len() - rest.len();
        (line.len() - bare.len() < 4 && length >= 3).then_some((delimiter, length, rest))
    }
}

/// Returns true for a non-blank line after four spaces or a tab: code, or part of a list.
fn is_indented(line: &str) -> bool {
    (line.starts_with("    ") || line.starts_with('\t')) && !line.trim().is_empty()
}

fn is_dots(line: &str) -> bool {
    line.chars().all(|char| matches!(char, '.' | '…' | '·' | '•' | ' '))
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
            let words = |text: &str| text.split(|char: char| !char.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
            if let Some(kept) = without_noise(&text) {
                prop_assert_eq!(words(&kept), words(&text));
                prop_assert_eq!(without_noise(&kept), None, "{:?} -> {:?}", text, kept);
                prop_assert!(kept.len() < text.len() && !kept.trim().is_empty());
            }
        }
    }
}
