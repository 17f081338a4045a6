//! Search in PostgreSQL: candidates by text search vectors of hashed words. An encrypted archive has no index: its newest
//! originals are read and compared.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::originals::reader::OriginalReader;
use crate::postgres::database::{Database, RowScope, WaitLimit};
use crate::postgres::indexer::{hash_term, index_batch, term_key};
use crate::postgres::rows::{TenantKey, read_count};
use crate::postgres::store::PostgresStore;
use crate::search::document::document_terms;
use crate::store::{ArchiveScope, OriginalRows, OriginalSelection, SearchCandidates, SearchRows, SearchTerms};

/// Number of matches from which a word is common; its number of documents is then estimated.
const COMMON_WORD_DOCUMENTS: usize = 1_000;

/// Bytes of the newest originals that a search of an encrypted archive reads.
const MAX_SCANNED_BYTES: i64 = 16 * 1024 * 1024;

/// Matches of an expression, newest first.
const SELECT_MATCHES: &str = "SELECT id FROM foldline.document
    WHERE tenant = $1 AND terms @@ $2::text::tsquery ORDER BY id DESC LIMIT $3";

impl SearchRows for PostgresStore {
    fn find_candidates(
        &self,
        namespace: &Namespace,
        words: &[SearchTerms],
        limit: usize,
    ) -> Result<Option<SearchCandidates>, Error> {
        if !self.database().cipher().is_plaintext() {
            return self.scan_newest(namespace, words, limit);
        }
        let tenant = TenantKey::new(namespace);
        if self.database().check_writable().is_ok() {
            match index_queue(self.database(), tenant) {
                // A later search finds what cannot be read or locked now. If it is the database that does not answer, the
                // next statement fails too.
                Err(error) if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy) => return Err(error),
                _ => {}
            }
        }
        self.match_terms(tenant, words, limit)
    }
}

impl PostgresStore {
    fn match_terms(
        &self,
        tenant: TenantKey,
        words: &[SearchTerms],
        limit: usize,
    ) -> Result<Option<SearchCandidates>, Error> {
        let key = term_key(tenant);
        let expressions: Vec<String> = words.iter().map(|word| match_expression(&key, word)).collect();
        let all = expressions.join(" & ");
        let size = "SELECT s.documents, s.words, (SELECT max(id) FROM foldline.document WHERE tenant = $1)
             FROM foldline.index_size AS s WHERE s.tenant = $1";
        let (common, limit_rows) = (COMMON_WORD_DOCUMENTS as i64, limit as i64);
        type Parameter<'p> = &'p (dyn tokio_postgres::types::ToSql + Sync);
        let each: Vec<[Parameter<'_>; 3]> =
            expressions.iter().map(|word| [&tenant as Parameter<'_>, word, &common]).collect();
        let (of_tenant, of_all): ([Parameter<'_>; 1], [Parameter<'_>; 3]) = ([&tenant], [&tenant, &all, &limit_rows]);
        let mut statements: Vec<(&str, &[Parameter<'_>])> = vec![(size, &of_tenant), (SELECT_MATCHES, &of_all)];
        statements.extend(each.iter().map(|parameters| (SELECT_MATCHES, &parameters[..])));
        let results = self.database().run(RowScope::Tenant(tenant), WaitLimit::Request, &statements)?;
        let Some(size) = results[0].first() else { return Ok(None) };
        let read_ids = |rows: &Vec<tokio_postgres::Row>| rows.iter().map(|row| row.try_get(0)).collect();
        let mut ids: BTreeSet<i64> = results[1].iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let matches: Vec<Vec<i64>> = results[2..].iter().map(read_ids).collect::<Result<_, _>>()?;
        // If too few originals contain all the words, each word adds its newest matches.
        let share = limit.saturating_sub(ids.len()).div_ceil(words.len().max(1));
        matches.iter().for_each(|matches| ids.extend(matches.iter().take(share)));
        let newest = size.try_get::<_, Option<i64>>(2)?.unwrap_or(0) as f64;
        let count = |matches: &Vec<i64>| match (matches.len(), matches.last()) {
            // Extrapolates the density among the newest documents to all documents.
            (COMMON_WORD_DOCUMENTS, Some(&oldest)) => matches.len() as f64 * newest / (newest - oldest as f64 + 1.0),
            (count, _) => count as f64,
        };
        Ok(Some(SearchCandidates {
            ids: ids.into_iter().rev().collect(),
            matches: matches.iter().map(count).collect(),
            documents: read_count(size, 0)?,
            words: read_count(size, 1)?,
        }))
    }

    /// Compares the newest originals of an encrypted archive.
    fn scan_newest(
        &self,
        namespace: &Namespace,
        words: &[SearchTerms],
        limit: usize,
    ) -> Result<Option<SearchCandidates>, Error> {
        let tenant = TenantKey::new(namespace);
        let sql = "SELECT id FROM (
                 SELECT o.id, sum(o.length) OVER (ORDER BY o.id DESC) AS bytes FROM foldline.original AS o
                 WHERE o.tenant = $1 AND o.state = 0) AS newest
             WHERE bytes <= $2 ORDER BY id DESC";
        let scope = RowScope::Tenant(tenant);
        let rows = self.database().query(scope, WaitLimit::Maintenance, sql, &[&tenant, &MAX_SCANNED_BYTES])?;
        let newest: Vec<i64> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let mut found = SearchCandidates { matches: vec![0.0; words.len()], ..SearchCandidates::default() };
        let mut reader = OriginalReader::new(self.database().cipher());
        for ids in newest.chunks(64) {
            self.read(ArchiveScope::Namespace(namespace), OriginalSelection::Ids(ids), &mut |namespace, row, pack| {
                let id = row.id;
                if let Ok(unfolded) = reader.open(namespace, row, pack) {
                    let (terms, count) = document_terms(&unfolded);
                    found.documents += 1;
                    found.words += u64::try_from(count).unwrap_or(0);
                    let has = |word: &SearchTerms| {
                        word.whole.as_ref().is_some_and(|whole| terms.contains(whole))
                            || (!word.pieces.is_empty() && word.pieces.iter().all(|piece| terms.contains(piece)))
                    };
                    let matched: Vec<bool> = words.iter().map(has).collect();
                    found.matches.iter_mut().zip(&matched).for_each(|(count, has)| *count += f64::from(u8::from(*has)));
                    if matched.contains(&true) && found.ids.len() < limit {
                        found.ids.push(id);
                    }
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(Some(found))
    }
}

/// Indexes what a tenant has in the queue.
fn index_queue(database: &Database, tenant: TenantKey) -> Result<(), Error> {
    while index_batch(database, Some(tenant))? {}
    Ok(())
}

/// Returns the expression of a word: the whole word, or all its pieces. Hashed terms have no syntax.
fn match_expression(key: &[u8; 32], word: &SearchTerms) -> String {
    let quoted = |term: &String| format!("'{}'", hash_term(key, term));
    let pieces: Vec<String> = word.pieces.iter().map(quoted).collect();
    match (&word.whole, pieces.is_empty()) {
        (Some(whole), true) => quoted(whole),
        (Some(whole), false) => format!("({} | ({}))", quoted(whole), pieces.join(" & ")),
        (None, _) => format!("({})", pieces.join(" & ")),
    }
}
