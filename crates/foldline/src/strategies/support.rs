//! Helpers that several strategies share: the unchanged tail, segments, replaced texts, references between results.

use std::collections::{HashMap, HashSet};

use crate::conversation::{Conversation, MediaSource, Message, Part, PartId};
use crate::engine::marker;
use crate::engine::segment;
use crate::engine::segment::{PendingCalls, Segment};
use crate::strategies::stats::StrategyStats;
use crate::tokens::Meter;

pub(crate) fn conversation_of(messages: Vec<Message<'_>>) -> Conversation<'_> {
    Conversation { messages, ..Conversation::default() }
}

/// Returns the start of the unchanged tail: the newest `keep_last` messages and the whole newest round.
pub(crate) fn tail_start(conversation: &Conversation<'_>, keep_last: usize) -> usize {
    let length = conversation.messages.len();
    let newest = conversation.rounds().last().map_or(length, |round| round.start);
    length.saturating_sub(keep_last).min(newest)
}

/// Returns the segments of the messages.
pub(crate) fn segments(messages: &[Message<'_>]) -> Vec<Segment> {
    let meter = Meter::for_byte_estimate();
    let mut pending_calls = PendingCalls::new();
    let message_segments = |(at, message)| segment::message_segments(at, message, 0, &mut pending_calls, &meter);
    messages.iter().enumerate().flat_map(message_segments).collect()
}

/// Returns the id of the call that a part belongs to.
pub(crate) fn call_id<'c>(messages: &'c [Message<'_>], at: PartId) -> Option<&'c str> {
    match messages.get(at.message)?.parts.get(at.part)? {
        Part::ToolCall(call) => Some(&call.id),
        Part::ToolResult(result) => Some(&result.call_id),
        _ => None,
    }
}

/// Applies the changes and counts them.
pub(crate) fn apply_changes<'m>(
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
pub(crate) fn replace_text(messages: &mut [Message<'_>], at: PartId, text: String) -> usize {
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
pub(crate) fn part_bytes(part: &Part<'_>) -> usize {
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

/// Returns the ids that identify one result, so that a marker can refer to them: those of one result and at most one
/// call, which may have been dropped. Some clients reuse ids in every turn.
pub(crate) fn unique_call_ids<'c>(messages: &'c [Message<'_>]) -> HashSet<&'c str> {
    let mut used: HashMap<&str, [usize; 2]> = HashMap::new();
    for message in messages {
        message.calls().for_each(|call| used.entry(&call.id).or_default()[0] += 1);
        message.results().for_each(|result| used.entry(&result.call_id).or_default()[1] += 1);
    }
    let unique = |(id, [calls, results]): (&'c str, [usize; 2])| {
        (calls <= 1 && results == 1 && marker::is_valid_reference_id(id)).then_some(id)
    };
    used.into_iter().filter_map(unique).collect()
}

/// Returns the ids of calls and results that the markers in a message refer to. These must be kept whole.
pub(crate) fn referenced_ids<'c>(message: &'c Message<'_>) -> impl Iterator<Item = &'c str> {
    let part_ids = |part: &'c Part<'_>| -> Vec<&'c str> {
        match part {
            Part::ToolCall(call) => marker::referenced_ids(call.arguments.as_str()).collect(),
            Part::ToolResult(result) => result.texts().flat_map(marker::referenced_ids).collect(),
            _ => Vec::new(),
        }
    };
    message.parts.iter().flat_map(part_ids)
}
