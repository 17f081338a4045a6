//! End-to-end tests of `foldline fit`: its folds can be unfolded, and a failing archive does not lose a
//! body.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use foldline::engine::marker;
use serde_json::json;

/// Returns a request of an agent that has read `files` files of about a thousand tokens each.
fn request_body(files: usize) -> String {
    let mut messages = vec![json!({ "role": "user", "content": "Find out why the build is slow." })];
    for file in 0..files {
        let text: String = (0..100)
            .map(|line| format!("{line}\tlet step_{line} = measure({file} * {line}, \"phase {}\");\n", line % 7))
            .collect();
        let arguments = format!(r#"{{"path":"src/phase_{file}.rs"}}"#);
        let call = json!({ "id": format!("call_{file}"), "type": "function",
            "function": { "name": "read_file", "arguments": arguments } });
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
        messages.push(json!({ "role": "tool", "tool_call_id": format!("call_{file}"), "content": text }));
    }
    json!({ "model": "gpt-4o", "messages": messages }).to_string()
}

fn run_foldline(archive: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_foldline"))
        .args(arguments)
        .env("FOLDLINE_ARCHIVE", archive)
        .env_remove("FOLDLINE_ARCHIVE_KEY")
        .env_remove("FOLDLINE_ARCHIVE_KEY_FILE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may have closed it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Returns the texts of all messages of a body, and its handles.
fn texts_and_handles(body: &[u8]) -> (Vec<String>, Vec<String>) {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap();
    let text = |message: &serde_json::Value| message["content"].as_str().unwrap_or_default().to_owned();
    let texts: Vec<String> = body["messages"].as_array().unwrap().iter().map(text).collect();
    let handles = texts.iter().flat_map(|text| marker::handles(text)).map(|it| it.to_string()).collect();
    (texts, handles)
}

#[test]
fn written_handles_unfold_to_their_originals() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive.db");
    let body = request_body(30);
    let folded = run_foldline(&archive, &["fit", "--budget", "12000"], &body);
    let (raw, _) = texts_and_handles(body.as_bytes());
    let (_, handles) = texts_and_handles(&folded.stdout);
    assert!(handles.len() > 5, "{}", String::from_utf8_lossy(&folded.stdout));
    let mut exact = 0;
    for handle in &handles {
        let unfolded = String::from_utf8(run_foldline(&archive, &["unfold", handle, "--raw"], "").stdout).unwrap();
        // A handle of whole rounds gives their messages as JSON.
        let is_whole = raw.contains(&unfolded) || serde_json::from_str::<Vec<serde_json::Value>>(&unfolded).is_ok();
        assert!(is_whole, "{handle}: {unfolded}");
        exact += usize::from(raw.contains(&unfolded));
    }
    assert!(exact > 0);
}

#[test]
fn body_that_fits_creates_no_archive() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive.db");
    let body = request_body(2);
    assert_eq!(run_foldline(&archive, &["fit", "--budget", "100000"], &body).stdout, body.as_bytes());
    assert!(!archive.exists());
}

#[test]
fn failing_archive_folds_without_handles() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive.db");
    std::fs::write(&archive, "this is a shopping list, not a database\n".repeat(99)).unwrap();
    let folded = run_foldline(&archive, &["fit", "--budget", "12000"], &request_body(30));
    assert_eq!(texts_and_handles(&folded.stdout).1, Vec::<String>::new());
    assert!(String::from_utf8_lossy(&folded.stdout).contains("[folded: "));
    let warning = String::from_utf8(folded.stderr).unwrap();
    assert!(warning.contains("originals could not be kept"), "{warning}");
}

#[test]
fn no_archive_flag_writes_no_handles_or_warnings() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("archive.db");
    let folded = run_foldline(&archive, &["fit", "--budget", "12000", "--no-archive"], &request_body(30));
    assert_eq!(texts_and_handles(&folded.stdout).1, Vec::<String>::new());
    assert_eq!(String::from_utf8(folded.stderr).unwrap(), "");
    assert!(!archive.exists());
}

/// One call stops as soon as it fits; a loop asks for room.
#[test]
fn fit_stops_just_under_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let (archive, stats) = (folder.path().join("archive.db"), folder.path().join("stats.json"));
    let tokens = |arguments: &[&str]| {
        let fixed = ["fit", "--budget", "12000", "--stats", stats.to_str().unwrap()];
        run_foldline(&archive, &[&fixed[..], arguments].concat(), &request_body(30));
        let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(&stats).unwrap()).unwrap();
        stats["tokens"].as_u64().unwrap()
    };
    let just_under = tokens(&[]);
    // Each file has about 1,500 tokens: one more would not fit.
    assert!((10_400..=12_000).contains(&just_under), "{just_under}");
    let with_room = tokens(&["--target", "0.55"]);
    assert!(with_room <= 12_000 * 6 / 10, "{with_room}");
}

#[test]
fn every_dialect_is_a_format() {
    let folder = tempfile::tempdir().unwrap();
    let contents = r#"{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}"#;
    let arguments = ["fit", "--budget", "2000", "--format", "gemini"];
    assert_eq!(run_foldline(&folder.path().join("archive.db"), &arguments, contents).stdout, contents.as_bytes());
}
