//! The last resort: the newest messages, the words of users, and a marker.

use crate::conversation::{Message, Part, PartId, Role};
use crate::engine::marker;
use crate::engine::passes::support::clip::{clip_to_tokens, common_clip_size};
use crate::engine::passes::whole_results::shortened_arguments;
use crate::engine::segment;
use crate::engine::segment::{PendingCalls, Segment, SegmentKind};
use crate::strategies::trim_middle::{TrimmedMessages, drop_rounds};
use crate::strategies::{conversation_of, replace_text, tail_start};
use crate::tokens::{Meter, Tokens};

/// What [`terminal_truncate`] does.
#[derive(Clone, Debug)]
pub struct TerminalTruncate {
    /// The newest messages that stay.
    pub keep_last: usize,
    /// Counts the tokens.
    pub meter: Meter,
}

impl Default for TerminalTruncate {
    /// The last 4 messages stay, and tokens are estimated by bytes.
    fn default() -> Self {
        Self { keep_last: 4, meter: Meter::for_byte_estimate() }
    }
}

/// What [`terminal_truncate`] left, and what it took.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TruncationResult<'m> {
    /// The messages to send.
    pub messages: Vec<Message<'m>>,
    /// The messages that went, for whoever archives them.
    pub dropped: Vec<Message<'m>>,
    /// Texts of the messages to send that were cut.
    pub clipped: usize,
    /// Tokens before.
    pub before: Tokens,
    /// Tokens after.
    pub after: Tokens,
    /// Tokens that they may have.
    pub budget: Tokens,
}

impl TruncationResult<'_> {
    /// Whether what is left is inside the budget. If not, instructions and the frames of messages alone are more.
    pub fn fits(&self) -> bool {
        self.after <= self.budget
    }
}

/// Drops all rounds but the newest, if the messages are above the budget, and leaves a marker in the role of the
/// user. If that is not enough, the largest texts that are left are cut to one size: first what tools and the model
/// said, then what users said. Instructions stay as they are.
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
        return TruncationResult { messages, dropped: Vec::new(), clipped: 0, before, after: before, budget };
    }
    let conversation = conversation_of(messages);
    let tail = tail_start(&conversation, options.keep_last);
    let TrimmedMessages { mut messages, dropped, .. } = drop_rounds(conversation, 0..tail);
    let mut after = count(&messages);
    let mut clipped = 0;
    for users in [false, true] {
        if after > budget {
            clipped += clip_largest(&mut messages, after - budget, users, &options.meter);
            after = count(&messages);
        }
    }
    TruncationResult { messages, dropped, clipped, before, after, budget }
}

/// Cuts the largest texts to one size, so that at least `excess` tokens go, as far as that is possible.
fn clip_largest(messages: &mut [Message<'_>], excess: Tokens, users: bool, meter: &Meter) -> usize {
    let mut open = PendingCalls::new();
    let of_message = |(at, message)| segment::message_segments(at, message, 0, &mut open, meter);
    let mut pieces: Vec<Segment> = messages.iter().enumerate().flat_map(of_message).collect();
    pieces.retain(|piece| {
        let class = match piece.kind {
            SegmentKind::Result | SegmentKind::Prose | SegmentKind::Arguments | SegmentKind::Media => true,
            SegmentKind::InputText => users && messages[piece.at.message].role == Role::User,
            SegmentKind::Reasoning => false,
        };
        class && !marker::is_only_marker(segment::segment_text(messages, piece.at))
    });
    let mut sizes: Vec<Tokens> = pieces.iter().map(|piece| piece.tokens).collect();
    sizes.sort_unstable();
    let (mut changes, saved) = clipped(messages, &pieces, common_clip_size(&sizes, excess), meter);
    if saved < excess {
        // Markers took more than their share: nothing else stays.
        (changes, _) = clipped(messages, &pieces, 0, meter);
    }
    let count = changes.len();
    for (at, text) in changes {
        replace_text(messages, at, text);
    }
    count
}

/// The texts above a size, cut to it or to their markers, and the tokens that this saves.
fn clipped(
    messages: &[Message<'_>],
    pieces: &[Segment],
    size: Tokens,
    meter: &Meter,
) -> (Vec<(PartId, String)>, Tokens) {
    let mut changes = Vec::new();
    let mut saved = 0;
    for piece in pieces.iter().filter(|piece| piece.tokens > size) {
        let text = segment::segment_text(messages, piece.at);
        let marker = || marker::without_handle(text, &piece.description());
        let short = match &messages[piece.at.message].parts[piece.at.part] {
            _ if piece.kind == SegmentKind::Media => Some(marker::described("an image or file", None)),
            Part::ToolCall(call) => shortened_arguments(call, &marker()),
            _ => Some(clip_to_tokens(text, size, meter, &marker())),
        };
        let Some(short) = short else { continue };
        let tokens = meter.text(&short);
        if tokens < piece.tokens {
            saved += piece.tokens - tokens;
            changes.push((piece.at, short));
        }
    }
    (changes, saved)
}
