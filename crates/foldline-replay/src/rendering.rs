//! A rendering as it changes from call to call: its tokens, its common prefix with the one before,
//! and what still stands in it.
//!
//! A change costs what it touches, never the whole rendering.

use std::sync::Arc;

use foldline::Handle;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::case::{Case, Measured, form};
use crate::edit::{self, Anchor};
use crate::engine::{Delta, Refusal, Shared};
use crate::trail::Facts;

pub(crate) struct Rendering<'c> {
    case: &'c Case,
    slots: Vec<Slot>,
    /// Tokens of the messages before each index; one longer than `slots`.
    sums: Vec<u64>,
    /// In how many lines each atom stands.
    standing: Vec<u32>,
    instructions: FxHashMap<u64, u32>,
    /// What the artifact trail can read off it: files, by how many messages.
    files: FxHashMap<u64, u32>,
    /// How often each original message stands whole.
    whole: Vec<u32>,
    /// Bytes that ever entered and are neither verbatim nor in the marker grammar.
    pub(crate) invented: u64,
    /// In how many messages each handle stands.
    handles: FxHashMap<Handle, u32>,
    /// Handles that came to stand since they were last asked for.
    fresh: Vec<Handle>,
}

struct Slot {
    message: Shared,
    measured: Arc<Measured>,
}

/// The tokens of a request, as the provider's cache sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) tokens: u64,
    /// The common prefix with the request before.
    pub(crate) read: u64,
    /// Whether bytes that were sent before have moved.
    pub(crate) moved: bool,
}

impl<'c> Rendering<'c> {
    pub(crate) fn new(case: &'c Case) -> Self {
        Self {
            case,
            slots: Vec::new(),
            sums: vec![0],
            standing: vec![0; case.atoms.len()],
            instructions: FxHashMap::default(),
            files: FxHashMap::default(),
            whole: vec![0; case.messages.len()],
            invented: 0,
            handles: FxHashMap::default(),
            fresh: Vec::new(),
        }
    }

    /// Takes a change over, and says what of the new rendering the provider has seen.
    pub(crate) fn apply(&mut self, delta: Delta) -> Result<Sent, Refusal> {
        let before = self.slots.len();
        // The first message that is not what it was, and how much of it is the same.
        let mut first = before.min(delta.len);
        let mut inside = 0;
        for (at, message) in delta.set {
            if at >= delta.len || at > self.slots.len() {
                return Err(Refusal::Broken(format!("it set message {at} of a rendering of {}", delta.len)));
            }
            let measured = self.measured(&message);
            let slot = Slot { message, measured };
            if at == self.slots.len() {
                self.enter(&slot.measured);
                self.slots.push(slot);
                continue;
            }
            let old = &self.slots[at];
            if old.measured.hash == slot.measured.hash {
                continue;
            }
            if at < first {
                first = at;
                inside = common_tokens(old, &slot);
            }
            let old = Arc::clone(&old.measured);
            self.leave(&old);
            self.enter(&slot.measured);
            self.slots[at] = slot;
        }
        for at in delta.len..self.slots.len() {
            let old = Arc::clone(&self.slots[at].measured);
            self.leave(&old);
        }
        self.slots.truncate(delta.len);
        if self.slots.len() < delta.len {
            return Err(Refusal::Broken(format!("its rendering of {} messages has a hole", delta.len)));
        }
        self.sums.truncate(first + 1);
        for at in first..self.slots.len() {
            self.sums.push(self.sums[at] + self.slots[at].measured.tokens);
        }
        // Tools and outer instructions stand before all messages; the first request writes them.
        let read = if before == 0 { 0 } else { self.case.base + self.sums[first] + inside };
        Ok(Sent { tokens: self.tokens(), read, moved: first < before })
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.case.base + self.sums[self.slots.len()]
    }

    pub(crate) fn stands(&self, atom: u32) -> bool {
        self.standing[atom as usize] > 0
    }

    pub(crate) fn has_instruction(&self, key: u64) -> bool {
        self.instructions.get(&key).is_some_and(|&count| count > 0)
    }

    pub(crate) fn has_anchor(&self, anchor: &Anchor) -> bool {
        anchor.places.iter().any(|&at| self.whole[at] > 0)
            || self
                .slots
                .iter()
                .filter(|slot| slot.measured.original.is_none())
                .any(|slot| edit::stands(&anchor.old, &slot.message))
    }

    /// The handles that came to stand since the last time.
    pub(crate) fn fresh_handles(&mut self) -> Vec<Handle> {
        std::mem::take(&mut self.fresh)
    }

    /// The handles that stand.
    pub(crate) fn standing_handles(&self) -> impl Iterator<Item = Handle> + '_ {
        self.handles.iter().filter(|&(_, &count)| count > 0).map(|(&handle, _)| handle)
    }

    pub(crate) fn offers(&self, handle: Handle) -> bool {
        self.handles.get(&handle).is_some_and(|&count| count > 0)
    }

    pub(crate) fn messages(&self) -> impl Iterator<Item = &Shared> {
        self.slots.iter().map(|slot| &slot.message)
    }

    /// What the artifact trail reads off it.
    pub(crate) fn trail(&self) -> FxHashSet<u64> {
        let newest = |of: fn(&Facts) -> Option<u64>| self.slots.iter().rev().find_map(|slot| of(&slot.measured.facts));
        let files = self.files.iter().filter(|&(_, &count)| count > 0).map(|(&file, _)| file);
        files.chain(newest(|facts| facts.test)).chain(newest(|facts| facts.error)).collect()
    }

    fn measured(&self, message: &Shared) -> Arc<Measured> {
        self.case.measured(message)
    }

    fn enter(&mut self, measured: &Measured) {
        self.invented += measured.invented;
        for &handle in &measured.handles {
            let count = self.handles.entry(handle).or_default();
            *count += 1;
            if *count == 1 {
                self.fresh.push(handle);
            }
        }
        measured.atoms.iter().for_each(|&atom| self.standing[atom as usize] += 1);
        measured.instructions.iter().for_each(|&key| *self.instructions.entry(key).or_default() += 1);
        measured.facts.files.iter().for_each(|&file| *self.files.entry(file).or_default() += 1);
        if let Some(at) = measured.original {
            self.whole[at] += 1;
        }
    }

    fn leave(&mut self, measured: &Measured) {
        measured.atoms.iter().for_each(|&atom| self.standing[atom as usize] -= 1);
        for key in &measured.instructions {
            if let Some(count) = self.instructions.get_mut(key) {
                *count -= 1;
            }
        }
        for handle in &measured.handles {
            if let Some(count) = self.handles.get_mut(handle) {
                *count -= 1;
            }
        }
        for file in &measured.facts.files {
            if let Some(count) = self.files.get_mut(file) {
                *count -= 1;
            }
        }
        if let Some(at) = measured.original {
            self.whole[at] -= 1;
        }
    }
}

/// The tokens of the common beginning of two messages, by its share of the bytes.
fn common_tokens(old: &Slot, new: &Slot) -> u64 {
    let (old, bytes) = (form(&old.message), form(&new.message));
    let common = old.iter().zip(&bytes).take_while(|(old, new)| old == new).count();
    new.measured.tokens * common as u64 / new.measured.bytes.max(1) as u64
}
