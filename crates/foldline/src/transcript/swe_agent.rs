//! Trajectories of SWE-agent.
//!
//! `history` is the conversation as Chat Completions messages; `trajectory` repeats it with the complete
//! request at each step and is skipped. Results name their calls in a list.

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::Part;
use crate::error::Error;
use crate::wire;
use crate::wire::json::scan;
use crate::wire::json::scan::{JsonObject, JsonValue};

pub(crate) struct SweAgentTrajectory {
    recording: RecordedSession,
}

impl SweAgentTrajectory {
    pub(crate) fn new() -> Self {
        Self { recording: RecordedSession::new(LogFormat::SweAgent) }
    }
}

impl SessionParser for SweAgentTrajectory {
    fn parse_entry(&mut self, entry: &JsonObject<'_>, _found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        if entry.get("role").is_none() {
            return Err(Error::not_a_recording("a message without a role"));
        }
        let mut message = wire::parse_message(wire::Format::OpenAiChat, entry);
        if let Some(id) = entry.elements("tool_call_ids").first().and_then(|id| id.value.string()) {
            for part in &mut message.parts {
                if let Part::ToolResult(result) = part {
                    result.call_id.clone_from(&id);
                }
            }
        }
        self.recording.push(message);
        Ok(())
    }

    fn entries_field(&self) -> Option<&'static str> {
        Some("history")
    }

    fn metadata_fields(&self) -> &'static [&'static str] {
        &["replay_config"]
    }

    /// Parses the settings of the run, an object or JSON inside a string.
    fn parse_metadata(&mut self, _key: &str, value: JsonValue<'_>) {
        let text = value.string().unwrap_or_else(|| value.raw().into());
        let Ok(settings) = scan::parse_document(&text) else { return };
        let model = settings.object().object("agent").and_then(|object| object.object("model"));
        // A replayed run names the replay model.
        let name = model.and_then(|object| object.string("name")).filter(|name| name != "replay");
        self.recording.set_model(name);
    }

    fn finish(self: Box<Self>, found: &mut Vec<RecordedSession>) {
        found.push(self.recording);
    }
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{
  "environment": "main",
  "trajectory": [{"action": "ls", "messages": [{"role": "system", "content": "never read"}]}],
  "history": [
    {"role": "system", "content": "rules", "agent": "main", "message_type": "system_prompt"},
    {"role": "user", "content": [{"type": "text", "text": "fix"}], "agent": "main"},
    {"role": "assistant", "content": "I look", "thought": "I look", "action": "ls",
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\":\"ls\"}"}}]},
    {"role": "tool", "content": [{"type": "text", "text": "a.py"}], "tool_call_ids": ["c1"]}
  ],
  "info": {},
  "replay_config": "{\"agent\":{\"model\":{\"name\":\"m-1\"}}}"
}"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one, shape};
    use super::*;

    #[test]
    fn history_is_the_conversation_with_listed_call_ids() {
        let recording = read_one(SAMPLE);
        assert_eq!((recording.id.as_str(), recording.model()), ("input", Some("m-1")));
        assert_eq!(
            shape(&recording),
            [
                "system: rules",
                "user: fix",
                r#"assistant: i look | call c1 bash {"command":"ls"}"#,
                "tool: result c1 a.py"
            ]
        );
    }

    #[test]
    fn entry_without_role_is_an_error_with_its_line() {
        let (recordings, errors) = read_all(&SAMPLE.replace(r#""role": "user", "#, ""));
        assert_eq!(shape(&recordings[0]).len(), 3);
        assert_eq!(errors, ["line 6: not a recorded session: a message without a role"]);
    }

    #[test]
    fn settings_may_be_an_object_replay_model_is_ignored() {
        let model_with = |settings: &str| {
            let at = SAMPLE.find("\"replay_config\"").unwrap();
            read_one(&format!("{}\"replay_config\": {settings}}}", &SAMPLE[..at])).model().map(str::to_owned)
        };
        assert_eq!(model_with(r#"{"agent":{"model":{"name":"m-2"}}}"#).as_deref(), Some("m-2"));
        assert_eq!(model_with(r#"{"agent":{"model":{"name":"replay"}}}"#), None);
    }
}
