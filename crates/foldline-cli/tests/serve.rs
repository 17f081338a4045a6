//! End-to-end tests of `foldline serve` as a process: full disk, termination, tokens.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "test code")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

/// Starts an upstream that answers every request and counts prompts.
fn start_upstream() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (head, _) = read_message(&mut stream);
            counted.fetch_add(usize::from(head.starts_with("POST /v1/chat/completions")), Ordering::SeqCst);
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    (address, count)
}

/// Reads the head and the body of a message with a content length.
fn read_message(stream: &mut impl BufRead) -> (String, Vec<u8>) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

fn send_request(proxy: &str, method: &str, path: &str, body: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(proxy).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    read_message(&mut BufReader::new(stream))
}

struct ServeProcess(Child, String);

impl ServeProcess {
    fn start(command: Command) -> Self {
        Self::start_with_log(command, Stdio::null())
    }

    fn start_with_log(mut command: Command, log: Stdio) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit_once("http://").expect("the first line contains the address").1.to_owned();
        Self(child, address)
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The disk becomes full: no file can grow any more. Every request is still answered, and earlier
/// folds remain.
#[test]
fn full_disk_fails_no_request() {
    let (upstream, received) = start_upstream();
    let folder = tempfile::tempdir().unwrap();
    // A process that ignores this signal gets a write error instead. 300 KB are enough for
    // an empty archive and the first folds.
    let script = "trap '' XFSZ; ulimit -f 600; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_foldline"), "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--upstream", &format!("http://{upstream}"), "--window", "8000", "--archive"]);
    command.arg(folder.path().join("archive.db"));
    let serving = ServeProcess::start(command);

    let mut messages = vec![json!({ "role": "user", "content": "Please make the parser faster." })];
    let mut sent = Vec::new();
    for turn in 0..120 {
        // Texts that compress badly fill a disk soon.
        let mut noise = turn as u64 + 1;
        let lines = (0..40).map(|line| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("let value_{line} = {noise:x} ^ {:x};\n", noise.rotate_left(17) ^ (noise >> 7))
        });
        let (id, source) = (format!("call_{turn}"), lines.collect::<String>());
        messages.extend([
            json!({ "role": "assistant", "content": "Reading.", "tool_calls": [
                { "id": id, "type": "function", "function": { "name": "read_file", "arguments": "{\"path\":\"x\"}" } }] }),
            json!({ "role": "tool", "tool_call_id": id, "content": source }),
        ]);
        let tools =
            json!([{ "type": "function", "function": { "name": "read_file", "parameters": { "type": "object" } } }]);
        let body = json!({ "model": "gpt-4o", "max_tokens": 500, "messages": messages, "tools": tools }).to_string();
        let (head, body) = send_request(&serving.1, "POST", "/v1/chat/completions", &body);
        assert!(head.starts_with("HTTP/1.1 200"), "turn {turn}: {head}{}", String::from_utf8_lossy(&body));
        let tokens = head.lines().find_map(|line| line.strip_prefix("x-foldline-tokens: "));
        sent.push(tokens.map(|it| it.split_once(',').unwrap().1.parse::<u64>().unwrap()));
    }
    assert_eq!(received.load(Ordering::SeqCst), 120);
    let (head, metrics) = send_request(&serving.1, "GET", "/foldline/metrics", "");
    assert!(head.starts_with("HTTP/1.1 200"));
    let metrics = String::from_utf8(metrics).unwrap();
    assert!(
        !metrics.contains("foldline_internal_errors_total{kind=\"fold_refused\"} 0"),
        "the disk never became full: {metrics}"
    );
    assert!(sent.iter().any(|tokens| tokens.is_some_and(|tokens| tokens < 8_000)), "{sent:?}");
}

/// On SIGTERM a proxy cancels the fold for a client that has disconnected.
#[test]
fn sigterm_ends_a_busy_proxy_in_time() {
    let (upstream, received) = start_upstream();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_foldline"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--upstream", &format!("http://{upstream}"), "--archive"]);
    command.arg(folder.path().join("archive.db"));
    let mut serving = ServeProcess::start(command);

    let mut messages = vec![json!({ "role": "user", "content": "Find the bug." })];
    for round in 0..2400 {
        let id = format!("call_{round}");
        let lines =
            (0..400).map(|line| format!("let value_{line} = compute_{round}({}, other[{line}]);\n", line * round));
        messages.extend([
            json!({ "role": "assistant", "content": "Reading.", "tool_calls": [
                { "id": id, "type": "function", "function": { "name": "read_file", "arguments": "{\"path\":\"x\"}" } }] }),
            json!({ "role": "tool", "tool_call_id": id, "content": lines.collect::<String>() }),
        ]);
    }
    let body = json!({ "model": "gpt-4o", "messages": messages }).to_string();
    let mut client = TcpStream::connect(&serving.1).unwrap();
    let length = body.len();
    write!(client, "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
    thread::sleep(Duration::from_millis(500));
    drop(client);

    let signaled_at = Instant::now();
    let pid = rustix::process::Pid::from_child(&serving.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    while serving.0.try_wait().unwrap().is_none() {
        assert!(
            signaled_at.elapsed() < Duration::from_secs(10),
            "still running {:?} after SIGTERM",
            signaled_at.elapsed()
        );
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(received.load(Ordering::SeqCst), 0, "the fold was not finished");
}

/// A response that never ends delays the end of a proxy; a second signal ends it without waiting.
#[test]
fn second_sigterm_ends_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_foldline"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--upstream", &format!("http://{upstream}"), "--archive"]);
    command.arg(folder.path().join("archive.db"));
    let mut serving = ServeProcess::start(command);
    let mut client = TcpStream::connect(&serving.1).unwrap();
    write!(client, "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    thread::sleep(Duration::from_millis(300));

    let pid = rustix::process::Pid::from_child(&serving.0);
    let terminate = || rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    terminate();
    thread::sleep(Duration::from_secs(1));
    assert!(serving.0.try_wait().unwrap().is_none(), "it waits for the open response");
    terminate();
    let signaled_at = Instant::now();
    while serving.0.try_wait().unwrap().is_none() {
        assert!(signaled_at.elapsed() < Duration::from_secs(10), "still running after a second SIGTERM");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Arguments of a process are visible to every user of the machine, so a token must not be one of them.
#[test]
fn token_comes_from_a_file_and_not_from_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, "alice = t-1\n").unwrap();
    let serve = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foldline"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--archive"]).arg(folder.path().join("archive.db"));
        command.args(arguments);
        command
    };
    let refused = |arguments: &[&str]| String::from_utf8(serve(arguments).output().unwrap().stderr).unwrap();
    assert!(refused(&["--token", "t-1"]).contains("--token-file"));
    let set_mode = |mode| std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    set_mode(0o644);
    assert!(refused(&["--token-file", file.to_str().unwrap()]).contains("chmod 600"));
    set_mode(0o600);
    let file = file.to_str().unwrap();
    assert!(refused(&["--token-file", file, "--tenancy", "single"]).contains("choose token or credential"));
    assert!(refused(&["--token-file", file, "--namespace", "team-7"]).contains("tenancy single"));

    let serving = ServeProcess::start(serve(&["--token-file", file]));
    let status = |path: &str| send_request(&serving.1, "GET", path, "").0.lines().next().unwrap().to_owned();
    assert!(status("/foldline/healthz").contains("401"));
    assert!(status("/token/t-1/foldline/healthz").contains("200"));
}

/// A token is replaced while the proxy runs; a file that cannot be used changes nothing.
#[test]
fn token_file_is_loaded_again_at_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (folder.path().join("tokens"), folder.path().join("log"));
    std::fs::write(&file, "alice = t-1\nbob = t-2\n").unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_foldline"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--archive"]).arg(folder.path().join("archive.db"));
    command.arg("--token-file").arg(&file);
    let serving = ServeProcess::start_with_log(command, std::fs::File::create(&log).unwrap().into());
    let is_accepted = |token: &str| {
        let (head, _) = send_request(&serving.1, "GET", &format!("/token/{token}/foldline/healthz"), "");
        head.starts_with("HTTP/1.1 200")
    };
    let load = |tokens: &str, message: &str| {
        std::fs::write(&file, tokens).unwrap();
        let hung_up = Command::new("kill").arg("-HUP").arg(serving.0.id().to_string()).status().unwrap();
        assert!(hung_up.success());
        let deadline = Instant::now() + Duration::from_secs(10);
        while !std::fs::read_to_string(&log).unwrap().contains(message) {
            assert!(Instant::now() < deadline, "no message: {message}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    assert_eq!(["t-1", "t-2", "t-3"].map(is_accepted), [true, true, false]);
    load("alice = t-3\nbob = t-2\n", "2 tokens are accepted");
    assert_eq!(["t-1", "t-2", "t-3"].map(is_accepted), [false, true, true]);
    load("alice = two words\n", "the previous tokens stay in use");
    load("", "the token file contains no token");
    assert_eq!(["t-1", "t-2", "t-3"].map(is_accepted), [false, true, true]);
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("t-3") && !text.contains("two words"), "{text}");
}

/// OAuth tokens and signatures change, so they identify no tenant: a proxy that depends on credentials warns of that.
#[test]
fn rotating_credentials_are_reported_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let warns = |tokens: &str, arguments: &[&str]| {
        std::fs::write(&file, tokens).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let log = folder.path().join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_foldline"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--archive"]).arg(folder.path().join("archive.db"));
        command.args(arguments);
        drop(ServeProcess::start_with_log(command, std::fs::File::create(&log).unwrap().into()));
        std::fs::read_to_string(log).unwrap().contains("rotating credential (OAuth, SigV4), belong to no tenant")
    };
    let tokens = ["--token-file", file.to_str().unwrap()];
    let by_credential = [&tokens[..], &["--tenancy", "credential"]].concat();
    assert!(warns("", &["--tenancy", "credential"]), "without tokens");
    assert!(warns("t-1\n", &by_credential), "a token without a name");
    assert!(!warns("alice = t-1\n", &by_credential), "named tokens identify every request");
    assert!(!warns("alice = t-1\n", &tokens), "a tenant per token");
    assert!(!warns("", &[]), "one tenant");
}
