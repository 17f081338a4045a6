//! The upstream and the dialect of a request.
//!
//! A request cannot choose an arbitrary upstream: the settings name two, and the path (or, for paths that both have, a
//! header of the Anthropic API) selects one of them. Nothing else is considered.

use foldline::wire::Format;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

use crate::proxy::settings::UpstreamKind;

/// The route of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRoute {
    pub(crate) upstream: UpstreamKind,
    /// Path and query at the provider.
    pub(crate) path: String,
    pub(crate) kind: RequestKind,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// A request that carries a conversation.
    Conversation(Format, RequestPurpose),
    /// A WebSocket upgrade, over which a conversation would arrive in increments.
    WebSocket,
    /// Anything else.
    Other,
}

/// The purpose of a request that carries a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestPurpose {
    /// The model continues the conversation.
    Turn,
    /// The tokens of the conversation are counted; it may exceed the window.
    CountTokens,
}

impl RequestRoute {
    /// Returns the route of a request, by its method, path and headers.
    pub(crate) fn for_request(parts: &Parts) -> Self {
        let full_path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let (named, path) =
            match (strip_route_prefix(full_path, "/openai"), strip_route_prefix(full_path, "/anthropic")) {
                (Some(path), _) => (Some(UpstreamKind::OpenAi), path),
                (_, Some(path)) => (Some(UpstreamKind::Anthropic), path),
                _ => (None, full_path),
            };
        let kind = RequestKind::for_path(parts, path.split('?').next().unwrap_or(path));
        let upstream = named.unwrap_or(match kind {
            RequestKind::Conversation(Format::Anthropic, _) => UpstreamKind::Anthropic,
            RequestKind::Conversation(..) | RequestKind::WebSocket => UpstreamKind::OpenAi,
            RequestKind::Other if has_anthropic_headers(&parts.headers) => UpstreamKind::Anthropic,
            RequestKind::Other => UpstreamKind::OpenAi,
        });
        Self { upstream, path: path.to_owned(), kind }
    }
}

impl RequestKind {
    fn for_path(parts: &Parts, path: &str) -> Self {
        use RequestPurpose::{CountTokens, Turn};
        let ends =
            |end: &str| path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with("/v1"));
        let is_post = parts.method == Method::POST;
        if parts.method == Method::GET && ends("/responses") && parts.headers.contains_key("sec-websocket-key") {
            RequestKind::WebSocket
        } else if is_post && path.ends_with("/chat/completions") {
            RequestKind::Conversation(Format::OpenAiChat, Turn)
        } else if is_post && ends("/responses") {
            RequestKind::Conversation(Format::OpenAiResponses, Turn)
        } else if is_post && ends("/messages") {
            RequestKind::Conversation(Format::Anthropic, Turn)
        } else if is_post && ends("/messages/count_tokens") {
            RequestKind::Conversation(Format::Anthropic, CountTokens)
        } else {
            RequestKind::Other
        }
    }
}

/// Strips the route prefix from a path. Azure's own paths start with `/openai` as well; the prefix is ours only if a
/// version follows it.
fn strip_route_prefix<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    path.strip_prefix(prefix).filter(|rest| rest.starts_with("/v1/"))
}

fn has_anthropic_headers(headers: &HeaderMap) -> bool {
    ["anthropic-version", "anthropic-beta", "x-api-key", "x-claude-code-session-id"]
        .iter()
        .any(|name| headers.contains_key(*name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn route(method: &str, uri: &str, header: &str) -> (UpstreamKind, String, RequestKind) {
        let mut request = Request::builder().method(method).uri(uri);
        if !header.is_empty() {
            request = request.header(header, "x");
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let RequestRoute { upstream, path, kind } = RequestRoute::for_request(&parts);
        (upstream, path, kind)
    }

    #[test]
    fn paths_select_upstream_and_request_kind() {
        use Format::{Anthropic, OpenAiChat, OpenAiResponses};
        use RequestPurpose::Turn;
        use UpstreamKind::OpenAi;
        for (method, uri, header, upstream, path, kind) in [
            (
                "POST",
                "/v1/chat/completions",
                "",
                OpenAi,
                "/v1/chat/completions",
                RequestKind::Conversation(OpenAiChat, Turn),
            ),
            (
                "POST",
                "/openai/v1/responses",
                "",
                OpenAi,
                "/v1/responses",
                RequestKind::Conversation(OpenAiResponses, Turn),
            ),
            ("POST", "/responses", "", OpenAi, "/responses", RequestKind::Conversation(OpenAiResponses, Turn)),
            ("POST", "/v1/responses/compact", "", OpenAi, "/v1/responses/compact", RequestKind::Other),
            (
                "POST",
                "/v1/messages?beta=true",
                "",
                UpstreamKind::Anthropic,
                "/v1/messages?beta=true",
                RequestKind::Conversation(Anthropic, Turn),
            ),
            (
                "POST",
                "/anthropic/v1/messages",
                "",
                UpstreamKind::Anthropic,
                "/v1/messages",
                RequestKind::Conversation(Anthropic, Turn),
            ),
            (
                "POST",
                "/v1/messages/count_tokens",
                "",
                UpstreamKind::Anthropic,
                "/v1/messages/count_tokens",
                RequestKind::Conversation(Anthropic, RequestPurpose::CountTokens),
            ),
            ("GET", "/v1/models", "", OpenAi, "/v1/models", RequestKind::Other),
            ("GET", "/v1/models", "anthropic-version", UpstreamKind::Anthropic, "/v1/models", RequestKind::Other),
            ("GET", "/v1/responses", "sec-websocket-key", OpenAi, "/v1/responses", RequestKind::WebSocket),
            ("GET", "/v1/responses/resp_1", "", OpenAi, "/v1/responses/resp_1", RequestKind::Other),
            ("HEAD", "/", "", OpenAi, "/", RequestKind::Other),
            (
                "POST",
                "/openai/deployments/d/chat/completions?api-version=1",
                "",
                OpenAi,
                "/openai/deployments/d/chat/completions?api-version=1",
                RequestKind::Conversation(OpenAiChat, Turn),
            ),
            ("POST", "/v1/threads/t/messages", "", OpenAi, "/v1/threads/t/messages", RequestKind::Other),
        ] {
            assert_eq!(route(method, uri, header), (upstream, path.to_owned(), kind), "{method} {uri} {header}");
        }
    }
}
