//! What the endpoints of the API share: the tenant of a request, failures, and JSON responses.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use foldline_archive::ErrorKind;
use hyper::http::request::Parts;
use serde_json::Value;

use crate::activity::ActivityLog;
use crate::proxy::downstream::error_response;
use crate::proxy::fold::tenant::Tenant;
use crate::proxy::state::AppState;

/// The tenant of a request and its journal.
pub(super) struct TenantView {
    pub(super) tenant: Tenant,
    pub(super) log: Arc<ActivityLog>,
}

impl TenantView {
    pub(super) fn identify(state: &AppState, parts: &Parts) -> Result<Self, ApiFailure> {
        let no_tenant = |_| ApiFailure {
            status: StatusCode::FORBIDDEN,
            message: "the request belongs to no tenant; use a named token, or add the API key whose sessions you want"
                .into(),
        };
        let tenant = state.tenants.identify(parts).map_err(no_tenant)?;
        let log = state.activity.get(tenant.key.0, tenant.archive.as_ref());
        Ok(Self { tenant, log })
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
        error_response::json_error(None, self.status, &self.message)
    }
}

pub(super) type ApiResult = Result<Response, ApiFailure>;

/// Returns a JSON response that no cache stores.
pub(super) fn json_response(value: &Value) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, value.to_string()).into_response()
}
