//! What travels between a client and a provider, and what does not.
//!
//! Headers of one connection end with it, those of foldline end here, and everything else goes through
//! as it is, credentials included.

use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// The prefix of headers that are between a client and the proxy.
const FOLDLINE_PREFIX: &str = "x-foldline-";

/// Asks that a request goes out as it came.
pub(crate) const BYPASS: HeaderName = HeaderName::from_static("x-foldline-bypass");
/// Names the session, for the archive.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-foldline-session");
/// Lets a client in.
pub(crate) const TOKEN: HeaderName = HeaderName::from_static("x-foldline-token");

/// Headers that belong to one connection (RFC 9110, 7.6.1).
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

/// Leaves in the headers of a request what the provider is to get.
pub(crate) fn prepare_for_upstream(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(FOLDLINE_PREFIX)).cloned().collect();
    for name in ours.iter().chain(&[HOST, EXPECT]) {
        headers.remove(name);
    }
}

/// The same for a request whose body is whole and whose answer is read on the side: the length is that
/// of the bytes that are sent, and the answer is asked for as it is.
pub(crate) fn prepare_buffered_for_upstream(headers: &mut HeaderMap, body: BodyForm) {
    prepare_for_upstream(headers);
    headers.remove(CONTENT_LENGTH);
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if body == BodyForm::Decoded {
        headers.remove(CONTENT_ENCODING);
    }
}

/// Which form of a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyForm {
    /// As the client sent it.
    Unmodified,
    /// Without its compression.
    Decoded,
}

/// Leaves in the headers of an answer what the client is to get.
pub(crate) fn prepare_for_client(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
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
        let mut given = headers(&[
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
        prepare_for_upstream(&mut given);
        let expected = headers(&[("authorization", "Bearer k"), ("anthropic-beta", "a,b"), ("x-unknown", "stays")]);
        assert_eq!(given, expected);
    }
}
