//! A shelf: the part of the archive that belongs to one namespace, and the only place from which an
//! original can be had.

use std::sync::Arc;

use crate::archive::ArchiveCore;
use crate::originals::entry::UnfoldedOriginal;
use crate::sqlite::store::{HandlePrefix, LastPack, SqliteStore};
use crate::sqlite::writer::WriteQueue;
use crate::{Error, ErrorKind, Namespace, SyncHandle};

/// The part of an archive that belongs to one namespace.
///
/// It implements [`foldline::OriginalStore`], so the engine can be given one. Cloning is cheap.
///
/// Beside originals it holds what a server has to remember of a session. What must come out the same again
/// is a fact and is on disk when [`record`](Shelf::record) returns; what is only told to people (requests,
/// events) is noted without waiting. Whoever sends a rendering without keeping its originals anew says
/// with [`touch`](Shelf::touch) that its markers are still in use, so that retention leaves them alone.
///
/// ```
/// use foldline_archive::{Archive, Namespace, Request};
///
/// # let folder = tempfile::tempdir()?;
/// let archive = Archive::open(folder.path().join("archive.db"))?;
/// let shelf = archive.shelf(&Namespace::local()).in_session("first-user-message");
///
/// // The cache was found cold at request point 12. The first to say so is right, whoever asks later.
/// shelf.record("cold", &12_u64.to_le_bytes(), b"idle")?;
/// let fact = shelf.record("cold", &12_u64.to_le_bytes(), b"restart")?;
/// assert_eq!(fact.payload, b"idle");
/// assert_eq!(shelf.facts()?, [fact]);
///
/// shelf.note_request(&Request { model: "gpt-4o".into(), raw_tokens: 40_000, sent_tokens: 20_000, ..Request::default() })?;
/// shelf.note_event("creased", br#"{"saved":20000}"#)?;
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

    /// The same shelf, noting this session with all that is kept and recorded through it.
    pub fn in_session(&self, name: impl Into<String>) -> Self {
        Self { session: Some(name.into()), ..self.clone() }
    }

    /// The way to the disk of all that was written by now, through this shelf or another.
    pub fn request_sync(&self) -> SyncHandle {
        self.core.write_queue().map_or_else(|_| SyncHandle::completed(), WriteQueue::request_sync)
    }

    /// Whose shelf it is.
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

    /// Returns an original, exactly, by its handle or at least the first 8 characters of it.
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

    /// Sets a damaged entry aside, so that it is neither searched nor taken for held: when the same
    /// original is kept again, the good copy takes its place.
    fn quarantine(&self, id: i64) {
        if let Ok(writer) = self.core.write_queue() {
            writer.enqueue(move |connection| {
                connection.execute("UPDATE original SET state = 2 WHERE id = ?1 AND state = 0", [id])?;
                Ok(())
            });
        }
    }
}
