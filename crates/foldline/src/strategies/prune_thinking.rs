//! Removes old reasoning.

use crate::conversation::{Message, Part, ReasoningPart, Role};
use crate::engine::marker;
use crate::engine::options::ReasoningRetention;
use crate::strategies::stats::StrategyStats;
use crate::strategies::support::{conversation_of, part_bytes, tail_start};

/// Options of [`prune_thinking`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneThinking {
    /// Number of newest messages that are never changed.
    pub keep_last: usize,
    /// Old reasoning that the provider allows to drop; see [`ReasoningRetention::for_profile`].
    pub retention: ReasoningRetention,
    /// Number of messages that become old at a time, at least 1. With a larger number, all results between two such
    /// steps extend each other, so that the provider's cache of the prefix remains valid.
    pub step_messages: usize,
}

impl Default for PruneThinking {
    /// Returns the defaults: the last 4 messages are unchanged, and every message becomes old on its own.
    fn default() -> Self {
        Self { keep_last: 4, retention: ReasoningRetention::DropOld, step_messages: 1 }
    }
}

/// Drops old reasoning, and messages that contain nothing else.
///
/// Sealed reasoning is dropped only from finished turns: while a turn is open, the provider requires its reasoning
/// back, all or none.
///
/// ```
/// use foldline::strategies::{PruneThinking, prune_thinking};
/// use foldline::{Message, Part, Role};
///
/// let mut messages = vec![Message::text(Role::User, "fix it")];
/// for at in 0..4 {
///     let call = Part::call(format!("c{at}"), "sh", "{}");
///     messages.push(Message::new(Role::Assistant, vec![Part::reasoning("let me see"), call]));
///     messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), "ok")]));
/// }
/// let (messages, tally) = prune_thinking(messages, &PruneThinking::default());
/// assert_eq!(tally.hits, 2);
/// assert_eq!(messages[1].parts, [Part::call("c0", "sh", "{}")]);
/// assert_eq!(messages[7].parts.len(), 2);
/// ```
pub fn prune_thinking<'m>(messages: Vec<Message<'m>>, options: &PruneThinking) -> (Vec<Message<'m>>, StrategyStats) {
    let conversation = conversation_of(messages);
    let tail = tail_start(&conversation, options.keep_last);
    let tail = tail - tail % options.step_messages.max(1);
    // The marker of dropped messages has the role of the user but is not text of the user.
    let is_user_text =
        |part: &Part<'_>| part.as_text().is_some_and(|text| marker::parse_dropped_messages(text).is_none());
    let has_user_text = |message: &Message<'_>| message.role == Role::User && message.parts.iter().any(is_user_text);
    // In steps, the result must not depend on messages after the step.
    let known = if options.step_messages > 1 { tail } else { conversation.messages.len() };
    let open_turn = conversation.messages[..known].iter().rposition(has_user_text).unwrap_or(0);
    let is_droppable = |at: usize, reasoning: &ReasoningPart<'_>| match options.retention {
        ReasoningRetention::KeepAll => false,
        ReasoningRetention::DropFinishedTurns => at < open_turn,
        ReasoningRetention::DropOld => reasoning.seal.is_none() || at < open_turn,
    };
    let mut stats = StrategyStats::default();
    let mut kept = Vec::with_capacity(conversation.messages.len());
    for (at, mut message) in conversation.messages.into_iter().enumerate() {
        let before = message.parts.len();
        if at < tail && message.is_assistant() {
            message.parts.retain(|part| match part {
                Part::Reasoning(reasoning) if is_droppable(at, reasoning) => {
                    stats.record(part_bytes(part));
                    false
                }
                _ => true,
            });
        }
        if !message.parts.is_empty() || before == 0 {
            kept.push(message);
        }
    }
    (kept, stats)
}
