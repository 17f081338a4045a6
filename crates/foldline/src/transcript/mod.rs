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
mod log_format;
mod openhands;
mod openinference;
mod parsers;
mod pi;
mod reader;
mod session;
mod session_parser;
mod swe_agent;

pub use crate::transcript::detect::detect;
pub use crate::transcript::log_format::LogFormat;
pub use crate::transcript::reader::TranscriptReader;
pub use crate::transcript::session::{LineError, RecordedSession};

/// Longest line of a log, or element of a document's list, in bytes.
pub const MAX_LINE_BYTES: usize = 256 << 20;

/// Number of bytes at the start of an input that are used to detect its format.
pub const DETECTION_HEAD_BYTES: usize = 64 << 10;

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
        (LogFormat::GeminiCli, gemini::SAMPLE),
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
