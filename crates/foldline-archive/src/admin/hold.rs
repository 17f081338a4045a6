//! Legal holds: what is held is neither expired nor deleted.
//!
//! A hold of a session covers the originals that the session stored first, its facts, requests and events, and the ledgers
//! of its conversations, which get holds of their own. A hold of the namespace covers everything in it.

use crate::audit::{AuditAction, AuditEntry};
use crate::clock;
use crate::error::Error;
use crate::store::{HoldRow, StoredName};
use crate::tenant::TenantArchive;

/// A legal hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LegalHold {
    /// The session; `None` if the whole namespace is held.
    pub session: Option<String>,
    /// The reason.
    pub reason: String,
    /// Time at which it was set, in milliseconds since 1970.
    pub at: i64,
}

impl TenantArchive {
    /// Holds the data of a session, or of the whole namespace.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written, or is a file.
    pub fn set_hold(&self, session: Option<&str>, reason: &str) -> Result<(), Error> {
        let (session, reason) = (session.map(str::to_owned), reason.to_owned());
        self.insert_hold(LegalHold { session, reason, at: clock::now_millis() })
    }

    /// Sets a hold with its time.
    pub(crate) fn insert_hold(&self, hold: LegalHold) -> Result<(), Error> {
        let LegalHold { session, reason, at } = hold;
        let (name, because) = (session.as_deref(), Some(reason.as_str()));
        self.audit(AuditAction::Hold, |entry| AuditEntry { session: name, reason: because, ..entry })?;
        let row = HoldRow { session: self.stored_session(name)?, reason: reason.clone(), at };
        self.store_rows().set_hold(self.namespace(), row)?;
        self.hold_conversations(&LegalHold { session, reason, at })
    }

    /// Holds the ledgers of the conversations of a held session.
    pub(crate) fn hold_conversations(&self, hold: &LegalHold) -> Result<(), Error> {
        let Some(name) = &hold.session else { return Ok(()) };
        for ledger in self.conversations(name)? {
            let session = self.stored_session(Some(&ledger))?;
            let row = HoldRow { session, reason: format!("{} (conversation of {name})", hold.reason), at: hold.at };
            self.store_rows().set_hold(self.namespace(), row)?;
        }
        Ok(())
    }

    fn stored_session(&self, name: Option<&str>) -> Result<Option<StoredName>, Error> {
        name.map(|name| self.cipher().session_name(name)).transpose()
    }

    /// Releases the hold of a session, or that of the namespace; returns false if there is none.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn release_hold(&self, session: Option<&str>) -> Result<bool, Error> {
        self.audit(AuditAction::Release, |entry| AuditEntry { session, ..entry })?;
        let conversations = session.map(|name| self.conversations(name)).transpose()?.unwrap_or_default();
        let release = |session: Option<&str>| {
            let session = self.stored_session(session)?;
            self.store_rows().release_hold(self.namespace(), session.as_ref().map(|name| name.key.as_str()))
        };
        let released = release(session)?;
        for ledger in &conversations {
            release(Some(ledger))?;
        }
        // A conversation may also be one of another session that is held.
        let others = if conversations.is_empty() { Vec::new() } else { self.holds()? };
        others.iter().try_for_each(|hold| self.hold_conversations(hold))?;
        Ok(released)
    }

    /// Returns the holds of this namespace, oldest first.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn holds(&self) -> Result<Vec<LegalHold>, Error> {
        let open = |row: HoldRow| {
            let session = row.session.map(|name| self.cipher().open_session(name)).transpose()?;
            Ok(LegalHold { session, reason: row.reason, at: row.at })
        };
        self.store_rows().holds(self.namespace())?.into_iter().map(open).collect()
    }
}
