//! A recorded session, and the errors of an input.

use std::borrow::Cow;
use std::fmt;

use crate::conversation::{Conversation, Message};
use crate::error::Error;
use crate::transcript::log_format::LogFormat;

/// A recorded session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedSession {
    /// The id of the session, or else the name of its input.
    pub id: String,
    /// The origin that the recording states, or else the name of its input.
    pub source: String,
    /// The format that it was read from.
    pub format: LogFormat,
    /// The parent session, if this is the conversation of a sub-agent.
    pub parent: Option<String>,
    /// The messages of the whole session. Where the agent compacted its context, the messages before
    /// and after are both included, with its summary as a user message between them.
    pub conversation: Conversation<'static>,
    /// Number of times that the agent compacted its context.
    pub compactions: usize,
    /// Number of messages of the log that the client would not send again: interrupted turns and
    /// abandoned branches. They are not in the conversation.
    pub omitted_messages: usize,
}

/// An error in an input. Reading continues after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// The line of the error, starting at one.
    pub line: u64,
    /// The error.
    pub error: Error,
}

impl RecordedSession {
    pub(super) fn new(format: LogFormat) -> Self {
        Self {
            id: String::new(),
            source: String::new(),
            format,
            parent: None,
            conversation: Conversation::default(),
            compactions: 0,
            omitted_messages: 0,
        }
    }

    /// Returns the last model that the recording names.
    pub fn model(&self) -> Option<&str> {
        self.conversation.model.as_deref()
    }

    /// Returns the ids of calls whose results the recording marks as errors.
    pub fn error_call_ids(&self) -> impl Iterator<Item = &str> {
        let results = self.conversation.messages.iter().flat_map(Message::results);
        results.filter(|result| result.is_error).map(|result| result.call_id.as_ref())
    }

    pub(super) fn push(&mut self, message: Message<'_>) {
        self.conversation.messages.push(message.into_owned());
    }

    pub(super) fn set_model(&mut self, model: Option<Cow<'_, str>>) {
        if let Some(model) = model.filter(|model| !model.is_empty()) {
            self.conversation.model = Some(model.into_owned().into());
        }
    }

    /// Omits the messages after the first `keep`.
    pub(super) fn truncate_to(&mut self, keep: usize) {
        self.omitted_messages += self.conversation.messages.len().saturating_sub(keep);
        self.conversation.messages.truncate(keep);
    }
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.error)
    }
}

impl std::error::Error for LineError {}
