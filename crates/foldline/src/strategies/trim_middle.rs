//! Whole rounds in the middle go.

use std::collections::HashSet;
use std::ops::Range;

use crate::conversation::{Conversation, Message, Part, Role, answers_system_note};
use crate::engine::marker;
use crate::laws::{CutPoints, LawProfile};
use crate::strategies::{StrategyStats, conversation_of, part_bytes, referenced_ids, tail_start};
use crate::wire::Format;

/// What [`trim_middle`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimMiddle {
    /// The oldest messages that stay.
    pub keep_first: usize,
    /// The newest messages that stay.
    pub keep_last: usize,
    /// With fewer messages nothing goes. How far this is above `first` and `last` together is also how many
    /// messages go at a time.
    pub min_messages: usize,
}

impl Default for TrimMiddle {
    /// The first 2 and the last 16 messages stay, and nothing goes before there are 22.
    fn default() -> Self {
        Self { keep_first: 2, keep_last: 16, min_messages: 22 }
    }
}

/// Drops whole rounds between the oldest and the newest messages. A marker in the role of the user tells how
/// many messages went and how much they said.
///
/// Only rounds go: what a user or the operator said in the middle stays, wherever the goal stands. Rounds go
/// several at a time, so that the marker and the prompt cache behind it last for some steps; and a history that
/// was trimmed before gives what the whole one gives, since the marker counts.
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
    let length = conversation.messages.len();
    // Messages that an earlier trimming took: with them, every message has the place that it came to.
    let gone: usize =
        conversation.messages.iter().filter_map(parse_trim_marker).map(|(count, _)| count.saturating_sub(1)).sum();
    let ends = options.keep_first + options.keep_last;
    let middle = (length + gone).saturating_sub(ends);
    if length + gone < options.min_messages || middle == 0 {
        return (conversation.messages, StrategyStats::default());
    }
    let step = options.min_messages.saturating_sub(ends).max(1);
    let until = (options.keep_first + middle / step * step).saturating_sub(gone);
    let until = until.min(tail_start(&conversation, 0));
    let trimming = drop_rounds(conversation, options.keep_first..until);
    (trimming.messages, trimming.stats)
}

/// Messages without the rounds that went.
pub(crate) struct TrimmedMessages<'m> {
    pub(crate) messages: Vec<Message<'m>>,
    /// What went, in order.
    pub(crate) dropped: Vec<Message<'m>>,
    pub(crate) stats: StrategyStats,
}

/// Drops the rounds that lie in a range and hang together with nothing outside of them, and puts one marker in
/// their place. Changes nothing when that would not be shorter.
pub(crate) fn drop_rounds<'m>(conversation: Conversation<'m>, within: Range<usize>) -> TrimmedMessages<'m> {
    let going = droppable_messages(&conversation, &within);
    let (mut count, mut bytes) = (0, 0);
    let mut earlier = (0, 0);
    let mut earlier_marker = 0;
    for (at, message) in conversation.messages.iter().enumerate() {
        if going.contains(&at) {
            let goes = |part: &&Part<'_>| !is_user_content(message.role, part);
            count += usize::from(message.parts.iter().all(|part| goes(&part)));
            bytes += message.parts.iter().filter(goes).map(part_bytes).sum::<usize>();
        } else if let Some((count, bytes)) = parse_trim_marker(message).filter(|_| within.contains(&at)) {
            earlier = (earlier.0 + count, earlier.1 + bytes);
            earlier_marker += part_bytes(&message.parts[0]);
        }
    }
    let marker = marker::dropped_messages(count + earlier.0, bytes + earlier.1);
    let bytes_saved = (bytes + earlier_marker).saturating_sub(marker.len());
    if going.is_empty() || bytes_saved == 0 {
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
        if going.contains(&at) {
            messages.extend(marker.take());
            let role = message.role;
            let (said, rest): (Vec<_>, Vec<_>) =
                message.parts.into_iter().partition(|part| is_user_content(role, part));
            dropped.push(Message::new(role, rest));
            messages.extend((!said.is_empty()).then(|| Message::new(role, said)));
        } else if within.contains(&at) && parse_trim_marker(&message).is_some() {
            messages.extend(marker.take());
        } else {
            messages.push(message);
        }
    }
    let tally = StrategyStats { hits: dropped.len(), bytes_saved };
    TrimmedMessages { messages, dropped, stats: tally }
}

/// Whether a part is what a user said or showed: it stays when the results beside it go.
fn is_user_content(role: Role, part: &Part<'_>) -> bool {
    role == Role::User && !matches!(part, Part::ToolResult(_))
}

/// The messages of the rounds in a range that may go: nothing that stays answers them, is answered by them, or
/// refers to them.
fn droppable_messages(conversation: &Conversation<'_>, within: &Range<usize>) -> HashSet<usize> {
    let messages = &conversation.messages;
    // Of the formats this one asks for the least: no call apart from its result.
    let cuts: HashSet<usize> =
        CutPoints::for_conversation(conversation, &LawProfile::for_model(Format::OpenAiChat, None)).points().collect();
    let inside = |round: &Range<usize>| within.start <= round.start && round.end <= within.end;
    let whole = |round: &Range<usize>| {
        cuts.contains(&round.start) && cuts.contains(&round.end) && !answers_system_note(messages, round.start)
    };
    let mut referred: HashSet<&str> = HashSet::new();
    let mut going = HashSet::new();
    let mut behind = messages.len();
    // From the newest to the oldest, since references lead back.
    for round in conversation.rounds().into_iter().filter(|round| inside(round) && whole(round)).rev() {
        referred.extend(messages[round.end..behind].iter().flat_map(referenced_ids));
        let mut calls = messages[round.clone()].iter().flat_map(Message::calls);
        if calls.any(|call| referred.contains(&*call.id)) {
            referred.extend(messages[round.clone()].iter().flat_map(referenced_ids));
        } else {
            going.extend(round.clone());
        }
        behind = round.start;
    }
    going
}

/// What an earlier trimming left behind here.
fn parse_trim_marker(message: &Message<'_>) -> Option<(usize, usize)> {
    match message.parts.as_slice() {
        [Part::Text { text }] if message.role == Role::User => marker::parse_dropped_messages(text),
        _ => None,
    }
}
