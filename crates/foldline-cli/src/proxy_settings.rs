//! What the proxy is told, weighed: a flag beats a variable, a variable beats the settings file, and
//! the file beats a default. All three say the same things under the same names.

#![allow(rustdoc::bare_urls, reason = "they are shown as help on a terminal")]

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use foldline_server::proxy::{AccessToken, ProxyLimits, ProxySettings, Timeouts, TlsFiles};
use serde::{Deserialize, Serialize};

use crate::client::CallerEnv;
use crate::environment::ProxyVariables;

pub(crate) const HELP: &str = "\
Settings come from flags, then from the environment (FOLDLINE_LISTEN for --listen, and so on for each), then from a \
settings file in TOML (--settings, FOLDLINE_SETTINGS, or proxy.toml in the user's configuration folder) with the names \
of the flags:

    listen = \"127.0.0.1:8787\"
    upstream = \"http://127.0.0.1:8080\"
    policy = \"balanced\"
    unfold = false

Headers of a request: x-foldline-session names its session, x-foldline-bypass: 1 sends it out as it came. Headers of the \
answer: x-foldline-tokens: RAW,SENT and x-foldline-folds: N.";

/// What was said in one place.
#[derive(Args, Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ProxyArgs {
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// A token; not a flag, because every user of the machine can see the arguments of a process.
    #[arg(skip)]
    pub(crate) token: Option<String>,
    /// Several tokens, separated by commas or line breaks.
    #[arg(skip)]
    pub(crate) tokens: Option<String>,
    /// A file with the tokens that let clients in, one a line: NAME = TOKEN, or TOKEN alone; needed unless only this machine
    /// can connect. A single token may also come in $FOLDLINE_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Which requests share originals: single (all), token (those with tokens of one name) or credential (those with one API
    /// key) [default: single without tokens, token where all have names, else credential]
    #[arg(long, value_name = "NAME")]
    pub(crate) tenancy: Option<String>,
    /// A certificate with its issuers, in PEM, to serve TLS without a terminator in front
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The provider, for all formats
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// The provider of Chat Completions and Responses [default: https://api.openai.com]
    #[arg(long, value_name = "URL")]
    pub(crate) openai: Option<String>,
    /// The provider of Anthropic Messages [default: https://api.anthropic.com]
    #[arg(long, value_name = "URL")]
    pub(crate) anthropic: Option<String>,
    /// fold, observe (forward everything as it came, report what folding would have done) or off [default: fold]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    /// What may be folded, and when: none, lossless, balanced or tight [default: balanced]
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Tokens of the model's window, where it is known better than the server or the table knows it
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<u64>,
    /// Offer the model a tool by which it unfolds what it needs, answered inside the proxy [default: true]
    #[arg(long, value_name = "BOOL")]
    pub(crate) unfold: Option<bool>,
    /// Let a model write summaries of old rounds, with the agent's own key: off, prepared (in the background, before they are
    /// needed; no request waits) or inline (a request that must be folded waits, 30 seconds at most) [default: off]
    #[arg(long, value_name = "MODE")]
    pub(crate) summarize: Option<String>,
    /// The model that writes them, at the agent's own provider [default: the agent's]
    #[arg(long, value_name = "NAME")]
    pub(crate) summary_model: Option<String>,
    /// Megabytes that a request may have [default: 64]
    #[arg(long, value_name = "MB")]
    pub(crate) max_body: Option<usize>,
    /// Megabytes that the bodies of all requests at once may have; one that finds no room in five seconds is told to come
    /// again [default: 1024]
    #[arg(long, value_name = "MB")]
    pub(crate) max_bodies: Option<usize>,
    /// Requests at once; the next one waits [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) max_requests: Option<usize>,
    /// Conversations whose folds are remembered [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) max_sessions: Option<usize>,
    /// Seconds for an upstream to begin its answer [default: 600]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) response_timeout: Option<u64>,
    /// Seconds between two pieces of an answer [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_timeout: Option<u64>,
}

/// The flags of every command that starts a proxy.
#[derive(Args)]
#[command(next_help_heading = "Proxy")]
pub(crate) struct ProxyFlags {
    #[command(flatten)]
    args: ProxyArgs,
    /// A settings file [default: $FOLDLINE_SETTINGS, or proxy.toml in the user's configuration folder]
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
}

impl ProxyFlags {
    pub(crate) fn resolve(self) -> Result<ProxySettings> {
        let (settings, _) = self.resolve_with_sources()?;
        Ok(settings)
    }

    /// What that means, and where each of it was said.
    pub(crate) fn resolve_with_sources(self) -> Result<(ProxySettings, SettingSources)> {
        let ConfigLayers { flags, variables, file } = self.load_layers()?;
        let places = SettingSources {
            flags: flags.set_names(),
            variables: variables.set_names(),
            file: file.as_ref().map(|(path, said)| (path.clone(), said.set_names())),
            default_file: default_settings_path(),
        };
        let file = file.map(|(_, said)| said).unwrap_or_default();
        Ok((flags.or(variables).or(file).resolve()?, places))
    }

    /// What a proxy is told that serves one command alone. Where others are served, and whom, is not
    /// meant for it; and the providers that the caller uses are its own.
    pub(crate) fn resolve_for_child(self, caller: &CallerEnv) -> Result<ProxySettings> {
        let ConfigLayers { flags, variables, file } = self.load_layers()?;
        let beside = variables.or(file.map(|(_, said)| said).unwrap_or_default());
        let beside = ProxyArgs {
            listen: None,
            token: None,
            tokens: None,
            token_file: None,
            tenancy: None,
            tls_cert: None,
            tls_key: None,
            ..beside
        };
        if flags.token_file.is_some() || flags.tls_cert.is_some() {
            bail!(
                "`foldline run` serves one command on a port of its own, without tokens and TLS; use `foldline serve`"
            );
        }
        let callers = ProxyArgs {
            listen: Some("127.0.0.1:0".to_owned()),
            openai: caller.openai.clone(),
            anthropic: caller.anthropic.clone(),
            ..ProxyArgs::default()
        };
        flags.or(beside).or(callers).resolve()
    }

    /// What was said by flags, by variables, and in which file.
    fn load_layers(self) -> Result<ConfigLayers> {
        let variables = ProxyVariables::read()?;
        let named = self.settings.or(variables.settings);
        let file = named.or_else(|| default_settings_path().filter(|path| path.exists()));
        let file = file.map(|path| ProxyArgs::from_file(&path).map(|said| (path, said))).transpose()?;
        Ok(ConfigLayers { flags: self.args, variables: variables.args, file })
    }
}

/// What was said in each place.
struct ConfigLayers {
    flags: ProxyArgs,
    variables: ProxyArgs,
    file: Option<(PathBuf, ProxyArgs)>,
}

/// Where settings were said, by their names.
pub(crate) struct SettingSources {
    pub(crate) flags: Vec<String>,
    pub(crate) variables: Vec<String>,
    pub(crate) file: Option<(PathBuf, Vec<String>)>,
    /// Where a file is looked for when none is named.
    pub(crate) default_file: Option<PathBuf>,
}

fn default_settings_path() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "foldline").map(|it| it.config_dir().join("proxy.toml"))
}

impl ProxyArgs {
    /// What is said, without what is said of it: a token is a secret.
    fn set_names(&self) -> Vec<String> {
        let said = serde_json::to_value(self).unwrap_or_default();
        let said = said.as_object().into_iter().flatten();
        said.filter(|(_, value)| !value.is_null()).map(|(name, _)| name.clone()).collect()
    }

    fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not a settings file", path.display()))
    }

    /// What is said here, and where nothing is, there.
    fn or(self, there: Self) -> Self {
        // An upstream for all formats outranks what a weaker place says of one of them.
        let weaker = |one: Option<String>| if self.upstream.is_some() { None } else { one };
        Self {
            openai: self.openai.or(weaker(there.openai)),
            anthropic: self.anthropic.or(weaker(there.anthropic)),
            listen: self.listen.or(there.listen),
            token: self.token.or(there.token),
            tokens: self.tokens.or(there.tokens),
            token_file: self.token_file.or(there.token_file),
            tenancy: self.tenancy.or(there.tenancy),
            tls_cert: self.tls_cert.or(there.tls_cert),
            tls_key: self.tls_key.or(there.tls_key),
            upstream: self.upstream.or(there.upstream),
            mode: self.mode.or(there.mode),
            policy: self.policy.or(there.policy),
            window: self.window.or(there.window),
            unfold: self.unfold.or(there.unfold),
            summarize: self.summarize.or(there.summarize),
            summary_model: self.summary_model.or(there.summary_model),
            max_body: self.max_body.or(there.max_body),
            max_bodies: self.max_bodies.or(there.max_bodies),
            max_requests: self.max_requests.or(there.max_requests),
            max_sessions: self.max_sessions.or(there.max_sessions),
            response_timeout: self.response_timeout.or(there.response_timeout),
            idle_timeout: self.idle_timeout.or(there.idle_timeout),
        }
    }

    /// What that means, with defaults for what nobody said.
    fn resolve(self) -> Result<ProxySettings> {
        let usual = ProxySettings::default();
        let upstream = |one: Option<String>, usual| match one.or_else(|| self.upstream.clone()) {
            Some(url) => url.parse().map_err(anyhow::Error::new),
            None => Ok(usual),
        };
        let megabytes = |said: Option<usize>, usual| said.map_or(usual, |count| count.saturating_mul(1 << 20));
        let seconds = |said: Option<u64>, usual| said.map_or(usual, Duration::from_secs);
        Ok(ProxySettings {
            listen: self.listen.map_or(Ok(usual.listen), |it| parse_listen_address(&it))?,
            tokens: tokens(self.token.as_deref(), self.tokens.as_deref(), self.token_file.as_deref())?,
            tenancy: self.tenancy.map(|it| it.parse()).transpose().map_err(anyhow::Error::msg)?,
            namespace: usual.namespace,
            tls: match (self.tls_cert, self.tls_key) {
                (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
                (None, None) => None,
                _ => bail!("TLS needs both a certificate and its key; set tls-cert and tls-key"),
            },
            openai: upstream(self.openai, usual.openai)?,
            anthropic: upstream(self.anthropic, usual.anthropic)?,
            mode: self.mode.map_or(Ok(usual.mode), |it| it.parse()).map_err(anyhow::Error::msg)?,
            policy: self.policy.map_or(Ok(usual.policy), |it| it.parse()).map_err(anyhow::Error::msg)?,
            models: usual.models,
            window: self.window,
            offer_unfold_tool: self.unfold.unwrap_or(usual.offer_unfold_tool),
            summary_mode: self.summarize.map_or(Ok(usual.summary_mode), |it| it.parse()).map_err(anyhow::Error::msg)?,
            summary_model: self.summary_model.filter(|it| !it.is_empty()),
            limits: ProxyLimits {
                body_bytes: megabytes(self.max_body, usual.limits.body_bytes),
                total_body_bytes: megabytes(self.max_bodies, usual.limits.total_body_bytes),
                requests: self.max_requests.unwrap_or(usual.limits.requests).max(1),
                sessions: self.max_sessions.unwrap_or(usual.limits.sessions).max(1),
            },
            timeouts: Timeouts {
                response_start: seconds(self.response_timeout, usual.timeouts.response_start),
                idle: seconds(self.idle_timeout, usual.timeouts.idle),
                ..usual.timeouts
            },
        })
    }
}

/// Returns the tokens of all places where some are set.
fn tokens(one: Option<&str>, several: Option<&str>, file: Option<&Path>) -> Result<Vec<AccessToken>> {
    let from_file = file.map(|path| {
        std::fs::read_to_string(path).with_context(|| format!("could not read the tokens of {}", path.display()))
    });
    let from_file = from_file.transpose()?;
    let mut tokens = Vec::new();
    for text in [one, several, from_file.as_deref()].into_iter().flatten() {
        tokens.extend(AccessToken::parse_list(text)?);
    }
    if tokens.is_empty() && file.is_some() {
        bail!("the token file has no token: write NAME = TOKEN, one a line");
    }
    Ok(tokens)
}

/// An address to listen on. Names are not looked up, but one is known to everybody.
fn parse_listen_address(text: &str) -> Result<SocketAddr> {
    let local = text.strip_prefix("localhost:").map(|port| format!("{}:{port}", Ipv4Addr::LOCALHOST));
    local.as_deref().unwrap_or(text).parse().with_context(|| {
        format!("can not listen on \"{text}\": write an address with its port, such as 127.0.0.1:8787 or [::1]:8787")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args_from_toml(toml: &str) -> ProxyArgs {
        toml::from_str(toml).unwrap()
    }

    #[test]
    fn flags_override_variables_override_file() {
        let flags = args_from_toml("listen = \"127.0.0.1:1\"");
        let variables = args_from_toml("listen = \"127.0.0.1:2\"\nmode = \"observe\"");
        let file = args_from_toml(
            "mode = \"off\"\nmax-body = 3\nmax-bodies = 30\nunfold = false\nsummarise = \"prepared\"\nsummary-model = \"m\"",
        );
        let settings = flags.or(variables).or(file).resolve().unwrap();
        assert_eq!(settings.listen.port(), 1);
        assert_eq!(settings.mode, foldline_server::proxy::ProxyMode::Observe);
        assert_eq!(
            (settings.limits.body_bytes, settings.limits.total_body_bytes, settings.offer_unfold_tool),
            (3 << 20, 30 << 20, false)
        );
        assert_eq!(settings.summary_mode, foldline_server::proxy::SummaryMode::Prepared);
        assert_eq!(settings.summary_model.as_deref(), Some("m"));
        assert_eq!(settings.openai.to_string(), "https://api.openai.com");
    }

    #[test]
    fn upstream_applies_to_all_formats_unless_overridden() {
        let settings = args_from_toml("upstream = \"http://a\"\nanthropic = \"http://b\"").resolve().unwrap();
        assert_eq!(
            (settings.openai.to_string(), settings.anthropic.to_string()),
            ("http://a".into(), "http://b".into())
        );
        let settings =
            args_from_toml("upstream = \"http://a\"").or(args_from_toml("anthropic = \"http://b\"")).resolve().unwrap();
        assert_eq!(settings.anthropic.to_string(), "http://a");
    }

    #[test]
    fn listen_address_requires_a_port() {
        let listen =
            |text: &str| args_from_toml(&format!("listen = \"{text}\"")).resolve().map(|it| it.listen.to_string());
        assert_eq!(listen("localhost:8080").unwrap(), "127.0.0.1:8080");
        assert_eq!(listen("[::1]:0").unwrap(), "[::1]:0");
        for odd in ["8787", "127.0.0.1", "127.0.0.1:99999", "example.com:80", "localhost:"] {
            assert!(listen(odd).unwrap_err().to_string().contains("127.0.0.1:8787"), "{odd}");
        }
    }

    #[test]
    fn tokens_of_all_places_count() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, "# of the team\nalice = t1\nbob:t2\n").unwrap();
        let settings =
            args_from_toml(&format!("token = \"t3\"\ntoken-file = {file:?}\ntenancy = \"token\"")).resolve().unwrap();
        let names: Vec<_> = settings.tokens.iter().map(AccessToken::name).collect();
        assert_eq!(names, [None, Some("alice"), Some("bob")]);
        assert_eq!(settings.tenancy, Some(foldline_server::proxy::Tenancy::Token));
        assert!(args_from_toml("tenancy = \"team\"").resolve().unwrap_err().to_string().contains("credential"));
        assert!(
            args_from_toml("token-file = \"/nowhere/tokens\"")
                .resolve()
                .unwrap_err()
                .to_string()
                .contains("/nowhere/tokens")
        );
        assert!(args_from_toml("tls-cert = \"a.pem\"").resolve().unwrap_err().to_string().contains("tls-key"));
        std::fs::write(&file, "\n").unwrap();
        assert!(
            args_from_toml(&format!("token-file = {file:?}")).resolve().is_err(),
            "an empty file must not open the door"
        );
    }

    #[test]
    fn misspelled_settings_are_rejected() {
        assert!(toml::from_str::<ProxyArgs>("upsteam = \"x\"").is_err());
        assert!(args_from_toml("summarise = \"on\"").resolve().unwrap_err().to_string().contains("prepared"));
        assert!(args_from_toml("mode = \"fast\"").resolve().unwrap_err().to_string().contains("observe"));
        assert!(args_from_toml("upstream = \"ftp://x\"").resolve().is_err());
    }
}
