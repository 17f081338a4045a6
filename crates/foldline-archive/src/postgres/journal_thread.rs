//! The thread that writes in the background: requests, events, and last-used times of sessions and markers. It writes many
//! records in one transaction per tenant; under load, or while the database is away, it drops them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::namespace::Namespace;
use crate::originals::write::TOUCH_INTERVAL;
use crate::postgres::database::{Database, RowScope, WaitLimit};
use crate::postgres::rows::{ENSURE_NAMESPACE, ENSURE_SESSIONS, SessionColumns, TenantKey, to_sql_int, to_sql_text};
use crate::store::{EventRow, RequestRow, StoredName};

/// Records that wait at most; further ones are dropped.
const MAX_QUEUED_RECORDS: usize = 4096;

/// Records of one transaction.
const BATCH_RECORDS: usize = 512;

/// Time in which records are collected before they are written.
const COLLECT_DELAY: Duration = Duration::from_millis(20);

/// Longest time that closing the archive waits for the queue.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A record of the journal.
#[derive(Debug)]
pub(crate) enum JournalRecord {
    Request(RequestRow),
    Event(EventRow),
    /// A session is in use.
    Session(StoredName, i64),
    /// A request carried the markers of these keys.
    Touch(Vec<String>, i64),
}

enum JournalJob {
    Append(Namespace, JournalRecord),
    /// Answers when everything before it was written.
    Flush(SyncSender<()>),
}

/// The queue of the thread. Dropping it writes what is queued.
#[derive(Debug)]
pub(crate) struct JournalThread {
    queue: Option<SyncSender<JournalJob>>,
    thread: Option<JoinHandle<()>>,
}

impl JournalThread {
    pub(crate) fn start(database: Arc<Database>) -> Result<Self, Error> {
        let (queue, jobs) = sync_channel(MAX_QUEUED_RECORDS);
        let thread = std::thread::Builder::new()
            .name("foldline-journal".into())
            .spawn(move || run_journal(&database, &jobs))
            .map_err(|error| Error::new(ErrorKind::Io, format!("could not start the journal thread: {error}")))?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Queues a record; drops it if the queue is full.
    pub(crate) fn append(&self, namespace: &Namespace, record: JournalRecord) {
        let Some(queue) = &self.queue else { return };
        match queue.try_send(JournalJob::Append(namespace.clone(), record)) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Queues last-used times of markers.
    pub(crate) fn touch(&self, namespace: &Namespace, keys: Vec<String>, at: i64) {
        self.append(namespace, JournalRecord::Touch(keys, at));
    }

    /// Waits until everything queued so far was written, or dropped.
    pub(crate) fn flush(&self) {
        let (answer, answered) = sync_channel(1);
        if self.queue.as_ref().is_some_and(|queue| queue.send(JournalJob::Flush(answer)).is_ok()) {
            let _ = answered.recv_timeout(CLOSE_TIMEOUT);
        }
    }

    /// Waits like [`flush`](Self::flush), at most this long. Returns false if it was too short or the queue is full.
    pub(crate) fn flush_within(&self, limit: Duration) -> bool {
        let (answer, answered) = sync_channel(1);
        let is_queued = self.queue.as_ref().is_some_and(|queue| queue.try_send(JournalJob::Flush(answer)).is_ok());
        is_queued && answered.recv_timeout(limit).is_ok()
    }
}

impl Drop for JournalThread {
    fn drop(&mut self) {
        self.flush();
        drop(self.queue.take());
        // After the flush the thread ends at once, unless the database does not answer.
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}

fn run_journal(database: &Database, jobs: &Receiver<JournalJob>) {
    while let Ok(first) = jobs.recv() {
        let mut batch = vec![first];
        let deadline = Instant::now() + COLLECT_DELAY;
        while batch.len() < BATCH_RECORDS && !matches!(batch.last(), Some(JournalJob::Flush(_))) {
            match jobs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(job) => batch.push(job),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let mut answers = Vec::new();
        let mut by_tenant: Vec<(Namespace, Vec<JournalRecord>)> = Vec::new();
        for job in batch {
            match job {
                JournalJob::Flush(answer) => answers.push(answer),
                JournalJob::Append(namespace, record) => {
                    match by_tenant.iter_mut().find(|(known, _)| *known == namespace) {
                        Some((_, records)) => records.push(record),
                        None => by_tenant.push((namespace, vec![record])),
                    }
                }
            }
        }
        for (namespace, records) in &by_tenant {
            // Records may be dropped; the outage itself is visible elsewhere.
            let _ = write_records(database, namespace, records);
        }
        for answer in answers {
            // The caller may have stopped waiting.
            let _ = answer.send(());
        }
    }
}

/// Writes the records of one tenant in one transaction.
fn write_records(database: &Database, namespace: &Namespace, records: &[JournalRecord]) -> Result<(), Error> {
    let (tenant, name) = (TenantKey::new(namespace), namespace.as_str());
    let (mut requests, mut events, mut touched, mut used) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for record in records {
        match record {
            JournalRecord::Request(request) => requests.push(request),
            JournalRecord::Event(event) => events.push(event),
            JournalRecord::Session(name, at) => used.push((Some(name), *at)),
            JournalRecord::Touch(keys, at) => touched.extend(keys.iter().map(|key| (key.as_str(), *at))),
        }
    }
    touched.sort_unstable();
    touched.dedup_by_key(|(key, _)| *key);
    let mut statements = StatementList::default();
    let seen = requests.iter().map(|it| (it.session.as_ref(), it.at));
    let seen = seen.chain(events.iter().map(|it| (it.session.as_ref(), it.at)));
    let sessions = SessionColumns::new(seen.chain(used));
    statements.push(ENSURE_NAMESPACE, vec![&tenant, &name]);
    statements.push(ENSURE_SESSIONS, vec![&tenant, &sessions.names, &sessions.sealed, &sessions.times]);
    let columns = RequestColumns::new(&requests);
    if !requests.is_empty() {
        statements.push(INSERT_REQUESTS, columns.parameters(&tenant));
    }
    let event_columns = EventColumns::new(&events);
    if !events.is_empty() {
        statements.push(LOCK_EVENTS, vec![&tenant]);
        statements.push(INSERT_EVENTS, event_columns.parameters(&tenant));
    }
    let (keys, times): (Vec<&str>, Vec<i64>) = touched.into_iter().unzip();
    let touch_after = clock::to_millis(TOUCH_INTERVAL) / 2;
    if !keys.is_empty() {
        statements.push(TOUCH_ORIGINALS, vec![&tenant, &keys, &times, &touch_after]);
    }
    let statements: Vec<_> = statements.0.iter().map(|(sql, parameters)| (*sql, parameters.as_slice())).collect();
    database.run(RowScope::Tenant(tenant), WaitLimit::Request, &statements)?;
    Ok(())
}

type Parameter<'p> = &'p (dyn tokio_postgres::types::ToSql + Sync);

#[derive(Default)]
struct StatementList<'p>(Vec<(&'static str, Vec<Parameter<'p>>)>);

impl<'p> StatementList<'p> {
    fn push(&mut self, sql: &'static str, parameters: Vec<Parameter<'p>>) {
        self.0.push((sql, parameters));
    }
}

const INSERT_REQUESTS: &str = "
    INSERT INTO foldline.request (tenant, session, at, model, raw_tokens, sent_tokens, folds, payload)
    SELECT $1, g.* FROM unnest($2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
        $8::bytea[]) AS g";

/// Readers follow events by their ids, so a tenant's events must become visible in the order of their ids.
const LOCK_EVENTS: &str = "SELECT pg_advisory_xact_lock(hashtextextended($1::uuid::text, 1))";

const INSERT_EVENTS: &str = "
    INSERT INTO foldline.event (tenant, session, at, kind, payload)
    SELECT $1, g.* FROM unnest($2::text[], $3::bigint[], $4::text[], $5::bytea[]) AS g";

const TOUCH_ORIGINALS: &str = "
    UPDATE foldline.original AS o SET carried_at = g.at FROM unnest($2::text[], $3::bigint[]) AS g (handle, at)
    WHERE o.tenant = $1 AND o.handle = g.handle AND o.carried_at < g.at - $4";

type SqlText<'r> = std::borrow::Cow<'r, str>;

fn session_key(session: Option<&StoredName>) -> Option<SqlText<'_>> {
    session.map(|name| to_sql_text(&name.key))
}

struct RequestColumns<'r> {
    sessions: Vec<Option<SqlText<'r>>>,
    times: Vec<i64>,
    models: Vec<SqlText<'r>>,
    raw_tokens: Vec<i64>,
    sent_tokens: Vec<i64>,
    folds: Vec<i64>,
    payloads: Vec<&'r [u8]>,
}

impl<'r> RequestColumns<'r> {
    fn new(rows: &[&'r RequestRow]) -> Self {
        Self {
            sessions: rows.iter().map(|row| session_key(row.session.as_ref())).collect(),
            times: rows.iter().map(|row| row.at).collect(),
            models: rows.iter().map(|row| to_sql_text(&row.model)).collect(),
            raw_tokens: rows.iter().map(|row| to_sql_int(row.raw_tokens)).collect(),
            sent_tokens: rows.iter().map(|row| to_sql_int(row.sent_tokens)).collect(),
            folds: rows.iter().map(|row| to_sql_int(row.folds)).collect(),
            payloads: rows.iter().map(|row| row.payload.as_slice()).collect(),
        }
    }

    fn parameters<'p>(&'p self, tenant: &'p TenantKey) -> Vec<Parameter<'p>> {
        vec![
            tenant,
            &self.sessions,
            &self.times,
            &self.models,
            &self.raw_tokens,
            &self.sent_tokens,
            &self.folds,
            &self.payloads,
        ]
    }
}

struct EventColumns<'r> {
    sessions: Vec<Option<SqlText<'r>>>,
    times: Vec<i64>,
    kinds: Vec<SqlText<'r>>,
    payloads: Vec<&'r [u8]>,
}

impl<'r> EventColumns<'r> {
    fn new(rows: &[&'r EventRow]) -> Self {
        Self {
            sessions: rows.iter().map(|row| session_key(row.session.as_ref())).collect(),
            times: rows.iter().map(|row| row.at).collect(),
            kinds: rows.iter().map(|row| to_sql_text(&row.kind)).collect(),
            payloads: rows.iter().map(|row| row.payload.as_slice()).collect(),
        }
    }

    fn parameters<'p>(&'p self, tenant: &'p TenantKey) -> Vec<Parameter<'p>> {
        vec![tenant, &self.sessions, &self.times, &self.kinds, &self.payloads]
    }
}
