//! Rollout files of Codex: items of the Responses API among events of the client.
//!
//! Each item is a message, as in the API's own list. Events repeat for the screen what the items
//! say and are passed over, except for one that takes turns back. Files from before the envelope
//! (`type` and `payload`) hold the bare items.

use super::reader::Session;
use super::{Format, Recording};
use crate::conversation::{Message, Part, Role};
use crate::error::Error;
use crate::wire;
use crate::wire::scan::{Object, Value};

pub(super) struct Rollout {
    recording: Recording,
    /// Where each turn of the user began.
    turns: Vec<usize>,
}

impl Rollout {
    pub(super) fn new() -> Self {
        Self { recording: Recording::new(Format::Codex), turns: Vec::new() }
    }

    fn head(&mut self, head: &Object<'_>) {
        // A fork repeats the head of the session it came from; the first one is its own.
        if !self.recording.id.is_empty() {
            return;
        }
        self.recording.id = head.string("id").unwrap_or_default().into_owned();
        let base = head.object("base_instructions").and_then(|it| it.string("text"));
        if let Some(text) = base.or_else(|| head.string("instructions")) {
            self.recording.conversation.system = vec![Part::text(text.into_owned())];
        }
        let spawned =
            head.object("source").and_then(|it| it.object("subagent")).and_then(|it| it.object("thread_spawn"));
        self.recording.parent = spawned.and_then(|it| it.string("parent_thread_id")).map(|id| id.into_owned());
    }

    fn item(&mut self, item: &Object<'_>) {
        // A snapshot of the work tree, kept for undoing; the model never sees it.
        if item.string("type").as_deref() != Some("ghost_snapshot") {
            self.recording.push(wire::message(wire::Format::OpenAiResponses, item));
        }
    }

    fn compacted(&mut self, compacted: &Object<'_>) {
        self.recording.compactions += 1;
        match compacted.string("message").filter(|summary| !summary.is_empty()) {
            Some(summary) => self.recording.push(Message::text(Role::User, summary)),
            None => {
                // The history that replaces the old one repeats items; only its summary is new.
                let kept = compacted.elements("replacement_history");
                let is_summary =
                    |it: &&Object<'_>| it.string("type").is_some_and(|kind| kind.starts_with("compaction"));
                kept.iter().filter(is_summary).for_each(|item| self.item(item));
            }
        }
    }

    fn event(&mut self, event: &Object<'_>) {
        match event.string("type").as_deref() {
            Some("task_started" | "turn_started") => self.turns.push(self.recording.conversation.messages.len()),
            Some("thread_rolled_back") => {
                let count = event.get("num_turns").and_then(Value::u64).and_then(|it| usize::try_from(it).ok());
                let keep = self.turns.len().saturating_sub(count.unwrap_or(0));
                if let Some(&start) = self.turns.get(keep) {
                    self.turns.truncate(keep);
                    self.recording.go_back(start);
                }
            }
            _ => {}
        }
    }
}

impl Session for Rollout {
    fn entry(&mut self, line: &Object<'_>, _found: &mut Vec<Recording>) -> Result<(), Error> {
        let kind = line.string("type");
        match (kind.as_deref(), line.object("payload")) {
            (Some("session_meta"), Some(head)) => self.head(&head),
            (Some("turn_context"), Some(context)) => self.recording.set_model(context.string("model")),
            (Some("response_item"), Some(item)) => self.item(&item),
            (Some("compacted"), Some(compacted)) => self.compacted(&compacted),
            (Some("event_msg"), Some(event)) => self.event(&event),
            (Some(_), Some(_)) => {}
            (Some("session_meta" | "turn_context" | "response_item" | "compacted" | "event_msg"), None) => {
                return Err(Error::not_a_recording("a line without a payload"));
            }
            (Some(_), None) => self.item(line),
            (None, _) if line.get("record_type").is_some() => {}
            (None, _) if line.get("id").is_some() => self.head(line),
            (None, _) => return Err(Error::not_a_recording("a line without a type")),
        }
        Ok(())
    }

    fn finish(self: Box<Self>, found: &mut Vec<Recording>) {
        found.push(self.recording);
    }
}

#[cfg(test)]
pub(super) const SAMPLE: &str = r#"{"timestamp":"t","type":"session_meta","payload":{"id":"s1","cwd":"/x","base_instructions":{"text":"be good"}}}
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
    use super::super::tests::{only, read, shape};
    use super::*;

    #[test]
    fn items_are_messages_and_events_are_not() {
        let recording = only(SAMPLE);
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

    fn said(role: &str, text: &str) -> String {
        format!(
            r#"{{"type":"response_item","payload":{{"type":"message","role":"{role}","content":[{{"type":"input_text","text":"{text}"}}]}}}}"#
        ) + "\n"
    }

    #[test]
    fn turns_that_were_rolled_back_are_left_out() {
        let started = "{\"type\":\"event_msg\",\"payload\":{\"type\":\"task_started\"}}\n";
        let log = started.to_owned()
            + &said("user", "one")
            + started
            + &said("user", "two")
            + &said("assistant", "no")
            + "{\"type\":\"event_msg\",\"payload\":{\"type\":\"thread_rolled_back\",\"num_turns\":1}}\n"
            + started
            + &said("user", "three");
        let recording = only(&log);
        assert_eq!(shape(&recording), ["user: one", "user: three"]);
        assert_eq!(recording.left_out, 2);
    }

    /// What replaces the history repeats it; only the summary is new, as text or sealed.
    #[test]
    fn a_compaction_adds_its_summary_alone() {
        let log = said("user", "one")
            + "{\"type\":\"compacted\",\"payload\":{\"message\":\"short\"}}\n"
            + "{\"type\":\"compacted\",\"payload\":{\"message\":\"\",\"replacement_history\":[{\"type\":\"message\",\"role\":\"user\",\"content\":\"one\"},{\"type\":\"compaction\",\"encrypted_content\":\"zzz\"}]}}\n";
        let recording = only(&log);
        assert_eq!(recording.compactions, 2);
        let seen = shape(&recording);
        assert_eq!(seen[..2], ["user: one", "user: short"]);
        assert!(seen.len() == 3 && seen[2].contains("zzz"), "{seen:?}");
    }

    #[test]
    fn files_from_before_the_envelope_hold_bare_items() {
        let log = r#"{"id":"old","timestamp":"t","instructions":"be good","git":{}}
{"record_type":"state"}
{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}
{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ho"}]}
"#;
        let recording = only(log);
        assert_eq!(
            (recording.id.as_str(), shape(&recording)),
            ("old", vec!["user: hi".into(), "assistant: ho".into()])
        );
    }

    #[test]
    fn a_line_without_its_payload_is_a_fault() {
        let (_, faults) = read(&(SAMPLE.to_owned() + "{\"type\":\"response_item\"}\n"));
        assert_eq!(faults, ["line 12: not a recorded session: a line without a payload"]);
    }
}
