//! The survey of a set: what its conversations have in common, and what each one's actions were.
//!
//! A first look at all recordings, before any is replayed. It holds hashes, never text.

use std::sync::Arc;

use foldline::transcript::RecordedSession;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::atom::atoms;
use crate::case::{action_atoms, actions};
use crate::text::texts;

/// What the conversations of a set have in common.
#[derive(Default)]
pub struct Survey {
    common: FxHashSet<u64>,
    /// The atoms of each action of each conversation.
    futures: Vec<(String, Arc<Future>)>,
    order: FxHashMap<String, usize>,
}

/// The atoms of a conversation's actions, one list for each.
pub(crate) type Future = Vec<Vec<u64>>;

/// Enough conversations to tell what is common; a home full of sessions is not read twice.
const LOOKED_AT: usize = 1_000;

/// Among fewer conversations nothing can be called common.
const FEW: usize = 10;

impl Survey {
    /// Looks at the first recordings of a set.
    pub fn of(recordings: impl Iterator<Item = RecordedSession> + Send) -> Self {
        let looks: Vec<(usize, String, FxHashSet<u64>, Future)> = recordings
            .take(LOOKED_AT)
            .enumerate()
            .par_bridge()
            .map(|(at, recording)| {
                let messages = &recording.conversation.messages;
                let future = actions(messages).into_iter().map(|range| hashes(&messages[range])).collect();
                (at, recording.id.clone(), distinct(&recording), future)
            })
            .collect();
        let few = looks.len() < FEW;
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
            common: counts.into_iter().filter(|&(_, count)| count > limit && !few).map(|(atom, _)| atom).collect(),
            futures: futures.into_iter().map(|(_, id, future)| (id, future)).collect(),
            order,
        }
    }

    /// How many conversations were looked at.
    pub fn conversations(&self) -> usize {
        self.futures.len()
    }

    /// How many of them have at least so many calls.
    pub fn with_calls(&self, calls: usize) -> usize {
        self.futures.iter().filter(|(_, future)| future.len() >= calls).count()
    }

    /// The names of `count` conversations with at least so many calls, drawn evenly and always the same.
    pub fn sample(&self, count: usize, calls: usize) -> FxHashSet<String> {
        let mut long: Vec<&String> =
            self.futures.iter().filter(|(_, future)| future.len() >= calls).map(|(id, _)| id).collect();
        long.sort_by_key(|id| xxh3_64(id.as_bytes()));
        long.into_iter().take(count).cloned().collect()
    }

    /// How many atoms are common.
    pub fn common(&self) -> usize {
        self.common.len()
    }

    /// Whether an atom stands in more than a fifth of all conversations, and so is no evidence.
    pub(crate) fn is_common(&self, atom: u64) -> bool {
        self.common.contains(&atom)
    }

    /// The actions of another conversation: of the first that is long enough, half the set away. Sets
    /// are often sorted by project, and the neighbour in the same project speaks of the same files.
    pub(crate) fn foreign(&self, id: &str) -> Option<Arc<Future>> {
        let at = *self.order.get(id)?;
        let count = self.futures.len();
        let others = (0..count).map(|step| (at + count / 2 + step) % count).filter(|&other| other != at);
        others.map(|other| &self.futures[other].1).find(|future| future.len() >= FEW).map(Arc::clone)
    }
}

fn hashes(messages: &[foldline::Message<'_>]) -> Vec<u64> {
    let mut found = Vec::new();
    messages.iter().for_each(|message| action_atoms(message, |atom| found.push(xxh3_64(atom.as_bytes()))));
    found.sort_unstable();
    found.dedup();
    found
}

fn distinct(recording: &RecordedSession) -> FxHashSet<u64> {
    let mut seen = FxHashSet::default();
    for message in &recording.conversation.messages {
        texts(message, |_, _, text| {
            for line in text.lines() {
                atoms(line, |atom| {
                    seen.insert(xxh3_64(atom.as_bytes()));
                });
            }
        });
    }
    seen
}
