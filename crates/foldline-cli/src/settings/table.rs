//! The table of settings: name, variable, default and help of each, declared once.
//!
//! Flags, variables, the settings file and docs/reference/proxy.md follow from it. A setting is added by a constant, its
//! name in `CONNECTION_SETTINGS` or `OTHER_SETTINGS`, and the line that resolves it. The upstreams of the single APIs are
//! not declared here: each [`ApiFamily`] of the table of dialects has one.

use std::sync::LazyLock;

use foldline::wire::ApiFamily;

/// One setting of the command line.
pub(crate) struct Setting {
    /// The flag without its dashes, and the key in the settings file.
    pub(crate) name: &'static str,
    /// The environment variable.
    pub(crate) variable: &'static str,
    pub(crate) group: SettingGroup,
    pub(crate) value: ValueKind,
    /// The default, as a user would write it.
    pub(crate) default: Option<&'static str>,
    /// The default in words, if it is not a fixed value.
    pub(crate) default_note: Option<&'static str>,
    /// Description, without the default.
    pub(crate) help: &'static str,
    /// Further paragraphs of the long help.
    pub(crate) details: Option<&'static str>,
    pub(crate) sources: SettingSources,
    /// True if it concerns clients from elsewhere, so that `foldline run` does not take it from variables and the file.
    pub(crate) is_shared: bool,
}

/// Commands that have a setting as a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingGroup {
    /// Commands that start a proxy.
    Proxy,
    /// Commands that count tokens.
    Models,
    /// Commands that read or write originals.
    Archive,
}

/// Places where a setting can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingSources {
    /// A flag, a variable, or a key of the settings file.
    All,
    /// A variable or a key: every user of the machine can see the arguments of a process.
    VariableAndFile,
    /// A flag or a variable.
    FlagAndVariable,
    /// A variable.
    VariableOnly,
}

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Address,
    Url,
    File,
    Name,
    Choice(&'static [&'static str]),
    Bool,
    Count,
    /// A number of tokens: `200000`, `32k`, `1M`.
    Tokens,
    /// A number of bytes: `64MB`, `1GiB`; without a unit in megabytes.
    Bytes,
    /// A span of time: `600`, `90s`, `10m`.
    Seconds,
    Secret,
}

impl ValueKind {
    /// Returns the placeholder in a help text.
    pub(crate) fn placeholder(self) -> &'static str {
        match self {
            ValueKind::Address => "ADDRESS",
            ValueKind::Url => "URL",
            ValueKind::File => "FILE",
            ValueKind::Name | ValueKind::Choice(_) => "NAME",
            ValueKind::Bool => "BOOL",
            ValueKind::Count => "N",
            ValueKind::Tokens => "TOKENS",
            ValueKind::Bytes => "SIZE",
            ValueKind::Seconds => "SECONDS",
            ValueKind::Secret => "SECRET",
        }
    }

    /// Returns the values to choose from.
    pub(crate) fn choices(self) -> &'static [&'static str] {
        match self {
            ValueKind::Choice(choices) => choices,
            ValueKind::Bool => &["true", "false"],
            _ => &[],
        }
    }
}

impl Setting {
    const fn new(
        name: &'static str,
        variable: &'static str,
        group: SettingGroup,
        value: ValueKind,
        help: &'static str,
    ) -> Self {
        Self {
            name,
            variable,
            group,
            value,
            help,
            default: None,
            default_note: None,
            details: None,
            sources: SettingSources::All,
            is_shared: false,
        }
    }

    const fn default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    const fn default_note(self, note: &'static str) -> Self {
        Self { default_note: Some(note), ..self }
    }

    const fn details(self, details: &'static str) -> Self {
        Self { details: Some(details), ..self }
    }

    const fn only_from(self, sources: SettingSources) -> Self {
        Self { sources, ..self }
    }

    const fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// Returns true if the setting has a flag.
    pub(crate) fn has_flag(&self) -> bool {
        matches!(self.sources, SettingSources::All | SettingSources::FlagAndVariable)
    }

    /// Returns true if the setting may be in the settings file.
    pub(crate) fn is_in_file(&self) -> bool {
        matches!(self.sources, SettingSources::All | SettingSources::VariableAndFile)
    }

    /// Returns the default for a help text or a reference page.
    pub(crate) fn default_text(&self) -> Option<&'static str> {
        self.default_note.or(self.default)
    }
}

use SettingGroup::{Archive, Models, Proxy};
use ValueKind::{Address, Bool, Bytes, Choice, Count, File, Name, Seconds, Secret, Tokens, Url};

pub(crate) const LISTEN: Setting = Setting::new(
    "listen",
    "FOLDLINE_LISTEN",
    Proxy,
    Address,
    "Address to listen on; port 0 selects a free port. Another address than this machine's requires a token",
)
.default("127.0.0.1:8787")
.shared();

pub(crate) const TOKEN: Setting =
    Setting::new("token", "FOLDLINE_TOKEN", Proxy, Secret, "An access token of clients: NAME = TOKEN, or TOKEN alone")
        .only_from(SettingSources::VariableAndFile)
        .shared();

pub(crate) const TOKENS: Setting = Setting::new(
    "tokens",
    "FOLDLINE_TOKENS",
    Proxy,
    Secret,
    "Several access tokens, separated by commas or line breaks; tokens of all settings count",
)
.only_from(SettingSources::VariableAndFile)
.shared();

pub(crate) const TOKEN_FILE: Setting = Setting::new(
    "token-file",
    "FOLDLINE_TOKEN_FILE",
    Proxy,
    File,
    "A file with the access tokens of clients, one per line: NAME = TOKEN, or TOKEN alone; required unless only this \
     machine can connect. A single token may also be set in $FOLDLINE_TOKEN",
)
.shared();

pub(crate) const ALLOW_HOST: Setting = Setting::new(
    "allow-host",
    "FOLDLINE_ALLOW_HOST",
    Proxy,
    Name,
    "Host names, separated by commas, under which clients without a token may address the proxy besides localhost: those \
     of a reverse proxy or a container network, with or without a port",
)
.shared();

pub(crate) const ALLOW_ORIGIN: Setting = Setting::new(
    "allow-origin",
    "FOLDLINE_ALLOW_ORIGIN",
    Proxy,
    Name,
    "Origins of web pages, separated by commas, that may send requests without a token, such as http://localhost:3000",
)
.shared();

pub(crate) const TENANCY: Setting = Setting::new(
    "tenancy",
    "FOLDLINE_TENANCY",
    Proxy,
    Choice(&["single", "token", "credential"]),
    "Which requests share originals: single (all), token (those with tokens of one name) or credential (those with one \
     API key)",
)
.default_note("single without tokens, token where all have names, else credential")
.shared();

pub(crate) const GATEWAY: Setting = Setting::new(
    "gateway",
    "FOLDLINE_GATEWAY",
    Proxy,
    Name,
    "Names of tokens, separated by commas, that belong to trusted gateways",
)
.details(
    "A request with such a token names its tenant in the header x-foldline-tenant (letters, digits and - _ . @), and is \
     forwarded unmodified without it. Other clients cannot set the header.",
)
.shared();

pub(crate) const GATEWAY_CA: Setting = Setting::new(
    "gateway-ca",
    "FOLDLINE_GATEWAY_CA",
    Proxy,
    File,
    "Certificates of authorities in PEM format that sign those of trusted gateways; needs tls-cert",
)
.details(
    "A client with such a certificate needs no token, and names the tenant of each request in the header \
     x-foldline-tenant. Other clients need a token. Every certificate of these authorities is that of a gateway, so they \
     must sign no others.",
)
.shared();

pub(crate) const TENANT_REQUESTS: Setting = Setting::new(
    "tenant-requests",
    "FOLDLINE_TENANT_REQUESTS",
    Proxy,
    Count,
    "Maximum number of concurrent requests of one tenant; further ones are refused with 429 and a retry hint",
)
.default_note("no limit");

pub(crate) const TENANT_BYTES: Setting = Setting::new(
    "tenant-bytes",
    "FOLDLINE_TENANT_BYTES",
    Proxy,
    Bytes,
    "Maximum size of one tenant's originals in the archive, such as 2GB, read every 30 seconds; above it nothing new is \
     folded, and requests pass",
)
.default_note("no limit");

pub(crate) const TLS_CERT: Setting = Setting::new(
    "tls-cert",
    "FOLDLINE_TLS_CERT",
    Proxy,
    File,
    "A certificate chain in PEM format, to serve TLS directly; needs tls-key",
)
.shared();

pub(crate) const TLS_KEY: Setting =
    Setting::new("tls-key", "FOLDLINE_TLS_KEY", Proxy, File, "The private key of the certificate, in PEM format")
        .shared();

pub(crate) const CA_CERT: Setting = Setting::new(
    "ca-cert",
    "FOLDLINE_CA_CERT",
    Proxy,
    File,
    "Certificates of authorities in PEM format that may sign those of providers, besides the ones of the system",
);

pub(crate) const CLIENT_CERT: Setting = Setting::new(
    "client-cert",
    "FOLDLINE_CLIENT_CERT",
    Proxy,
    File,
    "A certificate chain in PEM format with which the proxy authenticates to providers; needs client-key",
);

pub(crate) const CLIENT_KEY: Setting = Setting::new(
    "client-key",
    "FOLDLINE_CLIENT_KEY",
    Proxy,
    File,
    "The private key of the client certificate, in PEM format",
);

pub(crate) const UPSTREAM: Setting = Setting::new(
    "upstream",
    "FOLDLINE_UPSTREAM",
    Proxy,
    Url,
    "The provider's URL, for all APIs; overrides the URL of one API in a weaker source",
);

pub(crate) const BEDROCK_AUTH: Setting = Setting::new(
    "bedrock-auth",
    "FOLDLINE_BEDROCK_AUTH",
    Proxy,
    Name,
    "The credential for Amazon Bedrock: client, env:VARIABLE, or aws to sign requests with credentials of this machine",
)
.default("client")
.details(
    "The credentials are those of AWS_ACCESS_KEY_ID, or of AWS_PROFILE in the AWS files. The region is that of the URL, or \
     AWS_REGION; aws:REGION sets another. Everyone who can use the proxy can use them, so clients from elsewhere need tokens.",
);

pub(crate) const MODE: Setting = Setting::new(
    "mode",
    "FOLDLINE_MODE",
    Proxy,
    Choice(&["fold", "observe", "off"]),
    "fold, observe (forward every request unchanged, report what folding would have done) or off",
)
.default("fold");

pub(crate) const OBSERVE_SHARE: Setting = Setting::new(
    "observe-share",
    "FOLDLINE_OBSERVE_SHARE",
    Proxy,
    Name,
    "Share of the sessions, such as 20%, that are only observed, for a comparison with those that are folded",
)
.details(
    "A session is chosen by a hash of its name (x-foldline-session) or of its first messages: the same on every replica \
     and for the whole session. GET /foldline/api/v1/groups and `foldline status --json` compare the groups.",
)
.default("0%");

pub(crate) const POLICY: Setting = Setting::new(
    "policy",
    "FOLDLINE_POLICY",
    Proxy,
    Choice(&["none", "lossless", "balanced", "tight"]),
    "Fold policy: none, lossless, balanced or tight",
)
.default("balanced");

pub(crate) const WINDOW: Setting = Setting::new(
    "window",
    "FOLDLINE_WINDOW",
    Proxy,
    Tokens,
    "Context window of the model, such as 200000, 32k or 1M; overrides the server's report and the model table",
)
.default_note("the server's report, or the model table");

pub(crate) const OLLAMA_NUM_CTX: Setting = Setting::new(
    "ollama-num-ctx",
    "FOLDLINE_OLLAMA_NUM_CTX",
    Proxy,
    Tokens,
    "Window with which Ollama loads models (num_ctx): sent with every request to /api/chat that has none, with \
     truncate and shift off",
)
.default_note("the client's, or the server's");

pub(crate) const CACHE_DIAGNOSTICS: Setting = Setting::new(
    "cache-diagnostics",
    "FOLDLINE_CACHE_DIAGNOSTICS",
    Proxy,
    Count,
    "Request the cache diagnostics of the provider (Anthropic Messages, OpenAI Responses) for one of this many requests, and \
     show its verdict; 0: never",
)
.default("0");

pub(crate) const OTLP_ENDPOINT: Setting = Setting::new(
    "otlp-endpoint",
    "FOLDLINE_OTLP_ENDPOINT",
    Proxy,
    Url,
    "The OpenTelemetry collector that gets a trace of every request (OTLP over HTTP), such as http://127.0.0.1:4318; in \
     builds with the cargo feature otlp",
)
.default_note("no traces");

pub(crate) const UNFOLD: Setting = Setting::new(
    "unfold",
    "FOLDLINE_UNFOLD",
    Proxy,
    Bool,
    "Offer the model a tool to unfold originals; its calls are answered inside the proxy",
)
.default("true");

pub(crate) const THREADS: Setting = Setting::new(
    "threads",
    "FOLDLINE_THREADS",
    Proxy,
    Choice(&["refuse", "pass"]),
    "Message threads, whose history the provider stores: refuse (the client sends its whole history, which is folded) or \
     pass (forwarded and not folded)",
)
.default("refuse");

pub(crate) const SUMMARIZE: Setting = Setting::new(
    "summarize",
    "FOLDLINE_SUMMARIZE",
    Proxy,
    Choice(&["off", "prepared", "inline"]),
    "Let a model write summaries of old rounds, with the agent's own key: off, prepared (in the background, before they \
     are needed; no request waits) or inline (a request that must be folded waits, 30 seconds at most)",
)
.default("off");

pub(crate) const SUMMARY_MODEL: Setting = Setting::new(
    "summary-model",
    "FOLDLINE_SUMMARY_MODEL",
    Proxy,
    Name,
    "The model that writes summaries, at the agent's provider",
)
.default_note("the agent's model");

pub(crate) const MAX_BODY: Setting = Setting::new(
    "max-body",
    "FOLDLINE_MAX_BODY",
    Proxy,
    Bytes,
    "Maximum size of a request body, such as 64MB; a number without a unit is in megabytes",
)
.default("64MiB");

pub(crate) const MAX_BODIES: Setting = Setting::new(
    "max-bodies",
    "FOLDLINE_MAX_BODIES",
    Proxy,
    Bytes,
    "Memory limit for all bodies: requests, decompressed requests and buffered responses; a request that finds no room within five seconds is \
     rejected with a retry hint",
)
.default("1GiB");

pub(crate) const MAX_REQUESTS: Setting = Setting::new(
    "max-requests",
    "FOLDLINE_MAX_REQUESTS",
    Proxy,
    Count,
    "Maximum number of concurrent requests; further ones wait up to 30 seconds and are then rejected with a retry hint",
)
.default("4096");

pub(crate) const MAX_SESSIONS: Setting = Setting::new(
    "max-sessions",
    "FOLDLINE_MAX_SESSIONS",
    Proxy,
    Count,
    "Maximum number of conversations whose folds are remembered",
)
.default("1024");

pub(crate) const RESPONSE_TIMEOUT: Setting = Setting::new(
    "response-timeout",
    "FOLDLINE_RESPONSE_TIMEOUT",
    Proxy,
    Seconds,
    "Time for an upstream to start its response: seconds, or 90s, 10m",
)
.default("600");

pub(crate) const IDLE_TIMEOUT: Setting = Setting::new(
    "idle-timeout",
    "FOLDLINE_IDLE_TIMEOUT",
    Proxy,
    Seconds,
    "Time without data after which a response is aborted: seconds, or 90s, 10m",
)
.default("300");

pub(crate) const SETTINGS_FILE: Setting =
    Setting::new("settings", "FOLDLINE_SETTINGS", Proxy, File, "The settings file, in TOML")
        .default_note("proxy.toml in the user's configuration folder")
        .only_from(SettingSources::FlagAndVariable);

pub(crate) const MODELS: Setting = Setting::new(
    "models",
    "FOLDLINE_MODELS",
    Models,
    File,
    "Custom windows, prices and overheads of models",
)
.details(
    "A CSV file that overrides the built-in table. Its first line names the columns; each row applies to all models whose \
     names start with its prefix:\n    prefix,window,max_output\n    qwen3-coder,32768,8192\n`foldline models` lists what is known.",
);

pub(crate) const ARCHIVE: Setting = Setting::new("archive", "FOLDLINE_ARCHIVE", Archive, File, "The archive")
    .default_note("archive.db in the user's data folder");

pub(crate) const ARCHIVE_KEY_FILE: Setting = Setting::new(
    "archive-key-file",
    "FOLDLINE_ARCHIVE_KEY_FILE",
    Archive,
    File,
    "A file with the key of an encrypted archive",
);

pub(crate) const ARCHIVE_KEY: Setting = Setting::new(
    "archive-key",
    "FOLDLINE_ARCHIVE_KEY",
    Archive,
    Secret,
    "The key of an encrypted archive itself, for environments where secrets are variables",
)
.only_from(SettingSources::VariableOnly);

pub(crate) const ARCHIVE_OBJECTS: Setting = Setting::new(
    "archive-objects",
    "FOLDLINE_ARCHIVE_OBJECTS",
    Archive,
    Url,
    "An object store for large originals of an archive in PostgreSQL, such as s3://bucket/prefix",
)
.details(
    "s3://, gs://, az:// or file:///. Keys, region and endpoint are those of the variables AWS_.., GOOGLE_.. or \
     AZURE_... All replicas need the same store.",
);

pub(crate) const ARCHIVE_OBJECTS_ABOVE: Setting = Setting::new(
    "archive-objects-above",
    "FOLDLINE_ARCHIVE_OBJECTS_ABOVE",
    Archive,
    Bytes,
    "Compressed size from which originals go to the object store, such as 256KB",
)
.default("64KB");

pub(crate) const AUDIT_LOG: Setting = Setting::new(
    "audit-log",
    "FOLDLINE_AUDIT_LOG",
    Archive,
    File,
    "A file to which every read and deletion of originals is appended",
)
.details(
    "One line of JSON for each unfold, search, export, deletion, expiry and legal hold, with time, command, namespace, session \
     and handle, and without contents. What cannot be recorded is refused.",
);

pub(crate) const NAMESPACE: Setting =
    Setting::new("namespace", "FOLDLINE_NAMESPACE", Archive, Name, "Namespace of the originals").default("local");

/// All settings, in the order of help texts and of the reference.
pub(crate) static SETTINGS: LazyLock<Vec<&'static Setting>> = LazyLock::new(|| {
    CONNECTION_SETTINGS.iter().copied().chain(&*UPSTREAM_SETTINGS).chain(OTHER_SETTINGS.iter().copied()).collect()
});

/// Settings before those of the upstreams.
const CONNECTION_SETTINGS: &[&Setting] = &[
    &LISTEN,
    &TOKEN,
    &TOKENS,
    &TOKEN_FILE,
    &ALLOW_HOST,
    &ALLOW_ORIGIN,
    &TENANCY,
    &GATEWAY,
    &GATEWAY_CA,
    &TLS_CERT,
    &TLS_KEY,
    &UPSTREAM,
];

/// Settings after those of the upstreams.
const OTHER_SETTINGS: &[&Setting] = &[
    &BEDROCK_AUTH,
    &CA_CERT,
    &CLIENT_CERT,
    &CLIENT_KEY,
    &MODE,
    &OBSERVE_SHARE,
    &POLICY,
    &WINDOW,
    &OLLAMA_NUM_CTX,
    &CACHE_DIAGNOSTICS,
    &OTLP_ENDPOINT,
    &UNFOLD,
    &THREADS,
    &SUMMARIZE,
    &SUMMARY_MODEL,
    &MAX_BODY,
    &MAX_BODIES,
    &MAX_REQUESTS,
    &MAX_SESSIONS,
    &TENANT_REQUESTS,
    &TENANT_BYTES,
    &RESPONSE_TIMEOUT,
    &IDLE_TIMEOUT,
    &SETTINGS_FILE,
    &MODELS,
    &ARCHIVE,
    &ARCHIVE_KEY_FILE,
    &ARCHIVE_KEY,
    &ARCHIVE_OBJECTS,
    &ARCHIVE_OBJECTS_ABOVE,
    &AUDIT_LOG,
    &NAMESPACE,
];

/// The setting of each API's upstream, in the order of the dialects.
static UPSTREAM_SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    let setting = |texts: &'static UpstreamTexts| {
        Setting::new(texts.family.name, &texts.variable, Proxy, Url, &texts.help).default(texts.family.default_url)
    };
    UPSTREAM_TEXTS.iter().map(setting).collect()
});

/// Texts of the setting of an API's upstream.
struct UpstreamTexts {
    family: &'static ApiFamily,
    variable: String,
    help: String,
}

static UPSTREAM_TEXTS: LazyLock<Vec<UpstreamTexts>> = LazyLock::new(|| {
    let texts = |family: &'static ApiFamily| UpstreamTexts {
        family,
        variable: format!("FOLDLINE_{}", family.name.to_uppercase().replace('-', "_")),
        help: format!("The provider's URL for {}", family.title),
    };
    ApiFamily::all().map(texts).collect()
});

/// Other names of settings: flag and key.
pub(crate) const ALIASES: &[(&str, &str)] = &[("summarise", "summarize")];

/// Returns the setting with this name or alias.
pub(crate) fn find_setting(name: &str) -> Option<&'static Setting> {
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
    SETTINGS.iter().copied().find(|setting| setting.name == name)
}

/// Returns the setting of an API's upstream.
pub(crate) fn upstream_setting(family: &ApiFamily) -> &'static Setting {
    find_setting(family.name).expect("every API has a setting")
}

/// Returns the candidate that is most similar to a misspelled name.
pub(crate) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates.min_by_key(|candidate| strsim::damerau_levenshtein(name, candidate))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_variables_correspond() {
        for setting in SETTINGS.iter() {
            let variable = format!("FOLDLINE_{}", setting.name.to_uppercase().replace('-', "_"));
            assert_eq!(setting.variable, variable);
            assert!(find_setting(setting.name).is_some_and(|found| found.variable == setting.variable));
            assert!(!setting.help.ends_with('.') && !setting.help.is_empty(), "{}", setting.name);
        }
    }

    #[test]
    fn names_are_unique_and_every_api_has_a_setting() {
        let names: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.name).collect();
        assert_eq!(names.len(), SETTINGS.len());
        for family in ApiFamily::all() {
            assert_eq!(upstream_setting(family).default, Some(family.default_url));
        }
        let gemini = find_setting("gemini").unwrap();
        assert_eq!((gemini.variable, gemini.help), ("FOLDLINE_GEMINI", "The provider's URL for the Gemini API"));
        assert_eq!(gemini.default, Some("https://generativelanguage.googleapis.com"));
    }

    #[test]
    fn nearest_name_is_found() {
        let names = || SETTINGS.iter().map(|setting| setting.variable);
        assert_eq!(nearest("FOLDLINE_UPSTEAM", names()), Some("FOLDLINE_UPSTREAM"));
        assert_eq!(nearest("FOLDLINE_MAX_BODYS", names()), Some("FOLDLINE_MAX_BODY"));
    }
}
