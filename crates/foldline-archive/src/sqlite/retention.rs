//! Retention, deletion and statistics in SQLite.

use rusqlite::{Connection, OptionalExtension, Row};

use crate::error::Error;
use crate::namespace::Namespace;
use crate::permissions;
use crate::sqlite::connection;
use crate::sqlite::journal::count_deletion;
use crate::sqlite::repack::{self, RepackGoal};
use crate::sqlite::rows::{find_namespace, find_scope, get_count};
use crate::sqlite::store::SqliteStore;
use crate::sqlite::sync;
use crate::store::{ArchiveScope, Deletion, RemovedCounts, RetentionRows, StoreStats};

/// Number of tools that are listed.
const MAX_TOOLS: i64 = 20;

/// An original that is removed: its namespace and id, for the index, and its length.
type RemovedRow = (i64, i64, i64);

impl RetentionRows for SqliteStore {
    fn used_bytes(&self, scope: ArchiveScope<'_>) -> Result<u64, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| match find_scope(connection, scope)? {
                Some(namespace) => {
                    let sql = "SELECT sum(length(content)) FROM pack WHERE namespace = ?1";
                    Ok(connection.query_row(sql, [namespace], |row| get_count(row, 0))?)
                }
                None => {
                    let number = |pragma| connection.query_row(pragma, (), |row| row.get::<_, i64>(0));
                    let pages = number("PRAGMA page_count")? - number("PRAGMA freelist_count")?;
                    Ok(u64::try_from(pages * number("PRAGMA page_size")?).unwrap_or(0))
                }
            })
        })
    }

    fn unused_since(&self, scope: ArchiveScope<'_>, before: i64) -> Result<Vec<i64>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let namespace = find_scope(connection, scope)?;
                let sql = "SELECT id FROM original
                     WHERE state <> 1 AND carried_at < ?1 AND (?2 IS NULL OR namespace = ?2) ORDER BY carried_at, id";
                let mut statement = connection.prepare(sql)?;
                Ok(statement.query_map((before, namespace), |row| row.get(0))?.collect::<Result<_, _>>()?)
            })
        })
    }

    fn expire(&self, ids: &[i64], before: i64, now: i64) -> Result<RemovedCounts, Error> {
        let ids = ids.to_vec();
        self.remove_with(move |connection| expire_rows(connection, &ids, before, now))
    }

    fn delete_records(&self, scope: ArchiveScope<'_>, before: i64) -> Result<(), Error> {
        let namespace = scope.namespace().cloned();
        self.write_with(|database| {
            database.write_queue()?.write_durably(move |connection| {
                let scope = namespace.as_ref().map_or(ArchiveScope::Everything, ArchiveScope::Namespace);
                delete_old_records(connection, find_scope(connection, scope)?, before)
            })
        })
    }

    fn delete_tombstones(&self, scope: ArchiveScope<'_>, before: i64) -> Result<(), Error> {
        let namespace = scope.namespace().cloned();
        self.write_with(|database| {
            database.write_queue()?.write_durably(move |connection| {
                let scope = namespace.as_ref().map_or(ArchiveScope::Everything, ArchiveScope::Namespace);
                let namespace = find_scope(connection, scope)?;
                let sql = "DELETE FROM original WHERE state = 1 AND gone_at < ?1 AND (?2 IS NULL OR namespace = ?2)";
                connection.execute(sql, (before, namespace))?;
                vacuum(connection)
            })
        })
    }

    fn delete(&self, namespace: &Namespace, deletion: &Deletion) -> Result<RemovedCounts, Error> {
        let (deleted_from, deletion) = (namespace.clone(), deletion.clone());
        let removed = self.remove_with(move |connection| {
            let Some(namespace) = find_namespace(connection, &deleted_from)? else { return Ok(Vec::new()) };
            delete_rows(connection, namespace, &deletion)
        })?;
        // From here on nothing resolves to the texts; now their bytes are removed from the files.
        self.write_with(|database| {
            let (readers, writer) = (database.shared_readers(), database.write_queue()?);
            repack::repack_all(&readers, writer, ArchiveScope::Namespace(namespace), RepackGoal::Erase)?;
            writer.write_durably(vacuum)?;
            sync::truncate_wal(&connection::open_for_writing(readers.path())?)?;
            database.index().erase_removed(&readers, namespace)
        })?;
        Ok(removed)
    }

    fn namespaces(&self) -> Result<Vec<Namespace>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let mut statement = connection.prepare("SELECT name FROM namespace ORDER BY name")?;
                let names = statement.query_map((), |row| row.get::<_, String>(0))?;
                names.map(|name| Namespace::new(name?)).collect()
            })
        })
    }

    fn compact(&self, scope: ArchiveScope<'_>) -> Result<(), Error> {
        self.write_with(|database| {
            repack::repack_all(&database.shared_readers(), database.write_queue()?, scope, RepackGoal::SaveSpace)
        })
    }

    fn stats(&self, namespace: &Namespace) -> Result<StoreStats, Error> {
        self.read_with(|database| {
            let path = database.readers().path();
            let size = |suffix| std::fs::metadata(permissions::sibling_path(path, suffix)).map_or(0, |file| file.len());
            let empty = StoreStats {
                file_bytes: size("") + size("-wal"),
                index_bytes: size(".index") + size(".index-wal"),
                ..StoreStats::default()
            };
            database.readers().read(|connection| match find_namespace(connection, namespace)? {
                Some(namespace) => select_stats(connection, namespace, empty),
                None => Ok(empty),
            })
        })
    }

    fn original_bytes(&self, scope: ArchiveScope<'_>) -> Result<u64, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let namespace = find_scope(connection, scope)?;
                let sql = "SELECT sum(length) FROM original WHERE state <> 1 AND (?1 IS NULL OR namespace = ?1)";
                Ok(connection.query_row(sql, [namespace], |row| get_count(row, 0))?)
            })
        })
    }

    fn check_structure(&self) -> Result<Vec<String>, Error> {
        self.read_with(|database| {
            database.readers().read(|connection| {
                let mut statement = connection.prepare("PRAGMA quick_check(20)")?;
                let found = statement.query_map((), |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>();
                // An aborted check has found an error too.
                let found = found.unwrap_or_else(|error| vec![error.to_string()]);
                Ok(found.into_iter().filter(|line| line != "ok").collect())
            })
        })
    }
}

impl SqliteStore {
    /// Runs a job that removes originals, durably, and removes them from the index.
    fn remove_with(
        &self,
        job: impl FnOnce(&Connection) -> Result<Vec<RemovedRow>, Error> + Send + 'static,
    ) -> Result<RemovedCounts, Error> {
        self.write_with(|database| {
            let removed = database.write_queue()?.write_durably(job)?;
            let rows: Vec<(i64, i64)> = removed.iter().map(|(namespace, id, _)| (*namespace, *id)).collect();
            database.index().remove(database.readers(), &rows)?;
            Ok(RemovedCounts {
                originals: removed.len() as u64,
                bytes: removed.iter().map(|(_, _, length)| u64::try_from(*length).unwrap_or(0)).sum(),
            })
        })
    }
}

/// Expires originals, except those that a request has carried since `before`.
fn expire_rows(connection: &Connection, ids: &[i64], before: i64, now: i64) -> Result<Vec<RemovedRow>, Error> {
    let mut choose = connection.prepare_cached(
        "SELECT namespace, id, length, pack FROM original WHERE id = ?1 AND state <> 1 AND carried_at < ?2",
    )?;
    let mut expire =
        connection.prepare_cached("UPDATE original SET state = 1, pack = NULL, gone_at = ?2 WHERE id = ?1")?;
    let mut expired = Vec::new();
    for id in ids {
        let chosen: Option<(RemovedRow, Option<i64>)> = choose.query_row((id, before), read_removed).optional()?;
        let Some((original, pack)) = chosen else { continue };
        expire.execute((id, now))?;
        repack::drop_empty_pack(connection, pack)?;
        expired.push(original);
    }
    Ok(expired)
}

/// Deletes rows of a namespace without tombstones.
fn delete_rows(connection: &Connection, namespace: i64, deletion: &Deletion) -> Result<Vec<RemovedRow>, Error> {
    let (condition, key) = match deletion {
        Deletion::Everything => ("?2 = ''", ""),
        Deletion::Session(key) => {
            ("session = (SELECT id FROM session WHERE namespace = ?1 AND name = ?2)", key.as_str())
        }
        Deletion::Original(key) => ("handle = ?2", key.as_str()),
    };
    let sql = format!("SELECT namespace, id, length, pack FROM original WHERE namespace = ?1 AND {condition}");
    let mut statement = connection.prepare(&sql)?;
    let chosen = statement.query_map((namespace, key), read_removed)?.collect::<Result<Vec<_>, _>>()?;
    connection.execute(&format!("DELETE FROM original WHERE namespace = ?1 AND {condition}"), (namespace, key))?;
    for (_, pack) in &chosen {
        repack::drop_empty_pack(connection, *pack)?;
    }
    let by_session = match deletion {
        Deletion::Original(_) => None,
        Deletion::Everything => Some(("?2 = ''", "?2 = ''", "?2 = ''")),
        Deletion::Session(_) => Some((condition, "session = ?2", "name = ?2")),
    };
    if let Some((records, facts, sessions)) = by_session {
        count_deletion(connection, namespace)?;
        for (table, condition) in [("request", records), ("event", records), ("ledger", facts), ("session", sessions)] {
            connection
                .execute(&format!("DELETE FROM {table} WHERE namespace = ?1 AND {condition}"), (namespace, key))?;
        }
    }
    Ok(chosen.into_iter().map(|(original, _)| original).collect())
}

fn read_removed(row: &Row<'_>) -> rusqlite::Result<(RemovedRow, Option<i64>)> {
    Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?))
}

/// Deletes requests, events and facts of sessions that ended before a time.
fn delete_old_records(connection: &Connection, namespace: Option<i64>, before: i64) -> Result<(), Error> {
    let affected = "SELECT DISTINCT namespace FROM event WHERE at < ?1 AND (?2 IS NULL OR namespace = ?2)";
    let mut statement = connection.prepare(affected)?;
    let affected = statement.query_map((before, namespace), |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
    affected.into_iter().try_for_each(|namespace| count_deletion(connection, namespace))?;
    for sql in [
        "DELETE FROM request WHERE at < ?1 AND (?2 IS NULL OR namespace = ?2)",
        "DELETE FROM event WHERE at < ?1 AND (?2 IS NULL OR namespace = ?2)",
        "DELETE FROM ledger WHERE at < ?1 AND (?2 IS NULL OR namespace = ?2) AND NOT EXISTS (
             SELECT 1 FROM session AS s
             WHERE s.namespace = ledger.namespace AND s.name = ledger.session AND s.last_at >= ?1)",
        "DELETE FROM session WHERE last_at < ?1 AND (?2 IS NULL OR namespace = ?2)
             AND id NOT IN (SELECT session FROM original WHERE session IS NOT NULL)",
    ] {
        connection.execute(sql, (before, namespace))?;
    }
    Ok(())
}

fn vacuum(connection: &Connection) -> Result<(), Error> {
    let mut statement = connection.prepare("PRAGMA incremental_vacuum")?;
    let mut rows = statement.query(())?;
    while rows.next()?.is_some() {}
    Ok(())
}

fn select_stats(connection: &Connection, namespace: i64, empty: StoreStats) -> Result<StoreStats, Error> {
    let mut stats = connection.query_row(
        "SELECT sum(state = 0), sum(state = 1), sum(state = 2),
             sum(length) FILTER (WHERE state = 0), sum(tokens) FILTER (WHERE state = 0),
             min(kept_at) FILTER (WHERE state = 0), max(kept_at) FILTER (WHERE state = 0)
         FROM original WHERE namespace = ?1",
        [namespace],
        |row| {
            Ok(StoreStats {
                available: get_count(row, 0)?,
                expired: get_count(row, 1)?,
                damaged: get_count(row, 2)?,
                bytes: get_count(row, 3)?,
                tokens: get_count(row, 4)?,
                oldest_at: row.get(5)?,
                newest_at: row.get(6)?,
                ..empty
            })
        },
    )?;
    let one = |sql: &str| connection.query_row(sql, [namespace], |row| get_count(row, 0));
    stats.packed_bytes = one("SELECT sum(length(content)) FROM pack WHERE namespace = ?1")?;
    stats.sessions = one("SELECT count(*) FROM session WHERE namespace = ?1")?;
    stats.tools = connection
        .prepare(
            "SELECT tool, count(*), sum(length), sum(tokens) FROM original
             WHERE namespace = ?1 AND state = 0 AND tool IS NOT NULL
             GROUP BY tool ORDER BY sum(length) DESC, tool LIMIT ?2",
        )?
        .query_map((namespace, MAX_TOOLS), |row| {
            Ok((row.get(0)?, get_count(row, 1)?, get_count(row, 2)?, get_count(row, 3)?))
        })?
        .collect::<Result<_, _>>()?;
    Ok(stats)
}
