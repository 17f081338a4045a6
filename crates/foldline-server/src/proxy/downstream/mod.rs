//! The side of the client: listener, authentication, routes, request bodies, error responses.

pub(crate) mod auth;
pub(crate) mod body_budget;
pub(crate) mod channel_body;
pub(crate) mod client_pace;
pub(crate) mod client_stream;
pub(crate) mod connection_limit;
pub(crate) mod error_response;
pub(crate) mod half_close;
pub(crate) mod headers;
pub(crate) mod io_timeout;
pub(crate) mod listener;
pub(crate) mod open_request;
pub(crate) mod request_body;
pub(crate) mod request_check;
pub(crate) mod route;
pub(crate) mod secret_file;
pub(crate) mod tenancy;
pub(crate) mod tls;
pub(crate) mod token_reload;
