//! The proxy's endpoints, headers and metrics, for its reference page.

use foldline::wire::{ApiFamily, Dialect, EndpointPurpose};

use crate::proxy::admin::metrics::ProxyMetrics;
use crate::proxy::downstream::route;

/// A documented name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReferenceEntry {
    /// The endpoint, header or metric.
    pub name: String,
    /// Its meaning.
    pub meaning: String,
}

/// Endpoints besides those of the dialects, with the treatment of a request.
const ENDPOINTS: &[(&str, &str)] = &[
    ("GET /v1/responses with a WebSocket upgrade", "426: the client falls back to HTTP"),
    (
        "/foldline/healthz",
        "state, version and upstreams of the proxy; upstream_errors by status class; learned_windows of the caller's \
         tenant with model, upstream, tokens, bounds, evidence, age_seconds and expires_in_seconds; archive and \
         objects (its object store): ok, unreachable or null",
    ),
    ("/foldline/livez", "200 while the proxy runs; needs no token"),
    (
        "/foldline/readyz",
        "200 if the database of the archive answers or the archive is a file; 503 without it, when requests are answered \
         without new folds, and while the proxy stops; needs no token",
    ),
    (
        "POST /v1/compress",
        "folds rows of messages for a gateway: messages (Chat Completions or Messages), model, token_budget, session_id, \
         config.frozen_message_count; answers with the same number of messages, tokens_before, tokens_after, \
         tokens_saved, compression_ratio, transforms_applied, ccr_hashes; 422 with type cannot_fit if token_budget \
         cannot be met",
    ),
    (
        "GET /v1/retrieve/HASH?query=WORDS",
        "original_content of a hash of such an answer, or the lines that have a word",
    ),
    ("POST /v1/usage", "counts usage that a provider reported to a gateway"),
    (
        "POST /foldline/api/v1/fold",
        "folds a request of any dialect for a caller that sends it: body, path, token_budget, session_id; answers with \
         body, format, is_folded, tokens_before, tokens_after, budget, folds, passes, handles",
    ),
    ("/foldline/metrics", "the metrics below, for Prometheus"),
    (
        "/foldline/unfold/HANDLE?lines=10..20&grep=RE&page=2&raw=1",
        "an original in readable form, or a part of it; with raw its exact bytes",
    ),
];

/// Headers of requests and responses.
const HEADERS: &[(&str, &str)] = &[
    ("x-foldline-bypass: 1", "request: forward it unmodified"),
    ("x-foldline-tenant: NAME", "request of a trusted gateway: its tenant; removed from other requests"),
    ("x-foldline-session: NAME", "request: name of its session in the archive"),
    (
        "x-foldline-token: TOKEN",
        "request: an access token, if tokens are set; /token/TOKEN in front of the path does the same, and below \
         /foldline/ also Authorization: Bearer TOKEN",
    ),
    ("x-foldline-tokens: RECEIVED,SENT", "response: prompt tokens as received and as sent, by our count"),
    ("x-foldline-folds: N", "response: folds in the request that was sent"),
    (
        "x-foldline-unfolds: N,TOKENS",
        "response: originals that the model read in hidden rounds of this conversation so far, and the prompt tokens of \
         these rounds without the last of each response; a streamed response does not count itself",
    ),
    (
        "x-foldline-summaries: TOKENS,USD",
        "response: cost of the summaries of this conversation so far, if there are any",
    ),
];

/// A provider, and how its conversations are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderEntry {
    /// The provider or the server.
    pub provider: &'static str,
    /// Paths at the proxy, or at a named upstream.
    pub paths: &'static str,
    /// Dialects of these paths.
    pub dialects: &'static str,
    /// Clients with which it was tested, at a server that imitates the provider.
    pub tested_with: &'static str,
}

/// Providers and servers. No live provider was reached.
const PROVIDERS: &[ProviderEntry] = &[
    ProviderEntry {
        provider: "OpenAI",
        paths: "/v1/chat/completions, /v1/responses",
        dialects: "openai-chat, openai-responses",
        tested_with: "Codex, opencode, aider, openai for Python and JavaScript, Vercel AI SDK, LangChain, LiteLLM",
    },
    ProviderEntry {
        provider: "Anthropic",
        paths: "/v1/messages",
        dialects: "anthropic",
        tested_with: "Claude Code, opencode, aider, anthropic for Python, Vercel AI SDK, LangChain",
    },
    ProviderEntry {
        provider: "Gemini API",
        paths: "/v1beta/models/MODEL:generateContent, /v1beta/models/MODEL:streamGenerateContent",
        dialects: "gemini",
        tested_with: "Gemini CLI, google-genai for Python and JavaScript, langchain-google-genai",
    },
    ProviderEntry {
        provider: "Gemini on Vertex",
        paths: "/v1beta1/projects/P/locations/L/publishers/google/models/MODEL:generateContent, \
                /v1beta1/projects/P/locations/L/publishers/google/models/MODEL:streamGenerateContent",
        dialects: "gemini",
        tested_with: "google-genai, langchain-google-genai",
    },
    ProviderEntry {
        provider: "Claude on Vertex",
        paths: "/v1/projects/P/locations/L/publishers/anthropic/models/MODEL:rawPredict, \
                /v1/projects/P/locations/L/publishers/anthropic/models/MODEL:streamRawPredict",
        dialects: "anthropic",
        tested_with: "AnthropicVertex",
    },
    ProviderEntry {
        provider: "Claude on Foundry",
        paths: "/anthropic/v1/messages",
        dialects: "anthropic",
        tested_with: "AnthropicFoundry",
    },
    ProviderEntry {
        provider: "Amazon Bedrock, Mantle",
        paths: "/openai/v1/chat/completions, /anthropic/v1/messages",
        dialects: "openai-chat, anthropic",
        tested_with: "BedrockOpenAI, AnthropicBedrockMantle",
    },
    ProviderEntry {
        provider: "Amazon Bedrock, Converse",
        paths: "/model/MODEL/converse, /model/MODEL/converse-stream",
        dialects: "converse",
        tested_with: "boto3, langchain-aws",
    },
    ProviderEntry {
        provider: "Amazon Bedrock, InvokeModel of Claude",
        paths: "/model/anthropic.claude-MODEL/invoke, /model/anthropic.claude-MODEL/invoke-with-response-stream",
        dialects: "anthropic",
        tested_with: "AnthropicBedrock, Claude Code",
    },
    ProviderEntry {
        provider: "Azure OpenAI",
        paths: "/openai/deployments/NAME/chat/completions, /openai/responses",
        dialects: "openai-chat, openai-responses",
        tested_with: "AzureOpenAI",
    },
    ProviderEntry {
        provider: "Ollama",
        paths: "/api/chat",
        dialects: "ollama",
        tested_with: "ollama for Python, langchain-ollama",
    },
    ProviderEntry {
        provider: "OpenRouter",
        paths: "/v1/chat/completions",
        dialects: "openai-chat",
        tested_with: "openai and openrouter for Python, langchain-openrouter",
    },
    ProviderEntry {
        provider: "DeepSeek",
        paths: "/v1/chat/completions",
        dialects: "openai-chat",
        tested_with: "openai for Python, langchain-deepseek",
    },
    ProviderEntry {
        provider: "xAI",
        paths: "/v1/chat/completions",
        dialects: "openai-chat",
        tested_with: "openai for Python, langchain-xai",
    },
    ProviderEntry {
        provider: "Groq",
        paths: "/openai/v1/chat/completions",
        dialects: "openai-chat",
        tested_with: "groq, langchain-groq",
    },
    ProviderEntry {
        provider: "Mistral",
        paths: "/v1/chat/completions",
        dialects: "openai-chat",
        tested_with: "mistralai, langchain-mistralai",
    },
    ProviderEntry {
        provider: "vLLM, llama.cpp, LM Studio",
        paths: "/v1/chat/completions",
        dialects: "openai-chat",
        tested_with: "tests of the proxy",
    },
];

/// Returns the providers.
pub fn providers() -> &'static [ProviderEntry] {
    PROVIDERS
}

/// Returns the endpoints: those of the dialects, and the proxy's own.
pub fn endpoints() -> Vec<ReferenceEntry> {
    let families: Vec<&ApiFamily> = ApiFamily::all().collect();
    let of_dialects = Dialect::all().flat_map(|dialect| {
        let of_family = families.iter().flat_map(move |family| {
            let upstream = family.name;
            [
                (EndpointPurpose::Turn, format!("a conversation: folded, and answered by the upstream `{upstream}`")),
                (EndpointPurpose::CountTokens, format!("counts the request as it would be sent, at `{upstream}`")),
            ]
            .map(|(purpose, meaning)| ReferenceEntry { name: documented_paths(dialect, family, purpose), meaning })
        });
        of_family.collect::<Vec<_>>()
    });
    let prefixes: Vec<String> = families.iter().map(|family| format!("/{}", family.name)).collect();
    let named = ReferenceEntry {
        name: format!("the same below {}, and below /NAME", prefixes.join(", ")),
        meaning: "the same, at the named upstream; NAME is one of `[upstream.NAME]` in the settings file".to_owned(),
    };
    let distinctive = families.iter().filter_map(|family| {
        let marks = [family.distinctive_paths, family.distinctive_headers].concat();
        (!marks.is_empty()).then(|| format!("; with {} to `{}`", marks.join(", "), family.name))
    });
    let other = ReferenceEntry {
        name: "anything else".to_owned(),
        meaning: format!(
            "forwarded unmodified, to `{}`{}",
            route::default_family().name,
            distinctive.collect::<String>()
        ),
    };
    let described = of_dialects.filter(|entry| !entry.name.is_empty());
    described.chain([named, other]).chain(entries(ENDPOINTS)).collect()
}

/// Returns the paths of a dialect at an API for one purpose, as a user would write them.
fn documented_paths(dialect: &Dialect, family: &ApiFamily, purpose: EndpointPurpose) -> String {
    let paths = dialect.documented_paths.iter().filter(|(_, other)| *other == purpose);
    let paths = paths.filter(|(path, _)| route::family_for_path(dialect, path) == family);
    paths.map(|(path, _)| format!("POST {path}")).collect::<Vec<_>>().join(", ")
}

/// Returns the headers.
pub fn headers() -> Vec<ReferenceEntry> {
    entries(HEADERS)
}

/// Returns the metrics.
pub fn metrics() -> Vec<ReferenceEntry> {
    let entry = |(name, help): &(String, &str)| ReferenceEntry { name: name.clone(), meaning: (*help).to_owned() };
    ProxyMetrics::new().descriptions().iter().map(entry).collect()
}

fn entries(list: &[(&str, &str)]) -> Vec<ReferenceEntry> {
    list.iter().map(|(name, meaning)| ReferenceEntry { name: (*name).into(), meaning: (*meaning).into() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::downstream::headers as names;

    #[test]
    fn paths_of_every_dialect_are_documented() {
        let names: Vec<String> = endpoints().into_iter().map(|entry| entry.name).collect();
        for dialect in Dialect::all() {
            let paths = documented_paths(dialect, dialect.family, EndpointPurpose::Turn);
            assert!(names.contains(&paths), "{}", dialect.name);
        }
        assert!(names.iter().any(|name| name.contains("POST /v1beta/models/MODEL:countTokens")), "{names:?}");
        let invoke = endpoints().into_iter().find(|entry| entry.name.contains("/invoke-with-response-stream"));
        assert!(invoke.is_some_and(|entry| entry.meaning.contains("`bedrock`")));
    }

    #[test]
    fn paths_of_providers_lead_to_their_dialect() {
        for provider in PROVIDERS {
            for path in provider.paths.split(", ") {
                let (dialect, _) = Dialect::for_path(path).unwrap_or_else(|| panic!("{path}"));
                assert!(provider.dialects.split(", ").any(|name| name == dialect.name), "{path}");
            }
        }
    }

    #[test]
    fn headers_of_requests_are_documented() {
        for name in [names::BYPASS, names::SESSION, names::TOKEN] {
            assert!(HEADERS.iter().any(|(header, _)| header.starts_with(name.as_str())), "{name}");
        }
    }

    #[test]
    fn metrics_are_named_as_they_are_exported() {
        let names: Vec<String> = metrics().into_iter().map(|entry| entry.name).collect();
        for name in ["foldline_requests_total", "foldline_open_requests", "foldline_request_overhead_seconds"] {
            assert!(names.iter().any(|known| known == name), "{names:?}");
        }
    }
}
