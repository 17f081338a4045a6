//! Session files of pi: a header, then entries that form a tree.
//!
//! Newer files give each entry an id and a parent; the conversation is the path from the root to the
//! last entry, and other branches are omitted. Older files are a plain list. Interrupted turns (aborted,
//! or ended by an error) are omitted too, because the client does not send them again.

use std::borrow::Cow;
use std::collections::HashMap;

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::{
    ImagePart, MediaSource, Message, OpaqueBlock, Part, ReasoningPart, Role, ToolCall, ToolResult,
};
use crate::error::Error;
use crate::wire::json::scan::{JsonObject, JsonValue};

pub(crate) struct PiSessionTree {
    recording: RecordedSession,
    entries: Vec<PiEntry>,
    entry_by_id: HashMap<String, usize>,
}

struct PiEntry {
    parent: Option<usize>,
    message: Option<Message<'static>>,
    is_compaction: bool,
    model: Option<String>,
}

impl PiSessionTree {
    pub(crate) fn new() -> Self {
        Self { recording: RecordedSession::new(LogFormat::Pi), entries: Vec::new(), entry_by_id: HashMap::new() }
    }
}

impl SessionParser for PiSessionTree {
    fn parse_entry(&mut self, line: &JsonObject<'_>, _found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        let Some(kind) = line.string("type") else {
            return Err(Error::not_a_recording("an entry without a type"));
        };
        if kind == "session" {
            self.recording.id = line.string("id").unwrap_or_default().into_owned();
            self.recording.set_model(line.string("modelId"));
            self.recording.set_origin(line.string("cwd"), line.string("timestamp"));
            return Ok(());
        }
        let recorded = line.object("message");
        if kind == "message" && recorded.is_none() {
            return Err(Error::not_a_recording("an entry of type message without a message"));
        }
        let summary = || line.string("summary").map(|text| Message::text(Role::User, text));
        let message = match (kind.as_ref(), &recorded) {
            ("message", Some(recorded)) => parse_message(recorded),
            ("custom_message", _) => Some(Message::new(Role::User, content_parts(line.get("content")))),
            ("compaction" | "branch_summary", _) => summary(),
            _ => None,
        };
        if message.is_none()
            && recorded.as_ref().is_some_and(|object| object.string("role").as_deref() == Some("assistant"))
        {
            self.recording.omitted_messages += 1;
        }
        let parent = match line.get("parentId") {
            Some(parent) => parent.string().and_then(|id| self.entry_by_id.get(id.as_ref()).copied()),
            // Old format: each entry follows the previous one.
            None => self.entries.len().checked_sub(1),
        };
        if let Some(id) = line.string("id") {
            self.entry_by_id.insert(id.into_owned(), self.entries.len());
        }
        let model = match kind.as_ref() {
            "model_change" => line.string("modelId"),
            _ => recorded.as_ref().and_then(|object| object.string("model")),
        };
        self.entries.push(PiEntry {
            parent,
            message: message.map(Message::into_owned),
            is_compaction: kind == "compaction",
            model: model.map(Cow::into_owned),
        });
        Ok(())
    }

    fn finish(mut self: Box<Self>, found: &mut Vec<RecordedSession>) {
        let mut path = Vec::new();
        let mut at = self.entries.len().checked_sub(1);
        while let Some(index) = at {
            path.push(index);
            at = self.entries[index].parent;
        }
        let message_count = self.entries.iter().filter(|entry| entry.message.is_some()).count();
        for index in path.into_iter().rev() {
            let entry = &mut self.entries[index];
            self.recording.compactions += usize::from(entry.is_compaction);
            self.recording.set_model(entry.model.take().map(Cow::Owned));
            self.recording.conversation.messages.extend(entry.message.take());
        }
        self.recording.omitted_messages += message_count - self.recording.conversation.messages.len();
        found.push(self.recording);
    }
}

/// Parses a message as pi sends it; returns `None` if pi does not send it.
fn parse_message<'a>(message: &JsonObject<'a>) -> Option<Message<'a>> {
    match message.string("role").as_deref() {
        Some("assistant") => {
            let is_interrupted = matches!(message.string("stopReason").as_deref(), Some("error" | "aborted"));
            let parts = content_parts(message.get("content"));
            (!is_interrupted && !parts.is_empty()).then(|| Message::new(Role::Assistant, parts))
        }
        Some("toolResult") => {
            let result = ToolResult {
                call_id: message.string("toolCallId").unwrap_or_default(),
                content: content_parts(message.get("content")),
                is_error: message.get("isError").and_then(JsonValue::bool).unwrap_or(false),
            };
            Some(Message::new(Role::Tool, vec![Part::ToolResult(result)]))
        }
        Some("bashExecution") => {
            let is_private = message.get("excludeFromContext").and_then(JsonValue::bool).unwrap_or(false);
            (!is_private).then(|| Message::text(Role::User, shell_text(message)))
        }
        Some("branchSummary" | "compactionSummary") => {
            message.string("summary").map(|summary| Message::text(Role::User, summary))
        }
        Some("user" | "custom" | "hookMessage") => {
            Some(Message::new(Role::User, content_parts(message.get("content"))))
        }
        _ => Some(Message::new(Role::Other, content_parts(message.get("content")))),
    }
}

/// Returns a command that the user ran, in the text that pi sends to the model.
fn shell_text(message: &JsonObject<'_>) -> String {
    let text = |key: &str| message.string(key).unwrap_or_default();
    let mut rendered = format!("Ran `{}`\n", text("command"));
    match text("output") {
        output if output.is_empty() => rendered.push_str("(no output)"),
        output => rendered.push_str(&format!("```\n{output}\n```")),
    }
    let code = message.get("exitCode").filter(|code| !code.is_null() && code.raw() != "0");
    if message.get("cancelled").and_then(JsonValue::bool) == Some(true) {
        rendered.push_str("\n\n(command cancelled)");
    } else if let Some(code) = code {
        rendered.push_str(&format!("\n\nCommand exited with code {}", code.raw()));
    }
    if let Some(path) = message.string("fullOutputPath")
        && message.get("truncated").and_then(JsonValue::bool) == Some(true)
    {
        rendered.push_str(&format!("\n\n[Output truncated. Full output: {path}]"));
    }
    rendered
}

fn content_parts<'a>(value: Option<JsonValue<'a>>) -> Vec<Part<'a>> {
    let Some(value) = value else { return Vec::new() };
    match value.string() {
        Some(text) => vec![Part::text(text)],
        None => value.elements().iter().map(parse_block).collect(),
    }
}

fn parse_block<'a>(block: &JsonObject<'a>) -> Part<'a> {
    let text = |key: &str| block.string(key).unwrap_or_default();
    let kind = block.string("type");
    match kind.as_deref() {
        Some("text") => Part::text(text("text")),
        Some("thinking") => Part::Reasoning(ReasoningPart {
            text: text("thinking").into(),
            seal: block.string("thinkingSignature"),
            redacted: false,
        }),
        Some("toolCall") => {
            let arguments = block.get("arguments").map_or("{}", JsonValue::raw);
            Part::ToolCall(ToolCall::new(text("id"), text("name"), arguments))
        }
        Some("image") => {
            let source = block.string("data").map_or(MediaSource::Unknown, MediaSource::Base64);
            Part::Image(ImagePart { source, detail: None })
        }
        _ => Part::Opaque(OpaqueBlock { kind: kind.unwrap_or_default(), pair: None, raw: block.value.raw().into() }),
    }
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{"type":"session","id":"s1","timestamp":"t","cwd":"/x","modelId":"m-0"}
{"type":"message","timestamp":"t","message":{"role":"user","content":[{"type":"text","text":"look"},{"type":"image","data":"aGk=","mimeType":"image/png"}]}}
{"type":"message","timestamp":"t","message":{"role":"assistant","model":"m-1","stopReason":"toolUse","content":[{"type":"thinking","thinking":"hm","thinkingSignature":"sig"},{"type":"toolCall","id":"c1","name":"read","arguments":{"path":"a","n":1.0}}]}}
{"type":"message","timestamp":"t","message":{"role":"toolResult","toolCallId":"c1","content":[{"type":"text","text":"gone"}],"isError":true}}
{"type":"message","timestamp":"t","message":{"role":"assistant","model":"m-1","stopReason":"aborted","content":[{"type":"toolCall","id":"c2","name":"read","arguments":{}}]}}
{"type":"message","timestamp":"t","message":{"role":"bashExecution","command":"make","output":"boom","exitCode":2,"cancelled":false,"truncated":false}}
{"type":"message","timestamp":"t","message":{"role":"bashExecution","command":"secret","output":"x","excludeFromContext":true}}
{"type":"model_change","timestamp":"t","modelId":"m-2"}
"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one, shape};
    use super::*;

    #[test]
    fn aborted_turn_is_omitted_with_its_calls() {
        let recording = read_one(SAMPLE);
        assert_eq!((recording.id.as_str(), recording.model(), recording.omitted_messages), ("s1", Some("m-2"), 1));
        assert_eq!(
            shape(&recording),
            [
                "user: look | image data agk=",
                r#"assistant: thought hm sealed sig | call c1 read {"path":"a","n":1.0}"#,
                "tool: error c1 gone",
                "user: ran `make`\n```\nboom\n```\n\ncommand exited with code 2",
            ]
        );
    }

    #[test]
    fn conversation_is_the_path_from_root_to_last_entry() {
        let user = |id: &str, parent: &str, text: &str| {
            format!(
                r#"{{"type":"message","id":"{id}","parentId":{parent},"message":{{"role":"user","content":"{text}"}}}}"#
            ) + "\n"
        };
        let log = "{\"type\":\"session\",\"version\":3,\"id\":\"s\",\"cwd\":\"/\"}\n".to_owned()
            + &user("a", "null", "root")
            + &user("b", "\"a\"", "wrong way")
            + &user("c", "\"b\"", "further")
            + "{\"type\":\"compaction\",\"id\":\"d\",\"parentId\":\"a\",\"summary\":\"so far\",\"firstKeptEntryId\":\"a\"}\n"
            + &user("e", "\"d\"", "right way");
        let recording = read_one(&log);
        assert_eq!(shape(&recording), ["user: root", "user: so far", "user: right way"]);
        assert_eq!((recording.compactions, recording.omitted_messages), (1, 2));
    }

    #[test]
    fn entry_without_message_is_an_error() {
        let (_, errors) = read_all(&(SAMPLE.to_owned() + "{\"type\":\"message\"}"));
        assert_eq!(errors, ["line 9: not a recorded session: an entry of type message without a message"]);
    }
}
