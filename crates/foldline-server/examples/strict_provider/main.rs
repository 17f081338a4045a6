//! A provider on loopback that is as strict as the real ones, and records what it receives.
//!
//! It implements Chat Completions, Responses and Anthropic Messages, streamed and buffered. Instead of a model it has a
//! script that makes an agent read one file after the other and unfold at intervals. A request that violates a law of
//! its provider, alters a signed reasoning block or does not fit into the window is refused with that provider's error.
//! `evals/clients` runs real clients and the proxy against it.
//!
//!     cargo run -p foldline-server --example strict_provider -- FILES RECORDS WINDOW TURNS [report|hide]
//!
//! `report` (the default) lists the window in `/v1/models`; `hide` does not. Every request becomes two files below
//! RECORDS: its body as received, and one line of JSON about it.

#![expect(clippy::print_stdout, reason = "prints its address")]

mod responses;
mod script;
mod validate;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use foldline::wire::{Format, Request as Wire};
use futures_util::{StreamExt, stream};
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use script::ModelScript;
use validate::{RejectedRequest, RequestValidator};

/// Delay between two events of a stream, so that they arrive one by one.
const EVENT_DELAY: Duration = Duration::from_millis(1);

struct StrictProvider {
    records: PathBuf,
    window: u64,
    /// True if the list of models reports the window.
    reports_window: bool,
    state: Mutex<ProviderState>,
}

struct ProviderState {
    request_count: usize,
    script: ModelScript,
    validator: RequestValidator,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [files, records, window, turns, rest @ ..] = arguments.as_slice() else {
        return Err("usage: strict_provider FILES RECORDS WINDOW TURNS [report|hide]".into());
    };
    let window = window.parse()?;
    let script = ModelScript::for_folder(files.as_ref(), turns.parse()?)?;
    let state = ProviderState { request_count: 0, script, validator: RequestValidator::new(window) };
    let reports_window = rest.first().is_none_or(|mode| mode != "hide");
    let provider =
        Arc::new(StrictProvider { records: records.into(), window, reports_window, state: Mutex::new(state) });
    std::fs::create_dir_all(records)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let routes = Router::new().fallback(handle_request).with_state(provider);
    let connections = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
    let connections = Arc::new(connections);
    loop {
        let (stream, _) = listener.accept().await?;
        let service = hyper_util::service::TowerToHyperService::new(routes.clone());
        let connections = connections.clone();
        tokio::spawn(async move {
            let _ = connections.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await;
        });
    }
}

async fn handle_request(State(provider): State<Arc<StrictProvider>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let Ok(body) = http_body_util::BodyExt::collect(body).await.map(|body| body.to_bytes()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let format = match path.as_str() {
        "/v1/chat/completions" => Format::OpenAiChat,
        "/v1/responses" => Format::OpenAiResponses,
        "/v1/messages" | "/v1/messages/count_tokens" => Format::Anthropic,
        "/v1/models" if provider.reports_window => {
            return json_response(
                StatusCode::OK,
                &json!({ "object": "list", "data": [
                { "id": "scripted", "object": "model", "type": "model", "display_name": "scripted", "max_model_len": provider.window }] }),
            );
        }
        "/" => return StatusCode::OK.into_response(),
        _ => {
            return json_response(
                StatusCode::NOT_FOUND,
                &json!({ "error": { "message": format!("unknown path {path}") } }),
            );
        }
    };
    let is_count = path.ends_with("/count_tokens");
    let mut state = provider.state.lock().unwrap_or_else(PoisonError::into_inner);
    let number = state.request_count;
    state.request_count += 1;
    let outcome = state.process(format, &body, is_count);
    let note = match &outcome {
        Ok((tokens, reply)) => json!({ "path": path, "status": 200, "tokens": tokens, "reply": reply.name() }),
        Err(rejected) => json!({ "path": path, "status": 400, "tokens": rejected.tokens, "laws": rejected.violations }),
    };
    drop(state);
    provider.record(number, &body, &note);
    match outcome {
        Ok((tokens, _)) if is_count => json_response(StatusCode::OK, &json!({ "input_tokens": tokens })),
        Ok((_, RequestOutcome::Counted)) => StatusCode::NOT_FOUND.into_response(),
        Ok((tokens, RequestOutcome::Answer { answer, streams })) => {
            let body = responses::body(format, number, &answer, tokens);
            match streams {
                Some(usage) => sse_response(responses::events(format, &body, usage)),
                None => json_response(StatusCode::OK, &body),
            }
        }
        // The Responses API reports an overflow inside a stream that started with 200.
        Err(RejectedRequest { is_overflow: true, is_stream: true, message, .. })
            if format == Format::OpenAiResponses =>
        {
            sse_response(responses::overflow_events(&message))
        }
        Err(rejected) => json_response(StatusCode::BAD_REQUEST, &rejected.body(format)),
    }
}

/// The outcome of a valid request.
enum RequestOutcome {
    Answer { answer: responses::ScriptedAnswer, streams: Option<responses::UsageReporting> },
    Counted,
}

impl RequestOutcome {
    fn name(&self) -> &'static str {
        match self {
            RequestOutcome::Answer { answer, .. } => answer.kind,
            RequestOutcome::Counted => "counted",
        }
    }
}

impl ProviderState {
    fn process(
        &mut self,
        format: Format,
        body: &[u8],
        is_count: bool,
    ) -> Result<(u64, RequestOutcome), RejectedRequest> {
        let request = Wire::parse(format, body).map_err(|error| RejectedRequest::unreadable(&error.to_string()))?;
        let tokens = self.validator.check(&request, body)?;
        if is_count {
            return Ok((tokens, RequestOutcome::Counted));
        }
        let mut answer = self.script.next_answer(&request);
        self.validator.sign(&request, body, &mut answer);
        let has_usage = request.field("stream_options").is_some_and(|options| options.contains("true"));
        let usage = if has_usage { responses::UsageReporting::Included } else { responses::UsageReporting::Omitted };
        Ok((tokens, RequestOutcome::Answer { answer, streams: request.is_streaming().then_some(usage) }))
    }
}

impl StrictProvider {
    fn record(&self, number: usize, body: &Bytes, note: &Value) {
        let path = |extension: &str| self.records.join(format!("{number:04}.{extension}"));
        let written = std::fs::write(path("body"), body).and_then(|()| std::fs::write(path("note"), note.to_string()));
        if let Err(error) = written {
            println!("cannot write a record: {error}");
        }
    }
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn sse_response(events: Vec<String>) -> Response {
    let chunks = stream::iter(events).then(|event| async move {
        tokio::time::sleep(EVENT_DELAY).await;
        Ok::<_, std::convert::Infallible>(Bytes::from(event))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks)).into_response()
}
