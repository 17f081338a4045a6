//! The headers that carry a client's credentials to its provider: the only list of them.
//!
//! Must not happen here: a credential is stored, logged or shown.

use std::fmt;

use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use hyper::{HeaderMap, Uri};

/// Headers that carry credentials of providers.
pub(crate) static CREDENTIAL_HEADERS: [HeaderName; 4] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];

/// Headers that select an account or an API version, and belong to the credentials.
static ACCOUNT_HEADERS: [HeaderName; 4] = [
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

/// Providers whose own hosts and keys are recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyIssuer {
    OpenAi,
    Anthropic,
    Google,
}

impl KeyIssuer {
    fn name(self) -> &'static str {
        match self {
            KeyIssuer::OpenAi => "OpenAI",
            KeyIssuer::Anthropic => "Anthropic",
            KeyIssuer::Google => "Google",
        }
    }

    /// Returns the provider whose own API a host is; none for gateways and local servers, which may accept any key.
    fn for_host(host: &str) -> Option<Self> {
        match host.to_ascii_lowercase().as_str() {
            "api.openai.com" => Some(KeyIssuer::OpenAi),
            "api.anthropic.com" => Some(KeyIssuer::Anthropic),
            "generativelanguage.googleapis.com" => Some(KeyIssuer::Google),
            _ => None,
        }
    }

    /// Returns the provider that issued a key, by its form; none if the form is not distinctive.
    fn for_key(key: &[u8]) -> Option<Self> {
        const KEY_PREFIXES: [(&[u8], KeyIssuer); 4] = [
            (b"sk-ant-", KeyIssuer::Anthropic),
            (b"sk-proj-", KeyIssuer::OpenAi),
            (b"sk-svcacct-", KeyIssuer::OpenAi),
            (b"AIza", KeyIssuer::Google),
        ];
        KEY_PREFIXES.iter().find(|(prefix, _)| key.starts_with(prefix)).map(|(_, issuer)| *issuer)
    }

    /// Returns the provider whose credential a header is; none if it may be anyone's.
    fn for_header(name: &HeaderName, value: &HeaderValue) -> Option<Self> {
        let value = value.as_bytes();
        let key = value.iter().position(|byte| *byte == b' ').map_or(value, |space| &value[space + 1..]);
        Self::for_key(key.trim_ascii()).or(match name.as_str() {
            "x-goog-api-key" => Some(KeyIssuer::Google),
            "x-api-key" => Some(KeyIssuer::Anthropic),
            _ => None,
        })
    }
}

/// Returns true if a request is signed with AWS Signature Version 4: the signature covers the host and the body, so it is
/// wrong at any upstream and after any edit.
pub(crate) fn is_signed_by_header(headers: &HeaderMap) -> bool {
    headers.get_all(AUTHORIZATION).iter().any(|value| value.as_bytes().starts_with(b"AWS4-"))
}

/// Returns true if the signature of a request is in its query.
pub(crate) fn is_signed_by_query(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.contains("X-Amz-Signature="))
}

/// The reason why a request is not sent with its credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CredentialFault {
    /// It is a key of another provider than the upstream.
    Foreign(ForeignKey),
    /// The request is signed for AWS.
    Signed,
}

impl fmt::Display for CredentialFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CredentialFault::Foreign(key) => key.fmt(f),
            CredentialFault::Signed => f.write_str(
                "the request is signed (AWS Signature Version 4) for another host and this body; use a Bedrock API key \
                 in AWS_BEARER_TOKEN_BEDROCK, which is sent instead of a signature, or let the proxy sign with its own \
                 credentials (--bedrock-auth aws)",
            ),
        }
    }
}

/// A credential that must not be sent to an upstream, because another provider issued it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForeignKey {
    issuer: KeyIssuer,
    upstream: KeyIssuer,
}

impl ForeignKey {
    /// Returns the credential of a request that belongs to another provider than its upstream.
    pub(crate) fn find(headers: &HeaderMap, uri: &Uri) -> Option<Self> {
        let upstream = KeyIssuer::for_host(uri.host()?)?;
        let in_headers = CREDENTIAL_HEADERS
            .iter()
            .flat_map(|name| headers.get_all(name).iter().filter_map(|value| KeyIssuer::for_header(name, value)));
        let parameters = uri.query().unwrap_or_default().split('&');
        let in_query = parameters.filter_map(|pair| KeyIssuer::for_key(pair.strip_prefix("key=")?.as_bytes()));
        let issuer = in_headers.chain(in_query).find(|issuer| *issuer != upstream)?;
        Some(Self { issuer, upstream })
    }
}

impl fmt::Display for ForeignKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (issuer, upstream) = (self.issuer.name(), self.upstream.name());
        write!(
            f,
            "the request carries a key of {issuer}, but its path belongs to the upstream of {upstream}; it was not sent: \
             check the base URL of the client"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_another_provider_is_found() {
        let find = |uri: &str, name: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]);
            ForeignKey::find(&headers, &uri.parse().unwrap()).map(|found| (found.issuer, found.upstream))
        };
        let (openai, anthropic) = ("https://api.openai.com/v1/x", "https://api.anthropic.com/v1/x");
        use KeyIssuer::{Anthropic, Google, OpenAi};
        assert_eq!(find(openai, "x-goog-api-key", "k"), Some((Google, OpenAi)));
        assert_eq!(find(openai, "authorization", "Bearer AIzaSy0123"), Some((Google, OpenAi)));
        assert_eq!(find(openai, "authorization", "Bearer sk-ant-api03"), Some((Anthropic, OpenAi)));
        assert_eq!(find(openai, "x-api-key", "k"), Some((Anthropic, OpenAi)));
        assert_eq!(find(anthropic, "x-api-key", "sk-proj-1"), Some((OpenAi, Anthropic)));
        assert_eq!(find("https://api.openai.com/v1beta/m?alt=sse&key=AIzaSy", "accept", "*/*"), Some((Google, OpenAi)));
        assert_eq!(find(openai, "authorization", "Bearer sk-proj-1"), None);
        assert_eq!(find(openai, "authorization", "Bearer eyJ.a.b"), None);
        assert_eq!(find(anthropic, "authorization", "Bearer sk-ant-oat01"), None);
        assert_eq!(
            find("https://gateway.example/v1/x", "x-goog-api-key", "k"),
            None,
            "a gateway accepts what it likes"
        );
    }

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
