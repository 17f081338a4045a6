//! What the model does: it reads one file a turn with whatever tool the client offers for that, and
//! unfolds now and then what it was told is folded. Nothing here looks at time or chance, so that two
//! runs of a client see the same model.

use std::io;
use std::path::Path;

use foldline::marker;
use foldline::wire::Request;
use serde_json::{Value, json};

use crate::responses::{ScriptedAnswer, ScriptedToolCall};

/// The tool of the proxy's.
const UNFOLD_TOOL_NAME: &str = "unfold";
/// Between two turns in which something is unfolded.
const CALLS_BETWEEN_UNFOLDS: usize = 3;

/// Where the model is in its work.
pub(crate) struct ModelScript {
    files: Vec<String>,
    turns: usize,
    /// Calls of the client's tools so far.
    call_count: usize,
    /// Turns in which something was unfolded so far.
    unfold_count: usize,
    /// The value of `called` at the last of them.
    last_unfold_at: usize,
    /// Ids that were given out.
    id_count: usize,
}

impl ModelScript {
    /// Reads the files of a folder, over and over, in so many turns.
    pub(crate) fn for_folder(folder: &Path, turns: usize) -> io::Result<Self> {
        let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path().to_string_lossy().into_owned()));
        let mut files: Vec<String> = files.collect::<io::Result<_>>()?;
        files.sort();
        Ok(Self { files, turns, call_count: 0, unfold_count: 0, last_unfold_at: 0, id_count: 0 })
    }

    /// What the model answers to this request.
    pub(crate) fn next_answer(&mut self, request: &Request<'_>) -> ScriptedAnswer {
        let has = |name: &str| request.conversation().tools.iter().any(|tool| tool.name == name);
        let Some(tool) = READ_TOOLS.iter().find(|it| has(it.name)) else {
            return ScriptedAnswer { kind: "aside", text: "Reading files".into(), ..ScriptedAnswer::default() };
        };
        if self.call_count >= self.turns {
            return ScriptedAnswer { kind: "last", text: "All files were read.".into(), ..ScriptedAnswer::default() };
        }
        // The last message with a marker; the description of the tool shows one as well, which is none.
        let told = (0..).map_while(|at| request.raw_message(at)).filter_map(|it| marker::handles(it).last()).last();
        let handle = told.filter(|_| has(UNFOLD_TOOL_NAME)).map(|it| it.to_string());
        let is_due = self.call_count >= self.last_unfold_at + CALLS_BETWEEN_UNFOLDS;
        match handle.filter(|_| is_due) {
            Some(handle) => self.unfold_answer(tool, &handle),
            None => {
                let text = format!("I read file {}. ", self.call_count);
                let thought = Some(format!("File {} is next.", self.call_count));
                let calls = vec![self.read_call(tool)];
                ScriptedAnswer { kind: "calls", reasoning: thought, text, calls, ..ScriptedAnswer::default() }
            }
        }
    }

    /// Three ways in turn: alone behind some text, twice behind a thought, beside a tool of the client's.
    fn unfold_answer(&mut self, tool: &'static ReadTool, handle: &str) -> ScriptedAnswer {
        let whole = json!({ "handle": handle });
        let part = json!({ "handle": handle, "lines": "1..5" });
        let way = self.unfold_count % 3;
        (self.unfold_count, self.last_unfold_at) = (self.unfold_count + 1, self.call_count);
        let text = "Let me look at that again. ".to_owned();
        match way {
            0 => ScriptedAnswer {
                kind: "unfolds",
                text,
                calls: vec![self.call(UNFOLD_TOOL_NAME, part)],
                ..ScriptedAnswer::default()
            },
            1 => {
                let calls = vec![self.call(UNFOLD_TOOL_NAME, part), self.call(UNFOLD_TOOL_NAME, whole)];
                let thought = Some(format!("What was in {handle}?"));
                ScriptedAnswer { kind: "unfolds twice", reasoning: thought, calls, ..ScriptedAnswer::default() }
            }
            _ => {
                let calls = vec![self.call(UNFOLD_TOOL_NAME, part), self.read_call(tool)];
                let thought = Some(format!("What was in {handle}, and what is next?"));
                ScriptedAnswer {
                    kind: "unfolds and calls",
                    reasoning: thought,
                    text,
                    calls,
                    ..ScriptedAnswer::default()
                }
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

/// A client's tool by which a file can be read.
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
