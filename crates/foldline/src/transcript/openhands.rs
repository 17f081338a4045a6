//! Events of OpenHands, both generations of the format.
//!
//! The first generation has actions and observations, each with the model's complete response; a
//! response with several calls is repeated in each of their actions and is read once. Agents without
//! function calling have no ids: there the event number pairs an action with the observation that it
//! caused. The second generation (`kind`) has one call per event, and calls of one response share its
//! id. A condensation is a compaction.
//!
//! The output of a command gets the frame that the client adds to it, because the log contains its
//! pieces; workspace context that the client renders from templates is not in the log.

use std::borrow::Cow;

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::{ImagePart, MediaSource, Message, Part, ReasoningPart, Role, ToolResult};
use crate::error::Error;
use crate::wire;
use crate::wire::json::scan::{JsonObject, JsonValue};

pub(crate) struct OpenHandsEvents {
    recording: RecordedSession,
    /// Id of the last response read.
    last_response_id: String,
}

impl OpenHandsEvents {
    pub(crate) fn new() -> Self {
        Self { recording: RecordedSession::new(LogFormat::OpenHands), last_response_id: String::new() }
    }

    /// Records the id of a response; returns true if it differs from the last one.
    fn is_new_response(&mut self, response_id: Option<Cow<'_, str>>) -> bool {
        let Some(response_id) = response_id.filter(|id| !id.is_empty()) else { return true };
        let is_new = self.last_response_id != response_id;
        self.last_response_id = response_id.into_owned();
        is_new
    }

    fn record_compaction(&mut self, summary: Option<Cow<'_, str>>) {
        self.recording.compactions += 1;
        if let Some(summary) = summary {
            self.recording.push(Message::text(Role::User, summary));
        }
    }

    fn push_action(&mut self, kind: &str, event: &JsonObject<'_>) {
        let by_user = event.string("source").as_deref() == Some("user");
        let args = event.object("args");
        let text = |key: &str| args.as_ref().and_then(|args| args.string(key));
        if let Some(response) = event.object("tool_call_metadata").and_then(|object| object.object("model_response")) {
            if self.is_new_response(response.string("id")) {
                self.recording.set_model(response.string("model"));
                let choices = response.elements("choices");
                if let Some(message) = choices.first().and_then(|choice| choice.object("message")) {
                    self.recording.push(wire::parse_message(wire::Format::OpenAiChat, &message));
                }
            }
            return;
        }
        match kind {
            "system" => {
                self.recording.push(Message::text(Role::System, text("content").unwrap_or_default()));
                if let Some(args) = &args {
                    self.set_tools(&args.elements("tools"));
                }
            }
            "message" => {
                let mut parts = vec![Part::text(text("content").unwrap_or_default())];
                let urls = args.as_ref().map(|args| args.elements("image_urls").into_owned()).unwrap_or_default();
                parts.extend(urls.iter().filter_map(|url| url.value.string()).map(image_part));
                let role = if by_user { Role::User } else { Role::Assistant };
                self.recording.push(Message::new(role, parts));
            }
            "condensation" => self.record_compaction(text("summary")),
            // Internal actions of the client are not part of the conversation.
            "recall" | "change_agent_state" | "null" | "condensation_request" => {}
            _ if by_user => {}
            _ => {
                let thought = text("thought").filter(|thought| !thought.is_empty());
                let arguments = event.get("args").map_or("{}", JsonValue::raw);
                let call = Part::call(event_id(event.get("id")), kind.to_owned(), arguments);
                let parts = thought.map(Part::text).into_iter().chain([call]).collect();
                self.recording.push(Message::new(Role::Assistant, parts));
            }
        }
    }

    fn push_observation(&mut self, kind: &str, event: &JsonObject<'_>) {
        let content = event.string("content").unwrap_or_default();
        let known_id = event.object("tool_call_metadata").and_then(|object| object.string("tool_call_id"));
        let call_id = match (known_id, kind) {
            (Some(id), _) => id,
            (None, "recall" | "agent_state_changed" | "null" | "condense") => return,
            (None, _) => {
                let id = event_id(event.get("cause"));
                let newest = self.recording.conversation.messages.last();
                if !newest.is_some_and(|message| message.calls().any(|call| call.id == id)) {
                    // The client reports a response that it could not execute as a user message.
                    self.recording.push(Message::text(Role::User, content));
                    return;
                }
                Cow::Owned(id)
            }
        };
        let text = if kind == "run" { command_output(&content, event) } else { content };
        let result = ToolResult { call_id, content: vec![Part::text(text)], is_error: kind == "error" };
        self.recording.push(Message::new(Role::Tool, vec![Part::ToolResult(result)]));
    }

    /// Adds an event of the second generation.
    fn push_event(&mut self, kind: &str, event: &JsonObject<'_>) {
        let result = |content: Vec<Part<'static>>, is_error: bool| {
            let call_id = event.string("tool_call_id").unwrap_or_default().into_owned().into();
            Message::new(Role::Tool, vec![Part::ToolResult(ToolResult { call_id, content, is_error })])
        };
        match kind {
            "SystemPromptEvent" => {
                let prompts = ["system_prompt", "dynamic_context"].into_iter().filter_map(|key| event.object(key));
                let parts = prompts.filter_map(|object| object.string("text")).map(Part::text).collect();
                self.recording.push(Message::new(Role::System, parts));
                self.set_tools(&event.elements("tools"));
            }
            "MessageEvent" => {
                let Some(llm_message) = event.object("llm_message") else { return };
                let mut message = wire::parse_message(wire::Format::OpenAiChat, &llm_message);
                message.parts.retain(|part| !matches!(part, Part::Opaque(block) if block.kind == "image"));
                message.parts.extend(
                    content_parts(llm_message.get("content")).into_iter().filter(|part| matches!(part, Part::Image(_))),
                );
                message.parts.extend(content_parts(event.get("extended_content")));
                self.recording.push(message);
            }
            "ActionEvent" => {
                let Some(call) = event.object("tool_call") else { return };
                let text = |key: &str| call.string(key).unwrap_or_default();
                let call = Part::call(text("id"), text("name"), text("arguments"));
                let is_new = self.is_new_response(event.string("llm_response_id"));
                match self.recording.conversation.messages.iter_mut().rfind(|message| message.is_assistant()) {
                    Some(turn) if !is_new => turn.parts.push(call.into_owned()),
                    _ => {
                        let mut parts = reasoning_parts(event);
                        parts.extend(content_parts(event.get("thought")));
                        parts.push(call);
                        self.recording.push(Message::new(Role::Assistant, parts));
                    }
                }
            }
            "ObservationEvent" => {
                let observation = event.object("observation");
                let text =
                    observation.as_ref().and_then(|object| object.get("content").or_else(|| object.get("output")));
                let is_error = observation.as_ref().and_then(|object| object.get("is_error")).and_then(JsonValue::bool);
                let mut content = content_parts(text);
                content.extend(content_parts(event.get("extended_content")));
                let content = content.into_iter().map(Part::into_owned).collect();
                self.recording.push(result(content, is_error == Some(true)));
            }
            "UserRejectObservation" => {
                let reason = event.string("rejection_reason").unwrap_or_default();
                self.recording.push(result(vec![Part::text(format!("Action rejected: {reason}"))], false));
            }
            "AgentErrorEvent" => {
                let error = event.string("error").unwrap_or_default().into_owned();
                self.recording.push(result(vec![Part::text(error)], true));
            }
            "Condensation" => self.record_compaction(event.string("summary")),
            _ => {}
        }
    }

    fn set_tools(&mut self, tools: &[JsonObject<'_>]) {
        self.recording.conversation.tools = tools.iter().map(|tool| wire::parse_tool(tool).into_owned()).collect();
    }
}

impl SessionParser for OpenHandsEvents {
    fn parse_entry(&mut self, event: &JsonObject<'_>, _found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        // The oldest logs contain pairs of an action and its observation.
        if event.value.is_array() {
            event.value.elements().iter().try_for_each(|event| self.parse_entry(event, _found))?;
        } else if let Some(kind) = event.string("kind") {
            self.push_event(&kind, event);
        } else if let Some(kind) = event.string("action") {
            self.push_action(&kind, event);
        } else if let Some(kind) = event.string("observation") {
            self.push_observation(&kind, event);
        } else {
            return Err(Error::not_a_recording("an event that is neither an action nor an observation"));
        }
        Ok(())
    }

    fn entries_field(&self) -> Option<&'static str> {
        Some("history")
    }

    fn metadata_fields(&self) -> &'static [&'static str] {
        &["instance_id"]
    }

    fn parse_metadata(&mut self, _key: &str, value: JsonValue<'_>) {
        self.recording.id = value.string().unwrap_or_default().into_owned();
    }

    fn finish(self: Box<Self>, found: &mut Vec<RecordedSession>) {
        found.push(self.recording);
    }
}

/// Returns the output of a command as the model sees it.
fn command_output<'a>(content: &str, event: &JsonObject<'_>) -> Cow<'a, str> {
    let metadata = event.object("extras").and_then(|object| object.object("metadata"));
    let text = |key: &str| metadata.as_ref().and_then(|object| object.string(key)).unwrap_or_default();
    let mut output = format!("{}{content}{}", text("prefix"), text("suffix"));
    for (key, name) in [("working_dir", "Current working directory"), ("py_interpreter_path", "Python interpreter")] {
        if !text(key).is_empty() {
            output.push_str(&format!("\n[{name}: {}]", text(key)));
        }
    }
    let code = metadata.as_ref().and_then(|object| object.get("exit_code"));
    if let Some(code) = code.map(JsonValue::raw).filter(|&code| code != "-1") {
        output.push_str(&format!("\n[Command finished with exit code {code}]"));
    }
    Cow::Owned(output)
}

/// Formats the number of an event as a call id.
fn event_id(number: Option<JsonValue<'_>>) -> String {
    format!("event-{}", number.map_or("", JsonValue::raw))
}

fn image_part(url: Cow<'_, str>) -> Part<'_> {
    let data = url.starts_with("data:").then(|| url.find(";base64,")).flatten();
    let source = match data {
        Some(at) => MediaSource::Base64(url[at + ";base64,".len()..].to_owned().into()),
        None => MediaSource::Url(url),
    };
    Part::Image(ImagePart { source, detail: None })
}

/// Returns the signed thinking blocks if there are any, else the plain reasoning text.
fn reasoning_parts<'a>(event: &JsonObject<'a>) -> Vec<Part<'a>> {
    let blocks = event.elements("thinking_blocks");
    let signed: Vec<Part<'a>> = blocks
        .iter()
        .map(|block| {
            let text = block.text("thinking").unwrap_or_default();
            let signature = block.string("signature");
            let redacted = signature.is_none() && block.get("data").is_some();
            Part::Reasoning(ReasoningPart { text, seal: signature.or_else(|| block.string("data")), redacted })
        })
        .collect();
    if !signed.is_empty() {
        return signed;
    }
    event.string("reasoning_content").filter(|text| !text.is_empty()).map(Part::reasoning).into_iter().collect()
}

/// Parses texts and images of the second generation, where one block can contain several images.
fn content_parts<'a>(content: Option<JsonValue<'a>>) -> Vec<Part<'a>> {
    let Some(content) = content else { return Vec::new() };
    if let Some(text) = content.string() {
        return vec![Part::text(text)];
    }
    let mut parts = Vec::new();
    for block in content.elements() {
        if let Some(text) = block.string("text") {
            parts.push(Part::text(text));
        }
        parts.extend(block.elements("image_urls").iter().filter_map(|url| url.value.string()).map(image_part));
    }
    parts
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{"instance_id": "i1", "instruction": "x", "history": [
 {"id": 0, "source": "agent", "action": "system", "args": {"content": "rules", "tools": [{"type": "function", "function": {"name": "sh"}}]}},
 {"id": 1, "source": "user", "action": "message", "args": {"content": "fix", "image_urls": ["data:image/png;base64,aGk="]}},
 {"id": 2, "source": "user", "action": "recall", "args": {"query": "fix"}},
 {"id": 3, "source": "environment", "observation": "recall", "content": "Added workspace context", "cause": 2},
 {"id": 4, "source": "agent", "action": "run", "args": {"command": "ls"}, "tool_call_metadata": {"tool_call_id": "c1", "model_response": {"id": "r1", "model": "m-1", "choices": [{"message": {"role": "assistant", "content": "two at once", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "sh", "arguments": "{\"command\": \"ls\"}"}}, {"id": "c2", "type": "function", "function": {"name": "cat", "arguments": "{}"}}]}}]}}},
 {"id": 5, "source": "agent", "observation": "run", "content": "a.py", "cause": 4, "extras": {"metadata": {"exit_code": 0, "working_dir": "/w", "py_interpreter_path": "", "prefix": "", "suffix": "\n[ok]"}}, "tool_call_metadata": {"tool_call_id": "c1", "model_response": {"id": "r1"}}},
 {"id": 6, "source": "agent", "action": "read", "args": {}, "tool_call_metadata": {"tool_call_id": "c2", "model_response": {"id": "r1", "choices": [{"message": {"role": "assistant", "content": "two at once"}}]}}},
 {"id": 7, "source": "agent", "observation": "read", "content": "x = 1", "cause": 6, "tool_call_metadata": {"tool_call_id": "c2"}},
 {"id": 8, "source": "agent", "observation": "error", "content": "no such command"},
 {"id": 9, "source": "agent", "action": "condensation", "args": {"summary": "so far"}},
 {"id": 10, "source": "agent", "action": "run", "args": {"command": "pwd", "thought": "where"}},
 {"id": 11, "source": "agent", "observation": "run", "content": "/w", "cause": 10}
]}
"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one, shape};
    use super::*;

    #[test]
    fn repeated_answer_is_read_once_with_two_calls() {
        let recording = read_one(SAMPLE);
        assert_eq!((recording.id.as_str(), recording.model(), recording.compactions), ("i1", Some("m-1"), 1));
        assert_eq!(recording.conversation.tools[0].name, "sh");
        assert_eq!(
            shape(&recording),
            [
                "system: rules",
                "user: fix | image data agk=",
                r#"assistant: two at once | call c1 sh {"command": "ls"} | call c2 cat {}"#,
                "tool: result c1 a.py\n[ok]\n[current working directory: /w]\n[command finished with exit code 0]",
                "tool: result c2 x = 1",
                "user: no such command",
                "user: so far",
                r#"assistant: where | call event-10 run {"command": "pwd", "thought": "where"}"#,
                "tool: result event-10 /w",
            ]
        );
    }

    /// The output of an evaluation has one document per line.
    #[test]
    fn documents_after_a_damaged_one_are_read() {
        let one = |id: &str| {
            format!(
                r#"{{"instance_id":"{id}","history":[{{"source":"user","action":"message","args":{{"content":"hi"}}}}]}}"#
            )
        };
        let log = [one("a"), one("b")[..40].to_owned() + "\"cut", one("c")].join("\n");
        let (recordings, errors) = read_all(&log);
        let ids: Vec<_> = recordings.iter().map(|session| session.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c"]);
        assert_eq!(errors, ["line 2: not a recorded session: not JSON: unterminated string"]);
    }

    #[test]
    fn second_generation_has_one_call_per_event() {
        let log = r#"[
 {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": {"type": "text", "text": "rules"}, "dynamic_context": {"text": "here"}, "tools": []},
 {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [{"type": "text", "text": "fix"}, {"type": "image", "image_urls": ["http://x/y.png"]}]}, "extended_content": [{"type": "text", "text": "(skill)"}]},
 {"kind": "ActionEvent", "source": "agent", "thought": [{"type": "text", "text": "I look"}], "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "sig"}], "tool_call": {"id": "c1", "name": "sh", "arguments": "{\"a\": 1}"}, "llm_response_id": "r1"},
 {"kind": "ActionEvent", "source": "agent", "thought": [], "tool_call": {"id": "c2", "name": "sh", "arguments": "{}"}, "llm_response_id": "r1"},
 {"kind": "ObservationEvent", "source": "environment", "tool_call_id": "c1", "observation": {"content": [{"type": "text", "text": "ok"}], "is_error": false}},
 {"kind": "AgentErrorEvent", "source": "agent", "tool_call_id": "c2", "error": "bad arguments"},
 {"kind": "UserRejectObservation", "source": "user", "tool_call_id": "c3", "rejection_reason": "no"},
 {"kind": "Condensation", "source": "environment", "summary": "so far"},
 {"kind": "ConversationStateUpdateEvent", "source": "environment"}
]"#;
        let recording = read_one(log);
        assert_eq!(recording.compactions, 1);
        assert_eq!(
            shape(&recording),
            [
                "system: rules | here",
                "user: fix | image at http://x/y.png | (skill)",
                r#"assistant: thought hm sealed sig | i look | call c1 sh {"a": 1} | call c2 sh {}"#,
                "tool: result c1 ok",
                "tool: error c2 bad arguments",
                "tool: result c3 action rejected: no",
                "user: so far",
            ]
        );
    }
}
