//! Asks a server for its real window.
//!
//! Servers tell it in many places. Each is asked once for a model, once more when a reported count is suspicious, and again
//! when the answer is old; with the client's own credentials and nobody else's. What it says beats the table of models. A server on a plain connection is a local
//! one, whose window is whatever it was started with: the first request waits a moment for its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline::Tokens;
use http_body_util::{BodyExt, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use hyper::http::uri::Scheme;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::proxy::downstream::headers;
use crate::proxy::downstream::listener::AppState;
use crate::proxy::downstream::route::UpstreamKind;
use crate::proxy::fold::job::PreparedRequest;
use crate::proxy::settings::{ProxyMode, UpstreamUrl};
use crate::proxy::upstream::client::{UpstreamClient, UpstreamRequest};
use crate::proxy::upstream::models::UpstreamModel;

/// How long the first request to a local server waits for its window.
const LOCAL_PROBE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// How long a server may take for one answer.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// A list of models is not longer than this.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// Windows outside of this are mistakes.
const PLAUSIBLE_WINDOW_TOKENS: std::ops::RangeInclusive<Tokens> = 512..=20_000_000;

impl AppState {
    /// Asks for the window of a model that is seen for the first time. Says whether a request must be
    /// folded again because of the answer.
    pub(crate) async fn probe_window(
        &self,
        side: UpstreamKind,
        folded: Option<&PreparedRequest>,
        headers: &HeaderMap,
    ) -> bool {
        let Some(folded) = folded.filter(|folded| self.settings.mode == ProxyMode::Fold && folded.model.claim_probe())
        else {
            return false;
        };
        let upstream = self.upstream(side).clone();
        let is_local = upstream.scheme == Scheme::HTTP;
        let asking = WindowProbe {
            client: self.client.clone(),
            headers: probe_headers(headers),
            model: folded.model_name.clone(),
            upstream,
        };
        let model = folded.model.clone();
        let asked = tokio::spawn(async move { asking.update_model(&model).await });
        if is_local {
            let _ = tokio::time::timeout(LOCAL_PROBE_TIMEOUT, asked).await;
        }
        folded.model.budget(folded.max_output) < folded.budget
    }
}

/// The headers of a question of ours: the client's, without those that are about its own request.
fn probe_headers(headers: &HeaderMap) -> HeaderMap {
    let mut own = headers.clone();
    headers::prepare_buffered_for_upstream(&mut own, headers::BodyForm::Decoded);
    own.remove(CONTENT_TYPE);
    own.insert(USER_AGENT, HeaderValue::from_static(concat!("foldline/", env!("CARGO_PKG_VERSION"))));
    own
}

/// Questions about a model.
pub(crate) struct WindowProbe {
    pub(crate) client: UpstreamClient,
    pub(crate) upstream: UpstreamUrl,
    pub(crate) headers: HeaderMap,
    pub(crate) model: String,
}

impl WindowProbe {
    async fn update_model(&self, model: &Arc<UpstreamModel>) {
        if let Some(window) = self.query_window().await.filter(|window| PLAUSIBLE_WINDOW_TOKENS.contains(window)) {
            tracing::info!(model = self.model, window, "learned a window: the server reported it");
            model.set_reported_window(window);
        }
    }

    /// What the server says, asked in the order in which an answer can be trusted: what is loaded, then
    /// what is listed.
    pub(crate) async fn query_window(&self) -> Option<Tokens> {
        if self.upstream.scheme == Scheme::HTTP {
            if let Some(loaded) = self.get_json("/api/ps").await.and_then(|it| ollama_loaded_window(&it, &self.model)) {
                return Some(loaded);
            }
            if let Some(slot) = self.get_json("/props").await.and_then(|it| llama_cpp_window(&it)) {
                return Some(slot);
            }
            let shown = self.request_json(Method::POST, "/api/show", json!({ "model": self.model }).to_string()).await;
            if let Some(set) = shown.and_then(|it| ollama_num_ctx(&it)) {
                return Some(set);
            }
        }
        self.get_json("/v1/models").await.and_then(|it| listed_window(&it, &self.model))
    }

    async fn get_json(&self, path: &str) -> Option<Value> {
        self.request_json(Method::GET, path, String::new()).await
    }

    async fn request_json(&self, method: Method, path: &str, body: String) -> Option<Value> {
        let uri = match path.starts_with("/v1/") {
            true => self.upstream.uri(path),
            false => self.upstream.server_uri(path),
        };
        let request =
            UpstreamRequest { method, uri: uri.ok()?, headers: self.headers.clone(), body: Bytes::from(body) };
        let answered = tokio::time::timeout(PROBE_TIMEOUT, self.client.send(&request)).await.ok()?.ok()?;
        if answered.status() != StatusCode::OK {
            return None;
        }
        let body =
            tokio::time::timeout(PROBE_TIMEOUT, Limited::new(answered.into_body(), MAX_RESPONSE_BYTES).collect())
                .await
                .ok()?
                .ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    }
}

/// The window of a model that Ollama has loaded.
fn ollama_loaded_window(loaded: &Value, model: &str) -> Option<Tokens> {
    let of_model = |it: &&Value| [&it["name"], &it["model"]].iter().any(|name| matches_ollama_name(name, model));
    loaded["models"].as_array()?.iter().find(of_model)?["context_length"].as_u64()
}

/// Ollama adds `:latest` to a name without a tag.
fn matches_ollama_name(name: &Value, model: &str) -> bool {
    name.as_str().is_some_and(|name| name == model || name.strip_suffix(":latest") == Some(model))
}

/// The window that a model of Ollama is set to. Without a setting it is what the server chooses, which
/// only shows once the model is loaded.
fn ollama_num_ctx(shown: &Value) -> Option<Tokens> {
    let lines = shown["parameters"].as_str()?.lines();
    lines.filter_map(|line| line.trim().strip_prefix("num_ctx")).find_map(|value| value.trim().parse().ok())
}

/// The window of one slot of llama.cpp's server.
fn llama_cpp_window(props: &Value) -> Option<Tokens> {
    props["default_generation_settings"]["n_ctx"].as_u64()
}

/// The window in a list of models, under the names that servers give it.
fn listed_window(listing: &Value, model: &str) -> Option<Tokens> {
    const WINDOW_POINTERS: [&str; 8] = [
        "/max_model_len",
        "/loaded_context_length",
        "/meta/n_ctx",
        "/top_provider/context_length",
        "/context_length",
        "/context_window",
        "/max_context_length",
        "/max_input_tokens",
    ];
    let list = listing["data"].as_array()?;
    let entry = list.iter().find(|it| it["id"] == model).or_else(|| list.first().filter(|_| list.len() == 1))?;
    WINDOW_POINTERS.iter().find_map(|name| entry.pointer(name).and_then(Value::as_u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_parsed_from_server_responses() {
        let vllm = json!({ "data": [{ "id": "a", "max_model_len": 1 }, { "id": "qwen", "max_model_len": 32_768 }] });
        assert_eq!(listed_window(&vllm, "qwen"), Some(32_768));
        assert_eq!(listed_window(&vllm, "other"), None);
        let alone = json!({ "data": [{ "id": "/models/x.gguf", "meta": { "n_ctx": 8_192, "n_ctx_train": 131_072 } }] });
        assert_eq!(listed_window(&alone, "whatever"), Some(8_192), "a server with one model answers with it");
        let props = json!({ "default_generation_settings": { "n_ctx": 4_096 }, "total_slots": 4 });
        assert_eq!(llama_cpp_window(&props), Some(4_096));
        let ps = json!({ "models": [{ "name": "llama3:latest", "context_length": 4_096 }] });
        assert_eq!((ollama_loaded_window(&ps, "llama3"), ollama_loaded_window(&ps, "qwen")), (Some(4_096), None));
        let shown = json!({ "parameters": "stop \"x\"\nnum_ctx                        16384", "model_info": { "llama.context_length": 131_072 } });
        assert_eq!(ollama_num_ctx(&shown), Some(16_384));
        let anthropic = json!({ "data": [{ "id": "claude-opus-4-6", "max_input_tokens": 200_000 }] });
        assert_eq!(listed_window(&anthropic, "claude-opus-4-6"), Some(200_000));
    }
}
