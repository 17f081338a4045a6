//! End-to-end tests of `foldline status`, `sessions` and `top`: what a proxy recorded is what they show.

#![expect(clippy::unwrap_used, reason = "test code")]

mod support;

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::Value;
use support::{RunningServer, foldline, start_server, utf8};

const ANSWER: &str = r#"{"choices":[{"message":{"role":"assistant","content":"ok"}}],"usage":{"prompt_tokens":1000,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":400}}}"#;

fn run(home: &Path, arguments: &[&str]) -> String {
    let output = foldline(home).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", utf8(&output.stderr));
    utf8(&output.stdout).to_owned()
}

#[test]
fn status_without_an_archive_says_so() {
    let home = tempfile::tempdir().unwrap();
    assert!(run(home.path(), &["status"]).contains("no request was recorded"));
    assert_eq!(run(home.path(), &["status", "--line"]), "foldline: no request today\n");
    assert!(run(home.path(), &["sessions"]).starts_with("no session"));
}

#[test]
fn status_check_fails_unless_a_proxy_answers() {
    let home = tempfile::tempdir().unwrap();
    let (upstream, _) = start_server("POST /v1/chat/completions", ANSWER);
    let check = |address: &str| {
        let output = foldline(home.path()).args(["status", "--check", address]).output().unwrap();
        (output.status.code(), utf8(&output.stderr).to_owned())
    };
    // No token is needed, as in a container.
    let tokens = [("FOLDLINE_TOKENS", "alice = 0123456789abcdef0123456789abcdef")];
    let serving = RunningServer::start_with(home.path(), &upstream, &tokens);
    let address = serving.base_url.strip_prefix("http://").unwrap().to_owned();
    assert_eq!(check(&address), (Some(0), String::new()));
    drop(serving);
    let (code, message) = check(&address);
    assert!(code == Some(1) && message.contains("no proxy answers"), "{code:?} {message}");
    // A server that is no proxy.
    let other = upstream.strip_prefix("http://").unwrap();
    assert_eq!(check(other).0, Some(1));
}

#[test]
fn status_shows_what_a_proxy_recorded() {
    let home = tempfile::tempdir().unwrap();
    let (upstream, _) = start_server("POST /v1/chat/completions", ANSWER);
    let serving = RunningServer::start(home.path(), &upstream);
    let address = serving.base_url.strip_prefix("http://").unwrap();
    let body = r#"{"model":"gpt-4o","messages":[{"role":"user","content":"Count the sheep."}]}"#;
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(stream, "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\nuser-agent: shepherd/1\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        support::read_message(&mut BufReader::new(stream)).expect("an answer");
    }
    // The journal is written in the background.
    let begin = std::time::Instant::now();
    let totals = loop {
        let status: Value = serde_json::from_str(&run(home.path(), &["status", "--json"])).unwrap();
        let totals = status["totals"]["today"].clone();
        if totals["requests"] == 3 || begin.elapsed().as_secs() > 20 {
            break totals;
        }
    };
    assert_eq!((&totals["requests"], &totals["input_tokens"]), (&3.into(), &3_000.into()));
    assert_eq!((&totals["cache_read_tokens"], &totals["fresh_tokens"]), (&1_200.into(), &1_800.into()));
    // gpt-4o: $2.50 per million input tokens, cached at half of it, output at $10.
    let dollars = (1_800.0 * 2.5 + 1_200.0 * 1.25 + 30.0 * 10.0) / 1e6;
    assert!((totals["billed_usd"].as_f64().unwrap() - dollars).abs() < 1e-9, "{totals}");
    let table = run(home.path(), &["status"]);
    assert!(table.contains("all time") && table.contains("7 days"), "{table}");
    let sessions = run(home.path(), &["sessions", "--since", "1d", "--json"]);
    let session: Value = serde_json::from_str(sessions.lines().next().unwrap()).unwrap();
    assert_eq!((session["title"].as_str(), session["client"].as_str()), (Some("Count the sheep."), Some("shepherd")));
    assert!(run(home.path(), &["top", "--once"]).contains("* Count the sheep."));
}
