//! Error messages of wrong calls: each states what happened, where, and what to do.

#![expect(clippy::unwrap_used, reason = "test code")]

#[expect(dead_code, reason = "other tests need the rest of it")]
mod support;

use std::net::TcpListener;
use std::path::Path;

use support::{foldline, utf8};

/// Returns the exit code and the text on standard error.
fn run_failing(home: &Path, arguments: &[&str]) -> (i32, String) {
    let output = foldline(home).args(arguments).current_dir(home).output().unwrap();
    (output.status.code().unwrap(), utf8(&output.stderr).to_owned())
}

#[test]
fn empty_input_is_reported() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("nothing"), "\n").unwrap();
    for (arguments, code) in [
        (&["fit", "--budget", "100", "nothing"][..], 2),
        (&["show", "nothing"], 1),
        (&["show", "-"], 1),
        (&["replay", "nothing"], 1),
        (&["summarize", "nothing"], 1),
    ] {
        let (exit, stderr) = run_failing(home.path(), arguments);
        assert_eq!(exit, code, "{arguments:?}: {stderr}");
        assert!(stderr.contains("is empty") && !stderr.contains("not JSON") && !stderr.contains("codex"), "{stderr}");
    }
}

#[test]
fn folder_without_sessions_is_reported() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("sessions")).unwrap();
    for command in ["show", "replay"] {
        let (exit, stderr) = run_failing(home.path(), &[command, "sessions"]);
        assert_eq!((exit, stderr.contains("in sessions")), (1, true), "{stderr}");
    }
}

/// Maintenance of a missing archive does not create one.
#[test]
fn archive_commands_create_no_archive() {
    let home = tempfile::tempdir().unwrap();
    for task in ["stats", "prune", "verify", "export"] {
        let (exit, stderr) = run_failing(home.path(), &["archive", task, "--archive", "archive.db"]);
        assert_eq!((exit, stderr.contains("archive.db")), (1, true), "{task}: {stderr}");
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}

#[test]
fn serve_startup_errors_give_advice() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    std::fs::write(home.path().join("file"), "").unwrap();
    for (arguments, advice) in [
        (["--listen", &taken], "choose another address with --listen"),
        (["--listen", "example.com:80"], "such as 127.0.0.1:8787"),
        (["--archive", "file/archive.db"], "set another one with --archive"),
        (["--mode", "slow"], "choose fold, observe or off"),
    ] {
        let (exit, stderr) = run_failing(home.path(), &[&["serve"][..], &arguments].concat());
        assert_eq!((exit, stderr.contains(advice)), (1, true), "{stderr}");
    }
}

/// A replay takes minutes; an unwritable report is reported before it starts.
#[test]
fn unwritable_report_is_reported_before_replay() {
    let home = tempfile::tempdir().unwrap();
    let call = |at: usize| {
        serde_json::json!([
            { "role": "assistant", "tool_calls": [{ "id": format!("c{at}"), "type": "function",
                "function": { "name": "sh", "arguments": "{}" } }] },
            { "role": "tool", "tool_call_id": format!("c{at}"), "content": "done" },
        ])
    };
    let messages: Vec<serde_json::Value> = (0..20).flat_map(|at| call(at).as_array().unwrap().clone()).collect();
    let session = serde_json::json!({ "model": "gpt-4o", "messages": messages }).to_string();
    std::fs::write(home.path().join("session.json"), session).unwrap();
    let output = foldline(home.path())
        .args(["replay", "session.json", "--html", "nowhere/report.html"])
        .current_dir(home.path())
        .output()
        .unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", utf8(&output.stdout));
    assert!(utf8(&output.stderr).contains("could not write nowhere/report.html"), "{}", utf8(&output.stderr));
}

#[test]
fn wrong_format_is_named() {
    let home = tempfile::tempdir().unwrap();
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#;
    std::fs::write(home.path().join("body.json"), body).unwrap();
    let (exit, stderr) =
        run_failing(home.path(), &["fit", "body.json", "--budget", "100", "--format", "openai-responses"]);
    assert_eq!(exit, 2, "{stderr}");
    assert!(stderr.contains("not in the format openai-responses; it looks like openai-chat"), "{stderr}");
}

/// Messages of Chat Completions can be parsed as those of Anthropic.
#[test]
fn wrong_format_is_named_although_the_body_can_be_parsed() {
    let home = tempfile::tempdir().unwrap();
    let call = r#"{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}"#;
    let chat = format!(
        r#"{{"messages":[{{"role":"user","content":"hi"}},{{"role":"assistant","tool_calls":[{call}]}},{{"role":"tool","tool_call_id":"c","content":"ok"}}]}}"#
    );
    std::fs::write(home.path().join("body.json"), chat).unwrap();
    let (exit, stderr) = run_failing(home.path(), &["fit", "body.json", "--budget", "100", "--format", "anthropic"]);
    assert_eq!(exit, 2, "{stderr}");
    assert!(stderr.contains("not in the format anthropic; it looks like openai-chat"), "{stderr}");
}

/// Recorded data cannot send control sequences to the terminal.
#[test]
fn control_characters_of_recordings_are_not_printed() {
    let home = tempfile::tempdir().unwrap();
    let hostile = "x \u{1b}]0;title\u{7}\u{1b}[2J \u{9b}31m y ".repeat(40);
    let call = serde_json::json!({ "id": "c", "type": "function", "function": { "name": "to\u{1b}[1mol", "arguments": "{}" } });
    let body = serde_json::json!({ "model": "gpt-4o\u{1b}[5m", "messages": [
        { "role": "user", "content": hostile },
        { "role": "assistant", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "c", "content": hostile.repeat(40) },
        { "role": "assistant", "content": "done" },
        { "role": "user", "content": "go on" },
    ] });
    std::fs::write(home.path().join("body.json"), body.to_string()).unwrap();
    let archive = ["--archive", "a.db"];
    for arguments in [
        &["show", "body.json"][..],
        &[&["fit", "body.json", "--budget", "900", "--explain", "-o", "out.json"][..], &archive].concat(),
        &[&["search", "title"][..], &archive].concat(),
        &[&["archive", "stats"][..], &archive].concat(),
        &["summarize", "body.json"],
    ] {
        let output = foldline(home.path()).args(arguments).current_dir(home.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", utf8(&output.stderr));
        for text in [utf8(&output.stdout), utf8(&output.stderr)] {
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{arguments:?}: {text:?}");
        }
    }
}

#[test]
fn singular_counts_are_not_pluralized() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("a"), r#"{"model":"gpt-4o","messages":[{"role":"user","content":"hi"}]}"#).unwrap();
    let shown = foldline(home.path()).args(["show", "a"]).current_dir(home.path()).output().unwrap();
    let shown = utf8(&shown.stdout);
    assert!(shown.contains("1 message in 0 rounds") && shown.contains("1 request sent 7 tokens"), "{shown}");
}
