//! Old prose without what says nothing.

use crate::conversation::Message;
use crate::engine::passes::prose::without_noise;
use crate::engine::segment;
use crate::engine::segment::{Segment, SegmentKind};
use crate::strategies::{StrategyStats, apply_changes, conversation_of, segments, tail_start};

/// What [`prune_low_entropy`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneLowEntropy {
    /// The newest messages that are left alone.
    pub keep_last: usize,
    /// A text of which fewer bytes would go stays as it is: changing it costs the prompt cache behind it.
    pub min_saved_bytes: usize,
}

impl Default for PruneLowEntropy {
    /// The last 6 messages are left alone; a text must become 64 bytes shorter.
    fn default() -> Self {
        Self { keep_last: 6, min_saved_bytes: 64 }
    }
}

/// Old texts of the assistant lose blanks at the end of lines, runs of blank lines and lines of dots. Code, rules,
/// tables and indentation stay, and no text becomes blank.
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
    let shorter = |piece: &Segment| {
        let text = segment::segment_text(messages, piece.at);
        let kept = without_noise(text).filter(|kept| text.len() - kept.len() >= options.min_saved_bytes)?;
        Some((piece.at, kept))
    };
    let prose = |piece: &&Segment| piece.kind == SegmentKind::Prose;
    let changes = segments(&messages[..tail]).iter().filter(prose).filter_map(shorter).collect();
    apply_changes(conversation.messages, changes)
}
