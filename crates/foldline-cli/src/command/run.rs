//! `foldline run`: runs one command with its own proxy.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal, stderr, stdin, stdout};
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use foldline_server::proxy::{Proxy, ProxyMode, ProxySettings, ProxyStats, Timeouts, probe};
use tokio::process::Command;
use tokio::sync::oneshot;

use crate::client::{self, BaseUrls, CallerEnv};
use crate::environment;
use crate::output::report;
use crate::render::{format_number, format_percent};
use crate::settings::flags::{ProxyGroups, SettingFlags};
use crate::settings::{archive, proxy};
use crate::units::format_dollars;

/// Run a command with its own proxy
///
/// Starts the proxy on a free local port, points the command at it, and ends with the command: with its exit code and
/// a line on standard error that reports the savings. Signals are forwarded to the command.
///
/// Any command gets OPENAI_BASE_URL and ANTHROPIC_BASE_URL; claude, codex, opencode and aider also get their own
/// settings. A base URL that is already set becomes the upstream; if a foldline proxy runs there, its upstream is
/// used instead, so that nothing is folded twice.
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
        if let Some(file) = &self.log {
            crate::log::init_file(file)?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let caller = runtime.block_on(bypass_running_proxies(environment::caller_env()));
        let layers = proxy::layers_for_child(self.settings.load()?, &caller)?;
        let settings = proxy::resolve(&layers)?;
        let timeouts = Timeouts { shutdown: SHUTDOWN_TIMEOUT, ..settings.timeouts };
        let settings = ProxySettings { timeouts, ..settings };
        let archive = archive::open_for_mode(&layers, settings.mode)?;
        let archive_handle = archive.clone();
        let ended = runtime.block_on(async {
            let (mode, version) = (settings.mode, settings.openai.version().to_owned());
            let listen = settings.listen;
            let proxy =
                Proxy::bind(settings, archive).await.with_context(|| format!("could not listen on {listen}"))?;
            let anthropic = format!("http://{}", proxy.address());
            let bases = BaseUrls { openai: format!("{anthropic}{version}"), anthropic };
            let stats_handle = proxy.stats_handle();
            let (stop, stopped) = oneshot::channel::<()>();
            let serving = tokio::spawn(proxy.run(async {
                let _ = stopped.await;
            }));

            let ended = run_child(&self.command, &bases, &caller).await;
            drop(stop);
            let _ = serving.await;
            let code = ended?;
            if let Some(line) = summary_line(mode, &stats_handle.snapshot()) {
                report(&line);
            }
            Ok(code)
        });
        crate::runtime::end(runtime, archive_handle);
        ended
    }
}

/// Replaces base URLs at which a foldline proxy answers by the upstreams of that proxy.
async fn bypass_running_proxies(caller: CallerEnv) -> CallerEnv {
    let CallerEnv { mut openai, mut anthropic, .. } = caller;
    let parsed = |url: &Option<String>| url.as_deref().and_then(|url| url.parse().ok());
    if let Some(upstream) = parsed(&openai) {
        openai = probe::find_running_proxy(&upstream).await.map(|it| it.openai).or(openai);
    }
    if let Some(upstream) = parsed(&anthropic) {
        anthropic = probe::find_running_proxy(&upstream).await.map(|it| it.anthropic).or(anthropic);
    }
    CallerEnv { openai, anthropic, ..caller }
}

/// Runs the command to its end and returns its exit code.
async fn run_child(command: &[OsString], bases: &BaseUrls, caller: &CallerEnv) -> Result<ExitCode> {
    let (program, arguments) = command.split_first().context("no command to run")?;
    let overrides = client::client_overrides(program, bases, caller);
    let mut process = Command::new(program);
    process.args(&overrides.arguments).args(arguments);
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
        Err(error) => {
            let program = program.display();
            let (code, reason) = match error.kind() {
                ErrorKind::NotFound => {
                    (127, "command not found; check that it is installed and on the PATH".to_owned())
                }
                _ => (126, error.to_string()),
            };
            report(&format!("foldline: could not start {program}: {reason}"));
            return Ok(ExitCode::from(code));
        }
    };
    loop {
        tokio::select! {
            status = child.wait() => return Ok(exit_code(status.context("could not wait for the command")?)),
            signal = signals.next() => signals.forward(signal, &child),
        }
    }
}

/// Returns the exit code of a command as a shell reports it.
fn exit_code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(0)));
    }
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Formats the savings as one line; `None` if there was no request.
fn summary_line(mode: ProxyMode, stats: &ProxyStats) -> Option<String> {
    if stats.requests == 0 {
        return None;
    }
    let requests = match stats.requests {
        1 => "1 request".to_owned(),
        many => format!("{} requests", format_number(many)),
    };
    let less = |to| format_percent(stats.received_tokens.saturating_sub(to), stats.received_tokens);
    let text = match mode {
        ProxyMode::Off => "passed through".to_owned(),
        ProxyMode::Observe => format!(
            "{} tokens; folding would have sent {} ({} less)",
            format_number(stats.received_tokens),
            format_number(stats.would_send_tokens),
            less(stats.would_send_tokens)
        ),
        ProxyMode::Fold if stats.sent_tokens == stats.received_tokens => {
            format!("{} tokens, nothing to fold", format_number(stats.received_tokens))
        }
        ProxyMode::Fold => {
            // A local model has no price.
            let cost = match stats.saved_usd - stats.crease_cost_usd {
                0.0 => String::new(),
                net if net > 0.0 => format!(", about {} saved", format_dollars(net)),
                net => format!(", about {} spent to save more later", format_dollars(-net)),
            };
            format!(
                "{} tokens sent of {} ({} less){cost}",
                format_number(stats.sent_tokens),
                format_number(stats.received_tokens),
                less(stats.sent_tokens)
            )
        }
    };
    Some(format!("foldline: {requests}, {text}"))
}

/// Signals that are forwarded to the command.
#[cfg(unix)]
struct ForwardedSignals {
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    /// A terminal sends the signals of its keys to the whole foreground process group, the command included;
    /// forwarded, they would arrive twice, which some programs treat differently.
    at_terminal: bool,
}

#[cfg(unix)]
impl ForwardedSignals {
    fn register() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            at_terminal: stdin().is_terminal() || stdout().is_terminal() || stderr().is_terminal(),
        })
    }

    async fn next(&mut self) -> rustix::process::Signal {
        use rustix::process::Signal;
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hang_up.recv() => Signal::HUP,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.quit.recv() => Signal::QUIT,
        }
    }

    fn forward(&self, signal: rustix::process::Signal, child: &tokio::process::Child) {
        use rustix::process::{Pid, Signal, kill_process};
        if self.at_terminal && [Signal::INT, Signal::QUIT].contains(&signal) {
            return;
        }
        // The process id is not reused before the child is waited for.
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // Fails only if the command is just ending.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }
}

/// Without Unix signals, Ctrl-C reaches the command directly; it must not end this process first.
#[cfg(not(unix))]
struct ForwardedSignals;

#[cfg(not(unix))]
impl ForwardedSignals {
    fn register() -> Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }

    fn forward(&self, (): (), _: &tokio::process::Child) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_line_reports_savings() {
        let mut stats = ProxyStats::default();
        assert_eq!(summary_line(ProxyMode::Fold, &stats), None, "nothing happened");
        (stats.requests, stats.received_tokens, stats.sent_tokens) = (12, 200_000, 50_000);
        (stats.saved_usd, stats.crease_cost_usd) = (1.5, 0.25);
        assert_eq!(
            summary_line(ProxyMode::Fold, &stats).unwrap(),
            "foldline: 12 requests, 50,000 tokens sent of 200,000 (75 % less), about $1.25 saved"
        );
        stats.would_send_tokens = 100_000;
        assert_eq!(
            summary_line(ProxyMode::Observe, &stats).unwrap(),
            "foldline: 12 requests, 200,000 tokens; folding would have sent 100,000 (50 % less)"
        );
        (stats.requests, stats.sent_tokens) = (1, 200_000);
        assert_eq!(
            summary_line(ProxyMode::Fold, &stats).unwrap(),
            "foldline: 1 request, 200,000 tokens, nothing to fold"
        );
    }
}
