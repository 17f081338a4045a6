//! Access to the environment; no other module reads it. The variables of settings are named in the table of settings, all
//! others here.

use std::ffi::OsString;
use std::io::{IsTerminal, stdout};

use foldline::wire::Format;

use crate::client::CallerEnv;

/// If set to anything, no colors are used, see <https://no-color.org>.
const NO_COLOR: &str = "NO_COLOR";
/// Number of terminal columns, if the terminal does not report it.
const COLUMNS: &str = "COLUMNS";
/// Prefix of the variables that are settings; their names are in the table of settings.
const SETTING_PREFIX: &str = "FOLDLINE_";
/// Folder of recorded sessions, for benches and tasks of this repository.
const CORPUS: &str = "FOLDLINE_CORPUS";
/// Prefix of variables of the evaluation scripts of this repository.
const EVALUATION_PREFIX: &str = "FOLDLINE_EVAL_";

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

/// Returns the names of all variables with the prefix of settings that are set.
pub(crate) fn foldline_variables() -> Vec<String> {
    let names =
        std::env::vars_os().filter(|(_, value)| !value.is_empty()).filter_map(|(name, _)| name.into_string().ok());
    let is_setting =
        |name: &String| name.starts_with(SETTING_PREFIX) && name != CORPUS && !name.starts_with(EVALUATION_PREFIX);
    let mut names: Vec<String> = names.filter(is_setting).collect();
    names.sort();
    names
}

/// Returns the value of a variable. An empty variable counts as unset.
pub(crate) fn read_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
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
