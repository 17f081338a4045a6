//! Test server that records the requests it receives, and the binary in an empty environment.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

/// The head and the body of each request.
pub(crate) type ReceivedRequests = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Starts a server that answers requests whose head starts with `known`, and others with 404.
pub(crate) fn start_server(known: &'static str, answer: &'static str) -> (String, ReceivedRequests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let received = ReceivedRequests::default();
    let record = received.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, record) = (stream.unwrap(), record.clone());
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some((head, body)) = read_message(&mut reader) {
                    let is_known = head.starts_with(known);
                    let (status, answer) = if is_known { ("200 OK", answer) } else { ("404 Not Found", "{}") };
                    let length = answer.len();
                    // The response to a HEAD request has no body.
                    let answer = if head.starts_with("HEAD ") { "" } else { answer };
                    record.lock().unwrap().push((head, body));
                    write!(
                        stream,
                        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{answer}"
                    )
                    .unwrap();
                }
            });
        }
    });
    (base, received)
}

/// Reads the head and the body of an HTTP message.
pub(crate) fn read_message(from: &mut impl BufRead) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    loop {
        let before = head.len();
        if from.read_line(&mut head).ok()? == 0 {
            return None;
        }
        if &head[before..] == "\r\n" {
            break;
        }
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    from.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// Returns a `foldline` command with an empty environment, except for `PATH` and `HOME`.
pub(crate) fn foldline(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foldline"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("HOME", home);
    command.stdin(Stdio::null());
    command
}

/// `foldline serve` on a free port, killed on drop.
pub(crate) struct RunningServer {
    process: Child,
    pub(crate) base_url: String,
}

impl RunningServer {
    pub(crate) fn start(home: &Path, upstream: &str) -> Self {
        Self::start_with(home, upstream, &[])
    }

    pub(crate) fn start_with(home: &Path, upstream: &str, variables: &[(&str, &str)]) -> Self {
        let mut process = foldline(home)
            .envs(variables.iter().copied())
            .args(["serve", "--listen", "127.0.0.1:0", "--upstream", upstream])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, base_url: line.trim().rsplit(' ').next().unwrap().to_owned() }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

pub(crate) fn utf8(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
