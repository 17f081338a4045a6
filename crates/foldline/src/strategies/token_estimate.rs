//! The classic estimate of tokens, for whoever has no meter of the model.

use crate::conversation::Conversation;
use crate::tokens::{Meter, Tokens};

/// About the tokens of a text: its bytes by 3.5, rounded up. More text is never fewer tokens.
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

/// About the tokens of a whole request: its instructions, tools and messages, 8 more a message, 512 a
/// picture. The same as [`Meter::conversation`] of [`Meter::for_byte_estimate`].
///
/// ```
/// use foldline::strategies::total_tokens;
/// use foldline::{Conversation, Image, Message, Part, Role};
///
/// let messages = vec![Message::text(Role::User, "fourteen bytes")];
/// let mut conversation = Conversation { messages, ..Conversation::default() };
/// assert_eq!(total_tokens(&conversation), 4 + 8);
///
/// conversation.messages.push(Message::new(Role::User, vec![Part::Image(Image::default())]));
/// assert_eq!(total_tokens(&conversation), 4 + 8 + 512 + 8);
/// ```
pub fn total_tokens(conversation: &Conversation<'_>) -> Tokens {
    Meter::for_byte_estimate().conversation(conversation)
}
