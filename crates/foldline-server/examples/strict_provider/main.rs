//! A provider on loopback that is as strict as the real ones, and that records what it received.
//!
//! It speaks Chat Completions, Responses and Anthropic Messages, streamed and not. Instead of a model it
//! has a script that makes an agent read one file after the other, and unfold now and then. A request that
//! breaks a law of its provider, alters a signed thought or does not fit into the window is refused in
//! that provider's words. `evals/clients` puts real clients and the proxy in front of it.
//!
//!     cargo run -p foldline-server --example strict_provider -- FILES RECORDS WINDOW TURNS [told|silent]
//!
//! Every request becomes two files below RECORDS: its body as it came, and one line of JSON about it.

#![expect(clippy::print_stdout, reason = "its address is what it prints")]

mod script;
mod speak;
mod strict;

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

use script::Script;
use strict::{Refused, Strict};

/// The pause between two events of a stream, so that they come one by one.
const PAUSE: Duration = Duration::from_millis(1);

struct Provider {
    records: PathBuf,
    window: u64,
    /// Whether the list of models tells the window.
    told: bool,
    state: Mutex<Speaking>,
}

struct Speaking {
    number: usize,
    script: Script,
    strict: Strict,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [files, records, window, turns, rest @ ..] = arguments.as_slice() else {
        return Err("say FILES RECORDS WINDOW TURNS [told|silent]".into());
    };
    let window = window.parse()?;
    let script = Script::over(files.as_ref(), turns.parse()?)?;
    let state = Speaking { number: 0, script, strict: Strict::new(window) };
    let told = rest.first().is_none_or(|it| it != "silent");
    let provider = Arc::new(Provider { records: records.into(), window, told, state: Mutex::new(state) });
    std::fs::create_dir_all(records)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    let routes = Router::new().fallback(answer).with_state(provider);
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

async fn answer(State(provider): State<Arc<Provider>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let Ok(body) = http_body_util::BodyExt::collect(body).await.map(|it| it.to_bytes()) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let format = match path.as_str() {
        "/v1/chat/completions" => Format::OpenAiChat,
        "/v1/responses" => Format::OpenAiResponses,
        "/v1/messages" | "/v1/messages/count_tokens" => Format::Anthropic,
        "/v1/models" if provider.told => {
            return whole(
                StatusCode::OK,
                &json!({ "object": "list", "data": [
                { "id": "scripted", "object": "model", "type": "model", "display_name": "scripted", "max_model_len": provider.window }] }),
            );
        }
        "/" => return StatusCode::OK.into_response(),
        _ => return whole(StatusCode::NOT_FOUND, &json!({ "error": { "message": format!("no {path}") } })),
    };
    let counts = path.ends_with("/count_tokens");
    let mut state = provider.state.lock().unwrap_or_else(PoisonError::into_inner);
    let number = state.number;
    state.number += 1;
    let judged = state.judge(format, &body, counts);
    let note = match &judged {
        Ok((tokens, said)) => json!({ "path": path, "status": 200, "tokens": tokens, "said": said.name() }),
        Err(refused) => json!({ "path": path, "status": 400, "tokens": refused.tokens, "laws": refused.laws }),
    };
    drop(state);
    provider.record(number, &body, &note);
    match judged {
        Ok((tokens, _)) if counts => whole(StatusCode::OK, &json!({ "input_tokens": tokens })),
        Ok((_, Said::Counted)) => StatusCode::NOT_FOUND.into_response(),
        Ok((tokens, Said::Answer { answer, streams })) => {
            let body = speak::body(format, number, &answer, tokens);
            match streams {
                Some(usage) => streamed(speak::events(format, &body, usage)),
                None => whole(StatusCode::OK, &body),
            }
        }
        // The Responses API refuses what does not fit inside of a stream that began well.
        Err(Refused { overflow: true, streams: true, message, .. }) if format == Format::OpenAiResponses => {
            streamed(speak::failed(&message))
        }
        Err(refused) => whole(StatusCode::BAD_REQUEST, &refused.body(format)),
    }
}

/// What becomes of a request that is in order.
enum Said {
    Answer { answer: speak::Answer, streams: Option<speak::Usage> },
    Counted,
}

impl Said {
    fn name(&self) -> &'static str {
        match self {
            Said::Answer { answer, .. } => answer.kind,
            Said::Counted => "counted",
        }
    }
}

impl Speaking {
    fn judge(&mut self, format: Format, body: &[u8], counts: bool) -> Result<(u64, Said), Refused> {
        let request = Wire::parse(format, body).map_err(|error| Refused::unreadable(&error.to_string()))?;
        let tokens = self.strict.check(&request, body)?;
        if counts {
            return Ok((tokens, Said::Counted));
        }
        let mut answer = self.script.next(&request);
        self.strict.sign(&request, body, &mut answer);
        let is_told = request.field("stream_options").is_some_and(|it| it.contains("true"));
        let usage = if is_told { speak::Usage::Told } else { speak::Usage::Untold };
        Ok((tokens, Said::Answer { answer, streams: request.is_streaming().then_some(usage) }))
    }
}

impl Provider {
    fn record(&self, number: usize, body: &Bytes, note: &Value) {
        let at = |end: &str| self.records.join(format!("{number:04}.{end}"));
        let written = std::fs::write(at("body"), body).and_then(|()| std::fs::write(at("note"), note.to_string()));
        if let Err(error) = written {
            println!("a record could not be written: {error}");
        }
    }
}

fn whole(status: StatusCode, body: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn streamed(events: Vec<String>) -> Response {
    let pieces = stream::iter(events).then(|event| async move {
        tokio::time::sleep(PAUSE).await;
        Ok::<_, std::convert::Infallible>(Bytes::from(event))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces)).into_response()
}
