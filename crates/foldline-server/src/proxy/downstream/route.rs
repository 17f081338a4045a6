//! The upstream and the dialect of a request.
//!
//! A request cannot choose an arbitrary upstream: the settings have one for each API and may name others, and the path (or,
//! for paths that several APIs have, a header that only clients of one send) selects one of them. Nothing else is considered. All that
//! differs between APIs is in their rows ([`ApiFamily`], [`Dialect`]).

use std::sync::Arc;

use foldline::wire::{ApiFamily, Dialect, EndpointPurpose, Format};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri};

use crate::proxy::fold::tenant::Tenant;
use crate::proxy::named_upstream::{NamedUpstream, UpstreamChoice};
use crate::proxy::settings::Upstreams;

/// The route of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRoute {
    /// Upstream that gets the request.
    pub(crate) upstream: UpstreamChoice,
    /// Path and query at the provider.
    pub(crate) path: String,
    pub(crate) kind: RequestKind,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// A request that carries a conversation.
    Conversation(Format, EndpointPurpose),
    /// A WebSocket upgrade, over which a conversation would arrive in increments.
    WebSocket,
    /// Anything else.
    Other,
}

impl RequestKind {
    /// Returns the dialect of a conversation.
    pub(crate) fn format(self) -> Option<Format> {
        if let RequestKind::Conversation(format, _) = self { Some(format) } else { None }
    }
}

impl RequestRoute {
    /// Returns the route of a request, by its method, path and headers. A tenant may have an upstream of its own for the
    /// API.
    pub(crate) fn for_request(parts: &Parts, named_upstreams: &[Arc<NamedUpstream>], tenant: Option<&Tenant>) -> Self {
        let full_path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        let selected = UpstreamChoice::for_path(named_upstreams, full_path);
        let full_path = selected.as_ref().map_or(full_path, |(_, path)| path);
        let mut families = ApiFamily::all().filter(|_| selected.is_none());
        let named = families.find_map(|family| Some((family, strip_family(full_path, family)?)));
        let path = named.map_or(full_path, |(_, path)| path);
        let dialect = Dialect::for_path(path);
        let kind = match dialect {
            Some((dialect, endpoint)) if parts.method == Method::POST => {
                RequestKind::Conversation(dialect.format, endpoint.purpose)
            }
            Some(_) if parts.method == Method::GET && parts.headers.contains_key("sec-websocket-key") => {
                RequestKind::WebSocket
            }
            _ => RequestKind::Other,
        };
        let by_dialect = dialect.map(|(dialect, _)| dialect.family).filter(|_| kind != RequestKind::Other);
        let by_path = || ApiFamily::all().find(|family| has_distinctive_path(path, family));
        let by_header = || ApiFamily::all().find(|family| has_distinctive_header(&parts.headers, family));
        let family = named.map(|(family, _)| family).or_else(by_path).or(by_dialect).or_else(by_header);
        let upstream = selected.map(|(upstream, _)| upstream);
        let upstream = upstream.unwrap_or_else(|| family.unwrap_or_else(default_family).into());
        let upstream = upstream.or_of_tenant(tenant.map_or(&[], |tenant| &tenant.settings.upstreams));
        Self { upstream, path: path.to_owned(), kind }
    }

    /// Returns the URI of the request at its upstream.
    pub(crate) fn uri(&self, upstreams: &Upstreams) -> Result<Uri, hyper::http::Error> {
        let upstream = self.upstream.url(upstreams);
        match self.kind {
            RequestKind::Conversation(..) => upstream.conversation_uri(&self.path),
            RequestKind::WebSocket | RequestKind::Other => upstream.uri(&self.path),
        }
    }
}

/// Returns the API of requests that no path and no header assigns to another.
pub(crate) fn default_family() -> &'static ApiFamily {
    Format::OpenAiChat.dialect().family
}

/// Strips the name of an API from a path. Azure's own paths start with `/openai` as well; the name is a route only if a
/// version or a path of the API follows it.
fn strip_family<'p>(path: &'p str, family: &ApiFamily) -> Option<&'p str> {
    let rest = path.strip_prefix('/')?.strip_prefix(family.name)?;
    (rest.starts_with("/v1") || has_distinctive_path(rest, family)).then_some(rest)
}

/// Returns the API that the path of a dialect selects.
pub(crate) fn family_for_path(dialect: &Dialect, path: &str) -> &'static ApiFamily {
    ApiFamily::all().find(|family| has_distinctive_path(path, family)).unwrap_or(dialect.family)
}

fn has_distinctive_path(path: &str, family: &ApiFamily) -> bool {
    family.distinctive_paths.iter().any(|start| path.starts_with(start))
}

fn has_distinctive_header(headers: &HeaderMap, family: &ApiFamily) -> bool {
    family.distinctive_headers.iter().any(|name| headers.contains_key(*name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn route(method: &str, uri: &str, header: &str) -> (&'static str, String, RequestKind) {
        let mut request = Request::builder().method(method).uri(uri);
        if !header.is_empty() {
            request = request.header(header, "x");
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let RequestRoute { upstream, path, kind } = RequestRoute::for_request(&parts, &[], None);
        (upstream.family.name, path, kind)
    }

    #[test]
    fn paths_select_upstream_and_request_kind() {
        use EndpointPurpose::Turn;
        use Format::{Anthropic, Converse, Gemini, OpenAiChat, OpenAiResponses};
        const OPENAI: &str = "openai";
        const GEMINI: &str = "gemini";
        const BEDROCK: &str = "bedrock";
        for (method, uri, header, upstream, path, kind) in [
            (
                "POST",
                "/v1/chat/completions",
                "",
                OPENAI,
                "/v1/chat/completions",
                RequestKind::Conversation(OpenAiChat, Turn),
            ),
            (
                "POST",
                "/openai/v1/responses",
                "",
                OPENAI,
                "/v1/responses",
                RequestKind::Conversation(OpenAiResponses, Turn),
            ),
            ("POST", "/responses", "", OPENAI, "/responses", RequestKind::Conversation(OpenAiResponses, Turn)),
            ("POST", "/v1/responses/compact", "", OPENAI, "/v1/responses/compact", RequestKind::Other),
            (
                "POST",
                "/v1/messages?beta=true",
                "",
                "anthropic",
                "/v1/messages?beta=true",
                RequestKind::Conversation(Anthropic, Turn),
            ),
            (
                "POST",
                "/anthropic/v1/messages",
                "",
                "anthropic",
                "/v1/messages",
                RequestKind::Conversation(Anthropic, Turn),
            ),
            (
                "POST",
                "/v1/messages/count_tokens",
                "",
                "anthropic",
                "/v1/messages/count_tokens",
                RequestKind::Conversation(Anthropic, EndpointPurpose::CountTokens),
            ),
            ("GET", "/v1/models", "", OPENAI, "/v1/models", RequestKind::Other),
            ("GET", "/v1/models", "anthropic-version", "anthropic", "/v1/models", RequestKind::Other),
            ("GET", "/v1/responses", "sec-websocket-key", OPENAI, "/v1/responses", RequestKind::WebSocket),
            ("GET", "/v1/responses/resp_1", "", OPENAI, "/v1/responses/resp_1", RequestKind::Other),
            ("HEAD", "/", "", OPENAI, "/", RequestKind::Other),
            (
                "POST",
                "/openai/deployments/d/chat/completions?api-version=1",
                "",
                OPENAI,
                "/openai/deployments/d/chat/completions?api-version=1",
                RequestKind::Conversation(OpenAiChat, Turn),
            ),
            ("POST", "/v1/threads/t/messages", "", OPENAI, "/v1/threads/t/messages", RequestKind::Other),
            (
                "POST",
                "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse",
                "",
                GEMINI,
                "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse",
                RequestKind::Conversation(Gemini, Turn),
            ),
            (
                "POST",
                "/gemini/v1beta/models/m:generateContent",
                "",
                GEMINI,
                "/v1beta/models/m:generateContent",
                RequestKind::Conversation(Gemini, Turn),
            ),
            (
                "POST",
                "/v1internal:countTokens",
                "",
                GEMINI,
                "/v1internal:countTokens",
                RequestKind::Conversation(Gemini, EndpointPurpose::CountTokens),
            ),
            (
                "POST",
                "/model/amazon.nova-pro-v1%3A0/converse-stream",
                "",
                BEDROCK,
                "/model/amazon.nova-pro-v1%3A0/converse-stream",
                RequestKind::Conversation(Converse, Turn),
            ),
            (
                "POST",
                "/bedrock/model/us.anthropic.claude-opus-4-6-v1/invoke",
                "",
                BEDROCK,
                "/model/us.anthropic.claude-opus-4-6-v1/invoke",
                RequestKind::Conversation(Anthropic, Turn),
            ),
            (
                "POST",
                "/model/amazon.titan-text-express-v1/invoke",
                "",
                BEDROCK,
                "/model/amazon.titan-text-express-v1/invoke",
                RequestKind::Other,
            ),
            ("GET", "/v1beta/models", "", GEMINI, "/v1beta/models", RequestKind::Other),
            ("POST", "/gemini/upload/v1beta/files", "", GEMINI, "/upload/v1beta/files", RequestKind::Other),
            ("GET", "/v1/models", "x-goog-api-key", GEMINI, "/v1/models", RequestKind::Other),
        ] {
            assert_eq!(route(method, uri, header), (upstream, path.to_owned(), kind), "{method} {uri} {header}");
        }
    }
}
