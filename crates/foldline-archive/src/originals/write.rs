//! Storing originals, before they leave a request.
//!
//! Hashing and compressing run on the caller's thread; the writer thread only inserts. An original that is already
//! stored and was touched recently costs one lookup and no write, because most of what a request folds was folded
//! by the previous request.

use std::collections::HashSet;
use std::time::Duration;

use foldline::{Handle, Original, OriginalStore, StoreError};
use rusqlite::{Connection, OptionalExtension};

use crate::originals::pack::{OriginalDescription, PackBuilder, PackSlot};
use crate::tenant::TenantArchive;
use crate::{Error, ErrorKind, Namespace, clock};

/// Size limit of an original; larger ones would approach SQLite's row limit.
pub(crate) const MAX_ORIGINAL_BYTES: usize = 256 * 1024 * 1024;

/// Bytes of a tool's arguments that are stored with its output: enough to identify the call.
const MAX_ARGUMENT_BYTES: usize = 2 * 1024;

/// Age at which the last-used time of a marker is updated. Retention never removes anything used within a day, so an
/// hour is precise enough, and a request whose markers were all used within the hour writes nothing.
pub(crate) const TOUCH_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Counts of a store call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounts {
    /// Originals that were not stored before.
    pub added: u64,
    /// Originals that were already stored.
    pub existing: u64,
}

impl OriginalStore for TenantArchive {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        self.store_durably(originals).map(|_| ()).map_err(|error| StoreError(error.to_string()))
    }
}

impl TenantArchive {
    /// Stores originals durably, like [`OriginalStore::store`], but returns the archive's own error and counts.
    pub fn store_durably(&self, originals: &[Original<'_>]) -> Result<StoreCounts, Error> {
        let counts = self.store_unsynced(originals)?;
        self.request_sync().wait()?;
        Ok(counts)
    }

    /// Stores originals without waiting for the disk: the data survives the end of this process, and survives a power
    /// loss once [`request_sync`](TenantArchive::request_sync) has been waited for.
    pub fn store_unsynced(&self, originals: &[Original<'_>]) -> Result<StoreCounts, Error> {
        let now = clock::now_millis();
        let incoming: Vec<_> =
            originals.iter().map(|original| NewOriginal::new(original, self.session_name(), now)).collect();
        self.store_missing(&incoming)
    }

    /// Records that these markers were in a request just now; retention counts from this time. Does not wait: an
    /// update that is dropped under load is repeated by the next request.
    pub fn touch(&self, handles: &[Handle]) -> Result<(), Error> {
        let (namespace, handles, now) = (self.namespace().clone(), handles.to_vec(), clock::now_millis());
        self.core().write_queue()?.enqueue(move |connection| {
            let Some(namespace) = find_namespace(connection, &namespace)? else { return Ok(()) };
            for handle in handles {
                touch_row(connection, namespace, handle, now)?;
            }
            Ok(())
        });
        Ok(())
    }

    pub(crate) fn store_missing(&self, incoming: &[NewOriginal<'_>]) -> Result<StoreCounts, Error> {
        let missing = self.select_missing(incoming)?;
        let mut counts = StoreCounts { added: 0, existing: (incoming.len() - missing.len()) as u64 };
        if missing.is_empty() {
            return Ok(counts);
        }
        let packs = self.pack_originals(&missing)?;
        let (namespace, encrypted) = (self.namespace().clone(), !self.backend().cipher.is_plaintext());
        let stored = self
            .core()
            .write_queue()?
            .write(move |connection| insert_packs(connection, &namespace, &packs, encrypted))?;
        counts.added += stored.added;
        counts.existing += stored.existing;
        self.core().wake_maintenance();
        Ok(counts)
    }

    /// Returns the originals that are not stored or not recently touched, without duplicates.
    fn select_missing<'a, 'b>(&self, incoming: &'b [NewOriginal<'a>]) -> Result<Vec<&'b NewOriginal<'a>>, Error> {
        let mut seen = HashSet::new();
        let mut missing: Vec<_> = incoming.iter().filter(|original| seen.insert(original.handle)).collect();
        for original in &missing {
            original.validate()?;
        }
        self.backend().readers.read(|connection| {
            let Some(namespace) = find_namespace(connection, self.namespace())? else { return Ok(()) };
            let mut held = connection.prepare_cached(
                "SELECT hash FROM original WHERE namespace = ?1 AND handle = ?2 AND state = 0 AND carried_at >= ?3",
            )?;
            let mut found = HashSet::new();
            for original in &missing {
                let fresh = original.carried_at - clock::to_millis(TOUCH_INTERVAL);
                let hash: Option<[u8; 32]> =
                    held.query_row((namespace, original.handle.as_str(), fresh), |row| row.get(0)).optional()?;
                if hash.is_some_and(|hash| hash == original.hash) {
                    found.insert(original.handle);
                }
            }
            missing.retain(|original| !found.contains(&original.handle));
            Ok(())
        })?;
        Ok(missing)
    }

    fn pack_originals(&self, missing: &[&NewOriginal<'_>]) -> Result<Vec<PackInsert>, Error> {
        let mut packs = Vec::new();
        let mut builder = PackBuilder::default();
        let mut rows = Vec::new();
        let close = |builder: PackBuilder, rows: Vec<OriginalInsert>| {
            let (content, length) = builder.finish(&self.backend().cipher, self.namespace())?;
            Ok::<_, Error>(PackInsert { content, length, rows })
        };
        for original in missing {
            if !builder.has_room(original.bytes.len()) {
                packs.push(close(std::mem::take(&mut builder), std::mem::take(&mut rows))?);
            }
            let slot = builder.add(&original.description, original.bytes)?;
            rows.push(OriginalInsert {
                handle: original.handle,
                hash: original.hash,
                slot,
                tokens: original.tokens,
                message: original.message,
                tool: original.description.tool.clone(),
                session: original.session.map(str::to_owned),
                kept_at: original.kept_at,
                carried_at: original.carried_at,
            });
        }
        packs.push(close(builder, rows)?);
        Ok(packs)
    }
}

/// An original to be stored.
pub(crate) struct NewOriginal<'a> {
    pub(crate) handle: Handle,
    pub(crate) hash: [u8; 32],
    pub(crate) bytes: &'a [u8],
    pub(crate) description: OriginalDescription,
    pub(crate) session: Option<&'a str>,
    pub(crate) message: u64,
    pub(crate) tokens: u64,
    pub(crate) kept_at: i64,
    pub(crate) carried_at: i64,
}

impl<'a> NewOriginal<'a> {
    fn new(original: &Original<'a>, session: Option<&'a str>, now: i64) -> Self {
        Self {
            handle: original.handle,
            hash: *blake3::hash(original.bytes).as_bytes(),
            bytes: original.bytes,
            description: OriginalDescription {
                tool: original.tool.map(str::to_owned),
                arguments: original
                    .arguments
                    .map(|text| text[..text.floor_char_boundary(MAX_ARGUMENT_BYTES)].to_owned()),
            },
            session,
            message: original.message as u64,
            tokens: original.tokens,
            kept_at: now,
            carried_at: now,
        }
    }

    /// Rejects a wrong handle, which would not resolve to these bytes, and an original that is too large.
    fn validate(&self) -> Result<(), Error> {
        let handle = self.handle;
        if Handle::from_hash(&self.hash) != handle {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{handle} is not the handle of these bytes")));
        }
        if self.bytes.len() > MAX_ORIGINAL_BYTES {
            let length = self.bytes.len();
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("the original {handle} has {length} bytes; the limit is {MAX_ORIGINAL_BYTES}"),
            ));
        }
        Ok(())
    }
}

/// A pack to be inserted, with the rows of its originals.
struct PackInsert {
    content: Vec<u8>,
    length: usize,
    rows: Vec<OriginalInsert>,
}

struct OriginalInsert {
    handle: Handle,
    hash: [u8; 32],
    slot: PackSlot,
    tokens: u64,
    message: u64,
    tool: Option<String>,
    session: Option<String>,
    kept_at: i64,
    carried_at: i64,
}

fn insert_packs(
    connection: &Connection,
    namespace: &Namespace,
    packs: &[PackInsert],
    encrypted: bool,
) -> Result<StoreCounts, Error> {
    let namespace = ensure_namespace(connection, namespace)?;
    let mut counts = StoreCounts::default();
    for pack in packs {
        let mut missing = Vec::with_capacity(pack.rows.len());
        for row in &pack.rows {
            if touch_or_clear(connection, namespace, row)? {
                missing.push(row);
            } else {
                counts.existing += 1;
            }
        }
        if missing.is_empty() {
            continue;
        }
        connection.prepare_cached("INSERT INTO pack (namespace, length, content) VALUES (?1, ?2, ?3)")?.execute((
            namespace,
            to_sql_int(pack.length),
            &pack.content,
        ))?;
        let id = connection.last_insert_rowid();
        let mut insert = connection.prepare_cached(
            "INSERT INTO original (namespace, handle, hash, state, pack, start, about, length, tokens, message, \
             session, tool, kept_at, carried_at) VALUES (?1, ?2, ?3, 0, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?;
        for row in missing {
            let session = match &row.session {
                Some(name) => Some(ensure_session(connection, namespace, name, row.carried_at)?),
                None => None,
            };
            insert.execute((
                namespace,
                row.handle.as_str(),
                row.hash,
                id,
                to_sql_int(row.slot.start),
                to_sql_int(row.slot.description_len),
                to_sql_int(row.slot.length),
                to_sql_int(row.tokens),
                to_sql_int(row.message),
                session,
                row.tool.as_deref().filter(|_| !encrypted),
                row.kept_at,
                row.carried_at,
            ))?;
            counts.added += 1;
        }
    }
    Ok(counts)
}

/// Returns true if the original must be inserted. A stored original is touched instead; the row of an expired or
/// damaged one is deleted to make way for the new copy.
fn touch_or_clear(connection: &Connection, namespace: i64, row: &OriginalInsert) -> Result<bool, Error> {
    let held: Option<(i64, i64, [u8; 32])> = connection
        .prepare_cached("SELECT id, state, hash FROM original WHERE namespace = ?1 AND handle = ?2")?
        .query_row((namespace, row.handle.as_str()), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    match held {
        None => Ok(true),
        Some((_, _, hash)) if hash != row.hash => Err(Error::new(
            ErrorKind::Ambiguous { candidates: vec![row.handle] },
            format!("another original already has the handle {}; this one cannot be stored under it", row.handle),
        )),
        Some((_, 0, _)) => {
            touch_row(connection, namespace, row.handle, row.carried_at)?;
            Ok(false)
        }
        Some((id, _, _)) => {
            connection.prepare_cached("DELETE FROM original WHERE id = ?1")?.execute([id])?;
            Ok(true)
        }
    }
}

fn touch_row(connection: &Connection, namespace: i64, handle: Handle, at: i64) -> Result<(), Error> {
    connection
        .prepare_cached(
            "UPDATE original SET carried_at = ?3 WHERE namespace = ?1 AND handle = ?2 AND carried_at < ?3 - ?4",
        )?
        .execute((namespace, handle.as_str(), at, clock::to_millis(TOUCH_INTERVAL) / 2))?;
    Ok(())
}

/// Returns the id of a namespace, if it exists.
pub(crate) fn find_namespace(connection: &Connection, namespace: &Namespace) -> Result<Option<i64>, Error> {
    Ok(connection
        .prepare_cached("SELECT id FROM namespace WHERE name = ?1")?
        .query_row([namespace.as_str()], |row| row.get(0))
        .optional()?)
}

/// Returns the id of a namespace; creates it if necessary.
pub(crate) fn ensure_namespace(connection: &Connection, namespace: &Namespace) -> Result<i64, Error> {
    if let Some(id) = find_namespace(connection, namespace)? {
        return Ok(id);
    }
    connection.execute("INSERT INTO namespace (name) VALUES (?1)", [namespace.as_str()])?;
    Ok(connection.last_insert_rowid())
}

/// Returns the id of a session and updates its last-seen time; creates it if necessary.
pub(crate) fn ensure_session(connection: &Connection, namespace: i64, name: &str, at: i64) -> Result<i64, Error> {
    Ok(connection
        .prepare_cached(
            "INSERT INTO session (namespace, name, first_at, last_at) VALUES (?1, ?2, ?3, ?3)
             ON CONFLICT (namespace, name) DO UPDATE SET last_at = max(last_at, excluded.last_at)
             RETURNING id",
        )?
        .query_row((namespace, name, at), |row| row.get(0))?)
}

/// Converts a number to SQLite's integer type, saturating.
pub(crate) fn to_sql_int(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
