//! Recorded sessions: logs that agents write to disk, read into conversations.
//!
//! One file for each format. A reader restores the messages that the client would have sent: turns that
//! a log spreads over several lines are one message again, results follow their calls, abandoned
//! branches are omitted. Text, arguments and signatures are those of the log, byte for byte. Nothing is
//! invented here: a call without a result stays without one.
//!
//! The readers take a [`BufRead`](std::io::BufRead) and never open files. They keep the current session
//! and one entry of the log in memory, not the file.

mod bodies;
mod claude_code;
mod codex;
mod copilot;
pub(crate) mod detect;
mod document;
mod gemini;
mod inspect;
mod lines;
mod openhands;
mod openinference;
mod pi;
mod reader;
mod swe_agent;

use std::borrow::Cow;
use std::fmt;

use crate::conversation::{Conversation, Message};
use crate::error::Error;
use crate::wire;
use reader::SessionParser;

pub use crate::transcript::detect::detect;
pub use reader::TranscriptReader;

/// Longest line of a log, or element of a document's list, in bytes.
pub const MAX_LINE_BYTES: usize = 256 << 20;

/// Number of bytes at the start of an input that are used to detect its format.
pub const DETECTION_HEAD_BYTES: usize = 64 << 10;

/// The supported log formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogFormat {
    /// Session files of Claude Code, `~/.claude/projects/*/*.jsonl`.
    ClaudeCode,
    /// Rollout files of Codex, `~/.codex/sessions/**/rollout-*.jsonl`.
    Codex,
    /// `events.jsonl` of the Copilot CLI.
    Copilot,
    /// Chats of the Gemini CLI, as one document or as lines.
    Gemini,
    /// Session files of pi.
    Pi,
    /// Trajectories of SWE-agent, `*.traj`.
    SweAgent,
    /// Events of OpenHands: a list, or the output of an evaluation; both generations of the format.
    OpenHands,
    /// Logs of Inspect, as JSON.
    Inspect,
    /// OpenInference traces as trees of spans.
    OpenInference,
    /// Messages or request bodies of OpenAI Chat Completions.
    OpenAiChat,
    /// Items or request bodies of OpenAI Responses.
    OpenAiResponses,
    /// Messages or request bodies of Anthropic Messages.
    Anthropic,
    /// One conversation per line with its origin: `id`, `source`, `messages` and more.
    Record,
}

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

impl LogFormat {
    /// All formats.
    pub const ALL: [LogFormat; 13] = [
        LogFormat::ClaudeCode,
        LogFormat::Codex,
        LogFormat::Copilot,
        LogFormat::Gemini,
        LogFormat::Pi,
        LogFormat::SweAgent,
        LogFormat::OpenHands,
        LogFormat::Inspect,
        LogFormat::OpenInference,
        LogFormat::OpenAiChat,
        LogFormat::OpenAiResponses,
        LogFormat::Anthropic,
        LogFormat::Record,
    ];

    /// Returns the name used in flags and tables.
    pub fn name(self) -> &'static str {
        match self {
            LogFormat::ClaudeCode => "claude-code",
            LogFormat::Codex => "codex",
            LogFormat::Copilot => "copilot",
            LogFormat::Gemini => "gemini",
            LogFormat::Pi => "pi",
            LogFormat::SweAgent => "swe-agent",
            LogFormat::OpenHands => "openhands",
            LogFormat::Inspect => "inspect",
            LogFormat::OpenInference => "openinference",
            LogFormat::OpenAiChat => "openai-chat",
            LogFormat::OpenAiResponses => "openai-responses",
            LogFormat::Anthropic => "anthropic",
            LogFormat::Record => "record",
        }
    }

    /// Returns the wire format whose message structure the conversations have. Logs of clients that use
    /// another API get the structure of Chat Completions.
    pub fn wire_format(self) -> wire::Format {
        match self {
            LogFormat::ClaudeCode | LogFormat::Anthropic => wire::Format::Anthropic,
            LogFormat::Codex | LogFormat::OpenAiResponses => wire::Format::OpenAiResponses,
            _ => wire::Format::OpenAiChat,
        }
    }

    fn parser(self) -> Box<dyn SessionParser> {
        match self {
            LogFormat::ClaudeCode => Box::<claude_code::ClaudeCodeLog>::default(),
            LogFormat::Codex => Box::new(codex::CodexRollout::new()),
            LogFormat::Copilot => Box::<copilot::CopilotEvents>::default(),
            LogFormat::Gemini => Box::new(gemini::GeminiChat::new()),
            LogFormat::Pi => Box::new(pi::PiSessionTree::new()),
            LogFormat::SweAgent => Box::new(swe_agent::SweAgentTrajectory::new()),
            LogFormat::OpenHands => Box::new(openhands::OpenHandsEvents::new()),
            LogFormat::Inspect => Box::<inspect::InspectLog>::default(),
            LogFormat::OpenInference => Box::<openinference::OpenInferenceTrace>::default(),
            LogFormat::OpenAiChat | LogFormat::OpenAiResponses | LogFormat::Anthropic | LogFormat::Record => {
                Box::<bodies::BodyParser>::default()
            }
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl RecordedSession {
    fn new(format: LogFormat) -> Self {
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

    fn push(&mut self, message: Message<'_>) {
        self.conversation.messages.push(message.into_owned());
    }

    fn set_model(&mut self, model: Option<Cow<'_, str>>) {
        if let Some(model) = model.filter(|model| !model.is_empty()) {
            self.conversation.model = Some(model.into_owned().into());
        }
    }

    /// Omits the messages after the first `keep`.
    fn truncate_to(&mut self, keep: usize) {
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
    use proptest::prelude::*;

    use super::*;
    use crate::conversation::{CallArguments, MediaSource, Part};

    /// Reads all recordings and the error messages of a text.
    pub(crate) fn read_all(text: &str) -> (Vec<RecordedSession>, Vec<String>) {
        let mut recordings = Vec::new();
        let mut errors = Vec::new();
        match TranscriptReader::new("input", text.as_bytes()) {
            Ok(reader) => {
                for event in reader {
                    match event {
                        Ok(recording) => recordings.push(recording),
                        Err(error) => errors.push(error.to_string()),
                    }
                }
            }
            Err(error) => errors.push(error.to_string()),
        }
        (recordings, errors)
    }

    /// Reads the only recording in a text without errors.
    pub(crate) fn read_one(text: &str) -> RecordedSession {
        let (mut recordings, errors) = read_all(text);
        assert_eq!((recordings.len(), errors), (1, Vec::new()));
        recordings.remove(0)
    }

    /// Renders a conversation as one line per message.
    pub(crate) fn shape(recording: &RecordedSession) -> Vec<String> {
        let messages = recording.conversation.messages.iter();
        messages.map(|message| format!("{:?}: {}", message.role, parts(&message.parts)).to_lowercase()).collect()
    }

    fn parts(parts: &[Part<'_>]) -> String {
        parts.iter().map(part).collect::<Vec<_>>().join(" | ")
    }

    fn part(part: &Part<'_>) -> String {
        match part {
            Part::Text { text } => text.to_string(),
            Part::Reasoning(reasoning) => match &reasoning.seal {
                Some(seal) => format!("thought {} sealed {seal}", reasoning.text),
                None => format!("thought {}", reasoning.text),
            },
            Part::ToolCall(call) => match &call.arguments {
                CallArguments::Json(json) => format!("call {} {} {json}", call.id, call.name),
                CallArguments::Text(text) => format!("call {} {} text {text}", call.id, call.name),
            },
            Part::ToolResult(result) => {
                let kind = if result.is_error { "error" } else { "result" };
                format!("{kind} {} {}", result.call_id, parts(&result.content))
            }
            Part::Image(image) => match &image.source {
                MediaSource::Base64(data) => format!("image data {data}"),
                MediaSource::Url(url) => format!("image at {url}"),
                other => format!("image {other:?}"),
            },
            other => format!("{other:?}"),
        }
    }

    const SAMPLES: [(LogFormat, &str); 9] = [
        (LogFormat::ClaudeCode, claude_code::SAMPLE),
        (LogFormat::Codex, codex::SAMPLE),
        (LogFormat::Copilot, copilot::SAMPLE),
        (LogFormat::Gemini, gemini::SAMPLE),
        (LogFormat::Pi, pi::SAMPLE),
        (LogFormat::SweAgent, swe_agent::SAMPLE),
        (LogFormat::OpenHands, openhands::SAMPLE),
        (LogFormat::Inspect, inspect::SAMPLE),
        (LogFormat::OpenInference, openinference::SAMPLE),
    ];

    /// A truncated log is never detected as another format.
    #[test]
    fn format_is_detected_from_any_prefix() {
        for (format, sample) in SAMPLES {
            assert_eq!(detect(sample.as_bytes()), Some(format));
            for cut in 0..sample.len() {
                let detected = detect(&sample.as_bytes()[..cut]);
                assert!(
                    detected.is_none() || detected == Some(format),
                    "{format} cut at {cut} is detected as {detected:?}"
                );
            }
        }
    }

    /// Keys after a long value are outside the head.
    #[test]
    fn format_is_detected_when_the_first_line_exceeds_the_head() {
        let long = "x".repeat(2 * DETECTION_HEAD_BYTES);
        for (format, line) in [
            (
                LogFormat::ClaudeCode,
                format!(
                    r#"{{"parentUuid":null,"sessionId":"s","type":"user","message":{{"role":"user","content":"{long}"}},"uuid":"1"}}"#
                ),
            ),
            (
                LogFormat::Codex,
                format!(
                    r#"{{"timestamp":"t","type":"session_meta","payload":{{"base_instructions":{{"text":"{long}"}},"id":"s"}}}}"#
                ),
            ),
            (LogFormat::Copilot, format!(r#"{{"type":"user.message","data":{{"content":"{long}"}},"id":"1"}}"#)),
            (LogFormat::Pi, format!(r#"{{"type":"message","message":{{"role":"user","content":"{long}"}}}}"#)),
            (
                LogFormat::SweAgent,
                format!(r#"{{"trajectory":["{long}"],"history":[{{"role":"user","content":"hi"}}]}}"#),
            ),
            (
                LogFormat::Record,
                format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}],"id":"a","source":"b"}}"#),
            ),
        ] {
            assert_eq!(read_one(&line).format, format);
        }
    }

    /// A log may begin with damaged lines, or with lines that fit any format.
    #[test]
    fn damaged_first_line_does_not_hide_the_format() {
        let text = format!("{{\"type\":\"us\n{{}}\n{}", claude_code::SAMPLE);
        assert_eq!(detect(text.as_bytes()), Some(LogFormat::ClaudeCode));
    }

    #[test]
    fn unknown_format_error_lists_known_formats() {
        let (recordings, errors) = read_all("Dear diary,\n{}");
        assert!(recordings.is_empty());
        assert!(errors[0].contains("line 1") && errors[0].contains("claude-code"), "{errors:?}");
    }

    #[test]
    fn oversized_line_is_an_error_with_its_number() {
        let text =
            format!("{}\n{{\"type\":\"user\",\"pad\":\"{}\"}}\n", claude_code::SAMPLE.trim_end(), "x".repeat(5000));
        let lines = claude_code::SAMPLE.trim_end().lines().count() as u64;
        let reader = TranscriptReader::with_max_line_bytes("input", text.as_bytes(), 4096).unwrap();
        let errors: Vec<LineError> = reader.filter_map(Result::err).collect();
        assert_eq!(errors.len(), 1);
        assert_eq!((errors[0].line, errors[0].error.kind()), (lines + 1, &crate::ErrorKind::TooLong { limit: 4096 }));
    }

    /// The input fails: the session read so far is returned, then the error.
    #[test]
    fn failing_input_returns_what_was_read() {
        struct FailingInput<'a>(&'a [u8]);
        impl std::io::Read for FailingInput<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                match self.0.read(buffer)? {
                    0 => Err(std::io::Error::other("disk failure")),
                    read => Ok(read),
                }
            }
        }
        let filler = format!("{{\"type\":\"progress\",\"pad\":\"{}\"}}\n", "x".repeat(1000)).repeat(100);
        let text = format!("{}\n{filler}", claude_code::SAMPLE.trim_end());
        let reader = TranscriptReader::new("input", std::io::BufReader::new(FailingInput(text.as_bytes()))).unwrap();
        let events: Vec<_> = reader.collect();
        assert!(events[0].is_ok());
        let error = events.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.error.kind(), &crate::ErrorKind::Io);
    }

    #[test]
    fn byte_order_mark_and_crlf_are_accepted() {
        let text = format!("\u{feff}{}", codex::SAMPLE.replace('\n', "\r\n"));
        assert_eq!(shape(&read_one(&text)), shape(&read_one(codex::SAMPLE)));
    }

    proptest! {
        #[test]
        fn any_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(reader) = TranscriptReader::new("input", bytes.as_slice()) {
                reader.for_each(drop);
            }
        }

        /// Bytes changed, removed or inserted anywhere in a valid recording cause errors at worst.
        #[test]
        fn damaged_logs_never_panic(
            sample in 0..SAMPLES.len(),
            damage in proptest::collection::vec((any::<prop::sample::Index>(), 0..4, any::<u8>()), 1..6),
        ) {
            let mut bytes = SAMPLES[sample].1.as_bytes().to_vec();
            for (at, kind, byte) in damage {
                let at = at.index(bytes.len());
                match kind {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    2 => bytes.truncate(at.max(1)),
                    _ => drop(bytes.remove(at)),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            if let Ok(reader) = TranscriptReader::new("input", bytes.as_slice()) {
                reader.for_each(drop);
            }
        }

        /// Any buffer size gives the same recordings.
        #[test]
        fn result_does_not_depend_on_buffer_size(sample in 0..SAMPLES.len(), capacity in 1..200usize) {
            let input = std::io::BufReader::with_capacity(capacity, SAMPLES[sample].1.as_bytes());
            let read: Vec<_> = TranscriptReader::new("input", input).unwrap().map(Result::unwrap).collect();
            let whole: Vec<_> = TranscriptReader::new("input", SAMPLES[sample].1.as_bytes()).unwrap().map(Result::unwrap).collect();
            prop_assert_eq!(read, whole);
        }
    }
}
