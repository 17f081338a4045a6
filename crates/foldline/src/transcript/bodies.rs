//! Messages and request bodies of all dialects, and records that contain them.
//!
//! An entry is a message, a list of messages, a request body, or a record with an id and a source around
//! the messages. Single messages together form one conversation; every other entry is a separate one.
//! The API is detected from the messages, so they are parsed when all of them are read.

use std::borrow::Cow;
use std::collections::HashSet;

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::Part;
use crate::error::Error;
use crate::wire;
use crate::wire::json::scan::{JsonObject, JsonValue};

#[derive(Default)]
pub(crate) struct BodyParser {
    /// Single messages so far, as the start of a JSON array.
    messages: String,
}

impl SessionParser for BodyParser {
    fn parse_entry(&mut self, entry: &JsonObject<'_>, found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        if entry.value.is_array() {
            found.push(parse_body(entry.value.raw())?);
        } else if let Some(list) = entry.get("traj").filter(|list| list.is_array()) {
            // The field name of tau-bench.
            found.push(parse_body(list.raw())?);
        } else if wire::Format::is_body(entry) {
            let mut recording = parse_body(entry.value.raw())?;
            apply_record_fields(&mut recording, entry);
            found.push(recording);
        } else if entry.get("role").is_some() || entry.get("type").is_some() {
            self.messages.push(if self.messages.is_empty() { '[' } else { ',' });
            self.messages.push_str(entry.value.raw());
        } else {
            return Err(Error::not_a_recording("neither a message nor a body with messages"));
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, found: &mut Vec<RecordedSession>) {
        if !self.messages.is_empty() {
            self.messages.push(']');
            // Each message was parsed before it was added, so the list can be parsed.
            found.extend(parse_body(&self.messages));
        }
    }
}

fn parse_body(body: &str) -> Result<RecordedSession, Error> {
    let format = wire::Format::detect(body.as_bytes()).unwrap_or(wire::Format::OpenAiChat);
    let request = wire::Request::parse(format, body.as_bytes())?;
    let mut recording = RecordedSession::new(LogFormat::Bodies(format));
    recording.conversation = request.conversation().clone().into_owned();
    Ok(recording)
}

/// Applies the fields of a record to its conversation.
fn apply_record_fields(recording: &mut RecordedSession, record: &JsonObject<'_>) {
    recording.id = record.string("id").unwrap_or_default().into_owned();
    let Some(source) = record.string("source") else { return };
    recording.format = LogFormat::Record;
    recording.source = source.into_owned();
    let compactions = record.get("compactions").and_then(JsonValue::u64);
    recording.compactions = compactions.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    let failed = record.elements("error_tool_call_ids");
    let failed: HashSet<Cow<'_, str>> = failed.iter().filter_map(|id| id.value.string()).collect();
    for message in &mut recording.conversation.messages {
        for part in &mut message.parts {
            if let Part::ToolResult(result) = part {
                result.is_error |= failed.contains(&result.call_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one, shape};
    use super::*;

    fn formats(text: &str) -> Vec<(LogFormat, usize)> {
        let (recordings, errors) = read_all(text);
        assert!(errors.is_empty(), "{errors:?}");
        recordings.iter().map(|session| (session.format, session.conversation.messages.len())).collect()
    }

    /// The messages may be a list, a body or lines, on one line or many.
    #[test]
    fn messages_are_read_in_every_wrapping() {
        let messages = [
            r#"{"role":"user","content":"hi"}"#,
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}"#,
            r#"{"role":"tool","tool_call_id":"c1","content":"ok"}"#,
        ];
        let list = format!("[{}]", messages.join(",\n"));
        let one_line = format!("[{}]", messages.join(","));
        for text in [
            list.clone(),
            one_line.clone(),
            format!("{{\n \"model\": \"m\",\n \"messages\": {list}\n}}"),
            format!("{{\"messages\":{one_line}}}"),
            format!("[{{\"task_id\":0,\"traj\":{one_line}}}]"),
            messages.join("\n"),
        ] {
            let recording = read_one(&text);
            assert_eq!(recording.format, LogFormat::Bodies(wire::Format::OpenAiChat), "{text}");
            assert_eq!(shape(&recording), ["user: hi", "assistant: call c1 f {}", "tool: result c1 ok"], "{text}");
        }
        let lines = format!("{{\"messages\":{one_line}}}\n{one_line}\n");
        assert_eq!(
            formats(&lines),
            [(LogFormat::Bodies(wire::Format::OpenAiChat), 3), (LogFormat::Bodies(wire::Format::OpenAiChat), 3)]
        );
    }

    #[test]
    fn api_is_detected_from_the_messages() {
        let anthropic = r#"[{"role":"user","content":"hi"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{"a":1}}]}]"#;
        assert_eq!(formats(anthropic), [(LogFormat::Bodies(wire::Format::Anthropic), 2)]);
        let responses = r#"{"model":"m","instructions":"be good","input":[{"type":"message","role":"user","content":"hi"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]}"#;
        assert_eq!(formats(responses), [(LogFormat::Bodies(wire::Format::OpenAiResponses), 2)]);
        let items = "{\"type\":\"message\",\"role\":\"user\",\"content\":\"hi\"}\n{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}";
        assert_eq!(formats(items), [(LogFormat::Bodies(wire::Format::OpenAiResponses), 2)]);
        let system = r#"{"system":"be good","messages":[{"role":"user","content":"hi"}],"max_tokens":9}"#;
        assert_eq!(formats(system), [(LogFormat::Bodies(wire::Format::Anthropic), 1)]);
        let gemini =
            r#"{"contents":[{"role":"user","parts":[{"text":"hi"}]},{"role":"model","parts":[{"text":"yes"}]}]}"#;
        assert_eq!(formats(gemini), [(LogFormat::Bodies(wire::Format::Gemini), 2)]);
        let contents =
            "{\"role\":\"user\",\"parts\":[{\"text\":\"hi\"}]}\n{\"role\":\"model\",\"parts\":[{\"text\":\"yes\"}]}";
        assert_eq!(formats(contents), [(LogFormat::Bodies(wire::Format::Gemini), 2)]);
    }

    /// A custom call has an input too, and is an item of a conversation.
    #[test]
    fn custom_call_is_an_item_and_not_a_body() {
        let items = "{\"type\":\"custom_tool_call\",\"call_id\":\"c\",\"name\":\"f\",\"input\":\"x\"}\n{\"type\":\"custom_tool_call_output\",\"call_id\":\"c\",\"output\":\"y\"}";
        assert_eq!(formats(items), [(LogFormat::Bodies(wire::Format::OpenAiResponses), 2)]);
    }

    #[test]
    fn record_has_source_and_error_results() {
        let recording = read_one(
            r#"{"id":"r1","source":"a/b:c","model":"m","compactions":2,"error_tool_call_ids":["c1"],"messages":[{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"no"}]}"#,
        );
        assert_eq!((recording.id.as_str(), recording.source.as_str(), recording.model()), ("r1", "a/b:c", Some("m")));
        assert_eq!((recording.format, recording.compactions), (LogFormat::Record, 2));
        assert_eq!(recording.error_call_ids().collect::<Vec<_>>(), ["c1"]);
    }

    #[test]
    fn unnamed_bodies_of_one_input_are_numbered() {
        let body = r#"{"messages":[{"role":"user","content":"hi"}]}"#;
        let (recordings, _) = read_all(&format!("{body}\n{body}\n"));
        let ids: Vec<_> = recordings.iter().map(|session| session.id.as_str()).collect();
        assert_eq!(ids, ["input", "input#2"]);
    }

    #[test]
    fn record_without_messages_is_one_error() {
        let good = r#"{"id":"a","source":"s","messages":[]}"#;
        let (recordings, errors) = read_all(&format!("{good}\n{{\"id\":\"b\"}}\n{good}\n"));
        assert_eq!(recordings.len(), 2);
        assert_eq!(errors, ["line 2: not a recorded session: neither a message nor a body with messages"]);
    }
}
