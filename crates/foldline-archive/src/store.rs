//! The storage seam: the traits that a store of archives implements.
//!
//! Everything above this file is the same for every store: hashing, packing, compression, encryption, ranking, export.
//! Everything below it is about one database. A store gets rows whose texts are already compressed and, in an encrypted
//! archive, encrypted, and returns them unchanged.
//!
//! Calls block. The engine folds on a thread of its own and stores originals from there, so a local store uses that
//! thread, and a store in the network waits on it for tasks of its own runtime. Only [`ArchiveStore::request_sync`] and
//! the journal do not wait.
//!
//! Every row belongs to a namespace, and every key begins with it. A crease is one [`insert`](OriginalRows::insert), the
//! facts of a session are one [`facts`](LedgerRows::facts), an unfold is one [`read`](OriginalRows::read): a store in
//! the network needs one round trip for each.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::sync_handle::SyncHandle;

pub use crate::encryption::{KeyRange, StoredName};
pub use crate::originals::pack::PackSlot;
pub use crate::search::terms::SearchTerms;

/// A store of archives.
pub trait ArchiveStore:
    OriginalRows + LedgerRows + JournalRows + SearchRows + RetentionRows + HoldRows + Debug + Send + Sync
{
    /// Returns the name of the store for messages: a path or a URL without credentials.
    fn location(&self) -> String;

    /// Returns the random identity of the archive, which was chosen when it was created.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn identity(&self) -> Result<Vec<u8>, Error>;

    /// Returns a number that grows when the store was lost and opened again: rows that were written before may be gone.
    fn generation(&self) -> u64;

    /// Requests that everything written so far survives a power loss.
    fn request_sync(&self) -> SyncHandle;

    /// Gives an archive without data the identity of another one, whose data is copied into it.
    ///
    /// # Errors
    ///
    /// If the store has data of an archive with another identity, or cannot be written.
    fn adopt_identity(&self, _: &[u8]) -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidInput, "the target of a migration is an archive in PostgreSQL"))
    }

    /// Waits for an answer of the database. A file needs none.
    ///
    /// # Errors
    ///
    /// If the database is not reachable.
    fn ping(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns whether the store answered last, without asking it.
    fn health(&self) -> StoreHealth {
        StoreHealth::default()
    }
}

/// The state of a store in the network. A file has the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreHealth {
    /// The reason why the last call failed, if the database was not reachable.
    pub outage: Option<String>,
    /// The state of the object store, if there is one.
    pub objects: Option<ObjectHealth>,
    /// Round trips to the store so far.
    pub round_trips: u64,
}

/// The state of the object store of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectHealth {
    /// The reason why the last call failed, if the object store was not reachable.
    pub outage: Option<String>,
}

/// The part of an archive that an operation covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveScope<'n> {
    /// All namespaces.
    Everything,
    /// One namespace.
    Namespace(&'n Namespace),
}

impl<'n> ArchiveScope<'n> {
    /// Returns the namespace, unless the scope is everything.
    pub fn namespace(self) -> Option<&'n Namespace> {
        match self {
            ArchiveScope::Everything => None,
            ArchiveScope::Namespace(namespace) => Some(namespace),
        }
    }
}

/// The state of an original. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalState {
    /// It can be unfolded.
    Available = 0,
    /// Retention has removed its bytes.
    Expired = 1,
    /// Its bytes have changed.
    Damaged = 2,
}

/// A pack to be stored: originals that are compressed, and encrypted, together.
#[derive(Clone, Debug)]
pub struct NewPack {
    /// The bytes to store.
    pub content: Vec<u8>,
    /// The number of bytes before compression.
    pub length: usize,
    /// The originals in it.
    pub originals: Vec<NewRow>,
}

/// An original to be stored, without its bytes.
#[derive(Clone, Debug)]
pub struct NewRow {
    /// Its handle, unique in its namespace.
    pub handle: StoredName,
    /// Its whole hash.
    pub hash: [u8; 32],
    /// Its position in the pack.
    pub slot: PackSlot,
    /// Its tokens.
    pub tokens: u64,
    /// The index of its message.
    pub message: u64,
    /// The tool that produced it; `None` in an encrypted archive.
    pub tool: Option<String>,
    /// The session that stores it.
    pub session: Option<StoredName>,
    /// Time at which it was first stored, in milliseconds since 1970.
    pub kept_at: i64,
    /// Time of the last known request with its marker.
    pub carried_at: i64,
}

/// The result of storing one original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertOutcome {
    /// It is new, or replaces an expired or damaged copy.
    Added,
    /// It was already stored.
    Existing,
    /// Another text has its handle; nothing was stored.
    HandleTaken,
}

/// An original in the store, without its bytes.
#[derive(Clone, Debug)]
pub struct OriginalRow {
    /// Its id. Ids grow: a later original has a larger one.
    pub id: i64,
    /// Its handle.
    pub handle: StoredName,
    /// Its whole hash.
    pub hash: [u8; 32],
    /// Its state.
    pub state: OriginalState,
    /// Its position in its pack.
    pub slot: PackSlot,
    /// Its tokens.
    pub tokens: u64,
    /// The index of its message.
    pub message: u64,
    /// The session that stored it first.
    pub session: Option<StoredName>,
    /// Time at which it was stored, in milliseconds since 1970.
    pub kept_at: i64,
    /// Time of the last known request with its marker.
    pub carried_at: i64,
    /// Time at which it expired.
    pub expired_at: Option<i64>,
}

/// A pack in the store.
#[derive(Clone, Copy, Debug)]
pub struct StoredPack<'p> {
    /// Its id.
    pub id: i64,
    /// The number of bytes before compression.
    pub length: usize,
    /// The bytes as they were stored.
    pub content: &'p [u8],
}

/// The originals to read.
#[derive(Clone, Copy, Debug)]
pub enum OriginalSelection<'s> {
    /// Originals whose keys are in a range, at most this many: available ones first.
    Keys(&'s KeyRange, usize),
    /// Available originals with these ids, in this order.
    Ids(&'s [i64]),
    /// Originals that have not expired with ids above this one, at most this many, in the order of their ids.
    After(i64, usize),
}

/// Called for each original that is read, with its namespace and its pack; returning `Break` ends the read. The pack is
/// `None` if the original has expired or its pack is missing.
pub type OriginalVisitor<'v> =
    dyn FnMut(&Namespace, OriginalRow, Option<StoredPack<'_>>) -> Result<ControlFlow<()>, Error> + 'v;

/// The hash of an original that was stored before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownOriginal {
    /// The key of its handle.
    pub key: String,
    /// Its whole hash.
    pub hash: [u8; 32],
    /// True if its bytes are available.
    pub is_available: bool,
    /// Time of the last known request with its marker.
    pub carried_at: i64,
}

/// Originals.
pub trait OriginalRows {
    /// Returns those of these keys that are stored, so that originals that are stored already need not be packed again.
    /// A store for which this costs as much as an insert returns nothing.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn find_known(&self, namespace: &Namespace, keys: &[&str]) -> Result<Vec<KnownOriginal>, Error>;

    /// Stores packs in one transaction and returns the outcome of each original, in order. An original that is stored
    /// already is marked as carried; one whose handle belongs to a different hash is refused, and the others are stored.
    ///
    /// # Errors
    ///
    /// If the store cannot be written; then nothing is stored.
    fn insert(&self, namespace: &Namespace, packs: Vec<NewPack>) -> Result<Vec<InsertOutcome>, Error>;

    /// Records that a request carried the markers of these keys, without waiting. May be dropped under load.
    ///
    /// # Errors
    ///
    /// If the store is read-only.
    fn touch(&self, namespace: &Namespace, keys: Vec<String>, at: i64) -> Result<(), Error>;

    /// Calls `visit` for each selected original. All rows are of one snapshot, except of a selection by ids, whose caller may
    /// have enough before the end.
    ///
    /// # Errors
    ///
    /// If the store cannot be read, or the first error of `visit`.
    fn read(
        &self,
        scope: ArchiveScope<'_>,
        selection: OriginalSelection<'_>,
        visit: &mut OriginalVisitor<'_>,
    ) -> Result<(), Error>;

    /// Changes the state of originals that have not expired.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn set_states(&self, changes: Vec<(i64, OriginalState)>) -> Result<(), Error>;
}

/// A fact of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactRow {
    /// The session; `None` if the fact belongs to no session.
    pub session: Option<StoredName>,
    /// The kind of the fact.
    pub kind: String,
    /// The key of its fingerprint.
    pub fingerprint: Vec<u8>,
    /// The content.
    pub payload: Vec<u8>,
    /// Time at which it was recorded, in milliseconds since 1970.
    pub at: i64,
    /// Time at which its session was last used; ignored when the fact is stored.
    pub session_used_at: Option<i64>,
}

/// The ledger.
pub trait LedgerRows {
    /// Stores a fact unless one of this session, kind and fingerprint exists, and returns the one that is stored then,
    /// and true if it is the new one.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn insert_fact(&self, namespace: &Namespace, fact: FactRow) -> Result<(FactRow, bool), Error>;

    /// Returns the selected facts, oldest first.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn facts(&self, namespace: &Namespace, selection: FactSelection<'_>) -> Result<Vec<FactRow>, Error>;
}

/// The facts to read. A session is named by its key; an empty key selects the facts of no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactSelection<'s> {
    /// One fact.
    One {
        /// The key of the session.
        session: &'s str,
        /// The kind of the fact.
        kind: &'s str,
        /// The key of its fingerprint.
        fingerprint: &'s [u8],
    },
    /// All facts of these sessions.
    Sessions(&'s [&'s str]),
    /// All facts of the namespace.
    All,
}

/// A request in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// The session.
    pub session: Option<StoredName>,
    /// Time at which it was sent, in milliseconds since 1970.
    pub at: i64,
    /// The model; empty in an encrypted archive, where the payload has it.
    pub model: String,
    /// Tokens before folding.
    pub raw_tokens: u64,
    /// Tokens as sent.
    pub sent_tokens: u64,
    /// Number of folds.
    pub folds: u64,
    /// Additional data.
    pub payload: Vec<u8>,
}

/// An event in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// Its id; ignored when it is appended.
    pub id: i64,
    /// The session.
    pub session: Option<StoredName>,
    /// Time of the event, in milliseconds since 1970.
    pub at: i64,
    /// The kind.
    pub kind: String,
    /// The content.
    pub payload: Vec<u8>,
}

/// A session in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Its name.
    pub name: StoredName,
    /// Time at which it was first seen, in milliseconds since 1970.
    pub first_at: i64,
    /// Time at which it was last seen.
    pub last_at: i64,
    /// Number of recorded requests.
    pub requests: u64,
    /// Their tokens before folding.
    pub raw_tokens: u64,
    /// Their tokens as sent.
    pub sent_tokens: u64,
}

/// The end of a journal, and how often parts of it were deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalState {
    /// Number of deletions of events so far. A reader that has added up events begins again when it changes.
    pub deletions: u64,
    /// The id of the newest event; 0 if there is none.
    pub newest_event: i64,
}

/// What a reader made of the events up to one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRow {
    /// The id of the last event that it covers.
    pub position: i64,
    /// The number of deletions when the events were read.
    pub deletions: u64,
    /// The content.
    pub payload: Vec<u8>,
}

/// The journal. Appending does not wait, and records may be dropped under load.
pub trait JournalRows {
    /// Appends a request.
    ///
    /// # Errors
    ///
    /// If the store is read-only.
    fn append_request(&self, namespace: &Namespace, request: RequestRow) -> Result<(), Error>;

    /// Appends an event.
    ///
    /// # Errors
    ///
    /// If the store is read-only.
    fn append_event(&self, namespace: &Namespace, event: EventRow) -> Result<(), Error>;

    /// Records that a session is in use, without waiting. May be dropped under load.
    ///
    /// # Errors
    ///
    /// If the store is read-only.
    fn touch_session(&self, namespace: &Namespace, session: StoredName, at: i64) -> Result<(), Error>;

    /// Returns sessions, last seen first.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn sessions(&self, namespace: &Namespace, limit: usize) -> Result<Vec<SessionRow>, Error>;

    /// Returns requests since a time, newest first.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn requests(&self, namespace: &Namespace, since: i64, limit: usize) -> Result<Vec<RequestRow>, Error>;

    /// Returns events with ids above this one, oldest first.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn events(&self, namespace: &Namespace, after: i64, limit: usize) -> Result<Vec<EventRow>, Error>;

    /// Waits until records that were appended before are visible or dropped, at most this long. Returns false if it was
    /// too short.
    ///
    /// # Errors
    ///
    /// If the store is read-only.
    fn flush_journal(&self, limit: Duration) -> Result<bool, Error>;

    /// Returns the end of the journal and its number of deletions, of one moment.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn journal_state(&self, namespace: &Namespace) -> Result<JournalState, Error>;

    /// Returns the checkpoint of the journal, unless events were deleted since.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn checkpoint(&self, namespace: &Namespace) -> Result<Option<CheckpointRow>, Error>;

    /// Stores a checkpoint, unless events were deleted since they were read or a later one is stored. Deleting events
    /// deletes the checkpoint in the same transaction. Returns true if it was stored.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn write_checkpoint(&self, namespace: &Namespace, checkpoint: CheckpointRow) -> Result<bool, Error>;
}

/// Originals that may match a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SearchCandidates {
    /// Their ids, newest first.
    pub ids: Vec<i64>,
    /// Number of originals that contain each word of the query; an estimate if there are many.
    pub matches: Vec<f64>,
    /// Number of indexed originals of the namespace.
    pub documents: u64,
    /// Number of words in them.
    pub words: u64,
}

/// The search index. It is derived from the originals and may be behind them, but not after `find_candidates`.
pub trait SearchRows {
    /// Returns the newest originals that contain all the words, at most `limit`; if there are fewer, also originals
    /// with some of them. `None` if nothing is indexed.
    ///
    /// # Errors
    ///
    /// If the index cannot be read.
    fn find_candidates(
        &self,
        namespace: &Namespace,
        words: &[SearchTerms],
        limit: usize,
    ) -> Result<Option<SearchCandidates>, Error>;
}

/// Numbers of originals and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedCounts {
    /// Originals.
    pub originals: u64,
    /// Their bytes before compression.
    pub bytes: u64,
}

/// The data to delete at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// All data of the namespace.
    Everything,
    /// The originals, facts, requests and events of the session with this key.
    Session(String),
    /// The original with this key of its handle.
    Original(String),
}

/// The numbers of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Originals that can be unfolded.
    pub available: u64,
    /// Originals that retention has removed.
    pub expired: u64,
    /// Originals that are damaged.
    pub damaged: u64,
    /// Bytes of the available originals.
    pub bytes: u64,
    /// Tokens of the available originals.
    pub tokens: u64,
    /// Bytes of packs as stored.
    pub packed_bytes: u64,
    /// The part of them that is in an object store.
    pub object_bytes: u64,
    /// Sessions.
    pub sessions: u64,
    /// Time at which the oldest available original was stored, in milliseconds since 1970.
    pub oldest_at: Option<i64>,
    /// Time at which the newest available original was stored.
    pub newest_at: Option<i64>,
    /// The tools that produced most bytes: name, originals, bytes, tokens.
    pub tools: Vec<(String, u64, u64, u64)>,
    /// Bytes of the whole store, all namespaces together.
    pub file_bytes: u64,
    /// Bytes of the search index.
    pub index_bytes: u64,
}

/// Retention, deletion, statistics.
pub trait RetentionRows {
    /// Returns the bytes that the scope uses in the store.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn used_bytes(&self, scope: ArchiveScope<'_>) -> Result<u64, Error>;

    /// Returns the originals that no request has carried since a time, least recently carried first.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn unused_since(&self, scope: ArchiveScope<'_>, before: i64) -> Result<Vec<i64>, Error>;

    /// Expires those of these originals that no request has carried since `before`, durably. A tombstone remains.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn expire(&self, ids: &[i64], before: i64, now: i64) -> Result<RemovedCounts, Error>;

    /// Deletes requests, events, and facts of sessions that ended before a time, durably.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn delete_records(&self, scope: ArchiveScope<'_>, before: i64) -> Result<(), Error>;

    /// Deletes tombstones of originals that expired before a time.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn delete_tombstones(&self, scope: ArchiveScope<'_>, before: i64) -> Result<(), Error>;

    /// Deletes data at once and durably, without tombstones, whatever its age.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn delete(&self, namespace: &Namespace, deletion: &Deletion) -> Result<RemovedCounts, Error>;

    /// Returns the namespaces that have data, or had it.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn namespaces(&self) -> Result<Vec<Namespace>, Error>;

    /// Moves originals out of packs that waste space, and returns free space to the system.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn compact(&self, scope: ArchiveScope<'_>) -> Result<(), Error>;

    /// Returns the numbers of a namespace.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn stats(&self, namespace: &Namespace) -> Result<StoreStats, Error>;

    /// Returns the bytes of all originals of a scope that have not expired.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn original_bytes(&self, scope: ArchiveScope<'_>) -> Result<u64, Error>;

    /// Checks the structure of the database, and returns what is wrong with it.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn check_structure(&self) -> Result<Vec<String>, Error>;
}

/// A legal hold: data that is neither expired nor deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRow {
    /// The session; `None` if the whole namespace is held.
    pub session: Option<StoredName>,
    /// The reason.
    pub reason: String,
    /// Time at which it was set, in milliseconds since 1970.
    pub at: i64,
}

/// Legal holds. A store without them refuses to set one.
pub trait HoldRows {
    /// Sets a hold, or changes the reason of an existing one.
    ///
    /// # Errors
    ///
    /// If the store cannot be written, or has no holds.
    fn set_hold(&self, _: &Namespace, _: HoldRow) -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidInput, "an archive in a file has no legal holds; use one in PostgreSQL"))
    }

    /// Releases the hold of the session with this key, or of the namespace; returns false if there is none.
    ///
    /// # Errors
    ///
    /// If the store cannot be written.
    fn release_hold(&self, _: &Namespace, _: Option<&str>) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns the holds of a namespace, oldest first.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    fn holds(&self, _: &Namespace) -> Result<Vec<HoldRow>, Error> {
        Ok(Vec::new())
    }
}
