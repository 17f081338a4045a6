//! Unfolding: the exact original of a handle.

use std::ops::ControlFlow;

use foldline::Handle;

use crate::audit::{AuditAction, AuditEntry};
use crate::error::{Error, ErrorKind};
use crate::handle_prefix::HandlePrefix;
use crate::originals::entry::UnfoldedOriginal;
use crate::originals::reader::{LastPack, open_original};
use crate::store::{ArchiveScope, OriginalSelection, OriginalState};
use crate::tenant::TenantArchive;

/// Number of candidates reported for an ambiguous handle prefix.
const MAX_CANDIDATES: usize = 10;

/// An original with the requested prefix, and its row.
struct FoundOriginal {
    id: i64,
    handle: Handle,
    opened: Result<UnfoldedOriginal, Error>,
}

impl TenantArchive {
    /// Returns the exact original for a handle or a prefix of at least 8 characters.
    ///
    /// # Errors
    ///
    /// If no original has this handle, several have the prefix, the original has expired or is damaged, or the read cannot be
    /// recorded in the audit log.
    pub fn unfold(&self, handle: &str) -> Result<UnfoldedOriginal, Error> {
        let opened = self.read_original(handle)?;
        let handle = opened.info.handle;
        self.audit(AuditAction::Unfold, |entry| AuditEntry { handle: Some(handle.as_str()), ..entry })?;
        Ok(opened)
    }

    /// Unfolds without a line in the audit log.
    pub(crate) fn read_original(&self, handle: &str) -> Result<UnfoldedOriginal, Error> {
        let prefix = HandlePrefix::parse(handle)?;
        let mut available: Vec<FoundOriginal> = Vec::new();
        let mut expired: Option<Error> = None;
        let range = self.cipher().handle_range(&prefix);
        let selection = OriginalSelection::Keys(&range, MAX_CANDIDATES + 1);
        let scope = ArchiveScope::Namespace(self.namespace());
        self.store_rows().read(scope, selection, &mut |_, row, pack| {
            let handle = self.cipher().open_handle(row.handle.clone())?;
            if !prefix.matches(handle) {
                return Ok(ControlFlow::Continue(()));
            }
            let (id, is_expired) = (row.id, row.state == OriginalState::Expired);
            let opened = open_original(self.cipher(), row, pack, &mut LastPack::default());
            match opened {
                // Expired originals are reported only if nothing else matches.
                Err(error) if is_expired => drop(expired.get_or_insert(error)),
                opened => available.push(FoundOriginal { id, handle, opened }),
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if available.len() > 1 {
            let candidates = available.iter().take(MAX_CANDIDATES).map(|found| found.handle).collect();
            // A model may read the message, so it lists no candidates.
            let message = format!("several originals have handles that begin with {prefix}; give the whole handle");
            return Err(Error::new(ErrorKind::Ambiguous { candidates }, message));
        }
        let Some(found) = available.pop() else {
            let namespace = self.namespace();
            return Err(expired.unwrap_or_else(|| {
                Error::new(
                    ErrorKind::NotFound,
                    format!("namespace {namespace} has no original with the handle {prefix}"),
                )
            }));
        };
        if found.opened.as_ref().is_err_and(|error| *error.kind() == ErrorKind::Damaged) {
            // A damaged original is not searched and does not count as stored: storing it again replaces it with a good
            // copy. A read-only archive cannot be marked.
            let _ = self.store_rows().set_states(vec![(found.id, OriginalState::Damaged)]);
        }
        found.opened
    }
}
