//! A summary as a checkpoint of the journal stores it, so that a start reads only the events after it.
//!
//! A summary that is restored and goes on is the same as one that has read all events. A checkpoint of another version
//! of this format is not used: its events are read again. The version in [`HEADER`] grows whenever the same records
//! would give another summary.

use std::collections::{HashSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::activity::record::{RequestActivity, SessionGroup};
use crate::activity::summary::{
    ActivitySummary, FoldEntry, GroupTotals, SessionDetails, SessionEntry, ToolEntry, UnfoldEntry,
};
use crate::activity::totals::ActivityTotals;

/// First bytes of a checkpoint, with the version of the format and of the rules by which records are added up.
const HEADER: &[u8] = b"foldline activity 2\n";

/// A summary with references, for writing, or without, for reading.
#[derive(Serialize, Deserialize)]
struct StoredSummary<Session, Detail, Day, Group, Tool, Recent, Unfolds> {
    /// Hash of the last event that was added, in hex.
    last_hash: Option<String>,
    sessions: Vec<Session>,
    details: Vec<Detail>,
    days: Vec<Day>,
    groups: Vec<Group>,
    tools: Vec<Tool>,
    recent: Recent,
    recent_unfolds: Unfolds,
}

type ReadSummary = StoredSummary<
    SessionEntry,
    (String, StoredDetails),
    ((i64, String, String), ActivityTotals),
    ((i64, SessionGroup), GroupTotals),
    ((String, String), ToolEntry),
    VecDeque<RequestActivity>,
    VecDeque<UnfoldEntry>,
>;

/// Requests and folds of a session; their size is computed again.
#[derive(Deserialize)]
struct StoredDetails {
    last_at: i64,
    requests: VecDeque<RequestActivity>,
    folds: VecDeque<FoldEntry>,
    handles: HashSet<String>,
}

impl ActivitySummary {
    /// Returns the summary as bytes, with the hash of the last event that it covers.
    pub(crate) fn to_bytes(&self, last_hash: Option<blake3::Hash>) -> Result<Vec<u8>, serde_json::Error> {
        let stored = StoredSummary {
            last_hash: last_hash.map(|hash| hash.to_hex().to_string()),
            sessions: self.sessions.values().collect(),
            details: self.details.iter().collect(),
            days: self.days.iter().collect(),
            groups: self.groups.iter().collect(),
            tools: self.tools.iter().collect(),
            recent: &self.recent,
            recent_unfolds: &self.recent_unfolds,
        };
        let mut bytes = HEADER.to_vec();
        serde_json::to_writer(&mut bytes, &stored)?;
        Ok(bytes)
    }

    /// Restores a summary and the hash of the last event that it covers; none if the bytes are of another version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<(Self, Option<blake3::Hash>)> {
        let stored: ReadSummary = serde_json::from_slice(bytes.strip_prefix(HEADER)?).ok()?;
        let last_hash = stored.last_hash.map(blake3::Hash::from_hex).transpose().ok()?;
        let restore = |(id, stored): (String, StoredDetails)| {
            let StoredDetails { last_at, requests, folds, handles } = stored;
            (id, SessionDetails::new(last_at, requests, folds, handles))
        };
        let mut summary = Self {
            sessions: stored.sessions.into_iter().map(|entry| (entry.id.clone(), entry)).collect(),
            details: stored.details.into_iter().map(restore).collect(),
            detail_bytes: 0,
            days: stored.days.into_iter().collect(),
            groups: stored.groups.into_iter().collect(),
            tools: stored.tools.into_iter().collect(),
            recent: stored.recent,
            recent_unfolds: stored.recent_unfolds,
        };
        summary.detail_bytes = summary.details.values().map(|details| details.bytes).sum();
        Some((summary, last_hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activity::record::{CreaseRecord, FoldRecord, ToolWeight, UnfoldRecord, WindowParts};
    use crate::activity::summary::DAY_MILLIS;
    use proptest::prelude::*;

    fn records() -> impl Strategy<Value = Vec<RequestActivity>> {
        let record = (0..5_usize, 0..3_usize, 0..6_u8, 0..4_u8, any::<bool>(), 0..1_000_u64);
        let make = |(at, (session, model, fold, unfold, is_first, tokens)): (usize, (_, _, u8, u8, bool, u64))| {
            let folds = (0..fold).map(|number| FoldRecord {
                handle: Some(format!("h{number}")),
                tool: Some("read".into()),
                target: format!("{number}.rs"),
                marker: "[folded]".into(),
                ..FoldRecord::default()
            });
            let unfolds = (0..unfold).map(|number| UnfoldRecord { handle: format!("h{number}") });
            RequestActivity {
                session: format!("session-{session}"),
                at: at as i64 * DAY_MILLIS / 3,
                title: is_first.then(|| "fix \"it\"".into()),
                client: "agent".into(),
                model: format!("model-{model}"),
                received_tokens: tokens,
                group: SessionGroup::ALL.get(session % 3).copied(),
                crease: is_first.then(CreaseRecord::default),
                folds: folds.collect(),
                unfolds: unfolds.collect(),
                tools: vec![ToolWeight { name: "read".into(), tokens }],
                window: is_first.then(|| WindowParts { crease_usd_at_most: Some(0.1), ..WindowParts::default() }),
                ..RequestActivity::default()
            }
        };
        let numbered = move |records: Vec<_>| records.into_iter().enumerate().map(make).collect();
        proptest::collection::vec(record, 0..40).prop_map(numbered)
    }

    /// Returns everything that a summary shows, in an order that does not depend on hash maps.
    fn shown(summary: &ActivitySummary) -> String {
        let sessions: Vec<_> = summary.sessions_since(0);
        let details: Vec<_> = sessions
            .iter()
            .map(|entry| {
                let folds: Vec<_> = summary.session_folds(&entry.id).collect();
                (summary.session_requests(&entry.id).collect::<Vec<_>>(), folds)
            })
            .collect();
        let (days, groups, tools) = (&summary.days, &summary.groups, &summary.tools);
        let (recent, unfolds) = (&summary.recent, &summary.recent_unfolds);
        format!(
            "{sessions:?} {details:?} {days:?} {groups:?} {tools:?} {recent:?} {unfolds:?} {}",
            summary.detail_bytes
        )
    }

    proptest! {
        #[test]
        fn restored_summary_goes_on_like_the_original(records in records(), cut in 0..40_usize) {
            let cut = cut.min(records.len());
            let mut whole = ActivitySummary::default();
            records[..cut].iter().for_each(|record| whole.add(record.clone()));
            let hash = blake3::hash(b"last");
            let (mut restored, last_hash) = ActivitySummary::from_bytes(&whole.to_bytes(Some(hash)).unwrap()).unwrap();
            prop_assert_eq!(last_hash, Some(hash));
            for record in &records[cut..] {
                whole.add(record.clone());
                restored.add(record.clone());
            }
            prop_assert_eq!(shown(&whole), shown(&restored));
        }
    }

    #[test]
    fn other_versions_are_not_read() {
        let bytes = ActivitySummary::default().to_bytes(None).unwrap();
        assert!(ActivitySummary::from_bytes(&bytes).is_some());
        let later = String::from_utf8(bytes).unwrap().replace("activity 2", "activity 3");
        assert!(ActivitySummary::from_bytes(later.as_bytes()).is_none());
        assert!(ActivitySummary::from_bytes(&[HEADER, b"{}"].concat()).is_none());
    }
}
