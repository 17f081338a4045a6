//! How clients are pointed at a proxy: by variables that most of them read, and by words of their own
//! for those that do not.
//!
//! Nothing of a client's own is changed: no file is written, and what the caller set is set again only
//! for the one process that is started.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use serde_json::{Value, json};

/// Where a proxy is, as clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrls {
    /// With the version of the API at its end, as OpenAI's libraries want it.
    pub(crate) openai: String,
    /// Without one, as Anthropic's libraries want it.
    pub(crate) anthropic: String,
}

/// What a client's process gets beside what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientOverrides {
    /// Variables that are set, or taken away.
    pub(crate) variables: Vec<(&'static str, Option<OsString>)>,
    /// Arguments that come first.
    pub(crate) arguments: Vec<OsString>,
}

/// The variables of a caller that matter to its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallerEnv {
    /// The base URL of the OpenAI API, where another than the official one is used.
    pub(crate) openai: Option<String>,
    /// The same for the Anthropic API.
    pub(crate) anthropic: Option<String>,
    /// Settings of opencode, in JSON.
    pub(crate) opencode_config: Option<String>,
    /// Hosts that are reached without a proxy of the network.
    pub(crate) no_proxy: Option<String>,
    /// Variables that send Claude Code to a cloud instead, and to which.
    pub(crate) cloud_variables: Vec<(&'static str, &'static str)>,
    /// The network has a proxy, which does not know this machine's own ports.
    pub(crate) behind_proxy: bool,
}

/// How the process of a command is pointed at a proxy.
pub(crate) fn client_overrides(command: &OsStr, bases: &BaseUrls, caller: &CallerEnv) -> ClientOverrides {
    let set = |name, value: &str| (name, Some(OsString::from(value)));
    let mut pointed = ClientOverrides {
        variables: vec![
            set("OPENAI_BASE_URL", &bases.openai),
            set("OPENAI_API_BASE", &bases.openai),
            set("ANTHROPIC_BASE_URL", &bases.anthropic),
            set("ANTHROPIC_API_BASE", &bases.anthropic),
        ],
        arguments: Vec::new(),
    };
    if let Some(settings) = opencode_config(bases, caller.opencode_config.as_deref()) {
        pointed.variables.push(set("OPENCODE_CONFIG_CONTENT", &settings));
    }
    if caller.behind_proxy {
        let here = "127.0.0.1,localhost";
        let hosts = caller.no_proxy.as_deref().filter(|it| !it.is_empty());
        let hosts = hosts.map_or_else(|| here.to_owned(), |hosts| format!("{hosts},{here}"));
        pointed.variables.extend([set("NO_PROXY", &hosts), set("no_proxy", &hosts)]);
    }
    match Path::new(command).file_stem().and_then(OsStr::to_str) {
        // Codex warns of the variable and wants a setting. A setting on its command line is valid TOML.
        Some("codex") => {
            pointed.variables[0] = ("OPENAI_BASE_URL", None);
            pointed.arguments = vec!["-c".into(), format!("openai_base_url={:?}", bases.openai).into()];
        }
        // Aider reads `.env` files, which beat variables; its flags beat both.
        Some("aider") => {
            let anthropic = format!("ANTHROPIC_API_BASE={}", bases.anthropic);
            pointed.arguments =
                ["--openai-api-base", &bases.openai, "--set-env", &anthropic].map(OsString::from).into();
        }
        _ => {}
    }
    pointed
}

/// opencode knows no variable for a base URL, but settings in one; they are laid over its files. `None`
/// when the caller's own can not be read: then they stay as they are.
fn opencode_config(bases: &BaseUrls, callers: Option<&str>) -> Option<String> {
    let mut settings: Value = match callers {
        Some(text) => serde_json::from_str(text).ok().filter(Value::is_object)?,
        None => json!({}),
    };
    for (provider, base) in [("openai", bases.openai.clone()), ("anthropic", format!("{}/v1", bases.anthropic))] {
        let mut at = &mut settings;
        for key in ["provider", provider, "options"] {
            at = at.as_object_mut()?.entry(key).or_insert_with(|| json!({}));
        }
        at.as_object_mut()?.insert("baseURL".into(), base.into());
    }
    Some(settings.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_base_urls() -> BaseUrls {
        BaseUrls { openai: "http://127.0.0.1:9/v1".into(), anthropic: "http://127.0.0.1:9".into() }
    }

    fn variable_value(pointed: &ClientOverrides, name: &str) -> Option<String> {
        let (_, value) = pointed.variables.iter().find(|(it, _)| *it == name)?;
        value.clone().map(|it| it.into_string().unwrap())
    }

    #[test]
    fn any_command_gets_base_url_variables() {
        let pointed = client_overrides("my-agent".as_ref(), &sample_base_urls(), &CallerEnv::default());
        assert_eq!(variable_value(&pointed, "OPENAI_BASE_URL").unwrap(), "http://127.0.0.1:9/v1");
        assert_eq!(variable_value(&pointed, "ANTHROPIC_BASE_URL").unwrap(), "http://127.0.0.1:9");
        assert!(pointed.arguments.is_empty());
        assert_eq!(variable_value(&pointed, "NO_PROXY"), None);
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
        let odd = CallerEnv { opencode_config: Some("not json".into()), ..CallerEnv::default() };
        assert_eq!(
            variable_value(
                &client_overrides("opencode".as_ref(), &sample_base_urls(), &odd),
                "OPENCODE_CONFIG_CONTENT"
            ),
            None
        );
    }

    #[test]
    fn network_proxy_is_bypassed_for_localhost() {
        let caller = CallerEnv { behind_proxy: true, no_proxy: Some("intranet".into()), ..CallerEnv::default() };
        let pointed = client_overrides("claude".as_ref(), &sample_base_urls(), &caller);
        assert_eq!(variable_value(&pointed, "NO_PROXY").unwrap(), "intranet,127.0.0.1,localhost");
        assert_eq!(variable_value(&pointed, "no_proxy"), variable_value(&pointed, "NO_PROXY"));
    }
}
