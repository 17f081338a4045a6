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
use foldline_archive::Access;
use foldline_server::proxy::probe::{self, Neighbour, NeighbourWindow};
use foldline_server::proxy::{Settings, Upstream};
use serde::Serialize;

use super::print;
use crate::client::Caller;
use crate::environment::{self, Look};
use crate::picture::{self, number};
use crate::proxy_settings::{Places, ProxyFlags};
use crate::quantity;
use crate::settings::{ArchiveFlags, ModelFlags};

/// Check settings, archive, upstreams and clients, and say what to do
///
/// Takes the flags of `foldline serve` and checks what it would do with them. Upstreams are asked whether they are there,
/// without any key; a server on this machine is asked for its window. Exit code 1 when something is broken.
#[derive(Args)]
pub(crate) struct Doctor {
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
struct Finding {
    state: State,
    /// What was looked at.
    about: &'static str,
    says: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warn,
    Fail,
}

impl Finding {
    fn ok(about: &'static str, says: impl Into<String>) -> Self {
        Self { state: State::Ok, about, says: says.into(), advice: None }
    }

    fn warn(about: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { state: State::Warn, about, says: says.into(), advice: Some(advice.into()) }
    }

    fn fail(about: &'static str, says: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { state: State::Fail, about, says: says.into(), advice: Some(advice.into()) }
    }
}

impl Doctor {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let as_json = self.json;
        let findings = runtime.block_on(self.look());
        let text = match as_json {
            true => serde_json::to_string_pretty(&findings)? + "\n",
            false => drawn(&findings, Look::of_stdout()),
        };
        print(&text)?;
        let broken = findings.iter().any(|it| it.state == State::Fail);
        Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    async fn look(self) -> Vec<Finding> {
        let (settings, places) = match self.proxy.resolve_with_places() {
            Ok(resolved) => resolved,
            Err(error) => {
                // Whom to ask is not known then, and nobody else is asked.
                let advice = "mend it, and ask again; `foldline serve --help` names all settings";
                let settings = Finding::fail("settings", format!("{error:#}"), advice);
                return vec![settings, archive(&self.archive)];
            }
        };
        let mut findings = vec![said(&places), archive(&self.archive)];
        findings.extend(port(&settings).await);
        findings.extend(upstreams(&settings).await);
        findings.extend(model(&self.models, self.model.as_deref(), &settings).await);
        findings.extend(clients(&settings, &environment::caller()));
        findings
    }
}

/// Where settings come from.
fn said(places: &Places) -> Finding {
    let of = |what: &str, names: &[String]| match names {
        [] => None,
        names => Some(format!("{what}: {}", names.join(", "))),
    };
    let file = match &places.file {
        Some((path, names)) if names.is_empty() => format!("{} says nothing", path.display()),
        Some((path, names)) => format!("{}: {}", path.display(), names.join(", ")),
        None => format!(
            "no settings file{}",
            places.usual.as_ref().map_or(String::new(), |it| format!(" at {}", it.display()))
        ),
    };
    let all = [of("flags", &places.flags), of("variables", &places.variables), Some(file)];
    Finding::ok("settings", all.into_iter().flatten().collect::<Vec<_>>().join("; "))
}

fn archive(flags: &ArchiveFlags) -> Finding {
    let settings = match flags.resolve() {
        Ok(settings) => settings,
        Err(error) => return Finding::fail("archive", format!("{error:#}"), "say where it lies with --archive"),
    };
    let path = settings.path.as_path();
    if !path.exists() {
        return match is_writable_below(path) {
            true => Finding::ok("archive", format!("{} will be made when something is folded", path.display())),
            false => Finding::fail(
                "archive",
                format!("there is none, and none can be made at {}", path.display()),
                "make its folder writable, or say where else with --archive",
            ),
        };
    }
    let stats = settings.open(Access::Read).and_then(|archive| archive.shelf(&settings.namespace).stats());
    match stats {
        Err(error) => Finding::fail(
            "archive",
            error.to_string(),
            "requests that need a fold go out as they came until this is mended",
        ),
        Ok(_) if OpenOptions::new().append(true).open(path).is_err() => Finding::fail(
            "archive",
            format!("{} can be read and not written", path.display()),
            "make it writable for you, or say another with --archive",
        ),
        Ok(stats) if stats.damaged > 0 => Finding::warn(
            "archive",
            format!("{}: {} originals are damaged on disk", path.display(), number(stats.damaged)),
            "`foldline archive verify` names them",
        ),
        Ok(stats) => Finding::ok(
            "archive",
            format!(
                "{}: {} originals, {} on disk, for you alone",
                path.display(),
                number(stats.held),
                quantity::bytes(stats.file + stats.index)
            ),
        ),
    }
}

/// Whether a file can be made here: in the first folder above it that exists.
fn is_writable_below(path: &Path) -> bool {
    let folder = path.ancestors().skip(1).find(|it| it.is_dir());
    folder.is_some_and(|folder| tempfile::tempfile_in(folder).is_ok())
}

async fn port(settings: &Settings) -> Vec<Finding> {
    let listen = settings.listen;
    if !listen.ip().is_loopback() && settings.tokens.is_empty() {
        return vec![Finding::fail(
            "listen",
            format!("{listen} can be reached by others, and no token is set"),
            "set one with --token-file or $FOLDLINE_TOKEN, or listen on 127.0.0.1",
        )];
    }
    if TcpListener::bind(listen).is_ok() {
        return vec![Finding::ok("listen", format!("{listen} is free"))];
    }
    let here = if listen.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { listen.ip() };
    let at = format!("http://{}", SocketAddr::new(here, listen.port())).parse::<Upstream>();
    let neighbour = match at {
        Ok(at) => probe::neighbour(&at).await,
        Err(_) => None,
    };
    let Some(proxy) = neighbour else {
        let says = format!("{listen} is taken by something else");
        return vec![Finding::fail("listen", says, "choose another with --listen")];
    };
    let Neighbour { version, openai, anthropic, .. } = &proxy;
    let says = format!("foldline {version} listens on {listen} already, before {openai} and {anthropic}");
    let running = Finding::ok("listen", says);
    std::iter::once(running).chain(proxy.learned_windows.iter().map(learned)).collect()
}

/// Describes a window that the running proxy has learned.
fn learned(window: &NeighbourWindow) -> Finding {
    let NeighbourWindow { model, upstream, tokens, evidence, age_seconds, expires_in_seconds, .. } = window;
    let evidence = match evidence.as_str() {
        "error_code" => "a typed error of the server",
        "error_message" => "an error message of the server",
        "constant_count" => "the server's count, which stays the same while prompts grow",
        "server_report" => "the server's answer when it was asked",
        other => other,
    };
    let minutes = |seconds: u64| format!("{} min", number(seconds / 60));
    let expires = expires_in_seconds.map_or(String::new(), |left| format!(", forgotten in {}", minutes(left)));
    let age = minutes(*age_seconds);
    let says = format!("{model} at {upstream}: {} tokens, from {evidence}; {age} ago{expires}", number(*tokens));
    Finding::ok("learned", says)
}

async fn upstreams(settings: &Settings) -> Vec<Finding> {
    let all = match settings.openai == settings.anthropic {
        true => vec![("upstream", &settings.openai)],
        false => vec![("openai", &settings.openai), ("anthropic", &settings.anthropic)],
    };
    let mut findings = Vec::new();
    for (about, upstream) in all {
        if let Some(it) = probe::neighbour(upstream).await {
            let says = format!("{upstream} is a foldline itself, before {} and {}", it.openai, it.anthropic);
            findings.push(Finding::warn(about, says, "name the provider behind it, or everything is folded twice"));
            continue;
        }
        findings.push(match probe::reach(upstream).await {
            Ok(status) => Finding::ok(about, format!("{upstream} answers ({})", status.as_u16())),
            Err(why) => {
                let advice = "is the address right, and the server running? Another one is named with --upstream";
                Finding::fail(about, format!("{upstream}: {why}"), advice)
            }
        });
    }
    findings
}

/// The table of models, and what is known of the one that is asked for.
async fn model(flags: &ModelFlags, name: Option<&str>, settings: &Settings) -> Vec<Finding> {
    let table = match flags.resolve() {
        Ok(table) => table,
        Err(error) => {
            return vec![Finding::fail("models", format!("{error:#}"), "mend the file, or leave --models out")];
        }
    };
    let mut findings = vec![Finding::ok("models", format!("{} rows", number(table.rows().len() as u64)))];
    for upstream in [&settings.openai, &settings.anthropic] {
        if !upstream.is_loopback() || (upstream == &settings.openai && findings.len() > 1) {
            continue;
        }
        findings.push(match probe::window(upstream, name.unwrap_or_default()).await {
            Some(window) => Finding::ok("window", format!("{upstream} says {} tokens", number(window))),
            None => Finding::warn(
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
        let window = number(settings.window.unwrap_or(meter.row().window));
        findings.push(Finding::ok("model", format!("{name}: {window} tokens by the table; {counted}")));
    }
    findings
}

/// Whether clients that are started here would come to the proxy.
fn clients(settings: &Settings, caller: &Caller) -> Vec<Finding> {
    let proxy = format!("http://{}", settings.listen);
    let openai = format!("{proxy}{}", settings.openai.version());
    let mut findings = Vec::new();
    for (name, value, right) in
        [("OPENAI_BASE_URL", &caller.openai, &openai), ("ANTHROPIC_BASE_URL", &caller.anthropic, &proxy)]
    {
        let Some(value) = value else { continue };
        let set = value.trim_end_matches('/').replace("localhost", "127.0.0.1");
        findings.push(if set == *right {
            Finding::ok("clients", format!("{name} points at the proxy"))
        } else if set.starts_with(&proxy) {
            Finding::warn(
                "clients",
                format!("{name} is {value}, which no path of the API follows"),
                format!("set it to {right}"),
            )
        } else {
            let advice =
                format!("set it to {right}, or start the client with `foldline run -- CMD`, which goes on to {value}");
            Finding::warn("clients", format!("{name} is {value}: clients go there without foldline"), advice)
        });
    }
    for (name, whom) in &caller.elsewhere {
        let advice = "unset it for clients that are to come through foldline";
        findings.push(Finding::warn("clients", format!("{name} is set: Claude Code speaks to {whom}"), advice));
    }
    if caller.behind_proxy {
        let advice = "foldline connects directly; where that is not allowed, name a gateway that is with --upstream";
        findings.push(Finding::warn("network", "the network has a proxy (HTTP_PROXY or the like)", advice));
    }
    if findings.is_empty() {
        let advice = format!("OPENAI_BASE_URL={openai} ANTHROPIC_BASE_URL={proxy}, or `foldline run -- CMD`");
        findings.push(Finding { advice: Some(advice), ..Finding::ok("clients", "no base URL is set in this shell") });
    }
    findings
}

fn drawn(findings: &[Finding], look: Look) -> String {
    const INDENT: &str = "                  ";
    let mut text = String::new();
    for Finding { state, about, says, advice } in findings {
        let (word, ink) = match state {
            State::Ok => ("ok", "32"),
            State::Warn => ("warn", "33"),
            State::Fail => ("FAIL", "31"),
        };
        let word = picture::inked(&format!("{word:<5}"), ink, look);
        text += &format!(" {word} {about:<10} {}\n", picture::wrapped(says, look, INDENT));
        if let Some(advice) = advice {
            text += &format!("{INDENT}-> {}\n", picture::wrapped(advice, look, &format!("{INDENT}   ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(caller: &Caller) -> Vec<(State, String)> {
        clients(&Settings::default(), caller).into_iter().map(|it| (it.state, it.says)).collect()
    }

    #[test]
    fn clients_that_go_elsewhere_are_told_of() {
        assert_eq!(states(&Caller::default())[0].0, State::Ok);
        let right = Caller {
            openai: Some("http://localhost:8787/v1".into()),
            anthropic: Some("http://127.0.0.1:8787/".into()),
            ..Caller::default()
        };
        assert!(states(&right).iter().all(|(state, _)| *state == State::Ok), "{:?}", states(&right));
        let wrong = Caller {
            openai: Some("https://openrouter.ai/api/v1".into()),
            anthropic: Some("http://127.0.0.1:8787/v1".into()),
            elsewhere: vec![("CLAUDE_CODE_USE_BEDROCK", "Bedrock")],
            behind_proxy: true,
            ..Caller::default()
        };
        let told = states(&wrong);
        assert_eq!(told.len(), 4);
        assert!(told.iter().all(|(state, _)| *state == State::Warn), "{told:?}");
    }

    #[test]
    fn nothing_is_written_to_be_sure_that_it_could_be() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_writable_below(&folder.path().join("not/yet/archive.db")));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(!is_writable_below(Path::new("/proc/nowhere/archive.db")));
    }
}
