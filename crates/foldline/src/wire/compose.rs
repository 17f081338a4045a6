//! A request of our own, written in any of the three dialects.
//!
//! What a client sent is spliced and never comes here. This is for questions that foldline itself puts to a model:
//! texts, calls of our tools, and their results. What such a request can not say is an error, not left out.

use serde_json::{Map, Value, json};

use crate::conversation::{CallArguments, Message, Part, Role, ToolCall, ToolResult};
use crate::error::Error;
use crate::tokens::Tokens;
use crate::wire::Format;

/// A request that is to be written.
///
/// ```
/// use foldline::wire::{Draft, Format, Request};
/// use foldline::{Message, Role};
///
/// let question = [Message::text(Role::User, "what is in it?")];
/// let draft = Draft { model: "gpt-4o", system: "be brief", messages: &question, tools: &[], max_output: 100 };
/// for format in [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic] {
///     let body = draft.write(format)?;
///     let request = Request::parse(format, &body)?;
///     assert_eq!(request.conversation().messages.last(), question.last());
///     assert_eq!(request.max_output(), Some(100));
/// }
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRequest<'a> {
    /// The model that is asked.
    pub model: &'a str,
    /// Its instructions; none when empty.
    pub system: &'a str,
    /// Texts, calls and results. Reasoning is left out, as all three APIs allow for answers that were not sealed.
    pub messages: &'a [Message<'a>],
    /// The tools that it may call.
    pub tools: &'a [ToolSpec<'a>],
    /// Tokens that it may answer with.
    pub max_output_tokens: Tokens,
}

/// A tool of ours, in no dialect yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolSpec<'a> {
    /// The name by which the model calls it.
    pub name: &'a str,
    /// What it does, for the model.
    pub description: &'a str,
    /// The JSON Schema of its arguments, as JSON text.
    pub parameters: &'a str,
}

impl OutgoingRequest<'_> {
    /// The body of the request.
    pub fn to_body(&self, format: Format) -> Result<Vec<u8>, Error> {
        let mut messages = Vec::new();
        if format == Format::OpenAiChat && !self.system.is_empty() {
            messages.push(json!({ "role": "system", "content": self.system }));
        }
        for message in self.messages {
            match format {
                Format::OpenAiChat => push_chat_messages(message, &mut messages)?,
                Format::OpenAiResponses => push_response_items(message, &mut messages)?,
                Format::Anthropic => push_anthropic_message(message, &mut messages)?,
            }
        }
        let mut body = Map::new();
        body.insert("model".into(), self.model.into());
        let (limit, instructions) = match format {
            Format::OpenAiChat => (self.chat_limit_field(), None),
            Format::OpenAiResponses => ("max_output_tokens", Some("instructions")),
            Format::Anthropic => ("max_tokens", Some("system")),
        };
        body.insert(limit.into(), self.max_output_tokens.into());
        if let Some(key) = instructions.filter(|_| !self.system.is_empty()) {
            body.insert(key.into(), self.system.into());
        }
        body.insert(crate::wire::messages_key(format).into(), messages.into());
        if format == Format::OpenAiResponses {
            // Nothing of a question of ours is to stay with the provider.
            body.insert("store".into(), false.into());
        }
        if !self.tools.is_empty() {
            let tools: Result<Vec<Value>, Error> = self.tools.iter().map(|tool| tool.declaration(format)).collect();
            body.insert("tools".into(), tools?.into());
        }
        Ok(Value::Object(body).to_string().into_bytes())
    }

    /// OpenAI's newer models refuse the old name, and other servers do not know the new one.
    fn chat_limit_field(&self) -> &'static str {
        let row = crate::ModelTable::builtin().find(Some(self.model));
        if row.provider == "openai" { "max_completion_tokens" } else { "max_tokens" }
    }
}

impl ToolSpec<'_> {
    fn declaration(&self, format: Format) -> Result<Value, Error> {
        let (name, description) = (self.name, self.description);
        let parameters: Value = serde_json::from_str(self.parameters).map_err(|error| {
            Error::not_a_request(format_args!("the parameters of tool {name} are no JSON: {error}"))
        })?;
        Ok(match format {
            Format::OpenAiChat => json!({
                "type": "function",
                "function": { "name": name, "description": description, "parameters": parameters },
            }),
            Format::OpenAiResponses => {
                json!({ "type": "function", "name": name, "description": description, "parameters": parameters })
            }
            Format::Anthropic => json!({ "name": name, "description": description, "input_schema": parameters }),
        })
    }
}

/// The texts, calls and results of a message.
struct MessageContent<'m> {
    texts: Vec<&'m str>,
    calls: Vec<&'m ToolCall<'m>>,
    results: Vec<(&'m ToolResult<'m>, String)>,
}

impl<'m> MessageContent<'m> {
    fn from_message(message: &'m Message<'m>) -> Result<Self, Error> {
        let mut spoken = MessageContent { texts: Vec::new(), calls: Vec::new(), results: Vec::new() };
        for part in &message.parts {
            match part {
                // No API takes a text that says nothing.
                Part::Text { text } if text.trim().is_empty() => {}
                Part::Text { text } => spoken.texts.push(text),
                Part::ToolCall(call) => spoken.calls.push(call),
                Part::ToolResult(result) if result.content.iter().all(|part| part.as_text().is_some()) => {
                    spoken.results.push((result, result.texts().collect::<Vec<_>>().join("\n")));
                }
                Part::Reasoning(_) => {}
                Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Opaque(_) => {
                    return Err(Error::not_a_request("a question of ours is made of texts, calls and results alone"));
                }
            }
        }
        Ok(spoken)
    }
}

fn role_name(message: &Message<'_>) -> &'static str {
    match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::Assistant => "assistant",
        Role::User | Role::Tool | Role::Other => "user",
    }
}

fn push_chat_messages(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let spoken = MessageContent::from_message(message)?;
    for (result, text) in &spoken.results {
        out.push(json!({ "role": "tool", "tool_call_id": result.call_id, "content": text }));
    }
    if spoken.texts.is_empty() && spoken.calls.is_empty() {
        return Ok(());
    }
    let content = if spoken.texts.is_empty() { Value::Null } else { spoken.texts.join("\n\n").into() };
    let mut it = json!({ "role": role_name(message), "content": content });
    if !spoken.calls.is_empty() {
        let call = |call: &&ToolCall<'_>| {
            json!({
                "id": call.id,
                "type": "function",
                "function": { "name": call.name, "arguments": arguments_object(&call.arguments) },
            })
        };
        it["tool_calls"] = spoken.calls.iter().map(call).collect();
    }
    out.push(it);
    Ok(())
}

fn push_response_items(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let spoken = MessageContent::from_message(message)?;
    for (result, text) in &spoken.results {
        out.push(json!({ "type": "function_call_output", "call_id": result.call_id, "output": text }));
    }
    if !spoken.texts.is_empty() {
        let content = spoken.texts.join("\n\n");
        out.push(json!({ "type": "message", "role": role_name(message), "content": content }));
    }
    for call in &spoken.calls {
        let arguments = arguments_object(&call.arguments);
        out.push(json!({ "type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments }));
    }
    Ok(())
}

fn push_anthropic_message(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let spoken = MessageContent::from_message(message)?;
    let mut blocks = Vec::new();
    for (result, text) in &spoken.results {
        blocks.push(json!({
            "type": "tool_result", "tool_use_id": result.call_id, "content": text, "is_error": result.is_error,
        }));
    }
    blocks.extend(spoken.texts.iter().map(|text| json!({ "type": "text", "text": text })));
    for call in &spoken.calls {
        let input: Value =
            serde_json::from_str(&arguments_object(&call.arguments)).expect("it was just read as an object");
        blocks.push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
    }
    if blocks.is_empty() {
        return Ok(());
    }
    let role = if message.is_assistant() { "assistant" } else { "user" };
    // Results of parallel calls belong into one message, and neighbours of one role are one turn.
    match out.last_mut().filter(|last| last["role"] == role) {
        Some(last) => last["content"].as_array_mut().expect("content is a list here").extend(blocks),
        None => out.push(json!({ "role": role, "content": blocks })),
    }
    Ok(())
}

/// Arguments as the text of a JSON object. What a model wrote amiss is shown to it again under a name, since no API
/// takes anything but an object.
fn arguments_object(arguments: &CallArguments<'_>) -> String {
    let text = arguments.as_str();
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(_) => text.to_owned(),
        Err(_) => json!({ "not_an_object": text }).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::{LawProfile, check};
    use crate::wire::Request;

    const FORMATS: [Format; 3] = [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic];

    const TOOL: ToolSpec<'static> =
        ToolSpec { name: "grep", description: "finds lines", parameters: r#"{"type":"object","properties":{}}"# };

    fn session() -> Vec<Message<'static>> {
        vec![
            Message::text(Role::User, "find it"),
            Message::new(
                Role::Assistant,
                vec![
                    Part::reasoning("hm"),
                    Part::text("I look."),
                    Part::call("a", "grep", r#"{"pattern":"x"}"#),
                    Part::call("b", "grep", "no object"),
                ],
            ),
            Message::new(Role::Tool, vec![Part::result("a", "3: x")]),
            Message::new(Role::Tool, vec![Part::result("b", "\"quoted\"\n")]),
            Message::new(Role::Assistant, vec![Part::text(" ")]),
            Message::text(Role::User, "go on"),
        ]
    }

    fn outgoing<'a>(messages: &'a [Message<'a>]) -> OutgoingRequest<'a> {
        OutgoingRequest { model: "some-model", system: "be brief", messages, tools: &[TOOL], max_output_tokens: 500 }
    }

    #[test]
    fn outgoing_request_is_valid_and_keeps_its_content() {
        let messages = session();
        for format in FORMATS {
            let body = outgoing(&messages).to_body(format).unwrap();
            let request = Request::parse(format, &body).unwrap();
            assert_eq!(check(&request, &LawProfile::for_request(&request)), [], "{format:?}");
            let conversation = request.conversation();
            let calls: Vec<&str> =
                conversation.messages.iter().flat_map(Message::calls).map(|call| call.arguments.as_str()).collect();
            assert_eq!(calls, [r#"{"pattern":"x"}"#, r#"{"not_an_object":"no object"}"#], "{format:?}");
            let results: Vec<_> =
                conversation.messages.iter().flat_map(Message::results).map(|it| it.only_text().unwrap()).collect();
            assert_eq!(results, ["3: x", "\"quoted\"\n"], "{format:?}");
            assert_eq!(conversation.tools[0].name, "grep");
            assert_eq!(conversation.messages.last().unwrap().parts.last(), Some(&Part::text("go on")));
        }
    }

    #[test]
    fn unsupported_part_is_an_error() {
        let messages = [Message::new(Role::User, vec![Part::Image(crate::ImagePart::default())])];
        for format in FORMATS {
            assert!(outgoing(&messages).to_body(format).is_err());
        }
    }

    #[test]
    fn output_limit_field_depends_on_the_provider() {
        let messages = session();
        let body = |model| OutgoingRequest { model, ..outgoing(&messages) }.to_body(Format::OpenAiChat).unwrap();
        assert!(String::from_utf8(body("gpt-5")).unwrap().contains("\"max_completion_tokens\":500"));
        assert!(String::from_utf8(body("smollm2")).unwrap().contains("\"max_tokens\":500"));
    }
}
