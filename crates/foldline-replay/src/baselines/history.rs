//! The messages so far, with the edits of a policy.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use foldline::{Message, Meter, Part, Role};

use crate::engine::{EngineSetup, RenderingDelta, SharedMessage};

/// The messages so far, with the edits of a policy. Cuts and drops are permanent.
pub struct EditedHistory {
    meter: Meter,
    base_tokens: u64,
    budget: u64,
    is_refused: bool,
    rows: Vec<HistoryRow>,
    results: Vec<ResultPosition>,
    uncut_results: BTreeSet<usize>,
    rounds: Vec<Vec<usize>>,
    dropped_rounds: usize,
    tokens: u64,
    sent: Vec<SharedMessage>,
}

impl fmt::Debug for EditedHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EditedHistory")
            .field("messages", &self.rows.len())
            .field("dropped_rounds", &self.dropped_rounds)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

struct HistoryRow {
    message: SharedMessage,
    tokens: u64,
    dropped: bool,
}

/// The position of a tool result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultPosition {
    /// Index of the message.
    pub message: usize,
    /// Index of the part.
    pub part: usize,
}

impl EditedHistory {
    pub(crate) fn new(setup: &EngineSetup) -> Self {
        let base_tokens =
            setup.meter.tools(&setup.tools) + setup.meter.system(&setup.system) + setup.meter.request_overhead();
        Self {
            meter: setup.meter.clone(),
            base_tokens,
            budget: setup.budget,
            is_refused: false,
            rows: Vec::new(),
            results: Vec::new(),
            uncut_results: BTreeSet::new(),
            rounds: Vec::new(),
            dropped_rounds: 0,
            tokens: base_tokens,
            sent: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, message: &SharedMessage) {
        let at = self.rows.len();
        let before = self.rows.last().map(|row| &*row.message);
        if message.opens_round(before) {
            self.rounds.push(Vec::new());
        }
        let belongs = message.is_assistant() || message.has_results();
        if let Some(round) = self.rounds.last_mut().filter(|_| belongs) {
            round.push(at);
        }
        for (part, it) in message.parts.iter().enumerate() {
            if matches!(it, Part::ToolResult(_)) {
                self.uncut_results.insert(self.results.len());
                self.results.push(ResultPosition { message: at, part });
            }
        }
        let tokens = self.meter.message(message);
        self.tokens += tokens;
        self.rows.push(HistoryRow { message: Arc::clone(message), tokens, dropped: false });
    }

    /// Returns the tokens of the current rendering.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the maximum tokens of a rendering.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Refuses this request: no rendering of it fits.
    pub fn refuse(&mut self) {
        self.is_refused = true;
    }

    pub(crate) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.is_refused)
    }

    /// Returns all results, oldest first.
    pub fn results(&self) -> &[ResultPosition] {
        &self.results
    }

    /// Returns the results that were not cut yet, as indices into [`EditedHistory::results`], oldest first.
    pub fn uncut_results(&self) -> impl Iterator<Item = usize> + '_ {
        self.uncut_results.iter().copied()
    }

    /// Returns the current text of a result.
    pub fn result_text(&self, result: usize) -> String {
        let position = self.results[result];
        match &self.rows[position.message].message.parts[position.part] {
            Part::ToolResult(result) => result.texts().collect::<Vec<_>>().join("\n"),
            _ => String::new(),
        }
    }

    /// Replaces the text of a result.
    pub fn cut_result(&mut self, result: usize, text: String) {
        self.uncut_results.remove(&result);
        let position = self.results[result];
        let mut message: Message<'static> = (*self.rows[position.message].message).clone();
        if let Part::ToolResult(result) = &mut message.parts[position.part] {
            result.content = vec![Part::text(text)];
        }
        self.replace_message(position.message, message);
    }

    /// Replaces a message.
    pub fn replace_message(&mut self, at: usize, message: Message<'static>) {
        let tokens = self.meter.message(&message);
        let row = &mut self.rows[at];
        if !row.dropped {
            self.tokens = self.tokens - row.tokens + tokens;
        }
        row.tokens = tokens;
        row.message = Arc::new(message);
    }

    /// Drops the oldest remaining round; returns `false` if only the newest is left.
    pub fn drop_oldest_round(&mut self) -> bool {
        if self.dropped_rounds + 1 >= self.rounds.len() {
            return false;
        }
        for at in std::mem::take(&mut self.rounds[self.dropped_rounds]) {
            self.drop_row(at);
        }
        self.dropped_rounds += 1;
        true
    }

    /// Drops the messages after the first `head` and before the last `tail` messages, in whole rounds; the
    /// operator's instructions are kept.
    pub fn drop_between(&mut self, head: usize, tail: usize) {
        let end = self.rows.len().saturating_sub(tail);
        for round in self.dropped_rounds..self.rounds.len() {
            let inside = |&at: &usize| at >= head && at < end;
            let rows = &self.rounds[round];
            // A round that reaches into the head is kept.
            if rows.last().is_some_and(|&last| last >= end) {
                break;
            }
            if rows.iter().all(inside) {
                for at in std::mem::take(&mut self.rounds[round]) {
                    self.drop_row(at);
                }
            }
            self.dropped_rounds = round + 1;
        }
        for at in head..end {
            let row = &self.rows[at];
            if row.message.role == Role::User && !row.message.has_results() {
                self.drop_row(at);
            }
        }
    }

    fn drop_row(&mut self, at: usize) {
        let row = &mut self.rows[at];
        if !row.dropped {
            row.dropped = true;
            self.tokens -= row.tokens;
        }
    }

    pub(crate) fn take_delta(&mut self) -> RenderingDelta {
        let now: Vec<SharedMessage> =
            self.rows.iter().filter(|row| !row.dropped).map(|row| Arc::clone(&row.message)).collect();
        let changed: Vec<(usize, SharedMessage)> = now
            .iter()
            .enumerate()
            .filter(|&(at, message)| self.sent.get(at).is_none_or(|sent| !Arc::ptr_eq(sent, message)))
            .map(|(at, message)| (at, Arc::clone(message)))
            .collect();
        let is_crease = changed.first().map_or(now.len(), |&(at, _)| at) < self.sent.len();
        let len = now.len();
        self.sent = now;
        RenderingDelta { changed, len, is_crease }
    }

    pub(crate) fn base_tokens(&self) -> u64 {
        self.base_tokens
    }
}
