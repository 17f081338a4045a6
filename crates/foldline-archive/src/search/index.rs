//! The search index: which words stand in which original.
//!
//! It lies in a file of its own beside the archive, because it is derived: writing it never delays a
//! keep, losing it loses nothing, and a damaged or foreign one is thrown away and made again. It lags
//! behind the archive and is brought up to date before every search.
//!
//! Every namespace has a table of its own, so that not even the frequency of a word tells of another's
//! texts. A sealed archive has its index in memory alone, over its newest originals: words on disk
//! would undo the seal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};

use crate::originals::entry::{OriginalRow, OriginalState};
use crate::search::redact;
use crate::search::tokenize::for_each_word;
use crate::sqlite::maintenance::WorkProgress;
use crate::sqlite::readers;
use crate::sqlite::store::{LastPack, SqliteStore};
use crate::{Error, ErrorKind, Namespace, UnfoldedOriginal, permissions};

/// A change of the words or of the tables makes indexes of another version be made again.
const INDEX_VERSION: i64 = 1;

/// Originals that one transaction takes in, and the bytes after which it takes no more.
const BATCH_DOCUMENTS: usize = 2048;
const BATCH_BYTES: usize = 1024 * 1024;

/// The newest bytes that an index in memory covers.
const MAX_MEMORY_INDEX_BYTES: u64 = 64 * 1024 * 1024;

/// The most bytes of one original that are indexed. What lies behind is found by `unfold --grep`.
pub(crate) const MAX_INDEXED_BYTES: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct SearchIndex {
    path: PathBuf,
    /// None until the first search.
    connection: Mutex<Option<Connection>>,
}

/// The size of a namespace's part of the index, as ranking needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IndexSize {
    pub(crate) documents: u64,
    pub(crate) words: u64,
}

impl SearchIndex {
    pub(crate) fn for_archive(archive: &Path) -> Self {
        Self { path: permissions::sibling_path(archive, ".index"), connection: Mutex::new(None) }
    }

    /// Asks the index, once it has been brought up to date. Where another process is busy doing that,
    /// it is asked as it is.
    pub(crate) fn query<T>(
        &self,
        store: &SqliteStore,
        asking: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut guard = self.open(store)?;
        let connection = guard.as_mut().expect("it was opened just now");
        // What is kept from here on may come later, so that this ends beside a busy proxy, too.
        let newest = store.readers.read(newest_id)?;
        while last_indexed_id(connection)? < newest {
            match self.index_batch(store, connection) {
                Ok(WorkProgress::Advanced) => {}
                Ok(WorkProgress::Idle) => break,
                Err(error) if *error.kind() == ErrorKind::Busy => break,
                Err(error) => return Err(error),
            }
        }
        asking(connection)
    }

    /// Takes in one batch of originals, for a thread that has nothing better to do.
    pub(crate) fn catch_up(&self, store: &SqliteStore) -> Result<WorkProgress, Error> {
        let mut guard = self.open(store)?;
        let connection = guard.as_mut().expect("it was opened just now");
        if last_indexed_id(connection)? >= store.readers.read(newest_id)? {
            return Ok(WorkProgress::Idle);
        }
        self.index_batch(store, connection)
    }

    /// Forgets originals that retention gave up.
    pub(crate) fn remove(&self, store: &SqliteStore, gone: &[(i64, i64)]) -> Result<(), Error> {
        let mut guard = self.open(store)?;
        let connection = guard.as_mut().expect("it was opened just now");
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let tables = indexed_namespaces(&transaction)?;
        for (namespace, id) in gone.iter().filter(|(namespace, _)| tables.contains(namespace)) {
            transaction.prepare_cached(&format!("DELETE FROM words_{namespace} WHERE rowid = ?1"))?.execute([id])?;
        }
        Ok(transaction.commit()?)
    }

    fn open(&self, store: &SqliteStore) -> Result<MutexGuard<'_, Option<Connection>>, Error> {
        let mut guard = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            *guard = Some(if store.cipher.is_plaintext() { self.open_on_disk(store)? } else { open_in_memory(store)? });
        }
        Ok(guard)
    }

    fn open_on_disk(&self, store: &SqliteStore) -> Result<Connection, Error> {
        let identity = store.identity()?;
        let opened = self.open_file().and_then(|mut connection| {
            if belongs_to(&connection, &identity)?
                && store.readers.read(|archive| matches_archive(&connection, archive))?
            {
                return Ok(connection);
            }
            drop_tables(&mut connection)?;
            create_tables(&mut connection, &identity, 0)?;
            Ok(connection)
        });
        match opened {
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::NotAnArchive) => {
                for ending in ["", "-wal", "-shm"] {
                    let path = permissions::sibling_path(&self.path, ending);
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
            // Where nothing can be written, the index can still be made in memory.
            Err(error) if matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::Io | ErrorKind::DiskFull) => {
                open_in_memory(store)
            }
            opened => opened,
        }
    }

    fn open_file(&self) -> Result<Connection, Error> {
        permissions::create_private(&self.path)?;
        let mut connection = Connection::open(&self.path)?;
        connection.busy_handler(Some(readers::busy_handler))?;
        connection.query_row("PRAGMA journal_mode = WAL", (), |_| Ok(()))?;
        // What a crash takes from the index is taken in again.
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
        Ok(connection)
    }

    /// Indexes the next originals.
    fn index_batch(&self, store: &SqliteStore, connection: &mut Connection) -> Result<WorkProgress, Error> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Another process may have taken them in while we waited.
        let from = last_indexed_id(&transaction)?;
        let DocumentBatch { documents, last_id: reached, last_handle: reached_handle } =
            store.readers.read(|archive| read_batch(store, archive, from))?;
        let tables = indexed_namespaces(&transaction)?;
        for document in &documents {
            let namespace = document.namespace;
            let (terms, words) = document_terms(&document.original);
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
        if reached == from {
            return Ok(WorkProgress::Idle);
        }
        transaction.execute("UPDATE about SET seen = ?1, seen_handle = ?2", (reached, reached_handle))?;
        transaction.commit()?;
        Ok(WorkProgress::Advanced)
    }
}

/// The size of a namespace's part; nothing when it has none.
pub(crate) fn index_size(connection: &Connection, namespace: i64) -> Result<Option<IndexSize>, Error> {
    Ok(connection
        .prepare_cached("SELECT documents, words FROM size WHERE namespace = ?1")?
        .query_row([namespace], |row| {
            let number = |column| Ok::<_, rusqlite::Error>(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0));
            Ok(IndexSize { documents: number(0)?, words: number(1)? })
        })
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
    let made: i64 = transaction.query_row("SELECT count(*) FROM about", (), |row| row.get(0))?;
    if made == 0 {
        transaction.execute("INSERT INTO about VALUES (?1, ?2, ?3, '')", (identity, INDEX_VERSION, seen))?;
    }
    Ok(transaction.commit()?)
}

/// Only which words a document has is stored, in the smallest form that full-text search knows: how
/// often they occur is counted again in the few documents that are ranked. See docs/decisions.
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

fn belongs_to(connection: &Connection, identity: &[u8]) -> Result<bool, Error> {
    let has_table: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'about'", (), |row| row.get(0))?;
    if has_table == 0 {
        return Ok(false);
    }
    let about: Option<(Vec<u8>, i64)> = connection
        .query_row("SELECT identity, version FROM about", (), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(about.is_some_and(|(of, version)| of == identity && version == INDEX_VERSION))
}

/// Whether what the index saw last is what the archive has there. It is not when an older copy of the
/// archive took the place of a newer one.
fn matches_archive(connection: &Connection, archive: &Connection) -> Result<bool, Error> {
    let (seen, handle): (i64, String) =
        connection.query_row("SELECT seen, seen_handle FROM about", (), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let found: Option<String> =
        archive.query_row("SELECT handle FROM original WHERE id = ?1", [seen], |row| row.get(0)).optional()?;
    Ok(seen == 0 || found == Some(handle))
}

/// Empties an index that belongs to another archive or another version.
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

fn open_in_memory(store: &SqliteStore) -> Result<Connection, Error> {
    // The newest originals, as many as are affordable to index anew in every process.
    let seen = store.readers.read(|archive| {
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

/// The last original that was taken in.
pub(crate) fn last_indexed_id(connection: &Connection) -> Result<i64, Error> {
    Ok(connection.prepare_cached("SELECT seen FROM about")?.query_row((), |row| row.get(0))?)
}

/// The number of the newest original.
fn newest_id(archive: &Connection) -> Result<i64, Error> {
    Ok(archive.prepare_cached("SELECT coalesce(max(id), 0) FROM original")?.query_row((), |row| row.get(0))?)
}

/// An original that the index has not seen.
struct IndexDocument {
    id: i64,
    namespace: i64,
    original: UnfoldedOriginal,
}

/// The next originals to take in.
struct DocumentBatch {
    documents: Vec<IndexDocument>,
    /// The last that was looked at.
    last_id: i64,
    last_handle: String,
}

/// The originals behind `from`. They are only read here and looked at later: a long reading would keep the
/// archive's log from being folded into its file.
fn read_batch(store: &SqliteStore, archive: &Connection, from: i64) -> Result<DocumentBatch, Error> {
    let mut statement = archive.prepare_cached(&format!(
        "SELECT {}, n.id, n.name FROM original AS o
         JOIN namespace AS n ON n.id = o.namespace LEFT JOIN session AS s ON s.id = o.session
         WHERE o.id > ?1 ORDER BY o.id LIMIT ?2",
        OriginalRow::COLUMNS
    ))?;
    let mut rows = statement.query((from, BATCH_DOCUMENTS as i64))?;
    let mut next = DocumentBatch { documents: Vec::new(), last_id: from, last_handle: String::new() };
    let (mut bytes, mut last) = (0, LastPack::default());
    while let Some(row) = rows.next()? {
        let stored = OriginalRow::from_row(row)?;
        let columns = row.as_ref().column_count();
        let namespace: i64 = row.get(columns - 2)?;
        let name = Namespace::new(row.get::<_, String>(columns - 1)?)?;
        next.last_id = stored.id;
        next.last_handle = stored.handle.to_string();
        let id = stored.id;
        if stored.state != OriginalState::Available {
            continue;
        }
        // What can not be read can not be found; unfolding it says why.
        let Ok(unfolded) = store.fetch(archive, &name, stored, &mut last) else { continue };
        bytes += unfolded.bytes.len();
        next.documents.push(IndexDocument { id, namespace, original: unfolded });
        if bytes >= BATCH_BYTES {
            break;
        }
    }
    Ok(next)
}

/// The distinct words and pieces of an original, and how many words it has.
fn document_terms(unfolded: &UnfoldedOriginal) -> (String, i64) {
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
    let head = &unfolded.bytes[..unfolded.bytes.len().min(MAX_INDEXED_BYTES)];
    add(&String::from_utf8_lossy(head));
    unfolded.info.tool.as_deref().into_iter().for_each(&mut add);
    unfolded.info.arguments.as_deref().into_iter().for_each(&mut add);
    (terms.into_iter().collect::<Vec<_>>().join(" "), count)
}
