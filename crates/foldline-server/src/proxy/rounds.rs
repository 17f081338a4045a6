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

use super::backoff::RetryBudget;
use super::client_stream::{ClientGone, ClientStream};
use super::exchange::{fold, retries};
use super::opening::{Opening, Rest, next};
use super::relay::{AnswerOf, Answered, Client, Heard};
use super::server::Shared;
use super::turn::{Folded, Hidden, ToldBy, Turn};
use super::unfold::{self, OFFER};
use super::upstream::Outbound;

/// Rounds in which the model is given what it asks for.
const SERVED: usize = 4;
/// Rounds in all; a model that still asks then is stopped.
const MOST: usize = 8;

/// One answer.
pub(crate) struct Rounds {
    proxy: Arc<Shared>,
    format: Format,
    /// What the round that is running was asked with: the conversation as the model knows it, how it was
    /// folded, and the request.
    turn: Arc<Turn>,
    folded: Folded,
    outbound: Outbound,
    /// Where what the client will lack is remembered, and what it is.
    hidden: Hidden,
    gaps: Vec<HiddenRound>,
    /// It is recorded.
    recorded: bool,
    /// The attempts of the round that is running.
    retries: RetryBudget,
}

/// A round that gave no answer.
pub(crate) enum RoundFailure {
    /// The provider's own error response.
    Refused(Box<Opening>),
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
            RoundFailure::Refused(opening) => (opening.head.status, ApiError::parse(&opening.begun.concat())),
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

impl Rounds {
    pub(crate) fn new(proxy: Arc<Shared>, turn: Arc<Turn>, folded: Folded, outbound: Outbound) -> Self {
        let hidden = folded.hidden.clone();
        let retries = RetryBudget::new();
        let (gaps, recorded) = Default::default();
        Self { proxy, format: turn.format, turn, folded, outbound, retries, hidden, gaps, recorded }
    }

    /// Answers that come as bodies. Returns the body for the client, or why there is none; and what was paid.
    pub(crate) async fn whole(mut self, mut body: Bytes) -> (Result<Bytes, RoundFailure>, Heard) {
        let mut splicer = BodySplicer::new(self.format, OFFER.name).with_reported_id(self.folded.reported);
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
            let failure = match self.go_on(&asked).await {
                Ok(opening) if matches!(opening.rest, Rest::Nothing) => {
                    body = opening.begun.concat().into();
                    continue;
                }
                Ok(_) => RoundFailure::fault("the answer could not be continued"),
                Err(failure) => failure,
            };
            return (Err(failure), self.finished(splicer.usage()));
        }
    }

    /// Answers that come as streams. Returns why the client was shown nothing, if so; and what was paid.
    pub(crate) async fn streamed(mut self, opening: Opening, client: Client) -> (Option<RoundFailure>, Heard) {
        let mut splicer = StreamSplicer::new(self.format, OFFER.name).with_reported_id(self.folded.reported);
        let mut client = ClientStream::new(client, self.proxy.settings.patience.silence);
        let interruption = match self.stream(opening, &mut splicer, &mut client).await {
            Ok(heard) => return (None, heard),
            Err(interruption) => interruption,
        };
        // One round that was interrupted has no usage that can be relied on.
        let heard = if self.gaps.is_empty() { None } else { self.finished(splicer.usage()) };
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
        mut opening: Opening,
        splicer: &mut StreamSplicer,
        client: &mut ClientStream,
    ) -> Result<Heard, Interruption> {
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
                    client.wait_for(self.go_on(&asked), Some(splicer.keep_alive_bytes())).await??
                }
                // In the first round the client has seen what came. It is cut off as the proxy was; a
                // provider that ends without an end is the client's to judge, unless it lacks something.
                RoundOutcome::Interrupted(_) if self.gaps.is_empty() => {
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
        opening: Opening,
        splicer: &mut StreamSplicer,
        client: &mut ClientStream,
    ) -> Result<Option<String>, Interruption> {
        let stall = self.proxy.settings.patience.stall;
        for piece in opening.begun {
            splicer.push(&piece, &mut client.held);
        }
        let mut rest = opening.rest;
        loop {
            client.forward(splicer.shows_output()).await?;
            if let Some(end) = splicer.take_end() {
                // The client may send its next request as soon as it has these bytes.
                self.record(end.mixed.as_ref(), end.response_id.as_deref()).await;
                client.held.extend_from_slice(&end.bytes);
                client.flush().await?;
            }
            let body = match &mut rest {
                Rest::Events(body) | Rest::Unread(body) => body,
                Rest::Nothing => return Ok(None),
                Rest::Broken(why) => return Ok(Some(std::mem::take(why))),
            };
            // A later round may have begun long before the model has read its prompt.
            let keep_alive = (!self.gaps.is_empty()).then(|| splicer.keep_alive_bytes());
            match client.wait_for(next(body, stall), keep_alive).await? {
                Ok(Some(piece)) => splicer.push(&piece, &mut client.held),
                Ok(None) => return Ok(None),
                Err(why) => return Ok(Some(why)),
            }
        }
    }

    /// Answers the hidden calls of a round and sends the next one.
    async fn go_on(&mut self, asked: &InterceptedCalls) -> Result<Opening, RoundFailure> {
        if self.gaps.len() >= MOST {
            return Err(RoundFailure::fault("the model does not stop unfolding"));
        }
        let answers = self.answers(asked).await;
        let answers = self.fitted(answers);
        let answers: Vec<&str> = answers.iter().map(String::as_str).collect();
        let longer = Request::parse(self.format, &self.folded.known).and_then(|request| {
            let before = request.conversation().messages.len();
            let elements = asked.continuation(&answers).into_iter();
            request.splice(&elements.map(|json| RequestEdit::InsertJson { before, json }).collect::<Vec<_>>())
        });
        let longer = match longer {
            Ok(body) => Bytes::from(body.into_owned()),
            Err(error) => return Err(RoundFailure::fault(error.to_string())),
        };
        self.gaps.push(asked.hidden_round(&answers));
        // A later round is folded as the client's next request will be, so that both begin alike.
        self.turn = Arc::new(Turn { body: longer.clone(), told_by: ToldBy::Us, ..Turn::clone(&self.turn) });
        match fold(&self.proxy, Some(&self.turn), None).await {
            Some(folded) => self.ask(folded),
            None => (self.outbound.body, self.folded.known) = (offered(self.format, &longer), longer),
        }
        self.retries = RetryBudget::new();
        self.send().await
    }

    fn ask(&mut self, folded: Folded) {
        self.outbound.body = folded.body.clone().unwrap_or_else(|| offered(self.format, &folded.known));
        self.folded = folded;
    }

    /// The answers as far as there is room for them. A quarter of the window can be had by a crease.
    fn fitted(&self, answers: Vec<String>) -> Vec<String> {
        let Folded { budget, sent, model, .. } = &self.folded;
        let mut room = budget.saturating_sub(*sent).max(budget / 4);
        let fitted = answers.into_iter().map(|answer| {
            let answer = unfold::fitted(answer, room, &model.meter);
            room = room.saturating_sub(model.meter.text(&answer));
            answer
        });
        fitted.collect()
    }

    async fn send_after(&mut self, wait: Duration) -> Result<Opening, RoundFailure> {
        tokio::time::sleep(wait).await;
        self.send().await
    }

    /// Sends the round; again, folded more, when the prompt does not fit, and again after a while when the provider
    /// fails for a reason that passes.
    async fn send(&mut self) -> Result<Opening, RoundFailure> {
        let stall = self.proxy.settings.patience.stall;
        let mut tries = 0;
        loop {
            let failure = match self.proxy.providers.send(&self.outbound).await {
                Ok(answered) => {
                    let mut opening = Opening::of(answered, self.format, true, stall).await;
                    if let Some(overflow) = opening.overflow.filter(|overflow| tries < retries(*overflow)) {
                        tries += 1;
                        if let Some(tighter) = self.proxy.tighter(Some(&self.turn), Some(&self.folded), overflow).await
                        {
                            self.ask(tighter);
                            continue;
                        }
                    }
                    match &mut opening.rest {
                        Rest::Broken(why) => RoundFailure::fault(std::mem::take(why)),
                        _ if opening.head.status.is_success() => {
                            self.proxy.accepted(&self.folded, &opening).await;
                            self.proxy.settled(&self.folded).await;
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
                    self.retries.next_wait(&opening.head.headers)
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

    async fn answers(&self, asked: &InterceptedCalls) -> Vec<String> {
        if self.gaps.len() >= SERVED {
            return asked.calls.iter().map(|_| unfold::NO_MORE.to_owned()).collect();
        }
        let (calls, proxy, shelf) = (asked.calls.clone(), self.proxy.clone(), self.folded.journal.clone());
        let held = self.folded.held.clone();
        let count = calls.len();
        let looked_up = tokio::task::spawn_blocking(move || {
            calls.iter().map(|call| unfold::answer(call, shelf.as_ref(), &held, &proxy.metrics)).collect()
        });
        looked_up.await.unwrap_or_else(|_| vec!["The archive could not be read.".to_owned(); count])
    }

    /// Records, once, what the client's copy of the answer lacks, and what may be unfolded after an answer that the
    /// provider stores. It is on disk when this returns.
    async fn record(&mut self, mixed: Option<&InterceptedCalls>, response_id: Option<&str>) {
        if std::mem::replace(&mut self.recorded, true) {
            return;
        }
        let stored_as = response_id.filter(|_| self.folded.reported == ReportedId::Last).map(str::to_owned);
        let is_mixed = mixed.is_some();
        if let Some(mixed) = mixed {
            let answers = self.answers(mixed).await;
            self.gaps.push(mixed.mixed_hidden_round(&answers.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        if self.gaps.is_empty() && stored_as.is_none() {
            return;
        }
        let (proxy, turn, gaps) = (self.proxy.clone(), self.turn.clone(), self.gaps.clone());
        // What is hidden is about the client's own request, whatever was sent in later rounds.
        let folded = Folded { hidden: self.hidden.clone(), ..self.folded.clone() };
        let recorded = tokio::task::spawn_blocking(move || {
            if let Some(id) = &stored_as {
                turn.record_handles(&proxy, &folded, id);
            }
            if !gaps.is_empty() {
                turn.hide(&proxy, &folded, gaps, stored_as.as_deref().filter(|_| is_mixed));
            }
        })
        .await;
        if recorded.is_err() {
            self.proxy.metrics.fault("panic");
        }
    }

    fn finished(&self, usage: Option<Usage>) -> Heard {
        let rounds = if self.gaps.is_empty() { AnswerOf::One } else { AnswerOf::Several };
        Some(Answered { usage, rounds })
    }
}

/// A request with the tool of ours in it, and not folded.
fn offered(format: Format, body: &Bytes) -> Bytes {
    let request = Request::parse(format, body).map(|request| request.with_injected_tool(&OFFER));
    request.and_then(|request| request.splice(&[])).map_or_else(|_| body.clone(), |it| it.into_owned().into())
}
