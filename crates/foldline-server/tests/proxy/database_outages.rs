//! A database that is slow, absent, full of connections or restarted: requests are answered within a bound, the outage is
//! visible, and folding goes on afterwards without a restart.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use foldline::wire::Format;
use foldline_archive::postgres_testing::{TestDatabase, run_sql};
use foldline_archive::{Archive, Namespace};
use foldline_server::proxy::{AccessToken, ProxySettings};
use futures_util::future::join_all;
use hyper::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::fold::endpoint;
use crate::replicas::{ClientSession, database, reply, run_test, sent_handles};
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply};
use crate::unfold_tool::small_window_settings;

/// Longest time of a request while the database does not answer: one wait of the archive, and the request itself.
const MAX_REQUEST_TIME: Duration = Duration::from_secs(8);

/// What a link to the database does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkMode {
    Open,
    /// Accepts connections and bytes, and forwards nothing.
    Paused,
    /// Closes all connections.
    Closed,
}

/// A link between an archive and the database that can fail.
struct DatabaseLink {
    port: u16,
    mode: watch::Sender<LinkMode>,
}

impl DatabaseLink {
    async fn start(database_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, modes) = watch::channel(LinkMode::Open);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *modes.borrow() == LinkMode::Closed {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", database_port)).await else { continue };
                let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
                tokio::spawn(forward(client_in, server_out, modes.clone()));
                tokio::spawn(forward(server_in, client_out, modes.clone()));
            }
        });
        Self { port, mode }
    }

    fn set(&self, mode: LinkMode) {
        self.mode.send(mode).unwrap();
    }
}

/// Forwards bytes while the link is open.
async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut modes: watch::Receiver<LinkMode>,
) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read.unwrap_or(0),
            closed = modes.wait_for(|mode| *mode == LinkMode::Closed) => { drop(closed); return }
        };
        if read == 0 || modes.wait_for(|mode| *mode != LinkMode::Paused).await.is_err() {
            return;
        }
        if *modes.borrow() == LinkMode::Closed || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// A proxy whose archive is behind a link, and a client in a conversation.
struct OutageTest {
    harness: ProxyHarness,
    link: DatabaseLink,
    session: ClientSession,
}

impl OutageTest {
    async fn start(database: &TestDatabase) -> Self {
        let link = DatabaseLink::start(database.port()).await;
        let archive = Archive::open(database.url_at(link.port)).unwrap();
        let answer = |received: &ReceivedRequest| reply(Format::OpenAiChat, received);
        let harness = ProxyHarness::start(small_window_settings(), Some(archive), answer).await;
        Self { harness, link, session: ClientSession::new(Format::OpenAiChat) }
    }

    /// Runs turns, each of which must be answered in time.
    async fn run_turns(&mut self, turns: usize) {
        for _ in 0..turns {
            let begin = Instant::now();
            let response = self.harness.post(endpoint(self.session.format), self.session.body()).await;
            assert!(response.is_complete && response.status == 200, "turn {}: {response:?}", self.session.turn);
            assert!(begin.elapsed() < MAX_REQUEST_TIME, "turn {}: {:?}", self.session.turn, begin.elapsed());
            self.session.advance(&response.body);
        }
    }

    /// Returns the status of the readiness endpoint, and the state of the archive in the health.
    async fn readiness(&self) -> (StatusCode, String) {
        let ready = self.harness.get("/foldline/readyz").await.status;
        let health = self.harness.get("/foldline/healthz").await;
        assert_eq!(health.status, 200, "the proxy itself is healthy");
        let health: serde_json::Value = serde_json::from_str(health.text()).unwrap();
        (ready, health["archive"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits for a state of readiness, which is asked for at most once a second.
    async fn wait_for_readiness(&self, expected: (StatusCode, String)) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.readiness().await != expected {
            assert!(Instant::now() < deadline, "{:?} instead of {expected:?}", self.readiness().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits until the proxy is ready, and checks that it folds.
    async fn check_recovery(&mut self, database: &TestDatabase) {
        self.wait_for_readiness((StatusCode::OK, "ok".into())).await;
        let before = self.handles();
        self.run_turns(6).await;
        let sent = self.handles();
        assert!(sent.len() > before.len(), "folds again");
        let archive = Archive::open(database.url()).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        for handle in sent {
            assert!(tenant.unfold(&handle).is_ok(), "{handle} does not resolve");
        }
    }

    /// Returns all handles that were sent.
    fn handles(&self) -> BTreeSet<String> {
        let bodies = self.harness.received().into_iter().map(|received| received.body);
        bodies.flat_map(|body| sent_handles(std::str::from_utf8(&body).unwrap()).collect::<Vec<_>>()).collect()
    }
}

/// Runs a conversation through an outage, from `begin` to `end`.
fn run_outage(begin: impl FnOnce(&TestDatabase, &DatabaseLink), end: impl FnOnce(&TestDatabase, &DatabaseLink)) {
    let Some(database) = database() else { return };
    run_test(async {
        let mut test = OutageTest::start(&database).await;
        assert_eq!(test.readiness().await, (StatusCode::OK, "ok".into()));
        test.run_turns(14).await;
        tokio::task::block_in_place(|| begin(&database, &test.link));
        test.run_turns(6).await;
        test.wait_for_readiness((StatusCode::SERVICE_UNAVAILABLE, "unreachable".into())).await;
        tokio::task::block_in_place(|| end(&database, &test.link));
        test.check_recovery(&database).await;
    });
}

#[test]
fn paused_database_fails_open() {
    run_outage(|_, link| link.set(LinkMode::Paused), |_, link| link.set(LinkMode::Open));
}

#[test]
fn stopped_database_fails_open() {
    run_outage(|_, link| link.set(LinkMode::Closed), |_, link| link.set(LinkMode::Open));
}

/// The server refuses connections because there are too many.
#[test]
fn exhausted_connections_fail_open() {
    let set_limit = |database: &TestDatabase, limit: i32| {
        let (url, admin) = (database.url(), std::env::var("TEST_POSTGRES_URL").unwrap());
        let name = url.rsplit('/').next().unwrap();
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        run_sql(&admin, &format!("ALTER DATABASE {name} CONNECTION LIMIT {limit}; {end}"));
    };
    run_outage(move |database, _| set_limit(database, 0), move |database, _| set_limit(database, -1));
}

/// Runs one turn. Returns its time, and true if it had neither a crease nor a hidden round.
async fn run_plain_turn(harness: &ProxyHarness, session: &mut ClientSession) -> (Duration, bool) {
    let creases = harness.metric("foldline_creases_total").await;
    let (requests, begin) = (harness.received().len(), Instant::now());
    let response = harness.post(endpoint(session.format), session.body()).await;
    let time = begin.elapsed();
    assert!(response.is_complete && response.status == 200, "turn {}: {response:?}", session.turn);
    session.advance(&response.body);
    let is_plain =
        harness.received().len() == requests + 1 && harness.metric("foldline_creases_total").await == creases;
    (time, is_plain)
}

/// A turn without a crease whose predecessor the same replica served waits for no round trip: it is as fast if the
/// database does not answer. A turn of another replica's conversation waits.
#[test]
fn turn_without_crease_needs_no_database() {
    const CHECKED_TURNS: std::ops::Range<usize> = 14..28;
    let Some(database) = database() else { return };
    run_test(async {
        // The same conversation with a file shows which turns have no crease.
        let (folder, answer) = (tempfile::tempdir().unwrap(), |received: &_| reply(Format::OpenAiChat, received));
        let file = Archive::open(folder.path().join("archive.db")).unwrap();
        let harness = ProxyHarness::start(small_window_settings(), Some(file), answer).await;
        let (mut session, mut plain_turns) = (ClientSession::new(Format::OpenAiChat), Vec::new());
        for _ in 0..CHECKED_TURNS.end {
            plain_turns.push(run_plain_turn(&harness, &mut session).await.1);
        }
        let plain_count = plain_turns[CHECKED_TURNS].iter().filter(|is_plain| **is_plain).count();
        assert!((4..CHECKED_TURNS.len()).contains(&plain_count), "{plain_turns:?}");

        let mut test = OutageTest::start(&database).await;
        for (turn, expected) in plain_turns.into_iter().enumerate() {
            let is_paused = expected && CHECKED_TURNS.contains(&turn);
            if is_paused {
                test.link.set(LinkMode::Paused);
            }
            let (time, is_plain) = run_plain_turn(&test.harness, &mut test.session).await;
            assert_eq!(is_plain, expected, "turn {turn}");
            assert!(!is_paused || time < Duration::from_secs(1), "turn {turn} took {time:?}");
            test.link.set(LinkMode::Open);
        }
        assert_eq!(test.harness.metric("foldline_internal_errors_total").await, 0.0);

        let link = DatabaseLink::start(database.port()).await;
        let archive = Archive::open(database.url_at(link.port)).unwrap();
        let replica = test.harness.add_replica(small_window_settings(), archive).await;
        test.harness.switch_to(replica);
        link.set(LinkMode::Paused);
        let (time, _) = run_plain_turn(&test.harness, &mut test.session).await;
        assert!(time > Duration::from_secs(2), "another replica reads the ledger: {time:?}");
    });
}

/// A replica that had started without its database, and whose tenants are API keys, waited for the database on the threads
/// that serve all requests.
#[test]
fn unknown_namespaces_delay_only_requests_that_need_them() {
    let Some(database) = database() else { return };
    drop(Archive::open(database.url()).unwrap());
    run_test(async {
        let link = DatabaseLink::start(database.port()).await;
        link.set(LinkMode::Paused);
        let archive = tokio::task::block_in_place(|| Archive::open(database.url_at(link.port)).unwrap());
        let settings = ProxySettings { tokens: AccessToken::parse_list("sesame").unwrap(), ..small_window_settings() };
        let answer = |received: &ReceivedRequest| match received.body.is_empty() {
            true => UpstreamReply::json("{}"),
            false => reply(Format::OpenAiChat, received),
        };
        let harness = ProxyHarness::start(settings, Some(archive), answer).await;
        let headers = [("x-foldline-token", "sesame"), ("authorization", "Bearer sk-proj-0123456789abcdef")];
        let mut session = ClientSession::new(Format::OpenAiChat);
        let path = endpoint(session.format);
        // After a failure calls fail at once for a second.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let begin = Instant::now();
        let conversations = join_all((0..8).map(|_| harness.send_with("POST", path, &headers, session.body())));
        let others = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            for path in ["/v1/models", "/foldline/livez", "/foldline/healthz"] {
                assert_eq!(harness.send_with("GET", path, &headers, String::new()).await.status, 200);
            }
            // Blocked threads would delay the sleep too.
            assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        };
        let (conversations, ()) = tokio::join!(conversations, others);
        assert!(conversations.iter().all(|response| response.status == 200 && response.is_complete));
        assert!(begin.elapsed() < MAX_REQUEST_TIME, "{:?}", begin.elapsed());

        link.set(LinkMode::Open);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        for _ in 0..30 {
            let response = harness.send_with("POST", path, &headers, session.body()).await;
            session.advance(&response.body);
        }
        let folded = harness
            .received()
            .iter()
            .filter(|received| sent_handles(std::str::from_utf8(&received.body).unwrap()).next().is_some())
            .count();
        assert!(folded > 0, "folds once the database answers");
    });
}
