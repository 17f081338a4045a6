//! Errors of the fold endpoints: a status, a type that programs can match on, and a message.

use axum::response::{IntoResponse, Response};
use foldline::{Error, ErrorKind};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::json;

use crate::proxy::downstream::body_budget::BudgetExhausted;
use crate::proxy::downstream::error_response::RETRY_AFTER_SECS;
use crate::proxy::fold::tenant::NoTenant;

/// The reason why a fold endpoint answers with an error.
#[derive(Debug)]
pub(crate) enum FoldApiError {
    /// The request is not valid.
    Invalid(String),
    /// The caller belongs to no tenant.
    NoTenant,
    /// The conversation cannot be folded to the budget that the caller set.
    CannotFit { floor: u64, budget: u64, message: String },
    /// No original has this hash.
    NotFound(String),
    /// The original has expired.
    Gone(String),
    /// The memory budget of all bodies is exhausted.
    NoMemory,
    /// The originals could not be written or read.
    Archive(String),
    /// The fold failed.
    Internal,
}

impl FoldApiError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        FoldApiError::Invalid(message.into())
    }

    fn status(&self) -> StatusCode {
        match self {
            FoldApiError::Invalid(_) => StatusCode::BAD_REQUEST,
            FoldApiError::NoTenant => StatusCode::FORBIDDEN,
            FoldApiError::CannotFit { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            FoldApiError::NotFound(_) => StatusCode::NOT_FOUND,
            FoldApiError::Gone(_) => StatusCode::GONE,
            FoldApiError::NoMemory | FoldApiError::Archive(_) => StatusCode::SERVICE_UNAVAILABLE,
            FoldApiError::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            FoldApiError::Invalid(_) => "invalid_request_error",
            FoldApiError::NoTenant => "no_tenant",
            FoldApiError::CannotFit { .. } => "cannot_fit",
            FoldApiError::NotFound(_) => "not_found",
            FoldApiError::Gone(_) => "expired",
            FoldApiError::NoMemory => "overloaded",
            FoldApiError::Archive(_) => "archive_error",
            FoldApiError::Internal => "internal_error",
        }
    }
}

impl From<NoTenant> for FoldApiError {
    fn from(NoTenant: NoTenant) -> Self {
        FoldApiError::NoTenant
    }
}

impl From<BudgetExhausted> for FoldApiError {
    fn from(BudgetExhausted: BudgetExhausted) -> Self {
        FoldApiError::NoMemory
    }
}

impl From<Error> for FoldApiError {
    fn from(error: Error) -> Self {
        match error.kind() {
            &ErrorKind::CannotFit { floor, budget, .. } => {
                FoldApiError::CannotFit { floor, budget, message: error.to_string() }
            }
            ErrorKind::NotJson { .. }
            | ErrorKind::NotARequest
            | ErrorKind::TooDeep { .. }
            | ErrorKind::TooLong { .. } => FoldApiError::Invalid(error.to_string()),
            _ => FoldApiError::Internal,
        }
    }
}

impl From<foldline_archive::Error> for FoldApiError {
    fn from(error: foldline_archive::Error) -> Self {
        use foldline_archive::ErrorKind;
        match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::InvalidHandle => FoldApiError::Invalid(error.to_string()),
            ErrorKind::NotFound | ErrorKind::Ambiguous { .. } => FoldApiError::NotFound(error.to_string()),
            ErrorKind::Expired { .. } => FoldApiError::Gone(error.to_string()),
            _ => FoldApiError::Archive(error.to_string()),
        }
    }
}

impl IntoResponse for FoldApiError {
    fn into_response(self) -> Response {
        let message = match &self {
            FoldApiError::Invalid(message)
            | FoldApiError::NotFound(message)
            | FoldApiError::Gone(message)
            | FoldApiError::Archive(message)
            | FoldApiError::CannotFit { message, .. } => message,
            FoldApiError::NoTenant => "the request belongs to no tenant; use a named token, or add an API key",
            FoldApiError::NoMemory => "request-body memory limit reached; retry later or raise --max-bodies",
            FoldApiError::Internal => "the fold failed; the log has the reason",
        };
        let mut error = json!({ "message": format!("foldline: {message}"), "type": self.name() });
        if let FoldApiError::CannotFit { floor, budget, .. } = self {
            (error["floor"], error["budget"]) = (floor.into(), budget.into());
        }
        let body = json!({ "error": error }).to_string();
        let mut response = (self.status(), [(CONTENT_TYPE, "application/json")], body).into_response();
        if matches!(self, FoldApiError::NoMemory) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECS));
        }
        response
    }
}
