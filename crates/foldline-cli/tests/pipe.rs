//! End-to-end tests of `foldline pipe`: every line gets one answer, and every handle resolves.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use foldline::Handle;
use foldline::engine::marker;
use serde_json::{Value, json};

/// Returns the command with an empty environment, except for `PATH` and `HOME`.
fn pipe_command(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foldline"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", home).arg("pipe");
    command
}

/// A running `foldline pipe`.
struct PipeProcess {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl PipeProcess {
    fn start(home: &Path, arguments: &[&str]) -> Self {
        let mut process = pipe_command(home)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    /// Sends a line and returns the next line of the output.
    fn send(&mut self, line: &str) -> Value {
        let mut input = self.input.as_ref().unwrap();
        writeln!(input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    fn ask(&mut self, line: Value) -> Value {
        self.send(&line.to_string())
    }

    fn error_kind(&mut self, line: Value) -> String {
        let answer = self.ask(line);
        assert_eq!(answer["ok"], false, "{answer}");
        answer["error"]["kind"].as_str().unwrap().to_owned()
    }

    /// Closes the input. Returns the rest of the output.
    fn finish(mut self) -> String {
        drop(self.input.take());
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).unwrap();
        assert!(self.process.wait().unwrap().success());
        rest
    }
}

fn round(index: usize) -> Value {
    let text: String = (0..60).map(|line| format!("{line}: value_{index}_{line} = measure({index})\n")).collect();
    let function = json!({ "name": "sh", "arguments": json!({ "cmd": format!("cat f{index}") }).to_string() });
    json!([
        { "role": "assistant", "content": null, "tool_calls": [{ "id": format!("c{index}"), "type": "function", "function": function }] },
        { "role": "tool", "tool_call_id": format!("c{index}"), "content": text },
    ])
}

#[test]
fn every_line_gets_one_answer_with_its_id() {
    let home = tempfile::tempdir().unwrap();
    let mut pipe = PipeProcess::start(home.path(), &[]);
    let lines = [
        (r#"{"op":"push","messages":[],"id":1}"#, false),
        (r#"{"op":"open","model":"gpt-4o","budget":3000,"id":"a"}"#, true),
        (r#"{"op":"push","messages":[{"role":"user","content":"go"}],"id":{"x":[1]}}"#, true),
        (r#"{"op":"push","messages":[5],"id":2}"#, false),
        (r#"{"op":"push","id":3}"#, false),
        (r#"{"op":"request","id":null}"#, true),
        (r#"{"op":"tools","id":4}"#, true),
        (r#"{"op":"unfold","handle":"7k3q9p2m4x1c","id":5}"#, false),
        (r#"{"op":"unfold","handle":"no handle","id":6}"#, false),
        (r#"{"op":"dance","id":7}"#, false),
        (r#"{"id":8}"#, false),
    ];
    for (line, is_ok) in lines {
        let (sent, answer) = (serde_json::from_str::<Value>(line).unwrap(), pipe.send(line));
        assert_eq!((&answer["ok"], &answer["id"]), (&json!(is_ok), &sent["id"]), "{line}: {answer}");
        assert_eq!(answer["error"].is_null(), is_ok, "{answer}");
    }
    for line in ["", "   ", "[1]", "no JSON", "{\"op\":\"request\""] {
        let answer = pipe.send(line);
        assert_eq!((&answer["ok"], &answer["error"]["kind"]), (&json!(false), &json!("bad_line")), "{line}: {answer}");
    }
    assert_eq!(pipe.finish(), "", "an answer too many");
}

#[test]
fn unknown_prices_and_missing_budget_are_errors() {
    let home = tempfile::tempdir().unwrap();
    let mut pipe = PipeProcess::start(home.path(), &[]);
    assert_eq!(pipe.error_kind(json!({ "op": "open" })), "missing_budget");
    assert_eq!(pipe.error_kind(json!({ "op": "open", "model": "my-own-model" })), "missing_budget");
    assert_eq!(pipe.error_kind(json!({ "op": "open", "budget": 9000, "prices": "free" })), "unknown_prices");
    let negative = json!({ "read": -1.0, "write": 1.0, "output": 1.0 });
    assert_eq!(pipe.error_kind(json!({ "op": "open", "budget": 9000, "prices": negative })), "unknown_prices");
    assert_eq!(pipe.error_kind(json!({ "op": "open", "budget": 9000, "policy": "wild" })), "unknown_policy");
    assert_eq!(pipe.error_kind(json!({ "op": "request" })), "not_open");
    let opened = pipe.ask(json!({ "op": "open", "model": "gpt-4o" }));
    assert!(opened["budget"].as_u64().unwrap() > 100_000, "{opened}");
    let flag = pipe_command(home.path()).args(["--prices", "free"]).output().unwrap();
    assert!(!flag.status.success() && String::from_utf8_lossy(&flag.stderr).contains("anthropic-5m"));
}

#[test]
fn messages_that_break_a_law_are_errors_until_they_are_completed() {
    let home = tempfile::tempdir().unwrap();
    let mut pipe = PipeProcess::start(home.path(), &["--budget", "9k", "--model", "gpt-4o"]);
    let first = round(0);
    pipe.ask(json!({ "op": "open" }));
    pipe.ask(json!({ "op": "push", "messages": [{ "role": "user", "content": "go" }, first[0]] }));
    let answer = pipe.ask(json!({ "op": "request" }));
    assert_eq!((&answer["error"]["kind"], &answer["error"]["law"]), (&json!("law_broken"), &json!("call-answered")));
    pipe.ask(json!({ "op": "push", "messages": [first[1]] }));
    assert_eq!(pipe.ask(json!({ "op": "request" }))["ok"], true);
    for index in 1..5 {
        pipe.ask(json!({ "op": "push", "messages": round(index) }));
        assert_eq!(pipe.ask(json!({ "op": "request" }))["ok"], true, "round {index}");
    }
    pipe.ask(json!({ "op": "push", "messages": [{ "role": "tool", "tool_call_id": "nobody", "content": "x" }] }));
    let answer = pipe.ask(json!({ "op": "request" }));
    assert_eq!(answer["error"]["law"], "result-has-call", "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().starts_with("part 11.0"), "{answer}");

    pipe.ask(json!({ "op": "open", "laws": "ignore" }));
    pipe.ask(json!({ "op": "push", "messages": [{ "role": "user", "content": "go" }, first[0]] }));
    assert_eq!(pipe.ask(json!({ "op": "request" }))["ok"], true);
}

#[test]
fn unfold_tool_is_declared_in_the_format_of_the_session() {
    let home = tempfile::tempdir().unwrap();
    let mut pipe = PipeProcess::start(home.path(), &["--budget", "9k"]);
    let tool = |answer: &Value| answer["tools"][0].clone();
    assert_eq!(tool(&pipe.ask(json!({ "op": "tools" })))["function"]["name"], "unfold");
    pipe.ask(json!({ "op": "open", "format": "anthropic" }));
    let declared = tool(&pipe.ask(json!({ "op": "tools" })));
    assert_eq!((&declared["name"], &declared["input_schema"]["required"]), (&json!("unfold"), &json!(["handle"])));
    let gemini = tool(&pipe.ask(json!({ "op": "tools", "format": "gemini" })));
    assert_eq!(gemini["parametersJsonSchema"]["type"], "object");
}

/// Returns the handles in the markers of an answer.
fn rendered_handles(answer: &Value) -> Vec<Handle> {
    let messages = answer["set"].as_array().unwrap().iter().map(|set| &set["message"]);
    messages
        .flat_map(|message| marker::handles(message["content"].as_str().unwrap_or_default()).collect::<Vec<_>>())
        .collect()
}

/// Also handles of folds that later folds replaced, and of renderings that were never answered.
#[test]
fn every_handle_ever_rendered_unfolds_and_with_an_archive_also_later() {
    let home = tempfile::tempdir().unwrap();
    let archive = home.path().join("archive.db");
    let arguments = ["--model", "gpt-4o", "--budget", "6000", "--archive", archive.to_str().unwrap()];
    let mut pipe = PipeProcess::start(home.path(), &arguments);
    pipe.ask(json!({ "op": "open" }));
    pipe.ask(json!({ "op": "push", "messages": [{ "role": "user", "content": "go through them all" }] }));
    let mut handles = BTreeSet::new();
    let mut creases = 0;
    for index in 0..60 {
        pipe.ask(json!({ "op": "push", "messages": round(index) }));
        let answer = pipe.ask(json!({ "op": "request" }));
        assert_eq!(answer["ok"], true, "{answer}");
        creases += u32::from(answer["creased"] == true);
        handles.extend(rendered_handles(&answer));
        if index % 10 == 9 {
            pipe.ask(json!({ "op": "push", "messages": [{ "role": "user", "content": "go on" }] }));
            handles.extend(rendered_handles(&pipe.ask(json!({ "op": "request" }))));
        }
    }
    assert!(handles.len() > 20 && creases > 3, "{} handles, {creases} creases", handles.len());
    let check = |pipe: &mut PipeProcess| {
        for handle in &handles {
            let answer = pipe.ask(json!({ "op": "unfold", "handle": handle.as_str() }));
            let text = answer["text"].as_str().unwrap_or_else(|| panic!("{handle}: {answer}"));
            assert_eq!(Handle::for_content(text.as_bytes()), *handle);
        }
    };
    check(&mut pipe);
    pipe.finish();
    // Another process, without a conversation.
    check(&mut PipeProcess::start(home.path(), &arguments));
    let mut without = PipeProcess::start(home.path(), &["--budget", "6000"]);
    let handle = handles.first().unwrap().as_str();
    assert_eq!(without.error_kind(json!({ "op": "unfold", "handle": handle })), "unknown_handle");
}

#[test]
fn parts_of_an_original_can_be_requested() {
    let home = tempfile::tempdir().unwrap();
    let mut pipe = PipeProcess::start(home.path(), &["--model", "gpt-4o", "--budget", "6000"]);
    pipe.ask(json!({ "op": "open" }));
    pipe.ask(json!({ "op": "push", "messages": [{ "role": "user", "content": "go" }] }));
    (0..12).for_each(|index| drop(pipe.ask(json!({ "op": "push", "messages": round(index) }))));
    let answer = pipe.ask(json!({ "op": "request" }));
    let handle = rendered_handles(&answer)[0];
    let whole = pipe.ask(json!({ "op": "unfold", "handle": handle.as_str() }))["text"].as_str().unwrap().to_owned();
    let line = pipe.ask(json!({ "op": "unfold", "handle": handle.as_str(), "lines": "1..1" }));
    assert!(line["text"].as_str().unwrap().len() < whole.len() || whole.lines().count() == 1, "{line}");
    assert_eq!(pipe.error_kind(json!({ "op": "unfold", "handle": handle.as_str(), "lines": "x" })), "bad_line");
}
