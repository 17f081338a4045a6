//! Positions in the client's copy of an answer.

use std::collections::BTreeSet;

/// Maps provider positions to client positions: without the hidden ones, and after those of earlier rounds. Clients
/// address output by position and crash on gaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct PositionMap {
    /// The client position of the first output of this round.
    round_start: u64,
    /// The client's next position.
    pub(crate) next: u64,
    hidden: BTreeSet<u64>,
}

impl PositionMap {
    pub(crate) fn hide(&mut self, index: u64) {
        self.hidden.insert(index);
    }

    pub(crate) fn is_hidden(&self, index: u64) -> bool {
        self.hidden.contains(&index)
    }

    pub(crate) fn any_hidden(&self) -> bool {
        !self.hidden.is_empty()
    }

    pub(crate) fn client_position(&mut self, index: u64) -> u64 {
        let before = self.hidden.range(..index).count() as u64;
        let position = self.round_start.saturating_add(index).saturating_sub(before);
        self.next = self.next.max(position.saturating_add(1));
        position
    }

    pub(crate) fn next_round(&mut self) {
        self.round_start = self.next;
        self.hidden.clear();
    }

    pub(crate) fn restart_round(&mut self) {
        self.next = self.round_start;
        self.hidden.clear();
    }
}
