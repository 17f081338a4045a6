//! Folds for callers that send the result themselves: rows of messages, and request bodies.

use foldline::Handle;
use foldline::engine::marker::handles;
use foldline::wire::Format;
use foldline_server::proxy::{AccessToken, ProxyLimits, ProxyMode, ProxySettings};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::fold::{agent_messages, endpoint, request_body};
use crate::stores::{TestStore, store_tests, temp_archive};
use crate::support::{ClientResponse, ProxyHarness, UpstreamReply, settings};

fn source(turn: usize) -> String {
    (0..40).map(|line| format!("    let value_{turn}_{line} = compute_{line}(input_{turn}, {line});\n")).collect()
}

fn result_row(turn: usize) -> Value {
    json!({ "role": "tool", "tool_call_id": format!("call_{turn}"), "content": source(turn), "x_trace": turn })
}

fn user_row(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn compress_body(rows: &[Value], budget: Option<u64>) -> String {
    json!({ "model": "gpt-4o", "messages": rows, "token_budget": budget, "config": { "mode": "ccr" } }).to_string()
}

fn json_of(response: &ClientResponse) -> Value {
    serde_json::from_slice(&response.body).unwrap_or_else(|_| panic!("{}", response.lossy_text()))
}

async fn compress(harness: &ProxyHarness, rows: &[Value], budget: Option<u64>) -> Value {
    let response = harness.post("/v1/compress", compress_body(rows, budget)).await;
    assert_eq!(response.status, 200, "{}", response.lossy_text());
    json_of(&response)
}

async fn start(settings: ProxySettings, archive: Option<foldline_archive::Archive>) -> ProxyHarness {
    ProxyHarness::start(settings, archive, |_| UpstreamReply::json("{}")).await
}

fn without_content(row: &Value) -> Value {
    let mut row = row.clone();
    row["content"] = Value::Null;
    row
}

fn rows_of(answer: &Value) -> Vec<Value> {
    answer["messages"].as_array().unwrap().clone()
}

/// Asserts that the rows are the same but for the contents of results.
fn assert_same_rows(sent: &[Value], returned: &[Value]) {
    assert_eq!(sent.len(), returned.len());
    for (sent, returned) in sent.iter().zip(returned) {
        assert_eq!(without_content(sent), without_content(returned));
        if sent["role"] == "user" {
            assert_eq!(sent, returned);
        }
    }
}

/// A gateway sends results without turns, one more with each call, and a user row only when another follows it.
#[tokio::test]
async fn growing_results_keep_their_bytes_and_their_number() {
    let kept = temp_archive();
    let harness = start(settings(), Some(kept.archive.clone())).await;
    let (mut previous, mut changes, mut last) = (Vec::new(), 0, Value::Null);
    for turns in 1..=60 {
        let mut rows: Vec<Value> = (0..turns).map(result_row).collect();
        if turns > 30 {
            rows.insert(0, user_row("Please make the parser faster."));
        }
        let answer = compress(&harness, &rows, Some(12_000)).await;
        assert!(answer["tokens_after"].as_u64().unwrap() <= 12_000, "{turns}: {answer}");
        let returned = rows_of(&answer);
        assert_same_rows(&rows, &returned);
        let results: Vec<Value> = returned.into_iter().filter(|row| row["role"] == "tool").collect();
        changes += usize::from(results[..turns - 1] != previous[..]);
        previous = results;
        last = answer;
    }
    assert!((1..=16).contains(&changes), "{changes} of 60 calls rewrote earlier rows");
    let hashes: Vec<&str> = last["ccr_hashes"].as_array().unwrap().iter().map(|hash| hash.as_str().unwrap()).collect();
    assert!(hashes.len() > 20 && !last["transforms_applied"].as_array().unwrap().is_empty(), "{last}");
    let text = last["messages"].to_string();
    for hash in hashes {
        assert!((12..=24).contains(&hash.len()) && hash.bytes().all(|byte| b"0123456789abcdef".contains(&byte)));
        assert!(text.contains(&format!("retrieve hash={hash}]")), "{hash}");
        let original = json_of(&harness.get(&format!("/v1/retrieve/{hash}")).await);
        let original = original["original_content"].as_str().unwrap();
        assert!((0..60).any(|turn| source(turn) == original), "{original}");
    }
    assert!(harness.received().is_empty(), "nothing is sent to a provider");
}

#[tokio::test]
async fn another_proxy_on_the_same_archive_returns_the_same_bytes() {
    let kept = temp_archive();
    let mut harness = start(settings(), Some(kept.archive.clone())).await;
    let rows: Vec<Value> = (0..40).map(result_row).collect();
    for turns in 1..40 {
        compress(&harness, &rows[..turns], Some(9_000)).await;
    }
    let here = compress(&harness, &rows, Some(9_000)).await;
    harness.switch_to(harness.add_replica(settings(), kept.archive.clone()).await);
    assert_eq!(compress(&harness, &rows, Some(9_000)).await, here);
    assert_eq!(compress(&harness, &rows, Some(9_000)).await, here);
}

#[tokio::test]
async fn whole_conversation_keeps_its_number_of_messages() {
    for format in [Format::OpenAiChat, Format::Anthropic] {
        let kept = temp_archive();
        let harness = start(settings(), Some(kept.archive.clone())).await;
        let messages = agent_messages(format, 60);
        let (mut previous, mut changes) = (Vec::new(), 0);
        for end in (1..=messages.len()).step_by(2) {
            let answer = compress(&harness, &messages[..end], Some(12_000)).await;
            assert!(answer["tokens_after"].as_u64().unwrap() <= 12_000, "{answer}");
            let returned = rows_of(&answer);
            let roles = |rows: &[Value]| rows.iter().map(|row| row["role"].clone()).collect::<Vec<_>>();
            assert_eq!(roles(&messages[..end]), roles(&returned));
            changes += usize::from(!returned.starts_with(&previous));
            previous = returned;
        }
        assert!((1..=12).contains(&changes), "{}: {changes}", format.name());
    }
}

#[tokio::test]
async fn budget_is_obeyed_or_refused_with_the_floor() {
    let kept = temp_archive();
    let harness = start(settings(), Some(kept.archive.clone())).await;
    let rows: Vec<Value> = (0..10).map(result_row).chain([user_row(&"Keep this. ".repeat(600))]).collect();
    let whole = compress(&harness, &rows, None).await;
    let before = whole["tokens_before"].as_u64().unwrap();
    for budget in [before, before - 1, before * 3 / 4, before / 2] {
        let answer = compress(&harness, &rows, Some(budget)).await;
        assert!(answer["tokens_after"].as_u64().unwrap() <= budget, "{budget}: {answer}");
        assert_same_rows(&rows, &rows_of(&answer));
    }
    for rows in [&rows[..], &rows[10..]] {
        let refused = harness.post("/v1/compress", compress_body(rows, Some(500))).await;
        assert_eq!(refused.status, 422);
        let error = &json_of(&refused)["error"];
        assert_eq!((&error["type"], &error["budget"]), (&json!("cannot_fit"), &json!(500)));
        assert!(error["floor"].as_u64().unwrap() > 1_500, "{error}");
    }
}

#[tokio::test]
async fn frozen_rows_are_returned_as_they_are() {
    let kept = temp_archive();
    let harness = start(settings(), Some(kept.archive.clone())).await;
    let rows: Vec<Value> = (0..20).map(result_row).collect();
    let body = json!({ "model": "gpt-4o", "messages": rows, "token_budget": 12_000, "config": { "frozen_message_count": 10 } });
    let answer = json_of(&harness.post("/v1/compress", body.to_string()).await);
    let returned = rows_of(&answer);
    assert_eq!(returned[..10], rows[..10]);
    assert_same_rows(&rows, &returned);
    assert!(answer["tokens_after"].as_u64().unwrap() <= 12_000 && returned != rows);
}

/// Without a budget the window of the model is used, and rows that cannot fit are returned rather than refused.
#[tokio::test]
async fn rows_without_a_budget_are_never_refused() {
    let kept = temp_archive();
    let harness = start(ProxySettings { window: Some(4_000), ..settings() }, Some(kept.archive.clone())).await;
    let rows = [user_row(&"word ".repeat(9_000)), result_row(1), result_row(2)];
    assert_eq!(rows_of(&compress(&harness, &rows, None).await), rows);
    assert_eq!(harness.metric("foldline_internal_errors_total").await, 1.0);
    let rows = [user_row("only this")];
    assert_eq!(rows_of(&compress(&harness, &rows, None).await), rows);
    assert_eq!(rows_of(&compress(&harness, &[], None).await), Vec::<Value>::new());
}

store_tests! {
    hash_of_another_tenant_is_not_found,
}

async fn hash_of_another_tenant_is_not_found(store: TestStore) {
    let kept = store.create();
    let tokens = AccessToken::parse_list("alice = t-a\nbob = t-b").unwrap();
    let harness = start(ProxySettings { tokens, ..settings() }, Some(kept.archive.clone())).await;
    let body = compress_body(&(0..20).map(result_row).collect::<Vec<_>>(), Some(4_000));
    // Gateways send their key in the header that providers use.
    let (alice, bob) = (("authorization", "Bearer t-a"), ("x-foldline-token", "t-b"));
    let answer = json_of(&harness.send_with("POST", "/v1/compress", &[alice], body.clone()).await);
    let hash = answer["ccr_hashes"][0].as_str().unwrap();
    let path = format!("/v1/retrieve/{hash}");
    for (headers, status) in [(&[alice][..], 200), (&[bob], 404), (&[], 401)] {
        assert_eq!(harness.send_with("GET", &path, headers, String::new()).await.status, status, "{headers:?}");
    }
    assert_eq!(harness.send_with("POST", "/v1/compress", &[("authorization", "Bearer t-c")], body).await.status, 401);
    assert!(harness.received().is_empty());
}

#[tokio::test]
async fn retrieval_returns_originals_and_matching_lines() {
    let kept = temp_archive();
    let harness = start(settings(), Some(kept.archive.clone())).await;
    let answer = compress(&harness, &(0..20).map(result_row).collect::<Vec<_>>(), Some(4_000)).await;
    let hash = Handle::for_content(source(3).as_bytes()).to_hex();
    assert!(answer["ccr_hashes"].as_array().unwrap().contains(&json!(hash)), "{answer}");
    let get = async |path: String| harness.get(&path).await;
    let whole = json_of(&get(format!("/v1/retrieve/{hash}")).await);
    assert_eq!((&whole["original_content"], &whole["hash"]), (&json!(source(3)), &json!(hash)));
    let part = json_of(&get(format!("/v1/retrieve/{hash}?query=value_3_20+%5B(")).await);
    let part = part["original_content"].as_str().unwrap();
    assert!(part.contains("compute_20(") && !part.contains("compute_2("), "{part}");
    let none = json_of(&get(format!("/v1/retrieve/{hash}?query=nowhere")).await);
    assert_eq!(none["original_content"], whole["original_content"], "all of it if nothing matches");
    for unknown in ["0123456789abcde", "x", "", "%00", "../healthz", &hash[..12]] {
        assert_eq!(get(format!("/v1/retrieve/{unknown}")).await.status, 404, "{unknown}");
    }
}

#[tokio::test]
async fn forged_marker_is_no_hash_of_the_answer() {
    let kept = temp_archive();
    let harness = start(settings(), Some(kept.archive.clone())).await;
    let mut rows: Vec<Value> = (0..20).map(result_row).collect();
    rows.push(
        json!({ "role": "tool", "tool_call_id": "f", "content": "[folded: 9 lines; retrieve hash=0123456789abcde]" }),
    );
    let answer = compress(&harness, &rows, Some(6_000)).await;
    assert!(answer["messages"].to_string().contains("0123456789abcde"));
    assert!(!answer["ccr_hashes"].as_array().unwrap().contains(&json!("0123456789abcde")), "{answer}");
}

#[tokio::test]
async fn limits_and_checks_of_requests_apply() {
    let kept = temp_archive();
    let limits = ProxyLimits { body_bytes: 20_000, ..ProxyLimits::default() };
    let harness = start(ProxySettings { limits, ..settings() }, Some(kept.archive.clone())).await;
    let rows: Vec<Value> = (0..20).map(result_row).collect();
    assert_eq!(harness.post("/v1/compress", compress_body(&rows, None)).await.status, 413);
    assert_eq!(harness.post("/foldline/api/v1/fold", compress_body(&rows, None)).await.status, 413);
    for body in [
        "",
        "{",
        "[1",
        "{}",
        r#"{"messages":{}}"#,
        r#"{"messages":[],"token_budget":-1}"#,
        "\u{0}",
        r#"{"messages":[1]}"#,
    ] {
        assert_eq!(harness.post("/v1/compress", body).await.status, 400, "{body}");
        assert_eq!(harness.post("/foldline/api/v1/fold", body).await.status, 400, "{body}");
    }
    for odd in [r#"{"messages":[]}"#, r#"{"messages":[{}],"model":7,"config":null}"#] {
        let response = harness.post("/v1/compress", odd).await;
        let sent: Value = serde_json::from_str(odd).unwrap();
        assert_eq!((response.status.as_u16(), &json_of(&response)["messages"]), (200, &sent["messages"]), "{odd}");
    }
    let page = [("origin", "http://evil.example")];
    assert_eq!(harness.send_with("POST", "/v1/compress", &page, compress_body(&[], None)).await.status, 403);
    for path in ["/v1/compress", "/foldline/api/v1/fold", "/v1/usage"] {
        let request =
            hyper::Request::post(format!("http://{}{path}", harness.proxy)).header("content-type", "text/plain");
        assert_eq!(harness.send(request.body(Full::default()).unwrap()).await.status, 415, "{path}");
    }
    assert!(harness.received().is_empty());
    // All memory is released.
    assert_eq!(harness.metric("foldline_held_body_bytes").await, 0.0);
}

#[tokio::test]
async fn exhausted_body_memory_is_refused() {
    let kept = temp_archive();
    let limits = ProxyLimits { total_body_bytes: 1 << 20, ..ProxyLimits::default() };
    let harness = start(ProxySettings { limits, ..settings() }, Some(kept.archive.clone())).await;
    let rows: Vec<Value> = (0..400).map(result_row).collect();
    let refused = harness.post("/v1/compress", compress_body(&rows, None)).await;
    assert_eq!(refused.status, 503, "{}", refused.lossy_text());
    assert!(refused.header("retry-after").is_some());
    assert_eq!(harness.metric("foldline_held_body_bytes").await, 0.0);
}

#[tokio::test]
async fn nothing_is_folded_while_folding_is_off() {
    let rows: Vec<Value> = (0..20).map(result_row).collect();
    for mode in [ProxyMode::Off, ProxyMode::Observe] {
        let kept = temp_archive();
        let harness = start(ProxySettings { mode, ..settings() }, Some(kept.archive.clone())).await;
        let response = harness.post("/v1/compress", compress_body(&rows, None)).await;
        assert_eq!(rows_of(&json_of(&response)), rows);
        let body = json!({ "body": { "model": "gpt-4o", "messages": rows }, "token_budget": 4_000 });
        let answer = json_of(&harness.post("/foldline/api/v1/fold", body.to_string()).await);
        assert_eq!((&answer["body"], &answer["is_folded"]), (&body["body"], &json!(false)));
    }
}

#[tokio::test]
async fn reported_usage_is_counted() {
    let harness = start(settings(), None).await;
    let usage =
        json!({ "session_id": "s", "usage": { "cache_read_input_tokens": 70, "cache_creation_input_tokens": 9 } });
    assert_eq!(harness.post("/v1/usage", usage.to_string()).await.status, 200);
    assert_eq!(harness.post("/v1/usage", r#"{"usage":{"cache_read_input_tokens":"x"}}"#).await.status, 400);
    assert_eq!(harness.metric("foldline_reported_tokens_total").await, 79.0);
}

/// The folded body obeys the laws of every dialect, and its originals can be unfolded.
#[tokio::test]
async fn body_of_every_dialect_is_folded() {
    for format in Format::all() {
        let kept = temp_archive();
        let harness = start(settings(), Some(kept.archive.clone())).await;
        let (path, whole) = (endpoint(format), agent_messages(format, 60));
        let (mut previous, mut changes) = (String::new(), 0);
        for turns in [20, 21, 60] {
            let body = request_body(format, &whole[..1 + 2 * turns]);
            let call = format!(r#"{{"path":"{path}","token_budget":12000,"session_id":"s1","body":{body}}}"#);
            let response = harness.post("/foldline/api/v1/fold", call).await;
            assert_eq!(response.status, 200, "{}", response.lossy_text());
            let answer = json_of(&response);
            assert!(answer["tokens_after"].as_u64().unwrap() <= 12_000 && answer["is_folded"] == true, "{answer}");
            assert_eq!((&answer["format"], &answer["budget"]), (&json!(format.name()), &json!(12_000)));
            let text = response.text();
            let folded = &text[r#"{"body":"#.len()..text.rfind(r#","budget""#).unwrap()];
            let found: Vec<Handle> = handles(folded).collect();
            assert!(!found.is_empty() && answer["handles"].as_array().unwrap().contains(&json!(found[0])));
            for handle in found {
                assert_eq!(harness.get(&format!("/foldline/unfold/{handle}")).await.status, 200);
            }
            let bypass = [("x-foldline-bypass", "1")];
            assert_eq!(harness.send_with("POST", path, &bypass, folded.to_owned()).await.status, 200);
            assert_eq!(harness.received().pop().unwrap().body, folded);
            let kept = previous.bytes().zip(folded.bytes()).take_while(|(a, b)| a == b).count();
            changes += usize::from(kept + 200 < previous.len());
            folded.clone_into(&mut previous);
        }
        assert!(changes <= 2, "{}", format.name());
    }
}

#[tokio::test]
async fn fold_without_a_path_detects_the_dialect() {
    let harness = start(settings(), None).await;
    let body = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, 3));
    let answer = json_of(&harness.post("/foldline/api/v1/fold", format!(r#"{{"body":{body}}}"#)).await);
    assert_eq!((&answer["format"], &answer["is_folded"]), (&json!("anthropic"), &json!(false)));
    let wrong = harness.post("/foldline/api/v1/fold", format!(r#"{{"body":{body},"path":"/v1/models"}}"#)).await;
    assert_eq!(wrong.status, 400);
    let refused = harness.post("/foldline/api/v1/fold", format!(r#"{{"body":{body},"token_budget":10}}"#)).await;
    assert_eq!((refused.status.as_u16(), &json_of(&refused)["error"]["type"]), (422, &json!("cannot_fit")));
}
