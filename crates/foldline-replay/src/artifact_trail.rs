//! The artifact trail: facts in a request about the work done so far.
//!
//! One fixed parser extracts the files that were read, created and modified, the status of the newest test
//! run and the newest error, from the full request and from the rendering. Comparing both gives recall
//! and precision. The parser knows the calls of common tools, and markers that name the tool and
//! its target.

use foldline::conversation::ToolCall;
use foldline::{Message, Part};
use memchr::memmem;
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::text::argument_object;

/// Action on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileAction {
    Read = 1,
    Created = 2,
    Modified = 3,
}

/// Facts of a message, as comparable keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrailFacts {
    /// Actions on files.
    pub(crate) files: Box<[u64]>,
    /// Status of the last test run in it.
    pub(crate) test: Option<u64>,
    /// The last error in it.
    pub(crate) error: Option<u64>,
}

const TEST_SEED: u64 = 4;
const ERROR_SEED: u64 = 5;

/// Extracts the facts of a message.
pub(crate) fn extract_facts(message: &Message<'_>) -> TrailFacts {
    let mut files = Vec::new();
    let mut note = |action: FileAction, path: &str| {
        let path = path.trim();
        if !path.is_empty() {
            files.push(xxh3_64_with_seed(path.as_bytes(), action as u64));
        }
    };
    let mut facts = TrailFacts::default();
    for part in &message.parts {
        match part {
            Part::ToolCall(call) => scan_call(call, &mut note),
            Part::ToolResult(result) => {
                for text in result.texts() {
                    scan_markers(text, &mut note);
                    facts.test = test_status(text).or(facts.test);
                    facts.error = last_error(text, result.is_error).or(facts.error);
                }
            }
            Part::Text { text } => scan_markers(text, &mut note),
            _ => {}
        }
    }
    files.sort_unstable();
    files.dedup();
    facts.files = files.into();
    facts
}

const PATH_KEYS: [&str; 6] = ["file_path", "path", "filename", "target_file", "notebook_path", "file"];

fn scan_call(call: &ToolCall<'_>, note: &mut impl FnMut(FileAction, &str)) {
    let Some(fields) = argument_object(&call.arguments) else {
        scan_patch(call.arguments.as_str(), note);
        return;
    };
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    // Some editors are one tool with a command.
    let name = match text("command") {
        Some(command @ ("view" | "create" | "str_replace" | "insert" | "undo_edit")) => command,
        _ => &*call.name,
    };
    if let (Some(action), Some(path)) = (file_action(name), PATH_KEYS.iter().find_map(|name| text(name))) {
        note(action, path);
    }
    for field in ["input", "patch", "command", "cmd"] {
        match fields.get(field) {
            Some(Value::String(text)) => scan_command(text, note),
            Some(Value::Array(words)) => {
                words.iter().filter_map(Value::as_str).for_each(|text| scan_command(text, note));
            }
            _ => {}
        }
    }
}

/// Returns the action of a tool on a file, by the tool's name.
fn file_action(name: &str) -> Option<FileAction> {
    let name = name.to_ascii_lowercase();
    let is = |words: &[&str]| words.iter().any(|word| name.contains(word));
    if is(&["edit", "replace", "patch", "insert"]) {
        Some(FileAction::Modified)
    } else if is(&["write", "create"]) {
        Some(FileAction::Created)
    } else if is(&["read", "view", "open", "cat"]) {
        Some(FileAction::Read)
    } else {
        None
    }
}

fn scan_patch(text: &str, note: &mut impl FnMut(FileAction, &str)) {
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("*** Add File: ") {
            note(FileAction::Created, path);
        } else if let Some(path) = line.strip_prefix("*** Update File: ") {
            note(FileAction::Modified, path);
        }
    }
}

/// Scans the most common shell commands that print, write and change files.
fn scan_command(text: &str, note: &mut impl FnMut(FileAction, &str)) {
    if text.contains("*** Begin Patch") {
        return scan_patch(text, note);
    }
    let Some(line) = text.lines().next() else { return };
    for command in line.split([';', '|', '&']) {
        scan_simple_command(command, note);
    }
}

fn scan_simple_command(command: &str, note: &mut impl FnMut(FileAction, &str)) {
    let words: Vec<&str> = command.split_whitespace().map(|word| word.trim_matches(['\'', '"'])).collect();
    let Some((&program, rest)) = words.split_first() else { return };
    let target = rest.iter().rev().find(|word| !word.starts_with('-') && word.contains(['.', '/']));
    match program {
        "cat" | "tee" if rest.iter().any(|&word| word == ">" || word == ">>" || word.starts_with('>')) => {
            let after = rest.iter().skip_while(|word| !word.starts_with('>'));
            if let Some(path) = after.map(|word| word.trim_start_matches('>')).find(|word| !word.is_empty()) {
                note(FileAction::Created, path);
            }
        }
        "sed" if rest.contains(&"-i") => target.iter().for_each(|path| note(FileAction::Modified, path)),
        "cat" | "head" | "tail" | "sed" | "nl" | "less" => target.iter().for_each(|path| note(FileAction::Read, path)),
        _ => {}
    }
}

/// Scans markers that name the tool and its target, as foldline's do.
fn scan_markers(text: &str, note: &mut impl FnMut(FileAction, &str)) {
    for line in text.lines().filter(|line| line.starts_with("[folded: ")) {
        let Some((_, subject)) = line.trim_end_matches(']').split_once(" of ") else { continue };
        let subject = subject.split("; unfold ").next().unwrap_or(subject);
        let subject = subject.split_once("lines of ").map_or(subject, |(_, subject)| subject);
        // A truncated target ends in `..` and is not a file name.
        let Some((tool, target)) = subject.split_once(' ').filter(|(_, target)| !target.ends_with("..")) else {
            continue;
        };
        match file_action(tool) {
            Some(action) => note(action, target),
            None => scan_simple_command(target, note),
        }
    }
}

/// Words of which every test summary contains at least one.
const TEST_WORDS: [&str; 6] = ["pass", "PASS", "fail", "FAIL", "test result: ok", "ok  \t"];

fn contains_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| memmem::find(text.as_bytes(), word.as_bytes()).is_some())
}

/// Returns the status of the last test summary in a text.
fn test_status(text: &str) -> Option<u64> {
    if !contains_any(text, &TEST_WORDS) {
        return None;
    }
    let passed = |passed: bool| xxh3_64_with_seed(&[u8::from(passed)], TEST_SEED);
    text.lines().rev().find_map(|line| {
        let line = line.trim();
        if line.len() > 300 {
            return None;
        }
        if line.starts_with("test result: ok") || line == "PASS" || line.starts_with("ok  \t") {
            return Some(passed(true));
        }
        if line.starts_with("test result: FAILED") || line.starts_with("FAIL") || line.starts_with("--- FAIL") {
            return Some(passed(false));
        }
        let counted = |word: &str| {
            let before = line.find(word)?;
            let number = line[..before].trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?;
            number.parse::<u64>().ok()
        };
        match (counted("failed"), counted("passed").or_else(|| counted("passing"))) {
            (Some(failed), _) if failed > 0 => Some(passed(false)),
            (_, Some(ran)) if ran > 0 => Some(passed(true)),
            _ => None,
        }
    })
}

/// Returns the last line of a text that reports an error.
fn last_error(text: &str, marked: bool) -> Option<u64> {
    const ERROR_WORDS: [&str; 6] = ["error:", "error[", "Error:", "fatal:", "panicked at", "Exception:"];
    let is_error_line = |line: &&str| line.len() < 500 && ERROR_WORDS.iter().any(|word| line.contains(word));
    let found = if contains_any(text, &ERROR_WORDS) { text.lines().rev().find(is_error_line) } else { None };
    let line = found.or_else(|| text.lines().next().filter(|_| marked))?;
    Some(xxh3_64_with_seed(line.trim().as_bytes(), ERROR_SEED))
}

#[cfg(test)]
mod tests {
    use super::*;
    use foldline::Role;

    fn files(message: Message<'_>) -> Vec<u64> {
        extract_facts(&message).files.to_vec()
    }

    fn key(action: FileAction, path: &str) -> u64 {
        xxh3_64_with_seed(path.as_bytes(), action as u64)
    }

    fn call(name: &'static str, arguments: &'static str) -> Message<'static> {
        Message::new(Role::Assistant, vec![Part::call("c", name, arguments)])
    }

    #[test]
    fn common_tool_calls_are_parsed() {
        let all: [(Message<'_>, FileAction, &str); 8] = [
            (call("Read", r#"{"file_path":"a.rs"}"#), FileAction::Read, "a.rs"),
            (call("Write", r#"{"file_path":"a.rs","content":"x"}"#), FileAction::Created, "a.rs"),
            (call("Edit", r#"{"file_path":"a.rs","old_string":"x"}"#), FileAction::Modified, "a.rs"),
            (call("str_replace_editor", r#"{"command":"view","path":"a.rs"}"#), FileAction::Read, "a.rs"),
            (
                call("apply_patch", r#"{"input":"*** Begin Patch\n*** Update File: a.rs\n"}"#),
                FileAction::Modified,
                "a.rs",
            ),
            (call("shell", r#"{"command":["bash","-lc","sed -n '1,20p' src/a.rs"]}"#), FileAction::Read, "src/a.rs"),
            (
                call("Bash", r#"{"command":"cd x && cat > new.txt <<EOF\nfoo.bar\nEOF"}"#),
                FileAction::Created,
                "new.txt",
            ),
            (call("Bash", r#"{"command":"sed -i s/a/b/ lib.rs"}"#), FileAction::Modified, "lib.rs"),
        ];
        for (message, action, path) in all {
            assert_eq!(files(message.clone()), [key(action, path)], "{message:?}");
        }
    }

    #[test]
    fn marker_yields_the_file_of_its_call() {
        let marker = "[folded: 412 lines, 18.3 kB of read_file src/main.rs; unfold 7k3q9p2m4x1c]";
        assert_eq!(files(Message::text(Role::Assistant, marker)), [key(FileAction::Read, "src/main.rs")]);
        let excerpt = "[folded: kept 4 of 41 lines of Edit a.rs]";
        assert_eq!(files(Message::text(Role::Assistant, excerpt)), [key(FileAction::Modified, "a.rs")]);
        assert!(files(Message::text(Role::Assistant, "[folded: 3 lines of Read a/very/long/pa..]")).is_empty());
    }

    #[test]
    fn test_runs_and_errors_are_parsed() {
        let facts = |text: &'static str| extract_facts(&Message::new(Role::Tool, vec![Part::result("c", text)]));
        assert_eq!(facts("2 passed, 1 failed").test, facts("x\ntest result: FAILED. 1 passed").test);
        assert_eq!(facts("12 passed in 3s").test, facts("test result: ok. 3 passed; 0 failed").test);
        assert_ne!(facts("12 passed in 3s").test, facts("FAIL x").test);
        assert_eq!(facts("nothing of the kind").test, None);
        assert!(facts("error: no such file\nhint").error.is_some());
        assert_eq!(facts("a\n  error: x").error, facts("error: x").error);
    }
}
