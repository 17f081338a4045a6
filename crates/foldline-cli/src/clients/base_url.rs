//! Base URLs: of a proxy, as clients expect them, and in the settings files of clients.

use std::path::{Path, PathBuf};

/// Base URLs of a proxy, as clients expect them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrls {
    /// With the API version at its end, as OpenAI's libraries expect.
    pub(crate) openai: String,
    /// Without a version, as Anthropic's libraries expect.
    pub(crate) anthropic: String,
}

/// A base URL in a client's settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfiguredUrl {
    pub(crate) path: PathBuf,
    /// The key, with dots between its parts.
    pub(crate) key: String,
    pub(crate) url: String,
}

/// Returns true if a URL belongs to the server at a base URL.
pub(crate) fn is_below(url: &str, base: &str) -> bool {
    let same_host = |text: &str| text.replace("localhost", "127.0.0.1");
    let (url, base) = (same_host(url), same_host(base));
    url.strip_prefix(base.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the base URL in Ollama's variable, which may lack the scheme, the host or the port, and may be the address at
/// which the server listens.
pub(crate) fn ollama_base_url(host: &str) -> String {
    let host = host.trim().trim_end_matches('/');
    let (scheme, rest) = host.split_once("://").unwrap_or(("http", host));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => (name, Some(port)),
        _ => (authority, None),
    };
    let name = if matches!(name, "" | "0.0.0.0" | "[::]") { "127.0.0.1" } else { name };
    match port {
        Some(port) => format!("{scheme}://{name}:{port}{path}"),
        None if host.contains("://") => format!("{scheme}://{name}{path}"),
        None => format!("{scheme}://{name}:11434{path}"),
    }
}

/// Returns the path with the home folder as `~`.
pub(crate) fn short_path(path: &Path, home: &Path) -> String {
    match path.strip_prefix(home) {
        Ok(rest) if !home.as_os_str().is_empty() => format!("~/{}", rest.display()),
        _ => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ollama_hosts_have_many_forms() {
        for (host, url) in [
            ("0.0.0.0", "http://127.0.0.1:11434"),
            (":8080", "http://127.0.0.1:8080"),
            ("gpu.local:11434", "http://gpu.local:11434"),
            ("https://ollama.com/", "https://ollama.com"),
            ("http://10.0.0.7:80/ollama", "http://10.0.0.7:80/ollama"),
        ] {
            assert_eq!(ollama_base_url(host), url, "{host}");
        }
    }

    #[test]
    fn urls_of_the_same_server_are_recognized() {
        assert!(is_below("http://localhost:8787/v1", "http://127.0.0.1:8787"));
        assert!(is_below("http://127.0.0.1:8787/", "http://127.0.0.1:8787/"));
        assert!(!is_below("http://127.0.0.1:87870/v1", "http://127.0.0.1:8787"));
    }
}
