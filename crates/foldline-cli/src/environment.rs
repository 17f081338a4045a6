//! Access to the environment; no other module reads it. The variables of settings are named in the table of settings, all
//! others here.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};

use foldline::wire::Format;
use foldline_server::proxy::{AwsCredentialSource, AwsCredentials, AwsError};
use tracing_subscriber::filter::LevelFilter;

use crate::clients::base_url::ollama_base_url;
use crate::clients::config::ClientFolders;
use crate::clients::kind::claude_variables;
use crate::clients::launch::CallerEnv;

/// If set to anything, no colors are used, see <https://no-color.org>.
const NO_COLOR: &str = "NO_COLOR";
/// Number of terminal columns, if the terminal does not report it.
const COLUMNS: &str = "COLUMNS";
/// Level of the log, as many Rust programs read it.
const RUST_LOG: &str = "RUST_LOG";
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
const OLLAMA_HOST: &str = "OLLAMA_HOST";
const BEDROCK_BASE_URLS: [&str; 2] = ["ANTHROPIC_BEDROCK_BASE_URL", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"];
/// Switches of Claude Code that replace Anthropic by a cloud.
const CLAUDE_CODE_CLOUDS: [(&str, &str); 3] = [
    ("CLAUDE_CODE_USE_BEDROCK", "Bedrock"),
    ("CLAUDE_CODE_USE_VERTEX", "Vertex"),
    ("CLAUDE_CODE_USE_FOUNDRY", "Foundry"),
];
/// Settings of opencode, in JSON.
const GOOGLE_GEMINI_BASE_URL: &str = "GOOGLE_GEMINI_BASE_URL";
const OPENCODE_CONFIG_CONTENT: &str = "OPENCODE_CONFIG_CONTENT";
/// The network's proxy, and the hosts that are reached without it.
const NETWORK_PROXIES: [&str; 6] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// Credentials and region of AWS.
const AWS_ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const AWS_SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
const AWS_SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
const AWS_PROFILE: &str = "AWS_PROFILE";
const AWS_SHARED_CREDENTIALS_FILE: &str = "AWS_SHARED_CREDENTIALS_FILE";
const AWS_CONFIG_FILE: &str = "AWS_CONFIG_FILE";
const AWS_REGIONS: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Prefixes of the variables with keys, region and endpoint of object stores.
const OBJECT_STORE_PREFIXES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// Folders of clients' settings.
const CLAUDE_CONFIG_DIR: &str = "CLAUDE_CONFIG_DIR";
const CODEX_HOME: &str = "CODEX_HOME";
const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
const CLINE_DIR: &str = "CLINE_DIR";
const PI_CODING_AGENT_DIR: &str = "PI_CODING_AGENT_DIR";
/// Folders of programs.
#[cfg(unix)]
const PATH: &str = "PATH";

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

/// Returns the program and the command that is running, for the audit log.
pub(crate) fn command_name() -> String {
    let command = std::env::args_os().nth(1).unwrap_or_default();
    format!("foldline {}", command.to_string_lossy())
}

/// Returns the level of the log: the first level in `RUST_LOG`, whatever module it is for.
pub(crate) fn log_level() -> Option<LevelFilter> {
    let directives = std::env::var(RUST_LOG).ok()?;
    directives.split(',').find_map(|directive| directive.rsplit('=').next()?.trim().parse().ok())
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

/// The proxies of the network, each with the variable that names it.
pub(crate) struct NetworkProxies {
    pub(crate) https: Option<(&'static str, String)>,
    pub(crate) http: Option<(&'static str, String)>,
    /// Hosts that are reached directly.
    pub(crate) excluded: Vec<String>,
}

/// Returns the proxies of the network.
pub(crate) fn network_proxies() -> NetworkProxies {
    let text = |name: &'static str| Some((name, read_variable(name)?.into_string().ok()?));
    let [http, http_lower, https, https_lower, all, all_lower] = NETWORK_PROXIES;
    let first = |names: [&'static str; 4]| names.into_iter().find_map(text);
    let excluded = NO_PROXY.into_iter().find_map(text).map(|(_, list)| list).unwrap_or_default();
    NetworkProxies {
        https: first([https, https_lower, all, all_lower]),
        http: first([http, http_lower, all, all_lower]),
        excluded: excluded.split(',').map(str::trim).filter(|it| !it.is_empty()).map(str::to_owned).collect(),
    }
}

/// Returns the place of AWS credentials: the variables with keys, or else a profile.
///
/// # Errors
///
/// The keys of the variables are not valid.
pub(crate) fn aws_credentials() -> Result<AwsCredentialSource, AwsError> {
    let text = |name: &str| read_variable(name).and_then(|value| value.into_string().ok());
    if let (Some(id), Some(secret)) = (text(AWS_ACCESS_KEY_ID), text(AWS_SECRET_ACCESS_KEY)) {
        let token = text(AWS_SESSION_TOKEN);
        return AwsCredentials::new(&id, &secret, token.as_deref()).map(AwsCredentialSource::from_keys);
    }
    let home = directories::BaseDirs::new().map(|it| it.home_dir().to_owned()).unwrap_or_default();
    let file = |variable: &str, name: &str| {
        read_variable(variable).map_or_else(|| home.join(".aws").join(name), PathBuf::from)
    };
    let profile = text(AWS_PROFILE).unwrap_or_else(|| "default".to_owned());
    let credentials = file(AWS_SHARED_CREDENTIALS_FILE, "credentials");
    Ok(AwsCredentialSource::from_profile(profile, credentials, file(AWS_CONFIG_FILE, "config")))
}

/// Returns the region of AWS that the environment names.
pub(crate) fn aws_region() -> Option<String> {
    AWS_REGIONS.into_iter().find_map(|name| read_variable(name)?.into_string().ok())
}

/// Returns the variables of object stores.
pub(crate) fn object_store_variables() -> Vec<(String, String)> {
    let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    let is_known = |(name, value): &(String, String)| {
        !value.is_empty() && OBJECT_STORE_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    std::env::vars_os().filter_map(text).filter(is_known).collect()
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
        gemini: text(GOOGLE_GEMINI_BASE_URL),
        ollama: text(OLLAMA_HOST).map(|host| ollama_base_url(&host)),
        bedrock: BEDROCK_BASE_URLS.into_iter().find_map(text),
        aws_region: aws_region(),
        has_bedrock_key: api_key(Format::Converse).is_some(),
        opencode_config: text(OPENCODE_CONFIG_CONTENT),
        cloud_variables: CLAUDE_CODE_CLOUDS.into_iter().filter(|(name, _)| read_variable(name).is_some()).collect(),
        no_proxy: NO_PROXY.into_iter().find_map(text),
        has_log_filter: read_variable(RUST_LOG).is_some(),
        behind_proxy: NETWORK_PROXIES.iter().any(|name| read_variable(name).is_some()),
        claude_variables: [true, false]
            .into_iter()
            .flat_map(claude_variables)
            .map(|(name, _)| *name)
            .filter(|name| std::env::var_os(name).is_some())
            .collect(),
    }
}

/// Returns the folders of clients' settings files.
pub(crate) fn client_folders() -> ClientFolders {
    let home = directories::BaseDirs::new().map(|it| it.home_dir().to_owned()).unwrap_or_default();
    let folder =
        |variable: &str, default: &str| read_variable(variable).map_or_else(|| home.join(default), PathBuf::from);
    ClientFolders {
        claude: folder(CLAUDE_CONFIG_DIR, ".claude"),
        codex: folder(CODEX_HOME, ".codex"),
        opencode: folder(XDG_CONFIG_HOME, ".config").join("opencode"),
        cline: folder(CLINE_DIR, ".cline"),
        pi: folder(PI_CODING_AGENT_DIR, ".pi/agent"),
        gemini: home.join(".gemini"),
        project: std::env::current_dir().unwrap_or_default(),
        home,
    }
}

/// Returns true if a program can be found: by its path, or by its name in the folders of `PATH`.
#[cfg(unix)]
pub(crate) fn program_exists(program: &OsStr) -> bool {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return path.exists();
    }
    let folders = read_variable(PATH).unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(path).is_file())
}

/// Returns true: elsewhere than on Unix the system has rules of its own for finding programs.
#[cfg(not(unix))]
pub(crate) fn program_exists(_: &OsStr) -> bool {
    true
}

/// Returns the key for a server with this API, if set.
pub(crate) fn api_key(format: Format) -> Option<String> {
    let name = format.dialect().family.key_variable;
    std::env::var(name).ok().filter(|key| !key.is_empty())
}
