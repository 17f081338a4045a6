//! Deletion on request: everything of a tenant, one session, or one original, whatever its age.
//!
//! Markers of deleted originals no longer resolve, also in conversations that continue. There is no tombstone: nothing
//! shows that the data existed.

use foldline::Handle;

use crate::archive::Archive;
use crate::audit::{AuditAction, AuditEntry};
use crate::error::Error;
use crate::store::Deletion;
use crate::tenant::TenantArchive;

/// The results of a deletion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeleteReport {
    /// Originals that were deleted.
    pub originals: u64,
    /// Their bytes, before compression.
    pub bytes: u64,
}

impl Archive {
    /// Deletes all data of all namespaces, durably.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn delete_everything(&self) -> Result<DeleteReport, Error> {
        let mut deleted = DeleteReport::default();
        for namespace in self.store_rows().namespaces()? {
            let removed = self.tenant(&namespace).delete_everything()?;
            deleted.originals += removed.originals;
            deleted.bytes += removed.bytes;
        }
        Ok(deleted)
    }
}

impl TenantArchive {
    /// Deletes all originals, facts and records of this namespace, durably.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn delete_everything(&self) -> Result<DeleteReport, Error> {
        self.audit(AuditAction::Delete, |entry| entry)?;
        self.delete(&Deletion::Everything)
    }

    /// Deletes the originals that a session stored first, its records, and its facts with those of its conversations,
    /// durably.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn delete_session(&self, name: &str) -> Result<DeleteReport, Error> {
        self.audit(AuditAction::Delete, |entry| AuditEntry { session: Some(name), ..entry })?;
        let held: Vec<String> = self.holds()?.into_iter().filter_map(|hold| hold.session).collect();
        // A conversation may also be one of a session that is held.
        let conversations = match held.iter().any(|session| session == name) {
            true => Vec::new(),
            false => self.conversations(name)?.into_iter().filter(|ledger| !held.contains(ledger)).collect(),
        };
        let mut deleted = DeleteReport::default();
        // The list of the conversations is the last of them: until it is deleted, a deletion that failed can be repeated.
        for session in std::iter::once(name).chain(conversations.iter().map(String::as_str)) {
            let removed = self.delete(&Deletion::Session(self.cipher().session_name(session)?.key))?;
            deleted.originals += removed.originals;
            deleted.bytes += removed.bytes;
        }
        Ok(deleted)
    }

    /// Deletes one original, durably.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn delete_original(&self, handle: Handle) -> Result<DeleteReport, Error> {
        self.audit(AuditAction::Delete, |entry| AuditEntry { handle: Some(handle.as_str()), ..entry })?;
        self.delete(&Deletion::Original(self.cipher().handle_name(handle)?.key))
    }

    fn delete(&self, deletion: &Deletion) -> Result<DeleteReport, Error> {
        let removed = self.store_rows().delete(self.namespace(), deletion)?;
        Ok(DeleteReport { originals: removed.originals, bytes: removed.bytes })
    }
}
