//! All strategies in one call, in an order in which they do not interfere.

use crate::conversation::{Conversation, Message};
use crate::laws;
use crate::laws::RepairCounts;
use crate::strategies::dedup_calls::{DedupToolCalls, dedup_tool_calls};
use crate::strategies::dedup_outputs::{DedupToolOutputs, dedup_tool_outputs};
use crate::strategies::prune_prose::{PruneLowEntropy, prune_low_entropy};
use crate::strategies::prune_thinking::{PruneThinking, prune_thinking};
use crate::strategies::snippets::{SnippetToolOutputs, snippet_stale_tool_outputs};
use crate::strategies::stats::CombinedStats;
use crate::strategies::support::conversation_of;
use crate::strategies::trim_middle::{TrimMiddle, trim_middle};
use crate::wire::Format;

/// Options of [`apply_all_with`]. Strategies that lose text found nowhere else are off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StrategyOptions {
    /// Wire format, which determines where results belong; guessed from the messages if `None`.
    pub format: Option<Format>,
    /// Options for old reasoning.
    pub thinking: PruneThinking,
    /// Options for whole rounds in the middle; off if `None`.
    pub middle: Option<TrimMiddle>,
    /// Options for repeated results.
    pub outputs: DedupToolOutputs,
    /// Options for repeated calls; off if `None`.
    pub calls: Option<DedupToolCalls>,
    /// Options for long old results; off if `None`.
    pub snippets: Option<SnippetToolOutputs>,
    /// Options for low-entropy prose.
    pub prose: PruneLowEntropy,
}

/// Shortens the messages in place by the strategies that lose nothing found nowhere else: old reasoning, repeated
/// results, noise in prose; repairs calls and results. The same as [`apply_all_with`] with default options.
///
/// ```
/// use foldline::strategies::apply_all;
/// use foldline::{Message, Part, Role};
///
/// let orphan = Message::new(Role::Tool, vec![Part::result("gone", "an orphan")]);
/// let mut messages = vec![orphan, Message::text(Role::User, "hello")];
/// let stats = apply_all(&mut messages);
/// assert_eq!(messages, [Message::text(Role::User, "hello")]);
/// assert_eq!(stats.to_string(), "0 bytes saved, 1 repairs");
/// ```
pub fn apply_all(messages: &mut Vec<Message<'_>>) -> CombinedStats {
    apply_all_with(messages, &StrategyOptions::default())
}

/// Shortens the messages in place by all enabled strategies, in an order in which they do not interfere: reasoning,
/// the middle, repeats, snippets, prose, with calls and results repaired before and after. Logs the statistics
/// through `tracing` at level info, unless nothing was changed.
///
/// Repeats come before snippets, since snippets of equal results need not be equal; the middle comes before repeats,
/// since a reference could point into it. Repairs come first, so that counts from the end match what is sent, and
/// last, so that no strategy can leave a broken pair.
///
/// ```
/// use foldline::strategies::{SnippetToolOutputs, StrategyOptions, apply_all_with};
/// use foldline::{Message, Role};
///
/// let options = StrategyOptions { snippets: Some(SnippetToolOutputs::default()), ..StrategyOptions::default() };
/// let mut messages = vec![Message::text(Role::User, "hello")];
/// assert!(apply_all_with(&mut messages, &options).is_empty());
/// ```
pub fn apply_all_with(messages: &mut Vec<Message<'_>>, options: &StrategyOptions) -> CombinedStats {
    let (shortened, stats) = shortened(std::mem::take(messages), options);
    *messages = shortened;
    stats.log();
    stats
}

fn shortened<'m>(messages: Vec<Message<'m>>, strategies: &StrategyOptions) -> (Vec<Message<'m>>, CombinedStats) {
    let mut stats = CombinedStats::default();
    let conversation = conversation_of(messages);
    let format = strategies.format.unwrap_or_else(|| laws::guess_format(&conversation));
    let (Conversation { messages, .. }, repairs) = laws::repair_as(conversation, format);
    let (mut messages, thinking) = prune_thinking(messages, &strategies.thinking);
    stats.thinking = thinking;
    if let Some(options) = &strategies.middle {
        (messages, stats.middle) = trim_middle(messages, options);
    }
    (messages, stats.outputs) = dedup_tool_outputs(messages, &strategies.outputs);
    if let Some(options) = &strategies.calls {
        (messages, stats.calls) = dedup_tool_calls(messages, options);
    }
    if let Some(options) = &strategies.snippets {
        (messages, stats.snippets) = snippet_stale_tool_outputs(messages, options);
    }
    (messages, stats.prose) = prune_low_entropy(messages, &strategies.prose);
    let (Conversation { messages, .. }, second_repairs) = laws::repair_as(conversation_of(messages), format);
    stats.repairs = repairs.plus(second_repairs);
    (messages, stats)
}

/// Repairs calls and results: an unanswered call gets a placeholder result, a result without its call is removed, a
/// misplaced one is moved. Calls at the end that wait for their results are unchanged. The same as [`laws::repair`],
/// over messages.
///
/// ```
/// use foldline::strategies::repair_orphans;
/// use foldline::{Message, Part, Role};
///
/// let call = Message::new(Role::Assistant, vec![Part::call("c1", "sh", "{}")]);
/// let (messages, repairs) = repair_orphans(vec![call, Message::text(Role::User, "never mind")]);
/// assert_eq!(messages[1], Message::new(Role::Tool, vec![
///     Part::result("c1", "[no result was recorded for this call]"),
/// ]));
/// assert_eq!(repairs.unanswered, 1);
/// ```
pub fn repair_orphans(messages: Vec<Message<'_>>) -> (Vec<Message<'_>>, RepairCounts) {
    let (conversation, repairs) = laws::repair(conversation_of(messages));
    (conversation.messages, repairs)
}
