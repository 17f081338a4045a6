//! `foldline run` with a real command, and a provider that records what it receives.
//!
//! The command that speaks HTTP is this very test, started again: see `agent`.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "it is a test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use serde_json::json;
use tempfile::TempDir;

use support::{Received, Serving, foldline, message, server, text};

const ANSWER: &str = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;

const TURN: &str = "POST /v1/chat/completions ";

/// What a provider received, but for the questions that the proxy asks it on its own.
fn turns(received: &Received) -> Vec<(String, Vec<u8>)> {
    received.lock().unwrap().iter().filter(|(head, _)| head.starts_with(TURN)).cloned().collect()
}

/// What an agent sends.
fn turn() -> String {
    json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": "Hello?" }] }).to_string()
}

fn post(base: &str, body: &str) -> (String, Vec<u8>) {
    let (host, path) = base.strip_prefix("http://").unwrap().split_once("/").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /{path}/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer secret\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    message(&mut BufReader::new(stream)).unwrap()
}

/// The command of the tests below: an agent that knows its provider from the environment.
#[test]
#[ignore = "it is the command that the other tests run"]
fn agent() {
    let (_, body) = post(&std::env::var("OPENAI_BASE_URL").unwrap(), &turn());
    assert_eq!(body, ANSWER.as_bytes());
}

fn run(folder: &TempDir, base: Option<&str>, words: &[&str]) -> Output {
    let mut command = foldline(folder.path());
    if let Some(base) = base {
        command.env("OPENAI_BASE_URL", base);
    }
    command.args(["run", "--"]).args(words).output().unwrap()
}

#[test]
fn a_command_speaks_to_its_own_provider_through_the_proxy() {
    let (folder, (base, received)) = (tempfile::tempdir().unwrap(), server(TURN, ANSWER));
    let agent = std::env::current_exe().unwrap();
    let words = [agent.to_str().unwrap(), "--exact", "agent", "--ignored", "--nocapture"];
    let output = run(&folder, Some(&format!("{base}/v1")), &words);
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    let received = turns(&received);
    let [(head, body)] = received.as_slice() else { panic!("{received:?}") };
    assert!(head.to_ascii_lowercase().contains("authorization: bearer secret"), "{head}");
    assert_eq!(text(body), turn(), "a request without tools and with nothing to fold goes out as it came");
    assert_eq!(text(&output.stderr).trim(), "foldline: 1 request, 8 tokens, nothing to fold");
}

#[test]
fn a_foldline_in_between_is_left_out() {
    let (folder, (base, received)) = (tempfile::tempdir().unwrap(), server(TURN, ANSWER));
    let serving = Serving::before(folder.path(), &base);
    let other = &serving.base;
    let agent = std::env::current_exe().unwrap();
    let words = [agent.to_str().unwrap(), "--exact", "agent", "--ignored"];
    let output = run(&folder, Some(&format!("{other}/v1")), &words);
    let metrics = {
        let mut stream = TcpStream::connect(other.strip_prefix("http://").unwrap()).unwrap();
        write!(stream, "GET /foldline/metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics).unwrap();
        metrics
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(turns(&received).len(), 1);
    assert!(metrics.contains("200 OK") && !metrics.contains("foldline_requests_total{"), "{metrics}");
}

#[test]
fn a_command_is_told_where_the_proxy_is() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&folder, None, &["sh", "-c", "echo $OPENAI_BASE_URL $ANTHROPIC_BASE_URL"]);
    let told = text(&output.stdout).trim();
    let (openai, anthropic) = told.split_once(' ').unwrap();
    assert!(anthropic.starts_with("http://127.0.0.1:"), "{told}");
    assert_eq!(openai, format!("{anthropic}/v1"));
    assert_eq!(text(&output.stderr), "", "nothing happened, and nothing is said");

    // A codex of this test's own says what it was called with.
    let codex = folder.path().join("codex");
    std::fs::write(&codex, "#!/bin/sh\necho \"$@\" ${OPENAI_BASE_URL-unset}\n").unwrap();
    std::fs::set_permissions(&codex, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = run(&folder, None, &[codex.to_str().unwrap(), "exec", "--json", "hello"]);
    let told = text(&output.stdout).trim();
    assert!(told.starts_with("-c openai_base_url=\"http://127.0.0.1:"), "{told}");
    assert!(told.ends_with("/v1\" exec --json hello unset"), "{told}");
}

#[test]
fn the_command_says_how_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    for (script, code) in [("exit 7", 7), ("kill -KILL $$", 137), ("cat >/dev/null; exit 0", 0)] {
        assert_eq!(run(&folder, None, &["sh", "-c", script]).status.code(), Some(code), "{script}");
    }
    let output = run(&folder, None, &["there-is-no-such-command"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("PATH"), "{}", text(&output.stderr));
}

fn signalled(folder: &TempDir, signal: &str) -> Option<i32> {
    let script = "trap 'exit 9' TERM; trap 'exit 8' INT; echo ready; while :; do sleep 0.05; done";
    let mut child: Child = foldline(folder.path())
        .args(["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    child.wait().unwrap().code()
}

#[test]
fn signals_go_on_to_the_command() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(signalled(&folder, "-TERM"), Some(9));
    assert_eq!(signalled(&folder, "-INT"), Some(8), "there is no terminal that would send it to both");
}
