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

use super::headers;
use super::models::Model;
use super::route::Side;
use super::server::Shared;
use super::settings::{Mode, Upstream};
use super::turn::Folded;
use super::upstream::{Outbound, Providers};

/// How long the first request to a local server waits for its window.
const A_MOMENT: Duration = Duration::from_millis(1_500);
/// How long a server may take for one answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// A list of models is not longer than this.
const LONGEST: usize = 8 << 20;
/// Windows outside of this are mistakes.
const PLAUSIBLE: std::ops::RangeInclusive<Tokens> = 512..=20_000_000;

impl Shared {
    /// Asks for the window of a model that is seen for the first time. Says whether a request must be
    /// folded again because of the answer.
    pub(crate) async fn discover(&self, side: Side, folded: Option<&Folded>, headers: &HeaderMap) -> bool {
        let Some(folded) = folded.filter(|folded| self.settings.mode == Mode::Fold && folded.model.is_to_be_asked())
        else {
            return false;
        };
        let upstream = self.upstream(side).clone();
        let is_local = upstream.scheme == Scheme::HTTP;
        let asking = Asking {
            providers: self.providers.clone(),
            headers: credentials(headers),
            model: folded.model_name.clone(),
            upstream,
        };
        let model = folded.model.clone();
        let asked = tokio::spawn(async move { asking.learn(&model).await });
        if is_local {
            let _ = tokio::time::timeout(A_MOMENT, asked).await;
        }
        folded.model.budget(folded.max_output) < folded.budget
    }
}

/// The headers of a question of ours: the client's, without those that are about its own request.
fn credentials(headers: &HeaderMap) -> HeaderMap {
    let mut own = headers.clone();
    headers::to_provider_read(&mut own, headers::Sent::Decoded);
    own.remove(CONTENT_TYPE);
    own.insert(USER_AGENT, HeaderValue::from_static(concat!("foldline/", env!("CARGO_PKG_VERSION"))));
    own
}

/// Questions about a model.
pub(crate) struct Asking {
    pub(crate) providers: Providers,
    pub(crate) upstream: Upstream,
    pub(crate) headers: HeaderMap,
    pub(crate) model: String,
}

impl Asking {
    async fn learn(&self, model: &Arc<Model>) {
        if let Some(window) = self.window().await.filter(|window| PLAUSIBLE.contains(window)) {
            tracing::info!(model = self.model, window, "learned a window: the server reported it");
            model.reported(window);
        }
    }

    /// What the server says, asked in the order in which an answer can be trusted: what is loaded, then
    /// what is listed.
    pub(crate) async fn window(&self) -> Option<Tokens> {
        if self.upstream.scheme == Scheme::HTTP {
            if let Some(loaded) = self.get("/api/ps").await.and_then(|it| of_ollama(&it, &self.model)) {
                return Some(loaded);
            }
            if let Some(slot) = self.get("/props").await.and_then(|it| of_llama_cpp(&it)) {
                return Some(slot);
            }
            let shown = self.ask(Method::POST, "/api/show", json!({ "model": self.model }).to_string()).await;
            if let Some(set) = shown.and_then(|it| of_ollama_settings(&it)) {
                return Some(set);
            }
        }
        self.get("/v1/models").await.and_then(|it| of_listing(&it, &self.model))
    }

    async fn get(&self, path: &str) -> Option<Value> {
        self.ask(Method::GET, path, String::new()).await
    }

    async fn ask(&self, method: Method, path: &str, body: String) -> Option<Value> {
        let uri = match path.starts_with("/v1/") {
            true => self.upstream.uri(path),
            false => self.upstream.root(path),
        };
        let request = Outbound { method, uri: uri.ok()?, headers: self.headers.clone(), body: Bytes::from(body) };
        let answered = tokio::time::timeout(PATIENCE, self.providers.send(&request)).await.ok()?.ok()?;
        if answered.status() != StatusCode::OK {
            return None;
        }
        let body =
            tokio::time::timeout(PATIENCE, Limited::new(answered.into_body(), LONGEST).collect()).await.ok()?.ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    }
}

/// The window of a model that Ollama has loaded.
fn of_ollama(loaded: &Value, model: &str) -> Option<Tokens> {
    let of_model = |it: &&Value| [&it["name"], &it["model"]].iter().any(|name| is_tagged(name, model));
    loaded["models"].as_array()?.iter().find(of_model)?["context_length"].as_u64()
}

/// Ollama adds `:latest` to a name without a tag.
fn is_tagged(name: &Value, model: &str) -> bool {
    name.as_str().is_some_and(|name| name == model || name.strip_suffix(":latest") == Some(model))
}

/// The window that a model of Ollama is set to. Without a setting it is what the server chooses, which
/// only shows once the model is loaded.
fn of_ollama_settings(shown: &Value) -> Option<Tokens> {
    let lines = shown["parameters"].as_str()?.lines();
    lines.filter_map(|line| line.trim().strip_prefix("num_ctx")).find_map(|value| value.trim().parse().ok())
}

/// The window of one slot of llama.cpp's server.
fn of_llama_cpp(props: &Value) -> Option<Tokens> {
    props["default_generation_settings"]["n_ctx"].as_u64()
}

/// The window in a list of models, under the names that servers give it.
fn of_listing(listing: &Value, model: &str) -> Option<Tokens> {
    const NAMES: [&str; 8] = [
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
    NAMES.iter().find_map(|name| entry.pointer(name).and_then(Value::as_u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_found_where_servers_put_them() {
        let vllm = json!({ "data": [{ "id": "a", "max_model_len": 1 }, { "id": "qwen", "max_model_len": 32_768 }] });
        assert_eq!(of_listing(&vllm, "qwen"), Some(32_768));
        assert_eq!(of_listing(&vllm, "other"), None);
        let alone = json!({ "data": [{ "id": "/models/x.gguf", "meta": { "n_ctx": 8_192, "n_ctx_train": 131_072 } }] });
        assert_eq!(of_listing(&alone, "whatever"), Some(8_192), "a server with one model answers with it");
        let props = json!({ "default_generation_settings": { "n_ctx": 4_096 }, "total_slots": 4 });
        assert_eq!(of_llama_cpp(&props), Some(4_096));
        let ps = json!({ "models": [{ "name": "llama3:latest", "context_length": 4_096 }] });
        assert_eq!((of_ollama(&ps, "llama3"), of_ollama(&ps, "qwen")), (Some(4_096), None));
        let shown = json!({ "parameters": "stop \"x\"\nnum_ctx                        16384", "model_info": { "llama.context_length": 131_072 } });
        assert_eq!(of_ollama_settings(&shown), Some(16_384));
        let anthropic = json!({ "data": [{ "id": "claude-opus-4-6", "max_input_tokens": 200_000 }] });
        assert_eq!(of_listing(&anthropic, "claude-opus-4-6"), Some(200_000));
    }
}
