//! Retention: what is given up, counted from the last request that still carried the marker.
//!
//! An original whose marker may still stand in somebody's conversation is never taken, whatever the
//! limits say: a handle that was handed out must resolve. What is taken leaves a note behind, so that
//! its handle is answered with "expired" rather than "unknown".
//!
//! Work is done in small commits, so that keeps are never held up for long.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use crate::Error;
use crate::archive::Archive;
use crate::clock::{self, millis};

/// How much one commit takes on.
const BATCH: usize = 500;

/// The note that an original expired is itself forgotten after this time.
const REMEMBERED: Duration = Duration::from_secs(366 * 24 * 3600);

/// What is to be held, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Give up what no request has carried for so long.
    pub age: Option<Duration>,
    /// Give up the longest unused until the archive is not larger than this on disk.
    pub bytes: Option<u64>,
    /// How long after its last request a conversation may still go on. What was carried within this
    /// time is never given up; at least a day.
    pub live: Duration,
}

impl Default for Retention {
    /// No limits, and a week in which a conversation may be taken up again.
    fn default() -> Self {
        Self { age: None, bytes: None, live: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// What retention did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// Originals that were given up.
    pub originals: u64,
    /// Their bytes, before compression.
    pub bytes: u64,
    /// Bytes on disk before.
    pub before: u64,
    /// Bytes on disk after. It may be above the limit when the rest may still be live.
    pub after: u64,
}

impl Archive {
    /// Gives up what retention no longer holds, and packs the rest anew where that saves room.
    pub fn prune(&self, retention: &Retention) -> Result<Pruned, Error> {
        let now = clock::now();
        let live = now - millis(retention.live.max(Duration::from_secs(24 * 3600)));
        let mut pruned = Pruned { before: self.used()?, ..Pruned::default() };
        if let Some(age) = retention.age {
            let before = live.min(now - millis(age));
            for batch in self.unused_since(before)?.chunks(BATCH) {
                self.expire(batch, before, now, &mut pruned)?;
            }
            self.core.writer()?.commit(move |connection| forget_notes(connection, before))?;
        }
        self.repack_all()?;
        if let Some(limit) = retention.bytes {
            let unused = if self.used()? > limit { self.unused_since(live)? } else { Vec::new() };
            for batch in unused.chunks(BATCH) {
                if self.used()? <= limit {
                    break;
                }
                self.expire(batch, live, now, &mut pruned)?;
            }
            self.repack_all()?;
        }
        self.core.writer()?.commit(move |connection| {
            let forgotten = now - millis(REMEMBERED);
            connection.execute("DELETE FROM original WHERE state = 1 AND gone_at < ?1", [forgotten])?;
            give_back_pages(connection)
        })?;
        pruned.after = self.used()?;
        Ok(pruned)
    }

    /// Bytes on disk that are in use, the index apart.
    fn used(&self) -> Result<u64, Error> {
        self.core.store.readers.read(|connection| {
            let number = |pragma| connection.query_row(pragma, (), |row| row.get::<_, i64>(0));
            let pages = number("PRAGMA page_count")? - number("PRAGMA freelist_count")?;
            Ok(u64::try_from(pages * number("PRAGMA page_size")?).unwrap_or(0))
        })
    }

    /// The originals that no request has carried since, longest unused first.
    fn unused_since(&self, before: i64) -> Result<Vec<i64>, Error> {
        self.core.store.readers.read(|connection| {
            let sql = "SELECT id FROM original WHERE state <> 1 AND carried_at < ?1 ORDER BY carried_at, id";
            Ok(connection.prepare(sql)?.query_map([before], |row| row.get(0))?.collect::<Result<_, _>>()?)
        })
    }

    /// Lets these originals expire, except those that a request has carried meanwhile.
    fn expire(&self, ids: &[i64], before: i64, now: i64, pruned: &mut Pruned) -> Result<(), Error> {
        let ids = ids.to_vec();
        let gone = self.core.writer()?.commit(move |connection| {
            let mut choose = connection.prepare_cached(
                "SELECT namespace, id, length, pack FROM original WHERE id = ?1 AND state <> 1 AND carried_at < ?2",
            )?;
            let mut expire =
                connection.prepare_cached("UPDATE original SET state = 1, pack = NULL, gone_at = ?2 WHERE id = ?1")?;
            let mut drop_pack = connection.prepare_cached(
                "DELETE FROM pack WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM original WHERE pack = ?1)",
            )?;
            let mut gone: Vec<(i64, i64, i64)> = Vec::new();
            for id in ids {
                let chosen: Option<(_, Option<i64>)> = choose
                    .query_row((id, before), |row| Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?)))
                    .optional()?;
                let Some((original, pack)) = chosen else { continue };
                expire.execute((id, now))?;
                drop_pack.execute([pack])?;
                gone.push(original);
            }
            Ok(gone)
        })?;
        let store = &self.core.store;
        store.index.forget(store, &gone.iter().map(|(namespace, id, _)| (*namespace, *id)).collect::<Vec<_>>())?;
        pruned.originals += gone.len() as u64;
        pruned.bytes += gone.iter().map(|(_, _, length)| u64::try_from(*length).unwrap_or(0)).sum::<u64>();
        Ok(())
    }
}

/// Forgets requests, events and facts of sessions that ended before.
fn forget_notes(connection: &Connection, before: i64) -> Result<(), Error> {
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

fn give_back_pages(connection: &Connection) -> Result<(), Error> {
    let mut statement = connection.prepare("PRAGMA incremental_vacuum")?;
    let mut rows = statement.query(())?;
    while rows.next()?.is_some() {}
    Ok(())
}
