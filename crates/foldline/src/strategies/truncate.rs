//! The last resort: keeps the newest messages, the messages of users, and a marker.

use std::collections::BTreeMap;

use crate::conversation::{Message, Part, PartId, Role};
use crate::engine::marker;
use crate::engine::passes::support::clip::{clip_to_tokens, common_clip_size};
use crate::engine::passes::whole_results::shortened_arguments;
use crate::engine::segment;
use crate::engine::segment::{PendingCalls, Segment, SegmentKind};
use crate::strategies::references::detach_references;
use crate::strategies::support::{conversation_of, replace_text, tail_start};
use crate::strategies::trim_middle::{TrimmedMessages, drop_rounds};
use crate::tokens::{Meter, Tokens};

/// Options of [`terminal_truncate`].
#[derive(Clone, Debug)]
pub struct TerminalTruncate {
    /// Number of newest messages that are kept.
    pub keep_last: usize,
    /// Meter that counts the tokens.
    pub meter: Meter,
    /// Returns true for a text in the role of the user that the caller wrote itself, such as a summary: it is neither
    /// the task nor the newest message of the user. Markers are recognized without it.
    pub is_generated: fn(&str) -> bool,
}

impl Default for TerminalTruncate {
    /// Returns the defaults: the last 4 messages are kept, tokens are estimated by bytes, and only markers are generated.
    fn default() -> Self {
        Self { keep_last: 4, meter: Meter::for_byte_estimate(), is_generated: |_| false }
    }
}

/// The result of [`terminal_truncate`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TruncationResult<'m> {
    /// Messages to send.
    pub messages: Vec<Message<'m>>,
    /// Dropped messages, for archiving.
    pub dropped: Vec<Message<'m>>,
    /// Number of texts that were cut in the messages to send.
    pub clipped: usize,
    /// Messages whose texts were cut, in order and as they were, for archiving.
    pub originals: Vec<Message<'m>>,
    /// Tokens before.
    pub before: Tokens,
    /// Tokens after.
    pub after: Tokens,
    /// Maximum tokens.
    pub budget: Tokens,
}

impl TruncationResult<'_> {
    /// Returns true if the messages are inside the budget. If not, instructions, the task, the newest message of the
    /// user and message overhead alone exceed it.
    pub fn fits(&self) -> bool {
        self.after <= self.budget
    }
}

/// Drops all rounds except the newest if the messages exceed the budget, and inserts a marker in the role of the
/// user. If that is not enough, cuts the largest remaining texts to one size: first those of tools and the model,
/// then those of users. Instructions, the task (the first message of the user) and the newest message of the user are
/// unchanged. Everything that leaves is in the result, for archiving.
///
/// ```
/// use foldline::strategies::{TerminalTruncate, terminal_truncate};
/// use foldline::{Message, Part, Role};
///
/// let mut messages = vec![Message::text(Role::System, "be brief"), Message::text(Role::User, "read them all")];
/// for at in 0..10 {
///     messages.push(Message::new(Role::Assistant, vec![Part::call(format!("c{at}"), "read", "{}")]));
///     messages.push(Message::new(Role::Tool, vec![Part::result(format!("c{at}"), "a line of it\n".repeat(100))]));
/// }
/// let truncation = terminal_truncate(messages, 1_000, &TerminalTruncate::default());
/// assert!(truncation.fits());
/// assert_eq!((truncation.messages.len(), truncation.dropped.len()), (7, 16));
/// assert_eq!(truncation.messages[2], Message::text(Role::User, "[folded: 16 messages, 10480 bytes]"));
/// ```
pub fn terminal_truncate<'m>(
    messages: Vec<Message<'m>>,
    budget: Tokens,
    options: &TerminalTruncate,
) -> TruncationResult<'m> {
    let count = |messages: &[Message<'_>]| messages.iter().map(|message| options.meter.message(message)).sum();
    let before = count(&messages);
    if before <= budget {
        let (dropped, originals) = (Vec::new(), Vec::new());
        return TruncationResult { messages, dropped, clipped: 0, originals, before, after: before, budget };
    }
    let conversation = conversation_of(messages);
    let tail = tail_start(&conversation, options.keep_last);
    let TrimmedMessages { mut messages, dropped, .. } = drop_rounds(conversation, 0..tail);
    let mut after = count(&messages);
    let mut clipped = 0;
    let mut originals = BTreeMap::new();
    for include_users in [false, true] {
        if after > budget {
            clipped += clip_largest(&mut messages, after - budget, include_users, options, &mut originals);
            after = count(&messages);
        }
    }
    let originals = originals.into_values().collect();
    TruncationResult { messages, dropped, clipped, originals, before, after, budget }
}

/// Cuts the largest texts to one size, to remove at least `excess` tokens if possible. Adds the messages that it changes to
/// the originals, as they were.
fn clip_largest<'m>(
    messages: &mut [Message<'m>],
    excess: Tokens,
    include_users: bool,
    options: &TerminalTruncate,
    originals: &mut BTreeMap<usize, Message<'m>>,
) -> usize {
    let meter = &options.meter;
    let protected = protected_messages(messages, options.is_generated);
    let mut pending_calls = PendingCalls::new();
    let message_segments = |(at, message)| segment::message_segments(at, message, 0, &mut pending_calls, meter);
    let mut segments: Vec<Segment> = messages.iter().enumerate().flat_map(message_segments).collect();
    segments.retain(|segment| {
        let is_clippable = match segment.kind {
            SegmentKind::Result | SegmentKind::Prose | SegmentKind::Arguments | SegmentKind::Media => true,
            SegmentKind::InputText => {
                let at = segment.at.message;
                include_users && messages[at].role == Role::User && !protected.contains(&Some(at))
            }
            SegmentKind::Reasoning => false,
        };
        is_clippable && !marker::is_only_marker(segment::segment_text(messages, segment.at))
    });
    let mut sizes: Vec<Tokens> = segments.iter().map(|segment| segment.tokens).collect();
    sizes.sort_unstable();
    let (mut changes, saved) = clipped(messages, &segments, common_clip_size(&sizes, excess), meter);
    if saved < excess {
        // The markers exceed their share: keep only the markers.
        (changes, _) = clipped(messages, &segments, 0, meter);
    }
    let count = changes.len();
    let is_result = |part: &&Part<'_>| matches!(part, Part::ToolResult(_));
    let cut_parts = changes.iter().map(|(at, _)| &messages[at.message].parts[at.part]).filter(is_result);
    let cut_results = vec![Message::new(Role::Tool, cut_parts.cloned().collect())];
    for (at, text) in changes {
        originals.entry(at.message).or_insert_with(|| messages[at.message].clone());
        replace_text(messages, at, text);
    }
    detach_references(messages, &cut_results, false);
    count
}

/// Returns the messages that are never cut: the first and the newest text of the user.
fn protected_messages(messages: &[Message<'_>], is_generated: fn(&str) -> bool) -> [Option<usize>; 2] {
    let is_user_text = |part: &Part<'_>| {
        part.as_text()
            .is_some_and(|text| !marker::is_only_marker(text) && !is_generated(text) && !text.trim().is_empty())
    };
    let is_user = |message: &Message<'_>| message.role == Role::User && message.parts.iter().any(is_user_text);
    [messages.iter().position(is_user), messages.iter().rposition(is_user)]
}

/// Returns the texts above a size, cut to it or to their markers, and the tokens that this saves.
fn clipped(
    messages: &[Message<'_>],
    segments: &[Segment],
    size: Tokens,
    meter: &Meter,
) -> (Vec<(PartId, String)>, Tokens) {
    let mut changes = Vec::new();
    let mut saved = 0;
    for segment in segments.iter().filter(|segment| segment.tokens > size) {
        let text = segment::segment_text(messages, segment.at);
        let marker = || marker::without_handle(text, &segment.description());
        let short = match &messages[segment.at.message].parts[segment.at.part] {
            _ if segment.kind == SegmentKind::Media => Some(marker::described("an image or file", None)),
            Part::ToolCall(call) => shortened_arguments(call, &marker()),
            _ => Some(clip_to_tokens(text, size, meter, &marker())),
        };
        let Some(short) = short else { continue };
        let tokens = meter.text(&short);
        if tokens < segment.tokens {
            saved += segment.tokens - tokens;
            changes.push((segment.at, short));
        }
    }
    (changes, saved)
}
