//! The search index: hashed words of each original, written by a thread of each replica.
//!
//! Storing an original queues its pack. Replicas share the queue without waiting for each other; a search first indexes
//! what its tenant has in the queue. A pack that cannot be read stays in the queue, and is skipped for a minute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{Error, ErrorKind};
use crate::originals::reader::OriginalReader;
use crate::postgres::database::{Database, RowScope, TransactionSteps, WaitLimit};
use crate::postgres::objects::PackObjects;
use crate::postgres::packs::read_pack;
use crate::postgres::rows::{ORIGINAL_COLUMNS, TenantKey, read_original};
use crate::search::document::document_terms;

/// Packs of one transaction.
const BATCH_PACKS: i64 = 16;

/// Pause after a store call, so that indexing does not compete with a burst of requests.
const IDLE_DELAY: Duration = Duration::from_millis(500);

/// Terms of one original; a text search vector has at most 1 MB.
const MAX_TERMS: usize = 100_000;

/// Bytes of a hashed term.
const TERM_BYTES: usize = 6;

/// The thread that indexes what was stored.
#[derive(Debug)]
pub(crate) struct IndexerThread {
    signal: Option<SyncSender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl IndexerThread {
    pub(crate) fn start(database: Arc<Database>) -> Result<Self, Error> {
        let (signal, signals) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            while signals.recv().is_ok() {
                while matches!(signals.recv_timeout(IDLE_DELAY), Ok(())) && !stopped.load(Ordering::Relaxed) {}
                if let Err(RecvTimeoutError::Disconnected) = signals.recv_timeout(Duration::ZERO) {
                    return;
                }
                // An error appears at the next search.
                while !stopped.load(Ordering::Relaxed) && matches!(index_batch(&database, None), Ok(true)) {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("foldline-index".into())
            .spawn(work)
            .map_err(|error| Error::new(ErrorKind::Io, format!("could not start the index thread: {error}")))?;
        Ok(Self { signal: Some(signal), stop, thread: Some(thread) })
    }

    pub(crate) fn wake(&self) {
        if let Some(signal) = &self.signal {
            // A full channel means that a signal is already pending.
            let _ = signal.try_send(());
        }
    }
}

impl Drop for IndexerThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.signal.take());
        // A batch that waits for the database ends on its own.
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}

/// Returns the term of a word in the index of a tenant.
pub(crate) fn hash_term(key: &[u8; 32], word: &str) -> String {
    URL_SAFE_NO_PAD.encode(&blake3::keyed_hash(key, word.as_bytes()).as_bytes()[..TERM_BYTES])
}

/// Returns the key of a tenant's terms.
pub(crate) fn term_key(tenant: TenantKey) -> [u8; 32] {
    blake3::derive_key("foldline archive 2026-11 terms of a tenant", tenant.as_bytes())
}

/// Indexes some of the queued packs, of one tenant or of all; returns false if there were none. Packs that another
/// replica is indexing are waited for only if a tenant is given, and then only as long as a search can wait. An object that
/// cannot be read while the object store answers ends the batch, and the next one skips its pack.
pub(crate) fn index_batch(database: &Database, tenant: Option<TenantKey>) -> Result<bool, Error> {
    let scope = tenant.map_or(RowScope::Everything, RowScope::Tenant);
    let (condition, locking, limit) = match tenant {
        Some(_) => ("tenant = $1", "", WaitLimit::Search),
        None => ("$1::uuid IS NULL", "SKIP LOCKED", WaitLimit::Maintenance),
    };
    let take = format!(
        "DELETE FROM foldline.unindexed AS u USING (
             SELECT q.tenant, q.pack FROM foldline.unindexed AS q WHERE q.{condition} AND q.pack <> ALL($3) ORDER BY q.tenant, q.pack LIMIT $2
             FOR UPDATE {locking}) AS g
         WHERE u.tenant = g.tenant AND u.pack = g.pack RETURNING u.tenant, u.pack"
    )
    .replace("q.$1", "$1");
    let (skipped, was_paused) =
        (database.unreadable_packs().current(), database.objects().is_none_or(PackObjects::is_paused));
    let mut failed = None;
    let indexed = database.transact(scope, limit, |steps| {
        let taken = steps.query(&take, &[&tenant, &BATCH_PACKS, &skipped])?;
        let mut by_tenant: BTreeMap<[u8; 16], (TenantKey, Vec<i64>)> = BTreeMap::new();
        for row in &taken {
            let tenant: TenantKey = row.try_get(0)?;
            by_tenant.entry(*tenant.as_bytes()).or_insert((tenant, Vec::new())).1.push(row.try_get(1)?);
        }
        for (tenant, packs) in by_tenant.values() {
            index_packs(database, steps, *tenant, packs, &mut failed)?;
        }
        Ok(!taken.is_empty())
    });
    if let (Err(_), Some(pack), Some(objects), false) = (&indexed, failed, database.objects(), was_paused)
        && database.outage().is_none()
        && database.object_folder().is_ok_and(|folder| objects.answers(&folder))
    {
        database.unreadable_packs().add(pack);
    }
    indexed
}

/// Adds the originals of packs to the index. `failed` is set to a pack that cannot be read.
fn index_packs(
    database: &Database,
    steps: &TransactionSteps<'_>,
    tenant: TenantKey,
    packs: &[i64],
    failed: &mut Option<i64>,
) -> Result<(), Error> {
    let select = format!(
        "SELECT {ORIGINAL_COLUMNS} FROM foldline.original AS o
         WHERE o.tenant = $1 AND o.pack = ANY($2) AND o.state = 0 ORDER BY o.pack, o.start"
    );
    let key = term_key(tenant);
    let (mut ids, mut words, mut terms): (Vec<i64>, Vec<i64>, Vec<String>) = Default::default();
    let (mut last, mut reader) = (None, OriginalReader::new(database.cipher()));
    for row in steps.query(&select, &[&tenant, &packs])? {
        let located = read_original(&row)?;
        let id = located.row.id;
        let pack = read_pack(steps, tenant, located.pack, &mut last).inspect_err(|_| *failed = located.pack)?;
        // An unreadable original is not indexed; unfolding it reports the reason.
        let Ok(unfolded) = reader.open(&located.namespace, located.row, pack) else { continue };
        let (distinct, count) = document_terms(&unfolded);
        let hashed: Vec<String> = distinct.iter().take(MAX_TERMS).map(|term| hash_term(&key, term)).collect();
        ids.push(id);
        words.push(count);
        terms.push(hashed.join(" "));
    }
    let insert = "WITH added AS (
             INSERT INTO foldline.document (tenant, id, words, terms)
             SELECT $1, g.id, g.words, array_to_tsvector(string_to_array(g.terms, ' '))
             FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS g (id, words, terms)
             ON CONFLICT DO NOTHING RETURNING words
         )
         INSERT INTO foldline.index_size AS s (tenant, documents, words)
         SELECT $1, count(*), coalesce(sum(words), 0)::bigint FROM added
         ON CONFLICT (tenant) DO UPDATE SET
             documents = s.documents + excluded.documents, words = s.words + excluded.words";
    steps.query(insert, &[&tenant, &ids, &words, &terms])?;
    Ok(())
}

/// Removes originals from the index.
pub(crate) fn remove_documents(steps: &TransactionSteps<'_>, tenants: &[TenantKey], ids: &[i64]) -> Result<(), Error> {
    let sql = "WITH removed AS (
             DELETE FROM foldline.document AS d USING unnest($1::uuid[], $2::bigint[]) AS g (tenant, id)
             WHERE d.tenant = g.tenant AND d.id = g.id RETURNING d.tenant, d.words
         ), sums AS (SELECT r.tenant, count(*) AS documents, sum(r.words)::bigint AS words FROM removed AS r GROUP BY 1)
         UPDATE foldline.index_size AS s
         SET documents = s.documents - sums.documents, words = s.words - sums.words
         FROM sums WHERE s.tenant = sums.tenant";
    steps.query(sql, &[&tenants, &ids])?;
    Ok(())
}
