//! Conversations that exceed their budget, on the wire.

use std::io::Write;
use std::path::Path;

use foldline::wire::{Format, Request};
use foldline_archive::{AccessMode, Archive, ArchiveOptions, Namespace};
use foldline_server::proxy::{ProxyMode, ProxySettings};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::small_disk::SmallDisk;
use crate::support::{ProxyHarness, UpstreamReply, settings};

pub(crate) fn user_message(format: Format, text: &str) -> Value {
    match format {
        Format::Gemini => json!({ "role": "user", "parts": [{ "text": text }] }),
        Format::Converse => json!({ "role": "user", "content": [{ "text": text }] }),
        _ => json!({ "role": "user", "content": text }),
    }
}

/// Returns the conversation of an agent that reads one file per turn.
pub(crate) fn agent_messages(format: Format, turns: usize) -> Vec<Value> {
    let mut messages = vec![user_message(format, "Please make the parser faster.")];
    for turn in 0..turns {
        let source: String = (0..40)
            .map(|line| format!("    let value_{turn}_{line} = compute_{line}(input_{turn}, {line});\n"))
            .collect();
        let (id, path) = (format!("call_{turn}"), json!({ "path": format!("src/file_{turn}.rs") }));
        let text = format!("Reading file {turn}.");
        match format {
            Format::OpenAiChat => messages.extend([
                json!({ "role": "assistant", "content": text, "tool_calls": [
                    { "id": id, "type": "function", "function": { "name": "read_file", "arguments": path.to_string() } }] }),
                json!({ "role": "tool", "tool_call_id": id, "content": source }),
            ]),
            Format::OpenAiResponses => messages.extend([
                json!({ "type": "function_call", "call_id": id, "name": "read_file", "arguments": path.to_string() }),
                json!({ "type": "function_call_output", "call_id": id, "output": source }),
            ]),
            Format::Anthropic => messages.extend([
                json!({ "role": "assistant", "content": [{ "type": "text", "text": text },
                    { "type": "tool_use", "id": id, "name": "read_file", "input": path }] }),
                json!({ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": id, "content": source }] }),
            ]),
            // Calls and results without ids, as the official client sends them.
            Format::Ollama => messages.extend([
                json!({ "role": "assistant", "content": text, "tool_calls": [{ "function": { "name": "read_file", "arguments": path } }] }),
                json!({ "role": "tool", "tool_name": "read_file", "content": source }),
            ]),
            Format::Converse => messages.extend([
                json!({ "role": "assistant", "content": [{ "text": text },
                    { "toolUse": { "toolUseId": id, "name": "read_file", "input": path } }] }),
                json!({ "role": "user", "content": [{ "toolResult": { "toolUseId": id, "content": [{ "text": source }] } }] }),
            ]),
            Format::Gemini => messages.extend([
                json!({ "role": "model", "parts": [{ "text": text }, { "functionCall": { "id": id, "name": "read_file", "args": path } }] }),
                json!({ "role": "user", "parts": [{ "functionResponse": { "id": id, "name": "read_file", "response": { "output": source } } }] }),
            ]),
        }
    }
    messages
}

pub(crate) fn request_body(format: Format, messages: &[Value]) -> String {
    let tool = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    match format {
        Format::OpenAiChat => json!({ "model": "gpt-4o", "max_tokens": 500, "messages": messages, "tools": [
            { "type": "function", "function": { "name": "read_file", "parameters": tool } }] }),
        Format::OpenAiResponses => {
            json!({ "model": "gpt-4o", "max_output_tokens": 500, "input": messages, "store": false,
            "tools": [{ "type": "function", "name": "read_file", "parameters": tool, "strict": false }] })
        }
        Format::Anthropic => json!({ "model": "claude-opus-4-6", "max_tokens": 500, "messages": messages, "tools": [
            { "name": "read_file", "input_schema": tool }] }),
        Format::Ollama => {
            json!({ "model": "qwen3:8b", "options": { "num_predict": 500 }, "messages": messages, "tools": [
            { "type": "function", "function": { "name": "read_file", "parameters": tool } }] })
        }
        Format::Converse => {
            json!({ "inferenceConfig": { "maxTokens": 500 }, "messages": messages, "toolConfig": { "tools": [
            { "toolSpec": { "name": "read_file", "inputSchema": { "json": tool } } }] } })
        }
        Format::Gemini => json!({ "contents": messages, "generationConfig": { "maxOutputTokens": 500 }, "tools": [
            { "functionDeclarations": [{ "name": "read_file", "parameters": tool }] }] }),
    }
    .to_string()
}

pub(crate) fn endpoint(format: Format) -> &'static str {
    match format {
        Format::OpenAiChat => "/v1/chat/completions",
        Format::OpenAiResponses => "/v1/responses",
        Format::Anthropic => "/v1/messages",
        Format::Ollama => "/api/chat",
        Format::Converse => "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse",
        Format::Gemini => "/v1beta/models/gemini-2.5-pro:generateContent",
    }
}

/// Returns settings with a window of 16,000 tokens and without the unfold tool.
fn small_window_settings() -> ProxySettings {
    ProxySettings { window: Some(16_000), offer_unfold_tool: false, ..settings() }
}

fn raw_messages(format: Format, body: &[u8]) -> Vec<String> {
    let request = Request::parse(format, body).unwrap();
    (0..).map_while(|at| request.raw_message(at)).map(str::to_owned).collect()
}

/// Sixty turns: every body fits, obeys the laws, and extends the previous one except at a crease; the original of every
/// marker is in the archive.
#[tokio::test]
async fn long_session_fits_with_a_stable_prefix() {
    for format in Format::all() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(folder.path().join("archive.db")).unwrap();
        let tenant = archive.tenant(&Namespace::local());
        let harness = ProxyHarness::start(small_window_settings(), Some(archive), |_| UpstreamReply::json("{}")).await;
        let whole = agent_messages(format, 60);
        let mut previous: Vec<String> = Vec::new();
        let (mut creases, mut max_sent) = (0, 0);
        for end in (1..=whole.len()).step_by(2) {
            let got = harness.post(endpoint(format), request_body(format, &whole[..end])).await;
            let (_, sent) = got.header("x-foldline-tokens").unwrap().split_once(',').unwrap();
            max_sent = max_sent.max(sent.parse::<u64>().unwrap());
            let received = harness.received().pop().unwrap();
            let current = raw_messages(format, &received.body);
            creases += usize::from(!current.starts_with(&previous));
            previous = current;
            if end == whole.len() {
                assert_ne!(got.header("x-foldline-folds"), Some("0"));
                let text = String::from_utf8(received.body.to_vec()).unwrap();
                let handles: Vec<_> = foldline::engine::marker::handles(&text).collect();
                assert!(!handles.is_empty());
                for handle in handles {
                    tenant.unfold(handle.as_str()).expect("the original of every marker");
                }
            }
        }
        assert!(max_sent < 15_600, "{format:?}: {max_sent}");
        assert!((1..30).contains(&creases), "{format:?}: {creases} creases in 61 requests");
        let metrics = harness.get("/foldline/metrics").await;
        let counted = metrics.text().lines().filter(|line| line.starts_with("foldline_creases_total{"));
        let counted: usize = counted.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum();
        assert_eq!(counted, creases, "every rewritten prefix is a reported crease");
    }
}

/// Another proxy that never saw the session, with the same archive, sends the same bytes.
#[tokio::test]
async fn restart_sends_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let archive = || Archive::open(folder.path().join("archive.db")).unwrap();
    let whole = agent_messages(Format::Anthropic, 40);
    let last = request_body(Format::Anthropic, &whole);
    let first = {
        let harness =
            ProxyHarness::start(small_window_settings(), Some(archive()), |_| UpstreamReply::json("{}")).await;
        for end in (1..=whole.len()).step_by(2) {
            harness.post("/v1/messages", request_body(Format::Anthropic, &whole[..end])).await;
        }
        harness.received().pop().unwrap().body
    };
    let harness = ProxyHarness::start(small_window_settings(), Some(archive()), |_| UpstreamReply::json("{}")).await;
    harness.post("/v1/messages", last).await;
    assert!(first == harness.only_request().body, "the bytes differ");
}

#[tokio::test]
async fn observe_mode_forwards_bytes_and_reports_savings() {
    let harness =
        ProxyHarness::start(ProxySettings { mode: ProxyMode::Observe, ..small_window_settings() }, None, |_| {
            UpstreamReply::json("{}")
        })
        .await;
    let request = request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, 40));
    let got = harness.post("/v1/chat/completions", request.clone()).await;
    assert_eq!(harness.only_request().body, request);
    let (raw, sent) = got.header("x-foldline-tokens").unwrap().split_once(',').unwrap();
    let (raw, sent): (u64, u64) = (raw.parse().unwrap(), sent.parse().unwrap());
    assert!(raw > 20_000 && sent < 16_000, "{raw} {sent}");
    assert!(got.header("x-foldline-folds").unwrap().parse::<u64>().unwrap() > 5);
}

#[tokio::test]
async fn bypass_header_disables_folding() {
    let harness = ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json("{}")).await;
    let sent = request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, 40));
    let request = harness.request("POST", "/v1/chat/completions").header("x-foldline-bypass", "1");
    let got = harness.send(request.body(Full::new(sent.clone().into())).unwrap()).await;
    assert_eq!(got.header("x-foldline-tokens"), None);
    let received = harness.only_request();
    assert_eq!(received.body, sent);
    assert!(!received.headers.contains_key("x-foldline-bypass"));
}

/// A request that cannot be folded to its budget is forwarded unmodified; the provider decides.
#[tokio::test]
async fn request_that_cannot_fit_is_forwarded_unmodified() {
    let harness = ProxyHarness::start(ProxySettings { window: Some(2_000), ..small_window_settings() }, None, |_| {
        UpstreamReply::json("{}")
    })
    .await;
    let huge = json!({ "model": "gpt-4o", "messages": [{ "role": "system", "content": "law ".repeat(9_000) },
        { "role": "user", "content": "hi" }] })
    .to_string();
    harness.post("/v1/chat/completions", huge.clone()).await;
    assert_eq!(harness.only_request().body, huge);
    assert!(
        harness
            .get("/foldline/metrics")
            .await
            .text()
            .contains(r#"foldline_internal_errors_total{kind="cannot_fit"} 1"#)
    );
}

/// The disk of the archive fills up during a session, and is freed later. Every request is answered and fits; every marker
/// has its original; and with free space originals are stored again.
#[tokio::test]
async fn full_disk_loses_no_request_and_no_original() {
    // Large enough for the search index too, which the archive writes when it is idle.
    let Some(disk) = SmallDisk::mount("4m") else { return };
    let ballast = disk.path().join("ballast");
    let archive = Archive::open(disk.path().join("archive.db")).unwrap();
    let tenant = archive.tenant(&Namespace::local());
    let format = Format::OpenAiChat;
    let harness = ProxyHarness::start(small_window_settings(), Some(archive), |_| UpstreamReply::json("{}")).await;
    let whole = agent_messages(format, 90);
    let (mut markers, mut folded) = ([0; 3], [0; 3]);
    for end in (1..=whole.len()).step_by(2) {
        let stage = end * 3 / (whole.len() + 1);
        match stage {
            1 if !ballast.exists() => fill_disk(&ballast),
            2 if ballast.exists() => std::fs::remove_file(&ballast).unwrap(),
            _ => {}
        }
        let got = harness.post(endpoint(format), request_body(format, &whole[..end])).await;
        assert_eq!(got.status, 200);
        let (_, sent) = got.header("x-foldline-tokens").unwrap().split_once(',').unwrap();
        assert!(sent.parse::<u64>().unwrap() < 15_600, "{sent} tokens were sent");
        folded[stage] = got.header("x-foldline-folds").unwrap().parse().unwrap();
        let received = harness.received().pop().unwrap();
        let text = String::from_utf8(received.body.to_vec()).unwrap();
        let handles: Vec<_> = foldline::engine::marker::handles(&text).collect();
        markers[stage] = handles.len();
        for handle in handles {
            tenant.unfold(handle.as_str()).expect("the original of every marker");
        }
    }
    assert!(markers[0] > 0 && markers[2] > markers[1], "{markers:?}");
    assert!(folded[1] > folded[0], "results are folded without an original if they would not fit: {folded:?}");
}

/// Fills the rest of a disk.
fn fill_disk(ballast: &Path) {
    let mut file = std::fs::File::create(ballast).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

/// `rm archive.db` under a running proxy: handles were still issued, and all of them were lost when it ended.
#[tokio::test]
async fn removed_archive_is_noticed_and_filled_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("archive.db");
    let archive = Archive::open(&file).unwrap();
    let format = Format::OpenAiChat;
    let harness = ProxyHarness::start(small_window_settings(), Some(archive), |_| UpstreamReply::json("{}")).await;
    let whole = agent_messages(format, 60);
    let mut markers = Vec::new();
    for (turn, end) in (1..=whole.len()).step_by(2).enumerate() {
        if turn == 40 {
            std::fs::remove_file(&file).unwrap();
        }
        let got = harness.post(endpoint(format), request_body(format, &whole[..end])).await;
        assert_eq!(got.status, 200);
        let text = String::from_utf8(harness.received().pop().unwrap().body.to_vec()).unwrap();
        let options = ArchiveOptions { access: AccessMode::ReadOnly, ..ArchiveOptions::default() };
        let tenant = Archive::open_with(&file, options).unwrap().tenant(&Namespace::local());
        let handles: Vec<_> = foldline::engine::marker::handles(&text).collect();
        for handle in &handles {
            tenant.unfold(handle.as_str()).expect("the original of every marker is in the file");
        }
        markers.push(handles.len());
    }
    assert!(markers[39] > 0 && markers[40] == 0, "the loss is noticed: {markers:?}");
    assert!(markers.last().is_some_and(|count| *count > 0), "new folds have handles again: {markers:?}");
}

/// The archive is damaged during a session: existing folds remain, byte for byte.
#[tokio::test]
async fn corrupted_archive_fails_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("archive.db");
    let archive = Archive::open(&file).unwrap();
    let harness = ProxyHarness::start(small_window_settings(), Some(archive), |_| UpstreamReply::json("{}")).await;
    let whole = agent_messages(Format::OpenAiChat, 60);
    let mut sizes = Vec::new();
    for end in (1..=whole.len()).step_by(2) {
        if end == 61 {
            // Damages every page of the file and of its log.
            for name in ["archive.db", "archive.db-wal"] {
                let length = std::fs::metadata(folder.path().join(name)).map_or(0, |metadata| metadata.len());
                std::fs::write(folder.path().join(name), vec![0x55; length as usize]).unwrap();
            }
        }
        let got = harness.post("/v1/chat/completions", request_body(Format::OpenAiChat, &whole[..end])).await;
        assert_eq!(got.status, 200);
        let (_, sent) = got.header("x-foldline-tokens").unwrap().split_once(',').unwrap();
        sizes.push(sent.parse::<u64>().unwrap());
    }
    assert_eq!(harness.received().len(), 61);
    assert!(sizes.iter().all(|&sent| sent < 15_600), "{sizes:?}");
}

#[tokio::test]
async fn folded_compressed_body_is_sent_uncompressed() {
    let harness = ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json("{}")).await;
    let sent = request_body(Format::OpenAiChat, &agent_messages(Format::OpenAiChat, 40));
    let request = harness.request("POST", "/v1/chat/completions").header("content-encoding", "gzip");
    let gzip = {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(sent.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    harness.send(request.body(Full::new(gzip.into())).unwrap()).await;
    let received = harness.only_request();
    assert!(!received.headers.contains_key("content-encoding"));
    assert_eq!(received.headers["content-length"], received.body.len().to_string());
    assert!(received.body.len() < sent.len() / 2);
}

/// Tokens are counted for the request that would be sent.
#[tokio::test]
async fn count_tokens_counts_the_folded_request() {
    let harness =
        ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json(r#"{"input_tokens":7}"#)).await;
    let request = request_body(Format::Anthropic, &agent_messages(Format::Anthropic, 40));
    harness.post("/v1/messages", request.clone()).await;
    let got = harness.post("/v1/messages/count_tokens", request).await;
    assert_eq!(got.text(), r#"{"input_tokens":7}"#);
    let received = harness.received();
    assert!(received[0].body == received[1].body);
}

/// Two concurrent requests of one session, and the next ones.
#[tokio::test]
async fn concurrent_requests_of_one_session_are_independent() {
    let harness =
        std::sync::Arc::new(ProxyHarness::start(small_window_settings(), None, |_| UpstreamReply::json("{}")).await);
    let whole = agent_messages(Format::OpenAiChat, 41);
    for end in [81, 83] {
        let request = request_body(Format::OpenAiChat, &whole[..end]);
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let (harness, request) = (harness.clone(), request.clone());
                tokio::spawn(async move { harness.post("/v1/chat/completions", request).await.status })
            })
            .collect();
        for task in tasks {
            assert_eq!(task.await.unwrap(), 200);
        }
    }
    let received = harness.received();
    assert!(received[0].body == received[1].body && received[2].body == received[3].body);
}
