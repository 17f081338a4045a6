//! Search in SQLite: candidates by FTS5.

use std::collections::BTreeSet;

use rusqlite::Connection;

use crate::error::Error;
use crate::namespace::Namespace;
use crate::search::terms::SearchTerms;
use crate::sqlite::rows::find_namespace;
use crate::sqlite::search_index::{IndexSize, index_size, last_indexed_id};
use crate::sqlite::store::SqliteStore;
use crate::store::{SearchCandidates, SearchRows};

/// Number of matches from which a word is common. Its document frequency is then estimated from the age of its newest
/// matches, because counting all of them would dominate the search time.
const COMMON_WORD_DOCUMENTS: usize = 1_000;

impl SearchRows for SqliteStore {
    fn find_candidates(
        &self,
        namespace: &Namespace,
        words: &[SearchTerms],
        limit: usize,
    ) -> Result<Option<SearchCandidates>, Error> {
        self.read_with(|database| {
            let readers = database.readers();
            let Some(namespace) = readers.read(|archive| find_namespace(archive, namespace))? else { return Ok(None) };
            database.index().query(readers, |index| find_candidates(index, namespace, words, limit))
        })
    }
}

fn find_candidates(
    index: &Connection,
    namespace: i64,
    words: &[SearchTerms],
    limit: usize,
) -> Result<Option<SearchCandidates>, Error> {
    let Some(IndexSize { documents, words: indexed_words }) = index_size(index, namespace)? else { return Ok(None) };
    let newest = |expression: &str, limit: usize| {
        let sql = format!(
            "SELECT rowid FROM words_{namespace} WHERE words_{namespace} MATCH ?1 ORDER BY rowid DESC LIMIT ?2"
        );
        let mut statement = index.prepare_cached(&sql)?;
        let ids = statement.query_map((expression, limit as i64), |row| row.get(0))?;
        Ok::<Vec<i64>, Error>(ids.collect::<Result<_, _>>()?)
    };
    let expressions: Vec<String> = words.iter().map(match_expression).collect();
    let matches = expressions.iter().map(|word| newest(word, COMMON_WORD_DOCUMENTS)).collect::<Result<Vec<_>, _>>()?;
    let mut ids: BTreeSet<i64> = match &expressions[..] {
        [_] => matches[0].iter().take(limit).copied().collect(),
        _ => newest(&expressions.join(" AND "), limit)?.into_iter().collect(),
    };
    // If too few originals contain all the words, each word adds its newest matches, so that a rare word counts next
    // to a common one.
    let share = limit.saturating_sub(ids.len()).div_ceil(expressions.len().max(1));
    matches.iter().for_each(|matches| ids.extend(matches.iter().take(share)));
    let newest = last_indexed_id(index)? as f64;
    let count = |matches: &Vec<i64>| match (matches.len(), matches.last()) {
        // Extrapolates the density among the newest documents to all documents.
        (COMMON_WORD_DOCUMENTS, Some(&oldest)) => matches.len() as f64 * newest / (newest - oldest as f64 + 1.0),
        (count, _) => count as f64,
    };
    Ok(Some(SearchCandidates {
        ids: ids.into_iter().rev().collect(),
        matches: matches.iter().map(count).collect(),
        documents,
        words: indexed_words,
    }))
}

/// Returns the FTS5 expression of a word: the whole word, or all its pieces.
fn match_expression(word: &SearchTerms) -> String {
    let quoted = |term: &String| format!("\"{term}\"");
    let pieces: Vec<String> = word.pieces.iter().map(quoted).collect();
    match (&word.whole, pieces.is_empty()) {
        (Some(whole), true) => quoted(whole),
        (Some(whole), false) => format!("({} OR ({}))", quoted(whole), pieces.join(" AND ")),
        (None, _) => format!("({})", pieces.join(" AND ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::query::query_words;

    #[test]
    fn query_text_is_never_syntax() {
        let query = |text| {
            let words = query_words(text);
            words.iter().map(|word| match_expression(&SearchTerms::from(word))).collect::<Vec<_>>().join(" AND ")
        };
        assert_eq!(query("parse NEAR(error"), r#""parse" AND "near" AND "error""#);
        assert_eq!(query(r#"a" OR words MATCH 'x' --"#), r#""or" AND "words" AND "match""#);
        assert_eq!(query("readConfig"), r#"("readconfig" OR ("read" AND "config"))"#);
        assert_eq!(query("* ^ : - + ( ) \" '"), "");
    }
}
