//! A text as its difference from another: spans that are copied from the other text, and new text between them.
//!
//! Most folds keep parts of their original and add a marker, so the difference is short. It is not if a fold writes the
//! original in another form: then it is the text itself.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// A text as its difference from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct TextDelta(Vec<DeltaSpan>);

/// A span of a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum DeltaSpan {
    /// Copied from the other text: position and length in bytes.
    Copied(usize, usize),
    New(String),
}

impl DeltaSpan {
    fn new_len(&self) -> usize {
        match self {
            Self::Copied(..) => 0,
            Self::New(new) => new.len(),
        }
    }
}

/// Bytes that two texts must have in common for a copy.
const BLOCK_BYTES: usize = 16;
/// A text copies at most this many times the bytes of its original: a short damaged delta could be a text of any length.
const MAX_COPIED_RATIO: usize = 2;

impl TextDelta {
    /// Computes the difference of a text from an original, in linear time.
    pub(crate) fn new(text: &str, original: &str) -> Self {
        let (new, old) = (text.as_bytes(), original.as_bytes());
        let mut blocks = HashMap::with_capacity(old.len() / BLOCK_BYTES);
        for (index, block) in old.chunks_exact(BLOCK_BYTES).enumerate() {
            blocks.entry(block).or_insert(index * BLOCK_BYTES);
        }
        let (mut spans, mut written, mut at) = (Vec::new(), 0, 0);
        while let Some(block) = new.get(at..at + BLOCK_BYTES) {
            let Some(&from) = blocks.get(block) else {
                at += 1;
                continue;
            };
            let before = common_len(new[written..at].iter().rev(), old[..from].iter().rev());
            let after = common_len(new[at..].iter(), old[from..].iter());
            // Both texts have the same bytes here, so a boundary of one is a boundary of the other.
            let start = text.ceil_char_boundary(at - before);
            let end = text.floor_char_boundary(at + after);
            if written < start {
                spans.push(DeltaSpan::New(text[written..start].to_owned()));
            }
            spans.push(DeltaSpan::Copied(from + start - at, end - start));
            (written, at) = (end, end);
        }
        if written < text.len() {
            spans.push(DeltaSpan::New(text[written..].to_owned()));
        }
        let copied = text.len() - spans.iter().map(DeltaSpan::new_len).sum::<usize>();
        if copied > original.len().saturating_mul(MAX_COPIED_RATIO) {
            spans = vec![DeltaSpan::New(text.to_owned())];
        }
        Self(spans)
    }

    /// Returns the text; `None` if it is not a difference from this original.
    pub(crate) fn text(&self, original: &str) -> Option<String> {
        let mut text = String::new();
        let mut may_copy = original.len().saturating_mul(MAX_COPIED_RATIO);
        for span in &self.0 {
            match span {
                DeltaSpan::Copied(from, len) => {
                    may_copy = may_copy.checked_sub(*len)?;
                    text.push_str(original.get(*from..from.checked_add(*len)?)?);
                }
                DeltaSpan::New(new) => text.push_str(new),
            }
        }
        Some(text)
    }
}

/// Returns the number of equal bytes before the first difference.
fn common_len<'b>(one: impl Iterator<Item = &'b u8>, other: impl Iterator<Item = &'b u8>) -> usize {
    one.zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec!["let value = ", "été ", "日本語の行", "\n", "\\n", "compute(input)", "x"]);
        prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn text_is_restored(original in texts(), other in texts(), cuts in prop::collection::vec(0.0..1.0, 2)) {
            let at = |share: f64| original.floor_char_boundary((original.len() as f64 * share) as usize);
            let text = format!("{}{other}{}", &original[..at(cuts[0])], &original[at(cuts[1])..]);
            let delta = TextDelta::new(&text, &original);
            prop_assert_eq!(delta.text(&original), Some(text));
            let stored = serde_json::to_string(&delta).unwrap();
            prop_assert_eq!(serde_json::from_str::<TextDelta>(&stored).unwrap(), delta);
        }

        #[test]
        fn any_delta_of_any_text_is_an_error_or_a_text(
            original in texts(),
            spans in prop::collection::vec((any::<usize>(), any::<usize>()), 0..4),
        ) {
            let spans = spans.into_iter().map(|(from, len)| DeltaSpan::Copied(from % 99, len)).collect();
            drop(TextDelta(spans).text(&original));
        }
    }

    #[test]
    fn text_cannot_be_much_longer_than_its_original() {
        let original = "x".repeat(1_000);
        let delta = TextDelta(vec![DeltaSpan::Copied(0, 1_000); 50_000]);
        assert_eq!(delta.text(&original), None);
    }

    #[test]
    fn excerpt_is_stored_without_its_lines() {
        let lines: Vec<String> = (0..200).map(|at| format!("let value_{at} = compute_{at}(input);\n")).collect();
        let excerpt = format!("{}[folded: 100 lines]\n{}", lines[..50].concat(), lines[150..].concat());
        let delta = TextDelta::new(&excerpt, &lines.concat());
        let stored = serde_json::to_string(&delta).unwrap();
        assert!(stored.len() < 60 && stored.contains("[folded: 100 lines]"), "{stored}");
    }
}
