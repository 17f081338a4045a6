//! Queries a server for its real window.
//!
//! Servers report it at different paths. They are queried once per model, again after a suspicious count, and when the
//! report is old; always with the credentials of the client at hand. The report outranks the model table. A server
//! without TLS is a local one, whose window is whatever it was started with: the first request waits briefly for it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline::tokens::Tokens;
use foldline::wire::Format;
use http_body_util::{BodyExt, Limited};
use hyper::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue, USER_AGENT};
use hyper::http::uri::Scheme;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::settings::UpstreamUrl;
use crate::proxy::state::AppState;
use crate::proxy::upstream::aws::signer::AwsSigner;
use crate::proxy::upstream::client::{UpstreamClient, UpstreamRequest};
use crate::proxy::upstream::credentials::forwarded_credentials;
use crate::proxy::upstream::models::UpstreamModel;

/// Time that the first request to a local server waits for its window.
const LOCAL_PROBE_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Timeout of one query.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a list of models.
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// Windows outside this range are ignored.
const PLAUSIBLE_WINDOW_TOKENS: std::ops::RangeInclusive<Tokens> = 512..=20_000_000;

/// Queries the window of a model that is new or due for a query. Returns true if the request must be folded again
/// because of the result.
pub(crate) async fn probe_window(state: &AppState, prepared: Option<&PreparedRequest>, headers: &HeaderMap) -> bool {
    let Some(prepared) = prepared.filter(|prepared| prepared.job.is_folding() && prepared.model.claim_probe()) else {
        return false;
    };
    let upstream = prepared.job.upstream.url(&state.settings.upstreams).clone();
    let is_ollama = prepared.job.format == Format::Ollama;
    let is_local = upstream.scheme == Scheme::HTTP || is_ollama;
    let probe = WindowProbe {
        client: state.client.clone(),
        headers: probe_headers(headers),
        signer: prepared.job.upstream.auth(&state.settings.bedrock_auth).signer().cloned(),
        model: prepared.model_name.clone(),
        server: if is_ollama { ServerApi::Ollama } else { ServerApi::Unknown },
        requested: prepared.model.requested_window(),
        upstream,
    };
    let model = prepared.model.clone();
    let task = tokio::spawn(async move { probe.update_model(&model).await });
    if is_local {
        let _ = tokio::time::timeout(LOCAL_PROBE_TIMEOUT, task).await;
    }
    prepared.model.budget(prepared.max_output) < prepared.budget
}

/// Returns the headers of a query: the client's credentials, and nothing else of its request.
fn probe_headers(headers: &HeaderMap) -> HeaderMap {
    let mut probe: HeaderMap = forwarded_credentials(headers).into_iter().collect();
    probe.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    probe.insert(USER_AGENT, HeaderValue::from_static(concat!("foldline/", env!("CARGO_PKG_VERSION"))));
    probe
}

/// A query for the window of a model.
pub(crate) struct WindowProbe {
    pub(crate) client: UpstreamClient,
    pub(crate) upstream: UpstreamUrl,
    pub(crate) headers: HeaderMap,
    pub(crate) signer: Option<AwsSigner>,
    pub(crate) model: String,
    pub(crate) server: ServerApi,
    /// Window with which the server loads the model, if the request states it.
    pub(crate) requested: Option<Tokens>,
}

/// The API of a server, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerApi {
    /// Ollama's own API.
    Ollama,
    /// Any other.
    Unknown,
}

impl WindowProbe {
    async fn update_model(&self, model: &Arc<UpstreamModel>) {
        match self.query_window().await.filter(|window| PLAUSIBLE_WINDOW_TOKENS.contains(window)) {
            Some(window) => {
                tracing::info!(model = self.model, window, "learned a window: the server reported it");
                model.set_reported_window(window);
            }
            // Ollama knows the window of a model once it is loaded.
            None if self.server == ServerApi::Ollama => model.repeat_probe(),
            None => {}
        }
    }

    /// Returns the window that the server reports, from the most reliable source first: loaded models, then listed ones.
    pub(crate) async fn query_window(&self) -> Option<Tokens> {
        if self.server == ServerApi::Ollama {
            return self.query_ollama().await;
        }
        if self.upstream.scheme == Scheme::HTTP {
            if let Some(loaded) =
                self.get_json("/api/ps").await.and_then(|json| ollama_loaded_window(&json, &self.model))
            {
                return Some(loaded);
            }
            if let Some(slot) = self.get_json("/props").await.and_then(|json| llama_cpp_window(&json)) {
                return Some(slot);
            }
            let shown = self.request_json(Method::POST, "/api/show", json!({ "model": self.model }).to_string()).await;
            if let Some(set) = shown.and_then(|json| ollama_num_ctx(&json)) {
                return Some(set);
            }
        }
        self.get_json("/v1/models").await.and_then(|json| listed_window(&json, &self.model))
    }

    /// Returns the window of a model at Ollama: the one that the request states, up to the ceiling of the model; or else
    /// that of the loaded model, or the one in its file. Without any of these the server chooses one by its memory when
    /// it loads the model.
    async fn query_ollama(&self) -> Option<Tokens> {
        let show = || self.request_json(Method::POST, "/api/show", json!({ "model": self.model }).to_string());
        if let Some(requested) = self.requested {
            let ceiling = show().await.and_then(|shown| ollama_ceiling(&shown));
            return Some(requested.min(ceiling.unwrap_or(Tokens::MAX)));
        }
        let loaded = self.get_json("/api/ps").await.and_then(|json| ollama_loaded_window(&json, &self.model));
        match loaded {
            Some(loaded) => Some(loaded),
            None => show().await.and_then(|shown| ollama_num_ctx(&shown)),
        }
    }

    async fn get_json(&self, path: &str) -> Option<Value> {
        self.request_json(Method::GET, path, String::new()).await
    }

    async fn request_json(&self, method: Method, path: &str, body: String) -> Option<Value> {
        let uri = match path.starts_with("/v1/") {
            true => self.upstream.uri(path),
            false => self.upstream.server_uri(path),
        };
        let request = UpstreamRequest {
            method,
            uri: uri.ok()?,
            headers: self.headers.clone(),
            body: Bytes::from(body),
            signer: self.signer.clone(),
        };
        let response = tokio::time::timeout(PROBE_TIMEOUT, self.client.send(&request)).await.ok()?.ok()?;
        if response.status() != StatusCode::OK {
            return None;
        }
        let body =
            tokio::time::timeout(PROBE_TIMEOUT, Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect())
                .await
                .ok()?
                .ok()?;
        serde_json::from_slice(&body.to_bytes()).ok()
    }
}

/// Returns the window of a model that Ollama has loaded.
fn ollama_loaded_window(loaded: &Value, model: &str) -> Option<Tokens> {
    let is_model =
        |entry: &&Value| [&entry["name"], &entry["model"]].iter().any(|name| matches_ollama_name(name, model));
    loaded["models"].as_array()?.iter().find(is_model)?["context_length"].as_u64()
}

/// Returns true if an Ollama name is that of the model. Ollama adds `:latest` to a name without a tag.
fn matches_ollama_name(name: &Value, model: &str) -> bool {
    name.as_str().is_some_and(|name| name == model || name.strip_suffix(":latest") == Some(model))
}

/// Returns the configured window of an Ollama model. Without a setting the server chooses one, which is reported only
/// after the model is loaded.
fn ollama_num_ctx(shown: &Value) -> Option<Tokens> {
    let lines = shown["parameters"].as_str()?.lines();
    lines.filter_map(|line| line.trim().strip_prefix("num_ctx")).find_map(|value| value.trim().parse().ok())
}

/// Returns the longest window of an Ollama model: the length that it was trained with.
fn ollama_ceiling(shown: &Value) -> Option<Tokens> {
    let info = shown["model_info"].as_object()?;
    info.iter().find(|(key, _)| key.ends_with(".context_length"))?.1.as_u64()
}

/// Returns the window of one slot of llama.cpp's server.
fn llama_cpp_window(props: &Value) -> Option<Tokens> {
    props["default_generation_settings"]["n_ctx"].as_u64()
}

/// Returns the window from a list of models, under any of the keys that servers use.
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
    let entry = list.iter().find(|entry| entry["id"] == model).or_else(|| list.first().filter(|_| list.len() == 1))?;
    WINDOW_POINTERS.iter().find_map(|name| entry.pointer(name).and_then(Value::as_u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_carries_only_credentials() {
        let sent = [
            ("authorization", "Bearer k"),
            ("x-api-key", "k"),
            ("anthropic-version", "2023-06-01"),
            ("cookie", "session=1"),
            ("content-type", "application/json"),
            ("content-length", "9"),
            ("idempotency-key", "7"),
            ("x-foldline-token", "t"),
            ("user-agent", "agent/1"),
        ];
        let sent = sent.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let probe = probe_headers(&HeaderMap::from_iter(sent));
        let mut names: Vec<&str> = probe.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept-encoding", "anthropic-version", "authorization", "user-agent", "x-api-key"]);
        assert!(probe["user-agent"].to_str().unwrap().starts_with("foldline/"));
    }

    #[test]
    fn windows_are_parsed_from_server_responses() {
        let vllm = json!({ "data": [{ "id": "a", "max_model_len": 1 }, { "id": "qwen", "max_model_len": 32_768 }] });
        assert_eq!(listed_window(&vllm, "qwen"), Some(32_768));
        assert_eq!(listed_window(&vllm, "other"), None);
        let alone = json!({ "data": [{ "id": "/models/x.gguf", "meta": { "n_ctx": 8_192, "n_ctx_train": 131_072 } }] });
        assert_eq!(listed_window(&alone, "whatever"), Some(8_192), "a server with one model uses it for every name");
        let props = json!({ "default_generation_settings": { "n_ctx": 4_096 }, "total_slots": 4 });
        assert_eq!(llama_cpp_window(&props), Some(4_096));
        let ps = json!({ "models": [{ "name": "llama3:latest", "context_length": 4_096 }] });
        assert_eq!((ollama_loaded_window(&ps, "llama3"), ollama_loaded_window(&ps, "qwen")), (Some(4_096), None));
        let shown = json!({ "parameters": "stop \"x\"\nnum_ctx                        16384", "model_info": { "llama.context_length": 131_072 } });
        assert_eq!((ollama_num_ctx(&shown), ollama_ceiling(&shown)), (Some(16_384), Some(131_072)));
        let anthropic = json!({ "data": [{ "id": "claude-opus-4-6", "max_input_tokens": 200_000 }] });
        assert_eq!(listed_window(&anthropic, "claude-opus-4-6"), Some(200_000));
    }
}
