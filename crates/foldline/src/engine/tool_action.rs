//! What a tool call does, as far as its name and arguments tell: reads a file, writes one, searches,
//! runs a command.
//!
//! Agents name their tools differently and mean the same. A shell command counts as what it does:
//! `cat src/main.rs` reads a file.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::conversation::{CallArguments, ToolCall};

/// What a call does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolAction {
    /// The kind of act.
    pub kind: ActionKind,
    /// What it is done to: a path, a command, a query. Empty when the arguments do not tell.
    pub target: String,
}

/// The kinds of acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ActionKind {
    /// Shows a file, or a part of it.
    Read,
    /// Writes a whole file.
    Write,
    /// Changes a file in place.
    Edit,
    /// Searches or lists.
    Search,
    /// Runs a command.
    Run,
    /// Anything else.
    Other,
}

/// Argument names that say what a call is about, the most telling first.
const TARGET_KEYS: [&str; 16] = [
    "file_path",
    "path",
    "filePath",
    "absolute_path",
    "notebook_path",
    "file",
    "filename",
    "target_file",
    "command",
    "cmd",
    "pattern",
    "query",
    "url",
    "directory",
    "description",
    "name",
];

impl ToolAction {
    /// What this call does.
    pub fn from_call(call: &ToolCall<'_>) -> Self {
        let target = match &call.arguments {
            CallArguments::Json(json) => find_target(json),
            CallArguments::Text(text) => text.chars().take(4000).collect(),
        };
        match ActionKind::from_tool_name(&call.name) {
            ActionKind::Run => parse_command(&target),
            ActionKind::Edit if target.starts_with("*** ") => {
                Self { kind: ActionKind::Edit, target: first_patched_file(&target) }
            }
            act => Self { kind: act, target },
        }
    }

    /// The path that the call is about, when it is about one file.
    pub fn path(&self) -> Option<&str> {
        matches!(self.kind, ActionKind::Read | ActionKind::Write | ActionKind::Edit)
            .then_some(self.target.as_str())
            .filter(|path| !path.is_empty())
    }

    /// Whether it leaves the world as it was.
    pub fn is_read_only(&self) -> bool {
        matches!(self.kind, ActionKind::Read | ActionKind::Search)
    }
}

impl ActionKind {
    fn from_tool_name(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let name = name.rsplit(['.', ':']).next().unwrap_or(&name);
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        match () {
            () if has(&["edit", "replace", "patch", "insert"]) => ActionKind::Edit,
            () if has(&["write_stdin"]) => ActionKind::Run,
            () if has(&["write", "create_file", "save"]) => ActionKind::Write,
            () if has(&["grep", "glob", "search", "find", "list"]) || name == "ls" => ActionKind::Search,
            () if has(&["read", "view", "open", "cat", "fetch"]) => ActionKind::Read,
            () if has(&["bash", "shell", "exec", "command", "terminal", "run", "execute"]) => ActionKind::Run,
            () => ActionKind::Other,
        }
    }
}

/// What the arguments of a call are about. Most of them are the text of a file: nothing is decoded but what is asked for.
fn find_target(json: &str) -> String {
    let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json) else {
        return serde_json::from_str(json).unwrap_or_default();
    };
    let text = |value: &&RawValue| {
        let words = || serde_json::from_str::<Vec<String>>(value.get()).map(|words| words.join(" "));
        serde_json::from_str(value.get()).or_else(|_| words()).ok()
    };
    let told = TARGET_KEYS.iter().filter_map(|key| fields.get(*key)).find_map(text);
    // A character is at most six bytes of JSON.
    let short = |value: &&&RawValue| value.get().len() < 6 * MAX_FALLBACK_TARGET_BYTES;
    let any = || {
        fields
            .values()
            .filter(short)
            .find_map(|value| text(value).filter(|text| text.len() < MAX_FALLBACK_TARGET_BYTES))
    };
    told.or_else(any).unwrap_or_default()
}

/// A longer argument does not say in few words what a call is about.
const MAX_FALLBACK_TARGET_BYTES: usize = 400;

/// The first file that a patch names.
fn first_patched_file(patch: &str) -> String {
    let named = |line: &str| {
        ["*** Update File: ", "*** Add File: ", "*** Delete File: "]
            .iter()
            .find_map(|head| line.strip_prefix(head).map(str::to_owned))
    };
    patch.lines().find_map(named).unwrap_or_default()
}

fn parse_command(command: &str) -> ToolAction {
    let run = || ToolAction { kind: ActionKind::Run, target: command.to_owned() };
    // `cd somewhere && cat file` is about the file; a shell around it changes nothing.
    let inner = command.strip_prefix("bash -lc ").unwrap_or(command).trim_matches(['\'', '"']);
    let last = inner.rsplit("&&").next().unwrap_or(inner).trim();
    if last.contains(['|', '>', ';', '\n']) && !last.starts_with("apply_patch") {
        return run();
    }
    let mut words = last.split_ascii_whitespace();
    let program = words.next().unwrap_or_default();
    let names_file = |word: &&str| !word.starts_with('-') && word.contains(['.', '/']);
    let file = || last.split_ascii_whitespace().skip(1).filter(names_file).last();
    match program {
        "cat" | "head" | "tail" | "less" | "bat" | "nl" => match file() {
            Some(path) => ToolAction { kind: ActionKind::Read, target: path.to_owned() },
            None => run(),
        },
        "sed" if last.contains(" -n") => match file() {
            Some(path) => ToolAction { kind: ActionKind::Read, target: path.to_owned() },
            None => run(),
        },
        "sed" if last.contains(" -i") => match file() {
            Some(path) => ToolAction { kind: ActionKind::Edit, target: path.to_owned() },
            None => run(),
        },
        "apply_patch" => ToolAction { kind: ActionKind::Edit, target: first_patched_file(command) },
        "grep" | "rg" | "find" | "ls" | "fd" | "tree" | "ag" => {
            ToolAction { kind: ActionKind::Search, target: last.to_owned() }
        }
        _ => run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(name: &'static str, arguments: &'static str) -> (ActionKind, String) {
        let deed = ToolAction::from_call(&ToolCall {
            id: "c".into(),
            name: name.into(),
            arguments: CallArguments::Json(arguments.into()),
        });
        (deed.kind, deed.target)
    }

    #[test]
    fn tools_of_many_agents_are_classified() {
        let check = |name, arguments, act, target: &str| {
            assert_eq!(action(name, arguments), (act, target.to_owned()), "{name}")
        };
        check("Read", r#"{"file_path":"a.rs","limit":3}"#, ActionKind::Read, "a.rs");
        check("read_file", r#"{"path":"a.rs"}"#, ActionKind::Read, "a.rs");
        check("Write", r#"{"content":"x","file_path":"a.rs"}"#, ActionKind::Write, "a.rs");
        check("str_replace_editor", r#"{"command":"view","path":"a.rs"}"#, ActionKind::Edit, "a.rs");
        check("Bash", r#"{"command":"cargo test"}"#, ActionKind::Run, "cargo test");
        check("exec_command", r#"{"cmd":"cd x && sed -n '1,20p' src/a.rs"}"#, ActionKind::Read, "src/a.rs");
        check("shell", r#"{"command":["bash","-lc","rg foo src"]}"#, ActionKind::Search, "rg foo src");
        check("Bash", r#"{"command":"cat a.rs | grep x"}"#, ActionKind::Run, "cat a.rs | grep x");
        check("Grep", r#"{"pattern":"fn main"}"#, ActionKind::Search, "fn main");
        check("mystery", r#"{"n":1}"#, ActionKind::Other, "");
        check("mystery", "not json", ActionKind::Other, "");
        check("mystery", r#""all of it""#, ActionKind::Other, "all of it");
    }

    /// Without an argument of a known name it is the first by name that says it in few words, however it is written.
    #[test]
    fn long_argument_is_not_a_target() {
        let long = "x".repeat(MAX_FALLBACK_TARGET_BYTES);
        let escaped = "\\u0061".repeat(MAX_FALLBACK_TARGET_BYTES - 1);
        assert_eq!(find_target(&format!(r#"{{"a":"{long}","b":["ls","-l"]}}"#)), "ls -l");
        assert_eq!(find_target(&format!(r#"{{"a":[1],"b":"{escaped}"}}"#)), "a".repeat(MAX_FALLBACK_TARGET_BYTES - 1));
        assert_eq!(find_target(&format!(r#"{{"a":"{long}","path":"{long}"}}"#)), long);
    }
}
