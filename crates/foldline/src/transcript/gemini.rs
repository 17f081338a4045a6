//! Chats of the Gemini CLI: one document, or lines that update it step by step.
//!
//! In lines, a repeated message replaces the earlier one, `$rewindTo` removes a message and everything
//! after it, and `$set` may replace the whole history. A turn contains its calls together with their
//! results; they become messages as in Chat Completions.

use std::collections::HashMap;

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::{ImagePart, MediaSource, Message, OpaqueBlock, Part, Role, ToolResult};
use crate::error::Error;
use crate::wire::json::scan::{JsonObject, JsonValue};

pub(crate) struct GeminiChat {
    recording: RecordedSession,
    /// The messages of each entry of the chat.
    entries: Vec<Vec<Message<'static>>>,
    entry_by_id: HashMap<String, usize>,
}

impl GeminiChat {
    pub(crate) fn new() -> Self {
        Self { recording: RecordedSession::new(LogFormat::GeminiCli), entries: Vec::new(), entry_by_id: HashMap::new() }
    }

    fn put_entry(&mut self, entry: &JsonObject<'_>) {
        self.recording.set_model(entry.string("model"));
        let messages = entry_messages(entry).into_iter().map(Message::into_owned).collect();
        match entry.string("id") {
            Some(id) => match self.entry_by_id.get(id.as_ref()) {
                Some(&at) => self.entries[at] = messages,
                None => {
                    self.entry_by_id.insert(id.into_owned(), self.entries.len());
                    self.entries.push(messages);
                }
            },
            None => self.entries.push(messages),
        }
    }

    fn apply_metadata(&mut self, head: &JsonObject<'_>) {
        if let Some(id) = head.string("sessionId") {
            self.recording.id = id.into_owned();
        }
        self.recording.set_origin(None, head.string("startTime"));
        if head.get("messages").is_some_and(|list| list.is_array() && list.raw().len() > 2) {
            self.rewind_to(0);
            head.elements("messages").iter().for_each(|entry| self.put_entry(entry));
        }
    }

    fn rewind_to(&mut self, keep: usize) {
        self.recording.omitted_messages += self.entries[keep..].iter().map(Vec::len).sum::<usize>();
        self.entries.truncate(keep);
        self.entry_by_id.retain(|_, &mut at| at < keep);
    }
}

impl SessionParser for GeminiChat {
    fn parse_entry(&mut self, entry: &JsonObject<'_>, _found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        if let Some(id) = entry.string("$rewindTo") {
            // An unknown message id removes everything.
            let keep = self.entry_by_id.get(id.as_ref()).copied().unwrap_or(0);
            self.rewind_to(keep);
        } else if let Some(head) = entry.object("$set") {
            self.apply_metadata(&head);
        } else if entry.get("type").is_some() {
            self.put_entry(entry);
        } else if entry.get("sessionId").is_some() {
            self.apply_metadata(entry);
        } else {
            return Err(Error::not_a_recording("neither a message nor a change of the chat"));
        }
        Ok(())
    }

    fn entries_field(&self) -> Option<&'static str> {
        Some("messages")
    }

    fn metadata_fields(&self) -> &'static [&'static str] {
        &["sessionId", "startTime"]
    }

    fn parse_metadata(&mut self, key: &str, value: JsonValue<'_>) {
        match key {
            "startTime" => self.recording.set_origin(None, value.string()),
            _ => self.recording.id = value.string().unwrap_or_default().into_owned(),
        }
    }

    fn finish(mut self: Box<Self>, found: &mut Vec<RecordedSession>) {
        self.recording.conversation.messages = self.entries.into_iter().flatten().collect();
        found.push(self.recording);
    }
}

/// Returns the messages of one entry: a turn, then its results. Notices of the client have none.
fn entry_messages<'a>(entry: &JsonObject<'a>) -> Vec<Message<'a>> {
    match entry.string("type").as_deref() {
        Some("user") => vec![Message::new(Role::User, content_parts(entry.get("content")))],
        Some("gemini") => {
            let mut parts: Vec<Part<'a>> = entry.elements("thoughts").iter().map(reasoning_part).collect();
            parts.extend(content_parts(entry.get("content")).into_iter().filter(|part| part.as_text() != Some("")));
            let calls = entry.elements("toolCalls");
            parts.extend(calls.iter().map(|call| {
                let arguments = call.get("args").map_or("{}", JsonValue::raw);
                Part::call(call.string("id").unwrap_or_default(), call.string("name").unwrap_or_default(), arguments)
            }));
            let turn = (!parts.is_empty()).then(|| Message::new(Role::Assistant, parts));
            turn.into_iter().chain(calls.iter().filter_map(result_message)).collect()
        }
        _ => Vec::new(),
    }
}

/// Joins the subject and the description of a thought, which the client stores separately.
fn reasoning_part<'a>(thought: &JsonObject<'a>) -> Part<'a> {
    let (subject, description) = (thought.string("subject"), thought.string("description").unwrap_or_default());
    match subject.filter(|subject| !subject.is_empty()) {
        Some(subject) => Part::reasoning(format!("**{subject}** {description}")),
        None => Part::reasoning(description),
    }
}

fn result_message<'a>(call: &JsonObject<'a>) -> Option<Message<'a>> {
    let content: Vec<Part<'a>> = call.get("result").map(|value| content_parts(Some(value)))?;
    if content.is_empty() {
        return None;
    }
    let result = ToolResult {
        call_id: call.string("id").unwrap_or_default(),
        content,
        is_error: matches!(call.string("status").as_deref(), Some("error" | "cancelled")),
    };
    Some(Message::new(Role::Tool, vec![Part::ToolResult(result)]))
}

/// Parses a text, a part, or a list of them.
fn content_parts<'a>(value: Option<JsonValue<'a>>) -> Vec<Part<'a>> {
    let Some(value) = value else { return Vec::new() };
    match value.string() {
        Some(text) => vec![Part::text(text)],
        None if value.is_array() => value.elements().iter().map(parse_part).collect(),
        None if value.is_object() => vec![parse_part(&value.object())],
        None => Vec::new(),
    }
}

fn parse_part<'a>(part: &JsonObject<'a>) -> Part<'a> {
    if let Some(text) = part.value.string().or_else(|| part.string("text")) {
        return Part::text(text);
    }
    if let Some(response) = part.object("functionResponse").and_then(|object| object.get("response")) {
        let fields = response.is_object().then(|| response.object());
        let text = fields.and_then(|object| object.string("output").or_else(|| object.string("error")));
        return Part::text(text.unwrap_or_else(|| response.raw().into()));
    }
    if let Some(data) = part.object("inlineData") {
        let is_image = data.string("mimeType").is_some_and(|kind| kind.starts_with("image/"));
        let source = data.string("data").map_or(MediaSource::Unknown, MediaSource::Base64);
        if is_image {
            return Part::Image(ImagePart { source, detail: None });
        }
    }
    let kind = part.fields().first().map(|field| field.key.clone()).unwrap_or_default();
    Part::Opaque(OpaqueBlock { kind, pair: None, raw: part.value.raw().into() })
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{
  "sessionId": "s1",
  "projectHash": "h",
  "messages": [
    {"id": "1", "type": "user", "content": [{"text": "look at"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
    {"id": "2", "type": "gemini", "model": "gemini-x", "content": "", "thoughts": [{"subject": "Plan", "description": "do it"}],
     "toolCalls": [
       {"id": "c1", "name": "ls", "args": {"p": 1}, "status": "success",
        "result": [{"functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a.rs"}}}]},
       {"id": "c2", "name": "rm", "args": {}, "status": "error",
        "result": [{"functionResponse": {"id": "c2", "name": "rm", "response": {"error": "denied"}}}]},
       {"id": "c3", "name": "cp", "args": {}, "status": "cancelled"}
     ]},
    {"id": "3", "type": "info", "content": "the client reports"},
    {"id": "4", "type": "gemini", "content": "done"}
  ]
}
"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one, shape};
    use super::*;

    #[test]
    fn turn_is_followed_by_its_results() {
        let recording = read_one(SAMPLE);
        assert_eq!((recording.id.as_str(), recording.model()), ("s1", Some("gemini-x")));
        assert_eq!(
            shape(&recording),
            [
                "user: look at | image data agk=",
                r#"assistant: thought **plan** do it | call c1 ls {"p": 1} | call c2 rm {} | call c3 cp {}"#,
                "tool: result c1 a.rs",
                "tool: error c2 denied",
                "assistant: done",
            ]
        );
    }

    /// In lines, a message is repeated with its results, and may be removed.
    #[test]
    fn lines_replace_rewind_and_set_entries() {
        let log = r#"{"sessionId":"s1","projectHash":"h","startTime":"t","messages":[]}
{"id":"1","type":"user","content":"one"}
{"id":"2","type":"gemini","content":"draft"}
{"id":"2","type":"gemini","content":"answer"}
{"$set":{"summary":"about one"}}
{"id":"3","type":"user","content":"two"}
{"id":"4","type":"gemini","content":"no"}
{"$rewindTo":"3"}
{"id":"5","type":"user","content":"three"}
"#;
        let recording = read_one(log);
        assert_eq!(shape(&recording), ["user: one", "assistant: answer", "user: three"]);
        assert_eq!(recording.omitted_messages, 2);

        let set =
            log.to_owned() + "{\"$set\":{\"messages\":[{\"id\":\"9\",\"type\":\"user\",\"content\":\"again\"}]}}\n";
        assert_eq!(shape(&read_one(&set)), ["user: again"]);
    }

    #[test]
    fn truncated_document_returns_what_was_read_and_an_error() {
        let cut = &SAMPLE[..SAMPLE.find("\"id\": \"3\"").unwrap()];
        let (recordings, errors) = read_all(cut);
        assert_eq!(shape(&recordings[0]).len(), 4);
        assert_eq!(errors, ["line 14: not a recorded session: it ends in the middle of a value"]);
    }
}
