//! Chats of the Gemini CLI: one document, or lines that tell it anew piece by piece.
//!
//! In lines, a message that is told again replaces its first telling, `$rewindTo` takes back a
//! message and all behind it, and `$set` may replace the whole history. A turn holds its calls
//! together with their results; they are told in the shape of Chat Completions.

use std::collections::HashMap;

use super::reader::Session;
use super::{Format, Recording};
use crate::conversation::{Image, Message, Opaque, Part, Role, Source, ToolResult};
use crate::error::Error;
use crate::wire::scan::{Object, Value};

pub(super) struct Chat {
    recording: Recording,
    /// What each entry of the chat says.
    told: Vec<Vec<Message<'static>>>,
    place: HashMap<String, usize>,
}

impl Chat {
    pub(super) fn new() -> Self {
        Self { recording: Recording::new(Format::Gemini), told: Vec::new(), place: HashMap::new() }
    }

    fn message(&mut self, entry: &Object<'_>) {
        self.recording.set_model(entry.string("model"));
        let messages = messages(entry).into_iter().map(Message::into_owned).collect();
        match entry.string("id") {
            Some(id) => match self.place.get(id.as_ref()) {
                Some(&at) => self.told[at] = messages,
                None => {
                    self.place.insert(id.into_owned(), self.told.len());
                    self.told.push(messages);
                }
            },
            None => self.told.push(messages),
        }
    }

    fn head(&mut self, head: &Object<'_>) {
        if let Some(id) = head.string("sessionId") {
            self.recording.id = id.into_owned();
        }
        if head.get("messages").is_some_and(|list| list.is_array() && list.raw().len() > 2) {
            self.go_back(0);
            head.elements("messages").iter().for_each(|entry| self.message(entry));
        }
    }

    fn go_back(&mut self, keep: usize) {
        self.recording.left_out += self.told[keep..].iter().map(Vec::len).sum::<usize>();
        self.told.truncate(keep);
        self.place.retain(|_, &mut at| at < keep);
    }
}

impl Session for Chat {
    fn entry(&mut self, entry: &Object<'_>, _found: &mut Vec<Recording>) -> Result<(), Error> {
        if let Some(id) = entry.string("$rewindTo") {
            // A message that is not there any more means: everything.
            let keep = self.place.get(id.as_ref()).copied().unwrap_or(0);
            self.go_back(keep);
        } else if let Some(head) = entry.object("$set") {
            self.head(&head);
        } else if entry.get("type").is_some() {
            self.message(entry);
        } else if entry.get("sessionId").is_some() {
            self.head(entry);
        } else {
            return Err(Error::not_a_recording("neither a message nor a change of the chat"));
        }
        Ok(())
    }

    fn list(&self) -> Option<&'static str> {
        Some("messages")
    }

    fn wanted(&self) -> &'static [&'static str] {
        &["sessionId"]
    }

    fn field(&mut self, _key: &str, value: Value<'_>) {
        self.recording.id = value.string().unwrap_or_default().into_owned();
    }

    fn finish(mut self: Box<Self>, found: &mut Vec<Recording>) {
        self.recording.conversation.messages = self.told.into_iter().flatten().collect();
        found.push(self.recording);
    }
}

/// The messages of one entry: a turn is followed by its results. Notices of the client are none.
fn messages<'a>(entry: &Object<'a>) -> Vec<Message<'a>> {
    match entry.string("type").as_deref() {
        Some("user") => vec![Message::new(Role::User, content(entry.get("content")))],
        Some("gemini") => {
            let mut parts: Vec<Part<'a>> = entry.elements("thoughts").iter().map(thought).collect();
            parts.extend(content(entry.get("content")).into_iter().filter(|part| part.as_text() != Some("")));
            let calls = entry.elements("toolCalls");
            parts.extend(calls.iter().map(|call| {
                let arguments = call.get("args").map_or("{}", Value::raw);
                Part::call(call.string("id").unwrap_or_default(), call.string("name").unwrap_or_default(), arguments)
            }));
            let turn = (!parts.is_empty()).then(|| Message::new(Role::Assistant, parts));
            turn.into_iter().chain(calls.iter().filter_map(result)).collect()
        }
        _ => Vec::new(),
    }
}

/// The client keeps the heading of a thought apart from its text.
fn thought<'a>(it: &Object<'a>) -> Part<'a> {
    let (subject, description) = (it.string("subject"), it.string("description").unwrap_or_default());
    match subject.filter(|subject| !subject.is_empty()) {
        Some(subject) => Part::reasoning(format!("**{subject}** {description}")),
        None => Part::reasoning(description),
    }
}

fn result<'a>(call: &Object<'a>) -> Option<Message<'a>> {
    let content: Vec<Part<'a>> = call.get("result").map(|value| content(Some(value)))?;
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

/// A text, a part, or a list of them.
fn content<'a>(value: Option<Value<'a>>) -> Vec<Part<'a>> {
    let Some(value) = value else { return Vec::new() };
    match value.string() {
        Some(text) => vec![Part::text(text)],
        None if value.is_array() => value.elements().iter().map(part).collect(),
        None if value.is_object() => vec![part(&value.object())],
        None => Vec::new(),
    }
}

fn part<'a>(it: &Object<'a>) -> Part<'a> {
    if let Some(text) = it.value.string().or_else(|| it.string("text")) {
        return Part::text(text);
    }
    if let Some(response) = it.object("functionResponse").and_then(|it| it.get("response")) {
        let fields = response.is_object().then(|| response.object());
        let text = fields.and_then(|it| it.string("output").or_else(|| it.string("error")));
        return Part::text(text.unwrap_or_else(|| response.raw().into()));
    }
    if let Some(data) = it.object("inlineData") {
        let is_image = data.string("mimeType").is_some_and(|kind| kind.starts_with("image/"));
        let source = data.string("data").map_or(Source::Unknown, Source::Base64);
        if is_image {
            return Part::Image(Image { source, detail: None });
        }
    }
    let kind = it.fields().first().map(|field| field.key.clone()).unwrap_or_default();
    Part::Opaque(Opaque { kind, pair: None, raw: it.value.raw().into() })
}

#[cfg(test)]
pub(super) const SAMPLE: &str = r#"{
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
    {"id": "3", "type": "info", "content": "the client says"},
    {"id": "4", "type": "gemini", "content": "done"}
  ]
}
"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{only, read, shape};
    use super::*;

    #[test]
    fn a_turn_is_followed_by_the_results_that_it_holds() {
        let recording = only(SAMPLE);
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

    /// In lines a message is told again when its results are there, and may be taken back.
    #[test]
    fn lines_replace_take_back_and_set_what_was_told() {
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
        let recording = only(log);
        assert_eq!(shape(&recording), ["user: one", "assistant: answer", "user: three"]);
        assert_eq!(recording.left_out, 2);

        let set =
            log.to_owned() + "{\"$set\":{\"messages\":[{\"id\":\"9\",\"type\":\"user\",\"content\":\"anew\"}]}}\n";
        assert_eq!(shape(&only(&set)), ["user: anew"]);
    }

    #[test]
    fn a_document_that_breaks_off_gives_what_was_read_and_a_fault() {
        let cut = &SAMPLE[..SAMPLE.find("\"id\": \"3\"").unwrap()];
        let (recordings, faults) = read(cut);
        assert_eq!(shape(&recordings[0]).len(), 4);
        assert_eq!(faults, ["line 14: not a recorded session: it ends in the middle of a value"]);
    }
}
