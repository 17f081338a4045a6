//! The headers that carry a client's credentials to its provider: the only list of them.
//!
//! Must not happen here: a credential is stored, logged or shown.

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};

/// Headers that carry credentials of providers.
pub(crate) const CREDENTIAL_HEADERS: [HeaderName; 4] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];

/// Headers that select an account or an API version, and belong to the credentials.
const ACCOUNT_HEADERS: [HeaderName; 4] = [
    HeaderName::from_static("anthropic-version"),
    HeaderName::from_static("anthropic-beta"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];

/// Returns the headers with which the proxy sends a request of its own for a client: its credentials, marked as
/// sensitive, and nothing else of its request.
pub(crate) fn forwarded_credentials(headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    let credential = |name: &HeaderName| {
        let mut value = headers.get(name)?.clone();
        value.set_sensitive(true);
        Some((name.clone(), value))
    };
    CREDENTIAL_HEADERS.iter().chain(&ACCOUNT_HEADERS).filter_map(credential).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_requests_carry_only_credentials() {
        let given = [("authorization", "Bearer k"), ("idempotency-key", "7"), ("cookie", "c"), ("x-api-key", "k")];
        let headers = given.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()));
        let sent = forwarded_credentials(&headers.collect());
        let names: Vec<&str> = sent.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["authorization", "x-api-key"]);
        assert!(!format!("{sent:?}").contains("Bearer k"), "Debug output must not contain the key");
    }
}
