//! `foldline doctor`: checks the setup and advises how to repair it.
//!
//! Only reads and probes; changes nothing. No key is sent with any probe.

use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use foldline::Meter;
use foldline::tokens::{CountExactness, Tokens};
use foldline::wire::{ApiFamily, Format};
use foldline_archive::{AccessMode, ErrorKind};
use foldline_server::proxy::probe;
use foldline_server::proxy::probe::{LearnedProxyWindow, RunningProxy};
use foldline_server::proxy::{ProxySettings, UpstreamUrl};
use serde::Serialize;

use crate::clients::base_url::{ConfiguredUrl, is_below, short_path};
use crate::clients::config::ClientFolders;
use crate::clients::kind::ClientKind;
use crate::clients::launch::{CallerEnv, cloud_advice};
use crate::environment::{self, Terminal};
use crate::output::print_stdout;
use crate::render::format_number;
use crate::settings::archive::ArchiveSettings;
use crate::settings::flags::{ProxyGroups, SettingFlags};
use crate::settings::layers::{SettingLayers, SettingSource, default_settings_path};
use crate::settings::proxy;
use crate::{render, units};

/// Check settings, archive, upstreams and clients, and advise on problems
///
/// Accepts the flags of `foldline serve` and checks the resulting setup. Upstreams are probed without any key; a server
/// on this machine is asked for its context window. The exit code is 1 if a check fails.
#[derive(Args)]
pub(crate) struct DoctorCommand {
    /// Also check this model: its window, and how its tokens are counted
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: SettingFlags<ProxyGroups>,
}

/// Result of one check.
#[derive(Debug, Serialize)]
struct DoctorFinding {
    status: FindingStatus,
    /// Name of the check.
    check: &'static str,
    message: String,
    /// Recommended action.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum FindingStatus {
    Ok,
    Warn,
    Fail,
}

impl DoctorFinding {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { status: FindingStatus::Ok, check, message: message.into(), advice: None }
    }

    fn warn(check: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: FindingStatus::Warn, check, message: message.into(), advice: Some(advice.into()) }
    }

    fn fail(check: &'static str, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: FindingStatus::Fail, check, message: message.into(), advice: Some(advice.into()) }
    }
}

impl DoctorCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let as_json = self.json;
        let findings = runtime.block_on(self.run_checks());
        let text = match as_json {
            true => serde_json::to_string_pretty(&findings)? + "\n",
            false => render_findings(&findings, Terminal::for_stdout()),
        };
        print_stdout(&text)?;
        let broken = findings.iter().any(|it| it.status == FindingStatus::Fail);
        Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    async fn run_checks(self) -> Vec<DoctorFinding> {
        let invalid_settings = |error: anyhow::Error| {
            // Without valid settings the upstreams are unknown; nothing is probed.
            let advice = "repair the setting and run again; `foldline serve --help` lists all settings";
            DoctorFinding::fail("settings", format!("{error:#}"), advice)
        };
        let layers = match self.settings.load() {
            Ok(layers) => layers,
            Err(error) => return vec![invalid_settings(error)],
        };
        let settings = match proxy::resolve(&layers) {
            Ok(settings) => settings,
            Err(error) => return vec![invalid_settings(error), check_archive(&layers)],
        };
        let mut findings = vec![check_settings(&layers), check_archive(&layers)];
        findings.extend(check_listen_address(&settings).await);
        findings.extend(check_outbound(&settings));
        findings.extend(check_signers(&settings).await);
        findings.extend(check_upstreams(&settings).await);
        findings.extend(check_model(self.model.as_deref(), &settings).await);
        findings.extend(check_clients(&settings, &environment::caller_env()));
        findings.extend(check_client_files(&settings, &environment::client_folders()));
        findings
    }
}

/// Reports where settings come from, without values: some are secrets.
fn check_settings(layers: &SettingLayers) -> DoctorFinding {
    let mut parts = Vec::new();
    for layer in layers.layers() {
        let names = layer.values.keys().copied().collect::<Vec<_>>().join(", ");
        match &layer.source {
            SettingSource::Flags if !names.is_empty() => parts.push(format!("flags: {names}")),
            SettingSource::Variables if !names.is_empty() => parts.push(format!("variables: {names}")),
            SettingSource::File(path) if names.is_empty() => parts.push(format!("{} is empty", path.display())),
            SettingSource::File(path) => parts.push(format!("{}: {names}", path.display())),
            _ => {}
        }
    }
    if !layers.layers().iter().any(|layer| matches!(layer.source, SettingSource::File(_))) {
        let place = default_settings_path().map_or(String::new(), |path| format!(" at {}", path.display()));
        parts.push(format!("no settings file{place}"));
    }
    DoctorFinding::ok("settings", parts.join("; "))
}

fn check_archive(layers: &SettingLayers) -> DoctorFinding {
    let settings = match ArchiveSettings::resolve(layers) {
        Ok(settings) => settings,
        Err(error) => return DoctorFinding::fail("archive", format!("{error:#}"), "set its path with --archive"),
    };
    let (path, location) = (settings.path.as_path(), settings.location());
    if !settings.may_exist() {
        return match can_create_file(path) {
            true => DoctorFinding::ok("archive", format!("{} will be created at the first fold", path.display())),
            false => DoctorFinding::fail(
                "archive",
                format!("cannot be created at {}", path.display()),
                "make its folder writable, or set another path with --archive",
            ),
        };
    }
    let stats = settings.open(AccessMode::ReadOnly).and_then(|archive| archive.tenant(&settings.namespace).stats());
    let is_file = path.exists();
    match stats {
        Err(error) if *error.kind() == ErrorKind::NotAnArchive && !is_file => {
            DoctorFinding::ok("archive", format!("{location}: it will be created when a proxy starts"))
        }
        Err(error) => DoctorFinding::fail(
            "archive",
            error.to_string(),
            "requests that need a fold are forwarded unchanged until this is repaired",
        ),
        Ok(_) if is_file && OpenOptions::new().append(true).open(path).is_err() => DoctorFinding::fail(
            "archive",
            format!("{location} is readable but not writable"),
            "make it writable for this user, or set another path with --archive",
        ),
        Ok(stats) if stats.damaged > 0 => DoctorFinding::warn(
            "archive",
            format!("{location}: {} originals are damaged on disk", format_number(stats.damaged)),
            "run `foldline archive verify` to list them",
        ),
        Ok(stats) => DoctorFinding::ok(
            "archive",
            format!(
                "{location}: {} originals, {} on disk{}",
                format_number(stats.available),
                units::format_bytes(stats.file_bytes + stats.index_bytes),
                if is_file { ", private to this user" } else { "" }
            ),
        ),
    }
}

/// Returns true if a file can be created in the nearest existing parent folder.
fn can_create_file(path: &Path) -> bool {
    let folder = path.ancestors().skip(1).find(|it| it.is_dir());
    folder.is_some_and(|folder| tempfile::tempfile_in(folder).is_ok())
}

async fn check_listen_address(settings: &ProxySettings) -> Vec<DoctorFinding> {
    let listen = settings.listen;
    if !listen.ip().is_loopback() && settings.is_open() {
        return vec![DoctorFinding::fail(
            "listen",
            format!("{listen} can be reached by others, and no token is set"),
            "set a token with --token-file or $FOLDLINE_TOKEN, or listen on 127.0.0.1",
        )];
    }
    if TcpListener::bind(listen).is_ok() {
        return vec![DoctorFinding::ok("listen", format!("{listen} is free"))];
    }
    let here = if listen.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { listen.ip() };
    let url = format!("http://{}", SocketAddr::new(here, listen.port())).parse::<UpstreamUrl>();
    let running_proxy = match url {
        Ok(url) => probe::find_proxy_with_token(&url, settings.tokens.first()).await,
        Err(_) => None,
    };
    let Some(proxy) = running_proxy else {
        let message = format!("{listen} is in use by another program, or by a proxy that requires another token");
        return vec![DoctorFinding::fail("listen", message, "choose another address with --listen, or set its token")];
    };
    let message =
        format!("foldline {} already listens on {listen}; its upstreams: {}", proxy.version, upstreams_of(&proxy));
    let running = DoctorFinding::ok("listen", message);
    std::iter::once(running).chain(proxy.learned_windows.iter().map(learned)).collect()
}

/// Returns the upstreams of a running proxy, each once.
fn upstreams_of(proxy: &RunningProxy) -> String {
    let mut upstreams: Vec<&str> = ApiFamily::all().filter_map(|family| proxy.upstream(family)).collect();
    upstreams.dedup();
    upstreams.join(", ")
}

/// Describes a window that the running proxy has learned.
fn learned(window: &LearnedProxyWindow) -> DoctorFinding {
    let LearnedProxyWindow { model, upstream, tokens, evidence, age_seconds, expires_in_seconds, .. } = window;
    let evidence = match evidence.as_str() {
        "error_code" => "a typed error of the server",
        "error_message" => "an error message of the server",
        "constant_count" => "the server's count, which stays the same while prompts grow",
        "server_report" => "the server's model endpoint",
        other => other,
    };
    let minutes = |seconds: u64| format!("{} min", format_number(seconds / 60));
    let expires = expires_in_seconds.map_or(String::new(), |left| format!(", expires in {}", minutes(left)));
    let age = minutes(*age_seconds);
    let message =
        format!("{model} at {upstream}: {} tokens, from {evidence}; {age} ago{expires}", format_number(*tokens));
    DoctorFinding::ok("learned", message)
}

/// Reports the way to providers, if it is not the direct one. Certificates that cannot be used fail before.
fn check_outbound(settings: &ProxySettings) -> Vec<DoctorFinding> {
    let outbound = &settings.outbound;
    let mut findings = Vec::new();
    for (name, proxy) in [("https", &outbound.https_proxy), ("http", &outbound.http_proxy)] {
        findings.extend(proxy.as_ref().map(|proxy| {
            let excluded = outbound.no_proxy.len();
            let except = if excluded == 0 { String::new() } else { format!(", except {excluded} entries of NO_PROXY") };
            DoctorFinding::ok("network proxy", format!("{name} upstreams are reached through {proxy}{except}"))
        }));
    }
    if !outbound.authorities.is_empty() {
        let count = outbound.authorities.len();
        findings.push(DoctorFinding::ok("ca-cert", format!("{count} authorities besides those of the system")));
    }
    if outbound.identity.is_some() {
        findings.push(DoctorFinding::ok("client-cert", "upstreams get a client certificate"));
    }
    findings
}

/// Reports the AWS credentials with which requests are signed.
async fn check_signers(settings: &ProxySettings) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    for (name, signer) in settings.signers() {
        findings.push(match signer.check().await {
            Ok(()) => {
                let message = format!("requests to {name} are signed for the region {}", signer.region());
                DoctorFinding::ok("aws credentials", message)
            }
            Err(error) => {
                let advice = "or set bedrock-auth, or auth of the upstream, to client";
                DoctorFinding::fail("aws credentials", format!("upstream {name}: {error}"), advice)
            }
        });
    }
    findings
}

async fn check_upstreams(settings: &ProxySettings) -> Vec<DoctorFinding> {
    let mut findings = Vec::new();
    for (check, upstream) in distinct_upstreams(settings) {
        if let Some(it) = probe::find_running_proxy(upstream).await {
            let message = format!("{upstream} is a foldline proxy itself; its upstreams: {}", upstreams_of(&it));
            findings.push(DoctorFinding::warn(
                check,
                message,
                "set the upstream to the provider, or requests are folded twice",
            ));
            continue;
        }
        findings.push(match probe::check_upstream(upstream, &settings.outbound).await {
            Ok(status) => DoctorFinding::ok(check, format!("{upstream} responds ({})", status.as_u16())),
            Err(error) => {
                let advice = "check the address and that the server runs; set another one with --upstream";
                DoctorFinding::fail(check, format!("{upstream}: {error}"), advice)
            }
        });
    }
    findings
}

/// Returns the upstreams with their names; one if they are all the same.
fn distinct_upstreams(settings: &ProxySettings) -> Vec<(&'static str, &UpstreamUrl)> {
    let mut all: Vec<_> = settings.upstreams.iter().map(|(family, url)| (family.name, url)).collect();
    if all.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        all.truncate(1);
        all.iter_mut().for_each(|(name, _)| *name = "upstream");
    }
    all.extend(settings.named_upstreams.iter().map(|upstream| ("upstream", upstream.url())));
    all
}

/// Checks the model table and reports what is known of the given model.
async fn check_model(name: Option<&str>, settings: &ProxySettings) -> Vec<DoctorFinding> {
    let table = &settings.models;
    let mut findings = vec![DoctorFinding::ok("models", format!("{} rows", format_number(table.rows().len() as u64)))];
    let mut reported = None;
    for (_, upstream) in distinct_upstreams(settings).into_iter().filter(|(_, upstream)| upstream.is_loopback()) {
        let window = probe::query_window(upstream, &settings.outbound, name.unwrap_or_default()).await;
        reported = reported.or(window);
        findings.push(check_reported_window(upstream, window, name, settings.window));
    }
    if let Some(name) = name {
        let meter = Meter::for_model(table, Some(name));
        let counted = match meter.exactness() {
            CountExactness::Exact => "counted exactly",
            _ => "estimated conservatively, and calibrated by the provider's reports",
        };
        let window = describe_window(settings.window, reported, meter.row().window);
        findings.push(DoctorFinding::ok("model", format!("{name}: {window}; {counted}")));
    }
    findings
}

fn check_reported_window(
    upstream: &UpstreamUrl,
    window: Option<Tokens>,
    name: Option<&str>,
    setting: Option<Tokens>,
) -> DoctorFinding {
    match (window, setting) {
        (Some(window), None) => {
            DoctorFinding::ok("window", format!("in use: {upstream} reports {} tokens", format_number(window)))
        }
        (Some(window), Some(setting)) => {
            let (window, setting) = (format_number(window), format_number(setting));
            let message =
                format!("{upstream} reports {window} tokens; the window setting of {setting} is used instead");
            DoctorFinding::ok("window", message)
        }
        (None, _) => DoctorFinding::warn(
            "window",
            format!(
                "{upstream} does not report its context window{}",
                if name.is_none() { " without a model" } else { "" }
            ),
            match name {
                None => "name the model with --model",
                Some(_) => "set it with --window; the window in the model table may be too large",
            },
        ),
    }
}

/// Describes the window that is used, and those that it overrides.
fn describe_window(setting: Option<Tokens>, reported: Option<Tokens>, table: Tokens) -> String {
    let sources =
        [(setting, "by the window setting"), (reported, "as the server reports"), (Some(table), "by the table")];
    let mut known = sources.into_iter().filter_map(|(tokens, source)| Some((tokens?, source)));
    let Some((window, source)) = known.next() else { return String::new() };
    let others: Vec<String> = known
        .filter(|(tokens, _)| *tokens != window)
        .map(|(tokens, source)| format!("{} {source}", format_number(tokens)))
        .collect();
    let overridden = if others.is_empty() { String::new() } else { format!(" (overrides {})", others.join(", ")) };
    format!("window {} tokens {source}{overridden}", format_number(window))
}

/// Checks whether clients started from this shell would use the proxy.
fn check_clients(settings: &ProxySettings, caller: &CallerEnv) -> Vec<DoctorFinding> {
    let proxy = format!("http://{}", settings.listen);
    let openai = format!("{proxy}{}", settings.upstreams.get(Format::OpenAiChat.dialect().family).version());
    let mut findings = Vec::new();
    for (name, value, right) in
        [("OPENAI_BASE_URL", &caller.openai, &openai), ("ANTHROPIC_BASE_URL", &caller.anthropic, &proxy)]
    {
        let Some(value) = value else { continue };
        let set = value.trim_end_matches('/').replace("localhost", "127.0.0.1");
        findings.push(if set == *right {
            DoctorFinding::ok("clients", format!("{name} points at the proxy"))
        } else if set.starts_with(&proxy) {
            DoctorFinding::warn(
                "clients",
                format!("{name} is {value}, which is not an API path of the proxy"),
                format!("set it to {right}"),
            )
        } else {
            let advice =
                format!("set it to {right}, or start the client with `foldline run -- CMD`, which forwards to {value}");
            DoctorFinding::warn("clients", format!("{name} is {value}: clients bypass foldline"), advice)
        });
    }
    for (name, cloud) in &caller.cloud_variables {
        let message = format!("{name} is set: Claude Code connects to {cloud}");
        findings.push(DoctorFinding::warn("clients", message, cloud_advice(cloud)));
    }
    if caller.behind_proxy {
        let advice =
            "foldline connects through it, except to hosts in NO_PROXY; clients must reach foldline without it";
        findings.push(DoctorFinding::warn("network", "a network proxy is configured (HTTP_PROXY or similar)", advice));
    }
    if findings.is_empty() {
        let advice = format!("OPENAI_BASE_URL={openai} ANTHROPIC_BASE_URL={proxy}, or `foldline run -- CMD`");
        findings.push(DoctorFinding {
            advice: Some(advice),
            ..DoctorFinding::ok("clients", "no base URL is set in this shell")
        });
    }
    findings
}

/// Checks the base URLs in the settings files of clients, which override variables.
fn check_client_files(settings: &ProxySettings, folders: &ClientFolders) -> Vec<DoctorFinding> {
    let proxy = format!("http://{}", settings.listen);
    let mut findings = Vec::new();
    for kind in ClientKind::ALL {
        for ConfiguredUrl { path, key, url } in folders.configured_urls(kind) {
            let (title, place) = (kind.title(), short_path(&path, &folders.home));
            findings.push(if is_below(&url, &proxy) {
                DoctorFinding::ok("clients", format!("{title}: {key} in {place} points at the proxy"))
            } else {
                DoctorFinding::warn(
                    "clients",
                    format!("{title}: {key} in {place} is {url}, so that it bypasses foldline"),
                    format!("run `foldline install {}` and set {url} as the upstream of the proxy", kind.command()),
                )
            });
        }
    }
    findings
}

fn render_findings(findings: &[DoctorFinding], terminal: Terminal) -> String {
    const INDENT: &str = "                  ";
    let mut text = String::new();
    for DoctorFinding { status, check, message, advice } in findings {
        let (word, color) = match status {
            FindingStatus::Ok => ("ok", "32"),
            FindingStatus::Warn => ("warn", "33"),
            FindingStatus::Fail => ("FAIL", "31"),
        };
        let word = render::colored(&format!("{word:<5}"), color, terminal);
        text += &format!(" {word} {check:<10} {}\n", render::wrapped(&render::plain(message), terminal, INDENT));
        if let Some(advice) = advice {
            text +=
                &format!("{INDENT}-> {}\n", render::wrapped(&render::plain(advice), terminal, &format!("{INDENT}   ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_findings(caller: &CallerEnv) -> Vec<(FindingStatus, String)> {
        check_clients(&ProxySettings::default(), caller).into_iter().map(|it| (it.status, it.message)).collect()
    }

    #[test]
    fn clients_bypassing_the_proxy_are_reported() {
        assert_eq!(client_findings(&CallerEnv::default())[0].0, FindingStatus::Ok);
        let right = CallerEnv {
            openai: Some("http://localhost:8787/v1".into()),
            anthropic: Some("http://127.0.0.1:8787/".into()),
            ..CallerEnv::default()
        };
        assert!(
            client_findings(&right).iter().all(|(status, _)| *status == FindingStatus::Ok),
            "{:?}",
            client_findings(&right)
        );
        let wrong = CallerEnv {
            openai: Some("https://openrouter.ai/api/v1".into()),
            anthropic: Some("http://127.0.0.1:8787/v1".into()),
            cloud_variables: vec![("CLAUDE_CODE_USE_BEDROCK", "Bedrock")],
            behind_proxy: true,
            ..CallerEnv::default()
        };
        let findings = client_findings(&wrong);
        assert_eq!(findings.len(), 4);
        assert!(findings.iter().all(|(status, _)| *status == FindingStatus::Warn), "{findings:?}");
    }

    #[test]
    fn one_window_is_named_as_the_one_in_use() {
        assert_eq!(
            describe_window(None, Some(8_192), 131_072),
            "window 8,192 tokens as the server reports (overrides 131,072 by the table)"
        );
        assert_eq!(describe_window(None, None, 200_000), "window 200,000 tokens by the table");
        assert!(
            describe_window(Some(4_096), Some(8_192), 131_072).starts_with("window 4,096 tokens by the window setting")
        );
    }

    #[test]
    fn settings_files_of_clients_are_checked() {
        let home = tempfile::tempdir().unwrap();
        let folders = ClientFolders {
            claude: home.path().join(".claude"),
            codex: home.path().join(".codex"),
            home: home.path().to_owned(),
            ..ClientFolders::default()
        };
        assert_eq!(check_client_files(&ProxySettings::default(), &folders).len(), 0);
        std::fs::create_dir_all(&folders.claude).unwrap();
        std::fs::create_dir_all(&folders.codex).unwrap();
        let claude = r#"{"env":{"ANTHROPIC_BASE_URL":"https://gw.example"}}"#;
        std::fs::write(folders.claude.join("settings.json"), claude).unwrap();
        std::fs::write(folders.codex.join("config.toml"), "openai_base_url = \"http://localhost:8787/v1\"").unwrap();
        let findings = check_client_files(&ProxySettings::default(), &folders);
        let found: Vec<_> = findings.iter().map(|it| (it.status, it.message.as_str())).collect();
        assert_eq!(
            found,
            [
                (
                    FindingStatus::Warn,
                    "Claude Code: env.ANTHROPIC_BASE_URL in ~/.claude/settings.json is https://gw.example, so that it bypasses foldline"
                ),
                (FindingStatus::Ok, "Codex: openai_base_url in ~/.codex/config.toml points at the proxy"),
            ]
        );
    }

    #[test]
    fn write_check_leaves_no_files() {
        let folder = tempfile::tempdir().unwrap();
        assert!(can_create_file(&folder.path().join("not/yet/archive.db")));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(!can_create_file(Path::new("/proc/nowhere/archive.db")));
    }
}
