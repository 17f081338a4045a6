//! The drop-in proxy: an agent changes one base URL, stays inside its model's window and pays less.
//!
//! `handler` reads as the request path: authenticate, route, read the body, identify the session, fold, send (fold again
//! on overflow), reply.
//!
//! | module | contents |
//! |---|---|
//! | `handler` | one request and its response, end to end |
//! | `own_endpoints` | requests that the proxy answers itself |
//! | `reply` | the response for the client |
//! | `state`, `settings` | shared state, fields only; plain values, resolved by the caller |
//! | `upstream_urls` | base URLs of providers, one for each API |
//! | `session_share` | a share of the sessions, for experiments |
//! | `named_upstream` | upstreams that the settings name, and the choice of one for a request |
//! | `downstream::listener` | connections: accepting, limits, graceful shutdown |
//! | `downstream::io_timeout`, `downstream::tls` | timeouts of a client connection; certificate and key, certificates of gateways |
//! | `downstream::connection_limit`, `downstream::half_close` | file descriptors for upstreams; clients that close their sending half |
//! | `downstream::request_check` | requests that are refused by their head, such as those of web pages |
//! | `downstream::auth`, `downstream::tenancy` | access tokens; what separates tenants |
//! | `downstream::secret_file` | permissions of files with secrets |
//! | `downstream::route` | upstream and dialect of a path |
//! | `downstream::request_body`, `downstream::client_pace` | reading and decoding bodies; clients that are too slow |
//! | `downstream::body_budget` | the memory limit of all bodies, and their buffers |
//! | `downstream::open_request` | the count and the limit of concurrent requests |
//! | `downstream::headers` | which headers are forwarded |
//! | `downstream::channel_body`, `downstream::client_stream` | response bytes on their way to the client |
//! | `downstream::error_response` | errors of the proxy, in the dialect of the client |
//! | `fold::job` | a request with a conversation, and its session |
//! | `fold::prepare`, `fold::prepared` | turns a client's request into the request that is sent; the result |
//! | `fold::tenant` | the tenant of a request and its part of the archive |
//! | `fold::prefix_id` | identifies a conversation by hashes of its prefixes |
//! | `fold::session_cache`, `fold::session_facts` | cached fold states; the facts that renderings depend on |
//! | `fold::session_pins` | what users never want to be folded |
//! | `fold::parallel_count` | counts a new conversation on all cores |
//! | `fold::archive_writer`, `fold::fold_events` | originals to the archive; events to log, metrics and journal |
//! | `fold::summary_job`, `fold::summaries` | when a summary is due; summaries written by a model |
//! | `fold_api` | folds for callers that send the result themselves: rows of messages, or request bodies |
//! | `upstream::client`, `upstream::connector` | requests and connections to providers |
//! | `upstream::outbound` | the way to providers: a proxy of the network, authorities, a client certificate |
//! | `upstream::aws` | signatures with AWS credentials of the proxy, and where these come from |
//! | `upstream::model_transport` | requests of models that write summaries, over the same connections |
//! | `upstream::credentials` | the headers with credentials, and whose they are |
//! | `upstream::send`, `upstream::backoff` | the only loop that resends a request, and its delays |
//! | `upstream::pass_through` | requests without a conversation |
//! | `upstream::models`, `upstream::learned_window`, `upstream::window_probe` | facts about each model; windows inferred from responses; queries for a window |
//! | `upstream::response_head`, `upstream::relay` | the start of a response, held until it is not an overflow; the rest of it |
//! | `unfold_tool::tool`, `unfold_tool::rounds` | the tool that restores originals; a response in several rounds |
//! | `accounting`, `fold::request_facts` | what a request did and cost: metrics, journal and log |
//! | `traces` | spans of requests for OpenTelemetry |
//! | `admin` | `/foldline/`: dashboard, its API, Prometheus metrics and statistics |
//! | `probe` | checks to run before a proxy is started |
//! | `reference` | endpoints, headers and metrics, for the reference page |
//!
//! Must not happen here: provider JSON is parsed or written outside `foldline::wire`; a credential is
//! stored or logged; an internal error fails a request (the client's own bytes are forwarded instead).

mod accounting;
pub(crate) mod admin;
pub(crate) mod downstream;
pub(crate) mod fold;
pub(crate) mod fold_api;
pub(crate) mod handler;
mod lru_map;
pub(crate) mod named_upstream;
mod own_endpoints;
pub mod probe;
pub mod reference;
mod reply;
mod session_share;
mod settings;
mod state;
mod traces;
pub(crate) mod unfold_tool;
pub(crate) mod upstream;
mod upstream_urls;

pub use crate::proxy::admin::policy_comparison::{PolicyReplay, PolicyReport, PolicyRow};
pub use crate::proxy::admin::stats::{ProxyStats, StatsHandle, UpstreamErrors};
pub use crate::proxy::downstream::auth::{AccessToken, BadToken};
pub use crate::proxy::downstream::listener::Proxy;
pub use crate::proxy::downstream::secret_file::check_secret_file;
pub use crate::proxy::downstream::tenancy::Tenancy;
pub use crate::proxy::downstream::tls::{TlsFiles, TlsReload};
pub use crate::proxy::downstream::token_reload::TokenReload;
pub use crate::proxy::fold::tenant::{TenantKind, tenant_kind, tenant_names};
pub use crate::proxy::named_upstream::{InvalidNamedUpstream, NamedUpstream, UpstreamAuth};
pub use crate::proxy::upstream::aws::credentials::{AwsCredentialSource, AwsCredentials, AwsError};
pub use crate::proxy::upstream::aws::signer::AwsSigner;
pub use crate::proxy::upstream::model_transport::OutboundTransport;
pub use crate::proxy::upstream::outbound::{
    ClientIdentity, InvalidNetworkProxy, NetworkProxy, OutboundSettings, read_certificates,
};
pub use session_share::SessionShare;
pub use settings::{
    InvalidUpstreamUrl, ProxyLimits, ProxyMode, ProxySettings, SummaryMode, TenantSettings, ThreadMode, Timeouts,
    UpstreamUrl, Upstreams,
};
