//! End-to-end tests of `foldline doctor` with a local server, a running proxy, and an archive that others can read.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "test code")]

mod support;

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use support::{RunningServer, foldline, start_server, utf8};

const MODELS_RESPONSE: &str = r#"{"data":[{"id":"qwen3-coder","max_model_len":32768}]}"#;

/// Returns the exit code and the findings: check, status and message.
fn run_doctor(mut command: Command, flags: &[&str]) -> (Option<i32>, Vec<(String, String, String)>) {
    let output = command.args(["doctor", "--json"]).args(flags).output().unwrap();
    let findings: Vec<Value> =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", utf8(&output.stderr)));
    let field = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings = findings.iter().map(|it| (field(it, "check"), field(it, "status"), field(it, "message"))).collect();
    (output.status.code(), findings)
}

fn finding_for<'f>(findings: &'f [(String, String, String)], check: &str) -> (&'f str, &'f str) {
    let found = findings.iter().find(|(name, ..)| name == check);
    let (_, status, message) = found.unwrap_or_else(|| panic!("{check} is not in {findings:?}"));
    (status, message)
}

#[test]
fn local_server_is_probed_without_the_key() {
    let home = tempfile::tempdir().unwrap();
    let (base, received) = start_server("GET /v1/models ", MODELS_RESPONSE);
    let mut command = foldline(home.path());
    command.env("OPENAI_API_KEY", "a-secret").env("FOLDLINE_TOKEN", "another");
    let flags = ["--upstream", &base, "--listen", "127.0.0.1:0", "--model", "qwen3-coder"];
    let (code, findings) = run_doctor(command, &flags);
    assert_eq!(code, Some(0), "{findings:?}");
    assert_eq!(finding_for(&findings, "upstream").0, "ok");
    assert!(finding_for(&findings, "window").1.ends_with("32,768 tokens"), "{findings:?}");
    let (_, settings) = finding_for(&findings, "settings");
    assert!(settings.contains("flags: listen, upstream") && settings.contains("variables: token"), "{settings}");
    assert!(!format!("{findings:?}").contains("another"), "a token is a secret");
    let received = received.lock().unwrap();
    assert!(!received.is_empty() && received.iter().all(|(head, _)| !head.contains("secret")), "{received:?}");
    assert!(!home.path().join(".local").exists(), "no file was created");
}

#[test]
fn running_proxy_is_detected() {
    let home = tempfile::tempdir().unwrap();
    let (base, _) = start_server("GET /v1/models ", MODELS_RESPONSE);
    let serving = RunningServer::start(home.path(), &base);
    let proxy = &serving.base_url;
    let listen = proxy.strip_prefix("http://").unwrap();
    let mut command = foldline(home.path());
    command.env("OPENAI_BASE_URL", format!("{proxy}/v1"));
    let (_, findings) = run_doctor(command, &["--upstream", &base, "--listen", listen]);
    let (_, twice) = run_doctor(foldline(home.path()), &["--upstream", proxy, "--listen", "127.0.0.1:0"]);
    let (status, message) = finding_for(&findings, "listen");
    assert!(status == "ok" && message.contains(&base), "{message}");
    assert_eq!(finding_for(&findings, "clients").0, "ok");
    assert_eq!(finding_for(&twice, "upstream").0, "warn", "everything would be folded twice");
}

#[test]
fn doctor_shows_learned_windows_with_their_evidence() {
    let home = tempfile::tempdir().unwrap();
    let (base, _) = start_server("GET /v1/models ", MODELS_RESPONSE);
    let serving = RunningServer::start(home.path(), &base);
    let listen = serving.base_url.strip_prefix("http://").unwrap();
    let body = r#"{"model":"qwen3-coder","messages":[{"role":"user","content":"hi"}]}"#;
    let mut stream = TcpStream::connect(listen).unwrap();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {listen}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    support::read_message(&mut BufReader::new(stream)).expect("an answer");
    let (_, findings) = run_doctor(foldline(home.path()), &["--upstream", &base, "--listen", listen]);
    let (status, message) = finding_for(&findings, "learned");
    assert_eq!(status, "ok");
    let expected = format!("qwen3-coder at {base}: 32,768 tokens, from the server's model endpoint");
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn broken_setup_exits_with_1() {
    let home = tempfile::tempdir().unwrap();
    let (base, received) = start_server("GET /v1/models ", MODELS_RESPONSE);
    let archive = home.path().join("archive.db");
    std::fs::write(&archive, "").unwrap();
    std::fs::set_permissions(&archive, std::fs::Permissions::from_mode(0o644)).unwrap();
    let flags = ["--upstream", &base, "--listen", "127.0.0.1:0", "--archive", archive.to_str().unwrap()];
    let (code, findings) = run_doctor(foldline(home.path()), &flags);
    assert_eq!((code, finding_for(&findings, "archive").0), (Some(1), "fail"));

    received.lock().unwrap().clear();
    let (code, findings) = run_doctor(foldline(home.path()), &["--upstream", &base, "--mode", "fast"]);
    assert_eq!((code, finding_for(&findings, "settings").0), (Some(1), "fail"));
    assert!(received.lock().unwrap().is_empty(), "nothing is probed while the settings are invalid");
}

#[test]
fn running_proxy_with_a_token_is_detected() {
    let home = tempfile::tempdir().unwrap();
    let (base, _) = start_server("GET /v1/models ", MODELS_RESPONSE);
    let token = [("FOLDLINE_TOKEN", "alice = t1")];
    let serving = RunningServer::start_with(home.path(), &base, &token);
    let listen = serving.base_url.strip_prefix("http://").unwrap();
    let flags = ["--upstream", &base, "--listen", listen];
    let mut command = foldline(home.path());
    command.envs(token);
    let (_, findings) = run_doctor(command, &flags);
    let (status, message) = finding_for(&findings, "listen");
    assert!(status == "ok" && message.starts_with("foldline "), "{findings:?}");
    let (_, findings) = run_doctor(foldline(home.path()), &flags);
    let (status, message) = finding_for(&findings, "listen");
    assert!(status == "fail" && message.contains("requires another token"), "{findings:?}");
}
