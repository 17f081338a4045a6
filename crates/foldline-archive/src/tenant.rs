//! A tenant's part of the archive: everything of one namespace, and the only way to read an original.

use std::sync::Arc;

use crate::audit::{AuditAction, AuditEntry, AuditLog, append_audit};
use crate::encryption::{ArchiveCipher, StoredName, TenantCipher};
use crate::error::Error;
use crate::namespace::Namespace;
use crate::store::ArchiveStore;
use crate::sync_handle::SyncHandle;

/// The part of an archive that belongs to one namespace.
///
/// It implements [`foldline::OriginalStore`] for the engine. Cloning is cheap.
///
/// Besides originals it stores the session state of a server. Facts that renderings depend on are on disk when
/// [`record_fact`](TenantArchive::record_fact) returns; requests and events, which only inform people, are
/// appended without waiting. A caller that sends a rendering without storing its originals again calls
/// [`touch`](TenantArchive::touch), so that retention keeps the originals of its markers.
///
/// ```
/// use foldline_archive::{Archive, Namespace, RequestRecord};
///
/// # let folder = tempfile::tempdir()?;
/// let archive = Archive::open(folder.path().join("archive.db"))?;
/// let tenant = archive.tenant(&Namespace::local()).in_session("first-user-message");
///
/// // The cache was cold at request point 12. The first record wins.
/// tenant.record_fact("cold", &12_u64.to_le_bytes(), b"idle")?;
/// let fact = tenant.record_fact("cold", &12_u64.to_le_bytes(), b"restart")?;
/// assert_eq!(fact.payload, b"idle");
/// assert_eq!(tenant.facts()?, [fact]);
///
/// let request = RequestRecord { model: "gpt-4o".into(), sent_tokens: 20_000, ..RequestRecord::default() };
/// tenant.append_request(&request)?;
/// tenant.append_event("creased", br#"{"saved":20000}"#)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TenantArchive {
    store: Arc<dyn ArchiveStore>,
    namespace: Namespace,
    cipher: TenantCipher,
    session: Option<String>,
    audit: Option<AuditLog>,
}

impl TenantArchive {
    pub(crate) fn new(
        store: Arc<dyn ArchiveStore>,
        cipher: &ArchiveCipher,
        namespace: Namespace,
        audit: Option<AuditLog>,
    ) -> Self {
        Self { store, cipher: cipher.for_namespace(&namespace), namespace, session: None, audit }
    }

    /// Returns the same tenant; everything stored through it is attributed to this session.
    pub fn in_session(&self, name: impl Into<String>) -> Self {
        Self { session: Some(name.into()), ..self.clone() }
    }

    /// Requests a sync of everything written so far, by this tenant or another.
    pub fn request_sync(&self) -> SyncHandle {
        self.store.request_sync()
    }

    /// Returns a number that grows when the store was lost and opened again. Originals that were stored before may be
    /// gone, and have to be stored again.
    pub fn generation(&self) -> u64 {
        self.store.generation()
    }

    /// Returns the namespace of the tenant.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Records an action in the audit log. `describe` adds to the entry, which has the namespace and the session.
    pub(crate) fn audit<'e>(
        &'e self,
        action: AuditAction,
        describe: impl FnOnce(AuditEntry<'e>) -> AuditEntry<'e>,
    ) -> Result<(), Error> {
        let entry = AuditEntry { session: self.session(), ..AuditEntry::new(action, Some(&self.namespace)) };
        append_audit(self.audit.as_ref(), &describe(entry))
    }

    pub(crate) fn store_rows(&self) -> &dyn ArchiveStore {
        &*self.store
    }

    pub(crate) fn cipher(&self) -> &TenantCipher {
        &self.cipher
    }

    pub(crate) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Returns the stored form of the session's name.
    pub(crate) fn session_name(&self) -> Result<Option<StoredName>, Error> {
        self.session.as_deref().map(|name| self.cipher.session_name(name)).transpose()
    }
}
