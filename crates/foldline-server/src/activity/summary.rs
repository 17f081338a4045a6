//! All sessions, days and tools of one tenant, added up from records. Adding a record costs the same whatever was added
//! before, and reading costs what is shown.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::activity::record::{FoldRecord, RequestActivity, SessionGroup, WindowParts};
use crate::activity::totals::ActivityTotals;

/// Statuses of errors begin here.
const FIRST_ERROR_STATUS: u16 = 400;
/// Milliseconds of a day.
pub(crate) const DAY_MILLIS: i64 = 86_400_000;
/// A session is live if it had a request within this time, in milliseconds.
const LIVE_MILLIS: i64 = 600_000;
/// Sessions whose requests and folds are kept; of older ones the totals remain.
const MAX_DETAILED_SESSIONS: usize = 500;
/// Requests and folds kept of one session; the newest are kept.
const MAX_SESSION_REQUESTS: usize = 2_000;
const MAX_SESSION_FOLDS: usize = 1_000;
/// Handles by which folds of one session are recognized that are reported again.
const MAX_SESSION_HANDLES: usize = 20_000;
/// Bytes of the details of all sessions; those of the oldest sessions are removed first.
const MAX_DETAIL_BYTES: usize = 64 << 20;
/// Latest requests and unfolds of all sessions.
const MAX_RECENT_REQUESTS: usize = 500;
const MAX_RECENT_UNFOLDS: usize = 100;

/// Sessions of which totals are kept; of older ones they remain in the totals by day.
const MAX_SESSIONS: usize = 50_000;
/// Combinations of day, model and client that are counted separately, and tools. Further ones are counted together or not
/// at all: a client can invent names.
const MAX_DAY_ROWS: usize = 50_000;
const MAX_TOOLS: usize = 10_000;
/// Name of models and clients that are counted together.
const OTHER_NAMES: &str = "(other)";

/// Effects and costs of all requests of one tenant.
#[derive(Debug, Default)]
pub struct ActivitySummary {
    pub(crate) sessions: HashMap<String, SessionEntry>,
    pub(crate) details: HashMap<String, SessionDetails>,
    /// Sum over the details.
    pub(crate) detail_bytes: usize,
    /// By day, model and client.
    pub(crate) days: BTreeMap<(i64, String, String), ActivityTotals>,
    /// By day and group, if sessions are compared.
    pub(crate) groups: BTreeMap<(i64, SessionGroup), GroupTotals>,
    /// By client and tool.
    pub(crate) tools: BTreeMap<(String, String), ToolEntry>,
    pub(crate) recent: VecDeque<RequestActivity>,
    pub(crate) recent_unfolds: VecDeque<UnfoldEntry>,
}

/// Sums of one group of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupTotals {
    /// Sessions, by their first request.
    pub sessions: u64,
    /// Responses of the upstream with a status of 400 and above.
    pub upstream_errors: u64,
    /// Sums of requests.
    pub totals: ActivityTotals,
}

impl GroupTotals {
    /// Returns the group as the API shows it.
    pub fn to_json(&self, group: SessionGroup) -> Value {
        json!({
            "group": group.name(),
            "sessions": self.sessions,
            "upstream_errors": self.upstream_errors,
            "totals": self.totals.to_json(),
        })
    }
}

impl AddAssign for GroupTotals {
    fn add_assign(&mut self, other: Self) {
        self.sessions = self.sessions.saturating_add(other.sessions);
        self.upstream_errors = self.upstream_errors.saturating_add(other.upstream_errors);
        self.totals += other.totals;
    }
}

/// A session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SessionEntry {
    /// Its name.
    pub id: String,
    /// First words of its task.
    pub title: String,
    /// Name of the client.
    pub client: String,
    /// Model of its last request.
    pub model: String,
    /// Times of its first and its last request, in milliseconds since 1970.
    pub first_at: i64,
    /// Time of its last request.
    pub last_at: i64,
    /// Sums of its requests.
    pub totals: ActivityTotals,
    /// Window of its last request.
    pub window: Option<WindowParts>,
}

impl SessionEntry {
    /// Returns true if the session had a request a short time ago.
    pub fn is_live(&self, now: i64) -> bool {
        now - self.last_at < LIVE_MILLIS
    }
}

/// Requests and folds of a session.
#[derive(Debug, Default, Serialize)]
pub(crate) struct SessionDetails {
    last_at: i64,
    /// Memory of the lists, about.
    #[serde(skip)]
    pub(crate) bytes: usize,
    requests: VecDeque<RequestActivity>,
    folds: VecDeque<FoldEntry>,
    handles: HashSet<String>,
}

impl SessionDetails {
    /// Restores details.
    pub(crate) fn new(
        last_at: i64,
        requests: VecDeque<RequestActivity>,
        folds: VecDeque<FoldEntry>,
        handles: HashSet<String>,
    ) -> Self {
        let handle_sizes = handles.iter().map(|handle| handle_bytes(handle));
        let bytes = requests.iter().map(request_bytes).chain(folds.iter().map(FoldEntry::bytes)).chain(handle_sizes);
        Self { last_at, bytes: bytes.sum(), requests, folds, handles }
    }

    /// Notes a handle. Returns true if it is new, or if there are too many to know.
    fn add_handle(&mut self, handle: &str) -> bool {
        if self.handles.contains(handle) {
            return false;
        }
        if self.handles.len() < MAX_SESSION_HANDLES {
            self.bytes += handle_bytes(handle);
            self.handles.insert(handle.to_owned());
        }
        true
    }
}

/// A fold of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FoldEntry {
    /// Time of the request that folded it, in milliseconds since 1970.
    pub at: i64,
    /// The fold.
    pub fold: FoldRecord,
    /// Number of times that the model requested the original.
    pub unfolds: u64,
}

impl FoldEntry {
    /// Returns about how much memory it takes.
    fn bytes(&self) -> usize {
        let FoldRecord { handle, tool, target, pass, marker, .. } = &self.fold;
        let texts = [Some(target), Some(pass), Some(marker), handle.as_ref(), tool.as_ref()];
        size_of::<Self>() + texts.into_iter().flatten().map(String::len).sum::<usize>()
    }
}

fn handle_bytes(handle: &str) -> usize {
    size_of::<String>() + handle.len()
}

/// Returns about how much memory a request without lists takes.
fn request_bytes(request: &RequestActivity) -> usize {
    size_of::<RequestActivity>() + request.session.len() + request.client.len() + request.model.len()
}

/// A tool that a client declares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolEntry {
    /// Tokens of its declaration.
    pub tokens: u64,
    /// Calls.
    pub calls: u64,
    /// Sessions that declared it.
    pub sessions: u64,
    /// Time of its last call, in milliseconds since 1970.
    pub last_called_at: Option<i64>,
}

/// An unfold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnfoldEntry {
    /// Time, in milliseconds since 1970.
    pub at: i64,
    /// Name of the session.
    pub session: String,
    /// The fold, as far as it is known.
    pub fold: FoldRecord,
}

impl ActivitySummary {
    /// Adds a record.
    pub fn add(&mut self, mut record: RequestActivity) {
        record.shorten();
        self.add_to_details(&mut record);
        let totals = record.totals();
        let day = record.at.div_euclid(DAY_MILLIS);
        let mut row = (day, record.model.clone(), record.client.clone());
        if self.days.len() >= MAX_DAY_ROWS && !self.days.contains_key(&row) {
            row = (day, OTHER_NAMES.to_owned(), OTHER_NAMES.to_owned());
        }
        *self.days.entry(row).or_default() += totals;
        if let Some(group) = record.group {
            let is_new = !self.sessions.contains_key(&record.session);
            let upstream_errors = u64::from(record.status >= FIRST_ERROR_STATUS);
            *self.groups.entry((day, group)).or_default() +=
                GroupTotals { sessions: u64::from(is_new), upstream_errors, totals };
        }
        self.add_to_tools(&record);
        self.remove_oldest_sessions();
        let session = self.sessions.entry(record.session.clone()).or_insert_with(|| SessionEntry {
            id: record.session.clone(),
            first_at: record.at,
            ..SessionEntry::default()
        });
        session.totals += totals;
        session.first_at = session.first_at.min(record.at);
        if record.at >= session.last_at {
            session.last_at = record.at;
            session.model.clone_from(&record.model);
            session.client.clone_from(&record.client);
            session.window = record.window.or(session.window);
        }
        if let Some(title) = record.title.take().filter(|_| session.title.is_empty()) {
            session.title = title;
        }
        push_bounded(&mut self.recent, record.without_lists(), MAX_RECENT_REQUESTS);
    }

    /// Returns the sums of a group of sessions since a day.
    pub fn group_since(&self, day: i64, group: SessionGroup) -> GroupTotals {
        let mut sum = GroupTotals::default();
        let days = self.groups.range((day, SessionGroup::Fold)..).filter(|((_, it), _)| *it == group);
        days.for_each(|(_, totals)| sum += *totals);
        sum
    }

    /// Removes a session that was deleted, at once. The totals by day and of tools still contain it, until the journal was
    /// read again.
    pub(crate) fn hide_session(&mut self, id: &str) {
        self.sessions.remove(id);
        if let Some(details) = self.details.remove(id) {
            self.detail_bytes -= details.bytes;
        }
        self.recent.retain(|request| request.session != id);
        self.recent_unfolds.retain(|unfold| unfold.session != id);
    }

    /// Removes the oldest tenth of the sessions if there are too many, so that the cost per session stays constant.
    fn remove_oldest_sessions(&mut self) {
        if self.sessions.len() < MAX_SESSIONS {
            return;
        }
        let mut times: Vec<i64> = self.sessions.values().map(|session| session.last_at).collect();
        let (_, &mut newest_removed, _) = times.select_nth_unstable(MAX_SESSIONS / 10);
        let mut left = MAX_SESSIONS / 10;
        self.sessions.retain(|_, session| {
            let is_removed = session.last_at <= newest_removed && left > 0;
            left -= usize::from(is_removed);
            !is_removed
        });
    }

    /// Adds a record to the details of its session, and removes folds from the record that were recorded before: a
    /// restarted proxy reports them again.
    fn add_to_details(&mut self, record: &mut RequestActivity) {
        let details = self.details.entry(record.session.clone()).or_default();
        let bytes_before = details.bytes;
        details.last_at = details.last_at.max(record.at);
        record.folds.retain(|fold| fold.handle.as_ref().is_none_or(|handle| details.add_handle(handle)));
        for fold in &record.folds {
            let entry = FoldEntry { at: record.at, fold: fold.clone(), unfolds: 0 };
            details.bytes += entry.bytes();
            let removed = push_bounded(&mut details.folds, entry, MAX_SESSION_FOLDS);
            details.bytes -= removed.map_or(0, |entry| entry.bytes());
        }
        for unfold in &record.unfolds {
            let is_fold = |entry: &&mut FoldEntry| entry.fold.handle.as_ref() == Some(&unfold.handle);
            let known = details.folds.iter_mut().find(is_fold);
            let fold = known.map(|entry| {
                entry.unfolds += 1;
                FoldRecord { marker: String::new(), ..entry.fold.clone() }
            });
            let unknown = || FoldRecord { handle: Some(unfold.handle.clone()), ..FoldRecord::default() };
            let fold = fold.unwrap_or_else(unknown);
            let entry = UnfoldEntry { at: record.at, session: record.session.clone(), fold };
            push_bounded(&mut self.recent_unfolds, entry, MAX_RECENT_UNFOLDS);
        }
        let request = record.without_lists();
        details.bytes += request_bytes(&request);
        let removed = push_bounded(&mut details.requests, request, MAX_SESSION_REQUESTS);
        details.bytes -= removed.map_or(0, |request| request_bytes(&request));
        self.detail_bytes = self.detail_bytes + details.bytes - bytes_before;
        self.remove_oldest_details();
    }

    /// Removes the details of the sessions whose last request is the oldest, until the others are within the limits.
    fn remove_oldest_details(&mut self) {
        while self.details.len() > MAX_DETAILED_SESSIONS
            || (self.detail_bytes > MAX_DETAIL_BYTES && self.details.len() > 1)
        {
            let oldest = self.details.iter().min_by_key(|(_, details)| details.last_at).map(|(name, _)| name.clone());
            let Some(removed) = oldest.and_then(|name| self.details.remove(&name)) else { return };
            self.detail_bytes -= removed.bytes;
        }
    }

    fn add_to_tools(&mut self, record: &RequestActivity) {
        let key = |name: &str| (record.client.clone(), name.to_owned());
        for tool in &record.tools {
            if self.tools.len() >= MAX_TOOLS && !self.tools.contains_key(&key(&tool.name)) {
                continue;
            }
            let entry = self.tools.entry(key(&tool.name)).or_default();
            entry.tokens = tool.tokens;
            entry.sessions += 1;
        }
        for (name, calls) in &record.calls {
            // A call of a tool that is not declared is the client's mistake; it has no weight.
            let Some(entry) = self.tools.get_mut(&key(name)) else { continue };
            entry.calls += calls;
            entry.last_called_at = entry.last_called_at.max(Some(record.at));
        }
    }

    /// Returns the totals since a day (days since 1970, UTC).
    pub fn totals_since(&self, day: i64) -> ActivityTotals {
        let mut sum = ActivityTotals::default();
        self.days.range((day, String::new(), String::new())..).for_each(|(_, totals)| sum += *totals);
        sum
    }

    /// Returns the totals since a day, by a key of the day, the model and the client.
    pub fn totals_by<K: Ord>(
        &self,
        day: i64,
        key: impl Fn(i64, &str, &str) -> K,
    ) -> BTreeMap<K, (i64, ActivityTotals)> {
        let mut sums: BTreeMap<K, (i64, ActivityTotals)> = BTreeMap::new();
        for ((at, model, client), totals) in self.days.range((day, String::new(), String::new())..) {
            let (last, sum) = sums.entry(key(*at, model, client)).or_default();
            *last = (*last).max(*at);
            *sum += *totals;
        }
        sums
    }

    /// Returns the sessions with a request since a time, last active first.
    pub fn sessions_since(&self, since: i64) -> Vec<&SessionEntry> {
        let mut sessions: Vec<&SessionEntry> = self.sessions.values().filter(|entry| entry.last_at >= since).collect();
        sessions.sort_by(|a, b| b.last_at.cmp(&a.last_at).then_with(|| a.id.cmp(&b.id)));
        sessions
    }

    /// Returns a session.
    pub fn session(&self, id: &str) -> Option<&SessionEntry> {
        self.sessions.get(id)
    }

    /// Returns the kept requests of a session, oldest first.
    pub fn session_requests(&self, id: &str) -> impl Iterator<Item = &RequestActivity> {
        self.details.get(id).into_iter().flat_map(|details| &details.requests)
    }

    /// Returns the kept folds of a session, newest first.
    pub fn session_folds(&self, id: &str) -> impl Iterator<Item = &FoldEntry> {
        self.details.get(id).into_iter().flat_map(|details| details.folds.iter().rev())
    }

    /// Returns the latest requests of all sessions, newest first.
    pub fn recent_requests(&self) -> impl Iterator<Item = &RequestActivity> {
        self.recent.iter().rev()
    }

    /// Returns the latest unfolds of all sessions, newest first.
    pub fn recent_unfolds(&self) -> impl Iterator<Item = &UnfoldEntry> {
        self.recent_unfolds.iter().rev()
    }

    /// Returns the tools by client and name.
    pub fn tools(&self) -> impl Iterator<Item = (&str, &str, &ToolEntry)> {
        self.tools.iter().map(|((client, tool), entry)| (client.as_str(), tool.as_str(), entry))
    }
}

/// Appends an item. Returns the first one if there were too many.
fn push_bounded<T>(list: &mut VecDeque<T>, item: T, max: usize) -> Option<T> {
    let removed = if list.len() >= max { list.pop_front() } else { None };
    list.push_back(item);
    removed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::record::{ToolWeight, UnfoldRecord};

    fn record(session: &str, at: i64) -> RequestActivity {
        RequestActivity {
            session: session.into(),
            at,
            client: "agent".into(),
            model: "m".into(),
            received_tokens: 100,
            sent_tokens: 60,
            ..RequestActivity::default()
        }
    }

    fn fold(handle: &str) -> FoldRecord {
        FoldRecord {
            handle: Some(handle.into()),
            tool: Some("read".into()),
            target: "a.rs".into(),
            ..FoldRecord::default()
        }
    }

    #[test]
    fn sessions_days_and_all_agree() {
        let mut summary = ActivitySummary::default();
        summary.add(record("a", 1));
        summary.add(record("b", DAY_MILLIS + 1));
        summary.add(record("a", 2 * DAY_MILLIS));
        let all = summary.totals_since(0);
        assert_eq!((all.requests, all.received_tokens, all.sent_tokens), (3, 300, 180));
        assert_eq!(summary.totals_since(1).requests, 2);
        let mut sessions = ActivityTotals::default();
        summary.sessions_since(0).iter().for_each(|entry| sessions += entry.totals);
        assert_eq!(sessions, all);
        let names: Vec<&str> = summary.sessions_since(0).iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(summary.totals_by(0, |day, _, _| day).len(), 3);
    }

    #[test]
    fn fold_that_is_reported_again_is_counted_once() {
        let mut summary = ActivitySummary::default();
        summary.add(RequestActivity { folds: vec![fold("h1"), fold("h2")], ..record("a", 1) });
        summary.add(RequestActivity { folds: vec![fold("h1"), fold("h3")], ..record("a", 2) });
        assert_eq!(summary.totals_since(0).folds, 3);
        assert_eq!(summary.session_folds("a").count(), 3);
    }

    #[test]
    fn unfolds_name_what_was_folded() {
        let mut summary = ActivitySummary::default();
        summary.add(RequestActivity { folds: vec![fold("h1")], ..record("a", 1) });
        let unfolds = ["h1", "h9"].map(|handle| UnfoldRecord { handle: handle.into() }).to_vec();
        summary.add(RequestActivity { unfolds, ..record("a", 2) });
        assert_eq!(summary.session_folds("a").next().unwrap().unfolds, 1);
        let targets: Vec<&str> = summary.recent_unfolds().map(|unfold| unfold.fold.target.as_str()).collect();
        assert_eq!(targets, ["", "a.rs"]);
    }

    #[test]
    fn tools_are_weighed_once_and_their_calls_counted() {
        let mut summary = ActivitySummary::default();
        let tools =
            vec![ToolWeight { name: "read".into(), tokens: 40 }, ToolWeight { name: "fax".into(), tokens: 900 }];
        summary.add(RequestActivity { tools, ..record("a", 1) });
        let calls = BTreeMap::from([("read".to_owned(), 2), ("undeclared".to_owned(), 1)]);
        summary.add(RequestActivity { calls, ..record("a", 7) });
        let tools: Vec<_> = summary.tools().map(|(_, name, entry)| (name, entry.tokens, entry.calls)).collect();
        assert_eq!(tools, [("fax", 900, 0), ("read", 40, 2)]);
    }

    #[test]
    fn details_are_bounded_and_totals_are_not() {
        let mut summary = ActivitySummary::default();
        let sessions = MAX_DETAILED_SESSIONS as i64 + 10;
        (0..sessions).for_each(|at| summary.add(record(&at.to_string(), at)));
        assert_eq!(summary.details.len(), MAX_DETAILED_SESSIONS);
        assert_eq!(summary.session_requests("0").count(), 0);
        assert_eq!(summary.totals_since(0).requests, sessions as u64);
        assert_eq!(summary.recent.len(), MAX_RECENT_REQUESTS);
    }

    #[test]
    fn invented_names_take_bounded_memory() {
        let mut summary = ActivitySummary::default();
        let requests = MAX_SESSIONS + MAX_SESSIONS / 2;
        for at in 0..requests {
            let tools = vec![ToolWeight { name: at.to_string(), tokens: 1 }];
            let model = format!("model-{at}");
            summary.add(RequestActivity { tools, model, ..record(&at.to_string(), at as i64) });
        }
        assert!(summary.sessions.len() <= MAX_SESSIONS && summary.tools.len() <= MAX_TOOLS);
        assert!(summary.days.len() <= MAX_DAY_ROWS + 1, "{}", summary.days.len());
        assert_eq!(summary.totals_since(0).requests, requests as u64, "the totals cover all requests");
        assert!(summary.session("0").is_none() && summary.session(&(requests - 1).to_string()).is_some());
    }

    /// A session with the longest markers, targets and names that a client can send.
    fn large_record(session: &str, at: i64) -> RequestActivity {
        let folds = (0..100).map(|fold| FoldRecord {
            handle: Some(format!("{session}-{at}-{fold}")),
            target: "t".repeat(5_000),
            marker: "\u{1d11e}".repeat(5_000),
            ..FoldRecord::default()
        });
        let tools = vec![ToolWeight { name: format!("{session}{}", "n".repeat(5_000)), tokens: 1 }];
        RequestActivity { folds: folds.collect(), tools, ..record(session, at) }
    }

    #[test]
    fn details_of_a_tenant_take_bounded_memory() {
        let mut summary = ActivitySummary::default();
        for at in 0..200 {
            summary.add(large_record(&(at / 4).to_string(), at));
        }
        let kept = summary.details.values().flat_map(|details| &details.folds);
        let bytes: usize = kept.map(|entry| entry.fold.marker.len() + entry.fold.target.len()).sum();
        assert!(bytes <= MAX_DETAIL_BYTES, "{bytes} bytes");
        assert_eq!(summary.session_folds("49").count(), 400, "the newest session is complete");
        assert!(summary.tools.keys().all(|(_, tool)| tool.len() < 1_000));
        assert_eq!(summary.totals_since(0).folds, 20_000);
    }

    #[test]
    fn folds_of_a_stored_request_are_only_counted() {
        let mut summary = ActivitySummary::default();
        summary.add(RequestActivity { folds: vec![fold("h1"), fold("h2")], ..record("a", 1) });
        let stored = summary.recent_requests().next().unwrap();
        assert_eq!((stored.totals().folds, stored.folds.capacity()), (2, 0));
    }
}
