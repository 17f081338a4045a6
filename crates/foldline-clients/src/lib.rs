//! Message types of client libraries: an agent that holds them folds its conversation without a conversion of its own.
//!
//! [`ClientSession`] holds a conversation that grows message by message and returns the messages of each request, in the
//! client's type. [`read_messages`] and [`write_messages`] convert whole lists, for the
//! [strategies](foldline::strategies) and the cascade.
//!
//! | feature | types that implement [`ClientMessage`] |
//! |---|---|
//! | `async-openai` | `ChatCompletionRequestMessage` and `InputItem` of async-openai 0.43 |
//!
//! A message that no fold touches is returned as the client library wrote it, with fields that the neutral message does
//! not have. Nothing is left out silently: a part that a type cannot express is an error.

#[cfg(feature = "async-openai")]
mod async_openai;
mod client_message;
mod error;
pub mod json_form;
mod session;

pub use crate::client_message::{CallNames, ClientMessage, read_messages, write_messages};
pub use crate::error::{Error, ErrorKind};
pub use crate::session::ClientSession;
// The types of this crate in the signatures above.
pub use foldline;
