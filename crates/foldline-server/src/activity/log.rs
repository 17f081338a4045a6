//! The journal of one tenant and its summary.
//!
//! With an archive, records are appended to the journal without waiting, and the summary reads the journal's tail when
//! somebody looks: it includes what other processes wrote. Without one, records are added to the summary directly.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use foldline_archive::{Error, EventRecord, TenantArchive};
use tokio::sync::broadcast;

use crate::activity::record::{EVENT_KIND, FoldRecord, RequestActivity};
use crate::activity::sent_body::BodyFingerprint;
use crate::activity::summary::ActivitySummary;

/// Events read at once.
const PAGE_EVENTS: usize = 4_096;
/// Longest wait for the records of this process to appear in the journal; it drops records under load.
const MAX_TAIL_WAIT: Duration = Duration::from_millis(250);
/// Sessions whose last request is remembered for the next one, and handles of each.
const MAX_LIVE_SESSIONS: usize = 2_048;
const MAX_LIVE_HANDLES: usize = 10_000;
/// Events that a slow reader may be behind.
const MAX_QUEUED_EVENTS: usize = 256;
/// Tenants whose summaries are kept in memory.
const MAX_TENANTS: usize = 1_024;

/// The journal of one tenant and its summary.
pub struct ActivityLog {
    archive: Option<TenantArchive>,
    /// Random id of this process.
    writer: u64,
    tail: Mutex<JournalTail>,
    live: Mutex<HashMap<String, LiveSession>>,
    appended: AtomicU64,
    /// Records as JSON, for those who watch.
    feed: broadcast::Sender<Arc<str>>,
}

impl fmt::Debug for ActivityLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivityLog").field("archive", &self.archive).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct JournalTail {
    summary: ActivitySummary,
    last_event: i64,
    /// Hash of its payload.
    last_hash: Option<blake3::Hash>,
    /// Records of this process that were read back or given up.
    seen_own: u64,
}

/// The last request of a session, as far as the record of the next one depends on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveSession {
    /// Time of the request, in milliseconds since 1970.
    pub(crate) at: i64,
    pub(crate) model: String,
    /// Hash of the whole conversation, and number of its messages.
    pub(crate) prefix: u128,
    pub(crate) messages: usize,
    /// Prompt tokens that the provider has cached.
    pub(crate) cached_tokens: u64,
    /// Tokens that folding removed, or would have removed.
    pub(crate) folded_tokens: u64,
    /// Handles that were recorded.
    pub(crate) handles: HashSet<String>,
    /// Body that was sent.
    pub(crate) body: BodyFingerprint,
    /// Hash of the declared tools.
    pub(crate) tools_hash: u64,
    /// Dollars of summaries that were recorded, in billionths.
    pub(crate) summary_nanos: i64,
}

impl LiveSession {
    /// Remembers the handles of recorded folds. Those that are too many are recorded again.
    pub(crate) fn add_handles(&mut self, folds: &[FoldRecord]) {
        let room = MAX_LIVE_HANDLES.saturating_sub(self.handles.len());
        self.handles.extend(folds.iter().filter_map(|fold| fold.handle.clone()).take(room));
    }
}

impl ActivityLog {
    /// Creates the log of a tenant. Without an archive it begins empty and ends with the process.
    pub fn new(archive: Option<TenantArchive>) -> Self {
        let (feed, _) = broadcast::channel(MAX_QUEUED_EVENTS);
        let writer = blake3::hash(format!("{:?} {}", Instant::now(), std::process::id()).as_bytes());
        let writer = u64::from_le_bytes(*writer.as_bytes().first_chunk().unwrap_or(&[0; 8])) >> 11;
        Self { archive, writer, tail: Mutex::default(), live: Mutex::default(), appended: AtomicU64::new(0), feed }
    }

    /// Returns the records from now on, as the API shows them. A slow reader loses the oldest.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.feed.subscribe()
    }

    /// Records a request, without waiting.
    pub(crate) fn record(&self, record: RequestActivity) {
        let mut record = RequestActivity { writer: self.writer, ..record };
        record.shorten();
        let event: Option<Arc<str>> = (self.feed.receiver_count() > 0).then(|| record.to_json().to_string().into());
        match (&self.archive, serde_json::to_vec(&record)) {
            (Some(archive), Ok(payload)) => {
                self.appended.fetch_add(1, Ordering::Relaxed);
                // The journal is informational; nothing depends on it.
                let _ = archive.in_session(record.session).append_event(EVENT_KIND, &payload);
            }
            _ => self.tail().summary.add(record),
        }
        if let Some(event) = event {
            let _ = self.feed.send(event);
        }
    }

    /// Returns the last request of a session and replaces it by what `update` makes of it.
    pub(crate) fn update_session<T>(&self, name: &str, update: impl FnOnce(&mut LiveSession, bool) -> T) -> T {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if !live.contains_key(name) && live.len() >= MAX_LIVE_SESSIONS {
            let oldest = live.iter().min_by_key(|(_, session)| session.at).map(|(name, _)| name.clone());
            oldest.map(|name| live.remove(&name));
        }
        let is_new = !live.contains_key(name);
        update(live.entry(name.to_owned()).or_default(), is_new)
    }

    /// Returns what was recorded of a session by this process; none if nothing was.
    pub(crate) fn known_session(&self, name: &str) -> Option<(usize, u64)> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.get(name).map(|session| (session.messages, session.tools_hash))
    }

    /// Calls `show` with the summary, after reading what is new in the journal. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the journal cannot be read.
    pub fn read<T>(&self, show: impl FnOnce(&ActivitySummary) -> T) -> Result<T, Error> {
        let mut tail = self.tail();
        if let Some(archive) = &self.archive {
            let begin = Instant::now();
            loop {
                tail.catch_up(archive, self.writer)?;
                let appended = self.appended.load(Ordering::Relaxed);
                if tail.seen_own >= appended {
                    break;
                }
                if begin.elapsed() > MAX_TAIL_WAIT {
                    tail.seen_own = appended;
                    break;
                }
                thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(show(&tail.summary))
    }

    /// Reads the journal from its begin at the next look: parts of it were deleted.
    pub(crate) fn read_again(&self) {
        let mut tail = self.tail();
        let seen_own = self.appended.load(Ordering::Relaxed);
        self.appended.fetch_sub(seen_own, Ordering::Relaxed);
        *tail = JournalTail::default();
    }

    fn tail(&self) -> MutexGuard<'_, JournalTail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JournalTail {
    /// Adds the records after the last one that was read. Begins again if that one is gone: the journal was deleted or
    /// replaced by another process.
    fn catch_up(&mut self, archive: &TenantArchive, writer: u64) -> Result<(), Error> {
        if let Some(hash) = self.last_hash {
            let last = archive.events(self.last_event - 1, 1)?;
            let is_last = |event: &EventRecord| event.id == self.last_event && blake3::hash(&event.payload) == hash;
            if !last.first().is_some_and(is_last) {
                *self = Self::default();
            }
        }
        loop {
            let events = archive.events(self.last_event, PAGE_EVENTS)?;
            let is_last_page = events.len() < PAGE_EVENTS;
            for event in events {
                (self.last_event, self.last_hash) = (event.id, Some(blake3::hash(&event.payload)));
                if event.kind != EVENT_KIND {
                    continue;
                }
                // A record of a later version may not be readable.
                let Ok(record) = serde_json::from_slice::<RequestActivity>(&event.payload) else { continue };
                self.seen_own += u64::from(record.writer == writer);
                self.summary.add(record);
            }
            if is_last_page {
                return Ok(());
            }
        }
    }
}

/// The logs of all tenants.
#[derive(Debug, Default)]
pub struct ActivityLogs {
    by_tenant: Mutex<HashMap<u128, Arc<ActivityLog>>>,
}

impl ActivityLogs {
    /// Returns the log of a tenant.
    pub(crate) fn get(&self, tenant: u128, archive: Option<&TenantArchive>) -> Arc<ActivityLog> {
        let mut logs = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        if !logs.contains_key(&tenant) && logs.len() >= MAX_TENANTS {
            // A log that is in use is kept. What is dropped is read from the journal again.
            let idle = logs.iter().find(|(_, log)| Arc::strong_count(log) == 1).map(|(key, _)| *key);
            idle.map(|key| logs.remove(&key));
        }
        logs.entry(tenant).or_insert_with(|| Arc::new(ActivityLog::new(archive.cloned()))).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline_archive::{Archive, Namespace};

    fn record(session: &str) -> RequestActivity {
        RequestActivity { session: session.into(), received_tokens: 10, ..RequestActivity::default() }
    }

    #[test]
    fn own_records_are_visible_at_once_and_those_of_others_too() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let (one, other) = (ActivityLog::new(Some(tenant.clone())), ActivityLog::new(Some(tenant.clone())));
        (0..50).for_each(|_| one.record(record("a")));
        assert_eq!(one.read(|summary| summary.totals_since(0).requests).unwrap(), 50);
        other.record(record("b"));
        assert_eq!(other.read(|summary| summary.totals_since(0).requests).unwrap(), 51);
        assert_eq!(one.read(|summary| summary.sessions_since(0).len()).unwrap(), 2);
        let foreign = ActivityLog::new(Some(archive.tenant(&Namespace::new("token-bob").unwrap())));
        assert_eq!(foreign.read(|summary| summary.totals_since(0).requests).unwrap(), 0);
    }

    #[test]
    fn journal_that_another_process_deleted_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let log = ActivityLog::new(Some(tenant.clone()));
        (0..5).for_each(|_| log.record(record("deleted")));
        assert_eq!(log.read(|summary| summary.totals_since(0).requests).unwrap(), 5);
        tenant.delete_everything().unwrap();
        log.record(record("later"));
        assert_eq!(log.read(|summary| summary.totals_since(0).requests).unwrap(), 1);
        assert!(log.read(|summary| summary.session("deleted").is_none()).unwrap());
    }

    #[test]
    fn live_session_remembers_a_bounded_number_of_handles() {
        let fold = |number: usize| FoldRecord { handle: Some(format!("{number:012}")), ..FoldRecord::default() };
        let mut session = LiveSession::default();
        for batch in 0..3 {
            let first = batch * MAX_LIVE_HANDLES / 2 + batch;
            session.add_handles(&(first..first + MAX_LIVE_HANDLES / 2 + 1).map(fold).collect::<Vec<_>>());
        }
        assert_eq!(session.handles.len(), MAX_LIVE_HANDLES);
        assert!(session.handles.contains("000000000000"), "those that came first stay");
    }

    #[test]
    fn log_without_an_archive_lives_in_memory() {
        let log = ActivityLog::new(None);
        log.record(record("a"));
        assert_eq!(log.read(|summary| summary.totals_since(0).received_tokens).unwrap(), 10);
    }
}
