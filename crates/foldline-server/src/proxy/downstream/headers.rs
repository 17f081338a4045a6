//! Headers that are forwarded between a client and a provider.
//!
//! Hop-by-hop headers and those of foldline are removed; everything else is forwarded unchanged, including credentials.

use hyper::Version;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::response::Parts;

use crate::proxy::admin::login;

/// Prefix of headers between a client and the proxy.
const FOLDLINE_PREFIX: &str = "x-foldline-";

/// Header that requests forwarding without folding.
pub(crate) const BYPASS: HeaderName = HeaderName::from_static("x-foldline-bypass");
/// Header that names the session, for the archive.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-foldline-session");
/// Header with the access token.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-foldline-token");

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
    login::remove_set_cookie(&mut head.headers);
    // The HTTP version belongs to each connection.
    head.version = Version::default();
    head
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
}
