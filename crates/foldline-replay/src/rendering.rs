//! A rendering as it changes from call to call: its tokens, its common prefix with the previous one,
//! and the context that is still in it.
//!
//! The cost of a change is proportional to what it touches, never to the whole rendering.

use std::sync::Arc;

use foldline::Handle;
use memchr::memmem::Finder;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::artifact_trail::TrailFacts;
use crate::case::{MessageMetrics, ReplayCase};
use crate::edit::{self, EditAnchor};
use crate::engine::{EngineError, RenderingDelta, SharedMessage};
use crate::message_hash::canonical_bytes;

pub(crate) struct TrackedRendering<'c> {
    case: &'c ReplayCase,
    slots: Vec<RenderedSlot>,
    /// Tokens of the messages before each index; one longer than `slots`.
    token_sums: Vec<u64>,
    /// Number of lines with each identifier.
    identifier_counts: Vec<u32>,
    instructions: FxHashMap<u64, u32>,
    /// Number of messages with each file of the artifact trail.
    files: FxHashMap<u64, u32>,
    /// Number of copies of each long result.
    results: FxHashMap<u64, u32>,
    /// Number of unchanged copies of each original message.
    intact_counts: Vec<u32>,
    /// Bytes that ever entered and are neither verbatim nor in the marker grammar.
    pub(crate) invented_bytes: u64,
    /// Number of messages with each handle.
    handles: FxHashMap<Handle, u32>,
    /// Handles that appeared since they were last taken.
    new_handles: Vec<Handle>,
}

struct RenderedSlot {
    message: SharedMessage,
    metrics: Arc<MessageMetrics>,
}

/// The tokens of a request, as the provider's cache sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentTokens {
    pub(crate) tokens: u64,
    /// The common prefix with the previous request.
    pub(crate) cached_tokens: u64,
    /// True if previously sent bytes changed.
    pub(crate) is_crease: bool,
}

impl<'c> TrackedRendering<'c> {
    pub(crate) fn new(case: &'c ReplayCase) -> Self {
        Self {
            case,
            slots: Vec::new(),
            token_sums: vec![0],
            identifier_counts: vec![0; case.identifiers.len()],
            instructions: FxHashMap::default(),
            files: FxHashMap::default(),
            results: FxHashMap::default(),
            intact_counts: vec![0; case.messages.len()],
            invented_bytes: 0,
            handles: FxHashMap::default(),
            new_handles: Vec::new(),
        }
    }

    /// Applies a change and returns how much of the new rendering the provider has cached.
    pub(crate) fn apply(&mut self, delta: RenderingDelta) -> Result<SentTokens, EngineError> {
        let before = self.slots.len();
        // The first changed message, and the tokens of its unchanged beginning.
        let mut first = before.min(delta.len);
        let mut inside = 0;
        for (at, message) in delta.changed {
            if at >= delta.len || at > self.slots.len() {
                return Err(EngineError::Failed(format!(
                    "it set message {at} in a rendering of {} messages",
                    delta.len
                )));
            }
            let metrics = self.metrics_for(&message);
            let slot = RenderedSlot { message, metrics };
            if at == self.slots.len() {
                self.add_metrics(&slot.metrics);
                self.slots.push(slot);
                continue;
            }
            let old = &self.slots[at];
            if old.metrics.hash == slot.metrics.hash {
                continue;
            }
            if at < first {
                first = at;
                inside = common_prefix_tokens(old, &slot);
            }
            let old = Arc::clone(&old.metrics);
            self.remove_metrics(&old);
            self.add_metrics(&slot.metrics);
            self.slots[at] = slot;
        }
        for at in delta.len..self.slots.len() {
            let old = Arc::clone(&self.slots[at].metrics);
            self.remove_metrics(&old);
        }
        self.slots.truncate(delta.len);
        if self.slots.len() < delta.len {
            return Err(EngineError::Failed(format!("its rendering of {} messages has a gap", delta.len)));
        }
        self.token_sums.truncate(first + 1);
        for at in first..self.slots.len() {
            self.token_sums.push(self.token_sums[at] + self.slots[at].metrics.tokens);
        }
        // Tools and outer instructions precede all messages; the first request writes them.
        let cached_tokens = if before == 0 { 0 } else { self.case.base_tokens + self.token_sums[first] + inside };
        Ok(SentTokens { tokens: self.tokens(), cached_tokens, is_crease: first < before })
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.case.base_tokens + self.token_sums[self.slots.len()]
    }

    pub(crate) fn has_identifier(&self, identifier: u32) -> bool {
        self.identifier_counts[identifier as usize] > 0
    }

    pub(crate) fn has_instruction(&self, key: u64) -> bool {
        self.instructions.get(&key).is_some_and(|&count| count > 0)
    }

    /// Returns true if a long result is in the rendering as a whole.
    pub(crate) fn has_result(&self, key: u64) -> bool {
        self.results.get(&key).is_some_and(|&count| count > 0)
    }

    pub(crate) fn has_anchor(&self, anchor: &EditAnchor) -> bool {
        if anchor.messages.iter().any(|&at| self.intact_counts[at] > 0) {
            return true;
        }
        let finder = Finder::new(&anchor.old_text);
        let mut changed = self.slots.iter().filter(|slot| slot.metrics.original_index.is_none());
        changed.any(|slot| edit::contains_text(&finder, &slot.message))
    }

    /// Returns the handles that appeared since the last call.
    pub(crate) fn take_new_handles(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.new_handles)
    }

    /// Returns the handles in the rendering.
    pub(crate) fn current_handles(&self) -> impl Iterator<Item = Handle> + '_ {
        self.handles.iter().filter(|&(_, &count)| count > 0).map(|(&handle, _)| handle)
    }

    pub(crate) fn has_handles(&self) -> bool {
        !self.handles.is_empty()
    }

    pub(crate) fn has_handle(&self, handle: Handle) -> bool {
        self.handles.get(&handle).is_some_and(|&count| count > 0)
    }

    pub(crate) fn messages(&self) -> impl Iterator<Item = &SharedMessage> {
        self.slots.iter().map(|slot| &slot.message)
    }

    /// Returns the facts of the artifact trail in the rendering.
    pub(crate) fn artifact_trail(&self) -> FxHashSet<u64> {
        let newest = |fact: fn(&TrailFacts) -> Option<u64>| {
            self.slots.iter().rev().find_map(|slot| fact(&slot.metrics.trail_facts))
        };
        let files = self.files.iter().filter(|&(_, &count)| count > 0).map(|(&file, _)| file);
        files.chain(newest(|facts| facts.test)).chain(newest(|facts| facts.error)).collect()
    }

    fn metrics_for(&self, message: &SharedMessage) -> Arc<MessageMetrics> {
        self.case.metrics_for(message)
    }

    fn add_metrics(&mut self, metrics: &MessageMetrics) {
        self.invented_bytes += metrics.invented_bytes;
        for &handle in &metrics.handles {
            let count = self.handles.entry(handle).or_default();
            *count += 1;
            if *count == 1 {
                self.new_handles.push(handle);
            }
        }
        metrics.identifiers.iter().for_each(|&id| self.identifier_counts[id as usize] += 1);
        metrics.instructions.iter().for_each(|&key| *self.instructions.entry(key).or_default() += 1);
        metrics.trail_facts.files.iter().for_each(|&file| *self.files.entry(file).or_default() += 1);
        metrics.results.iter().for_each(|&key| *self.results.entry(key).or_default() += 1);
        if let Some(at) = metrics.original_index {
            self.intact_counts[at] += 1;
        }
    }

    fn remove_metrics(&mut self, metrics: &MessageMetrics) {
        metrics.identifiers.iter().for_each(|&id| self.identifier_counts[id as usize] -= 1);
        for key in &metrics.instructions {
            if let Some(count) = self.instructions.get_mut(key) {
                *count -= 1;
            }
        }
        for handle in &metrics.handles {
            if let Some(count) = self.handles.get_mut(handle) {
                *count -= 1;
            }
        }
        for key in &metrics.results {
            if let Some(count) = self.results.get_mut(key) {
                *count -= 1;
            }
        }
        for file in &metrics.trail_facts.files {
            if let Some(count) = self.files.get_mut(file) {
                *count -= 1;
            }
        }
        if let Some(at) = metrics.original_index {
            self.intact_counts[at] -= 1;
        }
    }
}

/// Returns the tokens of the common beginning of two messages, by its share of the bytes.
fn common_prefix_tokens(old: &RenderedSlot, new: &RenderedSlot) -> u64 {
    let (old, new_bytes) = (canonical_bytes(&old.message), canonical_bytes(&new.message));
    let common = old.iter().zip(&new_bytes).take_while(|(old, new)| old == new).count();
    new.metrics.tokens * common as u64 / new_bytes.len().max(1) as u64
}
