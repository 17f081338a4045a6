//! Requests that foldline sends itself, in any dialect.
//!
//! Client requests are spliced and never composed here. This module writes the summarizer's own requests: texts, calls
//! of foldline's tools, and their results. A part that cannot be represented is an error, never omitted.

use serde_json::{Map, Value, json};

use crate::conversation::{CallArguments, Message, Part, Role, ToolCall, ToolResult};
use crate::error::Error;
use crate::tokens::Tokens;
use crate::wire::format::Format;

/// A request to be sent by foldline.
///
/// ```
/// use foldline::wire::{Format, OutgoingRequest, Request};
/// use foldline::{Message, Role};
///
/// let question = [Message::text(Role::User, "what is in it?")];
/// let outgoing =
///     OutgoingRequest { model: "gpt-4o", system: "be brief", messages: &question, tools: &[], max_output_tokens: 100 };
/// for format in Format::all() {
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
    /// Texts, calls and results. Reasoning is omitted, which all APIs allow for responses without a signature.
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

/// The form of a dialect's requests that foldline sends itself.
#[derive(Debug)]
pub(crate) struct ComposeSyntax {
    /// Path of a turn after the base URL and its version, or without a version if it begins with a slash; `{model}` is the
    /// model.
    pub(crate) path: &'static str,
    /// Returns the fields of a body, with these declarations of tools if there are any.
    pub(crate) body: fn(&OutgoingRequest<'_>) -> Result<Map<String, Value>, Error>,
}

impl OutgoingRequest<'_> {
    /// Returns the request body.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotARequest`](crate::ErrorKind::NotARequest) if a message has a part that cannot be represented, or if a
    /// tool's parameters are not valid JSON.
    pub fn to_body(&self, format: Format) -> Result<Vec<u8>, Error> {
        let body = (format.dialect().compose.body)(self)?;
        Ok(Value::Object(body).to_string().into_bytes())
    }

    /// Returns the declarations of the tools, each written by `declare`.
    pub(crate) fn tool_declarations(&self, declare: fn(&ToolSpec<'_>, Value) -> Value) -> Result<Vec<Value>, Error> {
        let declaration = |tool: &ToolSpec<'_>| {
            let parameters = serde_json::from_str(tool.parameters).map_err(|error| {
                let name = tool.name;
                Error::not_a_request(format_args!("the parameters of tool {name} are not valid JSON: {error}"))
            })?;
            Ok(declare(tool, parameters))
        };
        self.tools.iter().map(declaration).collect()
    }
}

/// The texts, calls and results of a message.
pub(crate) struct MessageContent<'m> {
    pub(crate) texts: Vec<&'m str>,
    pub(crate) calls: Vec<&'m ToolCall<'m>>,
    pub(crate) results: Vec<(&'m ToolResult<'m>, String)>,
}

impl<'m> MessageContent<'m> {
    pub(crate) fn from_message(message: &'m Message<'m>) -> Result<Self, Error> {
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

/// Returns the name of a message's role in OpenAI's dialects.
pub(crate) fn role_name(message: &Message<'_>) -> &'static str {
    match message.role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::Assistant => "assistant",
        Role::User | Role::Tool | Role::Other => "user",
    }
}

/// Returns the arguments as the text of a JSON object. Malformed arguments are wrapped, since all APIs require an
/// object.
pub(crate) fn arguments_object(arguments: &CallArguments<'_>) -> String {
    let text = arguments.as_str();
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(_) => text.to_owned(),
        Err(_) => json!({ "not_an_object": text }).to_string(),
    }
}

/// Returns the arguments as a JSON object.
pub(crate) fn arguments_value(arguments: &CallArguments<'_>) -> Value {
    serde_json::from_str(&arguments_object(arguments)).expect("arguments_object returns a JSON object")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::{LawProfile, check};
    use crate::wire::Request;

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
        for format in Format::all() {
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
        let messages = [Message::new(Role::User, vec![Part::Image(crate::conversation::ImagePart::default())])];
        for format in Format::all() {
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
