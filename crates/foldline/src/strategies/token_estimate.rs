//! The classic estimate of tokens, for callers without a meter of the model.

use crate::conversation::Conversation;
use crate::tokens::{Meter, Tokens};

/// Estimates the tokens of a text: its bytes divided by 3.5, rounded up. More text is never fewer tokens.
///
/// ```
/// use foldline::strategies::estimate_tokens;
///
/// assert_eq!(estimate_tokens(""), 0);
/// assert_eq!(estimate_tokens("fold the old parts"), 6);
/// assert_eq!(estimate_tokens("折叠旧的部分"), 6);
/// ```
pub fn estimate_tokens(text: &str) -> Tokens {
    Meter::for_byte_estimate().text(text)
}

/// Estimates the tokens of a whole request: its instructions, tools and messages, plus 8 per message and 512 per
/// image. Equal to [`Meter::conversation`] of [`Meter::for_byte_estimate`].
///
/// ```
/// use foldline::strategies::total_tokens;
/// use foldline::{Conversation, Message, Part, Role};
/// use foldline::conversation::ImagePart;
///
/// let messages = vec![Message::text(Role::User, "fourteen bytes")];
/// let mut conversation = Conversation { messages, ..Conversation::default() };
/// assert_eq!(total_tokens(&conversation), 4 + 8);
///
/// conversation.messages.push(Message::new(Role::User, vec![Part::Image(ImagePart::default())]));
/// assert_eq!(total_tokens(&conversation), 4 + 8 + 512 + 8);
/// ```
pub fn total_tokens(conversation: &Conversation<'_>) -> Tokens {
    Meter::for_byte_estimate().conversation(conversation)
}
