//! The drop-in proxy: change one base URL, and an agent stays inside its window and pays less.
//!
//! The way of a request is the order of the files:
//!
//! | file | idea |
//! |---|---|
//! | `server` | connections: listening, limits, a shutdown that lets streams end |
//! | `patient` | a connection waits for its client only so long |
//! | `tls` | the certificate, where the proxy serves TLS itself |
//! | `access` | which requests are let in, and by which token |
//! | `owner`, `tenancy` | whose part of the archive a request reads and writes |
//! | `route` | which upstream a path belongs to, and which dialect it speaks |
//! | `inbound`, `room` | a request's body, whole and decoded; how much there may be of all of them |
//! | `exchange` | one request and its answer, from end to end |
//! | `turn` | fold on the way in: a client's request becomes what is sent |
//! | `decision`, `keeper` | what is folded of it now, and originals on their way to the archive |
//! | `ahead` | a new conversation is counted on all processors |
//! | `lineage` | what a conversation is known by |
//! | `memory` | where its folds stand, and the facts that they depend on |
//! | `summaries` | what old rounds were about, written by a model ahead of time |
//! | `models` | what is known of each model at each upstream, for each tenant |
//! | `learned` | windows that a server's answers reveal, and the evidence for them |
//! | `discover` | asking a server for its real window |
//! | `headers` | what travels and what does not |
//! | `upstream` | the connections to providers |
//! | `opening` | the beginning of an answer, until it is sure to be one |
//! | `relay` | the rest of it, forwarded as it comes and read on the side |
//! | `unfold` | the tool by which a model unfolds what it needs |
//! | `rounds` | an answer in several rounds that the client sees as one |
//! | `client_stream`, `backoff` | its bytes on their way to the client; the wait before a failed round is retried |
//! | `answer` | what the proxy says in its own words |
//! | `own` | what it tells of itself, below `/foldline/` |
//! | `metrics`, `tally` | what it did, for Prometheus and for whoever started it |
//! | `probe` | what is asked before it is started |
//!
//! What may not happen here: no provider's JSON is read or written outside of `foldline::wire_format`, no
//! credential is stored or logged, and no fault of ours costs the client its request: its own bytes
//! go out instead.

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
