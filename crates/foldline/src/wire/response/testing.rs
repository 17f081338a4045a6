//! Formats streams and bodies as one line of text for compact test assertions.

use super::{Response, StreamEvent, StreamReader, Usage};
use crate::conversation::Part;
use crate::wire::{Format, RequestRejection};

/// Returns the events of a stream, and the final response.
pub(crate) fn stream_summary(format: Format, stream: &str) -> (String, String) {
    let stream = stream.trim_start_matches('\n');
    let mut reader = StreamReader::new(format);
    let events: Vec<String> = reader.push(stream.as_bytes()).iter().map(|(_, event)| event_line(event)).collect();
    (events.join(" | "), response_line(&reader.finish()))
}

/// Returns the summary of a JSON body.
pub(crate) fn body_summary(format: Format, text: &str) -> String {
    response_line(&Response::parse(format, text.as_bytes()).unwrap())
}

/// Asserts that a stream yields the same response as the equivalent JSON body.
pub(crate) fn assert_stream_matches_body(format: Format, stream: &str, text: &str) {
    let mut reader = StreamReader::new(format);
    reader.push(stream.trim_start_matches('\n').as_bytes());
    assert_eq!(reader.finish(), Response::parse(format, text.as_bytes()).unwrap().into_owned());
}

fn event_line(event: &StreamEvent) -> String {
    let position = |at: &super::OutputPosition| match at.choice {
        0 => at.index.to_string(),
        choice => format!("{choice}.{}", at.index),
    };
    match event {
        StreamEvent::Started { id, model } => {
            let words: Vec<&str> = ["started"].into_iter().chain(id.as_deref()).chain(model.as_deref()).collect();
            words.join(" ")
        }
        StreamEvent::TextDelta { at, text } => format!("text {} {text}", position(at)),
        StreamEvent::ReasoningDelta { at, text } => format!("thought {} {text}", position(at)),
        StreamEvent::ReasoningSignature { at, signature } => format!("seal {} {signature}", position(at)),
        StreamEvent::ToolCallOpened { at, call, id, name } => format!("call {call}@{} {id} {name}", position(at)),
        StreamEvent::ToolCallDelta { at, call, arguments } => format!("call {call}@{} +{arguments}", position(at)),
        StreamEvent::ToolCallClosed { at, call } => format!("call {call}@{} closed", position(at)),
        StreamEvent::Usage(usage) => format!("usage {}", usage_text(usage)),
        StreamEvent::Stopped { choice: 0, stop } => format!("stop {:?} {}", stop.reason, stop.raw),
        StreamEvent::Stopped { choice, stop } => format!("stop#{choice} {:?} {}", stop.reason, stop.raw),
        StreamEvent::Error { error, refusal } => match refusal {
            RequestRejection::Overflow(overflow) => {
                format!("error {error} [overflow {}]", overflow.limit_tokens.unwrap_or(0))
            }
            RequestRejection::PayloadTooLarge => format!("error {error} [payload]"),
            RequestRejection::Other => format!("error {error} [other]"),
        },
        StreamEvent::Done => "done".to_owned(),
        StreamEvent::Ping => "ping".to_owned(),
        StreamEvent::Other { at: Some(at), kind } => format!("({kind} {})", position(at)),
        StreamEvent::Other { at: None, kind } => format!("({kind})"),
        StreamEvent::Unreadable(reason) => format!("unreadable {reason:?}"),
    }
}

fn response_line(response: &Response<'_>) -> String {
    let parts: Vec<String> = response.message.parts.iter().map(part_text).collect();
    let names: Vec<&str> = response.id.as_deref().into_iter().chain(response.model.as_deref()).collect();
    let mut line = format!("{}: {}", names.join(" "), parts.join(" + ")).trim_end().to_owned();
    if let Some(stop) = &response.stop {
        line += &format!(" | {:?} {}", stop.reason, stop.raw);
    }
    if let Some(usage) = &response.usage {
        line += &format!(" | {}", usage_text(usage));
    }
    if let Some(error) = &response.error {
        line += &format!(" | error {error}");
    }
    format!("{line} | {:?}", response.extent)
}

fn part_text(part: &Part<'_>) -> String {
    match part {
        Part::Text { text } => format!("text {text}"),
        Part::Reasoning(reasoning) => match &reasoning.seal {
            Some(seal) => format!("thought {} [{seal}]", reasoning.text),
            None => format!("thought {}", reasoning.text),
        },
        Part::ToolCall(call) => format!("call {} {} {}", call.id, call.name, call.arguments.as_str()),
        Part::Opaque(opaque) => format!("opaque {} {}", opaque.kind, opaque.raw),
        part => format!("{part:?}"),
    }
}

fn usage_text(usage: &Usage) -> String {
    let mut line = format!("in={}", usage.input);
    for (name, count) in [("read", usage.cache_read), ("write", usage.cache_write), ("write_1h", usage.cache_write_1h)]
    {
        line += &count.map(|count| format!(" {name}={count}")).unwrap_or_default();
    }
    line += &format!(" out={}", usage.output);
    for (name, count) in [("reasoning", usage.reasoning), ("last_input", usage.last_input)] {
        line += &count.map(|count| format!(" {name}={count}")).unwrap_or_default();
    }
    line
}
