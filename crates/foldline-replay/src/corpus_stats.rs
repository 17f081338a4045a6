//! The survey of a set: what its conversations have in common, and what each one's actions were.
//!
//! A first look at all recordings, before any is replayed. It holds hashes, never text.

use std::sync::Arc;

use foldline::transcript::RecordedSession;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::case::{action_ranges, for_each_action_identifier};
use crate::identifiers::for_each_identifier;
use crate::text::for_each_text;

/// What the conversations of a set have in common.
#[derive(Default)]
pub struct CorpusStats {
    common_identifiers: FxHashSet<u64>,
    /// The atoms of each action of each conversation.
    actions: Vec<(String, Arc<ActionIdentifiers>)>,
    positions: FxHashMap<String, usize>,
}

/// The atoms of a conversation's actions, one list for each.
pub(crate) type ActionIdentifiers = Vec<Vec<u64>>;

/// Enough conversations to tell what is common; a home full of sessions is not read twice.
const MAX_CONVERSATIONS: usize = 1_000;

/// Among fewer conversations nothing can be called common.
const MIN_CONVERSATIONS: usize = 10;

impl CorpusStats {
    /// Looks at the first recordings of a set.
    pub fn from_recordings(recordings: impl Iterator<Item = RecordedSession> + Send) -> Self {
        let looks: Vec<(usize, String, FxHashSet<u64>, ActionIdentifiers)> = recordings
            .take(MAX_CONVERSATIONS)
            .enumerate()
            .par_bridge()
            .map(|(at, recording)| {
                let messages = &recording.conversation.messages;
                let future = action_ranges(messages).into_iter().map(|range| action_hashes(&messages[range])).collect();
                (at, recording.id.clone(), distinct_hashes(&recording), future)
            })
            .collect();
        let few = looks.len() < MIN_CONVERSATIONS;
        let limit = looks.len() as u32 / 5;
        let mut counts: FxHashMap<u64, u32> = FxHashMap::default();
        let mut futures = Vec::with_capacity(looks.len());
        for (at, id, atoms, future) in looks {
            atoms.into_iter().for_each(|atom| *counts.entry(atom).or_default() += 1);
            futures.push((at, id, Arc::new(future)));
        }
        futures.sort_by_key(|&(at, ..)| at);
        let order = futures.iter().map(|(at, id, _)| (id.clone(), *at)).collect();
        Self {
            common_identifiers: counts
                .into_iter()
                .filter(|&(_, count)| count > limit && !few)
                .map(|(atom, _)| atom)
                .collect(),
            actions: futures.into_iter().map(|(_, id, future)| (id, future)).collect(),
            positions: order,
        }
    }

    /// How many conversations were looked at.
    pub fn conversation_count(&self) -> usize {
        self.actions.len()
    }

    /// How many of them have at least so many calls.
    pub fn count_with_calls(&self, calls: usize) -> usize {
        self.actions.iter().filter(|(_, future)| future.len() >= calls).count()
    }

    /// The names of `count` conversations with at least so many calls, drawn evenly and always the same.
    pub fn sample(&self, count: usize, calls: usize) -> FxHashSet<String> {
        let mut long: Vec<&String> =
            self.actions.iter().filter(|(_, future)| future.len() >= calls).map(|(id, _)| id).collect();
        long.sort_by_key(|id| xxh3_64(id.as_bytes()));
        long.into_iter().take(count).cloned().collect()
    }

    /// How many atoms are common.
    pub fn common_count(&self) -> usize {
        self.common_identifiers.len()
    }

    /// Whether an atom stands in more than a fifth of all conversations, and so is no evidence.
    pub(crate) fn is_common(&self, atom: u64) -> bool {
        self.common_identifiers.contains(&atom)
    }

    /// The actions of another conversation: of the first that is long enough, half the set away. Sets
    /// are often sorted by project, and the neighbour in the same project speaks of the same files.
    pub(crate) fn foreign_actions(&self, id: &str) -> Option<Arc<ActionIdentifiers>> {
        let at = *self.positions.get(id)?;
        let count = self.actions.len();
        let others = (0..count).map(|step| (at + count / 2 + step) % count).filter(|&other| other != at);
        others.map(|other| &self.actions[other].1).find(|future| future.len() >= MIN_CONVERSATIONS).map(Arc::clone)
    }
}

fn action_hashes(messages: &[foldline::Message<'_>]) -> Vec<u64> {
    let mut found = Vec::new();
    messages
        .iter()
        .for_each(|message| for_each_action_identifier(message, |atom| found.push(xxh3_64(atom.as_bytes()))));
    found.sort_unstable();
    found.dedup();
    found
}

fn distinct_hashes(recording: &RecordedSession) -> FxHashSet<u64> {
    let mut seen = FxHashSet::default();
    for message in &recording.conversation.messages {
        for_each_text(message, |_, _, text| {
            for line in text.lines() {
                for_each_identifier(line, |atom| {
                    seen.insert(xxh3_64(atom.as_bytes()));
                });
            }
        });
    }
    seen
}
