//! The classic strategies: plain functions over messages, for an agent loop that does not use the engine.
//!
//! Each takes messages, returns them with the old ones shortened, and reports what it did. The default thresholds are
//! those commonly used for such strategies. They are built on the engine's text kinds, markers, laws and meter.
//!
//! Common to all: instructions and messages of users are unchanged; the newest round is kept whole, however many
//! messages it has, since the model has not answered it yet; a text never grows; the functions are idempotent; and a
//! marker depends only on the original. They know no provider. Where a provider binds reasoning to everything before
//! it, or where the prompt cache dominates the cost, use [`fold`](crate::fold()).
//!
//! ```
//! use foldline::strategies::{StrategyOptions, apply_all};
//! use foldline::{Message, Part, Role};
//!
//! let listing = "src/main.rs\n".repeat(40);
//! let mut messages = vec![Message::text(Role::User, "tidy up")];
//! for at in 0..8 {
//!     messages.push(Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), "ls", "{}")]));
//!     messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), listing.clone())]));
//! }
//! let (shorter, stats) = apply_all(messages, &StrategyOptions::default());
//! assert_eq!(shorter[4], Message::new(Role::Tool, vec![
//!     Part::result("c1", "[folded: 40 lines, 480 bytes of ls; same as result c0]"),
//! ]));
//! assert_eq!(stats.outputs.hits, 3);
//! ```

pub mod chunk;
pub(crate) mod compact_to_budget;
pub(crate) mod dedup_calls;
pub(crate) mod dedup_outputs;
pub(crate) mod prune_prose;
pub(crate) mod prune_thinking;
mod snippets;
#[cfg(test)]
mod tests;
pub(crate) mod token_estimate;
pub(crate) mod trim_middle;
mod truncate;

use std::collections::{HashMap, HashSet};
use std::fmt;

pub use crate::strategies::compact_to_budget::{CompactToBudget, CompactionStats, compact_to_budget};
pub use crate::strategies::dedup_calls::{DedupToolCalls, dedup_tool_calls};
pub use crate::strategies::dedup_outputs::{DedupToolOutputs, RepeatScope, dedup_tool_outputs};
pub use crate::strategies::prune_prose::{PruneLowEntropy, prune_low_entropy};
pub use crate::strategies::prune_thinking::{PruneThinking, prune_thinking};
pub use crate::strategies::snippets::{SnippetToolOutputs, snippet_stale_tool_outputs};
pub use crate::strategies::token_estimate::{estimate_tokens, total_tokens};
pub use crate::strategies::trim_middle::{TrimMiddle, trim_middle};
pub use crate::strategies::truncate::{TerminalTruncate, TruncationResult, terminal_truncate};

use crate::conversation::{Conversation, Message, Part, PartId};
use crate::engine::marker;
use crate::engine::segment;
use crate::engine::segment::{PendingCalls, Segment};
use crate::laws;
use crate::laws::RepairCounts;
use crate::tokens::Meter;
use crate::wire::Format;

/// Statistics of one strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrategyStats {
    /// Number of parts that were shortened or removed.
    pub hits: usize,
    /// Bytes of text that were removed.
    pub bytes_saved: usize,
}

impl StrategyStats {
    fn record(&mut self, bytes_saved: usize) {
        self.hits += 1;
        self.bytes_saved += bytes_saved;
    }
}

/// Options of [`apply_all`]. Strategies that lose text found nowhere else are off by default.
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

/// Statistics of [`apply_all`] per strategy. Displayed as one line for a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CombinedStats {
    /// Removed reasoning.
    pub thinking: StrategyStats,
    /// Messages dropped from the middle.
    pub middle: StrategyStats,
    /// Repeated results.
    pub outputs: StrategyStats,
    /// Repeated calls.
    pub calls: StrategyStats,
    /// Long old results.
    pub snippets: StrategyStats,
    /// Low-entropy prose.
    pub prose: StrategyStats,
    /// Repairs of calls and results.
    pub repairs: RepairCounts,
}

impl CombinedStats {
    /// Returns true if nothing was changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the bytes that all strategies saved together.
    pub fn bytes_saved(&self) -> usize {
        self.per_strategy().iter().map(|(_, tally)| tally.bytes_saved).sum()
    }

    fn per_strategy(&self) -> [(&'static str, StrategyStats); 6] {
        [
            ("thinking", self.thinking),
            ("middle", self.middle),
            ("outputs", self.outputs),
            ("calls", self.calls),
            ("snippets", self.snippets),
            ("prose", self.prose),
        ]
    }
}

impl fmt::Display for CombinedStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes saved", self.bytes_saved())?;
        for (name, tally) in self.per_strategy().into_iter().filter(|(_, tally)| tally.hits > 0) {
            write!(f, ", {name} {} ({} bytes)", tally.hits, tally.bytes_saved)?;
        }
        let RepairCounts { unanswered, orphans, duplicates, moved, .. } = self.repairs;
        match unanswered + orphans + duplicates + moved {
            0 => Ok(()),
            repairs => write!(f, ", {repairs} repairs"),
        }
    }
}

/// Applies all strategies in an order in which they do not interfere: reasoning, the middle, repeats, snippets,
/// prose, with calls and results repaired before and after.
///
/// Repeats come before snippets, since snippets of equal results need not be equal; the middle comes before repeats,
/// since a reference could point into it. Repairs come first, so that counts from the end match what is sent, and
/// last, so that no strategy can leave a broken pair.
///
/// ```
/// use foldline::strategies::{SnippetToolOutputs, StrategyOptions, apply_all};
/// use foldline::{Message, Part, Role};
///
/// let options = StrategyOptions { snippets: Some(SnippetToolOutputs::default()), ..StrategyOptions::default() };
/// let orphan = Message::new(Role::Tool, vec![Part::result("gone", "an orphan")]);
/// let (messages, stats) = apply_all(vec![orphan, Message::text(Role::User, "hello")], &options);
/// assert_eq!(messages, [Message::text(Role::User, "hello")]);
/// assert_eq!(stats.to_string(), "0 bytes saved, 1 repairs");
/// ```
pub fn apply_all<'m>(messages: Vec<Message<'m>>, strategies: &StrategyOptions) -> (Vec<Message<'m>>, CombinedStats) {
    let mut stats = CombinedStats::default();
    let conversation = conversation_of(messages);
    let format = strategies.format.unwrap_or_else(|| laws::guess_format(&conversation));
    let (Conversation { messages, .. }, repairs) = laws::repair_as(conversation, format);
    let (mut messages, tally) = prune_thinking(messages, &strategies.thinking);
    stats.thinking = tally;
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
    stats.repairs = RepairCounts {
        unanswered: repairs.unanswered + second_repairs.unanswered,
        orphans: repairs.orphans + second_repairs.orphans,
        duplicates: repairs.duplicates + second_repairs.duplicates,
        moved: repairs.moved + second_repairs.moved,
    };
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

fn conversation_of(messages: Vec<Message<'_>>) -> Conversation<'_> {
    Conversation { messages, ..Conversation::default() }
}

/// Returns the start of the unchanged tail: the newest `keep_last` messages and the whole newest round.
fn tail_start(conversation: &Conversation<'_>, keep_last: usize) -> usize {
    let length = conversation.messages.len();
    let newest = conversation.rounds().last().map_or(length, |round| round.start);
    length.saturating_sub(keep_last).min(newest)
}

/// Returns the segments of the messages.
fn segments(messages: &[Message<'_>]) -> Vec<Segment> {
    let meter = Meter::for_byte_estimate();
    let mut pending_calls = PendingCalls::new();
    let message_segments = |(at, message)| segment::message_segments(at, message, 0, &mut pending_calls, &meter);
    messages.iter().enumerate().flat_map(message_segments).collect()
}

/// Returns the id of the call that a part belongs to.
fn call_id<'c>(messages: &'c [Message<'_>], at: PartId) -> Option<&'c str> {
    match messages.get(at.message)?.parts.get(at.part)? {
        Part::ToolCall(call) => Some(&call.id),
        Part::ToolResult(result) => Some(&result.call_id),
        _ => None,
    }
}

/// Applies the changes and counts them.
fn apply_changes<'m>(
    mut messages: Vec<Message<'m>>,
    changes: Vec<(PartId, String)>,
) -> (Vec<Message<'m>>, StrategyStats) {
    let mut tally = StrategyStats::default();
    for (at, text) in changes {
        tally.record(replace_text(&mut messages, at, text));
    }
    (messages, tally)
}

/// Replaces a text and returns the number of bytes saved.
fn replace_text(messages: &mut [Message<'_>], at: PartId, text: String) -> usize {
    let Some(part) = messages.get_mut(at.message).and_then(|message| message.parts.get_mut(at.part)) else { return 0 };
    let (old, new) = (part_bytes(part), text.len());
    match (part, at.inner) {
        (Part::ToolCall(call), None) => {
            let saved = call.arguments.as_str().len().saturating_sub(new);
            call.arguments.set(text);
            saved
        }
        (Part::ToolResult(result), Some(inner)) => match result.content.get_mut(inner) {
            Some(part) => {
                let old = part_bytes(part);
                *part = Part::text(text);
                old.saturating_sub(new)
            }
            None => 0,
        },
        (part, _) => {
            *part = Part::text(text);
            old.saturating_sub(new)
        }
    }
}

/// Returns the size of a part's content in bytes.
fn part_bytes(part: &Part<'_>) -> usize {
    use crate::conversation::MediaSource;
    let source_bytes = |source: &MediaSource<'_>| match source {
        MediaSource::Base64(text) | MediaSource::Url(text) | MediaSource::Id(text) => text.len(),
        MediaSource::Text(text) => text.len(),
        MediaSource::Unknown => 0,
    };
    match part {
        Part::Text { text } => text.len(),
        Part::Reasoning(reasoning) => reasoning.text.len() + reasoning.seal.as_ref().map_or(0, |seal| seal.len()),
        Part::ToolCall(call) => call.id.len() + call.name.len() + call.arguments.as_str().len(),
        Part::ToolResult(result) => result.call_id.len() + result.content.iter().map(part_bytes).sum::<usize>(),
        Part::Image(image) => source_bytes(&image.source),
        Part::File(file) => source_bytes(&file.source),
        Part::Opaque(block) => block.raw.len(),
    }
}

/// Returns the ids that identify one call and one result, so that a marker can refer to them. Some clients reuse ids
/// in every turn.
fn unique_call_ids<'c>(messages: &'c [Message<'_>]) -> HashSet<&'c str> {
    let mut used: HashMap<&str, [usize; 2]> = HashMap::new();
    for message in messages {
        message.calls().for_each(|call| used.entry(&call.id).or_default()[0] += 1);
        message.results().for_each(|result| used.entry(&result.call_id).or_default()[1] += 1);
    }
    let unique = |(id, [calls, results]): (&'c str, [usize; 2])| {
        (calls == 1 && results == 1 && marker::is_valid_reference_id(id)).then_some(id)
    };
    used.into_iter().filter_map(unique).collect()
}

/// Returns the ids of calls and results that the markers in a message refer to. These must be kept whole.
fn referenced_ids<'c>(message: &'c Message<'_>) -> impl Iterator<Item = &'c str> {
    let part_ids = |part: &'c Part<'_>| -> Vec<&'c str> {
        match part {
            Part::ToolCall(call) => marker::referenced_ids(call.arguments.as_str()).collect(),
            Part::ToolResult(result) => result.texts().flat_map(marker::referenced_ids).collect(),
            _ => Vec::new(),
        }
    };
    message.parts.iter().flat_map(part_ids)
}
