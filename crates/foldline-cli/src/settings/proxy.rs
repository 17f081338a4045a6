//! The settings of a proxy.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use foldline::wire::{ApiFamily, Format};
use foldline_server::proxy::{
    AccessToken, AwsSigner, ClientIdentity, NamedUpstream, OutboundSettings, ProxyLimits, ProxySettings,
    TenantSettings, Timeouts, TlsFiles, UpstreamAuth, UpstreamUrl, Upstreams, check_secret_file, read_certificates,
    tenant_kind, tenant_names,
};

use crate::clients::launch::CallerEnv;
use crate::environment;
use crate::settings::layers::{SettingLayers, SettingValues, TenantTable, UpstreamTable};
use crate::settings::table::{
    ALLOW_HOST, ALLOW_ORIGIN, BEDROCK_AUTH, CA_CERT, CACHE_DIAGNOSTICS, CLIENT_CERT, CLIENT_KEY, GATEWAY, GATEWAY_CA,
    IDLE_TIMEOUT, LISTEN, MAX_BODIES, MAX_BODY, MAX_REQUESTS, MAX_SESSIONS, MODE, OBSERVE_SHARE, OLLAMA_NUM_CTX,
    OTLP_ENDPOINT, POLICY, RESPONSE_TIMEOUT, SUMMARIZE, SUMMARY_MODEL, Setting, TENANCY, TENANT_BYTES, TENANT_REQUESTS,
    THREADS, TLS_CERT, TLS_KEY, TOKEN, TOKEN_FILE, TOKENS, UNFOLD, UPSTREAM, WINDOW, nearest, upstream_setting,
};
use crate::settings::{archive, models};
use crate::units::{MegabytesArg, SecondsArg, TokensArg};

pub(crate) const HELP: &str = "\
Settings come from flags, then from the environment (FOLDLINE_LISTEN for --listen, and so on for each), then from a \
settings file in TOML (--settings, FOLDLINE_SETTINGS, or proxy.toml in the user's configuration folder) with the names \
of the flags:

    listen = \"127.0.0.1:8787\"
    upstream = \"http://127.0.0.1:8080\"
    policy = \"balanced\"
    window = \"200k\"
    unfold = false

Headers of a request: x-foldline-session names its session, x-foldline-bypass: 1 forwards it unchanged. Headers of the \
response: x-foldline-tokens: RECEIVED,SENT and x-foldline-folds: N.

Terms are explained in docs/glossary.md.";

/// Resolves the settings, with defaults for what is not set.
pub(crate) fn resolve(layers: &SettingLayers) -> Result<ProxySettings> {
    let defaults = ProxySettings::default();
    let megabytes = |setting, default| {
        let parsed = layers.parse(setting, MegabytesArg::from_str)?;
        Ok::<_, anyhow::Error>(parsed.map_or(default, |it| usize::try_from(it.0).unwrap_or(usize::MAX)))
    };
    let count = |setting, default: usize| {
        let parsed = layers.parse(setting, |text| text.parse().map_err(|_| "not a whole number"))?;
        Ok::<_, anyhow::Error>(parsed.unwrap_or(default).max(1))
    };
    let seconds = |setting, default: Duration| {
        Ok::<_, anyhow::Error>(layers.parse(setting, SecondsArg::from_str)?.map_or(default, |it| it.0))
    };
    let named_upstreams: Vec<_> = layers.upstream_tables().map(named_upstream).collect::<Result<_>>()?;
    let tenants = tenants(layers, &named_upstreams)?;
    let upstreams = upstreams(layers)?;
    let bedrock_url = upstreams.get(Format::Converse.dialect().family);
    let settings = ProxySettings {
        bedrock_auth: layers
            .parse(&BEDROCK_AUTH, |auth| upstream_auth(auth, bedrock_url).map_err(|error| error.to_string()))?
            .unwrap_or(defaults.bedrock_auth),
        policy_replay: None,
        listen: layers.parse(&LISTEN, parse_listen_address)?.unwrap_or(defaults.listen),
        tokens: access_tokens(layers)?,
        gateways: list(layers, &GATEWAY),
        gateway_authorities: layers.path(&GATEWAY_CA),
        allowed_hosts: list(layers, &ALLOW_HOST),
        allowed_origins: list(layers, &ALLOW_ORIGIN),
        tenancy: layers.parse(&TENANCY, str::parse)?,
        namespace: archive::namespace(layers)?,
        tls: match (layers.path(&TLS_CERT), layers.path(&TLS_KEY)) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            _ => bail!("TLS needs both a certificate and its key; set tls-cert and tls-key"),
        },
        upstreams,
        named_upstreams,
        tenants,
        outbound: outbound(layers)?,
        mode: layers.parse(&MODE, str::parse)?.unwrap_or(defaults.mode),
        observe_share: layers.parse(&OBSERVE_SHARE, str::parse)?.unwrap_or(defaults.observe_share),
        policy: layers.parse(&POLICY, str::parse)?.unwrap_or(defaults.policy),
        models: models::model_table(layers)?,
        window: layers.parse(&WINDOW, TokensArg::from_str)?.map(|it| it.0),
        otlp_endpoint: layers.get(&OTLP_ENDPOINT).map(|value| value.text.to_owned()).filter(|it| !it.is_empty()),
        cache_diagnostics: layers.parse(&CACHE_DIAGNOSTICS, u64::from_str)?.unwrap_or(0),
        ollama_num_ctx: layers.parse(&OLLAMA_NUM_CTX, TokensArg::from_str)?.map(|it| it.0),
        offer_unfold_tool: layers
            .parse(&UNFOLD, |text| bool::from_str(text).map_err(|_| "write true or false"))?
            .unwrap_or(defaults.offer_unfold_tool),
        threads: layers.parse(&THREADS, str::parse)?.unwrap_or(defaults.threads),
        summary_mode: layers.parse(&SUMMARIZE, str::parse)?.unwrap_or(defaults.summary_mode),
        summary_model: layers.get(&SUMMARY_MODEL).map(|value| value.text.to_owned()).filter(|it| !it.is_empty()),
        limits: ProxyLimits {
            body_bytes: megabytes(&MAX_BODY, defaults.limits.body_bytes)?,
            total_body_bytes: megabytes(&MAX_BODIES, defaults.limits.total_body_bytes)?,
            requests: count(&MAX_REQUESTS, defaults.limits.requests)?,
            sessions: count(&MAX_SESSIONS, defaults.limits.sessions)?,
            tenant_requests: layers.parse(&TENANT_REQUESTS, |text| text.parse().map_err(|_| "not a whole number"))?,
            tenant_bytes: layers.parse(&TENANT_BYTES, MegabytesArg::from_str)?.map(|it| it.0),
        },
        timeouts: Timeouts {
            response_start: seconds(&RESPONSE_TIMEOUT, defaults.timeouts.response_start)?,
            idle: seconds(&IDLE_TIMEOUT, defaults.timeouts.idle)?,
            ..defaults.timeouts
        },
    };
    check_tenant_names(&settings)?;
    Ok(settings)
}

/// Returns the settings of a proxy that serves a single command. Address, tokens and TLS of a shared proxy do not apply
/// to it, and the caller's providers become its upstreams.
pub(crate) fn layers_for_child(layers: SettingLayers, caller: &CallerEnv) -> Result<SettingLayers> {
    if layers.is_flag(&TOKEN_FILE) || layers.is_flag(&TLS_CERT) {
        bail!("`foldline run` serves one command on a private port, without tokens and TLS; use `foldline serve`");
    }
    let mut values = SettingValues::from([(LISTEN.name, "127.0.0.1:0".to_owned())]);
    let urls = [
        (Format::OpenAiChat, &caller.openai),
        (Format::Anthropic, &caller.anthropic),
        (Format::Gemini, &caller.gemini),
        (Format::Ollama, &caller.ollama),
        (Format::Converse, &caller.bedrock),
    ];
    for (format, url) in urls {
        values.extend(url.clone().map(|url| (upstream_setting(format.dialect().family).name, url)));
    }
    let bedrock = upstream_setting(Format::Converse.dialect().family);
    let is_bedrock_set = values.contains_key(bedrock.name) || layers.get_or(bedrock, &UPSTREAM).is_some();
    if let Some(region) = caller.aws_region.as_ref().filter(|_| !is_bedrock_set) {
        values.insert(bedrock.name, format!("https://bedrock-runtime.{region}.amazonaws.com"));
    }
    Ok(layers.for_child(values))
}

/// Returns true if the Anthropic upstream is Anthropic's own API.
pub(crate) fn is_official_anthropic(settings: &ProxySettings) -> bool {
    let family = Format::Anthropic.dialect().family;
    settings.upstreams.get(family).to_string() == family.default_url
}

/// Returns the URLs of the providers. That of an API is its own setting, or the one for all APIs of the same or a stronger
/// source.
fn upstreams(layers: &SettingLayers) -> Result<Upstreams> {
    let mut upstreams = Upstreams::default();
    for family in ApiFamily::all() {
        if let Some(url) = layers.get_or(upstream_setting(family), &UPSTREAM) {
            upstreams.set(family, url.parse(str::parse)?);
        }
    }
    Ok(upstreams)
}

/// Returns the way to providers: the proxy of the network from the usual variables, and certificates.
pub(crate) fn outbound(layers: &SettingLayers) -> Result<OutboundSettings> {
    let network = environment::network_proxies();
    let parse = |proxy: Option<(&'static str, String)>| {
        proxy.map(|(name, text)| text.parse().map_err(|error| anyhow!("${name}: {error}"))).transpose()
    };
    let mut outbound = OutboundSettings::default();
    outbound.https_proxy = parse(network.https)?;
    outbound.http_proxy = parse(network.http)?;
    outbound.no_proxy = network.excluded;
    if let Some(path) = layers.path(&CA_CERT) {
        outbound.authorities = read_certificates(&path).context("ca-cert")?;
    }
    outbound.identity = match (layers.path(&CLIENT_CERT), layers.path(&CLIENT_KEY)) {
        (Some(certificate), Some(key)) => {
            Some(ClientIdentity::read(&TlsFiles { certificate, key }).context("client-cert and client-key")?)
        }
        (None, None) => None,
        _ => bail!("a client certificate needs its key; set client-cert and client-key"),
    };
    Ok(outbound)
}

/// Returns the upstream of a table `[upstream.NAME]`.
fn named_upstream(table: &UpstreamTable) -> Result<Arc<NamedUpstream>> {
    let place = format!("[upstream.{}]", table.name);
    let url = table.url.parse().map_err(|error| anyhow!("{place}: {error}"))?;
    let names = || Format::all().map(Format::name).collect::<Vec<_>>().join(", ");
    let dialect = match &table.dialect {
        None => Format::OpenAiChat,
        Some(name) => Format::all()
            .find(|format| format.name() == name)
            .ok_or_else(|| anyhow!("{place}: unknown dialect \"{name}\"; use one of {}", names()))?,
    };
    let auth = upstream_auth(table.auth.as_deref().unwrap_or("client"), &url);
    let auth = auth.map_err(|error| anyhow!("{place}: {error}"))?;
    let upstream = NamedUpstream::new(&table.name, url, dialect, auth).map_err(|error| anyhow!("{place}: {error}"))?;
    Ok(Arc::new(upstream))
}

/// Resolves the tables `[tenant.NAME]`.
fn tenants(layers: &SettingLayers, upstreams: &[Arc<NamedUpstream>]) -> Result<BTreeMap<String, TenantSettings>> {
    layers.tenant_tables().map(|table| Ok((table.name.clone(), tenant_settings(table, upstreams)?))).collect()
}

fn tenant_settings(table: &TenantTable, upstreams: &[Arc<NamedUpstream>]) -> Result<TenantSettings> {
    let place = format!("[tenant.{}]", table.name);
    let mut own: Vec<Arc<NamedUpstream>> = Vec::new();
    for name in &table.upstreams {
        let Some(upstream) = upstreams.iter().find(|upstream| upstream.name() == name) else {
            let advice = match nearest(name, upstreams.iter().map(|upstream| upstream.name())) {
                Some(nearest) => format!("did you mean \"{nearest}\"?"),
                None => format!("add a table [upstream.{name}] with its url"),
            };
            bail!("{place}: unknown upstream \"{name}\"; {advice}");
        };
        if let Some(other) = own.iter().find(|other| other.api_name() == upstream.api_name()) {
            bail!("{place}: {} and {name} are upstreams of the same API; name one of them", other.name());
        }
        own.push(upstream.clone());
    }
    Ok(TenantSettings {
        mode: table.mode.as_deref().map(str::parse).transpose().map_err(|error| anyhow!("{place}: {error}"))?,
        policy: table.policy.as_deref().map(str::parse).transpose().map_err(|error| anyhow!("{place}: {error}"))?,
        upstreams: own,
    })
}

/// Refuses settings of a tenant to which no request can belong: a misspelled name would be ignored silently.
fn check_tenant_names(settings: &ProxySettings) -> Result<()> {
    let Some(name) = settings.tenants.keys().find(|name| tenant_kind(settings, name).is_none()) else { return Ok(()) };
    match nearest(name, tenant_names(settings)) {
        Some(nearest) => bail!("[tenant.{name}]: no token has this name; did you mean [tenant.{nearest}]?"),
        None => {
            bail!("[tenant.{name}]: no request can belong to this tenant; name tokens (NAME = TOKEN in --token-file)")
        }
    }
}

/// Returns the credential for the upstream at a URL.
fn upstream_auth(auth: &str, url: &UpstreamUrl) -> Result<UpstreamAuth> {
    if auth == "client" {
        return Ok(UpstreamAuth::Client);
    }
    if let Some(variable) = auth.strip_prefix("env:") {
        let key = environment::read_variable(variable).and_then(|key| key.into_string().ok());
        let key = key.ok_or_else(|| anyhow!("the variable ${variable} is not set"))?;
        return UpstreamAuth::from_key(&key).map_err(|error| anyhow!("${variable}: {error}"));
    }
    let region = match auth.strip_prefix("aws") {
        Some("") => None,
        Some(rest) if rest.starts_with(':') => Some(&rest[1..]),
        _ => bail!(
            "auth must be \"client\", \"env:VARIABLE\" for a key in a variable, or \"aws\" to sign with AWS credentials"
        ),
    };
    let default_region = environment::aws_region();
    let signer = AwsSigner::new(environment::aws_credentials()?, url, region, default_region.as_deref())?;
    Ok(UpstreamAuth::Aws(signer))
}

/// Returns the entries of a list that is separated by commas.
fn list(layers: &SettingLayers, setting: &'static Setting) -> Vec<String> {
    let text = layers.get(setting).map(|value| value.text).unwrap_or_default();
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

/// Returns true if the tokens are in a file, which can be loaded again.
pub(crate) fn has_token_file(layers: &SettingLayers) -> bool {
    layers.path(&TOKEN_FILE).is_some()
}

/// Returns the tokens of all settings.
pub(crate) fn access_tokens(layers: &SettingLayers) -> Result<Vec<AccessToken>> {
    let file = layers.path(&TOKEN_FILE);
    let read = |path: &Path| {
        let text = check_secret_file(path).and_then(|()| std::fs::read_to_string(path));
        text.with_context(|| format!("could not read the tokens of {}", path.display()))
    };
    let from_file = file.as_deref().map(read).transpose()?;
    let inline = [&TOKEN, &TOKENS].map(|setting| layers.get(setting).map(|value| value.text));
    let mut tokens = Vec::new();
    for text in inline.into_iter().chain([from_file.as_deref()]).flatten() {
        tokens.extend(AccessToken::parse_list(text)?);
    }
    if tokens.is_empty() && file.is_some() {
        bail!("the token file contains no token; write NAME = TOKEN, one per line");
    }
    Ok(tokens)
}

/// Parses an address to listen on. Names are not resolved, except `localhost`.
fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").map(|port| format!("{}:{port}", Ipv4Addr::LOCALHOST));
    local.as_deref().unwrap_or(text).parse().map_err(|_| {
        format!("cannot listen on \"{text}\": set an address with its port, such as 127.0.0.1:8787 or [::1]:8787")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::table::SETTINGS;
    use foldline::Policy;
    use foldline_server::proxy::{ProxyMode, SummaryMode, Tenancy};

    fn resolve_toml(files: &[&str]) -> Result<ProxySettings> {
        resolve(&SettingLayers::from_toml(files).unwrap())
    }

    fn upstream_of(settings: &ProxySettings, name: &str) -> String {
        settings.upstreams.named(name).unwrap().to_string()
    }

    fn error_of(file: &str) -> String {
        resolve_toml(&[file]).unwrap_err().to_string()
    }

    #[test]
    fn flags_override_variables_override_file() {
        let file = "mode = \"off\"\nmax-body = 3\nmax-bodies = 30\nunfold = false\nsummarize = \"prepared\"\nsummary-model = \"m\"";
        let variables = "listen = \"127.0.0.1:2\"\nmode = \"observe\"";
        let settings = resolve_toml(&["listen = \"127.0.0.1:1\"", variables, file]).unwrap();
        assert_eq!(settings.listen.port(), 1);
        assert_eq!(settings.mode, ProxyMode::Observe);
        assert_eq!(
            (settings.limits.body_bytes, settings.limits.total_body_bytes, settings.offer_unfold_tool),
            (3 << 20, 30 << 20, false)
        );
        assert_eq!(settings.summary_mode, SummaryMode::Prepared);
        assert_eq!(settings.summary_model.as_deref(), Some("m"));
        assert_eq!(upstream_of(&settings, "openai"), "https://api.openai.com");
    }

    /// The defaults of the table are those of the library.
    #[test]
    fn declared_defaults_are_the_defaults() {
        let quoted = |default: &str| format!("{default:?}");
        let declared: String = SETTINGS
            .iter()
            .filter_map(|setting| Some(format!("{} = {}\n", setting.name, quoted(setting.default?))))
            .collect();
        let (declared, default) = (resolve_toml(&[&declared]).unwrap(), ProxySettings::default());
        let models = ProxySettings::default().models;
        let without_models =
            |settings: ProxySettings| format!("{:?}", ProxySettings { models: models.clone(), ..settings });
        assert_eq!(without_models(declared), without_models(default));
    }

    #[test]
    fn sizes_and_token_counts_have_units() {
        let settings = resolve_toml(&["window = \"32k\"\nmax-body = \"64MB\"\nresponse-timeout = \"10m\""]).unwrap();
        assert_eq!((settings.window, settings.limits.body_bytes), (Some(32_000), 64_000_000));
        assert_eq!(settings.timeouts.response_start, Duration::from_secs(600));
        assert_eq!(resolve_toml(&["window = 1000000"]).unwrap().window, Some(1_000_000));
        assert!(error_of("window = \"32 parsecs\"").starts_with("window in proxy.toml: "));
        assert!(error_of("max-requests = \"many\"").contains("not a whole number"));
    }

    #[test]
    fn upstream_applies_to_all_formats_unless_overridden() {
        let settings = resolve_toml(&["upstream = \"http://a\"\nanthropic = \"http://b\""]).unwrap();
        assert_eq!(
            (upstream_of(&settings, "openai"), upstream_of(&settings, "anthropic")),
            ("http://a".into(), "http://b".into())
        );
        let settings = resolve_toml(&["upstream = \"http://a\"", "anthropic = \"http://b\""]).unwrap();
        assert_eq!(upstream_of(&settings, "anthropic"), "http://a");
    }

    #[test]
    fn listen_address_requires_a_port() {
        let listen = |text: &str| resolve_toml(&[&format!("listen = \"{text}\"")]).map(|it| it.listen.to_string());
        assert_eq!(listen("localhost:8080").unwrap(), "127.0.0.1:8080");
        assert_eq!(listen("[::1]:0").unwrap(), "[::1]:0");
        for invalid in ["8787", "127.0.0.1", "127.0.0.1:99999", "example.com:80", "localhost:"] {
            assert!(listen(invalid).unwrap_err().to_string().contains("127.0.0.1:8787"), "{invalid}");
        }
    }

    /// Writes a file that only its owner can access.
    fn write_secret(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        #[cfg(unix)]
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn token_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        write_secret(&file, "alice = t1\n");
        let setting = format!("token-file = {file:?}");
        assert_eq!(resolve_toml(&[&setting]).unwrap().tokens.len(), 1);
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let error = format!("{:#}", resolve_toml(&[&setting]).unwrap_err());
        assert!(error.contains("chmod 600") && !error.contains("t1"), "{error}");
    }

    #[test]
    fn tokens_of_all_sources_are_merged() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        write_secret(&file, "# team\nalice = t1\nbob:t2\n");
        let settings = resolve_toml(&[&format!("token = \"t3\"\ntoken-file = {file:?}\ntenancy = \"token\"")]).unwrap();
        let names: Vec<_> = settings.tokens.iter().map(AccessToken::name).collect();
        assert_eq!(names, [None, Some("alice"), Some("bob")]);
        assert_eq!(settings.tenancy, Some(Tenancy::Token));
        assert!(error_of("tenancy = \"team\"").contains("credential"));
        assert!(error_of("token-file = \"/nowhere/tokens\"").contains("/nowhere/tokens"));
        assert!(error_of("tls-cert = \"a.pem\"").contains("tls-key"));
        std::fs::write(&file, "\n").unwrap();
        assert!(
            resolve_toml(&[&format!("token-file = {file:?}")]).is_err(),
            "an empty token file must not disable authentication"
        );
    }

    #[test]
    fn misspelled_settings_are_rejected() {
        assert!(SettingLayers::from_toml(&["upsteam = \"x\""]).is_err());
        assert!(error_of("summarize = \"on\"").contains("prepared"));
        assert!(error_of("mode = \"fast\"").contains("observe"));
        assert!(error_of("observe-share = 20").contains("such as 20%"));
        assert!(resolve_toml(&["upstream = \"ftp://x\""]).is_err());
    }

    #[test]
    fn tenant_tables_are_resolved() {
        let base = "tokens = \"alice=t-a,bob=t-b\"\n[upstream.gpu]\nurl = \"http://b:1\"\n[upstream.gpu2]\n\
                    url = \"http://c:1\"\n";
        let parse = |tables: &str| resolve(&SettingLayers::from_toml(&[&format!("{base}{tables}")]).unwrap());
        let settings = parse("[tenant.alice]\nmode = \"observe\"\npolicy = \"tight\"\nupstream = \"gpu\"").unwrap();
        let alice = &settings.tenants["alice"];
        assert_eq!((alice.mode, alice.policy.clone()), (Some(ProxyMode::Observe), Some(Policy::tight())));
        assert_eq!(alice.upstreams[0].name(), "gpu");
        for (tables, reason) in [
            ("[tenant.alise]\nmode = \"off\"", "[tenant.alise]: no token has this name; did you mean [tenant.alice]?"),
            ("[tenant.bob]\nmode = \"fast\"", "[tenant.bob]: unknown mode \"fast\""),
            ("[tenant.bob]\npolicy = \"fast\"", "[tenant.bob]: "),
            ("[tenant.bob]\nupstream = \"gpus\"", "[tenant.bob]: unknown upstream \"gpus\"; did you mean \"gpu\"?"),
            ("[tenant.bob]\nupstream = [\"gpu\", \"gpu2\"]", "gpu and gpu2 are upstreams of the same API"),
        ] {
            let error = parse(tables).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert!(error_of("[tenant.alice]\nmode = \"off\"").contains("name tokens"));
        let gateway = parse("[tenant.carol]\nmode = \"off\"");
        assert!(gateway.is_err(), "no gateway names tenants");
        let layers = SettingLayers::from_toml(&["gateway = \"bob\"", &format!("{base}[tenant.carol]\nmode = \"off\"")]);
        assert!(resolve(&layers.unwrap()).is_ok());
    }

    #[test]
    fn signed_upstreams_have_the_region_of_their_setting_or_host() {
        let text = "bedrock = \"https://bedrock-runtime.eu-west-1.amazonaws.com\"\nbedrock-auth = \"aws\"\n\
                    [upstream.mantle]\nurl = \"http://127.0.0.1:1\"\ndialect = \"anthropic\"\nauth = \"aws:us-west-2\"\n";
        let settings = resolve_toml(&[text]).unwrap();
        let regions: Vec<_> = settings.signers().map(|(name, signer)| (name, signer.region())).collect();
        assert_eq!(regions, [("bedrock", "eu-west-1"), ("mantle", "us-west-2")]);
        assert_eq!(resolve_toml(&["bedrock-auth = \"client\""]).unwrap().signers().count(), 0);
        for auth in ["iam", "awsx", "sk-secret"] {
            let error = error_of(&format!("bedrock-auth = \"{auth}\""));
            assert!(error.contains("bedrock-auth") && error.contains("\"aws\""), "{error}");
        }
        assert!(error_of("bedrock-auth = \"aws:\"").contains("AWS_REGION"));
    }

    #[test]
    fn upstream_tables_are_parsed() {
        let parse = |text: &str| resolve(&SettingLayers::from_toml(&[text]).unwrap()).map(|it| it.named_upstreams);
        let text = "window = 9000\n[upstream.router]\nurl = \"https://a/api/v1\"\n[upstream.gpu]\nurl = \"http://b:1\"\n\
                    dialect = \"anthropic\"\nauth = \"client\"\n";
        let named = parse(text).unwrap();
        let urls: Vec<_> = named.iter().map(|it| (it.name(), it.url().to_string())).collect();
        assert_eq!(urls, [("gpu", "http://b:1".to_owned()), ("router", "https://a/api/v1".to_owned())]);
        for (fields, reason) in [
            ("url = \"ftp://a\"", "[upstream.x]: \"ftp://a\" is not a valid base URL"),
            (
                "url = \"http://a\"\ndialect = \"soap\"",
                "[upstream.x]: unknown dialect \"soap\"; use one of openai-chat",
            ),
            ("url = \"http://a\"\nauth = \"sk-secret\"", "[upstream.x]: auth must be \"client\""),
            (
                "url = \"http://a\"\nauth = \"env:UNSET_KEY_OF_A_TEST\"",
                "[upstream.x]: the variable $UNSET_KEY_OF_A_TEST is not set",
            ),
        ] {
            let error = parse(&format!("[upstream.x]\n{fields}\n")).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("sk-secret"), "{error}");
        }
        let reserved = parse("[upstream.v1]\nurl = \"http://a\"").unwrap_err().to_string();
        assert!(reserved.contains("cannot name an upstream"), "{reserved}");
        for fields in ["", "url = 1", "url = \"http://a\"\nkey = \"k\""] {
            let layers = SettingLayers::from_toml(&[&format!("[upstream.x]\n{fields}\n")]);
            let error = layers.err().unwrap().to_string();
            assert!(error.contains("[upstream.x] in proxy.toml") && error.contains("url, dialect and auth"), "{error}");
        }
    }
}
