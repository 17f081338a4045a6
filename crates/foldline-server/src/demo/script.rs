//! The script: the files and commands that the agent works with, and the steps of the model.
//!
//! All content is derived from names, so that every run is the same. Changing a text changes the numbers of the demo.

use serde_json::{Value, json};

/// The user's task.
pub(crate) const TASK_TEXT: &str =
    "The importer drops rows with long fields. Find out why and mend it; all tests must pass in the end.";
/// The agent's system prompt.
pub(crate) const SYSTEM_PROMPT: &str = "You are a careful programmer. Look before you edit, and test after it.";

/// The file that the model edits and later restores.
const RESTORED_PATH: &str = "src/limits.rs";

/// One turn of the model.
pub(crate) struct ScriptStep {
    pub(crate) text: String,
    pub(crate) action: StepAction,
}

/// The action at the end of a turn.
pub(crate) enum StepAction {
    /// Calls a tool.
    Call { tool: &'static str, arguments: Value },
    /// Writes back what an earlier turn read, byte for byte.
    Restore { path: &'static str, read_at: usize },
    /// Ends the session.
    Finish,
}

impl StepAction {
    /// Returns a short title of the action.
    pub(crate) fn title(&self) -> String {
        match self {
            StepAction::Call { tool, arguments } => {
                let about = ["path", "pattern", "command"].iter().find_map(|key| arguments[*key].as_str());
                format!("{tool} {}", about.unwrap_or_default())
            }
            StepAction::Restore { path, .. } => format!("write_file {path}, as it was"),
            StepAction::Finish => "done".to_owned(),
        }
    }
}

/// Returns all steps of the model.
pub(crate) fn script_steps() -> Vec<ScriptStep> {
    const FORMATS: [&str; 8] = ["csv", "tsv", "json", "xml", "yaml", "ini", "fixed", "excel"];
    let call = |text: &str, tool, arguments| ScriptStep {
        text: text.to_owned(),
        action: StepAction::Call { tool, arguments },
    };
    let read = |path: &str| call(&format!("I look at {path}."), "read_file", json!({ "path": path }));
    let test = || call("I run the tests.", "run", json!({ "command": "cargo test" }));
    let edit = |path: &str, old: &str, new: &str| {
        let arguments = json!({ "path": path, "old": old, "new": new });
        call(&format!("I change {path}."), "edit_file", arguments)
    };
    let mut steps =
        vec![call("First I look around.", "list_files", json!({ "path": "src" })), test(), read("src/lib.rs")];
    for format in &FORMATS[..4] {
        steps.push(read(&format!("src/format/{format}.rs")));
    }
    steps.extend([
        call("Who uses the limits?", "search", json!({ "pattern": "MAX_FIELD" })),
        read(RESTORED_PATH),
        edit(RESTORED_PATH, "MAX_FIELD: usize = 4_096", "MAX_FIELD: usize = usize::MAX"),
        test(),
        read("src/import.rs"),
        read("src/format/csv.rs"),
    ]);
    for format in &FORMATS[4..] {
        steps.push(read(&format!("src/format/{format}.rs")));
    }
    steps.extend([
        test(),
        edit("src/format/csv.rs", "if field.len() > MAX_FIELD", "if field.len() >= MAX_FIELD"),
        test(),
        read("src/import.rs"),
        call("Where are rows dropped?", "search", json!({ "pattern": "continue" })),
        edit("src/import.rs", "Err(_) => continue", "Err(error) => report.refuse(row, error)"),
        test(),
    ]);
    steps.push(read("src/import.rs"));
    for format in &FORMATS[..4] {
        steps.push(edit(
            &format!("src/format/{format}.rs"),
            "Err(_) => continue",
            "Err(error) => report.refuse(row, error)",
        ));
        steps.push(test());
    }
    let is_read = |step: &ScriptStep| matches!(&step.action, StepAction::Call { tool: "read_file", arguments } if arguments["path"] == RESTORED_PATH);
    let read_at = steps.iter().position(is_read).unwrap_or_default();
    let text = format!("The limit was right; the loop was wrong. I put {RESTORED_PATH} back as it was before my edit.");
    steps.push(ScriptStep { text, action: StepAction::Restore { path: RESTORED_PATH, read_at } });
    steps.push(test());
    let text = "Rows with long fields were dropped without a word in src/import.rs; now they are reported. \
        The limit is what it was, and all tests pass.";
    steps.push(ScriptStep { text: text.to_owned(), action: StepAction::Finish });
    steps
}

/// End of a tool result for a file that was written back unchanged.
const RESTORED_SUFFIX: &str = " is byte for byte what it was";

/// Returns true if a tool result reports a file that was written back unchanged.
pub(crate) fn is_restored(result: &str) -> bool {
    result.ends_with(RESTORED_SUFFIX)
}

/// Runs a tool of the agent.
pub(crate) fn run_tool(tool: &str, arguments: &Value, test_runs: &mut usize) -> String {
    let path = arguments["path"].as_str().unwrap_or_default();
    match tool {
        "list_files" => file_listing(),
        "read_file" => file_content(path),
        "search" => search_output(arguments["pattern"].as_str().unwrap_or_default()),
        "run" => {
            *test_runs += 1;
            test_output(*test_runs)
        }
        // The original content is derived from the path, regardless of earlier edits.
        "write_file" if arguments["content"].as_str() == Some(file_content(path).as_str()) => {
            format!("{path}{RESTORED_SUFFIX}")
        }
        "write_file" => format!("{path} is another than it was"),
        _ => "done".to_owned(),
    }
}

/// Returns the tools that the agent offers.
pub(crate) fn tool_definitions() -> Value {
    let tool = |name: &str, description: &str, parameters: &[&str]| {
        let properties: serde_json::Map<String, Value> =
            parameters.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
        json!({ "type": "function", "function": { "name": name, "description": description,
            "parameters": { "type": "object", "properties": properties, "required": parameters } } })
    };
    json!([
        tool("list_files", "List the files below a folder", &["path"]),
        tool("read_file", "Read a file", &["path"]),
        tool("search", "Search all files for a pattern", &["pattern"]),
        tool("edit_file", "Replace a text in a file", &["path", "old", "new"]),
        tool("write_file", "Write a file", &["path", "content"]),
        tool("run", "Run a command", &["command"]),
    ])
}

fn file_listing() -> String {
    const PARTS: [&str; 12] =
        ["reader", "writer", "header", "quote", "escape", "row", "field", "index", "error", "report", "limits", "mod"];
    let files = PARTS.iter().flat_map(|part| {
        ["csv", "tsv", "json", "xml", "yaml", "ini"].map(|format| format!("src/format/{format}/{part}.rs\n"))
    });
    files.collect::<String>() + "src/import.rs\nsrc/lib.rs\nsrc/limits.rs\n"
}

/// Verbs of the functions in each file.
const FUNCTION_VERBS: [&str; 14] = [
    "open", "split", "unquote", "unescape", "check", "convert", "trim", "index", "merge", "report", "count", "seal",
    "flush", "close",
];

/// Returns the content of a file, derived from its path.
fn file_content(path: &str) -> String {
    let name = path.rsplit('/').next().and_then(|file| file.split('.').next()).unwrap_or_default();
    if path == RESTORED_PATH {
        return limits_file();
    }
    let mut text = format!("//! {path}: a part of the importer.\n\nuse crate::limits::MAX_FIELD;\n\n");
    for (at, verb) in FUNCTION_VERBS.iter().enumerate() {
        let bound = 16 + at * 24 + name.len();
        text += &format!(
            "/// How {name} does its part of `{verb}`, row by row.\n\
             pub fn {verb}_{name}(rows: &[Row<'_>], report: &mut Report) -> Result<Vec<Field>, ImportError> {{\n    \
             let mut fields = Vec::with_capacity(rows.len() * {bound});\n    \
             for (number, row) in rows.iter().enumerate() {{\n        \
             let field = match row.{verb}(number, {bound}) {{\n            \
             Ok(field) if field.len() > MAX_FIELD => return Err(ImportError::too_long(\"{name}\", number)),\n            \
             Ok(field) => field,\n            \
             Err(_) => continue,\n        \
             }};\n        \
             report.{verb}ed(\"{name}\", number, field.len());\n        \
             fields.push(field);\n    \
             }}\n    \
             Ok(fields)\n}}\n\n"
        );
    }
    text
}

fn limits_file() -> String {
    let mut text = "//! How much the importer takes.\n\npub const MAX_FIELD: usize = 4_096;\n".to_owned();
    for (at, kind) in
        ["row", "file", "header", "quote", "comment", "name", "number", "date", "depth"].iter().enumerate()
    {
        let limit = (at + 3) * 1_000 + at * at * 7;
        text += &format!(
            "\n/// A {kind} that is longer is refused, and told of in the report.\npub const MAX_{}: usize = {limit};\n",
            kind.to_uppercase()
        );
    }
    text
}

fn search_output(pattern: &str) -> String {
    let line = |at: usize, format: &str| format!("src/format/{format}.rs:{}: .. {pattern} ..\n", 12 + at * 14);
    let hits = ["csv", "tsv", "json", "xml"].iter().flat_map(|format| (0..8).map(move |at| line(at, format)));
    hits.collect::<String>() + &format!("src/import.rs:33: .. {pattern} ..\n")
}

/// Returns the output of a test run: the same each time, except for the failing test.
fn test_output(run: usize) -> String {
    let passed = ["csv", "tsv", "json", "xml", "yaml", "ini"]
        .iter()
        .flat_map(|format| (0..12).map(move |number| format!("test format::{format}::reads_sample_{number} ... ok\n")));
    let verdict = match run {
        6.. => "test import::long_fields_are_reported ... ok\n\ntest result: ok. 73 passed; 0 failed\n".to_owned(),
        _ => format!(
            "test import::long_fields_are_reported ... FAILED\n\nfailures:\n\n---- import::long_fields_are_reported ----\n\
             assertion `left == right` failed: run {run}\n  left: {}\n right: 40\n\ntest result: FAILED. 72 passed; 1 failed\n",
            36 + run / 2
        ),
    };
    format!("   Compiling importer v0.3.{run}\nrunning 73 tests\n{}{verdict}", passed.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_content_is_deterministic() {
        assert_eq!(file_content("src/format/csv.rs"), file_content("src/format/csv.rs"));
        assert_ne!(file_content("src/format/csv.rs"), file_content("src/format/tsv.rs"));
        let restored = json!({ "path": RESTORED_PATH, "content": limits_file() });
        assert!(is_restored(&run_tool("write_file", &restored, &mut 0)));
        assert!(!is_restored(&run_tool("write_file", &json!({ "path": RESTORED_PATH, "content": "" }), &mut 0)));
    }

    #[test]
    fn last_test_run_passes() {
        let runs =
            script_steps().iter().filter(|step| matches!(&step.action, StepAction::Call { tool: "run", .. })).count();
        assert!(test_output(runs).contains("0 failed") && test_output(1).contains("1 failed"));
    }
}
