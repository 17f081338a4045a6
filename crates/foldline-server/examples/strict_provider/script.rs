//! The scripted model: it reads one file per turn with whatever tool the client offers for that, and unfolds a marker
//! at intervals. It does not depend on time or randomness, so that two runs of a client get the same responses.

use std::io;
use std::path::Path;

use foldline::marker;
use foldline::wire::Request;
use serde_json::{Value, json};

use crate::responses::{ScriptedAnswer, ScriptedToolCall};

/// Name of the proxy's tool.
const UNFOLD_TOOL_NAME: &str = "unfold";
/// Calls between two turns that unfold.
const CALLS_BETWEEN_UNFOLDS: usize = 3;

/// The progress of the model.
pub(crate) struct ModelScript {
    files: Vec<String>,
    turns: usize,
    /// Calls of the client's tools so far.
    call_count: usize,
    /// Turns so far that unfolded something.
    unfold_count: usize,
    /// The value of `call_count` at the last of them.
    last_unfold_at: usize,
    /// Ids issued so far.
    id_count: usize,
}

impl ModelScript {
    /// Reads the files of a folder in a cycle, for this many turns.
    pub(crate) fn for_folder(folder: &Path, turns: usize) -> io::Result<Self> {
        let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path().to_string_lossy().into_owned()));
        let mut files: Vec<String> = files.collect::<io::Result<_>>()?;
        files.sort();
        Ok(Self { files, turns, call_count: 0, unfold_count: 0, last_unfold_at: 0, id_count: 0 })
    }

    /// Returns the response to this request.
    pub(crate) fn next_answer(&mut self, request: &Request<'_>) -> ScriptedAnswer {
        let has = |name: &str| request.conversation().tools.iter().any(|tool| tool.name == name);
        let Some(tool) = READ_TOOLS.iter().find(|tool| has(tool.name)) else {
            return ScriptedAnswer { kind: "aside", text: "Reading files".into(), ..ScriptedAnswer::default() };
        };
        if self.call_count >= self.turns {
            return ScriptedAnswer { kind: "last", text: "All files were read.".into(), ..ScriptedAnswer::default() };
        }
        // The last message with a marker; the example in the tool's description is not one.
        let messages = (0..).map_while(|at| request.raw_message(at));
        let last_marker = messages.filter_map(|message| marker::handles(message).last()).last();
        let handle = last_marker.filter(|_| has(UNFOLD_TOOL_NAME)).map(|handle| handle.to_string());
        let is_due = self.call_count >= self.last_unfold_at + CALLS_BETWEEN_UNFOLDS;
        match handle.filter(|_| is_due) {
            Some(handle) => self.unfold_answer(tool, &handle),
            None => {
                let text = format!("I read file {}. ", self.call_count);
                let reasoning = Some(format!("File {} is next.", self.call_count));
                let calls = vec![self.read_call(tool)];
                ScriptedAnswer { kind: "calls", reasoning, text, calls, ..ScriptedAnswer::default() }
            }
        }
    }

    /// Returns one of three variants in turn: alone after text, twice after reasoning, next to a client tool.
    fn unfold_answer(&mut self, tool: &'static ReadTool, handle: &str) -> ScriptedAnswer {
        let whole = json!({ "handle": handle });
        let part = json!({ "handle": handle, "lines": "1..5" });
        let variant = self.unfold_count % 3;
        (self.unfold_count, self.last_unfold_at) = (self.unfold_count + 1, self.call_count);
        let text = "Let me look at that again. ".to_owned();
        match variant {
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
                let calls = vec![self.call(UNFOLD_TOOL_NAME, part), self.read_call(tool)];
                let reasoning = Some(format!("What was in {handle}, and what is next?"));
                ScriptedAnswer { kind: "unfolds and calls", reasoning, text, calls, ..ScriptedAnswer::default() }
            }
        }
    }

    fn read_call(&mut self, tool: &'static ReadTool) -> ScriptedToolCall {
        let file = self.files[self.call_count % self.files.len()].clone();
        self.call_count += 1;
        self.call(tool.name, (tool.arguments)(&file))
    }

    fn call(&mut self, name: &str, arguments: Value) -> ScriptedToolCall {
        self.id_count += 1;
        ScriptedToolCall { id: format!("call_{:06}", self.id_count), name: name.to_owned(), arguments }
    }
}

/// A client tool that can read a file.
struct ReadTool {
    name: &'static str,
    arguments: fn(&str) -> Value,
}

const READ_TOOLS: [ReadTool; 8] = [
    ReadTool { name: "read_file", arguments: |path| json!({ "path": path }) },
    ReadTool { name: "Read", arguments: |path| json!({ "file_path": path }) },
    ReadTool { name: "read", arguments: |path| json!({ "filePath": path }) },
    ReadTool { name: "exec_command", arguments: |path| json!({ "cmd": format!("cat {path}") }) },
    ReadTool { name: "shell_command", arguments: |path| json!({ "command": format!("cat {path}") }) },
    ReadTool { name: "shell", arguments: |path| json!({ "command": ["cat", path] }) },
    ReadTool {
        name: "Bash",
        arguments: |path| json!({ "command": format!("cat {path}"), "description": "Reads a file" }),
    },
    ReadTool {
        name: "bash",
        arguments: |path| json!({ "command": format!("cat {path}"), "description": "Reads a file" }),
    },
];
