//! Retention: what is given up, counted from the last request that still carried the marker.
//!
//! An original whose marker may still stand in somebody's conversation is never taken, whatever the
//! limits say: a handle that was handed out must resolve. What is taken leaves a note behind, so that
//! its handle is answered with "expired" rather than "unknown".
//!
//! Work is done in small commits, so that keeps are never held up for long.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension};

use crate::archive::Archive;
use crate::clock::{self, millis};
use crate::entry::Stored;
use crate::keep::signed;
use crate::pack::{self, About, Filling};
use crate::store::{LastPack, Store};
use crate::{Error, Namespace};

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

    /// Packs anew what lies in packs of which little is left, or that were small from the start.
    fn repack_all(&self) -> Result<(), Error> {
        for Wasteful { namespace, packs } in self.core.store.readers.read(wasteful_packs)? {
            // Enough for a few packs, so that a commit stays small. One small pack alone stays as it is.
            for group in packs.chunks(64).filter(|group| group.len() > 1 || group[0].1 == Waste::Holes) {
                let (store, namespace) = (self.core.store.clone(), namespace.clone());
                let group: Vec<i64> = group.iter().map(|(pack, _)| *pack).collect();
                self.core.writer()?.commit(move |connection| repack(connection, &store, &namespace, &group))?;
            }
        }
        Ok(())
    }
}

/// Packs of one namespace that are worth packing anew.
struct Wasteful {
    namespace: Namespace,
    packs: Vec<(i64, Waste)>,
}

/// Why a pack is worth packing anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waste {
    /// More than half of it has expired.
    Holes,
    /// It is so small that it compresses better in company.
    Small,
}

fn wasteful_packs(connection: &Connection) -> Result<Vec<Wasteful>, Error> {
    let mut statement = connection.prepare(
        "SELECT n.name, p.id, 2 * sum(o.about + o.length) < p.length
         FROM pack AS p JOIN original AS o ON o.pack = p.id JOIN namespace AS n ON n.id = p.namespace
         GROUP BY p.id HAVING 2 * sum(o.about + o.length) < p.length OR p.length < ?1
         ORDER BY p.namespace, p.id",
    )?;
    let mut rows = statement.query([signed(pack::SIZE / 4)])?;
    let mut wasteful: Vec<Wasteful> = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let waste = if row.get(2)? { Waste::Holes } else { Waste::Small };
        match wasteful.last_mut() {
            Some(last) if last.namespace.as_str() == name => last.packs.push((row.get(1)?, waste)),
            _ => wasteful.push(Wasteful { namespace: Namespace::new(name)?, packs: vec![(row.get(1)?, waste)] }),
        }
    }
    Ok(wasteful)
}

/// Moves what is left in these packs into as few new ones as it takes. A pack with damage in it stays.
fn repack(connection: &Connection, store: &Store, namespace: &Namespace, packs: &[i64]) -> Result<(), Error> {
    let mut filling = Filling::default();
    let mut moved = Vec::new();
    for &pack in packs {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {} FROM original AS o LEFT JOIN session AS s ON s.id = o.session WHERE o.pack = ?1 ORDER BY o.start",
            Stored::COLUMNS
        ))?;
        let rows = statement.query_map([pack], Stored::read)?.collect::<Result<Vec<_>, _>>()?;
        let mut last = LastPack::default();
        let fetch = |stored: Stored| {
            let id = stored.id;
            store.fetch(connection, namespace, stored, &mut last).map(|unfolded| (id, unfolded))
        };
        let Ok(originals) = rows.into_iter().map(fetch).collect::<Result<Vec<_>, _>>() else { continue };
        for (id, unfolded) in originals {
            if !filling.takes(unfolded.bytes.len()) {
                place(connection, store, namespace, std::mem::take(&mut filling), &std::mem::take(&mut moved))?;
            }
            let about = About { tool: unfolded.entry.tool, arguments: unfolded.entry.arguments };
            moved.push((id, filling.add(&about, &unfolded.bytes)?));
        }
    }
    place(connection, store, namespace, filling, &moved)?;
    let mut drop_pack = connection
        .prepare_cached("DELETE FROM pack WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM original WHERE pack = ?1)")?;
    for pack in packs {
        drop_pack.execute([pack])?;
    }
    Ok(())
}

fn place(
    connection: &Connection,
    store: &Store,
    namespace: &Namespace,
    filling: Filling,
    moved: &[(i64, pack::Place)],
) -> Result<(), Error> {
    if moved.is_empty() {
        return Ok(());
    }
    let (content, length) = filling.close(&store.seal, namespace)?;
    connection
        .prepare_cached(
            "INSERT INTO pack (namespace, length, content) SELECT id, ?2, ?3 FROM namespace WHERE name = ?1",
        )?
        .execute((namespace.as_str(), signed(length), content))?;
    let pack = connection.last_insert_rowid();
    let mut update =
        connection.prepare_cached("UPDATE original SET pack = ?2, start = ?3, about = ?4 WHERE id = ?1")?;
    for (id, place) in moved {
        update.execute((id, pack, signed(place.start), signed(place.about)))?;
    }
    Ok(())
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
