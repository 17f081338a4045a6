//! The ledger: external facts on which a rendering depends, such as the folds of earlier requests, prepared summaries,
//! creases because a cache was cold, and served unfolds.
//!
//! A recorded fact never changes: renderings were computed from it and must be reproducible. The content of a fact is
//! defined by the engine; here it is bytes.

use crate::clock;
use crate::encryption::TenantCipher;
use crate::error::{Error, ErrorKind};
use crate::store::{FactRow, FactSelection};
use crate::tenant::TenantArchive;

/// The kind of the fact that names the ledger of a conversation.
const CONVERSATION_KIND: &str = "conversation";

/// Returns the name of the session with the list of a session's conversations. No client can send it, and reading the
/// session does not read the list, which grows with each conversation.
fn conversation_list(name: &str) -> String {
    format!("\u{1}{name}")
}

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

/// The ledger of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionLedger {
    /// Its facts, oldest first.
    pub facts: Vec<LedgerFact>,
    /// Time at which the session was last used, in milliseconds since 1970; `None` if it has no facts. It may be a moment
    /// late, because [`touch_session`](TenantArchive::touch_session) does not wait.
    pub used_at: Option<i64>,
}

impl TenantArchive {
    /// Records a fact of this session durably and returns it. If a fact of this kind and fingerprint exists, it is kept
    /// and returned instead.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn record_fact(&self, kind: &str, fingerprint: &[u8], payload: &[u8]) -> Result<LedgerFact, Error> {
        let fact = self.write_fact(kind, fingerprint, payload)?;
        self.request_sync().wait()?;
        Ok(fact)
    }

    /// Records a fact without waiting for the disk; see [`store_unsynced`](TenantArchive::store_unsynced).
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn write_fact(&self, kind: &str, fingerprint: &[u8], payload: &[u8]) -> Result<LedgerFact, Error> {
        let (kind, fingerprint, payload) = (kind.to_owned(), fingerprint.to_vec(), payload.to_vec());
        let fact = LedgerFact { kind, fingerprint, payload, at: clock::now_millis() };
        let (stored, _) = self.insert_fact(self.session(), fact)?;
        Ok(stored)
    }

    /// Stores a fact unless it exists; returns the stored one, and true if it is new.
    pub(crate) fn insert_fact(&self, session: Option<&str>, fact: LedgerFact) -> Result<(LedgerFact, bool), Error> {
        let session = session.map(|name| self.cipher().session_name(name)).transpose()?;
        let row = FactRow {
            session,
            kind: fact.kind,
            fingerprint: self.cipher().fingerprint_key(&fact.fingerprint),
            payload: seal_payload(self.cipher(), &fact.fingerprint, fact.payload)?,
            at: fact.at,
            session_used_at: None,
        };
        let (stored, is_new) = self.store_rows().insert_fact(self.namespace(), row)?;
        Ok((open_fact(self.cipher(), stored)?, is_new))
    }

    /// Returns the fact of this kind and fingerprint in this session, if it exists.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn fact(&self, kind: &str, fingerprint: &[u8]) -> Result<Option<LedgerFact>, Error> {
        let session = self.session_name()?.map(|name| name.key).unwrap_or_default();
        let fingerprint = self.cipher().fingerprint_key(fingerprint);
        let selection = FactSelection::One { session: &session, kind, fingerprint: &fingerprint };
        let found = self.store_rows().facts(self.namespace(), selection)?;
        found.into_iter().next().map(|row| open_fact(self.cipher(), row)).transpose()
    }

    /// Returns all facts of this session, oldest first.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn facts(&self) -> Result<Vec<LedgerFact>, Error> {
        Ok(self.session_ledger(None)?.facts)
    }

    /// Returns the ledger of this session, together with the facts of another one, in one read.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn session_ledger(&self, other: Option<&str>) -> Result<SessionLedger, Error> {
        let session = self.session_name()?.map(|name| name.key).unwrap_or_default();
        let other = other.map(|name| self.cipher().session_name(name)).transpose()?;
        let keys: Vec<&str> = std::iter::once(session.as_str()).chain(other.as_ref().map(|name| &*name.key)).collect();
        let rows = self.store_rows().facts(self.namespace(), FactSelection::Sessions(&keys))?;
        let is_own = |row: &&FactRow| row.session.as_ref().is_some_and(|name| name.key == session);
        let used_at = rows.iter().find(is_own).and_then(|row| row.session_used_at);
        let facts = rows.into_iter().map(|row| open_fact(self.cipher(), row)).collect::<Result<_, _>>()?;
        Ok(SessionLedger { facts, used_at })
    }

    /// Records that the ledger of this session has the facts of a conversation of another one, with which they are
    /// deleted and held.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn join_session(&self, name: &str) -> Result<(), Error> {
        let Some(ledger) = self.session() else { return Ok(()) };
        let list = self.in_session(conversation_list(name));
        let fact = LedgerFact {
            kind: CONVERSATION_KIND.to_owned(),
            fingerprint: ledger.as_bytes().to_vec(),
            payload: ledger.as_bytes().to_vec(),
            at: clock::now_millis(),
        };
        let (_, is_new) = list.insert_fact(list.session(), fact)?;
        if is_new && let Some(hold) = self.holds()?.iter().find(|hold| hold.session.as_deref() == Some(name)) {
            self.hold_conversations(hold)?;
        }
        Ok(())
    }

    /// Returns the sessions whose ledgers have the facts of conversations of a session, and the one with their list.
    pub(crate) fn conversations(&self, name: &str) -> Result<Vec<String>, Error> {
        let list = conversation_list(name);
        let facts = self.in_session(list.as_str()).facts()?.into_iter().filter(|fact| fact.kind == CONVERSATION_KIND);
        let mut ledgers: Vec<String> = facts.filter_map(|fact| String::from_utf8(fact.payload).ok()).collect();
        ledgers.extend((!ledgers.is_empty()).then_some(list));
        Ok(ledgers)
    }

    /// Records that this session is in use, without waiting.
    ///
    /// # Errors
    ///
    /// If the archive is read-only.
    pub fn touch_session(&self) -> Result<(), Error> {
        match self.session_name()? {
            Some(session) => self.store_rows().touch_session(self.namespace(), session, clock::now_millis()),
            None => Ok(()),
        }
    }

    /// Returns all facts of all sessions with the names of their sessions, oldest first.
    pub(crate) fn all_facts(&self) -> Result<Vec<(Option<String>, LedgerFact)>, Error> {
        let rows = self.store_rows().facts(self.namespace(), FactSelection::All)?;
        let open = |mut row: FactRow| {
            let session = row.session.take().map(|name| self.cipher().open_session(name)).transpose()?;
            Ok((session, open_fact(self.cipher(), row)?))
        };
        rows.into_iter().map(open).collect()
    }
}

/// Encrypts a payload. The fingerprint is a hash of a conversation, so an encrypted archive has it only in here.
fn seal_payload(cipher: &TenantCipher, fingerprint: &[u8], payload: Vec<u8>) -> Result<Vec<u8>, Error> {
    if cipher.is_plaintext() {
        return Ok(payload);
    }
    let length = u32::try_from(fingerprint.len())
        .map_err(|_| Error::new(ErrorKind::InvalidInput, "the fingerprint of a fact is too long"))?;
    cipher.encrypt("fact", [&length.to_le_bytes(), fingerprint, &payload].concat())
}

fn open_fact(cipher: &TenantCipher, row: FactRow) -> Result<LedgerFact, Error> {
    let FactRow { kind, fingerprint, payload, at, .. } = row;
    if cipher.is_plaintext() {
        return Ok(LedgerFact { kind, fingerprint, payload, at });
    }
    let plain = cipher.decrypt("fact", payload)?;
    let opened = plain.split_first_chunk::<4>().and_then(|(length, rest)| {
        rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX))
    });
    let (fingerprint, payload) =
        opened.ok_or_else(|| Error::new(ErrorKind::Damaged, "a fact of the ledger ends too early"))?;
    Ok(LedgerFact { kind, fingerprint: fingerprint.to_vec(), payload: payload.to_vec(), at })
}
