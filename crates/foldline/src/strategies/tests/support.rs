//! Imports that the tests share, and `apply_all` over values.

pub(crate) use crate::conversation::{Conversation, Message, Part};
pub(crate) use crate::engine::marker;
pub(crate) use crate::laws::RepairCounts;
pub(crate) use crate::strategies::support::{conversation_of, part_bytes};
pub(crate) use crate::tokens::Meter;

use crate::strategies::{CombinedStats, StrategyOptions, apply_all_with};

/// Returns the shortened messages and the statistics.
pub(crate) fn shortened<'m>(
    mut messages: Vec<Message<'m>>,
    options: &StrategyOptions,
) -> (Vec<Message<'m>>, CombinedStats) {
    let stats = apply_all_with(&mut messages, options);
    (messages, stats)
}
