//! Search over the originals of a tenant: newest and best first.
//!
//! The index finds the originals that contain the words; the newest of those are read and ranked by BM25 with exact
//! frequencies and a small boost for recent ones. Therefore ranking costs the same among a thousand originals and among
//! a million, and rare words are ranked completely.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::audit::AuditAction;
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::originals::entry::{OriginalInfo, UnfoldedOriginal};
use crate::originals::reader::{LastPack, open_original};
use crate::search::document::MAX_INDEXED_BYTES;
use crate::search::snippet::{count_matches, snippet};
use crate::search::terms::SearchTerms;
use crate::search::tokenize::{SearchWord, for_each_word};
use crate::store::{ArchiveScope, OriginalSelection, SearchCandidates};
use crate::tenant::TenantArchive;

/// Number of the newest matching originals that are ranked.
const MAX_RANKED: usize = 64;

/// Indexed bytes after which no further original is ranked, and bytes after which none is read.
const MAX_RANKED_BYTES: usize = 2 * 1024 * 1024;
const MAX_READ_BYTES: usize = 16 * 1024 * 1024;

/// Limits of a query; further words and text are ignored.
const MAX_QUERY_WORDS: usize = 16;
const MAX_QUERY_BYTES: usize = 16 * 1024;

/// The usual constants of BM25: saturation of the term frequency, and weight of the document length.
const BM25_K1: f64 = 1.2;
const BM25_B: f64 = 0.75;

/// The results of a search.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SearchResults {
    /// The requested hits, best first.
    pub hits: Vec<SearchHit>,
    /// Number of hits; if there are many, only the newest, about 64, are ranked.
    pub total: usize,
}

/// An original that was found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SearchHit {
    /// Its metadata.
    pub info: OriginalInfo,
    /// The relevance; only the order is meaningful.
    pub score: f64,
    /// The best matching line, counted from 1.
    pub line: usize,
    /// That line with its neighbors, shortened, secrets redacted.
    pub snippet: String,
}

impl TenantArchive {
    /// Searches originals by words. Identifiers and paths also match by their pieces; nothing in the text is read as
    /// syntax. Originals with all the words come first.
    ///
    /// `skip` and `limit` select a page of the hits.
    ///
    /// # Errors
    ///
    /// If there is nothing to search for, or the archive cannot be read.
    pub fn search(&self, words: &str, skip: usize, limit: usize) -> Result<SearchResults, Error> {
        let query = query_words(words);
        if query.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "nothing to search for: give words of two letters or more, or numbers of three digits or more",
            ));
        }
        self.audit(AuditAction::Search, |entry| entry)?;
        let terms: Vec<SearchTerms> = query.iter().map(SearchTerms::from).collect();
        let candidates = self.store_rows().find_candidates(self.namespace(), &terms, MAX_RANKED)?;
        let Some(candidates) = candidates else { return Ok(SearchResults::default()) };
        let mut ranked = self.rank(&candidates.ids, &RankingContext::new(&query, &candidates))?;
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.id.cmp(&a.id)));
        let total = ranked.len();
        let hits = ranked
            .into_iter()
            .skip(skip)
            .take(limit)
            .map(|hit| {
                let (line, snippet) = snippet(&String::from_utf8_lossy(&hit.original.readable()), &query);
                SearchHit { info: hit.original.info, score: hit.score, line, snippet }
            })
            .collect();
        Ok(SearchResults { hits, total })
    }

    fn rank(&self, ids: &[i64], ranking: &RankingContext<'_>) -> Result<Vec<RankedOriginal>, Error> {
        let (mut ranked, mut bytes, mut read, mut last) = (Vec::new(), 0, 0, LastPack::default());
        let scope = ArchiveScope::Namespace(self.namespace());
        self.store_rows().read(scope, OriginalSelection::Ids(ids), &mut |_, row, pack| {
            let id = row.id;
            // Originals that expired since they were indexed, or are damaged, are not hits.
            let Ok(unfolded) = open_original(self.cipher(), row, pack, &mut last) else {
                return Ok(ControlFlow::Continue(()));
            };
            bytes += unfolded.bytes.len().min(MAX_INDEXED_BYTES);
            read += unfolded.bytes.len();
            let score = ranking.score(&unfolded);
            ranked.push(RankedOriginal { id, score, original: unfolded });
            let is_enough = bytes > MAX_RANKED_BYTES || read > MAX_READ_BYTES;
            Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(ranked)
    }
}

struct RankedOriginal {
    id: i64,
    score: f64,
    original: UnfoldedOriginal,
}

/// Finds the line of a text that matches words best, counted from 1, and returns it with its neighbors, shortened,
/// secrets redacted; none if the text does not have all the words.
pub fn find_lines(text: &str, words: &str) -> Option<(usize, String)> {
    let query = query_words(words);
    let is_match = !query.is_empty() && count_matches(text, &query) == query.len();
    is_match.then(|| snippet(text, &query))
}

/// Returns the distinct words of a query.
pub(crate) fn query_words(text: &str) -> Vec<SearchWord> {
    let mut words: Vec<SearchWord> = Vec::new();
    for_each_word(&text[..text.floor_char_boundary(MAX_QUERY_BYTES)], |word| {
        if words.len() < MAX_QUERY_WORDS && word.terms().next().is_some() && !words.contains(word) {
            words.push(word.clone());
        }
    });
    words
}

struct RankingContext<'q> {
    words: &'q [SearchWord],
    /// The weight of each word; rare words weigh more.
    weights: Vec<f64>,
    /// Average number of words in a document.
    average_words: f64,
    now: i64,
}

impl<'q> RankingContext<'q> {
    fn new(words: &'q [SearchWord], candidates: &SearchCandidates) -> Self {
        let documents = candidates.documents as f64;
        let weight = |count: &f64| (1.0 + (documents - count + 0.5).max(0.5) / (count + 0.5)).ln();
        Self {
            words,
            weights: candidates.matches.iter().map(weight).collect(),
            average_words: candidates.words as f64 / documents.max(1.0),
            now: clock::now_millis(),
        }
    }

    fn score(&self, unfolded: &UnfoldedOriginal) -> f64 {
        let mut counts: BTreeMap<&str, u64> =
            self.words.iter().flat_map(SearchWord::terms).map(|term| (term, 0)).collect();
        let mut length = 0_u64;
        let mut count = |text: &str| {
            for_each_word(text, |word| {
                length += 1;
                for term in word.terms() {
                    if let Some(count) = counts.get_mut(term) {
                        *count += 1;
                    }
                }
            });
        };
        let text = unfolded.readable();
        count(&String::from_utf8_lossy(&text[..text.len().min(MAX_INDEXED_BYTES)]));
        unfolded.info.tool.as_deref().into_iter().for_each(&mut count);
        unfolded.info.arguments.as_deref().into_iter().for_each(&mut count);
        let norm = 1.0 - BM25_B + BM25_B * length as f64 / self.average_words.max(1.0);
        let mut score = 0.0;
        let mut found = 0;
        for (word, weight) in self.words.iter().zip(&self.weights) {
            let whole = word.whole().map_or(0, |whole| counts[whole]);
            let pieces = word.pieces().map(|piece| counts[piece]).min().unwrap_or(0);
            let frequency = whole.max(pieces) as f64;
            found += usize::from(frequency > 0.0);
            score += weight * frequency * (BM25_K1 + 1.0) / (frequency + BM25_K1 * norm);
        }
        // Matching all the words beats matching some. Recency adds up to a quarter to the score, with a half-life of
        // one week.
        let complete = found as f64 / self.words.len() as f64;
        let weeks = (self.now - unfolded.info.kept_at).max(0) as f64 / (7.0 * 24.0 * 3600.0 * 1000.0);
        score * complete * (1.0 + 0.25 * 0.5_f64.powf(weeks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_query_is_truncated() {
        let many: String = (0..100_000).map(|at| format!("word{at} ")).collect();
        assert_eq!(query_words(&many).len(), MAX_QUERY_WORDS);
        assert_eq!(query_words(&"x".repeat(1_000_000)).len(), 0);
    }
}
