//! The journal of one tenant and its summary.
//!
//! With an archive, records are appended to the journal without waiting, and the summary reads the journal's tail when
//! somebody looks: it includes what other processes wrote. Without one, records are added to the summary directly, and
//! the newest ones are kept: a log that gets its archive later, after an outage, appends them to the journal.
//!
//! A look does at most a page of reading. What is longer is read by a thread, page by page, and a look that does not want
//! to wait for it gets what was read before, together with how far the reading is; never a part as if it were the whole.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::thread;
use std::time::{Duration, Instant};

use foldline_archive::{Error, JournalState, TenantArchive};
use tokio::sync::{broadcast, watch};

use crate::activity::journal_tail::JournalTail;
use crate::activity::record::{EVENT_KIND, FoldRecord, RequestActivity};
use crate::activity::sent_body::BodyFingerprint;
use crate::activity::summary::ActivitySummary;

/// Longest wait for the records of this process to appear in the journal; it drops records under load.
const MAX_TAIL_WAIT: Duration = Duration::from_millis(250);
/// Time in which a summary counts as up to date, unless this process has recorded something.
const FRESH_TIME: Duration = Duration::from_millis(50);
/// Longest wait of a look for a journal that is read for the first time, and for one that is read again.
const FIRST_READ_WAIT: Duration = Duration::from_millis(500);
const READ_AGAIN_WAIT: Duration = Duration::from_millis(50);
/// Records of this process after which the summary is brought up to date without a look.
const FOLLOW_INTERVAL: u64 = 4_096;
/// Records that a log without an archive keeps.
const MAX_PENDING_RECORDS: usize = 1_024;
/// Sessions whose last request is remembered for the next one, and handles of each.
const MAX_LIVE_SESSIONS: usize = 2_048;
const MAX_LIVE_HANDLES: usize = 10_000;
/// Events that a slow reader may be behind.
const MAX_QUEUED_EVENTS: usize = 256;
/// Tenants whose summaries are kept in memory.
const MAX_TENANTS: usize = 1_024;

/// The journal of one tenant and its summary.
pub struct ActivityLog {
    archive: OnceLock<TenantArchive>,
    /// Random id of this process.
    writer: u64,
    /// What was read of the journal; none before it was read once.
    current: RwLock<Option<JournalTail>>,
    /// Held while the journal is read.
    reader: Mutex<JournalReader>,
    /// None if the journal was read to its end.
    progress: watch::Sender<Option<ReadProgress>>,
    /// True while a thread reads the journal.
    is_following: AtomicBool,
    /// Held by the look that reads the journal, so that others wait without a thread.
    look: tokio::sync::Mutex<()>,
    live: Mutex<HashMap<String, LiveSession>>,
    /// Records that are not in the journal, without an archive.
    pending: Mutex<PendingRecords>,
    appended: AtomicU64,
    /// Records as JSON, for those who watch.
    feed: broadcast::Sender<Arc<str>>,
}

/// The newest records of a log without an archive.
#[derive(Default)]
struct PendingRecords {
    records: Vec<RequestActivity>,
    /// Number of the first ones, which are in the summary.
    added: usize,
}

/// How far the journal was read, by the ids of its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadProgress {
    /// The last event that was read.
    pub(crate) last_event: i64,
    /// The last event of the journal.
    pub(crate) newest_event: i64,
}

impl ReadProgress {
    /// Returns the part that was read, from 0 to 1.
    pub(crate) fn share(self) -> f64 {
        let share = self.last_event as f64 / self.newest_event.max(1) as f64;
        share.clamp(0.0, 1.0)
    }
}

/// The state of reading the journal.
#[derive(Default)]
struct JournalReader {
    /// A summary that will replace the current one when it has reached the end of the journal.
    next: Option<JournalTail>,
    /// True between the first and the last page.
    is_under_way: bool,
    /// Number of own records that were waited for.
    flushed: u64,
    /// Time at which the end of the journal was reached.
    finished_at: Option<Instant>,
}

impl fmt::Debug for ActivityLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActivityLog").field("archive", &self.archive).finish_non_exhaustive()
    }
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
    /// Id of the response.
    pub(crate) response_id: Option<String>,
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
        Self {
            current: RwLock::new(archive.is_none().then(JournalTail::default)),
            archive: archive.map(OnceLock::from).unwrap_or_default(),
            writer,
            reader: Mutex::default(),
            progress: watch::Sender::new(None),
            is_following: AtomicBool::new(false),
            look: tokio::sync::Mutex::new(()),
            live: Mutex::default(),
            pending: Mutex::default(),
            appended: AtomicU64::new(0),
            feed,
        }
    }

    /// Returns the records from now on, as the API shows them. A slow reader loses the oldest.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<str>> {
        self.feed.subscribe()
    }

    /// Records a request, without waiting.
    pub(crate) fn record(self: &Arc<Self>, record: RequestActivity) {
        let mut record = RequestActivity { writer: self.writer, ..record };
        record.shorten();
        let event: Option<Arc<str>> = (self.feed.receiver_count() > 0).then(|| record.to_json().to_string().into());
        match self.archive.get() {
            Some(archive) => self.append(archive, &record),
            None => self.keep(record),
        }
        if let Some(event) = event {
            let _ = self.feed.send(event);
        }
    }

    /// Appends a record to the journal, which is informational: nothing depends on it.
    fn append(self: &Arc<Self>, archive: &TenantArchive, record: &RequestActivity) {
        let Ok(payload) = serde_json::to_vec(record) else { return };
        let _ = archive.in_session(&record.session).append_event(EVENT_KIND, &payload);
        if self.appended.fetch_add(1, Ordering::AcqRel) % FOLLOW_INTERVAL == FOLLOW_INTERVAL - 1 {
            self.follow();
        }
    }

    /// Keeps a record, unless the log got its archive meanwhile.
    fn keep(self: &Arc<Self>, record: RequestActivity) {
        let mut pending = self.lock_pending();
        if let Some(archive) = self.archive.get() {
            return self.append(archive, &record);
        }
        pending.records.push(record);
        // Waits for looks only if many records were made during one.
        if pending.records.len() >= MAX_PENDING_RECORDS {
            self.add_pending(&mut pending);
            pending.records.drain(..MAX_PENDING_RECORDS / 2);
            pending.added = pending.records.len();
        }
    }

    /// Adds records to the summary of a log without an archive.
    fn add_pending(&self, pending: &mut PendingRecords) {
        if self.archive.get().is_some() {
            return;
        }
        let mut current = self.write_current();
        let tail = current.get_or_insert_default();
        pending.records[pending.added..].iter().for_each(|record| tail.summary.add(record.clone()));
        pending.added = pending.records.len();
    }

    /// Gives an archive to a log that has none, and appends what was recorded without it.
    fn attach(self: &Arc<Self>, archive: &TenantArchive) {
        let mut pending = self.lock_pending();
        if self.archive.set(archive.clone()).is_err() {
            return;
        }
        // The journal has all of it, and what other processes recorded.
        *self.write_current() = None;
        std::mem::take(&mut *pending).records.iter().for_each(|record| self.append(archive, record));
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

    /// Returns the id of the last response of a session, if this process received it from this model.
    pub(crate) fn previous_response(&self, session: &str, model: &str) -> Option<String> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.get(session).filter(|session| session.model == model).and_then(|session| session.response_id.clone())
    }

    /// Calls `show` with the summary, after reading everything that is in the journal. Blocks while it reads.
    ///
    /// # Errors
    ///
    /// If the journal cannot be read.
    pub fn read<T>(&self, show: impl FnOnce(&ActivitySummary) -> T) -> Result<T, Error> {
        match self.archive.get() {
            Some(archive) => {
                let mut reader = self.lock_reader();
                while !self.advance(archive, &mut reader)? {}
            }
            None => self.add_pending(&mut self.lock_pending()),
        }
        match &*self.read_current() {
            Some(tail) => Ok(show(&tail.summary)),
            None => Ok(show(&ActivitySummary::default())),
        }
    }

    /// Reads what is new in the journal. If that takes long, a thread goes on with it, and the call returns after a short
    /// wait.
    ///
    /// # Errors
    ///
    /// If the journal cannot be read.
    pub(crate) async fn catch_up(self: &Arc<Self>) -> Result<(), Error> {
        let is_loaded = self.read_current().is_some();
        let deadline = tokio::time::Instant::now() + if is_loaded { READ_AGAIN_WAIT } else { FIRST_READ_WAIT };
        let Ok(_look) = tokio::time::timeout_at(deadline, self.look.lock()).await else { return Ok(()) };
        let log = self.clone();
        let advanced = tokio::task::spawn_blocking(move || log.advance_once()).await;
        if advanced.unwrap_or(Ok(true))? {
            return Ok(());
        }
        self.follow();
        let mut progress = self.progress.subscribe();
        let _ = tokio::time::timeout_at(deadline, progress.wait_for(Option::is_none)).await;
        Ok(())
    }

    /// Calls `show` with the summary of what was read, and with the progress if that is not everything.
    ///
    /// # Errors
    ///
    /// The progress, if the journal is being read for the first time.
    pub(crate) fn show<T>(
        &self,
        show: impl FnOnce(&ActivitySummary, Option<ReadProgress>) -> T,
    ) -> Result<T, ReadProgress> {
        let current = self.read_current();
        let progress = *self.progress.borrow();
        match &*current {
            Some(tail) => Ok(show(&tail.summary, progress)),
            None => Err(progress.unwrap_or_default()),
        }
    }

    /// Removes a deleted session from what is shown, at once. The next look reads the journal again.
    pub(crate) fn forget_session(&self, id: &str) {
        self.write_current().iter_mut().for_each(|tail| tail.summary.hide_session(id));
        self.lock_reader().finished_at = None;
    }

    /// Starts a thread that reads the journal to its end and stores a checkpoint, unless there is one.
    pub(crate) fn follow(self: &Arc<Self>) {
        if self.archive.get().is_none() || self.is_following.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.read_current().is_none() {
            self.progress.send_if_modified(|progress| progress.replace(ReadProgress::default()).is_none());
        }
        let follower = FollowGuard(self.clone());
        // Without a thread, looks read a page each.
        let _ = thread::Builder::new().name("foldline-activity".into()).spawn(move || follower.0.follow_to_end());
    }

    fn follow_to_end(&self) {
        let Some(archive) = self.archive.get() else { return };
        let mut reader = self.lock_reader();
        loop {
            match self.advance(archive, &mut reader) {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "the journal could not be read");
                    return;
                }
            }
        }
        drop(reader);
        let due = self.read_current().as_ref().and_then(JournalTail::due_checkpoint);
        let Some(checkpoint) = due else { return };
        match archive.write_journal_checkpoint(&checkpoint) {
            Ok(_) => self.write_current().iter_mut().for_each(|tail| tail.note_checkpoint(checkpoint.position)),
            Err(error) => tracing::debug!(%error, "the checkpoint of the journal could not be stored"),
        }
    }

    /// Reads a page, unless the journal was read a moment ago or is being read. Returns true if it was read to its end.
    fn advance_once(&self) -> Result<bool, Error> {
        let Some(archive) = self.archive.get() else {
            self.add_pending(&mut self.lock_pending());
            return Ok(true);
        };
        let mut reader = match self.reader.try_lock() {
            Ok(reader) => reader,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let is_fresh = reader.finished_at.is_some_and(|at| at.elapsed() < FRESH_TIME);
        if is_fresh && reader.flushed == self.appended.load(Ordering::Acquire) {
            return Ok(true);
        }
        self.advance(archive, &mut reader)
    }

    /// Reads a page of the journal. Returns true if it was the last.
    fn advance(&self, archive: &TenantArchive, reader: &mut JournalReader) -> Result<bool, Error> {
        let appended = self.appended.load(Ordering::Acquire);
        if reader.flushed < appended {
            archive.flush_journal(MAX_TAIL_WAIT)?;
            reader.flushed = appended;
        }
        let journal = archive.journal_state()?;
        self.choose_begin(archive, reader, journal)?;
        let current_event = self.read_current().as_ref().map_or(0, JournalTail::last_event);
        let page =
            JournalTail::read_page(archive, reader.next.as_ref().map_or(current_event, JournalTail::last_event))?;
        let is_last = page.is_last();
        let last_event = page.last_event();
        match reader.next.take() {
            None => self.write_current().get_or_insert_default().add(page),
            Some(mut next) => {
                next.add(page);
                if is_last {
                    *self.write_current() = Some(next);
                } else {
                    reader.next = Some(next);
                }
            }
        }
        reader.is_under_way = !is_last;
        reader.finished_at = is_last.then(Instant::now);
        let progress = ReadProgress { last_event, newest_event: journal.newest_event };
        self.progress.send_replace((!is_last).then_some(progress));
        Ok(is_last)
    }

    /// Begins again if something was deleted, or if the last event that was read is gone: the archive is another one. Goes
    /// on from the checkpoint of another process if that is faster.
    fn choose_begin(
        &self,
        archive: &TenantArchive,
        reader: &mut JournalReader,
        journal: JournalState,
    ) -> Result<(), Error> {
        let current = self.read_current();
        let is_valid = match (&reader.next, &*current) {
            (Some(next), _) => next.is_of(journal),
            (None, Some(tail)) => tail.is_of(journal) && (reader.is_under_way || tail.has_last_event(archive)?),
            (None, None) => false,
        };
        if !is_valid {
            reader.next = Some(JournalTail::begin(archive, journal)?);
        } else if let (None, false, Some(tail)) = (&reader.next, reader.is_under_way, &*current) {
            reader.next = tail.skip_ahead(archive, journal)?;
        }
        Ok(())
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingRecords> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_reader(&self) -> MutexGuard<'_, JournalReader> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_current(&self) -> RwLockReadGuard<'_, Option<JournalTail>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_current(&self) -> RwLockWriteGuard<'_, Option<JournalTail>> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes, when it is dropped, that the thread of a log has ended.
struct FollowGuard(Arc<ActivityLog>);

impl Drop for FollowGuard {
    fn drop(&mut self) {
        self.0.is_following.store(false, Ordering::Release);
        // Those who wait get what was read.
        self.0.progress.send_replace(None);
    }
}

/// The logs of all tenants.
#[derive(Debug, Default)]
pub struct ActivityLogs {
    by_tenant: Mutex<HashMap<u128, Arc<ActivityLog>>>,
}

impl ActivityLogs {
    /// Returns the log of a tenant. A tenant that was first seen in an outage had no archive, and gets it here.
    pub(crate) fn get(&self, tenant: u128, archive: Option<&TenantArchive>) -> Arc<ActivityLog> {
        let mut logs = self.by_tenant.lock().unwrap_or_else(PoisonError::into_inner);
        if !logs.contains_key(&tenant) && logs.len() >= MAX_TENANTS {
            // A log that is in use is kept. What is dropped is read from the journal again.
            let idle = logs.iter().find(|(_, log)| Arc::strong_count(log) == 1).map(|(key, _)| *key);
            idle.map(|key| logs.remove(&key));
        }
        let log = logs.entry(tenant).or_insert_with(|| Arc::new(ActivityLog::new(archive.cloned()))).clone();
        drop(logs);
        if let Some(archive) = archive.filter(|_| log.archive.get().is_none()) {
            log.attach(archive);
        }
        log
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
        let new_log = || Arc::new(ActivityLog::new(Some(tenant.clone())));
        let (one, other) = (new_log(), new_log());
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
        let log = Arc::new(ActivityLog::new(Some(tenant.clone())));
        (0..5).for_each(|_| log.record(record("deleted")));
        assert_eq!(log.read(|summary| summary.totals_since(0).requests).unwrap(), 5);
        tenant.delete_everything().unwrap();
        log.record(record("later"));
        assert_eq!(log.read(|summary| summary.totals_since(0).requests).unwrap(), 1);
        assert!(log.read(|summary| summary.session("deleted").is_none()).unwrap());
    }

    fn requests(summary: &ActivitySummary) -> u64 {
        summary.totals_since(0).requests
    }

    /// Appends records faster than one by one.
    fn append_many(tenant: &TenantArchive, session: &str, count: usize) {
        let payload = serde_json::to_vec(&record(session)).unwrap();
        for at in 1..=count {
            tenant.in_session(session).append_event(EVENT_KIND, &payload).unwrap();
            if at % 500 == 0 || at == count {
                assert!(tenant.flush_journal(Duration::from_secs(20)).unwrap());
            }
        }
    }

    #[test]
    fn deletion_by_another_process_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let log = Arc::new(ActivityLog::new(Some(tenant.clone())));
        ["deleted", "kept", "kept"].into_iter().for_each(|session| log.record(record(session)));
        assert_eq!(log.read(requests).unwrap(), 3);
        tenant.delete_session("deleted").unwrap();
        assert_eq!(log.read(requests).unwrap(), 2, "its last event is still there");
        assert!(log.read(|summary| summary.session("deleted").is_none()).unwrap());
    }

    #[test]
    fn start_goes_on_from_the_checkpoint_unless_something_was_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        append_many(&tenant, "old", 10_500);
        let first = Arc::new(ActivityLog::new(Some(tenant.clone())));
        first.follow_to_end();
        let checkpoint = tenant.journal_checkpoint().unwrap().unwrap();
        append_many(&tenant, "new", 500);
        let second = Arc::new(ActivityLog::new(Some(tenant.clone())));
        // One page suffices: the events of the checkpoint are not read.
        assert!(second.advance_once().unwrap());
        let seen = |summary: &ActivitySummary, _: Option<ReadProgress>| {
            (requests(summary), summary.session("old").unwrap().totals.requests)
        };
        assert_eq!(second.show(seen), Ok((11_000, 10_500)));
        assert_eq!(first.read(requests).unwrap(), 11_000);

        tenant.delete_session("new").unwrap();
        assert!(!tenant.write_journal_checkpoint(&checkpoint).unwrap());
        let third = Arc::new(ActivityLog::new(Some(tenant.clone())));
        assert!(!third.advance_once().unwrap(), "the whole journal is read again");
        assert!(third.show(seen).is_err(), "nothing is shown before the first reading has ended");
        assert_eq!(third.read(requests).unwrap(), 10_500);
    }

    #[tokio::test]
    async fn long_reading_shows_the_old_summary_with_its_progress() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        append_many(&tenant, "kept", 3_000);
        append_many(&tenant, "deleted", 1);
        let log = Arc::new(ActivityLog::new(Some(tenant.clone())));
        log.catch_up().await.unwrap();
        while log.show(|_, progress| progress) != Ok(None) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tenant.delete_session("deleted").unwrap();
        log.forget_session("deleted");
        assert!(!log.advance_once().unwrap());
        let (count, is_gone, progress) = log
            .show(|summary, progress| (requests(summary), summary.session("deleted").is_none(), progress.unwrap()))
            .unwrap();
        assert_eq!((count, is_gone), (3_001, true), "the totals follow");
        assert!((0.1..0.9).contains(&progress.share()), "{progress:?}");
        log.follow_to_end();
        assert_eq!(log.show(|summary, progress| (requests(summary), progress)), Ok((3_000, None)));
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

    /// The records of a tenant that was first seen in an outage did not reach the journal.
    #[test]
    fn log_gets_its_archive_later() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let logs = ActivityLogs::default();
        let early = logs.get(1, None);
        let mut feed = early.subscribe();
        early.record(record("a"));
        assert_eq!(early.read(requests).unwrap(), 1);
        early.record(record("a"));
        logs.get(1, Some(&tenant)).record(record("b"));
        // A request of the outage may end after it.
        early.record(record("c"));
        assert_eq!(logs.get(1, None).read(requests).unwrap(), 4, "known from now on");
        let other = ActivityLog::new(Some(tenant.clone()));
        assert_eq!(other.read(requests).unwrap(), 4);
        assert_eq!(other.read(|summary| summary.session("a").unwrap().totals.requests).unwrap(), 2);
        assert_eq!(std::iter::from_fn(|| feed.try_recv().ok()).count(), 4, "who watches misses nothing");
    }

    #[test]
    fn log_without_an_archive_keeps_a_bounded_number_of_records() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let logs = ActivityLogs::default();
        (0..3 * MAX_PENDING_RECORDS).for_each(|_| logs.get(1, None).record(record("a")));
        assert_eq!(logs.get(1, None).read(requests).unwrap(), 3 * MAX_PENDING_RECORDS as u64);
        let kept = logs.get(1, Some(&tenant)).read(requests).unwrap() as usize;
        assert!((MAX_PENDING_RECORDS / 2..=MAX_PENDING_RECORDS).contains(&kept), "{kept}");
    }

    #[test]
    fn log_without_an_archive_lives_in_memory() {
        let log = Arc::new(ActivityLog::new(None));
        log.record(record("a"));
        assert_eq!(log.read(|summary| summary.totals_since(0).received_tokens).unwrap(), 10);
    }
}
