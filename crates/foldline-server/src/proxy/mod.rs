//! The drop-in proxy: an agent changes one base URL, stays inside its model's window and pays less.
//!
//! `handler` reads as the request path: authenticate, route, read the body, fold, send (refold on
//! overflow), reply.
//!
//! | module | idea |
//! |---|---|
//! | `settings` | plain values, resolved by the caller |
//! | `handler` | one request and its response, end to end |
//! | `downstream::listener` | connections: accepting, limits, graceful shutdown |
//! | `downstream::io_timeout` | read and write timeouts of a client connection |
//! | `downstream::tls` | certificate and key, if the proxy terminates TLS |
//! | `downstream::auth` | access tokens and the host check |
//! | `downstream::tenancy`, `fold::tenant` | the part of the archive that a request reads and writes |
//! | `downstream::route` | upstream and dialect of a path |
//! | `downstream::request_body`, `downstream::body_budget` | reading and decoding bodies; the memory limit of all bodies |
//! | `downstream::headers` | which headers are forwarded |
//! | `downstream::client_stream` | response bytes on their way to the client |
//! | `downstream::error_response` | errors of the proxy, in the dialect of the client |
//! | `fold::job`, `fold::prepare` | turns a client's request into the request that is sent |
//! | `fold::archive_writer` | writes originals to the archive |
//! | `fold::parallel_count` | counts the tokens of a new conversation on all cores |
//! | `fold::prefix_id` | identifies a conversation by hashes of its prefixes |
//! | `fold::session_cache` | cached fold states and the facts that they depend on |
//! | `fold::summaries` | summaries of old rounds, written by a model |
//! | `upstream::client` | connections to providers |
//! | `upstream::models` | facts about each model, per upstream and tenant |
//! | `upstream::learned_window` | windows inferred from responses, with their evidence |
//! | `upstream::window_probe` | queries a server for its real window |
//! | `upstream::response_head` | the start of a response, buffered until it is known not to be an overflow |
//! | `upstream::relay` | the rest of a response, forwarded unchanged while usage is read |
//! | `upstream::backoff` | the delay before a failed round is retried |
//! | `unfold_tool::tool` | the tool with which a model restores originals |
//! | `unfold_tool::rounds` | a response in several rounds that the client sees as one |
//! | `admin` | `/foldline/` routes, Prometheus metrics and statistics |
//! | `probe` | checks to run before a proxy is started |
//!
//! Must not happen here: provider JSON is parsed or written outside `foldline::wire`; a credential is
//! stored or logged; an internal error fails a request (the client's own bytes are forwarded instead).

pub(crate) mod admin;
pub(crate) mod downstream;
pub(crate) mod fold;
pub(crate) mod handler;
pub mod probe;
mod settings;
pub(crate) mod unfold_tool;
pub(crate) mod upstream;

pub use crate::proxy::admin::stats::{ProxyStats, StatsHandle};
pub use crate::proxy::downstream::auth::{AccessToken, BadToken};
pub use crate::proxy::downstream::listener::Proxy;
pub use crate::proxy::downstream::tenancy::Tenancy;
pub use crate::proxy::downstream::tls::TlsFiles;
pub use settings::{InvalidUpstreamUrl, ProxyLimits, ProxyMode, ProxySettings, SummaryMode, Timeouts, UpstreamUrl};
