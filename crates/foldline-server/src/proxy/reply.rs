//! The response for the client: forwarded as it arrives, or in several rounds if the model may call the unfold tool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use foldline::wire::Format;
use hyper::header::CONTENT_LENGTH;
use hyper::http::response::Parts;

use crate::proxy::accounting::{ResponseFacts, record_usage};
use crate::proxy::downstream::body_budget::StreamReservation;
use crate::proxy::downstream::{error_response, headers};
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::fold::session_facts::UnfoldTotals;
use crate::proxy::state::AppState;
use crate::proxy::unfold_tool::rounds::{RoundFailure, run_rounds};
use crate::proxy::upstream::client::UpstreamRequest;
use crate::proxy::upstream::relay::relay;
use crate::proxy::upstream::response_head::ResponseHead;

/// Returns the response for the client, and records its usage when it ends.
pub(crate) async fn reply(
    state: Arc<AppState>,
    format: Format,
    request: UpstreamRequest,
    prepared: Option<PreparedRequest>,
    head: ResponseHead,
    (received_at, overhead): (Instant, Duration),
) -> Response {
    let (status, is_overflow) = (head.parts.status.as_u16(), head.overflow.is_some());
    let response = ResponseFacts { status, is_overflow, overhead, received_at };
    let (idle, memory) = (state.settings.timeouts.idle, StreamReservation::new(&state.body_budget));
    let client_head = to_client(&head.parts, prepared.as_ref());
    let Some(prepared) = prepared else {
        return Response::from_parts(client_head, relay(head, format, idle, memory, |_| ()));
    };
    if !prepared.tool_offered || !client_head.status.is_success() {
        // There will be no further round, so the bodies can be released while the response is streamed.
        let prepared = prepared.without_bodies();
        let body = relay(head, format, idle, memory, move |usage| record_usage(&state, &prepared, response, usage));
        return Response::from_parts(client_head, body);
    }
    reply_in_rounds(state, request, prepared, head, client_head, response).await
}

/// Returns a response whose model may call the unfold tool.
async fn reply_in_rounds(
    state: Arc<AppState>,
    request: UpstreamRequest,
    prepared: PreparedRequest,
    head: ResponseHead,
    mut client_head: Parts,
    response: ResponseFacts,
) -> Response {
    let (format, idle) = (prepared.job.format, state.settings.timeouts.idle);
    let memory = StreamReservation::new(&state.body_budget);
    // The body differs from the provider's if something in it is hidden.
    client_head.headers.remove(CONTENT_LENGTH);
    let (first, shared) = (prepared.clone(), state.clone());
    let recorded = first.clone();
    let on_end = move |usage| record_usage(&shared, &recorded, response, usage);
    let replied = match run_rounds(state, prepared, request, head, on_end).await {
        Ok(replied) => replied,
        Err(failure) => return failed_round_response(failure, &first, format, idle, memory),
    };
    if replied.is_complete {
        insert_unfolds(&mut client_head, &first);
    }
    Response::from_parts(client_head, replied.body)
}

/// Returns the response head for the client, with the headers of the proxy.
fn to_client(head: &Parts, prepared: Option<&PreparedRequest>) -> Parts {
    let mut head = headers::client_head(head.clone());
    if let Some(prepared) = prepared {
        let tokens = format!("{},{}", prepared.received_tokens, prepared.sent_tokens);
        insert_header(&mut head, "x-foldline-tokens", &tokens);
        insert_header(&mut head, "x-foldline-folds", &prepared.fold_count.to_string());
        insert_unfolds(&mut head, prepared);
        let spent = prepared.hidden_rounds.facts.summary_cost();
        let tokens = spent.usage.input.saturating_add(spent.usage.output);
        if tokens > 0 {
            insert_header(&mut head, "x-foldline-summaries", &format!("{tokens},{:.6}", spent.dollars));
        }
    }
    head
}

/// Adds the originals that the model has read in hidden rounds of the conversation, and the prompt tokens that these
/// rounds cost in addition to the last round of each response, which the client is shown.
fn insert_unfolds(head: &mut Parts, prepared: &PreparedRequest) {
    let UnfoldTotals { count, tokens } = prepared.hidden_rounds.facts.unfolds();
    if count > 0 {
        insert_header(head, "x-foldline-unfolds", &format!("{count},{tokens}"));
    }
}

fn insert_header(head: &mut Parts, name: &'static str, value: &str) {
    head.headers.insert(name, value.parse().expect("numbers and commas are valid in a header value"));
}

/// Returns the response if a hidden round failed before the client got any data: the provider's own response, if
/// there is one.
fn failed_round_response(
    failure: RoundFailure,
    prepared: &PreparedRequest,
    format: Format,
    idle: Duration,
    memory: StreamReservation,
) -> Response {
    match failure {
        RoundFailure::Refused(head) => {
            let client_head = to_client(&head.parts, Some(prepared));
            Response::from_parts(client_head, relay(*head, format, idle, memory, |_| ()))
        }
        RoundFailure::Fault(status, reason) => error_response::json_error(Some(format), status, &reason),
    }
}
