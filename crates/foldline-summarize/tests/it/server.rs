//! A model server on loopback that answers by a script, in the API format of each request, and records the requests.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use foldline::wire::{Format, Request};
use foldline::{Conversation, Message, Meter, Part};
use foldline_summarize::{HttpModel, LanguageModel, ModelEndpoint, ModelInfo, ToolStyle};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct SeenRequest {
    /// The index of the request, counted from 0.
    pub(crate) index: usize,
    pub(crate) format: Format,
    pub(crate) headers: hyper::HeaderMap,
    pub(crate) conversation: Conversation<'static>,
    pub(crate) max_output: u64,
}

impl SeenRequest {
    /// Returns true for a request to the root model, false for the sub-model.
    pub(crate) fn is_root(&self) -> bool {
        !self.system().contains("Answer the question from the data alone")
    }

    pub(crate) fn system(&self) -> String {
        let first = self.conversation.messages.first().filter(|message| message.role == foldline::Role::System);
        let parts = self.conversation.system.iter().chain(first.into_iter().flat_map(|message| &message.parts));
        parts.filter_map(Part::as_text).collect()
    }

    /// Returns all texts, including results.
    pub(crate) fn text(&self) -> String {
        let part = |part: &Part<'_>| match part {
            Part::Text { text } => text.to_string(),
            Part::ToolResult(result) => result.texts().collect::<Vec<_>>().join("\n"),
            _ => String::new(),
        };
        self.conversation.messages.iter().flat_map(|message| &message.parts).map(part).collect::<Vec<_>>().join("\n")
    }

    /// Returns the newest texts: the results of the newest round, or the user's text.
    pub(crate) fn newest_text(&self) -> String {
        let messages = &self.conversation.messages;
        let from = messages.iter().rposition(Message::is_assistant).map_or(0, |at| at + 1);
        let newest = Conversation { messages: messages[from..].to_vec(), ..Conversation::default() };
        SeenRequest { conversation: newest, ..self.clone() }.text()
    }

    /// Returns the tokens of the whole request.
    pub(crate) fn tokens(&self, meter: &Meter) -> u64 {
        meter.conversation(&self.conversation)
    }
}

/// A reply of the server.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedReply {
    Text(String),
    Calls(Vec<(&'static str, Value)>),
    Status(u16, String),
    Raw(String),
    Delayed(Duration, Box<ScriptedReply>),
}

impl ScriptedReply {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        ScriptedReply::Text(text.into())
    }

    pub(crate) fn call(name: &'static str, arguments: Value) -> Self {
        ScriptedReply::Calls(vec![(name, arguments)])
    }

    pub(crate) fn final_call(text: impl Into<String>) -> Self {
        Self::call("final", json!({ "text": text.into() }))
    }
}

pub(crate) struct ModelServer {
    pub(crate) base_url: String,
    requests: Arc<Mutex<Vec<SeenRequest>>>,
    peak_concurrency: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ModelServer {
    /// Starts a server that answers by this script.
    pub(crate) async fn start(script: impl Fn(&SeenRequest) -> ScriptedReply + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<SeenRequest>>> = Arc::default();
        let (now, peak_concurrency) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (script, seen, peak) = (Arc::new(script), Arc::clone(&requests), Arc::clone(&peak_concurrency));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (script, seen, now, peak) =
                    (Arc::clone(&script), Arc::clone(&seen), Arc::clone(&now), Arc::clone(&peak));
                tokio::spawn(async move {
                    let service = service_fn(move |request: hyper::Request<Incoming>| {
                        let (script, seen, now, peak) =
                            (Arc::clone(&script), Arc::clone(&seen), Arc::clone(&now), Arc::clone(&peak));
                        async move {
                            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                            let response = respond(request, &*script, &seen).await;
                            now.fetch_sub(1, Ordering::SeqCst);
                            Ok::<_, Infallible>(response)
                        }
                    });
                    let _ =
                        auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { base_url, requests, peak_concurrency, task }
    }

    pub(crate) fn requests(&self) -> Vec<SeenRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// Returns the largest number of concurrent requests.
    pub(crate) fn peak_concurrency(&self) -> usize {
        self.peak_concurrency.load(Ordering::SeqCst)
    }

    pub(crate) fn endpoint(&self, format: Format) -> ModelEndpoint {
        ModelEndpoint {
            format,
            base_url: self.base_url.clone(),
            model: "scripted".into(),
            api_key: Some("sk-test".into()),
            headers: Vec::new(),
        }
    }

    /// Returns a model on this server.
    pub(crate) fn model(&self, format: Format, window: u64, tool_style: ToolStyle) -> Arc<dyn LanguageModel> {
        let info =
            ModelInfo { window, tool_style, meter: Meter::for_byte_estimate(), ..ModelInfo::for_model("scripted") };
        Arc::new(HttpModel::with_info(self.endpoint(format), info).unwrap())
    }

    /// Returns a model with tool support, over Chat Completions.
    pub(crate) fn chat_model(&self, window: u64) -> Arc<dyn LanguageModel> {
        self.model(Format::OpenAiChat, window, ToolStyle::Calls)
    }
}

async fn respond(
    request: hyper::Request<Incoming>,
    script: &(impl Fn(&SeenRequest) -> ScriptedReply + Send + Sync),
    requests: &Mutex<Vec<SeenRequest>>,
) -> Response<Full<Bytes>> {
    let format = match request.uri().path() {
        "/v1/chat/completions" => Format::OpenAiChat,
        "/v1/responses" => Format::OpenAiResponses,
        "/v1/messages" => Format::Anthropic,
        path => panic!("no such path: {path}"),
    };
    let headers = request.headers().clone();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let parsed = Request::parse(format, &body).unwrap();
    assert_eq!(
        foldline::laws::check(&parsed, &foldline::laws::LawProfile::for_request(&parsed)),
        [],
        "the request breaks no law"
    );
    let mut seen = SeenRequest {
        index: 0,
        format,
        headers,
        max_output: parsed.max_output_tokens().unwrap(),
        conversation: parsed.conversation().clone().into_owned(),
    };
    {
        let mut requests = requests.lock().unwrap();
        seen.index = requests.len();
        requests.push(seen.clone());
    }
    let mut reply = script(&seen);
    while let ScriptedReply::Delayed(pause, then) = reply {
        tokio::time::sleep(pause).await;
        reply = *then;
    }
    let (status, body) = match reply {
        ScriptedReply::Text(text) => (200, response_body(format, &text, &[])),
        ScriptedReply::Calls(calls) => (200, response_body(format, "", &calls)),
        ScriptedReply::Status(status, body) => (status, body),
        ScriptedReply::Raw(body) => (200, body),
        ScriptedReply::Delayed(..) => unreachable!("delays were handled above"),
    };
    Response::builder().status(StatusCode::from_u16(status).unwrap()).body(Full::new(Bytes::from(body))).unwrap()
}

/// Returns a response body in the API format, with usage.
fn response_body(format: Format, text: &str, calls: &[(&str, Value)]) -> String {
    match format {
        Format::OpenAiChat => {
            let call = |(at, (name, arguments)): (usize, &(&str, Value))| {
                json!({"id": format!("call_{at}"), "type": "function",
                    "function": {"name": name, "arguments": arguments.to_string()}})
            };
            let mut message = json!({"role": "assistant", "content": text});
            if !calls.is_empty() {
                message["tool_calls"] = calls.iter().enumerate().map(call).collect();
            }
            let stop = if calls.is_empty() { "stop" } else { "tool_calls" };
            json!({"id": "x", "model": "scripted", "choices": [{"index": 0, "message": message, "finish_reason": stop}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}})
        }
        Format::OpenAiResponses => {
            let mut output = Vec::new();
            if !text.is_empty() {
                output.push(
                    json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}),
                );
            }
            for (at, (name, arguments)) in calls.iter().enumerate() {
                output.push(json!({"type": "function_call", "call_id": format!("call_{at}"), "name": name,
                    "arguments": arguments.to_string()}));
            }
            json!({"id": "x", "object": "response", "status": "completed", "output": output,
                "usage": {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}})
        }
        Format::Anthropic => {
            let mut content = Vec::new();
            if !text.is_empty() {
                content.push(json!({"type": "text", "text": text}));
            }
            for (at, (name, arguments)) in calls.iter().enumerate() {
                content
                    .push(json!({"type": "tool_use", "id": format!("toolu_{at}"), "name": name, "input": arguments}));
            }
            let stop = if calls.is_empty() { "end_turn" } else { "tool_use" };
            json!({"id": "x", "type": "message", "role": "assistant", "model": "scripted", "content": content,
                "stop_reason": stop, "usage": {"input_tokens": 100, "output_tokens": 10}})
        }
        other => panic!("no script for {other:?}"),
    }
    .to_string()
}
