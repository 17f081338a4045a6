//! What the proxy is told: plain values, resolved once by whoever starts it.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use foldline::{ModelTable, Policy, Tokens};
use foldline_archive::Namespace;
use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};

use crate::proxy::downstream::auth::AccessToken;
use crate::proxy::downstream::tenancy::Tenancy;
use crate::proxy::downstream::tls::TlsFiles;

/// Everything that the proxy is told.
///
/// ```
/// use foldline_server::proxy::{Mode, Settings};
///
/// let settings = Settings { mode: Mode::Observe, ..Settings::default() };
/// assert!(settings.listen.ip().is_loopback(), "only this machine, unless told otherwise");
/// ```
#[derive(Clone, Debug)]
pub struct ProxySettings {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Tokens that let clients in. Needed when others than this machine can connect.
    pub tokens: Vec<AccessToken>,
    /// Which requests share originals. By default all of them without tokens, each name where all tokens have names,
    /// and else each credential.
    pub tenancy: Option<Tenancy>,
    /// The namespace of the archive under tenancy single.
    pub namespace: Namespace,
    /// The certificate and the key, where the proxy serves TLS itself.
    pub tls: Option<TlsFiles>,
    /// Who answers Chat Completions and Responses.
    pub openai: UpstreamUrl,
    /// Who answers Anthropic Messages.
    pub anthropic: UpstreamUrl,
    /// What becomes of requests.
    pub mode: ProxyMode,
    /// What may be folded, and when.
    pub policy: Policy,
    /// Windows and prices of models, where servers do not tell.
    pub models: Cow<'static, ModelTable>,
    /// The window of the model, where neither the server nor the table knows better.
    pub window: Option<Tokens>,
    /// Whether requests with tools are offered one more, by which the model unfolds what it needs.
    pub offer_unfold_tool: bool,
    /// Whether a model writes summaries of old rounds, and who waits for them.
    pub summary_mode: SummaryMode,
    /// The model that writes them, at the client's own provider; the conversation's own when none is named.
    pub summary_model: Option<String>,
    /// How much is held and done at once.
    pub limits: ProxyLimits,
    /// How long is waited.
    pub timeouts: Timeouts,
}

/// What becomes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// They are folded.
    Fold,
    /// They go out as they came; what folding would have done is reported.
    Observe,
    /// They go out as they came, unread.
    Off,
}

/// Whether a model writes summaries of old rounds, and who waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SummaryMode {
    /// No model is called.
    #[default]
    Off,
    /// A model writes them in the background, before they are needed; no request waits.
    Prepared,
    /// A model writes one when a request must be folded, and the request waits for it, so long at most; then it is
    /// folded without one.
    Inline(Duration),
}

/// How much is held and done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyLimits {
    /// Bytes of a request body, as sent and as decoded. Providers take 32 MB (Anthropic) or more.
    pub body_bytes: usize,
    /// Bytes of all request bodies that are held at once; one that finds no room waits, and is then told to come again.
    pub total_body_bytes: usize,
    /// Requests at once; the next one waits for its turn.
    pub requests: usize,
    /// Conversations whose folds are remembered, so that a turn costs its new bytes.
    pub sessions: usize,
}

/// How long is waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client to begin, to send the head of a request, and between two pieces of its body.
    pub client_read: Duration,
    /// For a request to find room for its body.
    pub body_budget: Duration,
    /// For an upstream to take a connection.
    pub connect: Duration,
    /// For an upstream to begin its answer. Long answers that are not streamed begin late.
    pub response_start: Duration,
    /// Between two pieces of an answer, for an upstream to send the next and for a client to take it.
    pub idle: Duration,
    /// Until a client that waits for the rest of its answer is told that it is still coming, and until the head of an
    /// answer is sent although the model has produced nothing for the client yet.
    pub keep_alive: Duration,
    /// For answers to end when the proxy is told to stop; then they are cut.
    pub shutdown: Duration,
    /// Until a window that was learned from an error or a count is forgotten. Learning it again costs one refused request.
    pub learned: Duration,
}

/// The base URL of a provider.
///
/// ```
/// use foldline_server::proxy::Upstream;
///
/// let upstream: Upstream = "http://127.0.0.1:8080/v1/".parse()?;
/// assert_eq!(upstream.to_string(), "http://127.0.0.1:8080/v1");
/// assert!("ftp://x".parse::<Upstream>().is_err());
/// # Ok::<(), foldline_server::proxy::BadUpstream>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    pub(crate) scheme: Scheme,
    pub(crate) authority: Authority,
    /// Without a slash at its end.
    path: String,
}

/// The text is not the base URL of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidUpstreamUrl(String);

impl Default for ProxySettings {
    fn default() -> Self {
        let official = |url: &str| url.parse().expect("the URL of a provider is a URL");
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8787)),
            tokens: Vec::new(),
            tenancy: None,
            namespace: Namespace::local(),
            tls: None,
            openai: official("https://api.openai.com"),
            anthropic: official("https://api.anthropic.com"),
            mode: ProxyMode::Fold,
            policy: Policy::default(),
            models: Cow::Borrowed(ModelTable::builtin()),
            window: None,
            offer_unfold_tool: true,
            summary_mode: SummaryMode::Off,
            summary_model: None,
            limits: ProxyLimits::default(),
            timeouts: Timeouts::default(),
        }
    }
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self { body_bytes: 64 << 20, total_body_bytes: 1 << 30, requests: 4096, sessions: 1024 }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            client_read: Duration::from_secs(30),
            body_budget: Duration::from_secs(5),
            connect: Duration::from_secs(10),
            response_start: Duration::from_secs(600),
            idle: Duration::from_secs(300),
            keep_alive: Duration::from_secs(10),
            // Service managers kill a process after 30 seconds, and it has to close its archive.
            shutdown: Duration::from_secs(28),
            learned: Duration::from_secs(3_600),
        }
    }
}

impl UpstreamUrl {
    /// How the base URL of a client ends whose OpenAI paths are to fit this provider: most clients write
    /// the version of the API into it, and some providers have none.
    ///
    /// ```
    /// use foldline_server::proxy::Upstream;
    ///
    /// for (upstream, version) in [
    ///     ("https://api.openai.com", "/v1"),
    ///     ("https://api.z.ai/api/paas/v4", "/v4"),
    ///     ("https://chatgpt.com/backend-api/codex", ""),
    /// ] {
    ///     assert_eq!(upstream.parse::<Upstream>()?.version(), version);
    /// }
    /// # Ok::<(), foldline_server::proxy::BadUpstream>(())
    /// ```
    pub fn version(&self) -> &str {
        match self.path.rfind('/') {
            None => "/v1",
            Some(at) if is_version(&self.path[at + 1..]) => &self.path[at..],
            Some(_) => "",
        }
    }

    /// Whether it is on this machine.
    pub fn is_loopback(&self) -> bool {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|it: IpAddr| it.is_loopback())
    }

    /// Where a path (with its query) of the client's lies at this provider. Both may begin with the
    /// version of the API; it is said once.
    pub(crate) fn uri(&self, path_and_query: &str) -> Result<Uri, hyper::http::Error> {
        let version = self.path.rsplit_once('/').map(|(_, last)| last).filter(|last| is_version(last));
        let rest = version.and_then(|version| path_and_query.strip_prefix('/')?.strip_prefix(version));
        let rest = rest.filter(|rest| rest.starts_with('/')).unwrap_or(path_and_query);
        self.server_uri(&format!("{}{rest}", self.path))
    }

    /// A path of the server itself, wherever its API lies.
    pub(crate) fn server_uri(&self, path: &str) -> Result<Uri, hyper::http::Error> {
        Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query(path).build()
    }
}

/// `v1`, `v4`: how a base URL ends when it names the version of the API.
fn is_version(segment: &str) -> bool {
    segment.strip_prefix('v').is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

impl FromStr for UpstreamUrl {
    type Err = InvalidUpstreamUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUpstreamUrl> {
        let bad = |why: &str| InvalidUpstreamUrl(format!("\"{text}\" is no base URL of a provider: {why}"));
        let uri: Uri = text.parse().map_err(|_| bad("write it as https://host or http://host:port/path"))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.filter(|it| *it == Scheme::HTTP || *it == Scheme::HTTPS);
        let scheme = scheme.ok_or_else(|| bad("it begins with http:// or https://"))?;
        let authority = parts.authority.ok_or_else(|| bad("it names no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("credentials come with each request and are not part of it"));
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

impl FromStr for ProxyMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "fold" => Ok(ProxyMode::Fold),
            "observe" => Ok(ProxyMode::Observe),
            "off" => Ok(ProxyMode::Off),
            _ => Err(format!("there is no mode \"{name}\": choose fold, observe or off")),
        }
    }
}

impl SummaryMode {
    /// How long a request waits for a summary, where it does.
    pub const DEFAULT_INLINE_WAIT: Duration = Duration::from_secs(30);
}

impl FromStr for SummaryMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "off" => Ok(SummaryMode::Off),
            "prepared" => Ok(SummaryMode::Prepared),
            "inline" => Ok(SummaryMode::Inline(Self::DEFAULT_INLINE_WAIT)),
            _ => Err(format!("summaries can not be \"{name}\": choose off, prepared or inline")),
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

    #[test]
    fn invalid_base_url_is_rejected() {
        for text in ["", "api.openai.com", "ftp://a", "https://user:secret@a", "https://"] {
            assert!(text.parse::<UpstreamUrl>().is_err(), "{text}");
        }
    }
}
