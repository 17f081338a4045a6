//! Verification: reads and hashes every original again, and marks those that changed as damaged.

use foldline::Handle;
use rusqlite::Connection;

use crate::archive::Archive;
use crate::originals::entry::{OriginalRow, OriginalState};
use crate::sqlite::store::LastPack;
use crate::{Error, Namespace};

/// Originals that are verified between two progress reports.
const BATCH_ORIGINALS: i64 = 256;

/// Progress in bytes of originals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteProgress {
    /// Bytes processed so far.
    pub done_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
}

/// The results of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Originals that are intact.
    pub intact: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Originals that are damaged.
    pub damaged: Vec<DamagedOriginal>,
    /// Originals that were marked as damaged and are intact.
    pub recovered: u64,
    /// Errors of SQLite's integrity check; empty if there are none.
    pub structure_errors: Vec<String>,
}

/// An original whose bytes have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedOriginal {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its handle.
    pub handle: Handle,
    /// The reason.
    pub reason: String,
}

impl Archive {
    /// Reads and hashes every original. Damaged ones are reported and, if the archive is writable, marked; the rest
    /// remains available.
    pub fn verify(&self, mut progress: impl FnMut(ByteProgress)) -> Result<VerifyReport, Error> {
        let store = &self.core.store;
        let mut verified =
            VerifyReport { structure_errors: store.readers.read(quick_check)?, ..VerifyReport::default() };
        let total = store.readers.read(|connection| {
            let total = "SELECT coalesce(sum(length), 0) FROM original WHERE state <> 1";
            Ok(connection.query_row(total, (), |row| row.get::<_, i64>(0))?)
        })?;
        let mut at = ByteProgress { done_bytes: 0, total_bytes: u64::try_from(total).unwrap_or(0) };
        let (mut last_id, mut last) = (0, LastPack::default());
        loop {
            let mut changes = Vec::new();
            let verified_up_to = store.readers.read(|connection| {
                let rows = next_rows(connection, last_id)?;
                let newest = rows.last().map(|(stored, _)| stored.id);
                for (mut stored, namespace) in rows {
                    let (id, handle, length) = (stored.id, stored.handle, stored.slot.length as u64);
                    let before = std::mem::replace(&mut stored.state, OriginalState::Available);
                    match store.fetch(connection, &namespace, stored, &mut last) {
                        Ok(_) => {
                            verified.intact += 1;
                            verified.bytes += length;
                            if before == OriginalState::Damaged {
                                verified.recovered += 1;
                                changes.push((id, OriginalState::Available));
                            }
                        }
                        Err(error) => {
                            verified.damaged.push(DamagedOriginal { namespace, handle, reason: error.to_string() });
                            changes.push((id, OriginalState::Damaged));
                        }
                    }
                    at.done_bytes += length;
                }
                Ok(newest)
            })?;
            let Some(newest) = verified_up_to else { break };
            last_id = newest;
            self.update_states(changes)?;
            progress(at);
        }
        Ok(verified)
    }

    fn update_states(&self, changes: Vec<(i64, OriginalState)>) -> Result<(), Error> {
        match self.core.write_queue() {
            Ok(writer) if !changes.is_empty() => writer.write_durably(move |connection| {
                let mut update =
                    connection.prepare_cached("UPDATE original SET state = ?2 WHERE id = ?1 AND state <> 1")?;
                for (id, state) in changes {
                    update.execute((id, state as i64))?;
                }
                Ok(())
            }),
            _ => Ok(()),
        }
    }
}

fn next_rows(connection: &Connection, after: i64) -> Result<Vec<(OriginalRow, Namespace)>, Error> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {}, n.name FROM original AS o
         JOIN namespace AS n ON n.id = o.namespace LEFT JOIN session AS s ON s.id = o.session
         WHERE o.id > ?1 AND o.state <> 1 ORDER BY o.id LIMIT ?2",
        OriginalRow::COLUMNS
    ))?;
    let mut rows = statement.query((after, BATCH_ORIGINALS))?;
    let mut next = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(row.as_ref().column_count() - 1)?;
        next.push((OriginalRow::from_row(row)?, Namespace::new(name)?));
    }
    Ok(next)
}

fn quick_check(connection: &Connection) -> Result<Vec<String>, Error> {
    let mut statement = connection.prepare("PRAGMA quick_check(20)")?;
    let found = statement.query_map((), |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>();
    // An aborted check has found an error too.
    let found = found.unwrap_or_else(|error| vec![error.to_string()]);
    Ok(found.into_iter().filter(|line| line != "ok").collect())
}
