//! Retention: removes originals by the age of the last request with their marker.
//!
//! An original whose marker may still be in a live conversation is never removed, whatever the limits: an issued handle
//! must resolve. A removed original leaves a tombstone, so that its handle is answered with "expired" rather than
//! "unknown".
//!
//! The work is split into small commits, so that store calls are never blocked for long.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use crate::Error;
use crate::archive::Archive;
use crate::clock;
use crate::clock::to_millis;

/// Originals that one commit expires.
const EXPIRE_BATCH_ROWS: usize = 500;

/// Time after which the tombstone of an expired original is deleted.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// Limits on age and size of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Expires originals that no request has used for this time.
    pub max_age: Option<Duration>,
    /// Expires the least recently used originals until the archive is at most this large on disk.
    pub max_bytes: Option<u64>,
    /// Time after its last request in which a conversation may continue. Originals used within this time are never
    /// expired; at least a day.
    pub min_idle: Duration,
}

impl Default for RetentionPolicy {
    /// Returns a policy without limits, with a week in which a conversation may be resumed.
    fn default() -> Self {
        Self { max_age: None, max_bytes: None, min_idle: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// The results of pruning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneReport {
    /// Originals that expired.
    pub originals: u64,
    /// Their bytes, before compression.
    pub bytes: u64,
    /// Bytes on disk before.
    pub bytes_before: u64,
    /// Bytes on disk after. It may exceed the limit if the rest may still be live.
    pub bytes_after: u64,
}

impl Archive {
    /// Expires originals according to the policy, and repacks the rest where that saves space.
    pub fn prune(&self, retention: &RetentionPolicy) -> Result<PruneReport, Error> {
        let now = clock::now_millis();
        let live = now - to_millis(retention.min_idle.max(Duration::from_secs(24 * 3600)));
        let mut pruned = PruneReport { bytes_before: self.used_bytes()?, ..PruneReport::default() };
        if let Some(age) = retention.max_age {
            let before = live.min(now - to_millis(age));
            for batch in self.unused_since(before)?.chunks(EXPIRE_BATCH_ROWS) {
                self.expire(batch, before, now, &mut pruned)?;
            }
            self.core.write_queue()?.write_durably(move |connection| delete_old_records(connection, before))?;
        }
        self.repack_all()?;
        if let Some(limit) = retention.max_bytes {
            let unused = if self.used_bytes()? > limit { self.unused_since(live)? } else { Vec::new() };
            for batch in unused.chunks(EXPIRE_BATCH_ROWS) {
                if self.used_bytes()? <= limit {
                    break;
                }
                self.expire(batch, live, now, &mut pruned)?;
            }
            self.repack_all()?;
        }
        self.core.write_queue()?.write_durably(move |connection| {
            let forgotten = now - to_millis(TOMBSTONE_LIFETIME);
            connection.execute("DELETE FROM original WHERE state = 1 AND gone_at < ?1", [forgotten])?;
            vacuum(connection)
        })?;
        pruned.bytes_after = self.used_bytes()?;
        Ok(pruned)
    }

    /// Returns the bytes in use on disk, without the index.
    fn used_bytes(&self) -> Result<u64, Error> {
        self.core.store.readers.read(|connection| {
            let number = |pragma| connection.query_row(pragma, (), |row| row.get::<_, i64>(0));
            let pages = number("PRAGMA page_count")? - number("PRAGMA freelist_count")?;
            Ok(u64::try_from(pages * number("PRAGMA page_size")?).unwrap_or(0))
        })
    }

    /// Returns the originals that no request has used since, least recently used first.
    fn unused_since(&self, before: i64) -> Result<Vec<i64>, Error> {
        self.core.store.readers.read(|connection| {
            let sql = "SELECT id FROM original WHERE state <> 1 AND carried_at < ?1 ORDER BY carried_at, id";
            Ok(connection.prepare(sql)?.query_map([before], |row| row.get(0))?.collect::<Result<_, _>>()?)
        })
    }

    /// Expires these originals, except those that a request has used in the meantime.
    fn expire(&self, ids: &[i64], before: i64, now: i64, pruned: &mut PruneReport) -> Result<(), Error> {
        let ids = ids.to_vec();
        let expired = self.core.write_queue()?.write_durably(move |connection| {
            let mut choose = connection.prepare_cached(
                "SELECT namespace, id, length, pack FROM original WHERE id = ?1 AND state <> 1 AND carried_at < ?2",
            )?;
            let mut expire =
                connection.prepare_cached("UPDATE original SET state = 1, pack = NULL, gone_at = ?2 WHERE id = ?1")?;
            let mut drop_pack = connection.prepare_cached(
                "DELETE FROM pack WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM original WHERE pack = ?1)",
            )?;
            let mut expired: Vec<(i64, i64, i64)> = Vec::new();
            for id in ids {
                let chosen: Option<(_, Option<i64>)> = choose
                    .query_row((id, before), |row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?)))
                    .optional()?;
                let Some((original, pack)) = chosen else { continue };
                expire.execute((id, now))?;
                drop_pack.execute([pack])?;
                expired.push(original);
            }
            Ok(expired)
        })?;
        let store = &self.core.store;
        store.index.remove(store, &expired.iter().map(|(namespace, id, _)| (*namespace, *id)).collect::<Vec<_>>())?;
        pruned.originals += expired.len() as u64;
        pruned.bytes += expired.iter().map(|(_, _, length)| u64::try_from(*length).unwrap_or(0)).sum::<u64>();
        Ok(())
    }
}

/// Deletes requests, events and facts of sessions that ended before a time.
fn delete_old_records(connection: &Connection, before: i64) -> Result<(), Error> {
    connection.execute("DELETE FROM request WHERE at < ?1", [before])?;
    connection.execute("DELETE FROM event WHERE at < ?1", [before])?;
    connection.execute(
        "DELETE FROM ledger WHERE at < ?1 AND NOT EXISTS (
             SELECT 1 FROM session AS s
             WHERE s.namespace = ledger.namespace AND s.name = ledger.session AND s.last_at >= ?1)",
        [before],
    )?;
    connection.execute(
        "DELETE FROM session WHERE last_at < ?1
             AND id NOT IN (SELECT session FROM original WHERE session IS NOT NULL)",
        [before],
    )?;
    Ok(())
}

fn vacuum(connection: &Connection) -> Result<(), Error> {
    let mut statement = connection.prepare("PRAGMA incremental_vacuum")?;
    let mut rows = statement.query(())?;
    while rows.next()?.is_some() {}
    Ok(())
}
