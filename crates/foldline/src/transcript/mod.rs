//! Recorded sessions: what agents left on disk, read into conversations.
//!
//! One file a format. Each reads what its client would have sent: turns that a log spreads over
//! several lines are one message again, results stand behind their calls, branches that the user went
//! back from are gone. Text, arguments and seals are those of the log, byte for byte. Nothing is
//! invented here: a call that never got a result has none.
//!
//! The readers take a [`BufRead`](std::io::BufRead) and open nothing themselves. They hold the session that is being
//! read and one entry of the log, not the file.

mod bodies;
mod claude_code;
mod codex;
mod copilot;
mod document;
mod gemini;
mod inspect;
mod lines;
mod openhands;
mod openinference;
mod pi;
mod reader;
mod recognise;
mod swe_agent;

use std::borrow::Cow;
use std::fmt;

use crate::conversation::{Conversation, Message};
use crate::error::Error;
use crate::wire;
use reader::Session;

pub use reader::Reader;
pub use recognise::recognise;

/// The most bytes that one line of a log, or one element of a document's list, may have.
pub const LINE_LIMIT: usize = 256 << 20;

/// How much of an input is looked at to recognise its format.
pub const HEAD: usize = 64 << 10;

/// The formats that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Format {
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
    /// Events of OpenHands: a list, or the output of an evaluation; of either generation.
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
    /// One conversation a line with its origin: `id`, `source`, `messages` and more.
    Record,
}

/// A recorded session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recording {
    /// The session's own id, or else the name of its input.
    pub id: String,
    /// Where it comes from: as the recording says, or else the name of its input.
    pub source: String,
    /// What it was read from.
    pub format: Format,
    /// The session that this one is a side chain of: a sub-agent's own conversation.
    pub parent: Option<String>,
    /// What was said, to the end of the session. Where the agent compacted its context, the messages
    /// before and after are both here, with its summary as a user's message between them.
    pub conversation: Conversation<'static>,
    /// How often the agent compacted its own context.
    pub compactions: usize,
    /// Messages of the log that the client would not send again: turns that broke off, and branches
    /// that the user went back from. They are not in the conversation.
    pub left_out: usize,
}

/// Something in an input that could not be read. Reading goes on behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line where it stands, from one.
    pub line: u64,
    /// What is wrong with it.
    pub error: Error,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 13] = [
        Format::ClaudeCode,
        Format::Codex,
        Format::Copilot,
        Format::Gemini,
        Format::Pi,
        Format::SweAgent,
        Format::OpenHands,
        Format::Inspect,
        Format::OpenInference,
        Format::OpenAiChat,
        Format::OpenAiResponses,
        Format::Anthropic,
        Format::Record,
    ];

    /// The name as flags and tables spell it.
    pub fn name(self) -> &'static str {
        match self {
            Format::ClaudeCode => "claude-code",
            Format::Codex => "codex",
            Format::Copilot => "copilot",
            Format::Gemini => "gemini",
            Format::Pi => "pi",
            Format::SweAgent => "swe-agent",
            Format::OpenHands => "openhands",
            Format::Inspect => "inspect",
            Format::OpenInference => "openinference",
            Format::OpenAiChat => "openai-chat",
            Format::OpenAiResponses => "openai-responses",
            Format::Anthropic => "anthropic",
            Format::Record => "record",
        }
    }

    /// The wire format whose shape its conversations have: where results stand, and what is one
    /// message. Clients that speak another API are told in the shape of Chat Completions.
    pub fn wire(self) -> wire::Format {
        match self {
            Format::ClaudeCode | Format::Anthropic => wire::Format::Anthropic,
            Format::Codex | Format::OpenAiResponses => wire::Format::OpenAiResponses,
            _ => wire::Format::OpenAiChat,
        }
    }

    fn session(self) -> Box<dyn Session> {
        match self {
            Format::ClaudeCode => Box::<claude_code::Log>::default(),
            Format::Codex => Box::new(codex::Rollout::new()),
            Format::Copilot => Box::<copilot::Events>::default(),
            Format::Gemini => Box::new(gemini::Chat::new()),
            Format::Pi => Box::new(pi::Tree::new()),
            Format::SweAgent => Box::new(swe_agent::Trajectory::new()),
            Format::OpenHands => Box::new(openhands::Events::new()),
            Format::Inspect => Box::<inspect::Log>::default(),
            Format::OpenInference => Box::<openinference::Trace>::default(),
            Format::OpenAiChat | Format::OpenAiResponses | Format::Anthropic | Format::Record => {
                Box::<bodies::Bodies>::default()
            }
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Recording {
    fn new(format: Format) -> Self {
        Self {
            id: String::new(),
            source: String::new(),
            format,
            parent: None,
            conversation: Conversation::default(),
            compactions: 0,
            left_out: 0,
        }
    }

    /// The model that spoke last, when the recording tells.
    pub fn model(&self) -> Option<&str> {
        self.conversation.model.as_deref()
    }

    /// The calls whose results the recording marks as errors.
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

    /// Leaves out what stands behind the first `keep` messages.
    fn go_back(&mut self, keep: usize) {
        self.left_out += self.conversation.messages.len().saturating_sub(keep);
        self.conversation.messages.truncate(keep);
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.error)
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::conversation::{Arguments, Part, Source};

    /// Everything in a text: the recordings, and the faults as people read them.
    pub(super) fn read(text: &str) -> (Vec<Recording>, Vec<String>) {
        let mut recordings = Vec::new();
        let mut faults = Vec::new();
        match Reader::new("input", text.as_bytes()) {
            Ok(reader) => {
                for event in reader {
                    match event {
                        Ok(recording) => recordings.push(recording),
                        Err(fault) => faults.push(fault.to_string()),
                    }
                }
            }
            Err(fault) => faults.push(fault.to_string()),
        }
        (recordings, faults)
    }

    /// The only recording in a text without faults.
    pub(super) fn only(text: &str) -> Recording {
        let (mut recordings, faults) = read(text);
        assert_eq!((recordings.len(), faults), (1, Vec::new()));
        recordings.remove(0)
    }

    /// A conversation as one line a message.
    pub(super) fn shape(recording: &Recording) -> Vec<String> {
        let messages = recording.conversation.messages.iter();
        messages.map(|message| format!("{:?}: {}", message.role, parts(&message.parts)).to_lowercase()).collect()
    }

    fn parts(parts: &[Part<'_>]) -> String {
        parts.iter().map(part).collect::<Vec<_>>().join(" | ")
    }

    fn part(part: &Part<'_>) -> String {
        match part {
            Part::Text { text } => text.to_string(),
            Part::Reasoning(it) => match &it.seal {
                Some(seal) => format!("thought {} sealed {seal}", it.text),
                None => format!("thought {}", it.text),
            },
            Part::ToolCall(it) => match &it.arguments {
                Arguments::Json(json) => format!("call {} {} {json}", it.id, it.name),
                Arguments::Text(text) => format!("call {} {} text {text}", it.id, it.name),
            },
            Part::ToolResult(it) => {
                format!("{} {} {}", if it.is_error { "error" } else { "result" }, it.call_id, parts(&it.content))
            }
            Part::Image(it) => match &it.source {
                Source::Base64(data) => format!("image data {data}"),
                Source::Url(url) => format!("image at {url}"),
                other => format!("image {other:?}"),
            },
            other => format!("{other:?}"),
        }
    }

    const SAMPLES: [(Format, &str); 9] = [
        (Format::ClaudeCode, claude_code::SAMPLE),
        (Format::Codex, codex::SAMPLE),
        (Format::Copilot, copilot::SAMPLE),
        (Format::Gemini, gemini::SAMPLE),
        (Format::Pi, pi::SAMPLE),
        (Format::SweAgent, swe_agent::SAMPLE),
        (Format::OpenHands, openhands::SAMPLE),
        (Format::Inspect, inspect::SAMPLE),
        (Format::OpenInference, openinference::SAMPLE),
    ];

    /// Wherever the beginning of a log is cut, it is not taken for another format.
    #[test]
    fn a_format_is_recognised_by_its_beginning() {
        for (format, sample) in SAMPLES {
            assert_eq!(recognise(sample.as_bytes()), Some(format));
            for cut in 0..sample.len() {
                let seen = recognise(&sample.as_bytes()[..cut]);
                assert!(seen.is_none() || seen == Some(format), "{format} cut at {cut} is taken for {seen:?}");
            }
        }
    }

    /// The keys behind a long value can not be seen.
    #[test]
    fn a_first_line_that_is_longer_than_the_head_is_recognised() {
        let long = "x".repeat(2 * HEAD);
        for (format, line) in [
            (
                Format::ClaudeCode,
                format!(
                    r#"{{"parentUuid":null,"sessionId":"s","type":"user","message":{{"role":"user","content":"{long}"}},"uuid":"1"}}"#
                ),
            ),
            (
                Format::Codex,
                format!(
                    r#"{{"timestamp":"t","type":"session_meta","payload":{{"base_instructions":{{"text":"{long}"}},"id":"s"}}}}"#
                ),
            ),
            (Format::Copilot, format!(r#"{{"type":"user.message","data":{{"content":"{long}"}},"id":"1"}}"#)),
            (Format::Pi, format!(r#"{{"type":"message","message":{{"role":"user","content":"{long}"}}}}"#)),
            (Format::SweAgent, format!(r#"{{"trajectory":["{long}"],"history":[{{"role":"user","content":"hi"}}]}}"#)),
            (Format::Record, format!(r#"{{"messages":[{{"role":"user","content":"{long}"}}],"id":"a","source":"b"}}"#)),
        ] {
            assert_eq!(only(&line).format, format);
        }
    }

    /// A log may begin with damage, or with lines that tell nothing.
    #[test]
    fn a_damaged_first_line_does_not_hide_the_format() {
        let text = format!("{{\"type\":\"us\n{{}}\n{}", claude_code::SAMPLE);
        assert_eq!(recognise(text.as_bytes()), Some(Format::ClaudeCode));
    }

    #[test]
    fn an_input_of_no_known_format_is_refused_with_the_formats_that_are_known() {
        let (recordings, faults) = read("Dear diary,\n{}");
        assert!(recordings.is_empty());
        assert!(faults[0].contains("line 1") && faults[0].contains("claude-code"), "{faults:?}");
    }

    #[test]
    fn a_line_over_the_limit_is_a_fault_with_its_number() {
        let text =
            format!("{}\n{{\"type\":\"user\",\"pad\":\"{}\"}}\n", claude_code::SAMPLE.trim_end(), "x".repeat(5000));
        let lines = claude_code::SAMPLE.trim_end().lines().count() as u64;
        let reader = Reader::with_limit("input", text.as_bytes(), 4096).unwrap();
        let faults: Vec<Fault> = reader.filter_map(Result::err).collect();
        assert_eq!(faults.len(), 1);
        assert_eq!((faults[0].line, faults[0].error.kind()), (lines + 1, &crate::ErrorKind::TooLong { limit: 4096 }));
    }

    /// The input breaks off: what was read is given out, and the fault is told.
    #[test]
    fn an_input_that_fails_gives_what_was_read() {
        struct Broken<'a>(&'a [u8]);
        impl std::io::Read for Broken<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                match self.0.read(buffer)? {
                    0 => Err(std::io::Error::other("the disk is gone")),
                    read => Ok(read),
                }
            }
        }
        let filler = format!("{{\"type\":\"progress\",\"pad\":\"{}\"}}\n", "x".repeat(1000)).repeat(100);
        let text = format!("{}\n{filler}", claude_code::SAMPLE.trim_end());
        let reader = Reader::new("input", std::io::BufReader::new(Broken(text.as_bytes()))).unwrap();
        let events: Vec<_> = reader.collect();
        assert!(events[0].is_ok());
        let fault = events.last().unwrap().as_ref().unwrap_err();
        assert_eq!(fault.error.kind(), &crate::ErrorKind::Io);
    }

    #[test]
    fn a_byte_order_mark_and_windows_line_ends_are_no_damage() {
        let text = format!("\u{feff}{}", codex::SAMPLE.replace('\n', "\r\n"));
        assert_eq!(shape(&only(&text)), shape(&only(codex::SAMPLE)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(reader) = Reader::new("input", bytes.as_slice()) {
                reader.for_each(drop);
            }
        }

        /// Bytes changed, lost or doubled anywhere in a good recording are faults at worst.
        #[test]
        fn no_damage_makes_a_reader_panic(
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
            if let Ok(reader) = Reader::new("input", bytes.as_slice()) {
                reader.for_each(drop);
            }
        }

        /// A buffer that ends anywhere gives the same recordings.
        #[test]
        fn the_size_of_the_buffer_changes_nothing(sample in 0..SAMPLES.len(), capacity in 1..200usize) {
            let input = std::io::BufReader::with_capacity(capacity, SAMPLES[sample].1.as_bytes());
            let read: Vec<_> = Reader::new("input", input).unwrap().map(Result::unwrap).collect();
            let whole: Vec<_> = Reader::new("input", SAMPLES[sample].1.as_bytes()).unwrap().map(Result::unwrap).collect();
            prop_assert_eq!(read, whole);
        }
    }
}
