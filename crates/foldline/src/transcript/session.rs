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
    /// The name of the folder in which the agent worked, if the recording states it.
    pub project: Option<String>,
    /// The day of its first entry, as YYYY-MM-DD, if the recording states it.
    pub date: Option<String>,
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
            project: None,
            date: None,
            parent: None,
            conversation: Conversation::default(),
            compactions: 0,
            omitted_messages: 0,
        }
    }

    /// Sets the project and the day from the working folder and the time of an entry, unless they are known.
    pub(super) fn set_origin(&mut self, folder: Option<Cow<'_, str>>, time: Option<Cow<'_, str>>) {
        if self.project.is_none() {
            let name =
                folder.and_then(|path| path.rsplit(['/', '\\']).find(|name| !name.is_empty()).map(str::to_owned));
            self.project = name;
        }
        let is_day = |day: &&str| {
            day.bytes()
                .enumerate()
                .all(|(at, byte)| if matches!(at, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() })
        };
        if self.date.is_none() {
            self.date = time.and_then(|time| time.get(..10).filter(is_day).map(str::to_owned));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_the_folder_and_the_first_day() {
        let mut recording = RecordedSession::new(LogFormat::ClaudeCode);
        recording.set_origin(Some("".into()), Some("yesterday, about noon".into()));
        assert_eq!((&recording.project, &recording.date), (&None, &None));
        recording.set_origin(Some("/repos/importer/".into()), Some("2026-11-02T09:30:00Z".into()));
        recording.set_origin(Some("C:\\other".into()), Some("2026-11-03T09:30:00Z".into()));
        assert_eq!(recording.project.as_deref(), Some("importer"));
        assert_eq!(recording.date.as_deref(), Some("2026-11-02"));
    }
}
