//! Recall, an experiment: foldline, with lines of folded originals at the end of the newest tool result.
//!
//! At a request point, lines that share a rare identifier with the newest messages and have one that the
//! request lacks are appended to the newest result, before it is first sent. They stay until the
//! engine folds that result, so earlier bytes never change. Measured in docs/measurements/quality.md; not part
//! of the engine.

use std::sync::Arc;

use foldline::engine::text_kind::for_each_identifier;
use foldline::{Handle, Message, Meter, Part};
use rustc_hash::{FxHashMap, FxHashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{EngineError, EngineSession, EngineSetup, RenderingDelta, ReplayEngine, SharedMessage};
use crate::foldline_engine::FoldlineEngine;
use crate::message_hash::canonical_bytes;
use crate::text::{TextOrigin, for_each_text};

/// Maximum lines that are recalled at a request.
const MAX_LINES: usize = 12;
/// Maximum share of the budget for recalled lines, as a divisor.
const BUDGET_DIVISOR: u64 = 64;
/// Maximum messages with an identifier that still points at something.
const MAX_MESSAGES: u32 = 6;
/// Maximum bytes of a recalled line.
const MAX_LINE_BYTES: usize = 300;
/// Maximum lines that are looked at for each identifier, newest first.
const MAX_CANDIDATES: usize = 40;

/// The foldline engine with recall.
#[derive(Debug)]
pub struct RecallEngine {
    name: String,
    engine: FoldlineEngine,
}

impl RecallEngine {
    /// Adds recall to an engine.
    pub fn new(engine: FoldlineEngine) -> Self {
        Self { name: format!("{} with recall", engine.name()), engine }
    }
}

impl ReplayEngine for RecallEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn open(&self, setup: &EngineSetup) -> Result<Box<dyn EngineSession>, EngineError> {
        let base_tokens =
            setup.meter.tools(&setup.tools) + setup.meter.system(&setup.system) + setup.meter.request_overhead();
        Ok(Box::new(RecallSession {
            inner: self.engine.open(setup)?,
            meter: setup.meter.clone(),
            budget: setup.budget,
            base_tokens,
            lines: Vec::new(),
            lines_by_identifier: FxHashMap::default(),
            message_counts: FxHashMap::default(),
            slots: Vec::new(),
            present: FxHashMap::default(),
            newest: Vec::new(),
            recalled: FxHashMap::default(),
        }))
    }
}

struct RecallSession {
    inner: Box<dyn EngineSession>,
    meter: Meter,
    budget: u64,
    base_tokens: u64,
    /// Every distinct line of a result or of prose.
    lines: Vec<(Box<str>, Box<[u64]>)>,
    lines_by_identifier: FxHashMap<u64, Vec<u32>>,
    /// Number of messages with each identifier.
    message_counts: FxHashMap<u64, u32>,
    slots: Vec<RecallSlot>,
    /// Number of messages of the rendering with each identifier.
    present: FxHashMap<u64, u32>,
    /// Messages since the last request.
    newest: Vec<SharedMessage>,
    /// Messages with recalled lines, by the hash of the message without them.
    recalled: FxHashMap<u64, SharedMessage>,
}

struct RecallSlot {
    identifiers: Vec<u64>,
    tokens: u64,
}

fn identifiers_of(message: &Message<'_>) -> Vec<u64> {
    let mut found = Vec::new();
    for_each_text(message, |_, _, text| for_each_identifier(text, |key, _| found.push(key.hash)));
    found.sort_unstable();
    found.dedup();
    found
}

impl RecallSession {
    fn index_message(&mut self, message: &Message<'_>) {
        for id in identifiers_of(message) {
            *self.message_counts.entry(id).or_default() += 1;
        }
        let mut seen = FxHashSet::default();
        for_each_text(message, |kind, _, text| {
            if !matches!(kind, TextOrigin::Result | TextOrigin::Prose) {
                return;
            }
            for line in text.lines().filter(|line| line.len() <= MAX_LINE_BYTES) {
                let mut found = Vec::new();
                for_each_identifier(line, |key, _| found.push(key.hash));
                found.sort_unstable();
                found.dedup();
                if found.len() > 1 && seen.insert(xxh3_64(line.as_bytes())) {
                    let at = self.lines.len() as u32;
                    found.iter().for_each(|&id| self.lines_by_identifier.entry(id).or_default().push(at));
                    self.lines.push((line.into(), found.into()));
                }
            }
        });
    }

    fn set_slot(&mut self, at: usize, message: &Message<'_>) {
        let slot = RecallSlot { identifiers: identifiers_of(message), tokens: self.meter.message(message) };
        slot.identifiers.iter().for_each(|&id| *self.present.entry(id).or_default() += 1);
        if at < self.slots.len() {
            let old = std::mem::replace(&mut self.slots[at], slot);
            self.release(&old);
        } else {
            self.slots.push(slot);
        }
    }

    fn release(&mut self, slot: &RecallSlot) {
        for id in &slot.identifiers {
            if let Some(count) = self.present.get_mut(id) {
                *count -= 1;
            }
        }
    }

    fn is_missing(&self, id: u64) -> bool {
        self.present.get(&id).is_none_or(|&count| count == 0)
    }

    /// Returns the lines worth recalling, best first.
    fn choose_lines(&self, room: u64) -> Vec<u32> {
        let mut query: Vec<u64> = self.newest.iter().flat_map(|message| identifiers_of(message)).collect();
        query.sort_unstable();
        query.dedup();
        let mut scores: FxHashMap<u32, f64> = FxHashMap::default();
        for id in query {
            let count = self.message_counts.get(&id).copied().unwrap_or(0);
            let Some(lines) = self.lines_by_identifier.get(&id).filter(|_| count <= MAX_MESSAGES) else { continue };
            for &line in lines.iter().rev().take(MAX_CANDIDATES) {
                let missing = self.lines[line as usize].1.iter().filter(|&&id| self.is_missing(id)).count();
                if missing > 0 {
                    *scores.entry(line).or_default() += (missing as f64).sqrt() / f64::from(count.max(1));
                }
            }
        }
        let mut best: Vec<(u32, f64)> = scores.into_iter().collect();
        best.sort_by(|(left, a), (right, b)| b.total_cmp(a).then(right.cmp(left)));
        let mut room = room;
        let mut chosen = Vec::new();
        let mut covered: FxHashSet<u64> = FxHashSet::default();
        for (line, _) in best {
            let (text, identifiers) = &self.lines[line as usize];
            let is_new = identifiers.iter().any(|&id| self.is_missing(id) && !covered.contains(&id));
            let tokens = text.len() as u64 / 3 + 1;
            if chosen.len() == MAX_LINES || tokens > room {
                break;
            }
            if is_new {
                room -= tokens;
                covered.extend(identifiers.iter().copied());
                chosen.push(line);
            }
        }
        chosen.sort_unstable();
        chosen
    }

    /// Appends lines to the newest result of a message.
    fn with_lines(&self, message: &Message<'static>, lines: &[u32]) -> Option<Message<'static>> {
        let mut message = message.clone();
        let result = message.parts.iter_mut().rev().find_map(|part| match part {
            Part::ToolResult(result) => Some(result),
            _ => None,
        })?;
        let text = result.content.iter_mut().rev().find_map(|part| match part {
            Part::Text { text } => Some(text),
            _ => None,
        })?;
        let mut longer = text.to_string();
        longer.push_str("\n[recalled lines of earlier results:]");
        for &line in lines {
            longer.push('\n');
            longer.push_str(&self.lines[line as usize].0);
        }
        *text = longer.into();
        Some(message)
    }
}

impl EngineSession for RecallSession {
    fn push(&mut self, messages: &[SharedMessage]) -> Result<(), EngineError> {
        self.newest.extend_from_slice(messages);
        self.inner.push(messages)
    }

    fn request(&mut self) -> Result<RenderingDelta, EngineError> {
        let before = self.slots.len();
        let mut delta = self.inner.request()?;
        for (at, message) in &mut delta.changed {
            if let Some(longer) = self.recalled.get(&xxh3_64(&canonical_bytes(message))) {
                *message = Arc::clone(longer);
            }
            let message = Arc::clone(message);
            self.set_slot(*at, &message);
        }
        for slot in self.slots.split_off(delta.len) {
            self.release(&slot);
        }
        let tokens = self.base_tokens + self.slots.iter().map(|slot| slot.tokens).sum::<u64>();
        let room = (self.budget / BUDGET_DIVISOR).min(self.budget.saturating_sub(tokens + 64));
        let lines = self.choose_lines(room);
        if let Some((at, message)) = delta.changed.last_mut().filter(|(at, _)| *at + 1 == delta.len && *at >= before)
            && !lines.is_empty()
            && let Some(longer) = self.with_lines(message, &lines)
        {
            let (at, hash) = (*at, xxh3_64(&canonical_bytes(message)));
            let longer = Arc::new(longer);
            *message = Arc::clone(&longer);
            self.recalled.insert(hash, Arc::clone(&longer));
            self.set_slot(at, &longer);
        }
        for message in std::mem::take(&mut self.newest) {
            self.index_message(&message);
        }
        Ok(delta)
    }

    fn unfold(&mut self, handle: Handle) -> Result<Option<Vec<u8>>, EngineError> {
        self.inner.unfold(handle)
    }
}
