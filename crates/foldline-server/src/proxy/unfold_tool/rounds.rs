//! An answer in several rounds that the client sees as one.
//!
//! The model may call the hidden tool; the call is answered here and the next round goes on in the same
//! stream. What the client does not see is recorded before it has the end of the answer, so that its
//! next request can be healed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldline::wire::{
    ApiError, BodyOutcome, BodySplicer, Format, HiddenRound, InterceptedCalls, ReportedId, Request, RequestEdit,
    RoundOutcome, StreamSplicer, Usage,
};
use hyper::{HeaderMap, StatusCode};

use crate::proxy::downstream::client_stream::{ClientGone, ClientStream};
use crate::proxy::downstream::listener::AppState;
use crate::proxy::fold::job::{FoldJob, HiddenRoundsLog, HistoryView, PreparedRequest};
use crate::proxy::handler::{fold_blocking, retries};
use crate::proxy::unfold_tool::tool;
use crate::proxy::unfold_tool::tool::UNFOLD_TOOL;
use crate::proxy::upstream::backoff::RetryBudget;
use crate::proxy::upstream::client::UpstreamRequest;
use crate::proxy::upstream::relay::{BodySender, MaybeUsage, ResponseUsage, RoundCount};
use crate::proxy::upstream::response_head::{RemainingBody, ResponseHead, next_chunk};

/// Rounds in which the model is given what it asks for.
const MAX_SERVED_ROUNDS: usize = 4;
/// Rounds in all; a model that still asks then is stopped.
const MAX_ROUNDS: usize = 8;

/// One answer.
pub(crate) struct UnfoldRounds {
    state: Arc<AppState>,
    format: Format,
    /// What the round that is running was asked with: the conversation as the model knows it, how it was
    /// folded, and the request.
    job: Arc<FoldJob>,
    prepared: PreparedRequest,
    request: UpstreamRequest,
    /// Where what the client will lack is remembered, and what it is.
    recorder: HiddenRoundsLog,
    hidden_rounds: Vec<HiddenRound>,
    /// It is recorded.
    recorded: bool,
    /// The attempts of the round that is running.
    retries: RetryBudget,
}

/// A round that gave no answer.
pub(crate) enum RoundFailure {
    /// The provider's own error response.
    Refused(Box<ResponseHead>),
    /// There is no response of the provider's: the status and message of ours.
    Fault(StatusCode, String),
}

impl RoundFailure {
    pub(crate) fn fault(message: impl Into<String>) -> Self {
        RoundFailure::Fault(StatusCode::BAD_GATEWAY, message.into())
    }

    /// Returns the error as it is written into a stream that has begun, with its HTTP status.
    fn error(&self) -> (StatusCode, ApiError) {
        match self {
            RoundFailure::Refused(opening) => (opening.parts.status, ApiError::parse(&opening.chunks.concat())),
            RoundFailure::Fault(status, message) => {
                (*status, ApiError::parse(format!("foldline: {message}").as_bytes()))
            }
        }
    }
}

/// The reason why a stream came to no end.
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

impl UnfoldRounds {
    pub(crate) fn new(
        proxy: Arc<AppState>,
        turn: Arc<FoldJob>,
        folded: PreparedRequest,
        outbound: UpstreamRequest,
    ) -> Self {
        let hidden = folded.hidden_rounds.clone();
        let retries = RetryBudget::new();
        let (gaps, recorded) = Default::default();
        Self {
            state: proxy,
            format: turn.format,
            job: turn,
            prepared: folded,
            request: outbound,
            retries,
            recorder: hidden,
            hidden_rounds: gaps,
            recorded,
        }
    }

    /// Answers that come as bodies. Returns the body for the client, or why there is none; and what was paid.
    pub(crate) async fn run_buffered(mut self, mut body: Bytes) -> (Result<Bytes, RoundFailure>, MaybeUsage) {
        let mut splicer = BodySplicer::new(self.format, UNFOLD_TOOL.name).with_reported_id(self.prepared.reported_id);
        loop {
            let asked = match splicer.push_round(&body) {
                Ok(BodyOutcome::Finished { body, finished }) => {
                    self.record(finished.mixed_calls.as_ref(), finished.response.id.as_deref()).await;
                    return (Ok(body.into()), self.finished(finished.usage));
                }
                Ok(BodyOutcome::Continue(asked)) => asked,
                // Something that no splicer understands is the client's to read.
                Err(_) => return (Ok(body), None),
            };
            let failure = match self.start_next_round(&asked).await {
                Ok(opening) if matches!(opening.remaining, RemainingBody::Complete) => {
                    body = opening.chunks.concat().into();
                    continue;
                }
                Ok(_) => RoundFailure::fault("the answer could not be continued"),
                Err(failure) => failure,
            };
            return (Err(failure), self.finished(splicer.usage()));
        }
    }

    /// Answers that come as streams. Returns why the client was shown nothing, if so; and what was paid.
    pub(crate) async fn run_streamed(
        mut self,
        opening: ResponseHead,
        client: BodySender,
    ) -> (Option<RoundFailure>, MaybeUsage) {
        let mut splicer = StreamSplicer::new(self.format, UNFOLD_TOOL.name).with_reported_id(self.prepared.reported_id);
        let mut client = ClientStream::new(client, self.state.settings.timeouts.keep_alive);
        let interruption = match self.stream(opening, &mut splicer, &mut client).await {
            Ok(heard) => return (None, heard),
            Err(interruption) => interruption,
        };
        // One round that was interrupted has no usage that can be relied on.
        let heard = if self.hidden_rounds.is_empty() { None } else { self.finished(splicer.usage()) };
        match interruption {
            Interruption::Failed(failure) if client.has_begun() => {
                let (status, error) = failure.error();
                splicer.write_error(status.as_u16(), &error, &mut client.held);
                // Chat Completions has no event that ends a failed answer: without a break it would look complete.
                if client.flush().await.is_ok() && self.format == Format::OpenAiChat {
                    client.cut_off(error.message).await;
                }
                (None, heard)
            }
            Interruption::Failed(failure) => (Some(failure), heard),
            Interruption::ClientGone => (None, heard),
        }
    }

    /// Forwards round after round, until the answer is complete or the client has the error that ends it.
    async fn stream(
        &mut self,
        mut opening: ResponseHead,
        splicer: &mut StreamSplicer,
        client: &mut ClientStream,
    ) -> Result<MaybeUsage, Interruption> {
        loop {
            let broke = self.forward(opening, splicer, client).await?;
            let hid = splicer.has_hidden_calls();
            opening = match splicer.end_round(&mut client.held) {
                RoundOutcome::Finished(finished) => {
                    self.record(finished.mixed_calls.as_ref(), finished.response.id.as_deref()).await;
                    client.flush().await?;
                    if let Some(why) = broke {
                        client.cut_off(why).await;
                    }
                    return Ok(self.finished(finished.usage));
                }
                RoundOutcome::Continue(asked) => {
                    client.forward(splicer.shows_output()).await?;
                    client.wait_for(self.start_next_round(&asked), Some(splicer.keep_alive_bytes())).await??
                }
                // In the first round the client has seen what came. It is cut off as the proxy was; a
                // provider that ends without an end is the client's to judge, unless it lacks something.
                RoundOutcome::Interrupted(_) if self.hidden_rounds.is_empty() => {
                    client.flush().await?;
                    if let Some(why) = broke.or_else(|| hid.then(|| "the stream ended early".into())) {
                        client.cut_off(why).await;
                    }
                    return Ok(None);
                }
                RoundOutcome::Interrupted(broken) => {
                    let may_retry =
                        !broken.shown_to_client && broken.error.as_ref().is_none_or(|it| it.is_temporary(None));
                    let wait = may_retry.then(|| self.retries.next_wait(&HeaderMap::new())).flatten();
                    match wait {
                        Some(wait) => {
                            client.wait_for(self.send_after(wait), Some(splicer.keep_alive_bytes())).await??
                        }
                        None if broken.error_bytes.is_empty() => {
                            let why = broke.unwrap_or_else(|| "the answer could not be continued".into());
                            return Err(RoundFailure::fault(why).into());
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

    /// Forwards one round as it comes. Returns why it broke off, if it did.
    async fn forward(
        &mut self,
        opening: ResponseHead,
        splicer: &mut StreamSplicer,
        client: &mut ClientStream,
    ) -> Result<Option<String>, Interruption> {
        let stall = self.state.settings.timeouts.idle;
        for piece in opening.chunks {
            splicer.push(&piece, &mut client.held);
        }
        let mut rest = opening.remaining;
        loop {
            client.forward(splicer.shows_output()).await?;
            if let Some(end) = splicer.take_end() {
                // The client may send its next request as soon as it has these bytes.
                self.record(end.mixed.as_ref(), end.response_id.as_deref()).await;
                client.held.extend_from_slice(&end.bytes);
                client.flush().await?;
            }
            let body = match &mut rest {
                RemainingBody::Events(body) | RemainingBody::Opaque(body) => body,
                RemainingBody::Complete => return Ok(None),
                RemainingBody::Failed(why) => return Ok(Some(std::mem::take(why))),
            };
            // A later round may have begun long before the model has read its prompt.
            let keep_alive = (!self.hidden_rounds.is_empty()).then(|| splicer.keep_alive_bytes());
            match client.wait_for(next_chunk(body, stall), keep_alive).await? {
                Ok(Some(piece)) => splicer.push(&piece, &mut client.held),
                Ok(None) => return Ok(None),
                Err(why) => return Ok(Some(why)),
            }
        }
    }

    /// Answers the hidden calls of a round and sends the next one.
    async fn start_next_round(&mut self, asked: &InterceptedCalls) -> Result<ResponseHead, RoundFailure> {
        if self.hidden_rounds.len() >= MAX_ROUNDS {
            return Err(RoundFailure::fault("the model does not stop unfolding"));
        }
        let answers = self.answer_calls(asked).await;
        let answers = self.truncated_answers(answers);
        let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
        let longer = Request::parse(self.format, &self.prepared.unfolded_body).and_then(|request| {
            let before = request.conversation().messages.len();
            let elements = asked.continuation(&answers).into_iter();
            request.splice(&elements.map(|json| RequestEdit::InsertJson { before, json }).collect::<Vec<_>>())
        });
        let longer = match longer {
            Ok(body) => Bytes::from(body.into_owned()),
            Err(error) => return Err(RoundFailure::fault(error.to_string())),
        };
        self.hidden_rounds.push(asked.hidden_round(&answers));
        // A later round is folded as the client's next request will be, so that both begin alike.
        self.job = Arc::new(FoldJob { body: longer.clone(), history: HistoryView::Model, ..FoldJob::clone(&self.job) });
        match fold_blocking(&self.state, Some(&self.job), None).await {
            Some(folded) => self.use_prepared(folded),
            None => (self.request.body, self.prepared.unfolded_body) = (with_unfold_tool(self.format, &longer), longer),
        }
        self.retries = RetryBudget::new();
        self.send().await
    }

    fn use_prepared(&mut self, folded: PreparedRequest) {
        self.request.body = folded.body.clone().unwrap_or_else(|| with_unfold_tool(self.format, &folded.unfolded_body));
        self.prepared = folded;
    }

    /// The answers as far as there is room for them. A quarter of the window can be had by a crease.
    fn truncated_answers(&self, answers: Vec<String>) -> Vec<String> {
        let PreparedRequest { budget, sent_tokens: sent, model, .. } = &self.prepared;
        let mut room = budget.saturating_sub(*sent).max(budget / 4);
        let fitted = answers.into_iter().map(|answer| {
            let answer = tool::truncated(answer, room, &model.meter);
            room = room.saturating_sub(model.meter.text(&answer));
            answer
        });
        fitted.collect()
    }

    async fn send_after(&mut self, wait: Duration) -> Result<ResponseHead, RoundFailure> {
        tokio::time::sleep(wait).await;
        self.send().await
    }

    /// Sends the round; again, folded more, when the prompt does not fit, and again after a while when the provider
    /// fails for a reason that passes.
    async fn send(&mut self) -> Result<ResponseHead, RoundFailure> {
        let stall = self.state.settings.timeouts.idle;
        let mut tries = 0;
        loop {
            let failure = match self.state.client.send(&self.request).await {
                Ok(answered) => {
                    let mut opening = ResponseHead::read(answered, self.format, true, stall).await;
                    if let Some(overflow) = opening.overflow.filter(|overflow| tries < retries(*overflow)) {
                        tries += 1;
                        if let Some(tighter) =
                            self.state.refold_after_overflow(Some(&self.job), Some(&self.prepared), overflow).await
                        {
                            self.use_prepared(tighter);
                            continue;
                        }
                    }
                    match &mut opening.remaining {
                        RemainingBody::Failed(why) => RoundFailure::fault(std::mem::take(why)),
                        _ if opening.parts.status.is_success() => {
                            self.state.accepted(&self.prepared, &opening).await;
                            self.state.wait_for_sync(&self.prepared).await;
                            return Ok(opening);
                        }
                        _ => RoundFailure::Refused(Box::new(opening)),
                    }
                }
                Err(why) => RoundFailure::Fault(why.status(), why.to_string()),
            };
            let (status, error) = failure.error();
            let wait = match &failure {
                RoundFailure::Refused(opening) if error.is_temporary(Some(status.as_u16())) => {
                    self.retries.next_wait(&opening.parts.headers)
                }
                RoundFailure::Fault(StatusCode::BAD_GATEWAY, _) => self.retries.next_wait(&HeaderMap::new()),
                _ => None,
            };
            let Some(wait) = wait else {
                tracing::warn!(%status, %error, "a hidden round failed; the client gets the error");
                return Err(failure);
            };
            tracing::info!(%status, %error, ?wait, "a hidden round failed; it is sent again");
            tokio::time::sleep(wait).await;
        }
    }

    async fn answer_calls(&self, asked: &InterceptedCalls) -> Vec<String> {
        if self.hidden_rounds.len() >= MAX_SERVED_ROUNDS {
            return asked.calls.iter().map(|_| tool::ROUND_LIMIT_TEXT.to_owned()).collect();
        }
        let (calls, proxy, shelf) = (asked.calls.clone(), self.state.clone(), self.prepared.archive.clone());
        let held = self.prepared.held.clone();
        let count = calls.len();
        let looked_up = tokio::task::spawn_blocking(move || {
            calls.iter().map(|call| tool::answer_call(call, shelf.as_ref(), &held, &proxy.metrics)).collect()
        });
        looked_up.await.unwrap_or_else(|_| vec!["The archive could not be read.".to_owned(); count])
    }

    /// Records, once, what the client's copy of the answer lacks, and what may be unfolded after an answer that the
    /// provider stores. It is on disk when this returns.
    async fn record(&mut self, mixed: Option<&InterceptedCalls>, response_id: Option<&str>) {
        if std::mem::replace(&mut self.recorded, true) {
            return;
        }
        let stored_as = response_id.filter(|_| self.prepared.reported_id == ReportedId::Last).map(str::to_owned);
        let is_mixed = mixed.is_some();
        if let Some(mixed) = mixed {
            let answers = self.answer_calls(mixed).await;
            self.hidden_rounds.push(mixed.mixed_hidden_round(&answers.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        if self.hidden_rounds.is_empty() && stored_as.is_none() {
            return;
        }
        let (proxy, turn, gaps) = (self.state.clone(), self.job.clone(), self.hidden_rounds.clone());
        // What is hidden is about the client's own request, whatever was sent in later rounds.
        let folded = PreparedRequest { hidden_rounds: self.recorder.clone(), ..self.prepared.clone() };
        let recorded = tokio::task::spawn_blocking(move || {
            if let Some(id) = &stored_as {
                turn.record_handles(&proxy, &folded, id);
            }
            if !gaps.is_empty() {
                turn.record_hidden_rounds(&proxy, &folded, gaps, stored_as.as_deref().filter(|_| is_mixed));
            }
        })
        .await;
        if recorded.is_err() {
            self.state.metrics.count_internal_error("panic");
        }
    }

    fn finished(&self, usage: Option<Usage>) -> MaybeUsage {
        let rounds = if self.hidden_rounds.is_empty() { RoundCount::One } else { RoundCount::Several };
        Some(ResponseUsage { usage, rounds })
    }
}

/// A request with the tool of ours in it, and not folded.
fn with_unfold_tool(format: Format, body: &Bytes) -> Bytes {
    let request = Request::parse(format, body).map(|request| request.with_injected_tool(&UNFOLD_TOOL));
    request.and_then(|request| request.splice(&[])).map_or_else(|_| body.clone(), |it| it.into_owned().into())
}
