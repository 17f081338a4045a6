//! The request path: one request and its response, end to end.

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

use crate::proxy::admin::metrics::TokenStage;
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

/// Maximum number of times a prompt that does not fit is folded again and resent.
const MAX_RETRIES: u32 = 2;

/// Returns how often a refused prompt is folded again and resent: one attempt if the refusal may not be an overflow.
pub(crate) fn retries(overflow: ContextOverflow) -> u32 {
    if overflow.evidence.is_strict() { MAX_RETRIES } else { 1 }
}

/// Handles any request of a client.
pub(crate) async fn handle_request(State(proxy): State<Arc<AppState>>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let Some(admission) = proxy.auth.admit(&mut parts, routes::ADMIN_PREFIX) else {
        return error_response::json_error(
            None,
            StatusCode::UNAUTHORIZED,
            "missing or wrong token: send it in the header x-foldline-token",
        );
    };
    parts.extensions.insert(admission);
    if parts.uri.path().starts_with(routes::ADMIN_PREFIX) {
        return routes::handle_admin_request(proxy, parts).await;
    }
    let Ok(permit) = proxy.request_permits.clone().acquire_owned().await else {
        return error_response::json_error(None, StatusCode::SERVICE_UNAVAILABLE, "shutting down");
    };
    let open = OpenRequest::new(proxy.metrics.open_requests.clone(), permit);
    let route = RequestRoute::for_request(&parts);
    let route = OwnedRoute { upstream: route.upstream, path: route.path.to_owned(), kind: route.kind };
    let response = match route.kind {
        RequestKind::Turn(format) | RequestKind::CountTokens(format) => {
            proxy.handle_conversation(format, route, parts, body).await
        }
        RequestKind::WebSocket => {
            let reason = "WebSocket is not supported: use HTTP requests that carry the whole conversation";
            error_response::json_error(None, StatusCode::UPGRADE_REQUIRED, reason)
        }
        RequestKind::Other => proxy.forward_unmodified(&route, parts, body).await,
    };
    response.map(|body| Body::new(TrackedBody { body, _open: open }))
}

/// The upstream of a request, and its path and query there.
struct OwnedRoute {
    upstream: UpstreamKind,
    path: String,
    kind: RequestKind,
}

impl AppState {
    pub(crate) fn upstream(&self, kind: UpstreamKind) -> &UpstreamUrl {
        match kind {
            UpstreamKind::OpenAi => &self.settings.openai,
            UpstreamKind::Anthropic => &self.settings.anthropic,
        }
    }

    /// Forwards a request that is not a conversation, and its response, unmodified.
    async fn forward_unmodified(&self, route: &OwnedRoute, mut parts: Parts, body: Body) -> Response {
        self.metrics.requests.get_or_create(&metrics::RequestLabels { format: "other", sent: "passthrough" }).inc();
        let Ok(uri) = self.upstream(route.upstream).uri(&route.path) else {
            return error_response::json_error(None, StatusCode::BAD_REQUEST, "the path is not valid in a URL");
        };
        headers::prepare_for_upstream(&mut parts.headers);
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        *request.uri_mut() = uri;
        *request.headers_mut() = parts.headers;
        match self.client.send_once(request).await {
            Ok(response) => client_response(response.map(Body::new)),
            Err(error) => error_response::upstream_error(None, &error),
        }
    }

    /// Handles a request that carries a conversation.
    async fn handle_conversation(
        self: Arc<Self>,
        format: Format,
        route: OwnedRoute,
        mut parts: Parts,
        body: Body,
    ) -> Response {
        let (limit, timeouts) = (self.settings.limits.body_bytes, self.settings.timeouts);
        let inbound =
            match RequestBody::read(&parts.headers, body, limit, timeouts.client_read, &self.body_budget).await {
                Ok(inbound) => inbound,
                Err(error) => {
                    if error == BodyError::BudgetExhausted {
                        self.metrics.rejected_bodies.inc();
                    }
                    return error_response::body_error(Some(format), error, limit);
                }
            };
        let received_at = Instant::now();
        let Ok(uri) = self.upstream(route.upstream).uri(&route.path) else {
            return error_response::json_error(Some(format), StatusCode::BAD_REQUEST, "the path is not valid in a URL");
        };
        let job = self.new_fold_job(format, route.upstream, &parts, &inbound);
        let mut folded = fold_blocking(&self, job.as_ref(), None).await;
        if self.probe_window(route.upstream, folded.as_ref(), &parts.headers).await {
            folded = fold_blocking(&self, job.as_ref(), None).await;
        }
        if matches!(route.kind, RequestKind::Turn(_)) {
            self.summarize_if_due(job.as_ref(), &mut folded, &parts.headers, &uri).await;
        }

        let (body, form) = self.outgoing_body(folded.as_ref(), &inbound);
        headers::prepare_buffered_for_upstream(&mut parts.headers, form);
        let mut outbound = UpstreamRequest { method: parts.method, uri, headers: parts.headers, body };
        let sent = if form == BodyForm::Unmodified { "unmodified" } else { "folded" };
        if matches!(route.kind, RequestKind::Turn(_)) {
            self.metrics.record_request(format.name(), sent, received_at.elapsed());
            self.record_prompt_tokens(folded.as_ref(), form);
        }
        let may_retry = self.settings.mode == ProxyMode::Fold && folded.is_some();
        let mut tries = 0;
        let head = loop {
            let head = match self.client.send(&outbound).await {
                Ok(response) => ResponseHead::read(response, format, may_retry, timeouts.idle).await,
                Err(error) => return error_response::upstream_error(Some(format), &error),
            };
            let refused = head.overflow.filter(|overflow| may_retry && tries < retries(*overflow));
            let Some(overflow) = refused else { break head };
            let Some(tighter) = self.refold_after_overflow(job.as_ref(), folded.as_ref(), overflow).await else {
                break head;
            };
            tries += 1;
            outbound.headers.remove(CONTENT_ENCODING);
            outbound.body = tighter.body.clone().unwrap_or_else(|| inbound.raw.clone());
            folded = Some(tighter);
        };
        if let Some(folded) = &folded {
            // A request that only counts tokens may exceed the window.
            if matches!(route.kind, RequestKind::Turn(_)) {
                self.accepted(folded, &head).await;
            }
            self.wait_for_sync(folded).await;
        }
        self.reply(head, job, folded, outbound, format).await
    }

    /// Records a response that is not a refusal: the budget of a retry becomes a fact of its conversation, and a learned
    /// limit below the prompt is dropped.
    pub(crate) async fn accepted(&self, folded: &PreparedRequest, head: &ResponseHead) {
        if !head.parts.status.is_success() || head.overflow.is_some() {
            return;
        }
        folded.model.accepted(if self.settings.mode == ProxyMode::Fold {
            folded.sent_tokens
        } else {
            folded.received_tokens
        });
        if let Some(tight) = folded.tight.clone() {
            // Writes to the archive.
            let _ = tokio::task::spawn_blocking(move || tight.hold()).await;
        }
    }

    /// Waits until originals are on disk. The sync runs while the provider reads the prompt, so there is seldom anything
    /// left to wait for.
    pub(crate) async fn wait_for_sync(&self, folded: &PreparedRequest) {
        let Some(pending) = folded.pending_sync.clone() else { return };
        let synced = tokio::task::spawn_blocking(move || pending.wait()).await;
        if let Ok(Err(error)) = synced {
            self.metrics.count_internal_error("sync_failed");
            tracing::warn!(%error, "archive sync failed; new originals may be lost in a power failure");
        }
    }

    /// Records the tokens of a prompt as received and as sent.
    fn record_prompt_tokens(&self, folded: Option<&PreparedRequest>, form: BodyForm) {
        let Some(folded) = folded else { return };
        self.metrics.prompt_tokens(TokenStage::Received).inc_by(folded.received_tokens);
        if form == BodyForm::Unmodified {
            self.metrics.prompt_tokens(TokenStage::Sent).inc_by(folded.received_tokens);
            if self.settings.mode == ProxyMode::Observe {
                self.metrics.prompt_tokens(TokenStage::WouldSend).inc_by(folded.sent_tokens);
            }
            return;
        }
        self.metrics.prompt_tokens(TokenStage::Sent).inc_by(folded.sent_tokens);
        // Folded tokens would otherwise have been read from the provider's cache.
        let saved = folded.model.prices.read * folded.received_tokens.saturating_sub(folded.sent_tokens) as f64;
        self.metrics.saved_usd.inc_by(folded.model.prices.dollars(saved));
    }

    /// Folds a request that did not fit again, to the budget learned from the refusal. Returns none if it cannot be
    /// folded further.
    pub(crate) async fn refold_after_overflow(
        self: &Arc<Self>,
        job: Option<&Arc<FoldJob>>,
        folded: Option<&PreparedRequest>,
        overflow: ContextOverflow,
    ) -> Option<PreparedRequest> {
        let folded = folded?;
        self.metrics.overflows.inc();
        let budget = folded.model.learn_from_overflow(overflow, folded.sent_tokens, folded.max_output);
        let (limit, evidence) = (overflow.limit_tokens, overflow.evidence);
        tracing::info!(
            model = folded.model_name,
            sent = folded.sent_tokens,
            limit,
            ?evidence,
            budget,
            "prompt exceeds the model's window; folding again"
        );
        let tighter = fold_blocking(self, job, Some(Refold::WithBudget(budget))).await?;
        (tighter.body.is_some() && tighter.sent_tokens < folded.sent_tokens).then_some(tighter)
    }

    /// Returns the fold job of a request; none if it is bypassed, cannot be parsed, or belongs to no tenant.
    fn new_fold_job(
        &self,
        format: Format,
        upstream: UpstreamKind,
        parts: &Parts,
        inbound: &RequestBody,
    ) -> Option<Arc<FoldJob>> {
        let headers = &parts.headers;
        let bypassed = headers.get(headers::BYPASS).is_some_and(|value| value == "1" || value == "true");
        if self.settings.mode == ProxyMode::Off || bypassed {
            return None;
        }
        let session = headers.get(headers::SESSION).and_then(|value| value.to_str().ok());
        let session = session.map(|name| name[..name.floor_char_boundary(MAX_SESSION_NAME_BYTES)].to_owned());
        let body = inbound.decoded.clone()?;
        let archive = self.tenant_archive(parts).ok()?;
        let tenant = self.tenant(parts).ok()?;
        Some(Arc::new(FoldJob { format, upstream, tenant, body, history: HistoryView::Client, archive, session }))
    }

    /// Returns the bytes to send, and their form.
    fn outgoing_body(&self, folded: Option<&PreparedRequest>, inbound: &RequestBody) -> (Bytes, BodyForm) {
        match folded.and_then(|folded| folded.body.clone()) {
            Some(body) if self.settings.mode == ProxyMode::Fold => (body, BodyForm::Decoded),
            _ => (inbound.raw.clone(), BodyForm::Unmodified),
        }
    }

    /// Returns the response for the client, and records its usage when it ends.
    async fn reply(
        self: Arc<Self>,
        mut head: ResponseHead,
        job: Option<Arc<FoldJob>>,
        folded: Option<PreparedRequest>,
        outbound: UpstreamRequest,
        format: Format,
    ) -> Response {
        let mut client_head = to_client(&head.parts, folded.as_ref());
        let idle = self.settings.timeouts.idle;
        let (Some(job), Some(folded)) = (job, folded) else {
            return Response::from_parts(client_head, relay(head, format, idle, |_| ()));
        };
        if !folded.tool_offered || !client_head.status.is_success() {
            // There will be no further round, so the bodies can be released while the response is streamed.
            let folded = PreparedRequest { body: None, unfolded_body: Bytes::new(), ..folded };
            let body = relay(head, format, idle, move |usage| self.record_usage(&folded, usage));
            return Response::from_parts(client_head, body);
        }
        // The body differs from the provider's if something in it is hidden.
        client_head.headers.remove(CONTENT_LENGTH);
        let rounds = UnfoldRounds::new(self.clone(), job, folded.clone(), outbound);
        if matches!(head.remaining, RemainingBody::Complete) && head.chunks.len() == 1 && !head.is_event_stream() {
            let body = head.chunks.pop().unwrap_or_default();
            let (replied, usage) = rounds.run_buffered(body).await;
            self.record_usage(&folded, usage);
            return match replied {
                Ok(body) => Response::from_parts(client_head, Body::from(body)),
                Err(failure) => failed_round_response(failure, &folded, format, idle),
            };
        }
        let (proxy, first) = (self, folded.clone());
        let body = piped_once_begun(|client| async move {
            let (failure, usage) = rounds.run_streamed(head, client).await;
            proxy.record_usage(&first, usage);
            failure
        });
        match body.await {
            Ok(body) => Response::from_parts(client_head, body),
            Err(failure) => {
                let unknown = || RoundFailure::fault("the response could not be continued");
                failed_round_response(failure.unwrap_or_else(unknown), &folded, format, idle)
            }
        }
    }

    /// Records the token usage that a response reported.
    fn record_usage(&self, folded: &PreparedRequest, reported: MaybeUsage) {
        let Some((usage, rounds)) = reported.and_then(|reported| Some((reported.usage?, reported.rounds))) else {
            return;
        };
        for (direction, tokens) in [
            ("input", usage.input),
            ("output", usage.output),
            ("cache_read", usage.cache_read.unwrap_or(0)),
            ("cache_write", usage.cache_write.unwrap_or(0)),
        ] {
            self.metrics.reported_tokens.get_or_create(&metrics::TokenLabels { direction }).inc_by(tokens);
        }
        let sent_tokens =
            if self.settings.mode == ProxyMode::Fold { folded.sent_tokens } else { folded.received_tokens };
        if rounds == RoundCount::One {
            self.compare_counts(folded, sent_tokens, usage.context_tokens());
        }
        if let Some(archive) = &folded.archive {
            let payload = serde_json::to_vec(&usage).unwrap_or_default();
            let (model, folds) = (folded.model_name.clone(), folded.fold_count);
            let (raw_tokens, sent_tokens) = (folded.received_tokens, folded.sent_tokens);
            let record = foldline_archive::RequestRecord {
                model,
                raw_tokens,
                sent_tokens,
                folds,
                payload,
                ..Default::default()
            };
            // The journal is informational; nothing depends on it.
            let _ = archive.append_request(&record);
        }
    }
}

impl AppState {
    /// Compares the reported token count of a prompt with ours, and logs the consequence.
    fn compare_counts(&self, folded: &PreparedRequest, sent: Tokens, reported: Tokens) {
        let model = &folded.model_name;
        match folded.model.observe_usage(sent, reported) {
            CountVerdict::Accepted | CountVerdict::Implausible { first: false } => {}
            CountVerdict::Implausible { first: true } => tracing::warn!(
                model,
                sent,
                reported,
                "reported prompt tokens are implausible and ignored; set --window if the table's window is wrong"
            ),
            CountVerdict::Truncated(window) => {
                self.metrics.count_internal_error("truncated_by_server");
                tracing::warn!(
                    model,
                    sent,
                    reported,
                    window,
                    "the server truncates prompts: its count stays constant while they grow; folding to this window"
                );
            }
        }
    }
}

/// Folds a request on a blocking thread. The fold is cancelled when this future is dropped, because the client has
/// disconnected. A panic is counted as an internal error.
pub(crate) async fn fold_blocking(
    proxy: &Arc<AppState>,
    job: Option<&Arc<FoldJob>>,
    refold: Option<Refold>,
) -> Option<PreparedRequest> {
    let (state, job) = (proxy.clone(), job?.clone());
    let guard = CancelOnDrop(CancelFlag::default());
    let cancel = guard.0.clone();
    let folded = tokio::task::spawn_blocking(move || job.prepare(&state, refold, &cancel)).await;
    folded.unwrap_or_else(|error| {
        proxy.metrics.count_internal_error("panic");
        tracing::error!(%error, "fold panicked; forwarding the original request");
        None
    })
}

/// Returns the response head for the client, with the headers of the proxy.
fn to_client(head: &response::Parts, folded: Option<&PreparedRequest>) -> response::Parts {
    let mut head = head.clone();
    headers::prepare_for_client(&mut head.headers);
    // The HTTP version belongs to each connection.
    head.version = hyper::Version::default();
    if let Some(folded) = folded {
        let mut insert = |name: &'static str, value: String| {
            head.headers.insert(name, value.parse().expect("numbers and commas are valid in a header value"));
        };
        insert("x-foldline-tokens", format!("{},{}", folded.received_tokens, folded.sent_tokens));
        insert("x-foldline-folds", folded.fold_count.to_string());
        if let Some(cost) = summaries::summary_header(&folded.hidden_rounds.facts.summary_cost()) {
            insert("x-foldline-summaries", cost);
        }
    }
    head
}

/// Returns the response if a hidden round failed before the client got any data: the provider's own response, if
/// there is one.
fn failed_round_response(failure: RoundFailure, folded: &PreparedRequest, format: Format, idle: Duration) -> Response {
    match failure {
        RoundFailure::Refused(head) => {
            let client_head = to_client(&head.parts, Some(folded));
            Response::from_parts(client_head, relay(*head, format, idle, |_| ()))
        }
        RoundFailure::Fault(status, reason) => error_response::json_error(Some(format), status, &reason),
    }
}

/// Cancels a fold when it is dropped.
struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Returns a forwarded response with the headers for the client.
fn client_response(response: Response<Body>) -> Response {
    let (mut parts, body) = response.into_parts();
    headers::prepare_for_client(&mut parts.headers);
    // The HTTP version belongs to each connection.
    parts.version = hyper::Version::default();
    Response::from_parts(parts, body)
}

/// A request in progress; the gauge is decremented on drop.
struct OpenRequest {
    open: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl OpenRequest {
    fn new(open: Gauge, permit: OwnedSemaphorePermit) -> Self {
        open.inc();
        Self { open, _permit: permit }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// A response body that keeps its request counted until it ends or is dropped.
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
