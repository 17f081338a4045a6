//! The name of a client, from its `User-Agent`: for people who look, never for a decision.

use hyper::HeaderMap;
use hyper::header::USER_AGENT;

/// Names of clients by the begin of their user agents.
const KNOWN_CLIENTS: [(&str, &str); 6] = [
    ("claude-cli", "claude-code"),
    ("codex", "codex"),
    ("opencode", "opencode"),
    ("aider", "aider"),
    ("gemini", "gemini-cli"),
    ("openai/", "openai-sdk"),
];
/// Maximum characters of a name.
const MAX_NAME_CHARS: usize = 40;

/// Returns the name of the client of a request.
pub(crate) fn client_name(headers: &HeaderMap) -> String {
    let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let lower = agent.to_ascii_lowercase();
    if let Some((_, name)) = KNOWN_CLIENTS.iter().find(|(begin, _)| lower.starts_with(begin)) {
        return (*name).to_owned();
    }
    let product = agent.split(['/', ' ']).next().unwrap_or_default();
    if product.is_empty() { "unknown".to_owned() } else { product.chars().take(MAX_NAME_CHARS).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_is_named_by_its_product() {
        let name = |agent: &str| client_name(&HeaderMap::from_iter([(USER_AGENT, agent.parse().unwrap())]));
        assert_eq!(name("claude-cli/2.1.299 (external, cli)"), "claude-code");
        assert_eq!(name("codex_cli_rs/0.50"), "codex");
        assert_eq!(name("my-agent/1.0 linux"), "my-agent");
        assert_eq!(client_name(&HeaderMap::new()), "unknown");
    }
}
