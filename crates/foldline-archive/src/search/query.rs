//! Search over all that was folded on a shelf: newest and best first.
//!
//! The index says which originals have the words; the newest of those are read and ranked by BM25
//! with the true frequencies, and the recent are lifted a little over the old. So ranking costs the
//! same among a thousand originals and among a million, and what is rare is ranked completely.

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

/// The newest originals with the words that are ranked.
const MAX_RANKED: usize = 64;

/// The most bytes that are read to rank them.
const MAX_RANKED_BYTES: usize = 2 * 1024 * 1024;

/// Words of a query beyond these are left out, as is text behind this many bytes.
const MAX_QUERY_WORDS: usize = 16;
const MAX_QUERY_BYTES: usize = 16 * 1024;

/// A word that so many originals have is common. How common is then estimated from how far back so many
/// of them reach, because counting all of them would take longer than everything else.
const COMMON_WORD_DOCUMENTS: usize = 1_000;

/// BM25's usual constants: how soon more of a word stops mattering, and how much length counts.
const BM25_K1: f64 = 1.2;
const BM25_B: f64 = 0.75;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SearchResults {
    /// The hits asked for, best first.
    pub hits: Vec<SearchHit>,
    /// How many hits there are; of many, the newest are ranked, about 64.
    pub total: usize,
}

/// An original that was found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SearchHit {
    /// What it is.
    pub info: OriginalInfo,
    /// How well it fits; only the order means something.
    pub score: f64,
    /// The line that fits best, counted from 1.
    pub line: usize,
    /// That line with its neighbours, shortened, secrets masked.
    pub snippet: String,
}

impl TenantArchive {
    /// Finds originals by words that stand in them. Identifiers and paths are found by their pieces;
    /// nothing in the text is read as syntax. Originals with all the words come before others.
    ///
    /// `skip` and `limit` choose a page of the hits.
    pub fn search(&self, words: &str, skip: usize, limit: usize) -> Result<SearchResults, Error> {
        let sought = query_words(words);
        if sought.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "nothing to search for: give words of two letters or more, or numbers of three digits or more",
            ));
        }
        let store = self.backend();
        let Some(namespace) = store.readers.read(|archive| find_namespace(archive, self.namespace()))? else {
            return Ok(SearchResults::default());
        };
        let candidates = store.index.query(store, |index| find_candidates(index, namespace, &sought))?;
        let Some(SearchCandidates { ids, weights, average_words: average }) = candidates else {
            return Ok(SearchResults::default());
        };
        let ranking = RankingContext { words: &sought, weights, average_words: average, now: clock::now_millis() };
        let mut ranked = store.readers.read(|archive| self.rank(archive, namespace, &ids, &ranking))?;
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.id.cmp(&a.id)));
        let total = ranked.len();
        let hits = ranked
            .into_iter()
            .skip(skip)
            .take(limit)
            .map(|it| {
                let text = String::from_utf8_lossy(&it.original.bytes);
                let (line, snippet) = snippet(&text, &sought);
                SearchHit { info: it.original.info, score: it.score, line, snippet }
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
            // What retention took since it was indexed, and what is damaged, is not a hit.
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

/// The distinct words of a query.
fn query_words(text: &str) -> Vec<SearchWord> {
    let mut words: Vec<SearchWord> = Vec::new();
    for_each_word(&text[..text.floor_char_boundary(MAX_QUERY_BYTES)], |word| {
        if words.len() < MAX_QUERY_WORDS && word.terms().next().is_some() && !words.contains(word) {
            words.push(word.clone());
        }
    });
    words
}

/// The word as the index is asked for it: as a whole, or all its pieces.
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
    /// The weight of each word: the rarer, the heavier.
    weights: Vec<f64>,
    /// Words in an average document.
    average_words: f64,
}

fn find_candidates(
    index: &Connection,
    namespace: i64,
    sought: &[SearchWord],
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
    let expressions: Vec<String> = sought.iter().map(match_expression).collect();
    let having = expressions.iter().map(|it| newest(it, COMMON_WORD_DOCUMENTS)).collect::<Result<Vec<_>, _>>()?;
    let mut ids: BTreeSet<i64> = match &expressions[..] {
        [_] => having[0].iter().take(MAX_RANKED).copied().collect(),
        _ => newest(&expressions.join(" AND "), MAX_RANKED)?.into_iter().collect(),
    };
    // Where not enough have all the words, each word adds the newest that have it, so that a rare word is
    // heard beside a common one.
    let share = MAX_RANKED.saturating_sub(ids.len()).div_ceil(expressions.len());
    having.iter().for_each(|having| ids.extend(having.iter().take(share)));
    let (documents, newest) = (documents as f64, index::last_indexed_id(index)? as f64);
    let weight = |having: &Vec<i64>| {
        let mut count = having.len() as f64;
        if let (COMMON_WORD_DOCUMENTS, Some(&oldest)) = (having.len(), having.last()) {
            // As many as these stand among the newest documents; among all there are so many more.
            count *= newest / (newest - oldest as f64 + 1.0);
        }
        (1.0 + (documents - count + 0.5).max(0.5) / (count + 0.5)).ln()
    };
    let weights = having.iter().map(weight).collect();
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
        // All the words beat some of them, and of two that fit alike the newer one wins: what is new
        // counts up to a quarter more, and half of that is gone after a week.
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
