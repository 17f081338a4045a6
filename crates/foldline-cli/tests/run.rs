//! `foldline run` with a real command, and a provider that records what it receives.
//!
//! The command that sends requests is this test binary, started again: see `agent`.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "test code")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use serde_json::json;
use tempfile::TempDir;

use support::{ReceivedRequests, RunningServer, foldline, read_message, start_server, utf8};

const RESPONSE_BODY: &str = r#"{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello."},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#;

const CHAT_REQUEST_LINE: &str = "POST /v1/chat/completions ";

/// Returns the requests that a provider received, without the proxy's own probes.
fn chat_requests(received: &ReceivedRequests) -> Vec<(String, Vec<u8>)> {
    received.lock().unwrap().iter().filter(|(head, _)| head.starts_with(CHAT_REQUEST_LINE)).cloned().collect()
}

/// Returns an agent's request body.
fn chat_body() -> String {
    json!({ "model": "gpt-4o", "messages": [{ "role": "user", "content": "Hello?" }] }).to_string()
}

fn post_chat(base: &str, body: &str) -> (String, Vec<u8>) {
    let (host, path) = base.strip_prefix("http://").unwrap().split_once("/").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /{path}/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer secret\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    read_message(&mut BufReader::new(stream)).unwrap()
}

/// The command of the tests below: an agent that knows its provider from the environment.
#[test]
#[ignore = "the command that the other tests run"]
fn agent() {
    let (_, body) = post_chat(&std::env::var("OPENAI_BASE_URL").unwrap(), &chat_body());
    assert_eq!(body, RESPONSE_BODY.as_bytes());
}

fn run_foldline(folder: &TempDir, base: Option<&str>, command_line: &[&str]) -> Output {
    let mut command = foldline(folder.path());
    if let Some(base) = base {
        command.env("OPENAI_BASE_URL", base);
    }
    command.args(["run", "--"]).args(command_line).output().unwrap()
}

#[test]
fn command_reaches_its_provider_through_the_proxy() {
    let (folder, (base, received)) = (tempfile::tempdir().unwrap(), start_server(CHAT_REQUEST_LINE, RESPONSE_BODY));
    let agent = std::env::current_exe().unwrap();
    let command_line = [agent.to_str().unwrap(), "--exact", "agent", "--ignored", "--nocapture"];
    let output = run_foldline(&folder, Some(&format!("{base}/v1")), &command_line);
    assert!(output.status.success(), "{}\n{}", utf8(&output.stdout), utf8(&output.stderr));
    let received = chat_requests(&received);
    let [(head, body)] = received.as_slice() else { panic!("{received:?}") };
    assert!(head.to_ascii_lowercase().contains("authorization: bearer secret"), "{head}");
    assert_eq!(utf8(body), chat_body(), "a request without tools and with nothing to fold is forwarded unchanged");
    let lines: Vec<&str> = utf8(&output.stderr).lines().collect();
    let [start, end] = lines.as_slice() else { panic!("{lines:?}") };
    assert!(start.starts_with("foldline: proxy on http://127.0.0.1:"), "{start}");
    assert_eq!(*end, "foldline: 1 request, 8 tokens, nothing to fold");
}

#[test]
fn running_proxy_is_bypassed() {
    let (folder, (base, received)) = (tempfile::tempdir().unwrap(), start_server(CHAT_REQUEST_LINE, RESPONSE_BODY));
    let serving = RunningServer::start(folder.path(), &base);
    let other = &serving.base_url;
    let agent = std::env::current_exe().unwrap();
    let command_line = [agent.to_str().unwrap(), "--exact", "agent", "--ignored"];
    let output = run_foldline(&folder, Some(&format!("{other}/v1")), &command_line);
    let metrics = {
        let mut stream = TcpStream::connect(other.strip_prefix("http://").unwrap()).unwrap();
        write!(stream, "GET /foldline/metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics).unwrap();
        metrics
    };
    assert!(output.status.success(), "{}", utf8(&output.stderr));
    assert_eq!(chat_requests(&received).len(), 1);
    let mut requests = metrics.lines().filter(|line| line.starts_with("foldline_requests_total{"));
    assert!(metrics.contains("200 OK") && requests.all(|line| line.ends_with(" 0")), "{metrics}");
}

#[test]
fn command_gets_the_proxy_base_urls() {
    let folder = tempfile::tempdir().unwrap();
    let output = run_foldline(&folder, None, &["sh", "-c", "echo $OPENAI_BASE_URL $ANTHROPIC_BASE_URL"]);
    let printed = utf8(&output.stdout).trim();
    let (openai, anthropic) = printed.split_once(' ').unwrap();
    assert!(anthropic.starts_with("http://127.0.0.1:"), "{printed}");
    assert_eq!(openai, format!("{anthropic}/v1"));
    let stderr = utf8(&output.stderr);
    assert!(stderr.starts_with(&format!("foldline: proxy on {anthropic}\n")), "{stderr}");
    assert!(
        stderr.ends_with("foldline: no request arrived; the command called no model, or does not read OPENAI_BASE_URL, ANTHROPIC_BASE_URL or GOOGLE_GEMINI_BASE_URL\n"),
        "{stderr}"
    );

    // A fake codex that prints its arguments.
    let codex = folder.path().join("codex");
    std::fs::write(&codex, "#!/bin/sh\necho \"$@\" ${OPENAI_BASE_URL-unset}\n").unwrap();
    std::fs::set_permissions(&codex, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = run_foldline(&folder, None, &[codex.to_str().unwrap(), "exec", "--json", "hello"]);
    let printed = utf8(&output.stdout).trim();
    assert!(printed.starts_with("-c openai_base_url=\"http://127.0.0.1:"), "{printed}");
    assert!(printed.ends_with("/v1\" exec --json hello unset"), "{printed}");
}

#[test]
fn exit_code_of_the_command_is_returned() {
    let folder = tempfile::tempdir().unwrap();
    for (script, code) in [("exit 7", 7), ("kill -KILL $$", 137), ("cat >/dev/null; exit 0", 0)] {
        assert_eq!(run_foldline(&folder, None, &["sh", "-c", script]).status.code(), Some(code), "{script}");
    }
    let output = run_foldline(&folder, None, &["there-is-no-such-command"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(utf8(&output.stderr).contains("PATH"), "{}", utf8(&output.stderr));
}

#[test]
fn missing_command_creates_no_archive() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(run_foldline(&folder, None, &["there-is-no-such-command"]).status.code(), Some(127));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn failing_upstream_is_counted_as_errors() {
    let (folder, (base, _)) = (tempfile::tempdir().unwrap(), start_server("GET /nothing ", "{}"));
    let agent = std::env::current_exe().unwrap();
    let command_line = [agent.to_str().unwrap(), "--exact", "agent", "--ignored", "--nocapture"];
    let output = run_foldline(&folder, Some(&format!("{base}/v1")), &command_line);
    let stderr = utf8(&output.stderr);
    assert!(stderr.contains("foldline: 1 request (1 refused with 4xx), 8 tokens\n"), "{stderr}");
}

#[test]
fn upstream_errors_are_in_metrics_and_health() {
    let (folder, (base, _)) = (tempfile::tempdir().unwrap(), start_server("GET /nothing ", "{}"));
    let serving = RunningServer::start(folder.path(), &base);
    post_chat(&format!("{}/v1", serving.base_url), &chat_body());
    let get = |path: &str| {
        let mut stream = TcpStream::connect(serving.base_url.strip_prefix("http://").unwrap()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let metrics = get("/foldline/metrics");
    assert!(metrics.contains("foldline_upstream_errors_total{class=\"4xx\"} 1\n"), "{metrics}");
    let health = get("/foldline/healthz");
    assert!(health.contains(r#""upstream_errors":{"4xx":1,"5xx":0,"none":0}"#), "{health}");
}

/// Creates a fake client in the folder that prints its arguments and variables.
fn write_client(folder: &TempDir, name: &str) -> String {
    let client = folder.path().join(name);
    let script =
        "#!/bin/sh\necho \"$@\"\necho ${_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL-unset} ${ENABLE_TOOL_SEARCH-unset}\n";
    std::fs::write(&client, script).unwrap();
    std::fs::set_permissions(&client, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    client.to_str().unwrap().to_owned()
}

#[test]
fn claude_code_at_the_official_upstream_keeps_its_features() {
    let folder = tempfile::tempdir().unwrap();
    let claude = write_client(&folder, "claude");
    let variables = |settings: &[&str], user: &[(&str, &str)]| {
        let mut command = foldline(folder.path());
        let output =
            command.envs(user.iter().copied()).arg("run").args(settings).args(["--", &claude]).output().unwrap();
        utf8(&output.stdout).lines().nth(1).unwrap().to_owned()
    };
    assert_eq!(variables(&[], &[]), "1 true");
    assert_eq!(variables(&[], &[("ENABLE_TOOL_SEARCH", "false")]), "1 false", "the user's value stays");
    assert_eq!(variables(&["--anthropic", "https://gateway.example"], &[]), "unset unset");
}

#[test]
fn settings_file_of_claude_code_does_not_bypass_the_proxy() {
    let (folder, (base, _)) = (tempfile::tempdir().unwrap(), start_server("GET /nothing ", "{}"));
    let claude = write_client(&folder, "claude");
    std::fs::create_dir(folder.path().join(".claude")).unwrap();
    let settings = json!({ "env": { "ANTHROPIC_BASE_URL": base } }).to_string();
    std::fs::write(folder.path().join(".claude/settings.json"), settings).unwrap();
    let output = run_foldline(&folder, None, &[&claude, "-p", "hello"]);
    let printed = utf8(&output.stdout);
    assert!(printed.starts_with("--settings {\"env\":{\"ANTHROPIC_BASE_URL\":\"http://127.0.0.1:"), "{printed}");
    assert!(printed.contains("} -p hello\nunset unset\n"), "the configured gateway is the upstream: {printed}");
    let output = run_foldline(&folder, None, &[&claude, "--settings", "mine.json"]);
    let stderr = utf8(&output.stderr);
    assert!(
        stderr.contains(&format!("env.ANTHROPIC_BASE_URL in ~/.claude/settings.json points Claude Code at {base}")),
        "{stderr}"
    );
}

/// The last output of a client that is interrupted stays, and the closing line follows it.
#[test]
fn interrupted_client_keeps_its_last_line() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo goodbye; exit 130' INT; echo ready; while :; do sleep 0.05; done";
    let mut child = foldline(folder.path())
        .args(["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((line.as_str(), rest.as_str()), ("ready\n", "goodbye\n"));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(utf8(&output.stderr).trim_end().lines().last().unwrap().starts_with("foldline: no request arrived"));
}

fn exit_code_after_signal(folder: &TempDir, signal: &str) -> Option<i32> {
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
fn signals_are_forwarded_to_the_command() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(exit_code_after_signal(&folder, "-TERM"), Some(9));
    assert_eq!(exit_code_after_signal(&folder, "-INT"), Some(8), "no terminal sends it to both processes");
}
