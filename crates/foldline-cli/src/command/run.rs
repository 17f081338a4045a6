//! `foldline run`: one command, with a proxy of its own.

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

use super::report;
use crate::client::{self, BaseUrls, CallerEnv};
use crate::environment;
use crate::proxy_settings::ProxyFlags;
use crate::render::{format_number, format_percent};
use crate::settings::{ArchiveFlags, ModelFlags};
use crate::units::format_dollars;

/// Run a command with a proxy of its own
///
/// Starts the proxy on a free port of this machine, points the command at it, and ends with it: with its exit code,
/// and with a line on standard error that says what was saved. Signals go on to the command.
///
/// Any command is pointed by OPENAI_BASE_URL and ANTHROPIC_BASE_URL; claude, codex, opencode and aider also in
/// their own ways. A base URL that is set already is where requests go on to; if a foldline is there, they go to where
/// it would send them, so that nothing is folded twice.
#[derive(Args)]
#[command(after_long_help = crate::proxy_settings::HELP)]
pub(crate) struct RunCommand {
    #[command(flatten)]
    proxy: ProxyFlags,
    #[command(flatten)]
    models: ModelFlags,
    #[command(flatten)]
    archive: ArchiveFlags,
    /// A file for what the proxy has to say; without one it says nothing
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The command, behind `--`
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// The command is gone and nobody waits for answers any more; what has begun is written down, no more.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

impl RunCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(file) = &self.log {
            crate::log::init_file(file)?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let caller = runtime.block_on(bypass_running_proxies(environment::caller_env()));
        let settings = self.proxy.resolve_for_child(&caller)?;
        let settings =
            ProxySettings { models: self.models.resolve()?, namespace: self.archive.namespace()?, ..settings };
        let patience = Timeouts { shutdown: SHUTDOWN_TIMEOUT, ..settings.timeouts };
        let settings = ProxySettings { timeouts: patience, ..settings };
        let archive = self.archive.open_for_mode(settings.mode)?;
        let kept = archive.clone();
        let ended = runtime.block_on(async {
            let (mode, version) = (settings.mode, settings.openai.version().to_owned());
            let listen = settings.listen;
            let proxy =
                Proxy::bind(settings, archive).await.with_context(|| format!("could not listen on {listen}"))?;
            let anthropic = format!("http://{}", proxy.address());
            let bases = BaseUrls { openai: format!("{anthropic}{version}"), anthropic };
            let watch = proxy.stats_handle();
            let (stop, stopped) = oneshot::channel::<()>();
            let serving = tokio::spawn(proxy.run(async {
                let _ = stopped.await;
            }));

            let ended = run_child(&self.command, &bases, &caller).await;
            drop(stop);
            let _ = serving.await;
            let code = ended?;
            if let Some(line) = summary_line(mode, &watch.snapshot()) {
                report(&line);
            }
            Ok(code)
        });
        crate::runtime::end(runtime, kept);
        ended
    }
}

/// A base URL of the caller's at which a foldline answers stands for whoever is behind that.
async fn bypass_running_proxies(caller: CallerEnv) -> CallerEnv {
    let CallerEnv { mut openai, mut anthropic, .. } = caller;
    let at = |url: &Option<String>| url.as_deref().and_then(|url| url.parse().ok());
    if let Some(upstream) = at(&openai) {
        openai = probe::find_running_proxy(&upstream).await.map(|it| it.openai).or(openai);
    }
    if let Some(upstream) = at(&anthropic) {
        anthropic = probe::find_running_proxy(&upstream).await.map(|it| it.anthropic).or(anthropic);
    }
    CallerEnv { openai, anthropic, ..caller }
}

/// Runs the command to its end, and says how it ended.
async fn run_child(command: &[OsString], bases: &BaseUrls, caller: &CallerEnv) -> Result<ExitCode> {
    let (program, arguments) = command.split_first().context("there is no command to run")?;
    let pointed = client::client_overrides(program, bases, caller);
    let mut process = Command::new(program);
    process.args(&pointed.arguments).args(arguments);
    for (name, value) in &pointed.variables {
        match value {
            Some(value) => process.env(name, value),
            None => process.env_remove(name),
        };
    }
    // Taken over before the command is there, so that no signal ends us and leaves it behind.
    let mut signals = ForwardedSignals::register()?;
    let mut child = match process.spawn() {
        Ok(child) => child,
        Err(error) => {
            let program = program.display();
            let (code, why) = match error.kind() {
                ErrorKind::NotFound => (127, "there is no such command; is it installed, and on the PATH?".to_owned()),
                _ => (126, error.to_string()),
            };
            report(&format!("foldline: could not start {program}: {why}"));
            return Ok(ExitCode::from(code));
        }
    };
    loop {
        tokio::select! {
            status = child.wait() => return Ok(exit_code(status.context("the command got lost")?)),
            signal = signals.next() => signals.forward(signal, &child),
        }
    }
}

/// The exit code of a command, as a shell tells it.
fn exit_code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(128u8.saturating_add(u8::try_from(signal).unwrap_or(0)));
    }
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// What came of it, in a line; none when nothing happened.
fn summary_line(mode: ProxyMode, tally: &ProxyStats) -> Option<String> {
    if tally.requests == 0 {
        return None;
    }
    let requests = match tally.requests {
        1 => "1 request".to_owned(),
        many => format!("{} requests", format_number(many)),
    };
    let less = |to| format_percent(tally.received_tokens.saturating_sub(to), tally.received_tokens);
    let text = match mode {
        ProxyMode::Off => "passed through".to_owned(),
        ProxyMode::Observe => format!(
            "{} tokens; folding would have sent {} ({} less)",
            format_number(tally.received_tokens),
            format_number(tally.would_send_tokens),
            less(tally.would_send_tokens)
        ),
        ProxyMode::Fold if tally.sent_tokens == tally.received_tokens => {
            format!("{} tokens, nothing to fold", format_number(tally.received_tokens))
        }
        ProxyMode::Fold => {
            // A model of one's own has no price.
            let bill = match tally.saved_usd - tally.crease_cost_usd {
                0.0 => String::new(),
                net if net > 0.0 => format!(", about {} saved", format_dollars(net)),
                net => format!(", about {} spent to save more later", format_dollars(-net)),
            };
            format!(
                "{} tokens sent of {} ({} less){bill}",
                format_number(tally.sent_tokens),
                format_number(tally.received_tokens),
                less(tally.sent_tokens)
            )
        }
    };
    Some(format!("foldline: {requests}, {text}"))
}

/// Signals that are meant for the command.
#[cfg(unix)]
struct ForwardedSignals {
    terminate: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    quit: tokio::signal::unix::Signal,
    /// A terminal sends what its keys mean to everything in front of it, the command included; sent on, it
    /// would come twice, and twice means something else to some.
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
        // Until it is waited for, its number belongs to nobody else.
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        // A command that is just ending needs no signal.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }
}

/// Where there are no signals, keys reach the command by themselves; they are not to end us before it.
#[cfg(not(unix))]
struct ForwardedSignals;

#[cfg(not(unix))]
impl Signals {
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
        let mut tally = ProxyStats::default();
        assert_eq!(summary_line(ProxyMode::Fold, &tally), None, "nothing happened");
        (tally.requests, tally.received_tokens, tally.sent_tokens) = (12, 200_000, 50_000);
        (tally.saved_usd, tally.crease_cost_usd) = (1.5, 0.25);
        assert_eq!(
            summary_line(ProxyMode::Fold, &tally).unwrap(),
            "foldline: 12 requests, 50,000 tokens sent of 200,000 (75 % less), about $1.25 saved"
        );
        tally.would_send_tokens = 100_000;
        assert_eq!(
            summary_line(ProxyMode::Observe, &tally).unwrap(),
            "foldline: 12 requests, 200,000 tokens; folding would have sent 100,000 (50 % less)"
        );
        (tally.requests, tally.sent_tokens) = (1, 200_000);
        assert_eq!(
            summary_line(ProxyMode::Fold, &tally).unwrap(),
            "foldline: 1 request, 200,000 tokens, nothing to fold"
        );
    }
}
