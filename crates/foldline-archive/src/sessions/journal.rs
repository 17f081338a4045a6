//! The journal: sessions, requests and events, for the dashboard and for later analysis. Nothing depends on it, so
//! writing it never waits, and records may be dropped under load.

use std::time::Duration;

use crate::clock;
use crate::encryption::TenantCipher;
use crate::error::{Error, ErrorKind};
use crate::store::{CheckpointRow, EventRow, JournalState, RequestRow, SessionRow};
use crate::tenant::TenantArchive;

/// Compression of checkpoints: the fastest, since they are rewritten.
const CHECKPOINT_LEVEL: i32 = 1;

/// A recorded session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionRecord {
    /// Its name.
    pub name: String,
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

/// A recorded request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestRecord {
    /// Time at which it was sent, in milliseconds since 1970; set when it is recorded.
    pub at: i64,
    /// Its session; set when it is recorded.
    pub session: Option<String>,
    /// The requested model.
    pub model: String,
    /// Tokens before folding.
    pub raw_tokens: u64,
    /// Tokens as sent.
    pub sent_tokens: u64,
    /// Number of folds in it.
    pub folds: u64,
    /// Additional data in the caller's format.
    pub payload: Vec<u8>,
}

/// A recorded event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventRecord {
    /// Increasing id, for requesting the events after this one.
    pub id: i64,
    /// Time of the event, in milliseconds since 1970.
    pub at: i64,
    /// The session of the event.
    pub session: Option<String>,
    /// The kind of the event.
    pub kind: String,
    /// The content in the caller's format.
    pub payload: Vec<u8>,
}

/// What a reader made of the events up to one of them, to continue there later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalCheckpoint {
    /// The id of the last event that it covers.
    pub position: i64,
    /// The number of deletions when the events were read; see [`JournalState`].
    pub deletions: u64,
    /// The content in the caller's format.
    pub payload: Vec<u8>,
}

impl TenantArchive {
    /// Records a request of this session, without waiting.
    ///
    /// # Errors
    ///
    /// If the archive is read-only.
    pub fn append_request(&self, request: &RequestRecord) -> Result<(), Error> {
        let (model, payload) = seal_request(self.cipher(), request)?;
        let row = RequestRow {
            session: self.session_name()?,
            at: clock::now_millis(),
            model,
            raw_tokens: request.raw_tokens,
            sent_tokens: request.sent_tokens,
            folds: request.folds,
            payload,
        };
        self.store_rows().append_request(self.namespace(), row)
    }

    /// Records an event of this session, without waiting.
    ///
    /// # Errors
    ///
    /// If the archive is read-only.
    pub fn append_event(&self, kind: &str, payload: &[u8]) -> Result<(), Error> {
        let payload = self.cipher().encrypt("event", payload.to_vec())?;
        let (session, at) = (self.session_name()?, clock::now_millis());
        self.store_rows()
            .append_event(self.namespace(), EventRow { id: 0, session, at, kind: kind.to_owned(), payload })
    }

    /// Returns the sessions of this tenant, last seen first.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn sessions(&self, limit: usize) -> Result<Vec<SessionRecord>, Error> {
        let open = |row: SessionRow| {
            let SessionRow { name, first_at, last_at, requests, raw_tokens, sent_tokens } = row;
            let name = self.cipher().open_session(name)?;
            Ok(SessionRecord { name, first_at, last_at, requests, raw_tokens, sent_tokens })
        };
        self.store_rows().sessions(self.namespace(), limit)?.into_iter().map(open).collect()
    }

    /// Returns the requests of this tenant since a time, newest first.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn requests(&self, since: i64, limit: usize) -> Result<Vec<RequestRecord>, Error> {
        let open = |row: RequestRow| {
            let RequestRow { session, at, model, raw_tokens, sent_tokens, folds, payload } = row;
            let session = session.map(|name| self.cipher().open_session(name)).transpose()?;
            let (model, payload) = open_request(self.cipher(), model, payload)?;
            Ok(RequestRecord { at, session, model, raw_tokens, sent_tokens, folds, payload })
        };
        self.store_rows().requests(self.namespace(), since, limit)?.into_iter().map(open).collect()
    }

    /// Returns the events of this tenant after the event with this id, oldest first.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn events(&self, after: i64, limit: usize) -> Result<Vec<EventRecord>, Error> {
        let open = |row: EventRow| {
            let EventRow { id, session, at, kind, payload } = row;
            let session = session.map(|name| self.cipher().open_session(name)).transpose()?;
            let payload = self.cipher().decrypt("event", payload)?;
            Ok(EventRecord { id, at, session, kind, payload })
        };
        self.store_rows().events(self.namespace(), after, limit)?.into_iter().map(open).collect()
    }

    /// Waits until requests and events that were appended before are visible or dropped, at most this long. Returns false
    /// if it was too short.
    ///
    /// # Errors
    ///
    /// If the archive is read-only.
    pub fn flush_journal(&self, limit: Duration) -> Result<bool, Error> {
        self.store_rows().flush_journal(limit)
    }

    /// Returns the end of the journal, and how often events of it were deleted.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read.
    pub fn journal_state(&self) -> Result<JournalState, Error> {
        self.store_rows().journal_state(self.namespace())
    }

    /// Returns the checkpoint of the journal, unless events were deleted since.
    ///
    /// # Errors
    ///
    /// If the archive cannot be read, or the checkpoint is damaged.
    pub fn journal_checkpoint(&self) -> Result<Option<JournalCheckpoint>, Error> {
        let Some(row) = self.store_rows().checkpoint(self.namespace())? else { return Ok(None) };
        let sealed = self.cipher().decrypt("checkpoint", row.payload)?;
        let damaged = || Error::new(ErrorKind::Damaged, "the checkpoint of the journal is damaged");
        let (hash, packed) = sealed.split_first_chunk::<{ blake3::OUT_LEN }>().ok_or_else(damaged)?;
        let payload = zstd::decode_all(packed).map_err(|_| damaged())?;
        if blake3::hash(&payload) != *hash {
            return Err(damaged());
        }
        Ok(Some(JournalCheckpoint { position: row.position, deletions: row.deletions, payload }))
    }

    /// Stores a checkpoint of the journal, so that a reader need not begin with the first event. It is not stored if events
    /// were deleted since they were read, or if a later one is stored; deleting events deletes it. Returns true if it was
    /// stored.
    ///
    /// # Errors
    ///
    /// If the archive cannot be written.
    pub fn write_journal_checkpoint(&self, checkpoint: &JournalCheckpoint) -> Result<bool, Error> {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Io, error.to_string());
        let packed = zstd::encode_all(checkpoint.payload.as_slice(), CHECKPOINT_LEVEL).map_err(failed)?;
        let sealed = [&blake3::hash(&checkpoint.payload).as_bytes()[..], &packed].concat();
        let payload = self.cipher().encrypt("checkpoint", sealed)?;
        let (position, deletions) = (checkpoint.position, checkpoint.deletions);
        self.store_rows().write_checkpoint(self.namespace(), CheckpointRow { position, deletions, payload })
    }
}

/// Returns the model and the payload to store. The model's name is encrypted with the payload.
fn seal_request(cipher: &TenantCipher, request: &RequestRecord) -> Result<(String, Vec<u8>), Error> {
    if cipher.is_plaintext() {
        return Ok((request.model.clone(), request.payload.clone()));
    }
    let plain = [request.model.replace('\n', " ").as_bytes(), b"\n", &request.payload].concat();
    Ok((String::new(), cipher.encrypt("request", plain)?))
}

fn open_request(cipher: &TenantCipher, model: String, payload: Vec<u8>) -> Result<(String, Vec<u8>), Error> {
    if cipher.is_plaintext() {
        return Ok((model, payload));
    }
    let mut model = cipher.decrypt("request", payload)?;
    let end = model.iter().position(|byte| *byte == b'\n').unwrap_or(model.len());
    let payload = model.split_off((end + 1).min(model.len()));
    model.truncate(end);
    Ok((String::from_utf8_lossy(&model).into_owned(), payload))
}
