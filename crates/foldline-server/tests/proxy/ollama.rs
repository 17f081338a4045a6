//! Ollama's own API: an upstream that loads, truncates and counts as Ollama does.

use std::sync::{Arc, Mutex};

use foldline::wire::{Format, Request, Response};
use foldline::{Meter, ModelTable};
use foldline_server::proxy::ProxySettings;
use serde_json::{Value, json};

use crate::fold::{agent_messages, request_body};
use crate::support::{ProxyHarness, ReceivedRequest, UpstreamReply, settings};

const CHAT: &str = "/api/chat";
/// Window of a model for which neither the client nor the model's file states one.
const DEFAULT_WINDOW: u64 = 4_096;
/// Window with which the model was trained.
const TRAINED_WINDOW: u64 = 40_960;

/// What the server did.
#[derive(Debug, Default)]
struct ServerLog {
    /// The options with which the model is loaded: window, and whether the context shifts.
    loaded: Option<(u64, Option<bool>)>,
    /// Number of times that the model was loaded.
    loads: usize,
    /// Messages that were dropped, and prompts that were cut, because they did not fit.
    dropped_messages: usize,
    cut_prompts: usize,
    /// Number of prompts that were refused.
    refused: usize,
}

/// A server that imitates Ollama.
#[derive(Clone, Default)]
struct ScriptedOllama {
    log: Arc<Mutex<ServerLog>>,
    /// True if the server has no endpoint that reports windows.
    hides_window: bool,
}

impl ScriptedOllama {
    fn reply(&self, received: &ReceivedRequest) -> UpstreamReply {
        let mut log = self.log.lock().unwrap();
        match received.path.as_str() {
            CHAT => chat(&mut log, received),
            "/api/ps" | "/api/show" if self.hides_window => UpstreamReply::error(404, "{}"),
            "/api/ps" => {
                let loaded = log.loaded.map(|(window, _)| json!({ "name": "qwen3:8b", "context_length": window }));
                UpstreamReply::json(json!({ "models": loaded.into_iter().collect::<Vec<_>>() }).to_string())
            }
            "/api/show" => UpstreamReply::json(
                json!({ "parameters": "temperature 1", "model_info": { "qwen3.context_length": TRAINED_WINDOW } })
                    .to_string(),
            ),
            "/api/generate" => UpstreamReply::json(r#"{"response":"hi","done":true}"#),
            _ => UpstreamReply::error(404, r#"{"error":"not found"}"#),
        }
    }
}

fn tokens(body: &Value) -> u64 {
    let text = body.to_string();
    let request = Request::parse(Format::Ollama, text.as_bytes()).unwrap();
    Meter::for_model(ModelTable::builtin(), Some("qwen3:8b")).conversation(request.conversation())
}

/// Loads the model with the options of the request, drops the oldest messages until the prompt fits, and answers.
fn chat(log: &mut ServerLog, received: &ReceivedRequest) -> UpstreamReply {
    let mut body: Value = serde_json::from_slice(&received.body).unwrap();
    let window = body["options"]["num_ctx"].as_u64().unwrap_or(DEFAULT_WINDOW).min(TRAINED_WINDOW);
    let options = (window, body["shift"].as_bool());
    if log.loaded.replace(options) != Some(options) {
        log.loads += 1;
    }
    let mut count = tokens(&body);
    if body["truncate"].as_bool() == Some(false) && count > window {
        log.refused += 1;
        let error =
            format!("request ({count} tokens) exceeds the available context size ({window} tokens), try increasing it");
        return UpstreamReply::error(400, json!({ "error": error }).to_string());
    }
    while count > window {
        let messages = body["messages"].as_array_mut().unwrap();
        let oldest = messages.iter().position(|message| message["role"] != "system").unwrap();
        if oldest + 1 == messages.len() {
            log.cut_prompts += 1;
            count = window - (window - 4) / 2;
            break;
        }
        messages.remove(oldest);
        log.dropped_messages += 1;
        count = tokens(&body);
    }
    let message = json!({ "role": "assistant", "content": "Reading on." });
    let end = json!({ "model": "qwen3:8b", "message": message, "done": true, "done_reason": "stop", "prompt_eval_count": count, "eval_count": 3 });
    if body["stream"] == false {
        return UpstreamReply::json(end.to_string());
    }
    let first = json!({ "model": "qwen3:8b", "message": message, "done": false });
    let last = json!({ "model": "qwen3:8b", "message": { "role": "assistant", "content": "" }, "done": true, "done_reason": "stop", "prompt_eval_count": count, "eval_count": 3 });
    UpstreamReply::Body(200, "application/x-ndjson", format!("{first}\n{last}\n"))
}

async fn start(server: &ScriptedOllama, settings: ProxySettings) -> ProxyHarness {
    let server = server.clone();
    ProxyHarness::start_answering_probes(settings, None, move |received| server.reply(received)).await
}

/// Returns the body of an agent with these fields.
fn body_with(turns: usize, fields: &Value) -> String {
    let mut body: Value =
        serde_json::from_str(&request_body(Format::Ollama, &agent_messages(Format::Ollama, turns))).unwrap();
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body.to_string()
}

fn field(received: &ReceivedRequest, key: &str) -> Option<String> {
    let text = std::str::from_utf8(&received.body).unwrap();
    Request::parse(Format::Ollama, text.as_bytes()).unwrap().field(key).map(str::to_owned)
}

/// Forty turns with the window that the client chooses: the server never drops a message, loads the model once, and all
/// requests have the client's options, byte for byte.
#[tokio::test]
async fn session_fits_the_window_that_the_client_chooses() {
    let server = ScriptedOllama::default();
    let harness = start(&server, settings()).await;
    let options = json!({ "options": { "num_ctx": 8_192, "seed": 7, "num_predict": 256 } });
    for turns in 0..40 {
        let got = harness.post(CHAT, body_with(turns, &options)).await;
        assert_eq!((got.status.as_u16(), got.header("content-type")), (200, Some("application/x-ndjson")));
        assert_eq!(got.text().lines().count(), 2, "{}", got.text());
    }
    let received = harness.received();
    assert!(received.iter().all(|it| field(it, "options") == field(&received[0], "options")));
    assert!(received.iter().all(|it| field(it, "shift").is_none() && field(it, "truncate").is_none()));
    assert!(received.last().unwrap().body.len() < body_with(39, &options).len() / 2, "it was folded");
    let log = server.log.lock().unwrap();
    assert_eq!((log.loads, log.dropped_messages, log.cut_prompts), (1, 0, 0));
}

/// The same window as the server's own: known once the model is loaded.
#[tokio::test]
async fn window_is_known_once_the_model_is_loaded() {
    let server = ScriptedOllama::default();
    let harness = start(&server, settings()).await;
    for turns in 0..12 {
        let got = harness.post(CHAT, body_with(turns, &json!({ "stream": false }))).await;
        assert_eq!(Response::parse(Format::Ollama, &got.body).unwrap().text(), "Reading on.");
    }
    let log = server.log.lock().unwrap();
    assert_eq!((log.loads, log.dropped_messages, log.cut_prompts), (1, 0, 0));
    let bytes: Vec<usize> = harness.received().iter().map(|received| received.body.len()).collect();
    assert!(*bytes.last().unwrap() < body_with(11, &json!({})).len() / 2, "{bytes:?}");
}

/// A requested window above the trained one is lowered by the server.
#[tokio::test]
async fn requested_window_is_limited_by_the_trained_one() {
    let server = ScriptedOllama::default();
    let harness = start(&server, settings()).await;
    for turns in [100, 101] {
        harness.post(CHAT, body_with(turns, &json!({ "options": { "num_ctx": 262_144 } }))).await;
    }
    let log = server.log.lock().unwrap();
    assert_eq!((log.loads, log.dropped_messages, log.cut_prompts), (1, 0, 0));
}

/// Another `num_ctx` or `shift` than in the request before would reload the model.
#[tokio::test]
async fn chosen_window_is_sent_with_every_request() {
    let server = ScriptedOllama::default();
    let harness = start(&server, ProxySettings { ollama_num_ctx: Some(8_192), ..settings() }).await;
    // Loading a model is a request without messages.
    harness.post(CHAT, r#"{"model":"qwen3:8b","messages":[]}"#).await;
    for turns in 0..30 {
        harness.post(CHAT, body_with(turns, &json!({}))).await;
    }
    for received in harness.received() {
        let options: Value = serde_json::from_str(&field(&received, "options").unwrap()).unwrap();
        assert_eq!(options["num_ctx"], 8_192);
        assert_eq!(
            [field(&received, "truncate"), field(&received, "shift")],
            [Some("false".into()), Some("false".into())]
        );
    }
    let log = server.log.lock().unwrap();
    assert_eq!((log.loads, log.dropped_messages, log.refused), (1, 0, 0));
}

/// A server that reports no window truncates a few prompts, then its counts reveal the window.
#[tokio::test]
async fn truncated_counts_reveal_the_window() {
    let server = ScriptedOllama { hides_window: true, ..ScriptedOllama::default() };
    let harness = start(&server, settings()).await;
    // One long message: the server cuts the prompt to half of its window, whatever its length.
    let long = |words: usize| {
        let messages = [json!({ "role": "user", "content": "word ".repeat(words) })];
        json!({ "model": "qwen3:8b", "messages": messages }).to_string()
    };
    for words in [12_000, 13_000, 14_000] {
        harness.post(CHAT, long(words)).await;
    }
    let health: Value = serde_json::from_slice(&harness.get("/foldline/healthz").await.body).unwrap();
    assert_eq!(health["learned_windows"][0]["tokens"], DEFAULT_WINDOW, "{health}");
    assert_eq!(server.log.lock().unwrap().cut_prompts, 3, "one message cannot be folded");
}

#[tokio::test]
async fn generate_and_other_paths_are_forwarded_unmodified() {
    let server = ScriptedOllama::default();
    let harness = start(&server, ProxySettings { ollama_num_ctx: Some(8_192), ..settings() }).await;
    let prompt = json!({ "model": "qwen3:8b", "prompt": "word ".repeat(20_000) }).to_string();
    let got = harness.post("/api/generate", prompt.clone()).await;
    assert_eq!((got.status.as_u16(), got.text()), (200, r#"{"response":"hi","done":true}"#));
    assert_eq!(harness.only_request().body, prompt);
    assert_eq!(harness.get("/api/tags").await.status.as_u16(), 404);
}

/// A line with an error after output was sent is the client's to see.
#[tokio::test]
async fn error_line_reaches_the_client_unmodified() {
    let lines = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"a\"},\"done\":false}\n{\"error\":\"llama runner process has terminated\"}\n";
    let harness = ProxyHarness::start(settings(), None, move |_| {
        UpstreamReply::Body(200, "application/x-ndjson", lines.to_owned())
    })
    .await;
    assert_eq!(harness.post(CHAT, body_with(1, &json!({}))).await.text(), lines);
}
