//! Replicas that are killed: two `foldline serve` processes share a database, one after the other gets SIGKILL under load
//! and is started again, and no original is lost whose handle a client has received.

#![cfg(all(unix, feature = "postgres"))]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "test code")]

#[expect(dead_code, reason = "other tests need the rest of it")]
mod support;

use std::collections::BTreeSet;
use std::io::{BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use foldline::Handle;
use foldline::engine::marker::handles;
use foldline_archive::conformance::StoreFixture;
use foldline_archive::postgres_testing::TestDatabase;
use foldline_archive::{Archive, Namespace};
use serde_json::{Value, json};

use support::{foldline, read_message};

/// Concurrent conversations.
const CLIENTS: usize = 4;
/// Turns of a conversation; then its client begins another one.
const TURNS: usize = 40;
/// Responses that a replica gives before it is killed: between these numbers.
const MIN_RESPONSES: usize = 2;
const MAX_RESPONSES: usize = 24;
/// The first handle, in order, that the database of the negative control discards.
const FIRST_DISCARDED: &str = "h";
/// Longest wait for a replica to give them.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Runs in CI.
#[test]
fn five_kills_lose_no_handle() {
    check_kills(5);
}

/// Negative control: a database that discards half of the originals, so replicas respond without having stored them.
#[test]
fn discarded_originals_are_found() {
    let discard_half = format!(
        "CREATE FUNCTION discard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER discard BEFORE INSERT ON foldline.original FOR EACH ROW WHEN (NEW.handle >= '{FIRST_DISCARDED}')
         EXECUTE FUNCTION discard()"
    );
    let run = kill_replicas(3, |database| {
        drop(database.open());
        database.query(&discard_half);
    });
    let Some(KillRun { seen, lost, missing }) = run else { return };
    let (discarded, stored): (Vec<Handle>, Vec<Handle>) =
        seen.iter().copied().partition(|handle| handle.as_str() >= FIRST_DISCARDED);
    assert!(!discarded.is_empty() && !stored.is_empty());
    assert_eq!((&lost, &missing), (&discarded, &discarded));
}

/// The measurement of docs/measurements/fleet.md.
#[test]
#[ignore = "takes minutes; cargo xtask postgres cargo test -p foldline-cli --features postgres --test replica_kills -- --ignored --nocapture"]
fn hundred_kills_lose_no_handle() {
    check_kills(100);
}

/// A replica, and where it listens.
struct Replica {
    process: Child,
    address: String,
}

impl Replica {
    fn start(home: &Path, archive: &str, upstream: &str) -> Self {
        let mut process = foldline(home)
            .env("FOLDLINE_ARCHIVE", archive)
            .args(["serve", "--listen", "127.0.0.1:0", "--window", "16000", "--upstream", upstream])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut BufReader::new(process.stdout.take().unwrap()), &mut line).unwrap();
        let url = line.trim().rsplit(' ').next().unwrap();
        let address = url.strip_prefix("http://").unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        Self { process, address }
    }

    /// Sends SIGKILL to the process and waits until it has ended.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What all clients have in common.
#[derive(Default)]
struct Load {
    /// Addresses of the replicas.
    addresses: Mutex<[String; 2]>,
    /// Responses of each replica, since the test began.
    responses: [AtomicUsize; 2],
    /// Requests that failed because a replica was killed, and were sent again.
    retries: AtomicUsize,
    /// Handles in prompts whose responses a client has received.
    seen: Mutex<BTreeSet<Handle>>,
    is_over: AtomicBool,
}

/// What a run has found.
struct KillRun {
    /// Handles that clients have received.
    seen: BTreeSet<Handle>,
    /// Those that the archive does not restore.
    lost: Vec<Handle>,
    /// Those that the replicas do not restore.
    missing: Vec<Handle>,
}

fn check_kills(kills: usize) {
    if let Some(run) = kill_replicas(kills, |_| ()) {
        assert_eq!((run.lost, run.missing), (Vec::new(), Vec::new()));
    }
}

/// Kills replicas under load, on a database that `prepare` has changed. Returns none without a server for tests.
fn kill_replicas(kills: usize, prepare: impl FnOnce(&TestDatabase)) -> Option<KillRun> {
    let Ok(url) = std::env::var("TEST_POSTGRES_URL") else {
        println!("skipped: needs a PostgreSQL server, see `cargo xtask postgres`");
        return None;
    };
    let database = TestDatabase::create(&url);
    prepare(&database);
    let (home, upstream) = (tempfile::tempdir().unwrap(), start_upstream());
    let start = || Replica::start(home.path(), &database.url(), &upstream);
    let mut replicas = [start(), start()];
    let load = Arc::new(Load::default());
    *load.addresses.lock().unwrap() = [0, 1].map(|at: usize| replicas[at].address.clone());
    let begun_at = Instant::now();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let load = load.clone();
            thread::spawn(move || run_client(number, &load))
        })
        .collect();
    for kill in 0..kills {
        let at = kill % 2;
        let wanted = MIN_RESPONSES + kill * 7 % (MAX_RESPONSES - MIN_RESPONSES + 1);
        let before = load.responses[at].load(Ordering::SeqCst);
        let waited_since = Instant::now();
        while load.responses[at].load(Ordering::SeqCst) < before + wanted {
            assert!(waited_since.elapsed() < MAX_WAIT, "replica {at} answers no requests");
            thread::sleep(Duration::from_millis(1));
        }
        replicas[at].kill();
        replicas[at] = start();
        load.addresses.lock().unwrap()[at].clone_from(&replicas[at].address);
    }
    load.is_over.store(true, Ordering::SeqCst);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let seen = std::mem::take(&mut *load.seen.lock().unwrap());
    assert!(seen.len() > kills, "only {} handles were seen", seen.len());
    let lost = lost_handles(&database.open(), &seen);
    let is_missing = |(at, handle): &(usize, &Handle)| !restores(&replicas[at % 2], handle);
    let missing: Vec<Handle> = seen.iter().enumerate().filter(is_missing).map(|(_, handle)| *handle).collect();
    println!(
        "{kills} kills in {:.1} s, {} responses, {} requests sent again, {} handles seen, {} lost, {} not restored by a \
         replica",
        begun_at.elapsed().as_secs_f64(),
        load.responses.iter().map(|count| count.load(Ordering::SeqCst)).sum::<usize>(),
        load.retries.load(Ordering::SeqCst),
        seen.len(),
        lost.len(),
        missing.len(),
    );
    Some(KillRun { seen, lost, missing })
}

/// Returns the handles that the archive does not restore exactly.
fn lost_handles(archive: &Archive, seen: &BTreeSet<Handle>) -> Vec<Handle> {
    let tenant = archive.tenant(&Namespace::local());
    let is_exact = |handle: &Handle| {
        tenant.unfold(handle.as_str()).is_ok_and(|original| Handle::for_content(&original.bytes) == *handle)
    };
    seen.iter().filter(|handle| !is_exact(handle)).copied().collect()
}

/// Returns true if a replica restores an original.
fn restores(replica: &Replica, handle: &Handle) -> bool {
    send(&replica.address, "GET", &format!("/foldline/unfold/{handle}"), "").is_some()
}

/// Holds conversations, every request at the other replica, until the test is over.
fn run_client(number: usize, load: &Load) {
    for conversation in 0.. {
        let task = format!("Client {number}, task {conversation}: please make the parser faster.");
        let mut messages = vec![json!({ "role": "user", "content": task })];
        for turn in 0..TURNS {
            let body = json!({ "model": "test-model", "messages": messages }).to_string();
            let Some(answer) = send_until_answered(&body, turn, load) else { return };
            let answer: Value = serde_json::from_str(&answer).unwrap();
            let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
            load.seen.lock().unwrap().extend(text.split_whitespace().map(|word| word.parse::<Handle>().unwrap()));
            let name = format!("{number}_{conversation}_{turn}");
            let (function, id) = (json!({ "name": "read", "arguments": "{}" }), format!("call_{name}"));
            messages.push(json!({ "role": "assistant", "content": null,
                "tool_calls": [{ "id": id, "type": "function", "function": function }] }));
            let lines = (0..60).map(|line| format!("    let value_{name}_{line} = compute_{line}(input_{turn});\n"));
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": lines.collect::<String>() }));
        }
    }
}

/// Sends a request to one replica after the other until it is answered; `None` if the test is over.
fn send_until_answered(body: &str, turn: usize, load: &Load) -> Option<String> {
    for attempt in turn.. {
        if load.is_over.load(Ordering::SeqCst) {
            return None;
        }
        let at = attempt % 2;
        let address = load.addresses.lock().unwrap()[at].clone();
        if let Some(answer) = send(&address, "POST", "/v1/chat/completions", body) {
            load.responses[at].fetch_add(1, Ordering::SeqCst);
            return Some(answer);
        }
        load.retries.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(5));
    }
    None
}

/// Sends a request. Returns the body of the response; `None` unless it arrived completely and with success.
fn send(address: &str, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .ok()?;
    let mut received = String::new();
    stream.read_to_string(&mut received).ok()?;
    let (head, body) = received.split_once("\r\n\r\n")?;
    let head = head.to_ascii_lowercase();
    if !head.starts_with("http/1.1 200") {
        return None;
    }
    if head.contains("transfer-encoding: chunked") {
        return joined_chunks(body);
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok())?;
    (body.len() == length).then(|| body.to_owned())
}

/// Returns the contents of a chunked body; `None` if its end is missing.
fn joined_chunks(mut body: &str) -> Option<String> {
    let mut joined = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(joined);
        }
        joined.push_str(rest.get(..size)?);
        body = rest.get(size..)?.strip_prefix("\r\n")?;
    }
}

/// Starts a provider that answers with the handles in the prompt.
fn start_upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some((_, body)) = read_message(&mut reader) {
                    let answer = echoed_handles(&String::from_utf8_lossy(&body));
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
                    // The proxy may be killed while it waits for the response.
                    if write!(stream, "{head}: {}\r\n\r\n{answer}", answer.len()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    base
}

fn echoed_handles(prompt: &str) -> String {
    let found: Vec<String> = handles(prompt).map(|handle| handle.to_string()).collect();
    let message = json!({ "role": "assistant", "content": found.join(" ") });
    let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
    json!({ "id": "r", "object": "chat.completion", "model": "test-model", "choices": [choice] }).to_string()
}
