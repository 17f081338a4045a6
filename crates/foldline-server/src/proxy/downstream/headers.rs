//! Headers that are forwarded between a client and a provider.
//!
//! Hop-by-hop headers and those of foldline are removed; everything else is forwarded unchanged, including credentials.

use hyper::Version;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::response::Parts;

/// Prefix of headers between a client and the proxy.
const FOLDLINE_PREFIX: &str = "x-foldline-";

/// Header that requests forwarding without folding.
pub(crate) const BYPASS: HeaderName = HeaderName::from_static("x-foldline-bypass");
/// The span of the client, in the form of W3C Trace Context.
pub(crate) const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
/// Header that names the session, for the archive.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-foldline-session");
/// Header in which a trusted gateway names the tenant.
pub(crate) const TENANT: HeaderName = HeaderName::from_static("x-foldline-tenant");
/// Header with the access token.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-foldline-token");

/// Name of the cookie in which a browser keeps an access token.
pub(crate) const COOKIE_NAME: &str = "foldline_token";

/// Hop-by-hop headers (RFC 9110, 7.6.1).
const HOP_BY_HOP_HEADERS: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes the headers of a request that must not reach the provider.
pub(crate) fn prepare_for_upstream(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    remove_foldline(headers);
    for name in [HOST, EXPECT] {
        headers.remove(name);
    }
}

/// Removes headers that only the proxy itself and its clients may set.
fn remove_foldline(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(FOLDLINE_PREFIX)).cloned().collect();
    for name in own {
        headers.remove(name);
    }
}

/// Prepares the headers of a request with a buffered body: the length is set for the bytes that are sent, and an
/// uncompressed response is requested, because it is parsed on the way.
pub(crate) fn prepare_buffered_for_upstream(headers: &mut HeaderMap, body: BodyForm) {
    prepare_for_upstream(headers);
    headers.remove(CONTENT_LENGTH);
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if body == BodyForm::Decoded {
        headers.remove(CONTENT_ENCODING);
    }
}

/// The form in which a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyForm {
    /// As the client sent it.
    Unmodified,
    /// Decompressed.
    Decoded,
}

/// Returns the head of a response for the client, without the headers that belong to the upstream connection or that
/// only the proxy may set.
pub(crate) fn client_head(mut head: Parts) -> Parts {
    remove_hop_by_hop(&mut head.headers);
    remove_foldline(&mut head.headers);
    remove_set_cookie(&mut head.headers);
    // The HTTP version belongs to each connection.
    head.version = Version::default();
    head
}

/// Removes attempts of an upstream to set the cookie of the dashboard; its other cookies stay.
fn remove_set_cookie(headers: &mut HeaderMap) {
    let is_own = |value: &HeaderValue| {
        let text = value.as_bytes().trim_ascii_start();
        text.strip_prefix(COOKIE_NAME.as_bytes()).is_some_and(|rest| rest.trim_ascii_start().starts_with(b"="))
    };
    if headers.get_all(SET_COOKIE).iter().any(is_own) {
        let kept: Vec<HeaderValue> =
            headers.get_all(SET_COOKIE).iter().filter(|value| !is_own(value)).cloned().collect();
        headers.remove(SET_COOKIE);
        for value in kept {
            headers.append(SET_COOKIE, value);
        }
    }
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP_HEADERS.iter().chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn hop_by_hop_and_foldline_headers_are_removed() {
        let mut request = headers(&[
            ("host", "127.0.0.1:8787"),
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "secret"),
            ("x-foldline-session", "s"),
            ("x-foldline-token", "t"),
            ("authorization", "Bearer k"),
            ("anthropic-beta", "a,b"),
            ("x-unknown", "stays"),
        ]);
        prepare_for_upstream(&mut request);
        let expected = headers(&[("authorization", "Bearer k"), ("anthropic-beta", "a,b"), ("x-unknown", "stays")]);
        assert_eq!(request, expected);
    }

    #[test]
    fn upstream_cannot_set_the_cookie() {
        let own = [("set-cookie", "foldline_token=7431; Path=/"), ("set-cookie", " foldline_token =1")];
        let mut all = headers(&[&own[..], &[("set-cookie", "a=1"), ("set-cookie", "foldline_tokens=2")]].concat());
        remove_set_cookie(&mut all);
        assert_eq!(all.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "foldline_tokens=2"]);
    }
}
