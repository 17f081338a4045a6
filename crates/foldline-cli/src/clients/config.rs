//! The settings files of clients: where they are, which keys point a client at a proxy, and which base URLs they name.
//!
//! Files are only read here.

use std::path::PathBuf;

use serde_json::Value;

use crate::clients::base_url::{BaseUrls, ConfiguredUrl};
use crate::clients::edit::{FileFormat, json};
use crate::clients::kind::{ClientKind, claude_variables};

/// Folders of clients' settings files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientFolders {
    pub(crate) claude: PathBuf,
    pub(crate) codex: PathBuf,
    pub(crate) opencode: PathBuf,
    pub(crate) cline: PathBuf,
    pub(crate) pi: PathBuf,
    pub(crate) gemini: PathBuf,
    pub(crate) home: PathBuf,
    /// The current folder, where some clients have settings of a project.
    pub(crate) project: PathBuf,
}

/// The settings file of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientFile {
    pub(crate) path: PathBuf,
    pub(crate) format: FileFormat,
}

/// A key of a settings file and its value in the file's notation.
pub(crate) type ClientSetting = (Vec<String>, String);

/// The key of Gemini CLI's sign-in method.
const SIGN_IN_KEY: [&str; 3] = ["security", "auth", "selectedType"];

impl ClientFolders {
    /// Returns the file of a client that holds the user's settings.
    pub(crate) fn file(&self, kind: ClientKind) -> ClientFile {
        let (path, format) = match kind {
            ClientKind::Claude => (self.claude.join("settings.json"), FileFormat::Json),
            ClientKind::Codex => (self.codex.join("config.toml"), FileFormat::Toml),
            ClientKind::Opencode => {
                let with_comments = self.opencode.join("opencode.jsonc");
                let plain = self.opencode.join("opencode.json");
                (if with_comments.exists() { with_comments } else { plain }, FileFormat::Json)
            }
            ClientKind::Cline => (self.cline.join("data/settings/providers.json"), FileFormat::Json),
            ClientKind::Pi => (self.pi.join("models.json"), FileFormat::Json),
            ClientKind::Gemini => (self.gemini.join(".env"), FileFormat::Env),
            ClientKind::Aider => (self.home.join(".aider.conf.yml"), FileFormat::Yaml),
        };
        ClientFile { path, format }
    }

    /// Returns the file with the sign-in method of a client that refuses a base URL without one.
    pub(crate) fn sign_in_file(&self, kind: ClientKind) -> Option<ClientFile> {
        let path = (kind == ClientKind::Gemini).then(|| self.gemini.join("settings.json"))?;
        Some(ClientFile { path, format: FileFormat::Json })
    }

    /// Returns the sign-in method that a client needs before it accepts a base URL, if it has none: an API key.
    pub(crate) fn missing_sign_in(&self, kind: ClientKind) -> Option<(ClientFile, ClientSetting)> {
        let file = self.sign_in_file(kind)?;
        let text = std::fs::read_to_string(&file.path).unwrap_or_default();
        let key = SIGN_IN_KEY.map(str::to_owned).to_vec();
        let is_missing = file.format.get(&text, &key).is_ok_and(|method| method.is_none());
        is_missing.then(|| (file, (key, FileFormat::Json.quoted("gemini-api-key"))))
    }

    /// Returns all files whose settings a client uses here, the strongest first.
    fn files(&self, kind: ClientKind) -> Vec<ClientFile> {
        let project = |name: &str, format| ClientFile { path: self.project.join(name), format };
        let mut files = match kind {
            ClientKind::Claude => vec![
                project(".claude/settings.local.json", FileFormat::Json),
                project(".claude/settings.json", FileFormat::Json),
            ],
            ClientKind::Opencode => vec![project("opencode.json", FileFormat::Json)],
            ClientKind::Gemini => vec![project(".gemini/.env", FileFormat::Env), project(".env", FileFormat::Env)],
            ClientKind::Aider => vec![project(".aider.conf.yml", FileFormat::Yaml)],
            ClientKind::Codex | ClientKind::Cline | ClientKind::Pi => Vec::new(),
        };
        files.push(self.file(kind));
        files.dedup();
        files
    }

    /// Returns the base URLs in the settings files of a client, the strongest first.
    pub(crate) fn configured_urls(&self, kind: ClientKind) -> Vec<ConfiguredUrl> {
        let mut urls = Vec::new();
        for file in self.files(kind) {
            let Ok(text) = std::fs::read_to_string(&file.path) else { continue };
            urls.extend(base_urls(kind, file.format, &text).into_iter().map(|(key, url)| ConfiguredUrl {
                path: file.path.clone(),
                key,
                url,
            }));
        }
        urls
    }
}

/// Returns the settings that point a client at a proxy. `file` is its current settings file.
pub(crate) fn proxy_settings(kind: ClientKind, bases: &BaseUrls, is_official: bool, file: &str) -> Vec<ClientSetting> {
    let text = |format: FileFormat, path: &[&str], value: &str| {
        (path.iter().map(|key| (*key).to_owned()).collect(), format.quoted(value))
    };
    let json = |path: &[&str], value: &str| text(FileFormat::Json, path, value);
    let versioned = format!("{}/v1", bases.anthropic);
    match kind {
        ClientKind::Claude => {
            let base = std::iter::once(json(&["env", "ANTHROPIC_BASE_URL"], &bases.anthropic));
            base.chain(claude_variables(is_official).iter().map(|(name, value)| json(&["env", name], value))).collect()
        }
        ClientKind::Codex => vec![text(FileFormat::Toml, &["openai_base_url"], &bases.openai)],
        ClientKind::Opencode => vec![
            json(&["provider", "openai", "options", "baseURL"], &bases.openai),
            json(&["provider", "anthropic", "options", "baseURL"], &versioned),
        ],
        // Cline stores a provider when the user signs in; others cannot be added without a key.
        ClientKind::Cline => {
            let signed_in = json::parse(file).unwrap_or_default();
            let is_signed_in = |name: &str| signed_in["providers"][name]["settings"].is_object();
            [("anthropic", &versioned), ("openai-native", &bases.openai), ("openai-compatible", &bases.openai)]
                .into_iter()
                .filter(|(name, _)| is_signed_in(name))
                .map(|(name, base)| json(&["providers", name, "settings", "baseUrl"], base))
                .collect()
        }
        ClientKind::Pi => vec![
            json(&["providers", "anthropic", "baseUrl"], &bases.anthropic),
            json(&["providers", "openai", "baseUrl"], &bases.openai),
        ],
        ClientKind::Gemini => vec![text(FileFormat::Env, &["GOOGLE_GEMINI_BASE_URL"], &bases.anthropic)],
        ClientKind::Aider => vec![
            text(FileFormat::Yaml, &["openai-api-base"], &bases.openai),
            text(FileFormat::Yaml, &["set-env"], &format!("[\"ANTHROPIC_API_BASE={}\"]", bases.anthropic)),
        ],
    }
}

/// Returns the base URLs in a settings file, with their keys.
fn base_urls(kind: ClientKind, format: FileFormat, text: &str) -> Vec<(String, String)> {
    match format {
        FileFormat::Json => {
            let mut urls = Vec::new();
            collect_urls(&json::parse(text).unwrap_or_default(), "", &mut urls);
            urls
        }
        FileFormat::Toml => toml_urls(text),
        FileFormat::Yaml => {
            key_lines(text, ':', &["openai-api-base", "set-env"]).into_iter().flat_map(listed_urls).collect()
        }
        FileFormat::Env => {
            let name = if kind == ClientKind::Gemini { "GOOGLE_GEMINI_BASE_URL" } else { "" };
            key_lines(text, '=', &[name])
        }
    }
}

/// Collects the members of JSON whose names are those of base URLs.
fn collect_urls(value: &Value, place: &str, urls: &mut Vec<(String, String)>) {
    const URL_KEYS: [&str; 6] =
        ["ANTHROPIC_BASE_URL", "baseURL", "baseUrl", "base_url", "OPENAI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"];
    let Some(members) = value.as_object() else { return };
    for (key, value) in members {
        let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
        match value.as_str() {
            Some(url) if URL_KEYS.contains(&key.as_str()) => urls.push((place, url.to_owned())),
            _ => collect_urls(value, &place, urls),
        }
    }
}

/// Returns the base URL that Codex uses: that of its selected provider, or of OpenAI.
fn toml_urls(text: &str) -> Vec<(String, String)> {
    let Ok(table) = text.parse::<toml::Table>() else { return Vec::new() };
    let selected = table.get("model_provider").and_then(toml::Value::as_str).filter(|name| *name != "openai");
    let custom = selected.and_then(|name| {
        let url = table.get("model_providers")?.get(name)?.get("base_url")?.as_str()?;
        Some((format!("model_providers.{name}.base_url"), url.to_owned()))
    });
    let own = || Some(("openai_base_url".to_owned(), table.get("openai_base_url")?.as_str()?.to_owned()));
    custom.or_else(own).into_iter().collect()
}

fn key_lines(text: &str, separator: char, keys: &[&str]) -> Vec<(String, String)> {
    let lines = text.lines().filter_map(|line| line.trim_start_matches("export ").split_once(separator));
    let found = lines.filter(|(key, value)| keys.contains(&key.trim()) && value.contains("://"));
    found.map(|(key, value)| (key.trim().to_owned(), value.trim().trim_matches(['"', '\'']).to_owned())).collect()
}

/// Returns the base URLs in a list of variables: `["NAME=URL"]`.
fn listed_urls((key, value): (String, String)) -> Vec<(String, String)> {
    if !value.starts_with('[') {
        return vec![(key, value)];
    }
    let entries = value.trim_matches(['[', ']']).split(',').map(|it| it.trim().trim_matches(['"', '\'']));
    let variables = entries.filter_map(|entry| entry.split_once('=')).filter(|(_, url)| url.contains("://"));
    variables.map(|(name, url)| (format!("{key} {name}"), url.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(kind: ClientKind, format: FileFormat, text: &str) -> Vec<(String, String)> {
        base_urls(kind, format, text)
    }

    fn pair(key: &str, url: &str) -> Vec<(String, String)> {
        vec![(key.to_owned(), url.to_owned())]
    }

    #[test]
    fn base_urls_of_settings_files_are_found() {
        let claude = "{ // gateway\n \"env\": { \"ANTHROPIC_BASE_URL\": \"https://gw\", \"X\": \"1\" } }";
        assert_eq!(urls(ClientKind::Claude, FileFormat::Json, claude), pair("env.ANTHROPIC_BASE_URL", "https://gw"));
        let codex = "model_provider = \"mine\"\nopenai_base_url = \"https://o\"\n[model_providers.mine]\nbase_url = \"https://m/v1\"\n";
        assert_eq!(
            urls(ClientKind::Codex, FileFormat::Toml, codex),
            pair("model_providers.mine.base_url", "https://m/v1")
        );
        assert_eq!(
            urls(ClientKind::Codex, FileFormat::Toml, "openai_base_url = \"https://o\""),
            pair("openai_base_url", "https://o")
        );
        let opencode = r#"{"provider":{"local":{"npm":"x","options":{"baseURL":"http://127.0.0.1:1/v1"}}}}"#;
        assert_eq!(
            urls(ClientKind::Opencode, FileFormat::Json, opencode),
            pair("provider.local.options.baseURL", "http://127.0.0.1:1/v1")
        );
        assert_eq!(
            urls(ClientKind::Gemini, FileFormat::Env, "A=1\nexport GOOGLE_GEMINI_BASE_URL=\"http://g\"\n"),
            pair("GOOGLE_GEMINI_BASE_URL", "http://g")
        );
        assert_eq!(
            urls(ClientKind::Aider, FileFormat::Yaml, "openai-api-base: http://o/v1\n"),
            pair("openai-api-base", "http://o/v1")
        );
        assert_eq!(
            urls(ClientKind::Aider, FileFormat::Yaml, "set-env: [\"A=1\", \"ANTHROPIC_API_BASE=http://a\"]\n"),
            pair("set-env ANTHROPIC_API_BASE", "http://a")
        );
        assert!(urls(ClientKind::Claude, FileFormat::Json, "not json").is_empty());
    }
}
