//! Drops whole rounds in the middle.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::conversation::{Conversation, Message, Part, Role, answers_system_note};
use crate::engine::marker;
use crate::laws::{CutPoints, LawProfile};
use crate::strategies::stats::StrategyStats;
use crate::strategies::support::{conversation_of, part_bytes, referenced_ids, tail_start};
use crate::tokens::{Meter, Tokens};
use crate::wire::Format;

/// Options of [`trim_middle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrimMiddle {
    /// Number of oldest messages that are kept.
    pub keep_first: usize,
    /// Number of newest messages that are kept.
    pub keep_last: usize,
    /// Minimum number of messages for anything to be dropped. The difference to `keep_first` plus `keep_last` is also
    /// the number of messages dropped at a time.
    pub min_messages: usize,
    /// Sizes in tokens that decide instead of the numbers of newest messages; none if `None`.
    pub tokens: Option<TrimTokens>,
}

/// Sizes for [`TrimMiddle`], in tokens estimated by bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrimTokens {
    /// Nothing is dropped until the messages have more tokens than this.
    pub trigger: Tokens,
    /// Tokens of the newest messages that are kept. The difference to the trigger is freed at a time.
    pub keep_last: Tokens,
}

impl Default for TrimMiddle {
    /// Returns the defaults: the first 2 and the last 16 messages are kept, and nothing is dropped below 22.
    fn default() -> Self {
        Self { keep_first: 2, keep_last: 16, min_messages: 22, tokens: None }
    }
}

/// Drops whole rounds between the oldest and the newest messages. A marker in the role of the user states the number
/// and size of the dropped messages.
///
/// Only rounds are dropped: messages of a user or the operator in the middle are kept, wherever the task is. Several
/// rounds are dropped at a time, so that the marker and the prompt cache after it remain valid for some steps.
/// Trimming a trimmed history gives the same result as trimming the whole one, since the marker carries the count.
///
/// ```
/// use foldline::strategies::{TrimMiddle, trim_middle};
/// use foldline::{Message, Part, Role};
///
/// let mut messages = vec![Message::text(Role::System, "be brief"), Message::text(Role::User, "fix it")];
/// for at in 0..10 {
///     messages.push(Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), "make", "{}")]));
///     messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), "it does not compile: there is no such field")]));
/// }
/// messages.insert(4, Message::text(Role::User, "mind the tests"));
///
/// let (messages, tally) = trim_middle(messages, &TrimMiddle::default());
/// assert_eq!(messages[2], Message::text(Role::User, "[folded: 2 messages, 53 bytes]"));
/// assert_eq!(messages[3], Message::text(Role::User, "mind the tests"));
/// assert_eq!((messages.len(), tally.hits), (22, 2));
/// ```
pub fn trim_middle<'m>(messages: Vec<Message<'m>>, options: &TrimMiddle) -> (Vec<Message<'m>>, StrategyStats) {
    let conversation = conversation_of(messages);
    let until = match options.tokens {
        Some(tokens) => token_cut(&conversation, options.keep_first, tokens),
        None => message_cut(&conversation, options),
    };
    let until = until.min(tail_start(&conversation, 0));
    if until <= options.keep_first {
        return (conversation.messages, StrategyStats::default());
    }
    let trimming = drop_rounds(conversation, options.keep_first..until);
    (trimming.messages, trimming.stats)
}

/// Returns the end of the messages that may be dropped, by their number; 0 if there are too few.
fn message_cut(conversation: &Conversation<'_>, options: &TrimMiddle) -> usize {
    let length = conversation.messages.len();
    // Count messages dropped earlier, so that every message has its original position.
    let earlier = own_trim_marker(conversation, options.keep_first).map(|(_, marker)| marker);
    let dropped_before = earlier.map_or(0, |(count, _)| count.saturating_sub(1));
    let ends = options.keep_first + options.keep_last;
    let middle = (length + dropped_before).saturating_sub(ends);
    if length + dropped_before < options.min_messages || middle == 0 {
        return 0;
    }
    let step = options.min_messages.saturating_sub(ends).max(1);
    (options.keep_first + middle / step * step).saturating_sub(dropped_before)
}

/// Returns the end of the messages that may be dropped, by their tokens; 0 if there are too few. Replays the requests of
/// the conversation: at each that exceeds the trigger, the cut moves until the messages after it are few enough. So the
/// cut stays where it is until the trigger is exceeded again.
fn token_cut(conversation: &Conversation<'_>, keep_first: usize, tokens: TrimTokens) -> usize {
    let meter = Meter::for_byte_estimate();
    let sizes: Vec<Tokens> = conversation.messages.iter().map(|message| meter.message(message)).collect();
    let (mut cut, mut sent, mut newest) = (keep_first, 0, 0);
    let mut next = 0;
    for point in conversation.request_points() {
        for (at, size) in sizes.iter().enumerate().take(point).skip(next) {
            sent += size;
            newest += if at >= cut { *size } else { 0 };
        }
        next = point;
        if sent <= tokens.trigger {
            continue;
        }
        while cut < point && newest > tokens.keep_last {
            newest -= sizes[cut];
            // User messages stay.
            sent -= if is_round_message(&conversation.messages[cut]) { sizes[cut] } else { 0 };
            cut += 1;
        }
    }
    if cut > keep_first { cut } else { 0 }
}

fn is_round_message(message: &Message<'_>) -> bool {
    message.is_assistant() || message.has_results()
}

/// Messages without the dropped rounds.
pub(crate) struct TrimmedMessages<'m> {
    pub(crate) messages: Vec<Message<'m>>,
    /// Dropped messages, in order.
    pub(crate) dropped: Vec<Message<'m>>,
    pub(crate) stats: StrategyStats,
}

/// Drops the rounds in a range that are not connected to anything outside them, and replaces them by one marker.
/// Changes nothing if that would not be shorter.
pub(crate) fn drop_rounds<'m>(conversation: Conversation<'m>, within: Range<usize>) -> TrimmedMessages<'m> {
    let droppable = droppable_messages(&conversation, &within);
    let own_marker = own_trim_marker(&conversation, within.start).filter(|(at, _)| within.contains(at));
    let marker_at = own_marker.map(|(at, _)| at);
    let earlier = own_marker.map_or((0, 0), |(_, marker)| marker);
    let earlier_marker = marker_at.map_or(0, |at| part_bytes(&conversation.messages[at].parts[0]));
    let (mut count, mut bytes) = (0, 0);
    for (at, message) in conversation.messages.iter().enumerate() {
        if droppable.contains(&at) {
            let is_dropped = |part: &&Part<'_>| !is_user_content(message.role, part);
            count += usize::from(message.parts.iter().all(|part| is_dropped(&part)));
            bytes += message.parts.iter().filter(is_dropped).map(part_bytes).sum::<usize>();
        }
    }
    let marker = marker::dropped_messages(count + earlier.0, bytes + earlier.1);
    let bytes_saved = (bytes + earlier_marker).saturating_sub(marker.len());
    if droppable.is_empty() || bytes_saved == 0 {
        return TrimmedMessages {
            messages: conversation.messages,
            dropped: Vec::new(),
            stats: StrategyStats::default(),
        };
    }
    let mut marker = Some(Message::text(Role::User, marker));
    let mut messages = Vec::with_capacity(conversation.messages.len());
    let mut dropped = Vec::new();
    for (at, message) in conversation.messages.into_iter().enumerate() {
        if droppable.contains(&at) {
            messages.extend(marker.take());
            let role = message.role;
            let (user_parts, rest): (Vec<_>, Vec<_>) =
                message.parts.into_iter().partition(|part| is_user_content(role, part));
            dropped.push(Message::new(role, rest));
            messages.extend((!user_parts.is_empty()).then(|| Message::new(role, user_parts)));
        } else if marker_at == Some(at) {
            messages.extend(marker.take());
        } else {
            messages.push(message);
        }
    }
    let stats = StrategyStats { hits: dropped.len(), bytes_saved };
    TrimmedMessages { messages, dropped, stats }
}

/// Returns true if a part is text or media of the user, which is kept when the results next to it are dropped.
fn is_user_content(role: Role, part: &Part<'_>) -> bool {
    role == Role::User && !matches!(part, Part::ToolResult(_))
}

/// Returns the messages of the rounds in a range that may be dropped: nothing that is kept answers them, is answered
/// by them, or refers to them.
fn droppable_messages(conversation: &Conversation<'_>, within: &Range<usize>) -> HashSet<usize> {
    let messages = &conversation.messages;
    let mut referenced: HashSet<&str> = HashSet::new();
    let mut droppable = HashSet::new();
    let mut next_start = messages.len();
    // Newest to oldest, since references point backwards.
    for round in separable_rounds(conversation).into_iter().rev() {
        if round.start < within.start || round.end > within.end {
            continue;
        }
        referenced.extend(messages[round.end..next_start].iter().flat_map(referenced_ids));
        let mut calls = messages[round.clone()].iter().flat_map(Message::calls);
        if calls.any(|call| referenced.contains(&*call.id)) {
            referenced.extend(messages[round.clone()].iter().flat_map(referenced_ids));
        } else {
            droppable.extend(round.clone());
        }
        next_start = round.start;
    }
    droppable
}

/// Returns the rounds that can be dropped without separating a call from its result.
fn separable_rounds(conversation: &Conversation<'_>) -> Vec<Range<usize>> {
    // The least strict format: calls must not be separated from their results.
    let cuts: HashSet<usize> =
        CutPoints::for_conversation(conversation, &LawProfile::for_model(Format::OpenAiChat, None)).points().collect();
    let is_separable = |round: &Range<usize>| {
        cuts.contains(&round.start)
            && cuts.contains(&round.end)
            && !answers_system_note(&conversation.messages, round.start)
    };
    conversation.rounds().into_iter().filter(is_separable).collect()
}

/// Returns the marker of an earlier trimming: its message, and the count and bytes in it. It replaces the first rounds
/// that could be dropped, so no such round precedes it; any other message that looks like one is the user's own.
fn own_trim_marker(conversation: &Conversation<'_>, from: usize) -> Option<(usize, (usize, usize))> {
    let messages = &conversation.messages;
    let candidates = messages.iter().enumerate().skip(from);
    let (at, marker) = candidates.filter_map(|(at, message)| Some((at, parse_trim_marker(message)?))).next()?;
    let referenced: HashSet<&str> = messages.iter().flat_map(referenced_ids).collect();
    let is_free = |round: &Range<usize>| {
        let mut calls = messages[round.clone()].iter().flat_map(Message::calls);
        !calls.any(|call| referenced.contains(&*call.id))
    };
    let precedes = |round: &Range<usize>| from <= round.start && round.end <= at;
    let is_own = !separable_rounds(conversation).iter().any(|round| precedes(round) && is_free(round));
    is_own.then_some((at, marker))
}

/// Parses the marker of an earlier trimming, if the message looks like one.
fn parse_trim_marker(message: &Message<'_>) -> Option<(usize, usize)> {
    match message.parts.as_slice() {
        [Part::Text { text }] if message.role == Role::User => marker::parse_dropped_messages(text),
        _ => None,
    }
}
