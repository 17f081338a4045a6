//! Streams and bodies as one line of text, so that a test shows at a glance what was understood.

use super::{Event, Response, StreamReader, Usage};
use crate::conversation::Part;
use crate::wire::{Format, Refusal};

/// The events of a stream, and the response that it leaves.
pub(super) fn shape(format: Format, stream: &str) -> (String, String) {
    let stream = stream.trim_start_matches('\n');
    let mut reader = StreamReader::new(format);
    let events: Vec<String> = reader.push(stream.as_bytes()).iter().map(|(_, event)| line(event)).collect();
    (events.join(" | "), response(&reader.finish()))
}

/// A JSON body.
pub(super) fn body(format: Format, text: &str) -> String {
    response(&Response::parse(format, text.as_bytes()).unwrap())
}

/// A stream leaves the very response that the same answer has as a JSON body.
pub(super) fn agree(format: Format, stream: &str, text: &str) {
    let mut reader = StreamReader::new(format);
    reader.push(stream.trim_start_matches('\n').as_bytes());
    assert_eq!(reader.finish(), Response::parse(format, text.as_bytes()).unwrap().into_owned());
}

fn line(event: &Event) -> String {
    let place = |at: &super::Place| match at.choice {
        0 => at.index.to_string(),
        choice => format!("{choice}.{}", at.index),
    };
    match event {
        Event::Started { id, model } => {
            let said: Vec<&str> = ["started"].into_iter().chain(id.as_deref()).chain(model.as_deref()).collect();
            said.join(" ")
        }
        Event::TextDelta { at, text } => format!("text {} {text}", place(at)),
        Event::ReasoningDelta { at, text } => format!("thought {} {text}", place(at)),
        Event::ReasoningSealed { at, seal } => format!("seal {} {seal}", place(at)),
        Event::ToolCallOpened { at, call, id, name } => format!("call {call}@{} {id} {name}", place(at)),
        Event::ToolCallDelta { at, call, arguments } => format!("call {call}@{} +{arguments}", place(at)),
        Event::ToolCallClosed { at, call } => format!("call {call}@{} closed", place(at)),
        Event::Usage(it) => format!("usage {}", usage(it)),
        Event::Stopped { choice: 0, stop } => format!("stop {:?} {}", stop.reason, stop.raw),
        Event::Stopped { choice, stop } => format!("stop#{choice} {:?} {}", stop.reason, stop.raw),
        Event::Error { error, refusal } => match refusal {
            Refusal::Overflow(it) => format!("error {error} [overflow {}]", it.limit.unwrap_or(0)),
            Refusal::Payload => format!("error {error} [payload]"),
            Refusal::Other => format!("error {error} [other]"),
        },
        Event::Done => "done".to_owned(),
        Event::Ping => "ping".to_owned(),
        Event::Other { at: Some(at), kind } => format!("({kind} {})", place(at)),
        Event::Other { at: None, kind } => format!("({kind})"),
        Event::Unreadable(why) => format!("unreadable {why:?}"),
    }
}

fn response(response: &Response<'_>) -> String {
    let parts: Vec<String> = response.message.parts.iter().map(part).collect();
    let names: Vec<&str> = response.id.as_deref().into_iter().chain(response.model.as_deref()).collect();
    let mut line = format!("{}: {}", names.join(" "), parts.join(" + ")).trim_end().to_owned();
    if let Some(stop) = &response.stop {
        line += &format!(" | {:?} {}", stop.reason, stop.raw);
    }
    if let Some(it) = &response.usage {
        line += &format!(" | {}", usage(it));
    }
    if let Some(error) = &response.error {
        line += &format!(" | error {error}");
    }
    format!("{line} | {:?}", response.extent)
}

fn part(part: &Part<'_>) -> String {
    match part {
        Part::Text { text } => format!("text {text}"),
        Part::Reasoning(it) => match &it.seal {
            Some(seal) => format!("thought {} [{seal}]", it.text),
            None => format!("thought {}", it.text),
        },
        Part::ToolCall(it) => format!("call {} {} {}", it.id, it.name, it.arguments.as_str()),
        Part::Opaque(it) => format!("opaque {} {}", it.kind, it.raw),
        part => format!("{part:?}"),
    }
}

fn usage(it: &Usage) -> String {
    let mut line = format!("in={}", it.input);
    for (name, count) in [("read", it.cache_read), ("write", it.cache_write), ("write_1h", it.cache_write_1h)] {
        line += &count.map(|count| format!(" {name}={count}")).unwrap_or_default();
    }
    line += &format!(" out={}", it.output);
    for (name, count) in [("reasoning", it.reasoning), ("last_input", it.last_input)] {
        line += &count.map(|count| format!(" {name}={count}")).unwrap_or_default();
    }
    line
}
