//! Logs of Inspect: each sample is a conversation.
//!
//! A long text is stored once among the sample's attachments and referenced where it is used. The
//! events of a sample repeat its messages and are skipped.

use std::borrow::Cow;
use std::collections::HashMap;

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::text::LazyText;
use crate::conversation::{
    CallArguments, ImagePart, MediaSource, Message, OpaqueBlock, Part, ReasoningPart, Role, ToolCall, ToolResult,
};
use crate::error::Error;
use crate::wire::json::scan::{JsonObject, JsonValue};

const ATTACHMENT_PREFIX: &str = "attachment://";

#[derive(Default)]
pub(crate) struct InspectLog {
    evaluation_id: String,
    model: Option<String>,
}

impl SessionParser for InspectLog {
    fn parse_entry(&mut self, sample: &JsonObject<'_>, found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        if sample.get("messages").is_none() {
            return Err(Error::not_a_recording("a sample without messages"));
        }
        let attachments = AttachmentMap::from_sample(sample);
        let mut recording = RecordedSession::new(LogFormat::Inspect);
        let id_part = |key: &str| sample.get(key).map(|value| value.string().unwrap_or_else(|| value.raw().into()));
        recording.id = [Some(Cow::Borrowed(self.evaluation_id.as_str())), id_part("id"), id_part("epoch")]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("/");
        recording.set_model(self.model.as_deref().map(Cow::Borrowed));
        for message in sample.elements("messages").iter() {
            recording.push(attachments.message(message));
        }
        found.push(recording);
        Ok(())
    }

    fn entries_field(&self) -> Option<&'static str> {
        Some("samples")
    }

    fn metadata_fields(&self) -> &'static [&'static str] {
        &["eval"]
    }

    fn parse_metadata(&mut self, _key: &str, value: JsonValue<'_>) {
        let head = value.object();
        self.evaluation_id = head.string("eval_id").or_else(|| head.string("run_id")).unwrap_or_default().into_owned();
        self.model = head.string("model").map(Cow::into_owned);
    }

    fn finish(self: Box<Self>, _found: &mut Vec<RecordedSession>) {}
}

/// The attachments of a sample, by name.
struct AttachmentMap<'a>(HashMap<Cow<'a, str>, JsonValue<'a>>);

impl<'a> AttachmentMap<'a> {
    fn from_sample(sample: &JsonObject<'a>) -> Self {
        let fields = sample.object("attachments");
        let fields = fields.iter().flat_map(|object| object.fields());
        Self(fields.map(|field| (field.key.clone(), field.value)).collect())
    }

    /// Returns the text, or the attachment that it references.
    fn resolve(&self, text: LazyText<'a>) -> LazyText<'a> {
        let attached =
            text.strip_prefix(ATTACHMENT_PREFIX).and_then(|name| self.0.get(name)).and_then(|object| object.text());
        attached.unwrap_or(text)
    }

    fn message(&self, message: &JsonObject<'a>) -> Message<'a> {
        let content = self.content(message.get("content"));
        match message.string("role").as_deref() {
            Some("tool") => {
                let error = message.object("error");
                let result = ToolResult {
                    call_id: message.string("tool_call_id").unwrap_or_default(),
                    content: match (&error, content.as_slice()) {
                        (Some(error), content) if content.iter().all(|part| part.as_text() == Some("")) => {
                            vec![Part::text(error.text("message").unwrap_or_default())]
                        }
                        _ => content,
                    },
                    is_error: error.is_some(),
                };
                Message::new(Role::Tool, vec![Part::ToolResult(result)])
            }
            Some("assistant") => {
                let mut parts: Vec<Part<'a>> = content.into_iter().filter(|part| part.as_text() != Some("")).collect();
                parts.extend(message.elements("tool_calls").iter().map(|call| self.call(call)));
                Message::new(Role::Assistant, parts)
            }
            Some("system") => Message::new(Role::System, content),
            Some("user") => Message::new(Role::User, content),
            _ => Message::new(Role::Other, content),
        }
    }

    fn call(&self, call: &JsonObject<'a>) -> Part<'a> {
        let arguments = match call.get("arguments") {
            Some(value) => value.text().unwrap_or_else(|| value.raw().into()),
            None => "{}".into(),
        };
        Part::ToolCall(ToolCall {
            id: call.string("id").unwrap_or_default(),
            name: call.string("function").unwrap_or_default(),
            arguments: match call.string("type").as_deref() {
                Some("custom") => CallArguments::Text(arguments),
                _ => CallArguments::Json(arguments),
            },
            signature: None,
        })
    }

    fn content(&self, value: Option<JsonValue<'a>>) -> Vec<Part<'a>> {
        let Some(value) = value else { return Vec::new() };
        match value.text() {
            Some(text) => vec![Part::text(self.resolve(text))],
            None => value.elements().iter().map(|block| self.block(block)).collect(),
        }
    }

    fn block(&self, block: &JsonObject<'a>) -> Part<'a> {
        let text = |key: &str| self.resolve(block.text(key).unwrap_or_default());
        let kind = block.string("type");
        match kind.as_deref() {
            Some("text") => Part::text(text("text")),
            Some("reasoning") => Part::Reasoning(ReasoningPart {
                text: text("reasoning"),
                seal: block.string("signature"),
                redacted: false,
            }),
            Some("image") => {
                let image = text("image");
                let data = image.starts_with("data:").then(|| image.find(";base64,")).flatten();
                let source = match data {
                    Some(at) => MediaSource::Base64(image[at + ";base64,".len()..].to_owned().into()),
                    None => MediaSource::Url(image.into()),
                };
                Part::Image(ImagePart { source, detail: block.string("detail") })
            }
            _ => {
                Part::Opaque(OpaqueBlock { kind: kind.unwrap_or_default(), pair: None, raw: block.value.raw().into() })
            }
        }
    }
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{
  "version": 2,
  "status": "success",
  "eval": {"eval_id": "e1", "model": "openai/m-1"},
  "samples": [
    {"id": 1, "epoch": 1, "attachments": {"h1": "a long task"}, "events": [{"event": "model"}],
     "messages": [
       {"role": "user", "content": "attachment://h1"},
       {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "hm", "signature": "sig"}, {"type": "text", "text": "I go"}],
        "tool_calls": [{"id": "c1", "function": "go", "arguments": {"url": "x"}}]},
       {"role": "tool", "tool_call_id": "c1", "content": "", "error": {"type": "timeout", "message": "too slow"}}
     ]},
    {"id": "two", "epoch": 1, "messages": [{"role": "user", "content": [{"type": "image", "image": "data:image/png;base64,aGk="}]}]}
  ]
}"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, shape};

    #[test]
    fn each_sample_is_a_session_with_attachments_resolved() {
        let (recordings, errors) = read_all(&super::SAMPLE.replace("\n  ]\n}", ",\n{\"id\": 3}]}"));
        let [one, two] = recordings.as_slice() else { panic!("{recordings:?}") };
        assert_eq!((one.id.as_str(), one.model()), ("e1/1/1", Some("openai/m-1")));
        assert_eq!(
            shape(one),
            [
                "user: a long task",
                r#"assistant: thought hm sealed sig | i go | call c1 go {"url": "x"}"#,
                "tool: error c1 too slow"
            ]
        );
        assert_eq!((two.id.as_str(), shape(two)), ("e1/two/1", vec!["user: image data agk=".to_owned()]));
        assert_eq!(errors, ["line 14: not a recorded session: a sample without messages"]);
    }
}
