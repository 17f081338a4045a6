//! One request and its answer, from end to end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use foldline::wire::{ContextOverflow, Format};
use foldline::{CancelFlag, Tokens};
use hyper::StatusCode;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use hyper::http::request::Parts;
use hyper::http::response;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::OwnedSemaphorePermit;

use super::decision::Again;
use super::headers::{self, Sent};
use super::inbound::{Inbound, Unread};
use super::learned::CountVerdict;
use super::opening::{Opening, Rest};
use super::relay::{AnswerOf, Heard, piped_once_begun, relay};
use super::rounds::{RoundFailure, Rounds};
use super::route::{Kind, Route, Side};
use super::server::Shared;
use super::settings::{Mode, Upstream};
use super::turn::{Folded, MAX_SESSION_NAME_BYTES, ToldBy, Turn};
use super::upstream::Outbound;
use super::{answer, metrics, own, summaries};

/// How often a prompt that does not fit is folded more and sent again.
const MAX_RETRIES: u32 = 2;

/// Returns how often a refused prompt is folded more and sent again: what only may be an overflow deserves one attempt.
pub(crate) fn retries(overflow: ContextOverflow) -> u32 {
    if overflow.evidence.is_strict() { MAX_RETRIES } else { 1 }
}

/// Answers a request, whatever it is.
pub(crate) async fn exchange(State(proxy): State<Arc<Shared>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let Some(admission) = proxy.door.admit(&mut parts, own::BELOW) else {
        return answer::fault(None, StatusCode::UNAUTHORIZED, "show the token in the header x-foldline-token");
    };
    parts.extensions.insert(admission);
    if parts.uri.path().starts_with(own::BELOW) {
        return own::answer(proxy, parts).await;
    }
    let Ok(turn) = proxy.turns.clone().acquire_owned().await else {
        return answer::fault(None, StatusCode::SERVICE_UNAVAILABLE, "shutting down");
    };
    let open = OpenRequest::new(proxy.metrics.open.clone(), turn);
    let route = Route::of(&parts);
    let going = Going { side: route.side, path: route.path.to_owned(), kind: route.kind };
    let response = match going.kind {
        Kind::Turn(format) | Kind::Count(format) => proxy.turn(format, going, parts, body).await,
        Kind::WebSocket => {
            let why = "speak HTTP: a conversation that comes in pieces can not be folded";
            answer::fault(None, StatusCode::UPGRADE_REQUIRED, why)
        }
        Kind::Other => proxy.pass(&going, parts, body).await,
    };
    response.map(|body| Body::new(Attended { body, _open: open }))
}

/// Where a request goes, with its path and query there.
struct Going {
    side: Side,
    path: String,
    kind: Kind,
}

impl Shared {
    pub(crate) fn upstream(&self, side: Side) -> &Upstream {
        match side {
            Side::OpenAi => &self.settings.openai,
            Side::Anthropic => &self.settings.anthropic,
        }
    }

    /// Passes a request and its answer through as they come.
    async fn pass(&self, going: &Going, mut parts: Parts, body: Body) -> Response {
        self.metrics.requests.get_or_create(&metrics::Outcome { format: "other", sent: "passed" }).inc();
        let Ok(uri) = self.upstream(going.side).uri(&going.path) else {
            return answer::fault(None, StatusCode::BAD_REQUEST, "the path is not one of a URL");
        };
        headers::to_provider(&mut parts.headers);
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = parts.headers;
        match self.providers.pass(request).await {
            Ok(answered) => forwarded(answered.map(Body::new)),
            Err(why) => answer::unanswered(None, &why),
        }
    }

    /// Answers a request that carries a conversation.
    async fn turn(self: Arc<Self>, format: Format, route: Going, mut parts: Parts, body: Body) -> Response {
        let (limit, patience) = (self.settings.limits.body, self.settings.patience);
        let inbound = match Inbound::read(&parts.headers, body, limit, patience.client, &self.room).await {
            Ok(inbound) => inbound,
            Err(why) => {
                if why == Unread::Full {
                    self.metrics.refused.inc();
                }
                return answer::unread(Some(format), why, limit);
            }
        };
        let came = Instant::now();
        let Ok(uri) = self.upstream(route.side).uri(&route.path) else {
            return answer::fault(Some(format), StatusCode::BAD_REQUEST, "the path is not one of a URL");
        };
        let turn = self.read_turn(format, route.side, &parts, &inbound);
        let mut folded = fold(&self, turn.as_ref(), None).await;
        if self.discover(route.side, folded.as_ref(), &parts.headers).await {
            folded = fold(&self, turn.as_ref(), None).await;
        }
        if matches!(route.kind, Kind::Turn(_)) {
            self.summarise(turn.as_ref(), &mut folded, &parts.headers, &uri).await;
        }

        let (body, form) = self.to_send(folded.as_ref(), &inbound);
        headers::to_provider_read(&mut parts.headers, form);
        let mut outbound = Outbound { method: parts.method, uri, headers: parts.headers, body };
        let sent = if form == Sent::AsCame { "as_came" } else { "folded" };
        if matches!(route.kind, Kind::Turn(_)) {
            self.metrics.sent(format.name(), sent, came.elapsed());
            self.count(folded.as_ref(), form);
        }
        let may_retry = self.settings.mode == Mode::Fold && folded.is_some();
        let mut tries = 0;
        let opening = loop {
            let opening = match self.providers.send(&outbound).await {
                Ok(answered) => Opening::of(answered, format, may_retry, patience.stall).await,
                Err(why) => return answer::unanswered(Some(format), &why),
            };
            let refused = opening.overflow.filter(|overflow| may_retry && tries < retries(*overflow));
            let Some(overflow) = refused else { break opening };
            let Some(tighter) = self.tighter(turn.as_ref(), folded.as_ref(), overflow).await else { break opening };
            tries += 1;
            outbound.headers.remove(CONTENT_ENCODING);
            outbound.body = tighter.body.clone().unwrap_or_else(|| inbound.sent.clone());
            folded = Some(tighter);
        };
        if let Some(folded) = &folded {
            // A prompt whose tokens are only counted may be larger than the window.
            if matches!(route.kind, Kind::Turn(_)) {
                self.accepted(folded, &opening).await;
            }
            self.settled(folded).await;
        }
        self.reply(opening, turn, folded, outbound, format).await
    }

    /// Takes note of an answer that is not a refusal: the budget of a retry holds for its conversation, and a learned
    /// limit below the prompt is dropped.
    pub(crate) async fn accepted(&self, folded: &Folded, opening: &Opening) {
        if !opening.head.status.is_success() || opening.overflow.is_some() {
            return;
        }
        folded.model.accepted(if self.settings.mode == Mode::Fold { folded.sent } else { folded.raw });
        if let Some(tight) = folded.tight.clone() {
            // It goes to the archive.
            let _ = tokio::task::spawn_blocking(move || tight.hold()).await;
        }
    }

    /// Waits until what was folded is on disk. That goes on while the provider reads the prompt, so that there is seldom
    /// anything left to wait for.
    pub(crate) async fn settled(&self, folded: &Folded) {
        let Some(settling) = folded.settling.clone() else { return };
        let settled = tokio::task::spawn_blocking(move || settling.wait()).await;
        if let Ok(Err(error)) = settled {
            self.metrics.fault("not_on_disk");
            tracing::warn!(%error, "originals are written, but may not survive a loss of power");
        }
    }

    /// Takes note of how much of a prompt was sent.
    fn count(&self, folded: Option<&Folded>, form: Sent) {
        let Some(folded) = folded else { return };
        self.metrics.raw_tokens.inc_by(folded.raw);
        if form == Sent::AsCame {
            self.metrics.sent_tokens.inc_by(folded.raw);
            if self.settings.mode == Mode::Observe {
                self.metrics.observed_tokens.inc_by(folded.sent);
            }
            return;
        }
        self.metrics.sent_tokens.inc_by(folded.sent);
        // What is no longer there would have been read from the provider's cache.
        let saved = folded.model.prices.read * folded.raw.saturating_sub(folded.sent) as f64;
        self.metrics.saved.inc_by(folded.model.prices.dollars(saved));
    }

    /// Folds a turn that did not fit again, to what the provider has taught; none when it can not be
    /// folded any more.
    pub(crate) async fn tighter(
        self: &Arc<Self>,
        turn: Option<&Arc<Turn>>,
        folded: Option<&Folded>,
        overflow: ContextOverflow,
    ) -> Option<Folded> {
        let folded = folded?;
        self.metrics.overflows.inc();
        let at_most = folded.model.overflowed(overflow, folded.sent, folded.max_output);
        let (limit, evidence) = (overflow.limit_tokens, overflow.evidence);
        tracing::info!(model = folded.model_name, sent = folded.sent, limit, ?evidence, at_most, "did not fit");
        let tighter = fold(self, turn, Some(Again::Tighter(at_most))).await?;
        (tighter.body.is_some() && tighter.sent < folded.sent).then_some(tighter)
    }

    /// The turn that a request is, unless it is to go out as it came, can not be read, or belongs to no tenant.
    fn read_turn(&self, format: Format, side: Side, parts: &Parts, inbound: &Inbound) -> Option<Arc<Turn>> {
        let headers = &parts.headers;
        let bypassed = headers.get(headers::BYPASS).is_some_and(|it| it == "1" || it == "true");
        if self.settings.mode == Mode::Off || bypassed {
            return None;
        }
        let session = headers.get(headers::SESSION).and_then(|it| it.to_str().ok());
        let session = session.map(|name| name[..name.floor_char_boundary(MAX_SESSION_NAME_BYTES)].to_owned());
        let body = inbound.plain.clone()?;
        let shelf = self.shelf(parts).ok()?;
        let tenant = self.tenant(parts).ok()?;
        Some(Arc::new(Turn { format, side, tenant, body, told_by: ToldBy::Client, shelf, session }))
    }

    /// The bytes that are sent for a turn, and their form.
    fn to_send(&self, folded: Option<&Folded>, inbound: &Inbound) -> (Bytes, Sent) {
        match folded.and_then(|folded| folded.body.clone()) {
            Some(body) if self.settings.mode == Mode::Fold => (body, Sent::Decoded),
            _ => (inbound.sent.clone(), Sent::AsCame),
        }
    }

    /// The answer for the client; what is read of it is counted when it is over.
    async fn reply(
        self: Arc<Self>,
        mut opening: Opening,
        turn: Option<Arc<Turn>>,
        folded: Option<Folded>,
        outbound: Outbound,
        format: Format,
    ) -> Response {
        let mut head = to_client(&opening.head, folded.as_ref());
        let stall = self.settings.patience.stall;
        let (Some(turn), Some(folded)) = (turn, folded) else {
            return Response::from_parts(head, relay(opening, format, stall, |_| ()));
        };
        if !folded.offered || !head.status.is_success() {
            // Nothing will be asked again, so that nobody needs the bodies while the answer goes on.
            let folded = Folded { body: None, known: Bytes::new(), ..folded };
            let body = relay(opening, format, stall, move |heard| self.account(&folded, heard));
            return Response::from_parts(head, body);
        }
        // The body is another than the provider's when something in it is hidden.
        head.headers.remove(CONTENT_LENGTH);
        let rounds = Rounds::new(self.clone(), turn, folded.clone(), outbound);
        if matches!(opening.rest, Rest::Nothing) && opening.begun.len() == 1 && !opening.streams() {
            let whole = opening.begun.pop().unwrap_or_default();
            let (answer, heard) = rounds.whole(whole).await;
            self.account(&folded, heard);
            return match answer {
                Ok(body) => Response::from_parts(head, Body::from(body)),
                Err(failure) => refused(failure, &folded, format, stall),
            };
        }
        let (proxy, first) = (self, folded.clone());
        let body = piped_once_begun(|client| async move {
            let (failure, heard) = rounds.streamed(opening, client).await;
            proxy.account(&first, heard);
            failure
        });
        match body.await {
            Ok(body) => Response::from_parts(head, body),
            Err(failure) => {
                let unknown = || RoundFailure::fault("the answer could not be continued");
                refused(failure.unwrap_or_else(unknown), &folded, format, stall)
            }
        }
    }

    /// Takes note of what an answer cost.
    fn account(&self, folded: &Folded, heard: Heard) {
        let Some((usage, rounds)) = heard.and_then(|heard| Some((heard.usage?, heard.rounds))) else { return };
        for (of, tokens) in [
            ("input", usage.input),
            ("output", usage.output),
            ("cache_read", usage.cache_read.unwrap_or(0)),
            ("cache_write", usage.cache_write.unwrap_or(0)),
        ] {
            self.metrics.usage.get_or_create(&metrics::Direction { of }).inc_by(tokens);
        }
        let ours = if self.settings.mode == Mode::Fold { folded.sent } else { folded.raw };
        if rounds == AnswerOf::One {
            self.compare_counts(folded, ours, usage.context_tokens());
        }
        if let Some(journal) = &folded.journal {
            let payload = serde_json::to_vec(&usage).unwrap_or_default();
            let (model, folds) = (folded.model_name.clone(), folded.folds);
            let (raw_tokens, sent_tokens) = (folded.raw, folded.sent);
            let note =
                foldline_archive::Request { model, raw_tokens, sent_tokens, folds, payload, ..Default::default() };
            // The journal is for reading; nothing depends on it.
            let _ = journal.note_request(&note);
        }
    }
}

impl Shared {
    /// Compares the reported count of a prompt with ours, and logs what follows from it.
    fn compare_counts(&self, folded: &Folded, sent: Tokens, reported: Tokens) {
        let model = &folded.model_name;
        match folded.model.compare(sent, reported) {
            CountVerdict::Accepted | CountVerdict::Implausible { first: false } => {}
            CountVerdict::Implausible { first: true } => tracing::warn!(
                model,
                sent,
                reported,
                "the reported prompt tokens cannot be those of the prompt and are ignored; set --window if it is not the table's"
            ),
            CountVerdict::Truncated(window) => {
                self.metrics.fault("truncated_by_server");
                tracing::warn!(
                    model,
                    sent,
                    reported,
                    window,
                    "the server truncates prompts: its count stays the same while they grow; folding to this window"
                );
            }
        }
    }
}

/// Folds a turn off the threads that serve connections. The fold is cancelled when this future is dropped, because the
/// client has left. A panic in it is a fault of ours like any other.
pub(crate) async fn fold(proxy: &Arc<Shared>, turn: Option<&Arc<Turn>>, again: Option<Again>) -> Option<Folded> {
    let (proxy, turn) = (proxy.clone(), turn?.clone());
    let metrics = proxy.clone();
    let dropped = CancelOnDrop(CancelFlag::default());
    let cancel = dropped.0.clone();
    let folding = tokio::task::spawn_blocking(move || turn.fold(&proxy, again, &cancel)).await;
    folding.unwrap_or_else(|error| {
        metrics.metrics.fault("panic");
        tracing::error!(%error, "folding broke down; sent as it came");
        None
    })
}

/// Returns the head of an answer as the client gets it.
fn to_client(head: &response::Parts, folded: Option<&Folded>) -> response::Parts {
    let mut head = head.clone();
    headers::to_client(&mut head.headers);
    // Versions are those of each connection.
    head.version = hyper::Version::default();
    if let Some(folded) = folded {
        let mut insert = |name: &'static str, value: String| {
            head.headers.insert(name, value.parse().expect("numbers and commas are a header's value"));
        };
        insert("x-foldline-tokens", format!("{},{}", folded.raw, folded.sent));
        insert("x-foldline-folds", folded.folds.to_string());
        if let Some(spent) = summaries::header(&folded.hidden.facts.spent()) {
            insert("x-foldline-summaries", spent);
        }
    }
    head
}

/// Returns the response to a client that was shown nothing before a hidden round failed: the provider's own, if there
/// is one.
fn refused(failure: RoundFailure, folded: &Folded, format: Format, stall: Duration) -> Response {
    match failure {
        RoundFailure::Refused(opening) => {
            let head = to_client(&opening.head, Some(folded));
            Response::from_parts(head, relay(*opening, format, stall, |_| ()))
        }
        RoundFailure::Fault(status, why) => answer::fault(Some(format), status, &why),
    }
}

/// Sets a flag when it is dropped.
struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// An answer as the client gets it.
fn forwarded(answered: Response<Body>) -> Response {
    let (mut parts, body) = answered.into_parts();
    headers::to_client(&mut parts.headers);
    // Versions are those of each connection.
    parts.version = hyper::Version::default();
    Response::from_parts(parts, body)
}

/// A request that is being answered, counted until it is dropped.
struct OpenRequest {
    open: Gauge,
    _turn: OwnedSemaphorePermit,
}

impl OpenRequest {
    fn new(open: Gauge, turn: OwnedSemaphorePermit) -> Self {
        open.inc();
        Self { open, _turn: turn }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// A body that gives its turn back when it ends, or when nobody wants it any more.
struct Attended {
    body: Body,
    _open: OpenRequest,
}

impl http_body::Body for Attended {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
