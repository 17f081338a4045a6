//! OpenInference traces, as trees of spans.
//!
//! The span of a model call contains the complete request in flat attributes. Because an agent sends
//! everything at each step, its longest request with the response is its conversation: one recording
//! per agent, or one for the trace if it names no agent. Roles of a framework (`tool-call`,
//! `tool-response` of smolagents) are mapped to the roles that it sends.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::{Message, Part, Role, ToolDefinition, ToolResult};
use crate::error::Error;
use crate::wire::json::scan::{JsonObject, JsonValue};

#[derive(Default)]
pub(crate) struct OpenInferenceTrace {
    id: String,
    /// The longest request of each agent, in the order of their first requests.
    longest: Vec<LongestRequest>,
}

struct LongestRequest {
    /// Span id of the agent; none for calls outside any agent.
    agent: Option<String>,
    recording: RecordedSession,
}

impl SessionParser for OpenInferenceTrace {
    fn parse_entry(&mut self, span: &JsonObject<'_>, _found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        if attributes(span).is_none() {
            return Err(Error::not_a_recording("a span without attributes"));
        }
        self.visit_span(span, None);
        Ok(())
    }

    fn entries_field(&self) -> Option<&'static str> {
        Some("spans")
    }

    fn metadata_fields(&self) -> &'static [&'static str] {
        &["trace_id"]
    }

    fn parse_metadata(&mut self, _key: &str, value: JsonValue<'_>) {
        self.id = value.string().unwrap_or_default().into_owned();
    }

    fn finish(self: Box<Self>, found: &mut Vec<RecordedSession>) {
        let has_agents = self.longest.iter().any(|request| request.agent.is_some());
        for LongestRequest { agent, recording } in self.longest {
            let id = match agent {
                Some(agent) => format!("{}/{agent}", self.id),
                None if has_agents => continue,
                None => self.id.clone(),
            };
            found.push(RecordedSession { id, ..recording });
        }
    }
}

impl OpenInferenceTrace {
    fn visit_span(&mut self, span: &JsonObject<'_>, agent: Option<&str>) {
        let Some(attributes) = attributes(span) else { return };
        let kind = attributes.string("openinference.span.kind");
        let own_id = (kind.as_deref() == Some("AGENT")).then(|| span.string("span_id").unwrap_or_default());
        let agent = own_id.as_deref().or(agent);
        if kind.as_deref() == Some("LLM") {
            self.record_request(&attributes, agent);
        }
        // The scanner bounds the depth of a document, and with it this recursion.
        for child in span.elements("child_spans").iter() {
            self.visit_span(child, agent);
        }
    }

    fn record_request(&mut self, attributes: &JsonObject<'_>, agent: Option<&str>) {
        let mut drafts: BTreeMap<(bool, usize), MessageAttributes<'_>> = BTreeMap::new();
        let mut tools = BTreeMap::new();
        for field in attributes.fields() {
            let (is_answer, rest) = match field.key.strip_prefix("llm.input_messages.") {
                Some(rest) => (false, rest),
                None => match field.key.strip_prefix("llm.output_messages.") {
                    Some(rest) => (true, rest),
                    None => {
                        if let Some((at, definition)) = parse_tool(&field.key, field.value) {
                            tools.insert(at, definition);
                        }
                        continue;
                    }
                },
            };
            if let Some((at, rest)) = split_index(rest) {
                drafts
                    .entry((is_answer, at))
                    .or_default()
                    .set(rest.strip_prefix("message.").unwrap_or(rest), field.value);
            }
        }
        let known = self.longest.iter().position(|request| request.agent.as_deref() == agent);
        if known.is_some_and(|at| self.longest[at].recording.conversation.messages.len() > drafts.len()) {
            return;
        }
        let mut recording = RecordedSession::new(LogFormat::OpenInference);
        recording.set_model(attributes.string("llm.model_name"));
        drafts.into_values().for_each(|draft| recording.push(draft.into_message()));
        recording.conversation.tools = tools.into_values().collect();
        match known {
            Some(at) => self.longest[at].recording = recording,
            None => self.longest.push(LongestRequest { agent: agent.map(str::to_owned), recording }),
        }
    }
}

fn attributes<'a>(span: &JsonObject<'a>) -> Option<JsonObject<'a>> {
    span.object("span_attributes").or_else(|| span.object("attributes"))
}

/// Splits `7.rest` into 7 and `rest`.
fn split_index(key: &str) -> Option<(usize, &str)> {
    let (number, rest) = key.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

fn parse_tool(key: &str, value: JsonValue<'_>) -> Option<(usize, ToolDefinition<'static>)> {
    let (at, rest) = split_index(key.strip_prefix("llm.tools.")?)?;
    let definition = value.string().filter(|_| rest == "tool.json_schema")?.into_owned();
    let schema = crate::wire::json::scan::parse_document(&definition).ok()?.object();
    let function = schema.object("function").unwrap_or(schema);
    let name = function.string("name").unwrap_or_default().into_owned();
    Some((at, ToolDefinition { name: name.into(), definition: definition.into() }))
}

/// The attributes of a message read so far.
#[derive(Default)]
struct MessageAttributes<'a> {
    role: Option<Cow<'a, str>>,
    content: Option<Cow<'a, str>>,
    contents: BTreeMap<usize, Cow<'a, str>>,
    calls: BTreeMap<usize, [Option<Cow<'a, str>>; 3]>,
    call_id: Option<Cow<'a, str>>,
}

impl<'a> MessageAttributes<'a> {
    fn set(&mut self, key: &str, value: JsonValue<'a>) {
        let text = Some(value.string().unwrap_or_else(|| value.raw().into()));
        match key {
            "role" => self.role = text,
            "content" => self.content = text,
            "tool_call_id" => self.call_id = text,
            _ => {
                if let Some((at, "message_content.text")) = key.strip_prefix("contents.").and_then(split_index) {
                    self.contents.extend(text.map(|text| (at, text)));
                } else if let Some((at, rest)) = key.strip_prefix("tool_calls.").and_then(split_index) {
                    let slot = match rest {
                        "tool_call.id" => 0,
                        "tool_call.function.name" => 1,
                        "tool_call.function.arguments" => 2,
                        _ => return,
                    };
                    self.calls.entry(at).or_default()[slot] = text;
                }
            }
        }
    }

    fn into_message(self) -> Message<'a> {
        let mut parts: Vec<Part<'a>> =
            self.content.into_iter().chain(self.contents.into_values()).map(Part::text).collect();
        parts.extend(self.calls.into_values().map(|[id, name, arguments]| {
            Part::call(id.unwrap_or_default(), name.unwrap_or_default(), arguments.unwrap_or_else(|| "{}".into()))
        }));
        match (self.role.as_deref(), self.call_id) {
            (Some("tool"), Some(call_id)) => {
                let result = ToolResult { call_id, content: parts, is_error: false };
                Message::new(Role::Tool, vec![Part::ToolResult(result)])
            }
            (Some("system"), _) => Message::new(Role::System, parts),
            (Some("developer"), _) => Message::new(Role::Developer, parts),
            (Some("assistant" | "tool-call" | "model"), _) => Message::new(Role::Assistant, parts),
            (Some("user" | "tool-response" | "tool"), _) => Message::new(Role::User, parts),
            _ => Message::new(Role::Other, parts),
        }
    }
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{"trace_id": "t1", "spans": [
  {"span_id": "1", "span_attributes": {"openinference.span.kind": "CHAIN"}, "child_spans": [
    {"span_id": "2", "span_attributes": {"openinference.span.kind": "AGENT"}, "child_spans": [
      {"span_id": "3", "span_attributes": {"openinference.span.kind": "LLM", "llm.model_name": "m-1",
        "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "task",
        "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "short"}},
      {"span_id": "4", "span_attributes": {"openinference.span.kind": "LLM", "llm.model_name": "m-1",
        "llm.tools.0.tool.json_schema": "{\"type\": \"function\", \"function\": {\"name\": \"look\"}}",
        "llm.input_messages.10.message.role": "tool-response", "llm.input_messages.10.message.content": "Observation: b",
        "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.contents.0.message_content.text": "task",
        "llm.input_messages.1.message.role": "assistant",
        "llm.input_messages.1.message.tool_calls.0.tool_call.function.name": "look",
        "llm.input_messages.1.message.tool_calls.0.tool_call.id": "c1",
        "llm.input_messages.1.message.tool_calls.0.tool_call.function.arguments": "{\"at\": 1}",
        "llm.input_messages.2.message.role": "tool", "llm.input_messages.2.message.tool_call_id": "c1", "llm.input_messages.2.message.content": "a",
        "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "long"}}
    ]},
    {"span_id": "5", "span_attributes": {"openinference.span.kind": "LLM",
      "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "judge it"}}
  ]}
]}"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_one, shape};

    /// Attributes are in any order, and message indices sort as numbers.
    #[test]
    fn longest_request_per_agent_becomes_the_conversation() {
        let recording = read_one(super::SAMPLE);
        assert_eq!((recording.id.as_str(), recording.model()), ("t1/2", Some("m-1")));
        assert_eq!(recording.conversation.tools[0].name, "look");
        assert_eq!(
            shape(&recording),
            [
                "user: task",
                r#"assistant: call c1 look {"at": 1}"#,
                "tool: result c1 a",
                "user: observation: b",
                "assistant: long"
            ]
        );
    }

    #[test]
    fn trace_without_agents_is_one_session() {
        let recording = read_one(&super::SAMPLE.replace("\"AGENT\"", "\"CHAIN\""));
        assert_eq!((recording.id.as_str(), shape(&recording).len()), ("t1", 5));
    }
}
