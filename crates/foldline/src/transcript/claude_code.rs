//! Session files of Claude Code: one line for each content block, hook, snapshot and notice.
//!
//! Lines of one assistant turn share a message id, even with results of its first calls between them;
//! they are merged into one message. The user lines after it (results, prompts, command texts) are one
//! user message with the results first, as the client sends it. A side chain is a separate recording.
//! When the user goes back and sends another prompt, the answers to the first one are omitted. Error
//! notices of the client are not part of the conversation.

use std::collections::{HashMap, HashSet};

use super::session_parser::SessionParser;
use super::{LogFormat, RecordedSession};
use crate::conversation::{Message, Part, Role};
use crate::error::Error;
use crate::wire;
use crate::wire::json::scan::{JsonObject, JsonValue};

#[derive(Default)]
pub(crate) struct ClaudeCodeLog {
    session_id: String,
    main: ClaudeCodeChain,
    side_chains: Vec<ClaudeCodeChain>,
    /// Index of the side chain for an agent id, or for the id of one of its lines.
    side_of: HashMap<String, usize>,
    /// Ids of the lines read so far, because a resumed session can repeat lines.
    seen: HashSet<String>,
}

/// A conversation that is built line by line.
struct ClaudeCodeChain {
    recording: RecordedSession,
    agent_id: Option<String>,
    /// The current assistant turn: its message id and its index.
    turn: Option<(String, usize)>,
    /// True if the next user text belongs to the last message.
    extends_user_message: bool,
    /// True after the line of a compaction, until its summary is read.
    awaits_summary: bool,
    /// State of the conversation before each prompt, by the id of the prompt's parent line.
    branch_points: HashMap<String, BranchPoint>,
}

#[derive(Clone, Copy)]
struct BranchPoint {
    message_count: usize,
    last_message_parts: usize,
}

impl Default for ClaudeCodeChain {
    fn default() -> Self {
        Self {
            recording: RecordedSession::new(LogFormat::ClaudeCode),
            agent_id: None,
            turn: None,
            extends_user_message: false,
            awaits_summary: false,
            branch_points: HashMap::new(),
        }
    }
}

impl SessionParser for ClaudeCodeLog {
    fn parse_entry(&mut self, line: &JsonObject<'_>, _found: &mut Vec<RecordedSession>) -> Result<(), Error> {
        let Some(kind) = line.string("type") else { return Err(Error::not_a_recording("a line without a type")) };
        if self.session_id.is_empty() {
            self.session_id = line.string("sessionId").unwrap_or_default().into_owned();
        }
        let is_compaction = kind == "system" && matches!(line.string("subtype").as_deref(), Some("compact_boundary"));
        if !matches!(kind.as_ref(), "user" | "assistant" | "attachment") && !is_compaction {
            return Ok(());
        }
        if line.string("uuid").is_some_and(|uuid| !self.seen.insert(uuid.into_owned())) {
            return Ok(());
        }
        let chain = self.chain_for(line);
        if chain.recording.date.is_none() || chain.recording.project.is_none() {
            chain.recording.set_origin(line.string("cwd"), line.string("timestamp"));
        }
        if is_compaction {
            chain.record_compaction();
            chain.awaits_summary = true;
            return Ok(());
        }
        if kind == "attachment" {
            // The client renders most attachments in ways that the log does not contain. Prompts
            // that the user typed while the agent was working are here unchanged.
            let attachment = line.object("attachment");
            let queued = attachment.filter(|attachment| attachment.string("type").as_deref() == Some("queued_command"));
            if let Some(prompt) = queued.and_then(|attachment| attachment.string("prompt")) {
                chain.push_user_parts(vec![Part::text(prompt.into_owned())]);
            }
            return Ok(());
        }
        let Some(message) = line.object("message").filter(|message| message.get("content").is_some()) else {
            return Err(Error::not_a_recording(format_args!("a line of type {kind} without a message")));
        };
        match kind.as_ref() {
            "assistant" => chain.push_assistant_line(line, &message),
            _ => chain.push_user_line(line, &message),
        }
        Ok(())
    }

    fn finish(self: Box<Self>, found: &mut Vec<RecordedSession>) {
        let ClaudeCodeLog { session_id, mut main, mut side_chains, .. } = *self;
        for chain in side_chains.iter_mut().chain([&mut main]) {
            for message in &mut chain.recording.conversation.messages {
                // Results come before everything else in their message.
                message.parts.sort_by_key(|part| message.role == Role::User && !matches!(part, Part::ToolResult(_)));
            }
        }
        if side_chains.is_empty() || !main.recording.conversation.messages.is_empty() {
            found.push(RecordedSession { id: session_id.clone(), ..main.recording });
        }
        found.extend(side_chains.into_iter().enumerate().map(|(at, side)| RecordedSession {
            id: side.agent_id.unwrap_or_else(|| format!("{session_id}/side-{}", at + 1)),
            parent: Some(session_id.clone()),
            ..side.recording
        }));
    }
}

impl ClaudeCodeLog {
    fn chain_for(&mut self, line: &JsonObject<'_>) -> &mut ClaudeCodeChain {
        if !bool_field(line, "isSidechain") {
            return &mut self.main;
        }
        let agent_id = line.string("agentId");
        let parent = line.string("parentUuid");
        let known = agent_id.as_ref().or(parent.as_ref()).and_then(|key| self.side_of.get(key.as_ref()).copied());
        let at = known.unwrap_or_else(|| {
            self.side_chains.push(ClaudeCodeChain {
                agent_id: agent_id.as_deref().map(str::to_owned),
                ..ClaudeCodeChain::default()
            });
            self.side_chains.len() - 1
        });
        for key in [agent_id, line.string("uuid")].into_iter().flatten() {
            self.side_of.insert(key.into_owned(), at);
        }
        &mut self.side_chains[at]
    }
}

impl ClaudeCodeChain {
    fn push_assistant_line(&mut self, line: &JsonObject<'_>, message: &JsonObject<'_>) {
        if bool_field(line, "isApiErrorMessage") {
            self.recording.omitted_messages += 1;
            return;
        }
        self.recording.set_model(message.string("model").filter(|model| model != "<synthetic>"));
        let id = message.string("id").unwrap_or_default();
        let message = wire::parse_message(wire::Format::Anthropic, message);
        if message.parts.is_empty() {
            return;
        }
        match &self.turn {
            Some((turn, at)) if *turn == id => {
                let parts = message.parts.into_iter().map(Part::into_owned);
                self.recording.conversation.messages[*at].parts.extend(parts);
            }
            _ => {
                self.turn = Some((id.into_owned(), self.recording.conversation.messages.len()));
                self.recording.push(message);
            }
        }
    }

    fn push_user_line(&mut self, line: &JsonObject<'_>, message: &JsonObject<'_>) {
        let message = wire::parse_message(wire::Format::Anthropic, message).into_owned();
        if bool_field(line, "isCompactSummary") {
            if !std::mem::take(&mut self.awaits_summary) {
                self.record_compaction();
            }
            self.recording.push(message);
            return;
        }
        if bool_field(line, "isVisibleInTranscriptOnly") {
            return;
        }
        let is_prompt = !message.has_results() && !bool_field(line, "isMeta");
        if let Some(parent) = line.string("parentUuid").filter(|_| is_prompt) {
            match self.branch_points.get(parent.as_ref()).copied() {
                Some(point) => self.rewind_to(point),
                None => {
                    let point = self.branch_point();
                    self.branch_points.insert(parent.into_owned(), point);
                }
            }
        }
        self.push_user_parts(message.parts);
    }

    /// Adds parts to the user message at the end, or as a new message.
    fn push_user_parts(&mut self, parts: Vec<Part<'static>>) {
        if parts.is_empty() {
            return;
        }
        match self.recording.conversation.messages.last_mut() {
            Some(last) if self.extends_user_message && last.role == Role::User => {
                last.parts.extend(parts);
            }
            _ => self.recording.push(Message::new(Role::User, parts)),
        }
        self.extends_user_message = true;
    }

    fn record_compaction(&mut self) {
        self.recording.compactions += 1;
        self.turn = None;
        self.extends_user_message = false;
    }

    fn branch_point(&self) -> BranchPoint {
        let messages = &self.recording.conversation.messages;
        BranchPoint {
            message_count: messages.len(),
            last_message_parts: messages.last().map_or(0, |last| last.parts.len()),
        }
    }

    fn rewind_to(&mut self, point: BranchPoint) {
        if point.message_count > self.recording.conversation.messages.len() {
            return;
        }
        self.recording.truncate_to(point.message_count);
        if let Some(last) = self.recording.conversation.messages.last_mut() {
            last.parts.truncate(point.last_message_parts);
        }
        self.turn = None;
    }
}

fn bool_field(line: &JsonObject<'_>, key: &str) -> bool {
    line.get(key).and_then(JsonValue::bool).unwrap_or(false)
}

#[cfg(test)]
pub(crate) const SAMPLE: &str = r#"{"type":"file-history-snapshot","messageId":"1","snapshot":{}}
{"parentUuid":null,"isSidechain":false,"sessionId":"s1","type":"user","message":{"role":"user","content":"look around"},"uuid":"u1"}
{"parentUuid":"u1","isSidechain":false,"sessionId":"s1","type":"user","isMeta":true,"message":{"role":"user","content":[{"type":"text","text":"(of a command)"}]},"uuid":"u2"}
{"parentUuid":"u2","sessionId":"s1","type":"assistant","message":{"id":"m1","model":"claude-x","role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"sig"}]},"uuid":"a1"}
{"parentUuid":"a1","sessionId":"s1","type":"assistant","message":{"id":"m1","model":"claude-x","role":"assistant","content":[{"type":"tool_use","id":"c1","name":"Read","input":{ "path" : "a" }}]},"uuid":"a2"}
{"parentUuid":"a2","sessionId":"s1","type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"A"}]},"uuid":"r1"}
{"parentUuid":"a2","sessionId":"s1","type":"progress","data":{"type":"hook_progress"},"uuid":"p1"}
{"parentUuid":"a2","sessionId":"s1","type":"assistant","message":{"id":"m1","model":"claude-x","role":"assistant","content":[{"type":"tool_use","id":"c2","name":"Shot","input":{}}]},"uuid":"a3"}
{"parentUuid":"r1","sessionId":"s1","type":"attachment","attachment":{"type":"queued_command","prompt":"also this"},"uuid":"q1"}
{"parentUuid":"a3","sessionId":"s1","type":"user","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c2","is_error":true,"content":[{"type":"text","text":"no"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"aGk="}}]}]},"uuid":"r2"}
{"parentUuid":"r2","sessionId":"s1","type":"assistant","message":{"id":"m2","model":"claude-x","role":"assistant","content":[{"type":"text","text":"done"}]},"uuid":"a4"}
"#;

#[cfg(test)]
mod tests {
    use super::super::tests::{read_all, read_one, shape};
    use super::*;

    /// The log has a result between the lines of one turn, and user text before the last result; the
    /// client sends one turn, then one user message with the results first.
    #[test]
    fn lines_of_a_turn_are_merged_into_one_message() {
        let recording = read_one(SAMPLE);
        assert_eq!((recording.id.as_str(), recording.model()), ("s1", Some("claude-x")));
        assert_eq!(
            shape(&recording),
            [
                "user: look around | (of a command)",
                r#"assistant: thought hm sealed sig | call c1 read { "path" : "a" } | call c2 shot {}"#,
                "user: result c1 a | error c2 no | image data agk= | also this",
                "assistant: done",
            ]
        );
        assert_eq!(recording.error_call_ids().collect::<Vec<_>>(), ["c2"]);
    }

    fn user(uuid: &str, parent: &str, more: &str, text: &str) -> String {
        format!(
            r#"{{"type":"user","sessionId":"s","uuid":"{uuid}","parentUuid":"{parent}"{more},"message":{{"role":"user","content":"{text}"}}}}"#
        ) + "\n"
    }

    fn assistant(uuid: &str, more: &str, text: &str) -> String {
        format!(
            r#"{{"type":"assistant","sessionId":"s","uuid":"{uuid}"{more},"message":{{"id":"{uuid}","role":"assistant","content":[{{"type":"text","text":"{text}"}}]}}}}"#
        ) + "\n"
    }

    #[test]
    fn compaction_summary_is_a_separate_message() {
        let boundary = r#"{"type":"system","subtype":"compact_boundary","uuid":"b","sessionId":"s"}"#;
        let log = user("1", "0", "", "task")
            + boundary
            + "\n"
            + &user("2", "b", r#","isCompactSummary":true,"isVisibleInTranscriptOnly":true"#, "summary")
            + &user("3", "2", "", "go on")
            + &assistant("4", "", "yes")
            + &user("5", "4", r#","isCompactSummary":true"#, "old style summary");
        let recording = read_one(&log);
        assert_eq!(
            shape(&recording),
            ["user: task", "user: summary", "user: go on", "assistant: yes", "user: old style summary"]
        );
        assert_eq!(recording.compactions, 2);
    }

    #[test]
    fn side_chain_is_a_separate_session() {
        let log = user("1", "0", "", "task")
            + &user("s1", "x", r#","isSidechain":true,"agentId":"ag""#, "sub task")
            + &assistant("2", "", "waiting")
            + &assistant("s2", r#","isSidechain":true,"agentId":"ag","parentUuid":"s1""#, "sub answer")
            + &user("t1", "y", r#","isSidechain":true"#, "other task")
            + &assistant("t2", r#","isSidechain":true,"parentUuid":"t1""#, "other answer");
        let (recordings, errors) = read_all(&log);
        assert!(errors.is_empty());
        let sessions: Vec<_> =
            recordings.iter().map(|session| (session.id.as_str(), session.parent.as_deref(), shape(session))).collect();
        assert_eq!(
            sessions,
            [
                ("s", None, vec!["user: task".to_owned(), "assistant: waiting".to_owned()]),
                ("ag", Some("s"), vec!["user: sub task".to_owned(), "assistant: sub answer".to_owned()]),
                ("s/side-2", Some("s"), vec!["user: other task".to_owned(), "assistant: other answer".to_owned()]),
            ]
        );
    }

    /// Two prompts with the same parent line: the user went back and sent another prompt.
    #[test]
    fn answers_on_an_abandoned_branch_are_omitted() {
        let log = user("1", "0", "", "task")
            + &assistant("2", "", "ready")
            + &user("3", "2", "", "wrong way")
            + &assistant("4", "", "going wrong")
            + &user("5", "2", "", "right way")
            + &assistant("6", "", "going right");
        let recording = read_one(&log);
        assert_eq!(shape(&recording), ["user: task", "assistant: ready", "user: right way", "assistant: going right"]);
        assert_eq!(recording.omitted_messages, 2);
    }

    #[test]
    fn client_notices_and_repeated_lines_are_skipped() {
        let log = user("1", "0", "", "task")
            + &assistant("2", r#","isApiErrorMessage":true"#, "API Error")
            + &user("1", "0", "", "task")
            + &assistant("3", "", "fine");
        let recording = read_one(&log);
        assert_eq!(shape(&recording), ["user: task", "assistant: fine"]);
        assert_eq!(recording.omitted_messages, 1);
    }

    #[test]
    fn missing_content_is_an_error_empty_content_is_skipped() {
        let empty = r#"{"type":"user","sessionId":"s","uuid":"2","message":{"role":"user","content":[]}}"#;
        let broken = r#"{"type":"assistant","sessionId":"s","uuid":"3","message":{"role":"assistant"}}"#;
        let (recordings, errors) = read_all(&format!("{}{empty}\n{broken}\n", user("1", "0", "", "task")));
        assert_eq!(shape(&recordings[0]), ["user: task"]);
        assert_eq!(errors, ["line 3: not a recorded session: a line of type assistant without a message"]);
    }

    #[test]
    fn damaged_line_is_reported_and_others_are_read() {
        let (recordings, errors) =
            read_all(&(user("1", "0", "", "task") + "{\"type\":\"assis\n\n" + &assistant("2", "", "fine")));
        assert_eq!(shape(&recordings[0]), ["user: task", "assistant: fine"]);
        assert_eq!(errors, ["line 2: not JSON: a string without an end at byte 14"]);
    }
}
