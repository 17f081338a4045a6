//! End-to-end tests of `foldline show`.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// A session with every section of the report: a file read twice, a failed command.
const REQUEST_BODY: &str = r#"{"model":"claude-sonnet-4-5","max_tokens":100,"system":"You fix bugs.",
"tools":[{"name":"Read","input_schema":{"type":"object"}}],
"messages":[
{"role":"user","content":"Why does the build fail?"},
{"role":"assistant","content":[{"type":"thinking","thinking":"Look first.","signature":"E"},{"type":"tool_use","id":"t1","name":"Read","input":{"path":"src/main.rs"}}]},
{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"1→fn main() { println!(\"hello, world\"); }\n2→fn other() { println!(\"hello, moon\"); }"}]},
{"role":"assistant","content":[{"type":"tool_use","id":"t2","name":"Bash","input":{"command":"cargo build"}}]},
{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","is_error":true,"content":"error: \u001b[31mcould not compile\u001b[0m"}]},
{"role":"assistant","content":[{"type":"tool_use","id":"t3","name":"Read","input":{"path":"src/main.rs"}}]},
{"role":"user","content":[{"type":"tool_result","tool_use_id":"t3","content":"1→fn main() { println!(\"hello, world\"); }\n2→fn other() { println!(\"hello, moon\"); }"}]}
]}"#;

fn run_show(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_foldline"))
        .arg("show")
        .args(arguments)
        .env("COLUMNS", "80")
        .env_remove("NO_COLOR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The command may reject its input before it has read it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A request body on standard input and output into a pipe: no colors, no line wider than the limit.
#[test]
fn request_body_is_rendered() {
    let output = run_show(&["-"], REQUEST_BODY);
    let output_text = utf8(&output.stdout);
    assert!(output.status.success(), "{}", utf8(&output.stderr));
    assert!(!output_text.contains('\x1b'), "{output_text}");
    for line in output_text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for line in [
        "claude-sonnet-4-5, anthropic, 7 messages in 3 rounds",
        "4 requests sent",
        "  Read (2)",
        "  Bash (1, 1 failed)",
        "result of Read src/main.rs",
        "  1 part repeats an earlier one word for word:",
        " % of the result lines appear in an earlier result: about ",
        "  new in the last request",
        "  in every request",
        "Violated provider laws\n  none",
    ] {
        assert!(output_text.contains(line), "{line:?} is missing in\n{output_text}");
    }
}

/// The shares of each section add up to the total.
#[test]
fn shares_sum_to_the_total() {
    let output = run_show(&["--json", "-"], REQUEST_BODY);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum = |key: &str| json[key].as_array().unwrap().iter().map(|it| it["tokens"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("by_role"), json["tokens"].as_u64().unwrap());
    assert_eq!(sum("by_age"), json["tokens"].as_u64().unwrap());
    assert_eq!(json["by_tool"][0]["name"], "Read");
    assert_eq!(json["requests"], 4);
    assert_eq!(json["repeats"]["groups"][0]["part"], "2.0");
    assert_eq!(json["sessions"][0]["counted"], "by_estimate");
}

/// Two conversations in one file with a damaged line between them: both are shown, the damage is reported.
#[test]
fn damaged_line_is_reported_and_skipped() {
    let one = |id: &str| format!(r#"{{"id":"{id}","source":"s","messages":[{{"role":"user","content":"hi"}}]}}"#);
    let output = run_show(&["-"], &format!("{}\n{{\"id\":\"broken\n{}\n", one("first"), one("second")));
    let output_text = utf8(&output.stdout);
    assert!(output_text.starts_with("2 conversations\n   0 first "), "{output_text}");
    assert!(utf8(&output.stderr).starts_with("foldline: standard input: line 2: "), "{}", utf8(&output.stderr));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn unknown_input_lists_supported_formats() {
    let output = run_show(&["-"], "Dear diary");
    assert_eq!(output.status.code(), Some(1));
    let stderr = utf8(&output.stderr);
    assert!(stderr.starts_with("foldline: could not parse standard input: line 1:"), "{stderr}");
    assert!(stderr.contains("claude-code"), "{stderr}");

    let output = run_show(&["no/such/file"], "");
    assert!(utf8(&output.stderr).starts_with("foldline: no/such/file: "), "{}", utf8(&output.stderr));
}

/// A call without a result, in a body and in a recorded session.
#[test]
fn broken_laws_are_reported_with_their_position() {
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"},{"role":"tool","tool_call_id":"c9","content":"x"}]}"#;
    let record = format!(r#"{{"id":"r","source":"s",{}"#, &body[1..]);
    for input in [body, &record] {
        let text = utf8(&run_show(&["-"], input).stdout);
        assert!(text.contains("\n  result-has-call: part 1.0: no call before it has the id `c9`\n"), "{text}");
    }
}

/// `--model` selects the vocabulary.
#[test]
fn tokens_are_counted_for_the_given_model() {
    let output = run_show(&["--json", "--model", "gpt-4o", "-"], r#"[{"role":"user","content":"hello world"}]"#);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&json["tokens"], &json["sessions"][0]["counted"]), (&8.into(), &"exactly".into()));
}

/// The demo needs no setup and succeeds.
#[test]
fn demo_succeeds() {
    let output = Command::new(env!("CARGO_BIN_EXE_foldline")).arg("demo").output().unwrap();
    assert!(output.status.success(), "{}{}", utf8(&output.stdout), utf8(&output.stderr));
    for expected in ["refused with 400", "definition of the tool", "unfolded", "recoverable"] {
        assert!(utf8(&output.stdout).contains(expected), "{expected}: {}", utf8(&output.stdout));
    }
}

/// The user's table overrides the window; a wrong table is reported with its file and line.
#[test]
fn user_model_table_overrides_builtin() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("models.csv");
    let window = |arguments: &[&str]| {
        let report: serde_json::Value = serde_json::from_slice(&run_show(arguments, REQUEST_BODY).stdout).unwrap();
        report["sessions"][0]["window"].clone()
    };
    let arguments = ["--json", "--models", table.to_str().unwrap(), "-"];
    assert_ne!(window(&["--json", "-"]), 4096);
    std::fs::write(&table, "prefix,window\nclaude-sonnet-4-5,4096\n").unwrap();
    assert_eq!(window(&arguments), 4096);

    std::fs::write(&table, "prefix,window\nclaude-sonnet-4-5,many\n").unwrap();
    let output = run_show(&arguments, REQUEST_BODY);
    assert!(!output.status.success());
    let stderr = utf8(&output.stderr);
    assert!(stderr.contains("models.csv is not a model table"), "{stderr}");
    assert!(stderr.contains("line 2"), "{stderr}");
}
