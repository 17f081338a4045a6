//! Search over the originals of a tenant: newest and best first.
//!
//! The index finds the originals that contain the words; the newest of those are read and ranked by BM25 with exact
//! frequencies and a small boost for recent ones. Therefore ranking costs the same among a thousand originals and among
//! a million, and rare words are ranked completely.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension};

use crate::originals::entry::{OriginalInfo, OriginalRow, UnfoldedOriginal};
use crate::originals::write::find_namespace;
use crate::search::index;
use crate::search::index::{IndexSize, MAX_INDEXED_BYTES};
use crate::search::snippet::snippet;
use crate::search::tokenize::{SearchWord, for_each_word};
use crate::sqlite::store::LastPack;
use crate::tenant::TenantArchive;
use crate::{Error, ErrorKind, clock};

/// Number of the newest matching originals that are ranked.
const MAX_RANKED: usize = 64;

/// Bytes that are read at most for ranking.
const MAX_RANKED_BYTES: usize = 2 * 1024 * 1024;

/// Limits of a query; further words and text are ignored.
const MAX_QUERY_WORDS: usize = 16;
const MAX_QUERY_BYTES: usize = 16 * 1024;

/// Number of matches from which a word is common. Its document frequency is then estimated from the age of its newest
/// matches, because counting all of them would dominate the search time.
const COMMON_WORD_DOCUMENTS: usize = 1_000;

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
    pub fn search(&self, words: &str, skip: usize, limit: usize) -> Result<SearchResults, Error> {
        let query = query_words(words);
        if query.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "nothing to search for: give words of two letters or more, or numbers of three digits or more",
            ));
        }
        let store = self.backend();
        let Some(namespace) = store.readers.read(|archive| find_namespace(archive, self.namespace()))? else {
            return Ok(SearchResults::default());
        };
        let candidates = store.index.query(store, |index| find_candidates(index, namespace, &query))?;
        let Some(SearchCandidates { ids, weights, average_words }) = candidates else {
            return Ok(SearchResults::default());
        };
        let ranking = RankingContext { words: &query, weights, average_words, now: clock::now_millis() };
        let mut ranked = store.readers.read(|archive| self.rank(archive, namespace, &ids, &ranking))?;
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.id.cmp(&a.id)));
        let total = ranked.len();
        let hits = ranked
            .into_iter()
            .skip(skip)
            .take(limit)
            .map(|hit| {
                let text = String::from_utf8_lossy(&hit.original.bytes);
                let (line, snippet) = snippet(&text, &query);
                SearchHit { info: hit.original.info, score: hit.score, line, snippet }
            })
            .collect();
        Ok(SearchResults { hits, total })
    }

    fn rank(
        &self,
        archive: &Connection,
        namespace: i64,
        ids: &[i64],
        ranking: &RankingContext<'_>,
    ) -> Result<Vec<RankedOriginal>, Error> {
        let mut statement = archive.prepare_cached(&format!(
            "SELECT {} FROM original AS o LEFT JOIN session AS s ON s.id = o.session
             WHERE o.id = ?1 AND o.namespace = ?2 AND o.state = 0",
            OriginalRow::COLUMNS
        ))?;
        let (mut ranked, mut bytes, mut last) = (Vec::new(), 0, LastPack::default());
        for &id in ids {
            // Originals that expired since they were indexed, or are damaged, are not hits.
            let Some(stored) = statement.query_row((id, namespace), OriginalRow::from_row).optional()? else {
                continue;
            };
            let Ok(unfolded) = self.backend().fetch(archive, self.namespace(), stored, &mut last) else { continue };
            bytes += unfolded.bytes.len().min(MAX_INDEXED_BYTES);
            let score = ranking.score(&unfolded);
            ranked.push(RankedOriginal { id, score, original: unfolded });
            if bytes > MAX_RANKED_BYTES {
                break;
            }
        }
        Ok(ranked)
    }
}

struct RankedOriginal {
    id: i64,
    score: f64,
    original: UnfoldedOriginal,
}

/// Returns the distinct words of a query.
fn query_words(text: &str) -> Vec<SearchWord> {
    let mut words: Vec<SearchWord> = Vec::new();
    for_each_word(&text[..text.floor_char_boundary(MAX_QUERY_BYTES)], |word| {
        if words.len() < MAX_QUERY_WORDS && word.terms().next().is_some() && !words.contains(word) {
            words.push(word.clone());
        }
    });
    words
}

/// Returns the FTS5 expression of a word: the whole word, or all its pieces.
fn match_expression(word: &SearchWord) -> String {
    let quoted = |term: &str| format!("\"{term}\"");
    let pieces: Vec<String> = word.pieces().map(quoted).collect();
    match (word.whole(), pieces.is_empty()) {
        (Some(whole), true) => quoted(whole),
        (Some(whole), false) => format!("({} OR ({}))", quoted(whole), pieces.join(" AND ")),
        (None, _) => format!("({})", pieces.join(" AND ")),
    }
}

struct SearchCandidates {
    /// Newest first.
    ids: Vec<i64>,
    /// The weight of each word; rare words weigh more.
    weights: Vec<f64>,
    /// Average number of words in a document.
    average_words: f64,
}

fn find_candidates(
    index: &Connection,
    namespace: i64,
    query: &[SearchWord],
) -> Result<Option<SearchCandidates>, Error> {
    let Some(IndexSize { documents, words }) = index::index_size(index, namespace)? else { return Ok(None) };
    let newest = |expression: &str, limit: usize| {
        let sql = format!(
            "SELECT rowid FROM words_{namespace} WHERE words_{namespace} MATCH ?1 ORDER BY rowid DESC LIMIT ?2"
        );
        let mut statement = index.prepare_cached(&sql)?;
        let ids = statement.query_map((expression, limit as i64), |row| row.get(0))?;
        Ok::<Vec<i64>, Error>(ids.collect::<Result<_, _>>()?)
    };
    let expressions: Vec<String> = query.iter().map(match_expression).collect();
    let matches = expressions.iter().map(|word| newest(word, COMMON_WORD_DOCUMENTS)).collect::<Result<Vec<_>, _>>()?;
    let mut ids: BTreeSet<i64> = match &expressions[..] {
        [_] => matches[0].iter().take(MAX_RANKED).copied().collect(),
        _ => newest(&expressions.join(" AND "), MAX_RANKED)?.into_iter().collect(),
    };
    // If too few originals contain all the words, each word adds its newest matches, so that a rare word counts next
    // to a common one.
    let share = MAX_RANKED.saturating_sub(ids.len()).div_ceil(expressions.len());
    matches.iter().for_each(|matches| ids.extend(matches.iter().take(share)));
    let (documents, newest) = (documents as f64, index::last_indexed_id(index)? as f64);
    let weight = |matches: &Vec<i64>| {
        let mut count = matches.len() as f64;
        if let (COMMON_WORD_DOCUMENTS, Some(&oldest)) = (matches.len(), matches.last()) {
            // Extrapolates the density among the newest documents to all documents.
            count *= newest / (newest - oldest as f64 + 1.0);
        }
        (1.0 + (documents - count + 0.5).max(0.5) / (count + 0.5)).ln()
    };
    let weights = matches.iter().map(weight).collect();
    Ok(Some(SearchCandidates {
        ids: ids.into_iter().rev().collect(),
        weights,
        average_words: words as f64 / documents.max(1.0),
    }))
}

struct RankingContext<'q> {
    words: &'q [SearchWord],
    weights: Vec<f64>,
    average_words: f64,
    now: i64,
}

impl RankingContext<'_> {
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
        count(&String::from_utf8_lossy(&unfolded.bytes[..unfolded.bytes.len().min(MAX_INDEXED_BYTES)]));
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
    fn query_text_is_never_syntax() {
        let query = |text| query_words(text).iter().map(match_expression).collect::<Vec<_>>().join(" AND ");
        assert_eq!(query("parse NEAR(error"), r#""parse" AND "near" AND "error""#);
        assert_eq!(query(r#"a" OR words MATCH 'x' --"#), r#""or" AND "words" AND "match""#);
        assert_eq!(query("readConfig"), r#"("readconfig" OR ("read" AND "config"))"#);
        assert_eq!(query("* ^ : - + ( ) \" '"), "");
    }

    #[test]
    fn long_query_is_truncated() {
        let many: String = (0..100_000).map(|at| format!("word{at} ")).collect();
        assert_eq!(query_words(&many).len(), MAX_QUERY_WORDS);
        assert_eq!(query_words(&"x".repeat(1_000_000)).len(), 0);
    }
}
