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
use foldline::laws::{self, LawProfile};
use foldline::wire::{Format, Request as Wire};
use foldline::{Conversation, Meter, Tokens, marker};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::script::{Does, Step, steps};
use super::{MODEL, OUTPUT};

/// Prompt caches know prefixes in steps of so many tokens.
const CACHE_STEP: Tokens = 128;
/// The call by which the model asks for what was folded.
const ASKING: &str = "call_unfold";

/// A provider that listens.
pub(crate) struct Provider {
    pub(crate) address: SocketAddr,
    model: Arc<Model>,
    _listening: Aborted,
}

/// Ends a task with the one who started it.
pub(crate) struct Aborted(pub(crate) tokio::task::JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A prompt as it arrived and was answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrival {
    pub(crate) tokens: Tokens,
    /// How many of them the cache knew.
    pub(crate) cached: Tokens,
    pub(crate) output: Tokens,
    /// It began with all of the prompt before it.
    pub(crate) stable: bool,
    /// Laws that it broke.
    pub(crate) broken: Vec<String>,
    pub(crate) asked: Option<Asked>,
    pub(crate) body: Bytes,
}

/// What the model asked for, and got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) handle: String,
    /// Of the answer; none as long as there is none.
    pub(crate) bytes: Option<usize>,
    /// The answer is what the model had seen before.
    pub(crate) same: bool,
}

struct Model {
    meter: Meter,
    window: Option<Tokens>,
    steps: Vec<Step>,
    mind: Mutex<Mind>,
}

#[derive(Default)]
struct Mind {
    next: usize,
    /// Results of tools as they were when the model first saw them, by the step that called.
    seen: Vec<Option<String>>,
    /// The messages of the last prompt, and how many tokens stand up to the end of each.
    before: Vec<(String, Tokens)>,
    arrivals: Vec<Arrival>,
}

/// What the model answers.
struct Answer {
    says: String,
    call: Option<(String, &'static str, String)>,
}

impl Provider {
    /// Listens on a free port; without a window it takes prompts of any length.
    pub(crate) async fn start(meter: Meter, window: Option<Tokens>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let model = Arc::new(Model { meter, window, steps: steps(), mind: Mutex::default() });
        let serving = model.clone();
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let model = serving.clone();
                let service = service_fn(move |request| answer(model.clone(), request));
                let connection =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        Ok(Self { address, model, _listening: Aborted(listening) })
    }

    /// The prompts since the last time that somebody asked.
    pub(crate) fn take_arrivals(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.model.mind().arrivals)
    }
}

async fn answer(model: Arc<Model>, request: Request<Incoming>) -> Result<Response, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|it| it.to_bytes()).unwrap_or_default();
    let (status, kind, text) = match path.as_str() {
        "/v1/chat/completions" => model.complete(body),
        "/v1/models" => {
            let window = model.window.unwrap_or(Tokens::MAX);
            (
                StatusCode::OK,
                "application/json",
                json!({ "data": [{ "id": MODEL, "max_model_len": window }] }).to_string(),
            )
        }
        _ => (StatusCode::NOT_FOUND, "application/json", "{}".to_owned()),
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    Ok(response)
}

impl Model {
    fn mind(&self) -> MutexGuard<'_, Mind> {
        self.mind.lock().unwrap_or_else(PoisonError::into_inner)
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
        if let Some(window) = self.window.filter(|window| tokens + OUTPUT > *window) {
            return refuse(
                "context_length_exceeded",
                format!(
                    "This model's maximum context length is {window} tokens. However, you requested {} tokens \
                     ({tokens} in the messages, {OUTPUT} in the completion).",
                    tokens + OUTPUT
                ),
            );
        }
        let mut mind = self.mind();
        let mut arrival = mind.arrive(&request, &self.meter);
        arrival.broken =
            laws::check(&request, &LawProfile::for_request(&request)).iter().map(ToString::to_string).collect();
        arrival.tokens = tokens;
        let answer = mind.think(&self.steps, conversation, &mut arrival);
        let called =
            answer.call.as_ref().map_or(0, |(_, name, arguments)| self.meter.text(name) + self.meter.text(arguments));
        arrival.output = self.meter.text(&answer.says) + called;
        let stream = answer.stream(&arrival);
        arrival.body = body;
        mind.arrivals.push(arrival);
        (StatusCode::OK, "text/event-stream", stream)
    }
}

impl Mind {
    /// Looks at a prompt as a cache does, and at results that are new.
    fn arrive(&mut self, request: &Wire<'_>, meter: &Meter) -> Arrival {
        let conversation = request.conversation();
        let mut at = meter.tools(&conversation.tools) + meter.request_overhead();
        let mut now = Vec::new();
        for (index, message) in conversation.messages.iter().enumerate() {
            at += meter.message(message);
            now.push((request.raw_message(index).unwrap_or_default().to_owned(), at));
        }
        let common = self.before.iter().zip(&now).take_while(|((before, _), (now, _))| before == now).count();
        let known = common.checked_sub(1).map_or(0, |last| now[last].1);
        let stable = common == self.before.len();
        for result in conversation.messages.iter().flat_map(|message| message.results()) {
            let Some(step) = result.call_id.strip_prefix("call_").and_then(|it| it.parse::<usize>().ok()) else {
                continue;
            };
            self.seen.resize(self.seen.len().max(step + 1), None);
            self.seen[step].get_or_insert_with(|| result.texts().collect());
        }
        self.before = now;
        let cached = if known < 1_024 { 0 } else { known / CACHE_STEP * CACHE_STEP };
        Arrival { cached, stable, ..Arrival::default() }
    }

    /// The next turn of the script. What it can not see any more it asks for.
    fn think(&mut self, steps: &[Step], conversation: &Conversation<'_>, arrival: &mut Arrival) -> Answer {
        let at = self.next.min(steps.len() - 1);
        let step = &steps[at];
        let call = |tool, arguments: Value| Some((format!("call_{at}"), tool, arguments.to_string()));
        let (says, call) = match &step.does {
            Does::End => (step.says.clone(), None),
            Does::Call { tool, arguments } => (step.says.clone(), call(*tool, arguments.clone())),
            Does::Restore { path, read_at } => {
                let was = self.seen.get(*read_at).cloned().flatten().unwrap_or_default();
                let answered = result(conversation, ASKING);
                let stands = result(conversation, &format!("call_{read_at}")).unwrap_or_default();
                // As a model would find it: in the marker where the answer to its own call stood.
                let handle = marker::handles(&stands).next().map(|handle| handle.to_string());
                let there = Some(stands).filter(|text| *text == was);
                match (answered, there, handle) {
                    (Some(text), _, handle) => {
                        let (handle, same) = (handle.unwrap_or_default(), text == was);
                        arrival.asked = Some(Asked { handle, bytes: Some(text.len()), same });
                        (String::new(), call("write_file", json!({ "path": path, "content": text })))
                    }
                    (None, None, Some(handle)) => {
                        arrival.asked = Some(Asked { handle: handle.clone(), bytes: None, same: false });
                        let asking = (ASKING.to_owned(), "unfold", json!({ "handle": handle }).to_string());
                        return Answer { says: step.says.clone(), call: Some(asking) };
                    }
                    (None, there, _) => {
                        let text = there.unwrap_or_default();
                        (step.says.clone(), call("write_file", json!({ "path": path, "content": text })))
                    }
                }
            }
        };
        self.next = at + 1;
        Answer { says, call }
    }
}

/// The result of a call, as the prompt has it.
fn result(conversation: &Conversation<'_>, call: &str) -> Option<String> {
    let mut results = conversation.messages.iter().flat_map(|message| message.results());
    results.find(|result| result.call_id == call).map(|result| result.texts().collect())
}

impl Answer {
    /// The answer as it streams: words, the call, how it ended, what it cost.
    fn stream(&self, arrival: &Arrival) -> String {
        let chunk = |delta: Value, finish: Value| {
            let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
            json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [choice] })
        };
        let mut events = vec![chunk(json!({ "role": "assistant", "content": "" }), Value::Null)];
        for word in self.says.split_inclusive(' ') {
            events.push(chunk(json!({ "content": word }), Value::Null));
        }
        if let Some((id, name, arguments)) = &self.call {
            let call = json!({ "index": 0, "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
            events.push(chunk(json!({ "tool_calls": [call] }), Value::Null));
        }
        events.push(chunk(json!({}), json!(if self.call.is_some() { "tool_calls" } else { "stop" })));
        events.push(
            json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL, "choices": [], "usage": {
            "prompt_tokens": arrival.tokens,
            "completion_tokens": arrival.output,
            "total_tokens": arrival.tokens + arrival.output,
            "prompt_tokens_details": { "cached_tokens": arrival.cached },
        } }),
        );
        events.iter().map(|event| format!("data: {event}\n\n")).collect::<String>() + "data: [DONE]\n\n"
    }
}
