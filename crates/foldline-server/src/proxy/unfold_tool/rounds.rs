//! A response in several rounds that the client sees as one.
//!
//! The model may call the hidden tool; the proxy answers the call and continues the next round in the same stream. Hidden
//! rounds are recorded before the client gets the end of the response, so that its next request can be completed with
//! them.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use foldline::Handle;
use foldline::wire::{
    ApiError, BodyOutcome, BodySplicer, Format, HiddenCall, HiddenRound, InterceptedCalls, ReportedId, Request,
    RequestEdit, RoundOutcome, StreamSplicer, Usage,
};
use hyper::{HeaderMap, StatusCode};

use crate::proxy::downstream::body_budget::StreamReservation;
use crate::proxy::downstream::channel_body::{BodySender, piped_once_begun};
use crate::proxy::downstream::client_stream::{ClientGone, ClientStream};
use crate::proxy::fold::job::{FoldJob, HiddenRoundsLog, HistoryView};
use crate::proxy::fold::prefix_id::PrefixHashes;
use crate::proxy::fold::prepare::prepare;
use crate::proxy::fold::prepared::PreparedRequest;
use crate::proxy::state::AppState;
use crate::proxy::unfold_tool::tool;
use crate::proxy::unfold_tool::tool::UNFOLD_TOOL;
use crate::proxy::upstream::backoff::{ClientView, RetryBudget};
use crate::proxy::upstream::client::UpstreamRequest;
use crate::proxy::upstream::relay::{MaybeUsage, ResponseUsage, RoundCount};
use crate::proxy::upstream::response_head::{RemainingBody, ResponseHead, next_chunk};
use crate::proxy::upstream::send::{Retries, send};

/// Maximum rounds in which unfold calls are served.
const MAX_SERVED_ROUNDS: usize = 4;
/// Maximum calls of a response that are served.
const MAX_SERVED_CALLS: usize = 32;
/// Maximum rounds of a response. If a model still calls the tool in the last one, the response ends with what it has
/// written; its calls are recorded, and their results state that no more is served.
const MAX_ROUNDS: u32 = 8;

/// The rounds of one response.
struct UnfoldRounds {
    state: Arc<AppState>,
    format: Format,
    /// The current round: the complete conversation with its folded form, and the request.
    prepared: PreparedRequest,
    request: UpstreamRequest,
    /// The log for rounds that the client does not see, and those rounds.
    recorder: HiddenRoundsLog,
    hidden_rounds: Vec<HiddenRound>,
    /// Calls that were served.
    served_calls: usize,
    /// True if they are recorded.
    recorded: bool,
    /// Originals that the model has received.
    unfolded: Vec<Handle>,
    /// Id of the last round.
    response_id: Option<String>,
    /// Retry budget of the current round.
    retries: RetryBudget,
}

/// A round that gave no response.
pub(crate) enum RoundFailure {
    /// The provider's own error response.
    Refused(Box<ResponseHead>),
    /// No response of the provider: status and message of the proxy.
    Fault(StatusCode, String),
}

impl RoundFailure {
    fn fault(message: impl Into<String>) -> Self {
        RoundFailure::Fault(StatusCode::BAD_GATEWAY, message.into())
    }

    /// Returns the HTTP status, and the error as it is written into a stream that has started.
    fn error(&self) -> (StatusCode, ApiError) {
        match self {
            RoundFailure::Refused(head) => (head.parts.status, ApiError::parse(&head.chunks.concat())),
            RoundFailure::Fault(status, message) => {
                (*status, ApiError::parse(format!("foldline: {message}").as_bytes()))
            }
        }
    }
}

/// The reason why a stream did not reach its end.
enum Interruption {
    ClientGone,
    Failed(RoundFailure),
}

impl From<ClientGone> for Interruption {
    fn from(ClientGone: ClientGone) -> Self {
        Interruption::ClientGone
    }
}

impl From<RoundFailure> for Interruption {
    fn from(failure: RoundFailure) -> Self {
        Interruption::Failed(failure)
    }
}

/// The body of a response in several rounds.
pub(crate) struct RoundsBody {
    pub(crate) body: Body,
    /// False if the body is a stream, which goes on.
    pub(crate) is_complete: bool,
}

/// Runs all rounds of a response whose first round has started. Returns its body, of a stream when it has begun, or why
/// there is none. `on_end` is called with the usage when the last round has ended.
pub(crate) async fn run_rounds(
    state: Arc<AppState>,
    prepared: PreparedRequest,
    request: UpstreamRequest,
    mut head: ResponseHead,
    on_end: impl FnOnce(MaybeUsage) + Send + 'static,
) -> Result<RoundsBody, RoundFailure> {
    let rounds = UnfoldRounds::new(state, prepared, request);
    if matches!(head.remaining, RemainingBody::Complete) && head.chunks.len() == 1 && !head.is_stream {
        let (replied, usage) = rounds.run_buffered(head.chunks.pop().unwrap_or_default()).await;
        on_end(usage);
        return replied.map(|body| RoundsBody { body: Body::from(body), is_complete: true });
    }
    let body = piped_once_begun(|client| async move {
        let (failure, usage) = rounds.run_streamed(head, client).await;
        on_end(usage);
        failure
    });
    let unknown = || RoundFailure::fault("the response could not be continued");
    let body = body.await.map_err(|failure| failure.unwrap_or_else(unknown))?;
    Ok(RoundsBody { body, is_complete: false })
}

/// Returns the log of a conversation that the provider stores under the id of a response. A client may continue from
/// it without sending the conversation again.
fn stored_response_log(state: &AppState, prepared: &PreparedRequest, id: &str) -> HiddenRoundsLog {
    let prefixes = PrefixHashes::for_response_id(&[&prepared.job.owner(), &prepared.model_name], id);
    let facts = state.sessions.facts(&prefixes, prepared.job.archive());
    // Only the proxy that received a response records facts about it.
    facts.skip_reading();
    HiddenRoundsLog { facts, prefix: prefixes.full() }
}

impl UnfoldRounds {
    fn new(state: Arc<AppState>, prepared: PreparedRequest, request: UpstreamRequest) -> Self {
        let recorder = prepared.hidden_rounds.clone();
        let retries = RetryBudget::new(ClientView::Nothing);
        Self {
            state,
            format: prepared.job.format,
            prepared,
            request,
            retries,
            recorder,
            hidden_rounds: Vec::new(),
            served_calls: 0,
            recorded: false,
            unfolded: Vec::new(),
            response_id: None,
        }
    }

    /// Runs all rounds of a response that is not streamed. Returns the body for the client, or why there is none, and the
    /// usage.
    async fn run_buffered(mut self, mut body: Bytes) -> (Result<Bytes, RoundFailure>, MaybeUsage) {
        let splicer = BodySplicer::new(self.format, UNFOLD_TOOL.name).with_max_rounds(MAX_ROUNDS);
        let mut splicer = splicer.with_reported_id(self.prepared.reported_id);
        loop {
            let calls = match splicer.push_round(&body) {
                Ok(BodyOutcome::Finished { body, finished }) => {
                    self.record(finished.mixed_calls.as_ref(), finished.response.id.as_deref()).await;
                    return (Ok(body.into()), self.finished(finished.usage));
                }
                Ok(BodyOutcome::Continue(calls)) => calls,
                // A body that cannot be parsed is forwarded unchanged.
                Err(_) => return (Ok(body), None),
            };
            let failure = match self.start_next_round(&calls, ClientView::Nothing).await {
                Ok(head) if matches!(head.remaining, RemainingBody::Complete) => {
                    body = head.chunks.concat().into();
                    continue;
                }
                Ok(_) => RoundFailure::fault("the response could not be continued"),
                Err(failure) => failure,
            };
            return (Err(failure), self.finished(splicer.usage()));
        }
    }

    /// Runs all rounds of a streamed response. Returns the failure if nothing was sent to the client, and the usage.
    async fn run_streamed(mut self, head: ResponseHead, client: BodySender) -> (Option<RoundFailure>, MaybeUsage) {
        let splicer = StreamSplicer::new(self.format, UNFOLD_TOOL.name).with_max_rounds(MAX_ROUNDS);
        let mut splicer = splicer.with_reported_id(self.prepared.reported_id);
        let mut client = ClientStream::new(client, self.state.settings.timeouts.keep_alive);
        let interruption = match self.stream(head, &mut splicer, &mut client).await {
            Ok(usage) => return (None, usage),
            Err(interruption) => interruption,
        };
        // The usage of a single interrupted round is not reliable.
        let usage = if self.hidden_rounds.is_empty() { None } else { self.finished(splicer.usage()) };
        match interruption {
            Interruption::Failed(failure) if client.has_begun() => {
                self.record_interrupted().await;
                let (status, error) = failure.error();
                splicer.write_error(status.as_u16(), &error, &mut client.held);
                // In some dialects no event ends a failed response: without an abort it would look complete.
                if client.flush().await.is_ok() && !self.format.dialect().error_ends_stream {
                    client.abort(error.message).await;
                }
                (None, usage)
            }
            Interruption::Failed(failure) => (Some(failure), usage),
            Interruption::ClientGone => (None, usage),
        }
    }

    /// Forwards rounds until the response is complete or the client has received the error that ends it.
    async fn stream(
        &mut self,
        mut head: ResponseHead,
        splicer: &mut StreamSplicer,
        client: &mut ClientStream,
    ) -> Result<MaybeUsage, Interruption> {
        loop {
            let abort_reason = self.forward(head, splicer, client).await?;
            let has_hidden_calls = splicer.has_hidden_calls();
            head = match splicer.end_round(&mut client.held) {
                RoundOutcome::Finished(finished) => {
                    self.record(finished.mixed_calls.as_ref(), finished.response.id.as_deref()).await;
                    client.flush().await?;
                    if let Some(reason) = abort_reason {
                        client.abort(reason).await;
                    }
                    return Ok(self.finished(finished.usage));
                }
                RoundOutcome::Continue(calls) => {
                    client.forward(splicer.shows_output()).await?;
                    let view = if splicer.shows_output() { ClientView::Output } else { ClientView::Nothing };
                    client.wait_for(self.start_next_round(&calls, view), Some(splicer.keep_alive_bytes())).await??
                }
                // In the first round the client has received everything so far. It is aborted if the upstream was; a stream
                // without an end event is forwarded as it is, unless a hidden call is missing.
                RoundOutcome::Interrupted(_) if self.hidden_rounds.is_empty() => {
                    client.flush().await?;
                    if let Some(reason) =
                        abort_reason.or_else(|| has_hidden_calls.then(|| "the stream ended early".into()))
                    {
                        client.abort(reason).await;
                    }
                    return Ok(None);
                }
                RoundOutcome::Interrupted(broken) => {
                    let may_retry =
                        !broken.shown_to_client && broken.error.as_ref().is_none_or(|error| error.is_temporary(None));
                    let wait = may_retry.then(|| self.retries.next_wait(&HeaderMap::new())).flatten();
                    match wait {
                        Some(wait) => {
                            client.wait_for(self.send_after(wait), Some(splicer.keep_alive_bytes())).await??
                        }
                        None if broken.error_bytes.is_empty() => {
                            let reason = abort_reason.unwrap_or_else(|| "the response could not be continued".into());
                            return Err(RoundFailure::fault(reason).into());
                        }
                        None => {
                            client.held.extend_from_slice(&broken.error_bytes);
                            client.flush().await?;
                            return Ok(self.finished(splicer.usage()));
                        }
                    }
                }
            };
        }
    }

    /// Forwards one round as it arrives. Returns the reason if it broke off.
    async fn forward(
        &mut self,
        head: ResponseHead,
        splicer: &mut StreamSplicer,
        client: &mut ClientStream,
    ) -> Result<Option<String>, Interruption> {
        let idle = self.state.settings.timeouts.idle;
        let mut memory = StreamReservation::new(&self.state.body_budget);
        for chunk in head.chunks {
            splicer.push(&chunk, &mut client.held);
        }
        let mut remaining = head.remaining;
        loop {
            client.forward(splicer.shows_output()).await?;
            if let Some(end) = splicer.take_end() {
                // The client may send its next request as soon as it has these bytes.
                self.record(end.mixed.as_ref(), end.response_id.as_deref()).await;
                client.held.extend_from_slice(&end.bytes);
                client.flush().await?;
            }
            let body = match &mut remaining {
                RemainingBody::Events(body) | RemainingBody::Opaque(body) => body,
                RemainingBody::Complete => return Ok(None),
                RemainingBody::Failed(reason) => return Ok(Some(std::mem::take(reason))),
            };
            // A later round may have started long before the model has read its prompt.
            let keep_alive = (!self.hidden_rounds.is_empty()).then(|| splicer.keep_alive_bytes());
            match client.wait_for(next_chunk(body, idle), keep_alive).await? {
                Ok(Some(chunk)) => {
                    splicer.push(&chunk, &mut client.held);
                    if !memory.resize(splicer.held_bytes()) {
                        splicer.stop_keeping();
                    }
                }
                Ok(None) => return Ok(None),
                Err(reason) => return Ok(Some(reason)),
            }
        }
    }

    /// Answers the hidden calls of a round and starts the next round.
    async fn start_next_round(
        &mut self,
        calls: &InterceptedCalls,
        view: ClientView,
    ) -> Result<ResponseHead, RoundFailure> {
        let answers = self.answer_calls(calls).await;
        let answers = self.truncated_answers(answers);
        let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
        let extended = Request::parse(self.format, &self.prepared.unfolded_body).and_then(|request| {
            let before = request.conversation().messages.len();
            let elements = calls.continuation(&answers).into_iter();
            request.splice(&elements.map(|json| RequestEdit::InsertJson { before, json }).collect::<Vec<_>>())
        });
        let extended = match extended {
            Ok(body) => Bytes::from(body.into_owned()),
            Err(error) => return Err(RoundFailure::fault(error.to_string())),
        };
        self.hidden_rounds.push(calls.hidden_round(&answers));
        // A later round is folded like the client's next request, so that both have the same prefix.
        let job = FoldJob { body: extended, history: HistoryView::Model, ..FoldJob::clone(&self.prepared.job) };
        let job = Arc::new(job);
        match prepare(&self.state, &job, None).await {
            Some(prepared) => self.prepared = prepared,
            None => {
                self.prepared = PreparedRequest {
                    body: None,
                    unfolded_body: job.body.clone(),
                    job,
                    diagnosis: None,
                    ..self.prepared.clone()
                }
            }
        }
        let body = self.prepared.body.clone();
        self.request.body = body.unwrap_or_else(|| with_unfold_tool(self.format, &self.prepared.unfolded_body));
        self.retries = RetryBudget::new(view);
        self.send().await
    }

    /// Truncates the answers to the available tokens; a crease can free up to a quarter of the window.
    fn truncated_answers(&self, answers: Vec<String>) -> Vec<String> {
        let PreparedRequest { budget, sent_tokens: sent, model, .. } = &self.prepared;
        let mut room = budget.saturating_sub(*sent).max(budget / 4);
        let fitted = answers.into_iter().map(|answer| {
            let answer = tool::truncate_answer(answer, room, &model.meter);
            room = room.saturating_sub(model.meter.text(&answer));
            answer
        });
        fitted.collect()
    }

    async fn send_after(&mut self, wait: Duration) -> Result<ResponseHead, RoundFailure> {
        tokio::time::sleep(wait).await;
        self.send().await
    }

    /// Sends the round. Folds it again if the prompt does not fit, and retries after a delay if the provider fails
    /// temporarily.
    async fn send(&mut self) -> Result<ResponseHead, RoundFailure> {
        let retries = Retries::Temporary(&mut self.retries);
        let sent = send(&self.state, self.format, &mut self.request, Some(&mut self.prepared), retries).await;
        let mut head = sent.map_err(|error| RoundFailure::Fault(error.status(), error.to_string()))?;
        match &mut head.remaining {
            RemainingBody::Failed(reason) => Err(RoundFailure::fault(std::mem::take(reason))),
            _ if head.parts.status.is_success() => Ok(head),
            _ => Err(RoundFailure::Refused(Box::new(head))),
        }
    }

    /// Returns the results of calls: originals for as many as are served in one response, and then errors.
    async fn answer_calls(&mut self, intercepted: &InterceptedCalls) -> Vec<String> {
        let allowed = match self.hidden_rounds.len() >= MAX_SERVED_ROUNDS {
            true => 0,
            false => MAX_SERVED_CALLS.saturating_sub(self.served_calls),
        };
        let (served, refused) = intercepted.calls.split_at(allowed.min(intercepted.calls.len()));
        self.served_calls += served.len();
        let mut answers = self.serve_calls(served.to_vec()).await;
        answers.extend(refused.iter().map(|_| tool::SERVE_LIMIT_TEXT.to_owned()));
        answers
    }

    async fn serve_calls(&mut self, calls: Vec<HiddenCall>) -> Vec<String> {
        let (proxy, archive) = (self.state.clone(), self.prepared.archive.clone());
        let stored = self.prepared.stored.clone();
        let count = calls.len();
        let answers = tokio::task::spawn_blocking(move || {
            let answer = |call| tool::answer_call(call, archive.as_ref(), &stored, &proxy.metrics);
            calls.iter().map(answer).collect::<Vec<_>>()
        });
        let Ok(answers) = answers.await else {
            return vec!["The archive could not be read.".to_owned(); count];
        };
        self.unfolded.extend(answers.iter().filter_map(|answer| answer.unfolded));
        answers.into_iter().map(|answer| answer.text).collect()
    }

    /// Records, once, the rounds that the client does not see, and the originals that may be unfolded after a response that
    /// the provider stores. They are on disk when this returns.
    async fn record(&mut self, mixed: Option<&InterceptedCalls>, response_id: Option<&str>) {
        if std::mem::replace(&mut self.recorded, true) {
            return;
        }
        self.response_id = response_id.map(str::to_owned);
        let stored_id = response_id.filter(|_| self.prepared.reported_id == ReportedId::Last).map(str::to_owned);
        let is_mixed = mixed.is_some();
        if let Some(mixed) = mixed {
            let answers = self.answer_calls(mixed).await;
            self.hidden_rounds.push(mixed.mixed_hidden_round(&answers.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        if self.hidden_rounds.is_empty() && stored_id.is_none() {
            self.recorder.note_answered();
            return;
        }
        let (state, rounds, prepared) = (self.state.clone(), self.hidden_rounds.clone(), self.prepared.clone());
        // Hidden rounds belong to the client's own request, whatever was sent in later rounds.
        let recorder = self.recorder.clone();
        let recorded = tokio::task::spawn_blocking(move || {
            if let Some(id) = &stored_id {
                let stored_response = stored_response_log(&state, &prepared, id);
                stored_response.record_handles(&prepared.stored);
                if is_mixed {
                    stored_response.record_rounds(&rounds);
                }
            }
            if !rounds.is_empty() {
                recorder.record_rounds(&rounds);
            }
            recorder.note_answered();
        })
        .await;
        if recorded.is_err() {
            self.state.metrics.count_internal_error("panic");
        }
    }

    /// Records the rounds of a response that failed, if clients of the dialect continue after its items.
    async fn record_interrupted(&mut self) {
        if self.format.dialect().keeps_failed_items {
            self.hidden_rounds =
                std::mem::take(&mut self.hidden_rounds).into_iter().map(HiddenRound::interrupted).collect();
            self.record(None, None).await;
        }
    }

    fn finished(&self, usage: Option<Usage>) -> MaybeUsage {
        let rounds = if self.hidden_rounds.is_empty() { RoundCount::One } else { RoundCount::Several };
        Some(ResponseUsage { usage, rounds, unfolded: self.unfolded.clone(), response_id: self.response_id.clone() })
    }
}

/// Returns an unfolded request with the injected tool.
fn with_unfold_tool(format: Format, body: &Bytes) -> Bytes {
    let request = Request::parse(format, body).map(|request| request.with_injected_tool(&UNFOLD_TOOL));
    request.and_then(|request| request.splice(&[])).map_or_else(|_| body.clone(), |body| body.into_owned().into())
}
