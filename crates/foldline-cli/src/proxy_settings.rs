//! Resolution of the proxy's settings: a flag overrides a variable, a variable overrides the settings file, and
//! the file overrides a default. All three use the same names.

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

Headers of a request: x-foldline-session names its session, x-foldline-bypass: 1 forwards it unchanged. Headers of the \
response: x-foldline-tokens: RECEIVED,SENT and x-foldline-folds: N.

Terms are explained in docs/glossary.md.";

/// Settings of one source: flags, variables or file.
#[derive(Args, Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct ProxyArgs {
    /// Address to listen on; port 0 selects a free port [default: 127.0.0.1:8787]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Access token; not a flag, because every user of the machine can see the arguments of a process.
    #[arg(skip)]
    pub(crate) token: Option<String>,
    /// Access tokens, separated by commas or line breaks.
    #[arg(skip)]
    pub(crate) tokens: Option<String>,
    /// A file with the access tokens of clients, one per line: NAME = TOKEN, or TOKEN alone; required unless only this
    /// machine can connect. A single token may also be set in $FOLDLINE_TOKEN
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Which requests share originals: single (all), token (those with tokens of one name) or credential (those with one API
    /// key) [default: single without tokens, token where all have names, else credential]
    #[arg(long, value_name = "NAME")]
    pub(crate) tenancy: Option<String>,
    /// A certificate chain in PEM format, to serve TLS directly
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The provider's URL, for all formats
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: Option<String>,
    /// The provider's URL for Chat Completions and Responses [default: https://api.openai.com]
    #[arg(long, value_name = "URL")]
    pub(crate) openai: Option<String>,
    /// The provider's URL for Anthropic Messages [default: https://api.anthropic.com]
    #[arg(long, value_name = "URL")]
    pub(crate) anthropic: Option<String>,
    /// fold, observe (forward every request unchanged, report what folding would have done) or off [default: fold]
    #[arg(long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    /// Fold policy: none, lossless, balanced or tight [default: balanced]
    #[arg(long, value_name = "NAME")]
    pub(crate) policy: Option<String>,
    /// Context window of the model in tokens; overrides the server's report and the model table
    #[arg(long, value_name = "TOKENS")]
    pub(crate) window: Option<u64>,
    /// Offer the model a tool to unfold originals; its calls are answered inside the proxy [default: true]
    #[arg(long, value_name = "BOOL")]
    pub(crate) unfold: Option<bool>,
    /// Let a model write summaries of old rounds, with the agent's own key: off, prepared (in the background, before they
    /// are needed; no request waits) or inline (a request that must be folded waits, 30 seconds at most) [default: off]
    #[arg(long, value_name = "MODE", alias = "summarise")]
    #[serde(alias = "summarise")]
    pub(crate) summarize: Option<String>,
    /// The model that writes summaries, at the agent's provider [default: the agent's model]
    #[arg(long, value_name = "NAME")]
    pub(crate) summary_model: Option<String>,
    /// Maximum size of a request body, in megabytes [default: 64]
    #[arg(long, value_name = "MB")]
    pub(crate) max_body: Option<usize>,
    /// Memory limit for the bodies of all concurrent requests, in megabytes; a request that finds no room within five
    /// seconds is rejected with a retry hint [default: 1024]
    #[arg(long, value_name = "MB")]
    pub(crate) max_bodies: Option<usize>,
    /// Maximum number of concurrent requests; further ones wait [default: 4096]
    #[arg(long, value_name = "N")]
    pub(crate) max_requests: Option<usize>,
    /// Maximum number of conversations whose folds are remembered [default: 1024]
    #[arg(long, value_name = "N")]
    pub(crate) max_sessions: Option<usize>,
    /// Seconds for an upstream to start its response [default: 600]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) response_timeout: Option<u64>,
    /// Seconds without data after which a response is aborted [default: 300]
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

    /// Resolves the settings and reports which source set which names.
    pub(crate) fn resolve_with_sources(self) -> Result<(ProxySettings, SettingSources)> {
        let ConfigLayers { flags, variables, file } = self.load_layers()?;
        let sources = SettingSources {
            flags: flags.set_names(),
            variables: variables.set_names(),
            file: file.as_ref().map(|(path, args)| (path.clone(), args.set_names())),
            default_file: default_settings_path(),
        };
        let file = file.map(|(_, args)| args).unwrap_or_default();
        Ok((flags.or(variables).or(file).resolve()?, sources))
    }

    /// Resolves the settings of a proxy that serves a single command. Address, tokens and TLS of a shared
    /// proxy do not apply to it, and the caller's providers become its upstreams.
    pub(crate) fn resolve_for_child(self, caller: &CallerEnv) -> Result<ProxySettings> {
        let ConfigLayers { flags, variables, file } = self.load_layers()?;
        let shared = variables.or(file.map(|(_, args)| args).unwrap_or_default());
        let shared = ProxyArgs {
            listen: None,
            token: None,
            tokens: None,
            token_file: None,
            tenancy: None,
            tls_cert: None,
            tls_key: None,
            ..shared
        };
        if flags.token_file.is_some() || flags.tls_cert.is_some() {
            bail!("`foldline run` serves one command on a private port, without tokens and TLS; use `foldline serve`");
        }
        let caller_defaults = ProxyArgs {
            listen: Some("127.0.0.1:0".to_owned()),
            openai: caller.openai.clone(),
            anthropic: caller.anthropic.clone(),
            ..ProxyArgs::default()
        };
        flags.or(shared).or(caller_defaults).resolve()
    }

    /// Loads the flags, the variables and the settings file.
    fn load_layers(self) -> Result<ConfigLayers> {
        let variables = ProxyVariables::read()?;
        let named = self.settings.or(variables.settings);
        let file = named.or_else(|| default_settings_path().filter(|path| path.exists()));
        let file = file.map(|path| ProxyArgs::from_file(&path).map(|args| (path, args))).transpose()?;
        Ok(ConfigLayers { flags: self.args, variables: variables.args, file })
    }
}

/// Settings of each source.
struct ConfigLayers {
    flags: ProxyArgs,
    variables: ProxyArgs,
    file: Option<(PathBuf, ProxyArgs)>,
}

/// Names of the settings that each source set.
pub(crate) struct SettingSources {
    pub(crate) flags: Vec<String>,
    pub(crate) variables: Vec<String>,
    pub(crate) file: Option<(PathBuf, Vec<String>)>,
    /// Default path of the settings file.
    pub(crate) default_file: Option<PathBuf>,
}

fn default_settings_path() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "foldline").map(|it| it.config_dir().join("proxy.toml"))
}

impl ProxyArgs {
    /// Returns the names of the settings that are set, without values: a token is a secret.
    fn set_names(&self) -> Vec<String> {
        let fields = serde_json::to_value(self).unwrap_or_default();
        let fields = fields.as_object().into_iter().flatten();
        fields.filter(|(_, value)| !value.is_null()).map(|(name, _)| name.clone()).collect()
    }

    fn from_file(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not a settings file", path.display()))
    }

    /// Returns these settings, completed by those of a weaker source.
    fn or(self, weaker: Self) -> Self {
        // An upstream for all formats overrides a format's upstream of a weaker source.
        let unless_overridden = |url: Option<String>| if self.upstream.is_some() { None } else { url };
        Self {
            openai: self.openai.or(unless_overridden(weaker.openai)),
            anthropic: self.anthropic.or(unless_overridden(weaker.anthropic)),
            listen: self.listen.or(weaker.listen),
            token: self.token.or(weaker.token),
            tokens: self.tokens.or(weaker.tokens),
            token_file: self.token_file.or(weaker.token_file),
            tenancy: self.tenancy.or(weaker.tenancy),
            tls_cert: self.tls_cert.or(weaker.tls_cert),
            tls_key: self.tls_key.or(weaker.tls_key),
            upstream: self.upstream.or(weaker.upstream),
            mode: self.mode.or(weaker.mode),
            policy: self.policy.or(weaker.policy),
            window: self.window.or(weaker.window),
            unfold: self.unfold.or(weaker.unfold),
            summarize: self.summarize.or(weaker.summarize),
            summary_model: self.summary_model.or(weaker.summary_model),
            max_body: self.max_body.or(weaker.max_body),
            max_bodies: self.max_bodies.or(weaker.max_bodies),
            max_requests: self.max_requests.or(weaker.max_requests),
            max_sessions: self.max_sessions.or(weaker.max_sessions),
            response_timeout: self.response_timeout.or(weaker.response_timeout),
            idle_timeout: self.idle_timeout.or(weaker.idle_timeout),
        }
    }

    /// Resolves the settings, with defaults for what is not set.
    fn resolve(self) -> Result<ProxySettings> {
        let defaults = ProxySettings::default();
        let upstream = |one: Option<String>, default| match one.or_else(|| self.upstream.clone()) {
            Some(url) => url.parse().map_err(anyhow::Error::new),
            None => Ok(default),
        };
        let megabytes = |value: Option<usize>, default| value.map_or(default, |count| count.saturating_mul(1 << 20));
        let seconds = |value: Option<u64>, default| value.map_or(default, Duration::from_secs);
        Ok(ProxySettings {
            listen: self.listen.map_or(Ok(defaults.listen), |it| parse_listen_address(&it))?,
            tokens: tokens(self.token.as_deref(), self.tokens.as_deref(), self.token_file.as_deref())?,
            tenancy: self.tenancy.map(|it| it.parse()).transpose().map_err(anyhow::Error::msg)?,
            namespace: defaults.namespace,
            tls: match (self.tls_cert, self.tls_key) {
                (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
                (None, None) => None,
                _ => bail!("TLS needs both a certificate and its key; set tls-cert and tls-key"),
            },
            openai: upstream(self.openai, defaults.openai)?,
            anthropic: upstream(self.anthropic, defaults.anthropic)?,
            mode: self.mode.map_or(Ok(defaults.mode), |it| it.parse()).map_err(anyhow::Error::msg)?,
            policy: self.policy.map_or(Ok(defaults.policy), |it| it.parse()).map_err(anyhow::Error::msg)?,
            models: defaults.models,
            window: self.window,
            offer_unfold_tool: self.unfold.unwrap_or(defaults.offer_unfold_tool),
            summary_mode: self
                .summarize
                .map_or(Ok(defaults.summary_mode), |it| it.parse())
                .map_err(anyhow::Error::msg)?,
            summary_model: self.summary_model.filter(|it| !it.is_empty()),
            limits: ProxyLimits {
                body_bytes: megabytes(self.max_body, defaults.limits.body_bytes),
                total_body_bytes: megabytes(self.max_bodies, defaults.limits.total_body_bytes),
                requests: self.max_requests.unwrap_or(defaults.limits.requests).max(1),
                sessions: self.max_sessions.unwrap_or(defaults.limits.sessions).max(1),
            },
            timeouts: Timeouts {
                response_start: seconds(self.response_timeout, defaults.timeouts.response_start),
                idle: seconds(self.idle_timeout, defaults.timeouts.idle),
                ..defaults.timeouts
            },
        })
    }
}

/// Returns the tokens of all sources.
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
        bail!("the token file contains no token; write NAME = TOKEN, one per line");
    }
    Ok(tokens)
}

/// Parses an address to listen on. Names are not resolved, except `localhost`.
fn parse_listen_address(text: &str) -> Result<SocketAddr> {
    let local = text.strip_prefix("localhost:").map(|port| format!("{}:{port}", Ipv4Addr::LOCALHOST));
    local.as_deref().unwrap_or(text).parse().with_context(|| {
        format!("cannot listen on \"{text}\": set an address with its port, such as 127.0.0.1:8787 or [::1]:8787")
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
            "mode = \"off\"\nmax-body = 3\nmax-bodies = 30\nunfold = false\nsummarize = \"prepared\"\nsummary-model = \"m\"",
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
        for invalid in ["8787", "127.0.0.1", "127.0.0.1:99999", "example.com:80", "localhost:"] {
            assert!(listen(invalid).unwrap_err().to_string().contains("127.0.0.1:8787"), "{invalid}");
        }
    }

    #[test]
    fn tokens_of_all_sources_are_merged() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, "# team\nalice = t1\nbob:t2\n").unwrap();
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
            "an empty token file must not disable authentication"
        );
    }

    #[test]
    fn misspelled_settings_are_rejected() {
        assert!(toml::from_str::<ProxyArgs>("upsteam = \"x\"").is_err());
        assert!(args_from_toml("summarize = \"on\"").resolve().unwrap_err().to_string().contains("prepared"));
        assert!(args_from_toml("mode = \"fast\"").resolve().unwrap_err().to_string().contains("observe"));
        assert!(args_from_toml("upstream = \"ftp://x\"").resolve().is_err());
    }
}
