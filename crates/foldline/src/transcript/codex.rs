//! Rollout files of Codex: items of the Responses API among events of the client.
//!
//! Each item is a message, as in the API's list. Events repeat the items for display and are skipped,
//! except for the one that rolls turns back. Files from before the envelope (`type` and `payload`)
//! contain the bare items.

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::{Message, Part, Role};
use crate::error::Error;
use crate::wire;
use crate::wire::json::scan::{JsonObject, JsonValue};

pub(crate) struct CodexRollout {
    recording: RecordedSession,
    /// Index of the first message of each user turn.
    turn_starts: Vec<usize>,
}

impl CodexRollout {
    pub(crate) fn new() -> Self {
        Self { recording: RecordedSession::new(LogFormat::Codex), turn_starts: Vec::new() }
    }

    fn read_metadata(&mut self, head: &JsonObject<'_>) {
        // A fork repeats the metadata of its parent session; the first entry is its own.
        if !self.recording.id.is_empty() {
            return;
        }
        self.recording.id = head.string("id").unwrap_or_default().into_owned();
        self.recording.set_origin(head.string("cwd"), head.string("timestamp"));
        let base = head.object("base_instructions").and_then(|object| object.string("text"));
        if let Some(text) = base.or_else(|| head.string("instructions")) {
            self.recording.conversation.system = vec![Part::text(text.into_owned())];
        }
        let spawned = head
            .object("source")
            .and_then(|object| object.object("subagent"))
            .and_then(|object| object.object("thread_spawn"));
        self.recording.parent = spawned.and_then(|object| object.string("parent_thread_id")).map(|id| id.into_owned());
    }

    fn push_item(&mut self, item: &JsonObject<'_>) {
        // A snapshot of the work tree for undo; the model never sees it.
        if item.string("type").as_deref() != Some("ghost_snapshot") {
            self.recording.push(wire::parse_message(wire::Format::OpenAiResponses, item));
        }
    }

    fn push_compaction(&mut self, compacted: &JsonObject<'_>) {
        self.recording.compactions += 1;
        match compacted.string("message").filter(|summary| !summary.is_empty()) {
            Some(summary) => self.recording.push(Message::text(Role::User, summary)),
            None => {
                // The replacement history repeats items; only its summary is new.
                let history = compacted.elements("replacement_history");
                let is_summary =
                    |item: &&JsonObject<'_>| item.string("type").is_some_and(|kind| kind.starts_with("compaction"));
                history.iter().filter(is_summary).for_each(|item| self.push_item(item));
            }
        }
    }

    fn read_event(&mut self, event: &JsonObject<'_>) {
        match event.string("type").as_deref() {
            Some("task_started" | "turn_started") => self.turn_starts.push(self.recording.conversation.messages.len()),
            Some("thread_rolled_back") => {
                let count =
                    event.get("num_turns").and_then(JsonValue::u64).and_then(|count| usize::try_from(count).ok());
                let keep = self.turn_starts.len().saturating_sub(count.unwrap_or(0));
                if let Some(&start) = self.turn_starts.get(keep) {
                    self.turn_starts.truncate(keep);
                    self.recording.truncate_to(start);
                }
            }
            _ => {}
        }
    }
}

impl SessionParser for CodexRollout {
    fn parse_entry(&mut self, line: &JsonObject<'_>, _found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        let kind = line.string("type");
        match (kind.as_deref(), line.object("payload")) {
            (Some("session_meta"), Some(head)) => {
                self.read_metadata(&head);
                self.recording.set_origin(None, line.string("timestamp"));
            }
            (Some("turn_context"), Some(context)) => self.recording.set_model(context.string("model")),
            (Some("response_item"), Some(item)) => self.push_item(&item),
            (Some("compacted"), Some(compacted)) => self.push_compaction(&compacted),
            (Some("event_msg"), Some(event)) => self.read_event(&event),
            (Some(_), Some(_)) => {}
            (Some("session_meta" | "turn_context" | "response_item" | "compacted" | "event_msg"), None) => {
                return Err(Error::not_a_recording("a line without a payload"));
            }
            (Some(_), None) => self.push_item(line),
            (None, _) if line.get("record_type").is_some() => {}
            (None, _) if line.get("id").is_some() => self.read_metadata(line),
            (None, _) => return Err(Error::not_a_recording("a line without a type")),
        }
        Ok(())
    }

    fn finish(self: Box<Self>, found: &mut Vec<RecordedSession>) {
        found.push(self.recording);
    }
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{"timestamp":"t","type":"session_meta","payload":{"id":"s1","cwd":"/x","base_instructions":{"text":"be good"}}}
{"timestamp":"t","type":"event_msg","payload":{"type":"task_started"}}
{"timestamp":"t","type":"turn_context","payload":{"model":"gpt-x"}}
{"timestamp":"t","type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"fix it"}]}}
{"timestamp":"t","type":"event_msg","payload":{"type":"user_message","message":"fix it"}}
{"timestamp":"t","type":"response_item","payload":{"type":"reasoning","summary":[],"encrypted_content":"xyz"}}
{"timestamp":"t","type":"response_item","payload":{"type":"function_call","name":"shell","arguments":"{\"cmd\": \"ls\"}","call_id":"c1"}}
{"timestamp":"t","type":"response_item","payload":{"type":"custom_tool_call","name":"apply_patch","input":"*** Begin","call_id":"c2"}}
{"timestamp":"t","type":"response_item","payload":{"type":"function_call_output","call_id":"c1","output":"a.rs"}}
{"timestamp":"t","type":"response_item","payload":{"type":"custom_tool_call_output","call_id":"c2","output":"ok"}}
{"timestamp":"t","type":"response_item","payload":{"type":"ghost_snapshot","ghost_commit":{}}}
"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one, shape};
    use super::*;

    #[test]
    fn items_are_messages_events_are_skipped() {
        let recording = read_one(SAMPLE);
        assert_eq!((recording.id.as_str(), recording.model()), ("s1", Some("gpt-x")));
        assert_eq!(recording.conversation.system, [Part::text("be good")]);
        assert_eq!(
            shape(&recording),
            [
                "user: fix it",
                "assistant: thought  sealed xyz",
                r#"assistant: call c1 shell {"cmd": "ls"}"#,
                "assistant: call c2 apply_patch text *** begin",
                "tool: result c1 a.rs",
                "tool: result c2 ok",
            ]
        );
    }

    fn message_line(role: &str, text: &str) -> String {
        format!(
            r#"{{"type":"response_item","payload":{{"type":"message","role":"{role}","content":[{{"type":"input_text","text":"{text}"}}]}}}}"#
        ) + "\n"
    }

    #[test]
    fn rolled_back_turns_are_omitted() {
        let started = "{\"type\":\"event_msg\",\"payload\":{\"type\":\"task_started\"}}\n";
        let log = started.to_owned()
            + &message_line("user", "one")
            + started
            + &message_line("user", "two")
            + &message_line("assistant", "no")
            + "{\"type\":\"event_msg\",\"payload\":{\"type\":\"thread_rolled_back\",\"num_turns\":1}}\n"
            + started
            + &message_line("user", "three");
        let recording = read_one(&log);
        assert_eq!(shape(&recording), ["user: one", "user: three"]);
        assert_eq!(recording.omitted_messages, 2);
    }

    /// The replacement history repeats items; only the summary is new, as text or encrypted.
    #[test]
    fn compaction_adds_only_its_summary() {
        let log = message_line("user", "one")
            + "{\"type\":\"compacted\",\"payload\":{\"message\":\"short\"}}\n"
            + "{\"type\":\"compacted\",\"payload\":{\"message\":\"\",\"replacement_history\":[{\"type\":\"message\",\"role\":\"user\",\"content\":\"one\"},{\"type\":\"compaction\",\"encrypted_content\":\"zzz\"}]}}\n";
        let recording = read_one(&log);
        assert_eq!(recording.compactions, 2);
        let messages = shape(&recording);
        assert_eq!(messages[..2], ["user: one", "user: short"]);
        assert!(messages.len() == 3 && messages[2].contains("zzz"), "{messages:?}");
    }

    #[test]
    fn old_files_without_envelope_are_read() {
        let log = r#"{"id":"old","timestamp":"t","instructions":"be good","git":{}}
{"record_type":"state"}
{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}
{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ho"}]}
"#;
        let recording = read_one(log);
        assert_eq!(
            (recording.id.as_str(), shape(&recording)),
            ("old", vec!["user: hi".into(), "assistant: ho".into()])
        );
    }

    #[test]
    fn line_without_payload_is_an_error() {
        let (_, errors) = read_all(&(SAMPLE.to_owned() + "{\"type\":\"response_item\"}\n"));
        assert_eq!(errors, ["line 12: not a recorded session: a line without a payload"]);
    }
}
