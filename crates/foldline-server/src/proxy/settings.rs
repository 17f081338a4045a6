//! Settings of the proxy: plain values, resolved once by the caller.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foldline::tokens::Tokens;
use foldline::wire::Format;
use foldline::{ModelTable, Policy};
use foldline_archive::Namespace;

use crate::proxy::admin::policy_comparison::PolicyReplay;
use crate::proxy::downstream::auth::AccessToken;
use crate::proxy::downstream::tenancy::Tenancy;
use crate::proxy::downstream::tls::TlsFiles;
use crate::proxy::named_upstream::{NamedUpstream, UpstreamAuth};
use crate::proxy::session_share::SessionShare;
use crate::proxy::upstream::aws::signer::AwsSigner;
use crate::proxy::upstream::outbound::OutboundSettings;
pub use crate::proxy::upstream_urls::{InvalidUpstreamUrl, UpstreamUrl, Upstreams};

/// The complete configuration of a proxy.
///
/// ```
/// use foldline_server::proxy::{ProxyMode, ProxySettings};
///
/// let settings = ProxySettings { mode: ProxyMode::Observe, ..ProxySettings::default() };
/// assert!(settings.listen.ip().is_loopback(), "the default accepts only local clients");
/// ```
#[derive(Clone, Debug)]
pub struct ProxySettings {
    /// Listen address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Tokens that authenticate clients. Required if the address is not loopback.
    pub tokens: Vec<AccessToken>,
    /// Names of tokens that belong to trusted gateways. A request with such a token names its tenant in the header
    /// `x-foldline-tenant`.
    pub gateways: Vec<String>,
    /// PEM file with authorities that sign the certificates of trusted gateways. A client with such a certificate needs no
    /// token, and names its tenants as a gateway with a token does. Needs `tls`.
    pub gateway_authorities: Option<PathBuf>,
    /// Hosts, besides this machine's own names, under which clients without a token may address the proxy: a name that a
    /// reverse proxy or a container network uses, with or without a port.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages, besides the proxy's own, that may send requests without a token.
    pub allowed_origins: Vec<String>,
    /// Rule by which requests share originals. Default: single without tokens, token if all tokens have names,
    /// otherwise credential.
    pub tenancy: Option<Tenancy>,
    /// Archive namespace under tenancy single.
    pub namespace: Namespace,
    /// Settings of single tenants, by name: that of a token, the one that a gateway sends, or the archive's name for an API
    /// key (`key-` and 32 hexadecimal digits). A name of a token that is also sent by a gateway means the token.
    pub tenants: BTreeMap<String, TenantSettings>,
    /// Certificate and key, if the proxy terminates TLS.
    pub tls: Option<TlsFiles>,
    /// Providers, one for each API.
    pub upstreams: Upstreams,
    /// Further providers, which requests select by the first segment of their path.
    pub named_upstreams: Vec<Arc<NamedUpstream>>,
    /// Credential that the upstream of Bedrock's API gets.
    pub bedrock_auth: UpstreamAuth,
    /// The way to providers: a proxy of the network, certificate authorities, a client certificate.
    pub outbound: OutboundSettings,
    /// Treatment of requests.
    pub mode: ProxyMode,
    /// Share of the sessions whose requests are only observed, for a comparison with those that are folded; in mode fold.
    pub observe_share: SessionShare,
    /// Fold policy: what may be folded, and when.
    pub policy: Policy,
    /// Windows and prices of models, for servers that do not report them.
    pub models: Cow<'static, ModelTable>,
    /// Window of the model, used if neither the server nor the table knows it.
    pub window: Option<Tokens>,
    /// Window with which Ollama loads models, sent with every request to its own API; none if the server or the client
    /// decides. Another value than in the request before reloads the model.
    pub ollama_num_ctx: Option<Tokens>,
    /// Requests cache diagnostics of the provider for one of this many requests; 0 for none.
    pub cache_diagnostics: u64,
    /// Address of the OpenTelemetry collector that gets a trace of every request (OTLP over HTTP); needs the cargo feature
    /// `otlp`.
    pub otlp_endpoint: Option<String>,
    /// Offers the unfold tool in requests that have tools.
    pub offer_unfold_tool: bool,
    /// Treatment of message threads, whose history the provider stores.
    pub threads: ThreadMode,
    /// Mode in which a model writes summaries of old rounds.
    pub summary_mode: SummaryMode,
    /// Model that writes summaries, at the client's own provider; by default the conversation's model.
    pub summary_model: Option<String>,
    /// Comparison of policies on recorded sessions of this machine. It belongs to all who can open the dashboard, so it is
    /// for proxies with one user.
    pub policy_replay: Option<Arc<dyn PolicyReplay>>,
    /// Limits on memory and concurrency.
    pub limits: ProxyLimits,
    /// Timeouts.
    pub timeouts: Timeouts,
}

/// Settings of one tenant; those that are not set are the proxy's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantSettings {
    /// Treatment of its requests.
    pub mode: Option<ProxyMode>,
    /// Fold policy of its requests.
    pub policy: Option<Policy>,
    /// Upstreams that its requests use instead of those of the same APIs. A path can still select a named upstream.
    pub upstreams: Vec<Arc<NamedUpstream>>,
}

/// Treatment of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// Requests are folded.
    Fold,
    /// Requests are forwarded unmodified; what folding would have done is reported.
    Observe,
    /// Requests are forwarded unmodified and unparsed.
    Off,
}

/// Treatment of requests that continue a message thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadMode {
    /// They are refused as if the provider had lost the thread: the client sends its whole history, which is folded.
    #[default]
    Refuse,
    /// They are forwarded, and not folded.
    Pass,
}

/// Mode in which a model writes summaries of old rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SummaryMode {
    /// No model is called.
    #[default]
    Off,
    /// Summaries are written in the background, before they are needed; no request waits.
    Prepared,
    /// A summary is written when a request must be folded. The request waits for it at most this long, then it is
    /// folded without one.
    Inline(Duration),
}

/// Limits on memory and concurrency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyLimits {
    /// Maximum bytes of a request body, both encoded and decoded. Providers accept 32 MB (Anthropic) or more.
    pub body_bytes: usize,
    /// Maximum bytes of all bodies in memory: requests, decompressed requests, buffered responses. A request over it
    /// waits, and is then refused with 503.
    pub total_body_bytes: usize,
    /// Maximum concurrent requests; further requests wait, and are then refused with 503.
    pub requests: usize,
    /// Conversations whose fold state is cached, so that a turn costs only its new bytes.
    pub sessions: usize,
    /// Maximum concurrent requests of one tenant; further ones are refused with 429.
    pub tenant_requests: Option<usize>,
    /// Maximum bytes of one tenant in the archive, compressed. Above it nothing new is folded, and requests pass.
    pub tenant_bytes: Option<u64>,
}

/// Timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time for a client to start, to send a request head, and between two chunks of its body.
    pub client_read: Duration,
    /// Time for a request to get memory for its body.
    pub body_budget: Duration,
    /// Time for a request to be admitted, if too many others are in progress.
    pub request_slot: Duration,
    /// Time for an upstream to accept a connection.
    pub connect: Duration,
    /// Time for an upstream to start its response. Long responses that are not streamed start late.
    pub response_start: Duration,
    /// Time between two chunks of a response: for the upstream to send one, and for the client to read one.
    pub idle: Duration,
    /// Interval at which a waiting client gets a keep-alive, and time until the response head is sent although the
    /// model has produced nothing for the client yet.
    pub keep_alive: Duration,
    /// Time for open responses to end after a shutdown request; then they are aborted.
    pub shutdown: Duration,
    /// Lifetime of a window learned from an error or a count. Learning it again costs one refused request.
    pub learned: Duration,
    /// Age at which the stored bytes of a tenant are read again, if they are limited.
    pub usage: Duration,
}

impl ProxySettings {
    /// Returns the names and URLs of all upstreams: those of the APIs, then the named ones.
    pub fn all_upstreams(&self) -> impl Iterator<Item = (&str, &UpstreamUrl)> {
        let named = self.named_upstreams.iter().map(|upstream| (upstream.name(), upstream.url()));
        self.upstreams.iter().map(|(family, url)| (family.name, url)).chain(named)
    }

    /// Returns the signers of all upstreams that get signed requests, with the names of these upstreams.
    pub fn signers(&self) -> impl Iterator<Item = (&str, &AwsSigner)> {
        self.own_credentials().filter_map(|(name, auth)| Some((name, auth.signer()?)))
    }

    /// Returns the credentials of the proxy itself, with the names of the upstreams that get them.
    pub(crate) fn own_credentials(&self) -> impl Iterator<Item = (&str, &UpstreamAuth)> {
        let bedrock = [(Format::Converse.dialect().family.name, &self.bedrock_auth)];
        let named = self.named_upstreams.iter().map(|upstream| (upstream.name(), upstream.auth()));
        bedrock.into_iter().chain(named).filter(|(_, auth)| auth.is_own())
    }
}

impl ProxySettings {
    /// Returns true if requests need neither a token nor the certificate of a gateway.
    pub fn is_open(&self) -> bool {
        self.tokens.is_empty() && self.gateway_authorities.is_none()
    }

    /// Returns true if there are trusted gateways, which name tenants.
    pub(crate) fn has_gateways(&self) -> bool {
        !self.gateways.is_empty() || self.gateway_authorities.is_some()
    }

    /// Returns true if the requests of any tenant may be folded, for which an archive is needed.
    pub fn may_fold(&self) -> bool {
        let tenants = self.tenants.values().filter_map(|tenant| tenant.mode);
        tenants.chain([self.mode]).any(|mode| mode == ProxyMode::Fold)
    }
}

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8787)),
            tokens: Vec::new(),
            gateways: Vec::new(),
            gateway_authorities: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tenancy: None,
            namespace: Namespace::local(),
            tenants: BTreeMap::new(),
            tls: None,
            upstreams: Upstreams::default(),
            named_upstreams: Vec::new(),
            bedrock_auth: UpstreamAuth::Client,
            outbound: OutboundSettings::default(),
            mode: ProxyMode::Fold,
            observe_share: SessionShare::default(),
            policy: Policy::default(),
            models: Cow::Borrowed(ModelTable::builtin()),
            window: None,
            ollama_num_ctx: None,
            cache_diagnostics: 0,
            otlp_endpoint: None,
            offer_unfold_tool: true,
            threads: ThreadMode::Refuse,
            summary_mode: SummaryMode::Off,
            summary_model: None,
            policy_replay: None,
            limits: ProxyLimits::default(),
            timeouts: Timeouts::default(),
        }
    }
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            body_bytes: 64 << 20,
            total_body_bytes: 1 << 30,
            requests: 4096,
            sessions: 1024,
            tenant_requests: None,
            tenant_bytes: None,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            client_read: Duration::from_secs(30),
            body_budget: Duration::from_secs(5),
            request_slot: Duration::from_secs(30),
            connect: Duration::from_secs(10),
            response_start: Duration::from_secs(600),
            idle: Duration::from_secs(300),
            keep_alive: Duration::from_secs(10),
            // Service managers kill a process after 30 seconds, and it has to close its archive.
            shutdown: Duration::from_secs(28),
            learned: Duration::from_secs(3_600),
            usage: Duration::from_secs(30),
        }
    }
}

impl ProxyMode {
    /// Returns the name of the mode, as settings and the API use it.
    pub fn name(self) -> &'static str {
        match self {
            ProxyMode::Fold => "fold",
            ProxyMode::Observe => "observe",
            ProxyMode::Off => "off",
        }
    }
}

impl FromStr for ProxyMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "fold" => Ok(ProxyMode::Fold),
            "observe" => Ok(ProxyMode::Observe),
            "off" => Ok(ProxyMode::Off),
            _ => Err(format!("unknown mode \"{name}\"; choose fold, observe or off")),
        }
    }
}

impl SummaryMode {
    /// Default time that a request waits for an inline summary.
    pub const DEFAULT_INLINE_WAIT: Duration = Duration::from_secs(30);
}

impl FromStr for ThreadMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "refuse" => Ok(ThreadMode::Refuse),
            "pass" => Ok(ThreadMode::Pass),
            _ => Err(format!("unknown treatment of threads \"{name}\"; choose refuse or pass")),
        }
    }
}

impl FromStr for SummaryMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(SummaryMode::Off),
            "prepared" => Ok(SummaryMode::Prepared),
            "inline" => Ok(SummaryMode::Inline(Self::DEFAULT_INLINE_WAIT)),
            _ => Err(format!("unknown summary mode \"{name}\"; choose off, prepared or inline")),
        }
    }
}
