//! Pointing a client's process at a proxy: by the variables that most clients read, and by the own flags or settings of
//! those that do not.
//!
//! No file is written, and variables are set only for the started process.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde_json::{Value, json};

use crate::clients::base_url::{BaseUrls, ConfiguredUrl};
use crate::clients::kind::{ClientKind, claude_variables};

/// Changes to the environment and arguments of a client's process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientOverrides {
    /// Variables to set, or to remove.
    pub(crate) variables: Vec<(&'static str, Option<OsString>)>,
    /// Arguments that are put first.
    pub(crate) arguments: Vec<OsString>,
}

/// Variables of the caller's environment that affect clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallerEnv {
    /// Base URL of the OpenAI API, unless it is the official one.
    pub(crate) openai: Option<String>,
    /// Base URL of the Anthropic API, unless it is the official one.
    pub(crate) anthropic: Option<String>,
    /// Base URL of the Gemini API.
    pub(crate) gemini: Option<String>,
    /// Base URL of Ollama, unless it is the usual one.
    pub(crate) ollama: Option<String>,
    /// Base URL of Amazon Bedrock.
    pub(crate) bedrock: Option<String>,
    /// Region of AWS.
    pub(crate) aws_region: Option<String>,
    /// True if clients of Bedrock send an API key, and no signature.
    pub(crate) has_bedrock_key: bool,
    /// Settings of opencode, in JSON.
    pub(crate) opencode_config: Option<String>,
    /// Hosts that are reached without the network's proxy.
    pub(crate) no_proxy: Option<String>,
    /// Variables that switch Claude Code to a cloud, with the cloud's name.
    pub(crate) cloud_variables: Vec<(&'static str, &'static str)>,
    /// True if the network has a proxy; it cannot reach this machine's own ports.
    pub(crate) behind_proxy: bool,
    /// Names of the variables of [`claude_variables`] that the user has set.
    pub(crate) claude_variables: Vec<&'static str>,
    /// True if the user has set which log lines programs print.
    pub(crate) has_log_filter: bool,
}

/// Log lines of Codex: it reports the refused WebSocket as an error, although it then uses HTTP.
const CODEX_LOG_FILTER: &str = "error,codex_api::endpoint::responses_websocket=off";

/// A command to run, and the proxy for it.
pub(crate) struct LaunchPlan<'a> {
    pub(crate) program: &'a OsStr,
    /// The arguments of the user.
    pub(crate) arguments: &'a [OsString],
    pub(crate) bases: &'a BaseUrls,
    pub(crate) caller: &'a CallerEnv,
    /// True if the Anthropic upstream is Anthropic's own API.
    pub(crate) is_official_anthropic: bool,
    /// True if the proxy signs requests to Bedrock.
    pub(crate) signs_bedrock: bool,
    /// Base URLs in the settings files of the command, the strongest first.
    pub(crate) configured: &'a [ConfiguredUrl],
}

/// Returns the overrides that point the process of a command at a proxy.
pub(crate) fn client_overrides(plan: &LaunchPlan<'_>) -> ClientOverrides {
    let LaunchPlan { bases, caller, .. } = plan;
    let set = |name, value: &str| (name, Some(OsString::from(value)));
    let mut overrides = ClientOverrides {
        variables: vec![
            set("OPENAI_BASE_URL", &bases.openai),
            set("OPENAI_API_BASE", &bases.openai),
            set("ANTHROPIC_BASE_URL", &bases.anthropic),
            set("ANTHROPIC_API_BASE", &bases.anthropic),
            set("GOOGLE_GEMINI_BASE_URL", &bases.anthropic),
        ],
        arguments: Vec::new(),
    };
    if !is_ollama_server(plan) {
        overrides.variables.push(set("OLLAMA_HOST", &bases.anthropic));
    }
    // A signature of the client would be refused.
    if caller.has_bedrock_key || plan.signs_bedrock {
        overrides.variables.push(set("ANTHROPIC_BEDROCK_BASE_URL", &bases.anthropic));
    }
    // AWS's libraries send a key only over TLS.
    if plan.signs_bedrock {
        overrides.variables.push(set("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", &bases.anthropic));
    }
    if let Some(settings) = opencode_config(bases, caller.opencode_config.as_deref()) {
        overrides.variables.push(set("OPENCODE_CONFIG_CONTENT", &settings));
    }
    if caller.behind_proxy {
        let here = "127.0.0.1,localhost";
        let hosts = caller.no_proxy.as_deref().filter(|it| !it.is_empty());
        let hosts = hosts.map_or_else(|| here.to_owned(), |hosts| format!("{hosts},{here}"));
        overrides.variables.extend([set("NO_PROXY", &hosts), set("no_proxy", &hosts)]);
    }
    let claude = claude_variables(plan.is_official_anthropic).iter();
    let unset = claude.filter(|(name, _)| !caller.claude_variables.contains(name));
    overrides.variables.extend(unset.map(|(name, value)| set(name, value)));
    match ClientKind::from_program(plan.program) {
        // Variables in its settings files override those of the environment; settings on the command line override both.
        Some(ClientKind::Claude) => {
            let is_configured = plan.configured.iter().any(|it| it.key == "env.ANTHROPIC_BASE_URL");
            if is_configured && !has_settings_argument(plan.arguments) {
                let settings = json!({ "env": { "ANTHROPIC_BASE_URL": bases.anthropic } }).to_string();
                overrides.arguments = vec!["--settings".into(), settings.into()];
            }
        }
        // Codex warns of the variable and expects a setting. A setting on its command line is valid TOML.
        Some(ClientKind::Codex) => {
            overrides.variables[0] = ("OPENAI_BASE_URL", None);
            if !caller.has_log_filter {
                overrides.variables.push(set("RUST_LOG", CODEX_LOG_FILTER));
            }
            let key = plan.configured.first().map_or("openai_base_url", |it| it.key.as_str());
            overrides.arguments = vec!["-c".into(), format!("{key}={:?}", bases.openai).into()];
        }
        // Aider reads `.env` files, which override variables; its flags override both.
        Some(ClientKind::Aider) => {
            let anthropic = format!("ANTHROPIC_API_BASE={}", bases.anthropic);
            overrides.arguments =
                ["--openai-api-base", &bases.openai, "--set-env", &anthropic].map(OsString::from).into();
        }
        _ => {}
    }
    overrides
}

/// Returns what to do if Claude Code connects to a cloud.
pub(crate) fn cloud_advice(cloud: &str) -> &'static str {
    match cloud {
        "Bedrock" => {
            "set AWS_BEARER_TOKEN_BEDROCK or use --bedrock-auth aws, with `foldline run` or ANTHROPIC_BEDROCK_BASE_URL"
        }
        _ => "unset it for clients that should use foldline",
    }
}

/// Returns true for Ollama's own server, which listens at the address in the variable.
fn is_ollama_server(plan: &LaunchPlan<'_>) -> bool {
    let name = Path::new(plan.program).file_stem();
    name == Some(OsStr::new("ollama")) && plan.arguments.first().is_some_and(|it| it == "serve" || it == "start")
}

/// Returns true if the user gives Claude Code settings of their own; a second argument would replace them.
pub(crate) fn has_settings_argument(arguments: &[OsString]) -> bool {
    arguments.iter().any(|it| it.to_str().is_some_and(|it| it == "--settings" || it.starts_with("--settings=")))
}

/// Returns the upstreams that the settings files of a client name, as base URLs of OpenAI and of Anthropic. They override
/// the environment.
pub(crate) fn configured_upstreams(
    kind: Option<ClientKind>,
    configured: &[ConfiguredUrl],
) -> (Option<String>, Option<String>) {
    let url = |key: Option<&str>| {
        let mut found = configured.iter().filter(|it| key.is_none_or(|key| it.key == key));
        found.next().map(|it| it.url.clone())
    };
    match kind {
        Some(ClientKind::Claude) => (None, url(Some("env.ANTHROPIC_BASE_URL"))),
        Some(ClientKind::Codex) => (url(None), None),
        _ => (None, None),
    }
}

/// Merges the base URLs into opencode's settings, which it reads from a variable over its files. Returns `None`
/// if the caller's settings cannot be parsed: they stay unchanged.
fn opencode_config(bases: &BaseUrls, callers: Option<&str>) -> Option<String> {
    let mut settings: Value = match callers {
        Some(text) => serde_json::from_str(text).ok().filter(Value::is_object)?,
        None => json!({}),
    };
    for (provider, base) in [("openai", bases.openai.clone()), ("anthropic", format!("{}/v1", bases.anthropic))] {
        let mut node = &mut settings;
        for key in ["provider", provider, "options"] {
            node = node.as_object_mut()?.entry(key).or_insert_with(|| json!({}));
        }
        node.as_object_mut()?.insert("baseURL".into(), base.into());
    }
    Some(settings.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::kind::{OFFICIAL_UPSTREAM_VARIABLES, OTHER_UPSTREAM_VARIABLES};

    fn sample_base_urls() -> BaseUrls {
        BaseUrls { openai: "http://127.0.0.1:9/v1".into(), anthropic: "http://127.0.0.1:9".into() }
    }

    fn overrides(program: &str, caller: &CallerEnv) -> ClientOverrides {
        overrides_for(program, &[], caller, false, &[])
    }

    fn overrides_for(
        program: &str,
        arguments: &[&str],
        caller: &CallerEnv,
        is_official_anthropic: bool,
        configured: &[(&str, &str)],
    ) -> ClientOverrides {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let configured: Vec<ConfiguredUrl> = configured
            .iter()
            .map(|(key, url)| ConfiguredUrl { path: "f".into(), key: (*key).into(), url: (*url).into() })
            .collect();
        client_overrides(&LaunchPlan {
            program: program.as_ref(),
            arguments: &arguments,
            bases: &sample_base_urls(),
            caller,
            is_official_anthropic,
            signs_bedrock: false,
            configured: &configured,
        })
    }

    fn variable_value(overrides: &ClientOverrides, name: &str) -> Option<String> {
        let (_, value) = overrides.variables.iter().find(|(it, _)| *it == name)?;
        value.clone().map(|it| it.into_string().unwrap())
    }

    #[test]
    fn any_command_gets_base_url_variables() {
        let overrides = overrides("my-agent", &CallerEnv::default());
        assert_eq!(variable_value(&overrides, "OPENAI_BASE_URL").unwrap(), "http://127.0.0.1:9/v1");
        assert_eq!(variable_value(&overrides, "ANTHROPIC_BASE_URL").unwrap(), "http://127.0.0.1:9");
        assert_eq!(variable_value(&overrides, "GOOGLE_GEMINI_BASE_URL").unwrap(), "http://127.0.0.1:9");
        assert_eq!(variable_value(&overrides, "OLLAMA_HOST").unwrap(), "http://127.0.0.1:9");
        assert!(overrides.arguments.is_empty());
        assert_eq!(variable_value(&overrides, "NO_PROXY"), None);
    }

    #[test]
    fn clients_of_bedrock_are_redirected_if_they_can_be_served() {
        let names = ["ANTHROPIC_BEDROCK_BASE_URL", "AWS_ENDPOINT_URL_BEDROCK_RUNTIME"];
        let is_set = |has_bedrock_key, signs_bedrock| {
            let bases = sample_base_urls();
            let caller = CallerEnv { has_bedrock_key, ..CallerEnv::default() };
            let overrides = client_overrides(&LaunchPlan {
                program: OsStr::new("claude"),
                arguments: &[],
                bases: &bases,
                caller: &caller,
                is_official_anthropic: true,
                signs_bedrock,
                configured: &[],
            });
            names.map(|name| variable_value(&overrides, name).is_some())
        };
        assert_eq!(is_set(false, false), [false, false]);
        assert_eq!(is_set(true, false), [true, false]);
        assert_eq!(is_set(false, true), [true, true]);
    }

    #[test]
    fn ollamas_own_server_keeps_its_address() {
        let serve = overrides_for("ollama", &["serve"], &CallerEnv::default(), false, &[]);
        assert_eq!(variable_value(&serve, "OLLAMA_HOST"), None);
        let run = overrides_for("/usr/bin/ollama", &["run", "qwen3"], &CallerEnv::default(), false, &[]);
        assert_eq!(variable_value(&run, "OLLAMA_HOST").unwrap(), "http://127.0.0.1:9");
    }

    #[test]
    fn codex_and_aider_get_their_own_flags() {
        let codex = overrides("/usr/bin/codex", &CallerEnv::default());
        assert_eq!(codex.arguments, ["-c", "openai_base_url=\"http://127.0.0.1:9/v1\""]);
        assert!(codex.variables.contains(&("OPENAI_BASE_URL", None)), "codex warns of it");
        assert_eq!(variable_value(&codex, "RUST_LOG").as_deref(), Some(CODEX_LOG_FILTER));
        let user = CallerEnv { has_log_filter: true, ..CallerEnv::default() };
        assert_eq!(variable_value(&overrides("codex", &user), "RUST_LOG"), None);
        let aider = overrides("aider", &CallerEnv::default());
        assert_eq!(aider.arguments[..2], ["--openai-api-base", "http://127.0.0.1:9/v1"]);
    }

    #[test]
    fn claude_keeps_its_window_and_tool_search_at_the_official_upstream() {
        let variables = |caller: &CallerEnv, is_official| {
            let overrides = overrides_for("claude", &[], caller, is_official, &[]);
            OFFICIAL_UPSTREAM_VARIABLES.map(|(name, _)| variable_value(&overrides, name))
        };
        let user = CallerEnv { claude_variables: vec!["ENABLE_TOOL_SEARCH"], ..CallerEnv::default() };
        assert_eq!(variables(&CallerEnv::default(), true), [Some("1".into()), Some("true".into())]);
        assert_eq!(variables(&user, true), [Some("1".into()), None], "the user's value is not overridden");
        assert_eq!(variables(&CallerEnv::default(), false), [None, None], "a gateway may not support it");
    }

    #[test]
    fn claude_sends_no_checksum_to_other_upstreams() {
        let name = OTHER_UPSTREAM_VARIABLES[0].0;
        let value = |caller: &CallerEnv, is_official| {
            variable_value(&overrides_for("claude", &[], caller, is_official, &[]), name)
        };
        let user = CallerEnv { claude_variables: vec![name], ..CallerEnv::default() };
        assert_eq!(value(&CallerEnv::default(), false).as_deref(), Some("0"));
        assert_eq!(value(&CallerEnv::default(), true), None, "Anthropic removes it from the prompt");
        assert_eq!(value(&user, false), None, "the user's value is not overridden");
    }

    #[test]
    fn settings_files_of_clients_are_overridden() {
        let none = CallerEnv::default();
        let gateway = [("env.ANTHROPIC_BASE_URL", "https://gw")];
        let claude = overrides_for("claude", &["-p", "hi"], &none, false, &gateway);
        assert_eq!(claude.arguments, ["--settings", r#"{"env":{"ANTHROPIC_BASE_URL":"http://127.0.0.1:9"}}"#]);
        let own = overrides_for("claude", &["--settings", "mine.json"], &none, false, &gateway);
        assert!(own.arguments.is_empty(), "the user's own settings are not replaced");
        assert!(overrides_for("claude", &[], &none, false, &[]).arguments.is_empty());
        let provider = [("model_providers.mine.base_url", "https://m/v1")];
        let codex = overrides_for("codex", &[], &none, false, &provider);
        assert_eq!(codex.arguments, ["-c", "model_providers.mine.base_url=\"http://127.0.0.1:9/v1\""]);
    }

    #[test]
    fn configured_urls_become_upstreams() {
        let configured =
            [ConfiguredUrl { path: "f".into(), key: "env.ANTHROPIC_BASE_URL".into(), url: "https://gw".into() }];
        assert_eq!(configured_upstreams(Some(ClientKind::Claude), &configured), (None, Some("https://gw".into())));
        assert_eq!(configured_upstreams(None, &configured), (None, None));
    }

    #[test]
    fn opencode_config_is_merged_with_the_callers() {
        let theirs = r#"{"model":"openai/gpt-5","provider":{"openai":{"options":{"timeout":1}}}}"#;
        let caller = CallerEnv { opencode_config: Some(theirs.into()), ..CallerEnv::default() };
        let settings = variable_value(&overrides("opencode", &caller), "OPENCODE_CONFIG_CONTENT").unwrap();
        let settings: Value = serde_json::from_str(&settings).unwrap();
        assert_eq!(settings["model"], "openai/gpt-5");
        assert_eq!(
            settings["provider"]["openai"]["options"],
            json!({ "timeout": 1, "baseURL": "http://127.0.0.1:9/v1" })
        );
        assert_eq!(settings["provider"]["anthropic"]["options"]["baseURL"], "http://127.0.0.1:9/v1");
        let invalid = CallerEnv { opencode_config: Some("not json".into()), ..CallerEnv::default() };
        assert_eq!(variable_value(&overrides("opencode", &invalid), "OPENCODE_CONFIG_CONTENT"), None);
    }

    #[test]
    fn network_proxy_is_bypassed_for_localhost() {
        let caller = CallerEnv { behind_proxy: true, no_proxy: Some("intranet".into()), ..CallerEnv::default() };
        let overrides = overrides("claude", &caller);
        assert_eq!(variable_value(&overrides, "NO_PROXY").unwrap(), "intranet,127.0.0.1,localhost");
        assert_eq!(variable_value(&overrides, "no_proxy"), variable_value(&overrides, "NO_PROXY"));
    }
}
