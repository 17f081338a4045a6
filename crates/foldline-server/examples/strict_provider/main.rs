//! A provider on loopback that is as strict as the real ones, and records what it receives.
//!
//! It implements Chat Completions, Responses, Anthropic Messages and Gemini, streamed and buffered. Instead of a model it
//! has a script that makes an agent read one file after the other and unfold at intervals. A request that violates a law
//! of its provider, alters signed reasoning or a signed call, or does not fit into the window is refused with that
//! provider's error.
//! `evals/clients` runs real clients and the proxy against it.
//!
//!     cargo run -p foldline-server --example strict_provider -- FILES RECORDS WINDOW TURNS [OPTION..]
//!
//! - `hide`: does not list the window in `/v1/models`.
//! - `end-delay=MS`: waits between the last event of a stream and the end of its body.
//! - `fail=429|500|529|reset[:ATTEMPTS]`: fails the first attempts (1) of every hidden round.
//! - `parallel=N`: reads N files per turn.
//! - `subtasks`: starts two sub-agents after a third of the turns.
//! - `talk=N`: answers requests without tools with N lines.
//!
//! Every request becomes two files below RECORDS: its body as received, and one line of JSON about it.

#![expect(clippy::print_stdout, reason = "prints its address")]

mod failure;
mod responses;
mod script;
mod stored;
mod validate;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use foldline::wire::{ConversationEndpoint, Dialect, EndpointPurpose, Format, Request as Wire};
use futures_util::{StreamExt, stream};
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use failure::{ConnectionReset, HiddenFailures};
use script::{ModelScript, ScriptOptions};
use stored::StoredHistory;
use validate::{RejectedRequest, RequestValidator};

/// Delay between two events of a stream, so that they arrive one by one.
const EVENT_DELAY: Duration = Duration::from_millis(1);

struct StrictProvider {
    records: PathBuf,
    window: u64,
    /// True if the list of models reports the window.
    reports_window: bool,
    /// Delay between the last event of a stream and the end of its body.
    end_delay: Duration,
    state: Mutex<ProviderState>,
}

struct ProviderState {
    request_count: usize,
    script: ModelScript,
    validator: RequestValidator,
    stored: StoredHistory,
    failures: HiddenFailures,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [files, records, window, turns, options @ ..] = arguments.as_slice() else {
        return Err("usage: strict_provider FILES RECORDS WINDOW TURNS [OPTION..]".into());
    };
    let has = |name: &str| options.iter().any(|option| option == name);
    let value = |name: &str| options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
    let number = |name: &str, default: usize| value(name).map_or(Ok(default), str::parse);
    let window = window.parse()?;
    let script = ScriptOptions {
        turns: turns.parse()?,
        reads_per_turn: number("parallel", 1)?,
        starts_subtasks: has("subtasks"),
        lines_without_tools: number("talk", 0)?,
    };
    let failures = value("fail").map(|text| HiddenFailures::parse(text).ok_or("fail=STATUS[:ATTEMPTS] expected"));
    let state = ProviderState {
        request_count: 0,
        script: ModelScript::for_folder(files.as_ref(), script)?,
        validator: RequestValidator::new(window),
        stored: StoredHistory::default(),
        failures: failures.transpose()?.unwrap_or_default(),
    };
    let provider = Arc::new(StrictProvider {
        records: records.into(),
        window,
        reports_window: !has("hide"),
        end_delay: Duration::from_millis(u64::try_from(number("end-delay", 0)?)?),
        state: Mutex::new(state),
    });
    std::fs::create_dir_all(records)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let routes = Router::new().fallback(handle_request).with_state(provider);
    let connections = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
    let connections = Arc::new(connections);
    loop {
        let (stream, _) = listener.accept().await?;
        let service = hyper_util::service::TowerToHyperService::new(routes.clone());
        let service = hyper::service::service_fn(move |request| {
            let reply = hyper::service::Service::call(&service, request);
            async move {
                let reply = reply.await.unwrap_or_else(|never| match never {});
                match reply.extensions().get::<ConnectionReset>() {
                    Some(_) => Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset)),
                    None => Ok(reply),
                }
            }
        });
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
    let Some((dialect, endpoint)) = exact_endpoint(&path) else { return provider.other_response(&path) };
    let format = dialect.format;
    let mut state = provider.state.lock().unwrap_or_else(PoisonError::into_inner);
    let number = state.request_count;
    state.request_count += 1;
    let (outcome, facts) = state.process(format, &endpoint, &body);
    let mut note = match &outcome {
        Ok((tokens, reply)) => json!({ "path": path, "status": 200, "tokens": tokens, "reply": reply.name() }),
        Err(rejected) => json!({ "path": path, "status": 400, "tokens": rejected.tokens, "laws": rejected.violations }),
    };
    note["conversation"] = json!(facts.conversation);
    note["hidden"] = json!(facts.is_hidden);
    if let Ok((_, RequestOutcome::Answer { answer, .. })) = &outcome {
        note["calls"] = answer.calls.iter().map(|call| json!({ "id": call.id, "name": call.name })).collect();
    }
    if let Ok((_, RequestOutcome::Failed(status))) = &outcome {
        note["status"] = json!(status);
    }
    let answer_body = match &outcome {
        Ok((tokens, RequestOutcome::Answer { answer, .. })) => {
            let answer_body = responses::body(format, number, answer, *tokens);
            state.stored.keep(format, &body, &answer_body);
            answer_body
        }
        _ => Value::Null,
    };
    drop(state);
    provider.record(number, &body, &note);
    match outcome {
        Ok((tokens, RequestOutcome::Counted)) => {
            let key = if format == Format::Gemini { "totalTokens" } else { "input_tokens" };
            json_response(StatusCode::OK, &json!({ key: tokens }))
        }
        Ok((_, RequestOutcome::Failed(status))) => failure::response(format, status),
        Ok((_, RequestOutcome::Answer { streams: Some(usage), .. })) => {
            sse_response(responses::events(format, &answer_body, usage), provider.end_delay)
        }
        Ok((_, RequestOutcome::Answer { streams: None, .. })) => json_response(StatusCode::OK, &answer_body),
        // The Responses API reports an overflow inside a stream that started with 200.
        Err(RejectedRequest { is_overflow: true, is_stream: true, message, .. })
            if format == Format::OpenAiResponses =>
        {
            sse_response(responses::overflow_events(&message), provider.end_delay)
        }
        Err(rejected) => json_response(StatusCode::BAD_REQUEST, &rejected.body(format)),
    }
}

/// Returns the API of a path; unlike the proxy, a provider accepts no other spelling of it.
fn exact_endpoint(path: &str) -> Option<(&'static Dialect, ConversationEndpoint<'_>)> {
    const PATHS: [&str; 4] = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"];
    let is_known = PATHS.contains(&path) || path.starts_with("/v1beta/models/");
    Dialect::for_path(path).filter(|_| is_known)
}

/// Facts about a request for the record.
#[derive(Default)]
struct RequestFacts {
    conversation: String,
    /// True if the request is a round that the client does not see.
    is_hidden: bool,
}

/// The outcome of a valid request.
enum RequestOutcome {
    Answer {
        answer: responses::ScriptedAnswer,
        streams: Option<responses::UsageReporting>,
    },
    Counted,
    /// The scripted failure of a hidden round, with its status.
    Failed(u16),
}

impl RequestOutcome {
    fn name(&self) -> &'static str {
        match self {
            RequestOutcome::Answer { answer, .. } => answer.kind,
            RequestOutcome::Counted => "counted",
            RequestOutcome::Failed(_) => "failed",
        }
    }
}

impl ProviderState {
    fn process(
        &mut self,
        format: Format,
        endpoint: &ConversationEndpoint<'_>,
        body: &[u8],
    ) -> (ProcessResult, RequestFacts) {
        let body = match self.stored.resolve(format, body) {
            Ok(body) => body,
            Err(reason) => return (Err(RejectedRequest::unreadable(&reason)), RequestFacts::default()),
        };
        match Wire::parse(format, &body) {
            Ok(request) => {
                let request = request.with_endpoint(endpoint);
                let is_count = endpoint.purpose == EndpointPurpose::CountTokens;
                let hidden_round = self.script.hidden_round(&request);
                let conversation = script::conversation_key(&request);
                let facts = RequestFacts { conversation, is_hidden: hidden_round.is_some() };
                (self.answer(&request, &body, is_count, hidden_round), facts)
            }
            Err(error) => (Err(RejectedRequest::unreadable(&error.to_string())), RequestFacts::default()),
        }
    }

    fn answer(
        &mut self,
        request: &Wire<'_>,
        body: &[u8],
        is_count: bool,
        hidden_round: Option<String>,
    ) -> ProcessResult {
        let tokens = self.validator.check(request, body)?;
        if is_count {
            return Ok((tokens, RequestOutcome::Counted));
        }
        if let Some(status) = hidden_round.and_then(|round| self.failures.next_failure(round)) {
            return Ok((tokens, RequestOutcome::Failed(status)));
        }
        let mut answer = self.script.next_answer(request);
        self.validator.sign(request, body, &mut answer);
        let has_usage = request.field("stream_options").is_some_and(|options| options.contains("true"));
        let usage = if has_usage { responses::UsageReporting::Included } else { responses::UsageReporting::Omitted };
        Ok((tokens, RequestOutcome::Answer { answer, streams: request.is_streaming().then_some(usage) }))
    }
}

/// Tokens and outcome of a request, or the reason why it is refused.
type ProcessResult = Result<(u64, RequestOutcome), RejectedRequest>;

impl StrictProvider {
    /// Returns the response to a request without a conversation.
    fn other_response(&self, path: &str) -> Response {
        match path {
            "/v1/models" if self.reports_window => {
                let model = json!({ "id": "scripted", "object": "model", "type": "model", "display_name": "scripted", "max_model_len": self.window });
                json_response(StatusCode::OK, &json!({ "object": "list", "data": [model] }))
            }
            "/" => StatusCode::OK.into_response(),
            _ => {
                let error = json!({ "error": { "message": format!("unknown path {path}") } });
                json_response(StatusCode::NOT_FOUND, &error)
            }
        }
    }

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

fn sse_response(events: Vec<String>, end_delay: Duration) -> Response {
    let chunks = stream::iter(events).then(|event| async move {
        tokio::time::sleep(EVENT_DELAY).await;
        Ok::<_, std::convert::Infallible>(Bytes::from(event))
    });
    // An empty stream that ends late: the client has all events before the body ends.
    let end = stream::once(tokio::time::sleep(end_delay)).filter_map(|()| async { None });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks.chain(end))).into_response()
}
