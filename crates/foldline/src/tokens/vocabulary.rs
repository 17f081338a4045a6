//! Exact counts by the built-in vocabularies.
//!
//! A vocabulary is a provider's published table of tokens. None is published for Claude, so no count here is exact
//! for Claude or may be reported as exact.
//!
//! Merging is fast on words and slow on a run of a megabyte without a break, which no model writes but a tool may
//! print. Such runs are counted in chunks, with one extra token per cut, since a cut may hide how the text before it
//! would have been merged: a few tokens too many in a run longer than [`MIN_LONG_RUN_BYTES`] bytes, exact everywhere
//! else.

use std::ops::Range;

use crate::tokens::{CountExactness, TokenCounter, Tokens};

/// A model's own vocabulary.
///
/// Those of OpenAI, Qwen and Mistral are built in; the cargo features `vocab-llama3`, `vocab-deepseek`, `vocab-kimi`,
/// `vocab-glm` and `vocab-minimax` add more.
#[derive(Clone, Copy)]
pub struct Vocabulary {
    name: &'static str,
    bpe: &'static tiktoken::CoreBpe,
}

/// Names in the model table and the tokenizer's names for them.
const VOCABULARY_NAMES: &[(&str, &str)] = &[
    ("o200k", "o200k_base"),
    ("cl100k", "cl100k_base"),
    ("qwen2", "qwen2"),
    ("mistral", "mistral_v3"),
    ("llama3", "llama3"),
    ("deepseek", "deepseek_v3"),
    ("kimi", "kimi_k2"),
    ("glm", "glm4"),
    ("minimax", "minimax_m2"),
];

impl Vocabulary {
    /// Returns the vocabulary of this name in the model table, if it is built in.
    pub fn from_name(name: &str) -> Option<Vocabulary> {
        let &(name, encoding) = VOCABULARY_NAMES.iter().find(|(known, _)| *known == name)?;
        Some(Vocabulary { name, bpe: tiktoken::get_encoding(encoding)? })
    }

    /// Returns OpenAI's vocabulary since GPT-4o.
    pub fn o200k() -> Vocabulary {
        Self::from_name("o200k").expect("o200k is always built in")
    }

    /// Returns OpenAI's vocabulary of GPT-4 and GPT-3.5.
    pub fn cl100k() -> Vocabulary {
        Self::from_name("cl100k").expect("cl100k is always built in")
    }

    /// Returns the name in the model table.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl TokenCounter for Vocabulary {
    fn count(&self, text: &str) -> Tokens {
        self.count_until(text, &|| false).expect("the count is not stopped")
    }

    fn count_until(&self, text: &str, stop: &dyn Fn() -> bool) -> Option<Tokens> {
        let mut tokens = 0;
        let mut rest = text;
        while let Some(run) = find_long_run(rest) {
            tokens += self.count_pieces(&rest[..run.start], MAX_PIECE_BYTES, stop)?;
            tokens += self.count_run(&rest[run.clone()], stop)?;
            rest = &rest[run.end..];
        }
        Some((tokens + self.count_pieces(rest, MAX_PIECE_BYTES, stop)?) as Tokens)
    }

    fn exactness(&self) -> CountExactness {
        CountExactness::Exact
    }
}

impl Vocabulary {
    /// Counts a text in pieces of about `piece_bytes` that end where a word ends, so that their counts add up. Returns
    /// none if `stop` returned true before a piece.
    fn count_pieces(&self, text: &str, piece_bytes: usize, stop: &dyn Fn() -> bool) -> Option<usize> {
        let mut tokens = 0;
        let mut rest = text;
        while rest.len() > piece_bytes {
            let (piece, remainder) = rest.split_at(end_of_word(rest, piece_bytes));
            if stop() {
                return None;
            }
            tokens += self.bpe.count(piece);
            rest = remainder;
        }
        Some(tokens + self.bpe.count(rest))
    }

    /// Counts a run without a break in chunks, separately from the text around it. Runs are mostly repetitive, so a
    /// chunk equal to the previous one is not counted again.
    fn count_run(&self, run: &str, stop: &dyn Fn() -> bool) -> Option<usize> {
        let mut tokens = 1;
        let mut before = ("", 0);
        let mut rest = run;
        while !rest.is_empty() {
            let (chunk, remainder) = rest.split_at(rest.floor_char_boundary(RUN_CHUNK_BYTES));
            if chunk != before.0 {
                if stop() {
                    return None;
                }
                before = (chunk, self.bpe.count(chunk));
            }
            tokens += before.1 + 1;
            rest = remainder;
        }
        Some(tokens)
    }
}

/// Length from which a text is counted in pieces.
const MAX_PIECE_BYTES: usize = 256 * 1024;

/// Minimum length of a run without a break that is counted in chunks.
const MIN_LONG_RUN_BYTES: usize = 8 * 1024;
/// Length of a chunk: a multiple of the lengths of tokens for repeated characters.
const RUN_CHUNK_BYTES: usize = 4 * 1024;

/// Returns true if a run of this text is counted in chunks.
pub(crate) fn has_long_run(text: &str) -> bool {
    find_long_run(text).is_some()
}

/// Returns the first run of at least [`MIN_LONG_RUN_BYTES`] bytes of one kind. Vocabularies split text wherever the
/// kind changes, so without such a run no word is long.
///
/// Windows are scanned from their ends, where a change is usually near: almost nothing of an ordinary text is read.
fn find_long_run(text: &str) -> Option<Range<usize>> {
    let mut start = 0;
    while text.len() - start >= MIN_LONG_RUN_BYTES {
        let window = &text[start..text.ceil_char_boundary(start + MIN_LONG_RUN_BYTES)];
        let mut ends = window.char_indices().rev();
        let (mut change, last) = ends.next()?;
        let same = ends.take_while(|(_, c)| char_kind(*c) == char_kind(last)).last();
        change = same.map_or(change, |(at, _)| at);
        if change == 0 {
            let remainder = &text[start + window.len()..];
            let length = remainder.find(|c| char_kind(c) != char_kind(last)).unwrap_or(remainder.len());
            return Some(start..start + window.len() + length);
        }
        start += change;
    }
    None
}

/// Returns the first position from `from` on at which every vocabulary ends a word whatever follows: after a letter if
/// no letter and no apostrophe follows, or after a line break if a letter or digit follows. Returns the end of the text
/// if there is none.
fn end_of_word(text: &str, from: usize) -> usize {
    let is_end = |pair: &[u8]| match *pair {
        [letter, next] if letter.is_ascii_alphabetic() => {
            next.is_ascii() && !next.is_ascii_alphabetic() && next != b'\''
        }
        [b'\n', next] => next.is_ascii_alphanumeric(),
        _ => false,
    };
    let start = from.saturating_sub(1);
    text.as_bytes()[start..].windows(2).position(is_end).map_or(text.len(), |at| start + at + 1)
}

#[derive(PartialEq)]
enum CharKind {
    Letter,
    Number,
    Space,
    Punctuation,
}

fn char_kind(c: char) -> CharKind {
    match c {
        _ if c.is_alphabetic() => CharKind::Letter,
        _ if c.is_numeric() => CharKind::Number,
        _ if c.is_whitespace() => CharKind::Space,
        _ => CharKind::Punctuation,
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Vocabulary").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference_count(text: &str) -> Tokens {
        static REFERENCE: std::sync::LazyLock<tiktoken_rs::CoreBPE> =
            std::sync::LazyLock::new(|| tiktoken_rs::o200k_base().unwrap());
        REFERENCE.encode_ordinary(text).len() as Tokens
    }

    /// Another implementation of the same vocabulary returns the same counts, in all edge cases.
    #[test]
    fn counts_equal_reference_implementation() {
        let long = "a".repeat(MIN_LONG_RUN_BYTES - 1);
        let odd = [
            "",
            " ",
            "<|endoftext|><|im_start|>system<|fim_prefix|>",
            "it's I'LL we'd",
            "fn main() {\n\t    println!(\"{}\", 1_000_000);\r\n}\r\n\r\n",
            "1234567890123 ０１２ ²³ Ⅷ",
            "折叠旧的部分，そして開く。 한국어 Ελληνικά עברית हिन्दी ภาษาไทย",
            "e\u{301}\u{301} \u{200d}👩‍👩‍👧‍👦 🇩🇪 \u{feff}\u{a0}\u{3000}x",
            "\u{0}\u{1b}[31mred\u{1b}[0m\u{7f}",
            "    \n\n\n   \t\t \n  x   ",
            &long,
        ];
        for text in odd {
            assert_eq!(Vocabulary::o200k().count(text), reference_count(text), "{text:?}");
        }
    }

    #[test]
    fn special_tokens_are_counted_as_text() {
        for name in ["o200k", "cl100k", "qwen2", "mistral"] {
            let vocabulary = Vocabulary::from_name(name).unwrap();
            for special in ["<|endoftext|>", "<|im_end|>", "[INST]", "<tool_call>"] {
                assert!(vocabulary.count(special) > 1, "{name} {special}");
            }
        }
    }

    /// A hundred thousand repetitions, or noise without a break: slightly above the exact count.
    #[test]
    fn long_runs_are_slightly_overcounted() {
        let noise: String = (0..100_000_u64).map(|at| (b'a' + (at * at * 7_919 / 13 % 26) as u8) as char).collect();
        let runs = ["a", " ", "\n", "=", "ab", "日", "é", "/", "0"].map(|unit| unit.repeat(100_000 / unit.len()));
        for run in runs.iter().chain([&noise]) {
            let text = format!("before {run} after");
            let (ours, exact) = (Vocabulary::o200k().count(&text), reference_count(&text));
            assert!(ours >= exact && ours <= exact + exact / 25 + 4, "{ours} for {exact} of {:?}", &run[..3]);
        }
    }

    #[test]
    fn long_run_is_located() {
        let text = format!("some words and {} then words", "x".repeat(MIN_LONG_RUN_BYTES));
        assert_eq!(find_long_run(&text), Some(15..15 + MIN_LONG_RUN_BYTES));
        assert_eq!(find_long_run(&"word ".repeat(10_000)), None);
        assert_eq!(find_long_run(&"折叠旧的部分，".repeat(10_000)), None);
        assert_eq!(find_long_run(&"x".repeat(MIN_LONG_RUN_BYTES - 1)), None);
    }

    /// The text is counted in pieces, and not further once the caller no longer needs the count.
    #[test]
    fn count_of_a_huge_text_stops_between_pieces() {
        let text = "some words of a long text, ".repeat(MAX_PIECE_BYTES / 9);
        let noise: String =
            (0..3 * MAX_PIECE_BYTES as u64).map(|at| (b'a' + (at * at * 7_919 / 13 % 26) as u8) as char).collect();
        for text in [text, noise] {
            let calls = std::cell::Cell::new(0);
            let stop_at = |limit: usize| {
                calls.set(0);
                Vocabulary::o200k().count_until(&text, &|| calls.replace(calls.get() + 1) == limit)
            };
            assert_eq!(stop_at(usize::MAX), Some(Vocabulary::o200k().count(&text)));
            let all = calls.get();
            assert!(all >= 2, "{all}");
            assert_eq!((stop_at(1), calls.get()), (None, 2));
        }
    }

    proptest! {
        /// Counts of pieces add up in all built-in vocabularies, wherever the pieces end.
        #[test]
        fn counts_of_pieces_add_up(
            words in prop::collection::vec(
                prop_oneof![
                    "[a-zA-Z]{1,6}", "[0-9]{1,4}", "[ \t]{1,4}", "[\r\n]{1,3}", "[!-/:-@\\[-`{-~]{1,4}",
                    "[一-龥]{1,4}", "[а-я]{1,4}", "\\PC{1,3}", Just("'s".to_owned()), Just("'LL".to_owned()),
                ],
                0..60,
            ),
            piece_bytes in 1_usize..24,
        ) {
            let text = words.concat();
            for name in ["o200k", "cl100k", "qwen2", "mistral"] {
                let vocabulary = Vocabulary::from_name(name).unwrap();
                let pieces = vocabulary.count_pieces(&text, piece_bytes, &|| false).unwrap();
                prop_assert_eq!(pieces, vocabulary.bpe.count(&text), "{}: {:?}", name, text);
            }
        }

        #[test]
        fn arbitrary_text_equals_reference_implementation(text in any::<String>()) {
            prop_assert_eq!(Vocabulary::o200k().count(&text), reference_count(&text));
        }

        /// Text as in sessions: words, spaces, punctuation, numbers, a few scripts, special tokens.
        #[test]
        fn typical_text_equals_reference_implementation(
            pieces in prop::collection::vec(
                prop_oneof![
                    "[a-zA-Z]{1,12}", "[0-9]{1,9}", "[ \t]{1,40}", "[\r\n]{1,5}", "[!-/:-@\\[-`{-~]{1,8}",
                    "[一-龥]{1,8}", "[а-я]{1,9}", "\\PC{1,5}", Just("<|endoftext|>".to_owned()), Just("'s".to_owned()),
                ],
                0..60,
            )
        ) {
            let text = pieces.concat();
            prop_assert_eq!(Vocabulary::o200k().count(&text), reference_count(&text));
        }
    }
}
