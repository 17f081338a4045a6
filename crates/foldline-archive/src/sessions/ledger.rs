//! The ledger: external facts on which a rendering depends, such as prepared summaries, creases because a cache was
//! cold, and served unfolds.
//!
//! A recorded fact never changes: renderings were computed from it and must be reproducible. The content of a fact is
//! defined by the engine; here it is bytes.

use rusqlite::OptionalExtension;

use crate::originals::write::{ensure_namespace, ensure_session, find_namespace};
use crate::tenant::TenantArchive;
use crate::{Error, clock};

/// A fact in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerFact {
    /// The kind of the fact.
    pub kind: String,
    /// The subject of the fact.
    pub fingerprint: Vec<u8>,
    /// The content of the fact.
    pub payload: Vec<u8>,
    /// Time at which it was recorded, in milliseconds since 1970.
    pub at: i64,
}

impl TenantArchive {
    /// Records a fact of this session durably and returns it. If a fact of this kind and fingerprint exists, it is kept
    /// and returned instead.
    pub fn record_fact(&self, kind: &str, fingerprint: &[u8], payload: &[u8]) -> Result<LedgerFact, Error> {
        let fact = self.write_fact(kind, fingerprint, payload)?;
        self.request_sync().wait()?;
        Ok(fact)
    }

    /// Records a fact without waiting for the disk; see [`store_unsynced`](TenantArchive::store_unsynced).
    pub fn write_fact(&self, kind: &str, fingerprint: &[u8], payload: &[u8]) -> Result<LedgerFact, Error> {
        // Most facts of a running conversation are recorded again by each request.
        if let Some(fact) = self.fact(kind, fingerprint)? {
            return Ok(fact);
        }
        let now = clock::now_millis();
        let ciphertext = self.backend().cipher.encrypt(self.namespace(), "fact", payload.to_vec())?;
        let (namespace, session) = (self.namespace().clone(), self.session_name().map(str::to_owned));
        let (kind_owned, fingerprint_owned) = (kind.to_owned(), fingerprint.to_vec());
        self.core().write_queue()?.write(move |connection| {
            let namespace = ensure_namespace(connection, &namespace)?;
            if let Some(session) = &session {
                ensure_session(connection, namespace, session, now)?;
            }
            connection
                .prepare_cached(
                    "INSERT OR IGNORE INTO ledger (namespace, session, kind, fingerprint, payload, at)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute((namespace, session.unwrap_or_default(), kind_owned, fingerprint_owned, ciphertext, now))?;
            Ok(())
        })?;
        let missing = || Error::new(crate::ErrorKind::Io, "a fact that was just recorded is missing");
        self.fact(kind, fingerprint)?.ok_or_else(missing)
    }

    /// Returns the fact of this kind and fingerprint in this session, if it exists.
    pub fn fact(&self, kind: &str, fingerprint: &[u8]) -> Result<Option<LedgerFact>, Error> {
        let found: Option<(Vec<u8>, i64)> = self.backend().readers.read(|connection| {
            let Some(namespace) = find_namespace(connection, self.namespace())? else { return Ok(None) };
            let mut statement = connection.prepare_cached(
                "SELECT payload, at FROM ledger WHERE namespace = ?1 AND session = ?2 AND kind = ?3 AND fingerprint = ?4",
            )?;
            let key = (namespace, self.session_name().unwrap_or_default(), kind, fingerprint);
            Ok(statement.query_row(key, |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
        })?;
        found
            .map(|(ciphertext, at)| {
                let payload = self.backend().cipher.decrypt(self.namespace(), "fact", ciphertext)?;
                Ok(LedgerFact { kind: kind.to_owned(), fingerprint: fingerprint.to_vec(), payload, at })
            })
            .transpose()
    }

    /// Returns all facts of this session, oldest first.
    pub fn facts(&self) -> Result<Vec<LedgerFact>, Error> {
        let facts: Vec<LedgerFact> = self.backend().readers.read(|connection| {
            let Some(namespace) = find_namespace(connection, self.namespace())? else { return Ok(Vec::new()) };
            let mut statement = connection.prepare_cached(
                "SELECT kind, fingerprint, payload, at FROM ledger WHERE namespace = ?1 AND session = ?2
                 ORDER BY at, kind, fingerprint",
            )?;
            let rows = statement.query_map((namespace, self.session_name().unwrap_or_default()), |row| {
                Ok(LedgerFact { kind: row.get(0)?, fingerprint: row.get(1)?, payload: row.get(2)?, at: row.get(3)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let open = |fact: LedgerFact| {
            let payload = self.backend().cipher.decrypt(self.namespace(), "fact", fact.payload)?;
            Ok(LedgerFact { payload, ..fact })
        };
        facts.into_iter().map(open).collect()
    }
}
