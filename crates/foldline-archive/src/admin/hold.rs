//! Legal holds: what is held is neither expired nor deleted.
//!
//! A hold of a session covers the originals that the session stored first, its facts, requests and events. A hold of the
//! namespace covers everything in it.

use crate::audit::{AuditAction, AuditEntry};
use crate::clock;
use crate::error::Error;
use crate::store::HoldRow;
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
        let session = name.map(|name| self.cipher().session_name(name)).transpose()?;
        self.store_rows().set_hold(self.namespace(), HoldRow { session, reason, at })
    }

    /// Releases the hold of a session, or that of the namespace; returns false if there is none.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn release_hold(&self, session: Option<&str>) -> Result<bool, Error> {
        self.audit(AuditAction::Release, |entry| AuditEntry { session, ..entry })?;
        let session = session.map(|name| self.cipher().session_name(name)).transpose()?;
        self.store_rows().release_hold(self.namespace(), session.as_ref().map(|name| name.key.as_str()))
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
