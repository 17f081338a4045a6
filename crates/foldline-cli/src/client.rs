//! Pointing clients at a proxy: by the variables that most of them read, and by the own flags or settings of
//! those that do not.
//!
//! A client's own configuration is never changed: no file is written, and variables are set only
//! for the started process.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde_json::{Value, json};

/// Base URLs of a proxy, as clients expect them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrls {
    /// With the API version at its end, as OpenAI's libraries expect.
    pub(crate) openai: String,
    /// Without a version, as Anthropic's libraries expect.
    pub(crate) anthropic: String,
}

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
    /// Settings of opencode, in JSON.
    pub(crate) opencode_config: Option<String>,
    /// Hosts that are reached without the network's proxy.
    pub(crate) no_proxy: Option<String>,
    /// Variables that switch Claude Code to a cloud, with the cloud's name.
    pub(crate) cloud_variables: Vec<(&'static str, &'static str)>,
    /// True if the network has a proxy; it cannot reach this machine's own ports.
    pub(crate) behind_proxy: bool,
}

/// Returns the overrides that point the process of a command at a proxy.
pub(crate) fn client_overrides(command: &OsStr, bases: &BaseUrls, caller: &CallerEnv) -> ClientOverrides {
    let set = |name, value: &str| (name, Some(OsString::from(value)));
    let mut overrides = ClientOverrides {
        variables: vec![
            set("OPENAI_BASE_URL", &bases.openai),
            set("OPENAI_API_BASE", &bases.openai),
            set("ANTHROPIC_BASE_URL", &bases.anthropic),
            set("ANTHROPIC_API_BASE", &bases.anthropic),
        ],
        arguments: Vec::new(),
    };
    if let Some(settings) = opencode_config(bases, caller.opencode_config.as_deref()) {
        overrides.variables.push(set("OPENCODE_CONFIG_CONTENT", &settings));
    }
    if caller.behind_proxy {
        let here = "127.0.0.1,localhost";
        let hosts = caller.no_proxy.as_deref().filter(|it| !it.is_empty());
        let hosts = hosts.map_or_else(|| here.to_owned(), |hosts| format!("{hosts},{here}"));
        overrides.variables.extend([set("NO_PROXY", &hosts), set("no_proxy", &hosts)]);
    }
    match Path::new(command).file_stem().and_then(OsStr::to_str) {
        // Codex warns of the variable and expects a setting. A setting on its command line is valid TOML.
        Some("codex") => {
            overrides.variables[0] = ("OPENAI_BASE_URL", None);
            overrides.arguments = vec!["-c".into(), format!("openai_base_url={:?}", bases.openai).into()];
        }
        // Aider reads `.env` files, which override variables; its flags override both.
        Some("aider") => {
            let anthropic = format!("ANTHROPIC_API_BASE={}", bases.anthropic);
            overrides.arguments =
                ["--openai-api-base", &bases.openai, "--set-env", &anthropic].map(OsString::from).into();
        }
        _ => {}
    }
    overrides
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

    fn sample_base_urls() -> BaseUrls {
        BaseUrls { openai: "http://127.0.0.1:9/v1".into(), anthropic: "http://127.0.0.1:9".into() }
    }

    fn variable_value(overrides: &ClientOverrides, name: &str) -> Option<String> {
        let (_, value) = overrides.variables.iter().find(|(it, _)| *it == name)?;
        value.clone().map(|it| it.into_string().unwrap())
    }

    #[test]
    fn any_command_gets_base_url_variables() {
        let overrides = client_overrides("my-agent".as_ref(), &sample_base_urls(), &CallerEnv::default());
        assert_eq!(variable_value(&overrides, "OPENAI_BASE_URL").unwrap(), "http://127.0.0.1:9/v1");
        assert_eq!(variable_value(&overrides, "ANTHROPIC_BASE_URL").unwrap(), "http://127.0.0.1:9");
        assert!(overrides.arguments.is_empty());
        assert_eq!(variable_value(&overrides, "NO_PROXY"), None);
    }

    #[test]
    fn codex_and_aider_get_their_own_flags() {
        let codex = client_overrides("/usr/bin/codex".as_ref(), &sample_base_urls(), &CallerEnv::default());
        assert_eq!(codex.arguments, ["-c", "openai_base_url=\"http://127.0.0.1:9/v1\""]);
        assert!(codex.variables.contains(&("OPENAI_BASE_URL", None)), "codex warns of it");
        let aider = client_overrides("aider".as_ref(), &sample_base_urls(), &CallerEnv::default());
        assert_eq!(aider.arguments[..2], ["--openai-api-base", "http://127.0.0.1:9/v1"]);
    }

    #[test]
    fn opencode_config_is_merged_with_the_callers() {
        let theirs = r#"{"model":"openai/gpt-5","provider":{"openai":{"options":{"timeout":1}}}}"#;
        let caller = CallerEnv { opencode_config: Some(theirs.into()), ..CallerEnv::default() };
        let settings = variable_value(
            &client_overrides("opencode".as_ref(), &sample_base_urls(), &caller),
            "OPENCODE_CONFIG_CONTENT",
        )
        .unwrap();
        let settings: Value = serde_json::from_str(&settings).unwrap();
        assert_eq!(settings["model"], "openai/gpt-5");
        assert_eq!(
            settings["provider"]["openai"]["options"],
            json!({ "timeout": 1, "baseURL": "http://127.0.0.1:9/v1" })
        );
        assert_eq!(settings["provider"]["anthropic"]["options"]["baseURL"], "http://127.0.0.1:9/v1");
        let invalid = CallerEnv { opencode_config: Some("not json".into()), ..CallerEnv::default() };
        assert_eq!(
            variable_value(
                &client_overrides("opencode".as_ref(), &sample_base_urls(), &invalid),
                "OPENCODE_CONFIG_CONTENT"
            ),
            None
        );
    }

    #[test]
    fn network_proxy_is_bypassed_for_localhost() {
        let caller = CallerEnv { behind_proxy: true, no_proxy: Some("intranet".into()), ..CallerEnv::default() };
        let overrides = client_overrides("claude".as_ref(), &sample_base_urls(), &caller);
        assert_eq!(variable_value(&overrides, "NO_PROXY").unwrap(), "intranet,127.0.0.1,localhost");
        assert_eq!(variable_value(&overrides, "no_proxy"), variable_value(&overrides, "NO_PROXY"));
    }
}
