//! Exact counts, by the vocabularies that are built in.
//!
//! A vocabulary is a provider's published table of tokens. None is known for Claude, so nothing here
//! counts Claude exactly, and nothing may say so.
//!
//! Merging is fast on words and slow on a run of a megabyte without a break, which no model ever wrote
//! but a tool may print. Such runs are counted in chunks, with a token more for every cut, since a cut may
//! hide how the text before it would have been merged: a few tokens too many in a run longer than
//! [`LONG_RUN`] bytes, exact everywhere else.

use std::ops::Range;

use super::{Counter, Exactness, Tokens};

/// A model's own vocabulary.
///
/// OpenAI's, Qwen's and Mistral's are built in; more come with the cargo features `vocab-llama3`,
/// `vocab-deepseek`, `vocab-kimi`, `vocab-glm` and `vocab-minimax`.
#[derive(Clone, Copy)]
pub struct Vocabulary {
    name: &'static str,
    bpe: &'static tiktoken::CoreBpe,
}

/// Names in the model table, and how the tokenizer calls them.
const NAMES: &[(&str, &str)] = &[
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
    /// The vocabulary of this name in the model table, if it is built in.
    pub fn named(name: &str) -> Option<Vocabulary> {
        let &(name, encoding) = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(Vocabulary { name, bpe: tiktoken::get_encoding(encoding)? })
    }

    /// OpenAI's since GPT-4o.
    pub fn o200k() -> Vocabulary {
        Self::named("o200k").expect("o200k is always built in")
    }

    /// OpenAI's of GPT-4 and GPT-3.5.
    pub fn cl100k() -> Vocabulary {
        Self::named("cl100k").expect("cl100k is always built in")
    }

    /// Its name in the model table.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl Counter for Vocabulary {
    fn count(&self, text: &str) -> Tokens {
        let mut tokens = 0;
        let mut rest = text;
        while let Some(run) = long_run(rest) {
            tokens += self.bpe.count(&rest[..run.start]) + self.count_run(&rest[run.clone()]);
            rest = &rest[run.end..];
        }
        (tokens + self.bpe.count(rest)) as Tokens
    }

    fn exactness(&self) -> Exactness {
        Exactness::Exact
    }
}

impl Vocabulary {
    /// The tokens of a run without a break, in chunks, cut off from the text around it. Runs mostly
    /// repeat themselves, so a chunk that equals the one before is not counted again.
    fn count_run(&self, run: &str) -> usize {
        let mut tokens = 1;
        let mut before = ("", 0);
        let mut rest = run;
        while !rest.is_empty() {
            let (chunk, behind) = rest.split_at(rest.floor_char_boundary(CHUNK));
            if chunk != before.0 {
                before = (chunk, self.bpe.count(chunk));
            }
            tokens += before.1 + 1;
            rest = behind;
        }
        tokens
    }
}

/// From how many bytes on a run without a break is counted in chunks.
const LONG_RUN: usize = 8 * 1024;
/// Bytes of a chunk: a multiple of the lengths of tokens for repeated signs.
const CHUNK: usize = 4 * 1024;

/// Whether a run of this text is counted in chunks.
pub(super) fn has_long_run(text: &str) -> bool {
    long_run(text).is_some()
}

/// The first run in the text of at least [`LONG_RUN`] bytes of one kind: vocabularies split text wherever
/// the kind changes, so without such a run nothing in it is long.
///
/// Windows are looked at from their ends, where a change is mostly near: nearly nothing of an ordinary text
/// is read.
fn long_run(text: &str) -> Option<Range<usize>> {
    let mut start = 0;
    while text.len() - start >= LONG_RUN {
        let window = &text[start..text.ceil_char_boundary(start + LONG_RUN)];
        let mut ends = window.char_indices().rev();
        let (mut change, last) = ends.next()?;
        let same = ends.take_while(|(_, c)| kind(*c) == kind(last)).last();
        change = same.map_or(change, |(at, _)| at);
        if change == 0 {
            let behind = &text[start + window.len()..];
            let length = behind.find(|c| kind(c) != kind(last)).unwrap_or(behind.len());
            return Some(start..start + window.len() + length);
        }
        start += change;
    }
    None
}

#[derive(PartialEq)]
enum Kind {
    Letter,
    Number,
    Space,
    Sign,
}

fn kind(c: char) -> Kind {
    match c {
        _ if c.is_alphabetic() => Kind::Letter,
        _ if c.is_numeric() => Kind::Number,
        _ if c.is_whitespace() => Kind::Space,
        _ => Kind::Sign,
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

    fn oracle(text: &str) -> Tokens {
        static ORACLE: std::sync::LazyLock<tiktoken_rs::CoreBPE> =
            std::sync::LazyLock::new(|| tiktoken_rs::o200k_base().unwrap());
        ORACLE.encode_ordinary(text).len() as Tokens
    }

    /// Another implementation of the same vocabulary finds the same counts, in all that is odd.
    #[test]
    fn counts_equal_the_oracle() {
        let long = "a".repeat(LONG_RUN - 1);
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
            assert_eq!(Vocabulary::o200k().count(text), oracle(text), "{text:?}");
        }
    }

    #[test]
    fn special_tokens_in_text_are_text() {
        for name in ["o200k", "cl100k", "qwen2", "mistral"] {
            let vocabulary = Vocabulary::named(name).unwrap();
            for special in ["<|endoftext|>", "<|im_end|>", "[INST]", "<tool_call>"] {
                assert!(vocabulary.count(special) > 1, "{name} {special}");
            }
        }
    }

    /// A hundred thousand times the same, or noise without a break: slightly above the exact count.
    #[test]
    fn long_runs_count_a_little_more() {
        let noise: String = (0..100_000_u64).map(|at| (b'a' + (at * at * 7_919 / 13 % 26) as u8) as char).collect();
        let runs = ["a", " ", "\n", "=", "ab", "日", "é", "/", "0"].map(|unit| unit.repeat(100_000 / unit.len()));
        for run in runs.iter().chain([&noise]) {
            let text = format!("before {run} behind");
            let (ours, exact) = (Vocabulary::o200k().count(&text), oracle(&text));
            assert!(ours >= exact && ours <= exact + exact / 25 + 4, "{ours} for {exact} of {:?}", &run[..3]);
        }
    }

    #[test]
    fn a_long_run_is_found_where_it_is() {
        let text = format!("some words and {} then words", "x".repeat(LONG_RUN));
        assert_eq!(long_run(&text), Some(15..15 + LONG_RUN));
        assert_eq!(long_run(&"word ".repeat(10_000)), None);
        assert_eq!(long_run(&"折叠旧的部分，".repeat(10_000)), None);
        assert_eq!(long_run(&"x".repeat(LONG_RUN - 1)), None);
    }

    proptest! {
        #[test]
        fn any_text_counts_as_the_oracle_does(text in any::<String>()) {
            prop_assert_eq!(Vocabulary::o200k().count(&text), oracle(&text));
        }

        /// Text as it is in sessions: words, blanks, signs, numbers, a few scripts, special tokens.
        #[test]
        fn usual_text_counts_as_the_oracle_does(
            pieces in prop::collection::vec(
                prop_oneof![
                    "[a-zA-Z]{1,12}", "[0-9]{1,9}", "[ \t]{1,40}", "[\r\n]{1,5}", "[!-/:-@\\[-`{-~]{1,8}",
                    "[一-龥]{1,8}", "[а-я]{1,9}", "\\PC{1,5}", Just("<|endoftext|>".to_owned()), Just("'s".to_owned()),
                ],
                0..60,
            )
        ) {
            let text = pieces.concat();
            prop_assert_eq!(Vocabulary::o200k().count(&text), oracle(&text));
        }
    }
}
