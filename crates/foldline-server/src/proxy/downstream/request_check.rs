//! Requests that are refused before anything else looks at them: methods and framings that a proxy must not forward, and
//! requests that a web page made a browser send.
//!
//! Without tokens every program of this machine may connect, and a browser is one that sends what pages of others ask it to.
//! So on such a listener a request needs a local Host (against DNS rebinding), an Origin of its own if it has one, and
//! must not be marked as cross-site. Hosts and origins can be allowed, for reverse proxies and web applications. With
//! tokens none of this is checked: a page does not know a token.

use std::net::IpAddr;

use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

use crate::proxy::settings::ProxySettings;

/// Header in which browsers state the relation of a page to the server.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The checks of a listener.
#[derive(Clone, Debug)]
pub(crate) struct RequestChecks {
    /// False if clients have tokens or certificates.
    is_open: bool,
    /// Allowed hosts, with or without a port, in lower case.
    hosts: Vec<String>,
    /// Allowed origins, in lower case.
    origins: Vec<String>,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestFault {
    /// TRACE would return credentials, CONNECT would open a tunnel.
    Method,
    /// The body has a transfer coding besides chunked, which would be lost on the way.
    TransferEncoding,
    /// The host is missing or not a local one.
    ForeignHost,
    /// A page of another site sent the request.
    ForeignSite,
    /// A conversation is sent with another type than JSON, as a page can without asking.
    ContentType,
}

impl RequestChecks {
    pub(crate) fn new(settings: &ProxySettings) -> Self {
        let lower = |list: &[String]| list.iter().map(|entry| entry.trim().to_ascii_lowercase()).collect();
        Self {
            is_open: settings.is_open(),
            hosts: lower(&settings.allowed_hosts),
            origins: lower(&settings.allowed_origins),
        }
    }

    /// Checks the head of a request.
    pub(crate) fn check_head(&self, parts: &Parts) -> Result<(), RequestFault> {
        if parts.method == Method::TRACE || parts.method == Method::CONNECT {
            return Err(RequestFault::Method);
        }
        let codings: Vec<_> = parts.headers.get_all(TRANSFER_ENCODING).iter().collect();
        if !codings.iter().all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked")) || codings.len() > 1 {
            return Err(RequestFault::TransferEncoding);
        }
        if self.is_open { self.check_site(parts) } else { Ok(()) }
    }

    /// Checks the content type of a conversation.
    pub(crate) fn check_content_type(&self, headers: &HeaderMap) -> Result<(), RequestFault> {
        if !self.is_open || is_json(headers) { Ok(()) } else { Err(RequestFault::ContentType) }
    }

    fn check_site(&self, parts: &Parts) -> Result<(), RequestFault> {
        let all = |name: &HeaderName| parts.headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("\u{0}"));
        // HTTP/2 sends the host as part of the URI, and so does a client that takes this for a forward proxy.
        let authority = parts.uri.authority().map(|authority| authority.as_str());
        let hosts: Vec<&str> = all(&HOST).chain(authority).collect();
        if hosts.is_empty() || !hosts.iter().all(|host| self.allows_host(host)) {
            return Err(RequestFault::ForeignHost);
        }
        let origins: Vec<String> = all(&ORIGIN).map(str::to_ascii_lowercase).collect();
        if !origins.is_empty() && origins.iter().all(|origin| self.origins.contains(origin)) {
            return Ok(());
        }
        let is_own = origins.iter().all(|origin| {
            let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            own.is_some_and(|own| hosts.iter().all(|host| host.eq_ignore_ascii_case(own)))
        });
        let mut sites = parts.headers.get_all(SEC_FETCH_SITE).iter();
        let is_cross_site = sites.any(|site| site.as_bytes().eq_ignore_ascii_case(b"cross-site"));
        if is_own && !is_cross_site { Ok(()) } else { Err(RequestFault::ForeignSite) }
    }

    fn allows_host(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        let with_port = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let name = with_port.map_or(host.as_str(), |(name, _)| name);
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name == "localhost"
            || address.as_ref().is_ok_and(IpAddr::is_loopback)
            || self.hosts.iter().any(|allowed| *allowed == host || allowed == name)
    }
}

/// Returns true if the content type of a body is JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.starts_with("application/") && essence.ends_with("+json")
}

impl RequestFault {
    /// Returns the status of the response.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            RequestFault::Method => StatusCode::METHOD_NOT_ALLOWED,
            RequestFault::TransferEncoding => StatusCode::NOT_IMPLEMENTED,
            RequestFault::ForeignHost | RequestFault::ForeignSite => StatusCode::FORBIDDEN,
            RequestFault::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }

    /// Returns the message of the response.
    pub(crate) fn message(self) -> &'static str {
        match self {
            RequestFault::Method => "TRACE and CONNECT are not supported",
            RequestFault::TransferEncoding => "the only supported transfer encoding is chunked",
            RequestFault::ForeignHost => {
                "unexpected Host header: use localhost or a loopback address, or allow the host with --allow-host"
            }
            RequestFault::ForeignSite => {
                "the request comes from a page of another origin: allow the origin with --allow-origin, or set a token"
            }
            RequestFault::ContentType => "send the request with content-type: application/json",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    use crate::proxy::downstream::auth::AccessToken;

    fn checks(settings: ProxySettings) -> impl Fn(&str, &[(&str, &str)]) -> Result<(), RequestFault> {
        let checks = RequestChecks::new(&settings);
        move |uri, headers| {
            let request = headers
                .iter()
                .fold(Request::builder().uri(uri), |request, (name, value)| request.header(*name, *value));
            checks.check_head(&request.body(()).unwrap().into_parts().0)
        }
    }

    #[test]
    fn foreign_host_header_is_rejected() {
        let check = checks(ProxySettings::default());
        for host in ["localhost", "LocalHost:8787", "127.0.0.1:1", "127.9.9.9", "[::1]:8787", "[::1]"] {
            assert_eq!(check("/", &[("host", host)]), Ok(()), "{host}");
            assert_eq!(check(&format!("http://{host}/"), &[]), Ok(()), "{host} as authority");
        }
        for host in ["evil.example", "evil.example:8787", "localhost.evil.example", "10.0.0.1", ""] {
            assert_eq!(check("/", &[("host", host)]), Err(RequestFault::ForeignHost), "{host}");
        }
        assert_eq!(check("/", &[]), Err(RequestFault::ForeignHost), "no host");
        let both = check("http://evil.example/", &[("host", "localhost")]);
        assert_eq!(both, Err(RequestFault::ForeignHost), "the authority of HTTP/2 counts, too");
        let twice = check("/", &[("host", "localhost"), ("host", "evil.example")]);
        assert_eq!(twice, Err(RequestFault::ForeignHost), "every host counts");
    }

    #[test]
    fn cross_site_request_is_rejected() {
        let check = checks(ProxySettings::default());
        let from = |headers: &[(&str, &str)]| check("/", &[&[("host", "localhost:8787")], headers].concat());
        assert_eq!(from(&[("origin", "http://localhost:8787")]), Ok(()));
        assert_eq!(from(&[("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(from(&[("sec-fetch-site", "none")]), Ok(()), "typed into the address bar");
        for origin in ["https://evil.example", "http://localhost:3000", "null", "http://127.0.0.1:8787", ""] {
            assert_eq!(from(&[("origin", origin)]), Err(RequestFault::ForeignSite), "{origin}");
        }
        assert_eq!(from(&[("sec-fetch-site", "cross-site")]), Err(RequestFault::ForeignSite));
        for site in ["cross-site", "Cross-Site"] {
            let headers = [("origin", "http://localhost:8787"), ("sec-fetch-site", site)];
            assert_eq!(from(&headers), Err(RequestFault::ForeignSite), "a forged or rewritten origin");
        }
        let twice = [("origin", "http://localhost:8787"), ("origin", "https://evil.example")];
        assert_eq!(from(&twice), Err(RequestFault::ForeignSite), "every origin counts");
        let twice = [("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")];
        assert_eq!(from(&twice), Err(RequestFault::ForeignSite));
    }

    #[test]
    fn hosts_and_origins_can_be_allowed() {
        let check = checks(ProxySettings {
            allowed_hosts: vec!["foldline".into(), "gateway.internal:8443".into()],
            allowed_origins: vec!["vscode-webview://abc".into(), "http://localhost:3000".into()],
            ..ProxySettings::default()
        });
        for host in ["foldline:8787", "Foldline", "gateway.internal:8443"] {
            assert_eq!(check("/", &[("host", host)]), Ok(()), "{host}");
        }
        assert_eq!(check("/", &[("host", "gateway.internal:80")]), Err(RequestFault::ForeignHost));
        for origin in ["vscode-webview://abc", "http://localhost:3000"] {
            let headers = [("host", "localhost:8787"), ("origin", origin), ("sec-fetch-site", "cross-site")];
            assert_eq!(check("/", &headers), Ok(()), "{origin}");
        }
    }

    #[test]
    fn host_is_free_with_a_token() {
        let tokens = AccessToken::parse_list("alice=t1").unwrap();
        let check = checks(ProxySettings { tokens, ..ProxySettings::default() });
        assert_eq!(check("/", &[("host", "foldline.example"), ("origin", "https://app.example")]), Ok(()));
        assert_eq!(check("/", &[]), Ok(()));
    }
}
