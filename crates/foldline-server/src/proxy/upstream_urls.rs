//! Base URLs of providers, and one of them for each API.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use foldline::wire::ApiFamily;
use hyper::Uri;
use hyper::http::uri::{Authority, Scheme};

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

    /// Returns the host.
    pub(crate) fn host(&self) -> &str {
        self.authority.host()
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
        let is_unversioned = self.path.is_empty() && matches!(first, "messages" | "chat" | "responses" | "projects");
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
        let vertex = "/projects/p/locations/l/publishers/anthropic/models/m:rawPredict";
        assert_eq!(uri("https://a", vertex), format!("https://a/v1{vertex}"));
        assert_eq!(uri("https://a/v1", &format!("/v1{vertex}")), format!("https://a/v1{vertex}"));
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
