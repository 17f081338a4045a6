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

use crate::proxy::admin::{metrics, routes};
use crate::proxy::downstream::error_response;
use crate::proxy::downstream::headers;
use crate::proxy::downstream::headers::BodyForm;
use crate::proxy::downstream::listener::AppState;
use crate::proxy::downstream::request_body::{BodyError, RequestBody};
use crate::proxy::downstream::route::{RequestKind, RequestRoute, UpstreamKind};
use crate::proxy::fold::job::{FoldJob, HistoryView, MAX_SESSION_NAME_BYTES, PreparedRequest};
use crate::proxy::fold::prepare::Refold;
use crate::proxy::fold::summaries;
use crate::proxy::settings::{ProxyMode, UpstreamUrl};
use crate::proxy::unfold_tool::rounds::{RoundFailure, UnfoldRounds};
use crate::proxy::upstream::client::UpstreamRequest;
use crate::proxy::upstream::learned_window::CountVerdict;
use crate::proxy::upstream::relay::{MaybeUsage, RoundCount, piped_once_begun, relay};
use crate::proxy::upstream::response_head::{RemainingBody, ResponseHead};

/// How often a prompt that does not fit is folded more and sent again.
const MAX_RETRIES: u32 = 2;

/// Returns how often a refused prompt is folded more and sent again: what only may be an overflow deserves one attempt.
pub(crate) fn retries(overflow: ContextOverflow) -> u32 {
    if overflow.evidence.is_strict() { MAX_RETRIES } else { 1 }
}

/// Answers a request, whatever it is.
pub(crate) async fn handle_request(State(proxy): State<Arc<AppState>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let Some(admission) = proxy.auth.admit(&mut parts, routes::ADMIN_PREFIX) else {
        return error_response::json_error(
            None,
            StatusCode::UNAUTHORIZED,
            "show the token in the header x-foldline-token",
        );
    };
    parts.extensions.insert(admission);
    if parts.uri.path().starts_with(routes::ADMIN_PREFIX) {
        return routes::handle_admin_request(proxy, parts).await;
    }
    let Ok(turn) = proxy.request_permits.clone().acquire_owned().await else {
        return error_response::json_error(None, StatusCode::SERVICE_UNAVAILABLE, "shutting down");
    };
    let open = OpenRequest::new(proxy.metrics.open_requests.clone(), turn);
    let route = RequestRoute::for_request(&parts);
    let going = OwnedRoute { upstream: route.upstream, path: route.path.to_owned(), kind: route.kind };
    let response = match going.kind {
        RequestKind::Turn(format) | RequestKind::CountTokens(format) => {
            proxy.handle_conversation(format, going, parts, body).await
        }
        RequestKind::WebSocket => {
            let why = "speak HTTP: a conversation that comes in pieces can not be folded";
            error_response::json_error(None, StatusCode::UPGRADE_REQUIRED, why)
        }
        RequestKind::Other => proxy.forward_unmodified(&going, parts, body).await,
    };
    response.map(|body| Body::new(TrackedBody { body, _open: open }))
}

/// Where a request goes, with its path and query there.
struct OwnedRoute {
    upstream: UpstreamKind,
    path: String,
    kind: RequestKind,
}

impl AppState {
    pub(crate) fn upstream(&self, side: UpstreamKind) -> &UpstreamUrl {
        match side {
            UpstreamKind::OpenAi => &self.settings.openai,
            UpstreamKind::Anthropic => &self.settings.anthropic,
        }
    }

    /// Passes a request and its answer through as they come.
    async fn forward_unmodified(&self, going: &OwnedRoute, mut parts: Parts, body: Body) -> Response {
        self.metrics.requests.get_or_create(&metrics::RequestLabels { format: "other", sent: "passed" }).inc();
        let Ok(uri) = self.upstream(going.upstream).uri(&going.path) else {
            return error_response::json_error(None, StatusCode::BAD_REQUEST, "the path is not one of a URL");
        };
        headers::prepare_for_upstream(&mut parts.headers);
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = parts.headers;
        match self.client.send_once(request).await {
            Ok(answered) => client_response(answered.map(Body::new)),
            Err(why) => error_response::upstream_error(None, &why),
        }
    }

    /// Answers a request that carries a conversation.
    async fn handle_conversation(
        self: Arc<Self>,
        format: Format,
        route: OwnedRoute,
        mut parts: Parts,
        body: Body,
    ) -> Response {
        let (limit, patience) = (self.settings.limits.body_bytes, self.settings.timeouts);
        let inbound =
            match RequestBody::read(&parts.headers, body, limit, patience.client_read, &self.body_budget).await {
                Ok(inbound) => inbound,
                Err(why) => {
                    if why == BodyError::BudgetExhausted {
                        self.metrics.refused_bodies.inc();
                    }
                    return error_response::body_error(Some(format), why, limit);
                }
            };
        let came = Instant::now();
        let Ok(uri) = self.upstream(route.upstream).uri(&route.path) else {
            return error_response::json_error(Some(format), StatusCode::BAD_REQUEST, "the path is not one of a URL");
        };
        let turn = self.new_fold_job(format, route.upstream, &parts, &inbound);
        let mut folded = fold_blocking(&self, turn.as_ref(), None).await;
        if self.probe_window(route.upstream, folded.as_ref(), &parts.headers).await {
            folded = fold_blocking(&self, turn.as_ref(), None).await;
        }
        if matches!(route.kind, RequestKind::Turn(_)) {
            self.summarize_if_due(turn.as_ref(), &mut folded, &parts.headers, &uri).await;
        }

        let (body, form) = self.outgoing_body(folded.as_ref(), &inbound);
        headers::prepare_buffered_for_upstream(&mut parts.headers, form);
        let mut outbound = UpstreamRequest { method: parts.method, uri, headers: parts.headers, body };
        let sent = if form == BodyForm::Unmodified { "as_came" } else { "folded" };
        if matches!(route.kind, RequestKind::Turn(_)) {
            self.metrics.record_request(format.name(), sent, came.elapsed());
            self.record_prompt_tokens(folded.as_ref(), form);
        }
        let may_retry = self.settings.mode == ProxyMode::Fold && folded.is_some();
        let mut tries = 0;
        let opening = loop {
            let opening = match self.client.send(&outbound).await {
                Ok(answered) => ResponseHead::read(answered, format, may_retry, patience.idle).await,
                Err(why) => return error_response::upstream_error(Some(format), &why),
            };
            let refused = opening.overflow.filter(|overflow| may_retry && tries < retries(*overflow));
            let Some(overflow) = refused else { break opening };
            let Some(tighter) = self.refold_after_overflow(turn.as_ref(), folded.as_ref(), overflow).await else {
                break opening;
            };
            tries += 1;
            outbound.headers.remove(CONTENT_ENCODING);
            outbound.body = tighter.body.clone().unwrap_or_else(|| inbound.raw.clone());
            folded = Some(tighter);
        };
        if let Some(folded) = &folded {
            // A prompt whose tokens are only counted may be larger than the window.
            if matches!(route.kind, RequestKind::Turn(_)) {
                self.accepted(folded, &opening).await;
            }
            self.wait_for_sync(folded).await;
        }
        self.reply(opening, turn, folded, outbound, format).await
    }

    /// Takes note of an answer that is not a refusal: the budget of a retry holds for its conversation, and a learned
    /// limit below the prompt is dropped.
    pub(crate) async fn accepted(&self, folded: &PreparedRequest, opening: &ResponseHead) {
        if !opening.parts.status.is_success() || opening.overflow.is_some() {
            return;
        }
        folded.model.accepted(if self.settings.mode == ProxyMode::Fold {
            folded.sent_tokens
        } else {
            folded.received_tokens
        });
        if let Some(tight) = folded.tight.clone() {
            // It goes to the archive.
            let _ = tokio::task::spawn_blocking(move || tight.hold()).await;
        }
    }

    /// Waits until what was folded is on disk. That goes on while the provider reads the prompt, so that there is seldom
    /// anything left to wait for.
    pub(crate) async fn wait_for_sync(&self, folded: &PreparedRequest) {
        let Some(settling) = folded.pending_sync.clone() else { return };
        let settled = tokio::task::spawn_blocking(move || settling.wait()).await;
        if let Ok(Err(error)) = settled {
            self.metrics.count_internal_error("not_on_disk");
            tracing::warn!(%error, "originals are written, but may not survive a loss of power");
        }
    }

    /// Takes note of how much of a prompt was sent.
    fn record_prompt_tokens(&self, folded: Option<&PreparedRequest>, form: BodyForm) {
        let Some(folded) = folded else { return };
        self.metrics.received_tokens.inc_by(folded.received_tokens);
        if form == BodyForm::Unmodified {
            self.metrics.sent_tokens.inc_by(folded.received_tokens);
            if self.settings.mode == ProxyMode::Observe {
                self.metrics.would_send_tokens.inc_by(folded.sent_tokens);
            }
            return;
        }
        self.metrics.sent_tokens.inc_by(folded.sent_tokens);
        // What is no longer there would have been read from the provider's cache.
        let saved = folded.model.prices.read * folded.received_tokens.saturating_sub(folded.sent_tokens) as f64;
        self.metrics.saved_usd.inc_by(folded.model.prices.dollars(saved));
    }

    /// Folds a turn that did not fit again, to what the provider has taught; none when it can not be
    /// folded any more.
    pub(crate) async fn refold_after_overflow(
        self: &Arc<Self>,
        turn: Option<&Arc<FoldJob>>,
        folded: Option<&PreparedRequest>,
        overflow: ContextOverflow,
    ) -> Option<PreparedRequest> {
        let folded = folded?;
        self.metrics.overflows.inc();
        let at_most = folded.model.learn_from_overflow(overflow, folded.sent_tokens, folded.max_output);
        let (limit, evidence) = (overflow.limit_tokens, overflow.evidence);
        tracing::info!(model = folded.model_name, sent = folded.sent_tokens, limit, ?evidence, at_most, "did not fit");
        let tighter = fold_blocking(self, turn, Some(Refold::WithBudget(at_most))).await?;
        (tighter.body.is_some() && tighter.sent_tokens < folded.sent_tokens).then_some(tighter)
    }

    /// The turn that a request is, unless it is to go out as it came, can not be read, or belongs to no tenant.
    fn new_fold_job(
        &self,
        format: Format,
        side: UpstreamKind,
        parts: &Parts,
        inbound: &RequestBody,
    ) -> Option<Arc<FoldJob>> {
        let headers = &parts.headers;
        let bypassed = headers.get(headers::BYPASS).is_some_and(|it| it == "1" || it == "true");
        if self.settings.mode == ProxyMode::Off || bypassed {
            return None;
        }
        let session = headers.get(headers::SESSION).and_then(|it| it.to_str().ok());
        let session = session.map(|name| name[..name.floor_char_boundary(MAX_SESSION_NAME_BYTES)].to_owned());
        let body = inbound.decoded.clone()?;
        let shelf = self.tenant_archive(parts).ok()?;
        let tenant = self.tenant(parts).ok()?;
        Some(Arc::new(FoldJob {
            format,
            upstream: side,
            tenant,
            body,
            history: HistoryView::Client,
            archive: shelf,
            session,
        }))
    }

    /// The bytes that are sent for a turn, and their form.
    fn outgoing_body(&self, folded: Option<&PreparedRequest>, inbound: &RequestBody) -> (Bytes, BodyForm) {
        match folded.and_then(|folded| folded.body.clone()) {
            Some(body) if self.settings.mode == ProxyMode::Fold => (body, BodyForm::Decoded),
            _ => (inbound.raw.clone(), BodyForm::Unmodified),
        }
    }

    /// The answer for the client; what is read of it is counted when it is over.
    async fn reply(
        self: Arc<Self>,
        mut opening: ResponseHead,
        turn: Option<Arc<FoldJob>>,
        folded: Option<PreparedRequest>,
        outbound: UpstreamRequest,
        format: Format,
    ) -> Response {
        let mut head = to_client(&opening.parts, folded.as_ref());
        let stall = self.settings.timeouts.idle;
        let (Some(turn), Some(folded)) = (turn, folded) else {
            return Response::from_parts(head, relay(opening, format, stall, |_| ()));
        };
        if !folded.tool_offered || !head.status.is_success() {
            // Nothing will be asked again, so that nobody needs the bodies while the answer goes on.
            let folded = PreparedRequest { body: None, unfolded_body: Bytes::new(), ..folded };
            let body = relay(opening, format, stall, move |heard| self.record_usage(&folded, heard));
            return Response::from_parts(head, body);
        }
        // The body is another than the provider's when something in it is hidden.
        head.headers.remove(CONTENT_LENGTH);
        let rounds = UnfoldRounds::new(self.clone(), turn, folded.clone(), outbound);
        if matches!(opening.remaining, RemainingBody::Complete)
            && opening.chunks.len() == 1
            && !opening.is_event_stream()
        {
            let whole = opening.chunks.pop().unwrap_or_default();
            let (answer, heard) = rounds.run_buffered(whole).await;
            self.record_usage(&folded, heard);
            return match answer {
                Ok(body) => Response::from_parts(head, Body::from(body)),
                Err(failure) => refused(failure, &folded, format, stall),
            };
        }
        let (proxy, first) = (self, folded.clone());
        let body = piped_once_begun(|client| async move {
            let (failure, heard) = rounds.run_streamed(opening, client).await;
            proxy.record_usage(&first, heard);
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
    fn record_usage(&self, folded: &PreparedRequest, heard: MaybeUsage) {
        let Some((usage, rounds)) = heard.and_then(|heard| Some((heard.usage?, heard.rounds))) else { return };
        for (of, tokens) in [
            ("input", usage.input),
            ("output", usage.output),
            ("cache_read", usage.cache_read.unwrap_or(0)),
            ("cache_write", usage.cache_write.unwrap_or(0)),
        ] {
            self.metrics.reported_tokens.get_or_create(&metrics::TokenLabels { direction: of }).inc_by(tokens);
        }
        let ours = if self.settings.mode == ProxyMode::Fold { folded.sent_tokens } else { folded.received_tokens };
        if rounds == RoundCount::One {
            self.compare_counts(folded, ours, usage.context_tokens());
        }
        if let Some(journal) = &folded.archive {
            let payload = serde_json::to_vec(&usage).unwrap_or_default();
            let (model, folds) = (folded.model_name.clone(), folded.fold_count);
            let (raw_tokens, sent_tokens) = (folded.received_tokens, folded.sent_tokens);
            let note = foldline_archive::RequestRecord {
                model,
                raw_tokens,
                sent_tokens,
                folds,
                payload,
                ..Default::default()
            };
            // The journal is for reading; nothing depends on it.
            let _ = journal.append_request(&note);
        }
    }
}

impl AppState {
    /// Compares the reported count of a prompt with ours, and logs what follows from it.
    fn compare_counts(&self, folded: &PreparedRequest, sent: Tokens, reported: Tokens) {
        let model = &folded.model_name;
        match folded.model.observe_usage(sent, reported) {
            CountVerdict::Accepted | CountVerdict::Implausible { first: false } => {}
            CountVerdict::Implausible { first: true } => tracing::warn!(
                model,
                sent,
                reported,
                "the reported prompt tokens cannot be those of the prompt and are ignored; set --window if it is not the table's"
            ),
            CountVerdict::Truncated(window) => {
                self.metrics.count_internal_error("truncated_by_server");
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
pub(crate) async fn fold_blocking(
    proxy: &Arc<AppState>,
    turn: Option<&Arc<FoldJob>>,
    again: Option<Refold>,
) -> Option<PreparedRequest> {
    let (proxy, turn) = (proxy.clone(), turn?.clone());
    let metrics = proxy.clone();
    let dropped = CancelOnDrop(CancelFlag::default());
    let cancel = dropped.0.clone();
    let folding = tokio::task::spawn_blocking(move || turn.prepare(&proxy, again, &cancel)).await;
    folding.unwrap_or_else(|error| {
        metrics.metrics.count_internal_error("panic");
        tracing::error!(%error, "folding broke down; sent as it came");
        None
    })
}

/// Returns the head of an answer as the client gets it.
fn to_client(head: &response::Parts, folded: Option<&PreparedRequest>) -> response::Parts {
    let mut head = head.clone();
    headers::prepare_for_client(&mut head.headers);
    // Versions are those of each connection.
    head.version = hyper::Version::default();
    if let Some(folded) = folded {
        let mut insert = |name: &'static str, value: String| {
            head.headers.insert(name, value.parse().expect("numbers and commas are a header's value"));
        };
        insert("x-foldline-tokens", format!("{},{}", folded.received_tokens, folded.sent_tokens));
        insert("x-foldline-folds", folded.fold_count.to_string());
        if let Some(spent) = summaries::summary_header(&folded.hidden_rounds.facts.summary_cost()) {
            insert("x-foldline-summaries", spent);
        }
    }
    head
}

/// Returns the response to a client that was shown nothing before a hidden round failed: the provider's own, if there
/// is one.
fn refused(failure: RoundFailure, folded: &PreparedRequest, format: Format, stall: Duration) -> Response {
    match failure {
        RoundFailure::Refused(opening) => {
            let head = to_client(&opening.parts, Some(folded));
            Response::from_parts(head, relay(*opening, format, stall, |_| ()))
        }
        RoundFailure::Fault(status, why) => error_response::json_error(Some(format), status, &why),
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
fn client_response(answered: Response<Body>) -> Response {
    let (mut parts, body) = answered.into_parts();
    headers::prepare_for_client(&mut parts.headers);
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
struct TrackedBody {
    body: Body,
    _open: OpenRequest,
}

impl http_body::Body for TrackedBody {
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
