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
pub(crate) struct Bases {
    /// With the version of the API at its end, as OpenAI's libraries want it.
    pub(crate) openai: String,
    /// Without one, as Anthropic's libraries want it.
    pub(crate) anthropic: String,
}

/// What a client's process gets beside what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pointed {
    /// Variables that are set, or taken away.
    pub(crate) variables: Vec<(&'static str, Option<OsString>)>,
    /// Arguments that come first.
    pub(crate) arguments: Vec<OsString>,
}

/// The variables of a caller that matter to its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The base URL of the OpenAI API, where another than the official one is used.
    pub(crate) openai: Option<String>,
    /// The same for the Anthropic API.
    pub(crate) anthropic: Option<String>,
    /// Settings of opencode, in JSON.
    pub(crate) opencode: Option<String>,
    /// Hosts that are reached without a proxy of the network.
    pub(crate) no_proxy: Option<String>,
    /// Variables that send Claude Code to a cloud instead, and to which.
    pub(crate) elsewhere: Vec<(&'static str, &'static str)>,
    /// The network has a proxy, which does not know this machine's own ports.
    pub(crate) behind_proxy: bool,
}

/// How the process of a command is pointed at a proxy.
pub(crate) fn point(command: &OsStr, bases: &Bases, caller: &Caller) -> Pointed {
    let set = |name, value: &str| (name, Some(OsString::from(value)));
    let mut pointed = Pointed {
        variables: vec![
            set("OPENAI_BASE_URL", &bases.openai),
            set("OPENAI_API_BASE", &bases.openai),
            set("ANTHROPIC_BASE_URL", &bases.anthropic),
            set("ANTHROPIC_API_BASE", &bases.anthropic),
        ],
        arguments: Vec::new(),
    };
    if let Some(settings) = opencode(bases, caller.opencode.as_deref()) {
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
fn opencode(bases: &Bases, callers: Option<&str>) -> Option<String> {
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

    fn bases() -> Bases {
        Bases { openai: "http://127.0.0.1:9/v1".into(), anthropic: "http://127.0.0.1:9".into() }
    }

    fn value(pointed: &Pointed, name: &str) -> Option<String> {
        let (_, value) = pointed.variables.iter().find(|(it, _)| *it == name)?;
        value.clone().map(|it| it.into_string().unwrap())
    }

    #[test]
    fn anything_is_pointed_by_variables() {
        let pointed = point("my-agent".as_ref(), &bases(), &Caller::default());
        assert_eq!(value(&pointed, "OPENAI_BASE_URL").unwrap(), "http://127.0.0.1:9/v1");
        assert_eq!(value(&pointed, "ANTHROPIC_BASE_URL").unwrap(), "http://127.0.0.1:9");
        assert!(pointed.arguments.is_empty());
        assert_eq!(value(&pointed, "NO_PROXY"), None);
    }

    #[test]
    fn clients_with_ways_of_their_own_are_pointed_by_those() {
        let codex = point("/usr/bin/codex".as_ref(), &bases(), &Caller::default());
        assert_eq!(codex.arguments, ["-c", "openai_base_url=\"http://127.0.0.1:9/v1\""]);
        assert!(codex.variables.contains(&("OPENAI_BASE_URL", None)), "codex warns of it");
        let aider = point("aider".as_ref(), &bases(), &Caller::default());
        assert_eq!(aider.arguments[..2], ["--openai-api-base", "http://127.0.0.1:9/v1"]);
    }

    #[test]
    fn settings_of_opencode_are_added_to_what_the_caller_has() {
        let theirs = r#"{"model":"openai/gpt-5","provider":{"openai":{"options":{"timeout":1}}}}"#;
        let caller = Caller { opencode: Some(theirs.into()), ..Caller::default() };
        let settings = value(&point("opencode".as_ref(), &bases(), &caller), "OPENCODE_CONFIG_CONTENT").unwrap();
        let settings: Value = serde_json::from_str(&settings).unwrap();
        assert_eq!(settings["model"], "openai/gpt-5");
        assert_eq!(
            settings["provider"]["openai"]["options"],
            json!({ "timeout": 1, "baseURL": "http://127.0.0.1:9/v1" })
        );
        assert_eq!(settings["provider"]["anthropic"]["options"]["baseURL"], "http://127.0.0.1:9/v1");
        let odd = Caller { opencode: Some("not json".into()), ..Caller::default() };
        assert_eq!(value(&point("opencode".as_ref(), &bases(), &odd), "OPENCODE_CONFIG_CONTENT"), None);
    }

    #[test]
    fn a_proxy_of_the_network_is_not_asked_for_this_machine() {
        let caller = Caller { behind_proxy: true, no_proxy: Some("intranet".into()), ..Caller::default() };
        let pointed = point("claude".as_ref(), &bases(), &caller);
        assert_eq!(value(&pointed, "NO_PROXY").unwrap(), "intranet,127.0.0.1,localhost");
        assert_eq!(value(&pointed, "no_proxy"), value(&pointed, "NO_PROXY"));
    }
}
