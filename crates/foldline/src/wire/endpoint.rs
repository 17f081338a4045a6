//! Provider APIs, and the paths of an API that carry conversations.

/// A provider's API: one base URL and one way to authenticate, for one or several dialects.
#[derive(Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ApiFamily {
    /// The name of the setting of its upstream, and the first segment of a path that selects the API.
    pub name: &'static str,
    /// The name in help texts, after "The provider's URL for".
    pub title: &'static str,
    /// The provider's own base URL.
    pub default_url: &'static str,
    /// The header that carries the API key.
    pub key_header: &'static str,
    /// The text before the key in its header.
    pub key_prefix: &'static str,
    /// Headers that a request must have, with the values that foldline sends.
    pub required_headers: &'static [(&'static str, &'static str)],
    /// Headers that only clients of this API send.
    pub distinctive_headers: &'static [&'static str],
    /// Starts of paths that only this API has: they select it, and may follow its name in a path.
    pub distinctive_paths: &'static [&'static str],
    /// The environment variable in which the provider's own clients expect the key.
    pub key_variable: &'static str,
}

/// The purpose of a path that carries a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndpointPurpose {
    /// The model continues the conversation.
    Turn,
    /// The tokens of the conversation are counted.
    CountTokens,
}

/// Facts about a request that its path states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConversationEndpoint<'p> {
    /// The purpose of the path.
    pub purpose: EndpointPurpose,
    /// The model, if the path names it.
    pub model: Option<&'p str>,
    /// True if the response is a stream, false if not; `None` if the path does not state it.
    pub streaming: Option<bool>,
}

impl ConversationEndpoint<'_> {
    /// Creates an endpoint whose model and streaming are in the body.
    pub(crate) const fn new(purpose: EndpointPurpose) -> Self {
        Self { purpose, model: None, streaming: None }
    }
}

/// Returns a text as one segment of a path: everything but unreserved characters (RFC 3986, 2.3) is percent-encoded.
pub fn encode_path_segment(text: impl AsRef<[u8]>) -> String {
    let encode = |byte: &u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) => char::from(*byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.as_ref().iter().map(encode).collect()
}

/// Returns true if a path ends like this, after nothing or an API version.
pub(crate) fn has_versioned_end(path: &str, end: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with("/v1"))
}
