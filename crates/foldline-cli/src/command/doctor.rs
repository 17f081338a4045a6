//! `foldline doctor`: is everything in place, and what is to be done where it is not?
//!
//! Looks and asks, and changes nothing. No key is sent with any question.

use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use foldline::{CountExactness, Meter};
use foldline_archive::AccessMode;
use foldline_server::proxy::probe;
use foldline_server::proxy::probe::{NeighbourWindow, RunningProxy};
use foldline_server::proxy::{ProxySettings, UpstreamUrl};
use serde::Serialize;

use super::print_stdout;
use crate::client::CallerEnv;
use crate::environment::{self, Terminal};
use crate::proxy_settings::{ProxyFlags, SettingSources};
use crate::render;
use crate::render::format_number;
use crate::settings::{ArchiveFlags, ModelFlags};
use crate::units;

/// Check settings, archive, upstreams and clients, and say what to do
///
/// Takes the flags of `foldline serve` and checks what it would do with them. Upstreams are asked whether they are there,
/// without any key; a server on this machine is asked for its window. Exit code 1 when something is broken.
#[derive(Args)]
pub(crate) struct DoctorCommand {
    /// A model, to be told its window, and how its tokens are counted
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    proxy: ProxyFlags,
    #[command(flatten)]
    models: ModelFlags,
    #[command(flatten)]
    archive: ArchiveFlags,
}

/// What was found.
#[derive(Debug, Serialize)]
struct DoctorFinding {
    status: FindingStatus,
    /// What was looked at.
    check: &'static str,
    message: String,
    /// What to do.
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
    fn ok(about: &'static str, says: impl Into<String>) -> Self {
        Self { status: FindingStatus::Ok, check: about, message: says.into(), advice: None }
    }

    fn warn(about: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: FindingStatus::Warn, check: about, message: says.into(), advice: Some(advice.into()) }
    }

    fn fail(about: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: FindingStatus::Fail, check: about, message: says.into(), advice: Some(advice.into()) }
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
        let (settings, places) = match self.proxy.resolve_with_sources() {
            Ok(resolved) => resolved,
            Err(error) => {
                // Whom to ask is not known then, and nobody else is asked.
                let advice = "mend it, and ask again; `foldline serve --help` names all settings";
                let settings = DoctorFinding::fail("settings", format!("{error:#}"), advice);
                return vec![settings, check_archive(&self.archive)];
            }
        };
        let mut findings = vec![check_settings(&places), check_archive(&self.archive)];
        findings.extend(check_listen_address(&settings).await);
        findings.extend(check_upstreams(&settings).await);
        findings.extend(check_model(&self.models, self.model.as_deref(), &settings).await);
        findings.extend(check_clients(&settings, &environment::caller_env()));
        findings
    }
}

/// Where settings come from.
fn check_settings(places: &SettingSources) -> DoctorFinding {
    let of = |what: &str, names: &[String]| match names {
        [] => None,
        names => Some(format!("{what}: {}", names.join(", "))),
    };
    let file = match &places.file {
        Some((path, names)) if names.is_empty() => format!("{} says nothing", path.display()),
        Some((path, names)) => format!("{}: {}", path.display(), names.join(", ")),
        None => format!(
            "no settings file{}",
            places.default_file.as_ref().map_or(String::new(), |it| format!(" at {}", it.display()))
        ),
    };
    let all = [of("flags", &places.flags), of("variables", &places.variables), Some(file)];
    DoctorFinding::ok("settings", all.into_iter().flatten().collect::<Vec<_>>().join("; "))
}

fn check_archive(flags: &ArchiveFlags) -> DoctorFinding {
    let settings = match flags.resolve() {
        Ok(settings) => settings,
        Err(error) => return DoctorFinding::fail("archive", format!("{error:#}"), "say where it lies with --archive"),
    };
    let path = settings.path.as_path();
    if !path.exists() {
        return match can_create_file(path) {
            true => DoctorFinding::ok("archive", format!("{} will be made when something is folded", path.display())),
            false => DoctorFinding::fail(
                "archive",
                format!("there is none, and none can be made at {}", path.display()),
                "make its folder writable, or say where else with --archive",
            ),
        };
    }
    let stats = settings.open(AccessMode::ReadOnly).and_then(|archive| archive.tenant(&settings.namespace).stats());
    match stats {
        Err(error) => DoctorFinding::fail(
            "archive",
            error.to_string(),
            "requests that need a fold go out as they came until this is mended",
        ),
        Ok(_) if OpenOptions::new().append(true).open(path).is_err() => DoctorFinding::fail(
            "archive",
            format!("{} can be read and not written", path.display()),
            "make it writable for you, or say another with --archive",
        ),
        Ok(stats) if stats.damaged > 0 => DoctorFinding::warn(
            "archive",
            format!("{}: {} originals are damaged on disk", path.display(), format_number(stats.damaged)),
            "`foldline archive verify` names them",
        ),
        Ok(stats) => DoctorFinding::ok(
            "archive",
            format!(
                "{}: {} originals, {} on disk, for you alone",
                path.display(),
                format_number(stats.available),
                units::format_bytes(stats.file_bytes + stats.index_bytes)
            ),
        ),
    }
}

/// Whether a file can be made here: in the first folder above it that exists.
fn can_create_file(path: &Path) -> bool {
    let folder = path.ancestors().skip(1).find(|it| it.is_dir());
    folder.is_some_and(|folder| tempfile::tempfile_in(folder).is_ok())
}

async fn check_listen_address(settings: &ProxySettings) -> Vec<DoctorFinding> {
    let listen = settings.listen;
    if !listen.ip().is_loopback() && settings.tokens.is_empty() {
        return vec![DoctorFinding::fail(
            "listen",
            format!("{listen} can be reached by others, and no token is set"),
            "set one with --token-file or $FOLDLINE_TOKEN, or listen on 127.0.0.1",
        )];
    }
    if TcpListener::bind(listen).is_ok() {
        return vec![DoctorFinding::ok("listen", format!("{listen} is free"))];
    }
    let here = if listen.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { listen.ip() };
    let at = format!("http://{}", SocketAddr::new(here, listen.port())).parse::<UpstreamUrl>();
    let neighbour = match at {
        Ok(at) => probe::find_running_proxy(&at).await,
        Err(_) => None,
    };
    let Some(proxy) = neighbour else {
        let says = format!("{listen} is taken by something else");
        return vec![DoctorFinding::fail("listen", says, "choose another with --listen")];
    };
    let RunningProxy { version, openai, anthropic, .. } = &proxy;
    let says = format!("foldline {version} listens on {listen} already, before {openai} and {anthropic}");
    let running = DoctorFinding::ok("listen", says);
    std::iter::once(running).chain(proxy.learned_windows.iter().map(learned)).collect()
}

/// Describes a window that the running proxy has learned.
fn learned(window: &NeighbourWindow) -> DoctorFinding {
    let NeighbourWindow { model, upstream, tokens, evidence, age_seconds, expires_in_seconds, .. } = window;
    let evidence = match evidence.as_str() {
        "error_code" => "a typed error of the server",
        "error_message" => "an error message of the server",
        "constant_count" => "the server's count, which stays the same while prompts grow",
        "server_report" => "the server's answer when it was asked",
        other => other,
    };
    let minutes = |seconds: u64| format!("{} min", format_number(seconds / 60));
    let expires = expires_in_seconds.map_or(String::new(), |left| format!(", forgotten in {}", minutes(left)));
    let age = minutes(*age_seconds);
    let says = format!("{model} at {upstream}: {} tokens, from {evidence}; {age} ago{expires}", format_number(*tokens));
    DoctorFinding::ok("learned", says)
}

async fn check_upstreams(settings: &ProxySettings) -> Vec<DoctorFinding> {
    let all = match settings.openai == settings.anthropic {
        true => vec![("upstream", &settings.openai)],
        false => vec![("openai", &settings.openai), ("anthropic", &settings.anthropic)],
    };
    let mut findings = Vec::new();
    for (about, upstream) in all {
        if let Some(it) = probe::find_running_proxy(upstream).await {
            let says = format!("{upstream} is a foldline itself, before {} and {}", it.openai, it.anthropic);
            findings.push(DoctorFinding::warn(
                about,
                says,
                "name the provider behind it, or everything is folded twice",
            ));
            continue;
        }
        findings.push(match probe::check_upstream(upstream).await {
            Ok(status) => DoctorFinding::ok(about, format!("{upstream} answers ({})", status.as_u16())),
            Err(why) => {
                let advice = "is the address right, and the server running? Another one is named with --upstream";
                DoctorFinding::fail(about, format!("{upstream}: {why}"), advice)
            }
        });
    }
    findings
}

/// The table of models, and what is known of the one that is asked for.
async fn check_model(flags: &ModelFlags, name: Option<&str>, settings: &ProxySettings) -> Vec<DoctorFinding> {
    let table = match flags.resolve() {
        Ok(table) => table,
        Err(error) => {
            return vec![DoctorFinding::fail("models", format!("{error:#}"), "mend the file, or leave --models out")];
        }
    };
    let mut findings = vec![DoctorFinding::ok("models", format!("{} rows", format_number(table.rows().len() as u64)))];
    for upstream in [&settings.openai, &settings.anthropic] {
        if !upstream.is_loopback() || (upstream == &settings.openai && findings.len() > 1) {
            continue;
        }
        findings.push(match probe::query_window(upstream, name.unwrap_or_default()).await {
            Some(window) => DoctorFinding::ok("window", format!("{upstream} says {} tokens", format_number(window))),
            None => DoctorFinding::warn(
                "window",
                format!(
                    "{upstream} does not say how long its window is{}",
                    if name.is_none() { " without a model" } else { "" }
                ),
                match name {
                    None => "name the model with --model",
                    Some(_) => "say it with --window, lest the table's guess is too long",
                },
            ),
        });
        if settings.openai == settings.anthropic {
            break;
        }
    }
    if let Some(name) = name {
        let meter = Meter::for_model(&table, Some(name));
        let counted = match meter.exactness() {
            CountExactness::Exact => "counted exactly",
            _ => "estimated from above, and calibrated by what the provider reports",
        };
        let window = format_number(settings.window.unwrap_or(meter.row().window));
        findings.push(DoctorFinding::ok("model", format!("{name}: {window} tokens by the table; {counted}")));
    }
    findings
}

/// Whether clients that are started here would come to the proxy.
fn check_clients(settings: &ProxySettings, caller: &CallerEnv) -> Vec<DoctorFinding> {
    let proxy = format!("http://{}", settings.listen);
    let openai = format!("{proxy}{}", settings.openai.version());
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
                format!("{name} is {value}, which no path of the API follows"),
                format!("set it to {right}"),
            )
        } else {
            let advice =
                format!("set it to {right}, or start the client with `foldline run -- CMD`, which goes on to {value}");
            DoctorFinding::warn("clients", format!("{name} is {value}: clients go there without foldline"), advice)
        });
    }
    for (name, whom) in &caller.cloud_variables {
        let advice = "unset it for clients that are to come through foldline";
        findings.push(DoctorFinding::warn("clients", format!("{name} is set: Claude Code speaks to {whom}"), advice));
    }
    if caller.behind_proxy {
        let advice = "foldline connects directly; where that is not allowed, name a gateway that is with --upstream";
        findings.push(DoctorFinding::warn("network", "the network has a proxy (HTTP_PROXY or the like)", advice));
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

fn render_findings(findings: &[DoctorFinding], look: Terminal) -> String {
    const INDENT: &str = "                  ";
    let mut text = String::new();
    for DoctorFinding { status: state, check: about, message: says, advice } in findings {
        let (word, ink) = match state {
            FindingStatus::Ok => ("ok", "32"),
            FindingStatus::Warn => ("warn", "33"),
            FindingStatus::Fail => ("FAIL", "31"),
        };
        let word = render::colored(&format!("{word:<5}"), ink, look);
        text += &format!(" {word} {about:<10} {}\n", render::wrapped(says, look, INDENT));
        if let Some(advice) = advice {
            text += &format!("{INDENT}-> {}\n", render::wrapped(advice, look, &format!("{INDENT}   ")));
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
            client_findings(&right).iter().all(|(state, _)| *state == FindingStatus::Ok),
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
        let told = client_findings(&wrong);
        assert_eq!(told.len(), 4);
        assert!(told.iter().all(|(state, _)| *state == FindingStatus::Warn), "{told:?}");
    }

    #[test]
    fn write_check_leaves_no_files() {
        let folder = tempfile::tempdir().unwrap();
        assert!(can_create_file(&folder.path().join("not/yet/archive.db")));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(!can_create_file(Path::new("/proc/nowhere/archive.db")));
    }
}
