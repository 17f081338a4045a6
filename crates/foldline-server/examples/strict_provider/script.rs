//! The scripted model: it reads files with whatever tool the client offers for that, unfolds a marker at intervals,
//! starts sub-agents and writes summaries. It does not depend on time or randomness, so that two runs of a client get the
//! same responses.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

use foldline::engine::marker;
use foldline::wire::Request;
use serde_json::{Value, json};

use crate::responses::{ScriptedAnswer, ScriptedToolCall};

/// Name of the proxy's tool.
const UNFOLD_TOOL_NAME: &str = "unfold";
/// Calls between two turns that unfold.
const CALLS_BETWEEN_UNFOLDS: usize = 3;
/// Turns of a sub-agent.
const SUBTASK_TURNS: usize = 6;
/// Start of the prompt of a sub-agent; its number follows.
const SUBTASK_PREFIX: &str = "Subtask ";
/// Names of the tools that start a sub-agent.
const SUBTASK_TOOLS: [&str; 3] = ["Task", "Agent", "task"];
/// Text in the last message of a client that compacts its conversation.
const COMPACTION_PROMPTS: [&str; 2] = ["summary of the conversation", "CONTEXT CHECKPOINT COMPACTION"];

/// The settings of a session.
#[derive(Clone, Copy)]
pub(crate) struct ScriptOptions {
    /// Turns of the main conversation.
    pub(crate) turns: usize,
    /// Files that are read in one turn.
    pub(crate) reads_per_turn: usize,
    /// True if two sub-agents are started after a third of the turns.
    pub(crate) starts_subtasks: bool,
    /// Lines of the response to a request without tools.
    pub(crate) lines_without_tools: usize,
}

/// The model, with its progress in each conversation.
pub(crate) struct ModelScript {
    files: Vec<String>,
    options: ScriptOptions,
    conversations: HashMap<String, ConversationProgress>,
    /// Ids of the calls of responses that called nothing but the proxy's tool.
    hidden_ids: HashSet<String>,
    /// Ids issued so far.
    id_count: usize,
}

/// The progress in one conversation.
struct ConversationProgress {
    turn_limit: usize,
    /// Turns so far that called tools of the client.
    turn_count: usize,
    /// Turns so far that unfolded something.
    unfold_count: usize,
    /// The value of `turn_count` at the last of them.
    last_unfold_at: usize,
    has_subtasks: bool,
}

impl ModelScript {
    /// Reads the files of a folder in a cycle.
    pub(crate) fn for_folder(folder: &Path, options: ScriptOptions) -> io::Result<Self> {
        let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path().to_string_lossy().into_owned()));
        let mut files: Vec<String> = files.collect::<io::Result<_>>()?;
        files.sort();
        Ok(Self { files, options, conversations: HashMap::new(), hidden_ids: HashSet::new(), id_count: 0 })
    }

    /// Returns the id of a hidden call whose result is the last message: a round that the client does not see.
    pub(crate) fn hidden_round(&self, request: &Request<'_>) -> Option<String> {
        let last = request.conversation().messages.last()?;
        last.results().map(|result| result.call_id.to_string()).find(|id| self.hidden_ids.contains(id))
    }

    /// Returns the response to this request.
    pub(crate) fn next_answer(&mut self, request: &Request<'_>) -> ScriptedAnswer {
        let key = conversation_key(request);
        let tools = &request.conversation().tools;
        let has = |name: &str| tools.iter().any(|tool| tool.name == name);
        let limit = if key == "main" { self.options.turns } else { SUBTASK_TURNS };
        let progress = self.conversations.entry(key.clone()).or_insert_with(|| ConversationProgress {
            turn_limit: limit,
            turn_count: 0,
            unfold_count: 0,
            last_unfold_at: 0,
            has_subtasks: false,
        });
        if is_compaction(request) {
            progress.turn_limit = progress.turn_count + limit / 2;
            let text = "<summary>The files up to here were read; go on with the next ones.</summary>";
            return ScriptedAnswer { kind: "summary", text: text.into(), ..ScriptedAnswer::default() };
        }
        let Some(read) = READ_TOOLS.iter().find_map(|name| tools.iter().find(|tool| tool.name == *name)) else {
            return self.text_answer();
        };
        if progress.turn_count >= progress.turn_limit {
            return ScriptedAnswer { kind: "last", text: "All files were read.".into(), ..ScriptedAnswer::default() };
        }
        let subtask_tool = SUBTASK_TOOLS.into_iter().find(|name| has(name));
        let is_subtask_due = self.options.starts_subtasks && key == "main" && progress.turn_count == limit / 3;
        if let Some(name) = subtask_tool.filter(|_| is_subtask_due && !progress.has_subtasks) {
            progress.has_subtasks = true;
            let calls = (1..=2).map(|number| self.subtask_call(name, number)).collect();
            return ScriptedAnswer { kind: "subtasks", calls, ..ScriptedAnswer::default() };
        }
        // The last message with a marker; the example in the tool's description is not one.
        let messages = (0..).map_while(|at| request.raw_message(at));
        let last_marker = messages.filter_map(|message| marker::handles(message).last()).last();
        let handle = last_marker.filter(|_| has(UNFOLD_TOOL_NAME)).map(|handle| handle.to_string());
        let is_due = progress.turn_count >= progress.last_unfold_at + CALLS_BETWEEN_UNFOLDS;
        match handle.filter(|_| is_due) {
            Some(handle) => self.unfold_answer(&key, &read.name, &read.definition, &handle),
            None => {
                let turn = progress.turn_count;
                let text = format!("I read file {turn}. ");
                let reasoning = Some(format!("File {turn} is next."));
                let calls = self.read_calls(&key, &read.name, &read.definition);
                ScriptedAnswer { kind: "calls", reasoning, text, calls, ..ScriptedAnswer::default() }
            }
        }
    }

    /// Returns the response to a request without a tool that reads: a title, or the answer in a conversation without
    /// tools.
    fn text_answer(&self) -> ScriptedAnswer {
        match self.options.lines_without_tools {
            0 => ScriptedAnswer { kind: "aside", text: "Reading files".into(), ..ScriptedAnswer::default() },
            count => {
                let lines =
                    (0..count).map(|line| format!("Step {line} of the plan is number {} in the table.\n", line * 7));
                ScriptedAnswer { kind: "text", text: lines.collect(), ..ScriptedAnswer::default() }
            }
        }
    }

    /// Returns one of three variants in turn: alone after text, twice after reasoning, next to a client tool.
    fn unfold_answer(&mut self, key: &str, tool: &str, definition: &str, handle: &str) -> ScriptedAnswer {
        let whole = json!({ "handle": handle });
        let part = json!({ "handle": handle, "lines": "1..5" });
        let mut variant = 0;
        if let Some(progress) = self.conversations.get_mut(key) {
            variant = progress.unfold_count % 3;
            (progress.unfold_count, progress.last_unfold_at) = (progress.unfold_count + 1, progress.turn_count);
        }
        let text = "Let me look at that again. ".to_owned();
        let mut answer = match variant {
            0 => ScriptedAnswer {
                kind: "unfolds",
                text,
                calls: vec![self.call(UNFOLD_TOOL_NAME, part)],
                ..ScriptedAnswer::default()
            },
            1 => {
                let calls = vec![self.call(UNFOLD_TOOL_NAME, part), self.call(UNFOLD_TOOL_NAME, whole)];
                let reasoning = Some(format!("What was in {handle}?"));
                ScriptedAnswer { kind: "unfolds twice", reasoning, calls, ..ScriptedAnswer::default() }
            }
            _ => {
                let calls = vec![self.call(UNFOLD_TOOL_NAME, part)];
                let reasoning = Some(format!("What was in {handle}, and what is next?"));
                ScriptedAnswer { kind: "unfolds and calls", reasoning, text, calls, ..ScriptedAnswer::default() }
            }
        };
        match variant {
            2 => answer.calls.extend(self.read_calls(key, tool, definition)),
            _ => self.hidden_ids.extend(answer.calls.iter().map(|call| call.id.clone())),
        }
        answer
    }

    fn read_calls(&mut self, key: &str, tool: &str, definition: &str) -> Vec<ScriptedToolCall> {
        let count = self.options.reads_per_turn;
        let Some(progress) = self.conversations.get_mut(key) else { return Vec::new() };
        let first = progress.turn_count * count;
        progress.turn_count += 1;
        let arguments = |file: &String| read_arguments(tool, definition, file);
        let arguments: Vec<Value> = self.files.iter().cycle().skip(first).take(count).map(arguments).collect();
        arguments.into_iter().map(|arguments| self.call(tool, arguments)).collect()
    }

    fn subtask_call(&mut self, name: &str, number: usize) -> ScriptedToolCall {
        let kind = if name == "task" { "general" } else { "general-purpose" };
        let prompt = format!("{SUBTASK_PREFIX}{number}: read the files of part {number}, one after the other.");
        let arguments = json!({ "description": format!("Part {number}"), "prompt": prompt, "subagent_type": kind, "run_in_background": false });
        self.call(name, arguments)
    }

    fn call(&mut self, name: &str, arguments: Value) -> ScriptedToolCall {
        self.id_count += 1;
        ScriptedToolCall { id: format!("call_{:06}", self.id_count), name: name.to_owned(), arguments }
    }
}

/// Returns the name of the conversation: that of the sub-agent, if a message before the first response has its prompt.
pub(crate) fn conversation_key(request: &Request<'_>) -> String {
    let messages = request.conversation().messages.iter().take_while(|message| !message.is_assistant());
    let texts = messages.flat_map(|message| message.parts.iter().filter_map(|part| part.as_text()));
    let number = |text: &str| text.trim_start().strip_prefix(SUBTASK_PREFIX)?.chars().next();
    texts.filter_map(number).last().map_or_else(|| "main".to_owned(), |number| format!("subtask {number}"))
}

fn is_compaction(request: &Request<'_>) -> bool {
    let last = request.conversation().messages.last().filter(|message| !message.is_assistant());
    let mut texts = last.into_iter().flat_map(|message| message.parts.iter().filter_map(|part| part.as_text()));
    texts.any(|text| COMPACTION_PROMPTS.iter().any(|prompt| text.contains(prompt)))
}

/// Client tools that can read a file, best first.
const READ_TOOLS: [&str; 11] = [
    "read_file",
    "read_files",
    "Read",
    "read",
    "exec_command",
    "shell_command",
    "shell",
    "Bash",
    "bash",
    "execute_command",
    "run_commands",
];

/// Returns the arguments that read a file, by the parameters that the tool declares.
fn read_arguments(tool: &str, definition: &str, file: &str) -> Value {
    let declares = |name: &str| definition.contains(&format!("\"{name}\""));
    let command = format!("cat {file}");
    match tool {
        "exec_command" => json!({ "cmd": command }),
        "shell" => json!({ "command": ["cat", file] }),
        "Bash" | "bash" if declares("description") => json!({ "command": command, "description": "Reads a file" }),
        "shell_command" | "Bash" | "bash" => json!({ "command": command }),
        "execute_command" => json!({ "command": command, "requires_approval": false }),
        "run_commands" => json!({ "commands": [command] }),
        "read_files" => json!({ "files": [{ "path": file }] }),
        _ => {
            let name = ["file_path", "filePath", "absolute_path", "path"].into_iter().find(|name| declares(name));
            json!({ name.unwrap_or("path"): file })
        }
    }
}
