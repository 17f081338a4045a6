//! `foldline run`: runs one command with its own proxy.

mod facts;
mod signals;
pub(crate) mod summary;

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, IsTerminal, stderr};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use foldline::wire::Format;
use foldline_server::proxy::{Proxy, ProxySettings, Timeouts, probe};
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::clients::base_url::BaseUrls;
use crate::clients::launch::{self, CallerEnv, LaunchPlan};
use crate::command::run::facts::ClientFacts;
use crate::command::run::signals::ForwardedSignals;
use crate::environment;
use crate::output::report;
use crate::settings::flags::{ProxyGroups, SettingFlags};
use crate::settings::{archive, proxy};

/// Run a command with its own proxy
///
/// Starts the proxy on a free local port, points the command at it, and ends with the command: with its exit code and
/// a line on standard error that reports the savings, or why no request arrived. Signals are forwarded to the command.
///
/// Any command gets OPENAI_BASE_URL, ANTHROPIC_BASE_URL and GOOGLE_GEMINI_BASE_URL; claude, codex, opencode and aider
/// also get their own settings, which override those of their files. A base URL that is already set, in the environment
/// or in the files of claude and codex, becomes the upstream; if a foldline proxy runs there, its upstream is used
/// instead, so that nothing is folded twice.
#[derive(Args)]
#[command(after_long_help = crate::settings::proxy::HELP)]
pub(crate) struct RunCommand {
    #[command(flatten)]
    settings: SettingFlags<ProxyGroups>,
    /// A file for the proxy's log; without it nothing is logged
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The command, after `--`
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Time for the proxy to shut down after the command has ended: no client waits for answers any more.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

impl RunCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (program, arguments) = self.command.split_first().context("no command to run")?;
        if !environment::program_exists(program) {
            return Ok(report_not_started(program, &ErrorKind::NotFound.into()));
        }
        if let Some(file) = &self.log {
            crate::log::init_file(file)?;
        }
        let client = ClientFacts::read(program);
        let runtime = crate::runtime::build()?;
        let caller = runtime.block_on(bypass_running_proxies(client.caller()));
        let layers = proxy::layers_for_child(self.settings.load()?, &caller)?;
        let settings = proxy::resolve(&layers)?;
        let timeouts = Timeouts { shutdown: SHUTDOWN_TIMEOUT, ..settings.timeouts };
        let settings = ProxySettings { timeouts, ..settings };
        let archive = archive::open_for_proxy(&layers, &settings)?;
        let archive_handle = archive.clone();
        let ended = runtime.block_on(async {
            let (mode, version) =
                (settings.mode, settings.upstreams.get(Format::OpenAiChat.dialect().family).version().to_owned());
            let (listen, is_official_anthropic) = (settings.listen, proxy::is_official_anthropic(&settings));
            let signs_bedrock = settings.bedrock_auth.signer().is_some();
            let proxy =
                Proxy::bind(settings, archive).await.with_context(|| format!("could not listen on {listen}"))?;
            let anthropic = format!("http://{}", proxy.address());
            report(&format!("foldline: proxy on {anthropic}"));
            let bases = BaseUrls { openai: format!("{anthropic}{version}"), anthropic };
            if stderr().is_terminal() {
                report(&format!("foldline: dashboard at http://{}/foldline/ while the command runs", proxy.address()));
            }
            let stats_handle = proxy.stats_handle();
            let (stop, stopped) = oneshot::channel::<()>();
            let serving = tokio::spawn(proxy.run(async {
                let _ = stopped.await;
            }));

            let configured = &client.configured;
            let plan = LaunchPlan {
                program,
                arguments,
                bases: &bases,
                caller: &caller,
                is_official_anthropic,
                signs_bedrock,
                configured,
            };
            let ended = run_child(&plan).await;
            drop(stop);
            let _ = serving.await;
            let ended = ended?;
            let line = summary::summary_line(mode, &stats_handle.snapshot())
                .unwrap_or_else(|| summary::no_request_line(&client, arguments, &caller));
            // After Ctrl-C the cursor of a terminal is behind the client's last output, not at the start of a line.
            let line_break = if ended.interrupted && stderr().is_terminal() { "\n" } else { "" };
            report(&format!("{line_break}{line}"));
            Ok(ended.code)
        });
        crate::runtime::end(runtime, archive_handle);
        ended
    }
}

/// The end of a command.
struct ChildEnd {
    code: ExitCode,
    /// True if it was interrupted by a key.
    interrupted: bool,
}

/// Replaces base URLs at which a foldline proxy answers by the upstreams of that proxy.
async fn bypass_running_proxies(caller: CallerEnv) -> CallerEnv {
    let CallerEnv { mut openai, mut anthropic, mut gemini, mut ollama, mut bedrock, .. } = caller;
    let parsed = |url: &Option<String>| url.as_deref().and_then(|url| url.parse().ok());
    let urls = [
        (Format::OpenAiChat, &mut openai),
        (Format::Anthropic, &mut anthropic),
        (Format::Gemini, &mut gemini),
        (Format::Ollama, &mut ollama),
        (Format::Converse, &mut bedrock),
    ];
    for (format, url) in urls {
        let Some(upstream) = parsed(url) else { continue };
        let running = probe::find_running_proxy(&upstream).await;
        if let Some(upstream) = running.as_ref().and_then(|it| it.upstream(format.dialect().family)) {
            *url = Some(upstream.to_owned());
        }
    }
    CallerEnv { openai, anthropic, gemini, ollama, bedrock, ..caller }
}

/// Runs the command to its end.
async fn run_child(plan: &LaunchPlan<'_>) -> Result<ChildEnd> {
    let overrides = launch::client_overrides(plan);
    let mut process = Command::new(plan.program);
    process.args(&overrides.arguments).args(plan.arguments);
    for (name, value) in &overrides.variables {
        match value {
            Some(value) => process.env(name, value),
            None => process.env_remove(name),
        };
    }
    // Registered before the command starts, so that no signal ends this process and leaves the command running.
    let mut signals = ForwardedSignals::register()?;
    let mut child = match process.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(ChildEnd { code: report_not_started(plan.program, &error), interrupted: false }),
    };
    let mut interrupted = false;
    loop {
        tokio::select! {
            status = child.wait() => {
                let code = exit_code(status.context("could not wait for the command")?);
                return Ok(ChildEnd { code, interrupted });
            }
            signal = signals.next() => {
                interrupted = true;
                signals.forward(signal, &child);
            }
        }
    }
}

/// Reports a command that could not be started, and returns the exit code that a shell uses for it.
fn report_not_started(program: &OsStr, error: &std::io::Error) -> ExitCode {
    let (code, reason) = match error.kind() {
        ErrorKind::NotFound => (127, "command not found; check that it is installed and on the PATH".to_owned()),
        _ => (126, error.to_string()),
    };
    report(&format!("foldline: could not start {}: {reason}", program.display()));
    ExitCode::from(code)
}

/// Returns the exit code of a command as a shell reports it.
fn exit_code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(0)));
    }
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
