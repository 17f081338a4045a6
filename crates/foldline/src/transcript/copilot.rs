//! `events.jsonl` of the Copilot CLI.
//!
//! A turn is one event with its text, reasoning and calls; results are separate events. The
//! instructions are repeated with each prompt and are read once, at the start, as the client sends
//! them. The events of a sub-agent name the call that started it and form a side chain.

use std::collections::HashMap;

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::{CallArguments, Message, Part, ReasoningPart, Role, ToolCall, ToolResult};
use crate::error::Error;
use crate::wire::json::scan::{JsonObject, JsonValue};

#[derive(Default)]
pub(crate) struct CopilotEvents {
    session_id: String,
    model: Option<String>,
    main: CopilotChain,
    side_chains: Vec<(String, CopilotChain)>,
    side_of: HashMap<String, usize>,
}

struct CopilotChain {
    recording: RecordedSession,
    /// Number of calls without a result so far.
    open_calls: usize,
    /// Messages received while calls were open; they go after the results.
    deferred: Vec<Message<'static>>,
}

impl Default for CopilotChain {
    fn default() -> Self {
        Self { recording: RecordedSession::new(LogFormat::Copilot), open_calls: 0, deferred: Vec::new() }
    }
}

impl SessionParser for CopilotEvents {
    fn parse_entry(&mut self, event: &JsonObject<'_>, _found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        let Some(kind) = event.string("type") else { return Err(Error::not_a_recording("an event without a type")) };
        let Some(data) = event.object("data") else { return Ok(()) };
        match kind.as_ref() {
            "session.start" => {
                self.session_id = data.string("sessionId").unwrap_or_default().into_owned();
                self.set_model(data.string("selectedModel"));
            }
            "session.model_change" => self.set_model(data.string("newModel")),
            "system.message" => self.chain_for(event, &data).set_instructions(&data),
            "user.message" => {
                // The client sends the transformed prompt.
                let sent = data.string("transformedContent").filter(|text| !text.is_empty());
                let text = sent.or_else(|| data.string("content")).unwrap_or_default();
                self.chain_for(event, &data).push_user_message(Message::text(Role::User, text.into_owned()));
            }
            "system.notification" => {
                let text = data.string("content").unwrap_or_default();
                self.chain_for(event, &data).push_user_message(Message::text(Role::User, text.into_owned()));
            }
            "assistant.message" => {
                self.set_model(data.string("model"));
                self.chain_for(event, &data).push_assistant_message(&data);
            }
            "tool.execution_complete" => self.chain_for(event, &data).push_result(&data),
            "session.compaction_complete" if data.get("success").and_then(JsonValue::bool) != Some(false) => {
                let chain = self.chain_for(event, &data);
                chain.recording.compactions += 1;
                if let Some(summary) = data.string("summaryContent") {
                    chain.push_user_message(Message::text(Role::User, summary.into_owned()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(self: Box<Self>, found: &mut Vec<RecordedSession>) {
        let CopilotEvents { session_id, model, main, side_chains, .. } = *self;
        let mut push_session = |mut chain: CopilotChain, id: String, parent: Option<String>| {
            chain.flush_deferred();
            let mut recording = RecordedSession { id, parent, ..chain.recording };
            recording.set_model(model.as_deref().map(Into::into));
            found.push(recording);
        };
        push_session(main, session_id.clone(), None);
        for (id, chain) in side_chains {
            push_session(chain, id, Some(session_id.clone()));
        }
    }
}

impl CopilotEvents {
    fn set_model(&mut self, model: Option<std::borrow::Cow<'_, str>>) {
        if let Some(model) = model {
            self.model = Some(model.into_owned());
        }
    }

    fn chain_for(&mut self, event: &JsonObject<'_>, data: &JsonObject<'_>) -> &mut CopilotChain {
        let Some(side) = data.string("parentToolCallId").or_else(|| event.string("agentId")) else {
            return &mut self.main;
        };
        let at = *self.side_of.entry(side.into_owned()).or_insert_with_key(|side| {
            self.side_chains.push((side.clone(), CopilotChain::default()));
            self.side_chains.len() - 1
        });
        &mut self.side_chains[at].1
    }
}

impl CopilotChain {
    fn set_instructions(&mut self, data: &JsonObject<'_>) {
        let role = match data.string("role").as_deref() {
            Some("developer") => Role::Developer,
            _ => Role::System,
        };
        let message = Message::text(role, data.string("content").unwrap_or_default().into_owned());
        let messages = &mut self.recording.conversation.messages;
        match messages.first_mut() {
            Some(first) if first.role == role => *first = message,
            _ => messages.insert(0, message),
        }
    }

    fn push_user_message(&mut self, message: Message<'static>) {
        if self.open_calls > 0 {
            self.deferred.push(message);
        } else {
            self.recording.push(message);
        }
    }

    fn flush_deferred(&mut self) {
        self.open_calls = 0;
        self.recording.conversation.messages.append(&mut self.deferred);
    }

    fn push_assistant_message(&mut self, data: &JsonObject<'_>) {
        self.flush_deferred();
        let mut parts = Vec::new();
        let seal = data.string("reasoningOpaque").or_else(|| data.string("encryptedContent"));
        let thought = data.text("reasoningText");
        if seal.is_some() || thought.is_some() {
            parts.push(Part::Reasoning(ReasoningPart { text: thought.unwrap_or_default(), seal, redacted: false }));
        }
        if let Some(text) = data.text("content").filter(|text| !text.is_empty()) {
            parts.push(Part::text(text));
        }
        let requests = data.elements("toolRequests");
        parts.extend(requests.iter().map(parse_call));
        self.open_calls = requests.len();
        if !parts.is_empty() {
            self.recording.push(Message::new(Role::Assistant, parts));
        }
    }

    fn push_result(&mut self, data: &JsonObject<'_>) {
        let error = data.object("error").and_then(|object| object.string("message"));
        let text = data.object("result").and_then(|object| object.string("content")).or(error);
        let result = ToolResult {
            call_id: data.string("toolCallId").unwrap_or_default(),
            content: text.map(Part::text).into_iter().collect(),
            is_error: data.get("success").and_then(JsonValue::bool) == Some(false),
        };
        self.recording.push(Message::new(Role::Tool, vec![Part::ToolResult(result)]));
        self.open_calls = self.open_calls.saturating_sub(1);
        if self.open_calls == 0 {
            self.flush_deferred();
        }
    }
}

fn parse_call<'a>(request: &JsonObject<'a>) -> Part<'a> {
    let arguments = match request.get("arguments") {
        Some(value) => match (value.text(), request.string("type").as_deref()) {
            (Some(text), Some("custom")) => CallArguments::Text(text),
            (Some(json), _) => CallArguments::Json(json),
            (None, _) => CallArguments::Json(value.raw().into()),
        },
        None => CallArguments::Json("{}".into()),
    };
    Part::ToolCall(ToolCall {
        id: request.string("toolCallId").unwrap_or_default(),
        name: request.string("name").unwrap_or_default(),
        arguments,
        signature: None,
    })
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{"type":"session.start","data":{"sessionId":"s1","version":1},"id":"1","timestamp":"t","parentId":null}
{"type":"session.model_change","data":{"newModel":"m-1"},"id":"2","timestamp":"t","parentId":"1"}
{"type":"system.message","data":{"role":"system","content":"old rules"},"id":"3","timestamp":"t","parentId":"2"}
{"type":"user.message","data":{"content":"go","transformedContent":"<time/>go"},"id":"4","timestamp":"t","parentId":"3"}
{"type":"assistant.message","data":{"model":"m-2","content":"","reasoningText":"hm","reasoningOpaque":"sealed","toolRequests":[{"toolCallId":"c1","name":"bash","arguments":{"command" : "ls"},"type":"function"},{"toolCallId":"c2","name":"patch","arguments":"*** Begin","type":"custom"}]},"id":"5","timestamp":"t","parentId":"4"}
{"type":"tool.execution_complete","data":{"toolCallId":"c2","success":false,"error":{"message":"bad patch"}},"id":"6","timestamp":"t","parentId":"5"}
{"type":"system.notification","data":{"content":"a shell ended"},"id":"7","timestamp":"t","parentId":"6"}
{"type":"assistant.message","data":{"content":"sub","parentToolCallId":"c1","toolRequests":[]},"id":"8","timestamp":"t","parentId":"7"}
{"type":"tool.execution_complete","data":{"toolCallId":"c1","success":true,"result":{"content":"a.rs"}},"id":"9","timestamp":"t","parentId":"8"}
{"type":"system.message","data":{"role":"system","content":"new rules"},"id":"10","timestamp":"t","parentId":"9"}
{"type":"session.compaction_complete","data":{"success":true,"summaryContent":"so far"},"id":"11","timestamp":"t","parentId":"10"}
{"type":"assistant.message","data":{"content":"done","toolRequests":[]},"id":"12","timestamp":"t","parentId":"11"}
"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, shape};
    use super::*;

    /// A notice between two results moves after them. The instructions appear once, at the start.
    #[test]
    fn results_follow_calls_and_newest_instructions_come_first() {
        let (recordings, errors) = read_all(SAMPLE);
        assert!(errors.is_empty());
        let [main, side] = recordings.as_slice() else { panic!("{recordings:?}") };
        assert_eq!((main.id.as_str(), main.model(), main.compactions), ("s1", Some("m-2"), 1));
        assert_eq!(
            shape(main),
            [
                "system: new rules",
                "user: <time/>go",
                r#"assistant: thought hm sealed sealed | call c1 bash {"command" : "ls"} | call c2 patch text *** begin"#,
                "tool: error c2 bad patch",
                "tool: result c1 a.rs",
                "user: a shell ended",
                "user: so far",
                "assistant: done",
            ]
        );
        assert_eq!((side.parent.as_deref(), shape(side)), (Some("s1"), vec!["assistant: sub".to_owned()]));
    }

    #[test]
    fn event_without_type_is_an_error() {
        let (_, errors) = read_all(&(SAMPLE.to_owned() + "{\"data\":{}}\n"));
        assert_eq!(errors, ["line 13: not a recorded session: an event without a type"]);
    }
}
