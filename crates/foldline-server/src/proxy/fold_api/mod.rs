//! Folds for callers that send the result themselves: rows of messages for gateways (`POST /v1/compress`, with
//! `GET /v1/retrieve/HASH` and `POST /v1/usage`), and whole request bodies (`POST /foldline/api/v1/fold`).
//!
//! The paths and fields of the first three are those that gateways call. A fold is the same as that of a request that is
//! sent: the same sessions, ledger, archive and limits. Nothing is sent to a provider. An answer must not leave before
//! its originals are on disk, and a caller must not read another tenant's originals.

mod error;
mod fold_body;
mod fold_rows;
mod respond;
mod retrieve;

use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::Method;
use hyper::http::request::Parts;

use crate::proxy::downstream::error_response::{ErrorCause, RequestError};
use crate::proxy::downstream::request_body::RequestBody;
use crate::proxy::downstream::request_check::{RequestFault, is_json};
use crate::proxy::fold_api::error::FoldApiError;
use crate::proxy::state::AppState;

/// An endpoint of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldEndpoint {
    /// Rows of messages.
    Compress,
    /// The original of a hash.
    Retrieve,
    /// Usage that a provider reported to the caller.
    Usage,
    /// A request body of any dialect.
    Fold,
}

impl FoldEndpoint {
    /// Returns the endpoint of a request; `None` if it is for another module.
    pub(crate) fn find(method: &Method, path: &str) -> Option<Self> {
        match (method, path) {
            (&Method::POST, "/v1/compress") => Some(FoldEndpoint::Compress),
            (&Method::POST, "/v1/usage") => Some(FoldEndpoint::Usage),
            (&Method::POST, "/foldline/api/v1/fold") => Some(FoldEndpoint::Fold),
            (&Method::GET, path) if path.starts_with(retrieve::PATH_PREFIX) => Some(FoldEndpoint::Retrieve),
            _ => None,
        }
    }

    /// Handles a request for this endpoint.
    pub(crate) async fn handle(self, state: Arc<AppState>, parts: Parts, body: Body) -> Result<Response, RequestError> {
        if self == FoldEndpoint::Retrieve {
            return Ok(or_error(retrieve::retrieve(&state, &parts).await));
        }
        // Pages of other origins cannot send JSON without a preflight, which is never answered.
        if !is_json(&parts.headers) {
            return Err(ErrorCause::Refused(RequestFault::ContentType).into());
        }
        let body = RequestBody::read(&state, &parts.headers, body).await.map_err(ErrorCause::Body)?;
        let Some(body) = body.decoded else {
            return Ok(FoldApiError::invalid("the body cannot be decoded; send it as plain JSON").into_response());
        };
        Ok(or_error(match self {
            FoldEndpoint::Compress => fold_rows::compress(&state, &parts, body).await,
            FoldEndpoint::Fold => fold_body::fold(&state, &parts, body).await,
            FoldEndpoint::Usage | FoldEndpoint::Retrieve => retrieve::record_usage(&state, &body),
        }))
    }
}

fn or_error(answer: Result<Response, FoldApiError>) -> Response {
    answer.unwrap_or_else(FoldApiError::into_response)
}
