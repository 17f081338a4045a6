//! Rows of the tables, and the ids of namespaces and sessions.

use std::ops::ControlFlow;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, ToSql};

use crate::encryption::StoredName;
use crate::error::Error;
use crate::namespace::Namespace;
use crate::originals::pack::PackSlot;
use crate::store::{ArchiveScope, OriginalRow, OriginalState, OriginalVisitor, StoredPack};

/// A row of the table of originals with the ids of its pack and namespace.
pub(crate) struct LocatedRow {
    pub(crate) row: OriginalRow,
    pub(crate) pack: Option<i64>,
    pub(crate) namespace_id: i64,
    pub(crate) namespace: Namespace,
}

impl LocatedRow {
    /// Selects the columns that [`LocatedRow::from_row`] reads; a condition follows.
    pub(crate) const SELECT: &'static str = "SELECT o.id, o.handle, o.sealed_handle, o.hash, o.state, o.pack, o.start, \
         o.about, o.length, o.tokens, o.message, s.name, s.sealed_name, o.kept_at, o.carried_at, o.gone_at, n.id, n.name \
         FROM original AS o JOIN namespace AS n ON n.id = o.namespace LEFT JOIN session AS s ON s.id = o.session";

    pub(crate) fn from_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let invalid = |column, what: &str| {
            rusqlite::Error::FromSqlConversionFailure(
                column,
                Type::Text,
                format!("invalid {what} in the archive").into(),
            )
        };
        let size = |column| Ok::<_, rusqlite::Error>(usize::try_from(row.get::<_, i64>(column)?).unwrap_or(0));
        let state = match row.get(4)? {
            0 => OriginalState::Available,
            1 => OriginalState::Expired,
            2 => OriginalState::Damaged,
            _ => return Err(invalid(4, "state")),
        };
        Ok(Self {
            row: OriginalRow {
                id: row.get(0)?,
                handle: StoredName { key: row.get(1)?, sealed: row.get(2)? },
                hash: row.get(3)?,
                state,
                slot: PackSlot { start: size(6)?, description_len: size(7)?, length: size(8)? },
                tokens: get_count(row, 9)?,
                message: get_count(row, 10)?,
                session: get_name(row, 11)?,
                kept_at: row.get(13)?,
                carried_at: row.get(14)?,
                expired_at: row.get(15)?,
            },
            pack: row.get(5)?,
            namespace_id: row.get(16)?,
            namespace: Namespace::new(row.get::<_, String>(17)?).map_err(|_| invalid(17, "namespace"))?,
        })
    }
}

/// The pack that was read last: the next original is often in it too.
#[derive(Debug, Default)]
pub(crate) struct PackCache {
    id: Option<i64>,
    length: usize,
    content: Vec<u8>,
}

impl PackCache {
    /// Returns a pack; `None` if it is missing.
    pub(crate) fn get(&mut self, connection: &Connection, id: Option<i64>) -> Result<Option<StoredPack<'_>>, Error> {
        let Some(id) = id else { return Ok(None) };
        if self.id != Some(id) {
            self.id = None;
            let read = |row: &Row<'_>| Ok((row.get_ref(0)?.as_blob()?.to_vec(), row.get::<_, i64>(1)?));
            let found = connection
                .prepare_cached("SELECT content, length FROM pack WHERE id = ?1")?
                .query_row([id], read)
                .optional()?;
            let Some((content, length)) = found else { return Ok(None) };
            *self = Self { id: Some(id), length: usize::try_from(length).unwrap_or(0), content };
        }
        Ok(Some(StoredPack { id, length: self.length, content: &self.content }))
    }
}

/// Calls `visit` for each original that the condition selects.
pub(crate) fn visit_originals(
    connection: &Connection,
    condition: &str,
    parameters: &[&dyn ToSql],
    packs: &mut PackCache,
    visit: &mut OriginalVisitor<'_>,
) -> Result<ControlFlow<()>, Error> {
    let mut statement = connection.prepare_cached(&format!("{} {condition}", LocatedRow::SELECT))?;
    let mut rows = statement.query(parameters)?;
    while let Some(row) = rows.next()? {
        let LocatedRow { row, pack, namespace, .. } = LocatedRow::from_row(row)?;
        if visit(&namespace, row, packs.get(connection, pack)?)?.is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Returns a column that is never negative.
pub(crate) fn get_count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, Option<i64>>(column)?.unwrap_or(0)).unwrap_or(0))
}

/// Returns a name from two columns: its key, and its encrypted form.
pub(crate) fn get_name(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<StoredName>> {
    let (key, sealed): (Option<String>, Option<Vec<u8>>) = (row.get(column)?, row.get(column + 1)?);
    Ok(key.map(|key| StoredName { key, sealed }))
}

/// Returns the id of a namespace, if it exists.
pub(crate) fn find_namespace(connection: &Connection, namespace: &Namespace) -> Result<Option<i64>, Error> {
    Ok(connection
        .prepare_cached("SELECT id FROM namespace WHERE name = ?1")?
        .query_row([namespace.as_str()], |row| row.get(0))
        .optional()?)
}

/// Returns the id of a scope's namespace: `None` for everything, 0 (which no namespace has) if there is none.
pub(crate) fn find_scope(connection: &Connection, scope: ArchiveScope<'_>) -> Result<Option<i64>, Error> {
    match scope.namespace() {
        None => Ok(None),
        Some(namespace) => Ok(Some(find_namespace(connection, namespace)?.unwrap_or(0))),
    }
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
pub(crate) fn ensure_session(
    connection: &Connection,
    namespace: i64,
    session: Option<&StoredName>,
    at: i64,
) -> Result<Option<i64>, Error> {
    let Some(name) = session else { return Ok(None) };
    let id = connection
        .prepare_cached(
            "INSERT INTO session (namespace, name, sealed_name, first_at, last_at) VALUES (?1, ?2, ?3, ?4, ?4)
             ON CONFLICT (namespace, name) DO UPDATE SET last_at = max(last_at, excluded.last_at)
             RETURNING id",
        )?
        .query_row((namespace, &name.key, &name.sealed, at), |row| row.get(0))?;
    Ok(Some(id))
}

/// Converts a number to SQLite's integer type, saturating.
pub(crate) fn to_sql_int(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
