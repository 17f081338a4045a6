//! The journal: sessions, requests and events, for the dashboard and for later analysis. Nothing depends on it, so
//! writing it never waits, and records may be dropped under load.

use crate::clock;
use crate::encryption::TenantCipher;
use crate::error::Error;
use crate::store::{EventRow, RequestRow, SessionRow};
use crate::tenant::TenantArchive;

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
