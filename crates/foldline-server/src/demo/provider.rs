//! The scripted provider, which plays the model by its script.
//!
//! It is as strict as a real one: it counts every prompt with the model's own vocabulary, refuses prompts longer than its
//! window, checks every request against the laws of its format, and caches prompts as a provider does. It reports only
//! what it measured, and knows nothing about the proxy except for one tool that a request may offer.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use foldline::engine::marker;
use foldline::laws::LawProfile;
use foldline::tokens::Tokens;
use foldline::wire::{Format, Request as Wire};
use foldline::{Conversation, Meter, laws};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::demo::constants::{DEMO_MODEL, MAX_OUTPUT_TOKENS};
use crate::demo::script::{ScriptStep, StepAction, script_steps};

/// Granularity of the prompt cache.
const CACHE_BLOCK_TOKENS: Tokens = 128;
/// Id of the call with which the model unfolds.
const UNFOLD_CALL_ID: &str = "call_unfold";

/// A provider that listens on loopback.
pub(crate) struct ScriptedProvider {
    pub(crate) address: SocketAddr,
    model: Arc<ScriptedModel>,
    _listener: AbortOnDrop,
}

/// Aborts a task on drop.
pub(crate) struct AbortOnDrop(pub(crate) tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A prompt as received, and its response.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedPrompt {
    pub(crate) tokens: Tokens,
    /// Tokens that were read from the cache.
    pub(crate) cached_tokens: Tokens,
    pub(crate) output_tokens: Tokens,
    /// True if it starts with the whole previous prompt.
    pub(crate) extends_previous: bool,
    /// Violated laws.
    pub(crate) violations: Vec<String>,
    pub(crate) unfold: Option<UnfoldOutcome>,
    pub(crate) body: Bytes,
}

/// A request to unfold, and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnfoldOutcome {
    pub(crate) handle: String,
    /// Size of the result; none until it is received.
    pub(crate) bytes: Option<usize>,
    /// True if the result equals the text that the model had received before.
    pub(crate) is_exact: bool,
}

struct ScriptedModel {
    meter: Meter,
    window: Option<Tokens>,
    steps: Vec<ScriptStep>,
    state: Mutex<ModelState>,
}

#[derive(Default)]
struct ModelState {
    next_step: usize,
    /// Tool results as first received, indexed by the step that called.
    first_results: Vec<Option<String>>,
    /// Messages of the previous prompt, each with the tokens up to its end.
    previous_messages: Vec<(String, Tokens)>,
    prompts: Vec<ReceivedPrompt>,
}

/// A response of the model.
struct ModelReply {
    text: String,
    call: Option<(String, &'static str, String)>,
}

impl ScriptedProvider {
    /// Listens on a free port; without a window it accepts prompts of any length.
    pub(crate) async fn start(meter: Meter, window: Option<Tokens>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let model = Arc::new(ScriptedModel { meter, window, steps: script_steps(), state: Mutex::default() });
        let server_model = model.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let model = server_model.clone();
                let service = service_fn(move |request| handle_request(model.clone(), request));
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Ok(Self { address, model, _listener: AbortOnDrop(task) })
    }

    /// Removes and returns the prompts received since the last call.
    pub(crate) fn take_prompts(&self) -> Vec<ReceivedPrompt> {
        std::mem::take(&mut self.model.lock_state().prompts)
    }
}

async fn handle_request(model: Arc<ScriptedModel>, request: Request<Incoming>) -> Result<Response, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let (status, kind, text) = match path.as_str() {
        "/v1/chat/completions" => model.complete(body),
        "/v1/models" => {
            let window = model.window.unwrap_or(Tokens::MAX);
            (
                StatusCode::OK,
                "application/json",
                json!({ "data": [{ "id": DEMO_MODEL, "max_model_len": window }] }).to_string(),
            )
        }
        _ => (StatusCode::NOT_FOUND, "application/json", "{}".to_owned()),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    Ok(response)
}

impl ScriptedModel {
    fn lock_state(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, body: Bytes) -> (StatusCode, &'static str, String) {
        let refuse = |code: &str, message: String| {
            let error = json!({ "error": { "message": message, "type": "invalid_request_error", "code": code } });
            (StatusCode::BAD_REQUEST, "application/json", error.to_string())
        };
        let request = match Wire::parse(Format::OpenAiChat, &body) {
            Ok(request) => request,
            Err(error) => return refuse("invalid_json", error.to_string()),
        };
        let conversation = request.conversation();
        let tokens = self.meter.conversation(conversation);
        if let Some(window) = self.window.filter(|window| tokens + MAX_OUTPUT_TOKENS > *window) {
            return refuse(
                "context_length_exceeded",
                format!(
                    "This model's maximum context length is {window} tokens. However, you requested {} tokens \
                     ({tokens} in the messages, {MAX_OUTPUT_TOKENS} in the completion).",
                    tokens + MAX_OUTPUT_TOKENS
                ),
            );
        }
        let mut state = self.lock_state();
        let mut prompt = state.record_prompt(&request, &self.meter);
        prompt.violations =
            laws::check(&request, &LawProfile::for_request(&request)).iter().map(ToString::to_string).collect();
        prompt.tokens = tokens;
        let reply = state.next_reply(&self.steps, conversation, &mut prompt);
        let call_tokens =
            reply.call.as_ref().map_or(0, |(_, name, arguments)| self.meter.text(name) + self.meter.text(arguments));
        prompt.output_tokens = self.meter.text(&reply.text) + call_tokens;
        let stream = reply.to_sse(&prompt);
        prompt.body = body;
        state.prompts.push(prompt);
        (StatusCode::OK, "text/event-stream", stream)
    }
}

impl ModelState {
    /// Compares a prompt with the cache, and stores new tool results.
    fn record_prompt(&mut self, request: &Wire<'_>, meter: &Meter) -> ReceivedPrompt {
        let conversation = request.conversation();
        let mut end = meter.tools(&conversation.tools) + meter.request_overhead();
        let mut messages = Vec::new();
        for (index, message) in conversation.messages.iter().enumerate() {
            end += meter.message(message);
            messages.push((request.raw_message(index).unwrap_or_default().to_owned(), end));
        }
        let pairs = self.previous_messages.iter().zip(&messages);
        let common = pairs.take_while(|((previous, _), (current, _))| previous == current).count();
        let common_tokens = common.checked_sub(1).map_or(0, |last| messages[last].1);
        let extends_previous = common == self.previous_messages.len();
        for result in conversation.messages.iter().flat_map(|message| message.results()) {
            let Some(step) = result.call_id.strip_prefix("call_").and_then(|number| number.parse::<usize>().ok())
            else {
                continue;
            };
            self.first_results.resize(self.first_results.len().max(step + 1), None);
            self.first_results[step].get_or_insert_with(|| result.texts().collect());
        }
        self.previous_messages = messages;
        let cached_tokens =
            if common_tokens < 1_024 { 0 } else { common_tokens / CACHE_BLOCK_TOKENS * CACHE_BLOCK_TOKENS };
        ReceivedPrompt { cached_tokens, extends_previous, ..ReceivedPrompt::default() }
    }

    /// Returns the next reply of the script. Unfolds text that is no longer in the prompt.
    fn next_reply(
        &mut self,
        steps: &[ScriptStep],
        conversation: &Conversation<'_>,
        prompt: &mut ReceivedPrompt,
    ) -> ModelReply {
        let at = self.next_step.min(steps.len() - 1);
        let step = &steps[at];
        let call = |tool, arguments: Value| Some((format!("call_{at}"), tool, arguments.to_string()));
        let (text, call) = match &step.action {
            StepAction::Finish => (step.text.clone(), None),
            StepAction::Call { tool, arguments } => (step.text.clone(), call(*tool, arguments.clone())),
            StepAction::Restore { path, read_at } => {
                let first_result = self.first_results.get(*read_at).cloned().flatten().unwrap_or_default();
                let unfolded = tool_result(conversation, UNFOLD_CALL_ID);
                let current = tool_result(conversation, &format!("call_{read_at}")).unwrap_or_default();
                // As a model would find it: in the marker at the place of the tool result.
                let handle = marker::handles(&current).next().map(|handle| handle.to_string());
                let unchanged = Some(current).filter(|text| *text == first_result);
                match (unfolded, unchanged, handle) {
                    (Some(text), _, handle) => {
                        let (handle, is_exact) = (handle.unwrap_or_default(), text == first_result);
                        prompt.unfold = Some(UnfoldOutcome { handle, bytes: Some(text.len()), is_exact });
                        (String::new(), call("write_file", json!({ "path": path, "content": text })))
                    }
                    (None, None, Some(handle)) => {
                        prompt.unfold = Some(UnfoldOutcome { handle: handle.clone(), bytes: None, is_exact: false });
                        let call = (UNFOLD_CALL_ID.to_owned(), "unfold", json!({ "handle": handle }).to_string());
                        return ModelReply { text: step.text.clone(), call: Some(call) };
                    }
                    (None, unchanged, _) => {
                        let text = unchanged.unwrap_or_default();
                        (step.text.clone(), call("write_file", json!({ "path": path, "content": text })))
                    }
                }
            }
        };
        self.next_step = at + 1;
        ModelReply { text, call }
    }
}

/// Returns the result of a call in the prompt.
fn tool_result(conversation: &Conversation<'_>, call: &str) -> Option<String> {
    let mut results = conversation.messages.iter().flat_map(|message| message.results());
    results.find(|result| result.call_id == call).map(|result| result.texts().collect())
}

impl ModelReply {
    /// Formats the reply as a stream: text, call, finish reason, usage.
    fn to_sse(&self, prompt: &ReceivedPrompt) -> String {
        let chunk = |delta: Value, finish: Value| {
            let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
            json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "model": DEMO_MODEL, "choices": [choice] })
        };
        let mut events = vec![chunk(json!({ "role": "assistant", "content": "" }), Value::Null)];
        for word in self.text.split_inclusive(' ') {
            events.push(chunk(json!({ "content": word }), Value::Null));
        }
        if let Some((id, name, arguments)) = &self.call {
            let call = json!({ "index": 0, "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            events.push(chunk(json!({ "tool_calls": [call] }), Value::Null));
        }
        events.push(chunk(json!({}), json!(if self.call.is_some() { "tool_calls" } else { "stop" })));
        events.push(
            json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "model": DEMO_MODEL, "choices": [], "usage": {
            "prompt_tokens": prompt.tokens,
            "completion_tokens": prompt.output_tokens,
            "total_tokens": prompt.tokens + prompt.output_tokens,
            "prompt_tokens_details": { "cached_tokens": prompt.cached_tokens },
        } }),
        );
        events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>() + "data: [DONE]\n\n"
    }
}
