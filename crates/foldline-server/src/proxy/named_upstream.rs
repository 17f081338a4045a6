//! Upstreams that the settings name, besides one for each API, and the choice of one for a request.
//!
//! The first segment of a path selects a named upstream; nothing else of a request does. Must not happen here: a key of the
//! settings is shown.

use std::fmt;
use std::sync::Arc;

use foldline::wire::{ApiFamily, Format};
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Uri};

use crate::proxy::upstream::aws::signature::remove_signature;
use crate::proxy::upstream::aws::signer::AwsSigner;
use crate::proxy::upstream::credentials::{
    CREDENTIAL_HEADERS, CredentialFault, ForeignKey, is_signed_by_header, is_signed_by_query,
};
use crate::proxy::upstream_urls::{UpstreamUrl, Upstreams};

/// First segments of paths that mean something else.
const RESERVED_NAMES: [&str; 14] = [
    "foldline",
    "token",
    "v1",
    "v1alpha",
    "v1beta",
    "v1beta1",
    "v1internal",
    "api",
    "chat",
    "messages",
    "model",
    "models",
    "responses",
    "upload",
];
/// Maximum characters of a name.
const MAX_NAME_CHARS: usize = 32;

/// An upstream that requests select by the first segment of their path.
///
/// ```
/// use foldline::wire::Format;
/// use foldline_server::proxy::{NamedUpstream, UpstreamAuth};
///
/// let url = "https://openrouter.ai/api/v1".parse()?;
/// let upstream = NamedUpstream::new("openrouter", url, Format::OpenAiChat, UpstreamAuth::Client)?;
/// assert_eq!(upstream.name(), "openrouter");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedUpstream {
    name: String,
    url: UpstreamUrl,
    family: &'static ApiFamily,
    auth: UpstreamAuth,
}

/// The credential that an upstream gets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpstreamAuth {
    /// That of the client.
    Client,
    /// This key, instead of the client's.
    Key(HeaderValue),
    /// A signature with AWS credentials of the proxy.
    Aws(AwsSigner),
}

impl fmt::Debug for UpstreamAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UpstreamAuth::Client => "Client",
            UpstreamAuth::Key(_) => "Key(..)",
            UpstreamAuth::Aws(_) => "Aws(..)",
        })
    }
}

/// Error: an upstream cannot have this name or this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNamedUpstream(String);

impl fmt::Display for InvalidNamedUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidNamedUpstream {}

impl UpstreamAuth {
    /// Returns the credential for a key.
    ///
    /// # Errors
    ///
    /// If the key is empty, or cannot be part of a header.
    pub fn from_key(key: &str) -> Result<Self, InvalidNamedUpstream> {
        let invalid = |_| InvalidNamedUpstream("the key cannot be part of a header".to_owned());
        let mut value = HeaderValue::from_str(key.trim()).map_err(invalid)?;
        if value.is_empty() {
            return Err(InvalidNamedUpstream("the key is empty".to_owned()));
        }
        value.set_sensitive(true);
        Ok(UpstreamAuth::Key(value))
    }
}

impl UpstreamAuth {
    /// Returns true if the proxy authenticates requests, not the client.
    pub(crate) fn is_own(&self) -> bool {
        *self != UpstreamAuth::Client
    }

    /// Returns the signer of requests; none if they are not signed.
    pub fn signer(&self) -> Option<&AwsSigner> {
        if let UpstreamAuth::Aws(signer) = self { Some(signer) } else { None }
    }

    /// Authenticates a request at an upstream: with the credential of the client, or with the key of the settings instead
    /// of it. The credentials of a request that is going to be signed are removed.
    ///
    /// # Errors
    ///
    /// The credential of the client must not be sent to the upstream, or is a signature that an edit would invalidate.
    pub(crate) fn authenticate(&self, family: &ApiFamily, parts: &mut Parts, uri: &Uri) -> Result<(), CredentialFault> {
        let headers = &mut parts.headers;
        if is_signed_by_query(&parts.uri) || is_signed_by_header(headers) && self.signer().is_none() {
            return Err(CredentialFault::Signed);
        }
        if !self.is_own() {
            return ForeignKey::find(headers, uri).map_or(Ok(()), |key| Err(CredentialFault::Foreign(key)));
        }
        self.replace_credentials(family, headers);
        Ok(())
    }

    fn replace_credentials(&self, family: &ApiFamily, headers: &mut HeaderMap) {
        CREDENTIAL_HEADERS.iter().for_each(|name| drop(headers.remove(name)));
        remove_signature(headers);
        let UpstreamAuth::Key(key) = self else { return };
        let value = HeaderValue::from_bytes(&[family.key_prefix.as_bytes(), key.as_bytes()].concat());
        if let (Ok(name), Ok(mut value)) = (HeaderName::from_bytes(family.key_header.as_bytes()), value) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
}

impl NamedUpstream {
    /// Creates an upstream for the API of a dialect.
    ///
    /// # Errors
    ///
    /// If the name is not valid as the first segment of a path, or means something else there.
    pub fn new(
        name: &str,
        url: UpstreamUrl,
        dialect: Format,
        auth: UpstreamAuth,
    ) -> Result<Self, InvalidNamedUpstream> {
        let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !(1..=MAX_NAME_CHARS).contains(&name.len()) || !name.bytes().all(is_allowed) || !starts_well {
            let rule = format!("use up to {MAX_NAME_CHARS} lower-case letters, digits, \"-\", \"_\" and \".\"");
            return Err(InvalidNamedUpstream(format!("\"{name}\" is not a name of an upstream; {rule}")));
        }
        if RESERVED_NAMES.contains(&name) || ApiFamily::all().any(|family| family.name == name) {
            let rule = "paths that begin with it mean something else";
            return Err(InvalidNamedUpstream(format!("\"{name}\" cannot name an upstream: {rule}")));
        }
        Ok(Self { name: name.to_owned(), url, family: dialect.dialect().family, auth })
    }

    /// Returns the name, which is the first segment of paths for it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of its API.
    pub fn api_name(&self) -> &'static str {
        self.family.name
    }

    /// Returns the base URL.
    pub fn url(&self) -> &UpstreamUrl {
        &self.url
    }

    /// Returns the credential that it gets.
    pub fn auth(&self) -> &UpstreamAuth {
        &self.auth
    }
}

/// The upstream of a request: the one of an API, or a named one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamChoice {
    pub(crate) family: &'static ApiFamily,
    named: Option<Arc<NamedUpstream>>,
}

impl From<&'static ApiFamily> for UpstreamChoice {
    fn from(family: &'static ApiFamily) -> Self {
        Self { family, named: None }
    }
}

impl From<Arc<NamedUpstream>> for UpstreamChoice {
    fn from(named: Arc<NamedUpstream>) -> Self {
        Self { family: named.family, named: Some(named) }
    }
}

impl UpstreamChoice {
    /// Returns the named upstream that a path selects, and the path at it.
    pub(crate) fn for_path<'p>(upstreams: &[Arc<NamedUpstream>], path: &'p str) -> Option<(Self, &'p str)> {
        let rest = path.strip_prefix('/')?;
        let (first, _) = rest.split_once('/')?;
        let named = upstreams.iter().find(|upstream| upstream.name == first)?;
        Some((named.clone().into(), &rest[first.len()..]))
    }

    /// Returns the upstream of a tenant for the same API, if there is one and the path did not select a named upstream.
    pub(crate) fn or_of_tenant(self, upstreams: &[Arc<NamedUpstream>]) -> Self {
        upstreams.iter().find(|own| self.named.is_none() && own.family == self.family).cloned().map_or(self, Self::from)
    }

    /// Returns the name: its own, or that of the API.
    pub(crate) fn name(&self) -> &str {
        self.named.as_ref().map_or(self.family.name, |named| &named.name)
    }

    /// Returns the base URL.
    pub(crate) fn url<'u>(&'u self, upstreams: &'u Upstreams) -> &'u UpstreamUrl {
        self.named.as_ref().map_or_else(|| upstreams.get(self.family), |named| &named.url)
    }

    /// Returns the credential that the upstream gets. That of the API of Bedrock is a setting of its own.
    pub(crate) fn auth<'u>(&'u self, bedrock_auth: &'u UpstreamAuth) -> &'u UpstreamAuth {
        match &self.named {
            Some(named) => &named.auth,
            None if self.family == Format::Converse.dialect().family => bedrock_auth,
            None => &UpstreamAuth::Client,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, auth: UpstreamAuth) -> Result<Arc<NamedUpstream>, InvalidNamedUpstream> {
        NamedUpstream::new(name, "http://127.0.0.1:1".parse().unwrap(), Format::Anthropic, auth).map(Arc::new)
    }

    #[test]
    fn reserved_and_malformed_names_are_rejected() {
        for name in ["", "a b", "A", "a/b", "-a", "..", "v1", "openai", "bedrock", "foldline", "token", "\u{e9}"] {
            assert!(named(name, UpstreamAuth::Client).is_err(), "{name}");
        }
        for name in ["a", "open-router", "gpu_2", "llm.local"] {
            assert!(named(name, UpstreamAuth::Client).is_ok(), "{name}");
        }
    }

    #[test]
    fn first_segment_selects_the_upstream() {
        let upstreams = [named("a", UpstreamAuth::Client).unwrap(), named("ab", UpstreamAuth::Client).unwrap()];
        let select = |path| UpstreamChoice::for_path(&upstreams, path).map(|(it, path)| (it.name().to_owned(), path));
        assert_eq!(select("/ab/v1/messages?x=/a/"), Some(("ab".to_owned(), "/v1/messages?x=/a/")));
        for path in ["/v1/messages", "/abc/v1", "/a", "a/v1", "/v1/a/messages", "//a/v1"] {
            assert_eq!(select(path), None, "{path}");
        }
    }

    #[test]
    fn tenant_replaces_only_the_upstream_of_the_same_api() {
        let own = [named("a", UpstreamAuth::Client).unwrap()];
        let family = |format: Format| UpstreamChoice::from(format.dialect().family);
        assert_eq!(family(Format::Anthropic).or_of_tenant(&own).name(), "a");
        assert_eq!(family(Format::OpenAiChat).or_of_tenant(&own).name(), "openai");
        let selected = [named("b", UpstreamAuth::Client).unwrap()];
        let (choice, _) = UpstreamChoice::for_path(&selected, "/b/v1").unwrap();
        assert_eq!(choice.or_of_tenant(&own).name(), "b");
    }

    #[test]
    fn key_of_the_settings_replaces_all_of_the_client() {
        let auth = UpstreamAuth::from_key(" secret\n").unwrap();
        assert!(!format!("{auth:?}").contains("secret"));
        let (choice, _) = UpstreamChoice::for_path(&[named("a", auth).unwrap()], "/a/v1").unwrap();
        let mut headers: HeaderMap =
            CREDENTIAL_HEADERS.iter().map(|name| (name.clone(), "mine".parse().unwrap())).collect();
        choice.auth(&UpstreamAuth::Client).replace_credentials(choice.family, &mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["x-api-key"], "secret");
        UpstreamAuth::from_key(" ").unwrap_err();
        UpstreamAuth::from_key("a\nb").unwrap_err();
    }
}
