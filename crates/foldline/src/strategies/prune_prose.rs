//! Removes noise from old prose.

use crate::conversation::Message;
use crate::engine::passes::prose::without_noise;
use crate::engine::segment;
use crate::engine::segment::{Segment, SegmentKind};
use crate::strategies::{StrategyStats, apply_changes, conversation_of, segments, tail_start};

/// Options of [`prune_low_entropy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneLowEntropy {
    /// Number of newest messages that are never changed.
    pub keep_last: usize,
    /// Minimum saving for a text to be changed, in bytes: a change invalidates the prompt cache after it.
    pub min_saved_bytes: usize,
}

impl Default for PruneLowEntropy {
    /// Returns the defaults: the last 6 messages are unchanged; a text must become 64 bytes shorter.
    fn default() -> Self {
        Self { keep_last: 6, min_saved_bytes: 64 }
    }
}

/// Removes trailing spaces, runs of blank lines and lines of dots from old texts of the assistant. Code, rules,
/// tables and indentation are kept, and no text becomes blank.
///
/// ```
/// use foldline::strategies::{PruneLowEntropy, prune_low_entropy};
/// use foldline::{Message, Role};
///
/// let wordy = format!("I will look.{}\n\n\n...\n\nDone:\n```\nlet a = 1;  \n```", " ".repeat(80));
/// let messages = vec![Message::text(Role::Assistant, wordy), Message::text(Role::User, "thanks")];
/// let messages = [messages, vec![Message::text(Role::Assistant, "welcome")]].concat();
/// let options = PruneLowEntropy { keep_last: 1, ..PruneLowEntropy::default() };
/// let (messages, tally) = prune_low_entropy(messages, &options);
/// assert_eq!(messages[0], Message::text(Role::Assistant, "I will look.\n\nDone:\n```\nlet a = 1;  \n```"));
/// assert_eq!(tally.bytes_saved, 86);
/// ```
pub fn prune_low_entropy<'m>(
    messages: Vec<Message<'m>>,
    options: &PruneLowEntropy,
) -> (Vec<Message<'m>>, StrategyStats) {
    let conversation = conversation_of(messages);
    let messages = &conversation.messages;
    let tail = tail_start(&conversation, options.keep_last);
    let shortened = |segment: &Segment| {
        let text = segment::segment_text(messages, segment.at);
        let kept = without_noise(text).filter(|kept| text.len() - kept.len() >= options.min_saved_bytes)?;
        Some((segment.at, kept))
    };
    let is_prose = |segment: &&Segment| segment.kind == SegmentKind::Prose;
    let changes = segments(&messages[..tail]).iter().filter(is_prose).filter_map(shortened).collect();
    apply_changes(conversation.messages, changes)
}
