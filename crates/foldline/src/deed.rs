//! What a tool call does, as far as its name and arguments tell: reads a file, writes one, searches,
//! runs a command.
//!
//! Agents name their tools differently and mean the same. A shell command counts as what it does:
//! `cat src/main.rs` reads a file.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::conversation::{Arguments, ToolCall};

/// What a call does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Deed {
    /// The kind of act.
    pub act: Act,
    /// What it is done to: a path, a command, a query. Empty when the arguments do not tell.
    pub target: String,
}

/// The kinds of acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Act {
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
const TARGETS: [&str; 16] = [
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

impl Deed {
    /// What this call does.
    pub fn of(call: &ToolCall<'_>) -> Self {
        let target = match &call.arguments {
            Arguments::Json(json) => target(json),
            Arguments::Text(text) => text.chars().take(4000).collect(),
        };
        match Act::of_name(&call.name) {
            Act::Run => of_command(&target),
            Act::Edit if target.starts_with("*** ") => Self { act: Act::Edit, target: patched(&target) },
            act => Self { act, target },
        }
    }

    /// The path that the call is about, when it is about one file.
    pub fn path(&self) -> Option<&str> {
        matches!(self.act, Act::Read | Act::Write | Act::Edit)
            .then_some(self.target.as_str())
            .filter(|path| !path.is_empty())
    }

    /// Whether it leaves the world as it was.
    pub fn is_look(&self) -> bool {
        matches!(self.act, Act::Read | Act::Search)
    }
}

impl Act {
    fn of_name(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let name = name.rsplit(['.', ':']).next().unwrap_or(&name);
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        match () {
            () if has(&["edit", "replace", "patch", "insert"]) => Act::Edit,
            () if has(&["write_stdin"]) => Act::Run,
            () if has(&["write", "create_file", "save"]) => Act::Write,
            () if has(&["grep", "glob", "search", "find", "list"]) || name == "ls" => Act::Search,
            () if has(&["read", "view", "open", "cat", "fetch"]) => Act::Read,
            () if has(&["bash", "shell", "exec", "command", "terminal", "run", "execute"]) => Act::Run,
            () => Act::Other,
        }
    }
}

/// What the arguments of a call are about. Most of them are the text of a file: nothing is decoded but what is asked for.
fn target(json: &str) -> String {
    let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json) else {
        return serde_json::from_str(json).unwrap_or_default();
    };
    let text = |value: &&RawValue| {
        let words = || serde_json::from_str::<Vec<String>>(value.get()).map(|words| words.join(" "));
        serde_json::from_str(value.get()).or_else(|_| words()).ok()
    };
    let told = TARGETS.iter().filter_map(|key| fields.get(*key)).find_map(text);
    // A character is at most six bytes of JSON.
    let short = |value: &&&RawValue| value.get().len() < 6 * SHORT;
    let any = || fields.values().filter(short).find_map(|value| text(value).filter(|text| text.len() < SHORT));
    told.or_else(any).unwrap_or_default()
}

/// A longer argument does not say in few words what a call is about.
const SHORT: usize = 400;

/// The first file that a patch names.
fn patched(patch: &str) -> String {
    let named = |line: &str| {
        ["*** Update File: ", "*** Add File: ", "*** Delete File: "]
            .iter()
            .find_map(|head| line.strip_prefix(head).map(str::to_owned))
    };
    patch.lines().find_map(named).unwrap_or_default()
}

fn of_command(command: &str) -> Deed {
    let run = || Deed { act: Act::Run, target: command.to_owned() };
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
            Some(path) => Deed { act: Act::Read, target: path.to_owned() },
            None => run(),
        },
        "sed" if last.contains(" -n") => match file() {
            Some(path) => Deed { act: Act::Read, target: path.to_owned() },
            None => run(),
        },
        "sed" if last.contains(" -i") => match file() {
            Some(path) => Deed { act: Act::Edit, target: path.to_owned() },
            None => run(),
        },
        "apply_patch" => Deed { act: Act::Edit, target: patched(command) },
        "grep" | "rg" | "find" | "ls" | "fd" | "tree" | "ag" => Deed { act: Act::Search, target: last.to_owned() },
        _ => run(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deed(name: &'static str, arguments: &'static str) -> (Act, String) {
        let deed =
            Deed::of(&ToolCall { id: "c".into(), name: name.into(), arguments: Arguments::Json(arguments.into()) });
        (deed.act, deed.target)
    }

    #[test]
    fn tools_of_many_agents_mean_the_same() {
        let check =
            |name, arguments, act, target: &str| assert_eq!(deed(name, arguments), (act, target.to_owned()), "{name}");
        check("Read", r#"{"file_path":"a.rs","limit":3}"#, Act::Read, "a.rs");
        check("read_file", r#"{"path":"a.rs"}"#, Act::Read, "a.rs");
        check("Write", r#"{"content":"x","file_path":"a.rs"}"#, Act::Write, "a.rs");
        check("str_replace_editor", r#"{"command":"view","path":"a.rs"}"#, Act::Edit, "a.rs");
        check("Bash", r#"{"command":"cargo test"}"#, Act::Run, "cargo test");
        check("exec_command", r#"{"cmd":"cd x && sed -n '1,20p' src/a.rs"}"#, Act::Read, "src/a.rs");
        check("shell", r#"{"command":["bash","-lc","rg foo src"]}"#, Act::Search, "rg foo src");
        check("Bash", r#"{"command":"cat a.rs | grep x"}"#, Act::Run, "cat a.rs | grep x");
        check("Grep", r#"{"pattern":"fn main"}"#, Act::Search, "fn main");
        check("mystery", r#"{"n":1}"#, Act::Other, "");
        check("mystery", "not json", Act::Other, "");
        check("mystery", r#""all of it""#, Act::Other, "all of it");
    }

    /// Without an argument of a known name it is the first by name that says it in few words, however it is written.
    #[test]
    fn a_long_argument_says_nothing_in_few_words() {
        let long = "x".repeat(SHORT);
        let escaped = "\\u0061".repeat(SHORT - 1);
        assert_eq!(target(&format!(r#"{{"a":"{long}","b":["ls","-l"]}}"#)), "ls -l");
        assert_eq!(target(&format!(r#"{{"a":[1],"b":"{escaped}"}}"#)), "a".repeat(SHORT - 1));
        assert_eq!(target(&format!(r#"{{"a":"{long}","path":"{long}"}}"#)), long);
    }
}
