//! The dashboard and its API: sessions through the real proxy, an upstream that bills by prefix, and numbers that agree.

use std::sync::{Arc, Mutex};

use foldline::engine::marker::handles;
use foldline::wire::Format;
use foldline_archive::Archive;
use foldline_server::proxy::{AccessToken, ProxyMode, ProxySettings};
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::fold::{agent_messages, request_body};
use crate::stores::{TestStore, store_tests};
use crate::support::{ClientResponse, ProxyHarness, ReceivedRequest, UpstreamReply, settings};

const API: &str = "/foldline/api/v1";

/// The usage that an upstream has reported.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct BilledUsage {
    requests: u64,
    read: u64,
    written: u64,
    output: u64,
}

/// An upstream that reads the longest common prefix of two prompts from its cache and writes the rest.
#[derive(Clone, Default)]
struct CachingUpstream {
    billed: Arc<Mutex<BilledUsage>>,
    previous: Arc<Mutex<Vec<u8>>>,
}

impl CachingUpstream {
    fn reply(&self, request: &ReceivedRequest) -> UpstreamReply {
        let mut previous = self.previous.lock().unwrap();
        // The fields after the messages are not part of the prompt's prefix.
        let prompt = &request.body[..request.body.len() - 120];
        let common = previous.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let (read, written) = ((common / 4) as u64, ((prompt.len() - common) / 4) as u64);
        *previous = prompt.to_vec();
        let mut billed = self.billed.lock().unwrap();
        *billed = BilledUsage {
            requests: billed.requests + 1,
            read: billed.read + read,
            written: billed.written + written,
            output: billed.output + 20,
        };
        UpstreamReply::json(
            json!({ "type": "message", "role": "assistant", "content": [{ "type": "text", "text": "ok" }],
                "usage": { "input_tokens": 0, "cache_read_input_tokens": read, "cache_creation_input_tokens": written,
                    "output_tokens": 20 } })
            .to_string(),
        )
    }

    fn billed(&self) -> BilledUsage {
        *self.billed.lock().unwrap()
    }
}

fn small_window() -> ProxySettings {
    ProxySettings { window: Some(16_000), offer_unfold_tool: false, ..settings() }
}

async fn start(settings: ProxySettings, archive: Option<Archive>) -> (ProxyHarness, CachingUpstream) {
    let upstream = CachingUpstream::default();
    let script = upstream.clone();
    (ProxyHarness::start(settings, archive, move |request| script.reply(request)).await, upstream)
}

/// Sends a conversation turn by turn.
async fn run_agent(harness: &ProxyHarness, turns: usize) {
    run_turns(harness, 0..turns + 1).await;
}

/// Sends the requests of some turns of a conversation.
async fn run_turns(harness: &ProxyHarness, turns: std::ops::Range<usize>) {
    let whole = agent_messages(Format::Anthropic, turns.end);
    for end in turns.map(|turn| 2 * turn + 1) {
        let body = request_body(Format::Anthropic, &whole[..end]);
        let request = harness.request("POST", "/v1/messages").header("user-agent", "test-agent/1.0");
        harness.send(request.body(Full::new(body.into())).unwrap()).await;
    }
}

async fn read(harness: &ProxyHarness, path: &str) -> Value {
    let got = harness.get(&format!("{API}/{path}")).await;
    assert_eq!(got.status, StatusCode::OK, "{path}: {}", got.text());
    serde_json::from_slice(&got.body).unwrap()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} in {value}"))
}

fn same_cent(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[tokio::test]
async fn numbers_agree_between_provider_api_and_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    let (harness, upstream) = start(small_window(), Some(archive)).await;
    run_agent(&harness, 40).await;
    let billed = upstream.billed();

    let overview = read(&harness, "overview").await;
    let all = &overview["totals"]["all"];
    assert_eq!(number(all, "requests") as u64, billed.requests);
    assert_eq!(number(all, "cache_read_tokens") as u64, billed.read);
    assert_eq!(number(all, "cache_write_tokens") as u64, billed.written);
    assert_eq!(number(all, "output_tokens") as u64, billed.output);
    // claude-opus-4-6: $5 per million input tokens, read 0.1, write 1.25, output 5.
    let dollars = (billed.read as f64 * 0.1 + billed.written as f64 * 1.25 + billed.output as f64 * 5.0) * 5.0 / 1e6;
    assert!(same_cent(number(all, "billed_usd"), dollars), "{all} {dollars}");
    let parts = ["saved_usd", "crease_usd", "unfold_usd", "summary_usd"].map(|name| number(all, name));
    assert!(same_cent(number(all, "net_usd"), parts[0] - parts[1] - parts[2] - parts[3]), "{all}");
    assert!(number(all, "creases") > 0.0 && number(all, "folds") > 0.0 && parts[0] > 0.0 && parts[1] > 0.0, "{all}");

    for (metric, name) in
        [("billed", "billed_usd"), ("saved", "saved_usd"), ("crease_cost", "crease_usd"), ("unfold_cost", "unfold_usd")]
    {
        let counted = harness.metric(&format!("foldline_{metric}_usd_total")).await;
        assert!(same_cent(counted, number(all, name)), "{metric}: {counted} {}", all[name]);
    }
    assert_eq!(harness.metric("foldline_creases_total").await, number(all, "creases"));
    assert_eq!(harness.prompt_tokens("received").await as f64, number(all, "received_tokens"));
    assert_eq!(harness.prompt_tokens("sent").await as f64, number(all, "sent_tokens"));

    let sessions = read(&harness, "sessions").await;
    let session = &sessions["sessions"][0];
    assert_eq!(
        (session["title"].as_str(), session["client"].as_str()),
        (Some("Please make the parser faster."), Some("test-agent"))
    );
    assert_eq!(&session["totals"], all);
    let detail = read(&harness, &format!("sessions/{}", session["id"].as_str().unwrap())).await;
    let requests = detail["requests"].as_array().unwrap();
    let sum: f64 = requests.iter().map(|request| number(request, "net_usd")).sum();
    assert!(same_cent(sum, number(all, "net_usd")), "{sum} {all}");
    let creases = requests.iter().filter(|request| !request["crease"].is_null()).count();
    assert_eq!(creases as f64, number(all, "creases"));

    for by in ["session", "model", "client", "day"] {
        let table = read(&harness, &format!("table?by={by}&since=7d")).await;
        assert_eq!(table["rows"].as_array().unwrap().len(), 1, "{by}");
        assert_eq!(&table["rows"][0]["totals"], all, "{by}");
    }
    let violations: f64 = overview["guarantees"].as_array().unwrap().iter().map(|it| number(it, "violations")).sum();
    assert_eq!((violations, overview["state"]["level"].as_str()), (0.0, Some("ok")));
}

#[tokio::test]
async fn folds_are_listed_with_their_originals() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    let (harness, _) = start(small_window(), Some(archive)).await;
    run_agent(&harness, 40).await;
    let id = read(&harness, "sessions").await["sessions"][0]["id"].as_str().unwrap().to_owned();
    let detail = read(&harness, &format!("sessions/{id}")).await;
    let folds = detail["folds"].as_array().unwrap();
    assert!(folds.len() > 5, "{folds:?}");
    let fold = folds.iter().find(|fold| fold["tool"] == "read_file" && !fold["handle"].is_null()).unwrap();
    assert!(fold["target"].as_str().unwrap().starts_with("src/file_"), "{fold}");
    assert!(number(fold, "tokens_before") > number(fold, "tokens_after"), "{fold}");
    let handle = fold["handle"].as_str().unwrap();
    assert!(fold["marker"].as_str().unwrap().contains(handle), "{fold}");
    let original = read(&harness, &format!("originals/{handle}")).await;
    assert!(original["text"].as_str().unwrap().contains("let value_"), "{original}");
    let window = &detail["session"]["window"];
    let parts = ["system_tokens", "tools_tokens", "user_tokens", "folded_tokens", "live_tokens", "free_tokens"];
    let filled: f64 = parts.iter().map(|name| number(window, name)).sum();
    assert!((filled - number(window, "budget_tokens")).abs() < 50.0, "{window}");
    assert!(number(window, "folded_tokens") > 0.0 && number(window, "live_tokens") > 0.0, "{window}");
    let inventory = read(&harness, "inventory").await;
    let tool = &inventory["clients"][0]["tools"][0];
    assert_eq!((tool["name"].as_str(), number(tool, "calls") as u64), (Some("read_file"), 40));
}

/// A session that ends at its crease has paid for it and saved nothing.
#[tokio::test]
async fn session_that_lost_money_shows_a_loss() {
    let (harness, _) = start(small_window(), None).await;
    let mut turns = 4;
    loop {
        run_agent(&harness, turns).await;
        let detail = read(&harness, "sessions").await;
        let totals = &detail["sessions"][0]["totals"];
        if number(totals, "creases") > 0.0 {
            assert!(number(totals, "net_usd") < 0.0, "{totals}");
            assert!(number(totals, "net_share") < 0.0, "{totals}");
            return;
        }
        turns += 1;
        assert!(turns < 40, "no crease");
    }
}

#[tokio::test]
async fn observe_mode_reports_what_folding_would_have_saved() {
    let (harness, _) = start(ProxySettings { mode: ProxyMode::Observe, ..small_window() }, None).await;
    run_agent(&harness, 40).await;
    let overview = read(&harness, "overview").await;
    let all = &overview["totals"]["all"];
    assert_eq!(overview["mode"], "observe");
    assert_eq!(number(all, "sent_tokens"), number(all, "received_tokens"));
    assert!(number(all, "would_send_tokens") < number(all, "received_tokens"), "{all}");
    assert_eq!((number(all, "net_usd"), number(all, "creases"), number(all, "folds")), (0.0, 0.0, 0.0));
    assert_ne!(number(all, "would_net_usd"), 0.0);
}

#[tokio::test]
async fn history_survives_a_restart_and_folds_are_not_counted_again() {
    let folder = tempfile::tempdir().unwrap();
    let archive = || Archive::open(folder.path().join("archive.db")).unwrap();
    let first = {
        let (mut harness, _) = start(small_window(), Some(archive())).await;
        run_agent(&harness, 30).await;
        let totals = read(&harness, "overview").await["totals"]["all"].clone();
        harness.stop().await.unwrap();
        totals
    };
    let (harness, _) = start(small_window(), Some(archive())).await;
    assert_eq!(read(&harness, "overview").await["totals"]["all"], first);
    run_agent(&harness, 30).await;
    let again = read(&harness, "overview").await["totals"]["all"].clone();
    assert_eq!(number(&again, "requests"), 2.0 * number(&first, "requests"));
    assert_eq!(number(&again, "folds"), number(&first, "folds"), "the same folds");
    let sessions = read(&harness, "sessions").await;
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn deleted_session_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    let (harness, _) = start(small_window(), Some(archive)).await;
    run_agent(&harness, 3).await;
    let id = read(&harness, "sessions").await["sessions"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("{API}/sessions/{id}");
    let from_page = |origin: Option<&str>| {
        let request = harness.request("DELETE", &path).header("x-foldline-request", "1");
        let request = if let Some(origin) = origin { request.header("origin", origin) } else { request };
        harness.send(request.body(Full::default()).unwrap())
    };
    assert_eq!(from_page(Some("http://evil.example")).await.status, StatusCode::FORBIDDEN);
    assert_eq!(from_page(None).await.status, StatusCode::OK);
    assert_eq!(harness.get(&path).await.status, StatusCode::NOT_FOUND);
    assert_eq!(number(&read(&harness, "overview").await["totals"]["all"], "requests"), 0.0);
}

/// Sends a change, as the dashboard's own page does or as another page would.
async fn put(harness: &ProxyHarness, path: &str, body: &Value, own: bool) -> ClientResponse {
    let request = harness.request("PUT", path);
    let request = if own { request.header("x-foldline-request", "1") } else { request };
    harness.send(request.body(Full::new(body.to_string().into())).unwrap()).await
}

/// Off and observe send the client's own bytes; fold continues with the bytes that it sent before.
#[tokio::test]
async fn mode_can_be_changed_while_the_proxy_runs() {
    let folder = tempfile::tempdir().unwrap();
    let archive = Archive::open(folder.path().join("archive.db")).unwrap();
    let (harness, _) = start(small_window(), Some(archive)).await;
    let set = async |mode: &str| put(&harness, &format!("{API}/mode"), &json!({ "mode": mode }), true).await;
    let own = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, 30)[..59]);
    let last_sent = || harness.received().last().unwrap().body.clone();
    assert_eq!(put(&harness, &format!("{API}/mode"), &json!({ "mode": "off" }), false).await.status, 403);
    assert_eq!(set("fast").await.status, StatusCode::BAD_REQUEST);

    run_turns(&harness, 0..30).await;
    let folded = last_sent();
    assert!(folded.len() < own.len());
    for mode in ["observe", "off"] {
        assert_eq!(set(mode).await.status, StatusCode::OK);
        assert_eq!(read(&harness, "overview").await["mode"], mode);
        run_turns(&harness, 29..30).await;
        assert_eq!(last_sent(), own, "{mode}");
    }
    assert_eq!(set("fold").await.status, StatusCode::OK);
    run_turns(&harness, 29..30).await;
    assert_eq!(last_sent(), folded);
}

#[tokio::test]
async fn mode_of_one_tenant_does_not_change_another() {
    let tokens = AccessToken::parse_list("alice = aaaa1111\nbob = bbbb2222").unwrap();
    let (harness, _) = start(ProxySettings { tokens, ..small_window() }, None).await;
    let request = harness.request("PUT", &format!("{API}/mode")).header("x-foldline-request", "1");
    let request = request.header("x-foldline-token", "aaaa1111").body(Full::new(r#"{"mode":"off"}"#.into())).unwrap();
    assert_eq!(harness.send(request).await.status, StatusCode::OK);
    for (token, mode) in [("aaaa1111", "off"), ("bbbb2222", "fold")] {
        let overview = with_header(&harness, &format!("{API}/overview"), "x-foldline-token", token).await;
        let overview: Value = serde_json::from_slice(&overview.body).unwrap();
        assert_eq!(overview["mode"], mode);
    }
}

/// A pinned result stays whole from the next crease on, moves nothing before, and survives a restart.
#[tokio::test]
async fn pinned_target_is_never_folded() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Archive::open(folder.path().join("archive.db")).unwrap();
    let (mut harness, _) = start(small_window(), Some(open())).await;
    run_turns(&harness, 0..7).await;
    let id = read(&harness, "sessions").await["sessions"][0]["id"].as_str().unwrap().to_owned();
    let put = async |path: String, body: Value, own: bool| put(&harness, &path, &body, own).await;
    let (path, pins) = (format!("{API}/sessions/{id}/pins"), json!({ "tools": [], "targets": ["file_4.rs"] }));
    assert_eq!(put(path.clone(), pins.clone(), false).await.status, StatusCode::FORBIDDEN, "another page");
    assert_eq!(put(path.clone(), json!({ "targets": [""] }), true).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(put(path.clone(), json!({ "files": ["a"] }), true).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(put(format!("{API}/sessions/none/pins"), pins.clone(), true).await.status, StatusCode::NOT_FOUND);
    assert_eq!(put(path, pins.clone(), true).await.status, StatusCode::OK);
    assert_eq!(read(&harness, &format!("sessions/{id}")).await["pins"], pins);

    run_turns(&harness, 7..40).await;
    let sent = harness.received().last().unwrap().body.clone();
    let lines_of = |turn: usize| {
        let text = String::from_utf8(sent.to_vec()).unwrap();
        (0..40).filter(|line| text.contains(&format!("value_{turn}_{line} = "))).count()
    };
    assert_eq!(lines_of(4), 40, "the pinned file is whole");
    assert!(lines_of(3) < 40 && lines_of(5) < 40, "its neighbors are folded: {} {}", lines_of(3), lines_of(5));

    harness.stop().await.unwrap();
    let (again, _) = start(small_window(), Some(open())).await;
    run_turns(&again, 39..40).await;
    assert_eq!(again.received().last().unwrap().body, sent, "another proxy sends the same bytes");
    assert_eq!(read(&again, &format!("sessions/{id}")).await["pins"], pins);
}

async fn with_header(harness: &ProxyHarness, path: &str, name: &str, value: &str) -> ClientResponse {
    harness.send(harness.request("GET", path).header(name, value).body(Full::default()).unwrap()).await
}

store_tests! {
    tenant_sees_only_its_own_sessions,
    tenant_reads_and_deletes_nothing_of_another,
}

/// Whatever one tenant asks of the API, it gets nothing of the other.
async fn tenant_reads_and_deletes_nothing_of_another(store: TestStore) {
    let kept = store.create();
    let tokens = AccessToken::parse_list("alice = aaaa1111\nbob = bbbb2222").unwrap();
    let (harness, _) = start(ProxySettings { tokens, ..small_window() }, Some(kept.archive.clone())).await;
    let body = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, 40));
    let (alice, bob) = (("x-foldline-token", "aaaa1111"), ("x-foldline-token", "bbbb2222"));
    assert_eq!(harness.send_with("POST", "/v1/messages", &[alice], body).await.status, StatusCode::OK);
    let sent = harness.received().pop().unwrap().body;
    let handle = handles(std::str::from_utf8(&sent).unwrap()).next().expect("something is folded");
    let get = async |headers: &[(&str, &str)], path: &str| {
        harness.send_with("GET", &format!("{API}/{path}"), headers, String::new()).await
    };
    let sessions: Value = serde_json::from_slice(&get(&[alice], "sessions").await.body).unwrap();
    let id = sessions["sessions"][0]["id"].as_str().unwrap();
    let (session, original) = (format!("sessions/{id}"), format!("originals/{handle}"));
    for path in [&session, &original] {
        assert_eq!(get(&[alice], path).await.status, StatusCode::OK, "{path}");
        assert_eq!(get(&[bob], path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let lists = ["overview", "sessions", "cache", "quality", "inventory", "groups", "table?by=session", "health"];
    for path in lists {
        let answer = get(&[bob], path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert!(!answer.text().contains(id) && !answer.text().contains("file_"), "{path}: {}", answer.text());
    }
    let overview: Value = serde_json::from_slice(&get(&[bob], "overview").await.body).unwrap();
    let own: Value = serde_json::from_slice(&get(&[alice], "overview").await.body).unwrap();
    assert_ne!(overview["totals"], own["totals"]);
    let delete = async |token| {
        let headers = [token, ("x-foldline-request", "1")];
        harness.send_with("DELETE", &format!("{API}/{session}"), &headers, String::new()).await.status
    };
    delete(bob).await;
    assert_eq!(get(&[alice], &session).await.status, StatusCode::OK);
    assert_eq!(get(&[alice], &original).await.status, StatusCode::OK);
    assert_eq!(delete(alice).await, StatusCode::OK);
    assert_eq!(get(&[alice], &original).await.status, StatusCode::NOT_FOUND);
}

async fn tenant_sees_only_its_own_sessions(store: TestStore) {
    let kept = store.create();
    let tokens = AccessToken::parse_list("alice = aaaa1111\nbob = bbbb2222").unwrap();
    let (harness, _) = start(ProxySettings { tokens, ..small_window() }, Some(kept.archive.clone())).await;
    let body = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, 1));
    let request = harness.request("POST", "/v1/messages").header("x-foldline-token", "aaaa1111");
    harness.send(request.body(Full::new(body.into())).unwrap()).await;

    let sessions = format!("{API}/sessions");
    assert_eq!(harness.get(&sessions).await.status, StatusCode::UNAUTHORIZED);
    let count =
        |got: ClientResponse| serde_json::from_slice::<Value>(&got.body).unwrap()["sessions"].as_array().unwrap().len();
    assert_eq!(count(with_header(&harness, &sessions, "x-foldline-token", "aaaa1111").await), 1);
    assert_eq!(count(with_header(&harness, &sessions, "x-foldline-token", "bbbb2222").await), 0);

    // The page is public; its data needs the cookie, which a page of another origin cannot get.
    let page = harness.get("/foldline/").await;
    assert!(page.status == StatusCode::OK && page.text().contains("<div id=\"app\">"));
    let login = |token: &str, origin: &str| {
        let request = harness.request("POST", &format!("{API}/login")).header("x-foldline-request", "1");
        let request = request.header("origin", origin.to_owned());
        harness.send(request.body(Full::new(json!({ "token": token }).to_string().into())).unwrap())
    };
    let own = format!("http://{}", harness.proxy);
    assert_eq!(login("wrong", &own).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(login("aaaa1111", "http://evil.example").await.status, StatusCode::FORBIDDEN);
    let logged_in = login("aaaa1111", &own).await;
    let cookie = logged_in.header("set-cookie").unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict") && !cookie.contains("aaaa1111"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap().to_owned();
    assert_eq!(count(with_header(&harness, &sessions, "cookie", &cookie).await), 1);
    let got = with_header(&harness, &sessions, "cookie", &cookie).await;
    assert!(got.header("access-control-allow-origin").is_none());
    // The cookie is for the dashboard only.
    let request = harness.request("POST", "/v1/messages").header("cookie", &cookie);
    assert_eq!(harness.send(request.body(Full::default()).unwrap()).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn page_is_served_with_a_strict_policy() {
    let (harness, _) = start(settings(), None).await;
    let redirect = harness.get("/foldline").await;
    assert_eq!((redirect.status, redirect.header("location")), (StatusCode::PERMANENT_REDIRECT, Some("foldline/")));
    for path in ["", "app.js", "app.css", "favicon.svg"] {
        let got = harness.get(&format!("/foldline/{path}")).await;
        assert_eq!(got.status, StatusCode::OK, "{path}");
        let policy = got.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
    let foreign = with_header(&harness, &format!("{API}/overview"), "host", "evil.example").await;
    assert_eq!(foreign.status, StatusCode::FORBIDDEN, "DNS rebinding");
    assert_eq!(harness.get(&format!("{API}/table?by=nonsense")).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(harness.get(&format!("{API}/table?since=soon")).await.status, StatusCode::BAD_REQUEST);
    let csv = harness.get(&format!("{API}/table?by=day&format=csv")).await;
    assert!(csv.text().starts_with("day,label,last_at,requests"), "{}", csv.text());
}

#[tokio::test]
async fn requests_are_streamed_to_open_dashboards() {
    let (mut harness, _) = start(settings(), None).await;
    let request = harness.request("GET", &format!("{API}/events")).body(Full::default()).unwrap();
    let mut events = harness.send_head(request).await.into_body();
    let mut text = String::new();
    let body = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, 1));
    let mut sent = false;
    while !text.contains("event: request") {
        let frame = events.frame().await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        if text.contains("event: hello") && !sent {
            sent = true;
            harness.post("/v1/messages", body.clone()).await;
        }
    }
    let data = text.rsplit_once("data: ").unwrap().1;
    let event: Value = serde_json::from_str(data.trim()).unwrap();
    assert!(number(&event, "received_tokens") > 0.0 && event["status"] == 200, "{event}");
    // An open dashboard does not delay the end of the proxy.
    let stopped = harness.stop();
    tokio::time::timeout(std::time::Duration::from_secs(5), stopped).await.unwrap().unwrap();
}
