//! What the endpoints of the API share: the tenant of a request, failures, and JSON responses.

use std::sync::Arc;
use std::time::Instant;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use foldline_archive::ErrorKind;
use hyper::http::request::Parts;
use serde_json::Value;

use crate::activity::log::ReadProgress;
use crate::activity::{ActivityLog, ActivitySummary};
use crate::proxy::downstream::error_response;
use crate::proxy::fold::tenant::Tenant;
use crate::proxy::state::AppState;

/// The tenant of a request and its journal.
pub(super) struct TenantView {
    pub(super) tenant: Tenant,
    pub(super) log: Arc<ActivityLog>,
}

impl TenantView {
    pub(super) async fn identify(state: &AppState, parts: &Parts) -> Result<Self, ApiFailure> {
        let no_tenant = |_| ApiFailure {
            status: StatusCode::FORBIDDEN,
            message: "the request belongs to no tenant; use a named token, or add the API key whose sessions you want"
                .into(),
        };
        let tenant = state.tenants.require_tenant(parts).await.map_err(no_tenant)?;
        let log = state.activity.get(tenant.key.0, tenant.archive.as_ref());
        Ok(Self { tenant, log })
    }

    /// Writes an answer from the summary of the tenant's journal, on a blocking thread; or returns a recent one, if many
    /// are requested.
    pub(super) async fn answer(
        &self,
        state: &AppState,
        parts: &Parts,
        show: impl FnOnce(&ActivitySummary, Option<ReadProgress>) -> Result<String, ApiFailure> + Send + 'static,
    ) -> Result<Bytes, ApiFailure> {
        let key = (self.tenant.key, parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default());
        if let Some(text) = state.answers.reuse(&key) {
            return Ok(text);
        }
        self.log.catch_up().await?;
        // The permits are never closed.
        let _permit = state.answers.writers().acquire_owned().await.ok();
        if let Some(text) = state.answers.reuse(&key) {
            return Ok(text);
        }
        let log = self.log.clone();
        let write = move || {
            let begin = Instant::now();
            let text = log.show(show).map_err(ApiFailure::loading)??;
            Ok::<_, ApiFailure>((Bytes::from(text), begin.elapsed()))
        };
        let failed = |_| ApiFailure::new(StatusCode::INTERNAL_SERVER_ERROR, "the journal could not be read");
        let (text, took) = tokio::task::spawn_blocking(write).await.map_err(failed)??;
        state.answers.store(key, text.clone(), took);
        Ok(text)
    }
}

/// An answer with an error status.
pub(super) struct ApiFailure {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl ApiFailure {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// Returns the answer while the journal is being read for the first time.
    pub(super) fn loading(progress: ReadProgress) -> Self {
        let percent = (progress.share() * 100.0) as u64;
        Self::new(StatusCode::SERVICE_UNAVAILABLE, format!("Adding up the journal: {percent} %. Retry in a second."))
    }
}

impl From<foldline_archive::Error> for ApiFailure {
    fn from(error: foldline_archive::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::InvalidHandle => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound | ErrorKind::Ambiguous { .. } => StatusCode::NOT_FOUND,
            ErrorKind::Expired { .. } => StatusCode::GONE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl IntoResponse for ApiFailure {
    fn into_response(self) -> Response {
        let mut response = error_response::json_error(None, self.status, &self.message);
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

pub(super) type ApiResult = Result<Response, ApiFailure>;

/// Returns a JSON response that no cache stores.
pub(super) fn json_response(value: &Value) -> Response {
    json_text_response(value.to_string().into())
}

/// Returns a response with this JSON that no cache stores.
pub(super) fn json_text_response(text: Bytes) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}
