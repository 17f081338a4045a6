//! Originals in SQLite.

use rusqlite::{Connection, OptionalExtension};

use crate::clock;
use crate::error::Error;
use crate::namespace::Namespace;
use crate::originals::write::TOUCH_INTERVAL;
use crate::sqlite::rows::visit_originals;
use crate::sqlite::rows::{PackCache, ensure_namespace, ensure_session, find_namespace, find_scope, to_sql_int};
use crate::sqlite::store::SqliteStore;
use crate::store::{
    ArchiveScope, InsertOutcome, KnownOriginal, NewPack, NewRow, OriginalRows, OriginalSelection, OriginalState,
    OriginalVisitor,
};

impl OriginalRows for SqliteStore {
    fn find_known(&self, namespace: &Namespace, keys: &[&str]) -> Result<Vec<KnownOriginal>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let Some(namespace) = find_namespace(connection, namespace)? else { return Ok(Vec::new()) };
                let mut statement = connection.prepare_cached(
                    "SELECT hash, state, carried_at FROM original WHERE namespace = ?1 AND handle = ?2",
                )?;
                let mut known = Vec::new();
                for key in keys {
                    let found = statement.query_row((namespace, key), |row| {
                        Ok(KnownOriginal {
                            key: (*key).to_owned(),
                            hash: row.get(0)?,
                            is_available: row.get::<_, i64>(1)? == OriginalState::Available as i64,
                            carried_at: row.get(2)?,
                        })
                    });
                    known.extend(found.optional()?);
                }
                Ok(known)
            })
        })
    }

    fn insert(&self, namespace: &Namespace, packs: Vec<NewPack>) -> Result<Vec<InsertOutcome>, Error> {
        let namespace = namespace.clone();
        self.write_with(|database| {
            let stored =
                database.write_queue()?.write(move |connection| insert_packs(connection, &namespace, &packs))?;
            database.wake_maintenance();
            Ok(stored)
        })
    }

    fn touch(&self, namespace: &Namespace, keys: Vec<String>, at: i64) -> Result<(), Error> {
        let namespace = namespace.clone();
        self.write_with(|database| {
            database.write_queue()?.enqueue(move |connection| {
                let Some(namespace) = find_namespace(connection, &namespace)? else { return Ok(()) };
                keys.iter().try_for_each(|key| touch_row(connection, namespace, key, at))
            });
            Ok(())
        })
    }

    fn read(
        &self,
        scope: ArchiveScope<'_>,
        selection: OriginalSelection<'_>,
        visit: &mut OriginalVisitor<'_>,
    ) -> Result<(), Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let namespace = find_scope(connection, scope)?;
                let mut packs = PackCache::default();
                match selection {
                    OriginalSelection::Keys(range, limit) => {
                        let condition = "WHERE o.namespace = ?1 AND o.handle >= ?2 AND o.handle < ?3
                             ORDER BY o.state = 1, o.handle LIMIT ?4";
                        let parameters = (namespace.unwrap_or(0), &range.from, &range.to, to_sql_int(limit));
                        let parameters: [&dyn rusqlite::ToSql; 4] =
                            [&parameters.0, &parameters.1, &parameters.2, &parameters.3];
                        let _ = visit_originals(connection, condition, &parameters, &mut packs, visit)?;
                    }
                    OriginalSelection::Ids(ids) => {
                        let condition = "WHERE o.id = ?1 AND (?2 IS NULL OR o.namespace = ?2) AND o.state = 0";
                        for id in ids {
                            if visit_originals(connection, condition, &[id, &namespace], &mut packs, visit)?.is_break()
                            {
                                break;
                            }
                        }
                    }
                    OriginalSelection::After(id, limit) => {
                        let condition = "WHERE o.id > ?1 AND (?2 IS NULL OR o.namespace = ?2) AND o.state <> 1
                             ORDER BY o.id LIMIT ?3";
                        let limit = to_sql_int(limit);
                        let _ = visit_originals(connection, condition, &[&id, &namespace, &limit], &mut packs, visit)?;
                    }
                }
                Ok(())
            })
        })
    }

    fn set_states(&self, changes: Vec<(i64, OriginalState)>) -> Result<(), Error> {
        self.write_with(|database| {
            database.write_queue()?.write_durably(move |connection| {
                let mut update =
                    connection.prepare_cached("UPDATE original SET state = ?2 WHERE id = ?1 AND state <> 1")?;
                for (id, state) in changes {
                    update.execute((id, state as i64))?;
                }
                Ok(())
            })
        })
    }
}

fn insert_packs(
    connection: &Connection,
    namespace: &Namespace,
    packs: &[NewPack],
) -> Result<Vec<InsertOutcome>, Error> {
    let namespace = ensure_namespace(connection, namespace)?;
    let mut outcomes = Vec::new();
    for pack in packs {
        let from = outcomes.len();
        for row in &pack.originals {
            outcomes.push(touch_or_clear(connection, namespace, row)?);
        }
        let added = pack.originals.iter().zip(&outcomes[from..]);
        let added: Vec<&NewRow> =
            added.filter(|(_, outcome)| **outcome == InsertOutcome::Added).map(|(row, _)| row).collect();
        if !added.is_empty() {
            insert_pack(connection, namespace, pack, &added)?;
        }
    }
    Ok(outcomes)
}

fn insert_pack(connection: &Connection, namespace: i64, pack: &NewPack, added: &[&NewRow]) -> Result<(), Error> {
    connection.prepare_cached("INSERT INTO pack (namespace, length, content) VALUES (?1, ?2, ?3)")?.execute((
        namespace,
        to_sql_int(pack.length),
        &pack.content,
    ))?;
    let id = connection.last_insert_rowid();
    let mut insert = connection.prepare_cached(
        "INSERT INTO original (namespace, handle, sealed_handle, hash, state, pack, start, about, length, tokens, \
         message, session, tool, kept_at, carried_at) \
         VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?;
    for row in added {
        let session = ensure_session(connection, namespace, row.session.as_ref(), row.carried_at)?;
        insert.execute((
            namespace,
            &row.handle.key,
            &row.handle.sealed,
            row.hash,
            id,
            to_sql_int(row.slot.start),
            to_sql_int(row.slot.description_len),
            to_sql_int(row.slot.length),
            to_sql_int(row.tokens),
            to_sql_int(row.message),
            session,
            &row.tool,
            row.kept_at,
            row.carried_at,
        ))?;
    }
    Ok(())
}

/// Returns `Added` if the original must be inserted. A stored original is touched instead; the row of an expired or
/// damaged one is deleted to make way for the new copy.
fn touch_or_clear(connection: &Connection, namespace: i64, row: &NewRow) -> Result<InsertOutcome, Error> {
    let held: Option<(i64, i64, [u8; 32])> = connection
        .prepare_cached("SELECT id, state, hash FROM original WHERE namespace = ?1 AND handle = ?2")?
        .query_row((namespace, &row.handle.key), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    match held {
        None => Ok(InsertOutcome::Added),
        Some((_, _, hash)) if hash != row.hash => Ok(InsertOutcome::HandleTaken),
        Some((_, 0, _)) => {
            touch_row(connection, namespace, &row.handle.key, row.carried_at)?;
            Ok(InsertOutcome::Existing)
        }
        Some((id, _, _)) => {
            connection.prepare_cached("DELETE FROM original WHERE id = ?1")?.execute([id])?;
            Ok(InsertOutcome::Added)
        }
    }
}

fn touch_row(connection: &Connection, namespace: i64, key: &str, at: i64) -> Result<(), Error> {
    connection
        .prepare_cached(
            "UPDATE original SET carried_at = ?3 WHERE namespace = ?1 AND handle = ?2 AND carried_at < ?3 - ?4",
        )?
        .execute((namespace, key, at, clock::to_millis(TOUCH_INTERVAL) / 2))?;
    Ok(())
}
