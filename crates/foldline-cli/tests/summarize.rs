//! End-to-end tests of `foldline summarize`.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

const LOG_TEXT: &str =
    "03:00:00 start\n03:14:07 error ENOSPC: no space left on device /mnt/b7\n03:14:08 backup stopped\n";

fn run_summarize(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_foldline"))
        .arg("summarize")
        .args(arguments)
        .env("OPENAI_API_KEY", "sk-test")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Starts a server that gives every request the same answer and returns the requests it received.
fn start_server(answer: serde_json::Value, requests: usize) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        (0..requests)
            .map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    head.push_str(&line);
                    if line.trim().is_empty() {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let answer = answer.to_string();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                    answer.len()
                )
                .unwrap();
                format!("{head}{}", utf8(&body))
            })
            .collect()
    });
    (base, served)
}

fn final_call_response(summary: &str) -> serde_json::Value {
    let arguments = serde_json::json!({ "text": summary }).to_string();
    serde_json::json!({"choices": [{"message": {"role": "assistant", "content": null, "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "final", "arguments": arguments}}]},
        "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 50, "completion_tokens": 9}})
}

/// Without a server the facts are printed, and nothing is sent anywhere.
#[test]
fn facts_are_printed_without_a_model() {
    let output = run_summarize(&[], LOG_TEXT);
    assert!(output.status.success(), "{}", utf8(&output.stderr));
    let facts = utf8(&output.stdout);
    assert!(facts.contains("2: 03:14:07 error ENOSPC") && facts.contains("/mnt/b7"), "{facts}");
}

#[test]
fn request_body_is_read_as_conversation() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"repair the backup"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"bash","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c","content":"error ENOSPC"}]}"#;
    let facts = utf8(&run_summarize(&["-"], body).stdout);
    assert!(facts.contains("Tools called (1): bash") && facts.contains("Text: a conversation"), "{facts}");
}

#[test]
fn model_summary_and_cost_are_printed() {
    let summary = "Goal: the backup. It stopped since no space was left on device /mnt/b7 at 03:14:07.";
    let (base, served) = start_server(final_call_response(summary), 1);
    let output =
        run_summarize(&["--upstream", &base, "--model", "some-model", "--goal", "repair the backup"], LOG_TEXT);
    assert!(output.status.success(), "{}", utf8(&output.stderr));
    assert_eq!(utf8(&output.stdout).trim_end(), summary);
    assert!(
        utf8(&output.stderr).contains("written by a model; 1 turns, 0 sub-calls, 50 tokens in, 9 out"),
        "{}",
        utf8(&output.stderr)
    );
    let request = served.join().unwrap().remove(0);
    assert!(request.starts_with("POST /v1/chat/completions") && request.contains("Bearer sk-test"), "{request}");
}

#[test]
fn fabricated_summary_is_not_printed() {
    let (base, served) =
        start_server(final_call_response("Goal: repair the backup. The disk /mnt/b8 is full since 04:15:09 or so."), 3);
    let output = run_summarize(&["--upstream", &base, "--goal", "repair the backup", "--json"], LOG_TEXT);
    assert_eq!(output.status.code(), Some(4));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["author"], &report["outcome"]["exhausted"]), (&"code".into(), &"refusals".into()), "{report}");
    assert!(!report["text"].as_str().unwrap().contains("/mnt/b8"));
    assert_eq!(served.join().unwrap().len(), 3);
}

#[test]
fn unreachable_server_falls_back_to_facts() {
    let output = run_summarize(&["--upstream", "http://127.0.0.1:9", "--timeout", "20"], LOG_TEXT);
    assert_eq!(output.status.code(), Some(4), "{}", utf8(&output.stderr));
    assert!(utf8(&output.stdout).contains("error ENOSPC"));
    assert!(utf8(&output.stderr).contains("not written by a model"), "{}", utf8(&output.stderr));
}
