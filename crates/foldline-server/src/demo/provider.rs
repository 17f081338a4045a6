//! The model's side: a provider that plays the model by its script.
//!
//! It is as strict as a real one: it counts every prompt by the model's own vocabulary, refuses what is
//! longer than its window, holds every request to the laws of its format, and remembers prompts the way
//! a prompt cache does. What it reports is what it measured; nothing here knows that a proxy exists, but
//! for one tool that a request may offer.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use foldline::laws;
use foldline::laws::LawProfile;
use foldline::marker;
use foldline::wire::{Format, Request as Wire};
use foldline::{Conversation, Meter, Tokens};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::demo::script::{ScriptStep, StepAction, script_steps};
use crate::demo::{DEMO_MODEL, MAX_OUTPUT_TOKENS};

/// Prompt caches know prefixes in steps of so many tokens.
const CACHE_BLOCK_TOKENS: Tokens = 128;
/// The call by which the model asks for what was folded.
const UNFOLD_CALL_ID: &str = "call_unfold";

/// A provider that listens.
pub(crate) struct ScriptedProvider {
    pub(crate) address: SocketAddr,
    model: Arc<ScriptedModel>,
    _listener: AbortOnDrop,
}

/// Ends a task with the one who started it.
pub(crate) struct AbortOnDrop(pub(crate) tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A prompt as it arrived and was answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReceivedPrompt {
    pub(crate) tokens: Tokens,
    /// How many of them the cache knew.
    pub(crate) cached_tokens: Tokens,
    pub(crate) output_tokens: Tokens,
    /// It began with all of the prompt before it.
    pub(crate) extends_previous: bool,
    /// Laws that it broke.
    pub(crate) violations: Vec<String>,
    pub(crate) unfold: Option<UnfoldOutcome>,
    pub(crate) body: Bytes,
}

/// What the model asked for, and got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnfoldOutcome {
    pub(crate) handle: String,
    /// Of the answer; none as long as there is none.
    pub(crate) bytes: Option<usize>,
    /// The answer is what the model had seen before.
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
    /// Results of tools as they were when the model first saw them, by the step that called.
    first_results: Vec<Option<String>>,
    /// The messages of the last prompt, and how many tokens stand up to the end of each.
    previous_messages: Vec<(String, Tokens)>,
    prompts: Vec<ReceivedPrompt>,
}

/// What the model answers.
struct ModelReply {
    text: String,
    call: Option<(String, &'static str, String)>,
}

impl ScriptedProvider {
    /// Listens on a free port; without a window it takes prompts of any length.
    pub(crate) async fn start(meter: Meter, window: Option<Tokens>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let model = Arc::new(ScriptedModel { meter, window, steps: script_steps(), state: Mutex::default() });
        let serving = model.clone();
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let model = serving.clone();
                let service = service_fn(move |request| handle_request(model.clone(), request));
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Ok(Self { address, model, _listener: AbortOnDrop(listening) })
    }

    /// The prompts since the last time that somebody asked.
    pub(crate) fn take_prompts(&self) -> Vec<ReceivedPrompt> {
        std::mem::take(&mut self.model.lock_state().prompts)
    }
}

async fn handle_request(model: Arc<ScriptedModel>, request: Request<Incoming>) -> Result<Response, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|it| it.to_bytes()).unwrap_or_default();
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
        let refuse = |code: &str, why: String| {
            let error = json!({ "error": { "message": why, "type": "invalid_request_error", "code": code } });
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
        let mut mind = self.lock_state();
        let mut arrival = mind.record_prompt(&request, &self.meter);
        arrival.violations =
            laws::check(&request, &LawProfile::for_request(&request)).iter().map(ToString::to_string).collect();
        arrival.tokens = tokens;
        let answer = mind.next_reply(&self.steps, conversation, &mut arrival);
        let called =
            answer.call.as_ref().map_or(0, |(_, name, arguments)| self.meter.text(name) + self.meter.text(arguments));
        arrival.output_tokens = self.meter.text(&answer.text) + called;
        let stream = answer.to_sse(&arrival);
        arrival.body = body;
        mind.prompts.push(arrival);
        (StatusCode::OK, "text/event-stream", stream)
    }
}

impl ModelState {
    /// Looks at a prompt as a cache does, and at results that are new.
    fn record_prompt(&mut self, request: &Wire<'_>, meter: &Meter) -> ReceivedPrompt {
        let conversation = request.conversation();
        let mut at = meter.tools(&conversation.tools) + meter.request_overhead();
        let mut now = Vec::new();
        for (index, message) in conversation.messages.iter().enumerate() {
            at += meter.message(message);
            now.push((request.raw_message(index).unwrap_or_default().to_owned(), at));
        }
        let common =
            self.previous_messages.iter().zip(&now).take_while(|((before, _), (now, _))| before == now).count();
        let known = common.checked_sub(1).map_or(0, |last| now[last].1);
        let stable = common == self.previous_messages.len();
        for result in conversation.messages.iter().flat_map(|message| message.results()) {
            let Some(step) = result.call_id.strip_prefix("call_").and_then(|it| it.parse::<usize>().ok()) else {
                continue;
            };
            self.first_results.resize(self.first_results.len().max(step + 1), None);
            self.first_results[step].get_or_insert_with(|| result.texts().collect());
        }
        self.previous_messages = now;
        let cached = if known < 1_024 { 0 } else { known / CACHE_BLOCK_TOKENS * CACHE_BLOCK_TOKENS };
        ReceivedPrompt { cached_tokens: cached, extends_previous: stable, ..ReceivedPrompt::default() }
    }

    /// The next turn of the script. What it can not see any more it asks for.
    fn next_reply(
        &mut self,
        steps: &[ScriptStep],
        conversation: &Conversation<'_>,
        arrival: &mut ReceivedPrompt,
    ) -> ModelReply {
        let at = self.next_step.min(steps.len() - 1);
        let step = &steps[at];
        let call = |tool, arguments: Value| Some((format!("call_{at}"), tool, arguments.to_string()));
        let (says, call) = match &step.action {
            StepAction::Finish => (step.text.clone(), None),
            StepAction::Call { tool, arguments } => (step.text.clone(), call(*tool, arguments.clone())),
            StepAction::Restore { path, read_at } => {
                let was = self.first_results.get(*read_at).cloned().flatten().unwrap_or_default();
                let answered = tool_result(conversation, UNFOLD_CALL_ID);
                let stands = tool_result(conversation, &format!("call_{read_at}")).unwrap_or_default();
                // As a model would find it: in the marker where the answer to its own call stood.
                let handle = marker::handles(&stands).next().map(|handle| handle.to_string());
                let there = Some(stands).filter(|text| *text == was);
                match (answered, there, handle) {
                    (Some(text), _, handle) => {
                        let (handle, same) = (handle.unwrap_or_default(), text == was);
                        arrival.unfold = Some(UnfoldOutcome { handle, bytes: Some(text.len()), is_exact: same });
                        (String::new(), call("write_file", json!({ "path": path, "content": text })))
                    }
                    (None, None, Some(handle)) => {
                        arrival.unfold = Some(UnfoldOutcome { handle: handle.clone(), bytes: None, is_exact: false });
                        let asking = (UNFOLD_CALL_ID.to_owned(), "unfold", json!({ "handle": handle }).to_string());
                        return ModelReply { text: step.text.clone(), call: Some(asking) };
                    }
                    (None, there, _) => {
                        let text = there.unwrap_or_default();
                        (step.text.clone(), call("write_file", json!({ "path": path, "content": text })))
                    }
                }
            }
        };
        self.next_step = at + 1;
        ModelReply { text: says, call }
    }
}

/// The result of a call, as the prompt has it.
fn tool_result(conversation: &Conversation<'_>, call: &str) -> Option<String> {
    let mut results = conversation.messages.iter().flat_map(|message| message.results());
    results.find(|result| result.call_id == call).map(|result| result.texts().collect())
}

impl ModelReply {
    /// The answer as it streams: words, the call, how it ended, what it cost.
    fn to_sse(&self, arrival: &ReceivedPrompt) -> String {
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
            "prompt_tokens": arrival.tokens,
            "completion_tokens": arrival.output_tokens,
            "total_tokens": arrival.tokens + arrival.output_tokens,
            "prompt_tokens_details": { "cached_tokens": arrival.cached_tokens },
        } }),
        );
        events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>() + "data: [DONE]\n\n"
    }
}
