//! A tenant's part of the archive: everything of one namespace, and the only way to read an original.

use std::sync::Arc;

use crate::archive::ArchiveCore;
use crate::originals::entry::UnfoldedOriginal;
use crate::sqlite::store::{HandlePrefix, LastPack, SqliteStore};
use crate::sqlite::writer::WriteQueue;
use crate::{Error, ErrorKind, Namespace, SyncHandle};

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
    core: Arc<ArchiveCore>,
    namespace: Namespace,
    session: Option<String>,
}

impl TenantArchive {
    pub(crate) fn new(core: Arc<ArchiveCore>, namespace: Namespace) -> Self {
        Self { core, namespace, session: None }
    }

    /// Returns the same tenant; everything stored through it is attributed to this session.
    pub fn in_session(&self, name: impl Into<String>) -> Self {
        Self { session: Some(name.into()), ..self.clone() }
    }

    /// Requests a sync of everything written so far, by this tenant or another.
    pub fn request_sync(&self) -> SyncHandle {
        self.core.write_queue().map_or_else(|_| SyncHandle::completed(), WriteQueue::request_sync)
    }

    /// Returns the namespace of the tenant.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    pub(crate) fn core(&self) -> &ArchiveCore {
        &self.core
    }

    pub(crate) fn backend(&self) -> &Arc<SqliteStore> {
        &self.core.store
    }

    pub(crate) fn session_name(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Returns the exact original for a handle or a prefix of at least 8 characters.
    pub fn unfold(&self, handle: &str) -> Result<UnfoldedOriginal, Error> {
        let prefix = HandlePrefix::parse(handle)?;
        self.backend().readers.read(|connection| {
            let stored = self.backend().resolve(connection, &self.namespace, &prefix)?;
            let id = stored.id;
            let fetched = self.backend().fetch(connection, &self.namespace, stored, &mut LastPack::default());
            if fetched.as_ref().is_err_and(|error| *error.kind() == ErrorKind::Damaged) {
                self.quarantine(id);
            }
            fetched
        })
    }

    /// Marks an entry as damaged, so that it is not searched and does not count as stored: storing the same original
    /// again replaces it with a good copy.
    fn quarantine(&self, id: i64) {
        if let Ok(writer) = self.core.write_queue() {
            writer.enqueue(move |connection| {
                connection.execute("UPDATE original SET state = 2 WHERE id = ?1 AND state = 0", [id])?;
                Ok(())
            });
        }
    }
}
