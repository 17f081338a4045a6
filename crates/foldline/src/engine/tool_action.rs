//! Classification of tool calls by name and arguments: read, write, edit, search, run.
//!
//! Agents use different names for the same kind of tool. A shell command is classified by its effect:
//! `cat src/main.rs` is a read.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::conversation::{CallArguments, ToolCall};

/// The action of a tool call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ToolAction {
    /// Kind of the action.
    pub kind: ActionKind,
    /// Target of the action: a path, a command, a query. Empty if unknown.
    pub target: String,
}

/// The kind of a tool action.
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

/// Names of arguments that contain the target of a call, by priority: first [`FILE_KEYS`] of a file.
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

/// Number of target keys that name a file.
const FILE_KEYS: usize = 8;

impl ToolAction {
    /// Classifies a tool call.
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
            kind => Self { kind, target },
        }
    }

    /// Returns the target path of an action on a single file.
    pub fn path(&self) -> Option<&str> {
        matches!(self.kind, ActionKind::Read | ActionKind::Write | ActionKind::Edit)
            .then_some(self.target.as_str())
            .filter(|path| !path.is_empty())
    }

    /// Returns true if the action has no side effects.
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

/// Returns the target in the arguments of a call. Decodes only the fields it needs, because arguments may contain whole
/// files.
fn find_target(json: &str) -> String {
    let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json) else {
        return serde_json::from_str(json).unwrap_or_default();
    };
    let text = |value: &&RawValue| {
        let words = || serde_json::from_str::<Vec<String>>(value.get()).map(|words| words.join(" "));
        serde_json::from_str(value.get()).or_else(|_| words()).ok().or_else(|| listed_files(value.get()))
    };
    let by_key = TARGET_KEYS.iter().filter_map(|key| fields.get(*key)).find_map(text);
    // A character is at most six bytes of JSON.
    let is_short = |value: &&&RawValue| value.get().len() < 6 * MAX_FALLBACK_TARGET_BYTES;
    let fallback = || {
        fields
            .values()
            .filter(is_short)
            .find_map(|value| text(value).filter(|text| text.len() < MAX_FALLBACK_TARGET_BYTES))
    };
    by_key.or_else(fallback).unwrap_or_default()
}

/// Returns the files that a list of objects names: `[{"path":"a.rs"}]`.
fn listed_files(json: &str) -> Option<String> {
    let entries: Vec<BTreeMap<String, &RawValue>> = serde_json::from_str(json).ok()?;
    let file = |entry: &BTreeMap<String, &RawValue>| {
        let value = TARGET_KEYS[..FILE_KEYS].iter().find_map(|key| entry.get(*key))?;
        serde_json::from_str::<String>(value.get()).ok()
    };
    let files: Vec<String> = entries.iter().map(file).collect::<Option<_>>()?;
    (!files.is_empty()).then(|| files.join(", "))
}

/// Maximum length of an argument with an unknown name that is used as the target.
const MAX_FALLBACK_TARGET_BYTES: usize = 400;

/// Returns the first file named in a patch.
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
    // The target of `cd dir && cat file` is the file; a `bash -lc` wrapper is ignored.
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
        let action = ToolAction::from_call(&ToolCall::new("c", name, arguments));
        (action.kind, action.target)
    }

    #[test]
    fn tools_of_many_agents_are_classified() {
        let check = |name, arguments, kind, target: &str| {
            assert_eq!(action(name, arguments), (kind, target.to_owned()), "{name}")
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
        check("read_files", r#"{"files":[{"path":"a.rs","start":1}]}"#, ActionKind::Read, "a.rs");
        check("read_files", r#"{"files":[{"path":"a.rs"},{"path":"b.rs"}]}"#, ActionKind::Read, "a.rs, b.rs");
        check("TodoWrite", r#"{"todos":[{"content":"x"}]}"#, ActionKind::Write, "");
        check("mystery", r#"{"n":1}"#, ActionKind::Other, "");
        check("mystery", "not json", ActionKind::Other, "");
        check("mystery", r#""all of it""#, ActionKind::Other, "all of it");
    }

    /// Without a known argument name, the first short argument by name is used, however it is escaped.
    #[test]
    fn long_argument_is_not_a_target() {
        let long = "x".repeat(MAX_FALLBACK_TARGET_BYTES);
        let escaped = "\\u0061".repeat(MAX_FALLBACK_TARGET_BYTES - 1);
        assert_eq!(find_target(&format!(r#"{{"a":"{long}","b":["ls","-l"]}}"#)), "ls -l");
        assert_eq!(find_target(&format!(r#"{{"a":[1],"b":"{escaped}"}}"#)), "a".repeat(MAX_FALLBACK_TARGET_BYTES - 1));
        assert_eq!(find_target(&format!(r#"{{"a":"{long}","path":"{long}"}}"#)), long);
    }
}
