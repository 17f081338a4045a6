//! Search over all that was folded on a shelf: newest and best first.
//!
//! The index says which originals have the words; the newest of those are read and ranked by BM25
//! with the true frequencies, and the recent are lifted a little over the old. So ranking costs the
//! same among a thousand originals and among a million, and what is rare is ranked completely.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension};

use crate::entry::{Entry, Stored, Unfolded};
use crate::index::{self, INDEXED, Size};
use crate::keep::find_namespace;
use crate::shelf::Shelf;
use crate::snippet::snippet;
use crate::store::LastPack;
use crate::words::{Word, each_word};
use crate::{Error, ErrorKind, clock};

/// The newest originals with the words that are ranked.
const RANKED: usize = 64;

/// The most bytes that are read to rank them.
const RANKED_BYTES: usize = 2 * 1024 * 1024;

/// Words of a query beyond these are left out, as is text behind this many bytes.
const WORDS: usize = 16;
const LONGEST_QUERY: usize = 16 * 1024;

/// A word that so many originals have is common. How common is then estimated from how far back so many
/// of them reach, because counting all of them would take longer than everything else.
const COMMON: usize = 1_000;

/// BM25's usual constants: how soon more of a word stops mattering, and how much length counts.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Found {
    /// The hits asked for, best first.
    pub hits: Vec<Hit>,
    /// How many hits there are; of many, the newest are ranked, about 64.
    pub total: usize,
}

/// An original that was found.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Hit {
    /// What it is.
    pub entry: Entry,
    /// How well it fits; only the order means something.
    pub score: f64,
    /// The line that fits best, counted from 1.
    pub line: usize,
    /// That line with its neighbours, shortened, secrets masked.
    pub snippet: String,
}

impl Shelf {
    /// Finds originals by words that stand in them. Identifiers and paths are found by their pieces;
    /// nothing in the text is read as syntax. Originals with all the words come before others.
    ///
    /// `skip` and `limit` choose a page of the hits.
    pub fn search(&self, words: &str, skip: usize, limit: usize) -> Result<Found, Error> {
        let sought = sought(words);
        if sought.is_empty() {
            return Err(Error::new(
                ErrorKind::BadRequest,
                "nothing to search for: give words of two letters or more, or numbers of three digits or more",
            ));
        }
        let store = self.store();
        let Some(namespace) = store.readers.read(|archive| find_namespace(archive, self.namespace()))? else {
            return Ok(Found::default());
        };
        let candidates = store.index.ask(store, |index| candidates(index, namespace, &sought))?;
        let Some(Candidates { ids, weights, average }) = candidates else { return Ok(Found::default()) };
        let ranking = Ranking { sought: &sought, weights, average, now: clock::now() };
        let mut ranked = store.readers.read(|archive| self.rank(archive, namespace, &ids, &ranking))?;
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.id.cmp(&a.id)));
        let total = ranked.len();
        let hits = ranked
            .into_iter()
            .skip(skip)
            .take(limit)
            .map(|it| {
                let text = String::from_utf8_lossy(&it.unfolded.bytes);
                let (line, snippet) = snippet(&text, &sought);
                Hit { entry: it.unfolded.entry, score: it.score, line, snippet }
            })
            .collect();
        Ok(Found { hits, total })
    }

    fn rank(
        &self,
        archive: &Connection,
        namespace: i64,
        ids: &[i64],
        ranking: &Ranking<'_>,
    ) -> Result<Vec<Ranked>, Error> {
        let mut statement = archive.prepare_cached(&format!(
            "SELECT {} FROM original AS o LEFT JOIN session AS s ON s.id = o.session
             WHERE o.id = ?1 AND o.namespace = ?2 AND o.state = 0",
            Stored::COLUMNS
        ))?;
        let (mut ranked, mut bytes, mut last) = (Vec::new(), 0, LastPack::default());
        for &id in ids {
            // What retention took since it was indexed, and what is damaged, is not a hit.
            let Some(stored) = statement.query_row((id, namespace), Stored::read).optional()? else { continue };
            let Ok(unfolded) = self.store().fetch(archive, self.namespace(), stored, &mut last) else { continue };
            bytes += unfolded.bytes.len().min(INDEXED);
            let score = ranking.score(&unfolded);
            ranked.push(Ranked { id, score, unfolded });
            if bytes > RANKED_BYTES {
                break;
            }
        }
        Ok(ranked)
    }
}

struct Ranked {
    id: i64,
    score: f64,
    unfolded: Unfolded,
}

/// The distinct words of a query.
fn sought(text: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    each_word(&text[..text.floor_char_boundary(LONGEST_QUERY)], |word| {
        if words.len() < WORDS && word.terms().next().is_some() && !words.contains(word) {
            words.push(word.clone());
        }
    });
    words
}

/// The word as the index is asked for it: as a whole, or all its pieces.
fn expression(word: &Word) -> String {
    let quoted = |term: &str| format!("\"{term}\"");
    let pieces: Vec<String> = word.pieces().map(quoted).collect();
    match (word.whole(), pieces.is_empty()) {
        (Some(whole), true) => quoted(whole),
        (Some(whole), false) => format!("({} OR ({}))", quoted(whole), pieces.join(" AND ")),
        (None, _) => format!("({})", pieces.join(" AND ")),
    }
}

struct Candidates {
    /// Newest first.
    ids: Vec<i64>,
    /// The weight of each word: the rarer, the heavier.
    weights: Vec<f64>,
    /// Words in an average document.
    average: f64,
}

fn candidates(index: &Connection, namespace: i64, sought: &[Word]) -> Result<Option<Candidates>, Error> {
    let Some(Size { documents, words }) = index::size(index, namespace)? else { return Ok(None) };
    let newest = |expression: &str, limit: usize| {
        let sql = format!(
            "SELECT rowid FROM words_{namespace} WHERE words_{namespace} MATCH ?1 ORDER BY rowid DESC LIMIT ?2"
        );
        let mut statement = index.prepare_cached(&sql)?;
        let ids = statement.query_map((expression, limit as i64), |row| row.get(0))?;
        Ok::<Vec<i64>, Error>(ids.collect::<Result<_, _>>()?)
    };
    let expressions: Vec<String> = sought.iter().map(expression).collect();
    let having = expressions.iter().map(|it| newest(it, COMMON)).collect::<Result<Vec<_>, _>>()?;
    let mut ids: BTreeSet<i64> = match &expressions[..] {
        [_] => having[0].iter().take(RANKED).copied().collect(),
        _ => newest(&expressions.join(" AND "), RANKED)?.into_iter().collect(),
    };
    // Where not enough have all the words, each word adds the newest that have it, so that a rare word is
    // heard beside a common one.
    let share = RANKED.saturating_sub(ids.len()).div_ceil(expressions.len());
    having.iter().for_each(|having| ids.extend(having.iter().take(share)));
    let (documents, newest) = (documents as f64, index::seen(index)? as f64);
    let weight = |having: &Vec<i64>| {
        let mut count = having.len() as f64;
        if let (COMMON, Some(&oldest)) = (having.len(), having.last()) {
            // As many as these stand among the newest documents; among all there are so many more.
            count *= newest / (newest - oldest as f64 + 1.0);
        }
        (1.0 + (documents - count + 0.5).max(0.5) / (count + 0.5)).ln()
    };
    let weights = having.iter().map(weight).collect();
    Ok(Some(Candidates { ids: ids.into_iter().rev().collect(), weights, average: words as f64 / documents.max(1.0) }))
}

struct Ranking<'q> {
    sought: &'q [Word],
    weights: Vec<f64>,
    average: f64,
    now: i64,
}

impl Ranking<'_> {
    fn score(&self, unfolded: &Unfolded) -> f64 {
        let mut counts: BTreeMap<&str, u64> = self.sought.iter().flat_map(Word::terms).map(|term| (term, 0)).collect();
        let mut length = 0_u64;
        let mut count = |text: &str| {
            each_word(text, |word| {
                length += 1;
                for term in word.terms() {
                    if let Some(count) = counts.get_mut(term) {
                        *count += 1;
                    }
                }
            });
        };
        count(&String::from_utf8_lossy(&unfolded.bytes[..unfolded.bytes.len().min(INDEXED)]));
        unfolded.entry.tool.as_deref().into_iter().for_each(&mut count);
        unfolded.entry.arguments.as_deref().into_iter().for_each(&mut count);
        let norm = 1.0 - LENGTH + LENGTH * length as f64 / self.average.max(1.0);
        let mut score = 0.0;
        let mut found = 0;
        for (word, weight) in self.sought.iter().zip(&self.weights) {
            let whole = word.whole().map_or(0, |whole| counts[whole]);
            let pieces = word.pieces().map(|piece| counts[piece]).min().unwrap_or(0);
            let frequency = whole.max(pieces) as f64;
            found += usize::from(frequency > 0.0);
            score += weight * frequency * (SATURATION + 1.0) / (frequency + SATURATION * norm);
        }
        // All the words beat some of them, and of two that fit alike the newer one wins: what is new
        // counts up to a quarter more, and half of that is gone after a week.
        let complete = found as f64 / self.sought.len() as f64;
        let weeks = (self.now - unfolded.entry.kept_at).max(0) as f64 / (7.0 * 24.0 * 3600.0 * 1000.0);
        score * complete * (1.0 + 0.25 * 0.5_f64.powf(weeks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_words_and_never_syntax() {
        let query = |text| sought(text).iter().map(expression).collect::<Vec<_>>().join(" AND ");
        assert_eq!(query("parse NEAR(error"), r#""parse" AND "near" AND "error""#);
        assert_eq!(query(r#"a" OR words MATCH 'x' --"#), r#""or" AND "words" AND "match""#);
        assert_eq!(query("readConfig"), r#"("readconfig" OR ("read" AND "config"))"#);
        assert_eq!(query("* ^ : - + ( ) \" '"), "");
    }

    #[test]
    fn a_long_query_is_cut() {
        let many: String = (0..100_000).map(|at| format!("word{at} ")).collect();
        assert_eq!(sought(&many).len(), WORDS);
        assert_eq!(sought(&"x".repeat(1_000_000)).len(), 0);
    }
}
