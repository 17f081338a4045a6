//! The words of an original, as a search index stores them.

use std::collections::BTreeSet;

use crate::originals::entry::UnfoldedOriginal;
use crate::search::redact;
use crate::search::tokenize::for_each_word;

/// Indexed bytes of one original. Text after them is found by `unfold --grep`.
pub(crate) const MAX_INDEXED_BYTES: usize = 1024 * 1024;

/// Returns the distinct words and pieces of an original, and its number of words.
pub(crate) fn document_terms(unfolded: &UnfoldedOriginal) -> (BTreeSet<String>, i64) {
    let mut terms = BTreeSet::new();
    let mut count = 0;
    let mut add = |text: &str| {
        for_each_word(&redact::redact(text), |word| {
            count += 1;
            for term in word.terms() {
                if !terms.contains(term) {
                    terms.insert(term.to_owned());
                }
            }
        });
    };
    let text = unfolded.readable();
    add(&String::from_utf8_lossy(&text[..text.len().min(MAX_INDEXED_BYTES)]));
    unfolded.info.tool.as_deref().into_iter().for_each(&mut add);
    unfolded.info.arguments.as_deref().into_iter().for_each(&mut add);
    (terms, count)
}
