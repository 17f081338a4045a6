//! Messages in a provider's own JSON, for programs that hold provider-neutral messages and send requests themselves.
//!
//! Reading accepts everything that serializes to the provider's JSON, and writing gives everything that deserializes
//! from it: JSON values, raw JSON, or the message types of a client library. The neutral message has no place for ids of
//! items, cache marks and annotations; to keep such fields, fold the body itself with [`apply`](crate::apply()).

use std::borrow::Borrow;
use std::collections::HashMap;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;

use crate::conversation::{CallArguments, ImagePart, MediaSource, Message, OwnedMessage, Part, Role, ToolResult};
use crate::error::Error;
use crate::wire::format::Format;
use crate::wire::json::string::encode;
use crate::wire::json::write::json_array;
use crate::wire::request::Request;

/// The form of a dialect's messages.
#[derive(Debug)]
pub(crate) enum MessageSyntax {
    /// A message is a role and a list of blocks; adjacent messages of one role are one turn.
    Blocks(BlockSyntax),
    /// A message is one or more elements of the list of messages.
    Elements(ElementSyntax),
}

/// The form of messages that are elements of a list.
#[derive(Debug)]
pub(crate) struct ElementSyntax {
    /// Returns the elements of a message.
    pub(crate) elements: fn(&Message<'_>, &WrittenCalls) -> Result<Vec<String>, Error>,
    /// True if the calls of a turn are in one message. The items of another dialect's turn are then merged.
    pub(crate) has_whole_turns: bool,
}

/// The form of messages that are lists of blocks.
#[derive(Debug)]
pub(crate) struct BlockSyntax {
    /// Returns the name of a role.
    pub(crate) role_name: fn(Role) -> Result<&'static str, Error>,
    /// Returns a part as JSON.
    pub(crate) block: fn(&Part<'_>, &WrittenCalls) -> Result<String, Error>,
    /// Returns the message of a role with these blocks, separated by commas.
    pub(crate) message: fn(&str, &str) -> String,
}

/// What is known of the calls that were written before a result.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenCalls(HashMap<String, WrittenCall>);

#[derive(Clone, Debug)]
struct WrittenCall {
    name: String,
    has_text_arguments: bool,
}

impl WrittenCalls {
    fn record(&mut self, message: &Message<'_>) {
        for call in message.calls() {
            let has_text_arguments = matches!(call.arguments, CallArguments::Text(_));
            let written = WrittenCall { name: call.name.to_string(), has_text_arguments };
            self.0.insert(call.id.to_string(), written);
        }
    }

    /// Returns the name of the tool that a result belongs to.
    pub(crate) fn tool_name(&self, call_id: &str) -> Option<&str> {
        self.0.get(call_id).map(|call| call.name.as_str())
    }

    /// Returns true if a call has free text as its arguments.
    pub(crate) fn has_text_arguments(&self, call_id: &str) -> bool {
        self.0.get(call_id).is_some_and(|call| call.has_text_arguments)
    }
}

/// Writes the messages of one conversation in a dialect, as it grows.
///
/// Results refer to the calls before them, so one writer writes all messages in order. Messages are not merged; for a
/// whole list, [`Format::write_messages`] merges adjacent messages of a role where the dialect has turns.
///
/// ```
/// use foldline::wire::{Format, MessageWriter};
/// use foldline::{Message, Part, Role};
///
/// let mut writer = MessageWriter::new(Format::OpenAiChat);
/// let message = Message::new(Role::Assistant, vec![Part::call("c1", "ls", "{}")]);
/// let json = writer.write(&message)?;
/// assert!(json[0].get().contains(r#""tool_calls":[{"id":"c1""#));
/// # Ok::<(), foldline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MessageWriter {
    format: Format,
    calls: WrittenCalls,
}

impl MessageWriter {
    /// Creates a writer for a dialect.
    pub fn new(format: Format) -> Self {
        Self { format, calls: WrittenCalls::default() }
    }

    /// Returns a message as elements of the list of messages: usually one, several where results or items are messages
    /// of their own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotARequest`](crate::ErrorKind::NotARequest) if the dialect has no form for a part.
    pub fn write(&mut self, message: &Message<'_>) -> Result<Vec<Box<RawValue>>, Error> {
        let elements = match &self.format.dialect().messages {
            MessageSyntax::Elements(syntax) => self.elements(syntax, message)?,
            MessageSyntax::Blocks(syntax) => {
                let turn = self.turn(syntax, message)?;
                vec![(syntax.message)(turn.role, &turn.blocks.join(","))]
            }
        };
        elements.into_iter().map(raw_json).collect()
    }

    fn elements(&mut self, syntax: &ElementSyntax, message: &Message<'_>) -> Result<Vec<String>, Error> {
        self.calls.record(message);
        (syntax.elements)(message, &self.calls)
    }

    fn turn(&mut self, syntax: &BlockSyntax, message: &Message<'_>) -> Result<WrittenTurn, Error> {
        self.calls.record(message);
        let role = (syntax.role_name)(message.role)?;
        let blocks = message.parts.iter().map(|part| (syntax.block)(part, &self.calls)).collect::<Result<_, _>>()?;
        Ok(WrittenTurn { role, blocks })
    }

    /// Returns the turns of a list of messages.
    fn turns<'m>(
        &mut self,
        syntax: &BlockSyntax,
        messages: impl IntoIterator<Item: Borrow<Message<'m>>>,
    ) -> Result<Vec<String>, Error> {
        let mut turns: Vec<WrittenTurn> = Vec::new();
        for message in messages {
            let turn = self.turn(syntax, message.borrow())?;
            match turns.last_mut().filter(|last| last.role == turn.role) {
                Some(last) => last.blocks.extend(turn.blocks),
                None => turns.push(turn),
            }
        }
        Ok(turns.iter().map(|turn| (syntax.message)(turn.role, &turn.blocks.join(","))).collect())
    }
}

/// Blocks of one role.
struct WrittenTurn {
    role: &'static str,
    blocks: Vec<String>,
}

fn raw_json(json: String) -> Result<Box<RawValue>, Error> {
    RawValue::from_string(json)
        .map_err(|error| Error::not_a_request(format_args!("a block of the message is not JSON: {error}")))
}

impl Format {
    /// Reads messages in this dialect: anything that serializes to the provider's list of messages, or to a whole
    /// request body. Instructions outside the list are not read; parse the body with [`Request`] for those.
    ///
    /// ```
    /// use foldline::Role;
    /// use foldline::wire::Format;
    ///
    /// let json = serde_json::json!([{ "role": "user", "content": [{ "type": "text", "text": "hello" }] }]);
    /// let messages = Format::Anthropic.read_messages(&json)?;
    /// assert_eq!((messages[0].role, messages[0].parts[0].as_text()), (Role::User, Some("hello")));
    /// # Ok::<(), foldline::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotARequest`](crate::ErrorKind::NotARequest) if the value is not a list of messages.
    pub fn read_messages<T: Serialize + ?Sized>(self, messages: &T) -> Result<Vec<OwnedMessage>, Error> {
        let json = serde_json::to_vec(messages)
            .map_err(|error| Error::not_a_request(format_args!("the messages could not be serialized: {error}")))?;
        let request = Request::parse(self, &json)?;
        Ok(request.into_conversation().messages.into_iter().map(Message::into_owned).collect())
    }

    /// Writes messages in this dialect, as values of any type that deserializes from the provider's messages.
    ///
    /// ```
    /// use foldline::wire::Format;
    /// use foldline::{Message, Part, Role};
    /// use serde_json::Value;
    ///
    /// let messages = [
    ///     Message::text(Role::User, "what is in main.rs?"),
    ///     Message::new(Role::Assistant, vec![Part::call("c1", "read_file", r#"{"path":"main.rs"}"#)]),
    ///     Message::new(Role::Tool, vec![Part::result("c1", "fn main() {}")]),
    /// ];
    /// for format in Format::all() {
    ///     let json: Vec<Value> = format.write_messages(&messages)?;
    ///     let again = format.read_messages(&json)?;
    ///     assert_eq!(again[2].results().next().unwrap().only_text(), Some("fn main() {}"));
    /// }
    /// # Ok::<(), foldline::Error>(())
    /// ```
    ///
    /// Instructions and tools of a request are not messages in every dialect, so they are not written here. Reasoning and
    /// opaque blocks belong to the provider that wrote them: remove them before the messages go to another one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotARequest`](crate::ErrorKind::NotARequest) if the dialect has no form for a part, or the type has
    /// no form for a message.
    pub fn write_messages<'m, T: DeserializeOwned>(
        self,
        messages: impl IntoIterator<Item: Borrow<Message<'m>>>,
    ) -> Result<Vec<T>, Error> {
        let mut writer = MessageWriter::new(self);
        let elements = match &self.dialect().messages {
            MessageSyntax::Blocks(syntax) => writer.turns(syntax, messages)?,
            MessageSyntax::Elements(syntax) => {
                let mut elements = Vec::new();
                let mut open: Option<Message<'m>> = None;
                for message in messages {
                    let message = message.borrow();
                    match open.as_mut().filter(|open| message.is_assistant() && is_part_of_turn(open)) {
                        Some(open) if syntax.has_whole_turns => open.parts.extend(message.parts.iter().cloned()),
                        _ => {
                            if let Some(before) = open.replace(message.clone()) {
                                elements.extend(writer.elements(syntax, &before)?);
                            }
                        }
                    }
                }
                if let Some(last) = open {
                    elements.extend(writer.elements(syntax, &last)?);
                }
                elements
            }
        };
        let typed = |json: &String| {
            let mismatch = |error| Error::not_a_request(format_args!("the type has no form for a message: {error}"));
            serde_json::from_str(json).map_err(mismatch)
        };
        elements.iter().map(typed).collect()
    }
}

/// Returns true if a turn of the model goes on after this message: it has calls, or nothing but reasoning.
fn is_part_of_turn(message: &Message<'_>) -> bool {
    let is_reasoning = |part: &Part<'_>| matches!(part, Part::Reasoning(_));
    message.is_assistant() && (message.calls().next().is_some() || message.parts.iter().all(is_reasoning))
}

/// Returns the error for a part that a dialect cannot express.
pub(crate) fn inexpressible(format: Format, part: &str) -> Error {
    Error::not_a_request(format_args!("{} has no form for {part}", format.dialect().title))
}

/// Returns the JSON of one optional field, with a leading comma.
pub(crate) fn optional_field(key: &str, value: Option<&str>) -> String {
    value.map_or_else(String::new, |value| format!(r#","{key}":{}"#, encode(value)))
}

/// Returns the arguments of a call as the text of a JSON object, as they are if possible. Free text and malformed arguments
/// are wrapped.
pub(crate) fn object_arguments(arguments: &CallArguments<'_>) -> String {
    let text = arguments.as_str();
    let is_object = text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok();
    match text.trim() {
        "" => "{}".to_owned(),
        _ if is_object => text.to_owned(),
        text => format!(r#"{{"not_an_object":{}}}"#, encode(text)),
    }
}

/// Returns the content of a result: a string if it is one text, else a list of blocks.
pub(crate) fn result_content(
    result: &ToolResult<'_>,
    block: impl Fn(&Part<'_>) -> Result<String, Error>,
) -> Result<String, Error> {
    match result.only_text() {
        Some(text) => Ok(encode(text)),
        None => {
            let blocks = result.content.iter().map(block).collect::<Result<Vec<_>, _>>()?;
            Ok(json_array(blocks.iter().map(String::as_str)))
        }
    }
}

/// Returns the media type of base64 data by its first bytes.
pub(crate) fn sniffed_media_type(base64: &str) -> Option<&'static str> {
    const SIGNATURES: [(&str, &str); 6] = [
        ("iVBORw0KGgo", "image/png"),
        ("/9j/", "image/jpeg"),
        ("R0lGOD", "image/gif"),
        ("UklGR", "image/webp"),
        ("Qk0", "image/bmp"),
        ("JVBERi", "application/pdf"),
    ];
    SIGNATURES.iter().find(|(start, _)| base64.starts_with(start)).map(|(_, media_type)| *media_type)
}

/// Returns the media type of an image: by its bytes, or by the end of its URL.
pub(crate) fn image_media_type(image: &ImagePart<'_>) -> &'static str {
    let by_extension = |url: &str| {
        let path = url.split(['?', '#']).next().unwrap_or(url);
        match path.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase()).as_deref() {
            Some("png") => Some("image/png"),
            Some("gif") => Some("image/gif"),
            Some("webp") => Some("image/webp"),
            _ => None,
        }
    };
    let found = match &image.source {
        MediaSource::Base64(data) => sniffed_media_type(data).filter(|media_type| media_type.starts_with("image/")),
        MediaSource::Url(url) => by_extension(url),
        _ => None,
    };
    found.unwrap_or("image/jpeg")
}

/// Returns the `data:` URL of base64 data.
pub(crate) fn data_url(media_type: &str, base64: &str) -> String {
    format!("data:{media_type};base64,{base64}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::conversation::{FilePart, ReasoningPart};
    use crate::laws::{LawProfile, check_conversation};
    use crate::testing::samples;

    /// Returns the messages with adjacent ones of a role merged, as in dialects with turns.
    fn merged(messages: &[Message<'static>]) -> Vec<Message<'static>> {
        let mut turns: Vec<Message<'static>> = Vec::new();
        for message in messages {
            match turns.last_mut().filter(|last| last.role == message.role) {
                Some(last) => last.parts.extend(message.parts.iter().cloned()),
                None => turns.push(message.clone()),
            }
        }
        turns
    }

    /// Returns what every dialect can express: texts, calls and results.
    fn portable(messages: &[Message<'static>]) -> Vec<Message<'static>> {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            message.parts.retain(|part| matches!(part, Part::Text { .. } | Part::ToolCall(_) | Part::ToolResult(_)));
            for part in &mut message.parts {
                if let Part::ToolResult(result) = part {
                    result.content.retain(|part| part.as_text().is_some());
                }
            }
        }
        let is_instruction = |message: &Message<'_>| matches!(message.role, Role::System | Role::Developer);
        messages.retain(|message| !message.parts.is_empty() && !is_instruction(message));
        messages
    }

    /// Returns the calls and results, and all texts as one: some dialects have one text per message.
    fn contents(messages: &[Message<'_>]) -> Vec<String> {
        let parts = || messages.iter().flat_map(|message| &message.parts);
        let texts: Vec<&str> = parts().filter_map(Part::as_text).collect();
        let others = parts().filter(|part| part.as_text().is_none()).map(|part| match part {
            Part::ToolCall(call) => format!("call {} {}", call.id, call.name),
            Part::ToolResult(result) => {
                format!("result {} {}", result.call_id, result.texts().collect::<Vec<_>>().join("\n"))
            }
            other => format!("{other:?}"),
        });
        let mut contents: Vec<String> = others.chain([texts.join("\n\n")]).collect();
        // Results are before the other parts of their message in some dialects.
        contents.sort();
        contents
    }

    proptest! {
        #[test]
        fn messages_survive_writing_and_reading(sample in samples()) {
            let (format, messages) = (sample.format, &sample.conversation.messages);
            let written: Vec<Box<RawValue>> = format.write_messages(messages)?;
            let again = format.read_messages(&written)?;
            match format.dialect().messages {
                MessageSyntax::Blocks(_) => prop_assert_eq!(again, merged(messages)),
                MessageSyntax::Elements(_) => prop_assert_eq!(&again, messages),
            }
        }

        #[test]
        fn messages_survive_one_at_a_time(sample in samples()) {
            let mut writer = MessageWriter::new(sample.format);
            let mut written = Vec::new();
            for message in &sample.conversation.messages {
                written.extend(writer.write(message)?);
            }
            prop_assert_eq!(&sample.format.read_messages(&written)?, &sample.conversation.messages);
        }

        #[test]
        fn any_dialect_can_be_written_in_any_other(sample in samples(), target in proptest::sample::select(Format::all().collect::<Vec<_>>())) {
            let messages = portable(&sample.conversation.messages);
            let written: Vec<Value> = target.write_messages(&messages)?;
            let again = target.read_messages(&written)?;
            prop_assert_eq!(contents(&again), contents(&messages));
            let profile = LawProfile::for_model(target, None);
            let violations = |messages: Vec<OwnedMessage>| {
                let conversation = crate::Conversation { messages, ..Default::default() };
                check_conversation(&conversation, &profile)
            };
            prop_assert_eq!(violations(again), []);
        }
    }

    fn user(part: Part<'static>) -> Message<'static> {
        Message::new(Role::User, vec![part])
    }

    fn file(
        name: Option<&'static str>,
        media_type: Option<&'static str>,
        source: MediaSource<'static>,
    ) -> Part<'static> {
        Part::File(Box::new(FilePart { name: name.map(Into::into), media_type: media_type.map(Into::into), source }))
    }

    #[test]
    fn media_of_every_source_survive_where_the_dialect_has_them() {
        let png = || MediaSource::Base64("iVBORw0KGgoAAAA".into());
        let (url, id) = (|| MediaSource::Url("https://example.com/a.webp".into()), || MediaSource::Id("file_1".into()));
        let image = |source| Part::Image(ImagePart { source, detail: None });
        let low = || Part::Image(ImagePart { source: png(), detail: Some("low".into()) });
        let pdf = || MediaSource::Base64("JVBERi0x".into());
        let text = || MediaSource::Text("plain".into());
        let cases = [
            (Format::OpenAiChat, vec![image(png()), image(url()), low(), file(Some("a.pdf"), None, pdf())]),
            (Format::OpenAiChat, vec![file(None, None, id())]),
            (Format::OpenAiResponses, vec![image(png()), image(url()), image(id()), low()]),
            (
                Format::OpenAiResponses,
                vec![file(Some("a.pdf"), None, pdf()), file(None, None, id()), file(None, None, url())],
            ),
            (Format::Anthropic, vec![image(png()), image(url()), image(id())]),
            (
                Format::Anthropic,
                vec![file(Some("a"), Some("application/pdf"), pdf()), file(None, Some("text/plain"), text())],
            ),
            (Format::Gemini, vec![image(png()), image(url()), file(Some("a"), Some("application/pdf"), pdf())]),
            (Format::Ollama, vec![image(png())]),
            (Format::Converse, vec![image(png()), file(Some("a"), Some("pdf"), pdf())]),
        ];
        for (format, parts) in cases {
            let messages: Vec<_> = vec![Message::new(Role::User, parts)];
            let json: Vec<Value> = format.write_messages(&messages).unwrap();
            assert_eq!(format.read_messages(&json).unwrap(), messages, "{format:?}");
        }
    }

    #[test]
    fn media_type_is_that_of_the_bytes() {
        let image = user(Part::Image(ImagePart { source: MediaSource::Base64("/9j/4AAQ".into()), detail: None }));
        let chat: Vec<Value> = Format::OpenAiChat.write_messages([&image]).unwrap();
        assert_eq!(chat[0]["content"][0]["image_url"]["url"], "data:image/jpeg;base64,/9j/4AAQ");
        let anthropic: Vec<Value> = Format::Anthropic.write_messages([&image]).unwrap();
        assert_eq!(anthropic[0]["content"][0]["source"]["media_type"], "image/jpeg");
        let gemini: Vec<Value> = Format::Gemini.write_messages([&image]).unwrap();
        assert_eq!(gemini[0]["parts"][0]["inlineData"]["mimeType"], "image/jpeg");
    }

    #[test]
    fn redacted_and_hidden_thinking_are_different_blocks() {
        let json = json!([{ "role": "assistant", "content": [
            { "type": "thinking", "thinking": "", "signature": "s1" },
            { "type": "redacted_thinking", "data": "d1" },
        ] }]);
        let messages = Format::Anthropic.read_messages(&json).unwrap();
        let written: Vec<Value> = Format::Anthropic.write_messages(&messages).unwrap();
        assert_eq!(Value::Array(written), json);
    }

    #[test]
    fn result_of_a_free_text_call_has_its_own_item() {
        let json = json!([
            { "type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch" },
            { "type": "custom_tool_call_output", "call_id": "c1", "output": "Success" },
        ]);
        let messages = Format::OpenAiResponses.read_messages(&json).unwrap();
        let written: Vec<Value> = Format::OpenAiResponses.write_messages(&messages).unwrap();
        assert_eq!(Value::Array(written), json);
    }

    #[test]
    fn arguments_keep_their_spelling() {
        let arguments = r#"{ "b": 1E+400, "a": 1.50 }"#;
        let call = Message::new(Role::Assistant, vec![Part::call("c1", "f", arguments)]);
        for format in [Format::Anthropic, Format::Gemini] {
            let written: Vec<Box<RawValue>> = format.write_messages([&call]).unwrap();
            assert!(written[0].get().contains(arguments), "{}", written[0]);
        }
    }

    #[test]
    fn inexpressible_parts_are_errors_and_never_omitted() {
        let sealed = Part::Reasoning(ReasoningPart { seal: Some("s".into()), ..ReasoningPart::default() });
        let by_id = Part::Image(ImagePart { source: MediaSource::Id("f".into()), detail: None });
        let unknown = Part::Image(ImagePart::default());
        let cases = [
            (Format::OpenAiChat, Message::new(Role::Assistant, vec![sealed])),
            (Format::OpenAiChat, user(by_id.clone())),
            (Format::Gemini, user(by_id.clone())),
            (Format::Ollama, user(by_id.clone())),
            (Format::Converse, user(by_id)),
            (Format::Gemini, Message::text(Role::System, "be brief")),
            (Format::Anthropic, user(unknown)),
            (Format::OpenAiResponses, Message::text(Role::Other, "hm")),
        ];
        for (format, message) in cases {
            let error = format.write_messages::<Value>([&message]).unwrap_err();
            assert!(error.to_string().contains("has no form for"), "{error}");
        }
    }

    /// Values of any type are accepted, if they serialize to the provider's messages.
    #[test]
    fn typed_messages_are_read_and_written() {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        struct TypedMessage {
            role: String,
            content: String,
        }
        let typed = [TypedMessage { role: "user".into(), content: "hi".into() }];
        let messages = Format::OpenAiChat.read_messages(&typed).unwrap();
        assert_eq!(messages, [Message::text(Role::User, "hi")]);
        assert_eq!(Format::OpenAiChat.write_messages::<TypedMessage>(&messages).unwrap(), typed);
        assert!(Format::OpenAiChat.write_messages::<u8>(&messages).is_err());
        assert!(Format::OpenAiChat.read_messages(&json!("no list")).is_err());
    }
}
