//! Several proxies on one archive: every request at another replica, and the upstream receives what a single proxy sends.

use std::net::SocketAddr;
use std::time::Duration;

use foldline::engine::marker::handles;
use foldline::wire::{Format, Request};
use foldline::{ModelTable, Policy};
use foldline_archive::{Archive, Namespace};
use foldline_server::proxy::ProxySettings;
use serde_json::{Value, json};

use crate::fold::endpoint;
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings};
use crate::unfold_tool::{ReplyCall, assistant_messages, parse_stream, raw_messages, streamed_reply, streaming_body};

const TURNS: usize = 60;
/// Turns before which the provider's cache expires.
const COLD_TURNS: [usize; 2] = [14, 43];
/// Lifetime of the provider's cache; a turn takes much less.
const CACHE_LIFE: Duration = Duration::from_secs(4);

/// A store that several processes can open.
trait SharedStore {
    fn open(&self) -> Archive;
}

impl SharedStore for tempfile::TempDir {
    fn open(&self) -> Archive {
        Archive::open(self.path().join("archive.db")).unwrap()
    }
}

#[cfg(feature = "postgres")]
impl SharedStore for foldline_archive::postgres_testing::TestDatabase {
    fn open(&self) -> Archive {
        foldline_archive::conformance::StoreFixture::open(self)
    }
}

/// Returns an empty database on the server for tests; none without a server.
#[cfg(feature = "postgres")]
pub(crate) fn database() -> Option<foldline_archive::postgres_testing::TestDatabase> {
    let Ok(url) = std::env::var("TEST_POSTGRES_URL") else {
        println!("skipped: needs a PostgreSQL server, see `cargo xtask postgres`");
        return None;
    };
    Some(foldline_archive::postgres_testing::TestDatabase::create(&url))
}

/// Runs a test. Databases for tests are created and dropped outside of it.
pub(crate) fn run_test(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(test);
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Settings whose models have a cache with a short life.
fn fleet_settings() -> ProxySettings {
    let life = CACHE_LIFE.as_secs();
    let models = format!("prefix,cache_life\ngpt-4o,{life}\nclaude-opus-4-6,{life}\n");
    let models = ModelTable::builtin().overlay(&models).unwrap();
    ProxySettings { window: Some(16_000), models: std::borrow::Cow::Owned(models), ..settings() }
}

/// Replies to a request: with a hidden call in every seventh turn once something is folded, then with a call of the
/// client's tool.
pub(crate) fn reply(format: Format, received: &ReceivedRequest) -> UpstreamReply {
    let request = Request::parse(format, &received.body).unwrap();
    let messages = &request.conversation().messages;
    let results: Vec<String> =
        messages.iter().flat_map(|message| message.results()).map(|result| result.call_id.to_string()).collect();
    let turn = results.iter().rev().find_map(|id| id.strip_prefix("call_")?.parse().ok()).unwrap_or(0);
    let is_answered = results.last().is_some_and(|id| id.starts_with("hidden"));
    let text = raw_messages(format, received).concat();
    let handle = handles(&text).last();
    match handle {
        Some(handle) if turn % 7 == 3 && !is_answered => {
            let (id, arguments) = (call_id("hidden", turn), json!({ "handle": handle }).to_string());
            streamed_reply(format, "Let me see. ", &[ReplyCall { id, name: "unfold", arguments }])
        }
        _ => {
            let call = ReplyCall { id: call_id("call", turn + 1), ..ReplyCall::client_tool() };
            streamed_reply(format, "Reading on.", &[call])
        }
    }
}

fn call_id(kind: &str, turn: usize) -> &'static str {
    Box::leak(format!("{kind}_{turn}").into_boxed_str())
}

/// The client of a conversation.
pub(crate) struct ClientSession {
    pub(crate) format: Format,
    messages: Vec<Value>,
    pub(crate) turn: usize,
}

impl ClientSession {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, messages: vec![json!({ "role": "user", "content": "Please make the parser faster." })], turn: 0 }
    }

    pub(crate) fn body(&self) -> String {
        streaming_body(self.format, &self.messages)
    }

    /// Adds the response and the result of its call.
    pub(crate) fn advance(&mut self, response: &[u8]) {
        self.turn += 1;
        let (turn, response) = (self.turn, parse_stream(self.format, response));
        let id = call_id("call", turn);
        self.messages.extend(assistant_messages(self.format, &response));
        let source: String = (0..40)
            .map(|line| format!("    let value_{turn}_{line} = compute_{line}(input_{turn}, {line});\n"))
            .collect();
        self.messages.push(match self.format {
            Format::OpenAiChat => json!({ "role": "tool", "tool_call_id": id, "content": source }),
            Format::Anthropic => {
                json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": source }] })
            }
            other => panic!("no script for {other:?}"),
        });
    }
}

/// Replicas on one store, with archives of their own.
struct Fleet {
    harness: ProxyHarness,
    replicas: Vec<SocketAddr>,
    archives: Vec<Archive>,
}

impl Fleet {
    async fn start(format: Format, store: &dyn SharedStore, count: usize) -> Self {
        Self::start_with(format, store, (0..count).map(|_| fleet_settings()).collect()).await
    }

    /// Starts a replica with each of these settings.
    async fn start_with(format: Format, store: &dyn SharedStore, settings: Vec<ProxySettings>) -> Self {
        let archives: Vec<Archive> = settings.iter().map(|_| store.open()).collect();
        let mut settings = settings.into_iter();
        let (first, archive) = (settings.next().expect("one replica"), archives[0].clone());
        let harness = ProxyHarness::start(first, Some(archive), move |received| reply(format, received)).await;
        let mut replicas = vec![harness.proxy];
        for (settings, archive) in settings.zip(&archives[1..]) {
            replicas.push(harness.add_replica(settings, archive.clone()).await);
        }
        Self { harness, replicas, archives }
    }

    /// Sends the session's turn to a replica and returns the response.
    async fn send(&mut self, session: &ClientSession, replica: usize) -> Vec<u8> {
        self.harness.switch_to(self.replicas[replica]);
        let response = self.harness.post(endpoint(session.format), session.body()).await;
        assert!(response.is_complete && response.status == 200, "turn {}: {response:?}", session.turn);
        response.body.to_vec()
    }

    /// Sends the session's turn to a replica and closes the connection when the upstream has it.
    async fn send_and_leave(&mut self, session: &ClientSession, replica: usize) {
        self.harness.switch_to(self.replicas[replica]);
        let before = self.bodies().len();
        let post = self.harness.post(endpoint(session.format), session.body());
        let arrived = async {
            while self.bodies().len() == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _ = post => {}
            () = arrived => {}
        }
        // A hidden round of the abandoned response may follow.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Runs a conversation whose turn `n` goes to the replica `choose(n)`, and returns all bodies that were sent.
    async fn run(&mut self, format: Format, choose: impl Fn(usize) -> usize) -> Vec<String> {
        let mut session = ClientSession::new(format);
        while session.turn < TURNS {
            if COLD_TURNS.contains(&session.turn) {
                tokio::time::sleep(CACHE_LIFE + CACHE_LIFE / 8).await;
            }
            let response = self.send(&session, choose(session.turn)).await;
            session.advance(&response);
        }
        self.bodies()
    }

    fn bodies(&self) -> Vec<String> {
        self.harness.received().into_iter().map(|received| String::from_utf8(received.body.to_vec()).unwrap()).collect()
    }

    /// Checks that every handle that was sent resolves at every replica; returns how many there are.
    fn check_handles(&self, bodies: &[String]) -> usize {
        let sent: std::collections::BTreeSet<String> = bodies.iter().flat_map(|body| sent_handles(body)).collect();
        for archive in &self.archives {
            let tenant = archive.tenant(&Namespace::local());
            for handle in &sent {
                let unfolded = tenant.unfold(handle);
                assert!(unfolded.is_ok(), "{handle} does not resolve: {:?}", unfolded.err());
            }
        }
        sent.len()
    }

    async fn metric(&mut self, name: &str) -> f64 {
        let mut sum = 0.0;
        for replica in self.replicas.clone() {
            self.harness.switch_to(replica);
            sum += self.harness.metric(name).await;
        }
        sum
    }
}

/// Returns the handles in the messages of a body; the text of the unfold tool has one as an example.
pub(crate) fn sent_handles(body: &str) -> impl Iterator<Item = String> {
    let messages = body.split(r#","tools":"#).next().unwrap_or_default();
    handles(messages).map(|handle| handle.to_string())
}

/// Asserts that the bodies are the same, and shows where the first difference is.
fn assert_same_bodies(single: &[String], fleet: &[String]) {
    for (at, (one, other)) in single.iter().zip(fleet).enumerate() {
        let differs = one.bytes().zip(other.bytes()).position(|(one, other)| one != other);
        let differs = differs.or((one.len() != other.len()).then_some(one.len().min(other.len())));
        if let Some(byte) = differs {
            let around = |text: &str| text.chars().skip(byte.saturating_sub(60)).take(160).collect::<String>();
            panic!("body {at} differs at byte {byte}:\n{}\n{}", around(one), around(other));
        }
    }
    assert_eq!(single.len(), fleet.len());
}

/// Runs the same conversation at one proxy on a file and at several replicas on `store`, and compares what they send.
async fn compare_with_single(format: Format, store: &dyn SharedStore, count: usize) {
    let single_store = folder();
    let mut single = Fleet::start(format, &single_store, 1).await;
    let mut fleet = Fleet::start(format, store, count).await;
    let (expected, sent) = tokio::join!(single.run(format, |_| 0), fleet.run(format, |turn| turn % count));
    assert_same_bodies(&expected, &sent);
    assert!(fleet.check_handles(&sent) > 20);
    assert!(sent.len() > TURNS, "some turns have hidden rounds");
    let metrics = single.harness.get("/foldline/metrics").await;
    let mut creases = metrics.text().lines().filter(|line| line.starts_with("foldline_creases_total"));
    let is_cold = |line: &str| line.contains("cold_cache") && !line.ends_with(" 0");
    // The other format has nothing to fold at these turns.
    assert!(
        format != Format::OpenAiChat || creases.any(is_cold),
        "a crease because of a cold cache: {:?}",
        creases.collect::<Vec<_>>()
    );
    assert_eq!(single.metric("foldline_creases_total").await, fleet.metric("foldline_creases_total").await);
    assert_eq!(fleet.metric("foldline_violations_total").await, 0.0);
}

#[test]
fn two_replicas_on_a_file_send_what_one_sends() {
    run_test(async {
        for format in [Format::OpenAiChat, Format::Anthropic] {
            compare_with_single(format, &folder(), 2).await;
        }
    });
}

/// Two replicas get the same turn at once: both send the same bytes, and the conversation continues at either.
async fn same_turn_at_two_replicas(format: Format, store: &dyn SharedStore) {
    let single_store = folder();
    let mut single = Fleet::start(format, &single_store, 1).await;
    let expected = single.run(format, |_| 0).await;
    let fleet = Fleet::start(format, store, 2).await;
    let mut session = ClientSession::new(format);
    while session.turn < TURNS {
        if COLD_TURNS.contains(&session.turn) {
            tokio::time::sleep(CACHE_LIFE + CACHE_LIFE / 8).await;
        }
        let request = |replica: usize| {
            let uri = format!("http://{}{}", fleet.replicas[replica], endpoint(format));
            let request = hyper::Request::post(uri).header("content-type", "application/json");
            fleet.harness.send(request.body(session.body().into()).unwrap())
        };
        let (one, other) = tokio::join!(request(0), request(1));
        assert_eq!(one.body, other.body, "turn {}", session.turn);
        session.advance(&one.body);
    }
    let mut sent = fleet.bodies();
    fleet.check_handles(&sent);
    // Both rounds of a turn may arrive in any order.
    sent.sort();
    sent.dedup();
    let mut expected = expected;
    expected.sort();
    assert_same_bodies(&expected, &sent);
}

/// A replica ends between the request and its answer: the client repeats the turn at the other one.
async fn turn_is_repeated_at_another_replica(format: Format, store: &dyn SharedStore) {
    let single_store = folder();
    let mut single = Fleet::start(format, &single_store, 1).await;
    let mut fleet = Fleet::start(format, store, 2).await;
    let expected = single.run(format, |_| 0);
    let repeated = async {
        let mut session = ClientSession::new(format);
        let mut sent = Vec::new();
        while session.turn < TURNS {
            if COLD_TURNS.contains(&session.turn) {
                tokio::time::sleep(CACHE_LIFE + CACHE_LIFE / 8).await;
            }
            let (lost, answering) = (session.turn % 2, (session.turn + 1) % 2);
            if session.turn % 5 == 4 {
                // The first replica has decided and stored everything; its answer never arrives.
                fleet.send_and_leave(&session, lost).await;
            }
            let before = fleet.bodies().len();
            let response = fleet.send(&session, answering).await;
            sent.extend(fleet.bodies().split_off(before));
            session.advance(&response);
        }
        sent
    };
    let (expected, sent) = tokio::join!(expected, repeated);
    assert_same_bodies(&expected, &sent);
    assert!(fleet.check_handles(&sent) > 20);
}

/// A rolling upgrade: replicas of an old version are replaced while a conversation goes on. The versions decide
/// differently, here by their policies. The upstream receives a changed prefix only at logged creases, and a replica that
/// starts later sends the same bytes.
async fn conversation_survives_a_rolling_upgrade(format: Format, store: &dyn SharedStore) {
    let [old, new] = [Policy::balanced(), Policy::tight()].map(|policy| ProxySettings { policy, ..fleet_settings() });
    let mut fleet = Fleet::start_with(format, store, vec![old, new.clone(), new]).await;
    let (upgrade, end) = (TURNS / 2, 3 * TURNS / 4);
    let mut session = ClientSession::new(format);
    let (mut before, mut creases) = (Vec::new(), 0.0);
    let (mut changes, mut creases_at_upgrade) = (0, 0.0);
    while session.turn < TURNS {
        let replica = match session.turn {
            turn if turn < upgrade => 0,
            turn if turn < end => turn % 2,
            _ => 1,
        };
        let received = fleet.bodies().len();
        let response = fleet.send(&session, replica).await;
        let now = fleet.metric("foldline_creases_total").await;
        for received in fleet.harness.received().split_off(received) {
            let messages = raw_messages(format, &received);
            if !messages.starts_with(&before) {
                assert!(now > creases, "turn {} changes the prefix without a crease", session.turn);
                changes += 1;
            }
            before = messages;
        }
        creases = now;
        if session.turn == upgrade - 1 {
            creases_at_upgrade = now;
        }
        session.advance(&response);
    }
    assert!(creases_at_upgrade > 0.0 && creases > creases_at_upgrade && changes > 2, "both versions crease");
    // A replica that has never seen the conversation continues it as the newest one does.
    let mut last = Vec::new();
    for replica in [1, 2] {
        let received = fleet.bodies().len();
        fleet.send_and_leave(&session, replica).await;
        last.push(fleet.bodies().swap_remove(received));
    }
    assert_same_bodies(&last[..1], &last[1..]);
    let sent = fleet.bodies();
    assert!(fleet.check_handles(&sent) > 20);
    assert_eq!(fleet.metric("foldline_violations_total").await, 0.0);
}

#[test]
fn conversation_survives_a_rolling_upgrade_on_a_file() {
    run_test(async {
        for format in [Format::OpenAiChat, Format::Anthropic] {
            conversation_survives_a_rolling_upgrade(format, &folder()).await;
        }
    });
}

#[test]
fn four_replicas_on_a_file_send_what_one_sends() {
    run_test(async { compare_with_single(Format::OpenAiChat, &folder(), 4).await });
}

#[test]
fn same_turn_at_two_replicas_on_a_file() {
    run_test(async { same_turn_at_two_replicas(Format::OpenAiChat, &folder()).await });
}

#[test]
fn lost_answer_is_repeated_at_another_replica_on_a_file() {
    run_test(async { turn_is_repeated_at_another_replica(Format::OpenAiChat, &folder()).await });
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;

    #[test]
    fn two_replicas_send_what_one_sends() {
        let Some(database) = database() else { return };
        run_test(compare_with_single(Format::OpenAiChat, &database, 2));
    }

    #[test]
    fn four_replicas_send_what_one_sends() {
        let Some(database) = database() else { return };
        run_test(compare_with_single(Format::Anthropic, &database, 4));
        run_test(compare_with_single(Format::OpenAiChat, &database, 4));
    }

    #[test]
    fn conversation_survives_a_rolling_upgrade() {
        let Some(database) = database() else { return };
        run_test(super::conversation_survives_a_rolling_upgrade(Format::OpenAiChat, &database));
    }

    #[test]
    fn same_turn_at_two_replicas_is_sent_alike() {
        let Some(database) = database() else { return };
        run_test(same_turn_at_two_replicas(Format::Anthropic, &database));
    }

    #[test]
    fn lost_answer_is_repeated_at_another_replica() {
        let Some(database) = database() else { return };
        run_test(turn_is_repeated_at_another_replica(Format::Anthropic, &database));
    }
}
