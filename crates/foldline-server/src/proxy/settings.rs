//! Settings of the proxy: plain values, resolved once by the caller.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use foldline::tokens::Tokens;
use foldline::wire::ApiFamily;
use foldline::{ModelTable, Policy};
use foldline_archive::Namespace;
use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};

use crate::proxy::admin::policy_comparison::PolicyReplay;
use crate::proxy::downstream::auth::AccessToken;
use crate::proxy::downstream::tenancy::Tenancy;
use crate::proxy::downstream::tls::TlsFiles;

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
    /// Certificate and key, if the proxy terminates TLS.
    pub tls: Option<TlsFiles>,
    /// Providers, one for each API.
    pub upstreams: Upstreams,
    /// Treatment of requests.
    pub mode: ProxyMode,
    /// Fold policy: what may be folded, and when.
    pub policy: Policy,
    /// Windows and prices of models, for servers that do not report them.
    pub models: Cow<'static, ModelTable>,
    /// Window of the model, used if neither the server nor the table knows it.
    pub window: Option<Tokens>,
    /// Window with which Ollama loads models, sent with every request to its own API; none if the server or the client
    /// decides. Another value than in the request before reloads the model.
    pub ollama_num_ctx: Option<Tokens>,
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

/// The base URLs of the providers, one for each API that a dialect belongs to.
///
/// ```
/// use foldline::wire::Format;
/// use foldline_server::proxy::Upstreams;
///
/// let family = Format::Anthropic.dialect().family;
/// let mut upstreams = Upstreams::default();
/// assert_eq!(upstreams.get(family).to_string(), family.default_url);
/// upstreams.set(family, "http://127.0.0.1:8080".parse()?);
/// assert!(upstreams.get(family).is_loopback());
/// # Ok::<(), foldline_server::proxy::InvalidUpstreamUrl>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstreams(Vec<(&'static ApiFamily, UpstreamUrl)>);

impl Default for Upstreams {
    fn default() -> Self {
        let official = |family: &ApiFamily| family.default_url.parse().expect("official provider URLs are valid");
        Self(ApiFamily::all().map(|family| (family, official(family))).collect())
    }
}

impl Upstreams {
    /// Uses one provider for all APIs.
    pub fn all_at(url: &UpstreamUrl) -> Self {
        Self(ApiFamily::all().map(|family| (family, url.clone())).collect())
    }

    /// Returns the provider of an API.
    pub fn get(&self, family: &ApiFamily) -> &UpstreamUrl {
        let found = self.0.iter().find(|(known, _)| *known == family);
        &found.expect("every API of a dialect has an upstream").1
    }

    /// Returns the provider of the API with this name.
    pub fn named(&self, name: &str) -> Option<&UpstreamUrl> {
        self.iter().find(|(family, _)| family.name == name).map(|(_, url)| url)
    }

    /// Sets the provider of an API.
    pub fn set(&mut self, family: &ApiFamily, url: UpstreamUrl) {
        if let Some((_, known)) = self.0.iter_mut().find(|(known, _)| *known == family) {
            *known = url;
        }
    }

    /// Returns all APIs with their providers.
    pub fn iter(&self) -> impl Iterator<Item = (&'static ApiFamily, &UpstreamUrl)> {
        self.0.iter().map(|(family, url)| (*family, url))
    }
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

/// The base URL of a provider.
///
/// ```
/// use foldline_server::proxy::UpstreamUrl;
///
/// let upstream: UpstreamUrl = "http://127.0.0.1:8080/v1/".parse()?;
/// assert_eq!(upstream.to_string(), "http://127.0.0.1:8080/v1");
/// assert!("ftp://x".parse::<UpstreamUrl>().is_err());
/// # Ok::<(), foldline_server::proxy::InvalidUpstreamUrl>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// Path without a trailing slash.
    path: String,
}

/// Error: a text is not a valid base URL of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidUpstreamUrl(String);

impl Default for ProxySettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8787)),
            tokens: Vec::new(),
            gateways: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tenancy: None,
            namespace: Namespace::local(),
            tls: None,
            upstreams: Upstreams::default(),
            mode: ProxyMode::Fold,
            policy: Policy::default(),
            models: Cow::Borrowed(ModelTable::builtin()),
            window: None,
            ollama_num_ctx: None,
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

impl UpstreamUrl {
    /// Returns the version suffix that a client's OpenAI base URL needs for this provider: most clients include
    /// the API version in the base URL, and some providers have none.
    ///
    /// ```
    /// use foldline_server::proxy::UpstreamUrl;
    ///
    /// for (upstream, version) in [
    ///     ("https://api.openai.com", "/v1"),
    ///     ("https://api.z.ai/api/paas/v4", "/v4"),
    ///     ("https://chatgpt.com/backend-api/codex", ""),
    /// ] {
    ///     assert_eq!(upstream.parse::<UpstreamUrl>()?.version(), version);
    /// }
    /// # Ok::<(), foldline_server::proxy::InvalidUpstreamUrl>(())
    /// ```
    pub fn version(&self) -> &str {
        match self.path.rfind('/') {
            None => "/v1",
            Some(at) if is_version(&self.path[at + 1..]) => &self.path[at..],
            Some(_) => "",
        }
    }

    /// Returns true if the host is this machine.
    pub fn is_loopback(&self) -> bool {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|it: IpAddr| it.is_loopback())
    }

    /// Returns the URI of a client's path and query at this provider. Both may start with the API version; it is
    /// not repeated.
    pub(crate) fn uri(&self, path_and_query: &str) -> Result<Uri, hyper::http::Error> {
        let version = self.path.rsplit_once('/').map(|(_, last)| last).filter(|last| is_version(last));
        let rest = version.and_then(|version| path_and_query.strip_prefix('/')?.strip_prefix(version));
        let rest = rest.filter(|rest| rest.starts_with('/')).unwrap_or(path_and_query);
        self.server_uri(&format!("{}{rest}", self.path))
    }

    /// Returns the URI of a path that carries a conversation. Some clients leave the API version out of the path, because
    /// they expect it in the base URL; a provider without a path in its URL needs it.
    pub(crate) fn conversation_uri(&self, path_and_query: &str) -> Result<Uri, hyper::http::Error> {
        let first = path_and_query.trim_start_matches('/').split(['/', '?']).next().unwrap_or_default();
        let is_unversioned = self.path.is_empty() && matches!(first, "messages" | "chat" | "responses");
        if is_unversioned { self.uri(&format!("{}{path_and_query}", self.version())) } else { self.uri(path_and_query) }
    }

    /// Returns the URI of a path of the server itself, outside the API's base path.
    pub(crate) fn server_uri(&self, path: &str) -> Result<Uri, hyper::http::Error> {
        Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path).build()
    }
}

/// Returns true for path segments such as `v1` and `v4`, which name an API version.
fn is_version(segment: &str) -> bool {
    segment.strip_prefix('v').is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

impl FromStr for UpstreamUrl {
    type Err = InvalidUpstreamUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUpstreamUrl> {
        let bad =
            |reason: &str| InvalidUpstreamUrl(format!("\"{text}\" is not a valid base URL of a provider: {reason}"));
        let uri: Uri = text.parse().map_err(|_| bad("write it as https://host or http://host:port/path"))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.filter(|it| *it == Scheme::HTTP || *it == Scheme::HTTPS);
        let scheme = scheme.ok_or_else(|| bad("the scheme must be http:// or https://"))?;
        let authority = parts.authority.ok_or_else(|| bad("the host is missing"))?;
        if authority.as_str().contains('@') {
            return Err(bad("remove the credentials; clients send them with each request"));
        }
        let path = parts.path_and_query.map(|it| it.path().trim_end_matches('/').to_owned()).unwrap_or_default();
        Ok(Self { scheme, authority, path })
    }
}

impl fmt::Display for UpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}

impl fmt::Display for InvalidUpstreamUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidUpstreamUrl {}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_version_is_not_repeated() {
        let uri = |base: &str, path: &str| base.parse::<UpstreamUrl>().unwrap().uri(path).unwrap().to_string();
        assert_eq!(uri("https://a", "/v1/messages?beta=true"), "https://a/v1/messages?beta=true");
        assert_eq!(uri("https://a/v1/", "/v1/models"), "https://a/v1/models");
        assert_eq!(uri("https://a/api/v1", "/v1/models"), "https://a/api/v1/models");
        assert_eq!(uri("https://a/api/v4", "/chat/completions"), "https://a/api/v4/chat/completions");
        assert_eq!(uri("https://a/v1", "/v1beta/models"), "https://a/v1/v1beta/models");
        assert_eq!(uri("http://[::1]:1", "/"), "http://[::1]:1/");
        assert_eq!(uri("http://a", "/a%2Fb//c/../d"), "http://a/a%2Fb//c/../d");
    }

    /// The Vercel AI SDK reads the base URL of Anthropic as one with `/v1`.
    #[test]
    fn missing_api_version_is_added() {
        let uri = |base: &str, path: &str| {
            let upstream = base.parse::<UpstreamUrl>().unwrap();
            upstream.conversation_uri(path).unwrap().to_string()
        };
        assert_eq!(uri("https://a", "/messages?beta=true"), "https://a/v1/messages?beta=true");
        assert_eq!(uri("https://a", "/v1/messages"), "https://a/v1/messages");
        assert_eq!(uri("https://a/v1", "/messages"), "https://a/v1/messages");
        assert_eq!(uri("https://a/api/codex", "/responses"), "https://a/api/codex/responses");
        assert_eq!(
            uri("https://a", "/openai/deployments/d/chat/completions"),
            "https://a/openai/deployments/d/chat/completions"
        );
    }

    #[test]
    fn invalid_base_url_is_rejected() {
        for text in ["", "api.openai.com", "ftp://a", "https://user:secret@a", "https://"] {
            assert!(text.parse::<UpstreamUrl>().is_err(), "{text}");
        }
    }
}
