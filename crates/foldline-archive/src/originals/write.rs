//! Keeping: originals go in here, before they leave a request.
//!
//! Hashing and compressing happen on the caller's thread; the writer only inserts. An original that is
//! held already and was carried lately costs one look and no write at all, because most of what a
//! request folds was folded by the request before it.

use std::collections::HashSet;
use std::time::Duration;

use foldline::{Handle, Original, OriginalStore, StoreError};
use rusqlite::{Connection, OptionalExtension};

use crate::originals::pack::{OriginalDescription, PackBuilder, PackSlot};
use crate::tenant::TenantArchive;
use crate::{Error, ErrorKind, Namespace, clock};

/// The largest original that is taken. Larger ones would come near to what a row can hold.
pub(crate) const MAX_ORIGINAL_BYTES: usize = 256 * 1024 * 1024;

/// The bytes of a tool's arguments that are kept with its output: enough to tell what was asked.
const MAX_ARGUMENT_BYTES: usize = 2 * 1024;

/// How old the note "this marker was carried" may be before it is written anew. Retention never takes
/// anything carried within a day, so an hour is fresh enough, and a request whose markers were all
/// carried within the hour writes nothing.
pub(crate) const TOUCH_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// What keeping did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCounts {
    /// Originals that were not held before.
    pub added: u64,
    /// Originals that were held already.
    pub existing: u64,
}

impl OriginalStore for TenantArchive {
    fn store(&self, originals: &[Original<'_>]) -> Result<(), StoreError> {
        self.store_durably(originals).map(|_| ()).map_err(|error| StoreError(error.to_string()))
    }
}

impl TenantArchive {
    /// [`OriginalStore::keep`] with the archive's own error and a count.
    pub fn store_durably(&self, originals: &[Original<'_>]) -> Result<StoreCounts, Error> {
        let kept = self.store_unsynced(originals)?;
        self.request_sync().wait()?;
        Ok(kept)
    }

    /// The same without waiting for the disk: what is written outlives this process, and it outlives a loss of power once
    /// [`on_disk`](Shelf::on_disk) has been waited for.
    pub fn store_unsynced(&self, originals: &[Original<'_>]) -> Result<StoreCounts, Error> {
        let now = clock::now_millis();
        let incoming: Vec<_> =
            originals.iter().map(|original| NewOriginal::new(original, self.session_name(), now)).collect();
        self.store_missing(&incoming)
    }

    /// Notes that these markers were in a request just now, so that retention counts from here. Does
    /// not wait: a note that is lost under load is made again by the next request.
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
        let mut kept = StoreCounts { added: 0, existing: (incoming.len() - missing.len()) as u64 };
        if missing.is_empty() {
            return Ok(kept);
        }
        let packs = self.pack_originals(&missing)?;
        let (namespace, sealed) = (self.namespace().clone(), !self.backend().cipher.is_plaintext());
        let stored =
            self.core().write_queue()?.write(move |connection| insert_packs(connection, &namespace, &packs, sealed))?;
        kept.added += stored.added;
        kept.existing += stored.existing;
        self.core().wake_maintenance();
        Ok(kept)
    }

    /// Those of the originals that are not held, or not noted as carried lately; each once.
    fn select_missing<'a, 'b>(&self, incoming: &'b [NewOriginal<'a>]) -> Result<Vec<&'b NewOriginal<'a>>, Error> {
        let mut seen = HashSet::new();
        let mut missing: Vec<_> = incoming.iter().filter(|it| seen.insert(it.handle)).collect();
        for it in &missing {
            it.validate()?;
        }
        self.backend().readers.read(|connection| {
            let Some(namespace) = find_namespace(connection, self.namespace())? else { return Ok(()) };
            let mut held = connection.prepare_cached(
                "SELECT hash FROM original WHERE namespace = ?1 AND handle = ?2 AND state = 0 AND carried_at >= ?3",
            )?;
            let mut found = HashSet::new();
            for it in &missing {
                let fresh = it.carried_at - clock::to_millis(TOUCH_INTERVAL);
                let hash: Option<[u8; 32]> =
                    held.query_row((namespace, it.handle.as_str(), fresh), |row| row.get(0)).optional()?;
                if hash.is_some_and(|hash| hash == it.hash) {
                    found.insert(it.handle);
                }
            }
            missing.retain(|it| !found.contains(&it.handle));
            Ok(())
        })?;
        Ok(missing)
    }

    fn pack_originals(&self, missing: &[&NewOriginal<'_>]) -> Result<Vec<PackInsert>, Error> {
        let mut packs = Vec::new();
        let mut filling = PackBuilder::default();
        let mut rows = Vec::new();
        let close = |filling: PackBuilder, rows: Vec<OriginalInsert>| {
            let (content, length) = filling.finish(&self.backend().cipher, self.namespace())?;
            Ok::<_, Error>(PackInsert { content, length, rows })
        };
        for it in missing {
            if !filling.has_room(it.bytes.len()) {
                packs.push(close(std::mem::take(&mut filling), std::mem::take(&mut rows))?);
            }
            let place = filling.add(&it.description, it.bytes)?;
            rows.push(OriginalInsert {
                handle: it.handle,
                hash: it.hash,
                slot: place,
                tokens: it.tokens,
                message: it.message,
                tool: it.description.tool.clone(),
                session: it.session.map(str::to_owned),
                kept_at: it.kept_at,
                carried_at: it.carried_at,
            });
        }
        packs.push(close(filling, rows)?);
        Ok(packs)
    }
}

/// An original on its way in.
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
                arguments: original.arguments.map(|it| it[..it.floor_char_boundary(MAX_ARGUMENT_BYTES)].to_owned()),
            },
            session,
            message: original.message as u64,
            tokens: original.tokens,
            kept_at: now,
            carried_at: now,
        }
    }

    /// A handle that is not that of the bytes would resolve to nothing, or to something else.
    fn validate(&self) -> Result<(), Error> {
        let handle = self.handle;
        if Handle::from_hash(&self.hash) != handle {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{handle} is not the handle of these bytes")));
        }
        if self.bytes.len() > MAX_ORIGINAL_BYTES {
            let length = self.bytes.len();
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("the original {handle} has {length} bytes; an archive takes at most {MAX_ORIGINAL_BYTES}"),
            ));
        }
        Ok(())
    }
}

/// A pack, ready to be inserted with the rows of its originals.
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
    sealed: bool,
) -> Result<StoreCounts, Error> {
    let namespace = ensure_namespace(connection, namespace)?;
    let mut kept = StoreCounts::default();
    for pack in packs {
        let mut missing = Vec::with_capacity(pack.rows.len());
        for row in &pack.rows {
            if touch_or_clear(connection, namespace, row)? {
                missing.push(row);
            } else {
                kept.existing += 1;
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
                row.tool.as_deref().filter(|_| !sealed),
                row.kept_at,
                row.carried_at,
            ))?;
            kept.added += 1;
        }
    }
    Ok(kept)
}

/// Whether the original must be inserted. One that is held is noted as carried instead; what is left
/// of one that expired or was damaged makes way for the good copy.
fn touch_or_clear(connection: &Connection, namespace: i64, row: &OriginalInsert) -> Result<bool, Error> {
    let held: Option<(i64, i64, [u8; 32])> = connection
        .prepare_cached("SELECT id, state, hash FROM original WHERE namespace = ?1 AND handle = ?2")?
        .query_row((namespace, row.handle.as_str()), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    match held {
        None => Ok(true),
        Some((_, _, hash)) if hash != row.hash => Err(Error::new(
            ErrorKind::Ambiguous { candidates: vec![row.handle] },
            format!("another original has the handle {} already; this one can not be kept under it", row.handle),
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

/// The id of a namespace, when it has one.
pub(crate) fn find_namespace(connection: &Connection, namespace: &Namespace) -> Result<Option<i64>, Error> {
    Ok(connection
        .prepare_cached("SELECT id FROM namespace WHERE name = ?1")?
        .query_row([namespace.as_str()], |row| row.get(0))
        .optional()?)
}

/// The id of a namespace, given to it now when it has none.
pub(crate) fn ensure_namespace(connection: &Connection, namespace: &Namespace) -> Result<i64, Error> {
    if let Some(id) = find_namespace(connection, namespace)? {
        return Ok(id);
    }
    connection.execute("INSERT INTO namespace (name) VALUES (?1)", [namespace.as_str()])?;
    Ok(connection.last_insert_rowid())
}

/// The id of a session, which was seen at this time.
pub(crate) fn ensure_session(connection: &Connection, namespace: i64, name: &str, at: i64) -> Result<i64, Error> {
    Ok(connection
        .prepare_cached(
            "INSERT INTO session (namespace, name, first_at, last_at) VALUES (?1, ?2, ?3, ?3)
             ON CONFLICT (namespace, name) DO UPDATE SET last_at = max(last_at, excluded.last_at)
             RETURNING id",
        )?
        .query_row((namespace, name, at), |row| row.get(0))?)
}

/// As the database counts.
pub(crate) fn to_sql_int(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
