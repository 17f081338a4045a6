//! What the model does: it reads one file a turn with whatever tool the client offers for that, and
//! unfolds now and then what it was told is folded. Nothing here looks at time or chance, so that two
//! runs of a client see the same model.

use std::io;
use std::path::Path;

use foldline::marker;
use foldline::wire::Request;
use serde_json::{Value, json};

use crate::speak::{Answer, Call};

/// The tool of the proxy's.
const UNFOLD: &str = "unfold";
/// Between two turns in which something is unfolded.
const UNFOLDS_EVERY: usize = 3;

/// Where the model is in its work.
pub(crate) struct Script {
    files: Vec<String>,
    turns: usize,
    /// Calls of the client's tools so far.
    called: usize,
    /// Turns in which something was unfolded so far.
    unfolded: usize,
    /// The value of `called` at the last of them.
    unfolded_at: usize,
    /// Ids that were given out.
    ids: usize,
}

impl Script {
    /// Reads the files of a folder, over and over, in so many turns.
    pub(crate) fn over(folder: &Path, turns: usize) -> io::Result<Self> {
        let files = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path().to_string_lossy().into_owned()));
        let mut files: Vec<String> = files.collect::<io::Result<_>>()?;
        files.sort();
        Ok(Self { files, turns, called: 0, unfolded: 0, unfolded_at: 0, ids: 0 })
    }

    /// What the model answers to this request.
    pub(crate) fn next(&mut self, request: &Request<'_>) -> Answer {
        let has = |name: &str| request.conversation().tools.iter().any(|tool| tool.name == name);
        let Some(tool) = READS.iter().find(|it| has(it.name)) else {
            return Answer { kind: "aside", text: "Reading files".into(), ..Answer::default() };
        };
        if self.called >= self.turns {
            return Answer { kind: "last", text: "All files were read.".into(), ..Answer::default() };
        }
        // The last message with a marker; the description of the tool shows one as well, which is none.
        let told = (0..).map_while(|at| request.raw_message(at)).filter_map(|it| marker::handles(it).last()).last();
        let handle = told.filter(|_| has(UNFOLD)).map(|it| it.to_string());
        let is_due = self.called >= self.unfolded_at + UNFOLDS_EVERY;
        match handle.filter(|_| is_due) {
            Some(handle) => self.unfolds(tool, &handle),
            None => {
                let text = format!("I read file {}. ", self.called);
                let thought = Some(format!("File {} is next.", self.called));
                let calls = vec![self.reads(tool)];
                Answer { kind: "calls", thought, text, calls, ..Answer::default() }
            }
        }
    }

    /// Three ways in turn: alone behind some text, twice behind a thought, beside a tool of the client's.
    fn unfolds(&mut self, tool: &'static Reads, handle: &str) -> Answer {
        let whole = json!({ "handle": handle });
        let part = json!({ "handle": handle, "lines": "1..5" });
        let way = self.unfolded % 3;
        (self.unfolded, self.unfolded_at) = (self.unfolded + 1, self.called);
        let text = "Let me look at that again. ".to_owned();
        match way {
            0 => Answer { kind: "unfolds", text, calls: vec![self.call(UNFOLD, part)], ..Answer::default() },
            1 => {
                let calls = vec![self.call(UNFOLD, part), self.call(UNFOLD, whole)];
                let thought = Some(format!("What was in {handle}?"));
                Answer { kind: "unfolds twice", thought, calls, ..Answer::default() }
            }
            _ => {
                let calls = vec![self.call(UNFOLD, part), self.reads(tool)];
                let thought = Some(format!("What was in {handle}, and what is next?"));
                Answer { kind: "unfolds and calls", thought, text, calls, ..Answer::default() }
            }
        }
    }

    fn reads(&mut self, tool: &'static Reads) -> Call {
        let file = self.files[self.called % self.files.len()].clone();
        self.called += 1;
        self.call(tool.name, (tool.arguments)(&file))
    }

    fn call(&mut self, name: &str, arguments: Value) -> Call {
        self.ids += 1;
        Call { id: format!("call_{:06}", self.ids), name: name.to_owned(), arguments }
    }
}

/// A client's tool by which a file can be read.
struct Reads {
    name: &'static str,
    arguments: fn(&str) -> Value,
}

const READS: [Reads; 8] = [
    Reads { name: "read_file", arguments: |path| json!({ "path": path }) },
    Reads { name: "Read", arguments: |path| json!({ "file_path": path }) },
    Reads { name: "read", arguments: |path| json!({ "filePath": path }) },
    Reads { name: "exec_command", arguments: |path| json!({ "cmd": format!("cat {path}") }) },
    Reads { name: "shell_command", arguments: |path| json!({ "command": format!("cat {path}") }) },
    Reads { name: "shell", arguments: |path| json!({ "command": ["cat", path] }) },
    Reads {
        name: "Bash",
        arguments: |path| json!({ "command": format!("cat {path}"), "description": "Reads a file" }),
    },
    Reads {
        name: "bash",
        arguments: |path| json!({ "command": format!("cat {path}"), "description": "Reads a file" }),
    },
];
