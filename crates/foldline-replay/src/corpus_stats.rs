//! Statistics of a set of recordings: what its conversations have in common, and each one's actions.
//!
//! Collected in a first run over all recordings, before any is replayed. Contains hashes, never text.

use std::sync::Arc;

use foldline::transcript::RecordedSession;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::actions::{action_ranges, for_each_action_line};
use crate::identifiers::{IdentifierClass, for_each_identifier};
use crate::text::for_each_text;
use crate::whole_strings::{for_each_whole_string, string_hash};

/// Statistics over the conversations of a set.
#[derive(Debug, Default)]
pub struct CorpusStats {
    common_identifiers: FxHashSet<u64>,
    /// The identifiers of each action of each conversation.
    actions: Vec<(String, Arc<ActionIdentifiers>)>,
    positions: FxHashMap<String, usize>,
}

/// The identifiers of a conversation's actions, one list per action.
pub(crate) type ActionIdentifiers = Vec<Vec<u64>>;

/// Maximum conversations to read: enough to find common identifiers without reading a large folder twice.
const MAX_CONVERSATIONS: usize = 1_000;

/// Minimum conversations for an identifier to count as common.
const MIN_CONVERSATIONS: usize = 10;

impl CorpusStats {
    /// Collects the statistics of the first recordings of a set.
    pub fn from_recordings(recordings: impl Iterator<Item = RecordedSession> + Send) -> Self {
        let scanned: Vec<(usize, String, FxHashSet<u64>, ActionIdentifiers)> = recordings
            .take(MAX_CONVERSATIONS)
            .enumerate()
            .par_bridge()
            .map(|(at, recording)| {
                let messages = &recording.conversation.messages;
                let actions =
                    action_ranges(messages).into_iter().map(|range| action_hashes(&messages[range])).collect();
                (at, recording.id.clone(), distinct_hashes(&recording), actions)
            })
            .collect();
        let few = scanned.len() < MIN_CONVERSATIONS;
        let limit = scanned.len() as u32 / 5;
        let mut counts: FxHashMap<u64, u32> = FxHashMap::default();
        let mut conversations = Vec::with_capacity(scanned.len());
        for (at, id, hashes, actions) in scanned {
            hashes.into_iter().for_each(|hash| *counts.entry(hash).or_default() += 1);
            conversations.push((at, id, Arc::new(actions)));
        }
        conversations.sort_by_key(|&(at, ..)| at);
        let positions = conversations.iter().map(|(at, id, _)| (id.clone(), *at)).collect();
        Self {
            common_identifiers: counts
                .into_iter()
                .filter(|&(_, count)| count > limit && !few)
                .map(|(hash, _)| hash)
                .collect(),
            actions: conversations.into_iter().map(|(_, id, actions)| (id, actions)).collect(),
            positions,
        }
    }

    /// Returns the number of conversations that were read.
    pub fn conversation_count(&self) -> usize {
        self.actions.len()
    }

    /// Returns the number of conversations with at least `calls` calls.
    pub fn count_with_calls(&self, calls: usize) -> usize {
        self.actions.iter().filter(|(_, actions)| actions.len() >= calls).count()
    }

    /// Returns the names of the conversations with fewer than `calls` calls, and the number of their calls.
    pub fn shorter_than(&self, calls: usize) -> Vec<(&str, usize)> {
        let short = self.actions.iter().filter(|(_, actions)| actions.len() < calls);
        short.map(|(id, actions)| (id.as_str(), actions.len())).collect()
    }

    /// Returns the names of `count` conversations with at least `calls` calls, sampled evenly and deterministically.
    pub fn sample(&self, count: usize, calls: usize) -> FxHashSet<String> {
        let mut long: Vec<&String> =
            self.actions.iter().filter(|(_, actions)| actions.len() >= calls).map(|(id, _)| id).collect();
        long.sort_by_key(|id| xxh3_64(id.as_bytes()));
        long.into_iter().take(count).cloned().collect()
    }

    /// Returns the number of common identifiers.
    pub fn common_count(&self) -> usize {
        self.common_identifiers.len()
    }

    /// Returns true if an identifier or whole string, by its hash, appears in more than a fifth of all conversations and is therefore no evidence.
    pub(crate) fn is_common(&self, hash: u64) -> bool {
        self.common_identifiers.contains(&hash)
    }

    /// Returns the actions of another conversation: the first that is long enough, half the set away. Sets
    /// are often sorted by project, and a neighbor in the same project uses the same files.
    pub(crate) fn foreign_actions(&self, id: &str) -> Option<Arc<ActionIdentifiers>> {
        let at = *self.positions.get(id)?;
        let count = self.actions.len();
        let others = (0..count).map(|step| (at + count / 2 + step) % count).filter(|&other| other != at);
        others.map(|other| &self.actions[other].1).find(|actions| actions.len() >= MIN_CONVERSATIONS).map(Arc::clone)
    }
}

/// Returns the certain identifiers of an action, by hash.
fn action_hashes(messages: &[foldline::Message<'_>]) -> Vec<u64> {
    let mut found = Vec::new();
    for message in messages {
        for_each_action_line(message, |line| {
            for_each_identifier(line, |identifier, class| {
                if class == IdentifierClass::Certain {
                    found.push(xxh3_64(identifier.as_bytes()));
                }
            });
        });
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns all identifiers and whole strings of a recording, by hash.
fn distinct_hashes(recording: &RecordedSession) -> FxHashSet<u64> {
    let mut seen = FxHashSet::default();
    // Files are read again and again: most lines are repeats.
    let mut seen_lines = FxHashSet::default();
    for message in &recording.conversation.messages {
        for_each_text(message, |_, _, text| {
            for line in text.lines().filter(|line| seen_lines.insert(xxh3_64(line.as_bytes()))) {
                for_each_identifier(line, |identifier, _| {
                    seen.insert(xxh3_64(identifier.as_bytes()));
                });
                for_each_whole_string(line, |text| {
                    seen.insert(string_hash(text));
                });
            }
        });
    }
    seen
}
