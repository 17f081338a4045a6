//! The journal: sessions, requests and events, for the dashboard and for later analysis. Nothing depends on it, so
//! writing it never waits, and records may be dropped under load.

use crate::originals::write::{ensure_namespace, ensure_session, find_namespace, to_sql_int};
use crate::tenant::TenantArchive;
use crate::{Error, clock};

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
    pub fn append_request(&self, request: &RequestRecord) -> Result<(), Error> {
        let now = clock::now_millis();
        let payload = self.backend().cipher.encrypt(self.namespace(), "request", request.payload.clone())?;
        let request = RequestRecord { payload, ..request.clone() };
        let (namespace, session) = (self.namespace().clone(), self.session_name().map(str::to_owned));
        self.core().write_queue()?.enqueue(move |connection| {
            let namespace = ensure_namespace(connection, &namespace)?;
            let session = session.map(|name| ensure_session(connection, namespace, &name, now)).transpose()?;
            connection
                .prepare_cached(
                    "INSERT INTO request (namespace, session, at, model, raw_tokens, sent_tokens, folds, payload)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .execute((
                    namespace,
                    session,
                    now,
                    request.model,
                    to_sql_int(request.raw_tokens),
                    to_sql_int(request.sent_tokens),
                    to_sql_int(request.folds),
                    request.payload,
                ))?;
            Ok(())
        });
        Ok(())
    }

    /// Records an event of this session, without waiting.
    pub fn append_event(&self, kind: &str, payload: &[u8]) -> Result<(), Error> {
        let (now, kind) = (clock::now_millis(), kind.to_owned());
        let payload = self.backend().cipher.encrypt(self.namespace(), "event", payload.to_vec())?;
        let (namespace, session) = (self.namespace().clone(), self.session_name().map(str::to_owned));
        self.core().write_queue()?.enqueue(move |connection| {
            let namespace = ensure_namespace(connection, &namespace)?;
            let session = session.map(|name| ensure_session(connection, namespace, &name, now)).transpose()?;
            connection
                .prepare_cached(
                    "INSERT INTO event (namespace, session, at, kind, payload) VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute((namespace, session, now, kind, payload))?;
            Ok(())
        });
        Ok(())
    }

    /// Returns the sessions of this tenant, last seen first.
    pub fn sessions(&self, limit: usize) -> Result<Vec<SessionRecord>, Error> {
        self.backend().readers.read(|connection| {
            let Some(namespace) = find_namespace(connection, self.namespace())? else { return Ok(Vec::new()) };
            let mut statement = connection.prepare_cached(
                "SELECT s.name, s.first_at, s.last_at, count(r.id), coalesce(sum(r.raw_tokens), 0),
                     coalesce(sum(r.sent_tokens), 0)
                 FROM (SELECT * FROM session WHERE namespace = ?1 ORDER BY last_at DESC LIMIT ?2) AS s
                 LEFT JOIN request AS r ON r.session = s.id GROUP BY s.id ORDER BY s.last_at DESC, s.id DESC",
            )?;
            let rows = statement.query_map((namespace, to_sql_int(limit)), |row| {
                let number = |column| Ok::<_, rusqlite::Error>(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0));
                Ok(SessionRecord {
                    name: row.get(0)?,
                    first_at: row.get(1)?,
                    last_at: row.get(2)?,
                    requests: number(3)?,
                    raw_tokens: number(4)?,
                    sent_tokens: number(5)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Returns the requests of this tenant since a time, newest first.
    pub fn requests(&self, since: i64, limit: usize) -> Result<Vec<RequestRecord>, Error> {
        let requests: Vec<RequestRecord> = self.backend().readers.read(|connection| {
            let Some(namespace) = find_namespace(connection, self.namespace())? else { return Ok(Vec::new()) };
            let mut statement = connection.prepare_cached(
                "SELECT r.at, s.name, r.model, r.raw_tokens, r.sent_tokens, r.folds, r.payload
                 FROM request AS r LEFT JOIN session AS s ON s.id = r.session
                 WHERE r.namespace = ?1 AND r.at >= ?2 ORDER BY r.at DESC, r.id DESC LIMIT ?3",
            )?;
            let rows = statement.query_map((namespace, since, to_sql_int(limit)), |row| {
                let number = |column| Ok::<_, rusqlite::Error>(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0));
                Ok(RequestRecord {
                    at: row.get(0)?,
                    session: row.get(1)?,
                    model: row.get(2)?,
                    raw_tokens: number(3)?,
                    sent_tokens: number(4)?,
                    folds: number(5)?,
                    payload: row.get(6)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let open = |request: RequestRecord| {
            let payload = self.backend().cipher.decrypt(self.namespace(), "request", request.payload)?;
            Ok(RequestRecord { payload, ..request })
        };
        requests.into_iter().map(open).collect()
    }

    /// Returns the events of this tenant after the event with this id, oldest first.
    pub fn events(&self, after: i64, limit: usize) -> Result<Vec<EventRecord>, Error> {
        let events: Vec<EventRecord> = self.backend().readers.read(|connection| {
            let Some(namespace) = find_namespace(connection, self.namespace())? else { return Ok(Vec::new()) };
            let mut statement = connection.prepare_cached(
                "SELECT e.id, e.at, s.name, e.kind, e.payload
                 FROM event AS e LEFT JOIN session AS s ON s.id = e.session
                 WHERE e.namespace = ?1 AND e.id > ?2 ORDER BY e.id LIMIT ?3",
            )?;
            let rows = statement.query_map((namespace, after, to_sql_int(limit)), |row| {
                Ok(EventRecord {
                    id: row.get(0)?,
                    at: row.get(1)?,
                    session: row.get(2)?,
                    kind: row.get(3)?,
                    payload: row.get(4)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })?;
        let open = |event: EventRecord| {
            let payload = self.backend().cipher.decrypt(self.namespace(), "event", event.payload)?;
            Ok(EventRecord { payload, ..event })
        };
        events.into_iter().map(open).collect()
    }
}
