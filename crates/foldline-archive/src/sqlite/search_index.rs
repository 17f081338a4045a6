//! The search index: the words of each original.
//!
//! It is a separate file next to the archive, because it is derived: writing it never delays a store call, losing it
//! loses nothing, and a damaged or foreign index is deleted and rebuilt. It lags behind the archive and is brought up
//! to date before every search.
//!
//! Every namespace has its own table, so that not even word frequencies disclose the texts of another. The index of an
//! encrypted archive exists only in memory, over its newest originals: words on disk would defeat the encryption.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::originals::entry::UnfoldedOriginal;
use crate::originals::reader::OriginalReader;
use crate::permissions;
use crate::search::document::{MAX_INDEXED_BYTES, document_terms};
use crate::sqlite::connection::busy_handler;
use crate::sqlite::readers::ReaderPool;
use crate::sqlite::rows::{LocatedRow, PackCache, find_namespace, get_count};
use crate::sqlite::sync;
use crate::sqlite::work_progress::WorkProgress;
use crate::store::OriginalState;

/// Version of the words and tables; an index of another version is rebuilt.
const INDEX_VERSION: i64 = 1;

/// Originals indexed per transaction, and the bytes after which a batch ends.
const BATCH_DOCUMENTS: usize = 2048;
const BATCH_BYTES: usize = 1024 * 1024;

/// Bytes of the newest originals that an in-memory index covers.
const MAX_MEMORY_INDEX_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct SearchIndex {
    path: PathBuf,
    /// None until the first search.
    connection: Mutex<Option<Connection>>,
}

/// Size of a namespace's part of the index, for ranking.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IndexSize {
    pub(crate) documents: u64,
    pub(crate) words: u64,
}

impl SearchIndex {
    pub(crate) fn for_archive(archive: &Path) -> Self {
        Self { path: permissions::sibling_path(archive, ".index"), connection: Mutex::new(None) }
    }

    /// Runs a query on the index after bringing it up to date. If another process is updating it, the query runs on
    /// the current state.
    pub(crate) fn query<T>(
        &self,
        readers: &ReaderPool,
        query: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut guard = self.open(readers)?;
        let connection = guard.as_mut().expect("the index was opened above");
        // Originals stored after this point are not waited for, so that this ends next to a busy proxy.
        let newest = readers.read(newest_id)?;
        while last_indexed_id(connection)? < newest {
            match self.index_batch(readers, connection) {
                Ok(WorkProgress::Advanced) => {}
                Ok(WorkProgress::Idle) => break,
                Err(error) if *error.kind() == ErrorKind::Busy => break,
                Err(error) => return Err(error),
            }
        }
        query(connection)
    }

    /// Indexes one batch of originals, for the maintenance thread.
    pub(crate) fn catch_up(&self, readers: &ReaderPool) -> Result<WorkProgress, Error> {
        let mut guard = self.open(readers)?;
        let connection = guard.as_mut().expect("the index was opened above");
        if last_indexed_id(connection)? >= readers.read(newest_id)? {
            return Ok(WorkProgress::Idle);
        }
        self.index_batch(readers, connection)
    }

    /// Removes expired originals from the index.
    pub(crate) fn remove(&self, readers: &ReaderPool, expired: &[(i64, i64)]) -> Result<(), Error> {
        let mut guard = self.open(readers)?;
        let connection = guard.as_mut().expect("the index was opened above");
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let tables = indexed_namespaces(&transaction)?;
        for (namespace, id) in expired.iter().filter(|(namespace, _)| tables.contains(namespace)) {
            transaction.prepare_cached(&format!("DELETE FROM words_{namespace} WHERE rowid = ?1"))?.execute([id])?;
        }
        Ok(transaction.commit()?)
    }

    /// Erases the words of removed originals of a namespace from the file, also of those that an earlier call could not
    /// erase. The index is written again as a whole: a removed document only hides its words.
    pub(crate) fn erase_removed(&self, readers: &ReaderPool, namespace: &Namespace) -> Result<(), Error> {
        let mut guard = self.open(readers)?;
        let connection = guard.as_mut().expect("the index was opened above");
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let namespace = readers.read(|archive| find_namespace(archive, namespace))?;
        if let Some(namespace) = namespace.filter(|namespace| is_indexed(&transaction, *namespace)) {
            let available = readers.read(|archive| available_ids(archive, namespace))?;
            let table = format!("words_{namespace}");
            if available.is_empty() {
                transaction
                    .execute_batch(&format!("DROP TABLE {table}; DELETE FROM size WHERE namespace = {namespace}"))?;
            } else {
                let indexed: Vec<i64> = transaction
                    .prepare(&format!("SELECT id FROM {table}_docsize"))?
                    .query_map((), |row| row.get(0))?
                    .collect::<Result<_, _>>()?;
                let mut delete = transaction.prepare(&format!("DELETE FROM {table} WHERE rowid = ?1"))?;
                for id in indexed.iter().filter(|id| !available.contains(id)) {
                    delete.execute([id])?;
                }
                transaction.execute(&format!("INSERT INTO {table} ({table}) VALUES ('optimize')"), ())?;
            }
        }
        forget_last_indexed(&transaction, readers)?;
        transaction.commit()?;
        if readers.cipher().is_plaintext() {
            connection.execute_batch("VACUUM")?;
            sync::truncate_wal(connection)?;
        }
        Ok(())
    }

    /// Closes the index; the next search opens it again.
    pub(crate) fn close(&self) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn open(&self, readers: &ReaderPool) -> Result<MutexGuard<'_, Option<Connection>>, Error> {
        let mut guard = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            *guard = Some(if readers.cipher().is_plaintext() {
                self.open_on_disk(readers)?
            } else {
                open_in_memory(readers)?
            });
        }
        Ok(guard)
    }

    fn open_on_disk(&self, readers: &ReaderPool) -> Result<Connection, Error> {
        let identity = readers.identity()?;
        let opened = self.open_file().and_then(|mut connection| {
            if belongs_to(&connection, &identity)? && readers.read(|archive| matches_archive(&connection, archive))? {
                return Ok(connection);
            }
            drop_tables(&mut connection)?;
            create_tables(&mut connection, &identity, 0)?;
            Ok(connection)
        });
        match opened {
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotAnArchive) => {
                for suffix in ["", "-wal", "-shm"] {
                    let path = permissions::sibling_path(&self.path, suffix);
                    match std::fs::remove_file(&path) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                            return Err(Error::io("remove the damaged search index", &path, &error));
                        }
                        _ => {}
                    }
                }
                let mut connection = self.open_file()?;
                create_tables(&mut connection, &identity, 0)?;
                Ok(connection)
            }
            // If nothing can be written, the index is built in memory.
            Err(error) if matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::Io | ErrorKind::DiskFull) => {
                open_in_memory(readers)
            }
            opened => opened,
        }
    }

    fn open_file(&self) -> Result<Connection, Error> {
        permissions::create_private(&self.path)?;
        let mut connection = Connection::open(&self.path)?;
        connection.busy_handler(Some(busy_handler))?;
        connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
        // Anything that a crash removes from the index is indexed again.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
        Ok(connection)
    }

    /// Indexes the next batch of originals.
    fn index_batch(&self, readers: &ReaderPool, connection: &mut Connection) -> Result<WorkProgress, Error> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have indexed them while this one waited.
        let from = last_indexed_id(&transaction)?;
        let DocumentBatch { documents, last_id, last_handle } =
            readers.read(|archive| read_batch(readers, archive, from))?;
        let tables = indexed_namespaces(&transaction)?;
        for document in &documents {
            let namespace = document.namespace;
            let (terms, words) = document_terms(&document.original);
            let terms = terms.into_iter().collect::<Vec<_>>().join(" ");
            if !tables.contains(&namespace) {
                transaction.execute_batch(&table_sql(namespace))?;
            }
            transaction
                .prepare_cached(&format!("INSERT INTO words_{namespace} (rowid, words) VALUES (?1, ?2)"))?
                .execute((document.id, terms))?;
            transaction
                .prepare_cached(
                    "INSERT INTO size (namespace, documents, words) VALUES (?1, 1, ?2)
                     ON CONFLICT (namespace) DO UPDATE SET documents = documents + 1, words = words + excluded.words",
                )?
                .execute((namespace, words))?;
        }
        if last_id == from {
            return Ok(WorkProgress::Idle);
        }
        transaction.execute("UPDATE about SET seen = ?1, seen_handle = ?2", (last_id, last_handle))?;
        transaction.commit()?;
        Ok(WorkProgress::Advanced)
    }
}

/// Returns the size of a namespace's part, or `None` if it has none.
pub(crate) fn index_size(connection: &Connection, namespace: i64) -> Result<Option<IndexSize>, Error> {
    Ok(connection
        .prepare_cached("SELECT documents, words FROM size WHERE namespace = ?1")?
        .query_row([namespace], |row| Ok(IndexSize { documents: get_count(row, 0)?, words: get_count(row, 1)? }))
        .optional()?)
}

fn create_tables(connection: &mut Connection, identity: &[u8], seen: i64) -> Result<(), Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS about (
             identity BLOB NOT NULL, version INTEGER NOT NULL, seen INTEGER NOT NULL, seen_handle TEXT NOT NULL);
         CREATE TABLE IF NOT EXISTS size (
             namespace INTEGER PRIMARY KEY, documents INTEGER NOT NULL, words INTEGER NOT NULL);",
    )?;
    let rows: i64 = transaction.query_row("SELECT count(*) FROM about", (), |row| row.get(0))?;
    if rows == 0 {
        transaction.execute("INSERT INTO about VALUES (?1, ?2, ?3, '')", (identity, INDEX_VERSION, seen))?;
    }
    Ok(transaction.commit()?)
}

/// Returns the SQL of a namespace's table. It stores only which words a document has, in the smallest form of FTS5;
/// frequencies are counted again in the few documents that are ranked. See docs/decisions.
fn table_sql(namespace: i64) -> String {
    format!(
        "CREATE VIRTUAL TABLE IF NOT EXISTS words_{namespace} USING fts5 (
             words, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii')"
    )
}

fn indexed_namespaces(connection: &Connection) -> Result<BTreeSet<i64>, Error> {
    let mut statement = connection.prepare_cached("SELECT namespace FROM size")?;
    Ok(statement.query_map((), |row| row.get(0))?.collect::<Result<_, _>>()?)
}

fn is_indexed(connection: &Connection, namespace: i64) -> bool {
    indexed_namespaces(connection).is_ok_and(|namespaces| namespaces.contains(&namespace))
}

/// Returns the ids of the originals of a namespace that can be unfolded.
fn available_ids(archive: &Connection, namespace: i64) -> Result<HashSet<i64>, Error> {
    let mut statement = archive.prepare_cached("SELECT id FROM original WHERE namespace = ?1 AND state = 0")?;
    Ok(statement.query_map([namespace], |row| row.get(0))?.collect::<Result<_, _>>()?)
}

/// Names another original as the last indexed one if it was removed: the newest that is left before it.
fn forget_last_indexed(connection: &Connection, readers: &ReaderPool) -> Result<(), Error> {
    let seen = last_indexed_id(connection)?;
    let left: Option<(i64, String)> = readers.read(|archive| {
        let sql = "SELECT id, handle FROM original WHERE id <= ?1 ORDER BY id DESC LIMIT 1";
        Ok(archive.query_row(sql, [seen], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
    })?;
    let (id, handle) = left.unwrap_or_default();
    connection.execute("UPDATE about SET seen = ?1, seen_handle = ?2", (id, handle))?;
    Ok(())
}

fn belongs_to(connection: &Connection, identity: &[u8]) -> Result<bool, Error> {
    let has_table: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'about'", (), |row| row.get(0))?;
    if has_table == 0 {
        return Ok(false);
    }
    let about: Option<(Vec<u8>, i64)> = connection
        .query_row("SELECT identity, version FROM about", (), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(about.is_some_and(|(owner, version)| owner == identity && version == INDEX_VERSION))
}

/// Returns true if the last indexed original is the same in the archive. It is not if an older copy of the archive
/// has replaced a newer one.
fn matches_archive(connection: &Connection, archive: &Connection) -> Result<bool, Error> {
    let (seen, handle): (i64, String) =
        connection.query_row("SELECT seen, seen_handle FROM about", (), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let found: Option<String> =
        archive.query_row("SELECT handle FROM original WHERE id = ?1", [seen], |row| row.get(0)).optional()?;
    Ok(seen == 0 || found == Some(handle))
}

/// Empties an index of another archive or another version.
fn drop_tables(connection: &mut Connection) -> Result<(), Error> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let names: Vec<String> = transaction
        .prepare("SELECT name FROM sqlite_schema WHERE name = 'about' OR name = 'size' OR sql LIKE 'CREATE VIRTUAL%'")?
        .query_map((), |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for name in names {
        transaction.execute_batch(&format!("DROP TABLE \"{}\"", name.replace('"', "\"\"")))?;
    }
    Ok(transaction.commit()?)
}

fn open_in_memory(readers: &ReaderPool) -> Result<Connection, Error> {
    // Only the newest originals, as many as each process can afford to index.
    let seen = readers.read(|archive| {
        let mut statement = archive.prepare("SELECT id, length FROM original WHERE state = 0 ORDER BY id DESC")?;
        let mut rows = statement.query(())?;
        let mut bytes = 0;
        while let Some(row) = rows.next()? {
            bytes += u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0).min(MAX_INDEXED_BYTES as u64);
            if bytes > MAX_MEMORY_INDEX_BYTES {
                return Ok(row.get(0)?);
            }
        }
        Ok(0)
    })?;
    let mut connection = Connection::open_in_memory()?;
    create_tables(&mut connection, &[], seen)?;
    Ok(connection)
}

/// Returns the id of the last indexed original.
pub(crate) fn last_indexed_id(connection: &Connection) -> Result<i64, Error> {
    Ok(connection.prepare_cached("SELECT seen FROM about")?.query_row((), |row| row.get(0))?)
}

/// Returns the id of the newest original.
fn newest_id(archive: &Connection) -> Result<i64, Error> {
    Ok(archive.prepare_cached("SELECT coalesce(max(id), 0) FROM original")?.query_row((), |row| row.get(0))?)
}

/// An original that is not indexed yet.
struct IndexDocument {
    id: i64,
    namespace: i64,
    original: UnfoldedOriginal,
}

/// The next originals to index.
struct DocumentBatch {
    documents: Vec<IndexDocument>,
    /// The last row that was read.
    last_id: i64,
    last_handle: String,
}

/// Reads the originals after `from`. They are tokenized later: a long read transaction would block checkpoints of the
/// archive's log.
fn read_batch(readers: &ReaderPool, archive: &Connection, from: i64) -> Result<DocumentBatch, Error> {
    let select = format!("{} WHERE o.id > ?1 ORDER BY o.id LIMIT ?2", LocatedRow::SELECT);
    let mut statement = archive.prepare_cached(&select)?;
    let mut rows = statement.query((from, BATCH_DOCUMENTS as i64))?;
    let mut next = DocumentBatch { documents: Vec::new(), last_id: from, last_handle: String::new() };
    let (mut bytes, mut packs, mut reader) = (0, PackCache::default(), OriginalReader::new(readers.cipher()));
    while let Some(row) = rows.next()? {
        let LocatedRow { row, pack, namespace_id, namespace } = LocatedRow::from_row(row)?;
        let id = row.id;
        next.last_id = id;
        next.last_handle.clone_from(&row.handle.key);
        if row.state != OriginalState::Available {
            continue;
        }
        // An unreadable original is not indexed; unfolding it reports the reason.
        let Ok(unfolded) = reader.open(&namespace, row, packs.get(archive, pack)?) else { continue };
        bytes += unfolded.bytes.len();
        next.documents.push(IndexDocument { id, namespace: namespace_id, original: unfolded });
        if bytes >= BATCH_BYTES {
            break;
        }
    }
    Ok(next)
}
