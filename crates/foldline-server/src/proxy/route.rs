//! Which upstream a request belongs to, and which dialect it speaks.
//!
//! A request can not choose where it goes: the settings name two upstreams, and a path (or, for paths
//! that both have, a header of the Anthropic API) says which of the two. Nothing else is looked at.

use foldline::wire::Format;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

/// Where a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route<'r> {
    pub(crate) side: Side,
    /// The path at the provider, with its query.
    pub(crate) path: &'r str,
    pub(crate) kind: Kind,
}

/// One of the two upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    OpenAi,
    Anthropic,
}

/// What a request is to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A conversation that the model is to go on with.
    Turn(Format),
    /// A conversation whose tokens are to be counted.
    Count(Format),
    /// A client that would rather speak through a WebSocket, where a conversation comes in pieces.
    WebSocket,
    /// Anything else.
    Other,
}

impl<'r> Route<'r> {
    pub(crate) fn of(parts: &'r Parts) -> Self {
        let whole = parts.uri.path_and_query().map_or("/", |it| it.as_str());
        let (named, path) = match (below(whole, "/openai"), below(whole, "/anthropic")) {
            (Some(path), _) => (Some(Side::OpenAi), path),
            (_, Some(path)) => (Some(Side::Anthropic), path),
            _ => (None, whole),
        };
        let kind = Kind::of(parts, path.split('?').next().unwrap_or(path));
        let side = named.unwrap_or(match kind {
            Kind::Turn(Format::Anthropic) | Kind::Count(Format::Anthropic) => Side::Anthropic,
            Kind::Turn(_) | Kind::Count(_) | Kind::WebSocket => Side::OpenAi,
            Kind::Other if speaks_anthropic(&parts.headers) => Side::Anthropic,
            Kind::Other => Side::OpenAi,
        });
        Self { side, path, kind }
    }
}

impl Kind {
    fn of(parts: &Parts, path: &str) -> Self {
        let ends =
            |end: &str| path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with("/v1"));
        let posted = parts.method == Method::POST;
        if parts.method == Method::GET && ends("/responses") && parts.headers.contains_key("sec-websocket-key") {
            Kind::WebSocket
        } else if posted && path.ends_with("/chat/completions") {
            Kind::Turn(Format::OpenAiChat)
        } else if posted && ends("/responses") {
            Kind::Turn(Format::OpenAiResponses)
        } else if posted && ends("/messages") {
            Kind::Turn(Format::Anthropic)
        } else if posted && ends("/messages/count_tokens") {
            Kind::Count(Format::Anthropic)
        } else {
            Kind::Other
        }
    }
}

/// The rest of a path below a prefix that is ours. Azure's own paths begin with `/openai` as well; only
/// a version behind it makes it ours.
fn below<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    path.strip_prefix(prefix).filter(|rest| rest.starts_with("/v1/"))
}

fn speaks_anthropic(headers: &HeaderMap) -> bool {
    ["anthropic-version", "anthropic-beta", "x-api-key", "x-claude-code-session-id"]
        .iter()
        .any(|name| headers.contains_key(*name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn route(method: &str, uri: &str, header: &str) -> (Side, String, Kind) {
        let mut request = Request::builder().method(method).uri(uri);
        if !header.is_empty() {
            request = request.header(header, "x");
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let Route { side, path, kind } = Route::of(&parts);
        (side, path.to_owned(), kind)
    }

    #[test]
    fn paths_say_where_a_request_goes() {
        use Format::{Anthropic, OpenAiChat, OpenAiResponses};
        use Side::OpenAi;
        for (method, uri, header, side, path, kind) in [
            ("POST", "/v1/chat/completions", "", OpenAi, "/v1/chat/completions", Kind::Turn(OpenAiChat)),
            ("POST", "/openai/v1/responses", "", OpenAi, "/v1/responses", Kind::Turn(OpenAiResponses)),
            ("POST", "/responses", "", OpenAi, "/responses", Kind::Turn(OpenAiResponses)),
            ("POST", "/v1/responses/compact", "", OpenAi, "/v1/responses/compact", Kind::Other),
            ("POST", "/v1/messages?beta=true", "", Side::Anthropic, "/v1/messages?beta=true", Kind::Turn(Anthropic)),
            ("POST", "/anthropic/v1/messages", "", Side::Anthropic, "/v1/messages", Kind::Turn(Anthropic)),
            (
                "POST",
                "/v1/messages/count_tokens",
                "",
                Side::Anthropic,
                "/v1/messages/count_tokens",
                Kind::Count(Anthropic),
            ),
            ("GET", "/v1/models", "", OpenAi, "/v1/models", Kind::Other),
            ("GET", "/v1/models", "anthropic-version", Side::Anthropic, "/v1/models", Kind::Other),
            ("GET", "/v1/responses", "sec-websocket-key", OpenAi, "/v1/responses", Kind::WebSocket),
            ("GET", "/v1/responses/resp_1", "", OpenAi, "/v1/responses/resp_1", Kind::Other),
            ("HEAD", "/", "", OpenAi, "/", Kind::Other),
            (
                "POST",
                "/openai/deployments/d/chat/completions?api-version=1",
                "",
                OpenAi,
                "/openai/deployments/d/chat/completions?api-version=1",
                Kind::Turn(OpenAiChat),
            ),
            ("POST", "/v1/threads/t/messages", "", OpenAi, "/v1/threads/t/messages", Kind::Other),
        ] {
            assert_eq!(route(method, uri, header), (side, path.to_owned(), kind), "{method} {uri} {header}");
        }
    }
}
