//! All environment variables that foldline reads; no other module reads any.

use std::ffi::OsString;
use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use foldline::wire::Format;

use crate::client::CallerEnv;
use crate::proxy_settings::ProxyArgs;

/// If set to anything, no colors are used, see <https://no-color.org>.
const NO_COLOR: &str = "NO_COLOR";
/// Number of terminal columns, if the terminal does not report it.
const COLUMNS: &str = "COLUMNS";
/// Path of the archive of folded originals.
const ARCHIVE: &str = "FOLDLINE_ARCHIVE";
/// A file with the key of an encrypted archive.
const ARCHIVE_KEY_FILE: &str = "FOLDLINE_ARCHIVE_KEY_FILE";
/// The key of an encrypted archive itself, for environments where secrets are variables.
const ARCHIVE_KEY: &str = "FOLDLINE_ARCHIVE_KEY";

/// The user's model table.
const MODELS: &str = "FOLDLINE_MODELS";
/// The proxy's settings file.
const SETTINGS: &str = "FOLDLINE_SETTINGS";
/// The proxy's settings, each named after its flag.
const LISTEN: &str = "FOLDLINE_LISTEN";
const TOKEN: &str = "FOLDLINE_TOKEN";
const TOKENS: &str = "FOLDLINE_TOKENS";
const TOKEN_FILE: &str = "FOLDLINE_TOKEN_FILE";
const TENANCY: &str = "FOLDLINE_TENANCY";
const TLS_CERT: &str = "FOLDLINE_TLS_CERT";
const TLS_KEY: &str = "FOLDLINE_TLS_KEY";
const UPSTREAM: &str = "FOLDLINE_UPSTREAM";
const OPENAI: &str = "FOLDLINE_OPENAI";
const ANTHROPIC: &str = "FOLDLINE_ANTHROPIC";
const MODE: &str = "FOLDLINE_MODE";
const POLICY: &str = "FOLDLINE_POLICY";
const WINDOW: &str = "FOLDLINE_WINDOW";
const UNFOLD: &str = "FOLDLINE_UNFOLD";
const SUMMARIZE: &str = "FOLDLINE_SUMMARIZE";
const SUMMARY_MODEL: &str = "FOLDLINE_SUMMARY_MODEL";
const MAX_BODY: &str = "FOLDLINE_MAX_BODY";
const MAX_BODIES: &str = "FOLDLINE_MAX_BODIES";
const MAX_REQUESTS: &str = "FOLDLINE_MAX_REQUESTS";
const MAX_SESSIONS: &str = "FOLDLINE_MAX_SESSIONS";
const RESPONSE_TIMEOUT: &str = "FOLDLINE_RESPONSE_TIMEOUT";
const IDLE_TIMEOUT: &str = "FOLDLINE_IDLE_TIMEOUT";

/// Base URLs of providers that most clients read.
const OPENAI_BASE_URL: &str = "OPENAI_BASE_URL";
const OPENAI_API_BASE: &str = "OPENAI_API_BASE";
const ANTHROPIC_BASE_URL: &str = "ANTHROPIC_BASE_URL";
const ANTHROPIC_API_BASE: &str = "ANTHROPIC_API_BASE";
/// Switches of Claude Code that replace Anthropic by a cloud.
const CLAUDE_CODE_CLOUDS: [(&str, &str); 3] = [
    ("CLAUDE_CODE_USE_BEDROCK", "Bedrock"),
    ("CLAUDE_CODE_USE_VERTEX", "Vertex"),
    ("CLAUDE_CODE_USE_FOUNDRY", "Foundry"),
];
/// Settings of opencode, in JSON.
const OPENCODE_CONFIG_CONTENT: &str = "OPENCODE_CONFIG_CONTENT";
/// The network's proxy, and the hosts that are reached without it.
const NETWORK_PROXIES: [&str; 6] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Columns if the width is unknown.
const DEFAULT_COLUMNS: usize = 80;

/// Width and color of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terminal {
    /// Maximum columns per line.
    pub(crate) width: usize,
    pub(crate) color: ColorChoice,
}

/// Use of colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColorChoice {
    Colored,
    Plain,
}

impl Terminal {
    /// Returns the width and color of standard output.
    pub(crate) fn for_stdout() -> Self {
        let no_color = std::env::var_os(NO_COLOR).is_some_and(|value| !value.is_empty());
        let columns = std::env::var(COLUMNS).ok().and_then(|value| value.parse().ok());
        let width = columns.or_else(|| terminal_size::terminal_size().map(|(width, _)| usize::from(width.0)));
        Self {
            width: width.unwrap_or(DEFAULT_COLUMNS).clamp(40, 140),
            color: if stdout().is_terminal() && !no_color { ColorChoice::Colored } else { ColorChoice::Plain },
        }
    }
}

/// Returns the path of the user's model table, if set.
pub(crate) fn models_path() -> Option<PathBuf> {
    std::env::var_os(MODELS).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Archive settings of the environment.
#[derive(Debug)]
pub(crate) struct ArchiveVariables {
    pub(crate) path: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) key: Option<Vec<u8>>,
}

impl ArchiveVariables {
    pub(crate) fn read() -> Self {
        Self {
            path: read_variable(ARCHIVE).map(PathBuf::from),
            key_file: read_variable(ARCHIVE_KEY_FILE).map(PathBuf::from),
            key: read_variable(ARCHIVE_KEY).map(OsString::into_encoded_bytes),
        }
    }
}

/// Proxy settings of the environment.
pub(crate) struct ProxyVariables {
    pub(crate) settings: Option<PathBuf>,
    pub(crate) args: ProxyArgs,
}

impl ProxyVariables {
    pub(crate) fn read() -> Result<Self> {
        let args = ProxyArgs {
            listen: parse_variable(LISTEN)?,
            token: parse_variable(TOKEN)?,
            tokens: parse_variable(TOKENS)?,
            token_file: parse_variable(TOKEN_FILE)?,
            tenancy: parse_variable(TENANCY)?,
            tls_cert: parse_variable(TLS_CERT)?,
            tls_key: parse_variable(TLS_KEY)?,
            upstream: parse_variable(UPSTREAM)?,
            openai: parse_variable(OPENAI)?,
            anthropic: parse_variable(ANTHROPIC)?,
            mode: parse_variable(MODE)?,
            policy: parse_variable(POLICY)?,
            window: parse_variable(WINDOW)?,
            unfold: parse_variable(UNFOLD)?,
            summarize: parse_variable(SUMMARIZE)?,
            summary_model: parse_variable(SUMMARY_MODEL)?,
            max_body: parse_variable(MAX_BODY)?,
            max_bodies: parse_variable(MAX_BODIES)?,
            max_requests: parse_variable(MAX_REQUESTS)?,
            max_sessions: parse_variable(MAX_SESSIONS)?,
            response_timeout: parse_variable(RESPONSE_TIMEOUT)?,
            idle_timeout: parse_variable(IDLE_TIMEOUT)?,
        };
        Ok(Self { settings: read_variable(SETTINGS).map(PathBuf::from), args })
    }
}

/// Returns the value of a variable. An empty variable counts as unset.
fn read_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn parse_variable<T: FromStr>(name: &str) -> Result<Option<T>> {
    let Some(value) = read_variable(name) else { return Ok(None) };
    let parsed = value.to_str().and_then(|it| it.parse().ok());
    parsed.map(Some).ok_or_else(|| anyhow!("the variable {name} has an invalid value; see `foldline serve --help`"))
}

/// Reads the variables that affect clients of providers.
pub(crate) fn caller_env() -> CallerEnv {
    let text = |name: &str| read_variable(name).and_then(|value| value.into_string().ok());
    CallerEnv {
        openai: text(OPENAI_BASE_URL).or_else(|| text(OPENAI_API_BASE)),
        anthropic: text(ANTHROPIC_BASE_URL).or_else(|| text(ANTHROPIC_API_BASE)),
        opencode_config: text(OPENCODE_CONFIG_CONTENT),
        cloud_variables: CLAUDE_CODE_CLOUDS.into_iter().filter(|(name, _)| read_variable(name).is_some()).collect(),
        no_proxy: NO_PROXY.into_iter().find_map(text),
        behind_proxy: NETWORK_PROXIES.iter().any(|name| read_variable(name).is_some()),
    }
}

/// Returns the key for a server with this API, if set.
pub(crate) fn api_key(format: Format) -> Option<String> {
    let name = format.dialect().family.key_variable;
    std::env::var(name).ok().filter(|key| !key.is_empty())
}
