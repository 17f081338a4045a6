//! `foldline serve`: the drop-in proxy.

use std::io::{ErrorKind, IsTerminal, stderr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use foldline_server::proxy::{Proxy, ProxyMode, ProxySettings, StatsHandle, Tenancy, TlsReload, TokenReload};
use tokio::sync::Notify;

use crate::command::run::summary::summary_line;
use crate::command::status::signed_dollars;
use crate::output::{print_stdout, report};
use crate::policy_replay::LocalReplay;
use crate::render::{format_number, format_percent};
use crate::settings::flags::{ProxyGroups, SettingFlags};
use crate::settings::layers::SettingLayers;
use crate::settings::{archive, proxy};

/// Serve the drop-in proxy
///
/// Point an agent's base URL at it: OPENAI_BASE_URL=http://127.0.0.1:8787/v1, or
/// ANTHROPIC_BASE_URL=http://127.0.0.1:8787. Requests are forwarded to the provider with the agent's own key, folded
/// when they must be or when it pays; everything else passes through. Terms are explained in docs/glossary.md.
#[derive(Args)]
#[command(after_long_help = crate::settings::proxy::HELP)]
pub(crate) struct ServeCommand {
    #[command(flatten)]
    settings: SettingFlags<ProxyGroups>,
}

impl ServeCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let layers = self.settings.load()?;
        let mut settings = proxy::resolve(&layers)?;
        if settings.is_open() && settings.tenancy.is_none_or(|tenancy| tenancy == Tenancy::Single) {
            settings.policy_replay = LocalReplay::new(settings.policy.clone()).map(|replay| Arc::new(replay) as _);
        }
        let archive = archive::open_for_proxy(&layers, &settings)?;
        crate::log::init_stderr();
        #[cfg(unix)]
        raise_open_file_limit();
        let runtime = crate::runtime::build()?;
        let archive_handle = archive.clone();
        let served = runtime.block_on(async {
            let (listen, scheme) = (settings.listen, if settings.tls.is_some() { "https" } else { "http" });
            let (greeting, mode) = (startup_message(&settings), settings.mode);
            let proxy = Proxy::bind(settings, archive).await.map_err(|error| {
                let in_use = error.kind() == ErrorKind::AddrInUse;
                let advice =
                    if in_use { "; if another foldline is running, choose another address with --listen" } else { "" };
                anyhow!("could not listen on {listen}: {error}{advice}")
            })?;
            let (address, tenancy) = (proxy.address(), proxy.tenancy());
            print_stdout(&format!("foldline listens on {scheme}://{address}\n{greeting}  tenancy    {tenancy}\n  dashboard  {scheme}://{address}/foldline/\n"))?;
            let stats = proxy.stats_handle();
            let reporting = stderr().is_terminal().then(|| tokio::spawn(report_activity(stats.clone())));
            let tokens = proxy.token_reload().filter(|_| proxy::has_token_file(&layers));
            let reloads = ServeReloads { tls: proxy.tls_reload(), tokens: tokens.map(|tokens| (tokens, layers)) };
            let reloading = reloads.is_any().then(|| tokio::spawn(reloads.run_on_hangup()));
            run_until_signaled(proxy).await;
            reporting.into_iter().chain(reloading).for_each(|task| task.abort());
            if let Some(line) = summary_line(mode, &stats.snapshot()) {
                report(&line);
            }
            Ok(ExitCode::SUCCESS)
        });
        crate::runtime::end(runtime, archive_handle);
        served
    }
}

/// Time between two lines about activity.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Prints a line for each minute with requests.
async fn report_activity(stats: StatsHandle) {
    let mut before = stats.snapshot();
    loop {
        tokio::time::sleep(REPORT_INTERVAL).await;
        let now = stats.snapshot();
        if now.requests == before.requests {
            continue;
        }
        let (received, sent) = (now.received_tokens - before.received_tokens, now.sent_tokens - before.sent_tokens);
        report(&format!(
            "last minute: {} requests, {} tokens sent of {} ({} less), net {}",
            format_number(now.requests - before.requests),
            format_number(sent),
            format_number(received),
            format_percent(received.saturating_sub(sent), received),
            signed_dollars(now.net_usd() - before.net_usd())
        ));
        before = now;
    }
}

/// Raises the limit of open files: every request holds two connections, and shells start with a limit of 1,024 for the
/// sake of programs that use `select`.
#[cfg(unix)]
fn raise_open_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const MAX_OPEN_FILES: u64 = 1 << 16;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES);
    if current.is_some_and(|current| current < wanted) {
        // If it is refused, connections beyond the limit wait.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

fn startup_message(settings: &ProxySettings) -> String {
    let mode = match settings.mode {
        ProxyMode::Fold => "folds",
        ProxyMode::Observe => "observes; every request is forwarded unchanged",
        ProxyMode::Off => "passes everything through",
    };
    let upstreams = settings.all_upstreams().map(|(name, url)| format!("  {name:<9}  {url}\n"));
    format!("{}  mode       {mode}\n", upstreams.collect::<String>())
}

/// Serves until the process should end. Open responses get time to end; a second signal ends the wait.
async fn run_until_signaled(proxy: Proxy) {
    let stopping = Notify::new();
    let first = async {
        shutdown_signal().await;
        stopping.notify_one();
    };
    let second = async {
        stopping.notified().await;
        shutdown_signal().await;
    };
    tokio::select! {
        () = proxy.run(first) => {}
        () = second => {}
    }
}

/// The files that are loaded again at SIGHUP.
struct ServeReloads {
    tls: Option<TlsReload>,
    /// The settings have the path of the token file, and the tokens that are not in it.
    tokens: Option<(TokenReload, SettingLayers)>,
}

impl ServeReloads {
    /// Returns true if there are such files. Otherwise the signal keeps its usual effect, the end of the process.
    fn is_any(&self) -> bool {
        self.tls.is_some() || self.tokens.is_some()
    }

    /// Loads the files again at each signal.
    async fn run_on_hangup(self) {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
            while hangup.recv().await.is_some() {
                self.reload();
            }
        }
        #[cfg(not(unix))]
        drop(self);
    }

    #[cfg(unix)]
    fn reload(&self) {
        match self.tls.as_ref().map(TlsReload::reload) {
            None => {}
            Some(Ok(())) => report("foldline: the TLS files were loaded again"),
            Some(Err(error)) => report(&format!("foldline: {error}; the previous TLS files stay in use")),
        }
        let replace = |(reload, layers): &(TokenReload, SettingLayers)| {
            let tokens = proxy::access_tokens(layers)?;
            let count = tokens.len();
            reload.replace_tokens(tokens)?;
            anyhow::Ok(count)
        };
        match self.tokens.as_ref().map(replace) {
            None => {}
            Some(Ok(count)) => {
                report(&format!("foldline: the token file was loaded again; {count} tokens are accepted"))
            }
            Some(Err(error)) => report(&format!("foldline: {error:#}; the previous tokens stay in use")),
        }
    }
}

/// Completes when the process should end: on Ctrl-C or SIGTERM.
async fn shutdown_signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = interrupt.await;
}
