//! The journal in SQLite.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use crate::error::Error;
use crate::namespace::Namespace;
use crate::sqlite::rows::{ensure_namespace, ensure_session, find_namespace, get_count, get_name, to_sql_int};
use crate::sqlite::store::SqliteStore;
use crate::store::{CheckpointRow, EventRow, JournalRows, JournalState, RequestRow, SessionRow, StoredName};

/// The first schema with checkpoints. A file that is only read is not migrated.
const CHECKPOINT_SCHEMA: i64 = 4;

impl JournalRows for SqliteStore {
    fn append_request(&self, namespace: &Namespace, request: RequestRow) -> Result<(), Error> {
        let namespace = namespace.clone();
        self.read_with(|database| {
            database.write_queue()?.enqueue(move |connection| {
                let namespace = ensure_namespace(connection, &namespace)?;
                let session = ensure_session(connection, namespace, request.session.as_ref(), request.at)?;
                connection
                    .prepare_cached(
                        "INSERT INTO request (namespace, session, at, model, raw_tokens, sent_tokens, folds, payload)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    )?
                    .execute((
                        namespace,
                        session,
                        request.at,
                        request.model,
                        to_sql_int(request.raw_tokens),
                        to_sql_int(request.sent_tokens),
                        to_sql_int(request.folds),
                        request.payload,
                    ))?;
                Ok(())
            });
            Ok(())
        })
    }

    fn append_event(&self, namespace: &Namespace, event: EventRow) -> Result<(), Error> {
        let namespace = namespace.clone();
        self.read_with(|database| {
            database.write_queue()?.enqueue(move |connection| {
                let namespace = ensure_namespace(connection, &namespace)?;
                let session = ensure_session(connection, namespace, event.session.as_ref(), event.at)?;
                connection
                    .prepare_cached(
                        "INSERT INTO event (namespace, session, at, kind, payload) VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?
                    .execute((namespace, session, event.at, event.kind, event.payload))?;
                Ok(())
            });
            Ok(())
        })
    }

    fn touch_session(&self, namespace: &Namespace, session: StoredName, at: i64) -> Result<(), Error> {
        let namespace = namespace.clone();
        self.read_with(|database| {
            database.write_queue()?.enqueue(move |connection| {
                let namespace = ensure_namespace(connection, &namespace)?;
                ensure_session(connection, namespace, Some(&session), at)?;
                Ok(())
            });
            Ok(())
        })
    }

    fn sessions(&self, namespace: &Namespace, limit: usize) -> Result<Vec<SessionRow>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let Some(namespace) = find_namespace(connection, namespace)? else { return Ok(Vec::new()) };
                let mut statement = connection.prepare_cached(
                    "SELECT s.name, s.sealed_name, s.first_at, s.last_at, count(r.id), sum(r.raw_tokens),
                         sum(r.sent_tokens)
                     FROM (SELECT * FROM session WHERE namespace = ?1 ORDER BY last_at DESC LIMIT ?2) AS s
                     LEFT JOIN request AS r ON r.session = s.id GROUP BY s.id ORDER BY s.last_at DESC, s.id DESC",
                )?;
                let rows = statement.query_map((namespace, to_sql_int(limit)), |row| {
                    let name = get_name(row, 0)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
                    Ok(SessionRow {
                        name,
                        first_at: row.get(2)?,
                        last_at: row.get(3)?,
                        requests: get_count(row, 4)?,
                        raw_tokens: get_count(row, 5)?,
                        sent_tokens: get_count(row, 6)?,
                    })
                })?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
        })
    }

    fn requests(&self, namespace: &Namespace, since: i64, limit: usize) -> Result<Vec<RequestRow>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let Some(namespace) = find_namespace(connection, namespace)? else { return Ok(Vec::new()) };
                let mut statement = connection.prepare_cached(
                    "SELECT r.at, s.name, s.sealed_name, r.model, r.raw_tokens, r.sent_tokens, r.folds, r.payload
                     FROM request AS r LEFT JOIN session AS s ON s.id = r.session
                     WHERE r.namespace = ?1 AND r.at >= ?2 ORDER BY r.at DESC, r.id DESC LIMIT ?3",
                )?;
                let rows = statement.query_map((namespace, since, to_sql_int(limit)), |row| {
                    Ok(RequestRow {
                        at: row.get(0)?,
                        session: get_name(row, 1)?,
                        model: row.get(3)?,
                        raw_tokens: get_count(row, 4)?,
                        sent_tokens: get_count(row, 5)?,
                        folds: get_count(row, 6)?,
                        payload: row.get(7)?,
                    })
                })?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
        })
    }

    fn events(&self, namespace: &Namespace, after: i64, limit: usize) -> Result<Vec<EventRow>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let Some(namespace) = find_namespace(connection, namespace)? else { return Ok(Vec::new()) };
                let mut statement = connection.prepare_cached(
                    "SELECT e.id, e.at, s.name, s.sealed_name, e.kind, e.payload
                     FROM event AS e LEFT JOIN session AS s ON s.id = e.session
                     WHERE e.namespace = ?1 AND e.id > ?2 ORDER BY e.id LIMIT ?3",
                )?;
                let rows = statement.query_map((namespace, after, to_sql_int(limit)), |row| {
                    Ok(EventRow {
                        id: row.get(0)?,
                        at: row.get(1)?,
                        session: get_name(row, 2)?,
                        kind: row.get(4)?,
                        payload: row.get(5)?,
                    })
                })?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
        })
    }

    fn flush_journal(&self, limit: Duration) -> Result<bool, Error> {
        self.read_with(|database| database.write_queue()?.flush(limit))
    }

    fn journal_state(&self, namespace: &Namespace) -> Result<JournalState, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let Some(namespace) = find_namespace(connection, namespace)? else {
                    return Ok(JournalState::default());
                };
                // One statement, so that both numbers are of one moment.
                let deletions = if has_checkpoints(connection)? { "deletions" } else { "0" };
                let sql = format!(
                    "SELECT {deletions}, (SELECT id FROM event WHERE namespace = ?1 ORDER BY id DESC LIMIT 1)
                     FROM namespace WHERE id = ?1"
                );
                let state = connection.prepare_cached(&sql)?.query_row([namespace], |row| {
                    let newest: Option<i64> = row.get(1)?;
                    Ok(JournalState { deletions: get_count(row, 0)?, newest_event: newest.unwrap_or(0) })
                })?;
                Ok(state)
            })
        })
    }

    fn checkpoint(&self, namespace: &Namespace) -> Result<Option<CheckpointRow>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let Some(namespace) = find_namespace(connection, namespace)? else { return Ok(None) };
                if !has_checkpoints(connection)? {
                    return Ok(None);
                }
                let sql = "SELECT c.position, n.deletions, c.payload FROM checkpoint AS c
                     JOIN namespace AS n ON n.id = c.namespace WHERE c.namespace = ?1";
                let row = connection.prepare_cached(sql)?.query_row([namespace], |row| {
                    Ok(CheckpointRow { position: row.get(0)?, deletions: get_count(row, 1)?, payload: row.get(2)? })
                });
                Ok(row.optional()?)
            })
        })
    }

    fn write_checkpoint(&self, namespace: &Namespace, checkpoint: CheckpointRow) -> Result<bool, Error> {
        let namespace = namespace.clone();
        self.write_with(|database| {
            database.write_queue()?.write(move |connection| {
                let CheckpointRow { position, deletions, payload } = checkpoint;
                let namespace = ensure_namespace(connection, &namespace)?;
                let sql = "INSERT INTO checkpoint (namespace, position, payload)
                     SELECT id, ?2, ?4 FROM namespace WHERE id = ?1 AND deletions = ?3
                     ON CONFLICT (namespace) DO UPDATE SET position = excluded.position, payload = excluded.payload
                     WHERE excluded.position > position";
                let mut statement = connection.prepare_cached(sql)?;
                Ok(statement.execute((namespace, position, to_sql_int(deletions), payload))? > 0)
            })
        })
    }
}

fn has_checkpoints(connection: &Connection) -> Result<bool, Error> {
    let version: i64 = connection.prepare_cached("PRAGMA user_version")?.query_row((), |row| row.get(0))?;
    Ok(version >= CHECKPOINT_SCHEMA)
}

/// Deletes the checkpoint of a namespace whose events are deleted in the same transaction, and counts the deletion.
pub(crate) fn count_deletion(connection: &Connection, namespace: i64) -> Result<(), Error> {
    connection.execute("UPDATE namespace SET deletions = deletions + 1 WHERE id = ?1", [namespace])?;
    connection.execute("DELETE FROM checkpoint WHERE namespace = ?1", [namespace])?;
    Ok(())
}
