//! Words that the style of this repository replaces by plain ones, with a count that may only fall.
//!
//! Plain terms are "is", "appears", "remains", "returns", "reports", "states", "cannot", "next to", "again". Text that a
//! model reads is exempt: changing it changes behavior.

use crate::repository::RepoFile;
use crate::source_tree::SourceTree;
use crate::tidy::prose::{ProseKind, ProseText, prose};

/// A word in all its forms, and how often it may occur in the whole repository.
struct RatchetWord {
    forms: &'static [&'static str],
    allowed: usize,
}

/// Lower a count when the words become fewer; never raise it.
const RATCHET_WORDS: &[RatchetWord] = &[
    RatchetWord { forms: &["stands", "stand", "stood"], allowed: 4 },
    RatchetWord { forms: &["told", "tell", "tells"], allowed: 1 },
    RatchetWord { forms: &["said", "say", "says"], allowed: 15 },
    RatchetWord { forms: &["heard"], allowed: 0 },
    RatchetWord { forms: &["can not"], allowed: 0 },
    RatchetWord { forms: &["beside"], allowed: 0 },
    RatchetWord { forms: &["anew"], allowed: 0 },
    RatchetWord { forms: &["whoever"], allowed: 0 },
    RatchetWord { forms: &["nobody"], allowed: 3 },
    RatchetWord { forms: &["so many"], allowed: 0 },
];

/// Files with text that a model reads, and this file. Only their comments are checked.
const EXEMPT_FILES: &[&str] = &[
    "crates/foldline-server/src/demo/script.rs",
    "crates/foldline-server/src/mcp.rs",
    "crates/foldline-server/src/proxy/unfold_tool/tool.rs",
    "crates/foldline-summarize/src/cascade/record.rs",
    "crates/foldline-summarize/src/cascade/summary_frame.rs",
    "crates/foldline-summarize/src/command.rs",
    "crates/foldline-summarize/src/fallback.rs",
    "crates/foldline-summarize/src/gate.rs",
    "crates/foldline-summarize/src/summarizer/mod.rs",
    "crates/foldline-summarize/src/summarizer/prompts.rs",
    "crates/foldline-summarize/src/summarizer/sub_calls.rs",
    "crates/foldline-summarize/src/text_environment.rs",
    "crates/foldline/src/engine/marker.rs",
    "crates/foldline/src/engine/overlay.rs",
    "crates/foldline/src/engine/passes/support/round_note.rs",
    "crates/foldline/src/engine/summary.rs",
    "crates/foldline/src/engine/unfold_tool.rs",
    "evals/clients/run.py",
    "evals/clients/sdk.py",
    "xtask/src/tidy/words.rs",
];

/// The most places that are listed of a word that occurs too often.
const MAX_LISTED_PLACES: usize = 10;

/// Returns a fault for each word that occurs more often than allowed.
pub(crate) fn check_words(tree: &SourceTree) -> Vec<String> {
    let mut faults: Vec<String> = EXEMPT_FILES
        .iter()
        .filter(|path| !tree.files.iter().any(|file| file.path == **path))
        .map(|path| format!("{path} is exempt from the word list and does not exist"))
        .collect();
    for (word, places) in found_places(tree) {
        if places.len() > word.allowed {
            faults.push(format!(
                "\"{}\" occurs {} times, {} are allowed; for example at {}",
                word.forms[0],
                places.len(),
                word.allowed,
                places[places.len() - places.len().min(MAX_LISTED_PLACES)..].join(", ")
            ));
        }
    }
    faults
}

/// Returns a note for each word whose allowed count can be lowered.
pub(crate) fn loose_words(tree: &SourceTree) -> Vec<String> {
    let found = found_places(tree);
    let loose = found.iter().filter(|(word, places)| places.len() < word.allowed);
    loose
        .map(|(word, places)| {
            format!(
                "\"{}\" occurs {} times: lower the {} in xtask/src/tidy/words.rs",
                word.forms[0],
                places.len(),
                word.allowed
            )
        })
        .collect()
}

/// Returns the first form of each word with the number of its occurrences.
pub(crate) fn word_counts(tree: &SourceTree) -> Vec<(&'static str, usize)> {
    found_places(tree).iter().map(|(word, places)| (word.forms[0], places.len())).collect()
}

/// Counts the words in comments of Rust files, and the lines of these comments.
pub(crate) fn words_in_comments(tree: &SourceTree) -> (usize, usize) {
    let (mut words, mut lines) = (0, 0);
    for file in &tree.files {
        for comment in prose(file).iter().filter(|prose| prose.kind == ProseKind::Comment) {
            words += RATCHET_WORDS.iter().map(|word| count_word(word, comment)).sum::<usize>();
            lines += comment.text.lines().count();
        }
    }
    (words, lines)
}

/// Returns the prose of a file that is checked.
fn checked_prose(file: &RepoFile) -> impl Iterator<Item = ProseText<'_>> {
    let is_exempt = EXEMPT_FILES.contains(&file.path.as_str());
    prose(file).into_iter().filter(move |prose| !is_exempt || prose.kind == ProseKind::Comment)
}

fn found_places(tree: &SourceTree) -> Vec<(&'static RatchetWord, Vec<String>)> {
    let mut found: Vec<(&RatchetWord, Vec<String>)> = RATCHET_WORDS.iter().map(|word| (word, Vec::new())).collect();
    for file in &tree.files {
        for text in checked_prose(file) {
            for (word, places) in &mut found {
                let place = || format!("{}:{}", file.path, text.line);
                places.extend((0..count_word(word, &text)).map(|_| place()));
            }
        }
    }
    found
}

fn count_word(word: &RatchetWord, prose: &ProseText) -> usize {
    word.forms.iter().map(|form| count_form(prose.text, form)).sum()
}

/// Counts a form as a whole word, in lower or upper case; a part of an identifier is not a word.
fn count_form(text: &str, form: &str) -> usize {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let text = text.to_lowercase();
    let whole =
        |at: usize| !is_part(text[..at].chars().next_back()) && !is_part(text[at + form.len()..].chars().next());
    text.match_indices(form).filter(|(at, _)| whole(*at)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source_tree::testing::tree;

    #[test]
    fn whole_words_count_in_any_case() {
        assert_eq!(count_form("Stands, stands_for, understands; it stands.", "stands"), 2);
        assert_eq!(count_form("It can not. It cannot.", "can not"), 1);
    }

    #[test]
    fn words_in_comments_strings_and_documents_count() {
        let tree = tree(&[
            ("a.rs", "//! Nobody.\nfn nobody() { f(\"nobody\") }\n"),
            ("b.md", "nobody and nobody\n"),
            ("c.json", "nobody\n"),
            (EXEMPT_FILES[0], "//! Somewhere.\nconst A: &str = \"nobody\"; // Nobody.\n"),
        ]);
        let places = found_places(&tree).into_iter().find(|(word, _)| word.forms[0] == "nobody").unwrap().1;
        let exempt = format!("{}:2", EXEMPT_FILES[0]);
        assert_eq!(places, ["a.rs:1", "a.rs:2", "b.md:1", "b.md:1", &exempt]);
        assert_eq!(words_in_comments(&tree), (2, 3));
    }

    #[test]
    fn more_words_than_allowed_are_a_fault() {
        let word = &RATCHET_WORDS[RATCHET_WORDS.len() - 1];
        let text = word.forms[0].to_owned() + " \n";
        let at_most = tree(&[("a.md", &text.repeat(word.allowed))]);
        let too_many = tree(&[("a.md", &text.repeat(word.allowed + 1))]);
        let about_words = |tree: &SourceTree| check_words(tree).iter().filter(|fault| fault.contains("occurs")).count();
        assert_eq!((about_words(&at_most), about_words(&too_many)), (0, 1));
    }

    #[test]
    fn missing_exempt_file_is_a_fault() {
        assert_eq!(check_words(&tree(&[])).len(), EXEMPT_FILES.len());
    }
}
