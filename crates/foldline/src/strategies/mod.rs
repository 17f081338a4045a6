//! The classic strategies: plain functions over messages, for an agent loop that wants no engine.
//!
//! Each takes messages and gives them back with the old ones made shorter, and says what it did. The
//! thresholds of the options are those that such strategies are known with. Beneath are the parts of
//! the engine: what a text is, what its markers say, the laws, the meter.
//!
//! What all of them have in common: instructions and the words of users stay as they are; the newest
//! round stays whole, however many messages it has, since the model has not answered it yet; a text
//! never grows; doing it again changes nothing; and what a marker says depends on the original alone. They
//! know no provider. Where one binds reasoning to all that stood before it, and where the prompt cache
//! decides the bill, [`fold_edit`](crate::fold_edit) knows more.
//!
//! ```
//! use foldline::strategies::{Strategies, apply_all};
//! use foldline::{Message, Part, Role};
//!
//! let listing = "src/main.rs\n".repeat(40);
//! let mut messages = vec![Message::text(Role::User, "tidy up")];
//! for at in 0..8 {
//!     messages.push(Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), "ls", "{}")]));
//!     messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), listing.clone())]));
//! }
//! let (shorter, stats) = apply_all(messages, &Strategies::default());
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

/// What one strategy did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrategyStats {
    /// Parts that were made shorter, or went.
    pub hits: usize,
    /// Bytes of text that went.
    pub bytes_saved: usize,
}

impl StrategyStats {
    fn record(&mut self, bytes_saved: usize) {
        self.hits += 1;
        self.bytes_saved += bytes_saved;
    }
}

/// What [`apply_all`] does. Those that lose text which stands nowhere else are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StrategyOptions {
    /// The format, which says where results stand; without it the messages tell.
    pub format: Option<Format>,
    /// Old reasoning.
    pub thinking: PruneThinking,
    /// Whole rounds in the middle, if asked for.
    pub middle: Option<TrimMiddle>,
    /// Repeated results.
    pub outputs: DedupToolOutputs,
    /// Repeated calls, if asked for.
    pub calls: Option<DedupToolCalls>,
    /// Long old results, if asked for.
    pub snippets: Option<SnippetToolOutputs>,
    /// Prose that says nothing.
    pub prose: PruneLowEntropy,
}

/// What [`apply_all`] did, strategy by strategy. Shown as one line for a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CombinedStats {
    /// Old reasoning.
    pub thinking: StrategyStats,
    /// Whole messages in the middle.
    pub middle: StrategyStats,
    /// Repeated results.
    pub outputs: StrategyStats,
    /// Repeated calls.
    pub calls: StrategyStats,
    /// Long old results.
    pub snippets: StrategyStats,
    /// Prose that says nothing.
    pub prose: StrategyStats,
    /// What broke pairs.
    pub repairs: RepairCounts,
}

impl CombinedStats {
    /// Whether nothing was done.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes that all strategies saved together.
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
        let RepairCounts { unanswered, orphans, duplicates: doubles, moved: strays, .. } = self.repairs;
        match unanswered + orphans + doubles + strays {
            0 => Ok(()),
            repairs => write!(f, ", {repairs} repairs"),
        }
    }
}

/// All strategies in the order in which they do not disturb each other: reasoning, the middle, repeats,
/// snippets, prose; and pairs are whole before and after.
///
/// Repeats come before snippets, or they would no longer be equal; the middle comes before repeats, or a
/// reference could lead into it. Pairs are mended first, so that what is counted from the end is what will
/// be sent, and last, so that nothing in between can break one.
///
/// ```
/// use foldline::strategies::{PruneThinking, Snippets, Strategies, apply_all};
/// use foldline::{Message, Part, Role};
///
/// let strategies = Strategies { snippets: Some(Snippets::default()), ..Strategies::default() };
/// let orphan = Message::new(Role::Tool, vec![Part::result("gone", "an orphan")]);
/// let (messages, stats) = apply_all(vec![orphan, Message::text(Role::User, "hello")], &strategies);
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
    let (Conversation { messages, .. }, again) = laws::repair_as(conversation_of(messages), format);
    stats.repairs = RepairCounts {
        unanswered: repairs.unanswered + again.unanswered,
        orphans: repairs.orphans + again.orphans,
        duplicates: repairs.duplicates + again.duplicates,
        moved: repairs.moved + again.moved,
    };
    (messages, stats)
}

/// Mends pairs: an unanswered call gets a result that says so, a result without its call goes, one in the
/// wrong place moves. Calls at the end that wait for their results are left alone. The same as
/// [`laws::repair`], over messages.
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

/// From which message on all are left alone: the newest few, and the whole newest round.
fn tail_start(conversation: &Conversation<'_>, keep_last: usize) -> usize {
    let length = conversation.messages.len();
    let newest = conversation.rounds().last().map_or(length, |round| round.start);
    length.saturating_sub(keep_last).min(newest)
}

/// The pieces of the messages, with what is known of each.
fn segments(messages: &[Message<'_>]) -> Vec<Segment> {
    let meter = Meter::for_byte_estimate();
    let mut open = PendingCalls::new();
    let of_message = |(at, message)| segment::message_segments(at, message, 0, &mut open, &meter);
    messages.iter().enumerate().flat_map(of_message).collect()
}

/// The id of the call to which a part belongs.
fn call_id<'c>(messages: &'c [Message<'_>], at: PartId) -> Option<&'c str> {
    match messages.get(at.message)?.parts.get(at.part)? {
        Part::ToolCall(call) => Some(&call.id),
        Part::ToolResult(result) => Some(&result.call_id),
        _ => None,
    }
}

/// Makes the changes, and counts them.
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

/// Puts a text in the place of another, and tells how many bytes that saved.
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

/// The bytes that a part says.
fn part_bytes(part: &Part<'_>) -> usize {
    use crate::conversation::MediaSource;
    let source = |source: &MediaSource<'_>| match source {
        MediaSource::Base64(it) | MediaSource::Url(it) | MediaSource::Id(it) => it.len(),
        MediaSource::Text(it) => it.len(),
        MediaSource::Unknown => 0,
    };
    match part {
        Part::Text { text } => text.len(),
        Part::Reasoning(it) => it.text.len() + it.seal.as_ref().map_or(0, |seal| seal.len()),
        Part::ToolCall(it) => it.id.len() + it.name.len() + it.arguments.as_str().len(),
        Part::ToolResult(it) => it.call_id.len() + it.content.iter().map(part_bytes).sum::<usize>(),
        Part::Image(it) => source(&it.source),
        Part::File(it) => source(&it.source),
        Part::Opaque(it) => it.raw.len(),
    }
}

/// The ids that name one call and one result, so that a marker can refer to them. Some clients use the same
/// ids again in every turn.
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

/// The ids of calls and results to which the markers in a message refer. These must stay whole.
fn referenced_ids<'c>(message: &'c Message<'_>) -> impl Iterator<Item = &'c str> {
    let of_part = |part: &'c Part<'_>| -> Vec<&'c str> {
        match part {
            Part::ToolCall(call) => marker::referenced_ids(call.arguments.as_str()).collect(),
            Part::ToolResult(result) => result.texts().flat_map(marker::referenced_ids).collect(),
            _ => Vec::new(),
        }
    };
    message.parts.iter().flat_map(of_part)
}
