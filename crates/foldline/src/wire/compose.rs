//! Requests that foldline sends itself, in any of the three dialects.
//!
//! Client requests are spliced and never composed here. This module writes the summarizer's own requests: texts, calls
//! of foldline's tools, and their results. A part that cannot be represented is an error, never omitted.

use serde_json::{Map, Value, json};

use crate::conversation::{CallArguments, Message, Part, Role, ToolCall, ToolResult};
use crate::error::Error;
use crate::tokens::Tokens;
use crate::wire::Format;

/// A request to be sent by foldline.
///
/// ```
/// use foldline::wire::{Format, OutgoingRequest, Request};
/// use foldline::{Message, Role};
///
/// let question = [Message::text(Role::User, "what is in it?")];
/// let outgoing =
///     OutgoingRequest { model: "gpt-4o", system: "be brief", messages: &question, tools: &[], max_output_tokens: 100 };
/// for format in [Format::OpenAiChat, Format::OpenAiResponses, Format::Anthropic] {
///     let body = outgoing.to_body(format)?;
///     let request = Request::parse(format, &body)?;
///     assert_eq!(request.conversation().messages.last(), question.last());
///     assert_eq!(request.max_output_tokens(), Some(100));
/// }
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRequest<'a> {
    /// The requested model.
    pub model: &'a str,
    /// The system prompt; omitted if empty.
    pub system: &'a str,
    /// Texts, calls and results. Reasoning is omitted, which all three APIs allow for responses without a signature.
    pub messages: &'a [Message<'a>],
    /// Tools that the model may call.
    pub tools: &'a [ToolSpec<'a>],
    /// Maximum number of output tokens.
    pub max_output_tokens: Tokens,
}

/// A tool declaration, independent of the dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolSpec<'a> {
    /// The name in the model's calls.
    pub name: &'a str,
    /// The description for the model.
    pub description: &'a str,
    /// The JSON Schema of its arguments, as JSON text.
    pub parameters: &'a str,
}

impl OutgoingRequest<'_> {
    /// Returns the request body. Fails if a message has a part that cannot be represented, or if a tool's parameters
    /// are not valid JSON.
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
            // The provider must not store foldline's own requests.
            body.insert("store".into(), false.into());
        }
        if !self.tools.is_empty() {
            let tools: Result<Vec<Value>, Error> = self.tools.iter().map(|tool| tool.declaration(format)).collect();
            body.insert("tools".into(), tools?.into());
        }
        Ok(Value::Object(body).to_string().into_bytes())
    }

    /// Returns the field name of the output limit. OpenAI's newer models reject the old name; other servers do not
    /// support the new one.
    fn chat_limit_field(&self) -> &'static str {
        let row = crate::ModelTable::builtin().find(Some(self.model));
        if row.provider == "openai" { "max_completion_tokens" } else { "max_tokens" }
    }
}

impl ToolSpec<'_> {
    fn declaration(&self, format: Format) -> Result<Value, Error> {
        let (name, description) = (self.name, self.description);
        let parameters: Value = serde_json::from_str(self.parameters).map_err(|error| {
            Error::not_a_request(format_args!("the parameters of tool {name} are not valid JSON: {error}"))
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
        let mut content = MessageContent { texts: Vec::new(), calls: Vec::new(), results: Vec::new() };
        for part in &message.parts {
            match part {
                // All APIs reject blank text.
                Part::Text { text } if text.trim().is_empty() => {}
                Part::Text { text } => content.texts.push(text),
                Part::ToolCall(call) => content.calls.push(call),
                Part::ToolResult(result) if result.content.iter().all(|part| part.as_text().is_some()) => {
                    content.results.push((result, result.texts().collect::<Vec<_>>().join("\n")));
                }
                Part::Reasoning(_) => {}
                Part::ToolResult(_) | Part::Image(_) | Part::File(_) | Part::Opaque(_) => {
                    return Err(Error::not_a_request("an outgoing request may contain only texts, calls and results"));
                }
            }
        }
        Ok(content)
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
    let content = MessageContent::from_message(message)?;
    for (result, text) in &content.results {
        out.push(json!({ "role": "tool", "tool_call_id": result.call_id, "content": text }));
    }
    if content.texts.is_empty() && content.calls.is_empty() {
        return Ok(());
    }
    let text = if content.texts.is_empty() { Value::Null } else { content.texts.join("\n\n").into() };
    let mut json = json!({ "role": role_name(message), "content": text });
    if !content.calls.is_empty() {
        let call = |call: &&ToolCall<'_>| {
            json!({
                "id": call.id,
                "type": "function",
                "function": { "name": call.name, "arguments": arguments_object(&call.arguments) },
            })
        };
        json["tool_calls"] = content.calls.iter().map(call).collect();
    }
    out.push(json);
    Ok(())
}

fn push_response_items(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let content = MessageContent::from_message(message)?;
    for (result, text) in &content.results {
        out.push(json!({ "type": "function_call_output", "call_id": result.call_id, "output": text }));
    }
    if !content.texts.is_empty() {
        let text = content.texts.join("\n\n");
        out.push(json!({ "type": "message", "role": role_name(message), "content": text }));
    }
    for call in &content.calls {
        let arguments = arguments_object(&call.arguments);
        out.push(json!({ "type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments }));
    }
    Ok(())
}

fn push_anthropic_message(message: &Message<'_>, out: &mut Vec<Value>) -> Result<(), Error> {
    let content = MessageContent::from_message(message)?;
    let mut blocks = Vec::new();
    for (result, text) in &content.results {
        blocks.push(json!({
            "type": "tool_result", "tool_use_id": result.call_id, "content": text, "is_error": result.is_error,
        }));
    }
    blocks.extend(content.texts.iter().map(|text| json!({ "type": "text", "text": text })));
    for call in &content.calls {
        let input: Value =
            serde_json::from_str(&arguments_object(&call.arguments)).expect("arguments_object returns a JSON object");
        blocks.push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
    }
    if blocks.is_empty() {
        return Ok(());
    }
    let role = if message.is_assistant() { "assistant" } else { "user" };
    // Results of parallel calls belong in one message, and adjacent messages of one role are one turn.
    match out.last_mut().filter(|last| last["role"] == role) {
        Some(last) => last["content"].as_array_mut().expect("content was written as a list").extend(blocks),
        None => out.push(json!({ "role": role, "content": blocks })),
    }
    Ok(())
}

/// Returns the arguments as the text of a JSON object. Malformed arguments are wrapped, since all APIs require an
/// object.
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
            let results: Vec<_> = conversation
                .messages
                .iter()
                .flat_map(Message::results)
                .map(|result| result.only_text().unwrap())
                .collect();
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
